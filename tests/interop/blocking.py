"""Shorthands over pika's BlockingConnection that keep the tests at one level."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.spec import Basic, BasicProperties

from tests.support.patience import until

QUIET_S = 0.2
"""How long nothing must arrive to say that nothing arrives."""
PERSISTENT = BasicProperties(delivery_mode=2)


class Message(NamedTuple):
    """What a consumer was given."""

    method: Basic.Deliver
    properties: BasicProperties
    body: bytes


class Inbox:
    """A consumer that keeps what it gets. Settling is up to the test."""

    def __init__(self, channel: BlockingChannel, queue: str, **consume: object) -> None:
        self.channel = channel
        self.messages: list[Message] = []
        self.cancelled_by_broker = False
        channel.add_on_cancel_callback(self._on_cancel)
        self.tag = channel.basic_consume(queue, self._on_message, **consume)

    def _on_message(
        self,
        _: BlockingChannel,
        method: Basic.Deliver,
        properties: BasicProperties,
        body: bytes,
    ) -> None:
        self.messages.append(Message(method, properties, body))

    def _on_cancel(self, _: object) -> None:
        self.cancelled_by_broker = True

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]

    @property
    def redelivered(self) -> list[bool]:
        return [message.method.redelivered for message in self.messages]

    def wait(self, count: int) -> list[Message]:
        """Until `count` messages are there, not one more; returns them and forgets them."""
        wait_until(self.channel.connection, lambda: len(self.messages) >= count)
        assert len(self.messages) == count, f"{len(self.messages)} messages, expected {count}"
        taken, self.messages = self.messages, []
        return taken

    def settle_quiet(self) -> int:
        """Let the connection run until nothing has come for a while; returns how many are here."""
        seen = -1
        while seen != len(self.messages):
            seen = len(self.messages)
            self.channel.connection.process_data_events(QUIET_S)
        return seen


def wait_until(connection: pika.BlockingConnection, reached: Callable[[], bool]) -> None:
    """Run the connection's I/O until `reached` says so."""
    until(reached, lambda: connection.process_data_events(0.1))


def connect(port: int, **parameters: object) -> pika.BlockingConnection:
    """A connection to the broker under test."""
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, **parameters))


def queue(channel: BlockingChannel, name: str = "", **flags: object) -> str:
    """Declare a queue; returns its name."""
    return str(channel.queue_declare(name, **flags).method.queue)


def depth(channel: BlockingChannel, name: str) -> int:
    """Messages that are ready, by a passive declaration."""
    return int(channel.queue_declare(name, passive=True).method.message_count)


def fill(channel: BlockingChannel, name: str, *bodies: bytes, exchange: str = "") -> None:
    """Publish persistent messages with `name` as routing key."""
    for body in bodies:
        channel.basic_publish(exchange, name, body, PERSISTENT)


def numbered(count: int, start: int = 0) -> list[bytes]:
    """Bodies b"0", b"1", ... ."""
    return [b"%d" % number for number in range(start, start + count)]


def drain(channel: BlockingChannel, name: str) -> list[Message]:
    """Everything that is ready, by basic.get with automatic acknowledgement."""
    found: list[Message] = []
    while True:
        method, properties, body = channel.basic_get(name, auto_ack=True)
        if method is None:
            return found
        found.append(Message(method, properties, body))


def bodies(messages: list[Message]) -> list[bytes]:
    return [message.body for message in messages]
