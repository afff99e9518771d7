"""AMQP 1.0 clients that do anything at any time: whatever they do, however their bytes come, each
message is in one place, and what clients know of their messages is what the queues know.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tallymark.wire.amqp10.events import LinkDetached, SessionEnded
from tallymark.wire.amqp10.limits import Limits
from tallymark.wire.amqp10.outcomes import (
    Accepted,
    DeliveryState,
    Modified,
    Rejected,
    Released,
)
from tallymark.wire.amqp10.performatives import Attach, Source, Target
from tallymark.wire.amqp10.receiver_link import ReceiverLink
from tallymark.wire.amqp10.sections import encode_message
from tallymark.wire.amqp10.sender_link import SenderLink
from tallymark.wire.amqp10.session import Session
from tests.bridge.rig10 import Got, Peer, Rig

QUEUES = ("q", "r")
STATES: tuple[DeliveryState, ...] = (
    Accepted(),
    Released(),
    Rejected(),
    Modified(delivery_failed=True),
    Modified(undeliverable_here=True),
)
PEERS = 2
Step = tuple[str, int, int, int]
steps = st.lists(
    st.tuples(
        st.sampled_from(
            (
                "publish", "publish", "publish settled", "anonymous", "consume", "credit",
                "credit", "drain", "settle", "settle", "settle range", "detach", "end", "vanish",
                "window", "disk", "delete", "time", "browse",
            )
        ),
        st.integers(0, PEERS - 1),
        st.integers(0, 7),
        st.integers(1, 9),
    ),
    max_size=40,
)  # fmt: skip


@dataclass
class Side:
    """One client, and what it knows."""

    peer: Peer
    session: Session
    senders: dict[str, SenderLink] = field(default_factory=dict)
    receivers: list[tuple[ReceiverLink, str, bool]] = field(default_factory=list)
    """With the queue, and whether it browses."""
    held: list[Got] = field(default_factory=list)
    """Not settled."""
    window_is_held: bool = False


class World:
    """A broker and its clients; `history` is what they saw."""

    def __init__(self, chunk: int) -> None:
        self.chunk = chunk
        self.rig = Rig(auto_create=".")
        self.rig.declare("q")
        self.rig.declare("r", max_length=25, overflow="reject-publish")
        self.sides = [self.side() for _ in range(PEERS)]
        self.number = self.links = 0
        self.sent: dict[int, str] = {}
        """Where each message went."""
        self.history: list[object] = []

    def side(self) -> Side:
        peer = self.rig.connect10(chunk=self.chunk, limits=Limits(incoming_window=20))
        return Side(peer, peer.session())

    # -- steps

    def take(self, step: Step) -> None:
        what, who, which, amount = step
        side = self.sides[who]
        queue = QUEUES[which % 2]
        if queue not in self.rig.broker.vhost("/").queues and self.rig.hold_disk:
            return  # an attach would declare it, and wait
        getattr(self, "do_" + what.replace(" ", "_"))(side, queue, which, amount)
        for one in self.sides:
            one.peer.pump()
        for one in self.sides:
            one.peer.pump()
            self.hear(one)
        self.rig.broker.check()

    def hear(self, side: Side) -> None:
        peer = side.peer
        gone = {event.link for event in peer.events if isinstance(event, LinkDetached)}
        for link in gone:
            link.detach()
        if gone:
            peer.pump()
        ended = any(isinstance(event, SessionEnded) for event in peer.events)
        assert not ended, [event for event in peer.events if isinstance(event, SessionEnded)]
        self.forget(side, gone)
        for got in peer.got:
            self.history.append((self.sides.index(side), int(got.body), got.settled))
            if not got.settled and got.link not in gone:
                side.held.append(got)
        peer.got.clear()
        peer.events.clear()

    def forget(self, side: Side, gone: set[object]) -> None:
        side.senders = {k: link for k, link in side.senders.items() if link not in gone}
        side.receivers = [one for one in side.receivers if one[0] not in gone]
        side.held = [got for got in side.held if got.link not in gone]

    def _publish(self, side: Side, queue: str, to: str | None, n: int, settled: bool) -> None:
        key = to or ""
        link = side.senders.get(key)
        if link is None:
            link = side.senders[key] = side.peer.sender(side.session, to)
        for _ in range(min(n, link.credit)):
            self.number += 1
            body = b"%d" % self.number
            front = b""
            if to is None:
                front = b"\x00\x53\x73\xc0\x06\x03\x40\x40\xa1\x01" + queue.encode()
            link.send(front + encode_message(body=body), settled=settled)

    def do_publish(self, side: Side, queue: str, which: int, amount: int) -> None:
        self._publish(side, queue, queue, amount, False)

    def do_publish_settled(self, side: Side, queue: str, which: int, amount: int) -> None:
        self._publish(side, queue, queue, amount, True)

    def do_anonymous(self, side: Side, queue: str, which: int, amount: int) -> None:
        if queue in self.rig.broker.vhost("/").queues:  # nothing declares it here
            self._publish(side, queue, None, amount, which % 4 == 0)

    def do_consume(self, side: Side, queue: str, which: int, amount: int) -> None:
        if len(side.receivers) < 4:
            link = side.peer.receiver(
                side.session, queue, amount, snd=which % 3, rcv=which // 4 % 2
            )
            side.receivers.append((link, queue, False))

    def do_browse(self, side: Side, queue: str, which: int, amount: int) -> None:
        if len(side.receivers) < 4:
            source = Source(address=queue, distribution_mode="copy")
            self.links += 1
            asked = Attach(name=f"b{self.links}", source=source, target=Target())
            link = side.peer.receiver(side.session, attach=asked, credit=amount)
            side.receivers.append((link, queue, True))

    def _receiver(self, side: Side, which: int) -> ReceiverLink | None:
        return side.receivers[which % len(side.receivers)][0] if side.receivers else None

    def do_credit(self, side: Side, queue: str, which: int, amount: int) -> None:
        link = self._receiver(side, which)
        if link is not None:
            link.flow(amount * 4 if which % 3 else 0)

    def do_drain(self, side: Side, queue: str, which: int, amount: int) -> None:
        link = self._receiver(side, which)
        if link is not None:
            link.flow(amount)
            link.drain()

    def do_settle(self, side: Side, queue: str, which: int, amount: int) -> None:
        for _ in range(min(amount, len(side.held))):
            got = side.held.pop(which % len(side.held))
            got.link.settle(got.id, got.id, STATES[(which + amount) % len(STATES)])

    def do_settle_range(self, side: Side, queue: str, which: int, amount: int) -> None:
        """Over several links, and what is settled already too."""
        first = [got for got in side.held if got.link.rcv_settle_mode == 0]
        if first:
            low, high = first[0].id, first[-1].id
            side.session.settle_received(low, high, STATES[which % len(STATES)])
            side.held = [got for got in side.held if not low <= got.id <= high]

    def do_detach(self, side: Side, queue: str, which: int, amount: int) -> None:
        links = [*side.senders.values(), *(link for link, _, _ in side.receivers)]
        if links:
            link = links[which % len(links)]
            link.detach(closed=amount % 2 == 0)
            self.forget(side, {link})

    def _anew(self, side: Side) -> None:
        self.sides[self.sides.index(side)] = self.side()

    def do_end(self, side: Side, queue: str, which: int, amount: int) -> None:
        side.session.end()
        side.peer.pump()
        side.peer.events.clear()
        side.peer.got.clear()
        self.sides[self.sides.index(side)] = Side(side.peer, side.peer.session())

    def do_vanish(self, side: Side, queue: str, which: int, amount: int) -> None:
        side.peer.vanish()
        self._anew(side)

    def do_window(self, side: Side, queue: str, which: int, amount: int) -> None:
        side.window_is_held = not side.window_is_held
        side.session.hold_window(side.window_is_held)

    def do_disk(self, side: Side, queue: str, which: int, amount: int) -> None:
        self.rig.hold_disk = not self.rig.hold_disk

    def do_delete(self, side: Side, queue: str, which: int, amount: int) -> None:
        if which == 0 and queue in self.rig.broker.vhost("/").queues:
            self.rig.hold_disk = False
            self.rig.delete(queue)

    def do_time(self, side: Side, queue: str, which: int, amount: int) -> None:
        self.rig.now_ms += amount * 5_000

    # -- the end

    def finish(self) -> list[object]:
        """Let everything come to an end; returns all that can be seen of it."""
        self.rig.hold_disk = False
        for side in self.sides:
            side.session.hold_window(False)
            side.peer.pump()
            self.hear(side)
        told: list[object] = []
        for side in self.sides:
            told.append(
                Counter((repr(one.states[-1]), one.settled) for one in side.peer.told.values())
            )
            assert all(one.settled for one in side.peer.told.values())
            client = side.peer.bridge.client
            assert client is not None
            for session in client.sessions:
                assert session.confirms.count() == 0
                for end in session.ends:
                    assert getattr(end, "unconfirmed", 0) == 0
            unsettled = side.peer.bridge.describe()["channels"]
            assert isinstance(unsettled, list)
            held = [got for got in side.held if not self._browses(side, got)]
            assert unsettled[-1]["unacked"] == len(held), (unsettled, len(held))
        queues = [
            (
                q.name,
                q.ready,
                q.acquired,
                q.account.settled,
                q.account.dead_lettered,
                dict(q.account.dropped),
                q.entered,
            )
            for q in self.rig.broker.queues.values()
        ]
        for side in self.sides:
            side.peer.wire.close()
            side.peer.pump()
            assert side.peer.bridge.closing
        for queue in self.rig.broker.queues.values():
            assert queue.acquired == 0
        assert self.rig.broker.connections.keys() == {self.rig.owner.id}
        return [self.history, told, queues]

    def _browses(self, side: Side, got: Got) -> bool:
        return any(link is got.link and browses for link, _, browses in side.receivers)


def run(history: list[Step], chunk: int) -> list[object]:
    world = World(chunk)
    for step in history:
        world.take(step)
    return world.finish()


def without_windows(history: list[Step]) -> list[Step]:
    """When a client's window opens again depends on how it reads."""
    return [step for step in history if step[0] != "window"]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps)
def test_every_message_is_in_one_place_whatever_clients_do(history: list[Step]) -> None:
    run(history, 0)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps, st.sampled_from((1, 3, 50)))
def test_what_clients_see_does_not_depend_on_how_bytes_come(
    history: list[Step], chunk: int
) -> None:
    history = without_windows(history)
    assert run(history, chunk) == run(history, 0)
