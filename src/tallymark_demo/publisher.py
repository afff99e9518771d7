"""The demo's first client: pika, publishing through a topic exchange with confirms in flight."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pika

from tallymark_demo.input import Workload

WINDOW: Final = 4_000
"""Publishes whose confirm may be outstanding."""
AT_ONCE: Final = 200
"""Publishes between two looks at the socket."""


class PublishingEnded(Exception):
    """The connection was lost before every publish had its answer."""


@dataclass(slots=True)
class Published:
    """Counts of published, confirmed and refused messages."""

    digests: list[bytes] = field(default_factory=list)
    """SHA-256 of body n, which has message-id n."""
    bytes: int = 0
    confirmed: int = 0
    refused: int = 0
    seconds: float = 0.0

    @property
    def count(self) -> int:
        return len(self.digests)


def declare(parameters: pika.ConnectionParameters, exchange: str, bindings: dict[str, str]) -> None:
    """A durable topic exchange and, for each queue name, its binding key."""
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.exchange_declare(exchange, "topic", durable=True)
        for queue, key in bindings.items():
            channel.queue_declare(queue, durable=True)
            channel.queue_bind(queue, exchange, key)


def publish(parameters: pika.ConnectionParameters, exchange: str, workload: Workload) -> Published:
    """Publish the workload, persistent, and wait for the last confirm.

    Raises PublishingEnded when the connection ends before that.
    """
    return _Publisher(parameters, exchange, workload).run()


class _Publisher:
    """Callbacks of one pika connection: each opens the next step."""

    def __init__(
        self, parameters: pika.ConnectionParameters, exchange: str, workload: Workload
    ) -> None:
        self._exchange = exchange
        self._messages: Iterator[tuple[str, bytes]] = workload.messages()
        self._media_type = workload.media_type
        self._published = Published()
        self._more = True
        self._failure: BaseException | None = None
        self._acked_up_to = 0
        self._channel: Any = None
        self._connection = pika.SelectConnection(
            parameters,
            on_open_callback=self._opened,
            on_open_error_callback=self._ended,
            on_close_callback=self._ended,
        )

    def run(self) -> Published:
        begun = time.monotonic()
        self._connection.ioloop.start()
        done = self._published
        done.seconds = time.monotonic() - begun
        if self._more or done.confirmed + done.refused < done.count:
            raise PublishingEnded(
                f"publishing ended at {done.confirmed} confirms of {done.count}: {self._failure}"
            )
        return done

    def _opened(self, connection: Any) -> None:
        connection.channel(on_open_callback=self._channel_open)

    def _channel_open(self, channel: Any) -> None:
        self._channel = channel
        channel.add_on_close_callback(self._channel_closed)
        channel.confirm_delivery(self._confirmed, callback=lambda _: self._publish_some())

    def _publish_some(self) -> None:
        out = self._published
        for _ in range(AT_ONCE):
            if out.count - out.confirmed - out.refused >= WINDOW:
                return  # the next confirm goes on from here
            message = next(self._messages, None)
            if message is None:
                self._more = False
                self._finish_if_done()
                return
            key, body = message
            properties = pika.BasicProperties(
                content_type=self._media_type,
                delivery_mode=2,
                message_id=str(out.count),
                headers={"publisher": "pika", "workload": self._exchange},
            )
            self._channel.basic_publish(self._exchange, key, body, properties)
            out.digests.append(hashlib.sha256(body).digest())
            out.bytes += len(body)
        self._connection.ioloop.call_later(0, self._publish_some)

    def _confirmed(self, frame: Any) -> None:
        out = self._published
        waiting = out.count - out.confirmed - out.refused >= WINDOW
        tag = frame.method.delivery_tag
        count = tag - self._acked_up_to if frame.method.multiple else 1
        self._acked_up_to = max(self._acked_up_to, tag)
        if isinstance(frame.method, pika.spec.Basic.Ack):
            out.confirmed += count
        else:
            out.refused += count
        if waiting and self._more:
            self._publish_some()
        self._finish_if_done()

    def _finish_if_done(self) -> None:
        out = self._published
        if not self._more and out.confirmed + out.refused == out.count:
            self._connection.close()

    def _channel_closed(self, channel: Any, reason: BaseException) -> None:
        self._failure = self._failure or reason
        if not self._connection.is_closing and not self._connection.is_closed:
            self._connection.close()

    def _ended(self, connection: Any, reason: BaseException) -> None:
        self._failure = self._failure or reason
        self._connection.ioloop.stop()
