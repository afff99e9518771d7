"""The client against another broker: Apache Qpid Proton's C++ example, as Debian ships it."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import pytest

from tallymark.client import (
    ACCEPTED,
    Accepted,
    Connection,
    LinkClosed,
    Message,
    ReceivedMessage,
    Session,
    connect,
)
from tests.support.amqp10_client import outcome_of
from tests.support.patience import PATIENCE_S, until_on_loop
from tests.support.proton_broker import CannotBeHad, ProtonBroker

names = (f"q{number}" for number in itertools.count())


def over_sockets(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def wrapper(*args: object, **kwargs: object) -> None:
        async def limited() -> None:
            async with asyncio.timeout(PATIENCE_S):
                await test(*args, **kwargs)

        asyncio.run(limited())

    return wrapper


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProtonBroker]:
    try:
        made = ProtonBroker(tmp_path_factory.mktemp("proton"))
        with made:
            yield made
    except CannotBeHad as reason:
        pytest.skip(f"Proton's example broker cannot be had: {reason}")


@pytest.fixture
def queue() -> str:
    return next(names)


@asynccontextmanager
async def connection_to(broker: ProtonBroker, **options: object) -> AsyncIterator[Connection]:
    url = f"amqp://127.0.0.1:{broker.port}"
    async with connect(url, **options) as connection:  # type: ignore[arg-type]
        yield connection


@asynccontextmanager
async def session_on(broker: ProtonBroker, **options: object) -> AsyncIterator[Session]:
    async with connection_to(broker, **options) as connection:
        async with connection.session() as session:
            yield session


@over_sockets
async def test_messages_go_round(broker: ProtonBroker, queue: str) -> None:
    async with session_on(broker) as session:
        async with session.sender(queue) as sender:
            message = Message(
                {"a": [1, b"2", "3"]},
                subject="s",
                application_properties={"traceparent": "00-ab-cd-01"},
                annotations={"x-opt-mine": 1},
            )
            assert await sender.send(message) == Accepted()
            assert await sender.send_batch([b"1", b"2"]) == [Accepted()] * 2
        async with session.receiver(queue, credit=2) as receiver:
            first = await receiver.receive(timeout=PATIENCE_S)
            assert first.body == {"a": [1, b"2", "3"]}
            assert first.application_properties == {"traceparent": "00-ab-cd-01"}
            assert first.annotations == {"x-opt-mine": 1}
            await first.accept()
            for body in (b"1", b"2"):
                async with await receiver.receive(timeout=PATIENCE_S) as received:
                    assert received.body == body


@over_sockets
async def test_fc_a1_window_of_one(broker: ProtonBroker, queue: str) -> None:
    """Proton settles first whatever is asked; the flow waits for the settlement all the same."""
    lines: list[str] = []
    async with connection_to(broker, trace=lines.append) as connection:
        session = await connection.session()
        async with session.sender(queue) as sender:
            await sender.send_batch([b"0", b"1"])
        async with session.receiver(queue, credit=1) as receiver:
            message = await receiver.receive(timeout=PATIENCE_S)
            lines.clear()
            await (await connection.session()).close()
            assert not [line for line in lines if "[0]" in line]  # no flow, no delivery
            lines.clear()
            await message.accept()
            await (await receiver.receive(timeout=PATIENCE_S)).accept()
            kinds = [" ".join(line.split()[:3]) for line in lines]
            assert kinds[:3] == ["-> [0] Disposition", "-> [0] Flow", "<- [0] Transfer"]


@over_sockets
async def test_fc_a2_a_full_window_stops_it(broker: ProtonBroker, queue: str) -> None:
    async with session_on(broker) as session:
        async with session.sender(queue) as sender:
            await sender.send_batch([b"x"] * 100)
        async with session.receiver(queue, credit=10) as receiver:
            held = [await receiver.receive(timeout=PATIENCE_S) for _ in range(10)]
            with pytest.raises(TimeoutError):
                await receiver.receive(timeout=0.3)
            await receiver.settle_many(held, ACCEPTED)
            for _ in range(90):
                await (await receiver.receive(timeout=PATIENCE_S)).accept()


@over_sockets
async def test_batches(broker: ProtonBroker, queue: str) -> None:
    """This broker does not answer a drain: the first batch waits for that, no other asks."""
    lines: list[str] = []
    async with session_on(broker, trace=lines.append) as session:
        async with session.sender(queue) as sender:
            await sender.send_batch([b"%d" % i for i in range(5)])
        async with session.receiver(queue, credit_mode="manual") as receiver:
            first = await receiver.receive_batch(2, timeout=PATIENCE_S)
            rest: list[ReceivedMessage] = []
            while len(rest) < 3:
                rest += await receiver.receive_batch(10, timeout=0.1)
            assert [message.body for message in first + rest] == [b"%d" % i for i in range(5)]
            assert receiver.credit == 0
            await receiver.settle_many(first + rest, ACCEPTED)
            assert await receiver.receive_batch(10, timeout=0.1) == []
            assert len([line for line in lines if "drain" in line]) == 1, lines


@over_sockets
async def test_handlers_and_many_senders(broker: ProtonBroker, queue: str) -> None:
    seen: list[bytes] = []
    done = asyncio.Event()

    async def handler(message: ReceivedMessage) -> None:
        await asyncio.sleep(0)
        seen.append(message.body)
        if len(seen) == 500:
            done.set()

    async with session_on(broker) as session:
        senders = [await session.sender(queue) for _ in range(5)]
        await asyncio.gather(
            *[
                sender.send_batch([b"%d:%d" % (number, i) for i in range(100)])
                for number, sender in enumerate(senders)
            ]
        )
        async with session.receiver(queue, credit=50) as receiver:
            task = asyncio.create_task(receiver.run(handler, concurrency=8))
            await done.wait()
            await until_on_loop(lambda: not receiver.unsettled)
            task.cancel()
            await asyncio.wait([task])
    assert len(set(seen)) == 500


@over_sockets
async def test_large_messages(broker: ProtonBroker, queue: str) -> None:
    body = bytes(range(256)) * 8_000
    async with session_on(broker, max_frame_size=4096) as session:
        async with session.sender(queue) as sender, session.receiver(queue, credit=2) as receiver:
            await asyncio.gather(*[sender.send(body) for _ in range(2)])
            for _ in range(2):
                async with await receiver.receive(timeout=PATIENCE_S) as message:
                    assert message.body == body


@over_sockets
async def test_sent_settled(broker: ProtonBroker, queue: str) -> None:
    """This broker answers settle_mode="settled" with mixed; and when we then detach with an error
    it stops listening. So single messages are sent settled."""
    async with session_on(broker) as session:
        async with session.sender(queue) as sender:
            assert await sender.send_batch([b"x"] * 10, settled=True) == [None] * 10
        async with session.receiver(queue, credit=3) as receiver:
            for _ in range(10):
                await (await receiver.receive(timeout=PATIENCE_S)).accept()


@over_sockets
async def test_a_dynamic_node(broker: ProtonBroker) -> None:
    async with session_on(broker) as session, session.receiver(None, dynamic=True) as answers:
        assert answers.address
        async with session.sender(answers.address) as sender:
            await sender.send("answer")
        async with await answers.receive(timeout=PATIENCE_S) as message:
            assert message.body == "answer"


@over_sockets
async def test_fc_a6_closing_with_messages_in_the_buffer(broker: ProtonBroker, queue: str) -> None:
    async with session_on(broker) as session:
        async with session.sender(queue) as sender:
            await sender.send_batch([b"x"] * 10)
        receiver = await session.receiver(queue, credit=5)
        await receiver.receive(timeout=PATIENCE_S)
        await until_on_loop(lambda: receiver.buffered >= 4)
        await receiver.close()
        results = [await outcome_of(receiver.receive(timeout=PATIENCE_S)) for _ in range(5)]
        assert [type(result) for result in results] == [ReceivedMessage] * 4 + [LinkClosed]
