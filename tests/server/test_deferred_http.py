"""Deferred messages over HTTP: the account, the metrics, RabbitMQ's interface, definitions."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.support.patience import CLOCKS_MS
from tests.support.process import BrokerProcess

HOUR_MS = 3_600_000


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data") as running:
        yield running


@pytest.fixture
def channel(broker: BrokerProcess) -> BlockingChannel:
    connection = pika.BlockingConnection(pika.ConnectionParameters(port=broker.amqp_port))
    channel = connection.channel()
    channel.queue_declare("q", durable=True)
    channel.confirm_delivery()
    return channel


def publish(channel: BlockingChannel, delay: int | None, body: bytes = b"12345") -> None:
    headers = None if delay is None else {"x-delay": delay}
    channel.basic_publish("", "q", body, pika.BasicProperties(delivery_mode=2, headers=headers))


def management(broker: BrokerProcess) -> dict[str, Any]:
    status, row = broker.http("GET", "/api/queues/%2F/q")
    assert status == 200
    return dict(row)


def test_lc_5_deferred_is_a_term_of_the_account(
    broker: BrokerProcess, channel: BlockingChannel
) -> None:
    before = time.time() * 1000
    assert broker.queues()["q"]["next_due_ms"] is None
    publish(channel, None)
    publish(channel, 2 * HOUR_MS)
    publish(channel, HOUR_MS)
    after = time.time() * 1000
    row = broker.queues()["q"]
    assert (row["entered"], row["ready"], row["deferred"]) == (3, 1, 2)
    assert row["deferred_bytes"] > row["ready_bytes"] > 0
    assert before + HOUR_MS - CLOCKS_MS <= row["next_due_ms"] <= after + HOUR_MS + CLOCKS_MS
    _, overview = broker.http("GET", "/api/tallymark/overview")
    assert (overview["ready"], overview["deferred"]) == (1, 2)
    _, text = broker.http("GET", "/metrics/per-object")
    assert 'tallymark_queue_deferred{queue="q",vhost="/"} 2.0' in text.splitlines()
    status, answer = broker.http("POST", "/api/tallymark/ledger/checkpoint", {})
    (claim,) = answer["queues"]
    assert (status, claim["ready"], claim["deferred"]) == (200, 1, 2)


def test_rabbitmqs_names_for_what_is_delayed(
    broker: BrokerProcess, channel: BlockingChannel
) -> None:
    row = management(broker)
    assert (row["messages_delayed"], "next_delayed_at" in row) == (0, False)
    publish(channel, HOUR_MS)
    publish(channel, 3 * HOUR_MS)
    row = management(broker)
    assert (row["messages"], row["messages_ready"], row["messages_delayed"]) == (2, 0, 2)
    spread = row["last_delayed_at"] - row["next_delayed_at"]
    assert 2 * HOUR_MS <= spread <= 2 * HOUR_MS + 10_000


def test_a_delayed_exchange_and_retries_by_policy_over_http(
    broker: BrokerProcess, channel: BlockingChannel
) -> None:
    exchange = {"type": "x-delayed-message", "arguments": {"x-delayed-type": "direct"}}
    assert broker.http("PUT", "/api/exchanges/%2F/x", exchange)[0] == 201
    wrong = {"type": "x-delayed-message", "arguments": {}}
    status, answer = broker.http("PUT", "/api/exchanges/%2F/y", wrong)
    assert (status, "x-delayed-type" in str(answer)) == (400, True)
    channel.queue_bind("q", "x", "k")
    message = {
        "routing_key": "k", "payload": "x", "payload_encoding": "string",
        "properties": {"delivery_mode": 2, "headers": {"x-delay": HOUR_MS}},
    }  # fmt: skip
    status, answer = broker.http("POST", "/api/exchanges/%2F/x/publish", message)
    assert (status, answer) == (200, {"routed": True})
    assert broker.queues()["q"]["deferred"] == 1
    definition = {"delayed-retry-type": "all", "delayed-retry-min": HOUR_MS}
    policy = {"pattern": "^q$", "definition": definition, "apply-to": "queues"}
    assert broker.http("PUT", "/api/policies/%2F/retry", policy)[0] == 201
    publish(channel, None)
    method, _, _ = channel.basic_get("q")
    channel.basic_nack(method.delivery_tag)
    channel.queue_declare("q", passive=True)
    assert broker.queues()["q"]["deferred"] == 2
    _, definitions = broker.http("GET", "/api/definitions")
    kept = [one for one in definitions["exchanges"] if one["name"] == "x"]
    assert kept[0]["arguments"] == {"x-delayed-type": "direct"}
    odd = {**kept[0], "name": "odd", "arguments": {"x-delayed-type": "x-random"}}
    status, _ = broker.http("POST", "/api/definitions", {"exchanges": [*kept, odd]})
    assert status in (200, 204)
    names = {one["name"] for one in broker.http("GET", "/api/exchanges/%2F")[1]}
    assert ("x" in names, "odd" in names) == (True, False)
