"""credit_on="handover", the old contract: it is there, it warns, and this is what goes wrong."""

from __future__ import annotations

import asyncio
import warnings

import pytest

from tallymark.client import ReceivedMessage, Receiver
from tallymark.wire.amqp10.events import DispositionReceived, Event
from tallymark.wire.amqp10.outcomes import Accepted
from tests.support.amqp10_client import receiver_of, session_of
from tests.support.amqp10_peer import Peer
from tests.support.virtual_loop import quiet, virtual

LOCK_S = 30.0
HANDLER_S = 12.0


class LockingPeer(Peer):
    """A broker with locks: what is not settled within 30 s goes to somebody else."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.handed_out: dict[int, tuple[bytes, float]] = {}
        self.expired = 0
        self.put("q", *[b"%d" % i for i in range(count)])
        self.answers = self._settled
        self._locks: list[asyncio.TimerHandle] = []

    def _settled(self, event: Event) -> bool:
        if isinstance(event, DispositionReceived) and isinstance(event.state, Accepted):
            for delivery_id in range(event.first, event.last + 1):
                self.handed_out.pop(delivery_id, None)
        return False

    def give(self, link):  # type: ignore[no-untyped-def]
        waiting = list(self.nodes["q"].messages)
        super().give(link)
        given = waiting[: len(waiting) - len(self.nodes["q"].messages)]
        first = link.session.next_delivery_id - len(given)
        loop = asyncio.get_running_loop()
        for i, message in enumerate(given):
            self.handed_out[first + i] = (message, loop.time())
            self._locks.append(loop.call_later(LOCK_S, self._expire, link, first + i))

    def _expire(self, link, delivery_id: int) -> None:  # type: ignore[no-untyped-def]
        found = self.handed_out.pop(delivery_id, None)
        if found is not None:
            self.expired += 1
            self.nodes["q"].messages.appendleft(found[0])
            self.give(link)
            self.flush()

    def lost(self) -> None:
        super().lost()
        for lock in self._locks:
            lock.cancel()


async def work(receiver: Receiver, seconds: float) -> list[int]:
    """A handler that needs 12 s for each message, and reads ahead: one task takes, one works."""
    taken: asyncio.Queue[ReceivedMessage] = asyncio.Queue()
    worked: list[int] = []

    async def take() -> None:
        async for message in receiver:
            taken.put_nowait(message)

    async def handle() -> None:
        while True:
            message = await taken.get()
            await asyncio.sleep(HANDLER_S)
            worked.append(int(message.body))
            await message.accept()

    tasks = [asyncio.create_task(take()), asyncio.create_task(handle())]
    await asyncio.sleep(seconds)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    return worked


@pytest.mark.filterwarnings("ignore:credit_on='handover'")
@virtual
async def test_with_credit_on_handover_locks_expire_and_messages_come_twice() -> None:
    peer = LockingPeer(8)
    async with receiver_of(peer, credit=1, credit_on="handover") as receiver:
        worked = await work(receiver, 1000)
        assert peer.expired > 0
        assert set(worked) == set(range(8))
        assert len(worked) > 8  # some twice


@virtual
async def test_with_credit_on_settlement_none_does() -> None:
    peer = LockingPeer(8)
    async with receiver_of(peer, credit=1) as receiver:
        worked = await work(receiver, 1000)
        assert peer.expired == 0
        assert sorted(worked) == list(range(8))


def test_handover_warns_and_names_the_remedy() -> None:
    @virtual
    async def story() -> None:
        async with receiver_of(Peer(), credit_on="handover"):
            pass

    with pytest.warns(DeprecationWarning, match="Use the default, and a larger credit="):
        story()


@virtual
async def test_the_slot_comes_back_when_the_message_is_handed_over() -> None:
    peer = Peer()
    peer.put("q", b"0", b"1", b"2")
    async with session_of(peer) as session:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            opening = session.receiver("q", credit=1, credit_on="handover")
        async with opening as receiver:
            held = []
            for number in range(3):
                held.append(await receiver.receive())
                await quiet()
                assert peer.flows()[-1] == (number + 1, 1)
            assert receiver.unsettled == 3  # of a window of one
            for message in held:
                await message.accept()
            await quiet()
            assert peer.ranges() == [(0, 2, True, "accepted")]
            assert receiver.unsettled == 0


def test_the_default_does_not_warn() -> None:
    @virtual
    async def story() -> None:
        async with receiver_of(Peer(), credit_on="settlement"):
            pass

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        story()
