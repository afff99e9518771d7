"""A disk that forgets what was not synced.

The broker's calls go to a real folder, so that whatever reads files sees what an operating system
would show. Beside it the disk keeps what would be there after a power cut: of each file the content
of its last sync and the writes since, in pieces of a sector; of the folder its names at the last
sync and the changes since. `image` draws which of those have reached the disk.

What is not done through journal.files.Files (settings, users) is on the disk at once.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from tallymark.journal.files import Files
from tallymark.simulation.threads import Crashed, Process

SECTOR: Final = 512
LAST_SYNC_S: Final = 0.1
"""Most seconds of a sync in which the power goes: whoever does not wait for its end is caught."""
ENDLESS: Final = 1 << 40
"""Bytes of a disk that no world fills."""


@dataclass
class Faults:
    """Chances per call, and latencies."""

    write_s: float = 0.000_03
    """Mean seconds of a write."""
    sync_s: float = 0.001
    """Mean seconds of a sync."""
    stall: float = 0.0
    """Chance that a call takes up to a second."""
    write_error: float = 0.0
    """Chance that a write fails with EIO."""
    sync_error: float = 0.0
    """Chance that a sync fails with EIO, and what it would have synced is lost."""
    short_write: float = 0.0
    """Chance that a write takes only part of what it is given."""
    room_bytes: int = ENDLESS
    """Bytes that files may have together."""
    crash_at: tuple[int, ...] = ()
    """Numbers of the calls, of those that change something, in which the power goes: one for each
    life of the process, from the first on."""


@dataclass
class _File:
    """One inode."""

    durable: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, bytes]] = field(default_factory=list)
    """Writes since the last sync: offset and data; (size, b"") is a new size."""


class Disk:
    """The disk of one process, from a start to its end."""

    def __init__(
        self, folder: Path, process: Process, faults: Faults, random: Random, life: int
    ) -> None:
        self.folder = folder
        self.faults = faults
        self.calls = 0
        """Calls so far that change something."""
        self.full_until_ns = 0
        """Time until which there is no room but for `full_bytes` in all."""
        self.full_bytes = 0
        self.unreadable_until_ns = 0
        """Time until which half of the reads of bodies fail."""
        self.failed_reads = 0
        self.most_open = ENDLESS
        """Files that the process may have open until `no_files_until_ns`."""
        self.no_files_until_ns = 0
        self.refused_opens = 0
        self.is_lying = False
        """True when syncs do nothing, and say that they did."""
        self._open_files: dict[int, tuple[int, int]] = {}
        """Files that were opened, by descriptor: some of them may be closed again."""
        self.fetches = 0
        """Reads of the loop's thread so far: bodies that had left memory."""
        self._process = process
        self._random = random
        self.crashes_in_sync = False
        """True when the power goes in the next sync."""
        self.crash_among_files = 0
        """Number of the call, of those from now on that change a name or sync the folder, in which
        it goes; 0: in none. Calls for spare segments, which are most, do not count."""
        self.crash_at = faults.crash_at[life - 1] if life <= len(faults.crash_at) else 0
        """Number of the call in which the power goes; 0: in none."""
        self._inodes: dict[int, _File] = {}
        self._names: dict[str, int] = {}
        """Names on the disk, and their inodes."""
        self._changes: list[tuple[str, str, int]] = []
        """Changes to the folder since it was synced: ("name", name, inode), ("gone", name, 0)."""
        self._known: set[str] = set()
        """Names that were ever used through this disk: the others are somebody else's, and on the
        disk as the folder shows them."""
        with os.scandir(folder) as found:
            for one in found:
                if one.is_file():
                    with open(one.path, "rb", buffering=0) as file:
                        self._inodes[one.inode()] = _File(bytearray(file.read()))
                    self._names[one.name] = one.inode()
        self.files = Files(
            pwritev=self._pwritev, pread=self._pread, fdatasync=self._fdatasync, fsync=self._fsync,
            fallocate=self._fallocate, ftruncate=self._ftruncate, rename=self._rename,
            unlink=self._unlink, free_bytes=self._free_bytes, open=self._open,
            urandom=random.randbytes, lock=process.threads.lock, sleep=process.spend,
        )  # fmt: skip

    # -- calls

    def _begin(self, seconds: float, is_sync: bool = False, is_of_names: bool = False) -> None:
        """Begin a call that changes something. Raises Crashed."""
        process = self._process
        if process.is_dead or process.is_doomed:
            raise Crashed
        self.calls += 1
        if self._chance(self.faults.stall):
            stall_s = self._random.random()
            process.world.troubles.add(process.world.now_ns, stall_s)
            process.spend(stall_s)
        process.spend(self._random.expovariate(1 / seconds) if seconds else 0.0)
        if is_sync and self.crashes_in_sync:  # one that takes its time
            process.spend(self._random.random() * LAST_SYNC_S)
        if (
            self.calls == self.crash_at
            or (is_sync and self.crashes_in_sync)
            or (is_of_names and self._is_last_of_names())
        ):
            process.is_doomed = True
            process.spend(3600.0)  # a thread never comes back
            raise Crashed

    def _is_upkeep(self) -> bool:
        """Return whether the names that changed are not those of spare segments only."""
        return any(not _is_spare(name) for _, name, _ in self._changes)

    def _is_last_of_names(self) -> bool:
        """Count a call that changes a name, and return whether the power goes in it."""
        self.crash_among_files -= 1
        return self.crash_among_files == 0

    def _chance(self, chance: float) -> bool:
        return chance > 0 and self._random.random() < chance

    def _open(self, path: str, flags: int, mode: int) -> int:
        if self._process.world.now_ns < self.no_files_until_ns and self._count() >= self.most_open:
            self.refused_opens += 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        name = os.path.basename(path)
        is_new = flags & os.O_CREAT and not os.path.exists(path)
        if is_new:
            self._begin(0.0)
        fd = os.open(path, flags, mode)
        facts = os.fstat(fd)
        self._open_files[fd] = facts.st_dev, facts.st_ino
        if not stat.S_ISREG(facts.st_mode):
            return fd
        self._known.add(name)
        if is_new:
            self._inodes[facts.st_ino] = _File()
            self._changes.append(("name", name, facts.st_ino))
        elif flags & os.O_TRUNC:
            self._inodes[facts.st_ino].pending.append((0, b""))
        return fd

    def _pwritev(self, fd: int, buffers: Sequence[bytes], offset: int) -> int:
        self._begin(self.faults.write_s)
        if self._chance(self.faults.write_error):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        data = b"".join(buffers)
        if len(data) > 1 and self._chance(self.faults.short_write):
            data = data[: self._random.randrange(1, len(data))]
        facts = os.fstat(fd)
        self._take(offset + len(data) - facts.st_size)
        self._inodes[facts.st_ino].pending.append((offset, data))
        return os.pwrite(fd, data, offset)

    def _count(self) -> int:
        """Return how many files the process has open."""
        count = 0
        for fd, file in list(self._open_files.items()):
            with contextlib.suppress(OSError):
                facts = os.fstat(fd)
                if (facts.st_dev, facts.st_ino) == file:
                    count += 1
                    continue
            del self._open_files[fd]
        return count

    def take_files(self, until_ns: int) -> None:
        """Let the process have no more files open than it has now, until that time."""
        self.most_open, self.no_files_until_ns = self._count(), until_ns

    def _pread(self, fd: int, size: int, offset: int) -> bytes:
        if self._process.world.now_ns < self.unreadable_until_ns and self._chance(0.5):
            self.failed_reads += 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if self._process.running is None:
            self.fetches += 1
        return os.pread(fd, size, offset)

    def _fdatasync(self, fd: int) -> None:
        self._sync(fd)

    def _fsync(self, fd: int) -> None:
        self._sync(fd)

    def _sync(self, fd: int) -> None:
        facts = os.fstat(fd)
        is_folder = stat.S_ISDIR(facts.st_mode)
        file = None if is_folder else self._inodes[facts.st_ino]
        covered = len(self._changes) if file is None else len(file.pending)
        self._begin(self.faults.sync_s, is_sync=True, is_of_names=is_folder and self._is_upkeep())
        if self._chance(self.faults.sync_error):
            if file is not None:  # the pages count as clean and are not on the disk
                file.pending = file.pending[covered:]
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if self.is_lying:
            return
        if file is None:
            for change in self._changes[:covered]:
                _change(self._names, change)
            self._changes = self._changes[covered:]
        else:
            for offset, data in file.pending[:covered]:
                _write(file.durable, offset, data)
            file.pending = file.pending[covered:]

    def _fallocate(self, fd: int, offset: int, size: int) -> None:
        self._begin(self.faults.write_s)
        facts = os.fstat(fd)
        self._take(offset + size - facts.st_size)
        os.ftruncate(fd, max(facts.st_size, offset + size))
        self._inodes[facts.st_ino].pending.append((max(facts.st_size, offset + size), b""))

    def _ftruncate(self, fd: int, size: int) -> None:
        self._begin(self.faults.write_s)
        os.ftruncate(fd, size)
        self._inodes[os.fstat(fd).st_ino].pending.append((size, b""))

    def _rename(self, source: str, target: str) -> None:
        self._begin(self.faults.write_s, is_of_names=not _is_spare(source))
        inode = os.stat(source).st_ino
        os.rename(source, target)
        names = os.path.basename(source), os.path.basename(target)
        self._changes.append(("gone", names[0], 0))
        self._changes.append(("name", names[1], inode))
        self._known.update(names)

    def _unlink(self, path: str) -> None:
        self._begin(self.faults.write_s, is_of_names=not _is_spare(path))
        os.unlink(path)
        self._changes.append(("gone", os.path.basename(path), 0))
        self._known.add(os.path.basename(path))

    def _take(self, more: int) -> None:
        if more > 0 and self._room() < ENDLESS and more > self._free_bytes(""):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _room(self) -> int:
        is_full = self._process.world.now_ns < self.full_until_ns
        return self.full_bytes if is_full else self.faults.room_bytes

    def _free_bytes(self, folder: str) -> int:
        room = self._room()
        return room if room == ENDLESS else max(0, room - self._used())

    def _used(self) -> int:
        with os.scandir(self.folder) as found:
            return sum(one.stat().st_size for one in found)

    def fill(self, left: int, until_ns: int) -> None:
        """Have room for so many bytes only, until that time."""
        self.full_bytes, self.full_until_ns = self._used() + left, until_ns

    # -- the power cut

    def unsynced_names(self) -> tuple[set[str], set[str]]:
        """Return the names that a power cut now may leave out, and those that it may leave in."""
        begun = {name for kind, name, _ in self._changes if kind == "name"}
        gone = {name for kind, name, _ in self._changes if kind == "gone"}
        return begun, gone

    def has_unsynced_writes(self) -> bool:
        """Return whether a power cut now may take data along."""
        return any(file.pending for file in self._inodes.values())

    def image(self, target: Path, random: Random) -> None:
        """Write what a power cut leaves into an empty folder."""
        names = dict(self._names)
        how = random.random()
        if how < 0.3:
            kept = []
        elif how < 0.5:
            kept = self._changes
        else:
            kept = self._changes[: random.randint(0, len(self._changes))]
        for change in kept:
            _change(names, change)
        for path in self.folder.iterdir():  # what others wrote
            if path.is_file() and path.name not in self._known:
                (target / path.name).write_bytes(path.read_bytes())
        for name, inode in names.items():
            if name in self._known:
                content = self._content(self._inodes[inode], random)
                (target / name).write_bytes(content)

    def _content(self, file: _File, random: Random) -> bytes:
        """Return a file's content after a power cut: sectors of writes that were not synced may be
        there or not, in any order."""
        content = bytearray(file.durable)
        if not file.pending:
            return bytes(content)
        how = random.random()
        chance = 0.0 if how < 0.3 else 1.0 if how < 0.5 else random.random()
        upto = len(file.pending) if how < 0.7 else random.randint(0, len(file.pending))
        for offset, data in file.pending[:upto]:
            if not data:
                if random.random() < chance:
                    _write(content, offset, data)
                continue
            at = 0
            while at < len(data):
                size = SECTOR - (offset + at) % SECTOR
                if random.random() < chance:
                    _write(content, offset + at, data[at : at + size])
                at += size
        return bytes(content)


def _is_spare(path: str) -> bool:
    return os.path.basename(path).startswith("spare-")


def _write(content: bytearray, offset: int, data: bytes) -> None:
    if not data:  # a new size
        if offset <= len(content):
            del content[offset:]
        else:
            content.extend(bytes(offset - len(content)))
        return
    if offset > len(content):
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


def _change(names: dict[str, int], change: tuple[str, str, int]) -> None:
    kind, name, inode = change
    if kind == "name":
        names[name] = inode
    else:
        names.pop(name, None)
