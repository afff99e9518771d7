"""What all connections together are given in one turn: many who may have much make no long one, and
none of them is forgotten."""

from __future__ import annotations

from collections import Counter

import pytest

from tallymark.engine.outcomes import ACCEPTED
from tallymark.engine.session import Session
from tallymark.engine.state import TURN_BYTES
from tests.support.engine_rig import SIZE, Rig

ROOM = 10 * SIZE
COUNT = 40
EACH = 50


def crowded(is_one_queue: bool) -> Rig:
    """Many connections of which each has just come and may be given much."""
    rig = Rig()
    rig.broker.agenda.allowance = ROOM
    for n in range(COUNT):
        name = "q" if is_one_queue else f"q{n}"
        if name not in rig.vhost.queues:
            rig.queue(name, durable=False)
        session: Session = rig.session(rig.broker.clients.open_connection("/", "", f"c{n}"))
        assert session.connection.room == TURN_BYTES
        queue = rig.vhost.queues[name]
        rig.broker.consuming.consume(session, queue, f"c{n}", True, False, 0, {})
    return rig


def fill(rig: Rig) -> None:
    for name in rig.vhost.queues:
        number = EACH * COUNT // len(rig.vhost.queues)
        rig.publish(rig.session(), name, list(range(number)), persistent=False)


@pytest.mark.parametrize("is_one_queue", [False, True])
def test_newcomers_together_are_given_what_one_is(is_one_queue: bool) -> None:
    rig = crowded(is_one_queue)
    fill(rig)
    served: Counter[str] = Counter()
    for _ in range(COUNT * EACH * SIZE // ROOM):
        said = rig.turn()
        assert len(said) * SIZE == ROOM
        served.update(one.consumer for one in said)
    assert sum(served.values()) == COUNT * EACH
    assert len(served) == COUNT
    assert not rig.broker.has_work()
    rig.broker.check()


def test_who_got_nothing_is_served_first() -> None:
    """No consumer is given messages twice before every one of them was."""
    rig = crowded(is_one_queue=False)
    fill(rig)
    order: list[str] = []
    while len(set(order)) < COUNT:
        for one in rig.turn():
            if not order or order[-1] != one.consumer:
                order.append(one.consumer)
    assert len(order) <= COUNT + 1


def test_a_message_that_comes_meanwhile_waits_for_one_round_of_all() -> None:
    rig = crowded(is_one_queue=False)
    fill(rig)
    rig.turn()
    rig.queue("late", durable=False)
    session = rig.session(rig.broker.clients.open_connection("/", "", "late"))
    rig.broker.consuming.consume(session, rig.vhost.queues["late"], "late", True, False, 0, {})
    rig.send("late", 1, persistent=False)
    turns = 1
    while not any(one.consumer == "late" for one in rig.turn()):
        turns += 1
    assert turns <= COUNT


@pytest.mark.parametrize("limit", [1, 7])
def test_consumers_in_line_are_given_the_same_room(limit: int) -> None:
    """Two queues for each session, whose consumers share a limit."""
    rig = Rig()
    rig.broker.agenda.allowance = ROOM
    sessions: dict[int, Session] = {}
    for n in range(COUNT):
        session = rig.session(rig.broker.clients.open_connection("/", "", f"c{n}"))
        sessions[session.id] = session
        rig.broker.consuming.set_prefetch(session, limit, shared=True)
        for name in (f"a{n}", f"b{n}"):
            queue = rig.queue(name, durable=False)
            rig.broker.consuming.consume(session, queue, name, False, False, 0, {})
            rig.publish(rig.session(), name, list(range(EACH)), persistent=False)
    served: Counter[str] = Counter()
    while any(queue.ready for queue in rig.vhost.queues.values()):
        said = rig.turn()
        assert 0 < len(said) * SIZE <= ROOM
        for one in said:
            served[one.consumer] += 1
            rig.broker.settlement.settle(sessions[one.session], one.tag, one.tag, ACCEPTED)
    assert set(served.values()) == {EACH}
    assert len(served) == 2 * COUNT
    rig.turn()
    assert not rig.broker.has_work()
    rig.broker.check()


def test_browsers_of_one_queue_go_round() -> None:
    rig = Rig()
    rig.queue("q", durable=False)
    rig.publish(rig.session(), "q", list(range(EACH)), persistent=False)
    rig.broker.agenda.allowance = ROOM
    for n in range(COUNT):
        session = rig.session(rig.broker.clients.open_connection("/", "", f"c{n}"))
        rig.broker.consuming.browse(session, rig.vhost.queues["q"], f"b{n}", None)
    seen: Counter[str] = Counter()
    for _ in range(COUNT * EACH * SIZE // ROOM):
        said = rig.turn()
        assert len(said) * SIZE == ROOM
        seen.update(one.consumer for one in said)
    assert set(seen.values()) == {EACH}
    assert len(seen) == COUNT
    rig.turn()
    assert not rig.broker.has_work()
