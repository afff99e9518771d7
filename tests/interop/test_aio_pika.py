"""aio-pika, plain and robust."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aio_pika
import aiormq
import pytest
from aio_pika.abc import AbstractIncomingMessage, AbstractRobustConnection
from aio_pika.patterns import RPC, Master

from tests.interop.blocking import numbered
from tests.support.patience import PATIENCE_S
from tests.support.process import BrokerProcess


def url(port: int) -> str:
    return f"amqp://guest:guest@127.0.0.1:{port}/"


@asynccontextmanager
async def robust(port: int) -> AsyncIterator[AbstractRobustConnection]:
    connection = await aio_pika.connect_robust(url(port), reconnect_interval=0.1)
    async with asyncio.timeout(PATIENCE_S * 2), connection:
        yield connection


def run(scene: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(scene())  # type: ignore[arg-type]


def persistent(body: bytes) -> aio_pika.Message:
    return aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)


def test_publish_confirm_consume_ack(port: int, name: str) -> None:
    async def scene() -> None:
        async with robust(port) as connection:
            channel = await connection.channel()
            await channel.set_qos(prefetch_count=10)
            exchange = await channel.declare_exchange(name, "topic", auto_delete=True)
            queue = await channel.declare_queue(exclusive=True)
            await queue.bind(exchange, "a.*")
            sends = [exchange.publish(persistent(body), "a.b") for body in numbered(300)]
            await asyncio.gather(*sends)
            received = []
            async with queue.iterator() as messages:
                async for message in messages:
                    async with message.process():
                        received.append(message.body)
                    if len(received) == 300:
                        break
            assert received == numbered(300)
            assert (await channel.declare_queue(queue.name, passive=True)).declaration_result

    run(scene)


def test_unroutable_mandatory_message_raises(port: int) -> None:
    async def scene() -> None:
        async with robust(port) as connection:
            channel = await connection.channel(on_return_raises=True)
            with pytest.raises(aio_pika.exceptions.DeliveryError):
                await channel.default_exchange.publish(persistent(b"x"), "nobody", mandatory=True)

    run(scene)


def test_failing_handler_requeues_and_message_comes_again_flagged(port: int) -> None:
    async def scene() -> None:
        async with robust(port) as connection:
            channel = await connection.channel()
            queue = await channel.declare_queue(exclusive=True)
            attempts: list[bool] = []
            done = asyncio.Event()

            async def handle(message: AbstractIncomingMessage) -> None:
                async with message.process(requeue=True):
                    attempts.append(bool(message.redelivered))
                    if len(attempts) == 1:
                        raise RuntimeError("first attempt fails")
                    done.set()

            tag = await queue.consume(handle)
            await channel.default_exchange.publish(persistent(b"x"), queue.name)
            await done.wait()
            assert attempts == [False, True]
            await queue.cancel(tag)

    run(scene)


def test_missing_queue_and_exclusive_queue_raise_their_own_errors(port: int, name: str) -> None:
    async def scene() -> None:
        async with robust(port) as one, robust(port) as two:
            channel = await one.channel()
            with pytest.raises(aio_pika.exceptions.ChannelNotFoundEntity):
                await channel.get_queue(name)
            await (await one.channel()).declare_queue(name, exclusive=True)
            with pytest.raises(aiormq.exceptions.ChannelLockedResource):
                await (await two.channel()).declare_queue(name, exclusive=True)

    run(scene)


def test_rpc_pattern(port: int, name: str) -> None:
    async def scene() -> None:
        async with robust(port) as server, robust(port) as client:
            service = await RPC.create(await server.channel())

            async def multiply(*, x: int, y: int) -> int:
                return x * y

            await service.register(f"{name}.multiply", multiply, auto_delete=True)
            rpc = await RPC.create(await client.channel())
            calls = [rpc.call(f"{name}.multiply", kwargs={"x": x, "y": 3}) for x in range(50)]
            assert await asyncio.gather(*calls) == [3 * x for x in range(50)]

    run(scene)


def test_master_worker_pattern(port: int, name: str) -> None:
    async def scene() -> None:
        async with robust(port) as connection:
            master = Master(await connection.channel())
            seen: list[int] = []
            done = asyncio.Event()

            async def work(*, number: int) -> None:
                seen.append(number)
                if len(seen) == 30:
                    done.set()

            worker = await master.create_worker(name, work, auto_delete=True)
            for number in range(30):
                await master.create_task(name, kwargs={"number": number})
            await done.wait()
            assert sorted(seen) == list(range(30))
            await worker.close()

    run(scene)


def test_many_connections_at_a_time(port: int) -> None:
    async def one() -> str:
        connection = await aio_pika.connect(url(port))
        async with connection:
            channel = await connection.channel()
            return (await channel.declare_queue(exclusive=True)).name

    async def scene() -> None:
        names = await asyncio.gather(*(one() for _ in range(100)))
        assert len(set(names)) == 100

    run(scene)


@pytest.mark.usefixtures("only_ours")
def test_robust_connection_finds_its_things_after_a_restart(tmp_path: Path) -> None:
    """The consumer of before the crash goes on, with what was confirmed and not yet settled."""

    async def scene(broker: BrokerProcess) -> None:
        async with robust(broker.amqp_port) as connection:
            channel = await connection.channel()
            await channel.set_qos(prefetch_count=1)
            durable = await channel.declare_queue("durable", durable=True)
            temporary = await channel.declare_queue("temporary", auto_delete=True)
            received: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()
            await durable.consume(received.put)
            await temporary.consume(received.put)
            for body in numbered(3):
                await channel.default_exchange.publish(persistent(body), "durable")
            first = await received.get()
            assert (first.body, first.redelivered) == (b"0", False)
            reconnected = asyncio.Event()
            connection.reconnect_callbacks.add(lambda *_: reconnected.set())
            await asyncio.to_thread(broker.kill)
            await asyncio.to_thread(broker.restart)
            await reconnected.wait()
            for body in numbered(3):
                message = await received.get()
                assert message.body == body
                assert message.redelivered or body != b"0"
                await message.ack()
            await channel.default_exchange.publish(persistent(b"again"), "temporary")
            message = await received.get()
            assert message.body == b"again"
            await message.ack()

    broker = BrokerProcess(tmp_path / "data", keeps_ports=True)
    with broker:
        run(lambda: scene(broker))
