"""Transactions over HTTP: the account, the metrics, RabbitMQ's interface; a stop in the middle."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.support.patience import PATIENCE_S
from tests.support.process import BrokerProcess

PERSISTENT = pika.BasicProperties(delivery_mode=2)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data") as running:
        yield running


@pytest.fixture
def channel(broker: BrokerProcess) -> BlockingChannel:
    """Transactional, on a queue of ten messages of which four are handed out."""
    connection = pika.BlockingConnection(pika.ConnectionParameters(port=broker.amqp_port))
    channel = connection.channel()
    channel.queue_declare("q", durable=True)
    channel.tx_select()
    for _ in range(10):
        channel.basic_publish("", "q", b"12345", PERSISTENT)
    channel.tx_commit()
    for _ in range(4):
        channel.basic_get("q")
    return channel


def test_lc_5_staged_is_a_term_of_the_account(
    broker: BrokerProcess, channel: BlockingChannel
) -> None:
    channel.basic_ack(1)
    channel.basic_reject(3, requeue=False)
    channel.basic_publish("", "q", b"x", PERSISTENT)
    channel.queue_declare("q", passive=True)
    row = broker.queues()["q"]
    terms = ("entered", "ready", "acquired", "staged", "settled")
    assert [row[term] for term in terms] == [10, 6, 2, 2, 0]
    assert row["staged_bytes"] == row["acquired_bytes"] > 0
    _, overview = broker.http("GET", "/api/tallymark/overview")
    assert (overview["staged"], overview["transactions"], overview["published"]) == (2, 1, 11)
    _, text = broker.http("GET", "/metrics/per-object")
    lines = text.splitlines()
    assert 'tallymark_queue_staged{queue="q",vhost="/"} 2.0' in lines
    assert 'tallymark_queue_acquired{queue="q",vhost="/"} 2.0' in lines
    assert "tallymark_transactions 1.0" in lines
    assert "tallymark_transactions_committed_total 1.0" in lines
    status, answer = broker.http("POST", "/api/tallymark/ledger/checkpoint", {})
    (claim,) = answer["queues"]
    assert (status, claim["acquired"], claim["staged"]) == (200, 2, 2)
    channel.tx_rollback()
    assert [broker.queues()["q"][term] for term in terms] == [10, 6, 4, 0, 0]
    lines = broker.http("GET", "/metrics")[1].splitlines()
    assert "tallymark_transactions_rolled_back_total 1.0" in lines


def test_rabbitmqs_names_for_what_is_not_committed(
    broker: BrokerProcess, channel: BlockingChannel
) -> None:
    channel.basic_ack(2, multiple=True)
    channel.basic_publish("", "q", b"x", PERSISTENT)
    channel.queue_declare("q", passive=True)
    _, row = broker.http("GET", "/api/queues/%2F/q")
    assert (row["messages"], row["messages_ready"], row["messages_unacknowledged"]) == (10, 6, 4)
    assert row["message_bytes"] == row["message_bytes_ready"] + row["message_bytes_unacknowledged"]
    _, (shown,) = broker.http("GET", "/api/channels")
    assert (shown["transactional"], shown["confirm"]) == (True, False)
    assert (shown["messages_uncommitted"], shown["acks_uncommitted"]) == (1, 2)
    assert shown["messages_unacknowledged"] == 2
    channel.tx_commit()
    _, (shown,) = broker.http("GET", "/api/channels")
    assert (shown["messages_uncommitted"], shown["acks_uncommitted"]) == (0, 0)
    _, row = broker.http("GET", "/api/queues/%2F/q")
    assert (row["messages"], row["messages_unacknowledged"]) == (9, 2)


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_tx_7_what_is_open_when_the_broker_ends_never_was(
    broker: BrokerProcess, channel: BlockingChannel, how: str
) -> None:
    channel.basic_ack(2, multiple=True)
    for _ in range(30):
        channel.basic_publish("", "q", bytes(100_000), PERSISTENT)  # written ahead
    channel.queue_declare("q", passive=True)
    assert broker.queues()["q"]["staged"] == 2
    if how == "stop":
        assert broker.stop() == 0
    else:
        broker.kill()
    broker.restart()
    row = broker.queues()["q"]
    assert (row["entered"], row["ready"], row["staged"], row["settled"]) == (10, 10, 0, 0)
    connection = pika.BlockingConnection(pika.ConnectionParameters(port=broker.amqp_port))
    again = connection.channel()
    flags = [again.basic_get("q")[0].redelivered for _ in range(10)]
    assert flags[:4] == [True] * 4
    connection.close()


def test_a_publisher_in_a_transaction_is_held_back_like_any_other(tmp_path: Path) -> None:
    """Memory is short: whoever publishes is told and read no more, and the commit comes through
    once there is room again."""
    with BrokerProcess(tmp_path / "data", max_memory="16MiB", sync="never") as broker:
        connection = pika.BlockingConnection(
            pika.ConnectionParameters(port=broker.amqp_port, blocked_connection_timeout=PATIENCE_S)
        )
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        channel.tx_select()
        for _ in range(120):
            channel.basic_publish("", "q", bytes(1 << 20), PERSISTENT)
        channel.tx_commit()
        row = broker.queues()["q"]
        assert (row["ready"], row["entered"]) == (120, 120)
        _, status = broker.http("GET", "/api/tallymark/status")
        assert status["memory"]["bodies_bytes"] <= 2 * (16 << 20)
        connection.close()
