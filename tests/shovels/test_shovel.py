"""The state machine of a shovel between brokers that crash wherever they can: nothing is lost, what
comes twice is flagged, and comes once where numbers are kept."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark.shovels.shovel import LONGEST_PAUSE_MS, Act, Do, Pace, Phase, Shovel


@dataclass
class Source:
    """A queue that takes back what was not settled, flagged."""

    ready: list[tuple[int, bool]]
    out: list[list[tuple[int, bool]]] = field(default_factory=list)

    def open(self, known: int | None) -> None:
        back = [(id, True) for batch in self.out for id, _ in batch]
        self.ready = back + self.ready
        self.out = []

    def take(self, most: int) -> tuple[int, list[tuple[int, bool]]]:
        batch, self.ready = self.ready[:most], self.ready[most:]
        if batch:
            self.out.append(batch)
        return 0, batch

    def settle(self, end: int) -> None:
        del self.out[0]

    @property
    def left(self) -> int:
        return len(self.ready) + sum(len(batch) for batch in self.out)


@dataclass
class NumberedSource:
    """A queue that hands out the same messages under the same numbers until they are settled."""

    all: list[tuple[int, bool]]
    floor: int = 0
    at: int = 0

    def open(self, known: int | None) -> None:
        if known is not None:
            self.floor = max(self.floor, known)
        self.at = self.floor

    def take(self, most: int) -> tuple[int, list[tuple[int, bool]]]:
        batch = self.all[self.at : self.at + most]
        self.at += len(batch)
        return self.at, batch

    def settle(self, end: int) -> None:
        self.floor = max(self.floor, end)

    @property
    def left(self) -> int:
        return len(self.all) - self.floor


@dataclass
class Target:
    """A broker that has some of a batch when it crashes."""

    has: list[tuple[int, bool]] = field(default_factory=list)
    known: int | None = None

    def put(self, end: int, batch: list[tuple[int, bool]], some: int) -> None:
        self.has += batch[:some]


@dataclass
class NumberedTarget:
    """A broker that takes a batch whole, with its number."""

    has: list[tuple[int, bool]] = field(default_factory=list)
    known: int | None = None

    def put(self, end: int, batch: list[tuple[int, bool]], some: int) -> None:
        if some == len(batch):
            self.has += batch
            self.known = end


class World:
    """A shovel between two brokers, whose steps end as `choose` says."""

    def __init__(self, count: int, numbered: bool, pace: Pace, choose: st.DataObject) -> None:
        messages = [(id, False) for id in range(count)]
        self.source = NumberedSource(messages) if numbered else Source(messages)
        self.target = NumberedTarget() if numbered else Target()
        self.pace = pace
        self.choose = choose
        self.shovel = Shovel(pace)
        self.taken: list[tuple[int, list[tuple[int, bool]]]] = []
        self.put = 0
        self.under_way: list[Do] = []
        self.is_over = False
        self.do(self.shovel.start())

    def do(self, steps: list[Do]) -> None:
        for step in steps:
            if step.act is Act.CLOSE:
                self.under_way = []
            if step.act is Act.END:
                self.is_over = True
            else:
                self.under_way.append(step)
        acts = [step.act for step in self.under_way]
        assert len(set(acts)) == len(acts), acts
        assert len(self.taken) <= self.pace.ahead

    def crash_shovel(self) -> None:
        """Another process goes on: it knows nothing of the first."""
        self.shovel = Shovel(self.pace)
        self.under_way = []
        self.do(self.shovel.start())

    def end(self, step: Do, fails: bool, takes_effect: bool) -> None:
        """One step ends: as it should, or with a failure before or after it took effect."""
        self.under_way.remove(step)
        count = 0
        if not fails or takes_effect:
            count = self.effect(step)
        elif step.act is Act.PUT:
            end, batch = self.taken[self.put]
            self.target.put(end, batch, self.choose.draw(st.integers(0, len(batch) - 1)))
        if fails and step.act in (Act.PUT, Act.REOPEN) and isinstance(self.source, Source):
            self.do(self.shovel.target_failed("broken"))
            if step.act is Act.PUT:  # it is put again
                self.put -= takes_effect
                end, batch = self.taken[self.put]
                self.taken[self.put] = end, [(id, True) for id, _ in batch]
        elif fails and step.act not in (Act.CLOSE, Act.WAIT):
            self.do(self.shovel.failed("broken"))
        else:
            self.do(self.answer(step, count))

    def effect(self, step: Do) -> int:
        if step.act is Act.OPEN:
            self.source.open(self.target.known)
            self.taken = []
            self.put = 0
        elif step.act is Act.TAKE:
            end, batch = self.source.take(step.number)
            if batch:
                self.taken.append((end, batch))
            return len(batch)
        elif step.act is Act.PUT:
            end, batch = self.taken[self.put]
            self.target.put(end, batch, len(batch))
            self.put += 1
        elif step.act is Act.SETTLE:
            assert self.put > 0, "settled before it was put"
            self.source.settle(self.taken.pop(0)[0])
            self.put -= 1
        elif step.act in (Act.WAIT, Act.REOPEN):
            assert 0 < step.number <= LONGEST_PAUSE_MS
        return 0

    def answer(self, step: Do, count: int) -> list[Do]:
        shovel = self.shovel
        if step.act is Act.TAKE:
            return shovel.took(count)
        return {
            Act.OPEN: shovel.opened, Act.PUT: shovel.was_put, Act.SETTLE: shovel.was_settled,
            Act.CLOSE: shovel.closed, Act.WAIT: shovel.waited, Act.REOPEN: shovel.reopened,
        }[step.act]()  # fmt: skip

    def go_on_without_failures(self) -> None:
        while not self.is_over:
            self.end(self.under_way[0], False, True)


paces = st.builds(Pace, batch=st.integers(1, 4), ahead=st.integers(1, 3), follows=st.just(False))


@given(st.data(), st.booleans(), st.integers(0, 12), paces)
def test_nothing_is_lost_and_twice_is_flagged_or_never(
    data: st.DataObject, numbered: bool, count: int, pace: Pace
) -> None:
    world = World(count, numbered, pace, data)
    for _ in range(data.draw(st.integers(0, 30))):
        if world.is_over:
            break
        if data.draw(st.integers(0, 5)) == 0:
            world.crash_shovel()
            continue
        step = data.draw(st.sampled_from(world.under_way))
        world.end(step, data.draw(st.booleans()), data.draw(st.booleans()))
    world.go_on_without_failures()
    assert world.source.left == 0
    came = Counter(id for id, _ in world.target.has)
    assert set(came) == set(range(count))
    if numbered:
        assert [id for id, _ in world.target.has] == list(range(count))
    seen: set[int] = set()
    for id, flagged in world.target.has:
        assert id not in seen or flagged, f"{id} came again and is not flagged"
        seen.add(id)


@given(st.integers(0, 9), st.integers(1, 4), st.integers(0, 9))
def test_it_ends_after_as_many_as_were_asked_for(most: int, batch: int, there: int) -> None:
    pace = Pace(batch=batch, most=most, follows=False)
    world = World(there, False, pace, None)  # type: ignore[arg-type]  # nothing fails
    world.go_on_without_failures()
    assert world.shovel.moved == min(most, there) == len(world.target.has)
    assert world.shovel.phase is Phase.ENDED


def test_one_that_follows_takes_again_where_nothing_was() -> None:
    shovel = Shovel(Pace(batch=5))
    shovel.start()
    assert shovel.opened() == [Do(Act.TAKE, 5)]
    assert shovel.took(0) == [Do(Act.TAKE, 5)]


def test_one_that_is_stopped_moves_what_it_has_and_takes_no_more() -> None:
    shovel = Shovel(Pace(batch=5))
    shovel.start()
    shovel.opened()
    assert shovel.took(3) == [Do(Act.TAKE, 5), Do(Act.PUT)]
    assert shovel.stop() == []
    assert shovel.was_put() == [Do(Act.SETTLE)]
    assert shovel.was_settled() == [Do(Act.CLOSE)]
    assert shovel.closed() == [Do(Act.END)]
    assert shovel.moved == 3


@pytest.mark.parametrize("persists", [True, False])
def test_a_failure_for_good_ends_it_unless_it_persists(persists: bool) -> None:
    shovel = Shovel(Pace(persists=persists))
    shovel.start()
    assert shovel.failed("no such queue", may_pass=False) == [Do(Act.CLOSE)]
    after = shovel.closed()
    assert after == ([Do(Act.WAIT, 200)] if persists else [Do(Act.END)])
    assert shovel.problem == "no such queue"


def test_a_source_that_is_found_empty_leaves_no_problem() -> None:
    shovel = Shovel(Pace(follows=False))
    shovel.start()
    shovel.failed("away")
    shovel.closed()
    shovel.waited()
    shovel.opened()
    assert shovel.took(0) == [Do(Act.CLOSE)]
    assert shovel.closed() == [Do(Act.END)]
    assert (shovel.problem, shovel.failures) == ("", 1)


def test_pauses_grow_until_messages_are_moved_again() -> None:
    shovel = Shovel(Pace())
    shovel.start()
    pauses = []
    for _ in range(10):
        shovel.failed("away")
        pauses += [step.number for step in shovel.closed()]
        shovel.waited()
    assert pauses[:3] == [200, 400, 800]
    assert pauses[-1] == LONGEST_PAUSE_MS
    shovel.opened()
    shovel.took(1)
    shovel.was_put()
    shovel.was_settled()
    assert (shovel.moved, shovel.problem) == (1, "")
    shovel.failed("away again")
    assert shovel.closed() == [Do(Act.WAIT, 200)]


def test_a_part_of_a_batch_that_was_moved_counts() -> None:
    shovel = Shovel(Pace(most=5))
    shovel.start()
    shovel.failed("away")
    shovel.closed()
    shovel.waited()
    assert shovel.opened() == [Do(Act.TAKE, 5)]
    shovel.took(5)
    shovel.failed("full", moved=2)
    assert (shovel.moved, shovel.in_hand, shovel.problem) == (2, 0, "full")
    assert shovel.closed() == [Do(Act.WAIT, 200)]
    shovel.waited()
    assert shovel.opened() == [Do(Act.TAKE, 3)]
