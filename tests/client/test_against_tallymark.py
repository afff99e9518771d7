"""The client over real sockets, against our own broker: a process as users start it."""

from __future__ import annotations

import asyncio
import functools
import itertools
import random
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
import uvloop

from tallymark.client import (
    ACCEPTED,
    Accepted,
    Backoff,
    ConnectFailed,
    Connection,
    LinkClosed,
    LinkRefused,
    LoginRefused,
    Message,
    MessageReleased,
    ReceivedMessage,
    Session,
    SettlementRefused,
    connect,
    filters,
)
from tallymark.client.events import MessageOverdue
from tests.support.amqp10_client import Events, outcome_of
from tests.support.certificates import Authority
from tests.support.patience import PATIENCE_S, until_on_loop
from tests.support.process import BrokerProcess
from tests.support.virtual_loop import turns

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
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("client") / "data") as running:
        yield running


@pytest.fixture
def queue(broker: BrokerProcess) -> str:
    """A queue of the test's own."""
    return declare(broker)


def declare(broker: BrokerProcess, **arguments: object) -> str:
    name = f"q{next(names)}"
    body = {"durable": True, "arguments": {k.replace("_", "-"): v for k, v in arguments.items()}}
    status, _ = broker.http("PUT", f"/api/queues/%2F/{name}", body)
    assert status in (201, 204)
    return name


def depth(broker: BrokerProcess, queue: str) -> tuple[int, int]:
    """(ready, acquired)"""
    row = broker.queues()[queue]
    return row["ready"], row["acquired"]


@asynccontextmanager
async def connection_to(broker: BrokerProcess, **options: object) -> AsyncIterator[Connection]:
    url = f"amqp://guest:guest@127.0.0.1:{broker.amqp_port}"
    async with connect(url, **options) as connection:  # type: ignore[arg-type]
        yield connection


@asynccontextmanager
async def session_on(broker: BrokerProcess, **options: object) -> AsyncIterator[Session]:
    async with connection_to(broker, **options) as connection:
        async with connection.session() as session:
            yield session


async def fill(session: Session, queue: str, count: int) -> None:
    async with session.sender(f"/queues/{queue}") as sender:
        await sender.send_batch([b"%d" % i for i in range(count)])


@over_sockets
async def test_messages_go_round(broker: BrokerProcess, queue: str) -> None:
    async with session_on(broker) as session:
        assert session.connection.properties["platform"]
        async with session.sender(f"/queues/{queue}") as sender:
            sent = Message(
                {"a": [1, b"2", "3"]},
                subject="s",
                message_id="m",
                application_properties={"traceparent": "00-ab-cd-01", "n": 5},
                annotations={"x-opt-mine": 1},
                ttl_ms=600_000,
                priority=3,
            )
            assert await sender.send(sent) == Accepted()
            assert await sender.send(b"second") == Accepted()
        async with session.receiver(queue, credit=2) as receiver:
            async with await receiver.receive(timeout=PATIENCE_S) as message:
                assert message.body == {"a": [1, b"2", "3"]}
                assert (message.subject, message.message_id, message.priority) == ("s", "m", 3)
                assert message.application_properties == {"traceparent": "00-ab-cd-01", "n": 5}
                assert message.annotations["x-opt-mine"] == 1
                assert message.expires_at is not None
                assert (message.durable, message.delivery_count) == (True, 0)
            await (await receiver.receive(timeout=PATIENCE_S)).accept()
    assert depth(broker, queue) == (0, 0)


def test_messages_go_round_under_uvloop(broker: BrokerProcess) -> None:
    queue = declare(broker)

    async def story() -> None:
        async with asyncio.timeout(PATIENCE_S), session_on(broker) as session:
            await fill(session, queue, 2000)
            async with session.receiver(queue, credit=100) as receiver:
                for i in range(2000):
                    async with await receiver.receive(timeout=PATIENCE_S) as message:
                        assert message.body == b"%d" % i

    uvloop.run(story())
    assert depth(broker, queue) == (0, 0)


@pytest.mark.parametrize("mode", ["first", "second"])
def test_fc_a1_and_a2_on_a_socket(broker: BrokerProcess, mode: str) -> None:
    queue = declare(broker)
    lines: list[str] = []

    @over_sockets
    async def story() -> None:
        async with connection_to(broker, trace=lines.append) as connection:
            session = await connection.session()
            await fill(session, queue, 3)
            async with session.receiver(queue, rcv_mode=mode) as receiver:
                message = await receiver.receive()
                lines.clear()
                await (await connection.session()).close()
                assert not [line for line in lines if "[0]" in line]  # no flow, no delivery
                lines.clear()
                await message.accept()
                following = await receiver.receive()
                kinds = [" ".join(line.split()[:3]) for line in lines]
                expected = ["-> [0] Disposition", "-> [0] Flow", "<- [0] Transfer"]
                if mode == "second":
                    expected.insert(1, "<- [0] Disposition")
                assert kinds == expected
                await following.accept()

    story()


@over_sockets
async def test_outcomes_have_their_effect(broker: BrokerProcess) -> None:
    letters = declare(broker)
    queue = declare(broker, x_dead_letter_exchange="", x_dead_letter_routing_key=letters)
    async with session_on(broker) as session:
        await fill(session, queue, 4)
        async with session.receiver(queue, credit=4) as receiver:
            accepted, rejected, released, modified = [await receiver.receive() for _ in range(4)]
            await accepted.accept()
            await rejected.reject("no good")
            await modified.modify(annotations={"x-opt-why": "busy"})
            await released.release()
            again = [await receiver.receive(timeout=PATIENCE_S) for _ in range(2)]
            assert [m.body for m in again] == [b"2", b"3"]  # at their old places
            assert [m.delivery_count for m in again] == [0, 1]
            assert again[1].annotations["x-opt-why"] == "busy"
            await receiver.settle_many(again, ACCEPTED)
        async with session.receiver(letters) as receiver:
            async with await receiver.receive(timeout=PATIENCE_S) as letter:
                assert letter.body == b"1"
                (death,) = letter.annotations["x-opt-deaths"]  # type: ignore[misc]
                assert death["reason"] == "rejected"
    assert depth(broker, queue) == (0, 0)


@over_sockets
async def test_fc_19_a_closed_receiver_gives_everything_back_in_order(
    broker: BrokerProcess, queue: str
) -> None:
    async with session_on(broker) as session:
        await fill(session, queue, 10)
        receiver = await session.receiver(queue, credit=5)
        held = [await receiver.receive() for _ in range(2)]
        await receiver.close()
        with pytest.raises(LinkClosed):
            await held[0].accept()
        async with session.receiver(queue, credit=10) as another:
            messages = [await another.receive(timeout=PATIENCE_S) for _ in range(10)]
            assert [m.body for m in messages] == [b"%d" % i for i in range(10)]
            assert {m.delivery_count for m in messages} == {0}  # a close is no failure
            await another.settle_many(messages, ACCEPTED)


@over_sockets
async def test_batches_and_drain(broker: BrokerProcess, queue: str) -> None:
    async with session_on(broker) as session:
        await fill(session, queue, 7)
        async with session.receiver(queue, credit_mode="manual") as receiver:
            batch = await receiver.receive_batch(5, timeout=PATIENCE_S)
            assert len(batch) == 5
            await receiver.settle_many(batch, ACCEPTED)
            batch = await receiver.receive_batch(5, timeout=0.2)
            assert len(batch) == 2
            await receiver.settle_many(batch, ACCEPTED)
            receiver.issue_credit(3)
            assert await receiver.drain() == 3
            assert receiver.credit == 0
    assert depth(broker, queue) == (0, 0)


@over_sockets
async def test_handlers_many_at_a_time(broker: BrokerProcess, queue: str) -> None:
    seen: list[bytes] = []
    done = asyncio.Event()

    async def handler(message: ReceivedMessage) -> None:
        if message.delivery_count == 0 and message.body.endswith(b"7"):
            await message.modify()
            return
        await turns(3)
        seen.append(message.body)
        if len(seen) == 300:
            done.set()

    async with session_on(broker) as session:
        await fill(session, queue, 300)
        async with session.receiver(queue, credit=50) as receiver:
            task = asyncio.create_task(receiver.run(handler, concurrency=10))
            await done.wait()
            await until_on_loop(lambda: not receiver.unsettled)
            task.cancel()
            await asyncio.wait([task])
    assert sorted(seen) == sorted(b"%d" % i for i in range(300))
    assert depth(broker, queue) == (0, 0)


@over_sockets
async def test_sent_settled_both_ways(broker: BrokerProcess, queue: str) -> None:
    async with session_on(broker) as session:
        async with session.sender(queue, settle_mode="settled") as sender:
            assert await sender.send_batch([b"x"] * 20) == [None] * 20
        async with session.receiver(queue, credit=5, snd_mode="settled") as receiver:
            for _ in range(20):
                assert (await receiver.receive(timeout=PATIENCE_S)).settled
    assert depth(broker, queue) == (0, 0)


@over_sockets
async def test_browsing_takes_nothing(broker: BrokerProcess, queue: str) -> None:
    async with session_on(broker) as session:
        await fill(session, queue, 5)
        async with session.receiver(queue, credit=10, browse=True) as receiver:
            bodies = [(await receiver.receive(timeout=PATIENCE_S)).body for _ in range(5)]
            assert bodies == [b"%d" % i for i in range(5)]
    assert depth(broker, queue) == (5, 0)


@over_sockets
async def test_another_virtual_host(broker: BrokerProcess) -> None:
    broker.http("PUT", "/api/vhosts/else%2Fwhere")
    rights = {"configure": ".*", "write": ".*", "read": ".*"}
    broker.http("PUT", "/api/permissions/else%2Fwhere/guest", rights)
    broker.http("PUT", "/api/queues/else%2Fwhere/only-here", {"durable": True})
    url = f"amqp://guest:guest@127.0.0.1:{broker.amqp_port}"
    async with connect(f"{url}/else%2Fwhere") as connection, connection.session() as session:
        async with session.sender("only-here") as sender:
            await sender.send("x")
    async with connect(url) as connection, connection.session() as session:
        with pytest.raises(LinkRefused, match="no queue 'only-here' in vhost '/'"):
            await session.sender("only-here")
    with pytest.raises(ConnectFailed, match="nowhere"):
        await connect(f"{url}/nowhere")


@over_sockets
async def test_messages_are_durable_unless_they_say_otherwise(
    broker: BrokerProcess, queue: str
) -> None:
    async with session_on(broker) as session:
        async with session.sender(queue) as sender:
            await sender.send(Message("kept"))
            await sender.send(Message("not kept", durable=False))
        async with session.receiver(queue, credit=2, browse=True) as receiver:
            assert [(await receiver.receive(timeout=PATIENCE_S)).durable for _ in range(2)] == [
                True,
                False,
            ]


@over_sockets
async def test_filters(broker: BrokerProcess) -> None:
    queue = declare(broker)
    async with session_on(broker) as session:
        async with session.sender(queue) as sender:
            for i in range(6):
                subject, own = ("new", "old")[i % 2], {"n": i}
                await sender.send(Message(b"%d" % i, subject=subject, application_properties=own))
        for filter, expected in (
            (filters.sql("n > 3"), [b"4", b"5"]),
            (filters.selector("n = 0"), [b"0"]),
            (filters.properties(subject="new"), [b"0", b"2", b"4"]),
            (filters.application_properties({"n": 1}), [b"1"]),
            (filters.properties(subject="old") | filters.sql("n > 1"), [b"3", b"5"]),
        ):
            async with session.receiver(queue, credit=10, browse=True, filter=filter) as receiver:
                assert receiver.filter.keys() == filter.keys()
                messages = await receiver.receive_batch(len(expected), timeout=PATIENCE_S)
                assert [message.body for message in messages] == expected
        async with session.receiver(queue, filter={"unheard-of": 1}) as receiver:
            assert receiver.filter == {}


@over_sockets
async def test_a_stream_is_read_from_where_its_reader_says(broker: BrokerProcess) -> None:
    stream = declare(broker, x_queue_type="stream")
    async with session_on(broker) as session:
        async with session.sender(stream) as sender:
            for i in range(4):
                await sender.send(Message(b"%d" % i, application_properties={"n": i}))
        for filter, expected in (
            (filters.stream_offset("first"), [0, 1, 2, 3]),
            (filters.stream_offset(2), [2, 3]),
            (filters.stream_offset("1h") | filters.sql("n > 2"), [3]),
            (filters.stream_offset(datetime(2000, 1, 1, tzinfo=UTC)), [0, 1, 2, 3]),
        ):
            async with session.receiver(stream, credit=10, filter=filter) as receiver:
                assert receiver.filter.keys() == filter.keys()
                messages = await receiver.receive_batch(len(expected), timeout=PATIENCE_S)
                assert [message.stream_offset for message in messages] == expected
                assert [message.body for message in messages] == [b"%d" % i for i in expected]
        with pytest.raises(LinkRefused, match="expected first, last, next"):
            async with session.receiver(stream, filter=filters.stream_offset("soon")):
                pass
    for wrong in (-1, datetime(1960, 1, 1, tzinfo=UTC)):
        with pytest.raises(ValueError, match="expected"):
            filters.stream_offset(wrong)


@over_sockets
async def test_tls_and_a_certificate_for_a_name(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server, client = authority.sign("server"), authority.sign("guest")
    with BrokerProcess(
        tmp_path / "data",
        amqps_port="0",
        amqps_cert=str(server.cert),
        amqps_key=str(server.key),
        amqps_ca_file=str(authority.own.cert),
        amqps_verify="optional",
    ) as broker:
        port = broker.ready["listeners"]["amqps"][0][1]
        context = ssl.create_default_context(cafile=authority.own.cert)
        async with connect(f"amqps://guest:guest@localhost:{port}", ssl=context) as connection:
            async with connection.session():
                pass
        context.load_cert_chain(client.cert, client.key)
        url = f"amqps://localhost:{port}"
        async with connect(url, ssl=context, sasl="EXTERNAL") as connection:
            async with connection.session():
                pass
        with pytest.raises(ConnectFailed, match="certificate verify failed"):
            await connect(f"amqps://guest:guest@localhost:{port}")


@over_sockets
async def test_large_messages(broker: BrokerProcess, queue: str) -> None:
    body = bytes(range(256)) * 12_000  # 3 MB, dozens of frames, more than a session's window
    async with session_on(broker, session_window=10) as session:
        async with session.sender(queue) as sender, session.receiver(queue, credit=3) as receiver:
            await asyncio.gather(*[sender.send(body) for _ in range(3)])
            for _ in range(3):
                async with await receiver.receive(timeout=PATIENCE_S) as message:
                    assert message.body == body


@over_sockets
async def test_the_anonymous_terminus(broker: BrokerProcess, queue: str) -> None:
    async with session_on(broker) as session, session.sender(None) as sender:
        await sender.send(Message("to you", to=f"/queues/{queue}"))
        with pytest.raises(MessageReleased):
            await sender.send(Message("to nobody", to="/exchanges/amq.direct/nobody"))
    assert depth(broker, queue) == (1, 0)


@over_sockets
async def test_a_dynamic_node_is_where_answers_come(broker: BrokerProcess, queue: str) -> None:
    async with session_on(broker) as session, session.receiver(None, dynamic=True) as answers:
        assert answers.address
        async with session.sender(queue) as sender:
            await sender.send(Message("question", reply_to=answers.address, correlation_id="1"))
        async with session.receiver(queue) as receiver, session.sender(None) as replier:
            async with await receiver.receive(timeout=PATIENCE_S) as question:
                answer = Message("answer", to=question.reply_to, correlation_id="1")
                await replier.send(answer)
        async with await answers.receive(timeout=PATIENCE_S) as message:
            assert (message.body, message.correlation_id) == ("answer", "1")


@over_sockets
async def test_refusals(broker: BrokerProcess) -> None:
    port = broker.amqp_port
    with pytest.raises(LoginRefused):
        await connect(f"amqp://guest:wrong@127.0.0.1:{port}")
    async with session_on(broker) as session:
        with pytest.raises(LinkRefused, match="no queue 'nothing'"):
            await session.receiver("/queues/nothing")
        with pytest.raises(LinkRefused, match="no queue 'nothing'"):
            await session.sender("/queues/nothing")


@over_sockets
async def test_fc_18_a_consumer_time_out_takes_the_message_back(broker: BrokerProcess) -> None:
    queue = declare(broker, x_consumer_timeout=1000)
    taken_back: asyncio.Queue[tuple[ReceivedMessage, object]] = asyncio.Queue()
    async with session_on(broker) as session:
        await fill(session, queue, 1)
        async with session.receiver(queue) as receiver:
            receiver.on_delivery_state_changed(lambda m, state: taken_back.put_nowait((m, state)))
            message = await receiver.receive()
            assert message.locked_until is not None
            found, state = await taken_back.get()
            assert found is message
            assert type(state).__name__ == "Released"
            assert message.settled
            await message.accept()  # too late: a no-op
            async with await receiver.receive(timeout=PATIENCE_S) as again:
                assert again.body == b"0"
    assert depth(broker, queue) == (0, 0)


@over_sockets
async def test_max_unsettled_age_lock_is_earlier_than_the_broker(broker: BrokerProcess) -> None:
    queue = declare(broker, x_consumer_timeout=5000)
    events = Events()
    changed: list[object] = []
    async with session_on(broker, on_event=events.append) as session:
        await fill(session, queue, 1)
        async with session.receiver(queue, max_unsettled_age="lock") as receiver:
            receiver.on_delivery_state_changed(lambda m, state: changed.append(state))
            message = await receiver.receive()
            async with await receiver.receive(timeout=PATIENCE_S) as again:
                assert again.body == b"0"
            assert changed == []
            assert message.settled
        overdue = events.of(MessageOverdue)
        assert [event.was_released for event in overdue] == [False, True]
        assert 3750 < overdue[0].limit_ms <= 5000


@over_sockets
async def test_two_receivers_share_a_queue(broker: BrokerProcess, queue: str) -> None:
    async with session_on(broker) as one, session_on(broker) as two:
        await fill(one, queue, 100)
        async with one.receiver(queue, credit=3) as a, two.receiver(queue, credit=3) as b:
            seen: list[bytes] = []

            async def read(receiver: object) -> int:
                count = 0
                async for message in receiver:  # type: ignore[attr-defined]
                    async with message:
                        seen.append(message.body)
                        count += 1
                        await turns(3)
                return count

            readers = [asyncio.create_task(read(a)), asyncio.create_task(read(b))]
            await until_on_loop(lambda: len(seen) == 100 and not a.unsettled + b.unsettled)
            await a.close()
            await b.close()
            assert min([await reader for reader in readers]) > 10
    assert sorted(seen) == sorted(b"%d" % i for i in range(100))
    assert depth(broker, queue) == (0, 0)


def test_a_broker_that_is_killed_and_comes_back(tmp_path: Path) -> None:
    """kill -9 in the middle: what was accepted is neither lost nor given again, apart from what
    was accepted in the moment of the kill."""
    with BrokerProcess(tmp_path / "data", keeps_ports=True) as broker:
        queue = declare(broker)
        port = broker.amqp_port
        chance = random.Random(20261122)

        async def some_more(seen: list[int]) -> None:
            """Until a number of messages came after those that had."""
            wanted = len(seen) + chance.randint(1, 300)
            await until_on_loop(lambda: len(seen) >= wanted, what="messages come")

        @over_sockets
        async def story() -> None:
            sent: list[int] = []
            seen: list[int] = []
            url = f"amqp://guest:guest@127.0.0.1:{port}"
            backoff = Backoff(initial_ms=50, max_ms=200)
            async with connect(url, reconnect=backoff) as connection:
                producer = asyncio.create_task(produce(connection, sent))
                consumer = asyncio.create_task(consume(connection, seen))
                for _ in range(2):
                    await some_more(seen)
                    await asyncio.to_thread(broker.kill)
                    await asyncio.to_thread(broker.restart)
                await some_more(seen)
                producer.cancel()
                await asyncio.wait([producer])
                await until_on_loop(lambda: not set(sent) - set(seen))
                consumer.cancel()
                await asyncio.wait([consumer])
            doubles = len(seen) - len(set(seen))
            assert doubles <= 2 * 20  # one window each time, at most

        async def produce(connection: Connection, sent: list[int]) -> None:
            session = await connection.session()
            sender = await session.sender(queue)
            for number in itertools.count():
                while await outcome_of(sender.send(b"%d" % number)) != Accepted():
                    pass  # in doubt: once more
                sent.append(number)

        async def consume(connection: Connection, seen: list[int]) -> None:
            session = await connection.session()
            receiver = await session.receiver(queue, credit=20)
            async for message in receiver:
                seen.append(int(message.body))
                error = await outcome_of(message.accept())
                assert not isinstance(error, SettlementRefused)

        story()
