"""What AMQP 1.0's coordinator needs of the engine [TX-11 to TX-16]: several transactions at once,
settlements that are final or not, acquisitions, time-outs, links and sessions that end early."""

from __future__ import annotations

import pytest

from tallymark.engine.errors import PreconditionFailed, RolledBack
from tallymark.engine.outcomes import ACCEPTED, FAILED, REJECTED
from tallymark.engine.session import RELEASES, Consumer, Session
from tallymark.units import Tag
from tests.support.engine_rig import Rig
from tests.support.engine_steps import manual


def linked(rig: Rig, session: Session, tag: str, credit: int = 100) -> Consumer:
    """An outgoing link on queue q, with credit."""
    consumer = rig.broker.consuming.consume(
        session, rig.vhost.queues["q"], tag, False, False, 0, {}
    )
    rig.broker.consuming.grant(consumer, credit, False)
    return consumer


def delivered(rig: Rig, *messages: int) -> tuple[Session, Consumer]:
    """A session with a link that was sent these messages."""
    rig.queue("q")
    session = rig.session()
    consumer = linked(rig, session, "link")
    rig.publish(session, "q", list(messages))
    assert len(rig.settle_down()) == len(messages)
    return session, consumer


def test_tx_12_several_transactions_of_one_session_are_apart() -> None:
    rig = Rig()
    session, _ = delivered(rig, 1, 2, 3)
    transactions = rig.broker.transactions
    first, second = transactions.begin(session), transactions.begin(session)
    assert first.id != second.id
    assert transactions.open == {first.id: first, second.id: second}
    for transaction, tag in ((first, 1), (second, 2), (first, 3)):
        transactions.settle(transaction, session, tag, tag, ACCEPTED)
        rig.stage(transaction, "q", 10 + tag)
    rig.broker.check()
    transactions.rollback(second)
    assert second.reopened == [(session, 2, 2)]
    transactions.commit(first)
    assert [d.number for d in rig.settle_down()] == [11, 13]
    rig.broker.check()
    queue = rig.vhost.queues["q"]
    assert (queue.account.settled, queue.acquired) == (2, 3)
    assert transactions.open == {}


def test_tx_15_a_final_settlement_goes_back_to_the_queue_at_a_rollback() -> None:
    """Settled by the client: the delivery exists no more. Unsettled: it may be disposed again."""
    rig = Rig()
    session, consumer = delivered(rig, 1, 2)
    transactions = rig.broker.transactions
    transaction = transactions.begin(session)
    transactions.settle(transaction, session, 1, 1, ACCEPTED, is_final=True)
    transactions.settle(transaction, session, 2, 2, ACCEPTED)
    rig.broker.consuming.grant(consumer, 0, False)
    transactions.rollback(transaction)
    rig.settle_down()
    rig.broker.check()
    assert transaction.reopened == [(session, 2, 2)]
    assert [(h.number, h.acquired, h.failed) for h in rig.holds("q")] == [(1, 1, 0)]
    with pytest.raises(PreconditionFailed):
        rig.broker.settlement.settle(session, 1, 1, ACCEPTED)
    rig.broker.settlement.settle(session, 2, 2, ACCEPTED)
    assert session.unacked == 0


def test_tx_15_modified_under_a_transaction_keeps_its_notes() -> None:
    rig = Rig()
    session, consumer = delivered(rig, 1)
    rig.broker.consuming.grant(consumer, 0, False)
    transactions = rig.broker.transactions
    transaction = transactions.begin(session)
    transactions.settle(transaction, session, 1, 1, FAILED, (("x-k", b"\x43"),))
    assert rig.ready("q") == []
    transactions.commit(transaction)
    rig.settle_down()
    (held,) = rig.holds("q")
    assert (held.failed, held.annotations and held.annotations.notes) == (1, (("x-k", b"\x43"),))


def test_lc_1_what_is_put_off_under_a_transaction_is_due_when_it_said() -> None:
    rig = manual()
    session, consumer = delivered(rig, 1, 2)
    rig.broker.consuming.grant(consumer, 0, False)
    transactions = rig.broker.transactions
    transaction = transactions.begin(session)
    due_ms = rig.now_ms + 1000
    transactions.settle(transaction, session, 1, 1, FAILED, due_ms=due_ms)
    transactions.settle(transaction, session, 2, 2, FAILED)
    queue = rig.vhost.queues["q"]
    assert (queue.account.staged, queue.deferred) == (2, 0)
    rig.advance(400)
    transactions.commit(transaction)
    rig.advance(599)
    rig.broker.check()
    assert (rig.ready("q"), queue.deferred) == ([2], 1)
    rig.advance(1)
    assert [(h.number, h.failed) for h in rig.holds("q")] == [(1, 1), (2, 1)]


def test_tx_16_what_was_acquired_under_it_goes_back_at_a_rollback() -> None:
    rig = Rig()
    session, consumer = delivered(rig, *range(6))
    transactions = rig.broker.transactions
    kept, undone = transactions.begin(session), transactions.begin(session)
    transactions.acquired(kept, session, 1, 2)
    transactions.acquired(undone, session, 3, 6)
    transactions.settle(undone, session, 4, 4, ACCEPTED)
    rig.broker.settlement.settle(session, 5, 5, ACCEPTED)
    rig.broker.consuming.grant(consumer, 0, False)
    transactions.commit(kept)
    transactions.rollback(undone)
    rig.settle_down()
    rig.broker.check()
    assert rig.ready("q") == [2, 3, 5]
    assert [(first, last) for _, first, last in undone.released] == [(3, 4), (6, 6)]
    rig.broker.settlement.settle(session, 1, 2, ACCEPTED)
    assert session.unacked == 0


def test_tx_16_discharge_after_the_link_was_detached() -> None:
    """The commit settles; a rollback gives the messages back to the queue, there being no link to
    hold them [FC-19]."""
    for is_committed in (True, False):
        rig = Rig()
        session, consumer = delivered(rig, 1, 2, 3)
        transactions = rig.broker.transactions
        transaction = transactions.begin(session)
        transactions.settle(transaction, session, 1, 1, ACCEPTED)
        rig.broker.consuming.detach(consumer)
        rig.broker.check()
        assert rig.ready("q") == [2, 3]
        if is_committed:
            transactions.commit(transaction)
        else:
            transactions.rollback(transaction)
        rig.settle_down()
        rig.broker.check()
        assert rig.ready("q") == ([2, 3] if is_committed else [1, 2, 3])
        assert session.unacked == 0
        assert transaction.reopened == []


@pytest.mark.parametrize("lost", [False, True])
def test_tx_16_the_end_of_the_coordinators_session_rolls_back_for_all(lost: bool) -> None:
    rig = Rig()
    working, _ = delivered(rig, 1, 2)
    coordinator = rig.session()
    transactions = rig.broker.transactions
    transaction = transactions.begin(coordinator)
    transactions.settle(transaction, working, 1, 2, ACCEPTED)
    rig.stage(transaction, "q", 9, session=working)
    rig.broker.clients.close_session(coordinator, lost)
    rig.settle_down()
    rig.broker.check()
    assert transaction.reopened == [(working, 1, 2)]
    assert rig.ready("q") == []
    rig.broker.settlement.settle(working, 1, 2, ACCEPTED)
    assert rig.vhost.queues["q"].account.settled == 2


@pytest.mark.parametrize("lost", [False, True])
def test_tx_16_a_working_session_may_end_before_the_discharge(lost: bool) -> None:
    for is_committed in (True, False):
        rig = Rig()
        working, _ = delivered(rig, 1, 2)
        coordinator = rig.session()
        transactions = rig.broker.transactions
        transaction = transactions.begin(coordinator)
        transactions.settle(transaction, working, 1, 1, ACCEPTED)
        rig.broker.clients.close_session(working, lost)
        rig.settle_down()
        rig.broker.check()
        assert [(h.number, h.failed) for h in rig.holds("q")] == [(2, int(lost))]
        if is_committed:
            transactions.commit(transaction)
        else:
            transactions.rollback(transaction, lost)
        rig.settle_down()
        rig.broker.check()
        left = [(2, int(lost))] if is_committed else [(1, int(lost)), (2, int(lost))]
        assert [(h.number, h.failed) for h in rig.holds("q")] == left


def test_tx_16_a_lost_connection_rolls_back_whatever_the_order_of_its_sessions() -> None:
    for coordinator_first in (True, False):
        rig = Rig()
        rig.queue("q")
        connection = rig.broker.clients.open_connection("/", "guest", "other")
        sessions = [rig.session(connection), rig.session(connection)]
        coordinator, working = sessions if coordinator_first else sessions[::-1]
        linked(rig, working, "link")
        rig.publish(working, "q", [1])
        rig.settle_down()
        transactions = rig.broker.transactions
        transaction = transactions.begin(coordinator)
        transactions.settle(transaction, working, 1, 1, ACCEPTED)
        rig.broker.clients.close_connection(connection, lost=True)
        rig.settle_down()
        rig.broker.check()
        assert [(h.number, h.acquired, h.failed) for h in rig.holds("q")] == [(1, 1, 1)]


def test_tx_16_a_transaction_that_takes_too_long_is_rolled_back() -> None:
    rig = manual()
    session, _ = delivered(rig, 1)
    transactions = rig.broker.transactions
    late, quick = transactions.begin(session, 1000), transactions.begin(session, 1000)
    transactions.settle(late, session, 1, 1, ACCEPTED)
    rig.stage(quick, "q", 2)
    rig.advance(999)
    transactions.commit(quick)
    assert (late.ended, rig.expired) == (False, [])
    rig.advance(1)
    assert (late.ended, rig.expired) == (True, [late.id])
    rig.advance(5000)
    rig.broker.check()
    assert (late.reopened, rig.expired) == ([(session, 1, 1)], [late.id])


def test_fc_18_late_deliveries_settled_under_a_transaction() -> None:
    """They were released for having taken too long, and come again. What was published for them
    under a transaction must not be there twice: it can only be rolled back [TX-13]."""
    for is_final in (False, True):
        for is_committed in (True, False):
            rig = manual()
            session, consumer = delivered(rig, 1, 2)
            consumer.on_timeout = RELEASES
            consumer.timeout_ms = 1000
            rig.broker.timeouts.watch(rig.vhost.queues["q"])
            rig.advance(2000)
            assert (consumer.overdue, rig.ready("q")) == (2, [1, 2])
            transactions = rig.broker.transactions
            transaction = transactions.begin(session)
            rig.declare("results")
            rig.stage(transaction, "results", 7)
            transactions.settle(transaction, session, 1, 2, ACCEPTED, is_final=is_final)
            rig.broker.check()
            assert rig.settle_down() == []
            if is_committed:
                with pytest.raises(RolledBack, match="had gone back: its consumer held it"):
                    transactions.commit(transaction)
            else:
                transactions.rollback(transaction)
            if not is_final:
                assert rig.settle_down() == []
                rig.broker.settlement.settle(session, 1, 2, ACCEPTED)
            assert [d.number for d in rig.settle_down()] == [1, 2]
            assert (transactions.committed, rig.ready("results")) == (0, [])
            rig.broker.check()
            assert (consumer.overdue, rig.vhost.queues["q"].account.settled) == (0, 0)


def test_tx_15_dl_7_letters_keep_the_order_of_their_rejections_around_what_was_reopened() -> None:
    rig = manual()
    rig.queue("letters")
    session, consumer = delivered(rig, *range(1, 10))
    rig.set_policy("q", {"dead-letter-exchange": "", "dead-letter-routing-key": "letters"})
    rig.broker.consuming.grant(consumer, 0, False)
    transactions = rig.broker.transactions
    transaction = transactions.begin(session)
    transactions.settle(transaction, session, Tag(4), Tag(8), REJECTED)
    transactions.settle(transaction, session, Tag(1), Tag(2), REJECTED)
    for tag in (Tag(6), Tag(1), Tag(4)):
        transactions.reopen(transaction, session, tag, tag)
        rig.broker.check()
    transactions.settle(transaction, session, Tag(4), Tag(4), REJECTED)
    transactions.settle(transaction, session, Tag(9), Tag(9), REJECTED)
    rig.broker.check()
    transactions.commit(transaction)
    rig.settle_down()
    rig.broker.check()
    assert rig.ready("letters") == [5, 7, 8, 2, 4, 9]
    assert [(entry.first, entry.last) for entry in session.inflight] == [(1, 1), (3, 3), (6, 6)]


@pytest.mark.parametrize("is_deleted", [False, True])
def test_nq_15_what_an_emptied_queue_has_ended_is_not_ended_again(is_deleted: bool) -> None:
    """A client settles what was taken from it, or changes its mind about a part of that."""
    rig = Rig()
    session, _ = delivered(rig, *range(1, 9))
    queue, transactions = rig.vhost.queues["q"], rig.broker.transactions
    transaction = transactions.begin(session)
    transactions.settle(transaction, session, Tag(1), Tag(4), ACCEPTED)
    rig.broker.contents.empty(queue)  # ends four staged deliveries, and four in flight
    transactions.settle(transaction, session, Tag(5), Tag(8), ACCEPTED)
    for tag in (2, 6):
        transactions.reopen(transaction, session, Tag(tag), Tag(tag))
    rig.publish(session, "q", [9])
    [last] = rig.settle_down()
    transactions.settle(transaction, session, last.tag, last.tag, ACCEPTED)
    rig.broker.check()
    assert (queue.entered, queue.account.staged, queue.account.dropped) == (9, 1, {2: 8})
    if is_deleted:
        rig.broker.registry.delete_queue(rig.connection, "q", False, False)
    else:
        rig.broker.contents.empty(queue)
        assert queue.account.dropped == {2: 9}
    rig.broker.check()
    assert queue.account.staged == 0
    transactions.rollback(transaction)
    for _ in range(3):
        rig.turn()
    rig.broker.check()
    assert rig.broker.store.resident_bytes == 0
