"""Comparison of the copy's segments with the table, by the rows' checksums: no block is fetched."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, final

import psycopg

from tallymark.journal.files import Files
from tallymark.journal.postgresql.errors import Differs
from tallymark.journal.postgresql.marks import Mark
from tallymark.journal.postgresql.schema import partitions, row_checksum
from tallymark.stored.layout import HEADER, header_at
from tallymark.stored.segment import parsed_name, segment_name

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]


@final
@dataclass(frozen=True, slots=True)
class TableSegment:
    """A segment as the table has it."""

    number: int
    name: str
    mark: Mark | None
    """Row up to which the copy is known to be the same."""
    rows: list[Mark]
    """Rows behind it, in order."""

    @property
    def last(self) -> Mark | None:
        """Return the last row; None: there is none."""
        return self.rows[-1] if self.rows else self.mark


def read_segments(
    connection: Connection, journal: int, dead: set[int], marks: dict[str, Mark]
) -> list[TableSegment]:
    """Return the segments of the table but for the dead ones, ascending, as of one moment.

    marks: of the copy; those whose row is not in the table count for nothing.
    Raises Differs, psycopg.Error.
    """
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        known = _still_there(connection, journal, marks)
        found = []
        for number in partitions(connection, journal):
            name, mark = known.get(number, ("", None))
            begin = number << 32
            rows = _rows(connection, journal, begin | (mark.end if mark else 0), begin + (1 << 32))
            if number in dead or (mark is None and not rows):
                continue
            if mark is None:
                name = name_in(_head(connection, journal, begin), number)
            found.append(TableSegment(number, name, mark, rows))
        return found


def _still_there(
    connection: Connection, journal: int, marks: dict[str, Mark]
) -> dict[int, tuple[str, Mark]]:
    """Return name and mark of each segment whose mark names a row of the table."""
    places: dict[int, list[tuple[str, Mark]]] = {}
    for name, mark in marks.items():
        named = parsed_name(name)
        if named is not None:
            places.setdefault(named[0] << 32 | mark.offset, []).append((name, mark))
    rows = connection.execute(
        "SELECT position, epoch, crc, length(bytes) FROM tallymark.block "
        "WHERE journal = %s AND position = ANY(%s)",
        (journal, list(places)),
    )
    found = {}
    for position, epoch, crc, length in rows:
        for name, mark in places[position]:
            if mark == Mark(mark.offset, mark.offset + length, epoch, crc):
                found[position >> 32] = name, mark
    return found


def _rows(connection: Connection, journal: int, begin: int, end: int) -> list[Mark]:
    rows = connection.execute(
        "SELECT position & 4294967295, length(bytes), epoch, crc FROM tallymark.block "
        "WHERE journal = %s AND position >= %s AND position < %s ORDER BY position",
        (journal, begin, end),
        binary=True,
    )
    return [Mark(offset, offset + length, epoch, crc) for offset, length, epoch, crc in rows]


def _head(connection: Connection, journal: int, position: int) -> bytes:
    row = connection.execute(
        "SELECT substring(bytes FROM 1 FOR %s) FROM tallymark.block "
        "WHERE journal = %s AND position = %s",
        (HEADER, journal, position),
        binary=True,
    ).fetchone()
    return b"" if row is None else bytes(row[0])


def name_in(head: bytes, number: int) -> str:
    """Return the name of a segment that begins with these bytes. Raises Differs."""
    header = header_at(head, 0)
    if header is None or header.segment != number:
        raise Differs(f"segment {number} does not begin with a block of its own")
    return segment_name(number, header.salt)


def cut(path: Path, segment: TableSegment) -> Mark | None:
    """Cut a copy behind the last row that it has, and return that row; None: it has none."""
    mark = segment.mark
    if not path.exists():
        return None
    at = start = mark.end if mark else 0
    with path.open("rb") as file:
        file.seek(start)
        data = file.read()
    for row in segment.rows:
        bytes_there = data[at - start : row.end - start]
        if row.offset != at or row_checksum(bytes_there) != row.crc:
            break
        mark = row
        at = row.end
    if at < start + len(data):
        _make_own(path, at)
        os.truncate(path, at)
    return mark


def _make_own(path: Path, size: int) -> None:
    """Replace a file of which there are links by a copy of its first bytes: a backup shares what
    was complete, and keeps it as it was."""
    if path.stat().st_nlink > 1:
        data = path.read_bytes()[:size]
        Files().replace(path.parent, path.name, [[data]])
