"""Tables of a journal on PostgreSQL, all in the schema `tallymark`.

    leader    journal bigint primary key, epoch bigint
              A row for each journal. Every commit of a leader locks it FOR SHARE and compares the
              epoch; a takeover raises it. Nothing else is ever changed in this row: whatever
              updates it waits for commits that are under way.
    block     journal bigint, position bigint, epoch bigint, crc bigint, bytes bytea
              The journal's blocks. A row holds what one commit gathered: one or more whole blocks
              of one segment, end to end, never a part of one; `position` is that of the first byte
              (segment << 32 | offset), `crc` their `row_checksum`. A segment's rows are without
              gaps.
              Partitioned by position, a partition for each segment, which is dropped as a
              whole. No compression: blocks are not read by PostgreSQL (STORAGE EXTERNAL).
    file      journal bigint, name text, part bigint, crc bigint, bytes bytea
              All other files of the data folder by their names: checkpoints, ledgers of stripped
              segments, users, limits, feature flags. Cut in parts of at most PART_BYTES, counted
              from 0, each with its `checksum`. Blocks of a segment whose ledger is here are dead.
    lease     journal bigint primary key, holder text, expires timestamptz, request text
              Who leads, in the leader's epoch, and until when by the database's clock. request:
              what an operator asks for (lease.py).
    standby   journal bigint, name text, position bigint, seen timestamptz
              Brokers that follow, and how far they are.
    version   version bigint
              One row, VERSION.

The journal's number lets several brokers share a database.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from zlib import crc32

from psycopg import sql

from tallymark.journal.postgresql.errors import SchemaRefused
from tallymark.stored.layout import HEADER, crc32c, length_at

if TYPE_CHECKING:
    import psycopg

VERSION: Final = 2
PART_BYTES: Final = 1 << 20
"""Bytes of one part of a file, at most."""
_INSTALLING: Final = 0x7A_11_13_A2_4B
"""Number of the advisory lock that is held while the tables are made."""

_TABLES: Final = """
CREATE SCHEMA IF NOT EXISTS tallymark;
CREATE TABLE tallymark.version (version bigint NOT NULL);
CREATE TABLE tallymark.leader (
    journal bigint PRIMARY KEY,
    epoch bigint NOT NULL
);
CREATE TABLE tallymark.block (
    journal bigint NOT NULL,
    position bigint NOT NULL,
    epoch bigint NOT NULL,
    crc bigint NOT NULL,
    bytes bytea NOT NULL,
    PRIMARY KEY (journal, position)
) PARTITION BY RANGE (journal, position);
ALTER TABLE tallymark.block ALTER bytes SET STORAGE EXTERNAL;
CREATE TABLE tallymark.file (
    journal bigint NOT NULL,
    name text NOT NULL,
    part bigint NOT NULL,
    crc bigint NOT NULL,
    bytes bytea NOT NULL,
    PRIMARY KEY (journal, name, part)
);
ALTER TABLE tallymark.file ALTER bytes SET STORAGE EXTERNAL;
CREATE TABLE tallymark.lease (
    journal bigint PRIMARY KEY,
    holder text NOT NULL,
    expires timestamptz NOT NULL,
    request text NOT NULL
);
CREATE TABLE tallymark.standby (
    journal bigint NOT NULL,
    name text NOT NULL,
    position bigint NOT NULL,
    seen timestamptz NOT NULL,
    PRIMARY KEY (journal, name)
);
"""


def held(journal: str, epoch: str) -> str:
    """Return the fence, with these places for values: a row while the epoch is still that, which
    then stays so until the transaction ends. By itself it is a commit like any other: locking the
    row is written to the WAL."""
    return (
        "SELECT epoch FROM tallymark.leader "
        f"WHERE journal = {journal} AND epoch = {epoch} FOR SHARE"
    )


HELD: Final = held("%(journal)s", "%(epoch)s")
"""The fence for psycopg."""


_MAKE_PARTITION: Final = """
DO $$ BEGIN
    IF to_regclass({text}) IS NULL THEN
        CREATE TABLE {table} (LIKE tallymark.block INCLUDING ALL);
        ALTER TABLE tallymark.block ATTACH PARTITION {table}
            FOR VALUES FROM ({journal}, {begin}) TO ({journal}, {end});
    END IF;
END $$
"""


def install(connection: psycopg.Connection[tuple[object, ...]]) -> None:
    """Make the tables where there are none. In a connection with autocommit.

    Raises SchemaRefused: they are of a version that this program does not know; psycopg.Error, for
    example where there is no schema and the user may not make it.
    """
    if _are_missing(connection):
        # The lock is only for this, since a broker that dies with it keeps the others waiting.
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (_INSTALLING,))
            if _are_missing(connection):
                connection.execute(_TABLES)
                connection.execute("INSERT INTO tallymark.version VALUES (%s)", (VERSION,))
                return
    row = connection.execute("SELECT max(version) FROM tallymark.version").fetchone()
    version = None if row is None else row[0]
    if version != VERSION:
        raise SchemaRefused(
            f"the tables in the schema tallymark are of version {version}, this program works with "
            f"version {VERSION}"
        )


def _are_missing(connection: psycopg.Connection[tuple[object, ...]]) -> bool:
    found = connection.execute("SELECT to_regclass('tallymark.version') IS NULL").fetchone()
    assert found is not None
    return bool(found[0])


def checksum(data: bytes) -> int:
    """Return the `crc` of a part of a file: the CRC-32 of zlib."""
    return crc32(data)


def row_checksum(data: bytes) -> int:
    """Return the `crc` of a row of blocks: the CRC-32C of its bytes and, in the lower 31 bits, the
    CRC-32 of its blocks' headers.

    CRC-32C is the one that a processor computes by itself, at a thirtieth of the other's cost. But
    a header ends with its own CRC-32C, so that the CRC-32C of any header is the same number, and
    that of a block says nothing of its header.
    """
    headers = []
    at = 0
    while at < len(data):
        headers.append(data[at : at + HEADER])
        at += max(length_at(data, at), HEADER)  # bytes that are no block have a checksum, too
    return crc32c(data) << 31 | crc32(b"".join(headers)) >> 1


def add_journal(connection: psycopg.Connection[tuple[object, ...]], journal: int) -> None:
    """Make the leader's row of a journal, in epoch 0, and a lease that nobody has, where there are
    none."""
    connection.execute(
        "INSERT INTO tallymark.leader VALUES (%s, 0) ON CONFLICT DO NOTHING", (journal,)
    )
    connection.execute(
        "INSERT INTO tallymark.lease VALUES (%s, '', clock_timestamp(), '') ON CONFLICT DO NOTHING",
        (journal,),
    )


def partition(journal: int, segment: int) -> sql.Identifier:
    """Return the name of the table that holds the blocks of a segment."""
    return sql.Identifier("tallymark", partition_name(journal, segment))


def partition_name(journal: int, segment: int) -> str:
    """Return the name of that table, without its schema."""
    return f"block_{journal}_{segment}"


def parsed_partition(name: str) -> tuple[int, int] | None:
    """Return journal and segment from a table's name; None for any other name."""
    kind, _, rest = name.partition("_")
    journal, _, segment = rest.partition("_")
    if kind != "block" or not journal.isdigit() or not segment.isdigit():
        return None
    return int(journal), int(segment)


def make_partition(
    connection: psycopg.Connection[tuple[object, ...]], journal: int, segment: int
) -> None:
    """Make the table of a segment's blocks, unless it is there.

    It is made by itself and attached then: readers and writers of other segments go on meanwhile.
    One statement, so that no broker that is frozen in between keeps its successor from making it.
    """
    name = partition_name(journal, segment)
    connection.execute(
        sql.SQL(_MAKE_PARTITION).format(
            text=f"tallymark.{name}", table=sql.Identifier("tallymark", name), journal=journal,
            begin=segment << 32, end=segment + 1 << 32,
        )
    )  # fmt: skip


def partitions(connection: psycopg.Connection[tuple[object, ...]], journal: int) -> list[int]:
    """Return the numbers of the segments of which there is a table, ascending."""
    rows = connection.execute(
        "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid "
        "WHERE i.inhparent = 'tallymark.block'::regclass"
    ).fetchall()
    named = [parsed_partition(str(row[0])) for row in rows]
    return sorted(one[1] for one in named if one is not None and one[0] == journal)
