"""Two brokers of one journal: who leads after what. How clients find it is in test_clients.py.

The lease lasts longer than the tests: whatever changes the leader here does so without it. What a
lease that runs out does is in test_fault_rounds.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest

from tallymark.client import ConnectFailed, connect
from tests.cluster.brokers import Broker, Brokers
from tests.support import forked
from tests.support.long import long
from tests.support.patience import until
from tests.support.postgresql import MISSING, Cluster, find_postgresql

pytestmark = [
    pytest.mark.skipif(find_postgresql() is None, reason=MISSING),
    long(ci=False),  # PostgreSQL and two brokers: 10 s of CPU. CI has no PostgreSQL
]
LOST_THE_LEAD = 5


@pytest.fixture(scope="module")
def servers() -> Iterator[Cluster]:
    with Cluster() as made:
        yield made


@pytest.fixture(scope="module")
def brokers(servers: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    with Brokers(tmp_path_factory.mktemp("brokers"), servers, 2, lease="10m") as made:
        yield made


@pytest.fixture
def pair(brokers: Brokers) -> tuple[Broker, Broker]:
    """The leader, and the one that stands by and has read everything."""
    brokers.start_again()
    leader = brokers.leader()
    standby = next(one for one in brokers.all if one is not leader)
    until(lambda: standby.http("GET", "/healthz", user=None)[1]["behind_s"] >= 0)
    return leader, standby


def parameters(brokers: Brokers) -> list[pika.ConnectionParameters]:
    return [
        pika.ConnectionParameters("127.0.0.1", int(one.flags["amqp_port"])) for one in brokers.all
    ]


def publish(brokers: Brokers, body: bytes) -> None:
    with pika.BlockingConnection(parameters(brokers)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("q", durable=True)
        channel.basic_publish("", "q", body, pika.BasicProperties(delivery_mode=2))


def take(brokers: Brokers, queue: str = "q") -> bytes:
    with pika.BlockingConnection(parameters(brokers)) as connection:
        _, _, body = connection.channel().basic_get(queue, auto_ack=True)
        assert isinstance(body, bytes)
        return body


def test_a_standby_says_that_it_is_one_and_takes_no_clients(
    brokers: Brokers, pair: tuple[Broker, Broker]
) -> None:
    leader, standby = pair
    assert leader.http("GET", "/healthz?leader", user=None)[0] == 200
    status, said = standby.http("GET", "/healthz?leader", user=None)
    assert (status, said["status"], said["problem"]) == (503, "standby", "")
    assert said["leader"].endswith(f":{leader.pid}")
    assert standby.http("GET", "/healthz", user=None)[0] == 200
    assert standby.http("GET", "/readyz", user=None)[0] == 503
    assert "tallymark_standby_database_up 1" in standby.http("GET", "/metrics", user=None)[1]
    with pytest.raises(ConnectFailed, match="Connect call failed"):
        asyncio.run(connected(f"amqp://guest:guest@127.0.0.1:{standby.flags['amqp_port']}"))


def test_a_standby_answers_what_only_reads_with_all_that_was_confirmed(
    brokers: Brokers, pair: tuple[Broker, Broker]
) -> None:
    leader, standby = pair
    with pika.BlockingConnection(parameters(brokers)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("log", durable=True, arguments={"x-queue-type": "stream"})
        for count in (1, 2, 3):
            channel.basic_publish("", "log", b"line")
            path = f"/api/tallymark/streams/%2F/log/range?from={count}"
            found = standby.http("GET", path)  # what is not there yet is looked for
            assert found[0] == 200, found
            assert found[1]["next"] == count
    status, said = standby.http("POST", "/api/tallymark/subscriptions/%2F/q/s/attach")
    assert status == 503
    assert f":{leader.pid} leads" in said["reason"]


async def connected(*urls: str) -> None:
    async with connect(list(urls)):
        pass


@pytest.mark.parametrize(
    ("command", "code"), [("SIGTERM", 0), ("handover", 0), ("takeover", LOST_THE_LEAD)]
)
def test_a_change_of_leader_needs_no_lease_to_run_out(
    brokers: Brokers, pair: tuple[Broker, Broker], command: str, code: int
) -> None:
    leader, standby = pair
    publish(brokers, command.encode())
    if command == "SIGTERM":
        assert leader.stop() == code
    else:
        done = forked.run(command, "--journal", standby.journal)
        assert done.returncode == 0, done.stderr
        assert f":{standby.pid} leads" in done.stdout
        assert leader.wait() == code
    assert brokers.leader(leader) is standby
    assert take(brokers) == command.encode()


def test_a_broker_that_is_no_standby_does_not_wait_for_a_leader_that_renews_its_lease(
    servers: Cluster, tmp_path: Path
) -> None:
    flags = {"journal_id": "2", "lease": "500ms"}
    with Brokers(tmp_path, servers, 1, **flags) as brokers:
        leader = brokers.leader()
        done = forked.run(
            "serve", "--data-dir", str(tmp_path / "other"), "--journal", leader.journal,
            "--journal-id", "2", "--amqp-port", "0", "--http-port", "0", "--lease", "500ms",
        )  # fmt: skip
        assert done.returncode == LOST_THE_LEAD
        assert f":{leader.pid} leads this journal: start with --standby" in done.stderr
        refused = forked.run("takeover", "--journal", leader.journal, "--journal-id", "2")
        assert refused.returncode == 1
        assert "no standby follows journal 2" in refused.stderr


@pytest.mark.parametrize("scheme", ["amqp", "http"])
def test_a_move_finds_the_leader_among_the_brokers_that_it_is_given(
    brokers: Brokers, pair: tuple[Broker, Broker], scheme: str
) -> None:
    leader, standby = pair
    publish(brokers, scheme.encode())
    leader.http("PUT", "/api/queues/%2F/moved", {"durable": True})
    port = "http_port" if scheme == "http" else "amqp_port"
    hosts = ",".join(f"127.0.0.1:{one.flags[port]}" for one in (standby, leader))
    address = f"{scheme}://guest:guest@{hosts}/%2F"
    done = forked.run("move", "q", "moved", "--from", address, "--to", address)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1 moved to 'moved'")
    assert take(brokers, "moved") == scheme.encode()
