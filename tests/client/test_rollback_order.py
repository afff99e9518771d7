"""Rollback in the original order, through the client, over each protocol and against each broker
that has transactions over it [TX-A1 to TX-A6, TX-A9].

A *stand* is a broker and the protocol to speak with it. To have all of this with another adapter,
add one to STANDS.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pika
import pytest

from tallymark.client import (
    Connection,
    ReceivedMessage,
    Receiver,
    Session,
    TimedOut,
    TransactionRolledBack,
    connect,
)
from tests.support.patience import PATIENCE_S, until
from tests.support.process import BrokerProcess
from tests.support.rabbitmq import RabbitProcess, find_rabbitmq

names = itertools.count()


@dataclass
class Stand:
    """Where a test runs."""

    url: str
    declare: Callable[[str], None]
    depth: Callable[[str], tuple[int, int]]
    """(ready, handed out and not settled) of a queue."""

    def queue(self, prefix: str = "q") -> str:
        name = f"{prefix}{next(names)}"
        self.declare(name)
        return name

    async def until(self, queue: str, ready: int, acquired: int) -> None:
        """A broker may count a little later than it answers."""
        wanted = (ready, acquired)
        await asyncio.to_thread(
            until, lambda: self.depth(queue) == wanted, what=lambda: self.depth(queue)
        )

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        async with connect(self.url) as connection, connection.session() as session:
            yield session


def tallymark(folder: Path) -> Iterator[Stand]:
    with BrokerProcess(folder / "data") as broker:
        yield Stand(
            f"amqp://guest:guest@127.0.0.1:{broker.amqp_port}",
            functools.partial(_declare, broker),
            functools.partial(_depth, broker),
        )


def _declare(broker: BrokerProcess, name: str) -> None:
    status, _ = broker.http("PUT", f"/api/queues/%2F/{name}", {"durable": True})
    assert status in (201, 204)


def _depth(broker: BrokerProcess, name: str) -> tuple[int, int]:
    row = broker.queues()[name]
    return row["ready"], row["acquired"] + row["staged"]


def tallymark_091(folder: Path) -> Iterator[Stand]:
    """It honours channel.flow [TX-10]."""
    for stand in tallymark(folder):
        stand.url = stand.url.replace("amqp:", "amqp091:")
        yield stand


def rabbitmq_091(folder: Path) -> Iterator[Stand]:
    """It answers 540 to channel.flow: consumers are cancelled, and made again [TX-D3]."""
    script = find_rabbitmq()
    if script is None:
        pytest.skip("RabbitMQ is not installed")
    with RabbitProcess(script, folder / "node") as rabbit:
        other = pika.BlockingConnection(
            pika.ConnectionParameters("127.0.0.1", rabbit.port, heartbeat=0)
        )
        channel = other.channel()

        def declare(name: str) -> None:
            channel.queue_declare(name, durable=True)

        def depth(name: str) -> tuple[int, int]:
            """It does not say what is handed out."""
            return int(channel.queue_declare(name, passive=True).method.message_count), 0

        yield Stand(f"amqp091://guest:guest@127.0.0.1:{rabbit.port}", declare, depth)
        other.close()


STANDS: dict[str, Callable[[Path], Iterator[Stand]]] = {
    "tallymark-1.0": tallymark,
    "tallymark-0.9.1": tallymark_091,
    "rabbitmq-0.9.1": rabbitmq_091,
}


@pytest.fixture(scope="module", params=STANDS)
def stand(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stand]:
    yield from STANDS[request.param](tmp_path_factory.mktemp("stand"))


def over_sockets(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def wrapper(*args: object, **kwargs: object) -> None:
        async def limited() -> None:
            async with asyncio.timeout(PATIENCE_S):
                await test(*args, **kwargs)

        asyncio.run(limited())

    return wrapper


async def fill(session: Session, queue: str, count: int) -> None:
    """Messages 0, 1, ... count - 1."""
    async with session.sender(f"/queues/{queue}") as sender:
        await sender.send_batch([b"%d" % i for i in range(count)])


def index(message: ReceivedMessage) -> int:
    assert isinstance(message.body, bytes)
    return int(message.body)


async def read(receiver: Receiver, count: int) -> list[ReceivedMessage]:
    return [await receiver.receive(timeout=PATIENCE_S) for _ in range(count)]


async def accept(*messages: ReceivedMessage) -> None:
    for message in messages:
        await message.accept()


@asynccontextmanager
async def filled(
    stand: Stand, count: int, credit: int
) -> AsyncIterator[tuple[str, Session, Receiver]]:
    """A queue of so many messages, and a receiver on a session of its own."""
    queue = stand.queue()
    async with connect(stand.url) as connection:
        async with connection.session() as session:
            await fill(session, queue, count)
        async with connection.session() as session:
            async with session.receiver(f"/queues/{queue}", credit=credit) as receiver:
                yield queue, session, receiver


@pytest.mark.parametrize("credit", [6, 20, 100])
@over_sockets
async def test_tx_a1_each_rollback_starts_again_with_the_first(stand: Stand, credit: int) -> None:
    """RollbackOrderTest. What the application settled, what it holds and what is in the buffer or
    on its way: all of it comes again, none of it in front of another."""
    async with filled(stand, 50, credit) as (queue, session, receiver):
        async with session.transaction() as tx:
            for time in range(20):
                assert index(await receiver.receive(timeout=PATIENCE_S)) == 0
                others = await read(receiver, 5)
                assert [index(message) for message in others] == [1, 2, 3, 4, 5]
                await accept(*others[: time % 6])
                await tx.rollback()
                assert receiver.buffered == receiver.unsettled == 0
            assert (tx.commits, tx.rollbacks) == (0, 20)
            found: list[int] = []
            while len(found) < 50:
                messages = await read(receiver, min(credit, 50 - len(found)))
                found += [index(message) for message in messages]
                await accept(*messages)
                await tx.commit()
        assert found == list(range(50))
        with pytest.raises(TimedOut):
            await receiver.receive(timeout=0.2)
        await stand.until(queue, 0, 0)


@pytest.mark.parametrize("concurrency", [1, 3])
@over_sockets
async def test_tx_a2_a_handler_that_rolls_back_does_not_wait_for_itself(
    stand: Stand, concurrency: int
) -> None:
    """With more than one at a time, all of them may want to at once."""
    async with filled(stand, 50, 10) as (queue, session, receiver):
        firsts: list[int] = []
        found: list[int] = []
        is_first = True
        done = asyncio.Event()
        async with session.transaction() as tx:

            async def handler(message: ReceivedMessage) -> None:
                nonlocal is_first
                if is_first:
                    firsts.append(index(message))
                    is_first = False
                if len(firsts) <= 20:
                    async with asyncio.timeout(PATIENCE_S):
                        await tx.rollback()
                    is_first = True
                    return
                await message.accept()
                try:
                    await tx.commit()
                except TransactionRolledBack:
                    return
                found.append(index(message))
                if len(found) == 50:
                    done.set()

            running = asyncio.create_task(receiver.run(handler, concurrency=concurrency))
            await done.wait()
            running.cancel()
            await asyncio.wait([running])
        assert firsts[:20] == [0] * 20
        assert sorted(found) == list(range(50))
        if concurrency == 1:
            assert found == list(range(50))
        await stand.until(queue, 0, 0)


@over_sockets
async def test_tx_a3_a_window_that_is_used_up_is_free_again(stand: Stand) -> None:
    """exhaustedPrefetchInTransaction"""
    async with filled(stand, 3, 2) as (_, session, receiver):
        async with session.transaction() as tx:
            messages = await read(receiver, 2)
            assert [index(message) for message in messages] == [0, 1]
            await accept(*messages)
            assert receiver.unsettled == 2  # they keep their slots until the end [TX-4]
            with pytest.raises(TimedOut):
                await receiver.receive(timeout=0.2)
            await tx.rollback()
            messages = await read(receiver, 2)
            assert [index(message) for message in messages] == [0, 1]
            await accept(*messages)
            await tx.commit()
            assert index(await receiver.receive(timeout=PATIENCE_S)) == 2


@over_sockets
async def test_tx_a4_a_handler_that_rolls_back_its_first_two_calls(stand: Stand) -> None:
    """rollbackWithinMessageListener"""
    async with filled(stand, 2, 10) as (queue, session, receiver):
        calls: list[int] = []
        done = asyncio.Event()
        async with session.transaction() as tx:

            async def handler(message: ReceivedMessage) -> None:
                calls.append(index(message))
                if len(calls) <= 2:
                    await tx.rollback()
                    return
                await message.accept()
                await tx.commit()
                if index(message) == 1:
                    done.set()

            running = asyncio.create_task(receiver.run(handler))
            await done.wait()
            await stand.until(queue, 0, 0)
            await session.queue_state(queue)  # what came before this answer has been handled
            running.cancel()
            await asyncio.wait([running])
        assert calls == [0, 0, 0, 1]


@over_sockets
async def test_tx_a5_a_transaction_that_receivers_share(stand: Stand) -> None:
    """transactionSharedByConsumers"""
    first, second = stand.queue(), stand.queue()
    async with stand.session() as session:
        for queue in (first, second):
            await fill(session, queue, 4)
    async with stand.session() as session:
        one = await session.receiver(f"/queues/{first}", credit=3)
        two = await session.receiver(f"/queues/{second}", credit=3)
        async with session.transaction() as tx:
            for _ in range(3):
                messages = [await receiver.receive(timeout=PATIENCE_S) for receiver in (one, two)]
                assert [index(message) for message in messages] == [0, 0]
                await messages[0].accept()
                await tx.rollback()
            for receiver in (one, two):
                for expected in range(4):
                    message = await receiver.receive(timeout=PATIENCE_S)
                    assert index(message) == expected
                    await message.accept()
                    await tx.commit()
        await stand.until(first, 0, 0)
        await stand.until(second, 0, 0)


@over_sockets
async def test_tx_a6_the_order_is_the_same_after_each_rollback(stand: Stand) -> None:
    """testMessageOrder"""
    async with filled(stand, 4, 10) as (queue, session, receiver):
        async with session.transaction() as tx:
            for head in range(4):
                for _ in range(5):
                    messages = await read(receiver, 4 - head)
                    assert [index(message) for message in messages] == list(range(head, 4))
                    await accept(*messages)
                    await tx.rollback()
                message = await receiver.receive(timeout=PATIENCE_S)
                assert index(message) == head
                await message.accept()
                await tx.commit()
                await session.recover()  # the rest is in the buffer, and comes again from its head
        await stand.until(queue, 0, 0)


@pytest.mark.parametrize("commits", [True, False])
@over_sockets
async def test_tx_a9_what_was_settled_stays_in_it_when_its_receiver_is_closed(
    stand: Stand, commits: bool
) -> None:
    queue = stand.queue()
    async with stand.session() as session:
        await fill(session, queue, 3)
        async with session.transaction() as tx:
            receiver = await session.receiver(f"/queues/{queue}", credit=2)
            await (await receiver.receive(timeout=PATIENCE_S)).accept()
            await receiver.close()
            if commits:
                await tx.commit()
            else:
                await tx.rollback()
        await stand.until(queue, 2 if commits else 3, 0)
        async with session.receiver(f"/queues/{queue}", credit=3) as again:
            left = await read(again, 2 if commits else 3)
            assert [index(message) for message in left] == ([1, 2] if commits else [0, 1, 2])


@over_sockets
async def test_tx_a9_a_connection_that_goes_leaves_everything_as_it_was(stand: Stand) -> None:
    queue, out = stand.queue(), stand.queue()
    connection: Connection = await connect(stand.url)
    session = await connection.session()
    await fill(session, queue, 3)
    transaction = session.transaction()
    await transaction.__aenter__()
    receiver = await session.receiver(f"/queues/{queue}", credit=2)
    sender = await session.sender(f"/queues/{out}")
    await sender.send(b"never")
    await (await receiver.receive(timeout=PATIENCE_S)).accept()
    await connection.close()
    await stand.until(queue, 3, 0)
    await stand.until(out, 0, 0)


@over_sockets
async def test_tx_17_what_is_sent_and_settled_takes_effect_together(stand: Stand) -> None:
    queue, out = stand.queue(), stand.queue()
    async with stand.session() as session:
        await fill(session, queue, 2)
        sender = await session.sender(f"/queues/{out}")
        receiver = await session.receiver(f"/queues/{queue}", credit=1)
        async with session.transaction():
            async with await receiver.receive(timeout=PATIENCE_S) as message:
                await sender.send(b"made of " + bytes(message.body))
            await stand.until(out, 0, 0)
        await stand.until(out, 1, 0)

        async def half() -> None:
            async with session.transaction():
                async with await receiver.receive(timeout=PATIENCE_S) as message:
                    await sender.send(b"made of " + bytes(message.body))
                raise LookupError("in the middle of it")

        with pytest.raises(LookupError):
            await half()
        await stand.until(out, 1, 0)
        async with await receiver.receive(
            timeout=PATIENCE_S
        ) as message:  # outside: for good, at once
            assert index(message) == 1
            await sender.send(b"made of 1")
        await stand.until(out, 2, 0)
        await stand.until(queue, 0, 0)
