"""Slow consumers over AMQP 1.0, over sockets: what proton sees, pre-settled consumers that do not
read, and publishers that are held. The matrix is in test_slow_consumers_matrix.py."""

from __future__ import annotations

import asyncio
import socket
from contextlib import closing

import pytest

from tallymark.client import Closed, Scope, connect
from tallymark.wire.amqp10.events import SessionEnded, TransfersReceived
from tallymark.wire.amqp10.performatives import SND_SETTLED
from tallymark.wire.amqp10.types import Symbol
from tests.interop import blocking
from tests.interop.slow_cases import COUNT, SLOW, looks, publish, told
from tests.support.amqp10_socket import Client
from tests.support.patience import PATIENCE_S, until
from tests.support.process import BrokerProcess

EXCLUSIVE: dict[object, object] = {Symbol("tallymark:exclusive"): True}
OVER = "slow_consumer.found"
LIMIT_EXCEEDED = "amqp:resource-limit-exceeded"


def url_of(broker: BrokerProcess) -> str:
    return f"amqp://guest:guest@127.0.0.1:{broker.amqp_port}"


def subscribe(broker: BrokerProcess, key: str, queue: str) -> str:
    """A queue for whoever consumes from it alone; returns its address."""
    with blocking.connect(broker.amqp_port) as connection:
        channel = connection.channel()
        channel.queue_declare(queue)
        channel.queue_bind(queue, "amq.topic", key)
    return f"/queues/{queue}"


# -- SC-9 as proton sees it


@pytest.mark.parametrize("scope", ["session", "link"])
def test_sc_9_proton_sees_the_condition_and_its_connection_goes_on(
    slow_broker: BrokerProcess, name: str, scope: str
) -> None:
    proton = pytest.importorskip("proton", reason="python-qpid-proton is not built")
    from proton.reactor import Container, LinkOption

    from tests.interop.proton_reactor import Story

    key = f"{'link' if scope == 'link' else 'count'}.{name}"
    address = subscribe(slow_broker, key, name)
    publish(slow_broker, key, COUNT + 1)

    class Alone(LinkOption):  # type: ignore[misc]
        def apply(self, link: proton.Link) -> None:
            link.properties = {proton.symbol("tallymark:exclusive"): True}

    class Slow(Story):
        """Takes one message and keeps it; once told off, it uses what is left."""

        def __init__(self) -> None:
            super().__init__(url_of(slow_broker), prefetch=0, auto_accept=False)
            self.seen: list[tuple[str, str, str]] = []

        def begin(self, container: Container, connection: proton.Connection) -> None:
            receiver = container.create_receiver(connection, address, options=Alone())
            receiver.flow(1)

        def on_message(self, event: proton.Event) -> None:
            self.bodies.append(event.message.body)

        def on_session_error(self, event: proton.Event) -> None:
            self._saw("session", event.session.remote_condition)
            session = event.connection.session()
            session.open()
            event.container.create_sender(session, "/exchanges/amq.topic/nobody")

        def on_link_error(self, event: proton.Event) -> None:
            self._saw("link", event.link.remote_condition)
            event.container.create_sender(event.session, "/exchanges/amq.topic/nobody")

        def _saw(self, what: str, condition: proton.Condition) -> None:
            self.seen.append((what, condition.name, condition.description))

        def on_sendable(self, event: proton.Event) -> None:
            event.sender.send(proton.Message(body="on the same connection"))

        def on_settled(self, event: proton.Event) -> None:
            self.end()

    story = Slow()
    story.run()
    assert story.seen == [(scope, LIMIT_EXCEEDED, SLOW[1])]
    assert len(story.bodies) == 1
    assert name not in slow_broker.queues()


def test_sc_9_scope_link_leaves_our_clients_session(slow_broker: BrokerProcess, name: str) -> None:
    address = subscribe(slow_broker, f"link.{name}", name)

    async def story() -> None:
        async with asyncio.timeout(PATIENCE_S), connect(url_of(slow_broker)) as connection:
            session = await connection.session()
            receiver = await session.receiver(address, exclusive=True)
            sender = await session.sender(f"/exchanges/amq.topic/link.{name}")
            await sender.send_batch([b"m"] * (COUNT + 1))
            held = await receiver.receive()
            for call in (receiver.receive, held.accept):
                with pytest.raises(Closed) as closed:
                    await call()
                assert (closed.value.code, closed.value.scope) == (SLOW[0], Scope.LINK)
            assert not session.is_closed
            again = await session.receiver(None, dynamic=True)
            async with session.sender(again.address) as beside:
                await beside.send("beside")
            assert (await again.receive()).body == "beside"

    asyncio.run(story())
    assert name not in slow_broker.queues()


# -- SC-D6


def test_sc_d6_a_pre_settled_consumer_that_never_reads_leaves_messages_in_the_queue(
    slow_broker: BrokerProcess, name: str
) -> None:
    size, high, count = 16 * 1024, 64 * 1024, 1000
    key = f"notify.{name}"
    address = subscribe(slow_broker, key, name)
    raw = socket.create_connection(("127.0.0.1", slow_broker.amqp_port))
    with closing(raw):
        client = Client(raw).login()
        link = client.receiver(client.session(), address, SND_SETTLED, EXCLUSIVE)
        link.flow(1_000_000)
        client.work()
        publish(slow_broker, key, count, bytes(size))
        assert slow_broker.queues()[name]["ready"] > 300
        rows = slow_broker.http("GET", "/api/tallymark/connections")[1]["connections"]
        (slow,) = [one for one in rows if one["state"] == "slow"]
        assert slow["unsent_bytes"] <= high + 2 * size
        until(lambda: told(slow_broker, OVER, name))
        got = 0

        def is_done() -> bool:
            nonlocal got
            for event in client.work():
                if isinstance(event, TransfersReceived):
                    got += len(event.tags)
            return got == count

        until(is_done)
        row = slow_broker.queues()[name]
        assert (row["ready"], row["acquired"]) == (0, 0)


def test_sc_a2_a_pre_settled_consumer_that_never_reads_is_closed(
    slow_broker: BrokerProcess, name: str
) -> None:
    """It finds why when it reads again."""
    key = f"count.{name}"
    address = subscribe(slow_broker, key, name)
    raw = socket.create_connection(("127.0.0.1", slow_broker.amqp_port))
    with closing(raw):
        client = Client(raw).login()
        client.receiver(client.session(), address, SND_SETTLED, EXCLUSIVE).flow(1_000_000)
        client.work()
        publish(slow_broker, key, 400, bytes(64 * 1024))
        until(lambda: name not in slow_broker.queues())
        ends: list[SessionEnded] = []

        def has_ended() -> bool:
            ends.extend(one for one in client.work() if isinstance(one, SessionEnded))
            return bool(ends)

        until(has_ended)
        (end,) = ends
        assert end.error is not None
        assert (end.error.condition, end.error.description) == (LIMIT_EXCEEDED, SLOW[1])


# -- SC-D7


def test_sc_d7_flow_holds_a_publisher_of_amqp_1_0_until_the_consumer_caught_up(
    slow_broker: BrokerProcess, name: str
) -> None:
    """It goes on with the credit that it has, and is granted no more [FC-7]."""
    key, count = f"flow.{name}", 5000
    address = subscribe(slow_broker, key, name)

    def entered() -> int:
        return int(slow_broker.queues()[name]["entered"])

    def is_held() -> bool:
        rows = slow_broker.http("GET", "/api/tallymark/connections")[1]["connections"]
        return [row["state"] for row in rows].count("blocked") == 1

    async def story() -> None:
        async with (
            asyncio.timeout(PATIENCE_S),
            connect(url_of(slow_broker)) as consumer,
            connect(url_of(slow_broker)) as publisher,
            connect(url_of(slow_broker)) as elsewhere,
        ):
            receiver = await (await consumer.session()).receiver(
                address, exclusive=True, credit=100
            )
            sender = await (await publisher.session()).sender(f"/exchanges/amq.topic/{key}")
            await sender.send_batch([b"m"] * (COUNT + 1))
            await asyncio.to_thread(until, lambda: told(slow_broker, OVER, name))
            sending = asyncio.create_task(sender.send_batch([b"m"] * count))
            await asyncio.to_thread(until, is_held)
            beside = await (await elsewhere.session()).sender(f"/exchanges/amq.fanout/{name}")
            await beside.send(b"not held", settled=True)
            await asyncio.to_thread(looks, slow_broker, 2)
            assert not sending.done()
            assert await asyncio.to_thread(entered) < count
            for _ in range(COUNT + 1 + count):
                await (await receiver.receive()).accept()
            await sending

    asyncio.run(story())
    assert entered() == COUNT + 1 + count
    assert not is_held()
