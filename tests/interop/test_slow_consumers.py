"""Slow consumers as pika sees them, over sockets: the cases around the matrix of SC-A2, which is
in test_slow_consumers_matrix.py."""

from __future__ import annotations

import time
from typing import Any

import pika
import pika.exceptions
import pytest

from tests.interop.blocking import connect, wait_until
from tests.interop.slow_cases import COUNT, SLOW, Subscriber, looks, publish, told
from tests.support.patience import until
from tests.support.process import BrokerProcess

# -- SC-A1


@pytest.mark.parametrize("key", ["count.a", "depth.a"])
def test_sc_a1_ten_messages_where_nine_may_be_close_it_with_506(
    slow_broker: BrokerProcess, key: str
) -> None:
    subscriber = Subscriber(slow_broker, key)
    publish(slow_broker, key, COUNT)
    looks(slow_broker)
    assert subscriber.is_there
    publish(slow_broker, key, 1)
    until(lambda: not subscriber.is_there)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
        subscriber.channel.start_consuming()
    assert (closed.value.reply_code, closed.value.reply_text) == SLOW
    subscriber.close()


def test_sc_a1_nobody_consumes_for_longer_than_the_age_and_fresh_messages_are_fine(
    slow_broker: BrokerProcess,
) -> None:
    idle = Subscriber(slow_broker, "age.idle")
    busy = Subscriber(slow_broker, "age.busy", ack="auto")
    publish(slow_broker, "age.idle", 1)
    sent = 0
    while idle.is_there:
        publish(slow_broker, "age.busy", 3)
        sent += 3
        wait_until(busy.connection, lambda so_far=sent: len(busy.bodies) == so_far)
    assert busy.is_there
    for one in (idle, busy):
        one.close()


# -- SC-A2


def test_sc_a2_a_blocked_receive_raises(slow_broker: BrokerProcess, name: str) -> None:
    """pika's generator, waiting while the broker closes."""
    subscriber = Subscriber(slow_broker, f"age.{name}", ack="client", mode="receive")
    publish(slow_broker, f"age.{name}", 1)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
        subscriber.receive()
    assert (closed.value.reply_code, closed.value.reply_text) == SLOW
    assert len(subscriber.bodies) == 1  # which it waited with
    subscriber.close()


def test_sc_a2_transacted_the_next_commit_raises_506_and_publishes_nothing(
    slow_broker: BrokerProcess, name: str
) -> None:
    subscriber = Subscriber(slow_broker, f"count.{name}", ack="transacted")
    sink = f"sink-{name}"
    subscriber.channel.queue_declare(sink, durable=True)
    subscriber.channel.basic_publish("", sink, b"staged")
    publish(slow_broker, f"count.{name}", COUNT + 1)
    until(lambda: not subscriber.is_there)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
        subscriber.channel.tx_commit()
    assert (closed.value.reply_code, closed.value.reply_text) == SLOW
    assert slow_broker.queues()[sink]["entered"] == 0
    subscriber.connection.channel().queue_delete(sink)
    subscriber.close()


def test_sc_d2_delete_persistent_that_is_false_is_off(
    slow_broker: BrokerProcess, name: str
) -> None:
    key = f"not-persistent.{name}"
    subscriber = Subscriber(slow_broker, key, name, durable=True)
    publish(slow_broker, key, COUNT + 1)
    until(lambda: subscriber.state() == "over")
    looks(slow_broker, 2)
    assert subscriber.is_there
    subscriber.channel.queue_delete(name)
    subscriber.close()


# -- SC-A3


def test_sc_a3_exact_observations(slow_broker: BrokerProcess) -> None:
    subscriber = Subscriber(slow_broker, "count.x")
    errors: list[Any] = []
    subscriber.channel.add_on_cancel_callback(errors.append)
    second = subscriber.connection.channel()
    other = str(second.queue_declare("", exclusive=True).method.queue)
    second.basic_publish("", other, b"beside")
    publisher = connect(slow_broker.amqp_port)
    sender = publisher.channel()
    sender.confirm_delivery()
    for _ in range(COUNT + 1):
        sender.basic_publish("amq.topic", "count.x", b"m")
    until(lambda: not subscriber.is_there)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
        subscriber.channel.start_consuming()
    assert (closed.value.reply_code, closed.value.reply_text) == SLOW
    assert errors == []  # no basic.cancel beside it
    sender.basic_publish("amq.topic", "count.x", b"unroutable now")  # confirmed all the same
    assert publisher.is_open
    _, _, body = second.basic_get(other, auto_ack=True)
    assert body == b"beside"
    second.queue_declare("again", exclusive=True)
    second.queue_bind("again", "amq.topic", "count.x")
    got: list[bytes] = []
    second.basic_consume("again", lambda *message: got.append(message[-1]), auto_ack=True)
    sender.basic_publish("amq.topic", "count.x", b"anew")
    wait_until(subscriber.connection, lambda: got == [b"anew"])
    for one in (publisher, subscriber.connection):
        one.close()


# -- SC-A4 to SC-A7


def test_sc_a4_what_is_no_subscription_is_untouched(slow_broker: BrokerProcess, name: str) -> None:
    with connect(slow_broker.amqp_port) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=1)
        direct, shared, unused = (f"{name}-{kind}" for kind in ("direct", "shared", "unused"))
        channel.queue_declare(direct, exclusive=True)
        channel.queue_bind(direct, "amq.direct", "count.a4")
        channel.queue_declare(shared)
        channel.queue_bind(shared, "amq.topic", "count.a4")
        channel.queue_declare(unused, exclusive=True)
        channel.queue_bind(unused, "amq.topic", "count.a4")
        for queue in (direct, shared):
            channel.basic_consume(queue, lambda *_: None)
        for _ in range(5 * COUNT):
            for exchange in ("amq.direct", "amq.topic"):
                channel.basic_publish(exchange, "count.a4", b"m")
        until(lambda: slow_broker.queues()[unused]["ready"] == 5 * COUNT)
        looks(slow_broker, 4)
        rows = slow_broker.queues()
        for queue in (direct, shared, unused):
            assert rows[queue]["ready"] + rows[queue]["acquired"] == 5 * COUNT
            assert not told(slow_broker, "slow_consumer.found", queue)
        connection.process_data_events(0.05)
        assert channel.is_open
        for queue in (direct, shared, unused):
            channel.queue_delete(queue)


def test_sc_a4_an_empty_queue_at_connect_time_with_an_age_is_untouched(
    slow_broker: BrokerProcess,
) -> None:
    subscriber = Subscriber(slow_broker, "age.empty")
    looks(slow_broker, 12)
    assert subscriber.is_there
    assert subscriber.state() == "fine"
    subscriber.close()


@pytest.mark.parametrize(
    ("key", "queue", "closed"),
    [
        ("stocks.us.sap", "", False),  # 39 by topic
        ("stocks.us.sap", "client:named", True),  # 9 by subscription
        ("stocks.us.ibm", "", True),  # 9 by the more specific topic
    ],
)
def test_sc_a5_the_most_specific_section_holds(
    slow_broker: BrokerProcess, key: str, queue: str, closed: bool
) -> None:
    subscriber = Subscriber(slow_broker, key, queue)
    publish(slow_broker, key, COUNT + 1)
    if closed:
        until(lambda: not subscriber.is_there)
    else:
        looks(slow_broker)
        assert subscriber.state() == "fine"
        publish(slow_broker, key, 30)
        until(lambda: not subscriber.is_there)
    subscriber.close()


def test_sc_a7_below_the_threshold_before_the_look_nothing_happens(
    slow_broker: BrokerProcess,
) -> None:
    """Far more messages than may lie there, taken as they come."""
    subscriber = Subscriber(slow_broker, "count.quick")
    subscriber.channel.basic_qos(prefetch_count=0)
    for total in range(COUNT, 5 * COUNT + 1, COUNT):
        publish(slow_broker, "count.quick", COUNT)
        wait_until(subscriber.connection, lambda so_far=total: len(subscriber.bodies) == so_far)
    looks(slow_broker)
    assert subscriber.is_there
    assert not told(slow_broker, "slow_consumer.found", subscriber.queue)
    subscriber.close()


# -- SC-A8


def test_sc_a8_sc_d6_a_no_ack_consumer_that_never_reads_leaves_messages_in_the_queue(
    slow_broker: BrokerProcess, name: str
) -> None:
    size, high = 16 * 1024, 64 * 1024
    key = f"notify.{name}"
    subscriber = Subscriber(slow_broker, key, ack="no-ack")
    publish(slow_broker, key, 1000, bytes(size))
    row = slow_broker.queues()[subscriber.queue]
    assert row["ready"] > 300
    rows = slow_broker.http("GET", "/api/tallymark/connections")[1]["connections"]
    (slow,) = [one for one in rows if one["state"] == "slow"]
    assert slow["unsent_bytes"] <= high + 2 * size
    until(lambda: subscriber.state() == "over")  # so that the thresholds see them
    wait_until(subscriber.connection, lambda: len(subscriber.bodies) == 1000)
    assert [int(body[:3]) for body in subscriber.bodies] == list(range(1000))
    subscriber.close()


# -- SC-D4, SC-D5, SC-D7


def test_sc_d5_near_is_told_before_anything_is_done(slow_broker: BrokerProcess, name: str) -> None:
    key = f"count.{name}"
    subscriber = Subscriber(slow_broker, key)
    publish(slow_broker, key, COUNT - 1)
    until(lambda: subscriber.state() == "near")
    (event,) = told(slow_broker, "slow_consumer.near", subscriber.queue)
    assert (event["level"], event["near"], event["count"]) == ("warning", ["count"], COUNT - 1)
    metrics = slow_broker.http("GET", "/metrics/per-object")[1]
    share = (
        f'tallymark_subscription_limit_used{{limit="count",queue="{subscriber.queue}",vhost="/"}}'
    )
    assert f"{share} {(COUNT - 1) / COUNT}" in metrics
    assert subscriber.is_there
    subscriber.close()


def test_sc_d7_drop_oldest_keeps_the_newest(slow_broker: BrokerProcess, name: str) -> None:
    key = f"drop.{name}"
    subscriber = Subscriber(slow_broker, key)
    publish(slow_broker, key, 25)
    until(lambda: slow_broker.queues()[subscriber.queue]["ready"] == COUNT - 1)
    assert slow_broker.queues()[subscriber.queue]["dropped"] == {"slow_consumer": 16}
    wait_until(subscriber.connection, lambda: len(subscriber.bodies) == COUNT)
    assert [int(body[:3]) for body in subscriber.bodies] == [0, *range(17, 25)]
    subscriber.close()


def test_sc_d7_dead_letter_sends_the_oldest_away(slow_broker: BrokerProcess, name: str) -> None:
    key = f"dead.{name}"
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"letters-{name}"}
    subscriber = Subscriber(slow_broker, key, **arguments)
    letters = f"letters-{name}"
    subscriber.channel.queue_declare(letters, durable=True)
    publish(slow_broker, key, 12)
    until(lambda: slow_broker.queues()[letters]["ready"] == 3)
    method, properties, body = subscriber.channel.basic_get(letters, auto_ack=True)
    assert (method is not None, body[:3]) == (True, b"001")
    assert properties.headers["x-death"][0]["reason"] == "maxlen"
    subscriber.channel.queue_delete(letters)
    subscriber.close()


def test_sc_d7_flow_holds_the_publisher_until_the_consumer_caught_up(
    slow_broker: BrokerProcess, name: str
) -> None:
    key = f"flow.{name}"
    subscriber = Subscriber(slow_broker, key, ack="client")
    publisher = connect(slow_broker.amqp_port)
    heard: list[str] = []
    publisher.add_on_connection_blocked_callback(lambda _, frame: heard.append(frame.method.reason))
    publisher.add_on_connection_unblocked_callback(lambda *_: heard.append("unblocked"))
    sender = publisher.channel()
    for _ in range(COUNT + 1):
        sender.basic_publish("amq.topic", key, b"m")
    until(lambda: subscriber.state() == "over")
    looks(slow_broker, 2)
    assert heard == []
    sender.basic_publish("amq.topic", key, b"m")  # with the next publish
    wait_until(publisher, lambda: bool(heard))
    assert heard == [f"slow consumer of {subscriber.queue}"]
    with connect(slow_broker.amqp_port) as elsewhere:
        beside = elsewhere.channel()
        beside.confirm_delivery()
        beside.basic_publish("", "", b"not held")
    sender.basic_publish("amq.topic", key, b"m")
    looks(slow_broker, 2)
    assert slow_broker.queues()[subscriber.queue]["entered"] == COUNT + 2  # it is not read

    def work() -> bool:
        if subscriber.last_tag:
            subscriber.channel.basic_ack(subscriber.last_tag)
            subscriber.last_tag = 0
        publisher.process_data_events(0)
        return len(heard) > 1

    wait_until(subscriber.connection, work)
    assert heard[1] == "unblocked"
    wait_until(subscriber.connection, lambda: work() and len(subscriber.bodies) == COUNT + 3)
    for one in (publisher, subscriber.connection):
        one.close()


def test_sc_d7_flow_ends_with_the_consumer(slow_broker: BrokerProcess, name: str) -> None:
    """A queue nobody consumes is not looked at: nobody may be held for its sake."""
    key = f"flow.{name}"
    subscriber = Subscriber(slow_broker, key, name, durable=True, ack="client")
    publisher = connect(slow_broker.amqp_port)
    heard: list[str] = []
    publisher.add_on_connection_blocked_callback(lambda *_: heard.append("blocked"))
    publisher.add_on_connection_unblocked_callback(lambda *_: heard.append("unblocked"))
    sender = publisher.channel()
    for _ in range(COUNT + 1):
        sender.basic_publish("amq.topic", key, b"m")
    until(lambda: subscriber.state() == "over")
    sender.basic_publish("amq.topic", key, b"m")
    wait_until(publisher, lambda: heard == ["blocked"])
    subscriber.close()
    wait_until(publisher, lambda: heard == ["blocked", "unblocked"])
    sender.queue_delete(name)
    publisher.close()


def test_sc_d4_a_consumer_below_its_rate_is_disconnected(slow_broker: BrokerProcess) -> None:
    """A thousand a second wanted; one that does nothing is caught after ten seconds, not before."""
    began = time.monotonic()
    subscriber = Subscriber(slow_broker, "rate.a")
    publish(slow_broker, "rate.a", 3)
    until(lambda: not subscriber.is_there)
    assert time.monotonic() - began > 9.5
    (event,) = told(slow_broker, "slow_consumer.found", subscriber.queue)
    assert (event["over"], event["rate"]) == (["rate"], 0.0)
    subscriber.close()
