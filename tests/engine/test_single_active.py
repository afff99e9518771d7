"""A single active consumer: one is served, the next in line takes over."""

from __future__ import annotations

import pytest

from tallymark.engine.errors import AccessRefused
from tallymark.engine.outcomes import ACCEPTED
from tests.support.engine_rig import Delivery, Rig
from tests.support.engine_steps import finish, manual


def single() -> Rig:
    rig = manual()
    rig.declare("q", {"single-active-consumer": True})
    return rig


def who(deliveries: list[Delivery]) -> list[tuple[str, int]]:
    return [(d.consumer, d.number) for d in deliveries]


def test_only_the_first_is_served_even_when_it_takes_no_more() -> None:
    rig = single()
    one, two = rig.session(), rig.session()
    rig.consume(one, "q", "first", prefetch=1)
    rig.consume(two, "q", "second")
    rig.send("q", 1, 2)
    assert who(finish(rig)) == [("first", 1)]
    rig.broker.settlement.settle(one, 1, 1, ACCEPTED)
    assert who(finish(rig)) == [("first", 2)]


def test_nobody_consumes_exclusively_since_the_next_could_not_wait_in_line() -> None:
    rig = single()
    session, queue = rig.session(), rig.vhost.queues["q"]
    with pytest.raises(AccessRefused, match="queue 'q' in vhost '/' in exclusive use"):
        rig.broker.consuming.consume(session, queue, "alone", False, True, 0, {})
    rig.consume(session, "q", "first")
    rig.send("q", 1)
    assert who(finish(rig)) == [("first", 1)]


def test_a_consumer_without_priority_waits_behind_one_that_came_before() -> None:
    rig = single()
    one, two = rig.session(), rig.session()
    queue = rig.vhost.queues["q"]
    rig.consume(one, "q", "first")
    rig.broker.consuming.consume(two, queue, "urgent", False, False, 9, {})
    rig.send("q", 1)
    assert who(finish(rig)) == [("first", 1)], "who is active stays active"


def test_the_next_in_line_takes_over_after_a_cancel_and_the_unsettled_stay() -> None:
    rig = single()
    sessions = [rig.session() for _ in range(3)]
    consumers = [
        rig.consume(session, "q", f"c{n}", prefetch=1) for n, session in enumerate(sessions)
    ]
    rig.send("q", 1, 2, 3)
    assert who(finish(rig)) == [("c0", 1)]
    rig.broker.consuming.cancel(consumers[0])
    assert who(finish(rig)) == [("c1", 2)]
    assert rig.vhost.queues["q"].acquired == 2
    rig.broker.settlement.settle(sessions[0], 1, 1, ACCEPTED)
    assert finish(rig) == []


@pytest.mark.parametrize("lost", [True, False])
def test_a_session_s_end_gives_its_messages_to_the_next_in_order(lost: bool) -> None:
    rig = single()
    one, two = rig.session(), rig.session()
    rig.consume(one, "q", "first")
    rig.consume(two, "q", "second")
    rig.send("q", 1, 2, 3)
    assert who(finish(rig)) == [("first", 1), ("first", 2), ("first", 3)]
    rig.broker.clients.close_session(one, lost)
    assert who(finish(rig)) == [("second", 1), ("second", 2), ("second", 3)]


def test_a_connection_with_the_active_one_and_the_next_goes_at_once() -> None:
    rig = single()
    connection = rig.broker.clients.open_connection("/", "guest", "other")
    for tag in ("a", "b"):
        rig.consume(rig.session(connection), "q", tag)
    rig.consume(rig.session(), "q", "c")
    rig.send("q", 1, 2)
    finish(rig)
    rig.broker.clients.close_connection(connection, lost=True)
    assert who(finish(rig)) == [("c", 1), ("c", 2)]
    assert rig.activated[-1] == "c"


def test_whoever_takes_over_is_told_so() -> None:
    rig = single()
    rig.declare("plain")
    for queue in ("q", "plain"):
        first, second, _ = [rig.consume(rig.session(), queue, f"{queue} {n}") for n in range(3)]
        rig.broker.consuming.cancel(second)
        finish(rig)
        assert rig.activated == []
        rig.broker.consuming.cancel(first)
        finish(rig)
        assert rig.activated == (["q 2"] if queue == "q" else [])
        rig.activated.clear()


def test_a_cancel_of_one_that_waits_changes_nothing() -> None:
    rig = single()
    rig.consume(rig.session(), "q", "first")
    waiting = rig.consume(rig.session(), "q", "second")
    rig.broker.consuming.cancel(waiting)
    rig.send("q", 1)
    assert who(finish(rig)) == [("first", 1)]


def test_who_comes_after_all_went_is_active() -> None:
    rig = single()
    rig.broker.consuming.cancel(rig.consume(rig.session(), "q", "first"))
    rig.consume(rig.session(), "q", "late")
    rig.send("q", 1)
    assert who(finish(rig)) == [("late", 1)]


def test_asking_for_a_message_goes_on_beside_it() -> None:
    rig = single()
    one = rig.session()
    rig.consume(one, "q", "first", prefetch=1)
    rig.send("q", 1, 2)
    finish(rig)
    got = rig.take(rig.session(), "q")
    assert got is not None
    assert got[0].number == 2


def test_dl_4_only_the_active_one_s_credit_spares_a_message_of_ttl_0() -> None:
    rig = single()
    rig.set_policy("q", {"message-ttl": 0})
    rig.consume(rig.session(), "q", "first", prefetch=1)
    rig.consume(rig.session(), "q", "second", prefetch=9)
    rig.send("q", 1, 2)
    assert who(finish(rig)) == [("first", 1)]
    assert rig.dropped("q") == {"expired": 1}


def test_dl_6_only_the_active_one_s_credit_makes_room() -> None:
    rig = single()
    rig.set_policy("q", {"max-length": 0, "overflow": "reject-publish"})
    rig.consume(rig.session(), "q", "first", prefetch=1)
    rig.consume(rig.session(), "q", "second", prefetch=9)
    session = rig.session()
    session.confirming = True
    rig.send("q", 1, 2, session=session)
    assert who(finish(rig)) == [("first", 1)]
    assert rig.refused == [(2, 2)]


def test_the_next_in_line_takes_over_from_one_that_is_to_be_given_nothing_more() -> None:
    rig = single()
    one, two = rig.session(), rig.session()
    first = rig.consume(one, "q", "first", prefetch=1)
    rig.consume(two, "q", "second", prefetch=1)
    rig.send("q", 1, 2, 3)
    assert who(finish(rig)) == [("first", 1)]
    rig.broker.consuming.retire(first)
    assert who(finish(rig)) == [("second", 2)]
    assert rig.activated == ["first", "second"]
    rig.broker.settlement.settle(one, 1, 1, ACCEPTED)
    rig.broker.settlement.settle(two, 1, 1, ACCEPTED)
    assert who(finish(rig)) == [("second", 3)]


def test_who_is_retired_is_active_only_until_somebody_else_comes() -> None:
    rig = single()
    sessions = [rig.session() for _ in range(3)]
    first = rig.consume(sessions[0], "q", "first")
    second = rig.consume(sessions[1], "q", "second")
    rig.broker.consuming.retire(first)
    rig.broker.consuming.retire(second)
    finish(rig)
    assert rig.activated == ["first", "second"]
    rig.broker.clients.close_session(sessions[1], lost=False)
    rig.send("q", 1)
    assert who(finish(rig)) == []
    rig.consume(sessions[2], "q", "third")
    assert who(finish(rig)) == [("third", 1)]
    rig.broker.clients.close_session(sessions[2], lost=False)
    assert who(finish(rig)) == []
    assert rig.vhost.queues["q"].active is first
