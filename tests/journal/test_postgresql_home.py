"""What a leader writes to PostgreSQL, and what it believes of it."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tallymark.journal.postgresql import schema
from tallymark.journal.postgresql.connection import Connection, connect
from tallymark.journal.postgresql.errors import LeadLost, OtherBytes
from tallymark.journal.postgresql.home import ROW_BYTES, PostgresqlHome
from tallymark.journal.postgresql.marks import Mark, read_marks
from tallymark.stored.layout import HEADER, SEALED, bare_block
from tallymark.stored.segment import segment_name
from tests.support.long import long
from tests.support.patience import PATIENCE_S, until
from tests.support.postgresql import MISSING, Cluster, find_postgresql

pytestmark = [
    long(ci=False),  # every start of a server takes a second; CI's machine has none
    pytest.mark.skipif(find_postgresql() is None, reason=MISSING),
]
SALT = 0x5A17
_journals = itertools.count(100)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(standbys=1) as made:
        yield made


class Led:
    """A journal of its own, and a leader of it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.journal = next(_journals)
        self.connection = connect(url)
        schema.install(self.connection)
        schema.add_journal(self.connection, self.journal)
        self.home = PostgresqlHome(url, self.journal, 0)
        self.homes = [self.home]

    def taken_over(self) -> PostgresqlHome:
        """Another leader's home, in the next epoch."""
        with connect(self.url) as raising:
            raising.execute(
                "UPDATE tallymark.leader SET epoch = epoch + 1 WHERE journal = %s", (self.journal,)
            )
        self.homes.append(PostgresqlHome(self.url, self.journal, self.homes[-1].epoch + 1))
        return self.homes[-1]

    def rows(self) -> list[tuple[int, int, bytes]]:
        """Position, epoch and bytes of each row; the checksums are right."""
        found = self.connection.execute(
            "SELECT position, epoch, bytes, crc FROM tallymark.block WHERE journal = %s "
            "ORDER BY position",
            (self.journal,),
        ).fetchall()
        assert all(schema.row_checksum(data) == crc for _, _, data, crc in found)
        return [(position, epoch, data) for position, epoch, data, _ in found]

    def files(self) -> dict[str, bytes]:
        found = self.connection.execute(
            "SELECT name, bytes FROM tallymark.file WHERE journal = %s ORDER BY name, part",
            (self.journal,),
        ).fetchall()
        return {name: b"".join(data for of, data in found if of == name) for name in dict(found)}

    def close(self) -> None:
        for home in self.homes:
            home.close()
        for segment in schema.partitions(self.connection, self.journal):
            self.connection.execute(f"DROP TABLE tallymark.block_{self.journal}_{segment}".encode())
        self.connection.close()


@pytest.fixture
def led(cluster: Cluster) -> Iterator[Led]:
    made = Led(cluster.url())
    yield made
    made.close()


def block(number: int, size: int = HEADER, segment: int = 1, flags: int = 0) -> bytes:
    """A block without rows; what is behind its header is nothing to the home."""
    head = bare_block(segment, number, SALT, 0, flags, size)
    return head.ljust(size, b"\0")


def test_what_was_gathered_is_one_row(led: Led) -> None:
    led.home.append(1, 0, [block(0), block(1)[:20], block(1)[20:]])
    led.home.append(1, 128, [block(2)])
    led.home.append(2, 0, [block(0, segment=2)])
    assert led.rows() == [
        (1 << 32, 0, block(0) + block(1)),
        (1 << 32 | 128, 0, block(2)),
        (2 << 32, 0, block(0, segment=2)),
    ]
    assert led.home.trouble == ""
    assert led.home.waits_s == 0


def test_who_follows_is_told_of_growth(led: Led) -> None:
    with connect(led.url) as follows:
        follows.execute(f"LISTEN tallymark_{led.journal}".encode())
        for number in range(3):
            led.home.append(1, 64 * number, [block(number)])
            assert list(follows.notifies(timeout=PATIENCE_S, stop_after=1))


def test_a_large_turn_is_rows_of_whole_blocks(led: Led) -> None:
    blocks = [block(0, ROW_BYTES - 64), block(1), block(2), block(3, 2 * ROW_BYTES), block(4)]
    led.home.append(1, 64, blocks)
    joined = [blocks[0] + blocks[1], blocks[2], blocks[3], blocks[4]]
    at = [64, 64 + ROW_BYTES, 64 + ROW_BYTES + 64, 128 + 3 * ROW_BYTES]
    assert led.rows() == [
        (1 << 32 | offset, 0, data) for offset, data in zip(at, joined, strict=True)
    ]


def test_bytes_of_another_writer_are_never_taken_for_ours(led: Led) -> None:
    led.home.append(1, 0, [block(0)])
    with pytest.raises(OtherBytes, match="a row at position 0x100000000 that this broker has not"):
        led.home.append(1, 0, [block(5)])
    with pytest.raises(OtherBytes):
        led.home.append(1, 0, [block(0)])  # not in doubt: it cannot be there
    assert led.rows() == [(1 << 32, 0, block(0))]


def test_other_bytes_are_not_taken_for_ours_when_the_connection_was_lost_either(led: Led) -> None:
    led.home.append(1, 0, [block(0)])
    found = led.connection.execute(
        "SELECT pid FROM pg_stat_activity WHERE query LIKE %s",
        (f'%INSERT INTO "tallymark"."block_{led.journal}_1"%',),
    ).fetchall()
    assert len(found) == 1
    led.connection.execute("SELECT pg_terminate_backend(%s, 60000)", found[0])
    led.connection.execute(
        "INSERT INTO tallymark.block VALUES (%s, %s, 0, 7, %s)",
        (led.journal, 1 << 32 | 64, block(1)),
    )
    with pytest.raises(OtherBytes):
        led.home.append(1, 64, [block(1)])


def test_who_lost_the_lead_writes_nothing_any_more(led: Led, tmp_path: Path) -> None:
    led.home.append(1, 0, [block(0)])
    successor = led.taken_over()
    with pytest.raises(LeadLost, match="it is in epoch 1, and this broker's lead was epoch 0"):
        led.home.append(1, 64, [block(1)])
    (tmp_path / "users.json").write_bytes(b"{}")
    with pytest.raises(LeadLost):
        led.home.put(tmp_path, ["users.json"], [])
    assert led.files() == {}
    successor.append(2, 0, [block(0, segment=2)])
    assert [position for position, _, _ in led.rows()] == [1 << 32, 2 << 32]


def test_a_takeover_waits_for_a_commit_that_is_under_way_and_no_longer(led: Led) -> None:
    """The fence: whoever holds the leader's row finishes first, whoever comes later finds another
    epoch."""
    led.home.append(1, 0, [block(0)])
    with connect(led.url) as commits:
        commits.execute("BEGIN")
        held = {"journal": led.journal, "epoch": 0}
        assert commits.execute(schema.HELD, held).fetchone() is not None
        raised = threading.Thread(target=led.taken_over)
        raised.start()
        until(lambda: _waits_for_lock(led.url))
        commits.execute("COMMIT")
        raised.join()
        assert commits.execute(schema.HELD, held).fetchone() is None


def _waits_for_lock(url: str) -> bool:
    with connect(url) as asks:
        row = asks.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
            "AND query LIKE 'UPDATE tallymark.leader%'"
        ).fetchone()
    return row is not None and row[0] > 0


# -- outcomes that are not known


class Apart:
    """A call on a thread of its own."""

    def __init__(self, call: Callable[[], None]) -> None:
        self.error: BaseException | None = None
        self._call = call
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._call()
        except BaseException as error:
            self.error = error

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def result(self) -> BaseException | None:
        self._thread.join()
        return self.error


def waiting_for_standby(connection: Connection) -> list[int]:
    """Processes of the server whose commit waits for the synchronous standby."""
    rows = connection.execute(
        "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    ).fetchall()
    return [row[0] for row in rows]


def test_a_commit_whose_wait_is_cancelled_is_not_believed(led: Led, cluster: Cluster) -> None:
    """It is visible, and not safe: the append goes on until a later commit is."""
    led.home.append(1, 0, [block(0)])
    with cluster.standbys_paused():
        appended = Apart(lambda: led.home.append(1, 64, [block(1)]))
        until(lambda: waiting_for_standby(led.connection))
        assert [data for _, _, data in led.rows()] == [block(0)]
        first = waiting_for_standby(led.connection)[0]
        led.connection.execute("SELECT pg_cancel_backend(%s)", (first,))
        until(lambda: len(led.rows()) == 2)
        assert led.rows()[1][2] == block(1), "visible"
        until(lambda: led.home.trouble)
        assert "synchronous replication" in led.home.trouble
        until(lambda: any(pid != first for pid in waiting_for_standby(led.connection)))
        assert not appended.is_over, "not safe"
    assert appended.result() is None
    assert led.home.trouble == ""
    assert [data for _, _, data in led.rows()] == [block(0), block(1)]


def test_a_commit_whose_connection_is_lost_is_covered_by_a_later_one(
    led: Led, cluster: Cluster
) -> None:
    led.home.append(1, 0, [block(0)])
    with cluster.standbys_paused():
        appended = Apart(lambda: led.home.append(1, 64, [block(1)]))
        until(lambda: waiting_for_standby(led.connection))
        first = waiting_for_standby(led.connection)[0]
        led.connection.execute("SELECT pg_terminate_backend(%s)", (first,))
        until(lambda: any(pid != first for pid in waiting_for_standby(led.connection)))
        assert not appended.is_over
    assert appended.result() is None
    assert [data for _, _, data in led.rows()] == [block(0), block(1)]


def test_a_lead_that_was_lost_while_the_outcome_was_unknown_is_noticed(
    led: Led, cluster: Cluster
) -> None:
    led.home.append(1, 0, [block(0)])
    with cluster.standbys_paused():
        appended = Apart(lambda: led.home.append(1, 64, [block(1)]))
        until(lambda: waiting_for_standby(led.connection))
        raised = Apart(lambda: (led.taken_over(), None)[1])
        until(lambda: _waits_for_lock(led.url))
        first = waiting_for_standby(led.connection)[0]
        led.connection.execute("SELECT pg_terminate_backend(%s)", (first,))
    assert raised.result() is None
    error = appended.result()
    assert error is None or isinstance(error, LeadLost)
    assert [data for _, _, data in led.rows()] == [block(0), block(1)]
    with pytest.raises(LeadLost):
        led.home.append(1, 128, [block(2)])


def test_a_segment_that_is_over_is_marked_as_compared(led: Led, tmp_path: Path) -> None:
    names = [segment_name(number, SALT) for number in (1, 2)]
    for number, name in enumerate(names, 1):
        for index in range(2):
            led.home.append(number, 64 * index, [block(index, segment=number)])
        (tmp_path / name).write_bytes(block(0, segment=number) + block(1, segment=number))
    assert read_marks(tmp_path) == {}
    (tmp_path / "users.json").write_bytes(b"{}")
    led.home.put(tmp_path, ["users.json"], [])
    crc = schema.row_checksum(block(1))
    assert read_marks(tmp_path) == {names[0]: Mark(64, 128, led.home.epoch, crc)}


def test_an_end_does_not_wait_for_the_database(led: Led, cluster: Cluster) -> None:
    led.home.append(1, 0, [block(0)])
    with cluster.standbys_paused():
        appended = Apart(lambda: led.home.append(1, 64, [block(1)]))
        until(lambda: waiting_for_standby(led.connection))
        led.home.end()
        error = appended.result()
    assert isinstance(error, OSError)
    assert "stopped while the database was away" in str(error)


# -- files


def test_files_are_kept_and_let_go_of_at_once(led: Led, tmp_path: Path) -> None:
    large = bytes(range(256)) * 8192 + b"end"
    (tmp_path / "1.checkpoint").write_bytes(large)
    (tmp_path / "users.json").write_bytes(b"")
    led.home.put(tmp_path, ["1.checkpoint", "users.json"], [])
    assert led.files() == {"1.checkpoint": large, "users.json": b""}
    (tmp_path / "2.checkpoint").write_bytes(b"second")
    (tmp_path / "users.json").write_bytes(b"{}")
    led.home.put(tmp_path, ["2.checkpoint", "users.json"], ["1.checkpoint", "none.json"])
    assert led.files() == {"2.checkpoint": b"second", "users.json": b"{}"}


def test_a_stripped_segment_is_its_ledger(led: Led, tmp_path: Path) -> None:
    for segment in (1, 2, 3):
        led.home.append(segment, 0, [block(0, segment=segment)])
    name = segment_name(2, SALT).replace(".segment", ".ledger")
    (tmp_path / name).write_bytes(b"rows")
    led.home.put(tmp_path, [name], [segment_name(2, SALT)])
    assert led.files() == {name: b"rows"}
    assert schema.partitions(led.connection, led.journal) == [1, 3]


def test_a_reader_of_blocks_is_not_waited_for(led: Led, tmp_path: Path) -> None:
    for segment in (1, 2):
        led.home.append(segment, 0, [block(0, segment=segment)])
    names = [segment_name(n, SALT).replace(".segment", ".ledger") for n in (1, 2)]
    with connect(led.url) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM tallymark.block")
        (tmp_path / names[0]).write_bytes(b"rows")
        led.home.put(tmp_path, names[:1], [segment_name(1, SALT)])
        assert led.files() == {names[0]: b"rows"}
        assert schema.partitions(led.connection, led.journal) == [1, 2]
        led.home.append(2, 64, [block(1, segment=2)])
        reader.execute("COMMIT")
    (tmp_path / names[1]).write_bytes(b"rows")
    led.home.put(tmp_path, names[1:], [segment_name(2, SALT)])
    assert schema.partitions(led.connection, led.journal) == []


def test_a_repaired_segment_keeps_the_rows_that_say_the_same(led: Led, tmp_path: Path) -> None:
    led.home.append(1, 0, [block(0), block(1)])
    led.home.append(1, 128, [block(2)])
    successor = led.taken_over()
    seal = block(3, flags=SEALED)
    name = segment_name(1, SALT)
    (tmp_path / name).write_bytes(block(0) + block(1) + block(2) + seal)
    successor.put(tmp_path, [name], [])
    expected = [
        (1 << 32, 0, block(0) + block(1)), (1 << 32 | 128, 0, block(2)), (1 << 32 | 192, 1, seal)
    ]  # fmt: skip
    assert led.rows() == expected
    (tmp_path / name).write_bytes(block(0) + block(1) + block(5) + seal)
    successor.put(tmp_path, [name], [])
    assert led.rows() == [expected[0], (1 << 32 | 128, 1, block(5) + seal)]


def test_a_repair_without_the_lead_changes_nothing(led: Led, tmp_path: Path) -> None:
    led.taken_over()
    name = segment_name(1, SALT)
    (tmp_path / name).write_bytes(block(0, flags=SEALED))
    with pytest.raises(LeadLost, match="it is in epoch 1, and this broker's lead was epoch 0"):
        led.home.put(tmp_path, [name], [])
    assert led.rows() == []


def test_a_partition_is_not_dropped_without_the_lead(led: Led, tmp_path: Path) -> None:
    led.home.append(1, 0, [block(0)])
    name = segment_name(1, SALT)
    (tmp_path / name.replace(".segment", ".ledger")).write_bytes(b"rows")
    with connect(led.url) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM tallymark.block")
        led.home.put(tmp_path, [name.replace(".segment", ".ledger")], [name])
        reader.execute("COMMIT")
    led.taken_over()
    with pytest.raises(LeadLost), connect(led.url) as stale:
        led.home._drop_dead(stale, False)
    assert led.rows() == [(1 << 32, 0, block(0))]
