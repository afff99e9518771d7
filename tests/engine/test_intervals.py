from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tallymark.engine.intervals import IntervalSet

ranges = st.tuples(st.integers(0, 40), st.integers(0, 12)).map(lambda r: (r[0], r[0] + r[1]))


@given(st.lists(st.tuples(st.booleans(), ranges), max_size=30), ranges)
def test_it_behaves_as_a_set_of_numbers(
    history: list[tuple[bool, tuple[int, int]]], window: tuple[int, int]
) -> None:
    intervals, plain = IntervalSet(), set()
    for adding, (low, high) in history:
        if adding:
            intervals.add(low, high)
            plain |= set(range(low, high))
        else:
            intervals.remove(low, high)
            plain -= set(range(low, high))
        found = list(intervals)
        assert {n for a, b in found for n in range(a, b)} == plain
        assert all(b < c for (_, b), (c, _) in pairwise(found)), found
        assert all(a < b for a, b in found)
        assert intervals.count() == len(plain)
    low, high = window
    inside = {n for a, b in intervals.overlap(low, high) for n in range(a, b)}
    outside = {n for a, b in intervals.gaps(low, high) for n in range(a, b)}
    assert inside == plain & set(range(low, high))
    assert intervals.meets(low, high) == bool(inside)
    assert outside == set(range(low, high)) - plain
    assert all((n in intervals) == (n in plain) for n in range(-1, 60))
