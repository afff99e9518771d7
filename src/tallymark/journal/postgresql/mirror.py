"""Mirror: a data folder brought to what the tables say, for a start and for a broker that follows.

    segments   cut or extended to the table's blocks; where bytes differ, what is behind goes. One
               that the table has not is removed: a leader wrote it and could never commit it.
    files      checkpoints, ledgers, users and the others, replaced where their checksums differ
    tail.json  stays: it says what the database had, and is of use only outside of it

What was compared before, and is on the disk, is not read again (marks.py).

Only what is safe gets into the folder. A block is visible in the table as soon as its commit is
over, also where the wait for the synchronous standby was cancelled; it is taken once a later commit
has succeeded (`Leadership.follow`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, final

from tallymark.journal.files import Files
from tallymark.journal.postgresql.compare import cut, name_in, read_segments
from tallymark.journal.postgresql.errors import Differs, NotAMirror
from tallymark.journal.postgresql.leadership import Leadership
from tallymark.journal.postgresql.marks import (
    MARKER,
    Mark,
    forget_marks,
    read_marks,
    write_marks,
)
from tallymark.journal.postgresql.schema import checksum, row_checksum
from tallymark.stored.layout import HEADER
from tallymark.stored.segment import parsed_checkpoint, parsed_name

ROWS: Final = 64
BYTES: Final = 16 << 20
"""Rows of blocks that are fetched at a time, at most; and the bytes behind which no further one is:
a row has 8 MiB under load, and a message as large as it may be is one."""
_NEXT: Final = """
SELECT position, crc, bytes, epoch FROM (
    SELECT *, sum(length(bytes)) OVER (ORDER BY position) - length(bytes) AS ahead FROM (
        SELECT position, crc, bytes, epoch FROM tallymark.block
        WHERE journal = %s AND position >= %s ORDER BY position LIMIT %s
    ) AS next
) AS counted WHERE ahead < %s ORDER BY position
"""
"""Rows from a position on. Of those that are not given PostgreSQL reads no bytes."""
OFFSET: Final = 0xFFFFFFFF


@final
class Mirror:
    """A folder that follows the tables. One thread."""

    def __init__(self, folder: Path, leadership: Leadership, journal: int) -> None:
        self._folder = folder
        self._leadership = leadership
        self._journal = journal
        self._files = Files()
        self._sums: dict[str, list[int]] = {}
        """Checksums of the parts of each file in the folder, by name."""
        self._epoch = -1
        """Epoch in which the folder was compared with the tables."""
        self._name = ""
        """Segment that grows."""
        self._rows: dict[str, Mark] = {}
        """Last row of each segment in the folder, by name."""
        self.cuts = 0
        """Times that the folder lost blocks which it had taken: the tables no longer have them."""
        self._skipped = False
        """True if the leader may have removed a segment, or the rest of one, since the files were
        looked at: by now they have a newer checkpoint, or the ledgers of those segments."""
        self._trusted = False
        """True where something was not compared because it was marked."""
        self.position = 0
        """Position that the folder reaches to."""
        self.checkpoint = 0
        """Position of the newest checkpoint; 0: there is none."""

    def open(self, compares_all: bool = False) -> None:
        """Claim the folder as a mirror. compares_all: marks count for nothing. Raises NotAMirror,
        OSError."""
        if compares_all:
            forget_marks(self._folder, self._files)
        marker = self._folder / MARKER
        text = f'{{"journal": {self._journal}}}\n'
        if marker.exists():
            found = marker.read_text()
            if found != text:
                raise NotAMirror(
                    f"{self._folder} mirrors {found.strip()}, expected {text.strip()}: give this "
                    "broker a folder of its own"
                )
            return
        if any(parsed_name(n) or parsed_checkpoint(n) for n in os.listdir(self._folder)):
            raise NotAMirror(
                f"{self._folder} has a journal of its own, which is not in the database: give "
                "this broker an empty folder"
            )
        self._files.replace(self._folder, MARKER, [[text.encode()]])

    def catch_up(self) -> bool:
        """Bring the folder to what the tables have. Returns whether blocks or a checkpoint came.

        Raises psycopg.Error, Doubtful: try again. Differs, OSError.
        """
        before = self.position, self.checkpoint
        lease, _ = self._leadership.look()
        self._skipped = True
        while self._skipped:
            self._take_files()
            self._skipped = lease.epoch != self._epoch
            if self._skipped:
                self._compare()
                self._epoch = lease.epoch
            while self._take_blocks():
                pass
        return before != (self.position, self.checkpoint)

    # -- files

    def _take_files(self) -> None:
        connection = self._leadership.connected()
        rows = connection.execute(
            "SELECT name, crc FROM tallymark.file WHERE journal = %s ORDER BY name, part",
            (self._journal,),
        ).fetchall()
        found: dict[str, list[int]] = {}
        for name, crc in rows:
            assert isinstance(name, str)
            assert isinstance(crc, int)
            found.setdefault(name, []).append(crc)
        changed = [name for name, sums in found.items() if self._sums.get(name) != sums]
        if changed:
            self._leadership.follow(self.position)
        for name in changed:
            self._take_file(name)
        for name in os.listdir(self._folder):
            is_listed = parsed_checkpoint(name) is not None or name.endswith(".ledger")
            if is_listed and name not in self._sums:
                self._files.unlink(str(self._folder / name))
        for name in [name for name in self._sums if name not in found]:
            del self._sums[name]
            (self._folder / name).unlink(missing_ok=True)
        positions = [parsed_checkpoint(name) or 0 for name in self._sums]
        self.checkpoint = max(positions, default=0)

    def _take_file(self, name: str) -> None:
        """Fetch a file. One that is gone meanwhile is not there."""
        if os.sep in name or name in (".", ".."):
            raise Differs(f"the tables have a file {name!r}, expected a name without a folder")
        rows = self._leadership.connected().execute(
            "SELECT crc, bytes FROM tallymark.file WHERE journal = %s AND name = %s ORDER BY part",
            (self._journal, name),
            binary=True,
        )
        parts, sums = [], []
        for crc, data in rows:
            assert isinstance(crc, int)
            assert isinstance(data, bytes)
            if checksum(data) != crc:
                raise Differs(f"the database gives damaged bytes of {name}")
            parts.append(data)
            sums.append(crc)
        if sums:
            self._files.replace(self._folder, name, [parts])
            self._sums[name] = sums
            if name.endswith(".ledger"):
                (self._folder / name).with_suffix(".segment").unlink(missing_ok=True)

    # -- blocks

    def _compare(self) -> None:
        """Cut each segment to what it has in common with the table, and remove the others."""
        before = self.position
        stripped = {parsed_name(name) for name in self._sums if name.endswith(".ledger")}
        dead = {named[0] for named in stripped if named is not None}
        marks = {n: m for n, m in read_marks(self._folder).items() if self._reaches(n, m.end)}
        segments = read_segments(self._leadership.connected(), self._journal, dead, marks)
        self._rows = {one.name: one.mark for one in segments if one.mark is not None}
        self._trusted = bool(self._rows)
        write_marks(self._folder, self._files, self._rows)
        names = {one.name for one in segments}
        for name in os.listdir(self._folder):
            if parsed_name(name) and name.endswith(".segment") and name not in names:
                self._files.unlink(str(self._folder / name))
        self._name = ""
        self.position = max(dead, default=-1) + 1 << 32
        found: dict[str, Mark] = {}
        for one in segments:
            mark = cut(self._folder / one.name, one)
            if mark is not None:
                found[one.name] = mark
            self._name = one.name
            self.position = one.number << 32 | (0 if mark is None else mark.end)
            if mark != one.last:
                break  # what is behind is fetched, and what is there is overwritten
        self.cuts += self.position < before
        self._rows = found
        write_marks(self._folder, self._files, found)

    def _reaches(self, name: str, end: int) -> bool:
        """Return whether there is a segment, with so many bytes."""
        path = self._folder / name
        return path.exists() and path.stat().st_size >= end

    def compare_all(self) -> bool:
        """Have the whole copy compared, with the next `catch_up`. Returns False: it was with the
        last one."""
        if not self._trusted:
            return False
        self._trusted = False
        forget_marks(self._folder, self._files)
        self._epoch = -1
        return True

    def _take_blocks(self) -> bool:
        """Fetch the next rows; return whether there were any."""
        rows = (
            self._leadership.connected()
            .execute(_NEXT, (self._journal, self.position, ROWS, BYTES), binary=True)
            .fetchall()
        )
        if not rows:
            return False
        end = rows[-1]
        assert isinstance(end[0], int)
        assert isinstance(end[2], bytes)
        self._leadership.follow(end[0] + len(end[2]))
        for position, crc, data, epoch in rows:
            assert isinstance(position, int)
            assert isinstance(crc, int)
            assert isinstance(data, bytes)
            assert isinstance(epoch, int)
            if row_checksum(data) != crc:
                raise Differs(f"the database gives damaged bytes at position {position:#x}")
            self._append(position, data)
            offset = position & OFFSET
            self._rows[self._name] = Mark(offset, offset + len(data), epoch, crc)
        return True

    def _append(self, position: int, data: bytes) -> None:
        number, offset = position >> 32, position & OFFSET
        if offset == 0:
            write_marks(self._folder, self._files, self._rows)
            self._skipped = True
            self._name = name_in(data[:HEADER], number)
            (self._folder / self._name).unlink(missing_ok=True)  # a backup may share it
        elif position != self.position:
            self._epoch = -1  # rewritten behind us: compare again
            raise Differs(
                f"the blocks go on at position {position:#x}, expected {self.position:#x}"
            )
        fd = self._files.open(str(self._folder / self._name), os.O_CREAT | os.O_WRONLY)
        try:
            self._files.write_all(fd, [data], offset)
        finally:
            os.close(fd)
        self.position = position + len(data)
