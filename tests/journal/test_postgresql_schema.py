"""The journal's tables, on a server of our own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tallymark.journal.postgresql import schema
from tallymark.stored.layout import HEADER, SEALED, bare_block
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
    with pytest.raises(schema.SchemaRefused, match="version 99, this program works with version 1"):
        schema.install(connection)
    connection.execute("UPDATE tallymark.version SET version = 1")


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


def test_the_checksum_of_a_row_depends_on_headers() -> None:
    """Which contain a CRC-32C of their own."""
    seals = [bare_block(1, number, 7, 0, SEALED, HEADER) for number in range(9)]
    assert len({schema.checksum(seal) for seal in seals}) == 9


@pytest.mark.parametrize("name", ["block_1", "block_x_7", "segment_1_7", "block_1_7_9", ""])
def test_other_tables_are_not_taken_for_partitions(name: str) -> None:
    assert schema.parsed_partition(name) is None


def test_a_partition_says_whose_it_is() -> None:
    assert schema.parsed_partition(schema.partition_name(12, 345)) == (12, 345)
