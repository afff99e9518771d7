"""One heap of deadlines for the whole broker [NQ-D1]."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tallymark.engine.clock import NEVER, SWEEP, Deadlines
from tallymark.engine.queue import Queue
from tests.support.census import census

MOMENT = st.integers(0, 30)


def thing(id: int) -> Queue:
    return Queue(id, f"q{id}", "/", False, 0, False, {})


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["arm", "forget", "take"]), MOMENT)))
def test_nq_d1_what_is_due_is_told_once_in_order(steps: list[tuple[int, str, int]]) -> None:
    deadlines = Deadlines()
    things = [thing(i) for i in range(5)]
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
            ids = [one.id for one in told if isinstance(one, Queue)]
            assert sorted(id for _, id in due) == sorted(ids)
            assert [waits[id] for id in ids] == [when for when, _ in due]
            for _, name in due:
                del waits[name]
        assert deadlines.next_due() == min(waits.values(), default=NEVER)


def test_nq_d1_what_is_forgotten_is_not_held() -> None:
    """A thousand sessions that were gone stayed, with their connections, until others went."""
    deadlines = Deadlines()
    alive = [thing(i) for i in range(10)]
    for one in alive:
        deadlines.arm(one, 1000)
    for i in range(3 * SWEEP):
        gone = Queue(100 + i, "forgotten", "/", False, 0, False, {})
        deadlines.arm(gone, 1_000_000)
        deadlines.forget(gone)
    before = census(deadlines)
    assert before["Queue"] == 10
    assert before["Deadlines._heap"] <= SWEEP + 1 + 10
    assert deadlines.take_due(1000) == alive
    assert deadlines.next_due() == NEVER
    assert census(deadlines)["Deadlines._heap"] == 0
