"""What several consumers of a session share goes round [LC-3; rabbitmq basic.qos global]."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallymark.engine.message import Filter
from tallymark.engine.outcomes import ACCEPTED, RETURNED
from tallymark.engine.session import Session
from tallymark.engine.streams import FIRST, Start
from tests.support.engine_rig import Delivery, Rig
from tests.support.engine_steps import manual

BACKLOG = 400


def shared(limit: int, *names: str, own: int = 0, no_ack: tuple[str, ...] = ()) -> Rig:
    """A consumer for each queue, on one session; its tag is the queue's name."""
    rig = manual()
    session = rig.session()
    rig.broker.consuming.set_prefetch(session, limit, shared=True)
    rig.broker.consuming.set_prefetch(session, own, shared=False)
    for name in names:
        queue = rig.queue(name)
        rig.broker.consuming.consume(session, queue, name, name in no_ack, False, 0, {})
    rig.settle_down()
    return rig


def session_of(rig: Rig) -> Session:
    return rig.connection.sessions[0]


def fill(rig: Rig, name: str, n: int = BACKLOG) -> None:
    rig.send(name, *range(n), session=rig.session())


def seen(deliveries: list[Delivery]) -> list[str]:
    return [delivery.consumer for delivery in deliveries]


def accept(rig: Rig, deliveries: list[Delivery]) -> None:
    for delivery in deliveries:
        rig.broker.settlement.settle(session_of(rig), delivery.tag, delivery.tag, ACCEPTED)


def test_each_acknowledgement_lets_another_queue_go_on() -> None:
    rig = shared(1, "a", "b", "c")
    for name in ("a", "b", "c"):
        fill(rig, name)
    order = []
    held = rig.settle_down()
    for _ in range(9):
        order += seen(held)
        accept(rig, held)
        held = rig.settle_down()
        rig.broker.check()
    assert order == ["a", "a", "b", "c", "a", "b", "c", "a", "b"]


def test_what_is_freed_at_once_is_shared_out_evenly() -> None:
    rig = shared(30, "a", "b", "c")
    for name in ("a", "b", "c"):
        fill(rig, name)
    first = rig.settle_down()
    assert Counter(seen(first)) == {"a": 30}
    accept(rig, first)
    assert Counter(seen(rig.settle_down())) == {"a": 10, "b": 10, "c": 10}


def test_what_one_queue_leaves_of_its_share_the_others_get() -> None:
    rig = shared(30, "a", "b", "c")
    fill(rig, "a")
    first = rig.settle_down()
    fill(rig, "b", 3)
    fill(rig, "c")
    accept(rig, first)
    assert Counter(seen(rig.settle_down()))["b"] == 3
    assert session_of(rig).unacked == 30
    rig.broker.check()


def test_a_queue_that_fills_later_is_served_next() -> None:
    rig = shared(2, "a", "b")
    fill(rig, "a")
    held = rig.settle_down()
    fill(rig, "b")
    accept(rig, held[:1])
    held += rig.settle_down()
    accept(rig, held[1:2])
    assert sorted(seen(held[2:]) + seen(rig.settle_down())) == ["a", "b"]


@settings(max_examples=100, deadline=None)
@given(
    st.integers(2, 5),
    st.integers(1, 12),
    st.lists(st.integers(1, 12), min_size=1, max_size=60),
    st.booleans(),
)
def test_no_queue_gets_ahead_of_another_by_more_than_the_limit_and_one_round(
    queues: int, limit: int, steps: list[int], synced: bool
) -> None:
    """synced: messages still come, and are not handed out before the disk has them."""
    names = [f"q{i}" for i in range(queues)]
    rig = shared(limit, *names)
    for name in names:
        if synced:
            rig.set_policy(name, {"deliver-after": "synced"})
        fill(rig, name)
    given_to = Counter(dict.fromkeys(names, 0))
    held = rig.settle_down()
    given_to.update(seen(held))
    for n in steps:
        for name in names if synced else []:
            fill(rig, name, 1)
        accept(rig, held[:n])
        held = held[n:]
        new = rig.settle_down()
        held += new
        given_to.update(seen(new))
        assert len(held) == limit
        assert max(given_to.values()) - min(given_to.values()) <= limit + queues
        rig.broker.check()


def test_the_consumers_of_two_channels_on_the_same_queues_are_all_served() -> None:
    """Two workers that both consume from three queues, as Celery's do."""
    rig = manual()
    workers = [rig.session(), rig.session()]
    for name in ("a", "b", "c"):
        rig.queue(name)
    for worker in workers:
        rig.broker.consuming.set_prefetch(worker, 4, shared=True)
        for name in ("a", "b", "c"):
            queue = rig.vhost.queues[name]
            rig.broker.consuming.consume(worker, queue, name, False, False, 0, {})
    for name in ("a", "b", "c"):
        fill(rig, name)
    counts: Counter[tuple[int, str]] = Counter()
    held = rig.settle_down()
    for _ in range(120):
        counts.update((d.session, d.consumer) for d in held)
        for delivery in held:
            worker = next(w for w in workers if w.id == delivery.session)
            rig.broker.settlement.settle(worker, delivery.tag, delivery.tag, ACCEPTED)
        held = rig.settle_down()
        rig.broker.check()
    assert len(counts) == 6
    assert max(counts.values()) - min(counts.values()) <= 12


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_share_that_waited_for_the_disk_is_used_or_released_by_the_next_turn(
    is_cancelled: bool,
) -> None:
    """The account is right in between, too: who checks it need not wait for that turn."""
    rig = shared(1, "a", "b", "c")
    for name in ("b", "c"):
        rig.set_policy(name, {"deliver-after": "synced"})
    fill(rig, "a", 1)
    held = rig.settle_down()
    rig.hold_disk = True
    fill(rig, "b", 2)
    fill(rig, "c", 2)
    rig.turn()
    accept(rig, held)
    assert rig.turn() == []
    session = session_of(rig)
    assert (session.reserved, session.consumers["b"].share) == (1, 1)
    rig.broker.check()
    rig.hold_disk = False
    assert rig.turn() == [], "the disk has it when the turn is over"
    assert not rig.vhost.queues["b"].waits_for_disk()
    rig.broker.check()
    if is_cancelled:
        rig.broker.consuming.cancel(session.consumers["b"])
        rig.broker.check()
    assert seen(rig.settle_down()) == ["c" if is_cancelled else "b"]
    assert session.reserved == 0
    rig.broker.check()


def test_a_consumer_that_ends_while_it_waits_holds_nobody_up() -> None:
    rig = shared(1, "a", "b", "c")
    for name in ("a", "b", "c"):
        fill(rig, name)
    held = rig.settle_down()
    for name in ("a", "b"):
        rig.broker.consuming.cancel(session_of(rig).consumers[name])
    accept(rig, held)
    assert seen(rig.settle_down()) == ["c"]
    rig.broker.check()


def test_a_limit_that_is_raised_or_lifted_is_in_effect_at_once() -> None:
    rig = shared(1, "a", "b")
    fill(rig, "a", 5)
    fill(rig, "b", 5)
    assert len(rig.settle_down()) == 1
    rig.broker.consuming.set_prefetch(session_of(rig), 3, shared=True)
    assert len(rig.settle_down()) == 2
    rig.broker.consuming.set_prefetch(session_of(rig), 0, shared=True)
    assert len(rig.settle_down()) == 7
    rig.broker.check()


def test_a_client_that_takes_nothing_for_a_while_loses_no_credit() -> None:
    rig = shared(2, "a", "b")
    fill(rig, "a")
    fill(rig, "b")
    held = rig.settle_down()
    rig.broker.consuming.set_flow(session_of(rig), False)
    accept(rig, held)
    assert rig.settle_down() == []
    rig.broker.consuming.set_flow(session_of(rig), True)
    assert sorted(seen(rig.settle_down())) == ["a", "b"]
    rig.broker.check()


def test_an_own_limit_that_is_reached_leaves_its_share_to_others() -> None:
    rig = shared(10, "a", "b", own=3)
    fill(rig, "a")
    fill(rig, "b")
    assert Counter(seen(rig.settle_down())) == {"a": 3, "b": 3}
    rig.broker.check()


def test_what_the_client_asked_for_counts_toward_no_prefetch() -> None:
    rig = shared(1, "a")
    queue, session = rig.vhost.queues["a"], session_of(rig)
    rig.broker.consuming.set_flow(session, False)
    fill(rig, "a", 4)
    rig.settle_down()
    assert rig.get(session, queue) == (0, 1)
    rig.broker.consuming.set_flow(session, True)
    held = rig.settle_down()
    assert [d.number for d in held] == [1]
    rig.broker.settlement.settle(session, 1, 1, RETURNED)
    assert rig.settle_down() == [], "that gave no credit back"
    accept(rig, held)
    assert [d.number for d in rig.settle_down()] == [0]
    rig.broker.check()


def test_without_acknowledgements_a_consumer_gets_nothing_while_the_limit_is_full() -> None:
    rig = shared(1, "a", "b", no_ack=("b",))
    fill(rig, "a", 1)
    held = rig.settle_down()
    assert seen(held) == ["a"]
    fill(rig, "b", 3)
    assert rig.settle_down() == []
    accept(rig, held)
    assert seen(rig.settle_down()) == ["b", "b", "b"]
    fill(rig, "a", 1)
    assert seen(rig.settle_down()) == ["a"], "they use nothing of it up"
    rig.broker.check()


@pytest.mark.parametrize("limit", [1, 20])
def test_an_acknowledgement_does_not_walk_the_session_s_queues(limit: int) -> None:
    names = [f"q{i}" for i in range(300)]
    rig = shared(limit, *names)
    for name in names:
        fill(rig, name, 50)
    held = rig.settle_down()
    accept(rig, held[:1])
    assert [queue.name for queue in rig.broker.agenda.changed] == [held[0].consumer]
    rig.turn()
    assert len(session_of(rig).line) == len(names)


def test_readers_at_the_end_of_their_stream_do_not_stand_in_line() -> None:
    """Each made room for the next one, in every turn: the broker was never idle again."""
    rig = manual()
    session = rig.session()
    rig.broker.consuming.set_prefetch(session, 1, shared=True)
    stream = rig.declare("s", {"queue-type": "stream"})
    for tag in ("a", "b"):
        rig.broker.consuming.read(session, stream, tag, Start(FIRST), False)
    for number in range(3):
        rig.send("s", number, session=rig.session())
        for _ in range(2):
            held = rig.settle_down()
            assert [delivery.number for delivery in held] == [number]
            accept(rig, held)
        assert rig.settle_down() == []
        rig.broker.check()


def test_a_connection_s_room_goes_round_its_queues_too() -> None:
    """Whoever found no room in one turn is served first in the next one."""
    rig = shared(0, "a", "b", "c")
    rig.connection.allowance = rig.connection.room = 40
    for name in ("a", "b", "c"):
        fill(rig, name)
    served = Counter(seen([d for _ in range(30) for d in rig.turn()]))
    assert min(served.values()) * 2 > max(served.values()), served


class Nothing(Filter):
    def matches(self, payload: object, i: int, known: object) -> bool:
        return False


def test_consumers_that_have_seen_everything_do_not_wait_for_the_limit() -> None:
    """Both were in line one after the other for ever, and the broker was never at rest."""
    rig = shared(2, "a")
    fill(rig, "a", 2)
    held = rig.settle_down()
    queue, session = rig.queue("b"), session_of(rig)
    for tag in ("x", "y"):
        rig.broker.consuming.consume(session, queue, tag, False, False, 0, {}, Nothing())
    fill(rig, "b", 5)
    rig.settle_down()
    accept(rig, held[:1])
    assert rig.settle_down() == []
    assert not session.line
    rig.broker.check()
