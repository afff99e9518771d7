"""A folder that mirrors a journal's tables, over a PostgreSQL of our own."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from pathlib import Path

import psycopg
import pytest

from tallymark.journal.postgresql.connection import Doubtful
from tallymark.journal.postgresql.errors import LeadLost, NotAMirror
from tallymark.journal.postgresql.home import PostgresqlHome
from tallymark.journal.postgresql.leadership import Leadership
from tallymark.journal.postgresql.lease import HANDOVER, TAKEOVER
from tallymark.journal.postgresql.marks import read_marks
from tallymark.journal.postgresql.mirror import Mirror
from tallymark.journal.postgresql.schema import checksum, make_partition, row_checksum
from tallymark.server import logs
from tallymark.server.standby import Following
from tests.journal.builders import Disk, all_shown
from tests.journal.test_growth import blocks_of, written
from tests.support.patience import until
from tests.support.postgresql import MISSING, Cluster, find_postgresql

pytestmark = pytest.mark.skipif(find_postgresql() is None, reason=MISSING)
LASTING_MS = 60_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as made:
        yield made


@pytest.fixture
def leadership(cluster: Cluster) -> Iterator[Leadership]:
    with psycopg.connect(cluster.url(), autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS tallymark CASCADE")
    made = Leadership(cluster.url(), 1, "a", LASTING_MS)
    yield made
    made.close()


@pytest.fixture
def lines() -> Iterator[StringIO]:
    """What is logged."""
    stream = StringIO()
    logs.configure("info", {}, "console", stream)
    yield stream
    logs.configure("info", {}, "console")


class Tables:
    """The tables as a leader fills them."""

    def __init__(self, leadership: Leadership) -> None:
        self.connection = leadership.connected()

    def put(self, position: int, data: bytes) -> None:
        make_partition(self.connection, 1, position >> 32)
        self.connection.execute(
            "INSERT INTO tallymark.block VALUES (1, %s, 1, %s, %s)",
            (position, row_checksum(data), data),
        )

    def put_all(self, blocks: list[tuple[str, bytes]]) -> None:
        at: dict[str, int] = {}
        for name, block in blocks:
            offset = at.get(name, 0)
            self.put(int(name[:10]) << 32 | offset, block)
            at[name] = offset + len(block)

    def put_file(self, name: str, *parts: bytes) -> None:
        for i, part in enumerate(parts):
            self.connection.execute(
                "INSERT INTO tallymark.file VALUES (1, %s, %s, %s, %s)",
                (name, i, checksum(part), part),
            )


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("0*.segment"))}


def test_an_empty_folder_becomes_the_leaders_and_goes_on_as_it_grows(
    tmp_path: Path, leadership: Leadership
) -> None:
    leader = written(tmp_path / "leader", clean=True)
    blocks = blocks_of(leader.folder)
    tables = Tables(leadership)
    half = len(blocks) // 2
    tables.put_all(blocks[:half])
    tables.put_file("users.json", b"{}", b"\n")
    (tmp_path / "follower").mkdir()
    mirror = Mirror(tmp_path / "follower", leadership, 1)
    mirror.open()
    assert mirror.catch_up()
    assert not mirror.catch_up()
    assert (tmp_path / "follower" / "users.json").read_bytes() == b"{}\n"
    at: dict[str, int] = {}
    for i, (name, block) in enumerate(blocks):
        if i >= half:
            tables.put(int(name[:10]) << 32 | at.get(name, 0), block)
        at[name] = at.get(name, 0) + len(block)
    assert mirror.catch_up()
    assert bytes_of(tmp_path / "follower") == bytes_of(leader.folder)
    follower = Disk(tmp_path / "follower")
    assert all_shown(follower.open()) == all_shown(leader.open())
    follower.journal.close()
    leader.journal.close()


def test_what_an_old_leader_wrote_and_could_not_commit_goes(
    tmp_path: Path, leadership: Leadership
) -> None:
    leader = written(tmp_path / "leader", clean=True)
    blocks = blocks_of(leader.folder)
    names = sorted({name for name, _ in blocks})
    Tables(leadership).put_all([b for b in blocks if b[0] != names[-1]][:-1])
    folder = tmp_path / "old"
    folder.mkdir()
    Mirror(folder, leadership, 1).open()
    for name, data in bytes_of(leader.folder).items():
        (folder / name).write_bytes(data + bytes(4096))
    damaged = bytearray((folder / names[1]).read_bytes())
    damaged[100] ^= 1
    (folder / names[1]).write_bytes(damaged)
    (folder / "00000000000000ff.checkpoint").write_bytes(b"of nobody")
    (folder / "tail.json").write_bytes(b"{}")
    mirror = Mirror(folder, leadership, 1)
    mirror.open()
    mirror.catch_up()
    found = bytes_of(folder)
    assert list(found) == names[:-1]
    assert found[names[0]] == (leader.folder / names[0]).read_bytes()
    assert found[names[1]] == (leader.folder / names[1]).read_bytes()
    whole = (leader.folder / names[2]).read_bytes()
    assert len(found[names[2]]) < len(whole)
    assert whole.startswith(found[names[2]])
    assert not (folder / "00000000000000ff.checkpoint").exists()
    assert (folder / "tail.json").exists()


def test_what_is_marked_is_not_read_again(tmp_path: Path, leadership: Leadership) -> None:
    leader = written(tmp_path / "leader", clean=True)
    tables = Tables(leadership)
    tables.put_all(blocks_of(leader.folder))
    folder = tmp_path / "follower"
    folder.mkdir()
    first, *_, last = bytes_of(leader.folder)

    def damage(name: str) -> bytes:
        data = bytearray((folder / name).read_bytes())
        data[-1] ^= 1
        (folder / name).write_bytes(data)
        return bytes(data)

    def caught_up() -> Mirror:
        mirror = Mirror(folder, leadership, 1)
        mirror.open()
        mirror.catch_up()
        return mirror

    caught_up()
    assert first in read_marks(folder)
    assert last not in read_marks(folder), "it grows"
    damaged = damage(first)
    damage(last)
    mirror = caught_up()
    assert bytes_of(folder) == bytes_of(leader.folder) | {first: damaged}
    assert mirror.compare_all()
    mirror.catch_up()
    assert bytes_of(folder) == bytes_of(leader.folder)
    assert not mirror.compare_all(), "it was"
    damage(first)
    tables.connection.execute(
        "UPDATE tallymark.block SET epoch = 7 WHERE position = %s",
        (int(first[:10]) << 32 | read_marks(folder)[first].offset,),
    )
    caught_up()
    assert bytes_of(folder) == bytes_of(leader.folder), "rows are written anew in another epoch"
    (folder / first).write_bytes(b"")
    caught_up()
    assert bytes_of(folder) == bytes_of(leader.folder)
    leader.journal.close()


def test_a_copy_that_is_damaged_where_it_is_marked_is_compared_again(
    tmp_path: Path, leadership: Leadership
) -> None:
    leader = written(tmp_path / "leader", clean=True)
    Tables(leadership).put_all(blocks_of(leader.folder))
    folder = tmp_path / "follower"
    folder.mkdir()
    following = Following(leadership, folder, 1, False)
    assert following.until_leading(waits=True) == 1
    following.close()
    first = next(iter(read_marks(folder)))
    data = bytearray((folder / first).read_bytes())
    data[70] ^= 1
    (folder / first).write_bytes(data)
    following = Following(leadership, folder, 1, False)
    following.read_rest()
    assert bytes_of(folder) == bytes_of(leader.folder)
    following.close()
    leader.journal.close()


def test_a_folder_with_a_journal_of_its_own_is_not_overwritten(
    tmp_path: Path, leadership: Leadership
) -> None:
    leader = written(tmp_path / "leader", clean=True)
    with pytest.raises(NotAMirror, match="has a journal of its own"):
        Mirror(leader.folder, leadership, 1).open()
    assert bytes_of(leader.folder)


def test_a_leader_knows_of_segments_that_were_stripped_since_it_read_their_blocks(
    tmp_path: Path, leadership: Leadership
) -> None:
    leader = written(tmp_path / "leader", clean=True)
    blocks = blocks_of(leader.folder)
    tables = Tables(leadership)
    tables.put_all(blocks)
    folder = tmp_path / "follower"
    folder.mkdir()
    following = Following(leadership, folder, 1, False)
    assert following.until_leading(waits=True) == 1
    ledger = blocks[0][0].replace(".segment", ".ledger")
    tables.put_file(ledger, blocks[0][1])
    following.read_rest()
    assert following.replay.opened.recovery.folder.segments[1].name == ledger
    following.close()


def test_tables_that_end_before_what_was_read_of_them_are_told_of(
    tmp_path: Path,
    cluster: Cluster,
    leadership: Leadership,
    lines: StringIO,
) -> None:
    leader = written(tmp_path / "leader", clean=True)
    tables = Tables(leadership)
    blocks = blocks_of(leader.folder)
    tables.put_all(blocks)
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    following = Following(leadership, tmp_path / "first", 1, False)
    assert following.until_leading(waits=True) == 1
    following.read_rest()
    assert "went_back" not in lines.getvalue()
    was, last = following.position, int(blocks[-1][0][:10])
    tables.connection.execute("DELETE FROM tallymark.block WHERE position >= %s", (last << 32,))
    other = Leadership(cluster.url(), 1, "b", LASTING_MS)
    empty = Following(other, tmp_path / "second", 1, False)
    empty.read_rest()
    said = lines.getvalue()
    assert said.count("journal.went_back") == 1
    assert f"was_read_to={was:#x}" in said
    assert f"ends={empty.position:#x}" in said
    assert leadership.claim() == 1
    tables.connection.execute("UPDATE tallymark.leader SET epoch = 2")
    following.read_rest()
    assert lines.getvalue().count("journal.went_back") == 2, "by what it knows itself"
    following.read_rest()
    assert lines.getvalue().count("journal.went_back") == 2, "once"
    for one in (following, empty):
        one.close()
    other.close()
    leader.journal.close()


CANCEL = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


def commit_waits(cluster: Cluster) -> bool:
    """Return whether a commit of now waits for a standby server. It waits no longer."""
    cancelled: list[str] = []
    with ThreadPoolExecutor(1) as pool:
        commit = "SELECT pg_logical_emit_message(true, 'probe', '')"
        probe = pool.submit(cluster.primary.run, commit)
        until(probe.done, lambda: cancelled.append(cluster.primary.run(CANCEL)))
    return any(cancelled)


def test_what_may_not_outlive_the_primary_is_not_taken(
    tmp_path: Path, cluster: Cluster, leadership: Leadership
) -> None:
    """A block is visible whose commit has waited for no standby server: it is taken once a commit
    of the follower's own has."""
    leader = written(tmp_path / "leader", clean=True)
    folder = tmp_path / "follower"
    folder.mkdir()
    Tables(leadership).put_all(blocks_of(leader.folder))
    mirror = Mirror(folder, leadership, 1)
    mirror.open()
    Cluster.replicate_to(cluster.primary, ["nobody"])
    try:
        until(lambda: commit_waits(cluster))
        with ThreadPoolExecutor(1) as pool:
            taken = pool.submit(mirror.catch_up)
            until(taken.done, lambda: cluster.primary.run(CANCEL))
            with pytest.raises(Doubtful, match="canceling wait"):
                taken.result()
        assert bytes_of(folder) == {}
    finally:
        Cluster.replicate_to(cluster.primary, [])
    assert mirror.catch_up()
    assert bytes_of(folder) == bytes_of(leader.folder)


def test_a_lease_in_the_database_goes_to_one_and_is_lost_with_the_next_epoch(
    cluster: Cluster, leadership: Leadership
) -> None:
    other = Leadership(cluster.url(), 1, "b", LASTING_MS)
    try:
        assert leadership.claim() == 1
        assert leadership.claim() == 1, "an answer that was lost is given again"
        assert other.claim() == 0
        assert leadership.renew(1).request == ""
        other.request(HANDOVER)
        assert leadership.renew(1).request == HANDOVER
        leadership.release(1)
        assert other.claim() == 2
        with pytest.raises(LeadLost, match="it is in epoch 2"):
            leadership.renew(1)
        leadership.request(TAKEOVER)
        assert leadership.claim() == 3
        assert leadership.look()[0].request == ""
        other.follow(77)
        assert [(f.name, f.position) for f in leadership.followers()] == [("b", 77)]
        other.unfollow()
        assert leadership.followers() == []
    finally:
        other.close()


def test_a_database_without_an_encoding_is_as_good_as_another(
    cluster: Cluster, tmp_path: Path
) -> None:
    """initdb makes such databases where the machine says nothing of a language. Names came as
    bytes: a file that was there was said to be lost, and a broker did not know its own lease."""
    cluster.primary.run("CREATE DATABASE plain ENCODING 'SQL_ASCII' TEMPLATE template0")
    leadership = Leadership(cluster.url("plain"), 1, "a", LASTING_MS)
    try:
        epoch = leadership.claim()
        assert leadership.claim() == epoch == 1, "an answer that was lost is given again"
        assert leadership.look()[0].holder == "a"
        home = PostgresqlHome(cluster.url("plain"), 1, epoch)
        (tmp_path / "users.json").write_bytes(b"{}")
        home.put(tmp_path, ["users.json"], [])
        home.check(leadership.connected())
        home.close()
        (tmp_path / "follower").mkdir()
        mirror = Mirror(tmp_path / "follower", leadership, 1)
        mirror.open()
        mirror.catch_up()
        assert (tmp_path / "follower" / "users.json").read_bytes() == b"{}"
    finally:
        leadership.close()


def test_a_renewal_waits_for_no_standby_server(cluster: Cluster, leadership: Leadership) -> None:
    assert leadership.claim() == 1
    with ThreadPoolExecutor(1) as pool:
        Cluster.replicate_to(cluster.primary, ["nobody"])
        try:
            until(lambda: commit_waits(cluster))
            renewal = pool.submit(leadership.renew, 1)
            until(renewal.done)
            assert renewal.result().holder == "a"
        finally:
            Cluster.replicate_to(cluster.primary, [])
    shown = leadership.connected().execute("SHOW synchronous_commit").fetchone()
    assert shown == ("on",), "what comes after a renewal waits as ever"


def test_a_renewal_that_waits_for_a_claim_renews_nothing(
    cluster: Cluster, leadership: Leadership
) -> None:
    assert leadership.claim() == 1
    waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    with ThreadPoolExecutor(1) as pool, psycopg.connect(cluster.url()) as claim:
        claim.execute("SELECT 1 FROM tallymark.lease FOR UPDATE")
        claim.execute("UPDATE tallymark.leader SET epoch = 2")
        claim.execute("UPDATE tallymark.lease SET holder = 'b'")
        renewal = pool.submit(leadership.renew, 1)
        until(lambda: cluster.primary.run(waiting))
        claim.commit()
        with pytest.raises(LeadLost, match="it is in epoch 2"):
            renewal.result()
