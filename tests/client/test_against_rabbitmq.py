"""The client against RabbitMQ 3.10 with its AMQP 1.0 plugin, where that is installed.

That version sends more than its credit when a second flow comes before it has used what the first
one gave; the client closes the link then, as it must [FC-4]. So no test here gives it two in a row.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import pytest

from tallymark.client import ACCEPTED, Accepted, Closed, Message, Session, SessionClosed, connect
from tests.support.patience import PATIENCE_S
from tests.support.rabbitmq import RabbitProcess, find_rabbitmq

PLUGIN = "rabbitmq_amqp1_0"
names = itertools.count()


def over_sockets(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def wrapper(*args: object, **kwargs: object) -> None:
        async def limited() -> None:
            async with asyncio.timeout(PATIENCE_S):
                await test(*args, **kwargs)

        asyncio.run(limited())

    return wrapper


@pytest.fixture(scope="module")
def rabbit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitProcess]:
    script = find_rabbitmq()
    if script is None:
        pytest.skip("RabbitMQ is not installed")
    if not list(script.parent.parent.glob(f"lib/*/plugins/{PLUGIN}-*")):
        pytest.skip(f"RabbitMQ is installed without its plugin {PLUGIN}")
    with RabbitProcess(script, tmp_path_factory.mktemp("rabbit") / "node", (PLUGIN,)) as running:
        yield running


@pytest.fixture
def queue() -> str:
    return f"/queue/q{next(names)}"


@asynccontextmanager
async def session_on(rabbit: RabbitProcess, **options: object) -> AsyncIterator[Session]:
    url = f"amqp://guest:guest@127.0.0.1:{rabbit.port}"
    async with connect(url, **options) as connection:  # type: ignore[arg-type]
        async with connection.session() as session:
            yield session


@over_sockets
async def test_messages_go_round(rabbit: RabbitProcess, queue: str) -> None:
    async with session_on(rabbit) as session:
        assert session.connection.properties["product"] == "RabbitMQ"
        async with session.sender(queue) as sender:
            message = Message(b"one", subject="s", application_properties={"traceparent": "00-a"})
            assert await sender.send(message) == Accepted()
            assert await sender.send_batch([b"%d" % i for i in range(20)]) == [Accepted()] * 20
        async with session.receiver(queue, credit=1) as receiver:
            async with await receiver.receive(timeout=PATIENCE_S) as first:
                assert (first.body, first.subject) == (b"one", "s")
                assert first.application_properties == {"traceparent": "00-a"}
            for i in range(20):
                async with await receiver.receive(timeout=PATIENCE_S) as following:
                    assert following.body == b"%d" % i


@over_sockets
async def test_fc_a1_and_a2_a_full_window_stops_it(rabbit: RabbitProcess, queue: str) -> None:
    lines: list[str] = []
    async with session_on(rabbit, trace=lines.append) as session:
        async with session.sender(queue) as sender:
            await sender.send_batch([b"%d" % i for i in range(10)])
        async with session.receiver(queue, credit=2) as receiver:
            held = [await receiver.receive(timeout=PATIENCE_S) for _ in range(2)]
            lines.clear()
            with pytest.raises(TimeoutError):
                await receiver.receive(timeout=0.3)
            assert not [line for line in lines if "Flow" in line and line.startswith("->")]
            for i in range(2, 10, 2):
                await receiver.settle_many(held, ACCEPTED)
                held = [await receiver.receive(timeout=PATIENCE_S) for _ in range(2)]
                assert [message.body for message in held] == [b"%d" % i, b"%d" % (i + 1)]
            await receiver.settle_many(held, ACCEPTED)


@over_sockets
async def test_released_and_unsettled_come_again(rabbit: RabbitProcess, queue: str) -> None:
    """What a closed receiver held stays with its session there, until that ends."""
    async with session_on(rabbit) as session:
        async with session.sender(queue) as sender:
            await sender.send_batch([b"0", b"1", b"2"])
        async with session.receiver(queue, credit=1) as receiver:
            await (await receiver.receive(timeout=PATIENCE_S)).release()
            async with await receiver.receive(timeout=PATIENCE_S) as again:
                assert again.body == b"0"
            assert (await receiver.receive(timeout=PATIENCE_S)).body == b"1"
    async with session_on(rabbit) as session:
        async with session.receiver(queue, credit=5) as receiver:
            rest = await receiver.receive_batch(2, timeout=PATIENCE_S)
            assert [message.body for message in rest] == [b"1", b"2"]
            await receiver.settle_many(rest, ACCEPTED)


@over_sockets
async def test_batches(rabbit: RabbitProcess, queue: str) -> None:
    """A batch that is full needs no drain. Draining a classic queue crashes the session of this
    version, and that is an error of the calls, not a hang [FC-14]."""
    async with session_on(rabbit) as session:
        async with session.sender(queue) as sender:
            await sender.send_batch([b"%d" % i for i in range(5)])
        async with session.receiver(queue, credit_mode="manual") as receiver:
            batch = await receiver.receive_batch(5, timeout=PATIENCE_S)
            assert [message.body for message in batch] == [b"%d" % i for i in range(5)]
            await receiver.settle_many(batch, ACCEPTED)
            receiver.issue_credit(4)
            if rabbit.version.startswith("3.10."):
                with pytest.raises(SessionClosed, match="amqp:internal-error"):
                    await receiver.drain()
                assert receiver.is_closed
            else:
                assert await receiver.drain() == 4


@over_sockets
async def test_fc_9_mode_second_is_refused(rabbit: RabbitProcess, queue: str) -> None:
    async with session_on(rabbit) as session:
        with pytest.raises(Closed, match="rcv-settle-mode second not supported"):
            await session.receiver(queue, rcv_mode="second")
    async with session_on(rabbit) as session:
        async with session.receiver(queue) as receiver:
            assert receiver.settle_mode == "first"
