"""credit + buffered + unsettled <= W, at every moment, whatever the application does and wherever
it is cancelled, seen from both sides; and no message is lost [FC (a), FC-17, FC-22 to FC-25].

The application is a handful of tasks that read in all forms, settle in all ways and at any time,
raise, forget, and are cancelled at random; the loop runs what is ready in random order. Nightly
runs have more seeds (make test-long).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from tallymark.client import (
    ACCEPTED,
    RELEASED,
    ClientError,
    Closed,
    ReceivedMessage,
    Receiver,
    TimedOut,
)
from tallymark.wire.amqp10.events import CreditReceived, DispositionReceived, Event
from tallymark.wire.amqp10.limits import Limits
from tallymark.wire.amqp10.outcomes import Modified, Released
from tallymark.wire.amqp10.sections import encode_message
from tallymark.wire.amqp10.sender_link import SenderLink
from tests.support.amqp10_client import Cancelled, Events, cancelled_at, connected, receiver_of
from tests.support.amqp10_peer import Node, Peer, bytewise
from tests.support.long import longer, sized
from tests.support.virtual_loop import VirtualLoop, quiet, run, virtual

SEEDS = sized(60, 400, 4000)
COUNT = 60


class Broker(Peer):
    """Holds what it has sent until it is settled, and gives back what is released."""

    def __init__(self, window: int, count: int, chance: random.Random) -> None:
        super().__init__(
            Limits(idle_time_out_ms=0), **({"cut": bytewise} if chance.random() < 0.1 else {})
        )
        self.window = window
        self.chance = chance
        self.in_flight: dict[int, bytes] = {}
        self.done: list[bytes] = []
        self.most = 0
        self.answers = self._on_event
        self.answers_second = True
        self.first_delivery_id = chance.choice((0, 4294967290))
        self.initial_delivery_count = chance.choice((0, 4294967295))
        self.nodes["q"] = Node()
        self.nodes["q"].messages.extend(encode_message(body=b"%d" % i) for i in range(count))

    def give(self, link: SenderLink) -> None:
        """Some of what may be sent, at most; the rest a little later."""
        messages = self.nodes["q"].messages
        count = min(link.credit, len(messages))
        if count > 1 and self.chance.random() < 0.5 and not link.is_draining:
            count = self.chance.randrange(1, count)
            asyncio.get_running_loop().call_later(self.chance.random() / 10, self._more, link)
        for _ in range(count):
            message = messages.popleft()
            number = link.send(message)
            self.in_flight[number] = message
        link.drained()

    def _more(self, link: SenderLink) -> None:
        self.give(link)
        self.flush()

    def _on_event(self, event: Event) -> bool:
        if isinstance(event, DispositionReceived) and not event.by_sender:
            for i in range((event.last - event.first & 0xFFFFFFFF) + 1):
                self._settled((event.first + i) & 0xFFFFFFFF, event.state)
        elif isinstance(event, CreditReceived):
            self.check(event.link)
        return False

    def _settled(self, number: int, state: object) -> None:
        message = self.in_flight.pop(number, None)
        if message is None:
            return
        if isinstance(state, (Released, Modified)):
            self.nodes["q"].messages.appendleft(message)
            asyncio.get_running_loop().call_soon(self._more, self.sending("q"))
        else:
            self.done.append(message)

    def check(self, link: SenderLink) -> None:
        """What the broker has sent and not seen settled, and may send still, fits the window."""
        taken = link.credit + len(self.in_flight)
        self.most = max(self.most, taken)
        allowed = self.window + self.lost_slots()
        assert taken <= allowed, f"{link.credit} credit, {len(self.in_flight)} in flight"

    def lost_slots(self) -> int:
        """Ignored messages stay with the broker and free their slots [FC-25]."""
        return self.ignored() if self.ignored is not None else 0

    ignored: Callable[[], int] | None = None


class Application:
    """What users do, and worse."""

    def __init__(self, receiver: Receiver, chance: random.Random) -> None:
        self.receiver = receiver
        self.chance = chance
        self.kept: list[ReceivedMessage] = []
        """Held back, and settled some time later, perhaps from elsewhere."""

    async def pause(self) -> None:
        await asyncio.sleep(self.chance.choice((0, 0, 0.001, 0.05, 1)))

    async def deal_with(self, message: ReceivedMessage) -> None:
        chance = self.chance
        choice = chance.random()
        try:
            await self.pause()
            if choice < 0.4:
                await message.accept()
            elif choice < 0.5:
                await message.reject("no")
            elif choice < 0.6:
                await message.release()
            elif choice < 0.7:
                await message.modify()
            elif choice < 0.75:
                message.ignore()
            elif choice < 0.9:
                self.kept.append(message)
            else:
                async with message:
                    await self.pause()
                    if chance.random() < 0.5:
                        raise LookupError("in the middle of it")
        finally:
            self.kept.append(message)  # whatever happened, it is not forgotten

    async def one(self) -> None:
        await self.deal_with(await self.receiver.receive(timeout=self.chance.choice((0, 0.1, 5))))

    async def some(self) -> None:
        async with asyncio.timeout(10):
            async for message in self.receiver:
                await self.deal_with(message)
                if self.chance.random() < 0.2:
                    break

    async def batch(self) -> None:
        n = self.chance.randint(1, self.receiver.window)
        messages = await self.receiver.receive_batch(n, timeout=self.chance.choice((0, 0.1)))
        self.kept += messages
        await self.pause()
        await self.receiver.settle_many(messages, self.chance.choice((ACCEPTED, RELEASED)))

    async def handle(self) -> None:
        concurrency = self.chance.randint(1, min(4, self.receiver.window))
        on_error = self.chance.choice(("release", "reject", "modify", "ignore"))
        on_success = self.chance.choice(("accept", "accept", None))
        async with asyncio.timeout(self.chance.random() * 2):
            await self.receiver.run(
                self.deal_with,
                concurrency=concurrency,
                on_error=on_error,  # type: ignore[arg-type]
                on_success=on_success,  # type: ignore[arg-type]
            )

    async def stop_and_go(self) -> None:
        session = self.receiver.session
        async with asyncio.timeout(3):
            await session.stop()
        await self.pause()
        session.resume()

    async def settle_late(self) -> None:
        await self.pause()
        if self.kept:
            message = self.kept.pop(self.chance.randrange(len(self.kept)))
            if message.settled or self.chance.random() < 0.5:
                await message.accept()
            else:
                self.kept.append(message)

    async def life(self) -> None:
        """Calls, one after the other, some cancelled somewhere in the middle."""
        calls: list[Callable[[], Awaitable[None]]] = [
            *(self.one, self.some, self.batch, self.handle, self.settle_late, self.settle_late),
            self.stop_and_go,
        ]
        for _ in range(12):
            call = asyncio.ensure_future(self.chance.choice(calls)())
            if self.chance.random() < 0.5:
                delay = self.chance.choice((0, 0, 0.001, 0.05, 0.5))
                await asyncio.wait([call], timeout=delay or 0.000001)
                call.cancel()
            await asyncio.wait([call])
            if not call.cancelled() and (error := call.exception()) is not None:
                assert isinstance(error, (ClientError, TimeoutError, LookupError)), error
        self.receiver.session.resume()

    async def finish(self, broker: Broker) -> None:
        """Settle all that is kept, and everything that is left."""
        while len(broker.done) + self.receiver.ignored_total < COUNT:
            for message in self.kept:
                await message.accept()
            self.kept.clear()
            try:
                async with await self.receiver.receive(timeout=5):
                    pass
            except TimedOut:
                if not broker.nodes["q"].messages and not broker.in_flight:
                    break


@longer
@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_window_holds_and_nothing_is_lost(seed: int) -> None:
    chance = random.Random(seed)
    window = chance.choice((1, 1, 2, 3, 7, 20))
    mode = chance.choice(("first", "second"))

    async def story() -> None:
        broker = Broker(window, COUNT, chance)
        events = Events()
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        async with receiver_of(
            broker, credit=window, rcv_mode=mode, on_event=events.append
        ) as receiver:

            def holds() -> None:
                taken = receiver.credit + receiver.buffered + receiver.unsettled
                assert taken <= window, f"{taken} slots of {window}"
                assert min(receiver.credit, receiver.buffered, receiver.unsettled) >= 0
                broker.check(broker.sending("q"))

            broker.ignored = lambda: receiver.ignored_total
            loop.after_each = holds
            application = Application(receiver, chance)
            await asyncio.gather(*[application.life() for _ in range(chance.randint(1, 4))])
            receiver.session.resume()
            await application.finish(broker)
            loop.after_each = None
            assert len(broker.done) + receiver.ignored_total == COUNT
            assert len(set(broker.done)) == len(broker.done)  # none settled twice
            assert len(broker.in_flight) == receiver.ignored_total
            assert receiver.unsettled == 0
            await asyncio.sleep(1)
            assert receiver.buffered == 0
            assert 2 * receiver.credit > window  # every slot has come back [FC-17]
            assert broker.most <= window + receiver.ignored_total

    run(story, seed)


CALLS: dict[str, Callable[[Receiver], Awaitable[object]]] = {}


def call(function: Callable[[Receiver], Awaitable[object]]) -> None:
    CALLS[function.__name__] = function


@call
async def receive(receiver: Receiver) -> None:
    await (await receiver.receive(timeout=5)).accept()


@call
async def iterate(receiver: Receiver) -> None:
    async for message in receiver:
        async with message:
            await asyncio.sleep(0.01)


@call
async def batch(receiver: Receiver) -> None:
    messages = await receiver.receive_batch(3, timeout=1)
    try:
        await receiver.settle_many(messages, ACCEPTED)
    finally:
        for message in messages:
            message.settle_nowait(ACCEPTED)


@call
async def handle(receiver: Receiver) -> None:
    async def handler(message: ReceivedMessage) -> None:
        await asyncio.sleep(0.01)

    await receiver.run(handler)


@call
async def handle_many(receiver: Receiver) -> None:
    async def handler(message: ReceivedMessage) -> None:
        await asyncio.sleep(0.01)

    async with asyncio.timeout(1):  # it waits for its tasks, and seldom
        await receiver.run(handler, concurrency=3)


@pytest.mark.parametrize("mode", ["first", "second"])
@pytest.mark.parametrize("name", CALLS)
def test_cancelled_at_each_await_every_slot_comes_back(name: str, mode: str) -> None:
    """At the first, second, third ... wait of a call; then the receiver is as good as new."""

    @virtual
    async def story() -> None:
        for number in range(1, 25):
            chance = random.Random(number)
            broker = Broker(3, COUNT, chance)
            async with receiver_of(broker, credit=3, rcv_mode=mode) as receiver:
                with suppress(Cancelled, TimeoutError):
                    await cancelled_at(number, CALLS[name](receiver))  # type: ignore[arg-type]
                while len(broker.done) < COUNT:
                    async with await receiver.receive(timeout=10):
                        pass
                    await quiet()
                await asyncio.sleep(1)
                assert (receiver.unsettled, receiver.buffered) == (0, 0)
                assert receiver.credit >= 2

    story()


@virtual
async def test_everything_closes_whatever_is_under_way() -> None:
    """Close the receiver, the session or the connection at any moment: every call ends, every task
    is gone (the loop looks), and what is settled afterwards raises."""
    for number in range(60):
        chance = random.Random(number)
        broker = Broker(5, 40, chance)
        broker.window = 1_000
        async with connected(broker) as connection:
            session = await connection.session()
            receiver = await session.receiver(
                "q", credit=5, rcv_mode=chance.choice(("first", "second"))
            )
            application = Application(receiver, chance)
            lives = [asyncio.create_task(application.life()) for _ in range(3)]
            await asyncio.sleep(chance.random() * 2)
            what = chance.choice((receiver, session, connection))
            await what.close()
            async with asyncio.timeout(200):
                await asyncio.wait(lives)
            for life in lives:
                error = life.exception()
                assert error is None or isinstance(error, Closed), error
            for message in application.kept:
                if not message.settled:
                    with suppress(Closed):
                        await message.accept()
