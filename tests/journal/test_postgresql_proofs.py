"""A leader that stays alive while the database fails over to a server that was behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tallymark.journal.postgresql import schema
from tallymark.journal.postgresql.connection import connect
from tallymark.journal.postgresql.errors import LeadLost, WentBack
from tallymark.journal.postgresql.home import PostgresqlHome
from tallymark.stored.segment import ledger_name, segment_name
from tests.journal.test_postgresql_home import SALT, block
from tests.support.long import long
from tests.support.patience import until
from tests.support.postgresql import MISSING, Cluster, find_postgresql

pytestmark = [
    long(ci=False),  # every start of a server takes a second; CI's machine has none
    pytest.mark.skipif(find_postgresql() is None, reason=MISSING),
]
JOURNAL = 1


class Behind:
    """A leader, and an asynchronous replica that can be left behind."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        cluster.replicate_to(cluster.primary, [])
        with connect(cluster.url()) as connection:
            schema.install(connection)
            schema.add_journal(connection, JOURNAL)
        self.home = PostgresqlHome(cluster.url(), JOURNAL, 0)

    def write(self, name: str) -> str:
        (self.folder / name).write_bytes(name.encode())
        return name

    def fail_over(self, lost: Callable[[], None] | None = None) -> None:
        """Promote the replica. lost: is safe on the primary, and never gets to the replica."""
        primary, replica = self.cluster.servers
        at = primary.run("SELECT pg_current_wal_lsn()")
        until(lambda: replica.run(f"SELECT pg_last_wal_replay_lsn() >= '{at}'") == "t")
        if lost is not None:
            replica.stop()  # paused, it would read the rest from its socket
            lost()
        primary.kill()
        if lost is not None:
            replica.start()
        replica.promote()

    def positions(self) -> list[int]:
        with connect(self.cluster.url()) as connection:
            rows = connection.execute("SELECT position FROM tallymark.block ORDER BY position")
            return [row[0] for row in rows]


@pytest.fixture
def behind(tmp_path: Path) -> Iterator[Behind]:
    with Cluster(standbys=1) as cluster:
        made = Behind(cluster, tmp_path)
        yield made
        made.home.close()


def test_blocks_are_not_appended_behind_a_gap(behind: Behind) -> None:
    home = behind.home
    home.append(1, 0, [block(0)])
    behind.fail_over(lambda: home.append(1, 64, [block(1)]))
    with pytest.raises(WentBack, match="it lacks the blocks at position 0x100000040"):
        home.append(1, 128, [block(2)])
    with pytest.raises(WentBack):  # in a new segment neither
        home.append(2, 0, [block(0, segment=2)])
    with pytest.raises(WentBack):
        home.put(behind.folder, [behind.write("users.json")], [])
    with connect(behind.cluster.url()) as connection, pytest.raises(WentBack):
        home.check(connection)
    assert behind.positions() == [1 << 32]


def test_files_are_not_changed_behind_one_that_was_lost(behind: Behind) -> None:
    home, first, second = behind.home, behind.write("1.checkpoint"), behind.write("2.checkpoint")
    home.append(1, 0, [block(0)])
    home.put(behind.folder, [first], [])
    behind.fail_over(lambda: home.put(behind.folder, [second], [first]))
    lacks = r"it lacks the last change of [12]\.checkpoint"
    with pytest.raises(WentBack, match=lacks):
        home.put(behind.folder, [behind.write("users.json")], [])
    with pytest.raises(WentBack, match=lacks):
        home.append(1, 64, [block(1)])
    assert behind.positions() == [1 << 32]


def test_a_server_that_knows_nothing_of_a_leader_is_not_written_to(behind: Behind) -> None:
    behind.home.append(1, 0, [block(0)])
    leader = PostgresqlHome(behind.cluster.url(), JOURNAL, 1)

    def lead() -> None:
        behind.cluster.primary.run("UPDATE tallymark.leader SET epoch = 1")
        leader.append(2, 0, [block(0, segment=2)])

    behind.fail_over(lead)
    with pytest.raises(WentBack):
        leader.append(2, 64, [block(1, segment=2)])
    unproven = PostgresqlHome(behind.cluster.url(), JOURNAL, 1)
    with pytest.raises(LeadLost, match="the database went back: journal 1 is in epoch 0"):
        unproven.append(2, 0, [block(0, segment=2)])
    assert behind.positions() == [1 << 32]
    for home in (leader, unproven):
        home.close()


def test_a_server_that_has_everything_is_gone_on_with(behind: Behind) -> None:
    """Also where the last blocks are in a segment that was stripped since."""
    home = behind.home
    home.append(1, 0, [block(0)])
    home.append(2, 0, [block(0, segment=2)])
    for number in (1, 2):
        name = behind.write(ledger_name(number, SALT))
        home.put(behind.folder, [name], [segment_name(number, SALT)])
    behind.fail_over()
    home.append(3, 0, [block(0, segment=3)])
    home.put(behind.folder, [behind.write("users.json")], [ledger_name(1, SALT)])
    assert behind.positions() == [3 << 32]
