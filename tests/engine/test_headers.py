"""Header patterns: the indexed table against comparing every binding."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark.engine.errors import PreconditionFailed
from tallymark.engine.matching import HeaderPattern, HeaderTable, check_match
from tallymark.engine.table_values import equal_values

NAMES = st.sampled_from(["a", "b", "x-c", "x-d"])
VALUES = st.sampled_from(
    [None, True, False, 0, 1, 1.0, 2, "1", "a", b"a", b"\xff", "\udcff", [1], [True], {"k": 1}]
)
TABLES = st.dictionaries(NAMES, VALUES, max_size=4)
KINDS = st.sampled_from([None, "all", "any", "all-with-x", "any-with-x"])


def matches_naively(
    kind: str | None, arguments: dict[str, object], headers: dict[str, object]
) -> bool:
    with_x = kind is not None and kind.endswith("-with-x")
    met = [
        name in headers and (value is None or equal_values(value, headers[name]))
        for name, value in arguments.items()
        if with_x or not name.startswith("x-")
    ]
    return any(met) if kind is not None and kind.startswith("any") else all(met)


def with_kind(kind: str | None, arguments: dict[str, object]) -> dict[str, object]:
    return arguments if kind is None else {**arguments, "x-match": kind}


@given(st.lists(st.tuples(KINDS, TABLES), max_size=10), st.lists(TABLES, max_size=5), st.data())
def test_table_agrees_with_naive_matching_while_bindings_come_and_go(
    bindings: list[tuple[str | None, dict[str, object]]],
    messages: list[dict[str, object]],
    data: st.DataObject,
) -> None:
    table: HeaderTable[int] = HeaderTable()
    for number, (kind, arguments) in enumerate(bindings):
        table.add(number, with_kind(kind, arguments))
    gone = data.draw(st.sets(st.sampled_from(range(len(bindings))))) if bindings else set()
    for number in gone:
        table.remove(number)
        table.remove(number)
    for headers in messages:
        found = table.match(headers)
        assert len(found) == len(set(found))
        assert set(found) == {
            number
            for number, (kind, arguments) in enumerate(bindings)
            if number not in gone and matches_naively(kind, arguments, headers)
        }
    for number in range(len(bindings)):
        table.remove(number)
    assert not table.buckets
    assert not table.others
    assert not table.patterns


@pytest.mark.parametrize(
    ("arguments", "headers", "expected"),
    [
        ({}, {}, True),
        ({"x-match": "any"}, {"a": 1}, False),
        ({"a": 1, "b": 2}, {"a": 1}, False),
        ({"a": 1, "b": 2}, {"a": 1, "b": 2, "c": 3}, True),
        ({"x-match": "any", "a": 1, "b": 2}, {"b": 2}, True),
        ({"a": None}, {"a": "whatever"}, True),
        ({"a": None}, {}, False),
        ({"a": 1}, {"a": "1"}, False),
        ({"a": 1}, {"a": True}, False),
        ({"a": 1}, {"a": 1.0}, True),
        ({"a": "t"}, {"a": b"t"}, True),
        ({"x-a": 1}, {}, True),
        ({"x-match": "all-with-x", "x-a": 1}, {}, False),
        ({"x-match": "any-with-x", "x-a": 1}, {"x-a": 1}, True),
        ({"x-match": "any", "x-a": 1}, {"x-a": 1}, False),
        ({"x-match": "all-with-x"}, {"x-match": "any"}, True),
        ({"a": Decimal("1.5")}, {"a": Decimal("1.5")}, True),
    ],
)
def test_pattern(arguments: dict[str, object], headers: dict[str, object], expected: bool) -> None:
    assert HeaderPattern(arguments).matches(headers) is expected


def test_x_match_must_be_one_of_four_texts() -> None:
    for kind in ("all", "any", "all-with-x", "any-with-x"):
        check_match({"x-match": kind})
    with pytest.raises(PreconditionFailed) as refused:
        check_match({"x-match": "some"})
    assert str(refused.value) == (
        'Invalid x-match field value <<"some">>; expected all, any, all-with-x, or any-with-x'
    )
    with pytest.raises(PreconditionFailed) as refused:
        check_match({"x-match": 1})
    assert str(refused.value) == (
        "Invalid x-match field type signedint (value 1); expected longstr"
    )
