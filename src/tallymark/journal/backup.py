"""Backup: a copy of a data folder, taken beside a running broker, and its way back.

A backup is the data folder as a crash at one moment would have left it, so that the start after a
restore is the start after a crash: everything confirmed before the backup began is in it.

What a broker never changes once it is there is linked, or copied where the backup is on another
file system: sealed segments, ledgers, checkpoints. Of the segment that is being written the sound
blocks are copied. The folder is read until nothing in it was added, replaced or removed in the
meantime: then all files of the backup were there at the same moment.

The broker is not asked and takes no notice. The order of the copies keeps what recovery relies on:
the anchor is copied before the blocks that it speaks of.

    backup.json     what is in the backup: {"tallymark_backup": 1, "taken_at": ISO 8601 in UTC,
                    "position": end of its last block, "files": {name: size in bytes}}
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import mkdtemp
from typing import Final, final

from tallymark.journal.files import NOT_LINKED, Named
from tallymark.journal.reading import read_anchor
from tallymark.stored import anchor as anchors
from tallymark.stored.layout import HEADER, SEALED, header_at
from tallymark.stored.segment import parsed_checkpoint, parsed_name, scan

MANIFEST: Final = "backup.json"
FORMAT: Final = 1
PASSES: Final = 1000
"""Passes over a folder whose files are replaced all the time, at most."""
_QUARANTINE: Final = "quarantine"
_COPIED_AT_ONCE: Final = 1 << 20


class NotABackup(Exception):
    """The folder is no whole backup; says what is missing."""


@final
class Backup:
    """A backup that was taken, or is to be restored."""

    def __init__(self, position: int, taken_at: str, files: dict[str, int]) -> None:
        self.position = position
        """Position of the end of the last block."""
        self.taken_at = taken_at
        """Wall time, ISO 8601 in UTC."""
        self.files = files
        """Sizes of the files in bytes, by their names within the folder."""

    @property
    def bytes(self) -> int:
        return sum(self.files.values())

    def as_dict(self) -> dict[str, object]:
        """Return plain values, as in backup.json."""
        return {
            "tallymark_backup": FORMAT,
            "taken_at": self.taken_at,
            "position": self.position,
            "files": self.files,
        }


def back_up(source: Path, target: Path) -> Backup:
    """Take a backup of the data folder `source`; `target` is made, or is an empty folder.

    The target appears under its name when it is whole and on disk. Raises NotADirectoryError or
    FileNotFoundError for a source that is no data folder, LayoutError for one that a newer version
    wrote, FileExistsError for a target that holds something, OSError.
    """
    source = source.absolute()
    if not any(parsed_name(name) for name in os.listdir(source)):
        raise FileNotFoundError(errno.ENOENT, "no journal in the folder", str(source))
    with _whole(target) as partial:
        _Capture(source, partial).run()
        files = _sizes(partial)
        taken_at = datetime.now(UTC).isoformat(timespec="milliseconds")
        backup = Backup(_end(files), taken_at, files)
        _write(partial / MANIFEST, json.dumps(backup.as_dict(), indent=1).encode() + b"\n")
    return backup


def restore(source: Path, target: Path) -> Backup:
    """Copy the backup `source` to the data folder `target`, which is made, or is empty.

    The backup stays as it is. Raises NotABackup if it is not whole, FileExistsError for a target
    that holds something, OSError.
    """
    backup = read_backup(source)
    with _whole(target) as partial:
        for name in backup.files:
            (partial / name).parent.mkdir(mode=0o700, exist_ok=True)
            _copy(source / name, partial / name)
    return backup


def read_backup(folder: Path) -> Backup:
    """Read what a backup holds and compare it with the folder. Raises NotABackup, OSError."""
    try:
        said = json.loads((folder / MANIFEST).read_bytes())
    except FileNotFoundError:
        raise NotABackup(f"{folder} is no backup: there is no {MANIFEST} in it") from None
    except ValueError as error:
        raise NotABackup(f"{folder / MANIFEST} cannot be read: {error}") from None
    if not isinstance(said, dict) or said.get("tallymark_backup") != FORMAT:
        found = said.get("tallymark_backup") if isinstance(said, dict) else said
        raise NotABackup(f"{folder / MANIFEST} is of format {found!r}, expected {FORMAT}")
    try:
        files = {str(name): int(size) for name, size in said["files"].items()}
        backup = Backup(int(said["position"]), str(said["taken_at"]), files)
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise NotABackup(
            f"{folder / MANIFEST} cannot be read: {type(error).__name__}: {error}"
        ) from None
    for name, size in files.items():
        if not _is_of_a_folder(name):
            raise NotABackup(f"{folder / MANIFEST} names {name!r}, expected files of a data folder")
        try:
            found = (folder / name).stat().st_size
        except FileNotFoundError:
            raise NotABackup(f"{folder} is not whole: {name} is missing") from None
        if found != size:
            raise NotABackup(f"{folder} is not whole: {name} has {found} bytes, expected {size}")
    return backup


def _is_of_a_folder(name: str) -> bool:
    """Return whether a name is one of a file in a data folder: who restores a backup may write
    where whoever changed it may not."""
    own = name.removeprefix(_QUARANTINE + "/")
    return own not in ("", ".", "..") and "/" not in own and "\0" not in own


@final
class _Capture:
    """The files of a running broker's folder, captured until they are those of one moment."""

    def __init__(self, source: Path, target: Path) -> None:
        self._source = source
        self._target = target
        self._linked: dict[str, int] = {}
        """Inodes in the source of the files captured for good, by name."""
        self._copied: list[str] = []
        """Names of the segments that were being written when they were copied, in this pass."""

    def run(self) -> None:
        for _ in range(PASSES):
            listed = _listed(self._source)
            self._forget_others(listed)
            self._copy_if_there(anchors.FILE)
            missed = [name for name, inode in listed.items() if not self._captured(name, inode)]
            for name in _settings(self._source):
                self._copy_if_there(name)
            if not missed and _listed(self._source) == listed:
                return
        raise OSError(
            errno.EAGAIN, f"files were replaced during each of {PASSES} passes", str(self._source)
        )

    def _forget_others(self, listed: dict[str, int]) -> None:
        """Remove what the folder no longer has: its ledger, or a newer checkpoint, is there. Copies
        of what was being written are made anew: it may be sealed by now."""
        for name in [one for one, inode in self._linked.items() if listed.get(one) != inode]:
            (self._target / name).unlink()
            del self._linked[name]
        for name in self._copied:
            (self._target / name).unlink()
        self._copied.clear()

    def _captured(self, name: str, inode: int) -> bool:
        """Capture one file. False: it has gone, or was replaced, since the folder was listed."""
        if name in self._linked:
            return True
        (self._target / name).parent.mkdir(mode=0o700, exist_ok=True)
        try:
            if self._is_being_written(name):
                return self._copy_sound_blocks(name, inode)
            found = _link_or_copy(self._source / name, self._target / name)
        except FileNotFoundError:
            return False
        self._linked[name] = found
        return found == inode

    def _is_being_written(self, name: str) -> bool:
        """Return whether a file is a segment without a seal at its end."""
        return name.endswith(".segment") and "/" not in name and not _is_sealed(self._source / name)

    def _copy_sound_blocks(self, name: str, inode: int) -> bool:
        """Copy the blocks of a segment that is being written, as far as they are of this moment;
        see _end_of_blocks."""
        number, salt = parsed_name(name) or (0, 0)
        with Named(self._source / name), open(self._source / name, "rb") as file:
            if os.fstat(file.fileno()).st_ino != inode:
                return False
            data = file.read()
        known = read_anchor(self._target)[0].position  # that of this pass: older than the data
        _write(self._target / name, data[: _end_of_blocks(data, number, salt, known)])
        self._copied.append(name)
        return True

    def _copy_if_there(self, name: str) -> None:
        try:
            data = (self._source / name).read_bytes()
        except FileNotFoundError:
            (self._target / name).unlink(missing_ok=True)
            return
        _write(self._target / name, data)


def _end_of_blocks(data: bytes, number: int, salt: int, known: int) -> int:
    """Return the offset up to which the blocks of a segment that is being written are copied.

    known: position up to which everything was on disk before the data was read.

    That is the first block that is not whole: it was being written, and those after it may have
    been synced since the reading began. One before `known` is damaged, though: it is copied with
    what follows it, for a start to name what is lost and go on behind it.
    """
    start = block = 0
    while True:
        headers, end, verdict = scan(data, number, salt, known, start, block)
        if verdict.resume < 0 or known <= number << 32 | end:
            return end
        if headers:
            block = headers[-1].block + 1
        start = verdict.resume


def _listed(folder: Path) -> dict[str, int]:
    """Return the inodes of segments, ledgers, checkpoints and what was put in quarantine, by name;
    segments in their order."""
    found = {}
    for name in (*sorted(os.listdir(folder)), *_quarantined(folder)):
        if name.startswith(_QUARANTINE + "/") or parsed_name(name) or parsed_checkpoint(name):
            try:
                found[name] = (folder / name).stat().st_ino
            except FileNotFoundError:
                continue  # the next pass sees it gone
    return found


def _quarantined(folder: Path) -> Iterator[str]:
    place = folder / _QUARANTINE
    if place.is_dir():
        for name in sorted(os.listdir(place)):
            if (place / name).is_file():  # folders there are somebody else's
                yield f"{_QUARANTINE}/{name}"


def _settings(folder: Path) -> list[str]:
    """Return the names of users, limits and feature flags: all files of JSON but the anchor."""
    others = (anchors.FILE, MANIFEST)
    return [name for name in os.listdir(folder) if name.endswith(".json") and name not in others]


def _is_sealed(segment: Path) -> bool:
    with open(segment, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - HEADER))
        seal = header_at(file.read(HEADER), 0)
    return seal is not None and bool(seal.flags & SEALED)


@contextmanager
def _whole(target: Path) -> Iterator[Path]:
    """Give a folder to fill; it becomes `target` once all that is in it is on disk. On an error
    it is removed. Where a file system is mounted the folder stays, and gets what is in it."""
    target = target.resolve()  # a link stays one
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise FileExistsError(errno.EEXIST, "expected a new or an empty folder", str(target))
    target.parent.mkdir(parents=True, exist_ok=True)
    is_mounted = os.path.ismount(target)
    place = target if is_mounted else target.parent
    partial = Path(mkdtemp(prefix=f".{target.name}.", suffix=".partial", dir=place))
    try:
        yield partial
        for folder, _, names in os.walk(partial):
            for name in names:
                _sync(Path(folder, name), os.O_RDONLY)
            _sync(Path(folder), os.O_RDONLY | os.O_DIRECTORY)
        if is_mounted:
            for name in sorted(os.listdir(partial), key=_order):
                (partial / name).rename(target / name)
            partial.rmdir()
        else:
            partial.rename(target)
        _sync(place, os.O_RDONLY | os.O_DIRECTORY)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _order(name: str) -> int:
    """Return the place of a file among those that are moved one by one: first what says how much
    there must be, last what says that it is whole."""
    return {anchors.FILE: 0, MANIFEST: 2}.get(name, 1)


def _link_or_copy(source: Path, target: Path) -> int:
    """Put a file that never changes into the backup and return its inode in the source."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in NOT_LINKED:
            raise
        return _copy(source, target)
    return target.stat().st_ino


def _copy(source: Path, target: Path) -> int:
    """Copy a file, readable by its owner alone, and return the source's inode."""
    with Named(target), open(source, "rb") as read, open(target, "wb", opener=_private) as written:
        while True:
            with Named(source):
                data = read.read(_COPIED_AT_ONCE)
            if not data:
                return os.fstat(read.fileno()).st_ino
            written.write(data)


def _write(target: Path, data: bytes) -> None:
    with Named(target), open(target, "wb", opener=_private) as file:
        file.write(data)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _sync(path: Path, flags: int) -> None:
    fd = os.open(path, flags)
    try:
        with Named(path):
            os.fsync(fd)
    finally:
        os.close(fd)


def _end(files: dict[str, int]) -> int:
    """Return the position behind the last block of these files."""
    segments = {name: size for name, size in files.items() if name.endswith(".segment")}
    ends = [number[0] << 32 | segments[name] for name in segments if (number := parsed_name(name))]
    return max(ends, default=0)


def _sizes(folder: Path) -> dict[str, int]:
    return {
        str(path.relative_to(folder)): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
