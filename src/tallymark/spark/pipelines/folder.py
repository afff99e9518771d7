"""The folder of an archive: which ranges of a stream are complete in it.

    DIR/_archive/archive.json            whose archive it is, and its id
    DIR/_archive/LOW-HIGH.json           offsets LOW..HIGH-1 are complete: rows, checksum, files
    DIR/_archive/lock                    held by who writes
    DIR/range-LOW-HIGH-ATTEMPT/part-*.parquet    the rows

A range counts when its manifest is there, which is put there in one step when every file is on
disk, and names them. What else lies in the folder is what a killed writer left, and is taken away
by the next one. Every attempt has a folder of its own: tasks that outlive a killed writer by a
moment write into one that nobody reads.
Nothing of Spark is needed to read the manifests.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from tallymark.spark.client import CannotRun

VERSION: Final = 1
MANIFESTS: Final = "_archive"
"""Spark passes over names that begin with an underscore."""
IDENTITY: Final = "archive.json"
_MANIFEST: Final = re.compile(r"\d{20}-\d{20}\.json")
_ROWS: Final = re.compile(r"range-(\d{20})-\d{20}-\w+")


class ArchiveDamaged(CannotRun):
    """Files are missing or were changed; the text says which."""


class ArchiveInUse(CannotRun):
    """Another process is writing to the archive."""


@dataclass(frozen=True, slots=True)
class File:
    """One Parquet file of a range, by its name in the folder of the range."""

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets low..high-1, complete."""

    low: int
    high: int
    rows: int
    """Fewer than offsets where some were passed over."""
    checksum: str
    folder: str = ""
    """Name of the folder of its rows, within the archive's folder."""
    files: tuple[File, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.low:020d}-{self.high:020d}"


@dataclass(frozen=True, slots=True)
class Archive:
    """The archive of one stream."""

    folder: Path
    id: str
    vhost: str
    stream: str
    stream_id: int
    """Id of the stream; a stream that was deleted and made again under its name has another."""

    @staticmethod
    def open(folder: Path | str) -> Archive:
        """Raises FileNotFoundError where there is none, ArchiveDamaged."""
        folder = Path(folder)
        path = folder / MANIFESTS / IDENTITY
        if not path.is_file():
            raise FileNotFoundError(f"{folder}: no archive of a stream ({path} is not there)")
        found = _read(path)
        try:
            return Archive(
                folder, str(found["id"]), str(found["vhost"]), str(found["stream"]),
                int(found["stream_id"]),
            )  # fmt: skip
        except (KeyError, ValueError, TypeError) as error:
            raise ArchiveDamaged(f"{path}: {error!r} in {found}") from error

    @staticmethod
    def of(folder: Path | str, vhost: str, stream: str, stream_id: int) -> Archive:
        """The archive in this folder, made if there is nothing in it.

        Raises ValueError where it is that of another stream, or the folder is used otherwise.
        """
        folder = Path(folder)
        try:
            found = Archive.open(folder)
        except FileNotFoundError:
            if folder.is_dir() and any(name != MANIFESTS for name in os.listdir(folder)):
                raise ValueError(
                    f"{folder}: expected a new or empty folder, or an archive"
                ) from None
            found = Archive(folder, uuid.uuid4().hex, vhost, stream, stream_id)
            (folder / MANIFESTS).mkdir(parents=True, exist_ok=True)
            said = {"version": VERSION, **asdict(found)}
            del said["folder"]
            _write(folder / MANIFESTS / IDENTITY, said)
        if (found.vhost, found.stream) != (vhost, stream):
            raise ValueError(
                f"{folder} is the archive of stream {found.stream!r} in vhost {found.vhost!r}, "
                f"not of {stream!r} in {vhost!r}: use one folder each"
            )
        if found.stream_id != stream_id:
            raise ValueError(
                f"{folder} is the archive of stream {stream!r} with id {found.stream_id}, which is "
                f"now {stream_id}: it was deleted and made again. Begin with a new folder"
            )
        return found

    def ranges(self) -> list[Range]:
        """Return the complete ranges in order. Raises ArchiveDamaged where files are missing, or
        two ranges overlap."""
        names = sorted(name for name in os.listdir(self._manifests) if _MANIFEST.fullmatch(name))
        found = [self._range(name) for name in names]
        for before, after in pairwise(found):
            if after.low < before.high:
                raise ArchiveDamaged(
                    f"{self.folder}: ranges {before.name} and {after.name} overlap"
                )
        return found

    def end(self) -> int:
        """The offset behind the last one that is archived; 0: nothing is."""
        return max((one.high for one in self.ranges()), default=0)

    def attempt(self, low: int, high: int) -> Path:
        """Return a new folder for the rows of a range."""
        return self.folder / f"range-{low:020d}-{high:020d}-{uuid.uuid4().hex[:8]}"

    def paths(self) -> list[str]:
        """Every file with rows."""
        return [
            str(self.folder / one.folder / file.name) for one in self.ranges() for file in one.files
        ]

    # -- for who writes

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other writers out; the system removes the lock when the process ends. Raises
        ArchiveInUse."""
        with (self._manifests / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ArchiveInUse(f"{self.folder}: another command writes to it") from None
            yield

    def clean(self) -> None:
        """Delete rows that a killed writer left behind the last complete range."""
        end = self.end()
        for path in self.folder.iterdir():
            found = _ROWS.fullmatch(path.name)
            if found is not None and int(found[1]) >= end:
                shutil.rmtree(path, ignore_errors=True)  # or the time after, if it still grows

    def complete(self, folder: Path, low: int, high: int, rows: int, checksum: str) -> Range:
        """The files of a range are written, in this attempt: bring them to disk, then say so."""
        files = []
        for path in sorted(folder.glob("part-*.parquet")):
            _sync(path)
            files.append(File(path.name, path.stat().st_size))
        _sync(folder)
        _sync(self.folder)
        made = Range(low, high, rows, checksum, folder.name, tuple(files))
        _write(self._manifests / f"{made.name}.json", {"version": VERSION, **asdict(made)})
        return made

    @property
    def _manifests(self) -> Path:
        return self.folder / MANIFESTS

    def _range(self, name: str) -> Range:
        path = self._manifests / name
        found = _read(path)
        try:
            files = tuple(File(str(one["name"]), int(one["size"])) for one in found["files"])
            made = Range(
                int(found["low"]), int(found["high"]), int(found["rows"]), str(found["checksum"]),
                str(found["folder"]), files,
            )  # fmt: skip
        except (KeyError, ValueError, TypeError) as error:
            raise ArchiveDamaged(f"{path}: {error!r} in {found}") from error
        for file in made.files:
            there = self.folder / made.folder / file.name
            size = there.stat().st_size if there.is_file() else -1
            if size != file.size:
                what = f"{size} bytes" if size >= 0 else "not there"
                raise ArchiveDamaged(f"{there}: {what}, expected {file.size} bytes")
        return made


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except ValueError as error:
        raise ArchiveDamaged(f"{path}: {error}") from error
    if not isinstance(found, dict) or found.get("version") != VERSION:
        raise ArchiveDamaged(f"{path}: expected version {VERSION}, found {str(found)[:100]}")
    return found


def _write(path: Path, said: dict[str, Any]) -> None:
    """Write the file as a whole, and bring it to disk."""
    aside = path.with_suffix(".new")
    aside.write_text(json.dumps(said))
    _sync(aside)
    aside.replace(path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    """Bring a file or a folder to disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
