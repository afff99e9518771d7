"""What comes before in a segment is done before: nothing overtakes a delivery.

A message that enters while a consumer waits for it is the consumer's, though its delivery is made
with the next turn: whoever gets, counts, purges or deletes in between finds it gone.
"""

from __future__ import annotations

import pytest

from tallymark.engine.outcomes import ACCEPTED
from tests.support.engine_rig import Rig
from tests.support.engine_steps import manual


def waiting(durable: bool, prefetch: int = 2) -> Rig:
    """Queue q with a consumer that has credit."""
    rig = manual()
    rig.queue("q", durable=durable)
    rig.consume(rig.session(), "q", "c", prefetch)
    rig.settle_down()
    return rig


def given(rig: Rig) -> list[int]:
    found = [delivery.number for delivery in rig.settle_down()]
    rig.broker.check()
    return found


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("look", ["get", "purge", "declare", "delete", "lease"])
def test_a_consumer_s_message_is_not_there_for_others(look: str, durable: bool) -> None:
    rig = waiting(durable)
    queue = rig.vhost.queues["q"]
    leases = rig.broker.leases
    subscription = leases.attach(queue, "s") if durable else None
    rig.send("q", 1)
    if look == "get":
        assert rig.get(rig.session(), queue) is None
    elif look == "purge":
        assert rig.broker.contents.purge(queue) == 0
    elif look == "declare":
        rig.broker.registry.declare_queue(rig.connection, "q", durable, False, False, {}, True)
        assert queue.ready == 0
    elif look == "delete":
        assert rig.broker.registry.delete_queue(rig.connection, "q", False, True) == 0
    elif subscription is not None:
        assert leases.lease(subscription, 0, 10, 0) == 0
    assert given(rig) == [1]


@pytest.mark.parametrize("durable", [False, True])
def test_what_its_credit_does_not_reach_is(durable: bool) -> None:
    rig = waiting(durable)
    queue = rig.vhost.queues["q"]
    rig.send("q", 1, 2, 3, 4)
    rig.broker.dispatcher.use(queue)
    assert queue.ready == 2
    assert rig.get(rig.session(), queue) == (3, 1)
    assert rig.broker.contents.purge(queue) == 1
    assert given(rig) == [1, 2]


def test_tags_are_in_order_where_the_same_client_gets_and_consumes() -> None:
    rig = manual()
    rig.queue("q")
    session = rig.session()
    rig.consume(session, "q", "c", 1)
    rig.settle_down()
    rig.send("q", 1, 2)
    assert rig.get(session, rig.vhost.queues["q"]) == (2, 2)
    assert [(d.number, d.tag) for d in rig.settle_down()] == [(1, 1)]


def test_nothing_leaves_before_the_disk_says_that_it_may_have_been_delivered() -> None:
    rig = waiting(True)
    rig.hold_disk = True
    rig.send("q", 1)
    assert rig.get(rig.session(), rig.vhost.queues["q"]) is None
    assert rig.turn() == []
    assert rig.turn() == []
    rig.hold_disk = False
    assert given(rig) == [1]


def test_where_output_cannot_be_held_back_a_message_waits_where_it_is() -> None:
    rig = waiting(True)
    rig.connection.holds_output = False
    rig.send("q", 1)
    assert rig.get(rig.session(), rig.vhost.queues["q"]) == (1, 1)
    assert given(rig) == []


def test_a_crash_before_the_disk_said_so_keeps_it_ready() -> None:
    rig = waiting(True)
    rig.turn()
    rig.hold_disk = True
    rig.send("q", 1)
    rig.broker.contents.purge(rig.vhost.queues["q"])
    rig.turn()
    assert rig.restart().ready("q") == [1]


def test_a_queue_that_rests_keeps_what_it_has() -> None:
    rig = waiting(False)
    queue = rig.vhost.queues["q"]
    rig.broker.registry.pause(queue, True)
    rig.send("q", 1)
    assert rig.broker.contents.purge(queue) == 1
    assert given(rig) == []


def test_the_room_of_a_connection_bounds_what_a_look_hands_out() -> None:
    rig = waiting(False, prefetch=0)
    rig.connection.allowance = rig.connection.room = 40
    rig.send("q", *range(100))
    rig.broker.dispatcher.use(rig.vhost.queues["q"])
    assert rig.vhost.queues["q"].ready > 50
    assert given(rig) == list(range(100))


def test_a_message_of_the_time_to_live_0_reaches_its_consumer_though_somebody_looks() -> None:
    rig = waiting(False)
    rig.send("q", 1, ttl=0)
    assert rig.broker.contents.purge(rig.vhost.queues["q"]) == 0
    seen = rig.settle_down()
    assert [d.number for d in seen] == [1]
    session = next(s for s in rig.connection.sessions if s.consumers)
    rig.broker.settlement.settle(session, seen[0].tag, seen[0].tag, ACCEPTED)
    rig.send("q", 2, 3, 4, ttl=0)
    assert rig.get(rig.session(), rig.vhost.queues["q"]) is None
    assert given(rig) == [2, 3]
