"""The filter map of an attach: what is taken, what is left out, what is refused."""

from __future__ import annotations

import pytest

from tallymark.bridge.filters import FilterError, filters_of
from tallymark.bridge.filters.attach import MOST_FILTERS
from tallymark.wire.amqp10.codec import decode, encode
from tallymark.wire.amqp10.sections import Properties
from tallymark.wire.amqp10.types import Described, Symbol, ULong
from tests.bridge.filter_rig import clock, message, payload_of

RED = message({"color": "red"}, Properties(subject="a"))
BLUE = message({"color": "blue"}, Properties(subject="a"))
OTHER = message({"color": "red"}, Properties(subject="b"))


def passing(asked: dict[object, object]) -> list[bool]:
    found, supported = filters_of(asked, clock())
    assert supported == asked
    assert found is not None
    payload = payload_of(RED, BLUE, OTHER)
    return [found.matches(payload, i, None) for i in range(3)]


def test_no_filter() -> None:
    assert filters_of(None, clock()) == (None, {})
    assert filters_of({}, clock()) == (None, {})


@pytest.mark.parametrize(
    ("name", "code", "value"),
    [
        ("amqp:sql-filter", 0x120, "color = 'red'"),
        ("amqp:properties-filter", 0x173, {Symbol("subject"): "a"}),
        ("amqp:application-properties-filter", 0x174, {"color": "red"}),
        ("apache.org:selector-filter:string", 0x468C00000004, "color = 'red'"),
    ],
)
def test_each_kind_by_name_and_by_code(name: str, code: int, value: object) -> None:
    expected = [True, True, False] if "subject" in str(value) else [True, False, True]
    for descriptor in (Symbol(name), ULong(code), name):
        assert passing({Symbol("any name"): Described(descriptor, value)}) == expected


def test_a_message_has_to_pass_all_of_them() -> None:
    asked: dict[object, object] = {
        Symbol("one"): Described(Symbol("amqp:sql-filter"), "color = 'red'"),
        Symbol("two"): Described(Symbol("amqp:properties-filter"), {Symbol("subject"): "a"}),
    }
    assert passing(asked) == [True, False, False]


def test_as_it_comes_over_the_wire() -> None:
    asked = {Symbol("f"): Described(ULong(0x120), "color = 'red'")}
    read, _ = decode(raw := encode(asked), 0, len(raw))
    assert isinstance(read, dict)
    assert passing(read) == [True, False, True]


def test_what_is_not_offered_is_left_out() -> None:
    sql = Described(Symbol("amqp:sql-filter"), "color = 'red'")
    asked: dict[object, object] = {
        Symbol("rabbitmq:stream-offset-spec"): Described(
            Symbol("rabbitmq:stream-offset-spec"), "first"
        ),
        Symbol("sql"): sql,
        Symbol("code"): Described(ULong(0x99), "x"),
        Symbol("odd"): Described(True, "x"),
        Symbol("list"): Described([1], "x"),
        Symbol("plain"): "x",
        Symbol("amqp:header-filter"): Described(Symbol("amqp:header-filter"), {}),
        Symbol("amqp:sql-filter"): None,
    }
    found, supported = filters_of(asked, clock())
    assert found is not None
    assert supported == {Symbol("sql"): sql}
    del asked[Symbol("sql")]
    assert filters_of(asked, clock()) == (None, {})


def test_a_filter_that_makes_no_sense_refuses_the_link() -> None:
    good = Described(Symbol("amqp:sql-filter"), "color = 'red'")
    bad = Described(Symbol("amqp:sql-filter"), "color =")
    with pytest.raises(FilterError) as caught:
        filters_of({Symbol("good"): good, Symbol("bad"): bad}, clock())
    assert caught.value.condition == "amqp:invalid-field"
    assert (
        str(caught.value)
        == caught.value.text
        == (
            "filter 'bad' (amqp:sql-filter): at character 8: the end found, expected a field, "
            "a constant or ("
        )
    )


def test_a_known_filter_has_to_be_described() -> None:
    with pytest.raises(FilterError, match="is \"color = 'red'\", expected a described value"):
        filters_of({Symbol("amqp:sql-filter"): "color = 'red'"}, clock())


def test_limits() -> None:
    asked: dict[object, object] = {
        Symbol(f"f{i}"): Described(ULong(0x120), "color = 'red'") for i in range(MOST_FILTERS)
    }
    assert passing(asked) == [True, False, True]
    with pytest.raises(FilterError, match="more than 16 filters"):
        filters_of({**asked, Symbol("one"): Described(ULong(0x120), "TRUE")}, clock())
    wide: dict[object, object] = {
        Symbol(f"f{i}"): Described(ULong(0x174), {f"k{i}.{j}": 1 for j in range(16)})
        for i in range(5)
    }
    with pytest.raises(FilterError, match=r"'k4\.0' is one field too many, at most 64"):
        filters_of(wide, clock())
