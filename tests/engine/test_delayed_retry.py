"""Delayed retry: what is given back waits before it is ready again [rabbitmq 4.3 delayed retry]."""

from __future__ import annotations

import pytest

from tallymark.engine.outcomes import ACCEPTED, DISCARDED, FAILED, REJECTED, RETURNED
from tallymark.engine.queue import Queue
from tallymark.engine.session import REQUEUES
from tallymark.stored import records
from tests.support.engine_rig import START_MS, Rig
from tests.support.engine_steps import drain, finish, manual, reject

MIN, MAX = 100, 250


def declare(rig: Rig, kind: str, name: str = "q", **more: object) -> Queue:
    arguments = {key.replace("_", "-"): value for key, value in more.items()}
    delays: dict[str, object] = {
        "delayed-retry-type": kind, "delayed-retry-min": MIN, "delayed-retry-max": MAX,
    }  # fmt: skip
    return rig.declare(name, delays | arguments)


def waits(rig: Rig, queue: Queue) -> list[int]:
    """For each deferred slice how long it still waits, soonest first."""
    rig.broker.check()
    return sorted(entry.due_ms - rig.now_ms for entry in queue.deferrals)


@pytest.mark.parametrize(
    ("kind", "outcome", "waited"),
    [
        ("all", FAILED, True),
        ("all", RETURNED, True),
        ("failed", FAILED, True),
        ("failed", RETURNED, False),
        ("returned", FAILED, False),
        ("returned", RETURNED, True),
        ("disabled", FAILED, False),
    ],
)
def test_the_type_says_whether_the_failed_or_the_others_wait(
    kind: str, outcome: int, waited: bool
) -> None:
    rig = manual()
    queue = declare(rig, kind)
    rig.send("q", 1)
    reject(rig, "q", outcome=outcome)
    assert (rig.ready("q"), queue.deferred) == (([], 1) if waited else ([1], 0))
    assert queue.counters()["deferred"] == queue.deferred
    if waited:
        assert rig.broker.next_due() == START_MS + MIN
        rig.advance(MIN - 1)
        assert rig.ready("q") == []
        rig.advance(1)
    assert rig.ready("q") == [1]
    assert (queue.deferred, queue.account.deferred_bytes) == (0, 0)


def test_each_failure_waits_longer_up_to_the_maximum() -> None:
    rig = manual()
    queue = declare(rig, "failed")
    rig.send("q", 1)
    for waited in (MIN, 2 * MIN, MAX, MAX):
        reject(rig, "q", outcome=FAILED)
        assert waits(rig, queue) == [waited]
        rig.advance(waited)
    assert drain(rig, "q")[0].counts == (4, 4)


def test_what_did_not_fail_waits_the_minimum_however_often_it_was_given_back() -> None:
    rig = manual()
    queue = declare(rig, "all")
    rig.send("q", 1)
    for _ in range(3):
        reject(rig, "q", outcome=RETURNED)
        assert waits(rig, queue) == [MIN]
        rig.advance(MIN)
    for waited in (MIN, 2 * MIN):
        reject(rig, "q", outcome=FAILED)
        assert waits(rig, queue) == [waited]
        rig.advance(waited)
    reject(rig, "q", outcome=RETURNED)  # its two failures count for it too
    assert waits(rig, queue) == [2 * MIN]


def test_without_a_maximum_every_wait_is_the_minimum() -> None:
    rig = manual()
    queue = rig.declare("q", {"delayed-retry-type": "all", "delayed-retry-min": MIN})
    rig.send("q", 1)
    for _ in range(3):
        reject(rig, "q", outcome=FAILED)
        assert waits(rig, queue) == [MIN]
        rig.advance(MIN)


def test_tx_9_it_returns_to_its_old_place_and_others_go_on_meanwhile() -> None:
    rig = manual()
    declare(rig, "all")
    rig.send("q", 1, 2, 3)
    reject(rig, "q", outcome=FAILED)
    session = rig.session()
    rig.consume(session, "q", "c", prefetch=1)
    assert [d.number for d in finish(rig)] == [2]
    rig.advance(MIN)
    assert rig.ready("q") == [1, 3]
    rig.broker.settlement.settle(session, 1, 1, ACCEPTED)
    (again,) = finish(rig)
    assert (again.number, again.redelivered) == (1, True)


def test_refused_messages_do_not_wait_they_die() -> None:
    rig = manual()
    dead = rig.declare("dead")
    queue = declare(rig, "all", dead_letter_exchange="", dead_letter_routing_key="dead")
    rig.send("q", 1, 2)
    reject(rig, "q", outcome=REJECTED)
    reject(rig, "q", outcome=DISCARDED)
    assert (queue.deferred, dead.ready) == (0, 2)


def test_dl_5_the_delivery_limit_goes_before_the_wait() -> None:
    rig = manual()
    rig.declare("dead")
    queue = declare(
        rig, "all", dead_letter_exchange="", dead_letter_routing_key="dead", delivery_limit=1
    )
    rig.send("q", 1)
    reject(rig, "q", outcome=FAILED)
    rig.advance(MIN)
    reject(rig, "q", outcome=FAILED)
    assert (queue.deferred, rig.ready("dead")) == (0, [1])


@pytest.mark.parametrize(
    ("kind", "lost", "waited"),
    [
        ("failed", True, True),
        ("failed", False, False),
        ("returned", True, False),
        ("returned", False, True),
        ("all", True, True),
        ("all", False, True),
    ],
)
def test_a_lost_connection_is_a_failure_and_an_orderly_close_is_none(
    kind: str, lost: bool, waited: bool
) -> None:
    rig = manual()
    queue = declare(rig, kind)
    rig.send("q", 1, 2)
    connection = rig.broker.clients.open_connection("/", "guest", "other")
    session = rig.session(connection)
    rig.consume(session, "q", "c", prefetch=2)
    assert len(finish(rig)) == 2
    rig.broker.clients.close_connection(connection, lost)
    finish(rig)
    assert (queue.ready, queue.deferred) == ((0, 2) if waited else (2, 0))
    rig.advance(MIN)
    expected = (1, 1) if lost else (0, 1)
    assert [one.counts for one in drain(rig, "q")] == [expected, expected]


def test_tx_8_what_is_recovered_waits_as_returned() -> None:
    rig = manual()
    queue = declare(rig, "returned")
    rig.send("q", 1, 2)
    session = rig.session()
    rig.consume(session, "q", "c", prefetch=2)
    finish(rig)
    rig.broker.settlement.recover(session)
    assert finish(rig) == []
    assert waits(rig, queue) == [MIN]
    assert [(d.number, d.redelivered) for d in rig.advance(MIN)] == [(1, True), (2, True)]


def test_nq_14_what_an_nsq_client_held_too_long_waits_as_returned_and_goes_to_the_tail() -> None:
    rig = manual()
    queue = declare(rig, "returned")
    rig.send("q", 1, 2)
    session = rig.session()
    consumer = rig.consume(session, "q", "c", prefetch=1)
    consumer.on_timeout, consumer.timeout_ms = REQUEUES, 1000
    assert [d.number for d in finish(rig)] == [1]
    while not queue.deferred:
        rig.advance(50)
    assert (queue.timed_out, queue.consumers) == (1, [consumer])
    rig.broker.consuming.set_flow(session, False)
    rig.advance(MIN)
    assert [d.number for d in rig.given][:2] == [1, 2]
    assert queue.lanes.next_lane().slices()[-1].first == 1


def test_lc_4_a_consumer_that_took_too_long_has_returned_them() -> None:
    rig = manual()
    queue = declare(rig, "returned", consumer_timeout=1000)
    rig.send("q", 1)
    rig.consume(rig.session(), "q", "c", prefetch=1)
    finish(rig)
    rig.advance(2000)
    assert queue.consumers == []
    assert [one.counts for one in drain(rig, "q")] == [(0, 1)]
    told = [r for block in rig.log.blocks for r in block if r.kind == records.DEFERRED]
    assert [(r.first, r.count, r.reason) for r in told] == [(1, 1, records.RETURNED_BY_TIMEOUT)]
    assert queue.deferred == 0


def test_dl_4_the_wait_does_not_restart_the_time_to_live() -> None:
    rig = manual()
    rig.declare("dead")
    declare(
        rig, "all", dead_letter_exchange="", dead_letter_routing_key="dead",
        message_ttl=MIN + MIN // 2,
    )  # fmt: skip
    rig.send("q", 1)
    reject(rig, "q", outcome=RETURNED)
    rig.advance(MIN)
    assert rig.ready("q") == [1]
    rig.advance(MIN // 2 - 1)
    assert rig.ready("q") == [1]
    rig.advance(1)
    assert (rig.ready("q"), rig.ready("dead")) == ([], [1])


def test_dl_4_what_is_overdue_after_the_wait_dies_then() -> None:
    rig = manual()
    rig.declare("dead")
    queue = declare(rig, "all", dead_letter_exchange="", dead_letter_routing_key="dead")
    rig.send("q", 1, ttl=MIN // 2)
    reject(rig, "q", outcome=RETURNED)
    rig.advance(MIN - 1)
    assert (queue.deferred, rig.ready("dead")) == (1, [])
    rig.advance(1)
    assert (queue.deferred, rig.ready("dead")) == (0, [1])


def test_nq_12_what_goes_to_the_tail_does_so_after_the_wait() -> None:
    rig = manual()
    queue = declare(rig, "returned")
    rig.send("q", 1, 2)
    session = rig.session()
    got = rig.take(session, "q")
    assert got is not None
    rig.broker.settlement.requeue(session, got[1], 0)
    finish(rig)
    assert waits(rig, queue) == [MIN]
    rig.advance(MIN)
    assert rig.ready("q") == [2, 1]


def test_nq_12_a_consumers_own_delay_takes_the_place_of_the_queues() -> None:
    rig = manual()
    queue = declare(rig, "all")
    rig.send("q", 1)
    session = rig.session()
    got = rig.take(session, "q")
    assert got is not None
    rig.broker.settlement.requeue(session, got[1], 7)
    finish(rig)
    assert waits(rig, queue) == [7]


def test_a_policy_starts_and_stops_it_for_what_is_given_back_from_then_on() -> None:
    rig = manual()
    queue = rig.declare("q")
    rig.send("q", 1, 2, 3)
    reject(rig, "q", outcome=FAILED)
    assert rig.ready("q") == [1, 2, 3]
    rig.set_policy("q", {"delayed-retry-type": "failed", "delayed-retry-min": MIN})
    reject(rig, "q", outcome=FAILED)
    assert (rig.ready("q"), waits(rig, queue)) == ([2, 3], [MIN])
    rig.set_policy("q", {})
    reject(rig, "q", outcome=FAILED)
    assert (rig.ready("q"), waits(rig, queue)) == ([2, 3], [MIN])
    rig.advance(MIN)
    assert rig.ready("q") == [1, 2, 3]


def test_messages_in_a_run_that_failed_differently_wait_differently() -> None:
    rig = manual()
    queue = declare(rig, "failed")
    rig.send("q", 1, 2, 3)
    reject(rig, "q", outcome=FAILED)
    rig.advance(MIN)
    session = rig.session()
    rig.consume(session, "q", "c", prefetch=3)
    assert [d.number for d in finish(rig)] == [1, 2, 3]
    rig.broker.settlement.settle_up_to(session, 0, FAILED)
    rig.broker.consuming.set_flow(session, False)
    finish(rig)
    assert waits(rig, queue) == [MIN, 2 * MIN]
    rig.advance(MIN)
    assert rig.ready("q") == [2, 3]
    rig.advance(MIN)
    assert rig.ready("q") == [1, 2, 3]


def test_nq_d9_the_wait_and_the_counts_outlive_a_crash() -> None:
    rig = manual()
    declare(rig, "failed")
    rig.send("q", 1)
    reject(rig, "q", outcome=FAILED)
    rig.advance(MIN)
    reject(rig, "q", outcome=FAILED)
    after = Rig(rig.log, rig.now_ms + MIN)
    after.tick_ms = 0
    queue = after.vhost.queues["q"]
    assert (after.ready("q"), queue.deferred) == ([], 1)
    assert waits(after, queue) == [MIN]
    after.advance(MIN)
    reject(after, "q", outcome=FAILED)
    assert waits(after, queue) == [MAX]


def test_a_queue_with_deferred_messages_is_not_empty() -> None:
    rig = manual()
    queue = declare(rig, "all")
    rig.send("q", 1)
    reject(rig, "q", outcome=RETURNED)
    assert queue.ready == 0
    with pytest.raises(Exception, match="queue 'q' in vhost '/' not empty"):
        rig.broker.registry.delete_queue(rig.connection, "q", False, True)
    rig.broker.contents.purge(queue)
    assert (queue.deferred, queue.account.dropped) == (0, {records.DROPPED_PURGED: 1})
    rig.broker.check()
    assert rig.broker.registry.delete_queue(rig.connection, "q", False, True) == 0


@pytest.mark.parametrize("checkpoint", [False, True])
def test_what_a_dropped_subscription_held_waits_as_returned_also_across_a_restart(
    checkpoint: bool,
) -> None:
    rig = manual()
    queue = declare(rig, "returned")
    rig.send("q", 1, 2, 3)
    finish(rig)
    subscription = rig.broker.leases.attach(queue, "s", 0)
    assert rig.broker.leases.lease(subscription, 0, 2, 0) == 2
    finish(rig)
    if checkpoint:
        rig.checkpoint()
        rig = rig.restart()
        queue = rig.vhost.queues["q"]
        (subscription,) = queue.subscriptions
    assert rig.broker.drop_subscription(subscription) == 2
    finish(rig)
    assert (rig.ready("q"), queue.deferred, queue.account.leased) == ([3], 2, 0)
    now_ms = rig.now_ms
    rig = rig.restart()
    queue = rig.vhost.queues["q"]
    assert (rig.ready("q"), queue.deferred, queue.account.leased) == ([3], 2, 0)
    rig.broker.check()
    rig.advance(now_ms + MIN - rig.now_ms)
    assert rig.ready("q") == [1, 2, 3]
    assert [one.counts for one in drain(rig, "q")][:2] == [(0, 1), (0, 1)]
