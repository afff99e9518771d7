"""Redrive over HTTP: what is answered, what it needs, and that it moves once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tallymark.journal import unpacking
from tallymark.stored.records import LIVE
from tests.support.process import BrokerProcess

PARKED = "/api/tallymark/redrive/%2F/parked"
Pairs = list[tuple[int, int]]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data") as running:
        yield running


def connect(broker: BrokerProcess) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.ConnectionParameters(port=broker.amqp_port))


def die(channel: BlockingChannel, count: int) -> None:
    """Messages 0, 1, ... published to the exchange `orders` die in `work`; `parked` gets them."""
    to_parked = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "parked"}
    channel.queue_declare("work", durable=True, arguments=to_parked)
    channel.queue_declare("parked", durable=True)
    channel.exchange_declare("orders", "topic", durable=True)
    channel.queue_bind("work", "orders", "eu.#")
    channel.confirm_delivery()
    for i in range(count):
        properties = pika.BasicProperties(delivery_mode=2, headers={"own": i})
        channel.basic_publish("orders", "eu.new", b"%d" % i, properties)
    for _ in range(count):
        method, _, _ = channel.basic_get("work")
        assert method is not None
        channel.basic_reject(method.delivery_tag, requeue=False)
    channel.queue_declare("work", passive=True)  # answered after the rejects


def browse(broker: BrokerProcess, queue: str) -> Pairs:
    _, plan = broker.http("POST", f"/api/tallymark/browse/%2F/{queue}", {})
    path = f"/api/tallymark/browse/plans/{plan['plan']}/read?from=0&to={plan['messages']}"
    status, data = broker.http_bytes("GET", path)
    assert status == 200
    found = []
    for record in unpacking.unpack(data):
        if record.kind == LIVE:
            assert record.payload is not None
            first = record.payload.first_id + record.lo
            found += [(record.first + i, first + i) for i in range(record.count)]
    return found


def redrive(broker: BrokerProcess, messages: Pairs, **more: Any) -> Any:
    status, answer = broker.http("POST", PARKED, {"messages": messages, "run": "r", **more})
    assert status == 200, answer
    return answer


def test_a_dry_run_says_what_a_run_does_and_a_crash_changes_nothing(broker: BrokerProcess) -> None:
    with connect(broker) as connection:
        die(connection.channel(), 4)
    found = browse(broker, "parked")
    way = {"exchange": "orders", "routing_keys": ["eu.new"], "queues": ["work"]}
    moved = {"results": [["moved", 0]] * 4, "ways": [way]}
    assert redrive(broker, found, dry_run=True) == moved
    assert browse(broker, "parked") == found
    assert redrive(broker, found) == moved
    broker.kill()
    broker.restart()
    gone = {"results": [["gone", None]] * 4, "ways": []}
    assert redrive(broker, found) == gone
    assert redrive(broker, found, dry_run=True) == gone
    account = broker.queues()
    assert (account["work"]["ready"], account["parked"]["ready"]) == (4, 0)
    assert (account["parked"]["settled"], account["work"]["dead_lettered"]) == (4, 4)
    with connect(broker) as connection:
        channel = connection.channel()
        for i in range(4):
            method, properties, body = channel.basic_get("work")
            assert (method.exchange, method.routing_key, body) == ("orders", "eu.new", b"%d" % i)
            headers = dict(properties.headers)
            headers.pop("x-opt-redriven-time")
            assert headers == {
                "own": i,
                "x-opt-redriven-count": 1,
                "x-opt-redriven-from": "parked",
                "x-opt-redriven-run": "r",
            }


def test_only_who_may_read_the_queue_and_write_the_exchange(broker: BrokerProcess) -> None:
    with connect(broker) as connection:
        channel = connection.channel()
        die(channel, 2)
        channel.queue_declare("other", durable=True)
    found = browse(broker, "parked")
    for name, write, read in (("some", "^other$", "^parked$"), ("none", ".*", "^work$")):
        user = {"password": "pw", "tags": "management"}
        assert broker.http("PUT", f"/api/users/{name}", user)[0] == 201
        permissions = {"configure": "", "write": write, "read": read}
        assert broker.http("PUT", f"/api/permissions/%2F/{name}", permissions)[0] == 201
    body = {"messages": found, "run": "r"}
    assert broker.http("POST", PARKED, body, user="none:pw")[0] == 403
    status, answer = broker.http("POST", PARKED, body, user="some:pw")
    assert (status, answer["results"]) == (200, [["forbidden", 0]] * 2)
    internal = {**body, "exchange": "amq.rabbitmq.trace", "routing_key": "x"}
    status, answer = broker.http("POST", PARKED, internal)
    assert (status, [what for what, _ in answer["results"]]) == (200, ["forbidden"] * 2)
    default = {**body, "exchange": "", "routing_key": "other"}
    status, answer = broker.http("POST", PARKED, default, user="some:pw")
    assert (status, answer["results"]) == (200, [["forbidden", 0]] * 2)  # needs amq.default
    assert broker.queues()["parked"]["ready"] == 2


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"messages": [[0, 1]]}, "request body"),
        ({"messages": [[1, 1]] * 10_001}, "10001 messages, at most 10000 expected"),
        ({"routing_key": "k"}, "routing_key without exchange"),
        ({"exchange": "", "routing_key": "k" * 256}, "routing_key, expected at most 255 bytes"),
        ({"run": ""}, "run '', expected 1 to 255 bytes"),
        ({"run": "é" * 128}, "expected 1 to 255 bytes"),
        ({"runs": "r"}, "request body"),
    ],
)
def test_what_makes_no_sense_is_refused(
    spare: BrokerProcess, more: dict[str, Any], reason: str
) -> None:
    body = {"messages": [], "run": "r", **more}
    status, answer = spare.http("POST", PARKED, body)
    assert status == 400
    assert reason in answer["reason"]


@pytest.fixture(scope="module")
def spare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("spare") / "data") as running:
        with connect(running) as connection:
            channel = connection.channel()
            channel.queue_declare("parked", durable=True)
            channel.queue_declare("log", durable=True, arguments={"x-queue-type": "stream"})
        yield running


def test_a_stream_is_no_source(spare: BrokerProcess) -> None:
    body = {"messages": [[1, 1]], "run": "r"}
    status, answer = spare.http("POST", "/api/tallymark/redrive/%2F/log", body)
    assert (status, answer["error"]) == (400, "bad_request")
    assert "stream" in answer["reason"]
    assert spare.http("POST", "/api/tallymark/redrive/%2F/nothing", body)[0] == 404


@pytest.mark.parametrize("own", ["/api/tallymark/redrive/%2F/own", "/api/tallymark/browse/%2F/own"])
def test_another_connections_own_queue_is_neither_emptied_nor_looked_into(
    broker: BrokerProcess, own: str
) -> None:
    """Over AMQP nobody else may use it, whatever the permissions [amqp-0.9.1 exclusive]."""
    with connect(broker) as connection:
        channel = connection.channel()
        channel.queue_declare("own", exclusive=True)
        channel.queue_declare("mine")
        channel.confirm_delivery()
        channel.basic_publish("", "own", b"for its owner")
        wanted = {"oldest": 1, "run": "r", "exchange": "", "routing_key": "mine"}
        status, answer = broker.http("POST", own, wanted if "redrive" in own else {})
        assert (status, answer["error"]) == (403, "locked")
        assert "locked queue 'own' in vhost '/'" in answer["reason"]
        assert channel.queue_declare("own", passive=True).method.message_count == 1
