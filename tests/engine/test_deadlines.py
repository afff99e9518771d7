"""One heap of deadlines for the whole broker [NQ-D1]."""

from __future__ import annotations

import gc
import weakref

from hypothesis import given
from hypothesis import strategies as st

from tallymark.engine.deadlines import NEVER, SWEEP, Deadlines, Timed

MOMENT = st.integers(0, 30)


class Thing(Timed):
    """Something with a name, for the test."""

    def __init__(self, name: int) -> None:
        super().__init__()
        self.name = name


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["arm", "forget", "take"]), MOMENT)))
def test_nq_d1_what_is_due_is_told_once_in_order(steps: list[tuple[int, str, int]]) -> None:
    deadlines = Deadlines()
    things = [Thing(i) for i in range(5)]
    waits: dict[int, int] = {}
    for which, what, at in steps:
        if what == "arm":
            deadlines.arm(things[which], at)
            waits[which] = min(at, waits.get(which, NEVER))
        elif what == "forget":
            deadlines.forget(things[which])
            waits.pop(which, None)
        else:
            due = sorted((when, name) for name, when in waits.items() if when <= at)
            told = deadlines.take_due(at)
            assert sorted(name for _, name in due) == sorted(t.name for t in told)  # type: ignore[attr-defined]
            assert [waits[t.name] for t in told] == [when for when, _ in due]  # type: ignore[attr-defined]
            for _, name in due:
                del waits[name]
        assert deadlines.next_due() == min(waits.values(), default=NEVER)


def test_nq_d1_what_is_forgotten_is_not_held_for_long() -> None:
    deadlines = Deadlines()
    alive = [Thing(i) for i in range(10)]
    for thing in alive:
        deadlines.arm(thing, 1000)
    gone = []
    for i in range(3 * SWEEP):
        thing = Thing(i)
        gone.append(weakref.ref(thing))
        deadlines.arm(thing, 1_000_000)
        deadlines.forget(thing)
    del thing
    gc.collect()
    assert sum(ref() is not None for ref in gone) <= SWEEP + 1
    assert deadlines.take_due(1000) == alive
