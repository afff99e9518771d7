"""Messages that wait for a time: published so, requeued so, retried so [NQ-16, NQ-19, NQ-D9]."""

from __future__ import annotations

import pytest

from tallymark.engine.errors import PreconditionFailed
from tallymark.engine.outcomes import ACCEPTED, FAILED, RETURNED
from tallymark.engine.packing import Packing
from tallymark.engine.upkeep import IN_A_TURN
from tallymark.stored.annotations import Annotations
from tests.support.engine_rig import START_MS, Rig, Said
from tests.support.engine_steps import drain, finish, manual
from tests.support.nsq_client import Client

HOUR_MS = 3_600_000


def later(rig: Rig, key: str, delay_ms: int, *messages: int, ttl: int = -1, **more: bool) -> None:
    """Publish messages that are ready only in delay_ms [DPUB]."""
    known = Annotations(ttl_ms=ttl, due_ms=rig.now_ms + delay_ms)
    rig.send(key, *messages, annotations=known, **more)


def counts(rig: Rig, name: str) -> tuple[int, int, int]:
    """(ready, in flight, deferred): NSQ's depth and what does not count in it."""
    queue = rig.vhost.queues[name]
    return queue.ready, queue.acquired, queue.deferred


def retry(which: str, least_ms: int, most_ms: int) -> dict[str, object]:
    """Arguments of a queue with delayed retry."""
    return {
        "delayed-retry-type": which, "delayed-retry-min": least_ms, "delayed-retry-max": most_ms,
    }  # fmt: skip


# -- becoming ready


def test_nq_16_a_deferred_publish_is_ready_when_it_is_due_and_not_before() -> None:
    rig = manual()
    rig.declare("q")
    client = Client(rig, "q", rdy=10)
    later(rig, "q", 1000, 1)
    assert rig.advance(999) == []
    assert counts(rig, "q") == (0, 0, 1)
    assert [d.number for d in rig.advance(1)] == [1]
    assert counts(rig, "q") == (0, 1, 0)
    assert rig.given[-1].acquired == 0
    client.fin(1)
    finish(rig)


def test_nq_16_deferred_messages_come_in_the_order_of_their_times_behind_what_is_there() -> None:
    rig = manual()
    rig.declare("q")
    later(rig, "q", 300, 1)
    later(rig, "q", 100, 2, 3)
    later(rig, "q", 100, 4)
    rig.send("q", 5)
    finish(rig)
    assert rig.ready("q") == [5]
    rig.advance(100)
    rig.send("q", 6)
    finish(rig)
    assert rig.ready("q") == [5, 2, 3, 4, 6]
    rig.advance(200)
    assert rig.ready("q") == [5, 2, 3, 4, 6, 1]
    finish(rig)


def test_nq_16_a_time_that_is_over_defers_nothing() -> None:
    rig = manual()
    rig.declare("q")
    later(rig, "q", 0, 1)
    later(rig, "q", -5, 2)
    finish(rig)
    assert rig.ready("q") == [1, 2]
    assert counts(rig, "q") == (2, 0, 0)


def test_nq_16_deferred_messages_join_their_lanes() -> None:
    rig = manual()
    rig.says.update({n: Said(priority=n % 3) for n in range(1, 7)})
    rig.declare("q", {"max-priority": 2})
    later(rig, "q", 50, 1, 2, 3, 4, 5, 6)
    finish(rig)
    assert counts(rig, "q") == (0, 0, 6)
    rig.advance(50)
    assert rig.ready("q") == [2, 5, 1, 4, 3, 6]
    finish(rig)


def test_a_basic_get_finds_what_is_due_without_a_turn_in_between() -> None:
    rig = manual()
    queue = rig.declare("q")
    later(rig, "q", 50, 1)
    finish(rig)
    session = rig.session()
    assert rig.get(session, queue) is None
    rig.now_ms += 50
    rig.tell_time()
    assert rig.get(session, queue) == (1, 1)
    rig.broker.check()


def test_deferral_costs_the_broker_nothing_until_it_is_due() -> None:
    rig = manual()
    rig.declare("q")
    later(rig, "q", HOUR_MS, 1)
    finish(rig)
    assert rig.broker.next_due() == rig.now_ms + HOUR_MS
    assert not rig.broker.has_work()


# -- requeued later


def test_nq_12_req_with_a_delay_comes_back_at_the_tail_with_one_attempt_more() -> None:
    rig = manual()
    rig.declare("q")
    client = Client(rig, "q")
    rig.send("q", 1, 2)
    assert client.mine(finish(rig)) == [(1, 1)]
    client.req(1, 200)
    assert client.mine(finish(rig)) == [(2, 2)]
    assert counts(rig, "q") == (0, 1, 1)
    rig.send("q", 3)
    rig.advance(199)
    assert counts(rig, "q") == (1, 1, 1)
    rig.advance(1)
    assert rig.ready("q") == [3, 1]
    assert [h.acquired for h in rig.holds("q")] == [0, 1]
    client.fin(2)
    assert client.mine(finish(rig)) == [(3, 3)]


def test_nq_d10_a_requeue_with_a_delay_counts_for_the_acquired_limit_as_one_without() -> None:
    rig = manual()
    rig.declare("q", {"acquired-limit": 2})
    client = Client(rig, "q")
    rig.send("q", 1)
    for tag in (1, 2):
        assert client.mine(rig.advance(10)) == [(tag, 1)]
        client.req(tag, 10)
    assert client.mine(rig.advance(10)) == [(3, 1)]
    client.req(3, 10)
    finish(rig)
    assert counts(rig, "q") == (0, 0, 0)
    assert rig.dropped("q") == {"delivery_limit": 1}


# -- time to live


def test_the_time_to_live_counts_from_when_it_became_ready() -> None:
    rig = manual()
    rig.declare("q", {"message-ttl": 100})
    later(rig, "q", 1000, 1)
    rig.advance(1099)
    assert rig.ready("q") == [1]
    rig.advance(1)
    assert rig.ready("q") == []
    assert rig.dropped("q") == {"expired": 1}
    finish(rig)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_time_to_live_of_its_own_counts_from_when_it_became_ready(restarts: bool) -> None:
    rig = manual()
    rig.declare("q")
    later(rig, "q", 1000, 1, ttl=100)
    finish(rig)
    if restarts:
        rig = rig.restart()
        finish(rig)
    rig.advance(1099)
    assert rig.ready("q") == [1]
    rig.advance(1)
    assert rig.ready("q") == []
    assert rig.dropped("q") == {"expired": 1}
    finish(rig)


def test_the_time_to_live_counts_in_each_lane() -> None:
    rig = manual()
    rig.says.update({1: Said(priority=1), 2: Said(priority=0)})
    rig.declare("q", {"max-priority": 1, "message-ttl": 100})
    later(rig, "q", 500, 1, 2)
    rig.advance(450)
    rig.says[3] = Said(priority=1)
    rig.send("q", 3)
    rig.advance(50)
    assert rig.ready("q") == [3, 1, 2]
    rig.advance(50)
    assert rig.ready("q") == [1, 2]
    rig.advance(50)
    assert rig.ready("q") == []
    finish(rig)


@pytest.mark.parametrize("ttl", [0, 1])
def test_what_is_due_with_no_time_to_live_still_reaches_a_consumer_that_waits(ttl: int) -> None:
    rig = manual()
    rig.declare("q")
    client = Client(rig, "q", rdy=5)
    finish(rig)
    later(rig, "q", 100, 1, ttl=ttl)
    assert client.mine(rig.advance(100)) == [(1, 1)]
    finish(rig)


def test_what_is_due_with_no_time_to_live_dies_where_nobody_waits() -> None:
    rig = manual()
    rig.declare("q")
    later(rig, "q", 100, 1, ttl=0)
    rig.advance(100)
    assert rig.dropped("q") == {"expired": 1}
    finish(rig)


def test_what_had_its_time_while_it_was_held_expires_at_the_tail_too() -> None:
    rig = manual()
    rig.declare("q", {"message-ttl": 100})
    client = Client(rig, "q", rdy=1)
    rig.send("q", 1)
    finish(rig)
    rig.advance(500)
    client.req(1)
    assert finish(rig) == []
    assert rig.dropped("q") == {"expired": 1}


# -- limits


def test_deferred_messages_do_not_count_for_max_length_until_they_are_due() -> None:
    rig = manual()
    rig.declare("q", {"max-length": 2})
    later(rig, "q", 100, 1, 2, 3)
    rig.send("q", 4, 5)
    finish(rig)
    assert rig.ready("q") == [4, 5]
    assert rig.dropped("q") == {}
    rig.advance(100)
    assert rig.ready("q") == [2, 3]
    assert rig.dropped("q") == {"maxlen": 3}
    finish(rig)


@pytest.mark.parametrize("ready", [False, True])
def test_a_limit_on_bytes_set_while_messages_are_deferred_weighs_them_when_due(
    ready: bool,
) -> None:
    rig = manual()
    rig.declare("q")
    later(rig, "q", 100, 1, 2)
    if ready:
        rig.send("q", 3)
    finish(rig)
    rig.set_policy("q", {"max-length-bytes": 8})
    finish(rig)
    rig.advance(100)
    assert rig.ready("q") == [2]
    finish(rig)


def test_a_limit_on_bytes_holds_for_what_was_deferred_before_a_restart() -> None:
    rig = manual()
    rig.declare("q", {"max-length-bytes": 8})
    later(rig, "q", 100, 1, 2)
    finish(rig)
    rig = rig.restart()
    finish(rig)
    rig.advance(100)
    assert rig.ready("q") == [2]
    finish(rig)


def test_if_empty_does_not_delete_a_queue_with_deferred_messages() -> None:
    rig = manual()
    rig.declare("q")
    later(rig, "q", 100, 1)
    finish(rig)
    with pytest.raises(PreconditionFailed, match="not empty"):
        rig.broker.registry.delete_queue(rig.connection, "q", False, True)
    assert counts(rig, "q") == (0, 0, 1)


def test_an_unused_queue_expires_with_its_deferred_messages() -> None:
    rig = manual()
    rig.declare("q", {"expires": 100})
    later(rig, "q", 500, 1)
    rig.advance(99)
    assert "q" in rig.vhost.queues
    rig.advance(1)
    assert "q" not in rig.vhost.queues
    finish(rig)
    assert rig.broker.store.resident_bytes == 0 or rig.turn() == []
    rig.turn()
    assert rig.broker.store.resident_bytes == 0


# -- purge, delete, empty


@pytest.mark.parametrize("how", ["purge", "empty", "delete"])
def test_what_is_deferred_goes_with_the_rest(how: str) -> None:
    rig = manual()
    queue = rig.declare("q")
    later(rig, "q", 100, 1, 2)
    rig.send("q", 3)
    client = Client(rig, "q", rdy=1)
    finish(rig)
    client.req(1, 50)
    finish(rig)
    assert counts(rig, "q") == (0, 0, 3)
    if how == "delete":
        rig.delete("q")
    else:
        getattr(rig.broker.contents, how)(queue)
    finish(rig)
    assert (queue.deferred, queue.account.deferred_bytes, len(queue.deferrals)) == (0, 0, 0)
    assert sum(queue.account.dropped.values()) == 3
    assert rig.advance(200) == []
    rig.turn()
    assert rig.broker.store.resident_bytes == 0
    after = rig.restart()
    finish(after)
    if how == "delete":
        assert "q" not in after.vhost.queues
    else:
        assert counts(after, "q") == (0, 0, 0)


# -- delayed retry


def test_delayed_retry_waits_longer_each_time_and_keeps_the_old_place() -> None:
    rig = manual()
    rig.declare("q", retry("all", 100, 150))
    session = rig.session()
    rig.send("q", 1, 2, 3)
    for wait in (100, 150, 150):
        got = rig.take(session, "q")
        assert got is not None
        assert got[0].number == 1
        rig.broker.settlement.settle(session, got[1], got[1], FAILED)
        rig.advance(wait - 1)
        assert rig.ready("q") == [2, 3]
        rig.advance(1)
        assert rig.ready("q") == [1, 2, 3]
        rig.broker.check()


@pytest.mark.parametrize("which", ["failed", "returned"])
def test_delayed_retry_of_one_kind_leaves_the_other_alone(which: str) -> None:
    rig = manual()
    rig.declare("q", retry(which, 100, 900))
    session = rig.session()
    rig.send("q", 1, 2)
    for _ in range(2):
        assert rig.take(session, "q") is not None
    rig.broker.settlement.settle(session, 1, 1, FAILED)
    rig.broker.settlement.settle(session, 2, 2, RETURNED)
    finish(rig)
    assert rig.ready("q") == [2 if which == "failed" else 1]
    assert counts(rig, "q") == (1, 0, 1)
    rig.advance(100)
    assert counts(rig, "q") == (2, 0, 0)
    rig.broker.check()


def test_delayed_retry_does_not_save_a_message_from_its_delivery_limit() -> None:
    rig = manual()
    rig.declare("q", {"delivery-limit": 1} | retry("all", 100, 100))
    session = rig.session()
    rig.send("q", 1)
    for _ in range(2):
        got = rig.take(session, "q")
        assert got is not None
        rig.broker.settlement.settle(session, got[1], got[1], FAILED)
        rig.advance(1000)
    assert rig.dropped("q") == {"delivery_limit": 1}
    assert counts(rig, "q") == (0, 0, 0)
    finish(rig)


# -- restart


def test_nq_a11_a_deferred_publish_is_still_deferred_after_a_restart() -> None:
    rig = manual()
    rig.declare("q")
    later(rig, "q", HOUR_MS, 1)
    finish(rig)
    for clean in (False, True):
        rig = rig.restart(clean)
        finish(rig)
        assert counts(rig, "q") == (0, 0, 1)
    rig.advance(HOUR_MS - 1)
    assert rig.ready("q") == []
    rig.advance(1)
    assert rig.ready("q") == [1]
    finish(rig)


@pytest.mark.parametrize("way", ["crash", "checkpoint", "clean"])
def test_nq_d9_a_requeued_message_keeps_its_time_and_its_attempts(way: str) -> None:
    rig = manual()
    rig.declare("q")
    client = Client(rig, "q", rdy=2)
    rig.send("q", 1, 2, 3)
    finish(rig)
    client.req(1, 1000)
    client.req(2)
    client.rdy(0)
    finish(rig)
    if way == "checkpoint":
        rig.checkpoint()
    if way == "clean":
        client.leave(lost=False)
    rig = rig.restart(way == "clean")
    finish(rig)
    assert rig.vhost.queues["q"].deferred == 1
    rig.advance(999)
    assert sorted(h.number for h in rig.holds("q")) == [2, 3]
    rig.advance(1)
    assert sorted((h.number, h.acquired) for h in rig.holds("q"))[0] == (1, 1)
    finish(rig)


def test_nq_d9_what_became_due_while_the_broker_was_down_is_ready_at_once() -> None:
    rig = manual()
    rig.declare("q")
    client = Client(rig, "q", rdy=1)
    later(rig, "q", 500, 1)
    rig.send("q", 2)
    finish(rig)
    client.req(1, 500)
    finish(rig)
    rig.now_ms += 600
    rig = rig.restart()
    finish(rig)
    assert sorted(rig.ready("q")) == [1, 2]
    assert counts(rig, "q") == (2, 0, 0)


def test_nq_d9_the_last_deferral_counts() -> None:
    rig = manual()
    rig.declare("q")
    client = Client(rig, "q", rdy=1)
    rig.send("q", 1)
    finish(rig)
    client.req(1, 100)
    rig.advance(100)
    client.req(2, 10_000)
    finish(rig)
    rig = rig.restart()
    finish(rig)
    rig.advance(9_999)
    assert counts(rig, "q") == (0, 0, 1)
    rig.advance(1)
    assert [h.acquired for h in rig.holds("q")] == [2]


@pytest.mark.parametrize("due_first", [True, False])
def test_the_time_to_live_counts_from_when_it_was_due_across_a_restart(due_first: bool) -> None:
    rig = manual()
    rig.declare("q", {"message-ttl": 200})
    later(rig, "q", 1000, 1)
    rig.advance(1050 if due_first else 950)
    if not due_first:
        rig.now_ms += 100
    rig = rig.restart()
    finish(rig)
    assert rig.ready("q") == [1]
    rig.advance(149)
    assert rig.ready("q") == [1]
    rig.advance(1)
    assert rig.ready("q") == []
    finish(rig)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_requeue_with_a_delay_does_not_prolong_the_time_to_live(restarts: bool) -> None:
    rig = manual()
    rig.declare("q", {"message-ttl": 200})
    client = Client(rig, "q", rdy=1)
    rig.send("q", 1)
    finish(rig)
    client.rdy(0)
    client.req(1, 150)
    finish(rig)
    if restarts:
        rig = rig.restart()
        finish(rig)
    rig.advance(199)
    assert rig.ready("q") == [1]
    rig.advance(1)
    assert rig.dropped("q") == {"expired": 1}
    finish(rig)


def test_what_still_waits_to_be_delivered_for_the_first_time_is_not_flagged_by_a_crash() -> None:
    rig = manual()
    rig.declare("q")
    later(rig, "q", 1000, 1)
    client = Client(rig, "q", rdy=10)
    rig.send("q", 2, 3)
    finish(rig)
    client.fin(1, 2)
    finish(rig)
    assert rig.vhost.queues["q"].high_water.mark > 1
    rig = rig.restart()
    rig.advance(1000)
    assert [(h.number, h.acquired) for h in rig.holds("q")] == [(1, 0)]


@pytest.mark.parametrize("requeues", [False, True])
def test_nq_d9_attempts_go_on_from_a_delivery_that_a_crash_left_in_doubt(requeues: bool) -> None:
    rig = manual()
    rig.declare("q")
    client = Client(rig, "q", rdy=1)
    rig.send("q", 1, 2, 3)
    finish(rig)
    client.fin(1)
    client.rdy(0)
    finish(rig)
    rig.broker.marks.cover(rig.vhost.queues["q"], 4)  # the next two were about to leave
    finish(rig)
    for acquired in (1, 2, 3):
        rig = rig.restart()
        finish(rig)
        assert [(h.number, h.acquired) for h in rig.holds("q")] == [(2, acquired), (3, acquired)]
        client = Client(rig, "q", rdy=2)
        finish(rig)
        assert rig.vhost.queues["q"].acquired == 2
        if requeues:
            client.rdy(0)
            client.req(1)
            client.req(2)
            finish(rig)


@pytest.mark.parametrize("packs", [False, True])
def test_a_retried_message_finds_its_old_place_after_a_restart(packs: bool) -> None:
    rig = manual()
    rig.declare("q", retry("failed", 100, 100))
    session = rig.session()
    for n in range(1, 21):
        rig.send("q", n)
    taken = [rig.take(session, "q") for _ in range(10)]
    assert all(taken)
    rig.broker.settlement.settle(session, 3, 5, FAILED)
    rig.broker.settlement.settle(session, 10, 10, FAILED)
    finish(rig)
    after = rig.restart()
    if packs:
        after.broker.backlogs.packing = Packing(after=2, group=4, fresh=1)
        after.broker.pack_all(1 << 60)
    finish(after)
    waiting = {3, 4, 5, 10}
    assert after.ready("q") == [n for n in range(1, 21) if n not in waiting]
    if packs:
        after = rig.restart()
        after.broker.backlogs.packing = Packing(after=2, group=4, fresh=1)
        after.broker.pack_all(1 << 60)
    after.advance(100)
    assert [h.number for h in drain(after, "q")] == list(range(1, 21))


def test_what_a_subscription_gives_up_after_a_restart_finds_its_old_place() -> None:
    rig = manual()
    queue = rig.declare("q")
    session = rig.session()
    for n in range(1, 7):
        rig.send("q", n)
    assert rig.take(session, "q") is not None
    assert rig.take(session, "q") is not None
    subscription = rig.broker.leases.attach(queue, "s")
    rig.broker.leases.lease(subscription, 0, 2, 0)
    finish(rig)
    rig = rig.restart()
    finish(rig)
    assert rig.ready("q") == [1, 2, 5, 6]
    rig.broker.drop_subscription(rig.vhost.queues["q"].subscriptions[0])
    finish(rig)
    assert rig.ready("q") == [1, 2, 3, 4, 5, 6]


def test_deferred_and_leased_messages_do_not_meet() -> None:
    rig = manual()
    queue = rig.declare("q")
    later(rig, "q", 100, 1, 2)
    rig.send("q", 3)
    subscription = rig.broker.leases.attach(queue, "s")
    assert rig.broker.leases.lease(subscription, 0, 10, 0) == 1
    finish(rig)
    assert counts(rig, "q") == (0, 1, 2)
    rig.advance(100)
    assert rig.broker.leases.lease(subscription, 1, 10, 0) == 3
    finish(rig)
    rig = rig.restart()
    finish(rig)
    assert counts(rig, "q") == (0, 3, 0)
    found = rig.vhost.queues["q"].subscriptions[0]
    rig.broker.leases.settle(found, 3)
    finish(rig)
    assert rig.vhost.queues["q"].account.settled == 3


def test_transient_deferred_messages_end_at_a_restart_and_are_counted() -> None:
    rig = manual()
    rig.declare("q")
    later(rig, "q", 1000, 1, persistent=False)
    later(rig, "q", 1000, 2)
    finish(rig)
    rig.checkpoint()
    rig = rig.restart()
    finish(rig)
    assert counts(rig, "q") == (0, 0, 1)
    assert rig.dropped("q") == {"transient_at_restart": 1}


def test_a_checkpoint_keeps_every_deferral() -> None:
    rig = manual()
    rig.declare("q", {"message-ttl": 10 * HOUR_MS})
    client = Client(rig, "q", rdy=3)
    rig.send("q", 1, 2, 3)
    later(rig, "q", 400, 4)
    finish(rig)
    client.rdy(0)
    client.req(2, 300)
    client.req(1, 100)
    client.fin(3)
    rig.advance(150)
    rig.checkpoint()
    rig = rig.restart()
    finish(rig)
    assert [(h.number, h.acquired) for h in rig.holds("q")] == [(1, 1)]
    rig.advance(150)
    assert sorted(h.number for h in rig.holds("q")) == [1, 2]
    rig.advance(100)
    assert sorted((h.number, h.acquired) for h in rig.holds("q")) == [(1, 1), (2, 1), (4, 0)]
    assert rig.now_ms == START_MS + 400
    finish(rig)


def test_bodies_of_deferred_messages_may_leave_memory() -> None:
    rig = manual()
    rig.declare("q")
    later(rig, "q", 100, 1)
    rig.settle_down(budget=0)
    assert rig.broker.store.resident_bytes == 0
    rig.now_ms += 100
    session = rig.session()
    rig.settle_down(budget=0)
    got = rig.take(session, "q")
    assert got is not None
    assert got[0].number == 1
    rig.broker.settlement.settle(session, got[1], got[1], ACCEPTED)
    finish(rig)


def test_deferrals_that_come_due_together_become_ready_over_several_turns() -> None:
    count = 2 * IN_A_TURN + 10
    rig = manual()
    rig.declare("q")
    session = rig.session()
    known = Annotations(due_ms=rig.now_ms + 1000)
    for number in range(1, count + 1):
        rig.send("q", number, session=session, annotations=known, persistent=False)
    rig.consume(rig.session(), "q", "c")
    rig.settle_down()
    rig.now_ms += 1000
    found = []
    for _ in range(2):
        found.append((rig.turn(), counts(rig, "q")))
    assert found == [
        ([], (IN_A_TURN, 0, count - IN_A_TURN)),
        ([], (2 * IN_A_TURN, 0, 10)),
    ]
    assert [d.number for d in rig.settle_down()] == list(range(1, count + 1))
    rig.broker.check()


def test_messages_given_back_again_and_again_are_sorted_in_where_they_belong() -> None:
    rig = manual()
    rig.declare("q")
    session = rig.session()
    for number in range(1, 61):
        rig.send("q", number, session=session)
    rig.consume(session, "q", "c")
    tags = {d.number: d.tag for d in rig.settle_down()}
    rig.broker.consuming.cancel(session.consumers["c"])
    queue = rig.vhost.queues["q"]
    for numbers in (range(31, 61, 2), range(1, 31, 3), range(32, 61, 2)):
        taken = [rig.broker.settlement.take_back(session, tags[one])[1] for one in numbers]
        queue.give_back(taken[::-1], False)
        rig.broker.check()
    assert rig.ready("q") == sorted([*range(31, 61), *range(1, 31, 3)])
