"""Transactions in the engine: what is held, what a commit and a rollback do, and in which order.

Rules of semantics.md, section 2, as far as they are the engine's; what the wire adds is in
tests/bridge/test_tx.py.
"""

from __future__ import annotations

import pytest

from tallymark.engine.errors import PreconditionFailed, ResourceExhausted, RolledBack
from tallymark.engine.outcomes import ACCEPTED, DISCARDED, FAILED, REJECTED, RETURNED
from tallymark.engine.session import Session
from tallymark.engine.staging import MOST_WEIGHT, RUN_BYTES, Transaction
from tallymark.engine.transactions import AHEAD_BYTES
from tallymark.stored import records
from tallymark.stored.annotations import Annotations
from tests.support.engine_rig import Rig, Said
from tests.support.engine_steps import manual


def begun(rig: Rig) -> tuple[Session, Transaction]:
    session = rig.session()
    return session, rig.broker.transactions.begin(session)


def taken(rig: Rig, session: Session, name: str, n: int) -> list[int]:
    """Tags of n messages asked for."""
    found = [rig.get(session, rig.vhost.queues[name]) for _ in range(n)]
    return [one[1] for one in found if one is not None]


def commit(rig: Rig, transaction: Transaction) -> None:
    rig.broker.transactions.commit(transaction)
    rig.settle_down()
    rig.broker.check()


def kinds(rig: Rig) -> list[int]:
    """Of the records in the last block."""
    return [record.kind for record in rig.log.blocks[-1]]


# -- publishes


def test_tx_4_a_publish_is_invisible_until_the_commit() -> None:
    rig = Rig()
    queue = rig.queue("q")
    session, transaction = begun(rig)
    rig.consume(session, "q", "c")
    rig.stage(transaction, "q", 1, 2)
    assert rig.settle_down() == []
    assert (queue.ready, queue.entered) == (0, 0)
    rig.broker.transactions.commit(transaction)
    assert [d.number for d in rig.settle_down()] == [1, 2]
    rig.broker.check()


def test_tx_a8_publish_rollback_commit_leaves_the_depth_unchanged() -> None:
    rig = Rig()
    queue = rig.queue("q")
    session, transaction = begun(rig)
    rig.stage(transaction, "q", 1)
    rig.broker.transactions.rollback(transaction)
    commit(rig, rig.broker.transactions.begin(session))
    assert (queue.ready, queue.entered) == (0, 0)
    assert rig.broker.store.resident_bytes == 0


def test_tx_5_publishes_come_in_publish_order_whatever_the_runs() -> None:
    rig = Rig()
    for name in "abc":
        rig.queue(name)
    rig.exchange("ab", "fanout", ("a", ""), ("b", ""))
    _, transaction = begun(rig)
    for number, (exchange, key) in enumerate(
        [("", "a"), ("", "b"), ("", "a"), ("ab", ""), ("", "c"), ("", "b"), ("ab", ""), ("", "c")]
    ):
        rig.stage(transaction, key, number, exchange=exchange)
    commit(rig, transaction)
    assert rig.ready("a") == [0, 2, 3, 6]
    assert rig.ready("b") == [1, 3, 5, 6]
    assert rig.ready("c") == [4, 7]


def test_publishes_one_by_one_become_runs() -> None:
    """A commit costs per run: a hundred publishes to each of three queues, in turns, are three."""
    rig = Rig()
    for name in "abc":
        rig.queue(name)
    _, transaction = begun(rig)
    for number in range(300):
        rig.stage(transaction, "abc"[number % 3], number)
    commit(rig, transaction)
    assert kinds(rig).count(records.PAYLOAD) == 3
    assert kinds(rig).count(records.ENTERED) == 3
    assert rig.ready("b") == list(range(1, 300, 3))


def test_runs_of_several_keys_keep_the_key_of_each_message() -> None:
    rig = Rig()
    rig.exchange("x", "topic")
    rig.queue("q")
    rig.bind("q", "x", "#")
    _, transaction = begun(rig)
    for number, key in enumerate(["a", "b", "a"]):
        rig.stage(transaction, key, number, exchange="x")
    commit(rig, transaction)
    (piece,) = rig.vhost.queues["q"].slices()
    routes = piece.payload.routes
    assert routes is not None
    assert [(route.exchange, route.key) for route in routes] == [("x", "a"), ("x", "b"), ("x", "a")]


def test_tx_3_targets_are_those_of_the_publish() -> None:
    rig = Rig()
    rig.queue("a")
    rig.queue("b")
    rig.exchange("x", "fanout", ("a", ""))
    _, transaction = begun(rig)
    rig.stage(transaction, "", 1, exchange="x")
    rig.bind("b", "x", "")
    rig.vhost.unbind_queue("a", "x", "", {}, rig.connection.id)
    commit(rig, transaction)
    assert (rig.ready("a"), rig.ready("b")) == ([1], [])


def test_tx_3_a_queue_deleted_before_the_commit_takes_nothing() -> None:
    rig = Rig()
    rig.queue("a")
    rig.queue("b")
    rig.exchange("x", "fanout", ("a", ""), ("b", ""))
    _, transaction = begun(rig)
    rig.stage(transaction, "", 1, exchange="x")
    rig.stage(transaction, "a", 2)
    rig.delete("a")
    commit(rig, transaction)
    assert rig.ready("b") == [1]
    assert rig.broker.store.resident_bytes > 0
    rig.broker.contents.purge(rig.vhost.queues["b"])
    for _ in range(3):
        rig.turn()
    assert rig.broker.store.resident_bytes == 0


def test_tx_3_a_queue_that_expired_before_the_commit_takes_nothing() -> None:
    rig = manual()
    rig.declare("q", {"expires": 100})
    _, transaction = begun(rig)
    rig.stage(transaction, "q", 1, handle="h")
    rig.advance(100)
    assert "q" not in rig.vhost.queues
    (run,) = rig.broker.transactions.commit(transaction)
    assert (run.handle, run.reached) == ("h", False)
    rig.settle_down()
    rig.broker.check()


def test_tx_3_a_queue_of_the_same_name_takes_its_place() -> None:
    rig = Rig()
    rig.queue("a")
    rig.exchange("x", "fanout", ("a", ""))
    _, transaction = begun(rig)
    rig.stage(transaction, "", 1, exchange="x")
    rig.stage(transaction, "a", 2)
    rig.stage(transaction, "late", 3)
    rig.delete("a")
    rig.queue("a")
    rig.queue("late")
    commit(rig, transaction)
    assert (rig.ready("a"), rig.ready("late")) == ([1, 2], [3])


def test_tx_3_names_that_lead_to_one_queue_later_keep_their_order() -> None:
    """CC names a queue that is declared only after the publishes: nothing is joined across it."""
    rig = Rig()
    rig.queue("a")
    _, transaction = begun(rig)
    known = Annotations(more_keys=("late",))
    for number in (1, 3):
        rig.stage(transaction, "a", number, annotations=known)
        rig.stage(transaction, "late", number + 1)
    rig.queue("late")
    commit(rig, transaction)
    assert (rig.ready("a"), rig.ready("late")) == ([1, 3], [1, 2, 3, 4])


def test_tx_3_unreached_messages_are_told_in_publish_order() -> None:
    rig = Rig()
    rig.queue("q")
    rig.queue("gone")
    _, transaction = begun(rig)
    for number, (key, handle) in enumerate(
        [("x", "hx"), ("q", "hq"), ("x", "hx"), ("gone", "hg"), ("x", "hx"), ("x", "hx")]
    ):
        rig.stage(transaction, key, number, handle=handle)
        rig.stage(transaction, "q", 100 + number)
    rig.delete("gone")
    runs = rig.broker.transactions.commit(transaction)
    assert [(run.handle, run.count, run.reached) for run in runs] == [
        ("hx", 1, False), ("hq", 1, True), ("hx", 1, False), ("hg", 1, False), ("hx", 2, False),
    ]  # fmt: skip
    rig.settle_down()
    rig.broker.check()
    assert rig.ready("q") == [100, 1, 101, 102, 103, 104, 105]


def test_a_message_arrives_with_the_commit() -> None:
    """Its time to live counts from then, also after a restart, written ahead or not; so does its
    delay."""
    rig = manual()
    rig.queue("q")
    rig.declare("ttl", {"message-ttl": 100})
    for spill in (False, True):
        _, transaction = begun(rig)
        rig.stage(transaction, "q", 1, annotations=Annotations(ttl_ms=100))
        rig.stage(transaction, "ttl", 2)
        rig.stage(transaction, "q", 3, annotations=Annotations(due_ms=rig.now_ms + 100))
        rig.turn(budget=0 if spill else 1 << 40)
        rig.advance(90)
        commit(rig, transaction)
        rig.advance(90)
        assert (rig.ready("q"), rig.ready("ttl")) == ([1], [2])
        after = rig.restart()
        assert (after.ready("q"), after.ready("ttl")) == ([1], [2])
        assert after.vhost.queues["q"].deferred == 1
        rig.advance(10)
        assert (rig.ready("q"), rig.ready("ttl")) == ([3], [])
        rig.broker.contents.purge(rig.vhost.queues["q"])


# -- settlements


def test_tx_4_a_parked_ack_leaves_the_session_and_not_the_queue() -> None:
    rig = Rig()
    queue = rig.queue("q")
    session, transaction = begun(rig)
    rig.publish(session, "q", [0, 1, 2])
    taken(rig, session, "q", 3)
    rig.broker.transactions.settle(transaction, session, 2, 2, ACCEPTED)
    rig.broker.check()
    assert (queue.ready, queue.acquired, queue.account.staged, queue.account.settled) == (
        0,
        2,
        1,
        0,
    )
    assert queue.counters()["staged"] == 1
    with pytest.raises(PreconditionFailed, match=r"^unknown delivery tag 2$"):
        rig.broker.transactions.settle(transaction, session, 2, 2, ACCEPTED)
    with pytest.raises(PreconditionFailed, match=r"^unknown delivery tag 2$"):
        rig.broker.transactions.settle_up_to(transaction, session, 2, ACCEPTED)
    commit(rig, transaction)
    assert (queue.acquired, queue.account.staged, queue.account.settled) == (2, 0, 1)


@pytest.mark.parametrize("shared", [False, True])
def test_tx_4_a_parked_ack_keeps_its_place_in_the_window(shared: bool) -> None:
    rig = Rig()
    rig.queue("q")
    session, transaction = begun(rig)
    rig.broker.consuming.set_prefetch(session, 2, shared)
    rig.broker.consuming.consume(session, rig.vhost.queues["q"], "c", False, False, 0, {})
    rig.publish(session, "q", [0, 1, 2, 3])
    assert [d.tag for d in rig.settle_down()] == [1, 2]
    rig.broker.transactions.settle_up_to(transaction, session, 2, ACCEPTED)
    assert rig.settle_down() == []
    rig.broker.transactions.commit(transaction)
    assert [d.number for d in rig.settle_down()] == [2, 3]


@pytest.mark.parametrize("outcome", [ACCEPTED, REJECTED, DISCARDED, RETURNED, FAILED])
def test_tx_5_each_outcome_takes_effect_at_the_commit(outcome: int) -> None:
    plain, held = Rig(), Rig()
    for rig in (plain, held):
        rig.declare("q", {"dead-letter-exchange": "", "dead-letter-routing-key": "letters"})
        rig.queue("letters")
        session, transaction = begun(rig)
        rig.publish(session, "q", [0, 1])
        taken(rig, session, "q", 2)
        if rig is plain:
            rig.broker.settlement.settle(session, 1, 1, outcome)
        else:
            rig.broker.transactions.settle(transaction, session, 1, 1, outcome)
            assert rig.ready("q") == rig.ready("letters") == []
        commit(rig, transaction)
    assert plain.holds("q") == held.holds("q")
    assert plain.ready("letters") == held.ready("letters")
    assert plain.vhost.queues["q"].counters() == held.vhost.queues["q"].counters()


def test_tx_5_settlements_take_effect_in_the_order_they_were_issued() -> None:
    """Dead letters leave in the order of their rejection [DL-7]."""
    rig = Rig()
    rig.declare("q", {"dead-letter-exchange": "", "dead-letter-routing-key": "letters"})
    rig.queue("letters")
    session, transaction = begun(rig)
    rig.publish(session, "q", list(range(1, 6)))
    taken(rig, session, "q", 5)
    transactions = rig.broker.transactions
    for tag, outcome in (
        (3, REJECTED),
        (1, REJECTED),
        (2, ACCEPTED),
        (5, DISCARDED),
        (4, REJECTED),
    ):
        transactions.settle(transaction, session, tag, tag, outcome)
    commit(rig, transaction)
    assert rig.ready("letters") == [3, 1, 5, 4]


def test_tx_5_publishes_come_before_settlements() -> None:
    rig = Rig()
    rig.declare("q", {"dead-letter-exchange": "", "dead-letter-routing-key": "letters"})
    rig.queue("letters")
    session, transaction = begun(rig)
    rig.publish(session, "q", [1])
    taken(rig, session, "q", 1)
    rig.broker.transactions.settle(transaction, session, 1, 1, REJECTED)
    rig.stage(transaction, "letters", 2)
    commit(rig, transaction)
    assert rig.ready("letters") == [2, 1]


def test_tx_6_a_rollback_redelivers_nothing() -> None:
    """The same tags are open again, in their order; redelivered stays as it was."""
    rig = Rig()
    queue = rig.queue("q")
    session, transaction = begun(rig)
    rig.consume(session, "q", "c")
    rig.publish(session, "q", list(range(6)))
    rig.settle_down()
    transactions = rig.broker.transactions
    transactions.settle(transaction, session, 5, 5, ACCEPTED)
    transactions.settle(transaction, session, 2, 3, REJECTED)
    transactions.settle(transaction, session, 1, 1, RETURNED)
    transactions.rollback(transaction)
    assert rig.settle_down() == []
    rig.broker.check()
    assert (queue.acquired, queue.account.staged, queue.ready) == (6, 0, 0)
    pieces = [(e.first, e.last) for e in session.inflight for _ in e.pieces(e.first, e.last)]
    assert pieces == [(1, 6)], "the range is whole again"
    transaction = transactions.begin(session)
    transactions.settle_up_to(transaction, session, 6, ACCEPTED)
    commit(rig, transaction)
    assert queue.account.settled == 6


def test_tx_6_holes_that_were_there_before_stay() -> None:
    rig = Rig()
    queue = rig.queue("q")
    session, transaction = begun(rig)
    rig.consume(session, "q", "c")
    rig.publish(session, "q", list(range(8)))
    rig.settle_down()
    rig.broker.settlement.settle(session, 4, 4, ACCEPTED)
    rig.broker.settlement.settle(session, 6, 6, ACCEPTED)
    transactions = rig.broker.transactions
    transactions.settle_up_to(transaction, session, 7, ACCEPTED)
    transactions.rollback(transaction)
    rig.broker.check()
    for tag in (4, 6):
        with pytest.raises(PreconditionFailed):
            rig.broker.settlement.settle(session, tag, tag, ACCEPTED)
    for tag in (8, 1, 5, 2, 7, 3):
        rig.broker.settlement.settle(session, tag, tag, ACCEPTED)
    rig.settle_down()
    rig.broker.check()
    assert (queue.account.settled, session.unacked, len(session.inflight)) == (8, 0, 0)


def test_tx_a7_rollback_then_recover() -> None:
    rig = Rig()
    queue = rig.queue("q")
    session, transaction = begun(rig)
    rig.publish(session, "q", [0, 1, 2, 3])
    transactions = rig.broker.transactions
    assert [rig.get(session, queue) for _ in range(2)] == [(0, 1), (1, 2)]
    transactions.settle(transaction, session, 1, 1, ACCEPTED)
    transactions.rollback(transaction)
    assert rig.get(session, queue) == (2, 3), "not m0"
    transaction = transactions.begin(session)
    transactions.settle(transaction, session, 1, 1, ACCEPTED)
    commit(rig, transaction)
    rig.broker.settlement.recover(session)
    found = [rig.take(session, "q") for _ in range(3)]
    assert [(one[0].number, one[0].acquired > 0) for one in found if one] == [
        (1, True), (2, True), (3, False),
    ]  # fmt: skip


def test_tx_a12_the_window_through_rollback_cancel_recover_and_close() -> None:
    rig = Rig()
    queue = rig.queue("q")
    session, transaction = begun(rig)
    rig.publish(session, "q", list(range(6)))
    transactions = rig.broker.transactions
    consumer = rig.consume(session, "q", "c", prefetch=4)
    assert [(d.number, d.tag) for d in rig.settle_down()] == [(0, 1), (1, 2), (2, 3), (3, 4)]
    transactions.settle_up_to(transaction, session, 4, RETURNED)
    transactions.rollback(transaction)
    assert rig.settle_down() == [], "nothing is redelivered"
    rig.broker.consuming.cancel(consumer)
    assert queue.ready == 2
    rig.broker.settlement.recover(session)
    assert queue.ready == 6
    rig.consume(session, "q", "c", prefetch=4)
    expected = [(0, 5, True), (1, 6, True), (2, 7, True), (3, 8, True)]
    assert [(d.number, d.tag, d.redelivered) for d in rig.settle_down()] == expected
    rig.broker.settlement.recover(session)
    assert [(d.number, d.tag) for d in rig.settle_down()] == [(0, 9), (1, 10), (2, 11), (3, 12)]
    rig.broker.clients.close_session(session, lost=False)
    rig.consume(rig.session(), "q", "c")
    flags = [(d.number, d.redelivered) for d in rig.settle_down()]
    assert flags == [(n, n < 4) for n in range(6)]


def test_tx_8_recover_leaves_parked_deliveries_alone() -> None:
    rig = Rig()
    queue = rig.queue("q")
    session, transaction = begun(rig)
    rig.publish(session, "q", [1, 2, 3])
    taken(rig, session, "q", 3)
    rig.broker.transactions.settle(transaction, session, 2, 2, ACCEPTED)
    rig.broker.settlement.recover(session)
    assert (rig.ready("q"), queue.account.staged) == ([1, 3], 1)
    rig.broker.transactions.rollback(transaction)
    rig.broker.settlement.recover(session)
    rig.settle_down()
    rig.broker.check()
    assert rig.ready("q") == [1, 2, 3]


# -- the end of sessions and queues


@pytest.mark.parametrize("lost", [False, True])
def test_tx_7_closing_rolls_back_and_requeues(lost: bool) -> None:
    """In an orderly close nothing counts as failed [FC-19]."""
    rig = Rig()
    queue = rig.queue("q")
    session, transaction = begun(rig)
    rig.publish(session, "q", list(range(4)))
    taken(rig, session, "q", 4)
    rig.stage(transaction, "q", 9)
    rig.broker.transactions.settle(transaction, session, 2, 3, ACCEPTED)
    rig.broker.clients.close_session(session, lost)
    rig.settle_down()
    rig.broker.check()
    assert transaction.ended
    assert rig.broker.transactions.open == {}
    assert [(h.number, h.acquired, h.failed) for h in rig.holds("q")] == [
        (n, 1, int(lost)) for n in range(4)
    ]
    assert queue.account.staged == 0


def test_tx_a9_a_cancelled_consumer_changes_nothing() -> None:
    for is_committed in (True, False):
        rig = Rig()
        queue = rig.queue("q")
        session, transaction = begun(rig)
        consumer = rig.consume(session, "q", "c")
        rig.publish(session, "q", [1])
        rig.settle_down()
        rig.broker.transactions.settle(transaction, session, 1, 1, ACCEPTED)
        rig.broker.consuming.cancel(consumer)
        if is_committed:
            commit(rig, transaction)
            assert (queue.account.settled, queue.acquired) == (1, 0)
        else:
            rig.broker.transactions.rollback(transaction)
            assert (queue.account.settled, queue.acquired) == (0, 1)
            rig.broker.clients.close_session(session, False)
            assert rig.ready("q") == [1]
        rig.broker.check()


def test_a_deleted_queue_ends_what_is_staged_there() -> None:
    for is_committed in (True, False):
        rig = Rig()
        queue = rig.queue("q")
        session, transaction = begun(rig)
        rig.publish(session, "q", [1, 2, 3])
        taken(rig, session, "q", 3)
        rig.broker.transactions.settle(transaction, session, 1, 2, REJECTED)
        rig.delete("q")
        assert rig.broker.queues == {}
        assert (queue.account.staged, queue.acquired, queue.account.dropped) == (0, 0, {3: 3})
        rig.broker.check()
        if is_committed:
            commit(rig, transaction)
        else:
            rig.broker.transactions.rollback(transaction)
            rig.broker.settlement.settle(session, 1, 2, ACCEPTED)
        rig.broker.settlement.settle(session, 3, 3, ACCEPTED)
        for _ in range(3):
            rig.turn()
        rig.broker.check()
        assert (session.unacked, rig.broker.store.resident_bytes) == (0, 0)


def test_what_is_staged_of_a_deleted_queue_is_released_with_it() -> None:
    rig = Rig()
    rig.queue("q")
    session, transaction = begun(rig)
    rig.publish(session, "q", [1, 2])
    taken(rig, session, "q", 2)
    rig.broker.transactions.settle(transaction, session, 1, 2, ACCEPTED)
    rig.turn()
    rig.delete("q")
    rig.settle_down()
    rig.turn()
    assert rig.broker.store.resident_bytes == 0
    assert sum(size for _, size in rig.released) == rig.log.stored_bytes
    commit(rig, transaction)
    assert session.unacked == 0


def test_nq_15_an_emptied_queue_ends_what_is_staged_there() -> None:
    rig = Rig()
    queue = rig.queue("q")
    session, transaction = begun(rig)
    rig.publish(session, "q", [1, 2])
    taken(rig, session, "q", 2)
    rig.broker.transactions.settle(transaction, session, 1, 1, ACCEPTED)
    rig.broker.contents.empty(queue)
    rig.broker.check()
    assert (queue.account.staged, queue.account.dropped) == (0, {2: 2})
    rig.broker.transactions.rollback(transaction)
    rig.broker.settlement.settle(session, 1, 2, ACCEPTED)
    for _ in range(3):
        rig.turn()
    rig.broker.check()
    assert (session.unacked, queue.account.settled, rig.broker.store.resident_bytes) == (0, 0, 0)


def test_a_purge_leaves_what_is_staged() -> None:
    rig = Rig()
    queue = rig.queue("q")
    session, transaction = begun(rig)
    rig.publish(session, "q", [1, 2, 3])
    taken(rig, session, "q", 2)
    rig.broker.transactions.settle(transaction, session, 1, 1, ACCEPTED)
    assert rig.broker.contents.purge(queue) == 1
    commit(rig, transaction)
    assert (queue.account.settled, queue.acquired) == (1, 1)


def test_staged_deliveries_do_not_time_out_and_returned_ones_do() -> None:
    """A parked settlement is not unsettled; after a rollback the old time counts [LC-4]."""
    rig = manual()
    queue = rig.declare("q", {"consumer-timeout": 1000})
    session, transaction = begun(rig)
    rig.publish(session, "q", [1])
    taken(rig, session, "q", 1)
    rig.broker.transactions.settle(transaction, session, 1, 1, ACCEPTED)
    rig.advance(5000)
    assert (queue.account.staged, rig.timed_out) == (1, [])
    rig.broker.transactions.rollback(transaction)
    rig.advance(1)
    assert (queue.ready, len(rig.timed_out)) == (1, 1)


# -- all or nothing


def test_tx_d1_a_commit_is_one_block_across_queues() -> None:
    rig = Rig()
    names = [f"q{n}" for n in range(5)]
    for name in names:
        rig.declare(name, {"dead-letter-exchange": "", "dead-letter-routing-key": "letters"})
    rig.queue("letters")
    session, transaction = begun(rig)
    for name in names:
        rig.publish(session, name, [1, 2])
    rig.settle_down()
    tags = [taken(rig, session, name, 2) for name in names]
    rig.settle_down()
    for name, (one, two) in zip(names, tags, strict=True):
        rig.broker.transactions.settle(transaction, session, one, one, ACCEPTED)
        rig.broker.transactions.settle(transaction, session, two, two, REJECTED)
        rig.stage(transaction, name, 3)
    before = len(rig.log.blocks)
    rig.broker.transactions.commit(transaction)
    rig.turn()
    assert len(rig.log.blocks) == before + 1
    rows = kinds(rig)
    assert rows.count(records.ENTERED) == 10
    assert rows.count(records.SETTLED) == rows.count(records.DEAD_LETTERED) == 5
    (committed,) = [r for r in rig.log.blocks[-1] if r.kind == records.COMMITTED]
    assert (committed.owner, committed.first) == (transaction.id, session.id)
    assert (committed.count, committed.other) == (5, 10)
    for blocks in (before, before + 1):
        after = rig.reopened(rig.log.upto(blocks))
        held = [after.ready(name) for name in names]
        assert held == ([[1, 2]] * 5 if blocks == before else [[3]] * 5)
        assert after.ready("letters") == ([] if blocks == before else [2] * 5)


@pytest.mark.parametrize("overflow", ["reject-publish", "reject-publish-dlx"])
def test_tx_5_a_full_queue_refuses_the_whole_transaction(overflow: str) -> None:
    """RabbitMQ keeps the part that found room [TX-D1]."""
    rig = Rig()
    rig.queue("letters")
    full = rig.declare("full", {
        "max-length": 2, "overflow": overflow, "dead-letter-exchange": "",
        "dead-letter-routing-key": "letters",
    })  # fmt: skip
    other = rig.queue("other")
    session, transaction = begun(rig)
    rig.publish(session, "other", [1])
    taken(rig, session, "other", 1)
    rig.broker.transactions.settle(transaction, session, 1, 1, ACCEPTED)
    rig.stage(transaction, "other", 2)
    for number in (3, 4, 5):
        rig.stage(transaction, "full", number)
    with pytest.raises(RolledBack, match=r"^queue 'full' in vhost '/' has no room for"):
        rig.broker.transactions.commit(transaction)
    rig.settle_down()
    rig.broker.check()
    assert (full.entered, other.entered, other.account.settled, other.acquired) == (0, 1, 0, 1)
    assert rig.ready("letters") == []
    assert transaction.reopened == [(session, 1, 1)]
    transaction = rig.broker.transactions.begin(session)
    for number in (3, 4):
        rig.stage(transaction, "full", number)
    commit(rig, transaction)
    assert rig.ready("full") == [3, 4]


def test_tx_5_room_is_what_consumers_leave_and_ids_count_once() -> None:
    """The whole is asked about as if its messages came one after the other [DL-6]."""
    rig = Rig()
    rig.declare("q", {
        "max-length": 1, "max-length-bytes": 20, "overflow": "reject-publish",
        "message-deduplication": 1000,
    })  # fmt: skip
    for number, id in enumerate(["a", "b", "a", "c"]):
        rig.says[number] = Said(id=id, body=20)
    consumer = rig.session()
    rig.consume(consumer, "q", "c", prefetch=2)
    rig.settle_down()
    session, transaction = begun(rig)
    for number in range(4):
        rig.stage(transaction, "q", number)
    commit(rig, transaction)
    assert [h.number for h in rig.given] == [0, 1]
    assert (rig.ready("q"), rig.dropped("q")) == ([3], {"duplicate": 1})
    transaction = rig.broker.transactions.begin(session)
    rig.says[4] = Said(id="d", body=1)
    rig.stage(transaction, "q", 4)
    with pytest.raises(RolledBack):
        rig.broker.transactions.commit(transaction)


def test_tx_5_what_consumers_await_counts_once() -> None:
    rig = Rig()
    rig.declare("q", {"max-length-bytes": 20, "overflow": "reject-publish"})
    for number in range(3):
        rig.says[number] = Said(body=20)
    rig.consume(rig.session(), "q", "c", prefetch=1)
    rig.settle_down()
    session, transaction = begun(rig)
    for number in range(3):
        rig.stage(transaction, "q", number)
    with pytest.raises(RolledBack):
        rig.broker.transactions.commit(transaction)
    transaction = rig.broker.transactions.begin(session)
    for number in range(2):
        rig.stage(transaction, "q", number)
    commit(rig, transaction)
    assert ([h.number for h in rig.given], rig.ready("q")) == ([0], [1])


def test_tx_13_a_marked_transaction_can_only_be_rolled_back() -> None:
    rig = Rig()
    queue = rig.queue("q")
    _, transaction = begun(rig)
    rig.stage(transaction, "q", 1)
    transaction.failure = "a message could not be queued"
    with pytest.raises(RolledBack, match=r"^a message could not be queued$"):
        rig.broker.transactions.commit(transaction)
    assert (queue.entered, transaction.ended) == (0, True)


def test_an_ended_transaction_takes_nothing_more() -> None:
    rig = Rig()
    rig.queue("q")
    session, transaction = begun(rig)
    commit(rig, transaction)
    for end in (rig.broker.transactions.commit, rig.broker.transactions.rollback):
        with pytest.raises(PreconditionFailed, match="has ended"):
            end(transaction)
    with pytest.raises(PreconditionFailed, match="has ended"):
        rig.stage(transaction, "q", 1)
    rig.publish(session, "q", [1])
    taken(rig, session, "q", 1)
    with pytest.raises(PreconditionFailed, match="has ended"):
        rig.broker.transactions.settle(transaction, session, 1, 1, ACCEPTED)
    assert session.unacked == 1


def test_a_commit_that_breaks_half_way_is_never_written() -> None:
    """Not a client's doing: bytes that can no longer be read. The broker stops rather than keep
    the part that was carried out."""
    rig = Rig()
    rig.exchange("dlx", "headers")
    rig.declare("q", {"dead-letter-exchange": "dlx"})
    rig.queue("other")
    session, transaction = begun(rig)
    rig.publish(session, "q", [1])
    taken(rig, session, "q", 1)
    rig.turn()
    rig.broker.spill(0, 1 << 60)
    rig.log.bytes.clear()
    rig.stage(transaction, "other", 2)
    rig.broker.transactions.settle(transaction, session, 1, 1, REJECTED)
    with pytest.raises(AssertionError):
        rig.broker.transactions.commit(transaction)
    with pytest.raises(AssertionError, match="in part"):
        rig.turn()


# -- memory


def test_large_transactions_are_written_ahead() -> None:
    """Bodies leave memory before the commit, whose block only names them; what was rolled back, or
    not committed before a crash, is let go of."""
    rig = Rig()
    rig.queue("q")
    run = list(range(RUN_BYTES // 8))
    for end in ("commit", "rollback", "crash"):
        _, transaction = begun(rig)
        start = len(rig.log.blocks)
        for _ in range(40):
            rig.stage(transaction, "q", *run)
            rig.turn(budget=1 << 20)
            assert rig.broker.store.resident_bytes <= (1 << 20) + 3 * RUN_BYTES
        written = [r for b in rig.log.blocks[start:] for r in b if r.kind == records.PAYLOAD]
        assert len(written) >= 23  # what is beyond the budget, but for what is on its way
        assert rig.vhost.queues["q"].ready == 0
        if end == "crash":
            rig = rig.restart()
            assert rig.vhost.queues["q"].entered == 0
            continue
        size = rig.log.stored_bytes
        if end == "commit":
            rig.broker.transactions.commit(transaction)
            rig.turn(budget=1 << 20)
            assert rig.log.stored_bytes - size <= (1 << 20) + RUN_BYTES
            assert rig.ready("q") == run * 40
            assert rig.restart().ready("q") == run * 40
            rig.broker.contents.purge(rig.vhost.queues["q"])
        else:
            rig.broker.transactions.rollback(transaction)
        for _ in range(3):
            rig.turn()
        assert rig.broker.store.resident_bytes == 0
        assert sum(n for _, n in rig.released) == rig.log.stored_bytes
        rig.released.clear()
        rig.log.stored_bytes = 0
        if end == "commit":
            rig = Rig()
            rig.queue("q")


def test_what_goes_beyond_a_mebibyte_is_written_as_it_comes() -> None:
    """However much memory there is: a commit's block is small. Of what no restart would keep
    nothing is."""
    rig = Rig()
    rig.queue("q")
    rig.queue("r", durable=False)
    run = list(range(RUN_BYTES // 8))
    _, transaction = begun(rig)
    for _ in range(40):
        rig.stage(transaction, "q", *run)
        rig.stage(transaction, "q", *run, persistent=False)
        rig.stage(transaction, "r", *run)
    rig.turn()
    assert rig.log.stored_bytes == 40 * RUN_BYTES - AHEAD_BYTES
    rig.broker.transactions.commit(transaction)
    rig.turn()
    assert rig.log.stored_bytes == 40 * RUN_BYTES


def test_what_was_written_ahead_outlives_a_checkpoint() -> None:
    rig = Rig()
    rig.queue("q")
    session, transaction = begun(rig)
    rig.publish(session, "q", [7])
    taken(rig, session, "q", 1)
    rig.broker.transactions.settle(transaction, session, 1, 1, ACCEPTED)
    rig.stage(transaction, "q", 1, 2)
    rig.turn(budget=0)
    rig.turn(budget=0)
    rig.checkpoint()
    assert rig.restart().ready("q") == [7]
    commit(rig, transaction)
    after = rig.restart()
    after.turn()
    after.broker.check()
    assert after.ready("q") == [1, 2]
    assert after.vhost.queues["q"].account.settled == 1


def test_memory_that_is_short_takes_staged_publishes_with_it() -> None:
    rig = Rig()
    rig.queue("q")
    rig.queue("r", durable=False)
    _, transaction = begun(rig)
    for number in range(10):
        rig.stage(transaction, "q", number)
        rig.stage(transaction, "r", number, persistent=False)
    assert rig.broker.store.resident_bytes == 160
    for _ in range(3):
        rig.turn(budget=0)
    assert rig.broker.store.resident_bytes == 0
    commit(rig, transaction)
    assert (rig.ready("q"), rig.ready("r")) == ([*range(10)], [*range(10)])


def test_a_transaction_has_a_most_it_may_hold() -> None:
    rig = Rig()
    rig.queue("q")
    session, transaction = begun(rig)
    transaction.weight = MOST_WEIGHT - 6
    rig.stage(transaction, "q", 1)
    rig.publish(session, "q", [5, 6])
    taken(rig, session, "q", 2)
    with pytest.raises(ResourceExhausted, match=rf"at most {MOST_WEIGHT} expected"):
        rig.broker.transactions.settle(transaction, session, 1, 1, ACCEPTED)
    with pytest.raises(ResourceExhausted):
        rig.stage(transaction, "r", 2)
    rig.stage(transaction, "q", 3)
    rig.broker.check()
    commit(rig, transaction)
    assert rig.ready("q") == [1, 3]


# -- the ledger


def test_the_ledger_tells_of_what_stays_staged() -> None:
    rig = Rig()
    queue = rig.queue("q")
    session, transaction = begun(rig)
    rig.publish(session, "q", [1, 2, 3, 4])
    taken(rig, session, "q", 4)
    transactions = rig.broker.transactions
    transactions.settle(transaction, session, 1, 1, ACCEPTED)
    transactions.settle(transaction, session, 2, 2, ACCEPTED)
    rig.turn()
    (row,) = [r for r in rig.log.blocks[-1] if r.kind == records.STAGED]
    assert (row.queue, row.first, row.count) == (queue.id, 1, 2)
    assert (row.owner, row.reason) == (transaction.id, records.STAGED_ACCEPTED)
    transactions.settle(transaction, session, 3, 3, REJECTED)
    rig.turn()
    (row,) = [r for r in rig.log.blocks[-1] if r.kind == records.STAGED]
    assert (row.first, row.count, row.reason) == (3, 1, records.STAGED_REJECTED)
    transactions.settle(transaction, session, 4, 4, ACCEPTED)
    transactions.rollback(transaction)
    rig.turn()
    rows = [r for r in rig.log.blocks[-1] if r.kind in (records.STAGED, records.UNSTAGED)]
    assert [(r.kind, r.first, r.count) for r in rows] == [
        (records.UNSTAGED, 1, 2), (records.UNSTAGED, 3, 1),
    ], "of the last it never heard"  # fmt: skip
    assert all(r.owner == transaction.id for r in rows)


def test_a_quick_transaction_costs_no_row_of_its_own_but_one() -> None:
    rig = Rig()
    rig.queue("q")
    session, transaction = begun(rig)
    rig.publish(session, "q", [1])
    taken(rig, session, "q", 1)
    rig.turn()
    rig.broker.transactions.settle(transaction, session, 1, 1, ACCEPTED)
    rig.broker.transactions.commit(transaction)
    rig.turn()
    assert sorted(kinds(rig)) == [records.SETTLED, records.COMMITTED]


def test_nothing_is_told_of_what_is_not_stored() -> None:
    rig = Rig()
    rig.queue("q", durable=False)
    session, transaction = begun(rig)
    rig.publish(session, "q", [1])
    taken(rig, session, "q", 1)
    rig.turn()
    blocks = len(rig.log.blocks)
    rig.broker.transactions.settle(transaction, session, 1, 1, ACCEPTED)
    rig.turn()
    rig.stage(transaction, "q", 2)
    rig.broker.transactions.commit(transaction)
    rig.settle_down()
    assert not transaction.is_stored
    assert len(rig.log.blocks) == blocks


def test_a_restart_returns_what_was_staged() -> None:
    for checkpoint in (False, True):
        rig = Rig()
        rig.queue("q")
        session, transaction = begun(rig)
        rig.publish(session, "q", [1, 2, 3])
        taken(rig, session, "q", 2)
        rig.broker.transactions.settle(transaction, session, 2, 2, ACCEPTED)
        rig.turn()
        if checkpoint:
            rig.checkpoint()
        after = rig.restart()
        after.turn()
        after.broker.check()
        assert after.ready("q") == [1, 2, 3]
        assert [h.acquired for h in after.holds("q")][:2] == [1, 1]
        assert after.broker.transactions.begin(after.session()).id > transaction.id
