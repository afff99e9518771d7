"""Columns of rows: what is cut out of them, and what that costs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark.server.management.columns import Columns

ROW = {"name": "q", "arguments": {"x-max-length": 7, "x-deep": {"a": 1}}, "empty": {}, "none": None}
NAMES = st.sampled_from(["a", "b", "c", ""])
VALUES = st.recursive(
    st.integers(0, 3) | st.none() | st.lists(st.integers(0, 3), max_size=2),
    lambda inner: st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("columns", "found"),
    [
        ("", ROW),
        ("name", {"name": "q"}),
        ("name,none", {"name": "q", "none": None}),
        ("arguments.x-max-length", {"arguments": {"x-max-length": 7}}),
        ("arguments.x-deep.a,name.x", {"arguments": {"x-deep": {"a": 1}}}),
        ("arguments.x-max-length,arguments", {"arguments": ROW["arguments"]}),
        ("arguments,arguments.x-max-length", {"arguments": ROW["arguments"]}),
        ("empty,empty.x", {"empty": {}}),
        ("empty.x,no,no.x,none.x,,.", {}),
    ],
)
def test_columns_of_a_row(columns: str, found: dict[str, Any]) -> None:
    assert Columns(columns).of(ROW) == found


def naive(columns: list[list[str]], row: dict[str, Any]) -> dict[str, Any]:
    """Each column by itself, the widest last."""
    found: dict[str, Any] = {}
    for path in sorted(columns, key=len, reverse=True):
        value: Any = row
        for step in path:
            value = value[step] if isinstance(value, dict) and step in value else ...
        if value is ...:
            continue
        inner = found
        for step in path[:-1]:
            inner = inner.setdefault(step, {})
        inner[path[-1]] = value
    return found


@given(
    columns=st.lists(st.lists(NAMES, min_size=1, max_size=3), min_size=1, max_size=5),
    row=st.dictionaries(NAMES, VALUES, max_size=4),
)
def test_columns_are_cut_as_if_each_were_by_itself(
    columns: list[list[str]], row: dict[str, Any]
) -> None:
    text = ",".join(".".join(path) for path in columns)
    assert Columns(text).of(row) == (naive(columns, row) if text else row)


class Asked(dict[str, Any]):
    """A row that counts what is asked of it."""

    asked = 0

    def items(self) -> Any:
        for pair in super().items():
            self.asked += 1
            yield pair


def test_a_row_costs_what_it_has_and_not_what_is_asked_for() -> None:
    """A query string has room for thousands of columns."""
    columns = Columns(",".join(f"none{n},arguments.none{n}" for n in range(1000)))
    row = Asked(name="q", arguments=Asked(a=1))
    assert columns.of(row) == {}
    assert (row.asked, row["arguments"].asked) == (2, 1)
