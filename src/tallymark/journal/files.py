"""The operating system's calls, gathered where a test can make any of them fail.

The journal's modules may be compiled, so that patching `os` or subclassing would be ignored: a
fault is passed in instead, `Files(fdatasync=broken)`. Whatever is not given is the real call.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from time import sleep
from typing import Final, final

IOV_MAX: Final = 1024
"""Buffers per pwritev; POSIX guarantees 16, Linux gives 1024."""


OUT_OF_FILES: Final = (errno.EMFILE, errno.ENFILE)
"""The process, or the machine, has as many files open as it may."""
AGAIN_S: Final = 0.02
"""Between two attempts to open a file while nothing is left of what was set aside."""


def _free_bytes(folder: str) -> int:
    facts = os.statvfs(folder)
    return facts.f_bavail * facts.f_frsize


@final
class Files:
    """Each attribute is one call, with the signature it has in `os`."""

    __slots__ = (
        "_guard", "_open", "_set_aside", "_wanted", "fallocate", "fdatasync", "free_bytes", "fsync",
        "ftruncate", "pread", "pwritev", "rename", "unlink",
    )  # fmt: skip

    def __init__(
        self,
        pwritev: Callable[[int, Sequence[bytes], int], int] = os.pwritev,
        pread: Callable[[int, int, int], bytes] = os.pread,
        fdatasync: Callable[[int], None] = os.fdatasync,
        fsync: Callable[[int], None] = os.fsync,
        fallocate: Callable[[int, int, int], None] = os.posix_fallocate,
        ftruncate: Callable[[int, int], None] = os.ftruncate,
        rename: Callable[[str, str], None] = os.rename,
        unlink: Callable[[str], None] = os.unlink,
        free_bytes: Callable[[str], int] = _free_bytes,
        open: Callable[[str, int, int], int] = os.open,
    ) -> None:
        self.pwritev = pwritev
        self.pread = pread
        self.fdatasync = fdatasync
        self.fsync = fsync
        self.fallocate = fallocate
        self.ftruncate = ftruncate
        self.rename = rename
        self.unlink = unlink
        self.free_bytes = free_bytes
        self._open = open
        self._guard = threading.Lock()
        self._set_aside: list[int] = []
        """Descriptors that are given up where a file is to be opened and there is none left."""
        self._wanted = 0

    def set_aside(self, count: int) -> None:
        """Keep so many descriptors for the journal, whatever else the process has open."""
        self._wanted = count
        self.restore()

    def restore(self) -> bool:
        """Set aside again what was given up. False: the process still has no descriptor left."""
        while len(self._set_aside) < self._wanted:
            try:
                spare = self._open("/dev/null", os.O_RDONLY | os.O_CLOEXEC, 0)
            except OSError as error:
                if error.errno not in OUT_OF_FILES:
                    raise
                return False
            with self._guard:
                self._set_aside.append(spare)
        return True

    @property
    def is_short(self) -> bool:
        """Whether descriptors that were set aside had to be given up."""
        return len(self._set_aside) < self._wanted

    def give_back(self) -> None:
        """Close what is set aside: nothing is opened any more."""
        self._wanted = 0
        with self._guard:
            spares = self._set_aside
            self._set_aside = []
        for spare in spares:
            os.close(spare)

    def open(self, path: str, flags: int, mode: int = 0o600) -> int:
        """Open a file. Where the process has no descriptor left one of those set aside is used;
        where the machine has none, wait until it has. Raises any other OSError."""
        while True:
            try:
                return self._open(path, flags | os.O_CLOEXEC, mode)
            except OSError as error:
                if error.errno not in OUT_OF_FILES or not self._wanted:
                    raise
            with self._guard:
                spare = self._set_aside.pop() if self._set_aside else -1
            if spare >= 0:
                os.close(spare)
            else:
                sleep(AGAIN_S)

    def read_all(self, path: str) -> bytes:
        """The content of a file. Raises OSError."""
        fd = self.open(path, os.O_RDONLY)
        try:
            return self.read_exactly(fd, os.fstat(fd).st_size, 0)
        finally:
            os.close(fd)

    def write_all(self, fd: int, buffers: list[bytes], offset: int) -> int:
        """Write the buffers end to end from offset on, going on after short writes.

        Returns the bytes written. Raises OSError as pwritev does, also for a write of 0 bytes.
        """
        start = offset
        for first in range(0, len(buffers), IOV_MAX):
            group = buffers[first : first + IOV_MAX]
            left = 0
            for buffer in group:
                left += len(buffer)
            while left:
                done = self.pwritev(fd, group, offset)
                if done <= 0:
                    raise OSError(errno.EIO, f"pwritev wrote {done} of {left} bytes")
                offset += done
                left -= done
                if left:
                    group = _rest(group, done)
        return offset - start

    def read_exactly(self, fd: int, size: int, offset: int) -> bytes:
        """size bytes from offset on; fewer only at the end of the file."""
        data = self.pread(fd, size, offset)
        if len(data) == size or not data:
            return data
        parts = [data]
        have = len(data)
        while have < size:
            data = self.pread(fd, size - have, offset + have)
            if not data:
                break
            parts.append(data)
            have += len(data)
        return b"".join(parts)

    def replace(self, folder: Path, name: str, chunks: Iterable[list[bytes]]) -> None:
        """Put a file of this content in place of `name`: wholly, or not at all, whatever stops
        the machine. On OSError the folder is as it was, but for a .tmp file if even its removal
        failed."""
        temporary = str(folder / (name + ".tmp"))
        try:
            fd = self.open(temporary, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
            try:
                size = 0
                for buffers in chunks:
                    size += self.write_all(fd, buffers, size)
                self.fsync(fd)
            finally:
                os.close(fd)
            self.rename(temporary, str(folder / name))
        except OSError:
            if os.path.exists(temporary):
                self.unlink(temporary)
            raise
        self.sync_folder(folder)

    def sync_file(self, path: Path) -> None:
        """Make a file's content last."""
        fd = self.open(str(path), os.O_RDWR)
        try:
            self.fsync(fd)
        finally:
            os.close(fd)

    def sync_folder(self, folder: Path) -> None:
        """Make creations, renames and removals in the folder last."""
        fd = self.open(str(folder), os.O_RDONLY | os.O_DIRECTORY)
        try:
            self.fsync(fd)
        finally:
            os.close(fd)


def _rest(buffers: list[bytes], done: int) -> list[bytes]:
    """What is left of the buffers behind their first `done` bytes."""
    for i, buffer in enumerate(buffers):
        if done < len(buffer):
            return [buffer[done:], *buffers[i + 1 :]]
        done -= len(buffer)
    return []
