"""What of a journal on PostgreSQL can be said without one."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tallymark.journal.postgresql import schema
from tallymark.journal.postgresql.connection import Stopped, parameters
from tallymark.journal.postgresql.home import ROW_BYTES, PostgresqlHome, rows_of
from tallymark.journal.postgresql.url import shown
from tallymark.server.config.kinds import JOURNAL
from tallymark.stored.layout import HEADER, SEALED, bare_block
from tests.support.patience import until
from tests.support.ports import reserved


class Away:
    """A home whose database is not there, and an append that waits for it."""

    def __init__(self) -> None:
        self.home = PostgresqlHome(f"postgresql://ann:secret@127.0.0.1:{reserved()}/x", 1, 1)
        self.error: OSError | None = None
        self.thread = threading.Thread(target=self._append)
        self.thread.start()

    def _append(self) -> None:
        try:
            self.home.append(1, 0, [b"x" * 64])
        except OSError as error:
            self.error = error


@pytest.fixture
def away() -> Iterator[Away]:
    made = Away()
    yield made
    made.home.end()
    made.thread.join()
    made.home.close()


def test_a_database_that_is_not_there_is_waited_for_and_said(away: Away) -> None:
    until(lambda: away.home.trouble)
    assert "127.0.0.1" in away.home.trouble
    assert "secret" not in away.home.trouble
    assert away.home.waits_s > 0
    assert away.thread.is_alive()


def test_an_end_waits_for_no_database(away: Away) -> None:
    until(lambda: away.home.trouble)
    away.home.end()
    away.thread.join()
    assert isinstance(away.error, Stopped)
    assert "stopped while the database was away: " in str(away.error)
    assert away.home.trouble == ""
    assert away.home.waits_s == 0


def test_a_url_says_what_it_says_and_the_rest_is_ours() -> None:
    said = parameters("postgresql://ann@db1,db2/x?connect_timeout=60")
    assert "connect_timeout=60" in said
    assert "target_session_attrs=read-write" in said
    assert "client_encoding=UTF8" in said
    assert "host=db1,db2" in said
    with pytest.raises(ValueError, match="journal 'postgresql://ann@db/x\\?nonsense=1': "):
        parameters("postgresql://ann:secret@db/x?nonsense=1")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://ann:secret@db/x", "postgresql://ann@db/x"),
        ("postgresql://ann:s@cret@db/x", "postgresql://ann@db/x"),
        ("postgresql://ann@db1,db2/x?y=1", "postgresql://ann@db1,db2/x?y=1"),
        ("postgresql://db/x", "postgresql://db/x"),
        ("postgresql://db/x?user=ann&password=s@cret", "postgresql://db/x?user=ann&password=..."),
        (
            "postgresql://ann:secret@db/x?sslpassword=secret&y=1",
            "postgresql://ann@db/x?sslpassword=...&y=1",
        ),
        ("local", "local"),
    ],
)
def test_no_password_is_shown(url: str, expected: str) -> None:
    assert shown(url) == expected
    assert JOURNAL.show(url) == expected


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ann:s%zzecret@db/x",
        'postgresql://ann:s"%zzecret@db/x',
        "postgresql://db/x?password=s%zzecret",
        "postgresql://db/x?password=secret&nonsense=1",
    ],
)
def test_nor_with_what_is_wrong_with_a_url(url: str) -> None:
    with pytest.raises(ValueError, match=r"^journal 'postgresql://") as refused:
        parameters(url)
    assert "ecret" not in str(refused.value)


def test_rows_are_whole_blocks_and_as_large_as_may_be() -> None:
    sizes = [ROW_BYTES - 64, 64, 64, 2 * ROW_BYTES, 64]
    blocks = [bare_block(1, i, 7, 0, 0, size).ljust(size, b"\0") for i, size in enumerate(sizes)]
    found = list(rows_of(1 << 32 | 64, b"".join(blocks)))
    assert [position & 0xFFFFFFFF for position, _ in found] == [
        64, 64 + ROW_BYTES, 128 + ROW_BYTES, 128 + 3 * ROW_BYTES
    ]  # fmt: skip
    assert [data for _, data in found] == [blocks[0] + blocks[1], *blocks[2:]]
    assert list(rows_of(64, b"")) == []
    assert list(rows_of(64, blocks[1])) == [(64, blocks[1])]


def test_the_checksum_of_a_row_depends_on_headers() -> None:
    """Which contain a CRC-32C of their own."""
    seals = [bare_block(1, number, 7, 0, SEALED, HEADER) for number in range(9)]
    assert len({schema.row_checksum(seal) for seal in seals}) == 9


@pytest.mark.parametrize("name", ["block_1", "block_x_7", "segment_1_7", "block_1_7_9", ""])
def test_other_tables_are_not_taken_for_partitions(name: str) -> None:
    assert schema.parsed_partition(name) is None


def test_a_partition_says_whose_it_is() -> None:
    assert schema.parsed_partition(schema.partition_name(12, 345)) == (12, 345)
