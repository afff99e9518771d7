"""Rules of semantics.md that the engine alone can show, under a manual clock."""

from __future__ import annotations

import pytest

from tallymark.engine.errors import AccessRefused, NotAllowed, PreconditionFailed
from tallymark.engine.outcomes import ACCEPTED, FAILED, REJECTED, RETURNED
from tallymark.engine.queue import check_queue
from tallymark.engine.restore import drop_lost
from tallymark.engine.traffic import DISCARDED
from tests.support.engine_rig import Delivery, Rig


def numbers(deliveries: list[Delivery]) -> list[int]:
    return [d.number for d in deliveries]


def test_tx_8_recover_requeues_at_the_old_position_with_the_flag() -> None:
    rig = Rig()
    queue, session = rig.queue("q"), rig.session()
    rig.publish(session, "q", [0, 1, 2, 3, 4])
    assert [rig.get(session, queue) for _ in range(3)] == [(0, 1), (1, 2), (2, 3)]
    rig.broker.settlement.settle(session, 2, 2, ACCEPTED)
    rig.broker.settlement.recover(session)
    rig.broker.consuming.consume(session, queue, "c", False, False, 0, {})
    seen = rig.settle_down()
    assert [(d.number, d.redelivered) for d in seen] == [
        (0, True), (2, True), (3, False), (4, False),
    ]  # fmt: skip
    assert [d.tag for d in seen] == [4, 5, 6, 7]


def test_tx_9_requeue_keeps_order() -> None:
    rig = Rig()
    queue, session = rig.queue("q"), rig.session()
    rig.publish(session, "q", [0, 1, 2, 3, 4])
    for _ in range(3):
        rig.get(session, queue)
    rig.broker.settlement.settle_up_to(session, 3, RETURNED)
    assert [rig.get(session, queue) for _ in range(5)] == [(0, 4), (1, 5), (2, 6), (3, 7), (4, 8)]


def test_tx_9_unknown_tags_are_refused_and_change_nothing() -> None:
    rig = Rig()
    queue, session = rig.queue("q"), rig.session()
    rig.publish(session, "q", [0, 1])
    rig.get(session, queue)
    for tag in (2, 7):
        with pytest.raises(PreconditionFailed, match=rf"^unknown delivery tag {tag}$"):
            rig.broker.settlement.settle_up_to(session, tag, ACCEPTED)
        with pytest.raises(PreconditionFailed, match=rf"^unknown delivery tag {tag}$"):
            rig.broker.settlement.settle(session, tag, tag, ACCEPTED)
    assert queue.acquired == 1
    rig.broker.settlement.settle_up_to(session, 0, ACCEPTED)
    assert queue.account.settled == 1
    with pytest.raises(PreconditionFailed, match=r"^unknown delivery tag 1$"):
        rig.broker.settlement.settle(session, 1, 1, ACCEPTED)


def test_tx_10_no_delivery_while_flow_is_off() -> None:
    rig = Rig()
    queue, session = rig.queue("q"), rig.session()
    rig.broker.consuming.consume(session, queue, "c", False, False, 0, {})
    rig.publish(session, "q", [1])
    rig.broker.consuming.set_flow(session, False)
    assert rig.settle_down() == []
    rig.broker.consuming.set_flow(session, True)
    assert numbers(rig.settle_down()) == [1]


def test_tx_a11_suspending_and_resuming_loses_and_reorders_nothing() -> None:
    rig = Rig()
    queue, session = rig.queue("q"), rig.session()
    rig.broker.consuming.set_prefetch(session, 3, shared=False)
    rig.broker.consuming.consume(session, queue, "c", False, False, 0, {})
    seen: list[Delivery] = []
    for n in range(200):
        rig.publish(session, "q", [n])
        rig.broker.consuming.set_flow(session, n % 3 == 0)
        new = rig.settle_down()
        seen += new
        for delivery in new[:2]:
            rig.broker.settlement.settle(session, delivery.tag, delivery.tag, ACCEPTED)
    rig.broker.consuming.set_flow(session, True)
    rig.broker.settlement.settle_up_to(session, 0, ACCEPTED)
    while new := rig.settle_down():
        seen += new
        rig.broker.settlement.settle_up_to(session, 0, ACCEPTED)
    assert numbers(seen) == list(range(200))


def test_lc_2_a_late_settlement_cannot_hit_a_later_delivery() -> None:
    rig = Rig()
    queue, session = rig.queue("q"), rig.session()
    rig.publish(session, "q", [1])
    _, tag = rig.get(session, queue) or (0, 0)
    rig.broker.settlement.settle(session, tag, tag, RETURNED)
    again = rig.get(session, queue)
    assert again == (1, tag + 1)
    with pytest.raises(PreconditionFailed):
        rig.broker.settlement.settle(session, tag, tag, ACCEPTED)
    assert (queue.acquired, queue.account.settled) == (1, 0)


def test_lc_3_credit_is_what_the_prefetch_leaves() -> None:
    rig = Rig()
    queue, session = rig.queue("q"), rig.session()
    rig.broker.consuming.set_prefetch(session, 2, shared=False)
    rig.broker.consuming.consume(session, queue, "c", False, False, 0, {})
    rig.publish(session, "q", list(range(5)))
    assert numbers(rig.settle_down()) == [0, 1]
    rig.broker.settlement.settle(session, 2, 2, REJECTED)
    assert numbers(rig.settle_down()) == [2]
    rig.broker.settlement.settle_up_to(session, 3, ACCEPTED)
    assert numbers(rig.settle_down()) == [3, 4]


def test_a_shared_prefetch_limits_all_consumers_of_the_session_together() -> None:
    rig = Rig()
    rig.queue("a")
    rig.queue("b")
    session = rig.session()
    rig.broker.consuming.set_prefetch(session, 3, shared=True)
    for name in ("a", "b"):
        rig.broker.consuming.consume(session, rig.vhost.queues[name], name, False, False, 0, {})
        rig.publish(session, name, list(range(4)))
    first = rig.settle_down()
    assert len(first) == 3
    rig.broker.settlement.settle_up_to(session, 0, ACCEPTED)
    assert len(rig.settle_down()) == 3


@pytest.mark.parametrize("lost", [False, True])
def test_fc_19_a_session_that_ends_gives_back_at_the_old_position(lost: bool) -> None:
    rig = Rig()
    queue, session, other = rig.queue("q"), rig.session(), rig.session()
    rig.publish(other, "q", [0, 1, 2, 3])
    for _ in range(3):
        rig.get(session, queue)
    rig.broker.settlement.settle(session, 2, 2, ACCEPTED)
    rig.broker.clients.close_session(session, lost)
    rig.broker.consuming.consume(other, queue, "c", False, False, 0, {})
    assert [(d.number, d.redelivered) for d in rig.settle_down()] == [
        (0, True), (2, True), (3, False),
    ]  # fmt: skip


def test_lc_4_messages_returned_by_several_consumers_come_back_in_order() -> None:
    rig = Rig()
    queue = rig.queue("q")
    sessions = [rig.session() for _ in range(3)]
    rig.publish(sessions[0], "q", list(range(90)))
    for i, session in enumerate(sessions):
        rig.broker.consuming.set_prefetch(session, 30, shared=False)
        rig.broker.consuming.consume(session, queue, f"c{i}", False, False, 0, {})
    assert len(rig.settle_down()) == 90
    for session in reversed(sessions):
        rig.broker.clients.close_session(session, lost=True)
    rig.broker.check()
    assert rig.ready("q") == list(range(90))


def test_ten_messages_do_not_all_go_to_one_of_two_consumers() -> None:
    rig = Rig()
    queue = rig.queue("q")
    sessions = [rig.session(), rig.session()]
    for i, session in enumerate(sessions):
        rig.broker.consuming.consume(session, queue, f"c{i}", False, False, 0, {})
    rig.publish(sessions[0], "q", list(range(10)))
    seen = rig.settle_down()
    assert sorted(d.number for d in seen) == list(range(10))
    assert [sum(d.consumer == c for d in seen) for c in ("c0", "c1")] == [5, 5]


def test_consumers_of_higher_priority_come_first_while_they_have_credit() -> None:
    rig = Rig()
    queue = rig.queue("q")
    session = rig.session()
    rig.broker.consuming.set_prefetch(session, 2, shared=False)
    rig.broker.consuming.consume(session, queue, "low", False, False, 0, {})
    rig.broker.consuming.consume(session, queue, "high", False, False, 5, {})
    rig.publish(session, "q", [1, 2, 3])
    assert [d.consumer for d in rig.settle_down()] == ["high", "high", "low"]


def test_exclusive_consumers_and_reused_tags_are_refused() -> None:
    rig = Rig()
    queue, session = rig.queue("q"), rig.session()
    rig.broker.consuming.consume(session, queue, "c", False, True, 0, {})
    with pytest.raises(NotAllowed, match="attempt to reuse consumer tag 'c'"):
        rig.broker.consuming.consume(session, queue, "c", False, False, 0, {})
    with pytest.raises(AccessRefused, match="queue 'q' in vhost '/' in exclusive use"):
        rig.broker.consuming.consume(session, queue, "d", False, False, 0, {})


def test_a_confirm_leaves_only_when_the_disk_has_it() -> None:
    rig = Rig()
    rig.queue("q")
    session = rig.session()
    session.confirming = True
    rig.turn()
    rig.hold_disk = True
    rig.publish(session, "q", [1, 2, 3])
    rig.turn()
    rig.broker.publishing.published_nowhere(session, 1, DISCARDED)
    rig.turn()
    assert rig.confirmed == {}
    rig.hold_disk = False
    rig.turn()
    assert rig.confirmed == {session.id: 4}


def test_nothing_leaves_before_the_disk_says_that_it_may_have_left() -> None:
    rig = Rig()
    queue, session = rig.queue("q"), rig.session()
    rig.publish(session, "q", [1])
    rig.turn()
    rig.hold_disk = True
    rig.broker.consuming.consume(session, queue, "c", False, False, 0, {})
    assert rig.turn() == []
    rig.hold_disk = False
    assert numbers(rig.settle_down()) == [1]
    after = rig.restart()
    after.turn()
    assert [p.acquired > 0 for p in after.vhost.queues["q"].slices()] == [True]


def test_a_message_asked_for_has_to_wait_for_the_mark() -> None:
    rig = Rig()
    queue, session = rig.queue("q"), rig.session()
    rig.publish(session, "q", [1, 2])
    rig.turn()
    rig.get(session, queue)
    assert rig.broker.consuming.get_must_wait
    rig.settle_down()
    rig.get(session, queue)
    assert not rig.broker.consuming.get_must_wait


def test_a_paused_connection_is_given_nothing_more_than_its_room() -> None:
    rig = Rig()
    queue, session = rig.queue("q"), rig.session()
    rig.broker.consuming.consume(session, queue, "c", True, False, 0, {})
    rig.connection.paused = True
    rig.publish(session, "q", list(range(100)))
    assert rig.settle_down() == []
    assert queue.ready == 100
    rig.connection.paused = False
    rig.broker.clients.wake(rig.connection)
    assert numbers(rig.settle_down()) == list(range(100))
    assert queue.account.settled == 100


def test_a_flood_to_a_consumer_without_limit_is_spread_over_turns() -> None:
    rig = Rig()
    queue, session = rig.queue("q", durable=False), rig.session()
    rig.publish(session, "q", list(range(300_000)))
    rig.broker.consuming.consume(session, queue, "c", True, False, 0, {})
    first = rig.turn()
    assert 0 < len(first) < 300_000
    assert rig.broker.has_work()
    assert numbers(first + rig.settle_down()) == list(range(300_000))


def test_deleting_a_queue_ends_its_consumers_and_its_messages() -> None:
    rig = Rig()
    queue, session = rig.queue("q"), rig.session()
    rig.broker.consuming.set_prefetch(session, 2, shared=False)
    rig.broker.consuming.consume(session, queue, "c", False, False, 0, {})
    rig.publish(session, "q", [1, 2, 3])
    tags = [d.tag for d in rig.settle_down()]
    assert rig.broker.registry.delete_queue(rig.connection, "q", False, False) == 1
    rig.turn()
    assert rig.cancelled == ["c"]
    for tag in tags:
        rig.broker.settlement.settle(session, tag, tag, ACCEPTED)
    check_queue(queue)
    assert sum(queue.account.dropped.values()) == 3
    rig.broker.check()
    rig.turn()
    rig.turn()
    assert rig.broker.store.resident_bytes == 0


def test_what_consumers_hold_of_a_deleted_queue_is_released_with_it() -> None:
    """Its bytes stayed in memory and in the journal for as long as the session was open, where the
    client settled them no more."""
    rig = Rig()
    rig.queue("q", auto_delete=True)
    session = rig.session()
    consumer = rig.consume(session, "q", "c")
    rig.publish(session, "q", [1, 2, 3])
    rig.settle_down()
    rig.broker.consuming.cancel(consumer)
    rig.settle_down()
    rig.turn()
    rig.broker.check()
    assert session.unacked == 3
    assert rig.broker.store.resident_bytes == 0
    assert sum(size for _, size in rig.released) == rig.log.stored_bytes
    rig.broker.settlement.settle_up_to(session, 0, ACCEPTED)
    rig.turn()
    rig.broker.check()
    assert session.unacked == 0


def test_an_auto_delete_queue_goes_with_its_last_consumer() -> None:
    rig = Rig()
    queue, session = rig.queue("q", auto_delete=True), rig.session()
    consumer = rig.broker.consuming.consume(session, queue, "c", False, False, 0, {})
    other = rig.broker.consuming.consume(session, queue, "d", False, False, 0, {})
    rig.broker.consuming.cancel(consumer)
    assert "q" in rig.vhost.queues
    rig.broker.consuming.cancel(other)
    assert "q" not in rig.vhost.queues
    rig.broker.check()


def test_exclusive_queues_end_with_their_connection() -> None:
    rig = Rig()
    rig.queue("q", exclusive=True)
    session = rig.session()
    rig.publish(session, "q", [1])
    rig.broker.clients.close_connection(rig.connection, lost=True)
    assert rig.vhost.queues == {}
    rig.turn()
    rig.turn()
    assert rig.broker.store.resident_bytes == 0


def test_reject_and_requeue_outcomes_are_accounted() -> None:
    rig = Rig()
    queue, session = rig.queue("q"), rig.session()
    rig.publish(session, "q", [1, 2, 3])
    for _ in range(3):
        rig.get(session, queue)
    rig.broker.settlement.settle(session, 1, 1, REJECTED)
    rig.broker.settlement.settle(session, 2, 2, FAILED)
    rig.broker.settlement.settle(session, 3, 3, ACCEPTED)
    counters = queue.counters()
    assert counters["dropped"] == {"rejected": 1}
    assert (counters["ready"], counters["settled"], counters["entered"]) == (1, 1, 3)


def test_bodies_beyond_the_budget_are_read_back_in_order() -> None:
    rig = Rig()
    queue, session = rig.queue("q"), rig.session()
    for n in range(0, 1000, 10):
        rig.publish(session, "q", list(range(n, n + 10)))
        rig.turn(budget=400)
        assert rig.broker.store.resident_bytes <= 400 + 80
    rig.broker.consuming.consume(session, queue, "c", False, False, 0, {})
    assert numbers(rig.settle_down(budget=400)) == list(range(1000))
    rig.broker.settlement.settle_up_to(session, 0, ACCEPTED)
    rig.turn()
    rig.turn()
    assert rig.broker.store.resident_bytes == 0


def test_transient_bodies_beyond_the_budget_get_a_place_but_end_at_a_restart() -> None:
    rig = Rig()
    session = rig.session()
    rig.queue("q")
    rig.queue("t", durable=False)
    for name in ("q", "t"):
        rig.publish(session, name, list(range(100)), persistent=False)
    for _ in range(3):
        rig.turn(budget=0)
    assert rig.broker.store.resident_bytes == 0
    assert rig.ready("t") == list(range(100))
    after = rig.restart()
    after.turn()
    queue = after.vhost.queues["q"]
    assert queue.counters()["dropped"] == {"transient_at_restart": 100}
    assert "t" not in after.vhost.queues
    after.broker.check()


def test_bytes_found_gone_after_a_restart_end_as_lost_and_the_rest_is_served() -> None:
    rig = Rig()
    queue, session = rig.queue("q"), rig.session()
    for n in (0, 10, 20):
        rig.publish(session, "q", list(range(n, n + 10)))
    subscription = rig.broker.leases.attach(queue, "s")
    rig.broker.leases.lease(subscription, 0, 15, 0)
    rig.turn()
    after = rig.restart()
    found = after.vhost.queues["q"]
    payload = found.slices()[0].payload
    assert drop_lost(after.broker, [payload]) == 10
    after.turn()
    after.broker.check()
    assert after.ready("q") == list(range(20, 30))
    assert found.counters()["dropped"] == {"lost": 10}
    again = after.restart()
    again.turn()
    again.broker.check()
    assert again.ready("q") == list(range(20, 30))


def test_after_a_crash_few_messages_that_never_left_are_flagged() -> None:
    rig = Rig()
    queue, session = rig.queue("q"), rig.session()
    rig.broker.consuming.set_prefetch(session, 1, shared=False)
    rig.broker.consuming.consume(session, queue, "c", False, False, 0, {})
    rig.publish(session, "q", list(range(20_000)))
    for tag in range(1, 101):
        rig.settle_down()
        rig.broker.settlement.settle(session, tag, tag, ACCEPTED)
    after = rig.restart()
    flagged = sum(len(p) for p in after.vhost.queues["q"].slices() if p.acquired)
    assert 1 <= flagged <= 300
