"""A hostile behaviour: a small task that harms a broker as well as it can until it is cancelled.

    @behaviour("amqp", "opens channels and closes them", workers=4)
    async def channels(worker: Worker) -> None:
        line = await worker.opened()
        ...

A behaviour is one round of one worker. It begins again when it returns, and when the broker ends
its connection; all lines of the round are closed in between. `worker.step()` counts what was done,
so that a test can wait for it and a table can show it.
"""

from __future__ import annotations

import asyncio
import base64
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from bench.lean import method, short

READ: Final = 1 << 16
AGAIN_S: Final = 0.01
"""After a round that was cut short."""
HEADER_091: Final = b"AMQP\0\0\x09\x01"
OPEN_OK: Final = b"\0\x0a\0\x29"
LAST_WORDS: Final = (b"\0\x0a\0\x32", b"\0\x53\x18")
"""connection.close of both AMQPs."""
CHANNEL_OPEN_OK: Final = b"\0\x14\0\x0b"


@dataclass(frozen=True)
class Target:
    """A broker, and who attacks it."""

    ports: dict[str, int]
    """By names: amqp, amqps, http, nsq, nsq_http, nsq_https."""
    user: str = "mallory"
    password: str = "mallory"
    other: str = "eve"
    """User of whom wrong passwords are tried; the attacker's own would wait behind them."""
    vhost: str = "siege"
    """Of AMQP and HTTP; NSQ has the broker's."""
    administrator: str = "guest:guest"
    """For what happens to the attacker: its rights are taken away."""
    is_rabbitmq: bool = False


@dataclass
class Count:
    """Totals of all workers."""

    steps: int = 0
    cuts: int = 0
    """Connections that the broker ended or refused."""


class Line:
    """One connection. Nothing is read but where it is asked for."""

    def __init__(self, raw: socket.socket) -> None:
        self.raw = raw
        self._loop = asyncio.get_running_loop()

    async def send(self, data: bytes) -> None:
        await self._loop.sock_sendall(self.raw, data)
        await asyncio.sleep(0)  # sending does not wait while the system takes it

    async def drip(self, data: bytes, pause_s: float = 0.1) -> None:
        """Byte after byte, each in a segment of its own."""
        for at in range(len(data)):
            await self.send(data[at : at + 1])
            await asyncio.sleep(pause_s)

    async def read(self) -> bytes:
        """Something. Raises EOFError where the broker hung up."""
        data = await self._loop.sock_recv(self.raw, READ)
        if not data:
            raise EOFError("the broker hung up")
        return data

    async def until(self, word: bytes) -> bytes:
        """Read until this comes; returns all that came."""
        seen = b""
        while word not in seen:
            seen += await self.read()
        return seen

    async def drain(self) -> None:
        """Read and throw away until the broker hangs up, which raises EOFError."""
        while True:
            await self.read()

    async def refused(self) -> None:
        """Read until the broker says that the connection is over, or ends it: raises EOFError."""
        seen = b""
        while not any(word in seen for word in LAST_WORDS):
            seen = seen[-8:] + await self.read()
        raise EOFError("the broker closed the connection")

    def close(self) -> None:
        self.raw.close()


class Worker:
    """One of those who do the same at a time."""

    def __init__(self, target: Target, number: int, count: Count) -> None:
        self.target = target
        self.number = number
        self.count = count
        self._lines: list[Line] = []
        self._beside: list[asyncio.Task[None]] = []

    def step(self, steps: int = 1) -> None:
        self.count.steps += steps

    async def line(self, port: str, receive_buffer: int = 0) -> Line:
        """receive_buffer: bytes that the system takes for a reader that does not read."""
        raw = socket.socket()
        raw.setblocking(False)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if receive_buffer:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        line = Line(raw)
        self._lines.append(line)
        address = ("127.0.0.1", self.target.ports[port])
        await asyncio.get_running_loop().sock_connect(raw, address)
        return line

    async def opened(self, channels: int = 1, *, heartbeat_s: int = 0) -> Line:
        """AMQP 0-9-1 with open channels 1 to `channels`."""
        line = await self.line("amqp")
        await line.send(HEADER_091)
        await line.until(b"\xce")
        await line.send(self.start_ok())
        await line.until(b"\xce")
        await line.send(tune_ok(heartbeat_s) + self.open())
        await line.until(OPEN_OK)
        if channels:
            await line.send(b"".join(method(n + 1, (20, 10), b"\0") for n in range(channels)))
            seen = 0
            while seen < channels:
                seen += (await line.read()).count(CHANNEL_OPEN_OK)
        return line

    def start_ok(self, wrong: str = "") -> bytes:
        """wrong: a password of another user, and not the right one."""
        target = self.target
        user, given = (target.other, wrong) if wrong else (target.user, target.password)
        response = f"\0{user}\0{given}".encode()
        return method(
            0, (10, 11),
            bytes(4) + short("PLAIN") + len(response).to_bytes(4, "big") + response
            + short("en_US"),
        )  # fmt: skip

    def open(self) -> bytes:
        return method(0, (10, 40), short(self.target.vhost) + b"\0\0")

    def beside(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do this as well until the round ends."""

        async def run() -> None:
            with suppress(OSError, EOFError):
                await work()

        self._beside.append(asyncio.create_task(run()))

    @property
    def basic(self) -> bytes:
        """The header of HTTP that says who asks."""
        return authorization(f"{self.target.user}:{self.target.password}")

    def hang_up(self) -> None:
        for task in self._beside:
            task.cancel()
        for line in self._lines:
            line.close()
        self._lines.clear()
        self._beside.clear()

    async def act(self, behaviour: Behaviour) -> None:
        """Rounds without end."""
        while True:
            try:
                await behaviour.act(self)
            except (OSError, EOFError):
                self.count.cuts += 1
                await asyncio.sleep(AGAIN_S)
            finally:
                self.hang_up()
            await asyncio.sleep(0)


@dataclass(frozen=True)
class Behaviour:
    port: str
    """The first one that it attacks."""
    title: str
    act: Callable[[Worker], Awaitable[None]] = field(repr=False)
    workers: int
    is_for_rabbitmq: bool

    @property
    def name(self) -> str:
        return self.act.__name__


BEHAVIOURS: Final[list[Behaviour]] = []


def behaviour(
    port: str, title: str, *, workers: int = 1, rabbitmq: bool | None = None
) -> Callable[[Callable[[Worker], Awaitable[None]]], Callable[[Worker], Awaitable[None]]]:
    """Put a function on the list. rabbitmq: whether RabbitMQ has what it attacks; None: by the
    port."""

    def add(act: Callable[[Worker], Awaitable[None]]) -> Callable[[Worker], Awaitable[None]]:
        has = port in ("amqp", "http") if rabbitmq is None else rabbitmq
        BEHAVIOURS.append(Behaviour(port, title, act, workers, has))
        return act

    return add


async def attack(chosen: Behaviour, target: Target, count: Count) -> None:
    """All workers of a behaviour, until cancelled. What a worker raises that is no broken
    connection is a fault of the behaviour, and is raised here."""
    async with asyncio.TaskGroup() as group:
        for number in range(chosen.workers):
            group.create_task(Worker(target, number, count).act(chosen))


def tune_ok(heartbeat_s: int = 0) -> bytes:
    tuned = (2047).to_bytes(2, "big") + (131072).to_bytes(4, "big") + heartbeat_s.to_bytes(2, "big")
    return method(0, (10, 31), tuned)


def authorization(credentials: str) -> bytes:
    return b"Authorization: Basic " + base64.b64encode(credentials.encode()) + b"\r\n"
