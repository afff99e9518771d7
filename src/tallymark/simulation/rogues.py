"""Bad clients: what no library does and every port gets.

    never reads    takes a consumer's place with credit, and its socket is not read
    never settles  holds what it got until it leaves
    babbles        begins as another client did, and goes on with garbage or another protocol
    storms         connects and is gone, again and again
    is silent      connects and says nothing, or half of something

Nobody else may come to harm by them: what they held comes back, and the broker goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Final

from tallymark.client import Session, TimedOut
from tallymark.simulation.clients import Clients
from tallymark.simulation.history import Line
from tallymark.simulation.plan import (
    BABBLES,
    NEVER_READS,
    NEVER_SETTLES,
    SILENT,
    STORMS,
    RoguePlan,
)  # fmt: skip
from tallymark.simulation.process import AMQP, HTTP, NSQ

GREETINGS: Final = (
    b"AMQP\x00\x00\x09\x01", b"AMQP\x00\x01\x00\x00", b"AMQP\x03\x01\x00\x00", b"  V2",
    b"GET /api/overview HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
)  # fmt: skip
"""Beginnings of all protocols, TLS among them."""
STAY_S: Final = 1.0


class _Deaf(asyncio.Protocol):
    """A connection that does not care what it is told."""

    transport: Any

    def connection_made(self, transport: Any) -> None:
        self.transport = transport


class Rogue:
    """One bad client."""

    def __init__(self, clients: Clients, plan: RoguePlan) -> None:
        self._clients = clients
        self._plan = plan
        self._random = clients.world.random
        self._does: dict[str, Callable[[], Awaitable[None]]] = {
            NEVER_READS: self._never_reads, NEVER_SETTLES: self._never_settles,
            BABBLES: self._babbles, STORMS: self._storms, SILENT: self._is_silent,
        }  # fmt: skip

    async def work(self) -> None:
        """Do harm until told to end."""
        clients = self._clients
        while clients.is_publishing():
            clients.history.seen.add(f"rogue {self._plan.kind}")
            try:
                await self._does[self._plan.kind]()
            except OSError as error:
                clients.history.note(f"{self._plan.name} gone: {error!r}")
            await clients.pause(0.1)

    async def _open(self) -> _Deaf:
        port = self._random.choice([AMQP, AMQP, HTTP, NSQ])
        network, loop = self._clients.network, self._clients.loop
        _, made = await network.connect(loop, port, _Deaf)
        assert isinstance(made, _Deaf)
        return made

    async def _babbles(self) -> None:
        random, made = self._random, await self._open()
        said = random.choice([*GREETINGS, *self._clients.network.overheard])
        said = said[: random.randint(0, len(said))] if random.random() < 0.5 else said
        more = random.choice(
            [random.randbytes(random.choice([1, 8, 300])), bytes(70_000), b"\xff" * 3000,
             random.choice(GREETINGS), said]
        )  # fmt: skip
        made.transport.write(said)
        await self._clients.pause(0.01)
        made.transport.write(more)
        await self._clients.pause(STAY_S)
        self._leave(made)

    async def _storms(self) -> None:
        for _ in range(self._random.randint(5, 20)):
            made = await self._open()
            if self._random.random() < 0.5:
                made.transport.write(self._random.choice(GREETINGS))
            self._leave(made)

    async def _is_silent(self) -> None:
        made = await self._open()
        said = self._random.choice(GREETINGS)
        made.transport.write(said[: self._random.randint(0, len(said) - 1)])
        await self._clients.pause(5 * STAY_S)
        self._leave(made)

    def _leave(self, made: _Deaf) -> None:
        if self._random.random() < 0.5:
            made.transport.close()
        else:
            made.transport.abort()

    async def _never_reads(self) -> None:
        await self._consumes(is_read=False)

    async def _never_settles(self) -> None:
        await self._consumes(is_read=True)

    async def _consumes(self, is_read: bool) -> None:
        clients, queue = self._clients, self._plan.queue
        is_done: list[bool] = []

        async def work(session: Session, line: Line) -> None:
            credit = self._random.choice([1, 20, 500])
            async with session.receiver(f"/queues/{queue}", credit=credit) as receiver:
                if not is_read:
                    for end, its in clients.lines.items():
                        if its is line:
                            end.pause_reading()
                    await clients.pause(STAY_S)
                until_ns = clients.world.now_ns + int(self._random.random() * 2e9)
                while is_read and clients.world.now_ns < until_ns:
                    with contextlib.suppress(TimedOut):
                        clients.delivered(queue, await receiver.receive(timeout=0.2), line)
                is_done.append(True)
                clients.vanish(line)

        protocol = self._random.choice(["amqp", "amqp091"])
        await clients.steadily(
            self._plan.name, protocol, lambda: not is_done and clients.is_publishing(), work
        )
