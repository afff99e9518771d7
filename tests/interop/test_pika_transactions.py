"""Rollback in the original order, for users of pika: TX-A1 to TX-A6, TX-A9, TX-A10's invariant.

A broker that redelivers nothing at a rollback [TX-6] leaves two steps to its client: tx.rollback,
then basic.recover. What it was sent and has not looked at yet must not come in between, so it stops
deliveries first: by channel.flow, which ours honours [TX-10], or by cancelling [TX-19a].
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pika
import pytest
from pika import spec
from pika.adapters.blocking_connection import BlockingChannel

from tests.interop.blocking import (
    QUIET_S,
    Message,
    bodies,
    connect,
    depth,
    drain,
    fill,
    numbered,
    queue,
    wait_until,
)
from tests.interop.conftest import OTHER_PORT

FLOW, CANCEL = "flow", "cancel"


@pytest.fixture(params=[FLOW, CANCEL])
def stops_by(request: pytest.FixtureRequest) -> str:
    if request.param == FLOW and OTHER_PORT:
        pytest.skip("RabbitMQ answers 540 to channel.flow")
    return str(request.param)


class Reader:
    """A transactional channel that consumes from queues, and rolls back as a client should."""

    def __init__(self, channel: BlockingChannel, stops_by: str, prefetch: int = 0) -> None:
        self.channel = channel
        self.connection = channel.connection
        self.stops_by = stops_by
        self.waiting: deque[tuple[str, Message]] = deque()
        self.tags: dict[str, str] = {}
        """Of consumers, by queue."""
        self.on_message: Callable[[Message], None] | None = None
        """Called for each message in pika's own callback, as listeners are."""
        self.mark = 0
        """What has a tag up to here was rolled back."""
        channel.basic_qos(prefetch_count=prefetch)
        channel.tx_select()

    def consume(self, *names: str) -> None:
        for name in names:
            self.tags[name] = self.channel.basic_consume(name, self._callback_of(name))

    def _callback_of(self, name: str) -> Callable[..., None]:
        def arrived(
            _: BlockingChannel, method: spec.Basic.Deliver, properties: object, body: bytes
        ) -> None:
            message = Message(method, properties, body)  # type: ignore[arg-type]
            if method.delivery_tag <= self.mark:
                return
            if self.on_message is None:
                self.waiting.append((name, message))
            else:
                self.on_message(message)

        return arrived

    def receive(self, name: str | None = None) -> Message:
        """The next message, of one queue or of any."""

        def found() -> int:
            for at, (source, _) in enumerate(self.waiting):
                if name in (None, source):
                    return at
            return -1

        wait_until(self.connection, lambda: found() >= 0)
        at = found()
        message = self.waiting[at][1]
        del self.waiting[at]
        return message

    def index(self, name: str | None = None) -> int:
        return int(self.receive(name).body)

    def rollback(self) -> None:
        names = list(self.tags)
        if self.stops_by == FLOW:
            assert self.channel.flow(False) is False
            self.mark = self._highest_tag()
        else:
            for name in names:
                self.channel.basic_cancel(self.tags.pop(name))
        self.waiting.clear()
        self.channel.tx_rollback()
        self.channel.basic_recover(requeue=True)
        if self.stops_by == FLOW:
            assert self.channel.flow(True) is True
        else:
            self.consume(*names)

    def _highest_tag(self) -> int:
        """Of everything that pika was given, shown or not."""
        pending = [
            event.method.delivery_tag
            for event in self.channel._pending_events
            if hasattr(event, "method") and isinstance(event.method, spec.Basic.Deliver)
        ]
        return max([self.mark, *pending, *self.seen_tags()])

    def seen_tags(self) -> list[int]:
        return [message.method.delivery_tag for _, message in self.waiting]

    def commit(self, upto: int) -> None:
        """Settle everything up to this tag."""
        self.channel.basic_ack(upto, multiple=True)
        self.channel.tx_commit()


def test_tx_a1_rollback_order(
    connection: pika.BlockingConnection, channel: BlockingChannel, stops_by: str
) -> None:
    name = queue(channel, exclusive=True)
    fill(channel, name, *numbered(50))
    reader = Reader(connection.channel(), stops_by)
    reader.consume(name)
    for _ in range(20):
        first = reader.receive()
        assert first.body == b"0"
        for _ in range(5):
            last = reader.receive()
        reader.channel.basic_ack(last.method.delivery_tag, multiple=True)
        reader.rollback()
    received = [reader.receive() for _ in range(50)]
    assert bodies(received) == numbered(50)
    reader.commit(received[-1].method.delivery_tag)
    assert reader.waiting == deque()
    reader.channel.close()
    assert depth(channel, name) == 0


def test_tx_a1_rollback_order_by_get(channel: BlockingChannel) -> None:
    name = queue(channel, exclusive=True)
    fill(channel, name, *numbered(50))
    channel.tx_select()
    for n in range(20):
        taken = [channel.basic_get(name) for _ in range(6)]
        assert [body for _, _, body in taken] == numbered(6)
        assert [method.redelivered for method, _, _ in taken] == [n > 0] * 6
        channel.basic_ack(taken[n % 6][0].delivery_tag, multiple=True)
        channel.tx_rollback()
        channel.basic_recover(requeue=True)
    found = drain(channel, name)
    assert bodies(found) == numbered(50)
    assert [m.method.redelivered for m in found] == [n < 6 for n in range(50)]


def test_tx_a2_rollback_order_inside_a_handler(
    connection: pika.BlockingConnection, channel: BlockingChannel, stops_by: str
) -> None:
    """The handler rolls back itself: no deadlock, and always index 0 first."""
    name = queue(channel, exclusive=True)
    fill(channel, name, *numbered(50))
    reader = Reader(connection.channel(), stops_by, prefetch=10)
    rollbacks: list[int] = []
    received: list[int] = []

    def handler(message: Message) -> None:
        received.append(int(message.body))
        if len(rollbacks) < 20 and len(received) == 6:
            rollbacks.append(received[0])
            received.clear()
            reader.mark = message.method.delivery_tag
            reader.rollback()
        elif len(rollbacks) == 20:
            reader.commit(message.method.delivery_tag)

    reader.on_message = handler
    reader.consume(name)
    wait_until(connection, lambda: len(received) == 50)
    assert rollbacks == [0] * 20
    assert received == list(range(50))


def test_tx_a3_exhausted_prefetch(
    connection: pika.BlockingConnection, channel: BlockingChannel, stops_by: str
) -> None:
    name = queue(channel, exclusive=True)
    fill(channel, name, *numbered(3))
    reader = Reader(connection.channel(), stops_by, prefetch=2)
    reader.consume(name)
    assert [reader.index(), reader.index()] == [0, 1]
    connection.process_data_events(QUIET_S)
    assert reader.waiting == deque()
    reader.rollback()
    assert reader.index() == 0
    last = reader.receive()
    assert last.body == b"1"
    reader.channel.basic_ack(last.method.delivery_tag, multiple=True)
    connection.process_data_events(QUIET_S)
    assert reader.waiting == deque(), "the window opens at the commit [TX-4]"
    reader.channel.tx_commit()
    assert reader.index() == 2


def test_tx_a4_rollback_within_a_listener(
    connection: pika.BlockingConnection, channel: BlockingChannel, stops_by: str
) -> None:
    name = queue(channel, exclusive=True)
    fill(channel, name, *numbered(2))
    reader = Reader(connection.channel(), stops_by)
    calls: list[int] = []

    def handler(message: Message) -> None:
        calls.append(int(message.body))
        if len(calls) <= 2:
            reader.mark = message.method.delivery_tag
            reader.rollback()
        else:
            reader.commit(message.method.delivery_tag)

    reader.on_message = handler
    reader.consume(name)
    wait_until(connection, lambda: len(calls) >= 4)
    connection.process_data_events(QUIET_S)
    assert calls == [0, 0, 0, 1]


def test_tx_a5_a_transaction_shared_by_consumers(
    connection: pika.BlockingConnection, channel: BlockingChannel, stops_by: str
) -> None:
    first, second = queue(channel, exclusive=True), queue(channel, exclusive=True)
    fill(channel, first, *numbered(5))
    fill(channel, second, *numbered(5, 10))
    reader = Reader(connection.channel(), stops_by)
    reader.consume(first, second)
    for _ in range(5):
        assert (reader.index(first), reader.index(second)) == (0, 10)
        reader.rollback()
    received = [reader.receive() for _ in range(10)]
    numbers = [int(message.body) for message in received]
    assert [n for n in numbers if n < 10] == list(range(5))
    assert [n for n in numbers if n >= 10] == list(range(10, 15))
    reader.commit(max(message.method.delivery_tag for message in received))


def test_tx_a6_message_order(
    connection: pika.BlockingConnection, channel: BlockingChannel, stops_by: str
) -> None:
    name = queue(channel, exclusive=True)
    fill(channel, name, *numbered(4))
    reader = Reader(connection.channel(), stops_by)
    reader.consume(name)
    for head in range(4):
        for _ in range(5):
            assert [reader.index() for _ in range(4 - head)] == list(range(head, 4))
            reader.rollback()
        message = reader.receive()
        assert int(message.body) == head
        reader.commit(message.method.delivery_tag)
        for _ in range(3 - head):
            reader.receive()
        reader.rollback()
    connection.process_data_events(QUIET_S)
    assert reader.waiting == deque()


@pytest.mark.parametrize("end", ["commit", "rollback", "close"])
def test_tx_a9_receive_then_close(port: int, channel: BlockingChannel, name: str, end: str) -> None:
    queue(channel, name, auto_delete=False)
    fill(channel, name, b"0", b"1")
    with connect(port) as other:
        worker = other.channel()
        worker.tx_select()
        seen: list[Message] = []
        tag = worker.basic_consume(name, lambda _, m, p, b: seen.append(Message(m, p, b)))
        wait_until(other, lambda: len(seen) == 2)
        worker.basic_ack(1)
        worker.basic_publish("", name, b"2", pika.BasicProperties(delivery_mode=2))
        if end != "close":
            worker.basic_cancel(tag)
            (worker.tx_commit if end == "commit" else worker.tx_rollback)()
    found = drain(channel, name)
    assert bodies(found) == ([b"1", b"2"] if end == "commit" else [b"0", b"1"])
    channel.queue_delete(name)


def test_consumers_of_a_closed_channel_see_the_original_order(
    connection: pika.BlockingConnection, channel: BlockingChannel
) -> None:
    """Parked acks, unparked deliveries and what was never looked at: all back in their places."""
    name = queue(channel, exclusive=True)
    fill(channel, name, *numbered(50))
    for n in range(5):
        reader = Reader(connection.channel(), CANCEL, prefetch=20)
        reader.consume(name)
        taken = [reader.receive() for _ in range(12)]
        assert bodies(taken) == numbered(12)
        for message in taken[n::3]:
            reader.channel.basic_ack(message.method.delivery_tag)
        with pytest.raises(pika.exceptions.ChannelClosedByBroker):
            reader.channel.queue_declare("no such queue", passive=True)
    wait_until(connection, lambda: depth(channel, name) == 50)
    assert bodies(drain(channel, name)) == numbered(50)


def test_tx_10_no_delivery_while_flow_is_off(
    only_ours: None, connection: pika.BlockingConnection, channel: BlockingChannel
) -> None:
    """Under load from another channel: what comes after flow-ok is not delivered, and nothing is
    lost or out of order once it is on again (TX-A11 over a socket)."""
    name = queue(channel, exclusive=True)
    reader = Reader(connection.channel(), FLOW)
    reader.consume(name)
    sent, seen = 0, []
    for _ in range(100):
        fill(channel, name, *numbered(10, sent))
        sent += 10
        assert reader.channel.flow(False) is False
        connection.process_data_events(0)
        before = len(reader.waiting)
        fill(channel, name, *numbered(5, sent))
        sent += 5
        channel.queue_declare(name, passive=True)
        connection.process_data_events(0)
        assert len(reader.waiting) == before
        assert reader.channel.flow(True) is True
    while len(seen) < sent:
        seen.append(reader.index())
    assert seen == list(range(sent))
