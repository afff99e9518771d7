"""A broker whose journal is on PostgreSQL: on an empty disk, and while the database is away."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from typer.testing import CliRunner

from bench.lean import PERSISTENT
from tallymark.cli.app import build
from tests.server.peers import Bare, Publisher, Reader, alarms, declare
from tests.support.long import long
from tests.support.patience import until
from tests.support.postgresql import MISSING, Cluster, find_postgresql
from tests.support.process import BrokerDied, BrokerProcess

pytestmark = [
    long(ci=False),  # servers of our own take seconds to start; CI's machine has none
    pytest.mark.skipif(find_postgresql() is None, reason=MISSING),
]
COUNT = 200


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(standbys=2) as made:
        yield made
    Bare.drop_all()


def started(folder: Path, cluster: Cluster, **flags: str) -> BrokerProcess:
    settings = {"journal": cluster.url(), "lease": "2s", "segment_size": "1MiB", **flags}
    return BrokerProcess(folder, keeps_ports=True, has_nsq=False, **settings)


def ready(broker: BrokerProcess) -> tuple[int, Any]:
    return broker.http("GET", "/readyz", user=None)


def publish_some(broker: BrokerProcess, count: int = COUNT) -> None:
    publisher = Publisher(broker, "q", 5000, PERSISTENT)
    until(lambda: publisher.published >= count, publisher.work)
    until(lambda: publisher.confirmed == publisher.published, lambda: publisher.work(False))
    publisher.link.drop()


def test_an_empty_disk_and_the_url_are_the_broker(tmp_path: Path, cluster: Cluster) -> None:
    """Messages, definitions, users and limits, after a crash and after a clean stop."""
    with started(tmp_path / "first", cluster) as broker:
        declare(broker, "q")
        publish_some(broker)
        made = {"password": "secret", "tags": "administrator"}
        assert broker.http("PUT", "/api/users/ann", made)[0] in (201, 204)
        pattern = {"pattern": "^q", "definition": {"max-length": 1_000_000}}
        assert broker.http("PUT", "/api/policies/%2F/long", pattern)[0] in (201, 204)
        held = broker.queues()["q"]["ready"]
        assert held >= COUNT
        broker.kill()
        shutil.rmtree(tmp_path / "first")
        broker.start()
        assert broker.queues()["q"]["ready"] == held
        reader = Reader(broker, "q")
        until(lambda: len(reader.numbers) == held, reader.work)
        assert reader.numbers == list(range(1, held + 1))
        reader.link.drop()
        publish_some(broker)
        left = broker.queues()["q"]["ready"]
        assert broker.stop() == 0
        shutil.rmtree(tmp_path / "first")
        broker.start()
        assert broker.queues()["q"]["ready"] == left
        assert broker.http("GET", "/api/whoami", user="ann:secret")[0] == 200
        found = broker.http("GET", "/api/policies/%2F/long", user="ann:secret")[1]
        assert found["pattern"] == "^q"


def test_publishers_wait_for_a_database_that_is_away(tmp_path: Path, cluster: Cluster) -> None:
    """Blocked, not confirmed, and gone on with by itself; memory stays within its budget."""
    with started(tmp_path / "data", cluster, max_pending="4MiB") as broker:
        declare(broker, "q")
        declare(broker, "transient", durable=False, messages=COUNT)
        with cluster.standbys_paused():
            publisher = Publisher(broker, "q", 5000, PERSISTENT)
            until(lambda: publisher.told, publisher.work)
            assert publisher.told == ["waiting for the database"]
            assert alarms(broker) == ["database"]
            assert publisher.confirmed == 0
            status, answer = ready(broker)
            assert status == 503
            assert "nothing is confirmed until the database is back" in answer["reason"]
            text = broker.http("GET", "/metrics")[1]
            assert 'tallymark_alarm{alarm="database"} 1.0' in text
            reader = Reader(broker, "transient")  # which needs no word of the database
            until(lambda: len(reader.numbers) == COUNT, reader.work)
            assert publisher.confirmed == 0
            reader.link.drop()
        until(lambda: publisher.told[-1] == "unblocked", lambda: publisher.work(False))
        until(lambda: publisher.confirmed == publisher.published, lambda: publisher.work(False))
        until(lambda: ready(broker)[0] == 200)
        assert alarms(broker) == []


def test_a_stop_does_not_wait_for_ever_for_a_database(tmp_path: Path, cluster: Cluster) -> None:
    """What was confirmed is there afterwards, what was not may be."""
    with started(tmp_path / "data", cluster) as broker:
        declare(broker, "q")
        publish_some(broker)
        held = broker.queues()["q"]["ready"]
        with cluster.standbys_paused():
            publisher = Publisher(broker, "q", 5000, PERSISTENT)
            until(lambda: publisher.told, publisher.work)
            assert publisher.confirmed == 0
            assert broker.stop() == 4
        assert "stopped while the database was away" in broker.log()
        publisher.link.drop()
        shutil.rmtree(tmp_path / "data")
        broker.start()
        assert broker.queues()["q"]["ready"] >= held


def test_a_failover_of_the_database_is_waited_for(tmp_path: Path, cluster: Cluster) -> None:
    with started(tmp_path / "data", cluster, lease="1min") as broker:
        declare(broker, "q")
        publisher = Publisher(broker, "q", 500, PERSISTENT)
        until(lambda: publisher.confirmed >= COUNT, publisher.work)
        cluster.primary.kill()
        until(lambda: publisher.told, publisher.work)
        confirmed = publisher.confirmed
        asked = "SELECT pg_wal_lsn_diff(pg_last_wal_receive_lsn(), '0/0')"
        furthest = max(cluster.standbys, key=lambda one: int(one.run(asked)))
        cluster.failed_over(furthest)
        until(lambda: publisher.confirmed == publisher.published, lambda: publisher.work(False))
        assert publisher.confirmed > confirmed
        held = broker.queues()["q"]["ready"]
        assert held == publisher.published
        publisher.link.drop()
        broker.kill()
        shutil.rmtree(tmp_path / "data")
        end_lease(broker.flags["journal"])
        broker.start()
        assert broker.queues()["q"]["ready"] == held


def test_what_a_failover_lost_comes_back_from_a_copy_of_the_last_leaders_folder(
    tmp_path: Path,
) -> None:
    """The server that takes over was behind. The leader ends; what its folder has more than the
    database is moved to the next leader, as docs/postgresql.md says."""
    copied = tmp_path / "copied"
    with Cluster(standbys=1) as cluster:
        primary, replica = cluster.servers
        cluster.replicate_to(primary, [])
        with started(tmp_path / "data", cluster, lease="1min") as broker:
            declare(broker, "q")
            publish_some(broker)
            entered = broker.queues()["q"]["entered"]
            at = primary.run("SELECT pg_current_wal_insert_lsn()")
            until(lambda: replica.run(f"SELECT pg_last_wal_replay_lsn() >= '{at}'") == "t")
            replica.stop()
            publisher = Publisher(broker, "q", 100, PERSISTENT, b" lost")
            until(lambda: publisher.published >= COUNT, publisher.work)
            until(lambda: publisher.confirmed == publisher.published, lambda: publisher.work(False))
            publisher.link.drop()
            assert len(taken(broker, 50)) == 50
            until(lambda: broker.queues()["q"]["settled"] == 50)
            lost = broker.queues()["q"]["entered"] - entered
            assert lost == publisher.confirmed
            primary.kill()
            replica.start()
            replica.promote()
            assert broker.wait() == 4
            assert "the database went back" in broker.log()
            shutil.copytree(tmp_path / "data", copied)

            end_lease(broker.flags["journal"])
            with pytest.raises(BrokerDied, match="was known on disk"):
                broker.start()
            end_lease(broker.flags["journal"])
            broker.flags["accept_loss"] = "true"
            broker.start()
            assert broker.queues()["q"]["entered"] == entered
            with BrokerProcess(copied, has_nsq=False, journal="local") as old:
                row = old.queues()["q"]
                assert (row["entered"], row["settled"]) == (entered + lost, 50)
                known = str(entered - row["settled"])
                old_url, new_url = (f"http://127.0.0.1:{one.http_port}" for one in (old, broker))
                declare(old, "known")
                move("q", "known", "--url", old_url, "--count", known)
                move("q", "--from", with_login(old_url), "--to", with_login(new_url))
                assert old.queues()["q"]["ready"] == 0
            assert broker.queues()["q"]["ready"] == entered + lost
            bodies = taken(broker, entered + lost)
            assert [body[8:13] for body in bodies[entered:]] == [" lost"] * lost
            numbers = [int(body[:8]) for body in bodies]
            assert numbers == [*range(1, entered + 1), *range(1, lost + 1)]


def taken(broker: BrokerProcess, count: int) -> list[str]:
    """Take so many messages: they are settled."""
    asked = {"count": count, "ackmode": "ack_requeue_false", "encoding": "auto"}
    return [row["payload"] for row in broker.http("POST", "/api/queues/%2F/q/get", asked)[1]]


def with_login(url: str) -> str:
    return url.replace("//", "//guest:guest@")


def move(*arguments: str) -> None:
    done = CliRunner().invoke(build(), ["move", *arguments])
    assert done.exit_code == 0, done.output


def end_lease(url: str) -> None:
    """Let the next broker lead at once: the one before is known to have ended."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("UPDATE tallymark.lease SET expires = now()")
