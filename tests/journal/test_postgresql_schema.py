"""The journal's tables, on a server of our own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tallymark.journal.postgresql import schema
from tests.support.long import long
from tests.support.postgresql import MISSING, Cluster, find_postgresql

psycopg = pytest.importorskip("psycopg", reason="needs the extra tallymark[postgresql]")
pytestmark = [
    long(ci=False),  # every start of a server takes a second; CI's machine has none
    pytest.mark.skipif(find_postgresql() is None, reason=MISSING),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as made:
        yield made


@pytest.fixture
def connection(cluster: Cluster) -> Iterator[psycopg.Connection]:
    with psycopg.connect(cluster.url(), autocommit=True) as made:
        schema.install(made)
        yield made


def test_the_tables_are_made_once(connection: psycopg.Connection) -> None:
    schema.add_journal(connection, 1)
    connection.execute("UPDATE tallymark.leader SET epoch = 7 WHERE journal = 1")
    schema.install(connection)
    schema.add_journal(connection, 1)
    found = connection.execute("SELECT epoch FROM tallymark.leader WHERE journal = 1").fetchall()
    assert found == [(7,)]


def test_tables_of_another_version_are_refused(connection: psycopg.Connection) -> None:
    connection.execute("UPDATE tallymark.version SET version = 99")
    with pytest.raises(
        schema.SchemaRefused, match=f"version 99, this program works with version {schema.VERSION}"
    ):
        schema.install(connection)
    connection.execute("UPDATE tallymark.version SET version = %s", (schema.VERSION,))


def test_blocks_lie_uncompressed_in_the_partition_of_their_segment(
    connection: psycopg.Connection,
) -> None:
    with connection.transaction():
        schema.make_partition(connection, 3, 7)
        schema.make_partition(connection, 3, 7)
        schema.make_partition(connection, 3, 8)
    assert schema.partitions(connection, 3) == [7, 8]
    assert schema.partitions(connection, 4) == []
    connection.execute(
        "INSERT INTO tallymark.block VALUES (3, %s, 1, 0, %b)", (7 << 32, bytes(100_000))
    )
    size = connection.execute("SELECT pg_column_size(bytes) FROM tallymark.block_3_7").fetchone()
    assert size == (100_000,)
    with pytest.raises(psycopg.errors.CheckViolation):
        connection.execute("INSERT INTO tallymark.block VALUES (3, %s, 1, 0, '')", (9 << 32,))
    connection.execute("DROP TABLE tallymark.block_3_7, tallymark.block_3_8")
