"""Where a reader of a stream goes on: after a reconnect, and with the next consumer over 0-9-1."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import pytest

from tallymark.client import Backoff, Message, Receiver, Session, connect, filters
from tallymark.client.events import ConnectionChange, ConnectionChanged
from tallymark.wire.amqp10.performatives import Attach
from tests.support.amqp10_client import Events, session_of
from tests.support.amqp10_peer import Peer
from tests.support.patience import PATIENCE_S, until_on_loop
from tests.support.process import BrokerProcess
from tests.support.virtual_loop import quiet, virtual

SOON = Backoff(initial_ms=1, max_ms=100)
SPEC = "rabbitmq:stream-offset-spec"
PROTOCOLS = ("amqp", "amqp091")


def of_a_stream(*offsets: int) -> list[bytes]:
    return [Message(b"m", annotations={"x-stream-offset": one}).encode() for one in offsets]


def begun_with(peer: Peer) -> list[object]:
    """Return where each attach of a receiver asked to begin; None: it did not say."""
    found: list[object] = []
    for attach in peer.sent(Attach):
        asked: dict[Any, Any] = getattr(attach.source, "filter", None) or {}
        found.append(asked[SPEC].value if SPEC in asked else None)
    return found


async def cut(peer: Peer) -> None:
    peer.transport.cut(ConnectionResetError("reset by peer"))
    await quiet()


@virtual
async def test_a_reader_goes_on_with_the_first_message_that_was_not_settled() -> None:
    peer = Peer()
    sql = filters.sql("n > 0")
    async with session_of(peer, reconnect=SOON) as session:
        receiver = await session.receiver("s", credit=5, filter=sql)
        peer.put("s", *of_a_stream(3, 4, 5, 7))
        await (await receiver.receive()).accept()
        held = await receiver.receive()
        peer.nodes["s"].messages.clear()
        await cut(peer)
        await session.connection.ready()
        await cut(peer)  # before anything has come again
        await session.connection.ready()
        assert held.stream_offset == 4
        assert begun_with(peer) == [None, 4, 4]
        assert sql.items() <= receiver.filter.items()
        peer.put("s", *of_a_stream(4, 5, 7))
        for _ in range(3):
            await (await receiver.receive()).accept()
        await cut(peer)
        await session.connection.ready()
        assert begun_with(peer)[3:] == [8]  # behind the last


@virtual
async def test_a_reader_that_was_sent_nothing_begins_as_at_first() -> None:
    peer = Peer()
    async with session_of(peer, reconnect=SOON) as session:
        await session.receiver("s", filter=filters.stream_offset("last"))
        await cut(peer)
        await session.connection.ready()
        assert begun_with(peer) == ["last", "last"]


@virtual
async def test_a_message_that_cannot_be_read_leaves_the_place_as_it_is() -> None:
    peer = Peer()
    async with session_of(peer, reconnect=SOON) as session:
        receiver = await session.receiver("s", credit=5)
        peer.put("s", *of_a_stream(3))
        await (await receiver.receive()).accept()
        peer.put("s", b"\0S\x72\xff")
        held = await receiver.receive()
        peer.nodes["s"].messages.clear()
        await cut(peer)
        await session.connection.ready()
        assert begun_with(peer) == [None, 4]
        assert not held.settled


@virtual
async def test_a_reader_of_a_queue_asks_for_no_offset() -> None:
    peer = Peer()
    async with session_of(peer, reconnect=SOON) as session:
        receiver = await session.receiver("q", credit=5)
        peer.put("q", b"a", b"b")
        await receiver.receive()
        await cut(peer)
        await session.connection.ready()
        assert begun_with(peer) == [None, None]


# Against our own broker

EVENTS = Events()


def was_lost() -> bool:
    return any(event.change is ConnectionChange.LOST for event in EVENTS.of(ConnectionChanged))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("places") / "data") as running:
        yield running


@asynccontextmanager
async def reader(broker: BrokerProcess, protocol: str, stream: str) -> AsyncIterator[Session]:
    """A session whose connection is made again, beside a new stream with ten messages."""
    url = f"{protocol}://guest:guest@127.0.0.1:{broker.amqp_port}"
    opening = connect(url, reconnect=SOON, on_event=EVENTS.append)
    async with asyncio.timeout(PATIENCE_S), opening as connection:
        session = await connection.session()
        await session.declare_queue(stream, type="stream")
        await publish(session, stream, 10)
        yield session


async def publish(session: Session, stream: str, count: int) -> None:
    async with session.sender(f"/queues/{stream}") as sender:
        await sender.send_batch([b"m"] * count)


async def offsets(receiver: Receiver, count: int) -> list[int | None]:
    found = []
    for _ in range(count):
        async with await receiver.receive() as message:
            found.append(message.stream_offset)
    return found


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_nothing_of_a_stream_is_passed_over_when_the_connection_breaks(
    broker: BrokerProcess, protocol: str
) -> None:
    async def story() -> None:
        async with reader(broker, protocol, f"cut-{protocol}") as session:
            address = f"/queues/cut-{protocol}"
            receiver = await session.receiver(address, credit=4, filter=filters.stream_offset(1))
            assert await offsets(receiver, 2) == [1, 2]
            held = await receiver.receive()
            EVENTS.clear()
            _, rows = await asyncio.to_thread(broker.http, "GET", "/api/connections")
            for row in rows:
                path = f"/api/connections/{quote(row['name'], safe='')}"
                await asyncio.to_thread(broker.http, "DELETE", path)
            await until_on_loop(was_lost, what="the connection is lost")
            assert await offsets(receiver, 7) == list(range(3, 10))
            assert held.stream_offset == 3

    asyncio.run(story())


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_batches_with_credit_by_hand_follow_each_other(
    broker: BrokerProcess, protocol: str
) -> None:
    """Over AMQP 0-9-1 each one is another consumer."""

    async def story() -> None:
        async with reader(broker, protocol, f"hand-{protocol}") as session:
            address = f"/queues/hand-{protocol}"
            first = filters.stream_offset("first")
            receiver = await session.receiver(address, credit_mode="manual", filter=first)
            found = []
            for _ in range(3):
                batch = await receiver.receive_batch(3, PATIENCE_S)
                found += [message.stream_offset for message in batch]
                await receiver.settle_many(batch, "accept")
            assert found == list(range(9))

    asyncio.run(story())
