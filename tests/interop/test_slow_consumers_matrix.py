"""The matrix of SC-A2, whole: what each client sees of a slow consumer's end, by protocol, by how
it acknowledges, by how it consumes, and by what its subscription is.

pika speaks AMQP 0-9-1. Our client speaks both: AMQP 1.0, and AMQP 0-9-1, which has no settled
deliveries there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial

import pika.exceptions
import pytest

from tallymark.client import (
    ACCEPTED,
    Backoff,
    ClientError,
    Closed,
    Connection,
    ReceivedMessage,
    Receiver,
    Scope,
    Session,
    Transaction,
    TransactionRolledBack,
    connect,
)
from tallymark.client.events import ConnectionChanged
from tests.interop import blocking
from tests.interop.slow_cases import COUNT, SIZE, SLOW, Subscriber, looks, publish, told
from tests.support.patience import PATIENCE_S, until
from tests.support.process import BrokerProcess

KINDS = ["transient", "durable", "durable, delete-persistent"]
MODES = ["receive", "listener"]
ACKS = ["auto", "client", "dups-ok", "transacted", "no-ack"]
PROTOCOLS = ["pika", "amqp", "amqp091"]
CASES = [
    (protocol, ack)
    for protocol in PROTOCOLS
    for ack in ACKS
    if (protocol, ack) != ("amqp091", "no-ack")
]
NUMBERED = [b"%03d" % n for n in range(1000)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("protocol", "ack"), CASES)
def test_sc_a2_matrix(
    slow_broker: BrokerProcess, name: str, protocol: str, ack: str, mode: str, kind: str
) -> None:
    key = f"{'persistent' if kind.endswith('persistent') else 'count'}.{name}"
    if protocol == "pika":
        see_with_pika(slow_broker, key, name, ack, mode, kind)
        return
    with blocking.connect(slow_broker.amqp_port) as connection:
        channel = connection.channel()
        channel.queue_declare(name, durable=kind != "transient")
        channel.queue_bind(name, "amq.topic", key)

    async def story() -> None:
        async with asyncio.timeout(PATIENCE_S), AsyncExitStack() as stack:
            peer = Peer(slow_broker, protocol, name, ack, mode)
            await peer.open(stack)
            await asyncio.to_thread(publish, slow_broker, key, peer.window)
            await asyncio.to_thread(until, lambda: len(peer.bodies) == peer.window)
            count = COUNT + 1 + peer.window
            rest = partial(publish, slow_broker, key, count, first=peer.window)
            await asyncio.to_thread(rest)
            count += peer.window
            if kind == "durable":
                await peer.is_left_alone(count)
            else:
                await peer.is_disconnected()
                await peer.goes_on(key)

    asyncio.run(story())


# -- our client


class Peer:
    """A subscriber that has as many messages as its window takes, and is done with none of them
    before it is told to be."""

    def __init__(self, broker: BrokerProcess, scheme: str, queue: str, ack: str, mode: str) -> None:
        self.broker = broker
        self.url = f"{scheme}://guest:guest@127.0.0.1:{broker.amqp_port}"
        self.queue = queue
        self.ack = ack
        self.mode = mode
        self.window = 3 if ack == "dups-ok" else 1
        self.bodies: list[bytes] = []
        self.held: list[ReceivedMessage] = []
        self.errors: list[ClientError] = []
        self.changes: list[ConnectionChanged] = []
        self.may_work = asyncio.Event()
        self.transaction: Transaction | None = None
        self.connection: Connection
        self.session: Session
        self.receiver: Receiver

    async def open(self, stack: AsyncExitStack) -> None:
        def on_event(event: object) -> None:
            if isinstance(event, ConnectionChanged):
                self.changes.append(event)

        self.connection = await stack.enter_async_context(
            connect(self.url, reconnect=Backoff(), on_event=on_event)
        )
        self.changes.clear()
        self.session = await self.connection.session()
        self.session.on_error(self.errors.append)
        self.receiver = await self.session.receiver(
            f"/queues/{self.queue}", credit=self.window, exclusive=True,
            snd_mode="settled" if self.ack == "no-ack" else None,
        )  # fmt: skip
        if self.ack == "transacted":
            self.transaction = self.session.transaction()
            await self.transaction.__aenter__()
        consume = self._listen if self.mode == "listener" else self._receive
        self.consuming = asyncio.create_task(consume())

    async def _listen(self) -> None:
        await self.receiver.run(self._work, concurrency=self.window)

    async def _work(self, message: ReceivedMessage) -> None:
        self._take(message)
        await self.may_work.wait()
        if self.ack != "auto":  # else that it returns is enough
            await self._settle()

    async def _receive(self) -> None:
        """Waits in receive() with all that its window takes in hand, until it may work."""
        while True:
            self._take(await self.receiver.receive())
            if self.ack == "no-ack":  # where nothing else holds it up
                await self.may_work.wait()
            if self.may_work.is_set():
                await self._settle()

    def _take(self, message: ReceivedMessage) -> None:
        self.bodies.append(bytes(message.body)[:3])
        self.held.append(message)

    async def _settle(self) -> None:
        """All that it holds."""
        held, self.held = self.held, []
        if self.ack == "dups-ok":
            await self.receiver.settle_many(held, ACCEPTED)
        elif self.ack != "no-ack":
            for message in held:
                async with message:
                    pass
        if self.transaction is not None:
            await self.transaction.commit()

    # -- what is seen

    async def is_disconnected(self) -> None:
        """506 in every call, once to the listener of errors; the queue is gone [SC-7, SC-10]."""
        await asyncio.to_thread(until, lambda: self.errors)
        seen = list(self.bodies)
        assert seen == NUMBERED[: self.window]
        held = list(self.held)
        self.may_work.set()
        with pytest.raises(Closed) as closed:
            await self.consuming
        names_506(closed.value)
        assert closed.value.scope is Scope.SESSION
        assert not closed.value.may_retry
        names_506(self.errors[0])
        await self._later_calls(held)
        if self.ack == "no-ack":  # what had come is nobody else's; it is still handed over
            assert self.bodies == NUMBERED[: len(self.bodies)]
            assert len(self.bodies) <= 2 * self.window
        else:
            assert self.bodies == seen  # nobody was given another one
        assert [error.scope for error in self.errors] == [Scope.SESSION]
        await asyncio.to_thread(until, lambda: self.queue not in self.broker.queues())

    async def _later_calls(self, held: list[ReceivedMessage]) -> None:
        later: list[Callable[[], Awaitable[object]]] = [self.receiver.receive]
        if self.ack in ("client", "dups-ok"):
            later.append(held[0].accept)
        for call in later:
            with pytest.raises(Closed) as closed:
                await call()
            names_506(closed.value)
        if self.transaction is not None:
            with pytest.raises(TransactionRolledBack) as rolled_back:
                await self.transaction.commit()
            assert (rolled_back.value.code, SLOW[1] in str(rolled_back.value)) == (506, True)
            with pytest.raises(Closed) as closed:
                await self.transaction.rollback()
            names_506(closed.value)

    async def goes_on(self, key: str) -> None:
        """It was no error of the connection: that opens another session at once [SC-10, SC-A3]."""
        assert not self.connection.is_closed
        assert self.changes == []
        async with (
            self.connection.session() as session,
            session.receiver(None, dynamic=True) as receiver,
            session.sender(receiver.address) as sender,
        ):
            await sender.send(key)
            async with await receiver.receive() as message:
                assert message.body == key

    async def is_left_alone(self, count: int) -> None:
        """No error; it goes on to the last message, and its queue stays [SC-7]."""

        def is_over() -> bool:
            return bool(told(self.broker, "slow_consumer.found", self.queue))

        await asyncio.to_thread(until, is_over)
        await asyncio.to_thread(looks, self.broker, 2)
        assert not told(self.broker, "slow_consumer.acted", self.queue)
        assert not self.consuming.done()
        self.may_work.set()
        if self.mode == "receive":
            await self._settle()
        await asyncio.to_thread(until, lambda: len(self.bodies) >= count)
        assert self.bodies == NUMBERED[:count]
        assert self.errors == []
        self.consuming.cancel()
        await asyncio.wait([self.consuming])
        assert self.queue in await asyncio.to_thread(self.broker.queues)


def names_506(error: ClientError) -> None:
    assert error.code == SLOW[0]
    assert error.condition == "amqp:resource-limit-exceeded"
    assert error.text == SLOW[1]
    assert str(error) == "506 amqp:resource-limit-exceeded: Consuming too slow."
    assert error.is_remote


# -- pika


def see_with_pika(
    broker: BrokerProcess, key: str, name: str, ack: str, mode: str, kind: str
) -> None:
    durable = kind != "transient"
    subscriber = Subscriber(broker, key, name, durable=durable, ack=ack, mode=mode)
    body = b"." * SIZE
    count = COUNT + 1
    if ack == "no-ack":  # what its socket takes is gone; the rest is still in the queue
        body, count = bytes(64 * 1024), 400
    publish(broker, key, count, body)
    if kind == "durable":
        until(lambda: subscriber.state() == "over")
        _check_left_alone(subscriber, count)
        return
    until(lambda: not subscriber.is_there)
    _check_506(subscriber, mode)
    _check_what_it_can_still_do(subscriber)
    subscriber.close()


def _check_506(subscriber: Subscriber, mode: str) -> None:
    """The error in each form of consuming; what was on its way may come before it."""
    consume = subscriber.channel.start_consuming if mode == "listener" else subscriber.receive
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
        consume()
    assert (closed.value.reply_code, closed.value.reply_text) == SLOW
    if subscriber.ack != "no-ack":
        assert len(subscriber.bodies) <= 1  # pika's generator raises before it gives what it has


def _check_what_it_can_still_do(subscriber: Subscriber) -> None:
    """Later calls of the closed channel raise; the connection opens another at once."""
    channel = subscriber.channel
    later = {
        "client": lambda: channel.basic_ack(subscriber.last_tag),
        "transacted": channel.tx_commit,
    }.get(subscriber.ack)
    if later is not None:
        with pytest.raises(pika.exceptions.ChannelWrongStateError):
            later()
    if subscriber.ack == "transacted":
        with pytest.raises(pika.exceptions.ChannelWrongStateError):
            channel.tx_rollback()
    seen = len(subscriber.bodies)
    subscriber.connection.process_data_events(0.05)
    assert len(subscriber.bodies) == seen
    assert subscriber.connection.is_open
    subscriber.connection.channel().queue_declare("", exclusive=True)


def _check_left_alone(subscriber: Subscriber, count: int) -> None:
    """No error, the queue stays, and it goes on consuming to the last message [SC-7]."""
    looks(subscriber.broker, 2)
    assert subscriber.is_there

    def is_done() -> bool:
        if subscriber.mode == "receive":
            while subscriber.receive_one() and subscriber.ack == "no-ack":
                pass
        if subscriber.ack != "auto" and subscriber.last_tag:
            if subscriber.ack != "no-ack":
                subscriber.channel.basic_ack(subscriber.last_tag, subscriber.ack == "dups-ok")
            subscriber.last_tag = 0
        if subscriber.ack == "transacted":
            subscriber.channel.tx_commit()
        return len(subscriber.bodies) == count

    blocking.wait_until(subscriber.connection, is_done)
    assert [body[:3] for body in subscriber.bodies] == [b"%03d" % n for n in range(count)]
    assert told(subscriber.broker, "slow_consumer.found", subscriber.queue)
    assert not told(subscriber.broker, "slow_consumer.acted", subscriber.queue)
    subscriber.channel.queue_delete(subscriber.queue)
    subscriber.close()
