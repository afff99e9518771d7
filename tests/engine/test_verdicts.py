"""Verdicts on leased messages: in effect when they are settled, the last one counts."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallymark.engine.errors import PreconditionFailed
from tallymark.engine.outcomes import ACCEPTED, DISCARDED, FAILED, REJECTED, RETURNED
from tallymark.engine.subscription import Subscription
from tallymark.stored import records
from tests.support.engine_rig import Rig, numbers


def made(count: int, arguments: dict[str, object] | None = None) -> Rig:
    """Queue q with messages 0.., whose dead letters go to d."""
    rig = Rig()
    rig.queue("d")
    rig.declare(
        "q", {"dead-letter-exchange": "", "dead-letter-routing-key": "d", **(arguments or {})}
    )
    rig.publish(rig.session(), "q", list(range(count)))
    rig.turn()
    return rig


def attach(rig: Rig) -> Subscription:
    return rig.broker.leases.attach(rig.vhost.queues["q"], "s")


def found(rig: Rig) -> Subscription:
    return rig.broker.leases.find(rig.vhost.queues["q"], "s")


def lease(rig: Rig, rows: int = 100) -> Subscription:
    subscription = attach(rig)
    rig.broker.leases.lease(subscription, subscription.next, rows, 0)
    rig.turn()
    return subscription


def test_dl_1_a_rejected_message_dies_with_the_settlement_and_not_before() -> None:
    rig = made(5)
    subscription = lease(rig)
    rig.broker.leases.judge(subscription, [(1, 2, REJECTED)])
    rig.turn()
    assert rig.ready("d") == []
    assert rig.vhost.queues["q"].acquired == 5
    rig.broker.leases.settle(subscription, 5)
    rig.turn()
    queue = rig.vhost.queues["q"]
    assert (
        queue.account.settled,
        queue.account.dead_lettered,
        queue.acquired,
        queue.account.leased,
    ) == (3, 2, 0, 0)
    letters = rig.holds("d")
    assert [one.number for one in letters] == [1, 2]
    assert letters[0].deaths == [("q", "rejected", 1)]
    rig.broker.check()


def test_dl_1_a_letter_that_cannot_be_read_waits_until_it_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where a letter goes depends on its priority."""
    rig = made(3)
    rig.delete("d")
    rig.declare("d", {"max-priority": 3})
    subscription = lease(rig)
    rig.broker.leases.judge(subscription, [(1, 1, REJECTED)])
    rig.turn(budget=0)

    def fail(payload: object) -> bytes:
        raise OSError("unreadable")

    monkeypatch.setattr(rig.broker.store, "_fetch", fail)
    queue = rig.vhost.queues["q"]
    assert rig.broker.leases.settle(subscription, 3) == 3
    monkeypatch.undo()
    rig.turn()
    rig.broker.check()
    assert (rig.ready("d"), queue.account.settled, queue.account.quarantined) == ([], 2, 1)
    assert rig.broker.readmission.retry(queue) == 1
    rig.turn()
    rig.broker.check()
    assert (rig.ready("d"), queue.account.settled, queue.account.quarantined) == ([1], 2, 0)


@pytest.mark.parametrize("is_checkpointed", [False, True])
@pytest.mark.parametrize("persistent", [False, True])
def test_a_letter_that_could_not_be_read_before_a_restart_is_there_after_it(
    is_checkpointed: bool, persistent: bool
) -> None:
    rig = Rig()
    rig.declare("d", {"max-priority": 3})  # where a letter goes depends on its priority
    rig.declare("q", {"dead-letter-exchange": "", "dead-letter-routing-key": "d"})
    for number in range(3):
        rig.publish(rig.session(), "q", [number], persistent)
    subscription = lease(rig)
    if is_checkpointed:
        rig.checkpoint()
    rig.broker.leases.judge(subscription, [(1, 2, REJECTED)])
    rig.turn(budget=0)
    rig.log.spoiled.add(1)
    assert rig.broker.leases.settle(subscription, 3) == 3
    rig.turn()
    assert (rig.ready("d"), rig.vhost.queues["q"].account.quarantined) == ([2], 1)
    rig.log.spoiled.clear()
    for _ in range(2):
        rig = rig.restart()
        rig.turn()
        rig.broker.check()
        queue = rig.vhost.queues["q"]
        assert (queue.account.settled, queue.account.dead_lettered) == (1, 1)
        if persistent:
            assert [(one.number, one.acquired) for one in rig.holds("q")] == [(1, 1)]
            assert rig.ready("d") == [2]
        else:
            assert rig.dropped("q") == {"transient_at_restart": 1}


def test_released_and_modified_messages_return_to_their_places() -> None:
    rig = made(6)
    subscription = lease(rig, 5)
    rig.broker.leases.judge(subscription, [(0, 1, RETURNED), (3, 1, FAILED)])
    rig.broker.leases.settle(subscription, 5)
    rig.turn()
    assert [(one.number, one.acquired, one.failed) for one in rig.holds("q")] == [
        (0, 1, 0), (3, 1, 1), (5, 0, 0),
    ]  # fmt: skip
    rig.broker.leases.lease(subscription, 5, 10, 0)
    again = rig.broker.leases.read(subscription, 5, 8)
    assert [(first, *numbers(piece)) for first, piece in again] == [(5, 0), (6, 3), (7, 5)]
    rig.broker.check()


def test_what_is_given_back_is_found_by_a_restart_also_where_a_checkpoint_says_only_leased() -> (
    None
):
    rig = made(6)
    rig.broker.leases.judge(lease(rig, 4), [(1, 1, RETURNED), (2, 1, FAILED), (3, 1, REJECTED)])
    rig.checkpoint()
    for _ in range(2):
        rig = rig.restart()
        rig.broker.leases.settle(found(rig), 4)
        rig.turn()
        held = [(one.number, one.acquired, one.failed) for one in rig.holds("q")]
        assert held == [(1, 1, 0), (2, 1, 1), (4, 0, 0), (5, 0, 0)]
        assert rig.ready("d") == [3]
        rig.broker.check()


def test_dl_5_modified_messages_die_at_the_delivery_limit_also_across_restarts() -> None:
    rig = made(1, {"delivery-limit": 2})
    for turn in range(3):
        assert rig.ready("d") == []
        subscription = lease(rig)
        if turn % 2:
            rig.checkpoint()
        rig = rig.restart()
        subscription = found(rig)
        rig.broker.leases.judge(subscription, [(turn, 1, FAILED)])
        rig.turn()
        rig = rig.restart()
        rig.broker.leases.settle(found(rig), turn + 1)
        rig.turn()
        rig.broker.check()
    assert rig.ready("d") == [0]
    assert rig.holds("d")[0].deaths == [("q", "delivery_limit", 1)]


def test_the_last_verdict_on_a_message_counts() -> None:
    rig = made(4)
    subscription = lease(rig)
    rig.broker.leases.judge(subscription, [(0, 4, REJECTED)])
    rig.broker.leases.judge(subscription, [(1, 1, RETURNED), (2, 2, ACCEPTED)])
    rig.turn()
    rig.checkpoint()
    rig = rig.restart()
    rig.broker.leases.judge(found(rig), [(3, 1, REJECTED)])
    rig.turn()
    rig = rig.restart()
    assert found(rig).verdicts == {0: REJECTED, 1: RETURNED, 3: REJECTED}
    rig.broker.leases.settle(found(rig), 4)
    rig.turn()
    assert (rig.ready("q"), rig.ready("d")) == ([1], [0, 3])
    assert rig.vhost.queues["q"].account.settled == 1
    assert found(rig).verdicts == {}


def test_a_verdict_on_what_is_not_leased_is_refused_and_none_of_the_call_counts() -> None:
    rig = made(5)
    subscription = lease(rig, 4)
    leases = rig.broker.leases
    leases.settle(subscription, 2)
    with pytest.raises(PreconditionFailed, match="comes too late"):
        leases.judge(subscription, [(2, 1, REJECTED), (1, 1, REJECTED)])
    with pytest.raises(PreconditionFailed, match="never leased"):
        leases.judge(subscription, [(2, 1, REJECTED), (3, 2, REJECTED)])
    with pytest.raises(PreconditionFailed, match="expected one of"):
        leases.judge(subscription, [(2, 1, DISCARDED)])
    with pytest.raises(PreconditionFailed, match="at least 1"):
        leases.judge(subscription, [(2, 0, REJECTED)])
    assert subscription.verdicts == {}


def test_a_subscription_that_is_dropped_gives_everything_back_whatever_was_said() -> None:
    rig = made(3)
    subscription = lease(rig)
    rig.broker.leases.judge(subscription, [(0, 2, REJECTED)])
    assert rig.broker.drop_subscription(subscription) == 3
    rig.turn()
    rig = rig.restart()
    assert (rig.ready("q"), rig.ready("d")) == ([0, 1, 2], [])


def test_the_whole_outcome_of_a_settlement_is_one_block() -> None:
    rig = made(6)
    subscription = lease(rig)
    rig.broker.leases.judge(subscription, [(0, 1, REJECTED), (2, 1, RETURNED), (4, 1, FAILED)])
    rig.turn()
    rig.broker.leases.settle(subscription, 6)
    rig.turn()
    kinds = {record.kind for record in rig.log.blocks[-1]}
    assert kinds >= {
        records.LEASE_SETTLED, records.SETTLED, records.DEAD_LETTERED, records.ENTERED,
        records.RETURNED,
    }  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("publish"), st.integers(1, 8), st.just(0)),
            st.tuples(st.just("lease"), st.integers(1, 8), st.just(0)),
            st.tuples(
                st.just("judge"),
                st.integers(0, 8),
                st.sampled_from([ACCEPTED, REJECTED, RETURNED, FAILED]),
            ),
            st.tuples(st.just("settle"), st.integers(1, 8), st.just(0)),
            st.tuples(st.just("crash"), st.integers(0, 2), st.just(0)),
        ),
        max_size=40,
    )
)
def test_a_message_is_in_one_place_and_ends_as_was_said_last(
    history: list[tuple[str, int, int]],
) -> None:
    """Against a naive model: where each message is, and how it was handed out and failed."""
    rig = made(0)
    attach(rig)
    rig.turn()
    ready: list[int] = []
    counts: dict[int, list[int]] = {}
    leased: dict[int, int] = {}
    said: dict[int, int] = {}
    dead: list[int] = []
    done: list[int] = []
    number = 0
    for what, n, outcome in history:
        subscription = found(rig)
        leases = rig.broker.leases
        if what == "publish":
            rig.publish(rig.session(), "q", list(range(number, number + n)))
            for message in range(number, number + n):
                counts[message] = [0, 0]
                ready.append(message)
            number += n
        elif what == "lease":
            leases.lease(subscription, subscription.next, n, 0)
            first = max(leased, default=subscription.next - min(n, len(ready)) - 1) + 1
            for at, message in enumerate(ready[:n]):
                leased[first + at] = message
            del ready[:n]
        elif what == "judge" and leased:
            at = sorted(leased)[n % len(leased)]
            leases.judge(subscription, [(at, 1, outcome)])
            said[at] = outcome
        elif what == "settle" and leased:
            upto = sorted(leased)[: min(n, len(leased))]
            leases.settle(subscription, upto[-1] + 1)
            for at in upto:
                message = leased.pop(at)
                verdict = said.pop(at, ACCEPTED)
                if verdict == ACCEPTED:
                    done.append(message)
                elif verdict == REJECTED:
                    dead.append(message)
                else:
                    counts[message][0] += 1
                    counts[message][1] += verdict == FAILED
                    ready.append(message)
            ready.sort()
        rig.turn()
        if what == "crash":
            if n == 2:
                rig.checkpoint()
            rig = rig.restart(clean=n == 1)
            rig.turn()
        rig.broker.check()
        held = rig.holds("q")
        assert [one.number for one in held] == ready
        assert [one.failed for one in held] == [counts[message][1] for message in ready]
        assert all(one.acquired >= counts[one.number][0] for one in held)
        assert sorted(rig.ready("d")) == sorted(dead)
        subscription = found(rig)
        parts = rig.broker.leases.read(subscription, subscription.floor, subscription.next)
        assert sum(len(piece) for _, piece in parts) == len(leased)
        assert rig.vhost.queues["q"].account.settled == len(done)
