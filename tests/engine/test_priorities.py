"""Priorities: higher ones leave first, and what a queue promises holds in each of them."""

from __future__ import annotations

import pytest

from tallymark.engine.outcomes import FAILED, REJECTED, RETURNED
from tests.support.engine_rig import Rig, Said
from tests.support.engine_steps import drain, finish, manual, reject


def graded(highest: int, *priorities: int, **arguments: object) -> Rig:
    """Queue q with priorities up to `highest`; message n has the n-th of `priorities`."""
    rig = manual()
    settings = {key.replace("_", "-"): value for key, value in arguments.items()}
    rig.declare("q", {"max-priority": highest} | settings)
    for number, priority in enumerate(priorities, 1):
        rig.says[number] = Said(priority=priority)
    return rig


@pytest.mark.parametrize("together", [True, False])
def test_the_highest_first_and_in_order_among_equals(together: bool) -> None:
    rig = graded(9, 1, 9, 0, 9, 5, 1)
    runs = [[1, 2, 3, 4, 5, 6]] if together else [[n] for n in range(1, 7)]
    for run in runs:
        rig.send("q", *run)
    finish(rig)
    assert rig.ready("q") == [2, 4, 5, 1, 6, 3]
    assert [h.number for h in drain(rig, "q")] == [2, 4, 5, 1, 6, 3]


@pytest.mark.parametrize(("highest", "order"), [(0, [1, 2, 3, 4]), (1, [1, 3, 4, 2])])
def test_what_is_above_the_highest_counts_as_that(highest: int, order: list[int]) -> None:
    rig = graded(highest, 255, 0, 2, 1)
    rig.send("q", 1, 2, 3, 4)
    assert rig.ready("q") == order


def test_255_is_the_highest_there_is() -> None:
    rig = graded(255, 254, 255, 0)
    rig.send("q", 1, 2, 3)
    assert rig.ready("q") == [2, 1, 3]


def test_a_message_that_returns_takes_its_place_in_its_lane() -> None:
    rig = graded(9, 1, 9, 1, 9)
    rig.send("q", 1, 2, 3, 4)
    session = rig.session()
    rig.consume(session, "q", "c", prefetch=3)
    assert [d.number for d in finish(rig)] == [2, 4, 1]
    rig.broker.consuming.set_flow(session, False)
    rig.broker.settlement.settle_up_to(session, 0, RETURNED)
    finish(rig)
    assert rig.ready("q") == [2, 4, 1, 3]
    assert [h.acquired for h in rig.holds("q")] == [1, 1, 1, 0]


def test_a_consumer_is_sent_the_highest_as_its_credit_comes_back() -> None:
    rig = graded(9, 1, 1, 9)
    session = rig.session()
    rig.consume(session, "q", "c", prefetch=1)
    rig.send("q", 1, 2)
    assert [d.number for d in finish(rig)] == [1]
    rig.send("q", 3)
    assert finish(rig) == []
    rig.broker.settlement.settle(session, 1, 1, REJECTED)
    assert [d.number for d in finish(rig)] == [3]


def test_a_letter_has_the_priority_of_its_message_in_each_queue() -> None:
    rig = graded(9, 1, 9)
    rig.declare("plain")
    rig.set_policy("plain", {"dead-letter-exchange": "", "dead-letter-routing-key": "q"})
    rig.send("plain", 1, 2)
    reject(rig, "plain", 2)
    assert [(h.number, h.priority) for h in rig.holds("q")] == [(2, 9), (1, 1)]


def test_one_run_to_a_queue_with_priorities_and_one_without() -> None:
    rig = graded(9, 1, 9, 1)
    rig.declare("plain")
    rig.exchange("x", "fanout", ("q", ""), ("plain", ""))
    rig.send("", 1, 2, 3, exchange="x")
    assert (rig.ready("q"), rig.ready("plain")) == ([2, 1, 3], [1, 2, 3])


def test_dl_5_limits_and_counts_hold_in_every_lane() -> None:
    rig = graded(9, 1, 9, delivery_limit=1)
    rig.send("q", 1, 2)
    assert [h.number for h in reject(rig, "q", 2, FAILED)] == [2, 2]
    assert [h.number for h in reject(rig, "q", 2, FAILED)] == [1, 1]
    assert rig.dropped("q") == {"delivery_limit": 2}


def test_dl_6_a_refusal_looks_at_all_lanes_together() -> None:
    rig = graded(9, 1, 9, 5, max_length=2, overflow="reject-publish")
    session = rig.session()
    session.confirming = True
    rig.send("q", 1, 2, 3, session=session)
    finish(rig)
    assert (rig.ready("q"), rig.refused) == ([2, 1], [(3, 3)])


def test_a_purge_empties_every_lane() -> None:
    rig = graded(9, 1, 9)
    rig.send("q", 1, 2)
    assert rig.broker.contents.purge(rig.vhost.queues["q"]) == 2
    finish(rig)
    assert rig.ready("q") == []


@pytest.mark.parametrize("checkpoint", [True, False])
def test_priorities_outlive_a_restart(checkpoint: bool) -> None:
    rig = graded(9, 1, 9, 1, 9)
    rig.send("q", 1, 2, 3, 4)
    session = rig.session()
    rig.take(session, "q")
    finish(rig)
    if checkpoint:
        rig.checkpoint()
    rig = rig.restart()
    finish(rig)
    assert [(h.number, h.priority) for h in rig.holds("q")] == [(2, 9), (4, 9), (1, 1), (3, 1)]
    assert rig.holds("q")[0].acquired == 1


@pytest.mark.parametrize("together", [True, False])
def test_dl_6_what_a_waiting_consumer_takes_of_the_highest_makes_room_by_its_bytes(
    together: bool,
) -> None:
    rig = graded(9, max_length_bytes=10, overflow="reject-publish")
    rig.consume(rig.session(), "q", "c", prefetch=1)
    rig.says |= {1: Said(priority=1, body=6), 2: Said(priority=9, body=8), 3: Said(body=4)}
    for run in [[1, 2, 3]] if together else [[1], [2], [3]]:
        rig.send("q", *run)
    finish(rig)
    assert [h.number for h in rig.given] == [2]
    assert rig.ready("q") == [1, 3]
