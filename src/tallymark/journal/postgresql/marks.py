"""Marks: how far segments of the copy are known to be what the table says, and on the disk.

    compared.json    {"<name of a segment>": [offset, end, epoch, crc], ...}

A start does not read again what a mark covers: the copy up to `end`. The mark names the row of the
table that ends there, by its offset, epoch and checksum. Rows of a segment are only appended or,
from the first that differs on, deleted and written anew in a later epoch: while the row that a mark
names is there, all before it is as it was.

What is not marked, say after a crash, is compared. A mark is written once its segment is synced,
and removed before what it covers is changed.

    postgresql.json    {"journal": <number>}

That a folder is a copy at all is marked, too, for as long as nothing but what the tables say gets
into it. A broker that serves it without the database removes that mark before it writes: a copy is
cut to what the tables have.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final, NamedTuple

from tallymark.journal.files import Files

FILE: Final = "compared.json"
MARKER: Final = "postgresql.json"
"""File that says that a folder is a copy of tables, and of which journal."""


class Mark(NamedTuple):
    """The last row of a segment that is the same in the copy and in the table."""

    offset: int
    """Offset of the row in the segment."""
    end: int
    """Offset behind it: the bytes that the mark covers."""
    epoch: int
    crc: int


def read_marks(folder: Path) -> dict[str, Mark]:
    """Return the marks of a copy by segment; none where they cannot be read."""
    try:
        said = json.loads((folder / FILE).read_bytes())
        return {name: Mark(*map(int, values)) for name, values in said.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def write_marks(folder: Path, files: Files, marks: dict[str, Mark]) -> None:
    """Replace all marks, once the segments whose marks are new are synced. Segments that are no
    longer there have none. Raises OSError."""
    old = read_marks(folder)
    there = {path.name for path in folder.glob("*.segment")}
    kept = {name: mark for name, mark in marks.items() if name in there}
    if kept == old:
        return
    for name, mark in kept.items():
        if old.get(name) != mark:
            files.sync_file(folder / name)
    files.replace(folder, FILE, [[json.dumps(kept).encode() + b"\n"]])


def forget_marks(folder: Path, files: Files) -> None:
    """Have the next start compare the whole copy. Raises OSError."""
    if (folder / FILE).exists():
        files.unlink(str(folder / FILE))
        files.sync_folder(folder)


def forget_copy(folder: Path, files: Files) -> bool:
    """Have the folder be a journal of its own, which no start cuts; return whether it was a copy.
    Raises OSError."""
    if not (folder / MARKER).exists():
        return False
    files.unlink(str(folder / MARKER))
    files.sync_folder(folder)
    return True
