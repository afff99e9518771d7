"""A turn of a queue looks at the consumers that may want something, and so costs what they do; who
is served when is as if it looked at all of them [LC-3]."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallymark.engine.delivery import FEW
from tallymark.engine.message import Filter
from tallymark.engine.outcomes import ACCEPTED, FAILED, RETURNED
from tallymark.engine.queue import Queue
from tallymark.engine.queue_consumers import looked_at_of
from tallymark.engine.session import RELEASES, Consumer
from tallymark.units import UNLIMITED, Ms, Tag
from tests.support.engine_rig import Delivery, Rig
from tests.support.engine_steps import manual

MANY = 40 * FEW


def crowd(prefetch: int = 1) -> tuple[Rig, Queue, list[Consumer]]:
    """Many consumers of one queue, each with a session of its own, all of them full."""
    rig = manual()
    queue = rig.queue("q", durable=False)
    consumers = [rig.consume(rig.session(), "q", f"c{at}", prefetch) for at in range(MANY)]
    rig.publish(rig.session(), "q", list(range(MANY * prefetch)))
    assert len(rig.settle_down()) == MANY * prefetch
    rig.publish(rig.session(), "q", [MANY * prefetch])
    assert rig.settle_down() == []
    return rig, queue, consumers


def test_full_consumers_are_passed_over() -> None:
    rig, queue, _ = crowd()
    assert looked_at_of(queue) == []
    assert queue.demand() == 0
    rig.broker.check()


def test_a_full_consumer_is_passed_over_although_others_take_everything() -> None:
    rig, queue, consumers = crowd()
    rig.broker.consuming.set_limit(consumers[7], UNLIMITED)
    for number in range(MANY + 1, MANY + 9):
        rig.publish(rig.session(), "q", [number])
        rig.settle_down()
    assert looked_at_of(queue) == [consumers[7]]
    rig.broker.check()


def acknowledge(rig: Rig, one: Consumer) -> None:
    rig.broker.settlement.settle(one.session, Tag(1), Tag(1), ACCEPTED)


def raise_limit(rig: Rig, one: Consumer) -> None:
    rig.broker.consuming.set_limit(one, 2)


def grant(rig: Rig, one: Consumer) -> None:
    rig.broker.consuming.grant(one, 1, False)


def share(rig: Rig, one: Consumer) -> None:
    """A limit that is shared comes and goes again, and the consumer's own is gone."""
    rig.broker.consuming.set_prefetch(one.session, 5, shared=True)
    rig.settle_down()
    one.limit = UNLIMITED
    rig.broker.consuming.set_prefetch(one.session, 0, shared=True)


def recover(rig: Rig, one: Consumer) -> None:
    rig.broker.settlement.recover(one.session)


@pytest.mark.parametrize("way", [acknowledge, raise_limit, grant, share, recover])
def test_whoever_may_want_something_again_is_served(way: Callable[[Rig, Consumer], None]) -> None:
    rig, _, consumers = crowd()
    way(rig, consumers[5])
    assert {delivery.consumer for delivery in rig.settle_down()} == {"c5"}
    rig.broker.check()


def test_a_session_whose_deliveries_resume_is_served() -> None:
    rig, _, consumers = crowd()
    one = consumers[3]
    rig.broker.consuming.set_flow(one.session, False)
    acknowledge(rig, one)
    assert rig.settle_down() == []
    rig.broker.consuming.set_flow(one.session, True)
    assert [delivery.consumer for delivery in rig.settle_down()] == ["c3"]


def test_consumers_that_go_and_come_keep_the_order() -> None:
    rig, queue, consumers = crowd()
    for one in consumers[::2]:
        rig.broker.clients.close_session(one.session, lost=False)
    rig.broker.check()
    rig.consume(rig.session(), "q", "new", 1)
    rig.settle_down()
    rig.broker.check()
    for one in consumers[1::2]:
        rig.broker.consuming.cancel(one)
    assert [one.tag for one in looked_at_of(queue)] == ["new"]
    rig.broker.check()


class Odd(Filter):
    def matches(self, payload: object, i: int, known: object) -> bool:
        return i % 2 == 1


NUMBERS = st.integers(0, 11)
STEPS = st.one_of(
    st.tuples(st.just("publish"), NUMBERS, st.integers(0, 1)),
    st.tuples(st.just("publish"), NUMBERS, st.integers(0, 1)),
    st.tuples(st.sampled_from(["accept", "return", "fail"]), NUMBERS, st.integers(0, 5)),
    st.tuples(st.sampled_from(["accept", "return", "fail"]), NUMBERS, st.integers(0, 5)),
    st.tuples(st.just("limit"), NUMBERS, st.integers(0, 3)),
    st.tuples(st.just("grant"), NUMBERS, st.integers(0, 3)),
    st.tuples(st.just("drain"), NUMBERS, st.integers(0, 3)),
    st.tuples(st.just("share"), NUMBERS, st.integers(0, 4)),
    st.tuples(st.sampled_from(["flow", "pause", "gate"]), NUMBERS, st.integers(0, 1)),
    st.tuples(st.sampled_from(["cancel", "detach", "close", "get"]), NUMBERS, st.integers(0, 1)),
    st.tuples(st.just("consume"), NUMBERS, st.integers(0, 23)),
    st.tuples(st.just("advance"), NUMBERS, st.just(0)),
    st.tuples(st.just("turn"), st.just(0), st.just(0)),
)


class Party:
    """Consumers of two queues, in a few sessions on three connections that have room in every turn:
    where one has none, a queue is looked at once more or not, which orders queues, and not their
    consumers."""

    def __init__(self, few: int, durable: bool) -> None:
        self.rig = rig = manual()
        rig.broker.dispatcher.few = few
        self.queues = [rig.queue("a", durable), rig.queue("b", durable)]
        self.connections = [
            rig.broker.clients.open_connection("/", "guest", f"n{at}") for at in range(3)
        ]
        self.sessions = [rig.session(self.connections[at % 3]) for at in range(6)]
        self.consumers: list[Consumer] = []
        self.held: list[Delivery] = []
        self.made = self.numbers = 0

    def run(self, step: tuple[str, int, int]) -> list[Delivery]:
        word, n, more = step
        rig, broker = self.rig, self.rig.broker
        session = self.sessions[n % len(self.sessions)]
        one = self.consumers[n % len(self.consumers)] if self.consumers else None
        if word == "publish":
            count = n + 1
            rig.publish(rig.session(), "ab"[more], list(range(self.numbers, self.numbers + count)))
            self.numbers += count
        elif word in ("accept", "return", "fail") and self.held:
            outcome = {"accept": ACCEPTED, "return": RETURNED, "fail": FAILED}[word]
            for _ in range(more + 1):
                if self.held:
                    gone = self.held.pop(n % len(self.held))
                    owner = next(s for s in self.sessions if s.id == gone.session)
                    broker.settlement.settle(owner, Tag(gone.tag), Tag(gone.tag), outcome)
        elif word == "limit" and one is not None and not one.by_link:
            broker.consuming.set_limit(one, more or UNLIMITED)
        elif word in ("grant", "drain") and one is not None:
            broker.consuming.grant(one, more, word == "drain")
        elif word == "share":
            broker.consuming.set_prefetch(session, more, shared=True)
        elif word == "flow":
            broker.consuming.set_flow(session, more == 1)
        elif word in ("pause", "gate"):
            connection = self.connections[n % 3]
            if word == "pause":
                connection.paused = more == 0
            else:
                connection.gated = more == 0
            if more:
                broker.clients.wake(connection)
        elif word == "cancel" and one is not None:
            broker.consuming.cancel(one)
            self.consumers.remove(one)
        elif word == "detach" and one is not None:
            broker.consuming.detach(one)
            self.consumers.remove(one)
            held = {(one.session.id, entry.first + at) for entry in one.session.inflight
                    for at in range(entry.last - entry.first + 1)}  # fmt: skip
            self.held = [x for x in self.held if (x.session, x.tag) in held
                         or x.session != one.session.id]  # fmt: skip
        elif word == "close":
            broker.clients.close_session(session, lost=more == 1)
            self.consumers = [x for x in self.consumers if x.session is not session]
            self.held = [x for x in self.held if x.session != session.id]
            self.sessions[n % len(self.sessions)] = rig.session(session.connection)
        elif word == "get":
            rig.get(rig.session(), self.queues[more], no_ack=True)
        elif word == "consume":
            self._consume(n, more)
        elif word == "advance":
            return self._given(rig.advance(n * 10))
        return self._given(rig.turn() if word == "turn" else rig.settle_down())

    def _given(self, deliveries: list[Delivery]) -> list[Delivery]:
        self.held += [x for x in deliveries if not x.consumer.startswith("-")]
        self.rig.broker.check()
        return deliveries

    def _consume(self, n: int, more: int) -> None:
        session, queue = self.sessions[n % 6], self.queues[more % 2]
        no_ack = more >= 20
        self.made += 1
        tag = f"{'-' if no_ack else ''}{self.made}"
        broker = self.rig.broker
        broker.consuming.set_prefetch(session, more % 4, shared=False)
        made = broker.consuming.consume(
            session, queue, tag, no_ack, False, more // 4 % 3, {}, Odd() if more == 19 else None
        )
        if more % 3 == 0:
            made.timeout_ms = Ms(50)
            made.on_timeout = RELEASES
        self.consumers.append(made)


@settings(deadline=None)
@given(st.booleans(), st.lists(st.integers(0, 23), max_size=12), st.lists(STEPS, max_size=80))
def test_everybody_is_served_as_if_turns_looked_at_all(
    durable: bool, begin: list[int], steps: list[tuple[str, int, int]]
) -> None:
    brisk, naive = Party(0, durable), Party(UNLIMITED, durable)
    for at, more in enumerate(begin):
        for party in (brisk, naive):
            party.run(("consume", at, more))
    for step in steps:
        assert brisk.run(step) == naive.run(step), step
        assert [queue.next_turn for queue in brisk.queues] == [
            queue.next_turn for queue in naive.queues
        ]
