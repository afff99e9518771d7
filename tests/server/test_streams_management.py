"""Streams in lists, definitions and metrics, over HTTP."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.interop.blocking import Inbox, connect
from tests.server.management import call, done, get
from tests.support.process import BrokerProcess

STREAM = {"x-queue-type": "stream"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("streams") / "data") as running:
        yield running


@pytest.fixture
def channel(broker: BrokerProcess) -> Iterator[BlockingChannel]:
    connection = connect(broker.amqp_port)
    found = connection.channel()
    found.confirm_delivery()
    yield found
    connection.close()


def fill(channel: BlockingChannel, name: str, count: int, **arguments: object) -> None:
    channel.queue_declare(name, durable=True, arguments={**STREAM, **arguments})
    for n in range(count):
        channel.basic_publish("", name, b"%d" % n)


def test_a_stream_in_the_lists(broker: BrokerProcess, channel: BlockingChannel) -> None:
    fill(channel, "listed", 5)
    channel.basic_qos(prefetch_count=2)
    inbox = Inbox(channel, "listed", arguments={"x-stream-offset": "first"})
    inbox.wait(2)
    row = get(broker, "queues/%2F/listed")
    assert (row["type"], row["durable"], row["messages"], row["messages_ready"]) == (
        "stream", True, 5, 5,
    )  # fmt: skip
    assert (row["first_offset"], row["next_offset"], row["committed_offset"]) == (0, 5, 4)
    assert row["reader_offsets"] == [2]
    assert list(row["readers"].values()) == [1]
    (consumer,) = row["consumer_details"]
    assert (consumer["offset"], consumer["prefetch_count"], consumer["ack_required"]) == (
        2, 2, True,
    )  # fmt: skip
    own = next(q for q in get(broker, "tallymark/queues")["queues"] if q["name"] == "listed")
    assert (own["first_offset"], own["next_offset"], own["reader_offsets"]) == (0, 5, [2])


def test_retention_by_policy_shows_in_offsets_and_metrics(
    broker: BrokerProcess, channel: BlockingChannel
) -> None:
    fill(channel, "kept", 10)
    done(broker, "PUT", "policies/%2F/keep", {
        "pattern": "^kept$", "definition": {"max-length-bytes": 0}, "apply-to": "streams",
    })  # fmt: skip
    row = get(broker, "queues/%2F/kept")
    assert (row["policy"], row["messages"]) == ("keep", 0)
    assert (row["first_offset"], row["next_offset"]) == (10, 10)
    with urllib.request.urlopen(
        urllib.request.Request(
            f"{broker.url}/metrics/per-object", headers={"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="}
        )
    ) as answer:
        found = answer.read().decode()
    for line in (
        'tallymark_stream_first_offset{queue="kept",vhost="/"} 10.0',
        'tallymark_stream_next_offset{queue="kept",vhost="/"} 10.0',
        'tallymark_stream_readers{queue="kept",vhost="/"} 0.0',
        'tallymark_stream_reader_lag{queue="kept",vhost="/"} 0.0',
        'tallymark_queue_dropped_total{queue="kept",reason="retention",vhost="/"} 10.0',
    ):
        assert line in found, line


def test_streams_are_imported_and_exported(broker: BrokerProcess) -> None:
    arguments = {**STREAM, "x-max-age": "7D", "x-max-length-bytes": 1_000_000}
    value = {
        "vhosts": [{"name": "logs", "default_queue_type": "stream"}],
        "policies": [{"vhost": "logs", "name": "p", "pattern": "", "apply-to": "streams",
                      "definition": {"max-age": "1h"}, "priority": 0}],
        "queues": [
            {"vhost": "logs", "name": "by-argument", "durable": True, "auto_delete": False,
             "arguments": arguments},
            {"vhost": "logs", "name": "by-type", "durable": True, "auto_delete": False,
             "type": "stream", "arguments": {}},
            {"vhost": "logs", "name": "plain", "durable": True, "auto_delete": False,
             "type": "classic", "arguments": {}},
        ],
    }  # fmt: skip
    done(broker, "POST", "definitions", value)
    exported = get(broker, "definitions")
    rows = {row["name"]: row["arguments"] for row in exported["queues"] if row["vhost"] == "logs"}
    assert rows == {"by-argument": arguments, "by-type": STREAM, "plain": {}}
    (vhost,) = [row for row in exported["vhosts"] if row["name"] == "logs"]
    assert vhost["default_queue_type"] == vhost["metadata"]["default_queue_type"] == "stream"


def test_the_default_queue_type_of_a_virtual_host(broker: BrokerProcess) -> None:
    done(broker, "PUT", "vhosts/typed", {"default_queue_type": "stream"})
    assert get(broker, "vhosts/typed")["default_queue_type"] == "stream"
    done(broker, "PUT", "queues/typed/s", {"durable": True})
    done(broker, "PUT", "queues/typed/q", {"durable": False})
    kinds = {row["name"]: row["type"] for row in get(broker, "queues/typed")}
    assert kinds == {"s": "stream", "q": "classic"}
    status, _, found = call(broker, "PUT", "vhosts/typed", {"default_queue_type": "lazy"})
    assert (status, found["reason"]) == (
        400, "unsupported queue type 'lazy', expected one of classic, quorum, stream",
    )  # fmt: skip
    status, _, found = call(broker, "PUT", "vhosts/never", {"default_queue_type": "lazy"})
    assert status == 400
    assert call(broker, "GET", "vhosts/never")[0] == 404
    done(broker, "PUT", "vhosts/typed", {"default_queue_type": "quorum"})
    assert get(broker, "vhosts/typed")["default_queue_type"] == "quorum"
    for body in (None, {"default_queue_type": "undefined"}):
        done(broker, "PUT", "vhosts/typed", body)
        assert get(broker, "vhosts/typed")["default_queue_type"] == "quorum"


def test_a_virtual_host_as_rabbitmq_shows_it_without_a_default_queue_type(
    broker: BrokerProcess,
) -> None:
    shown = {"name": "untyped", "description": "", "default_queue_type": "undefined"}
    assert done(broker, "PUT", "vhosts/untyped", shown) == 201
    assert "default_queue_type" not in get(broker, "vhosts/untyped")
