"""TX-A10: stop, rollback, commit, recover and close, at every await point of the dispatcher, from
other tasks and from handlers, some of them cancelled; the loop runs what is ready in random order,
and the broker takes its time. After each TX-INV is looked at:

    (1) what is buffered came behind the mark             every turn, `holds`
    (2) no handler gets what came before it               `seen`: tags go on behind the mark
    (3) the first message after it is the lowest that is not settled, and no tag is left out `seen`
    (4) messages = committed + remaining; outputs = committed    every turn, and at the end
    (5) nothing is unsettled before the broker's first new delivery    TxBroker.check_fresh

`make test-long` has 10,000 seeds.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from tallymark.client import (
    ACCEPTED,
    ClientError,
    Closed,
    ReceivedMessage,
    Receiver,
    Sender,
    Session,
    TimedOut,
    Transaction,
    TransactionRolledBack,
)
from tallymark.client.deliveries import State
from tallymark.client.dispatcher import Dispatcher
from tallymark.client.received import HELD
from tallymark.wire.amqp10.outcomes import Error
from tests.support.amqp10_client import connected
from tests.support.amqp10_tx_broker import TxBroker
from tests.support.long import longer, sized
from tests.support.virtual_loop import VirtualLoop, run, turns

SEEDS = sized(200, 1_000, 10_000)
BLOCK = 25
"""Stories that one loop is made for."""
COUNT = 12
ALL = {b"%d" % i for i in range(COUNT)}


class Left(Exception):
    """The application leaves its block."""


class Story:
    """One session with one transaction after the other, and everything that may happen to it."""

    def __init__(self, broker: TxBroker, session: Session, chance: random.Random) -> None:
        self.broker = broker
        self.session = session
        self.chance = chance
        self.window = chance.choice((1, 2, 3, 5, 20))
        self.dispatcher: Dispatcher = session._dispatcher
        self.receiver: Receiver | None = None
        self.sender: Sender | None = None
        self.tx: Transaction | None = None
        self.last_tag = -1
        """Of what the application was given."""
        self.torn: set[bytes] = set()
        self.is_reopened = False
        self.is_opening = False
        self.calls: set[asyncio.Task[None]] = set()

    # What has to be so

    def holds(self) -> None:
        dispatcher = self.dispatcher
        for consumer in dispatcher.consumers:
            for message in consumer.inbox.buffer:
                assert message.tag > dispatcher.rollback_mark, message
            window = consumer.window
            taken = consumer.flow.credit + window.buffered + window.held
            assert taken <= self.window, f"{taken} slots of {self.window}"
            assert min(window.buffered, window.held) >= 0
        if dispatcher.has_no_inflow:
            assert dispatcher.gate.is_quiet()  # TX-25: no handler is at work in a rollback
        done = [body for queue, body in self.broker.done if queue == "q"]
        assert len(set(done)) == len(done), done
        out = self.broker.bodies("out")
        assert len(set(out)) == len(out), out
        assert set(done) - self.torn == set(out) - self.torn

    def seen(self, message: ReceivedMessage) -> None:
        """The application is given a message, by the only receiver of the session."""
        mark = self.dispatcher.rollback_mark
        before = max(self.last_tag, mark)
        if self.is_reopened:
            assert message.tag > before
        else:
            assert message.tag == before + 1, (message.tag, self.last_tag, mark)
        if (mark > self.last_tag and self.window == 1) or self.last_tag == -1:
            assert message.body == min(self.broker.bodies("q"), key=int)
        self.last_tag = message.tag
        self.is_reopened = False

    # What the application does

    async def deal_with(self, message: ReceivedMessage) -> None:
        self.seen(message)
        chance = self.chance
        await turns(chance.randrange(4))
        if chance.random() < 0.8:
            await self.work_on(message)
        if chance.random() < 0.4:
            await self.end_one()

    async def work_on(self, message: ReceivedMessage) -> None:
        """Settle it and send what comes of it, both in the same transaction. Where that is torn in
        two, one part of it may be committed by another task."""
        assert self.sender is not None
        body = message.body
        assert isinstance(body, bytes)
        message.settle_nowait(ACCEPTED)
        try:
            await self.sender.send(body)
        except BaseException as error:
            if not isinstance(error, TransactionRolledBack):
                self.torn.add(body)
            raise

    async def end_one(self) -> None:
        if self.tx is not None:
            await (self.tx.commit() if self.chance.random() < 0.5 else self.tx.rollback())

    async def read(self) -> None:
        """In one of the two forms, until the receiver is closed."""
        while True:
            with suppress(ClientError, TimeoutError):
                receiver = await self.links()
                if self.chance.random() < 0.5:
                    async with asyncio.timeout(self.chance.random()):
                        await receiver.run(self.handle)
                else:
                    message = await receiver.receive(timeout=self.chance.random())
                    await self.deal_with(message)
            if self.session.is_closed:
                return
            await asyncio.sleep(0.01)

    async def handle(self, message: ReceivedMessage) -> None:
        await self.deal_with(message)
        if message.state == HELD:  # `run` would accept it, and there is no output
            await self.work_on(message)

    async def open(self) -> None:
        self.receiver = await self.session.receiver("q", credit=self.window)
        self.sender = await self.session.sender("out")

    async def links(self) -> Receiver:
        """Those that the broker has closed are opened again [TX-14]."""
        assert self.receiver is not None
        assert self.sender is not None
        if self.receiver.is_closed and not self.is_opening:
            self.is_reopened = True
            self.receiver = await self.session.receiver("q", credit=self.window)
        if self.sender.is_closed:
            self.sender = await self.session.sender("out")
        return self.receiver

    async def reopen(self) -> None:
        assert self.receiver is not None
        if self.is_opening:
            return
        self.is_opening = self.is_reopened = True
        try:
            await self.receiver.close()
        finally:
            self.is_opening = False
            self.is_reopened = True

    # What happens to it

    async def stop_and_go(self) -> None:
        await self.session.stop()
        assert self.dispatcher.gate.is_quiet() or self.session.is_closed
        await turns(self.chance.randrange(20))
        self.session.resume()

    async def refuse(self) -> None:
        self.broker.refuses.append(Error("amqp:transaction:rollback", "no room"))

    async def lose_the_coordinator(self) -> None:
        links = [link for link in self.broker.coordinators if link.remote_attach is not None]
        if links:
            self.broker.drop_coordinator(Error("amqp:internal-error", "restarted"))
            self.broker.flush()

    async def disturb(self, times: int) -> None:
        """Calls at any point, several at once, some of them cancelled at any point."""
        chance = self.chance
        calls: list[Callable[[], Awaitable[None]]] = [
            *(self.end_one, self.end_one, self.end_one, self.stop_and_go, self.session.recover),
            *(self.reopen, self.refuse, self.lose_the_coordinator),
        ]
        for _ in range(times):
            await turns(chance.randrange(12))
            if chance.random() < 0.3:
                await asyncio.sleep(chance.random() / 20)
            call = asyncio.ensure_future(quietly(chance.choice(calls)))
            self.calls.add(call)
            if chance.random() < 0.3:
                await turns(chance.randrange(8))
                call.cancel()
            elif chance.random() < 0.7:
                await asyncio.wait([call])

    async def block(self) -> None:
        """One `async with`, left in one of the ways there are."""
        chance = self.chance
        async with self.session.transaction() as self.tx:
            await self.disturb(chance.randrange(8))
            if chance.random() < 0.3:
                raise Left


async def quietly(call: Callable[[], Awaitable[object]]) -> None:
    with suppress(ClientError, TimeoutError, Left):
        await call()


@longer
@pytest.mark.parametrize("block", range(SEEDS // BLOCK))
def test_tx_a10_stop_rollback_commit_and_close_at_any_point(block: int) -> None:
    async def main() -> None:
        for seed in range(block * BLOCK, (block + 1) * BLOCK):
            try:
                await told(random.Random(seed))
            except BaseException as error:
                error.add_note(f"seed {seed}")
                raise

    run(main, block)


async def told(chance: random.Random) -> None:
    """One story, from the first connection to the last."""
    broker = TxBroker(chance if chance.random() < 0.8 else None)
    broker.fill("q", *sorted(ALL, key=int))
    if chance.random() < 0.3:
        broker.capabilities = ("amqp:local-transactions",)  # one after the other [TX-5]
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    async with connected(broker, timeout=5) as connection:
        session = await connection.session()
        story = Story(broker, session, chance)
        await story.open()
        loop.after_each = story.holds
        reading = asyncio.create_task(story.read())
        async with asyncio.timeout(300):
            for _ in range(3):
                await blocked(story)
            for call in story.calls:
                call.cancel()
            if story.calls:
                await asyncio.wait(story.calls)
            if not session.is_closed:
                await quietly(session.recover)
            await finish(story, reading)
        await session.close()
    async with connected(broker) as connection, connection.session() as session:
        await drain(broker, session)  # what a new session finds is all there is
    loop.after_each = None
    story.holds()
    assert {body for queue, body in broker.done if queue == "q"} == ALL
    assert not broker.in_flight
    assert not broker.txns


async def blocked(story: Story) -> None:
    """One block, perhaps cancelled somewhere, perhaps with its session closed."""
    chance = story.chance
    block = asyncio.ensure_future(quietly(story.block))
    if chance.random() < 0.3:
        await asyncio.sleep(chance.random() / 10)
        block.cancel()
    if chance.random() < 0.1:
        await turns(chance.randrange(60))
        await quietly(story.session.close)
    await asyncio.wait([block])
    story.tx = None


async def finish(story: Story, reading: asyncio.Task[None]) -> None:
    """Outside of any transaction it works as ever, and comes to rest."""
    if not story.session.is_closed:
        story.session.resume()
        assert story.dispatcher.state is State.RUNNING
        await asyncio.sleep(2)
        assert not story.dispatcher.has_no_inflow
    reading.cancel()
    await asyncio.wait([reading])
    if not reading.cancelled() and (error := reading.exception()) is not None:
        raise error


async def drain(broker: TxBroker, session: Session) -> None:
    sender = await session.sender("out")
    async with session.receiver("q", credit=20) as receiver:
        with suppress(TimedOut, Closed):
            while True:
                message = await receiver.receive(timeout=1)
                message.settle_nowait(ACCEPTED)
                await sender.send(bytes(message.body))  # type: ignore[arg-type]
