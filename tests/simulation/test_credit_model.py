"""The model of shared credit finds who holds too much and who is passed over, and nobody else."""

from __future__ import annotations

import pytest

from tallymark.simulation.models.credit import Shared
from tallymark.simulation.violated import Violated
from tallymark.simulation.world import SECOND_NS, World

A, B = "a", "b"
PATIENCE_NS = SECOND_NS
OWN = 10


class Rig:
    def __init__(self, in_doubt: int = 0, own: int = OWN) -> None:
        self.world = World(1)
        self.world.now_ns = 100 * SECOND_NS
        self.waiting: dict[str, set[str]] = {A: set(), B: set()}
        self.shared = Shared(self.world, (A, B), own, self.waiting, PATIENCE_NS, in_doubt)

    def fill(self, queue: str, count: int = 5) -> None:
        self.waiting[queue] |= {f"{queue}{n}" for n in range(count)}

    def passes(self, seconds: float) -> None:
        self.world.now_ns += int(seconds * SECOND_NS)

    def serve(self, queue: str, count: int, seconds: float = 0.1, is_held: bool = False) -> None:
        for _ in range(count):
            self.passes(seconds)
            self.shared.delivered(queue, "it")
            if not is_held:
                self.shared.answered(queue)

    def limit(self, limit: int) -> None:
        self.shared.limits(limit)
        self.passes(2)


def test_a_consumer_may_hold_what_it_asked_for_and_no_more() -> None:
    rig = Rig()
    rig.serve(A, OWN, is_held=True)
    with pytest.raises(Violated, match="beyond its credit: it, 11 of 10"):
        rig.serve(A, 1)


def test_all_together_hold_no_more_than_they_share() -> None:
    rig = Rig()
    rig.limit(3)
    rig.serve(A, 2, is_held=True)
    rig.serve(B, 1, is_held=True)
    assert rig.shared.was_full
    with pytest.raises(Violated, match="beyond the shared credit: it, 4 of 3"):
        rig.serve(B, 1)


def test_a_limit_may_hang_on_its_way() -> None:
    rig = Rig()
    rig.shared.limits(3)
    rig.world.troubles.add(rig.world.now_ns, 5.0)
    rig.passes(5)
    rig.serve(A, 4, is_held=True)
    rig.passes(1)
    with pytest.raises(Violated, match="beyond the shared credit: it, 5 of 3"):
        rig.serve(A, 1)


def test_a_limit_that_is_under_way_to_the_broker_does_not_hold_yet() -> None:
    rig = Rig()
    rig.limit(5)
    rig.shared.limits(2)
    rig.shared.limits(1)
    rig.serve(A, 5, seconds=0, is_held=True)
    rig.passes(2)
    for _ in range(5):
        rig.shared.answered(A)
    rig.serve(A, 1, is_held=True)
    with pytest.raises(Violated, match="2 of 1"):
        rig.serve(B, 1)


def test_a_queue_that_waits_is_not_passed_over_for_long() -> None:
    rig = Rig()
    rig.limit(2)
    rig.fill(A)
    rig.fill(B)
    with pytest.raises(Violated, match="unfair: it, 12 of a while b got none"):
        rig.serve(A, 50)
    assert rig.shared.was_contested


def test_one_of_ten_is_not_its_share() -> None:
    rig = Rig()
    rig.limit(2)
    rig.fill(A)
    rig.fill(B)

    def one_of_ten() -> None:
        for _ in range(50):
            rig.serve(A, 10, seconds=0.08)
            rig.serve(B, 1)

    with pytest.raises(Violated, match=r"unfair: it, .* of a while b got [1-9]"):
        one_of_ten()


def test_turns_are_fair_and_so_is_what_one_disk_access_holds_up() -> None:
    rig = Rig()
    rig.limit(2)
    rig.fill(A)
    rig.fill(B)
    for _ in range(40):
        rig.serve(A, 3)
        rig.serve(B, 1)
    rig.serve(A, 40, seconds=0.01)


def test_who_has_nothing_to_wait_for_is_not_passed_over() -> None:
    rig = Rig()
    rig.limit(2)
    rig.serve(A, 50)
    rig.fill(B)
    rig.serve(B, 1)
    rig.waiting[B].clear()
    rig.serve(A, 50)
    assert rig.shared.was_contested is False


def test_who_holds_all_that_it_may_does_not_wait() -> None:
    rig = Rig(own=1)
    rig.limit(2)
    rig.fill(B)
    rig.serve(B, 1, is_held=True)
    rig.serve(A, 50)


def test_what_a_lost_connection_may_have_taken_along_is_not_counted() -> None:
    rig = Rig(in_doubt=5)
    rig.limit(2)
    rig.fill(B, 5)
    rig.serve(A, 50)
    rig.fill(B, 6)
    with pytest.raises(Violated, match="unfair"):
        rig.serve(A, 50)


def test_what_was_given_under_a_higher_limit_is_held_against_that_one() -> None:
    """Seed 8100061: the first queue's consumer was there before the others, and the limit."""
    rig = Rig()
    rig.fill(A)
    rig.fill(B)
    rig.serve(A, 30, seconds=0)
    rig.limit(2)
    for _ in range(30):
        rig.serve(A, 1)
        rig.serve(B, 1)
