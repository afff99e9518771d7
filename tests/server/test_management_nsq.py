"""NSQ's connections in the lists of the management interface, beside AMQP's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tallymark.wire.nsq import commands
from tests.server.management import FULL, call, connect, done, get, names, refused
from tests.server.nsqd import Client
from tests.support.process import BrokerProcess


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = Path(tmp_path_factory.mktemp("nsq-lists"))
    with BrokerProcess(folder / "data", nsq_user="guest") as running:
        done(running, "PUT", "vhosts/shop")
        done(running, "PUT", "users/ann", {"password": "ann", "tags": ""})
        done(running, "PUT", "users/mo", {"password": "mo", "tags": "monitoring"})
        done(running, "PUT", "permissions/%2F/ann", FULL)
        yield running


@pytest.fixture
def taker(broker: BrokerProcess) -> Iterator[Client]:
    """Holds one of the two messages there are."""
    with Client(broker.nsq_port, client_id="box-7", hostname="box", user_agent="test/1") as client:
        client.ok(commands.sub("listed", "c"))
        client.ok(commands.mpub("listed", [b"1", b"2"]))
        client.send(commands.rdy(1))
        client.message()
        yield client
    call(broker, "DELETE", "queues/%2F/listed:c/contents")


def test_a_subscriber_is_a_connection_with_a_channel_and_a_consumer(
    broker: BrokerProcess, taker: Client
) -> None:
    (row,) = get(broker, "connections")
    assert (row["protocol"], row["state"], row["type"]) == ("NSQ V2", "running", "network")
    assert (row["user"], row["vhost"], row["channels"], row["ssl"]) == ("guest", "/", 1, False)
    assert row["user_provided_name"] == "box-7"
    assert row["client_properties"] == {
        "client_id": "box-7", "hostname": "box", "user_agent": "test/1",
    }  # fmt: skip
    assert row["name"] == f"127.0.0.1:{row['peer_port']}"
    assert (row["host"], row["port"]) == ("127.0.0.1", broker.nsq_port)
    assert row["recv_oct"] > 0 < row["send_oct"]
    assert get(broker, f"connections/{row['name']}")["name"] == row["name"]

    (channel,) = get(broker, "channels")
    assert get(broker, f"connections/{row['name']}/channels") == [channel]
    assert channel["connection_details"]["name"] == row["name"]
    assert (channel["consumer_count"], channel["prefetch_count"]) == (1, 1)
    assert channel["messages_unacknowledged"] == 1
    (consumer,) = get(broker, "consumers")
    assert consumer["channel_details"]["connection_name"] == row["name"]
    assert consumer["channel_details"]["name"] == channel["name"]
    assert consumer["channel_details"]["peer_host"] == "127.0.0.1"
    assert consumer["channel_details"]["peer_port"] == row["peer_port"]
    assert consumer["consumer_timeout"] == 60_000  # its message time-out
    quoted = channel["name"].replace(" ", "%20")
    assert get(broker, f"channels/{quoted}")["consumer_details"] == [consumer]

    totals = get(broker, "overview")["object_totals"]
    assert (totals["connections"], totals["channels"], totals["consumers"]) == (1, 1, 1)
    taker.send(commands.CLS)
    assert taker.next()[1] == b"CLOSE_WAIT"
    assert get(broker, "connections")[0]["state"] == "closing"


def test_a_producer_is_a_connection_without_channels(broker: BrokerProcess) -> None:
    with Client(broker.nsq_port) as producer:
        producer.ok(commands.pub("listed", b"x"))
        (row,) = get(broker, "connections")
        assert (row["channels"], row["client_properties"]) == (0, {})
        assert "user_provided_name" not in row
        assert get(broker, "channels") == []
        (own,) = broker.http("GET", "/api/tallymark/connections")[1]["connections"]
        assert (own["protocol"], own["state"], own["vhost"]) == ("nsq", "running", "/")
        assert (own["user"], own["channels"], own["peer"]) == ("guest", 0, row["name"])


def test_they_are_listed_beside_others_by_virtual_host(
    broker: BrokerProcess, taker: Client
) -> None:
    amqp = connect(broker)
    try:
        assert {one["protocol"] for one in get(broker, "connections")} == {"AMQP 0-9-1", "NSQ V2"}
        assert len(get(broker, "vhosts/%2F/connections")) == 2
        assert get(broker, "vhosts/shop/connections") == []
    finally:
        amqp.close()


def test_who_sees_everything_sees_them_and_administrators_close_them(
    broker: BrokerProcess, taker: Client
) -> None:
    assert get(broker, "connections", "ann:ann") == []
    assert get(broker, "channels", "ann:ann") == []
    (name,) = names(get(broker, "connections", "mo:mo"))
    assert refused(broker, "GET", f"connections/{name}", user="ann:ann")[0] == 404
    assert refused(broker, "DELETE", f"connections/{name}", user="mo:mo")[0] == 401
    assert call(broker, "DELETE", f"connections/{name}", X_Reason="end of shift")[0] == 204
    with pytest.raises(AssertionError, match="the broker hung up"):
        taker.next()
    assert get(broker, "connections") == []
    assert broker.queues()["listed:c"]["acquired"] == 0, "what it held is ready at once"
    assert "end of shift" in broker.log()


def test_nsqs_listeners_are_in_the_overview_and_in_health_checks(broker: BrokerProcess) -> None:
    found = {one["protocol"]: one["port"] for one in get(broker, "overview")["listeners"]}
    assert found["nsq"] == broker.nsq_port
    assert found["nsq_http"] == broker.nsq_http_port
    assert get(broker, "health/checks/protocol-listener/nsq")["status"] == "ok"
    assert get(broker, f"health/checks/port-listener/{broker.nsq_port}")["status"] == "ok"


def test_clients_of_a_virtual_host_are_closed_with_it(tmp_path: Path) -> None:
    """Whether they have a queue there, have published, or have only said who they are."""
    with BrokerProcess(tmp_path / "data", vhosts="/,bus", nsq_vhost="bus") as broker:
        with ExitStack() as opened:
            port = broker.nsq_port
            clients = [opened.enter_context(Client(port, client_id="a")) for _ in range(3)]
            clients[0].ok(commands.pub("events", b"x"))
            clients[1].ok(commands.sub("events", "c"))
            assert [row["vhost"] for row in get(broker, "connections")] == ["bus"] * 3
            assert done(broker, "DELETE", "vhosts/bus") == 204
            for one in clients:
                with pytest.raises(AssertionError, match="hung up"):
                    one.next()
            assert get(broker, "connections") == []
        assert broker.log().count("reason=\"vhost 'bus' is deleted\"") == 3
