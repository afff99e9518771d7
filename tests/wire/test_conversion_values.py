"""Values between AMQP 0-9-1 and 1.0: every type of both, one table, both ways."""

from __future__ import annotations

import math
from decimal import Decimal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark.wire.amqp091 import fields
from tallymark.wire.amqp091.fields import Float32, WireInt, decode_table, encode_table
from tallymark.wire.amqp10 import types
from tallymark.wire.amqp10.codec import decode, encode
from tallymark.wire.conversion.values import decimal_of, field_name, to_amqp10, to_field
from tests.bridge.conversion import same
from tests.wire.amqp091.test_fields import tables

BOTH_WAYS: list[tuple[object, object]] = [
    (True, True),  # t
    (False, False),
    (WireInt(-1, "b"), types.Byte(-1)),
    (WireInt(255, "B"), types.UByte(255)),
    (WireInt(-2, "s"), types.Short(-2)),
    (WireInt(65535, "u"), types.UShort(65535)),
    (-(2**31), types.Int(-(2**31))),  # I
    (WireInt(2**32 - 1, "i"), types.UInt(2**32 - 1)),
    (2**63 - 1, 2**63 - 1),  # l
    (-(2**31) - 1, -(2**31) - 1),
    (WireInt(5, "l"), 5),
    (Float32(1.5), types.Float(1.5)),  # f
    (0.1, 0.1),  # d
    (math.inf, math.inf),
    (Decimal("3.14"), types.Decimal(0x84, bytes.fromhex("318000000000013a"))),  # D
    (Decimal("1.00"), types.Decimal(0x84, bytes.fromhex("3180000000000064"))),
    (Decimal(0), types.Decimal(0x84, bytes.fromhex("31c0000000000000"))),
    (Decimal((0, (4, 2, 9, 4, 9, 6, 7, 2, 9, 5), -255)),
     types.Decimal(0x84, bytes.fromhex("11e00000ffffffff"))),
    ("aé\0", "aé\0"),  # S
    ("", ""),
    ("x" * 70_000, "x" * 70_000),
    (b"\xff\0", b"\xff\0"),  # x
    (fields.Timestamp(0), types.Timestamp(0)),  # T
    (fields.Timestamp(1_700_000_000), types.Timestamp(1_700_000_000_000)),
    (None, None),  # V
    ([True, "x", [None]], [True, "x", [None]]),  # A
    ({"a": 1, "é": {"b": []}},
     {types.Symbol("a"): types.Int(1), "é": {types.Symbol("b"): []}}),  # F
    ({"\udcff": "k"}, {b"\xff": "k"}),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value"), BOTH_WAYS)
def test_a_value_finds_its_way_there_and_back(field: object, value: object) -> None:
    assert same(to_amqp10(field), value)
    assert same(to_field(value), field)


@pytest.mark.parametrize(
    ("field", "value", "back"),
    [
        (WireInt(-1, "L"), -1, WireInt(-1, "l")),
        ("\udcff\udcfe", b"\xff\xfe", b"\xff\xfe"),
        (fields.Timestamp(2**64 - 1), types.ULong(2**64 - 1), str(2**64 - 1)),
        (fields.Timestamp(9_223_372_036_854_776), types.ULong(9_223_372_036_854_776),
         9_223_372_036_854_776),
    ],
)  # fmt: skip
def test_a_field_comes_back_as_another_one(field: object, value: object, back: object) -> None:
    assert same(to_amqp10(field), value)
    assert same(to_field(value), back)


def test_the_last_second_that_a_timestamp_of_1_0_can_say() -> None:
    last = 9_223_372_036_854_775
    assert same(to_amqp10(fields.Timestamp(last)), types.Timestamp(last * 1000))


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (types.ULong(5), WireInt(5, "l")),
        (types.ULong(2**63 - 1), 2**63 - 1),
        (types.ULong(2**63), "9223372036854775808"),
        (types.Symbol("sym"), "sym"),
        (types.Char("é"), "é"),
        (UUID(int=1), "urn:uuid:00000000-0000-0000-0000-000000000001"),
        (types.Timestamp(1999), fields.Timestamp(1)),
        (types.Timestamp(-1), WireInt(-1, "l")),
        (types.Array([types.UInt(1), types.UInt(2)], 0x70),
         [WireInt(1, "i"), WireInt(2, "i")]),
        (types.Described(types.Symbol("d"), types.Byte(3)), WireInt(3, "b")),
        ([types.Described(1, {types.Symbol("k"): [1.5]})], [{"k": [1.5]}]),
        ({types.ULong(7): True, UUID(int=2): False, 8: None, "k" * 256: 1, (1.5): 2, True: 3},
         {"7": True, "00000000-0000-0000-0000-000000000002": False, "8": None}),
        (types.Decimal(0x74, bytes.fromhex("32800001")), Decimal(1)),
        (types.Decimal(0x94, (6176 << 113 | 5).to_bytes(16, "big")), Decimal(5)),
        (types.Decimal(0x84, bytes.fromhex("3200000000000003")), Decimal(300)),
        (types.Decimal(0x84, bytes.fromhex("3340000000000003")), "3E+12"),
        (types.Decimal(0x84, bytes.fromhex("31c0000100000000")), "4294967296"),
        (types.Decimal(0x84, bytes.fromhex("b1c0000000000001")), "-1"),
        (types.Decimal(0x74, bytes.fromhex("78000000")), "Infinity"),
        (types.Decimal(0x74, bytes.fromhex("f8000000")), "-Infinity"),
        (types.Decimal(0x74, bytes.fromhex("7c000000")), "NaN"),
    ],
)  # fmt: skip
def test_what_only_1_0_has_becomes_the_nearest(value: object, field: object) -> None:
    assert same(to_field(value), field)


@pytest.mark.parametrize(
    ("code", "raw", "expected"),
    [
        # small coefficients, then those whose first digit needs the other form [IEEE 754-2008 §3.5]
        (0x74, "32ffffff", Decimal(8388607)),
        (0x74, "6ca00000", Decimal(8388608)),
        (0x74, "6cb89680", Decimal(0)),  # 10^7 has one digit too many
        (0x84, "31dfffffffffffff", Decimal(2**53 - 1)),
        (0x84, "6c70000000000000", Decimal(2**53)),
        (0x84, "6c7386f26fc0ffff", Decimal(10**16 - 1)),
        (0x74, "b2000001", Decimal("-0.1")),
    ],
)
def test_decimals_of_all_forms_are_read(code: int, raw: str, expected: Decimal) -> None:
    found = decimal_of(types.Decimal(code, bytes.fromhex(raw)))
    assert found == expected
    assert found.is_signed() == expected.is_signed()


@pytest.mark.parametrize("key", [None, 1.5, False, [1]])
def test_a_key_that_is_no_name_has_no_field(key: object) -> None:
    assert field_name(key) is None


def test_names_are_measured_in_bytes() -> None:
    assert field_name("é" * 127) == "é" * 127
    assert field_name("é" * 128) is None
    assert field_name(b"\xff" * 255) == "\udcff" * 255
    assert field_name(b"\xff" * 256) is None


def nested(depth: int) -> object:
    value: object = True
    for _ in range(depth):
        value = [value]
    return value


def test_what_is_nested_too_deep_for_a_table_is_left_out_of_it() -> None:
    kept = to_field(nested(64))
    assert decode_table(encode_table({"k": kept})) == {"k": nested(64)}
    cut = to_field(nested(65))
    found = decode_table(encode_table({"k": cut}))["k"]
    depth = 0
    while isinstance(found, list):
        found = found[0]
        depth += 1
    assert (depth, found) == (64, None)


def lossy(value: object) -> object:
    """A table value as it comes back: the table of docs/conversion.md."""
    if isinstance(value, dict):
        return {key: lossy(item) for key, item in value.items()}
    if isinstance(value, list):
        return [lossy(item) for item in value]
    if isinstance(value, WireInt) and value.tag == "L":
        number = int(value)
        return WireInt(number, "l") if -(2**31) <= number < 2**31 else number
    if isinstance(value, fields.Timestamp) and value > 9_223_372_036_854_775:
        return int(value) if value < 2**63 else str(int(value))
    if isinstance(value, str) and any("\ud800" <= c <= "\udfff" for c in value):
        return value.encode("utf-8", "surrogateescape")
    return value


@given(tables)
def test_tables_come_back_as_the_documents_say(original: dict[str, object]) -> None:
    there = encode(to_amqp10(original))
    value, end = decode(there, 0, len(there))
    assert end == len(there)
    back = to_field(value)
    assert isinstance(back, dict)
    assert encode_table(back) == encode_table(lossy(original))  # type: ignore[arg-type]


@given(st.integers(0, 2**32 - 1), st.integers(-255, 0))
def test_every_decimal_of_a_table_comes_back(whole: int, exponent: int) -> None:
    number = Decimal((0, tuple(int(digit) for digit in str(whole)), exponent))
    there = to_amqp10(number)
    assert isinstance(there, types.Decimal)
    back = to_field(there)
    assert isinstance(back, Decimal)
    assert back.as_tuple() == number.as_tuple()
