"""The lease of a journal: whatever stops, comes back late or is wrong about the time, nobody
confirms what a later leader does not have."""

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tallymark.journal.postgresql.lease import (
    HANDOVER,
    TAKEOVER,
    Follower,
    Lease,
    furthest_behind,
)

LASTING_MS = 3_000
BROKERS = 3


@dataclass
class Broker:
    """A broker as it sees itself: what it believes may be long past."""

    epoch: int = 0
    """Epoch that it believes to lead; 0: it is a standby."""
    restored: list[int] = field(default_factory=list)
    """Blocks that it had read when it began to lead."""
    confirmed: list[int] = field(default_factory=list)
    unknown: list[int] = field(default_factory=list)
    """Blocks of which it does not know yet whether the database has them."""


class Reigns(RuleBasedStateMachine):
    """Brokers over one database. Each rule is one transaction; between two of them a broker may
    stand still for as long as it likes."""

    def __init__(self) -> None:
        super().__init__()
        self.lease = Lease(0, "", 0)
        self.now_ms = 1_000_000
        self.log: list[tuple[int, int]] = []
        """Blocks in the database: epoch and number."""
        self.brokers = [Broker() for _ in range(BROKERS)]
        self.next = 0

    broker = st.integers(0, BROKERS - 1)

    @rule(ms=st.integers(0, 2 * LASTING_MS))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms

    @rule(ms=st.integers(-3_600_000, 3_600_000))
    def database_fails_over_to_a_server_whose_clock_differs(self, ms: int) -> None:
        self.now_ms += ms

    @rule(i=broker)
    def claim(self, i: int) -> None:
        was = self.lease
        claimed = was.claimed(f"b{i}", self.now_ms, LASTING_MS)
        if claimed is None:
            assert was.holder
            assert self.now_ms < was.expires_ms
            return
        assert claimed.epoch == was.epoch + 1
        assert not claimed.is_free(self.now_ms), "who has claimed it has it"
        self.lease = claimed
        self.brokers[i] = Broker(claimed.epoch, [number for _, number in self.log])

    @rule(i=broker)
    def renew(self, i: int) -> None:
        broker = self.brokers[i]
        renewed = self.lease.renewed(f"b{i}", self.now_ms, LASTING_MS)
        if renewed is not None:
            assert renewed.epoch == broker.epoch, "the holder leads in the lease's epoch"
            self.lease = renewed
        elif broker.epoch:
            self.brokers[i] = Broker()  # it knows now, and exits

    @rule(i=broker)
    def release(self, i: int) -> None:
        released = self.lease.released(self.brokers[i].epoch, self.now_ms)
        if released is not None and self.brokers[i].epoch:
            self.lease = released
            assert released.is_free(self.now_ms)
            self.brokers[i] = Broker()

    @rule(request=st.sampled_from([HANDOVER, TAKEOVER]))
    def ask(self, request: str) -> None:
        self.lease = self.lease.requested(request)

    @rule(i=broker, heard=st.booleans())
    def append(self, i: int, heard: bool) -> None:
        """A leader commits a block; the database compares the epoch. heard: its answer arrives."""
        broker = self.brokers[i]
        if not broker.epoch:
            return
        self.next += 1
        if broker.epoch != self.lease.epoch:
            if heard:
                self.brokers[i] = Broker()
            else:
                broker.unknown.append(self.next)
            return
        self.log.append((broker.epoch, self.next))
        if not heard:
            broker.unknown.append(self.next)
            return
        has = {number for _, number in self.log}
        assert has.issuperset(broker.unknown), "an epoch that commits now has never been lost"
        broker.confirmed += [*broker.unknown, self.next]
        broker.unknown.clear()

    @invariant()
    def epochs_never_fall(self) -> None:
        epochs = [epoch for epoch, _ in self.log]
        assert epochs == sorted(epochs)

    @invariant()
    def a_leader_has_all_that_was_confirmed_before_it(self) -> None:
        leading = [b for b in self.brokers if b.epoch == self.lease.epoch and b.epoch]
        assert len(leading) <= 1
        for leader in leading:
            own = [number for epoch, number in self.log if epoch == leader.epoch]
            before = {number for epoch, number in self.log if epoch < leader.epoch}
            assert leader.restored == sorted(before), "nothing was written behind its back"
            assert set(leader.confirmed) <= set(own)

    @invariant()
    def what_is_confirmed_is_in_the_database(self) -> None:
        has = {number for _, number in self.log}
        for broker in self.brokers:
            assert has.issuperset(broker.confirmed)


TestReigns = Reigns.TestCase
TestReigns.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)


def test_a_lease_is_kept_by_renewing_and_free_when_it_has_run_out() -> None:
    held = Lease(0, "", 0).claimed("a", 1000, LASTING_MS)
    assert held is not None
    assert held.claimed("b", 1000 + LASTING_MS - 1, LASTING_MS) is None
    renewed = held.renewed("a", 3000, LASTING_MS)
    assert renewed is not None
    assert renewed.claimed("b", 3000 + LASTING_MS - 1, LASTING_MS) is None
    taken = renewed.claimed("b", 3000 + LASTING_MS, LASTING_MS)
    assert taken == Lease(2, "b", 3000 + 2 * LASTING_MS)
    assert taken.renewed("a", 7000, LASTING_MS) is None
    assert taken.released(1, 7000) is None


def test_a_request_is_over_with_the_next_leader() -> None:
    held = Lease(4, "a", 5000).requested(TAKEOVER)
    assert held.renewed("a", 4000, LASTING_MS) == Lease(4, "a", 7000, TAKEOVER)
    assert held.claimed("b", 4000, LASTING_MS) == Lease(5, "b", 7000)
    assert Lease(4, "a", 5000).requested(HANDOVER).claimed("b", 4000, LASTING_MS) is None
    with pytest.raises(ValueError, match=r"'abdicate', expected one of handover, takeover"):
        held.requested("abdicate")


def test_what_followers_have_read_shows_that_tables_have_lost_their_end() -> None:
    """Beside the tables themselves (test_mirror.py), where there is no PostgreSQL."""
    followers = [Follower("a", 70, 5), Follower("b", 90, 900), Follower("c", 80, 0)]
    assert furthest_behind(followers, 79) == followers[1]
    assert furthest_behind(followers, 89) == followers[1]
    assert furthest_behind(followers, 90) is None
    assert furthest_behind([], 0) is None
