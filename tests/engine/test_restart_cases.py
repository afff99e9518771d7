"""Single histories that a restart once misread, and the rule that covers them: a checkpoint at any
moment and what came later say the same as the whole log."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallymark.engine.errors import AccessRefused, BrokerError, PreconditionFailed
from tallymark.engine.outcomes import ACCEPTED, REJECTED, RETURNED
from tallymark.engine.record import Record
from tallymark.engine.restore import snapshot
from tallymark.engine.session import Session
from tallymark.engine.subscription import Subscription, subscriptions_of
from tests.support.engine_rig import MemoryLog, Rig, numbers


def filled(n: int, persistent: bool = True) -> Rig:
    rig = Rig()
    rig.queue("q")
    rig.publish(rig.session(), "q", list(range(n)), persistent)
    rig.turn()
    return rig


def leasing(rig: Rig, n: int) -> Subscription:
    subscription = rig.broker.leases.attach(rig.vhost.queues["q"], "s")
    rig.broker.leases.lease(subscription, 0, n, 0)
    return subscription


# -- subscriptions and checkpoints


def test_what_a_dropped_subscription_gave_back_survives_a_checkpoint_taken_before() -> None:
    rig = filled(5)
    subscription = leasing(rig, 4)
    rig.broker.leases.settle(subscription, 1)
    rig.checkpoint()
    rig.broker.drop_subscription(subscription)
    rig.turn()
    after = rig.restart()
    after.turn()
    after.broker.check()
    assert after.ready("q") == [1, 2, 3, 4]
    flagged = [p.acquired > 0 for p in after.vhost.queues["q"].slices() for _ in range(len(p))]
    assert flagged[:3] == [True, True, True]


def test_transient_messages_of_a_dropped_subscription_end_at_a_restart_and_are_counted() -> None:
    rig = filled(5, persistent=False)
    subscription = leasing(rig, 4)
    rig.checkpoint()
    rig.broker.drop_subscription(subscription)
    rig.turn()
    after = rig.restart()
    after.turn()
    after.broker.check()
    assert after.vhost.queues["q"].counters()["dropped"] == {"transient_at_restart": 5}


def test_a_queue_with_a_subscription_is_in_use() -> None:
    rig = filled(2)
    leasing(rig, 2)
    with pytest.raises(PreconditionFailed, match="in use"):
        rig.broker.registry.delete_queue(rig.connection, "q", True, False)
    with pytest.raises(AccessRefused, match="in exclusive use"):
        rig.broker.consuming.consume(rig.session(), rig.vhost.queues["q"], "c", False, True, 0, {})


# -- the redelivered flag


def test_a_message_got_without_acknowledgement_has_to_wait_for_the_mark_too() -> None:
    rig = filled(1)
    rig.hold_disk = True
    rig.get(rig.session(), rig.vhost.queues["q"], no_ack=True)
    assert rig.broker.consuming.get_must_wait


def test_a_message_given_back_before_the_disk_knew_waits_like_a_fresh_one() -> None:
    rig = filled(1)
    queue, first, second = rig.vhost.queues["q"], rig.session(), rig.session()
    rig.hold_disk = True
    rig.get(first, queue)
    rig.broker.clients.close_session(first, lost=True)
    rig.broker.consuming.consume(second, queue, "c", False, False, 0, {})
    assert rig.turn() == []
    rig.broker.consuming.set_flow(second, False)
    rig.get(second, queue)
    assert rig.broker.consuming.get_must_wait
    rig.broker.settlement.recover(second)
    rig.broker.consuming.set_flow(second, True)
    rig.hold_disk = False
    assert [(d.number, d.redelivered) for d in rig.settle_down()] == [(0, True)]


# -- blocks that are gone, and accepted as lost


def two_stretches() -> tuple[Rig, Session, int]:
    """Messages 0..2 and 3..5; the number of the block in which the second three entered."""
    rig = filled(3)
    session = rig.session()
    rig.publish(session, "q", [3, 4, 5])
    block = len(rig.log.blocks)
    rig.turn()
    return rig, session, block


def test_messages_whose_block_is_lost_are_counted_as_lost() -> None:
    rig, session, block = two_stretches()
    rig.publish(session, "q", [6])
    rig.turn()
    del rig.log.blocks[block]
    for _ in range(2):
        rig = rig.restart()
        rig.turn()
        rig.broker.check()
        assert rig.ready("q") == [0, 1, 2, 6]
        assert rig.vhost.queues["q"].counters()["dropped"] == {"lost": 3}


def test_sequences_of_a_lost_block_that_were_settled_are_not_given_out_again() -> None:
    rig, session, block = two_stretches()
    queue = rig.vhost.queues["q"]
    for _ in range(6):
        rig.get(session, queue)
    rig.broker.settlement.settle_up_to(session, 0, ACCEPTED)
    rig.turn()
    del rig.log.blocks[block]
    after = rig.restart()
    after.publish(after.session(), "q", [10, 11])
    after.turn()
    after.broker.check()
    again = after.restart()
    again.turn()
    again.broker.check()
    assert again.ready("q") == [10, 11]


# -- the rule


def state(rig: Rig) -> dict[object, object]:
    """Everything durable that the broker holds, as values that can be compared."""
    broker = rig.broker
    found: dict[object, object] = {"topology": sorted(rig.vhost.topology.definitions())}
    for queue in broker.queues.values():
        ready = []
        for piece in queue.slices():
            broker.store.load(piece.payload)
            ready += [(piece.first + i, n, piece.acquired > 0)
                      for i, n in enumerate(numbers(piece))]  # fmt: skip
        leased = []
        for subscription in subscriptions_of(queue):
            rows = [
                (first + i, number)
                for first, piece in broker.leases.read(
                    subscription, subscription.floor, subscription.next
                )
                for i, number in enumerate(numbers(piece), piece.first)
            ]
            leased.append((subscription.name, broker.leases.stat(subscription), rows))
        size = queue.account.ready_bytes
        found[queue.id] = (queue.name, ready, queue.counters(), size, queue.high_water.mark, leased)
    return found


class Story:
    """A random life of two durable queues; `snapshots` as (blocks before it, records)."""

    def __init__(self, seed: int) -> None:
        self.rig = Rig()
        self.random = random.Random(seed)
        self.number = 0
        self.sessions = [self.rig.session(), self.rig.session()]
        self.snapshots: list[tuple[int, list[Record]]] = []

    def tell(self, steps: int) -> None:
        deeds = [self.declare, self.publish, self.publish, self.get, self.consume, self.settle,
                 self.settle, self.leave, self.delete, self.purge, self.lease, self.lease,
                 self.lease, self.settle_lease, self.drop, self.drop, self.turn, self.turn,
                 self.checkpoint, self.checkpoint]  # fmt: skip
        for _ in range(steps):
            with suppress(BrokerError):  # it changed nothing: so it must be after a restart
                self.random.choice(deeds)()
            self.rig.broker.check()
        self.rig.turn()

    def some_name(self) -> str:
        return self.random.choice(("a", "b"))

    def some_session(self) -> Session:
        return self.random.choice(self.sessions)

    def declare(self) -> None:
        self.rig.queue(self.some_name())

    def publish(self) -> None:
        name, n = self.some_name(), self.random.randint(1, 5)
        if name in self.rig.vhost.queues:
            messages = list(range(self.number, self.number + n))
            self.rig.publish(self.some_session(), name, messages, self.random.random() < 0.7)
            self.number += n

    def get(self) -> None:
        queue = self.rig.vhost.queue(self.some_name(), 0)
        self.rig.get(self.some_session(), queue, self.random.random() < 0.3)

    def consume(self) -> None:
        queue, session = self.rig.vhost.queue(self.some_name(), 0), self.some_session()
        self.rig.broker.consuming.set_prefetch(session, self.random.randint(1, 4), False)
        tag, no_ack = str(self.random.randint(0, 9)), self.random.random() < 0.3
        self.rig.broker.consuming.consume(session, queue, tag, no_ack, False, 0, {})

    def settle(self) -> None:
        session = self.some_session()
        tag = self.random.randint(1, session.next_tag)
        outcome = self.random.choice((ACCEPTED, ACCEPTED, REJECTED, RETURNED))
        if self.random.random() < 0.5:
            self.rig.broker.settlement.settle_up_to(session, tag, outcome)
        else:
            self.rig.broker.settlement.settle(session, tag, tag, outcome)

    def leave(self) -> None:
        self.rig.broker.clients.close_session(self.sessions.pop(0), lost=True)
        self.sessions.append(self.rig.session())

    def delete(self) -> None:
        if self.random.random() < 0.3:
            self.rig.broker.registry.delete_queue(
                self.rig.connection, self.some_name(), False, False
            )

    def purge(self) -> None:
        self.rig.broker.contents.purge(self.rig.vhost.queue(self.some_name(), 0))

    def lease(self) -> None:
        queue = self.rig.vhost.queue(self.some_name(), 0)
        subscription = self.rig.broker.leases.attach(queue, self.random.choice("st"))
        n = self.random.randint(1, 6)
        self.rig.broker.leases.lease(subscription, subscription.next, n, 0)

    def some_subscription(self) -> Subscription:
        name = self.random.choice("st")
        return self.rig.broker.leases.find(self.rig.vhost.queue(self.some_name(), 0), name)

    def settle_lease(self) -> None:
        subscription = self.some_subscription()
        self.rig.broker.leases.settle(subscription, self.random.randint(0, subscription.next))

    def drop(self) -> None:
        self.rig.broker.drop_subscription(self.some_subscription())

    def turn(self) -> None:
        self.rig.turn(self.random.choice((0, 1 << 40)))

    def checkpoint(self) -> None:
        self.rig.turn()
        self.snapshots.append((len(self.rig.log.blocks), snapshot(self.rig.broker, False)))


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 1 << 32), st.integers(5, 60))
def test_a_checkpoint_and_the_later_log_say_what_the_whole_log_says(seed: int, steps: int) -> None:
    story = Story(seed)
    story.tell(steps)
    log = story.rig.log
    whole = Rig(log)
    whole.broker.check()
    expected = state(whole)
    for blocks, records in story.snapshots:
        later = MemoryLog()
        later.bytes = log.bytes
        later.checkpoint = records
        later.blocks = log.blocks[blocks:]
        restored = Rig(later)
        restored.broker.check()
        assert state(restored) == expected
