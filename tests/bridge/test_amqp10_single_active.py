"""AMQP 1.0: consumers of a queue with a single active consumer are told which of them it is."""

from __future__ import annotations

import pytest

from tallymark.wire.amqp10.events import FlowReceived, LinkDetached
from tallymark.wire.amqp10.outcomes import Released
from tallymark.wire.amqp10.performatives import Source
from tests.bridge.rig10 import Peer, Rig

RELEASED = Released()


@pytest.fixture
def rig() -> Rig:
    made = Rig()
    made.declare("q", single_active_consumer=True)
    made.declare("plain")
    return made


def told(peer: Peer) -> list[object]:
    """What flows said since the last call: they are gone then."""
    flows = [event for event in peer.events if isinstance(event, FlowReceived)]
    for flow in flows:
        peer.events.remove(flow)
    return [flow.properties["rabbitmq:active"] for flow in flows if flow.properties]


def test_it_is_said_with_the_first_credit_and_when_it_changes(rig: Rig) -> None:
    first, second, third = [rig.connect10() for _ in range(3)]
    one = first.receiver(first.session(), credit=1)
    two = second.receiver(second.session(), credit=1)
    three = third.receiver(third.session())
    assert [told(peer) for peer in (first, second, third)] == [[True], [False], []]
    for link, peer in ((one, first), (two, second)):
        link.flow(5)
        peer.pump()
    assert [told(first), told(second)] == [[], []]
    one.detach()
    first.pump()
    assert first.take(LinkDetached).link is one
    second.pump()
    assert told(second) == [True]
    second.vanish()
    third.pump()
    assert told(third) == [], "it has not asked for anything yet"
    three.flow(1)
    third.pump()
    assert told(third) == [True]


def test_one_that_goes_with_the_active_one_is_not_told(rig: Rig) -> None:
    both, other = rig.connect10(), rig.connect10()
    session = both.session()
    both.receiver(session, credit=1)
    both.receiver(session, credit=1)
    other.receiver(other.session(), credit=1)
    assert [told(both), told(other)] == [[True, False], [False]]
    session.end()
    both.pump()
    other.pump()
    assert [told(both), told(other)] == [[], [True]]


def test_others_are_told_nothing(rig: Rig) -> None:
    peer = rig.connect10()
    session = peer.session()
    peer.receiver(session, "/queues/plain", credit=1)
    browsed = Source(address="/queues/q", distribution_mode="copy")
    peer.receiver(session, source=browsed, credit=1)
    assert told(peer) == []


def test_lc_4_one_that_holds_a_message_for_too_long_is_replaced(rig: Rig) -> None:
    """Over AMQP 0-9-1 it is cancelled; here it gets nothing until it has settled what it was told
    of, and the others would wait as long."""
    rig.declare("timed", single_active_consumer=True, consumer_timeout=50)
    stuck, spare, third = [rig.connect10() for _ in range(3)]
    held = stuck.receiver(stuck.session(), "timed", credit=2)
    spare.receiver(spare.session(), "timed", credit=1)
    assert [told(stuck), told(spare)] == [[True], [False]]
    publisher = rig.connect10()
    link = publisher.sender(publisher.session(), "timed")
    publisher.send(link, "1")
    stuck.pump()
    rig.now_ms += 1000
    rig.settle_down()
    spare.pump()
    assert (stuck.bodies(), spare.bodies()) == ([b"1"], [b"1"])
    stuck.pump()
    assert [told(stuck), told(spare)] == [[False], [True]]
    rig.now_ms += 1000
    rig.settle_down()
    spare.pump()
    assert rig.queue("timed").ready == 1, "nobody is left"
    assert [told(stuck), told(spare)] == [[], []]
    held.settle(0, 0, RELEASED)
    stuck.pump()
    assert (stuck.bodies(), told(stuck)) == ([b"1"], [True])
    third.receiver(third.session(), "timed", credit=1)
    assert told(third) == [False]
