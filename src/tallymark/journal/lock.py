"""One broker per data folder: an flock on `lock`, which the kernel drops with the process."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import final


class FolderInUse(Exception):
    """Another process uses the data folder; `pid` is the one it wrote into the lock file, 0 if
    unknown."""

    def __init__(self, folder: Path, pid: int) -> None:
        super().__init__(f"data folder {folder} is in use by process {pid or 'unknown'}")
        self.folder = folder
        self.pid = pid


@final
class FolderLock:
    """A lock on a data folder, from creation to `release` or the end of the process."""

    __slots__ = ("_fd",)

    def __init__(self, folder: Path) -> None:
        """Lock the folder. Raises FolderInUse if another opener, perhaps in this process, holds
        it."""
        fd = os.open(folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = os.pread(fd, 32, 0).strip()
            os.close(fd)
            raise FolderInUse(folder, int(text) if text.isdigit() else 0) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._fd = fd

    def release(self) -> None:
        """Release the lock. The file stays: removing it would let two openers lock two inodes."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
