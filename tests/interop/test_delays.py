"""Deferral as pika's programs use it: x-delay, the delayed exchange, delayed retry."""

from __future__ import annotations

import itertools
import socket
import time
from pathlib import Path

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker
from pika.spec import BasicProperties

from tests.interop.blocking import Inbox, connect, depth, drain, queue, wait_until
from tests.support.process import BrokerProcess

pytestmark = pytest.mark.usefixtures("only_ours")
RETRY: dict[str, object] = {
    "x-delayed-retry-type": "all", "x-delayed-retry-min": 200, "x-delayed-retry-max": 400,
}  # fmt: skip


def delayed(channel: BlockingChannel, key: str, body: bytes, delay: object, **more: object) -> None:
    """Publish a persistent message that waits."""
    exchange = str(more.pop("exchange", ""))
    properties = BasicProperties(delivery_mode=2, headers={"x-delay": delay, **more})
    channel.basic_publish(exchange, key, body, properties)


def test_messages_come_in_the_order_of_their_delays_and_none_is_early(
    channel: BlockingChannel, name: str
) -> None:
    channel.exchange_declare(
        name, "x-delayed-message", durable=True, arguments={"x-delayed-type": "direct"}
    )
    queue(channel, name, durable=True)
    channel.queue_bind(name, name, "k")
    channel.confirm_delivery()
    delays = [500, 100, 300, 200, 101, 400]
    begun: dict[int, float] = {}
    taken: dict[int, float] = {}
    inbox = Inbox(channel, name, auto_ack=True)
    came: list[tuple[int, float]] = []
    for ms in delays:
        begun[ms] = time.time()
        delayed(channel, "k", b"%d" % ms, ms, exchange=name)
        taken[ms] = time.time()
    while len(came) < len(delays):
        wait_until(channel.connection, lambda: bool(inbox.messages))
        for message in inbox.messages:
            came.append((int(message.body), time.time()))
            assert message.properties.headers == {"x-delay": -int(message.body)}
        inbox.messages.clear()
    assert sorted(ms for ms, _ in came) == sorted(delays)
    for (one, _), (next, _) in itertools.pairwise(came):  # due when it was published and so much
        assert begun[one] + one / 1000 <= taken[next] + next / 1000 + 0.002, came
    for ms, at in came:
        assert at - begun[ms] >= ms / 1000 - 0.002, (ms, at - begun[ms])


def test_texts_are_delays_and_any_exchange_delays(channel: BlockingChannel, name: str) -> None:
    queue(channel, name)
    begun = time.time()
    delayed(channel, name, b"much later", "3600000")
    delayed(channel, name, b"now", "-150")
    channel.basic_publish("", name, b"plain")
    assert depth(channel, name) == 2
    assert [message.body for message in drain(channel, name)] == [b"now", b"plain"]
    delayed(channel, name, b"later", "150", other="kept")
    (late,) = Inbox(channel, name, auto_ack=True).wait(1)
    assert late.body == b"later"
    assert time.time() - begun >= 0.148
    assert late.properties.headers == {"x-delay": -150, "other": "kept"}


def test_a_delayed_exchange_needs_a_kind(port: int, name: str) -> None:
    for arguments, told in (
        ({}, "'x-delayed-type' must be an existing exchange type"),
        ({"x-delayed-type": "x-delayed-message"}, "can't be used for 'x-delayed-type'"),
    ):
        with connect(port) as connection:
            with pytest.raises(ChannelClosedByBroker) as closed:
                connection.channel().exchange_declare(
                    name, "x-delayed-message", arguments=arguments
                )
            assert closed.value.reply_code == 406
            assert told in closed.value.reply_text


def test_delayed_retry_waits_longer_with_each_failure(channel: BlockingChannel, name: str) -> None:
    queue(channel, name, durable=True, arguments=RETRY)
    channel.basic_publish("", name, b"x")
    inbox = Inbox(channel, name)
    (first,) = inbox.wait(1)
    tag = first.method.delivery_tag
    for waited in (0.2, 0.4, 0.4):
        given_back = time.time()
        channel.basic_reject(tag, requeue=True)
        (again,) = inbox.wait(1)
        took = time.time() - given_back
        assert took >= waited - 0.002, (waited, took)
        assert again.method.redelivered
        tag = again.method.delivery_tag
    channel.basic_ack(tag)
    assert depth(channel, name) == 0


def test_what_a_lost_connection_held_waits_as_a_failure(
    broker: BrokerProcess, channel: BlockingChannel, name: str
) -> None:
    arguments = {**RETRY, "x-delayed-retry-type": "failed", "x-delayed-retry-min": 60_000}
    arguments["x-delayed-retry-max"] = 60_000
    queue(channel, name, durable=True, arguments=arguments)
    for _ in range(2):
        channel.basic_publish("", name, b"x")
    orderly = connect(broker.amqp_port)
    Inbox(orderly.channel(), name).wait(2)
    orderly.close()
    wait_until(channel.connection, lambda: broker.queues()[name]["ready"] == 2)
    lost = connect(broker.amqp_port)
    Inbox(lost.channel(), name).wait(2)
    lost._impl._transport._sock.shutdown(socket.SHUT_RDWR)  # without a word of goodbye
    wait_until(channel.connection, lambda: broker.queues()[name]["deferred"] == 2)
    assert broker.queues()[name]["acquired"] == 0
    assert channel.queue_purge(name).method.message_count == 2
    assert broker.queues()[name]["deferred"] == 0
    assert broker.queues()[name]["dropped"] == {"purged": 2}


def test_nq_d9_what_waits_outlives_a_restart_and_kill_9(only_ours: None, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with BrokerProcess(data) as broker:
        channel = connect(broker.amqp_port).channel()
        channel.exchange_declare(
            "x", "x-delayed-message", durable=True, arguments={"x-delayed-type": "fanout"}
        )
        queue(channel, "q", durable=True)
        channel.queue_bind("q", "x")
        channel.confirm_delivery()
        begun = time.time()
        delayed(channel, "", b"soon", 1, exchange="x")
        delayed(channel, "", b"later", 4000, exchange="x")
        delayed(channel, "", b"tomorrow", 86_400_000, exchange="x")
        broker.kill()
    with BrokerProcess(data) as broker:
        row = broker.queues()["q"]
        assert (row["ready"] + row["deferred"], row["deferred"] >= 1) == (3, True)
        connection = connect(broker.amqp_port)
        inbox = Inbox(connection.channel(), "q", auto_ack=True)
        messages = []
        while len(messages) < 2:
            wait_until(connection, lambda: bool(inbox.messages))
            messages += inbox.messages
            inbox.messages.clear()
        assert [message.body for message in messages] == [b"soon", b"later"]
        assert time.time() - begun >= 3.998
        connection.channel().exchange_declare(
            "x", "x-delayed-message", durable=True, arguments={"x-delayed-type": "fanout"}
        )
        connection.close()
    with BrokerProcess(data) as broker:
        row = broker.queues()["q"]
        assert (row["ready"], row["deferred"], row["settled"]) == (0, 1, 2)
