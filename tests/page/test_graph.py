"""Graphs of queues: columns from left to right, cycles found, nothing drawn over another."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tallymark.server.page.graph import HEIGHT, WIDTH, Flow, drawn

NAMES = st.sampled_from([f"queue-{number}" for number in range(8)])
FLOWS = st.lists(st.tuples(NAMES, NAMES), max_size=16, unique=True)


def flows_of(*pairs: tuple[str, str]) -> list[Flow]:
    return [Flow(source, target) for source, target in pairs]


def test_a_queue_stands_behind_those_that_it_gets_letters_from() -> None:
    found = drawn(["alone"], flows_of(("a", "b"), ("b", "c"), ("a", "c")))
    x = {box.name: box.x for box in found.boxes}
    assert x["a"] == x["alone"] < x["b"] < x["c"]
    assert not found.cycles
    assert not any(box.in_cycle for box in found.boxes)


def test_cycles_are_marked_and_nothing_else() -> None:
    found = drawn([], flows_of(("in", "a"), ("a", "b"), ("b", "a"), ("b", "out"), ("self", "self")))
    assert sorted(found.cycles) == [["a", "b"], ["self"]]
    marked = {(line.flow.source, line.flow.target) for line in found.lines if line.in_cycle}
    assert marked == {("a", "b"), ("b", "a"), ("self", "self")}


def test_a_long_name_is_cut_and_kept() -> None:
    (box,) = drawn(["x" * 300], []).boxes
    assert (box.name, len(box.text)) == ("x" * 300, 26)


@given(FLOWS)
def test_boxes_lie_apart_and_within_the_drawing(pairs: list[tuple[str, str]]) -> None:
    found = drawn([], flows_of(*pairs))
    places = [(box.x, box.y) for box in found.boxes]
    assert len(set(places)) == len(places)
    for x, y in places:
        assert 0 <= x <= found.width - WIDTH
        assert 0 <= y <= found.height - HEIGHT
    assert len(found.lines) == len(pairs)


@given(FLOWS)
def test_two_queues_are_in_one_cycle_if_each_reaches_the_other(
    pairs: list[tuple[str, str]],
) -> None:
    names = {name for pair in pairs for name in pair}
    reach = {name: {target for source, target in pairs if source == name} for name in names}
    for _ in names:
        for name in names:
            reach[name] |= {far for near in reach[name] for far in reach[near]}
    cycle_of = {
        name: number for number, cycle in enumerate(drawn([], flows_of(*pairs)).cycles)
        for name in cycle
    }  # fmt: skip
    for name in names:
        assert (name in cycle_of) == (name in reach[name])
        for other in names - {name}:
            together = other in reach[name] and name in reach[other]
            is_one = name in cycle_of and cycle_of[name] == cycle_of.get(other)
            assert is_one == together
