"""Scale: a command on one queue, consumer or binding costs the same whatever else there is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tallymark.engine.outcomes import ACCEPTED, REJECTED
from tallymark.engine.session import Session
from tallymark.units import Tag
from tests.support.engine_rig import Rig
from tests.support.engine_steps import manual
from tests.support.growth import assert_linear

SMALL = 100
"""Number of queues or consumers; sixteen times as many are compared with it."""


def _names(size: int) -> list[str]:
    return [f"q{number}" for number in range(size)]


def _held(size: int, sessions: int) -> Rig:
    """Queues with one message each, which the sessions hold."""
    rig = manual()
    publisher = rig.session()
    holders = [rig.session() for _ in range(sessions)]
    for number, name in enumerate(_names(size)):
        rig.queue(name)
        rig.publish(publisher, name, [number])
        rig.consume(holders[number % sessions], name, name)
    rig.settle_down()
    for name in _names(size):
        assert rig.vhost.queues[name].acquired == 1
    return rig


def _deleted(size: int, sessions: int) -> Callable[[], object]:
    rig = _held(size, sessions)

    def delete() -> None:
        for name in _names(size):
            rig.delete(name)
        rig.broker.check()

    return delete


def test_deleting_queues_whose_messages_are_held_by_as_many_sessions() -> None:
    assert_linear(lambda size: _deleted(size, size), SMALL)  # each asked all sessions


def test_deleting_queues_whose_messages_are_held_by_one_session() -> None:
    assert_linear(lambda size: _deleted(size, 1), 500)  # each asked all that the session holds


def test_emptying_queues_whose_messages_are_held_by_as_many_sessions() -> None:
    def prepare(size: int) -> Callable[[], object]:
        rig = _held(size, size)

        def empty() -> None:
            for name in _names(size):
                rig.broker.contents.empty(rig.vhost.queues[name])
            rig.broker.check()

        return empty

    assert_linear(prepare, SMALL)


def _holder(rig: Rig) -> Session:
    """The first session that consumes."""
    return next(one for one in rig.connection.sessions if one.consumers)


@pytest.mark.parametrize("order", [1, -1])
def test_detaching_links_of_one_session(order: int) -> None:
    def prepare(size: int) -> Callable[[], object]:
        rig = _held(size, 1)
        session = _holder(rig)

        def detach() -> None:
            for consumer in list(session.consumers.values())[::order]:
                rig.broker.consuming.detach(consumer)
            rig.broker.check()

        return detach

    assert_linear(prepare, 500)  # newest first, each took out what all before it held


def test_deleting_queues_whose_deliveries_one_transaction_settles() -> None:
    def prepare(size: int) -> Callable[[], object]:
        rig = _held(size, 1)
        session = _holder(rig)
        transactions = rig.broker.transactions
        transactions.settle_up_to(transactions.begin(session), session, Tag(0), ACCEPTED)

        def delete() -> None:
            for name in _names(size):
                rig.delete(name)
            rig.broker.check()

        return delete

    assert_linear(prepare, 200)  # each asked all that is staged


def test_settling_in_a_transaction_what_lies_between_settled_deliveries() -> None:
    def prepare(size: int) -> Callable[[], object]:
        rig = manual()
        rig.queue("q")
        session = rig.session()
        rig.consume(session, "q", "c")
        rig.publish(session, "q", list(range(2 * size)))
        rig.settle_down()
        for tag in range(2, 2 * size, 2):
            rig.broker.settlement.settle(session, Tag(tag), Tag(tag), ACCEPTED)
        transactions = rig.broker.transactions
        transaction = transactions.begin(session)

        def settle() -> None:
            for tag in range(1, 2 * size, 2):
                transactions.settle(transaction, session, Tag(tag), Tag(tag), ACCEPTED)
            rig.broker.check()

        return settle

    assert_linear(prepare, 500)  # each went through all that are behind it


@pytest.mark.parametrize("others", [False, True])
def test_changing_the_outcome_of_each_delivery_that_a_transaction_settles(others: bool) -> None:
    def prepare(size: int) -> Callable[[], object]:
        rig = _held(2 * size, 1)
        session = _holder(rig)
        transactions = rig.broker.transactions
        transaction = transactions.begin(session)
        tags = [Tag(tag) for tag in range(1, 2 * size, 2)]
        if not others:
            transactions.settle_up_to(transaction, session, Tag(0), ACCEPTED)
        else:
            for tag in tags:
                transactions.settle(transaction, session, tag, tag, ACCEPTED)

        def change() -> None:
            for tag in tags:
                transactions.reopen(transaction, session, tag, tag)
                transactions.settle(transaction, session, tag, tag, REJECTED)
            rig.broker.check()

        return change

    assert_linear(prepare, 200)  # each went through all settlements, and all that are unsettled


def test_rolling_back_what_was_acquired_between_other_deliveries() -> None:
    def prepare(size: int) -> Callable[[], object]:
        rig = _held(2 * size, 1)
        session = _holder(rig)
        transactions = rig.broker.transactions
        transaction = transactions.begin(session)
        for tag in range(1, 2 * size, 2):
            transactions.acquired(transaction, session, Tag(tag), Tag(tag))

        def roll_back() -> None:
            transactions.rollback(transaction)
            assert len(transaction.released) == size
            assert session.unacked == size
            rig.broker.check()

        return roll_back

    assert_linear(prepare, 200)  # each began at the first delivery of the session


def test_who_may_hold_messages_of_a_queue_is_forgotten_with_either() -> None:
    rig = _held(4, 2)
    holders = rig.broker.state.holders
    first = rig.vhost.queues["q0"]
    second = rig.vhost.queues["q1"]
    (one,), (other,) = holders.of(first), holders.of(second)
    assert one is not other
    rig.delete("q0")
    assert holders.of(first) == []
    assert first.id not in one.sources
    rig.broker.clients.close_session(other, lost=True)
    assert holders.of(second) == []
    assert not other.sources
    assert second.ready == 1


def _with_backlog(size: int) -> Rig:
    """A queue that is watched, with a message ready beyond what its consumers may hold."""
    rig = manual()
    rig.declare("q", {"message-ttl": 1_000_000, "max-length": 1_000_000})
    rig.publish(rig.session(), "q", list(range(size + 1)))
    return rig


def test_starting_consumers_of_a_watched_queue_with_a_backlog() -> None:
    def prepare(size: int) -> Callable[[], object]:
        rig = _with_backlog(size)
        session = rig.session()

        def start() -> None:
            for name in _names(size):
                rig.consume(session, "q", name, prefetch=1)

        return start

    assert_linear(prepare, SMALL)  # each asked all others what they want


def test_starting_consumers_each_of_a_higher_priority_than_all_before() -> None:
    def prepare(size: int) -> Callable[[], object]:
        rig = manual()
        queue = rig.queue("q")
        session = rig.session()

        def start() -> None:
            for number, name in enumerate(_names(size)):
                rig.broker.consuming.consume(session, queue, name, False, False, number, {})
            assert [one.priority for one in queue.consumers] == list(reversed(range(size)))

        return start

    assert_linear(prepare, 500)  # each was compared with all others


def test_cutting_consumers_of_a_watched_queue_with_a_backlog() -> None:
    def prepare(size: int) -> Callable[[], object]:
        rig = _with_backlog(size)
        connection = rig.broker.clients.open_connection("/", "guest", "cut")
        for name in _names(size):
            rig.consume(rig.session(connection), "q", name, prefetch=1)
        rig.settle_down()
        assert rig.vhost.queues["q"].ready == 1
        return lambda: rig.broker.clients.close_connection(connection, lost=True)

    assert_linear(prepare, SMALL)


def test_deleting_the_exclusive_queues_of_one_connection_newest_first() -> None:
    def prepare(size: int) -> Callable[[], object]:
        rig = manual()
        for name in _names(size):
            rig.queue(name, durable=False, exclusive=True)

        def delete() -> None:
            for name in reversed(_names(size)):
                rig.delete(name)

        return delete

    assert_linear(prepare, 500)


def test_asking_for_what_a_topic_exchange_needs_after_each_change() -> None:
    def prepare(size: int) -> Callable[[], object]:
        rig = manual()
        rig.exchange("x", "topic")
        for name in _names(size):
            rig.queue(name)
            rig.bind(name, "x", name)

        def ask() -> None:
            for _ in range(size):
                rig.vhost.topology.changed()
                assert not rig.vhost.needs_headers("x")

        return ask

    assert_linear(prepare, SMALL)  # by a walk over all bindings for each it is quadratic


def test_needs_of_exchanges_behind_follow_their_bindings() -> None:
    rig = manual()
    rig.exchange("x", "topic")
    rig.exchange("behind", "headers")
    rig.vhost.bind_exchange("behind", "x", "#", {})
    assert rig.vhost.needs_headers("x")
    rig.vhost.unbind_exchange("behind", "x", "#", {})
    assert not rig.vhost.needs_headers("x")
    rig.vhost.bind_exchange("behind", "x", "#", {})
    rig.vhost.delete_exchange("behind", False)
    assert not rig.vhost.needs_headers("x")


def test_unbinding_queues_of_a_local_random_exchange_newest_first() -> None:
    def prepare(size: int) -> Callable[[], object]:
        rig = manual()
        rig.exchange("x", "x-local-random")
        for name in _names(size):
            rig.queue(name)
            rig.bind(name, "x", "")
        bindings = list(rig.vhost.exchanges["x"].bindings.values())

        def unbind() -> None:
            for binding in reversed(bindings):
                rig.vhost.exchanges["x"].remove(binding)

        return unbind

    assert_linear(prepare, 500)


def test_a_policy_is_looked_at_by_the_sessions_that_hold_messages_of_its_queues() -> None:
    rig = _held(2, 2)
    holders = rig.broker.state.holders
    (one,), (other,) = (holders.of(rig.vhost.queues[name]) for name in _names(2))
    before = other.armed_ms
    rig.set_policy("q0", {"consumer-timeout": 60_000})
    assert one.armed_ms == rig.broker.clock.now_ms
    assert other.armed_ms == before


def test_a_shorter_time_out_by_a_policy_reaches_what_is_held_without_a_consumer() -> None:
    rig = manual()
    rig.queue("q")
    session = rig.session()
    rig.publish(session, "q", [1, 2])
    rig.consume(session, "q", "c", prefetch=1)
    rig.settle_down()
    rig.broker.consuming.cancel(session.consumers["c"])
    assert rig.get(session, rig.vhost.queues["q"]) is not None
    rig.set_policy("q", {"consumer-timeout": 60_000})
    rig.advance(59_000)
    assert rig.vhost.queues["q"].acquired == 2
    rig.advance(2_000)
    assert rig.vhost.queues["q"].ready == 2
