"""pika's callback adapters: SelectConnection on its own loop, AsyncioConnection on asyncio's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pika
import pytest
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.adapters.select_connection import SelectConnection

from tests.interop.blocking import PERSISTENT, numbered
from tests.support.patience import PATIENCE_S

COUNT = 2_000


class Pump:
    """Publishes COUNT messages with confirms, consumes them in order, acks in ranges, closes.

    The adapters differ only in their loop, so the one life of callbacks serves both.
    """

    def __init__(self, adapter: type, port: int, finished: Callable[[], None]) -> None:
        self.received: list[bytes] = []
        self.confirmed: set[int] = set()
        self.multiple_confirms = 0
        self.error: object = None
        self._finished = finished
        self.connection: Any = adapter(
            pika.ConnectionParameters("127.0.0.1", port),
            on_open_callback=self._on_open,
            on_open_error_callback=self._on_closed,
            on_close_callback=self._on_closed,
        )

    def _on_open(self, connection: Any) -> None:
        connection.channel(on_open_callback=self._on_channel)

    def _on_channel(self, channel: Any) -> None:
        self.channel = channel
        channel.add_on_close_callback(self._on_channel_closed)
        channel.basic_qos(prefetch_count=100)
        channel.queue_declare("", exclusive=True, callback=self._on_queue)

    def _on_queue(self, frame: Any) -> None:
        self.queue = frame.method.queue
        self.channel.confirm_delivery(self._on_confirm, callback=self._on_confirming)

    def _on_confirming(self, _: Any) -> None:
        self.channel.basic_consume(self.queue, self._on_message)
        for body in numbered(COUNT):
            self.channel.basic_publish("", self.queue, body, PERSISTENT)

    def _on_confirm(self, frame: Any) -> None:
        assert isinstance(frame.method, pika.spec.Basic.Ack)
        tag = frame.method.delivery_tag
        if frame.method.multiple:
            self.multiple_confirms += 1
            self.confirmed.update(range(1, tag + 1))
        self.confirmed.add(tag)
        self._close_when_done()

    def _on_message(self, channel: Any, method: Any, _: Any, body: bytes) -> None:
        self.received.append(body)
        if len(self.received) % 100 == 0:
            channel.basic_ack(method.delivery_tag, multiple=True)
        self._close_when_done()

    def _close_when_done(self) -> None:
        if len(self.received) == COUNT and len(self.confirmed) == COUNT:
            self.connection.close()

    def _on_channel_closed(self, _: Any, reason: object) -> None:
        if not isinstance(reason, pika.exceptions.ChannelClosedByClient):
            self.error = reason

    def _on_closed(self, _: Any, reason: object) -> None:
        if not isinstance(reason, pika.exceptions.ConnectionClosedByClient):
            self.error = reason
        self._finished()

    def check(self) -> None:
        assert self.error is None
        assert self.received == numbered(COUNT)
        assert self.confirmed == set(range(1, COUNT + 1))


def test_select_connection(port: int) -> None:
    pump = Pump(SelectConnection, port, lambda: pump.connection.ioloop.stop())
    pump.connection.ioloop.call_later(PATIENCE_S, pump.connection.ioloop.stop)
    pump.connection.ioloop.start()
    pump.check()


def test_asyncio_connection(port: int) -> None:
    async def run() -> Pump:
        finished = asyncio.Event()
        pump = Pump(AsyncioConnection, port, finished.set)
        await asyncio.wait_for(finished.wait(), PATIENCE_S)
        return pump

    asyncio.run(run()).check()


def test_confirms_of_a_burst_are_joined(port: int) -> None:
    """Group commit confirms many publishes at once; a frame for each would be waste."""
    pump = Pump(SelectConnection, port, lambda: pump.connection.ioloop.stop())
    pump.connection.ioloop.call_later(PATIENCE_S, pump.connection.ioloop.stop)
    pump.connection.ioloop.start()
    assert pump.multiple_confirms > 0


def test_nowait_methods_are_obeyed_without_an_answer(port: int, name: str) -> None:
    """pika sends nowait when no callback is given."""
    seen: list[bytes] = []

    def on_open(connection: SelectConnection) -> None:
        connection.channel(on_open_callback=on_channel)

    def on_channel(channel: Any) -> None:
        channel.exchange_declare(name, "topic", auto_delete=True)
        channel.queue_declare(name, exclusive=True)
        channel.queue_bind(name, name, "#")
        channel.basic_consume(name, on_message, auto_ack=True)
        channel.basic_publish(name, "a.b", b"through")

    def on_message(channel: Any, _method: Any, _properties: Any, body: bytes) -> None:
        seen.append(body)
        channel.connection.close()

    connection = SelectConnection(
        pika.ConnectionParameters("127.0.0.1", port),
        on_open_callback=on_open,
        on_close_callback=lambda opened, _: opened.ioloop.stop(),
    )
    connection.ioloop.call_later(PATIENCE_S, connection.ioloop.stop)
    connection.ioloop.start()
    assert seen == [b"through"]


def test_blocked_connection_callbacks_can_be_registered(port: int) -> None:
    parameters = pika.ConnectionParameters("127.0.0.1", port, blocked_connection_timeout=5)
    with pika.BlockingConnection(parameters) as connection:
        connection.add_on_connection_blocked_callback(pytest.fail)
        assert connection.channel().is_open


def test_update_secret_is_answered(port: int) -> None:
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)) as connection:
        connection.update_secret("guest", "refreshed")
        assert connection.channel().is_open
