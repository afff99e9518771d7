"""kombu over py-amqp: the transport that Celery stands on."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import amqp
import kombu
import pytest
from kombu.mixins import ConsumerMixin
from kombu.pools import producers

from tests.support.patience import PATIENCE_S


@pytest.fixture
def connection(port: int) -> Iterator[kombu.Connection]:
    with kombu.Connection(f"amqp://guest:guest@127.0.0.1:{port}//") as opened:
        yield opened


def test_simple_queue(connection: kombu.Connection, name: str) -> None:
    queue = connection.SimpleQueue(name, queue_opts={"auto_delete": True})
    for number in range(20):
        queue.put({"number": number}, serializer="json", compression="zlib")
    for number in range(20):
        message = queue.get(timeout=PATIENCE_S)
        assert message.payload == {"number": number}
        message.ack()
    with pytest.raises(queue.Empty):
        queue.get(block=False)
    queue.close()


def test_topic_exchange_with_consumer_callbacks(connection: kombu.Connection, name: str) -> None:
    exchange = kombu.Exchange(name, "topic", auto_delete=True)
    queues = [
        kombu.Queue(f"{name}-{key}", exchange, f"{key}.#", exclusive=True) for key in ("a", "b")
    ]
    received: list[tuple[str, str]] = []

    def on_message(body: str, message: kombu.Message) -> None:
        received.append((message.delivery_info["routing_key"], body))
        message.ack()

    with connection.channel() as channel, connection.Consumer(queues, callbacks=[on_message]):
        producer = kombu.Producer(channel)
        for key in ("a.1", "b.1", "c.1", "a.2"):
            producer.publish(key.upper(), exchange=exchange, routing_key=key, declare=queues)
        while len(received) < 3:
            connection.drain_events(timeout=PATIENCE_S)
    assert sorted(received) == [("a.1", "A.1"), ("a.2", "A.2"), ("b.1", "B.1")]


def test_publisher_confirms(port: int, name: str) -> None:
    options = {"confirm_publish": True}
    url = f"amqp://guest:guest@127.0.0.1:{port}//"
    with kombu.Connection(url, transport_options=options) as connection:
        queue = kombu.Queue(name, durable=True, exclusive=True)
        with producers[connection].acquire(block=True) as producer:
            for number in range(100):
                producer.publish(number, routing_key=name, declare=[queue], delivery_mode=2)
            assert queue(producer.channel).purge() == 100


def test_reject_requeue_and_recover(connection: kombu.Connection, name: str) -> None:
    queue = connection.SimpleQueue(name, queue_opts={"auto_delete": True})
    queue.put("x")
    message = queue.get(timeout=PATIENCE_S)
    message.requeue()
    message = queue.get(timeout=PATIENCE_S)
    assert message.delivery_info["redelivered"] is True
    message.reject()
    with pytest.raises(queue.Empty):
        queue.get(timeout=0.2)
    queue.close()


def test_consumer_mixin_with_prefetch(connection: kombu.Connection, name: str) -> None:
    queue = kombu.Queue(name, durable=False, auto_delete=True)

    class Worker(ConsumerMixin):
        def __init__(self) -> None:
            self.connection = connection
            self.seen: list[int] = []

        def get_consumers(self, make: type, channel: object) -> list[kombu.Consumer]:
            return [make(queues=[queue], callbacks=[self.on_task], prefetch_count=2)]

        def on_task(self, body: int, message: kombu.Message) -> None:
            self.seen.append(body)
            message.ack()
            self.should_stop = len(self.seen) == 50

        def on_consume_ready(self, *_: object, **__: object) -> None:
            producer = connection.Producer()
            for number in range(50):
                producer.publish(number, routing_key=name)

    worker = Worker()
    worker.run()
    assert worker.seen == list(range(50))


def test_heartbeats_are_kept_up(port: int) -> None:
    url = f"amqp://guest:guest@127.0.0.1:{port}//"
    with kombu.Connection(url, heartbeat=2) as connection:
        connection.ensure_connection(max_retries=1)
        assert connection.get_heartbeat_interval() == 2
        for _ in range(3):
            with pytest.raises(socket.timeout):
                connection.drain_events(timeout=0.5)
            connection.heartbeat_check()
        assert connection.connected


def test_errors_of_py_amqp(port: int, name: str) -> None:
    with kombu.Connection(f"amqp://guest:guest@127.0.0.1:{port}//") as connection:
        with pytest.raises(connection.channel_errors, match="NOT_FOUND"):
            kombu.Queue(name).bind(connection.channel()).queue_declare(passive=True)
        declared = kombu.Queue(name, durable=False).bind(connection.channel())
        declared.declare()
        with pytest.raises(connection.channel_errors, match="PRECONDITION_FAILED"):
            kombu.Queue(name, durable=True).bind(connection.channel()).declare()
        declared.delete()
    with (
        kombu.Connection(f"amqp://guest:wrong@127.0.0.1:{port}//") as refused,
        pytest.raises(amqp.AccessRefused, match="403"),
    ):
        refused.ensure_connection(max_retries=1)
