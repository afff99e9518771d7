"""Many senders, little credit, a narrow session window, and cancellations anywhere: never more than
the credit, delivery-ids without a gap, each message at most once, and whoever was told "accepted"
has been [FC-3, FC-A12, FC-A13]."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from tallymark.client import Accepted, ClientError, Message, Sender
from tallymark.wire.amqp10.events import Event, LinkDetached
from tallymark.wire.amqp10.limits import Limits
from tallymark.wire.amqp10.performatives import Transfer
from tallymark.wire.amqp10.receiver_link import ReceiverLink
from tests.support.amqp10_client import session_of
from tests.support.amqp10_peer import Peer
from tests.support.long import longer, sized
from tests.support.virtual_loop import run

SEEDS = sized(40, 200, 2000)


class Stingy(Peer):
    """Gives little credit, takes some of it back, drains, and keeps its window shut at times."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__(Limits(incoming_window=chance.choice((1, 2, 10)), idle_time_out_ms=0))
        self.chance = chance
        self.credit = chance.choice((0, 1, 5))
        self.is_kind = False
        self.answers = self._watch
        self.faults: list[Event] = []

    def _watch(self, event: Event) -> bool:
        if isinstance(event, LinkDetached) and event.error is not None:
            self.faults.append(event)
        return False

    def act(self) -> None:
        if not self.wire.sessions:
            return
        session = self.wire.sessions[0]
        if self.is_kind:
            session.hold_window(False)
        elif self.chance.random() < 0.3:
            session.hold_window(self.chance.random() < 0.5)
        for link in session.links:
            if isinstance(link, ReceiverLink) and not link.is_draining:
                choice = self.chance.random()
                if self.is_kind:
                    link.flow(10)
                elif choice < 0.4:
                    link.flow(self.chance.choice((0, 1, 2, 8)))
                elif choice < 0.5:
                    link.drain()
        self.flush()


@longer
@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_is_cancelled_credit_and_order_hold(seed: int) -> None:
    chance = random.Random(seed)

    async def story() -> None:
        peer = Stingy(chance)
        accepted: list[bytes] = []
        tried: Counter[bytes] = Counter()

        async def acts() -> None:
            while True:
                await asyncio.sleep(chance.random() * 0.1)
                peer.act()

        async def sends(number: int, sender: Sender) -> None:
            for i in range(15):
                bodies = [
                    b"%d:%d:%d:" % (number, i, part) + bytes(chance.choice((1, 1, 100, 300_000)))
                    for part in range(chance.choice((1, 1, 4)))
                ]
                tried.update(bodies)
                settled = chance.random() < 0.2
                call = asyncio.ensure_future(
                    sender.send_batch(
                        bodies, settled=settled, timeout=chance.choice((None, None, 0.3))
                    )
                )
                if chance.random() < 0.4:
                    await asyncio.wait([call], timeout=chance.choice((0.000001, 0.01, 0.2)))
                    call.cancel()
                await asyncio.wait([call])
                if call.cancelled():
                    continue
                if call.exception() is None:
                    assert call.result() == [None if settled else Accepted()] * len(bodies)
                    accepted.extend(bodies)
                else:
                    assert isinstance(call.exception(), ClientError)

        async with session_of(peer) as session:
            acting = asyncio.create_task(acts())
            senders = [await session.sender(f"t{i}") for i in range(3)]
            lives = [asyncio.create_task(sends(i, s)) for i, s in enumerate(senders * 2)]
            await asyncio.sleep(3)
            peer.is_kind = True
            for life in lives:
                await life
            await asyncio.sleep(2)
            acting.cancel()
            await asyncio.wait([acting])
            assert peer.faults == []  # more than the credit would have cost us the link
            assert session._dispatcher.sent == {}
            assert [sender.waiting for sender in senders] == [0, 0, 0]
        received = Counter(Message.parse(data).body for data in peer.received)
        assert received - tried == Counter()  # nothing made up, nothing twice
        assert Counter(accepted) - received == Counter()  # nothing lost
        ids = [t.delivery_id for t in peer.sent(Transfer) if t.delivery_id is not None]
        assert list(dict.fromkeys(ids)) == list(range(len(set(ids))))

    run(story, seed)
