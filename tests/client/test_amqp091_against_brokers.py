"""The client over AMQP 0-9-1 and over sockets, against our own broker and against RabbitMQ where
that is installed: what is observed is the same. Pika is who else is there."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tallymark.client import (
    ACCEPTED,
    RELEASED,
    Accepted,
    BatchNotAccepted,
    LinkClosed,
    LinkRefused,
    LoginRefused,
    Message,
    MessageReleased,
    Released,
    Session,
    SessionClosed,
    connect,
)
from tests.support.amqp10_client import outcome_of
from tests.support.patience import PATIENCE_S
from tests.support.process import BrokerProcess
from tests.support.rabbitmq import RabbitProcess, find_rabbitmq

names = itertools.count()


@dataclass
class Running:
    """A broker, and somebody else who is connected to it."""

    name: str
    port: int
    channel: BlockingChannel

    def declare(self, **arguments: object) -> str:
        queue = f"c091-{next(names)}"
        self.channel.queue_declare(queue, durable=True, arguments=arguments)
        return queue

    def put(self, queue: str, *bodies: bytes) -> None:
        for body in bodies:
            self.channel.basic_publish("", queue, body)

    def depth(self, queue: str) -> int:
        """Messages that are ready."""
        return int(self.channel.queue_declare(queue, passive=True).method.message_count)


@pytest.fixture(scope="module", params=["tallymark", "rabbitmq"])
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("brokers")
    if request.param == "tallymark":
        with BrokerProcess(folder / "data") as ours:
            yield from joined("tallymark", ours.amqp_port)
        return
    script = find_rabbitmq()
    if script is None:
        pytest.skip("RabbitMQ is not installed")
    with RabbitProcess(script, folder / "node") as rabbit:
        yield from joined("rabbitmq", rabbit.port)


def joined(name: str, port: int) -> Iterator[Running]:
    parameters = pika.ConnectionParameters("127.0.0.1", port, heartbeat=0)
    connection = pika.BlockingConnection(parameters)
    yield Running(name, port, connection.channel())
    connection.close()


def over_sockets(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def wrapper(*args: object, **kwargs: object) -> None:
        async def limited() -> None:
            async with asyncio.timeout(PATIENCE_S):
                await test(*args, **kwargs)

        asyncio.run(limited())

    return wrapper


@asynccontextmanager
async def session_on(broker: Running) -> AsyncIterator[Session]:
    async with connect(f"amqp091://guest:guest@127.0.0.1:{broker.port}") as connection:
        async with connection.session() as session:
            yield session


def numbers(count: int) -> list[bytes]:
    return [b"%d" % i for i in range(count)]


@over_sockets
async def test_messages_of_the_client_and_of_others(broker: Running) -> None:
    queue = broker.declare()
    async with session_on(broker) as session:
        async with session.sender(f"/queues/{queue}") as sender:
            sent = Message(
                b"body",
                subject="s",
                message_id="m",
                content_type="text/plain",
                application_properties={"n": 5, "t": "x"},
                annotations={"x-mine": 1},
                ttl_ms=600_000,
                priority=3,
            )
            assert await sender.send(sent) == Accepted()
            assert await sender.send({"a": [1, b"2"]}) == Accepted()
        method, properties, body = broker.channel.basic_get(queue, auto_ack=True)
        assert method is not None
        assert (body, properties.content_type, properties.message_id) == (
            b"body",
            "text/plain",
            "m",
        )
        assert properties.headers == {"n": 5, "t": "x", "x-mine": 1, "x-subject": "s"}
        assert (properties.delivery_mode, properties.priority) == (2, 3)
        assert properties.expiration == "600000"
        headers = {"n": 1, "list": [1, "a"], "x-own": "y"}
        properties = pika.BasicProperties(headers=headers, type="t", delivery_mode=1, reply_to="r")
        broker.channel.basic_publish("amq.fanout", "k", b"nowhere", properties)
        broker.channel.basic_publish("", queue, b"theirs", properties)
        async with session.receiver(f"/queues/{queue}", credit=2) as receiver:
            async with await receiver.receive(timeout=PATIENCE_S) as message:
                assert message.body == {"a": [1, b"2"]}
            async with await receiver.receive(timeout=PATIENCE_S) as message:
                assert (message.body, message.durable) == (b"theirs", False)
                assert message.application_properties == {"n": 1}
                assert message.reply_to == "/queues/r"
                assert message.annotations["x-own"] == "y"
                assert message.annotations["x-opt-headers"] == {"list": [1, "a"]}
                assert message.annotations["x-basic-type"] == "t"
                assert message.annotations["x-routing-key"] == queue
                assert message.first_acquirer
    assert broker.depth(queue) == 0


@over_sockets
async def test_fc_17_a_window_of_two(broker: Running) -> None:
    queue = broker.declare()
    broker.put(queue, *numbers(10))
    async with session_on(broker) as session:
        async with session.receiver(f"/queues/{queue}", credit=2) as receiver:
            for i in range(0, 10, 2):
                held = [await receiver.receive(timeout=PATIENCE_S) for _ in range(2)]
                assert [message.body for message in held] == [b"%d" % i, b"%d" % (i + 1)]
                with pytest.raises(TimeoutError):
                    await receiver.receive(timeout=0.05)
                assert broker.depth(queue) == 8 - i
                await receiver.settle_many(held, ACCEPTED)


@over_sockets
async def test_many_messages_both_ways(broker: Running) -> None:
    queue = broker.declare()
    async with session_on(broker) as session:
        async with session.sender(f"/queues/{queue}") as sender:
            assert await sender.send_batch(numbers(3000)) == [Accepted()] * 3000
            assert await sender.send(b"large" * 100_000) == Accepted()
        async with session.receiver(f"/queues/{queue}", credit=500) as receiver:
            for i in range(3000):
                async with await receiver.receive(timeout=PATIENCE_S) as message:
                    assert message.body == b"%d" % i
            async with await receiver.receive(timeout=PATIENCE_S) as message:
                assert message.body == b"large" * 100_000
    assert broker.depth(queue) == 0


@over_sockets
async def test_released_messages_take_their_place_again(broker: Running) -> None:
    dead = broker.declare()
    ours = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    queue = broker.declare(**ours)
    broker.put(queue, *numbers(6))
    async with session_on(broker) as session:
        async with session.receiver(f"/queues/{queue}", credit=6) as receiver:
            held = [await receiver.receive(timeout=PATIENCE_S) for _ in range(6)]
            await receiver.settle_many(held[1:4], RELEASED)
            await held[0].reject("no")
            again = [await receiver.receive(timeout=PATIENCE_S) for _ in range(3)]
            assert [message.body for message in again] == [b"1", b"2", b"3"]
            assert not any(message.first_acquirer for message in again)
            await again[0].modify()
            third = await receiver.receive(timeout=PATIENCE_S)
            assert third.body == b"1"
            await third.modify(undeliverable_here=True)
        # closed: 2, 3, 4 and 5 go back
        async with session.receiver(f"/queues/{queue}", credit=9) as receiver:
            rest = await receiver.receive_batch(4, timeout=PATIENCE_S)
            assert [message.body for message in rest] == [b"2", b"3", b"4", b"5"]
            await receiver.settle_many(rest, ACCEPTED)
        async with session.receiver(f"/queues/{dead}", credit=9) as receiver:
            letters = await receiver.receive_batch(2, timeout=PATIENCE_S)
            assert [message.body for message in letters] == [b"0", b"1"]
            assert "x-death" in letters[0].annotations
            await receiver.settle_many(letters, ACCEPTED)


@over_sockets
async def test_dl_5_what_comes_again_after_recover_has_not_failed(broker: Running) -> None:
    """The client says of itself that its recover only rolls back. RabbitMQ has no ear for that, and
    buries what was in the client's hands, or only in its window, so often."""
    dead = broker.declare()
    queue = broker.declare(
        **{
            "x-queue-type": "quorum",
            "x-delivery-limit": 2,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": dead,
        }
    )
    broker.put(queue, *numbers(3))
    async with session_on(broker) as session:
        async with session.receiver(f"/queues/{queue}", credit=3) as receiver:
            for _ in range(3):
                first = await receiver.receive(timeout=PATIENCE_S)
                assert first.body == b"0"
                await session.recover()
            if broker.name == "tallymark":
                again = await receiver.receive_batch(3, timeout=PATIENCE_S)
                assert [message.body for message in again] == numbers(3)
        where = {"tallymark": queue, "rabbitmq": dead}[broker.name]
        async with session.receiver(f"/queues/{where}", credit=3) as receiver:
            left = await receiver.receive_batch(3, timeout=PATIENCE_S)
            assert [message.body for message in left] == numbers(3)
            await receiver.settle_many(left, ACCEPTED)


@over_sockets
async def test_fc_14_batches_and_credit_by_hand(broker: Running) -> None:
    queue = broker.declare()
    broker.put(queue, *numbers(7))
    async with session_on(broker) as session:
        async with session.receiver(f"/queues/{queue}", credit_mode="manual") as receiver:
            batch = await receiver.receive_batch(4, timeout=PATIENCE_S)
            await receiver.settle_many(batch, ACCEPTED)
            assert (broker.depth(queue), receiver.buffered, receiver.credit) == (3, 0, 0)
            batch = await receiver.receive_batch(9, timeout=0.2)
            assert [message.body for message in batch] == [b"4", b"5", b"6"]
            assert receiver.credit == 0
            receiver.issue_credit(2)
            await receiver.settle_many(batch, RELEASED)
            batch = await receiver.receive_batch(2, timeout=PATIENCE_S)
            assert [message.body for message in batch] == [b"4", b"5"]
            await receiver.settle_many(batch, ACCEPTED)
            receiver.issue_credit(5)
            assert (await receiver.receive(timeout=PATIENCE_S)).body == b"6"
            assert await receiver.drain() == 4


@over_sockets
async def test_what_no_queue_is_bound_for_is_released(broker: Running) -> None:
    queue = broker.declare()
    async with session_on(broker) as session:
        async with session.sender("/exchanges/amq.direct/nowhere") as sender:
            with pytest.raises(MessageReleased):
                await sender.send(b"x")
        async with session.sender(None) as sender:
            messages = [
                Message(b"%d" % i, to=f"/queues/{queue}" if i % 3 else "/queues/none")
                for i in range(9)
            ]
            error = await outcome_of(sender.send_batch(messages))
            assert isinstance(error, BatchNotAccepted)
            assert error.outcomes == [Released(), Accepted(), Accepted()] * 3
    assert broker.depth(queue) == 6


@over_sockets
async def test_what_is_not_there_or_not_allowed(broker: Running) -> None:
    queue = broker.declare()
    broker.put(queue, b"0")
    async with session_on(broker) as session:
        receiver = await session.receiver(f"/queues/{queue}")
        for call in (session.receiver("/queues/none"), session.sender("/queues/none")):
            with pytest.raises(LinkRefused, match="NOT_FOUND - no queue 'none'"):
                await call
        with pytest.raises(LinkRefused, match="NOT_FOUND - no exchange 'none'"):
            await session.sender("/exchanges/none/k")
        async with await receiver.receive(timeout=PATIENCE_S) as message:
            assert message.body == b"0"
        alone = broker.declare()
        tag = broker.channel.basic_consume(alone, lambda *_: None, exclusive=True)
        refused = await session.receiver(f"/queues/{alone}")
        with pytest.raises(SessionClosed, match="ACCESS_REFUSED") as raised:
            await refused.receive(timeout=PATIENCE_S)
        assert raised.value.condition == "amqp:unauthorized-access"
        assert receiver.is_closed
        broker.channel.basic_cancel(tag)
    url = f"amqp091://guest:wrong@127.0.0.1:{broker.port}"
    with pytest.raises(LoginRefused, match="ACCESS_REFUSED"):
        await connect(url)


@over_sockets
async def test_a_queue_that_is_deleted_closes_its_receiver(broker: Running) -> None:
    queue = broker.declare()
    async with session_on(broker) as session:
        receiver = await session.receiver(f"/queues/{queue}")
        own = await session.receiver(None, dynamic=True)
        broker.put(queue, b"0")
        await (await receiver.receive(timeout=PATIENCE_S)).accept()
        broker.channel.queue_delete(queue)
        with pytest.raises(LinkClosed, match="amqp:resource-deleted"):
            await receiver.receive(timeout=PATIENCE_S)
        async with session.sender(own.address) as sender:
            await sender.send(b"x")
        async with await own.receive(timeout=PATIENCE_S) as message:
            assert message.body == b"x"


@over_sockets
async def test_receivers_come_and_go_all_the_time(broker: Running) -> None:
    """Nothing is lost or doubled where consumers are cancelled under load."""
    queue = broker.declare()
    broker.put(queue, *numbers(200))
    seen: list[bytes] = []
    async with session_on(broker) as session:
        while len(seen) < 200:
            async with session.receiver(f"/queues/{queue}", credit=20) as receiver:
                for _ in range(min(9, 200 - len(seen))):
                    message = await receiver.receive(timeout=PATIENCE_S)
                    seen.append(message.body)
                    await message.accept()
    assert seen == numbers(200)
    assert broker.depth(queue) == 0
