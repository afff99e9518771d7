"""Slices: whatever is put in and taken out, they are those of a list."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tallymark.engine.message import Payload, Slice
from tallymark.engine.slices import SPARE, Slices
from tallymark.stored.annotations import Route

PAYLOAD = Payload(1, b"x", array("I", [0, 1]), Route("", "q"), None, 1, 0, True, 4096)


def some(n: int) -> list[Slice]:
    return [Slice(PAYLOAD, 0, 1, 1, 0) for _ in range(n)]


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.slices = Slices()
        self.model: list[Slice] = []

    @rule(n=st.integers(0, 2 * SPARE))
    def put_last(self, n: int) -> None:
        new = some(n)
        self.slices.extend(new[:-1])
        for one in new[-1:]:
            self.slices.append(one)
        self.model += new

    @rule(n=st.integers(0, SPARE))
    def put_first(self, n: int) -> None:
        new = some(n)
        self.slices.put_first(new)
        self.model = new + self.model

    @rule(n=st.integers(1, 3 * SPARE))
    def take_from_the_front(self, n: int) -> None:
        for _ in range(min(n, len(self.model))):
            assert self.slices.popleft() is self.model.pop(0)

    @rule(n=st.integers(1, SPARE))
    def take_from_the_end(self, n: int) -> None:
        for _ in range(min(n, len(self.model))):
            assert self.slices.pop() is self.model.pop()

    @precondition(lambda self: self.model)
    @rule(at=st.integers(0), n=st.integers(0, 3))
    def replace(self, at: int, n: int) -> None:
        at %= len(self.model)
        new = some(n)
        self.slices.replace(at, new)
        self.model[at : at + 1] = new

    @rule(at=st.integers(0))
    def insert(self, at: int) -> None:
        at %= len(self.model) + 1
        [new] = some(1)
        self.slices.insert(at, new)
        self.model.insert(at, new)

    @precondition(lambda self: self.model)
    @rule(at=st.integers(0))
    def remove(self, at: int) -> None:
        at %= len(self.model)
        self.slices.remove(at)
        del self.model[at]

    @rule()
    def clear(self) -> None:
        self.slices.clear()
        self.model.clear()

    @invariant()
    def they_are_the_same(self) -> None:
        assert len(self.slices) == len(self.model)
        assert bool(self.slices) == bool(self.model)
        assert all(a is b for a, b in zip(self.slices, self.model, strict=True))
        for at in range(-len(self.model), len(self.model)):
            assert self.slices[at] is self.model[at]

    @invariant()
    def none_is_beyond_them(self) -> None:
        for at in (len(self.model), -len(self.model) - 1):
            with pytest.raises(IndexError):
                self.slices[at]


TestSlices = Machine.TestCase


def test_what_was_taken_is_not_held_on_to() -> None:
    slices = Slices(some(1000))
    for _ in range(900):
        slices.popleft()
    assert len(slices._places) <= 2 * 100 + SPARE
    assert not any(slices._places[: slices._gone])
