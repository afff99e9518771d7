"""An NSQ client over the simulated network: publishes to a topic, or consumes its channel."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from typing import Any, Final

from tallymark.simulation.clients import GONE, Clients
from tallymark.simulation.history import NEVER, Delivered, Line, Published
from tallymark.simulation.network import End
from tallymark.simulation.plan import NSQ_QUEUE, ConsumerPlan, PublisherPlan
from tallymark.simulation.process import NSQ
from tallymark.simulation.world import SECOND_NS
from tallymark.wire.nsq import commands
from tallymark.wire.nsq.frames import HEARTBEAT, MESSAGE, OK, RESPONSE, decode_message, split_frames

TOPIC: Final = "topic"
CHANNEL: Final = "channel"
DEFERRALS_MS: Final = (0, 0, 100, 1500, 7000)
UNDER_WAY_NS: Final = SECOND_NS // 2
"""Time that a message may have been on its way when it arrives."""


class Refused(OSError):
    """nsqd answered an error."""


class NsqConnection(asyncio.Protocol):
    """One connection: answers in order, messages as they come."""

    transport: End

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._unread = b""
        self._answers: deque[asyncio.Future[bytes]] = deque()
        self.messages: deque[tuple[int, int, bytes, bytes]] = deque()
        """Time, attempts, id, body."""
        self._waiter: asyncio.Future[None] | None = None
        self.is_lost = False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        frames, self._unread = split_frames(self._unread + data)
        for kind, content in frames:
            if kind == MESSAGE:
                self.messages.append(decode_message(content))
                self._wake()
            elif content == HEARTBEAT:
                self.transport.write(b"NOP\n")
            elif kind == RESPONSE and self._answers:
                self._answers.popleft().set_result(content)
            elif self._answers and content.startswith((b"E_FIN", b"E_REQ", b"E_TOUCH")) is False:
                self._answers.popleft().set_exception(Refused(content.decode()))

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        for answer in self._answers:
            if not answer.done():
                answer.set_exception(ConnectionResetError("gone"))
        self._answers.clear()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def ask(self, command: bytes) -> bytes:
        """Send a command and return its answer. Raises Refused, OSError."""
        if self.is_lost:
            raise ConnectionResetError("gone")
        answer: asyncio.Future[bytes] = self._loop.create_future()
        self._answers.append(answer)
        self.transport.write(command)
        return await asyncio.wait_for(answer, 30)

    async def wait(self, seconds: float) -> None:
        """Wait until there is a message, at most so long. Raises ConnectionResetError."""
        if not self.messages and not self.is_lost:
            self._waiter = self._loop.create_future()
            await asyncio.wait([self._waiter], timeout=seconds)
            self._waiter = None
        if self.is_lost and not self.messages:
            raise ConnectionResetError("gone")


class NsqClients:
    """NSQ's clients in a world."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._world = clients.world
        self._history = clients.history

    async def _connect(
        self, name: str, timeout_ms: int | None = None
    ) -> tuple[NsqConnection, Line]:
        clients = self._clients
        end, made = await clients.network.connect(
            clients.loop, NSQ, lambda: NsqConnection(clients.loop)
        )
        line = self._history.connected(name, clients.broker.life_at(end))
        clients.lines[end] = line
        end.write(commands.MAGIC)
        said = {"heartbeat_interval": 2000}
        if timeout_ms is not None:
            said["msg_timeout"] = timeout_ms
        await made.ask(commands.identify(json.dumps(said).encode()))
        return made, line

    async def declare(self) -> None:
        """Subscribe once, so that the channel is there before anything is published."""
        is_done = False
        while not is_done:
            try:
                made, line = await self._connect("setup nsq")
                await made.ask(commands.sub(TOPIC, CHANNEL))
                await made.ask(commands.pub(TOPIC, b"setup"))  # and on the disk
                is_done = True
                self._history.disconnected(line)
                made.transport.close()
            except GONE:
                await self._clients.pause(0.05)

    async def publish(self, plan: PublisherPlan) -> None:
        """Publish until told to end."""
        clients = self._clients
        while clients.publishing:
            line: Line | None = None
            try:
                made, line = await self._connect(plan.name)
                number = 0
                while clients.is_publishing():
                    batch = [self._message(plan, line, number + n) for n in range(plan.batch)]
                    number += plan.batch
                    if len(batch) == 1:
                        command = commands.pub(TOPIC, batch[0].body)
                    else:
                        command = commands.mpub(TOPIC, [one.body for one in batch])
                    if await made.ask(command) == OK:
                        for one in batch:
                            self._history.confirmed(one.name)
                    await clients.rest(plan.pause_s)
                made.transport.close()
            except GONE as error:
                self._history.note(f"{plan.name} gone: {error!r}")
            finally:
                if line is not None:
                    self._history.disconnected(line)
            await clients.pause(0.05)

    def _message(self, plan: PublisherPlan, line: Line, number: int) -> Published:
        name = f"{plan.name}.{line.number}.{number}"
        body = name.encode() + b" " + b"x" * self._world.random.randint(0, plan.size)
        one = Published(
            name, (NSQ_QUEUE,), body, self._world.now_ns, f"{plan.name}.{line.number}", number
        )
        self._history.publishes(one)
        return one

    async def consume(self, plan: ConsumerPlan, silent_s: float = 0.0) -> None:
        """Consume until told to end; with silent_s until nothing has come for so many seconds."""
        clients, random = self._clients, self._world.random
        is_done = False
        while (clients.consuming or silent_s) and not is_done:
            line: Line | None = None
            try:
                made, line = await self._connect(plan.name, plan.timeout_ms)
                await made.ask(commands.sub(TOPIC, CHANNEL))
                made.transport.write(commands.rdy(plan.credit))
                held: list[tuple[int, bytes, Delivered | None]] = []
                silent_since = self._world.now_ns
                while clients.consuming or held or silent_s:
                    await made.wait(0.02 if held else 0.5)
                    if made.messages:
                        silent_since = self._world.now_ns
                    while made.messages:
                        found = self._got(plan, line, *made.messages.popleft())
                        held = [one for one in held if one[1] != found[1]]  # it timed out
                        held.append(found)
                    now = self._world.now_ns
                    due = [one for one in held if one[0] <= now or not clients.consuming]
                    random.shuffle(due)
                    for one in due:
                        held.remove(one)
                        self._answer(plan, made, one[1], one[2])
                    if silent_s and not held and now - silent_since > silent_s * SECOND_NS:
                        is_done = True
                        break
                made.transport.close()
            except GONE as error:
                self._history.note(f"{plan.name} gone: {error!r}")
            finally:
                if line is not None:
                    self._history.disconnected(line)
            await clients.pause(0.05)

    def _got(
        self, plan: ConsumerPlan, line: Line, at: int, attempts: int, number: bytes, body: bytes
    ) -> tuple[int, bytes, Delivered | None]:
        hold_ns = int(self._world.random.expovariate(1 / (plan.hold_s + 1e-6)) * SECOND_NS)
        if body == b"setup":
            return self._world.now_ns, number, None
        name = body.split(b" ")[0].decode()
        self._history.note(f"{plan.name} got {name}, attempt {attempts}")
        history = self._history
        late_ns = history.answered_late_ns(line, NSQ_QUEUE, name, 2 * UNDER_WAY_NS)
        delivery = history.delivered(line, NSQ_QUEUE, name, body, attempts > 1, late_ns=late_ns)
        if plan.timeout_ms is not None:
            # It counts from when it was sent, which may be a while ago.
            held_ns = plan.timeout_ms * 1_000_000 - UNDER_WAY_NS
            is_unsure = history.is_slow or late_ns < NEVER
            delivery.void_ns = delivery.at_ns + (0 if is_unsure else held_ns)
        return self._world.now_ns + hold_ns, number, delivery

    def _answer(
        self, plan: ConsumerPlan, made: NsqConnection, number: bytes, delivery: Delivered | None
    ) -> None:
        random = self._world.random
        which = int(number, 16)
        if delivery is not None and random.random() < plan.fail and self._clients.returns():
            later_ms = random.choice(DEFERRALS_MS)
            self._history.answers(delivery, "release", later_ns=later_ms * 1_000_000)
            made.transport.write(commands.req(which, later_ms))
        else:
            if delivery is not None:
                self._history.answers(delivery, "accept")
            made.transport.write(commands.fin(which))
