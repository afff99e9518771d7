"""Statements of the journal, and what each does to the tables: those of journal/postgresql alone.

A statement that is not here ends the world: the journal has a new one, and its meaning belongs
here, as PostgreSQL has it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Sequence
from itertools import accumulate
from typing import Any, Final, Protocol, TypeAlias

import psycopg

from tallymark.journal.postgresql.schema import partition_name
from tallymark.simulation.database.tables import (
    EPOCH,
    FILE,
    FOLLOWER,
    GONE,
    HELD,
    LEASE,
    ROW,
    SEGMENT,
    VERSION,
    LeaseRow,
    Part,
    Row,
    Tables,
)
from tallymark.simulation.database.transactions import Rows, Transaction


class Session(Protocol):
    """One session, as its statements need it."""

    channels: set[str]

    @property
    def tables(self) -> Tables:
        """Return what it sees."""

    @property
    def seen(self) -> set[str]:
        """Return the names of the interesting states that were reached."""

    def open_transaction(self) -> Transaction:
        """Return its transaction."""

    def change(self, kind: str, key: Any, value: Any) -> None:
        """Change something with its commit."""

    def share(self, key: Hashable) -> None:
        """Lock something together with others. Raises Blocked."""

    def own(self, key: Hashable) -> None:
        """Lock something alone. Raises Blocked."""

    def wall_ms(self) -> int:
        """Return the server's time."""

    def is_doubtful(self, journal: int, epoch: int, position: int) -> bool:
        """Return whether a row was asked for before, and the answer was lost."""


Handler: TypeAlias = Callable[[Session, re.Match[str], Sequence[Any]], Rows | int]
"""Returns the rows of an answer, or the number of those that were changed."""
_HANDLERS: Final[list[tuple[re.Pattern[str], Handler]]] = []
_KNOWN: Final[dict[str, tuple[Handler, re.Match[str]]]] = {}
BLOCKS: Final = "blocks"
"""Lock of the table of all blocks, which a partition's end needs alone."""
DAY_MS: Final = 86_400_000
_SPLIT: Final = re.compile(r";\s*")
_WHOLE: Final = ("DO $$", "CREATE SCHEMA")
"""Beginnings of texts that are one step here, though they have several statements."""
_SQL: Final = {"J": r"(?:%s|\$1)", "PART": r'"tallymark"\."block_(\d+)_(\d+)"'}


def statements_of(text: str) -> list[str]:
    """Return the statements of a text, with single spaces."""
    flat = " ".join(text.split())
    if flat.startswith(_WHOLE):
        return [flat]
    return [one for one in _SPLIT.split(flat) if one]


def run(session: Session, statement: str, values: Sequence[Any]) -> Rows | int:
    """Do what a statement says. Raises Blocked, psycopg.Error."""
    known = _KNOWN.get(statement)
    if known is None:
        for pattern, handler in _HANDLERS:
            found = pattern.fullmatch(statement)
            if found is not None:
                known = _KNOWN[statement] = handler, found
                break
        else:
            raise AssertionError(f"no world knows the statement {statement!r}")
    return known[0](session, known[1], values)


def _does(*patterns: str) -> Callable[[Handler], Handler]:
    """Name the statements of a handler: as they are, with `...` for anything, `#` for a number and
    PART for the name of a partition."""

    def add(handler: Handler) -> Handler:
        for text in patterns:
            pattern = re.escape(text).replace(r"\.\.\.", ".*?").replace(r"\#", r"(\d+)")
            pattern = pattern.replace("PART", _SQL["PART"])
            _HANDLERS.append((re.compile(pattern), handler))
        return handler

    return add


# -- sessions


@_does("SET synchronous_commit TO on", "SET statement_timeout TO 0", "SET lock_timeout TO 0",
       "SET client_min_messages TO warning", "SET idle_in_transaction_session_timeout TO ...",
       "DEALLOCATE ...")  # fmt: skip
def _(session: Session, found: re.Match[str], values: Sequence[Any]) -> Rows | int:
    return 0


@_does("SET LOCAL idle_in_transaction_session_timeout TO '#s'")
def _(session: Session, found: re.Match[str], values: Sequence[Any]) -> Rows | int:
    session.open_transaction().idle_s = float(found[1])
    return 0


@_does("SET LOCAL lock_timeout TO #")
def _(session: Session, found: re.Match[str], values: Sequence[Any]) -> Rows | int:
    session.open_transaction().lock_s = int(found[1]) / 1000
    return 0


@_does("SET LOCAL synchronous_commit TO local", "SET LOCAL synchronous_commit TO off")
def _(session: Session, found: re.Match[str], values: Sequence[Any]) -> Rows | int:
    session.open_transaction().is_local = True
    return 0


@_does("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
def _(session: Session, found: re.Match[str], values: Sequence[Any]) -> Rows | int:
    session.share(BLOCKS)
    session.open_transaction().snapshot = session.tables.with_changes(())
    return 0


@_does("LISTEN ...")
def _(session: Session, found: re.Match[str], values: Sequence[Any]) -> Rows | int:
    session.channels.add(found.string.split()[1])
    return 0


@_does("NOTIFY ...")
def _(session: Session, found: re.Match[str], values: Sequence[Any]) -> Rows | int:
    session.open_transaction().notices.append(found.string.split()[1])
    return 0


# -- the schema


@_does("SELECT pg_advisory_xact_lock(%s)")
def _(session: Session, found: re.Match[str], values: Sequence[Any]) -> Rows | int:
    session.own("schema")
    return 0


@_does("SELECT to_regclass('tallymark.version') IS NULL")
def _(session: Session, found: re.Match[str], values: Sequence[Any]) -> Rows | int:
    return [(session.tables.version is None,)]


@_does("CREATE SCHEMA IF NOT EXISTS tallymark; ...")
def _(session: Session, found: re.Match[str], values: Sequence[Any]) -> Rows | int:
    return 0


@_does("INSERT INTO tallymark.version VALUES (%s)")
def _(session: Session, found: re.Match[str], values: Sequence[Any]) -> Rows | int:
    session.change(VERSION, None, values[0])
    return 1


@_does("SELECT max(version) FROM tallymark.version")
def _(session: Session, found: re.Match[str], values: Sequence[Any]) -> Rows | int:
    return [(session.tables.version,)]


@_does("INSERT INTO tallymark.leader VALUES (%s, 0) ON CONFLICT DO NOTHING")
def _(session: Session, found: re.Match[str], values: Sequence[Any]) -> Rows | int:
    if values[0] in session.tables.epochs:
        return 0
    session.own(("leader", values[0]))
    session.change(EPOCH, values[0], 0)
    return 1


@_does("INSERT INTO tallymark.lease VALUES (%s, '', clock_timestamp(), '') ON CONFLICT DO NOTHING")
def _(session: Session, found: re.Match[str], values: Sequence[Any]) -> Rows | int:
    if values[0] in session.tables.leases:
        return 0
    session.own(("lease", values[0]))
    session.change(LEASE, values[0], LeaseRow("", session.wall_ms(), ""))
    return 1


@_does("DO $$ BEGIN IF to_regclass(...) IS NULL THEN CREATE TABLE PART ...")
def _(session: Session, found: re.Match[str], values: Sequence[Any]) -> Rows | int:
    key = int(found[1]), int(found[2])
    session.share(BLOCKS)
    if key in session.tables.segments:
        return 0
    session.own(("partition", key))
    session.change(SEGMENT, key, True)
    return 0


@_does("SELECT c.relname FROM pg_inherits ...")
def _(session: Session, found: re.Match[str], values: Sequence[Any]) -> Rows | int:
    return [(partition_name(*key),) for key in session.tables.segments]


@_does("DROP TABLE PART")
def _(session: Session, found: re.Match[str], values: Sequence[Any]) -> Rows | int:
    session.own(BLOCKS)
    session.change(SEGMENT, (int(found[1]), int(found[2])), GONE)
    return 0


# -- the leader's row: a fence


def _held(session: Session, journal: int, epoch: int) -> bool:
    """Lock the leader's row and compare its epoch. By itself that is a commit."""
    session.share(("leader", journal))
    if session.tables.epochs.get(journal) != epoch:
        return False
    session.change(HELD, journal, epoch)
    return True


@_does("SELECT epoch FROM tallymark.leader WHERE journal = %(journal)s AND epoch = %(epoch)s FOR "
       "SHARE")  # fmt: skip
def _(session: Session, found: re.Match[str], values: Any) -> Rows | int:
    journal, epoch = values["journal"], values["epoch"]
    return [(epoch,)] if _held(session, journal, epoch) else []


@_does("SELECT 1 / count(*) FROM (SELECT epoch FROM tallymark.leader WHERE journal = # AND "
       "epoch = # FOR SHARE) AS held")  # fmt: skip
def _(session: Session, found: re.Match[str], values: Sequence[Any]) -> Rows | int:
    if not _held(session, int(found[1]), int(found[2])):
        raise psycopg.errors.DivisionByZero("division by zero")
    return [(1,)]


@_does("SELECT epoch FROM tallymark.leader WHERE journal = %s")
def _(session: Session, found: re.Match[str], values: Sequence[Any]) -> Rows | int:
    epoch = session.tables.epochs.get(values[0])
    return [] if epoch is None else [(epoch,)]


@_does("UPDATE tallymark.leader SET epoch = %s WHERE journal = %s")
def _(session: Session, found: re.Match[str], values: Sequence[Any]) -> Rows | int:
    epoch, journal = values
    session.own(("leader", journal))
    session.change(EPOCH, journal, epoch)
    return 1


# -- the lease


@_does("SELECT holder, ... FROM tallymark.lease WHERE journal = %s")
def _(session: Session, found: re.Match[str], values: Sequence[Any]) -> Rows | int:
    lease = session.tables.leases[values[0]]
    return [(*lease, session.wall_ms())]


@_does("SELECT holder, ... FROM tallymark.lease WHERE journal = %s FOR UPDATE")
def _(session: Session, found: re.Match[str], values: Sequence[Any]) -> Rows | int:
    session.own(("lease", values[0]))
    session.change(HELD, values[0], None)
    return [(*session.tables.leases[values[0]], session.wall_ms())]


@_does("WITH alone AS MATERIALIZED (SELECT set_config('synchronous_commit', 'local', true)) UPDATE "
       "tallymark.lease SET expires = ... RETURNING ...")  # fmt: skip
def _(session: Session, found: re.Match[str], values: Sequence[Any]) -> Rows | int:
    lasting_ms, journal, name = values
    session.own(("lease", journal))
    lease = session.tables.leases[journal]
    if lease.holder != name:
        return []
    session.open_transaction().is_local = True
    expires_ms = session.wall_ms() + lasting_ms
    session.change(LEASE, journal, lease._replace(expires_ms=expires_ms))
    return [(expires_ms, lease.request)]


@_does("UPDATE tallymark.lease SET holder = %s, expires = to_timestamp(%s / 1000.0), request = %s "
       "WHERE journal = %s")  # fmt: skip
def _(session: Session, found: re.Match[str], values: Sequence[Any]) -> Rows | int:
    *lease, journal = values
    session.own(("lease", journal))
    session.change(LEASE, journal, LeaseRow(*lease))
    return 1


# -- followers


@_does("INSERT INTO tallymark.standby VALUES (%s, %s, %s, clock_timestamp()) ON CONFLICT ...")
def _(session: Session, found: re.Match[str], values: Sequence[Any]) -> Rows | int:
    journal, name, position = values
    session.own(("standby", journal, name))
    session.change(FOLLOWER, (journal, name), (position, session.wall_ms()))
    return 1


@_does("DELETE FROM tallymark.standby WHERE journal = %s AND ...")
def _(session: Session, found: re.Match[str], values: Sequence[Any]) -> Rows | int:
    journal, name = values
    now_ms = session.wall_ms()
    gone = [
        key for key, (_, seen_ms) in session.tables.followers.items()
        if key[0] == journal and (key[1] == name or seen_ms < now_ms - DAY_MS)
    ]  # fmt: skip
    for key in gone:
        session.own(("standby", *key))
        session.change(FOLLOWER, key, GONE)
    return len(gone)


@_does("SELECT name, position, ... AS age FROM tallymark.standby WHERE journal = %s ORDER BY age")
def _(session: Session, found: re.Match[str], values: Sequence[Any]) -> Rows | int:
    now_ms = session.wall_ms()
    rows = [
        (key[1], position, now_ms - seen_ms)
        for key, (position, seen_ms) in session.tables.followers.items() if key[0] == values[0]
    ]  # fmt: skip
    return sorted(rows, key=lambda row: row[2])


# -- blocks


@_does("WITH held AS (SELECT epoch FROM tallymark.leader WHERE journal = $1 AND epoch = $2 FOR "
       "SHARE) INSERT INTO PART (journal, position, epoch, crc, bytes) SELECT $1, $3, $2, $4, $5 "
       "FROM held ON CONFLICT DO NOTHING")  # fmt: skip
def _(session: Session, found: re.Match[str], values: Sequence[Any]) -> Rows | int:
    journal, epoch, position, crc, data = values
    if (int(found[1]), int(found[2])) not in session.tables.segments:
        raise psycopg.errors.UndefinedTable(f'relation "block_{found[1]}_{found[2]}"')
    seen = session.seen
    if not _held(session, journal, epoch):
        seen.add("superseded leader tried to write")
        return 0
    session.own(("row", journal, position))
    is_again = session.is_doubtful(journal, epoch, position)
    if position in session.tables.segments[journal, position >> 32]:
        if is_again:
            seen.add("unknown commit had happened")
        return 0
    if is_again:
        seen.add("unknown commit had not happened")
    session.change(ROW, (journal, position), Row(epoch, crc, data))
    return 1


@_does("SELECT epoch, crc FROM tallymark.block WHERE journal = %s AND position = %s")
def _(session: Session, found: re.Match[str], values: Sequence[Any]) -> Rows | int:
    session.share(BLOCKS)
    journal, position = values
    row = session.tables.segments.get((journal, position >> 32), {}).get(position)
    return [] if row is None else [(row.epoch, row.crc)]


@_does("SELECT position, crc, bytes, epoch FROM ( SELECT *, sum(length(bytes)) OVER (ORDER BY "
       "position) - length(bytes) AS ahead FROM ( SELECT position, crc, bytes, epoch FROM "
       "tallymark.block WHERE journal = %s AND position >= %s ORDER BY position LIMIT %s ) AS next "
       ") AS counted WHERE ahead < %s ORDER BY position")  # fmt: skip
def _(session: Session, found: re.Match[str], values: Sequence[Any]) -> Rows | int:
    session.share(BLOCKS)
    journal, begin, most, most_bytes = values
    rows = session.tables.rows_of(journal, begin >> 32).items()
    behind = [(at, row.crc, row.data, row.epoch) for at, row in rows if at >= begin][:most]
    ahead = accumulate((len(data) for _, _, data, _ in behind), initial=0)
    return [row for row, size in zip(behind, ahead, strict=False) if size < most_bytes]


@_does("SELECT position, epoch, crc, length(bytes) FROM tallymark.block WHERE journal = %s AND "
       "position = ANY(%s)")  # fmt: skip
def _(session: Session, found: re.Match[str], values: Sequence[Any]) -> Rows | int:
    session.share(BLOCKS)
    rows = session.tables.rows_of(values[0])
    asked = [(at, rows[at]) for at in values[1] if at in rows]
    return [(at, row.epoch, row.crc, len(row.data)) for at, row in asked]


@_does("SELECT position & 4294967295, length(bytes), epoch, crc FROM tallymark.block WHERE "
       "journal = %s AND position >= %s AND position < %s ORDER BY position")  # fmt: skip
def _(session: Session, found: re.Match[str], values: Sequence[Any]) -> Rows | int:
    session.share(BLOCKS)
    journal, begin, end = values
    return [
        (at & 0xFFFFFFFF, len(row.data), row.epoch, row.crc)
        for at, row in session.tables.rows_of(journal, begin >> 32).items()
        if begin <= at < end
    ]  # fmt: skip


@_does("SELECT substring(bytes FROM 1 FOR %s) FROM tallymark.block WHERE journal = %s AND "
       "position = %s")  # fmt: skip
def _(session: Session, found: re.Match[str], values: Sequence[Any]) -> Rows | int:
    session.share(BLOCKS)
    size, journal, position = values
    row = session.tables.rows_of(journal).get(position)
    return [] if row is None else [(row.data[:size],)]


def _partition(session: Session, found: re.Match[str]) -> dict[int, Row]:
    rows = session.tables.segments.get((int(found[1]), int(found[2])))
    if rows is None:
        raise psycopg.errors.UndefinedTable(f'relation "block_{found[1]}_{found[2]}"')
    return rows


@_does("SELECT position, octet_length(bytes), crc FROM PART ORDER BY position")
def _(session: Session, found: re.Match[str], values: Sequence[Any]) -> Rows | int:
    rows = sorted(_partition(session, found).items())
    return [(at, len(row.data), row.crc) for at, row in rows]


@_does("SELECT position, epoch, crc FROM PART ORDER BY position DESC LIMIT 1")
def _(session: Session, found: re.Match[str], values: Sequence[Any]) -> Rows | int:
    rows = sorted(_partition(session, found).items())
    return [(at, row.epoch, row.crc) for at, row in rows[-1:]]


@_does("INSERT INTO PART VALUES (%s, %s, %s, %s, %b)")
def _(session: Session, found: re.Match[str], values: Sequence[Any]) -> Rows | int:
    journal, position, epoch, crc, data = values
    session.own(("row", journal, position))
    if position in _partition(session, found):
        raise psycopg.errors.UniqueViolation(f"row at {position:#x}")
    session.change(ROW, (journal, position), Row(epoch, crc, data))
    return 1


@_does("DELETE FROM PART WHERE position >= %s")
def _(session: Session, found: re.Match[str], values: Sequence[Any]) -> Rows | int:
    gone = [at for at in _partition(session, found) if at >= values[0]]
    for position in gone:
        session.own(("row", int(found[1]), position))
        session.change(ROW, (int(found[1]), position), GONE)
    return len(gone)


# -- files


def _files(session: Session, journal: int) -> list[tuple[str, dict[int, Part]]]:
    """Return the files of a journal: names and parts, by name."""
    files = session.tables.files.items()
    return sorted((key[1], parts) for key, parts in files if key[0] == journal)


def _delete_file(session: Session, journal: int, name: str) -> int:
    session.own(("file", journal, name))
    if (journal, name) not in session.tables.files:
        return 0
    session.change(FILE, (journal, name), GONE)
    return 1


@_does("DELETE FROM tallymark.file WHERE journal = %s AND name = ANY(%s)")
def _(session: Session, found: re.Match[str], values: Sequence[Any]) -> Rows | int:
    return sum(_delete_file(session, values[0], name) for name in values[1])


@_does("DELETE FROM tallymark.file WHERE journal = %s AND name = %s")
def _(session: Session, found: re.Match[str], values: Sequence[Any]) -> Rows | int:
    return _delete_file(session, *values)


@_does("INSERT INTO tallymark.file VALUES (%s, %s, %s, %s, %b)")
def _(session: Session, found: re.Match[str], values: Sequence[Any]) -> Rows | int:
    journal, name, part, crc, data = values
    session.own(("file", journal, name))
    parts = session.tables.files.get((journal, name), {})
    if part in parts:
        raise psycopg.errors.UniqueViolation(f"{name}, part {part}")
    session.change(FILE, (journal, name), {**parts, part: Part(crc, data)})
    return 1


@_does("SELECT DISTINCT name FROM tallymark.file WHERE journal = %s AND name LIKE %s")
def _(session: Session, found: re.Match[str], values: Sequence[Any]) -> Rows | int:
    end = values[1].removeprefix("%")
    return [(name,) for name, _ in _files(session, values[0]) if name.endswith(end)]


@_does("SELECT name, crc FROM tallymark.file WHERE journal = %s ORDER BY name, part")
def _(session: Session, found: re.Match[str], values: Sequence[Any]) -> Rows | int:
    return [
        (name, part.crc)
        for name, parts in _files(session, values[0]) for _, part in sorted(parts.items())
    ]  # fmt: skip


@_does("SELECT crc, bytes FROM tallymark.file WHERE journal = %s AND name = %s ORDER BY part")
def _(session: Session, found: re.Match[str], values: Sequence[Any]) -> Rows | int:
    parts = session.tables.files.get((values[0], values[1]), {})
    return [(*part,) for _, part in sorted(parts.items())]


@_does("SELECT name, array_agg(crc ORDER BY part) FROM tallymark.file WHERE journal = %s AND "
       "name = ANY(%s) GROUP BY name")  # fmt: skip
def _(session: Session, found: re.Match[str], values: Sequence[Any]) -> Rows | int:
    return [
        (name, [part.crc for _, part in sorted(parts.items())])
        for name, parts in _files(session, values[0]) if name in values[1]
    ]  # fmt: skip
