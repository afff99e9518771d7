"""Subscriptions to topics as pika has them, for a broker that looks for slow ones every 100 ms.

What a subscription may leave lying is said by topic, so that each case has a rule of its own: the
first word of its key.
"""

from __future__ import annotations

import json
from typing import Any

from pika.adapters.blocking_connection import BlockingChannel

from tests.interop.blocking import connect
from tests.support.patience import until
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
        {"key": "link.#", "message_count": COUNT, "policy": "Delete", "options": {"scope": "link"}},
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
            self.channel.tx_select()
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


def publish(
    broker: BrokerProcess, key: str, count: int, body: bytes = b"." * SIZE, first: int = 0
) -> None:
    """Numbered from `first` on, from a connection of its own, each message confirmed before the
    next."""
    with connect(broker.amqp_port) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for number in range(first, first + count):
            head = b"%03d" % number
            channel.basic_publish("amq.topic", key, head + body[len(head) :])


def looks(broker: BrokerProcess, times: int = 3) -> None:
    """Until the housekeeping has looked so many times more."""

    def runs() -> int:
        tasks = broker.http("GET", "/api/tallymark/housekeeping")[1]["tasks"]
        return next(int(task["runs"]) for task in tasks if task["name"] == "slow-consumers")

    before = runs()
    until(lambda: runs() >= before + times)


def told(broker: BrokerProcess, event: str, queue: str) -> list[dict[str, Any]]:
    """Lines of the log of one event about one queue."""
    lines = [json.loads(line) for line in broker.log().splitlines() if line.startswith("{")]
    return [one for one in lines if one["event"] == event and one.get("queue") == queue]
