"""Source and target over NSQ: a channel of a topic, and a topic of one nsqd.

NSQ's messages have a body and nothing else: towards it properties and headers are lost, and
`x-shovelled` with them. A message that was attempted before is flagged as redelivered. nsqd queues
a message again that is not finished within its time-out, so that a target which is slower than that
lets it come twice.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final, final
from urllib.parse import urlsplit

from tallymark.client import Message
from tallymark.client.amqp091.messages import Outgoing
from tallymark.shovels.ends import Batch, ShovelFailed, Source, Target
from tallymark.shovels.parcel import Parcel
from tallymark.shovels.plan import NSQ, PORTS
from tallymark.wire.nsq import commands
from tallymark.wire.nsq.frames import (
    ERROR,
    HEARTBEAT,
    MESSAGE,
    OK,
    RESPONSE,
    decode_message,
    split_frames,
)

PATIENCE_S: Final = 1.0
"""Seconds that a source waits for a message before it says that there is none."""
ANSWER_S: Final = 60.0
READ_SIZE: Final = 1 << 16
MPUB_BYTES: Final = 1 << 20
"""Bytes of one MPUB: it ends with the message that passes this."""


@final
class Nsqd:
    """A connection with one nsqd. Every call raises ShovelFailed."""

    def __init__(self, url: str, side: str) -> None:
        parts = urlsplit(url)
        self._host = parts.hostname or "localhost"
        self._port = parts.port or PORTS[NSQ]
        self._side = side
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._answers: asyncio.Queue[bytes] = asyncio.Queue()
        self.messages: asyncio.Queue[bytes] = asyncio.Queue()
        """Contents of message frames."""

    async def open(self) -> None:
        try:
            reader, self._writer = await asyncio.open_connection(self._host, self._port)
        except OSError as error:
            raise ShovelFailed(f"{self._side}: {error}") from error
        self._reading = asyncio.create_task(self._read(reader))
        about = json.dumps({"client_id": "shovel", "user_agent": "tallymark shovel"}).encode()
        await self.call(commands.MAGIC + commands.identify(about))

    async def call(self, command: bytes) -> None:
        """Send a command and wait for its OK."""
        self.send(command)
        answer = await self._first(self._answers, ANSWER_S)
        if answer is None:
            raise ShovelFailed(f"{self._side}: no answer within {ANSWER_S:.0f} s")

    def send(self, command: bytes) -> None:
        if self._writer is None or self._reading is None or self._reading.done():
            raise self._broken()
        self._writer.write(command)

    async def drain(self) -> None:
        """Wait until nsqd takes more."""
        assert self._writer is not None
        try:
            await self._writer.drain()
        except OSError as error:
            raise ShovelFailed(f"{self._side}: {error}") from error

    async def message(self, wait_s: float) -> bytes | None:
        """Return the next message; None: there was none in that time."""
        return await self._first(self.messages, wait_s)

    async def _first(self, queue: asyncio.Queue[bytes], wait_s: float) -> bytes | None:
        """Return the queue's next item; None when time is up."""
        assert self._reading is not None
        getting = asyncio.ensure_future(queue.get())
        try:
            await asyncio.wait(
                {getting, self._reading}, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED
            )
            if getting.done():
                return getting.result()
            if self._reading.done():
                raise self._broken()
            return None
        finally:
            getting.cancel()

    def _broken(self) -> ShovelFailed:
        reading = self._reading
        error = None if reading is None or not reading.done() else reading.exception()
        if isinstance(error, ShovelFailed):
            return error
        return ShovelFailed(f"{self._side}: {error or 'nsqd hung up'}")

    async def _read(self, reader: asyncio.StreamReader) -> None:
        """Read until nsqd hangs up. Raises ShovelFailed for its errors."""
        rest = b""
        while data := await reader.read(READ_SIZE):
            frames, rest = split_frames(rest + data)
            for kind, content in frames:
                if kind == MESSAGE:
                    self.messages.put_nowait(content)
                elif kind == ERROR:
                    raise ShovelFailed(
                        f"{self._side}: nsqd says {content.decode(errors='replace')}"
                    )
                elif kind == RESPONSE and content == HEARTBEAT:
                    assert self._writer is not None
                    self._writer.write(commands.NOP)
                elif content == OK:
                    self._answers.put_nowait(content)

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        if self._writer is not None:
            self._writer.close()
            with suppress(OSError):  # of a connection that broke before
                await self._writer.wait_closed()
        self._writer = None


@final
class NsqSource(Source):
    def __init__(self, url: str, topic: str, channel: str, window: int) -> None:
        """window: most messages in flight."""
        self._nsqd = Nsqd(url, f"source {topic}/{channel}")
        self._topic = topic
        self._channel = channel
        self._window = window

    async def open(self) -> None:
        await self._nsqd.open()
        await self._nsqd.call(commands.sub(self._topic, self._channel))

    async def begin(self, known: int | None) -> None:
        self._nsqd.send(commands.rdy(self._window))

    async def take(self, most: int) -> Batch | None:
        content = await self._nsqd.message(PATIENCE_S)
        if content is None:
            return None
        contents = [content]
        while len(contents) < most and not self._nsqd.messages.empty():
            contents.append(self._nsqd.messages.get_nowait())
        parcels, ids = [], []
        for content in contents:
            _, attempts, id, body = decode_message(content)
            parcels.append(Parcel(Message(body), attempts > 1))
            ids.append(int(id, 16))
        return Batch(parcels, held=ids)

    async def settle(self, batch: Batch) -> None:
        self._nsqd.send(b"".join(commands.fin(id) for id in batch.held))
        await self._nsqd.drain()

    async def settle_some(self, batch: Batch, put: Sequence[int]) -> None:
        await self.settle(Batch([], held=[batch.held[place] for place in put]))

    async def close(self) -> None:
        await self._nsqd.close()


@final
class NsqTarget(Target):
    def __init__(self, url: str, topic: str) -> None:
        self._nsqd = Nsqd(url, f"target {topic}")
        self._topic = topic
        self._outgoing = Outgoing()

    async def open(self, origin: str) -> None:
        await self._nsqd.open()

    async def put(self, batch: Batch) -> None:
        for bodies in self._chunks(batch):
            await self._nsqd.call(commands.mpub(self._topic, bodies))

    def _chunks(self, batch: Batch) -> Iterator[list[bytes]]:
        bodies: list[bytes] = []
        size = 0
        for parcel in batch.parcels:
            bodies.append(self._outgoing.content(parcel.message.encode())[1])
            size += len(bodies[-1])
            if size >= MPUB_BYTES:
                yield bodies
                bodies, size = [], 0
        if bodies:
            yield bodies

    async def close(self) -> None:
        await self._nsqd.close()
