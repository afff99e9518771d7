"""File system calls, collected in a place where tests can make any of them fail.

The journal's modules may be compiled, so that patching `os` or subclassing would be ignored: a
fault is passed in instead, `Files(fdatasync=broken)`. Whatever is not given is the real call. The
lock and the pause are given, too, where threads are simulated.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from time import sleep
from typing import Final, final

from tallymark.journal.threads import Lock

IOV_MAX: Final = 1024
"""Maximum number of buffers per pwritev: POSIX guarantees 16, Linux allows 1024."""


OUT_OF_FILES: Final = (errno.EMFILE, errno.ENFILE)
"""Errors that mean that the process, or the machine, has reached its limit of open files."""
NOT_LINKED: Final = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP)
"""Errors of a hard link that a copy does not meet."""
FOR_READING: Final = 4
"""Number of descriptors reserved for reads of the event loop's thread."""
AGAIN_S: Final = 0.02
"""Delay between two attempts to open a file while no descriptor is available, seconds."""
PART: Final = 4 << 20
"""Bytes of a removed file that are given back to the file system at a time."""
BETWEEN_PARTS_S: Final = 0.001
"""Delay between two such parts, seconds, in which syncs of other files go on."""


@final
class Named:
    """Naming of a file in an OSError that names none, as those of reads and writes do."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(self._path)


def _free_bytes(folder: str) -> int:
    facts = os.statvfs(folder)
    return facts.f_bavail * facts.f_frsize


@final
class Files:
    """The calls, one per attribute, with the signatures they have in `os`."""

    __slots__ = (
        "_for_reading", "_guard", "_open", "_set_aside", "_sleep", "_wanted", "fallocate",
        "fdatasync", "free_bytes", "fsync", "ftruncate", "is_short", "pread", "pwritev", "rename",
        "unlink", "urandom",
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
        urandom: Callable[[int], bytes] = os.urandom,
        lock: Callable[[], Lock] = threading.Lock,
        sleep: Callable[[float], None] = sleep,
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
        self.urandom = urandom
        self._open = open
        self._sleep = sleep
        self._guard = lock()
        self._set_aside: list[int] = []
        """Reserved descriptors. One is closed when a file must be opened and no other is
        available."""
        self._for_reading: list[int] = []
        """Reserved descriptors that only `open_for_reading` takes: its caller must not wait."""
        self._wanted = 0
        self.is_short = False
        """True if reserved descriptors had to be closed."""

    def set_aside(self, count: int) -> None:
        """Reserve descriptors for the journal, independent of what else the process has open."""
        self._wanted = count
        with self._guard:
            self._count()
        self.restore()

    def restore(self) -> bool:
        """Reserve the descriptors again that were closed. False: the process still has none
        available."""
        reading = FOR_READING if self._wanted else 0
        return self._fill(self._for_reading, reading) and self._fill(self._set_aside, self._wanted)

    def _fill(self, reserve: list[int], wanted: int) -> bool:
        while len(reserve) < wanted:
            try:
                spare = self._open("/dev/null", os.O_RDONLY | os.O_CLOEXEC, 0)
            except OSError as error:
                if error.errno not in OUT_OF_FILES:
                    raise
                return False
            with self._guard:
                reserve.append(spare)
                self._count()
        return True

    def _count(self) -> None:
        """Note whether descriptors are missing in the reserves, which have changed."""
        self.is_short = self._wanted > 0 and (
            len(self._set_aside) < self._wanted or len(self._for_reading) < FOR_READING
        )

    def give_back(self) -> None:
        """Close the reserved descriptors; no more files are opened."""
        self._wanted = 0
        with self._guard:
            spares = self._set_aside + self._for_reading
            self._set_aside.clear()
            self._for_reading.clear()
            self._count()
        for spare in spares:
            os.close(spare)

    def open(self, path: str, flags: int, mode: int = 0o600) -> int:
        """Open a file. If the process has no descriptor left, a reserved one is used; if the
        machine has none, wait. Raises any other OSError."""
        try:
            return self._open(path, flags | os.O_CLOEXEC, mode)
        except OSError as error:
            if error.errno not in OUT_OF_FILES or not self._wanted:
                raise
        while True:
            with self._guard:
                if self._set_aside:
                    os.close(self._set_aside.pop())
                    self._count()
                try:
                    return self._open(path, flags | os.O_CLOEXEC, mode)
                except OSError as error:
                    if error.errno not in OUT_OF_FILES or not self._wanted:
                        raise
                is_out = not self._set_aside
            if is_out:
                self._sleep(AGAIN_S)

    def open_for_reading(self, path: str) -> int:
        """Open a file as `open` does, on a thread that must not wait: that of the event loop. It
        has a reserve of its own, whatever the journal's threads used up. It waits only where the
        machine has no descriptors and others take each that is given up here.

        Between closing a reserved descriptor and opening the file no other retry is made."""
        while True:
            with self._guard:
                while True:
                    try:
                        return self._open(path, os.O_RDONLY | os.O_CLOEXEC, 0)
                    except OSError as error:
                        if error.errno not in OUT_OF_FILES or not self._wanted:
                            raise
                    if self._for_reading:
                        os.close(self._for_reading.pop())
                    elif self._set_aside:
                        os.close(self._set_aside.pop())
                    else:
                        break
                    self._count()
            self._sleep(AGAIN_S)

    def read_all(self, path: str) -> bytes:
        """Return the content of a file. Raises OSError."""
        fd = self.open(path, os.O_RDONLY)
        try:
            return self.read_exactly(fd, os.fstat(fd).st_size, 0)
        finally:
            os.close(fd)

    def write_all(self, fd: int, buffers: list[bytes], offset: int) -> int:
        """Write the buffers end to end from offset on, continuing after short writes.

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
        """Read size bytes from offset on; fewer only at the end of the file."""
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
        """Replace the file `name` by one with this content, atomically. On OSError, and what
        `chunks` raises, the folder is unchanged, except for a .tmp file if even its removal
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
        except Exception:
            if os.path.exists(temporary):
                self.unlink(temporary)
            raise
        self.sync_folder(folder)

    def remove(self, folder: Path, name: str) -> None:
        """Remove a file, durably, and give its space back a part at a time: what frees 64 MiB at
        once keeps whoever syncs another file waiting, for 20 ms [ext4]. A file that has another
        name, as in a backup, or that somebody else has open, stays as it is for them. Raises
        OSError: it is not there, or the removal is not on disk; then its content is whole."""
        path = str(folder / name)
        fd = self.open(path, os.O_RDWR)
        try:
            self.unlink(path)
            self.sync_folder(folder)
            facts = os.fstat(fd)
            if not facts.st_nlink and _is_alone(fd):
                for size in range(facts.st_size - PART, 0, -PART):
                    self.ftruncate(fd, size)
                    self._sleep(BETWEEN_PARTS_S)
        finally:
            os.close(fd)

    def sync_file(self, path: Path) -> None:
        """Sync a file's content to disk."""
        fd = self.open(str(path), os.O_RDWR)
        try:
            self.fsync(fd)
        finally:
            os.close(fd)

    def sync_folder(self, folder: Path) -> None:
        """Sync the folder: creations, renames and removals in it."""
        fd = self.open(str(folder), os.O_RDONLY | os.O_DIRECTORY)
        try:
            self.fsync(fd)
        finally:
            os.close(fd)


def _rest(buffers: list[bytes], done: int) -> list[bytes]:
    """Return the buffers without their first `done` bytes."""
    for i, buffer in enumerate(buffers):
        if done < len(buffer):
            return [buffer[done:], *buffers[i + 1 :]]
        done -= len(buffer)
    return []


def _is_alone(fd: int) -> bool:
    """Return whether nobody else has the file open, in whatever process: only then a lease for
    writing is given. Where the file system has none, False."""
    try:
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)  # which is ignored, unlike that of a lease
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError:
        return False
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return True


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
