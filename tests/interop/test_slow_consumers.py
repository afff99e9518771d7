"""Slow consumers as pika sees them: the matrix of SC-A2 and the cases around it, over sockets.

One broker looks every 100 ms. What a subscription may leave lying is said by topic, so that each
case has a rule of its own: the first word of its key.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.interop.blocking import connect, wait_until
from tests.support.process import BrokerProcess

PERIOD_MS = 100
SIZE = 100
COUNT = 9
DELETE = {"policy": "Delete"}
DELETE_PERSISTENT = {"policy": "Delete", "options": {"delete-persistent": True}}
RULES = {
    "delay": PERIOD_MS,
    "timeunit": "MILLISECONDS",
    "topics": [
        {"key": "count.#", "message_count": COUNT, **DELETE},
        {"key": "persistent.#", "message_count": COUNT, **DELETE_PERSISTENT},
        {"key": "not-persistent.#", "message_count": COUNT, "policy": "Delete",
         "options": {"delete-persistent": "false"}},
        {"key": "depth.#", "depth": COUNT * SIZE, **DELETE},
        {"key": "age.#", "message_age": "2s", **DELETE},
        {"key": "stocks.us.*", "message_count": 39, **DELETE},
        {"key": "stocks.us.ibm", "message_count": COUNT, **DELETE},
        {"key": "drop.#", "message_count": COUNT, "policy": "drop-oldest"},
        {"key": "dead.#", "message_count": COUNT, "policy": "dead-letter"},
        {"key": "flow.#", "message_count": COUNT, "policy": "flow"},
        {"key": "notify.#", "message_count": COUNT, "policy": "notify"},
        {"key": "rate.#", "rate": 1000, **DELETE},
    ],
    "subscriptions": [
        {"name": "client:named", "topic": "stocks.#", "message_count": COUNT, **DELETE},
    ],
}  # fmt: skip
SLOW = (506, "Consuming too slow.")


@pytest.fixture(scope="module")
def slow_broker(
    tmp_path_factory: pytest.TempPathFactory, only_ours: None
) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("slow") / "data"
    with BrokerProcess(
        folder, slow_consumers=json.dumps(RULES), write_high_water="64KiB", log_format="json"
    ) as process:
        yield process


@pytest.fixture(scope="module")
def only_ours(request: pytest.FixtureRequest) -> None:
    from tests.interop.conftest import OTHER_PORT

    if OTHER_PORT:
        pytest.skip("starts brokers of our own")


class Subscriber:
    """A subscription to a topic, and its consumer, which takes one message at a time unless it
    acknowledges nothing. Nothing of its connection is read unless it is asked to."""

    def __init__(
        self, broker: BrokerProcess, key: str, queue: str = "", *, durable: bool = False,
        ack: str = "auto", mode: str = "listener", **arguments: Any,
    ) -> None:  # fmt: skip
        self.broker = broker
        self.connection = connect(broker.amqp_port)
        self.channel: BlockingChannel = self.connection.channel()
        declared = self.channel.queue_declare(
            queue, durable=durable, exclusive=not durable, arguments=arguments or None
        )
        self.queue = str(declared.method.queue)
        self.channel.queue_bind(self.queue, "amq.topic", key)
        self.key = key
        self.ack = ack
        self.mode = mode
        self.bodies: list[bytes] = []
        self.last_tag = 0
        if ack == "transacted":
            transact(self.channel)
        if ack != "no-ack":
            self.channel.basic_qos(prefetch_count=1)
        if mode == "listener":
            self.listen()
        else:
            self.ask()

    def ask(self) -> None:
        """Begin to receive: messages come when `receive` asks for them."""
        self._asked = self.channel.consume(
            self.queue, auto_ack=self.ack == "no-ack", exclusive=True, inactivity_timeout=0.01
        )
        assert next(self._asked)[0] is None

    def receive(self) -> None:
        """Messages one by one, until the broker closes the channel."""
        while True:
            self.receive_one()

    def receive_one(self) -> bool:
        """The next message, if one comes soon."""
        method, _, body = next(self._asked)
        if method is not None:
            self._on_message(self.channel, method, None, body)
        return method is not None

    def listen(self) -> None:
        self.channel.basic_consume(
            self.queue, self._on_message, auto_ack=self.ack == "no-ack", exclusive=True
        )

    def _on_message(self, channel: BlockingChannel, method: Any, _: Any, body: bytes) -> None:
        self.bodies.append(body)
        self.last_tag = method.delivery_tag
        if self.ack == "auto":
            channel.basic_ack(method.delivery_tag)

    @property
    def is_there(self) -> bool:
        return self.queue in self.broker.queues()

    def state(self) -> str | None:
        """As the broker saw it last."""
        rows = self.broker.http("GET", "/api/tallymark/slow-consumers")[1]["subscriptions"]
        return next((row["state"] for row in rows if row["queue"] == self.queue), None)

    def close(self) -> None:
        if self.connection.is_open:
            self.connection.close()


def transact(channel: BlockingChannel) -> None:
    try:
        channel.tx_select()
    except pika.exceptions.ConnectionClosedByBroker:  # 540, NOT_IMPLEMENTED
        pytest.skip("this broker does not offer transactions")


def publish(broker: BrokerProcess, key: str, count: int, body: bytes = b"." * SIZE) -> None:
    """From a connection of its own, each message confirmed before the next."""
    with connect(broker.amqp_port) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for number in range(count):
            head = b"%03d" % number
            channel.basic_publish("amq.topic", key, head + body[len(head) :])


def eventually(condition: Callable[[], object], seconds: float = 10) -> None:
    """By asking again; nothing else happens meanwhile on this side."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.02)


def looks(broker: BrokerProcess, times: int = 3) -> None:
    """Until the housekeeping has looked so many times more."""

    def runs() -> int:
        tasks = broker.http("GET", "/api/tallymark/housekeeping")[1]["tasks"]
        return next(int(task["runs"]) for task in tasks if task["name"] == "slow-consumers")

    before = runs()
    eventually(lambda: runs() >= before + times)


def told(broker: BrokerProcess, event: str, queue: str) -> list[dict[str, Any]]:
    """Lines of the log of one event about one queue."""
    lines = [json.loads(line) for line in broker.log().splitlines() if line.startswith("{")]
    return [one for one in lines if one["event"] == event and one.get("queue") == queue]


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
    eventually(lambda: not subscriber.is_there)
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
    deadline, sent = time.monotonic() + 5, 0
    while time.monotonic() < deadline:
        publish(slow_broker, "age.busy", 3)
        sent += 3
        wait_until(busy.connection, lambda so_far=sent: len(busy.bodies) == so_far)
    assert not idle.is_there
    assert busy.is_there
    assert sent > 10
    for one in (idle, busy):
        one.close()


# -- SC-A2

KINDS = ["transient", "durable", "durable, delete-persistent"]
ACKS = ["auto", "client", "dups-ok", "transacted", "no-ack"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["receive", "listener"])
@pytest.mark.parametrize("ack", ACKS)
def test_sc_a2_matrix(
    slow_broker: BrokerProcess, name: str, ack: str, mode: str, kind: str
) -> None:
    key = f"{'persistent' if kind.endswith('persistent') else 'count'}.{name}"
    durable = kind != "transient"
    subscriber = Subscriber(slow_broker, key, name, durable=durable, ack=ack, mode=mode)
    body = b"." * SIZE
    count = COUNT + 1
    if ack == "no-ack":  # what its socket takes is gone; the rest is still in the queue
        body, count = bytes(64 * 1024), 400
    publish(slow_broker, key, count, body)
    if kind == "durable":
        eventually(lambda: subscriber.state() == "over")
        _check_left_alone(subscriber, count)
        return
    eventually(lambda: not subscriber.is_there)
    _check_506(subscriber, mode)
    _check_what_it_can_still_do(subscriber)
    subscriber.close()


def _check_506(subscriber: Subscriber, mode: str) -> None:
    """The error in each form of consuming; what was on its way may come before it."""
    consume = subscriber.channel.start_consuming if mode == "listener" else subscriber.receive
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
        consume()
    assert (closed.value.reply_code, closed.value.reply_text) == SLOW
    if subscriber.ack != "no-ack":
        assert len(subscriber.bodies) <= 1  # pika's generator raises before it gives what it has


def _check_what_it_can_still_do(subscriber: Subscriber) -> None:
    """Later calls of the closed channel raise; the connection opens another at once."""
    channel = subscriber.channel
    later = {
        "client": lambda: channel.basic_ack(subscriber.last_tag),
        "transacted": channel.tx_commit,
    }.get(subscriber.ack)
    if later is not None:
        with pytest.raises(pika.exceptions.ChannelWrongStateError):
            later()
    if subscriber.ack == "transacted":
        with pytest.raises(pika.exceptions.ChannelWrongStateError):
            channel.tx_rollback()
    seen = len(subscriber.bodies)
    subscriber.connection.process_data_events(0.05)
    assert len(subscriber.bodies) == seen
    assert subscriber.connection.is_open
    subscriber.connection.channel().queue_declare("", exclusive=True)


def _check_left_alone(subscriber: Subscriber, count: int) -> None:
    """No error, the queue stays, and it goes on consuming to the last message [SC-7]."""
    looks(subscriber.broker, 2)
    assert subscriber.is_there

    def is_done() -> bool:
        if subscriber.mode == "receive":
            while subscriber.receive_one() and subscriber.ack == "no-ack":
                pass
        if subscriber.ack != "auto" and subscriber.last_tag:
            if subscriber.ack != "no-ack":
                subscriber.channel.basic_ack(subscriber.last_tag, subscriber.ack == "dups-ok")
            subscriber.last_tag = 0
        if subscriber.ack == "transacted":
            subscriber.channel.tx_commit()
        return len(subscriber.bodies) == count

    wait_until(subscriber.connection, is_done)
    assert [body[:3] for body in subscriber.bodies] == [b"%03d" % n for n in range(count)]
    assert told(subscriber.broker, "slow_consumer.found", subscriber.queue)
    assert not told(subscriber.broker, "slow_consumer.acted", subscriber.queue)
    subscriber.channel.queue_delete(subscriber.queue)
    subscriber.close()


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
    eventually(lambda: not subscriber.is_there)
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
    eventually(lambda: subscriber.state() == "over")
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
    eventually(lambda: not subscriber.is_there)
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
        eventually(lambda: slow_broker.queues()[unused]["ready"] == 5 * COUNT)
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
        eventually(lambda: not subscriber.is_there)
    else:
        looks(slow_broker)
        assert subscriber.state() == "fine"
        publish(slow_broker, key, 30)
        eventually(lambda: not subscriber.is_there)
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
    eventually(lambda: subscriber.state() == "over")  # so that the thresholds see them
    wait_until(subscriber.connection, lambda: len(subscriber.bodies) == 1000)
    assert [int(body[:3]) for body in subscriber.bodies] == list(range(1000))
    subscriber.close()


# -- SC-D4, SC-D5, SC-D7


def test_sc_d5_near_is_told_before_anything_is_done(slow_broker: BrokerProcess, name: str) -> None:
    key = f"count.{name}"
    subscriber = Subscriber(slow_broker, key)
    publish(slow_broker, key, COUNT - 1)
    eventually(lambda: subscriber.state() == "near")
    (event,) = told(slow_broker, "slow_consumer.near", subscriber.queue)
    assert (event["level"], event["near"], event["count"]) == ("warning", ["count"], COUNT - 1)
    metrics = slow_broker.http("GET", "/metrics")[1]
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
    eventually(lambda: slow_broker.queues()[subscriber.queue]["ready"] == COUNT - 1)
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
    eventually(lambda: slow_broker.queues()[letters]["ready"] == 3)
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
    eventually(lambda: subscriber.state() == "over")
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
    eventually(lambda: subscriber.state() == "over")
    sender.basic_publish("amq.topic", key, b"m")
    wait_until(publisher, lambda: heard == ["blocked"])
    subscriber.close()
    wait_until(publisher, lambda: heard == ["blocked", "unblocked"])
    sender.queue_delete(name)
    publisher.close()


def test_sc_d4_a_consumer_below_its_rate_is_disconnected(slow_broker: BrokerProcess) -> None:
    """A thousand a second wanted; one that does nothing is caught after ten seconds, not before."""
    subscriber = Subscriber(slow_broker, "rate.a")
    publish(slow_broker, "rate.a", 3)
    began = time.monotonic()
    eventually(lambda: not subscriber.is_there, 20)
    assert 9.5 < time.monotonic() - began < 13
    (event,) = told(slow_broker, "slow_consumer.found", subscriber.queue)
    assert (event["over"], event["rate"]) == (["rate"], 0.0)
    subscriber.close()
