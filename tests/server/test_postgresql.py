"""A broker whose journal is on PostgreSQL: on an empty disk, and while the database is away."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from bench.lean import PERSISTENT
from tests.server.peers import Bare, Publisher, Reader, alarms, declare
from tests.support.long import long
from tests.support.patience import until
from tests.support.postgresql import MISSING, Cluster, find_postgresql
from tests.support.process import BrokerProcess

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


def end_lease(url: str) -> None:
    """Let the next broker lead at once: the one before is known to have ended."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("UPDATE tallymark.lease SET expires = now()")
