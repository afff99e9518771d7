"""Clients of AMQP 0-9-1 and 1.0: tallymark.client, over the simulated network.

Each is a coroutine that does what an application does: connect, publish or consume, settle in some
order, come back when the connection is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, Final

from tallymark.client import (
    ClientError,
    Message,
    NotAccepted,
    Session,
    TimedOut,
    connect,
)
from tallymark.simulation.history import DRAIN, Delivered, History, Line, Published, Violated
from tallymark.simulation.loop import SimulatedLoop
from tallymark.simulation.models.permissions import READ
from tallymark.simulation.network import End, Network
from tallymark.simulation.plan import (
    HALF_OPEN,
    ONE_WAY,
    ConsumerPlan,
    Plan,
    PublisherPlan,
    SlowPlan,
)
from tallymark.simulation.process import AMQP, Broker
from tallymark.simulation.threads import Process
from tallymark.simulation.world import SECOND_NS, World

FANOUT: Final = "fan"
TOPICS: Final = "topics"
WORKER: Final = "worker"
"""User whose rights change. Passwords are as the names."""
GUEST: Final = "guest"
IDLE_MS: Final = 4000
SILENT_S: Final = 3
UNHEARD: Final = (HALF_OPEN, ONE_WAY)
UNHEARD_S: Final = 12
"""Three heartbeats of the broker."""
MANY: Final = 2000
"""Messages from which on the publishers of a world pause `PATIENCE` times as long: queues are long
by then, and more of the same costs most of a world and shows nothing."""
PATIENCE: Final = 10
MANY_GIVEN: Final = 6000
"""Deliveries from which on the consumers of a world stay, and accept what they get."""
WINDOW: Final = 5000
"""Transfer frames that a session over AMQP 1.0 takes at once."""
GONE: Final = (ClientError, OSError, TimeoutError)
"""Errors of a connection that a client takes as a reason to connect again."""


class Clients:
    """Clients share these: the world, the loop on which they all run, what they saw."""

    def __init__(
        self,
        world: World,
        network: Network,
        broker: Broker,
        plan: Plan,
        history: History,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """loop: of a real network; None: clients are a process of the world."""
        self.world = world
        self.network = network
        self.broker = broker
        self.plan = plan
        self.history = history
        self.loop: Any = loop
        self.is_simulated = loop is None
        if loop is None:
            process = Process(world)
            self.loop = process.loop = SimulatedLoop(world, process)
        self.loop.set_exception_handler(lambda loop, context: None)
        self.publishing = True
        self.consuming = True
        self.lines: dict[End, Line] = {}
        """Lines by the client's end."""
        self.tasks: list[asyncio.Task[None]] = []
        self._works = 0
        self._numbers: dict[str, int] = {}
        """Publishing numbers by name."""

    async def rest(self, mean_s: float) -> None:
        """Pause between two batches, for longer once a world has many messages."""
        is_late = self.is_simulated and len(self.history.published) > MANY
        await self.pause(mean_s * PATIENCE if is_late else mean_s)

    def returns(self) -> bool:
        """Return whether consumers vanish, and give back what they got."""
        return not self.is_simulated or self.history.given < MANY_GIVEN

    def is_publishing(self) -> bool:
        """Return whether publishers are to go on."""
        return self.publishing

    def begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a client; what it raises ends the run of the world."""
        task: asyncio.Task[None] = self.loop.create_task(self._watched(work))
        self.tasks.append(task)
        return task

    async def _watched(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Violated as error:
            self.world.failures.append(str(error))
        except Exception as error:
            self.world.failures.append(f"a client failed: {type(error).__name__}: {error}")

    async def pause(self, mean_s: float) -> None:
        await asyncio.sleep(self.world.random.expovariate(1 / mean_s) if mean_s else 0)

    async def steadily(
        self,
        name: str,
        protocol: str,
        goes_on: Callable[[], bool],
        work: Callable[[Session, Line], Coroutine[Any, Any, None]],
        is_worker: bool = False,
        window: int = WINDOW,
    ) -> None:
        """Do the work on a connection, and again on another one when that is gone. window: of a
        session over AMQP 1.0, transfer frames."""
        while goes_on():
            line: Line | None = None
            try:
                ends: list[End] = []
                async with self.dial(protocol, ends, is_worker, window) as connection:
                    line = self.history.connected(name, self.broker.life_at(ends[-1]))
                    self.lines[ends[-1]] = line
                    if is_worker and self.history.permissions.is_being_taken(READ):
                        self.history.disconnected(line)  # for the broker, at any time from now on
                    self.history.note(f"{name} connected, line {line.number}")
                    if connection.is_closed:
                        continue
                    session = await connection.session()
                    await work(session, line)
                    self.history.disconnected(line)
            except GONE as error:
                self.history.note(f"{name} gone: {type(error).__name__}: {str(error)[:80]}")
            finally:
                if line is not None:
                    self.history.disconnected(line)
            await self.pause(0.05)

    def dial(
        self, protocol: str, ends: list[End], is_worker: bool = False, window: int = WINDOW
    ) -> Any:
        """Return a connection under way; its end is appended to `ends`."""
        user = WORKER if is_worker else GUEST

        async def opener(endpoint: Any, factory: Callable[[], Any]) -> Any:
            end, made = await self.network.connect(self.loop, AMQP, factory)
            ends.append(end)
            return end, made

        return connect(
            f"{protocol}://{user}:{user}@broker", opener=opener, timeout=10,
            idle_timeout_ms=IDLE_MS, session_window=window,
        )  # fmt: skip

    # -- the topology

    async def declare(self) -> None:
        """Declare all queues and bindings; again until it is done."""

        async def work(session: Session, line: Line) -> None:
            await session.declare_exchange(FANOUT, "fanout")
            if self.plan.slow:
                await session.declare_exchange(TOPICS, "topic")
            for queue in self.plan.queues:
                if queue.dead_letters:
                    await session.declare_queue(queue.dead, arguments=queue.dead_arguments)
                await session.declare_queue(queue.name, type=queue.type, arguments=queue.arguments)
                await session.bind_queue(queue.name, FANOUT, "")
            for shovel in self.plan.shovels:
                await session.declare_queue(shovel.target)
            for shared in self.plan.shared:
                for name in shared.queues:
                    await session.declare_queue(name)
            for slow in self.plan.slow:
                await declare_subscription(session, slow)
            for stream in self.plan.streams:
                await session.declare_queue(stream.name, type="stream", arguments=stream.arguments)
            done.append(True)

        done: list[bool] = []
        await self.steadily("setup", "amqp091", lambda: not done, work)

    # -- publishers

    async def publish(self, plan: PublisherPlan) -> None:
        """Publish until told to end."""
        address = f"/exchanges/{FANOUT}" if plan.target == "*" else f"/queues/{plan.target}"
        if plan.key:
            address = f"/exchanges/{TOPICS}/{plan.key}"
        before: list[Published] = []
        life = 0
        """Life of the broker to which they were published."""

        async def work(session: Session, line: Line) -> None:
            nonlocal before, life
            number = 0
            is_new = True
            async with contextlib.AsyncExitStack() as opened:
                sender = await opened.enter_async_context(session.sender(address))
                senders = {plan.target: sender}
                if plan.second:
                    other = session.sender(f"/queues/{plan.second}")
                    senders[plan.second] = await opened.enter_async_context(other)
                while self.publishing:
                    if before and self._repeats(plan, is_new, life == line.life):
                        self.history.seen.add("message repeated")
                        batch, before = before, []
                    else:
                        batch = [self._message(plan, line, number + n) for n in range(plan.batch)]
                        number += plan.batch
                        before, life = batch, line.life
                    is_new = False
                    if plan.transactional:
                        await self._in_transaction(session, senders, batch)
                    else:
                        await asyncio.gather(*[self._send(plan, sender, one) for one in batch])
                    await self.rest(plan.pause_s)

        await self.steadily(plan.name, plan.protocol, lambda: self.publishing, work, plan.is_worker)

    def _repeats(self, plan: PublisherPlan, is_new: bool, is_same: bool) -> bool:
        """Return whether a publisher sends its last batch again. is_new: it has just connected;
        is_same: to the life of the broker that it sent the batch to. A queue may have forgotten in
        a crash what its consumers saw already, so that only numbers for streams are sent again
        after one."""
        if plan.is_numbered and is_new:
            return True  # their numbers come before those of others
        return is_same and self.world.random.random() < plan.repeats

    def _message(self, plan: PublisherPlan, line: Line, number: int) -> Published:
        name = f"{plan.name}.{line.number}.{number}"
        size = self.world.random.randint(0, plan.size)
        queues: tuple[str, ...] = (plan.target,)
        if plan.target == "*":
            queues = tuple(one.name for one in self.plan.queues)
        if plan.second and number % 2:
            queues = (plan.second,)
        return Published(
            name, queues, name.encode() + b" " + b"x" * size, self.world.now_ns,
            f"{plan.name}.{line.number}", number, ttl_ms=plan.ttl_ms if number % 2 else None,
        )  # fmt: skip

    async def _send(self, plan: PublisherPlan, sender: Any, one: Published) -> None:
        self.history.publishes(one)
        said: dict[str, Any] = {}
        if plan.is_numbered:
            number = self._numbers.setdefault(one.name, len(self._numbers))
            said = {"x-publisher-name": plan.name, "x-publishing-id": number}
        message = Message(
            one.body, message_id=one.name, ttl_ms=one.ttl_ms, application_properties=said
        )
        try:
            await sender.send(message, timeout=30)
        except NotAccepted:
            self.history.refused(one.name)
        else:
            self.history.confirmed(one.name)
            if plan.is_worker:
                self.history.permissions.confirmed(WORKER, one.at_ns, one.name)

    async def _in_transaction(
        self, session: Any, senders: dict[str, Any], batch: list[Published]
    ) -> None:
        """Publish a batch as one transaction. senders: by target."""
        first = next(iter(senders.values()))
        work = self._work()
        for one in batch:
            one.work = work
            self.history.publishes(one)
        rolls_back = self.world.random.random() < 0.3
        with self._ending(work) as ended:
            async with session.transaction() as tx:
                for one in batch:
                    sender = senders.get(one.queues[0], first)
                    await sender.send(Message(one.body, message_id=one.name), timeout=30)
                if rolls_back:
                    await tx.rollback()
                else:
                    self.history.works[work] = "committing"
            ended("rolled back" if rolls_back else "committed")

    def _work(self) -> str:
        self._works += 1
        return f"tx{self._works}"

    def _ending(self, work: str) -> _Ending:
        return _Ending(self.history, work)

    # -- consumers

    async def consume(self, plan: ConsumerPlan) -> None:
        """Consume until told to end."""

        async def work(session: Session, line: Line) -> None:
            async with session.receiver(f"/queues/{plan.queue}", credit=plan.credit) as receiver:
                if plan.transactional:
                    await self._consume_in_transactions(plan, session, receiver, line)
                else:
                    await self.take(plan, receiver, line)

        await self.steadily(plan.name, plan.protocol, lambda: self.consuming, work, plan.is_worker)

    async def take(
        self,
        plan: ConsumerPlan,
        receiver: Any,
        line: Line,
        before_answer: Callable[[], None] | None = None,
        hurries: bool = False,
    ) -> None:
        """Take what comes until told to end, and answer each message after a while. hurries: after
        a short one, once nobody publishes any more."""
        random = self.world.random
        held: list[tuple[int, Any, Delivered]] = []
        while self.consuming or held:
            try:
                message = await receiver.receive(timeout=0.02 if held else 0.5)
            except TimedOut:
                pass
            else:
                delivery = self.delivered(plan.queue, message, line, plan.is_worker)
                hold_s = plan.hold_s if self.publishing or not hurries else 0.0
                until = self.world.now_ns + int(random.expovariate(1 / (hold_s + 1e-6)) * 1e9)
                held.append((until, message, delivery))
                if random.random() < plan.vanish and self.returns():
                    self.history.note(f"{plan.name} vanishes")
                    self.vanish(line)
            now = self.world.now_ns
            due = [one for one in held if one[0] <= now or not self.consuming]
            random.shuffle(due)
            for one in due:
                held.remove(one)
                if before_answer is not None:
                    before_answer()
                await self._answer(plan, one[1], one[2])

    def vanish(self, line: Line) -> None:
        """Cut a client's connection."""
        for end, its in self.lines.items():
            if its is line:
                self.history.disconnected(line)
                self.network.cut(end.link)

    def delivered(self, queue: str, message: Any, line: Line, is_worker: bool = False) -> Delivered:
        """Tell the history of a delivery. Raises Violated."""
        is_flagged = not message.first_acquirer or message.delivery_count > 0
        name = str(message.message_id)
        body = bytes(message.body)
        if is_worker:
            self.history.permissions.delivered(WORKER, name)
        self.history.note(f"{line.client} got {name} from {queue}{' again' * is_flagged}")
        return self.history.delivered(
            line, queue, name, body, is_flagged, failures=message.delivery_count
        )

    async def _answer(self, plan: ConsumerPlan, message: Any, delivery: Delivered) -> None:
        drawn = self.world.random.random()
        outcome = "accept"
        for name, likely in (
            ("reject", plan.reject), ("release", plan.release), ("fail", plan.fail),
        ):  # fmt: skip
            if drawn < likely and (name == "reject" or self.returns()):
                outcome = name
                break
            drawn -= likely
        self.history.answers(delivery, outcome)
        self.history.note(f"{plan.name} {outcome}s {message.message_id}")
        if outcome == "accept":
            await message.accept()
        elif outcome == "reject":
            await message.reject()
        elif outcome == "release":
            await message.release()
        else:
            await message.modify()

    async def _consume_in_transactions(
        self, plan: ConsumerPlan, session: Any, receiver: Any, line: Line
    ) -> None:
        random = self.world.random
        while self.consuming:
            if not receiver.buffered:
                line.waited_ns = self.world.now_ns
            try:
                first = await receiver.receive(timeout=0.5)
            except TimedOut:
                continue
            batch = [first]
            if plan.credit > 1:
                more = random.randint(1, min(5, plan.credit - 1))
                batch += await receiver.receive_batch(more, timeout=0.05)
            deliveries = [self.delivered(plan.queue, one, line, plan.is_worker) for one in batch]
            work = self._work()
            rolls_back = random.random() < 0.3
            with self._ending(work) as ended:
                async with session.transaction() as tx:
                    for message, delivery in zip(batch, deliveries, strict=True):
                        self.history.answers(delivery, "accept", work)
                        await message.accept()
                    await self.pause(plan.hold_s)
                    if rolls_back:
                        await tx.rollback()
                    else:
                        self.history.works[work] = "committing"
                ended("rolled back" if rolls_back else "committed")

    # -- the end

    async def drain(self, queue: str) -> None:
        """Take everything that a queue has, until it has nothing for a while: longer than the
        broker takes to see that a consumer is gone which could not say so."""
        is_empty: list[bool] = []
        has_unheard = any(one.kind in UNHEARD for one in self.plan.faults)
        silent_ns = (UNHEARD_S if has_unheard else SILENT_S) * SECOND_NS

        async def work(session: Session, line: Line) -> None:
            async with session.receiver(f"/queues/{queue}", credit=50) as receiver:
                silent_since = self.world.now_ns
                while self.world.now_ns - silent_since < silent_ns:
                    try:
                        message = await receiver.receive(timeout=1)
                    except TimedOut:
                        continue
                    silent_since = self.world.now_ns
                    delivery = self.delivered(queue, message, line)
                    self.history.answers(delivery, "accept")
                    await message.accept()
            is_empty.append(True)

        await self.steadily(f"{DRAIN}{queue}", "amqp", lambda: not is_empty, work)


async def declare_subscription(session: Session, plan: SlowPlan) -> None:
    """Declare those queues of a subscription to a topic that outlive its consumer."""
    if plan.has_letters:
        await session.declare_queue(plan.dead)
    if plan.is_durable:
        await session.declare_queue(plan.name, arguments=plan.arguments)
        await session.bind_queue(plan.name, TOPICS, f"slow.{plan.name}")


class _Ending:
    """A transaction under way: how it ended is told to the history, also where it raises."""

    def __init__(self, history: History, work: str) -> None:
        self._history = history
        self._work = work
        self._how = ""

    def __enter__(self) -> Callable[[str], None]:
        self._history.works[self._work] = "open"

        def ended(how: str) -> None:
            self._how = how

        return ended

    def __exit__(self, *error: object) -> None:
        if not self._how:  # whose commit was never sent, nobody sees
            was_sent = self._history.works[self._work] == "committing"
            self._how = "unknown" if was_sent else "rolled back"
        self._history.ended_work(self._work, self._how)
