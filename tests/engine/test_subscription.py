"""The obligations of durable subscriptions towards a reader that commits in batches."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallymark.engine.errors import Fenced, NotFound, PreconditionFailed, ResourceExhausted
from tallymark.engine.outcomes import RETURNED
from tallymark.engine.subscription import Subscription
from tallymark.stored.records import PAYLOAD
from tests.support.engine_rig import Rig, numbers


def attach(rig: Rig, name: str = "s", limit_rows: int = 0) -> Subscription:
    return rig.broker.leases.attach(rig.vhost.queues["q"], name, limit_rows)


def read(rig: Rig, subscription: Subscription, low: int, high: int) -> list[tuple[int, int]]:
    """(lease sequence, message) pairs."""
    out = []
    for first, piece in rig.broker.leases.read(subscription, low, high):
        out += list(enumerate(numbers(piece), first))
    return out


def filled(n: int) -> Rig:
    rig = Rig()
    rig.queue("q")
    rig.publish(rig.session(), "q", list(range(n)))
    rig.turn()
    return rig


def test_a_leased_range_is_the_same_messages_in_the_same_order_across_restarts() -> None:
    rig = filled(10)
    subscription = attach(rig)
    assert rig.broker.leases.lease(subscription, 0, 6, 0) == 6
    before = read(rig, subscription, 0, 6)
    assert before == [(i, i) for i in range(6)]
    rig.turn()
    for clean in (False, True):
        rig = rig.restart(clean)
        rig.turn()
        rig.broker.check()
        subscription = rig.broker.leases.find(rig.vhost.queues["q"], "s")
        assert read(rig, subscription, 0, 6) == before
        assert read(rig, subscription, 2, 4) == before[2:4]
        assert rig.ready("q") == [6, 7, 8, 9]


def test_a_part_of_a_batch_ends_with_the_piece_that_reaches_its_bytes() -> None:
    rig = Rig()
    rig.queue("q")
    for first in range(0, 12, 3):  # a slice of each
        rig.publish(rig.session(), "q", list(range(first, first + 3)))
        rig.turn()
    subscription = attach(rig)
    assert rig.broker.leases.lease(subscription, 0, 12, 0) == 12
    rig.broker.leases.settle(subscription, 2)
    assert len(subscription.leases) == 4
    of_slice = subscription.leases[1].slice.size()
    for low in range(2, 13):
        for high in range(low, 13):
            for limit in (1, of_slice, of_slice + 1, 2 * of_slice, 100 * of_slice):
                found = subscription.part(low, high, most_bytes=limit)
                rows = [at for first, piece in found for at in range(first, first + len(piece))]
                assert rows == list(range(low, low + len(rows)))
                sizes = [piece.size() for _, piece in found]
                assert all(sizes), "an empty part"
                assert sum(sizes[:-1]) < limit
                assert len(rows) == high - low or sum(sizes) >= limit


def test_lease_hands_out_again_what_is_leased_before_anything_new() -> None:
    rig = filled(10)
    subscription = attach(rig)
    leases = rig.broker.leases
    assert leases.lease(subscription, 0, 4, 0) == 4
    assert leases.lease(subscription, 0, 100, 0) == 4
    assert leases.lease(subscription, 0, 2, 0) == 2
    assert leases.lease(subscription, 4, 100, 0) == 10
    assert leases.lease(subscription, 10, 100, 0) == 10


def test_settle_is_cumulative_and_may_repeat() -> None:
    rig = filled(10)
    subscription = attach(rig)
    leases = rig.broker.leases
    leases.lease(subscription, 0, 10, 0)
    assert leases.settle(subscription, 4) == 4
    assert leases.settle(subscription, 4) == 4
    assert leases.settle(subscription, 2) == 4
    assert leases.settle(subscription, 7) == 7
    queue = rig.vhost.queues["q"]
    assert (queue.account.settled, queue.account.leased, queue.acquired) == (7, 3, 3)
    rig.turn()
    rig.broker.check()
    with pytest.raises(PreconditionFailed, match="settled up to 7"):
        leases.read(subscription, 6, 8)
    with pytest.raises(PreconditionFailed, match="leased so far up to 10"):
        leases.read(subscription, 8, 11)
    with pytest.raises(PreconditionFailed, match=r"end 11 .* never leased"):
        leases.settle(subscription, 11)
    with pytest.raises(PreconditionFailed, match=r"start 6 .* settled already"):
        leases.lease(subscription, 6, 1, 0)


def test_a_second_attach_fences_the_first_also_after_a_restart() -> None:
    rig = filled(1)
    first = attach(rig).fence
    second = attach(rig)
    with pytest.raises(Fenced):
        second.check_fence(first)
    rig.turn()
    after = rig.restart()
    found = after.broker.leases.find(after.vhost.queues["q"], "s")
    found.check_fence(second.fence)
    assert attach(after).fence > second.fence


def test_an_epoch_never_comes_again_under_the_same_name() -> None:
    rig = filled(3)
    old = attach(rig)
    rig.broker.leases.lease(old, 0, 2, 0)
    assert rig.broker.drop_subscription(old) == 2
    assert rig.ready("q") == [0, 1, 2]
    rig.turn()
    rig.checkpoint(clean=True)
    after = rig.restart()
    with pytest.raises(NotFound):
        after.broker.leases.find(after.vhost.queues["q"], "s")
    new = attach(after)
    assert new.epoch > old.epoch
    with pytest.raises(Fenced):
        new.check_epoch(old.epoch)


def test_what_is_leased_is_exempt_from_purge_and_counts_as_acquired() -> None:
    rig = filled(10)
    subscription = attach(rig)
    rig.broker.leases.lease(subscription, 0, 4, 0)
    queue = rig.vhost.queues["q"]
    assert rig.broker.contents.purge(queue) == 6
    assert queue.acquired == 4
    assert [m for _, m in read(rig, subscription, 0, 4)] == [0, 1, 2, 3]
    rig.broker.check()


def test_a_transient_message_that_is_leased_is_stored_with_the_time_of_its_arrival() -> None:
    rig = Rig()
    rig.queue("q")
    rig.publish(rig.session(), "q", [0], persistent=False)
    rig.turn()
    arrived_ms = rig.vhost.queues["q"].slices()[0].payload.arrived_ms
    rig.broker.clock.now_ms += 60_000
    rig.broker.leases.lease(attach(rig), 0, 1, 0)
    stored = [row.time_ms for row in rig.broker.ledger.rows if row.kind == PAYLOAD]
    assert stored == [arrived_ms]


def test_transient_messages_survive_once_they_are_leased() -> None:
    rig = Rig()
    rig.queue("q")
    rig.publish(rig.session(), "q", list(range(6)), persistent=False)
    subscription = attach(rig)
    rig.broker.leases.lease(subscription, 0, 4, 0)
    rig.turn()
    after = rig.restart()
    after.turn()
    after.broker.check()
    found = after.broker.leases.find(after.vhost.queues["q"], "s")
    assert [m for _, m in read(after, found, 0, 4)] == [0, 1, 2, 3]
    assert after.vhost.queues["q"].counters()["dropped"] == {"transient_at_restart": 2}


def test_a_limit_bounds_what_is_leased_and_unsettled() -> None:
    rig = filled(10)
    subscription = attach(rig, limit_rows=4)
    leases = rig.broker.leases
    assert leases.lease(subscription, 0, 100, 0) == 4
    with pytest.raises(ResourceExhausted, match="its limits are 4"):
        leases.lease(subscription, 4, 100, 0)
    leases.settle(subscription, 3)
    assert leases.lease(subscription, 4, 100, 0) == 7


def test_a_subscription_needs_a_queue_that_outlives_the_broker() -> None:
    rig = Rig()
    rig.queue("q", durable=False)
    with pytest.raises(PreconditionFailed, match="needs a durable"):
        attach(rig)


def test_a_subscription_counts_as_a_consumer() -> None:
    rig = Rig()
    queue, session = rig.queue("q", auto_delete=True), rig.session()
    subscription = attach(rig)
    consumer = rig.broker.consuming.consume(session, queue, "c", False, False, 0, {})
    rig.broker.consuming.cancel(consumer)
    assert "q" in rig.vhost.queues
    rig.broker.drop_subscription(subscription)
    assert "q" not in rig.vhost.queues


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("publish"), st.integers(1, 20)),
            st.tuples(st.just("lease"), st.integers(1, 15)),
            st.tuples(st.just("settle"), st.integers(0, 20)),
            st.tuples(st.just("get_and_return"), st.integers(1, 4)),
            st.tuples(st.just("crash"), st.integers(0, 2)),
        ),
        max_size=40,
    )
)
def test_every_message_is_leased_once_and_read_the_same_each_time(
    history: list[tuple[str, int]],
) -> None:
    rig = Rig()
    rig.queue("q")
    subscription = attach(rig)
    rig.turn()
    number, known = 0, {}
    for what, n in history:
        leases, queue = rig.broker.leases, rig.vhost.queues["q"]
        if what == "publish":
            rig.publish(rig.session(), "q", list(range(number, number + n)))
            number += n
        elif what == "lease":
            leases.lease(subscription, subscription.next, n, 0)
        elif what == "settle":
            leases.settle(subscription, min(subscription.next, subscription.floor + n))
        elif what == "get_and_return":
            session = rig.session()
            got = [rig.get(session, queue) for _ in range(n)]
            if got[0] is not None:
                rig.broker.settlement.settle_up_to(session, 0, RETURNED)
        rig.turn()
        if what == "crash":
            if n == 2:
                rig.checkpoint()
            rig = rig.restart(clean=n == 1)
            rig.turn()
            subscription = rig.broker.leases.find(rig.vhost.queues["q"], "s")
        rig.broker.check()
        for sequence, message in read(rig, subscription, subscription.floor, subscription.next):
            assert known.setdefault(sequence, message) == message
    assert len(set(known.values())) == len(known)
    assert set(known.values()) | set(rig.ready("q")) >= set(range(number)) - set(known.values())
