"""pynsq (tornado) and gnsq (gevent) for tests: nobody looks again and again, what is waited for is
told of.

What a client has said on a connection is done when the broker answers the next publish there
(`everything_said`): so statistics can be compared right after it.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

import gevent
import gnsq
import nsq
from gevent.event import AsyncResult, Event

from tests.support.patience import PATIENCE_S


class Seen:
    """What came about, in order, for whoever waits for it."""

    def __init__(self) -> None:
        self.all: list[Any] = []
        self._changed = asyncio.Event()

    def add(self, one: Any) -> bool:
        """True: as a handler, it has finished the message."""
        self.all.append(one)
        self._changed.set()
        return True

    async def until(self, holds: Callable[[list[Any]], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not holds(self.all):
                self._changed.clear()
                await self._changed.wait()

    async def count(self, count: int) -> None:
        await self.until(lambda all: len(all) >= count)


def quietly(options: dict[str, Any]) -> dict[str, Any]:
    """pynsq's way to say that a certificate need not be known."""
    if options.get("tls_v1"):
        return {**options, "tls_options": {"cert_reqs": ssl.CERT_NONE}}
    return options


class Writer(nsq.Writer):  # type: ignore[misc]
    """One that says when it is connected."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.connected = asyncio.Event()
        super().__init__(*arguments, **options)

    def _on_connection_ready(self, conn: Any, **rest: Any) -> None:
        super()._on_connection_ready(conn, **rest)
        self.connected.set()


class Reader(nsq.Reader):  # type: ignore[misc]
    """One that tells which RDY it sends: ("RDY", connection's id, count) in `trace`."""

    def __init__(self, *arguments: Any, trace: Seen | None = None, **options: Any) -> None:
        self.trace = trace or Seen()
        self.subscribed = Seen()
        """Ids of connections."""
        super().__init__(*arguments, **options)

    def _on_connection_ready(self, conn: Any, **rest: Any) -> None:
        super()._on_connection_ready(conn, **rest)
        self.subscribed.add(conn.id)

    def _send_rdy(self, conn: Any, value: int) -> None:
        super()._send_rdy(conn, value)
        self.trace.add(("RDY", conn.id, value))

    async def has_subscribed(self, count: int = 1) -> None:
        """With so many brokers."""
        await self.subscribed.count(count)


class Pynsq:
    """Readers and writers of one test, on the running loop."""

    def __init__(self, *addresses: str) -> None:
        self._addresses = list(addresses)
        self._opened: list[Any] = []

    async def writer(self, address: str = "", **options: Any) -> Writer:
        writer = Writer([address or self._addresses[0]], **quietly(options))
        self._opened.append(writer)
        async with asyncio.timeout(PATIENCE_S):
            await writer.connected.wait()
        return writer

    def reader(self, topic: str, handler: Callable[[Any], Any], **options: Any) -> Reader:
        options.setdefault("nsqd_tcp_addresses", self._addresses)
        reader = Reader(topic, "c", message_handler=handler, **quietly(options))
        self._opened.append(reader)
        return reader

    async def close(self) -> None:
        """Returns when every connection is closed."""
        loop = asyncio.get_running_loop()
        closed: list[asyncio.Future[None]] = []
        for one in self._opened:
            for conn in list(one.conns.values()):
                gone: asyncio.Future[None] = loop.create_future()
                conn.on("close", lambda gone=gone, **_: gone.done() or gone.set_result(None))
                closed.append(gone)
                conn.close()
            if isinstance(one, nsq.Reader):
                one.close()
        self._opened.clear()
        if closed:
            await asyncio.wait_for(asyncio.gather(*closed), PATIENCE_S)


async def said(command: Callable[..., None], *arguments: Any) -> Any:
    """What a writer is answered."""
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    command(*arguments, callback=lambda conn, content: answer.set_result(content))
    return await asyncio.wait_for(answer, PATIENCE_S)


async def everything_said(reader: Reader) -> None:
    """Returns when the broker has done all that the reader said on its connections."""
    for conn in list(reader.conns.values()):
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def heard(answer: asyncio.Future[Any] = answer, data: Any = None, **_: Any) -> None:
            answer.set_result(data)

        conn.on("response", heard)
        conn.send(nsq.protocol.pub(f"{reader.topic}.said", b"x"))
        assert await asyncio.wait_for(answer, PATIENCE_S) == b"OK"
        conn.off("response", heard)


def with_pynsq(test: Callable[[Pynsq], Awaitable[None]], *addresses: str) -> None:
    """Run a test with clients of these brokers."""

    async def whole() -> None:
        clients = Pynsq(*addresses)
        try:
            await test(clients)
        finally:
            await clients.close()

    asyncio.run(whole())


# -- gnsq


class Heard:
    """As Seen, for gevent."""

    def __init__(self) -> None:
        self.all: list[Any] = []
        self._changed = Event()

    def add(self, one: Any) -> None:
        self.all.append(one)
        self._changed.set()

    def count(self, count: int) -> None:
        """Returns when there are so many."""
        with gevent.Timeout(PATIENCE_S):
            while len(self.all) < count:
                self._changed.clear()
                self._changed.wait()


class Gnsq:
    """gnsq's producers fail at the OK inside a layer, so that layers are its consumers' only."""

    def __init__(self, address: str, **options: Any) -> None:
        self.address = address
        if options.get("tls_v1"):
            options["tls_options"] = {}
        self.options = options
        self.producer_options = {
            key: value for key, value in options.items() if key == "auth_secret"
        }

    def produce(self, topic: str, *bodies: bytes, defer: int | None = None) -> None:
        producer = gnsq.Producer(self.address, **self.producer_options)
        producer.start()
        try:
            if len(bodies) == 1:
                assert producer.publish(topic, bodies[0], defer=defer, timeout=PATIENCE_S) == b"OK"
            else:
                assert producer.multipublish(topic, list(bodies), timeout=PATIENCE_S) == b"OK"
        finally:
            producer.close()
            producer.join()

    def consume(self, topic: str, handler: Callable[[Any, Any], None], **more: Any) -> Consumer:
        return Consumer(topic, self.address, handler, {**self.options, **more})


class Consumer:
    """A consumer, closed at the end of its block."""

    def __init__(
        self,
        topic: str,
        address: str,
        handler: Callable[[Any, Any], None],
        options: dict[str, Any],
    ) -> None:
        self._topic = topic
        self._consumer = gnsq.Consumer(topic, "c", address, message_handler=handler, **options)

    def __enter__(self) -> Consumer:
        self._consumer.start(block=False)
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()
        self._consumer.join()

    def everything_said(self) -> None:
        """Returns when the broker has done all that the consumer said on its connections."""
        for conn in list(self._consumer._connections):
            answer = AsyncResult()

            def heard(conn: Any, response: Any, answer: Any = answer) -> None:
                answer.set(response)

            conn.on_response.connect(heard)
            conn.publish(f"{self._topic}.said", b"x")
            assert answer.get(timeout=PATIENCE_S) == b"OK"
            conn.on_response.disconnect(heard)
