"""A broker in trouble, for whoever looks at its page: the four things that an operator looks for.

jobs      the one queue that is stuck: its consumer holds all that it may and settles nothing
parked    37 poison messages that died in `work`, and three others
c-4711    correlation id of one of the messages that went through it all
ticker    a subscription to topics near its limit
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import pika

from tests.server.management import connect, done
from tests.support.process import BrokerProcess

QUEUES = 60
POISON = 37
STUCK = 240
LIMIT = 100
BEHIND = 88
DURABLE = 2


class Scene:
    """The clients that hold the scene up; they go with it."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self._connections: list[pika.BlockingConnection] = []

    def __enter__(self) -> Self:
        channel = self._channel()
        channel.confirm_delivery()
        for number in range(QUEUES):
            channel.queue_declare(f"tenant-{number:02}", durable=True)
        self._letters(channel)
        self._cycle(channel)
        self._stuck(channel)
        self._slow(channel)
        self._others(channel)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        for connection in self._connections:
            connection.close()

    def _channel(self) -> Any:
        connection = connect(self._broker, heartbeat=0)
        self._connections.append(connection)
        return connection.channel()

    def _letters(self, channel: Any) -> None:
        """Poison messages die in `work`; one of them comes back from its first death."""
        to_parked = {"x-dead-letter-exchange": "dead", "x-dead-letter-routing-key": "parked"}
        channel.exchange_declare("orders", "topic", durable=True)
        channel.exchange_declare("dead", "direct", durable=True)
        channel.queue_declare("work", durable=True, arguments=to_parked)
        channel.queue_declare("audit", durable=True)
        channel.queue_declare("parked", durable=True)
        channel.queue_bind("work", "orders", "eu.#")
        channel.queue_bind("audit", "orders", "#")
        channel.queue_bind("parked", "dead", "parked")
        for number in range(POISON):
            properties = pika.BasicProperties(
                delivery_mode=DURABLE, message_id=f"order-{number}",
                correlation_id=f"c-{4700 + number}", headers={"tenant": f"t-{number % 5}"},
            )  # fmt: skip
            channel.basic_publish("orders", "eu.paid", b'{"order": %d}' % number, properties)
        tag = self._get(channel, "work")
        channel.basic_nack(tag, requeue=True)
        for _ in range(POISON):
            channel.basic_reject(self._get(channel, "work"), requeue=False)

    def _cycle(self, channel: Any) -> None:
        """Retries go round: from `retry` to `attempts` and back."""
        for name, other in (("attempts", "retry"), ("retry", "attempts")):
            channel.queue_declare(name, durable=True, arguments={
                "x-dead-letter-exchange": "", "x-dead-letter-routing-key": other,
            })  # fmt: skip
        for _ in range(3):
            channel.basic_publish("", "attempts", b"again", pika.BasicProperties(delivery_mode=2))
            channel.basic_reject(self._get(channel, "attempts"), requeue=False)
        channel.queue_declare("lost", durable=True, arguments={"x-dead-letter-exchange": "gone"})

    def _stuck(self, channel: Any) -> None:
        channel.queue_declare("jobs", durable=True)
        for number in range(STUCK):
            channel.basic_publish(
                "", "jobs", b"job %d" % number, pika.BasicProperties(delivery_mode=2)
            )
        holder = self._channel()
        holder.basic_qos(prefetch_count=10)
        holder.basic_consume("jobs", lambda *_: None, consumer_tag="worker-1")

    def _slow(self, channel: Any) -> None:
        """A subscription that reads nothing, at 88 of the 100 messages that it may be behind."""
        done(self._broker, "PUT", "policies/%2F/patience", {
            "pattern": "^ticker$", "apply-to": "queues",
            "definition": {"slow-consumer-count": LIMIT, "slow-consumer-policy": "delete"},
        })  # fmt: skip
        channel.exchange_declare("quotes", "topic")
        reader = self._channel()
        reader.queue_declare("ticker", exclusive=True)
        reader.queue_bind("ticker", "quotes", "stocks.#")
        reader.basic_qos(prefetch_count=5)
        reader.basic_consume("ticker", lambda *_: None, consumer_tag="dashboard")
        for number in range(BEHIND):
            channel.basic_publish("quotes", "stocks.us", b"%d" % number)

    def _others(self, channel: Any) -> None:
        channel.queue_declare("events", durable=True, arguments={"x-queue-type": "stream"})
        for number in range(20):
            channel.basic_publish("", "events", b"event %d" % number)
        reader = self._channel()
        reader.basic_qos(prefetch_count=5)
        reader.basic_consume(
            "events", lambda *_: None, consumer_tag="history",
            arguments={"x-stream-offset": "first"},
        )  # fmt: skip

    def _get(self, channel: Any, queue: str) -> int:
        method, _, _ = channel.basic_get(queue)
        assert method is not None
        return int(method.delivery_tag)
