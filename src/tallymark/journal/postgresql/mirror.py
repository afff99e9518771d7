"""Mirror: a data folder brought to what the tables say, for a start and for a broker that follows.

    segments   cut or extended to the table's blocks; where bytes differ, what is behind goes. One
               that the table has not is removed: a leader wrote it and could never commit it.
    files      checkpoints, ledgers, users and the others, replaced where their checksums differ
    tail.json  stays: it says what the database had, and is of use only outside of it

Only what is safe gets into the folder. A block is visible in the table as soon as its commit is
over, also where the wait for the synchronous standby was cancelled; it is taken once a later commit
has succeeded (`Leadership.follow`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, final

from tallymark.journal.files import Files
from tallymark.journal.postgresql.errors import Differs, NotAMirror
from tallymark.journal.postgresql.leadership import Leadership
from tallymark.journal.postgresql.schema import checksum, row_checksum
from tallymark.stored.layout import HEADER, header_at
from tallymark.stored.segment import parsed_checkpoint, parsed_name, segment_name

MARKER: Final = "postgresql.json"
"""File that says that a folder is a mirror of tables, and of which journal."""
ROWS: Final = 64
"""Rows of blocks that are fetched at a time."""
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
        self.position = 0
        """Position that the folder reaches to."""
        self.checkpoint = 0
        """Position of the newest checkpoint; 0: there is none."""

    def open(self) -> None:
        """Mark the folder as a mirror. Raises NotAMirror, OSError."""
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
        self._take_files()
        if lease.epoch != self._epoch:
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
        rows = self._leadership.connected().execute(
            "SELECT position, crc, length(bytes), CASE WHEN position & 4294967295 = 0 "
            "THEN substring(bytes FROM 1 FOR 64) END "
            "FROM tallymark.block WHERE journal = %s ORDER BY position",
            (self._journal,),
            binary=True,
        )
        stripped = {parsed_name(name) for name in self._sums if name.endswith(".ledger")}
        dead = {named[0] for named in stripped if named is not None}
        known: dict[int, list[tuple[int, int, int]]] = {}
        names: dict[int, str] = {}
        for position, crc, length, head in rows:
            assert isinstance(position, int)
            assert isinstance(crc, int)
            assert isinstance(length, int)
            number = position >> 32
            if number in dead:
                continue
            if head is not None:
                assert isinstance(head, bytes)
                names[number] = self._name_in(head, number)
            known.setdefault(number, []).append((position & OFFSET, crc, length))
        for name in os.listdir(self._folder):
            named = parsed_name(name)
            if named and name.endswith(".segment") and names.get(named[0]) != name:
                self._files.unlink(str(self._folder / name))
        self._name = ""
        self.position = max(dead, default=-1) + 1 << 32
        for number in sorted(known):
            at = self._cut(names[number], known[number])
            self._name = names[number]
            self.position = number << 32 | at
            offset, _, length = known[number][-1]
            if at < offset + length:
                return  # what is behind is fetched, and what is there is overwritten

    def _cut(self, name: str, rows: list[tuple[int, int, int]]) -> int:
        """Cut a segment behind the last row that it has; return its length."""
        path = self._folder / name
        at = 0
        if path.exists():
            data = path.read_bytes()
            for offset, crc, length in rows:
                if offset != at or row_checksum(data[at : at + length]) != crc:
                    break
                at += length
            if at < len(data):
                os.truncate(path, at)
        return at

    def _take_blocks(self) -> bool:
        """Fetch the next rows; return whether there were any."""
        rows = (
            self._leadership.connected()
            .execute(
                "SELECT position, crc, bytes FROM tallymark.block "
                "WHERE journal = %s AND position >= %s ORDER BY position LIMIT %s",
                (self._journal, self.position, ROWS),
                binary=True,
            )
            .fetchall()
        )
        if not rows:
            return False
        end = rows[-1]
        assert isinstance(end[0], int)
        assert isinstance(end[2], bytes)
        self._leadership.follow(end[0] + len(end[2]))
        for position, crc, data in rows:
            assert isinstance(position, int)
            assert isinstance(data, bytes)
            if row_checksum(data) != crc:
                raise Differs(f"the database gives damaged bytes at position {position:#x}")
            self._append(position, data)
        return True

    def _append(self, position: int, data: bytes) -> None:
        number, offset = position >> 32, position & OFFSET
        if offset == 0:
            self._name = self._name_in(data[:HEADER], number)
        elif position != self.position:
            self._epoch = -1  # rewritten behind us: compare again
            raise Differs(
                f"the blocks go on at position {position:#x}, expected {self.position:#x}"
            )
        flags = os.O_CREAT | os.O_WRONLY | (0 if offset else os.O_TRUNC)
        fd = self._files.open(str(self._folder / self._name), flags)
        try:
            self._files.write_all(fd, [data], offset)
        finally:
            os.close(fd)
        self.position = position + len(data)

    def _name_in(self, head: bytes, number: int) -> str:
        header = header_at(head, 0)
        if header is None or header.segment != number:
            raise Differs(f"segment {number} does not begin with a block of its own")
        return segment_name(number, header.salt)
