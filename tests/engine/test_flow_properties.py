"""TX-A11: consumers that stop and go on at any moment lose nothing, and nothing is out of order.

QPID-2120: a subscription that was suspended while the queue picked its next entry skipped that
entry. Here sessions stop and resume between any two turns, while publishes come, windows fill up,
and marks wait for the disk.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tallymark.engine.outcomes import ACCEPTED
from tallymark.engine.session import Session
from tests.support.engine_rig import Delivery, Rig
from tests.support.long import longer, sized

steps = st.one_of(
    st.tuples(st.just("publish"), st.integers(1, 20)),
    st.tuples(st.just("flow"), st.integers(0, 1), st.booleans()),
    st.tuples(st.just("flow"), st.integers(0, 1), st.booleans()),
    st.tuples(st.just("settle"), st.integers(0, 1), st.integers(1, 5)),
    st.tuples(st.just("commit"), st.integers(0, 1), st.integers(1, 5), st.booleans()),
    st.tuples(st.just("turn")),
    st.tuples(st.just("turn")),
    st.tuples(st.just("disk"), st.booleans()),
)


class Club:
    """One queue and its consumers, each on a session of its own."""

    def __init__(self, consumers: int, prefetch: int, durable: bool) -> None:
        self.rig = Rig()
        self.queue = self.rig.queue("q", durable=durable)
        self.publisher = self.rig.session()
        self.sessions: list[Session] = [self.rig.session() for _ in range(consumers)]
        for at, session in enumerate(self.sessions):
            self.rig.consume(session, "q", f"c{at}", prefetch)
        self.seen: dict[int, list[Delivery]] = {session.id: [] for session in self.sessions}
        self.open: dict[int, list[int]] = {session.id: [] for session in self.sessions}
        """Tags outstanding."""
        self.published = 0

    def of(self, which: int) -> Session:
        return self.sessions[which % len(self.sessions)]

    def turn(self) -> None:
        for delivery in self.rig.turn():
            assert self.of_id(delivery.session).flow, "delivered while it was off [TX-10]"
            self.seen[delivery.session].append(delivery)
            self.open[delivery.session].append(delivery.tag)
        self.rig.broker.check()

    def of_id(self, id: int) -> Session:
        return next(session for session in self.sessions if session.id == id)

    def do_publish(self, n: int) -> None:
        self.rig.publish(self.publisher, "q", list(range(self.published, self.published + n)))
        self.published += n

    def do_flow(self, which: int, active: bool) -> None:
        self.rig.broker.consuming.set_flow(self.of(which), active)

    def do_settle(self, which: int, n: int) -> None:
        session = self.of(which)
        tags = self.open[session.id]
        for tag in tags[:n]:
            self.rig.broker.settlement.settle(session, tag, tag, ACCEPTED)
        del tags[:n]

    def do_commit(self, which: int, n: int, rolls_back_first: bool) -> None:
        session, transactions = self.of(which), self.rig.broker.transactions
        tags = self.open[session.id]
        if not tags:
            return
        last = tags[min(n, len(tags)) - 1]
        for end in (transactions.rollback, transactions.commit)[not rolls_back_first :]:
            transaction = transactions.begin(session)
            transactions.settle_up_to(transaction, session, last, ACCEPTED)
            self.turn()
            end(transaction)
        del tags[: tags.index(last) + 1]

    def do_turn(self) -> None:
        self.turn()

    def do_disk(self, holds: bool) -> None:
        self.rig.hold_disk = holds

    def finish(self) -> None:
        self.rig.hold_disk = False
        for session in self.sessions:
            self.rig.broker.consuming.set_flow(session, True)
        for _ in range(2000):
            if self.queue.account.settled == self.published:
                return
            self.turn()
            for at in range(len(self.sessions)):
                self.do_settle(at, 100)
        raise AssertionError(self.queue.counters())


@longer
@settings(max_examples=sized(200, 1000, 3000), deadline=None)
@given(
    st.integers(1, 2), st.integers(1, 8), st.booleans(), st.lists(steps, min_size=10, max_size=80)
)
def test_tx_a11_stopping_and_resuming_loses_and_reorders_nothing(
    consumers: int, prefetch: int, durable: bool, history: list[tuple]
) -> None:
    club = Club(consumers, prefetch, durable)
    for step in history:
        getattr(club, "do_" + step[0])(*step[1:])
    club.finish()
    found = [[d.number for d in deliveries] for deliveries in club.seen.values()]
    assert all(numbers == sorted(numbers) for numbers in found)
    assert sorted(n for numbers in found for n in numbers) == list(range(club.published))
    assert not any(d.redelivered for deliveries in club.seen.values() for d in deliveries)
