"""Pairs of brokers: the simulated database by itself, and what the worlds have found with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tallymark.journal.postgresql import mirror as mirroring
from tallymark.journal.postgresql import schema
from tallymark.journal.postgresql.connection import Access
from tallymark.journal.postgresql.errors import AnotherLeads, LeadLost, WentBack
from tallymark.journal.postgresql.home import PostgresqlHome
from tallymark.journal.postgresql.insert import Insert
from tallymark.journal.postgresql.leadership import Leadership
from tallymark.journal.postgresql.lease import TAKEOVER
from tallymark.journal.postgresql.mirror import Mirror
from tallymark.journal.postgresql.schema import HELD, partition_name, row_checksum
from tallymark.server import run
from tallymark.server.standby import Following
from tallymark.server.view import View
from tallymark.simulation.database.client import Wire
from tallymark.simulation.database.server import Server
from tallymark.simulation.database.statements import BLOCKS
from tallymark.simulation.database.tables import Change
from tallymark.simulation.drawing import draw
from tallymark.simulation.plan import Plan
from tallymark.simulation.playing import play
from tallymark.simulation.world import SECOND_NS, World
from tallymark.stored.segment import checkpoint_name
from tests.journal.test_growth import blocks_of, written

URL = "postgresql://database/tallymark"


@pytest.fixture
def server() -> Server:
    return Server(World(1), standby_s=0.001)


@pytest.fixture
def access(server: Server) -> Access:
    """Ways to it, on which the caller runs the world."""
    return Wire(server, None, 0.0).access


def lead(access: Access, name: str) -> tuple[Leadership, int]:
    made = Leadership(URL, 1, name, 1000, access)
    return made, made.claim()


def fill(access: Access, epoch: int, blocks: list[tuple[str, bytes]], begin: int = 0) -> None:
    """Commit blocks from number `begin` on, each as a row."""
    connection = access.connect(URL)
    at: dict[int, int] = {}
    for n, (name, block) in enumerate(blocks):
        segment = int(name[:10])
        offset = at.get(segment, 0)
        if n >= begin:
            schema.make_partition(connection, 1, segment)
            insert = Insert(connection, 1, epoch, segment)
            assert insert.row(segment << 32 | offset, row_checksum(block), block)
        at[segment] = offset + len(block)
    connection.close()


def test_a_lease_that_another_one_has_is_not_claimed_before_it_runs_out(access: Access) -> None:
    first, epoch = lead(access, "a")
    assert epoch == 1
    second, none = lead(access, "b")
    assert none == 0
    second.wait(1.1)
    assert second.claim() == 2
    with pytest.raises(LeadLost, match="epoch 2, and this broker's lead was epoch 1"):
        first.renew(1)


def test_a_commit_waits_for_the_standby_server_and_is_lost_with_its_answer(
    server: Server, access: Access
) -> None:
    """The request is done, and no answer comes: the row of the leader is not visible before the
    standby has it."""
    _, epoch = lead(access, "a")
    server.stall(5.0)
    connection = access.connect(URL)
    server.loop.call_later(1.0, access.cut, connection)
    logged = len(server.log)
    with pytest.raises(psycopg.OperationalError, match="shut down"):
        connection.execute(HELD, {"journal": 1, "epoch": epoch})
    assert (len(server.log), server.copied) == (logged + 1, logged)
    server.down()
    assert server.fail_over() == 1


def test_a_second_cut_ends_no_first_one(server: Server) -> None:
    """World 9990293: what was sent in the first arrived at its end, long behind what was sent since
    the second was over. A leader renewed its lease, and its blocks were on the way."""
    wire = Wire(server, None, 0.0)
    connection = wire.access.connect(URL)
    began_ns = server.world.now_ns
    wire.cut_off(4.0, True, False)
    wire.cut_off(1.0, True, True)
    wire.access.connect(URL).execute("BEGIN")
    assert server.world.now_ns - began_ns >= 4 * SECOND_NS
    wire.cut_off(1.0, False, True)
    connection.execute("BEGIN")
    assert server.world.now_ns - began_ns >= 5 * SECOND_NS


def test_a_request_of_which_the_answer_alone_is_lost_is_done(server: Server) -> None:
    """The end of its connection comes after it, however long each is on its way."""
    wire = Wire(server, None, 0.001)
    _, epoch = lead(wire.access, "a")
    wire.is_cut_after = True
    logged = len(server.log)
    for _ in range(50):
        wire.cuts_next = lambda text: True
        with pytest.raises(psycopg.OperationalError, match="reset by peer"):
            wire.access.connect(URL).execute(HELD, {"journal": 1, "epoch": epoch})
    until_ns = server.world.now_ns + SECOND_NS
    server.loop.call_later(1.0, lambda: None)
    while server.world.now_ns < until_ns:
        server.world.step()
    assert len(server.log) == logged + 50


def test_a_transaction_whose_client_says_nothing_more_lets_go_of_its_locks(access: Access) -> None:
    leadership, epoch = lead(access, "a")
    frozen = access.connect(URL)
    frozen.execute("BEGIN")
    frozen.execute(
        "SELECT holder, expires FROM tallymark.lease WHERE journal = %s FOR UPDATE", (1,)
    )
    assert leadership.renew(epoch).holder == "a"  # after ten seconds
    with pytest.raises(psycopg.OperationalError, match="terminating connection"):
        frozen.execute("COMMIT")


def test_a_standby_forgets_what_its_database_has_lost(
    tmp_path: Path, server: Server, access: Access
) -> None:
    """It had applied blocks that are gone after a failover to a server that was behind: were they
    still in what it restores, it would lead on past the gap (world 5 of the pairs)."""
    leader = written(tmp_path / "leader", clean=True)
    blocks = blocks_of(leader.folder)
    _, epoch = lead(access, "a")
    fill(access, epoch, blocks)
    folder = tmp_path / "standby"
    folder.mkdir()
    following = Following(Leadership(URL, 1, "b", 1000, access), folder, 1, False)
    following.read_rest()
    before, position = following.replay, following.position
    server.down()
    server.fail_over(behind=8)
    assert following.until_leading(waits=True) == 2
    following.read_rest()
    assert following.position < position
    assert following.replay is not before
    following.close()
    leader.journal.close()


class Behind:
    """A standby whose database has failed over to a server without the last segment, and which has
    not looked since."""

    def __init__(self, folder: Path, server: Server) -> None:
        leader, other = (written(folder / name, clean=True) for name in ("leader", "other"))
        self._blocks, self._others = blocks_of(leader.folder), blocks_of(other.folder)
        self._kept = sum(int(name[:10]) < 4 for name, _ in self._blocks)
        self.wire = Wire(server, None, 0.0)
        access = self._access = self.wire.access
        _, epoch = lead(access, "a")
        fill(access, epoch, self._blocks[: self._kept])
        logged = len(server.log)
        fill(access, epoch, self._blocks, self._kept)
        (folder / "standby").mkdir()
        leadership = Leadership(URL, 1, "b", 1000, access)
        self.following = Following(leadership, folder / "standby", 1, False)
        self.views: list[View | None] = []
        self.following.on_view = lambda number, view: self.views.append(view)
        self.following.wanted = 1
        self.following.read_rest()
        behind = server.copied - logged
        server.down()
        server.fail_over(behind)
        self._successor = Leadership(URL, 1, "c", 1000, access)
        self._successor.wait(1.1)
        self._epoch = self._successor.claim()

    def fill(self) -> None:
        """Let another leader write as much as what is gone."""
        fill(self._access, self._epoch, self._others, self._kept)

    def close(self) -> None:
        for view in self.views:
            if view is not None:
                view.close()
        self.following.close()


@pytest.fixture
def behind(tmp_path: Path, server: Server) -> Iterator[Behind]:
    made = Behind(tmp_path, server)
    yield made
    made.close()


@pytest.mark.parametrize("is_broken_off", [False, True])
def test_a_standby_forgets_what_its_database_has_lost_also_where_it_ends_at_the_same_position(
    behind: Behind, is_broken_off: bool
) -> None:
    """Another leader had written as much in place of it; or the connection was lost between the
    cut of the copy and the end of that step, and nothing came after it. The folder was right, and
    the broker in the making was not."""
    following = behind.following
    before, position = following.replay, following.position
    if is_broken_off:
        behind.wire.cuts_next = lambda text: text.startswith("SELECT position, crc, bytes")
    else:
        behind.fill()
    following.read_rest()
    assert (following.position == position) is not is_broken_off
    assert following.replay is not before


def test_nor_is_it_shown_to_those_who_only_read(behind: Behind) -> None:
    """A view was as good as new where the position was that of the last one."""
    behind.fill()
    behind.following.wanted = 2
    behind.following.read_rest()
    first, second = behind.views
    assert first is not None
    assert second is not None
    assert first.position == second.position


def test_a_standby_applies_what_it_had_fetched_when_its_connection_was_lost(
    tmp_path: Path, server: Server
) -> None:
    """Nothing came after it, so that it stayed out of what the broker in the making knew."""
    leader = written(tmp_path / "leader", clean=True)
    wire = Wire(server, None, 0.0)
    access = wire.access
    _, epoch = lead(access, "a")
    (tmp_path / "standby").mkdir()
    following = Following(Leadership(URL, 1, "b", 1000, access), tmp_path / "standby", 1, False)
    following.read_rest()
    fill(access, epoch, blocks_of(leader.folder))
    fetches: list[str] = []

    def is_second_fetch(text: str) -> bool:
        fetches.extend([text] if text.startswith("SELECT position, crc, bytes") else [])
        return len(fetches) == 2

    wire.cuts_next = is_second_fetch
    following.read_rest()
    assert following.position > 4 << 32
    assert list(following._opened.recovery.growth()) == [], "records that it has not applied"
    following.close()
    leader.journal.close()


@pytest.mark.parametrize(("lacks", "removed"), [(0, (1, 2)), (1, (1,))])
def test_a_copy_whose_leader_removes_segments_meanwhile_gets_the_checkpoint_that_let_it(
    tmp_path: Path, server: Server, access: Access, lacks: int, removed: tuple[int, ...]
) -> None:
    """It had looked at the files before, and took the gap for damage: whole segments (worlds
    8500322, 8501036 and 8501207 of the pairs), or the last blocks of one (world 8803155)."""
    leader = written(tmp_path / "leader", clean=True)
    blocks = blocks_of(leader.folder)
    first = [one for one in blocks if int(one[0][:10]) == 1]
    first = first[: len(first) - lacks]
    _, epoch = lead(access, "a")
    fill(access, epoch, first)
    wire = Wire(server, None, 0.0)
    (tmp_path / "copy").mkdir()
    mirror = Mirror(tmp_path / "copy", Leadership(URL, 1, "b", 1000, wire.access), 1)
    mirror.open()
    mirror.catch_up()
    fill(access, epoch, blocks, len(first))
    needed = removed[-1] + 1
    checkpoint = checkpoint_name(needed << 32)
    (leader.folder / checkpoint).write_bytes(b"what it has needs no segment before this one")

    def overtakes(text: str) -> bool:
        if "FROM tallymark.block" in text:
            wire.cuts_next = None
            PostgresqlHome(URL, 1, epoch, access).put(leader.folder, [checkpoint], [])
            connection = access.connect(URL)
            for segment in removed:
                connection.execute(f'DROP TABLE "tallymark"."{partition_name(1, segment)}"')
            connection.close()
        return False

    wire.cuts_next = overtakes
    assert mirror.catch_up()
    assert mirror.checkpoint == needed << 32
    leader.journal.close()


def test_a_superseded_leader_says_so_where_its_successor_has_removed_what_it_wrote(
    tmp_path: Path, server: Server, access: Access
) -> None:
    """It said that the database had gone back, and ended with another exit code (world 802)."""
    _, epoch = lead(access, "a")
    home = PostgresqlHome(URL, 1, epoch, access)
    (tmp_path / "users.json").write_text("{}")
    home.put(tmp_path, ["users.json"], [])
    other = Leadership(URL, 1, "b", 1000, access)
    other.wait(1.1)
    successor = PostgresqlHome(URL, 1, other.claim(), access)
    successor.put(tmp_path, [], ["users.json"])
    server.down()
    server.restart()
    with pytest.raises(LeadLost, match="it is in epoch 2"):
        home.put(tmp_path, ["users.json"], [])


@pytest.mark.parametrize("is_gone_again", [False, True])
def test_a_change_of_files_whose_answer_was_lost_is_no_sign_that_the_database_went_back(
    tmp_path: Path, server: Server, access: Access, is_gone_again: bool
) -> None:
    """It changed a file that the change before it had put, say the users twice in a row: its next
    attempt found the file otherwise than that one had left it, and the broker ended."""
    _, epoch = lead(access, "a")
    home = PostgresqlHome(URL, 1, epoch, access)
    (tmp_path / "users.json").write_text("[]")
    home.put(tmp_path, ["users.json"], [])
    (tmp_path / "users.json").write_text("[1]")
    lost: list[int] = []

    def loses_the_answer(changes: list[Change]) -> None:
        server.on_commit = lambda changes: None
        lost.append(len(server.log))
        home._putting.cut()

    server.on_commit = loses_the_answer
    home.put(tmp_path, *([], ["users.json"]) if is_gone_again else (["users.json"], []))
    assert lost, "its commit was over"
    assert len(server.log) > lost[0], "and was made again"
    server.down()
    server.fail_over(behind=len(server.log) - lost[0] + 1)
    with pytest.raises(WentBack, match=r"the last change of users\.json"):
        home.put(tmp_path, ["users.json"], [])


def test_a_repair_without_the_lead_says_who_has_it(
    tmp_path: Path, server: Server, access: Access
) -> None:
    """It had written no row of a segment that the table lacked, and ended with an AssertionError
    (world 8501617)."""
    _, epoch = lead(access, "a")
    server.down()
    server.fail_over(behind=2)  # without the claim, and what confirmed it
    name, block = blocks_of(written(tmp_path, clean=True).folder)[0]
    (tmp_path / name).write_bytes(block)
    with pytest.raises(LeadLost, match="the database went back: journal 1 is in epoch 0"):
        PostgresqlHome(URL, 1, epoch, access).put(tmp_path, [name], [])


def test_a_leader_that_stops_between_two_statements_keeps_nothing_from_its_successor(
    tmp_path: Path, server: Server
) -> None:
    """A machine that was lost in the midst of dropping a partition kept all blocks from its
    standby until the server ended the transaction, 10 s later (world 8501743)."""
    wire = Wire(server, None, 0.0)
    access = wire.access
    _, epoch = lead(access, "a")
    name, block = blocks_of(written(tmp_path, clean=True).folder)[0]
    ledger = name.replace(".segment", ".ledger")
    (tmp_path / name).write_bytes(block)
    (tmp_path / ledger).write_bytes(b"rows")
    asked: list[str] = []
    kept: list[tuple[str, object]] = []

    def look(text: str) -> bool:
        asked.append(text)
        kept.extend((text, key) for key in server.locks if key in (BLOCKS, ("leader", 1)))
        return False

    wire.cuts_next = look
    home = PostgresqlHome(URL, 1, epoch, access)
    home.put(tmp_path, [name], [])
    home.put(tmp_path, [ledger], [name])
    assert any("INSERT INTO" in text and '"block_1_' in text for text in asked)
    assert any("DROP TABLE" in text for text in asked)
    assert schema.partitions(access.connect(URL), 1) == []
    assert kept == []


def test_a_broker_that_stops_while_it_makes_the_tables_keeps_those_waiting_that_lack_them(
    server: Server, access: Access
) -> None:
    """Each new connection looks whether there are tables. It took the lock of whoever makes them,
    in a transaction of several messages: the others waited until the database ended it, 10 s."""
    lead(access, "a")
    stopped = access.connect(URL)
    stopped.execute("BEGIN")
    stopped.execute("SELECT pg_advisory_xact_lock(%s)", (schema._INSTALLING,))
    before_ns = server.world.now_ns
    Leadership(URL, 1, "b", 1000, Wire(server, None, 0.0).access).look()
    assert server.world.now_ns - before_ns < SECOND_NS
    stopped.close()


def test_large_rows_are_not_fetched_all_at_once(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 rows of 8 MiB, or of a message of 128 MiB each, were in memory together, twice: a standby
    that was behind, or new, needed more than its machine had, each time that it was started."""
    monkeypatch.setattr(mirroring, "BYTES", 2)
    wire = Wire(server, None, 0.0)
    _, epoch = lead(wire.access, "a")
    leader = written(tmp_path / "leader", clean=True)
    blocks = blocks_of(leader.folder)
    fill(wire.access, epoch, blocks)
    (tmp_path / "follower").mkdir()
    mirror = Mirror(tmp_path / "follower", Leadership(URL, 1, "b", 1000, wire.access), 1)
    mirror.open()
    asked: list[str] = []

    def note(text: str) -> bool:
        asked.append(" ".join(text.split()))
        return False

    wire.cuts_next = note
    assert mirror.catch_up()
    assert sum("ORDER BY position LIMIT" in text for text in asked) >= len(blocks)
    for path in leader.folder.glob("0*.segment"):
        assert (tmp_path / "follower" / path.name).read_bytes() == path.read_bytes()


def test_a_reader_of_blocks_is_waited_for_once_and_not_for_each_dead_segment(
    tmp_path: Path, server: Server, access: Access
) -> None:
    """A dump of a database with 100 of them kept the cleaner for 20 s with each that came, and who
    changed a user as long."""
    wire = Wire(server, None, 0.0)
    _, epoch = lead(access, "a")
    home = PostgresqlHome(URL, 1, epoch, wire.access)
    blocks = dict(blocks_of(written(tmp_path, clean=True).folder))
    names = sorted(blocks)[:3]
    for name in names:
        (tmp_path / name).write_bytes(blocks[name])
        home.put(tmp_path, [name], [])
    reader = access.connect(URL)
    reader.execute("BEGIN")
    reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    asked: list[str] = []

    def note(text: str) -> bool:
        asked.append(text)
        return False

    wire.cuts_next = note
    for count, name in enumerate(names, 1):
        ledger = name.replace(".segment", ".ledger")
        (tmp_path / ledger).write_bytes(b"rows")
        home.put(tmp_path, [ledger], [name])
        assert sum("DROP TABLE" in text for text in asked) == count
    reader.execute("COMMIT")
    home.put(tmp_path, [], [names[0]])
    assert schema.partitions(access.connect(URL), 1) == []


def test_a_standby_whose_claim_is_superseded_before_it_is_safe_goes_on_following(
    server: Server, access: Access
) -> None:
    """Commits that take longer than a lease let two standbys claim at once. The first of them
    ended, with exit code 5, though it had never led."""
    wire = Wire(server, None, 0.0)
    first = Leadership(URL, 1, "a", 1000, wire.access)
    first.look()
    other = Leadership(URL, 1, "b", 1000, access)

    def overtake(text: str) -> bool:
        if text == schema.HELD:
            wire.cuts_next = None
            other.request(TAKEOVER)
            assert other.claim() == 2
        return False

    wire.cuts_next = overtake
    assert first.claim() == 0
    assert first.look()[0].holder == "b"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (AnotherLeads("broker b leads"), run.LED),
        (LeadLost(1, 2, 3), run.LED),
        (LeadLost(1, 2, 1), run.LED),
        (WentBack("rows from position 0x10 on"), run.JOURNAL),
    ],
)
def test_who_loses_the_lead_ends_with_a_code_that_says_so(error: Exception, code: int) -> None:
    assert run.code_of_failure(error) == code


@pytest.mark.parametrize("seed", [8301013, 8400523, 8500172])
def test_it_says_so_at_its_start_too(seed: int) -> None:
    """It took the lead and lost it before it served: the exit code was 1, "cannot serve"."""
    assert play(seed).failure == ""


def test_feature_flags_stay_on_where_the_first_leader_dies_at_once() -> None:
    """Its successor took the journal for an older version's."""
    assert play(8501720, pairs=True).failure == ""


def test_one_seed_of_eight_is_a_pair_and_the_others_are_as_they_were() -> None:
    drawn = [draw(seed) for seed in range(400)]
    assert 30 < sum(one.pair is not None for one in drawn) < 70
    assert all(draw(one.seed, pairs=False) == one for one in drawn if one.pair is None)


def test_a_pair_has_a_fault_of_its_own_and_nobody_over_http() -> None:
    def is_http(plan: Plan) -> bool:
        return bool(plan.subscriptions or plan.sinks or plan.streams or plan.operators)

    pairs = [draw(seed, pairs=True) for seed in range(100)]
    assert all(one.pair is not None and one.faults and not is_http(one) for one in pairs)
