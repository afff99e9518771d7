"""Proofs: what a leader knows to be in the database, looked up on each new connection.

A connection that was lost may come back to another server: a standby that was promoted. If that
was behind, say an asynchronous replica, it lacks what was confirmed, and a leader that went on
would append past a gap. The write-ahead log is one sequence, so that the last change that was safe
stands for all before it. Two are kept, since two threads write:

    the last row of blocks      its position is there, with its epoch and checksum
    the last change of files    those that were put are there with their checksums, those that were
                                let go of are not

What was before this leader needs none: the claim of the lead, which every commit compares, came
after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, final

from tallymark.journal.postgresql.connection import Connection
from tallymark.journal.postgresql.errors import WentBack
from tallymark.journal.threads import REAL, Threads
from tallymark.stored.segment import parsed_name

_ROW: Final = "SELECT epoch, crc FROM tallymark.block WHERE journal = %s AND position = %s"
_SUMS: Final = (
    "SELECT name, array_agg(crc ORDER BY part) FROM tallymark.file "
    "WHERE journal = %s AND name = ANY(%s) GROUP BY name"
)


@final
class Proofs:
    """The proofs of one journal's leader. Blocks are appended by one thread, files changed by
    another."""

    def __init__(self, journal: int, threads: Threads = REAL) -> None:
        self._journal = journal
        self._changing = threads.owned_lock()
        """Held while files are changed: only that can remove what a proof names."""
        self._row: tuple[int, int, int] | None = None
        """Position, epoch and checksum of the last row."""
        self._files: dict[str, list[int]] = {}
        """Checksums of the files of the last change by name; none: it was let go of."""

    def appended(self, position: int, epoch: int, crc: int) -> None:
        """Note that a row is safe."""
        self._row = position, epoch, crc

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Change files, for as long as this lasts."""
        self._changing.acquire()
        try:
            yield
        finally:
            self._changing.release()

    def changed(self, put: dict[str, list[int]], gone: Sequence[str]) -> None:
        """Note that a change of files is safe. With a segment the proof in it has gone."""
        self._files = {name: [] for name in gone} | put
        dead = {named[0] for named in map(parsed_name, gone) if named is not None}
        if self._row is not None and self._row[0] >> 32 in dead:
            self._row = None

    def check_soon(self, connection: Connection) -> bool:
        """Look the proofs up, as check does, unless files are being changed: that may take as long
        as the database is away. False: not looked up. Raises WentBack, psycopg.Error."""
        if not self._changing.acquire(blocking=False):
            return False
        try:
            self.check(connection)
        finally:
            self._changing.release()
        return True

    def check(self, connection: Connection, doubtful: Sequence[dict[str, list[int]]] = ()) -> None:
        """Look the proofs up in what is visible. doubtful: changes of files, as `_files` has them,
        that came after the last one and whose outcome is unknown: what both come to proves as much.
        Raises WentBack, psycopg.Error."""
        with self.changing():
            if self._row is not None:
                position, *expected = self._row
                found = connection.execute(_ROW, (self._journal, position)).fetchone()
                if found is None or [*found] != expected:
                    raise WentBack(f"the blocks at position {position:#x}")
            if not self._files:
                return
            lacking = self._lacking(connection, self._files)
            if lacking and all(self._lacking(connection, self._files | one) for one in doubtful):
                raise WentBack(f"the last change of {lacking}")

    def _lacking(self, connection: Connection, files: dict[str, list[int]]) -> str:
        """Return a file that is not as this change has it; empty: all are. Raises psycopg.Error."""
        rows = connection.execute(_SUMS, (self._journal, [*files])).fetchall()
        sums: dict[str, list[int]] = {str(name): found for name, found in rows}
        return next((name for name in files if sums.get(name, []) != files[name]), "")
