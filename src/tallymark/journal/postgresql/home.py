"""Home of a journal on PostgreSQL: what its leader writes.

An append is one statement and one transaction: it locks the leader's row, compares the epoch, and
inserts a row with the blocks. So there is no moment at which the server waits for a leader that
holds the lock: one that is frozen or dead does not hold up its successor. What has more than one
statement compares the epoch last, together with its commit; what locks all blocks is one message.

An append whose outcome is unknown is made again, with the same position. Where it is found, the
fence alone is committed after it, and makes it safe (connection.py). On a new connection what was
safe before must be there (proofs.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final, final

import psycopg
from psycopg import sql

from tallymark.journal.files import Files
from tallymark.journal.postgresql import schema
from tallymark.journal.postgresql.compare import name_in
from tallymark.journal.postgresql.connection import DIRECT, Access, Connection, Link, Waiting
from tallymark.journal.postgresql.errors import LeadLost, OtherBytes, WentBack
from tallymark.journal.postgresql.insert import Insert
from tallymark.journal.postgresql.marks import Mark, read_marks, write_marks
from tallymark.journal.postgresql.proofs import Proofs
from tallymark.journal.postgresql.teller import Teller
from tallymark.stored.layout import HEADER, header_at
from tallymark.stored.segment import parsed_name

ROW_BYTES: Final = 8 << 20
"""Bytes of blocks in a row, at most, but for a single larger block."""


@final
class PostgresqlHome:
    """The home of the journal that is led in one epoch: see journal/home.py. `append` is called
    from one thread, `put` from one, which may be another."""

    def __init__(
        self,
        url: str,
        journal: int,
        epoch: int,
        access: Access = DIRECT,
        files: Files | None = None,
    ) -> None:
        """epoch: in which this broker has taken the lead. files: the journal's, where they are not
        the machine's."""
        self._journal = journal
        self.epoch = epoch
        self._appending = Link(url, access)
        self._putting = Link(url, access)
        self._waiting = Waiting(access.threads)
        self._proofs = Proofs(journal, access.threads)
        self._proven: Connection | None = None
        """Connection of `put` on which the proofs were looked up."""
        self._teller = Teller(url, journal, access)
        self._insert: Insert | None = None
        """Insert into the segment that was appended to last."""
        self._rows: dict[str, Mark] = {}
        """Last row of each segment that was appended to and is not marked yet, by name."""
        self._name = ""
        """Name of the segment that was appended to last."""
        self._files = files or Files()

    @property
    def trouble(self) -> str:
        return self._waiting.trouble

    @property
    def waits_s(self) -> float:
        """Return for how long the oldest change has been waiting for the database, seconds."""
        return self._waiting.waits_s

    def check(self, connection: Connection) -> bool:
        """Check on a new connection that the database has what was safe before. From any thread.
        False: it could not be looked up yet, since files are being changed. Raises WentBack,
        LeadLost, psycopg.Error."""
        try:
            return self._proofs.check_soon(connection)
        except WentBack as error:
            raise self._reason(connection, error) from None

    def end(self) -> None:
        self._waiting.end()
        self._teller.end()
        self._appending.cut()
        self._putting.cut()

    def close(self) -> None:
        self._teller.end()
        self._appending.drop()
        self._putting.drop()

    # -- blocks

    def append(self, segment: int, offset: int, buffers: list[bytes]) -> None:
        """Append whole blocks to a segment, which has `offset` bytes. Raises LeadLost, OtherBytes,
        WentBack, Stopped."""
        cut = rows_of(segment << 32 | offset, b"".join(buffers))
        rows = [(position, schema.row_checksum(data), data) for position, data in cut]

        def work(connection: Connection, is_doubtful: bool) -> None:
            insert = self._insert_into(connection, segment)
            for row in rows:
                self._append_row(insert, *row, is_doubtful)

        self._waiting.until_safe(self._appending, work)
        self._proofs.appended(rows[-1][0], self.epoch, rows[-1][1])
        self._note(*rows[-1])
        self._teller.tell()

    def _note(self, position: int, crc: int, data: bytes) -> None:
        """Note the last row of its segment."""
        offset = position & 0xFFFFFFFF
        if offset == 0:
            self._name = name_in(data[:HEADER], position >> 32)
        if self._name:
            self._rows[self._name] = Mark(offset, offset + len(data), self.epoch, crc)

    def _insert_into(self, connection: Connection, segment: int) -> Insert:
        """Return the insert into a segment, whose table is made if need be. Raises WentBack."""
        known = self._insert
        if known is not None and known.connection is connection:
            if known.segment == segment:
                return known
            known.close()
        else:
            self._prove(connection)
        schema.make_partition(connection, self._journal, segment)
        self._insert = Insert(connection, self._journal, self.epoch, segment)
        return self._insert

    def _append_row(
        self, insert: Insert, position: int, crc: int, data: bytes, is_doubtful: bool
    ) -> None:
        """Insert a row. Raises LeadLost, OtherBytes."""
        if insert.row(position, crc, data):
            return
        self._fence(insert.connection)
        found = insert.connection.execute(
            "SELECT epoch, crc FROM tallymark.block WHERE journal = %s AND position = %s",
            (self._journal, position),
        ).fetchone()
        if not is_doubtful or found != (self.epoch, crc):
            raise OtherBytes(position, found)

    def _prove(self, connection: Connection, doubtful: Sequence[dict[str, list[int]]] = ()) -> None:
        """Check on a new connection that the database has what was safe before. doubtful: see
        Proofs.check. Raises WentBack, LeadLost."""
        try:
            self._proofs.check(connection, doubtful)
        except WentBack as error:
            raise self._reason(connection, error) from None

    def _reason(self, connection: Connection, error: WentBack) -> WentBack | LeadLost:
        """Return why the database lacks something: a leader after this one may have removed it."""
        lost = self._lead_lost(connection)
        return lost if lost.found > self.epoch else error

    def _fence(self, connection: Connection) -> None:
        """Commit the fence alone. Raises LeadLost."""
        held = {"journal": self._journal, "epoch": self.epoch}
        if connection.execute(schema.HELD, held).fetchone() is None:
            raise self._lead_lost(connection)

    def _lead_lost(self, connection: Connection) -> LeadLost:
        row = connection.execute(
            "SELECT epoch FROM tallymark.leader WHERE journal = %s", (self._journal,)
        ).fetchone()
        return LeadLost(self._journal, self.epoch, 0 if row is None else int(row[0]))

    # -- files

    def put(self, folder: Path, names: Sequence[str], gone: Sequence[str]) -> None:
        """Keep these files of the folder as they are now, and let go of others, all at once. A
        segment among them replaces what was written of it before. Raises LeadLost, WentBack,
        Stopped."""
        with self._proofs.changing():
            self._put(folder, names, gone)

    def _put(self, folder: Path, names: Sequence[str], gone: Sequence[str]) -> None:
        sums: dict[str, list[int]] = {}
        rewritten: list[tuple[int, int, int]] = []
        asked: list[dict[str, list[int]]] = []
        """Changes whose commit was asked for, one of each attempt: a file may change meanwhile."""

        def work(connection: Connection, is_doubtful: bool) -> None:
            if connection is not self._proven:
                self._prove(connection, asked)
                self._proven = connection
            for named in filter(None, map(_segment_of, names)):
                schema.make_partition(connection, self._journal, named[0])
            connection.execute("BEGIN")
            for name in names:
                if _segment_of(name):
                    rewritten.append(self._rewrite(connection, folder, name))
                else:
                    sums[name] = self._put_one(connection, folder, name)
            connection.execute(
                "DELETE FROM tallymark.file WHERE journal = %s AND name = ANY(%s)",
                (self._journal, [name for name in gone if name not in names]),
            )
            asked.append({name: [] for name in gone} | sums)
            self._commit(connection)

        self._waiting.until_safe(self._putting, work)
        self._proofs.changed(sums, [name for name in gone if name not in sums])
        for row in rewritten[-1:]:
            self._proofs.appended(*row)
        if any(_segment_of(name) for name in gone):
            self._waiting.until_safe(self._putting, self._drop_dead)
        self._mark(folder)

    def _mark(self, folder: Path) -> None:
        """Mark segments that are over: the next start does not compare them. Raises OSError."""
        over = {name: mark for name, mark in self._rows.copy().items() if name != self._name}
        if over:
            write_marks(folder, self._files, read_marks(folder) | over)
        for name in over:
            del self._rows[name]

    def _commit(self, connection: Connection) -> None:
        """Commit if the lead is held, in one message: the server waits for nobody in between.
        Raises LeadLost."""
        try:
            connection.execute(f"{self._fails_without_lead()}; COMMIT".encode())
        except psycopg.errors.DivisionByZero:
            connection.execute("ROLLBACK")
            raise self._lead_lost(connection) from None

    def _fails_without_lead(self) -> str:
        """Return the fence as a statement that ends its transaction where the lead is lost."""
        held = schema.HELD % {"journal": self._journal, "epoch": self.epoch}
        return f"SELECT 1 / count(*) FROM ({held}) AS held"

    def _put_one(self, connection: Connection, folder: Path, name: str) -> list[int]:
        """Put a file, and return the checksums of its parts."""
        sums = []
        key = (self._journal, name)
        connection.execute("DELETE FROM tallymark.file WHERE journal = %s AND name = %s", key)
        with (folder / name).open("rb") as file, connection.cursor() as cursor:
            for part, data in enumerate(_parts(file)):
                sums.append(schema.checksum(data))
                cursor.execute(
                    "INSERT INTO tallymark.file VALUES (%s, %s, %s, %s, %b)",
                    (*key, part, sums[-1], data),
                )
        return sums

    def _rewrite(self, connection: Connection, folder: Path, name: str) -> tuple[int, int, int]:
        """Make the rows of a segment say what its file does; those that do already stay. Return
        position, epoch and checksum of the last row. The lead is compared with the commit."""
        named = _segment_of(name)
        assert named is not None, "a segment's name"
        segment, data = named[0], (folder / name).read_bytes()
        table = schema.partition(self._journal, segment)
        kept = 0
        rows = connection.execute(
            sql.SQL("SELECT position, octet_length(bytes), crc FROM {} ORDER BY position")
            .format(table)
        ).fetchall()  # fmt: skip
        for position, size, crc in rows:
            if (
                position & 0xFFFFFFFF != kept
                or schema.row_checksum(data[kept : kept + size]) != crc
            ):
                break
            kept += size
        start = segment << 32 | kept
        connection.execute(sql.SQL("DELETE FROM {} WHERE position >= %s").format(table), (start,))
        inserting = sql.SQL("INSERT INTO {} VALUES (%s, %s, %s, %s, %b)").format(table)
        for position, joined in rows_of(start, data[kept:]):
            crc = schema.row_checksum(joined)
            connection.execute(inserting, (self._journal, position, self.epoch, crc, joined))
        last = connection.execute(
            sql.SQL("SELECT position, epoch, crc FROM {} ORDER BY position DESC LIMIT 1")
            .format(table)
        ).fetchone()  # fmt: skip
        assert last is not None, "a segment that is repaired has a seal"
        return last[0], last[1], last[2]

    def _drop_dead(self, connection: Connection, is_doubtful: bool) -> None:
        """Drop the partitions of segments that have a ledger. Readers of blocks, say a backup of
        the database, are waited for once: what they keep is dropped by a later call. The
        synchronous standby is not waited for, while all blocks are locked: what a failover brings
        back is dropped with the next."""
        rows = connection.execute(
            "SELECT DISTINCT name FROM tallymark.file WHERE journal = %s AND name LIKE %s",
            (self._journal, "%.ledger"),
        ).fetchall()
        named = [parsed_name(str(row[0])) for row in rows]
        stripped = {found[0] for found in named if found is not None}
        for segment in schema.partitions(connection, self._journal):
            if segment not in stripped:
                continue
            table = schema.partition(self._journal, segment).as_string(connection)
            try:
                connection.execute(
                    f"{_DROPPING}; DROP TABLE {table}; {self._fails_without_lead()}".encode()
                )
            except psycopg.errors.LockNotAvailable:
                return  # who reads one may read all: each would be waited for in vain
            except psycopg.errors.DivisionByZero:
                raise self._lead_lost(connection) from None


_DROPPING: Final = "SET LOCAL lock_timeout TO 200; SET LOCAL synchronous_commit TO local"
"""Settings of a transaction that drops a partition: milliseconds for which it waits for its
readers, and new ones for it. The statements of one message are one transaction, which the server
ends by itself: a leader that stops in its midst would keep all blocks from its successor."""


def _segment_of(name: str) -> tuple[int, int] | None:
    """Return number and salt from a segment's name; None for any other file's."""
    return parsed_name(name) if name.endswith(".segment") else None


def rows_of(position: int, data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield rows of whole blocks: position and bytes."""
    if len(data) <= ROW_BYTES:
        if data:
            yield position, data
        return
    start = at = 0
    while at < len(data):
        header = header_at(data, at)
        assert header is not None, f"no block at byte {at} of {len(data)} at {position:#x}"
        if at > start and at + header.length - start > ROW_BYTES:
            yield position + start, data[start:at]
            start = at
        at += header.length
    yield position + start, data[start:]


def _parts(file: BinaryIO) -> Iterator[bytes]:
    """Yield a file's content in parts; an empty file has one."""
    data = file.read(schema.PART_BYTES)
    yield data
    while data := file.read(schema.PART_BYTES):
        yield data
