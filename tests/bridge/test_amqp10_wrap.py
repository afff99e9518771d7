"""AMQP 1.0: numbers run over the end of 2^32 in both directions [FC-1, FC-A10]."""

from __future__ import annotations

import pytest

from tallymark.bridge.amqp10.client import Session as BridgeSession
from tallymark.wire.amqp10.events import DrainFinished
from tallymark.wire.amqp10.limits import Limits
from tallymark.wire.amqp10.outcomes import Accepted, Released
from tallymark.wire.amqp10.performatives import Attach, Source, Target
from tallymark.wire.amqp10.session import Session
from tests.bridge.rig10 import Peer, Rig
from tests.bridge.test_amqp10_consume import counts, fill

LAST = 0xFFFF_FFFF


def session_near_the_end(peer: Peer, before: int) -> Session:
    """A session whose deliveries to the client begin so many numbers before the end."""
    session = peer.session()
    client = peer.bridge.client
    assert client is not None
    (ours,) = client.sessions
    assert isinstance(ours, BridgeSession)
    ours.engine.next_tag = LAST + 2 - before  # its number is the tag less one
    ours.wire.next_delivery_id = LAST + 1 - before
    return session


@pytest.fixture
def rig() -> Rig:
    made = Rig()
    made.declare("q")
    return made


@pytest.mark.parametrize("chunk", [0, 1])
@pytest.mark.parametrize("mode", [0, 1])
def test_fc_a10_deliveries_to_a_client_over_the_end(rig: Rig, mode: int, chunk: int) -> None:
    fill(rig, 6)
    peer = rig.connect10(chunk=chunk)
    session = session_near_the_end(peer, 2)
    link = peer.receiver(session, credit=6, rcv=mode)
    assert [got.id for got in peer.got] == [LAST - 1, LAST, 0, 1, 2, 3]
    if mode == 0:
        session.settle_received(LAST - 1, 1, Accepted())
    else:
        link.settle(LAST - 1, 1, Accepted())
    peer.pump()
    assert counts(rig) == (0, 2, 4), "first=4294967294, last=1 settles four"
    session.settle_received(0, 3, Released()) if mode == 0 else link.settle(2, 3, Released())
    peer.pump()
    assert counts(rig) == (2, 0, 4)
    assert link.in_flight() == []


@pytest.mark.parametrize("chunk", [0, 1])
@pytest.mark.parametrize("mode", [0, 1])
def test_fc_a10_publishes_over_the_end(rig: Rig, mode: int, chunk: int) -> None:
    peer = rig.connect10(chunk=chunk)
    session = peer.session()
    session.next_delivery_id = LAST - 1
    link = peer.sender(session, rcv=mode)
    numbers = peer.send(link, "1", "2", "3", "4")
    assert numbers == [LAST - 1, LAST, 0, 1]
    told = [peer.told.pop(number) for number in numbers]
    assert [(one.states, one.settled) for one in told] == [([Accepted()], mode == 0)] * 4
    for _ in range(4):
        assert link.credit > 85, "nothing is counted as on its way for ever"
        peer.send(link, *["x"] * link.credit)


def test_fc_a10_refusals_over_the_end(rig: Rig) -> None:
    rig.declare("full", max_length=3, overflow="reject-publish")
    peer = rig.connect10()
    session = peer.session()
    session.next_delivery_id = LAST - 1
    link = peer.sender(session, "full")
    states = peer.states(peer.send(link, *"123456"))
    assert states[:3] == [Accepted()] * 3
    assert all(type(state).__name__ == "Rejected" for state in states[3:])


def test_fc_a10_delivery_counts_over_the_end(rig: Rig) -> None:
    """The client's delivery-count is ours to follow [FC-3]; ours begins at 0."""
    peer = rig.connect10()
    session = peer.session()
    asked = Attach(
        name="l", source=Source(), target=Target(address="q"), initial_delivery_count=LAST - 3
    )
    link = peer.sender(session, attach=asked)
    assert link.credit == 170
    numbers = peer.send(link, *["x"] * 100)
    assert peer.states(numbers) == [Accepted()] * 100
    assert link.credit == 170
    assert link.delivery_count == 96


def test_held_back_and_withdrawn_over_the_end(rig: Rig) -> None:
    fill(rig, 12)
    peer = rig.connect10(limits=Limits(incoming_window=4))
    session = session_near_the_end(peer, 6)
    session.hold_window(True)
    link = peer.receiver(session, credit=12)
    link.flow(0)
    peer.pump()
    assert counts(rig) == (8, 4, 0)
    session.hold_window(False)
    link.flow(20)
    link.drain()
    peer.pump()
    assert peer.take(DrainFinished).given_up == 12
    assert [int(got.body) for got in peer.got] == list(range(12))
    for got in peer.got:
        peer.settle(got, Accepted())
    assert counts(rig) == (0, 0, 12)
