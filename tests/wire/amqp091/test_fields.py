"""Field tables: every type tag, both ways, and what is refused."""

from __future__ import annotations

import copy
import pickle
import struct
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark.wire.amqp091.errors import WireError
from tallymark.wire.amqp091.fields import (
    DEPTH_MAX,
    Float32,
    Timestamp,
    WireInt,
    decode_table,
    encode_table,
)


def table(entry: bytes) -> bytes:
    """A table with one entry `k` of this tag and value."""
    return (len(entry) + 2).to_bytes(4, "big") + b"\x01k" + entry


VALUES = [
    (b"t\x01", True),
    (b"t\x00", False),
    (b"b\xff", WireInt(-1, "b")),
    (b"B\xff", WireInt(255, "B")),
    (b"s\xff\xfe", WireInt(-2, "s")),
    (b"u\xff\xfe", WireInt(65534, "u")),
    (b"I\xff\xff\xff\xff", -1),
    (b"i\xff\xff\xff\xff", WireInt(2**32 - 1, "i")),
    (b"l" + b"\0" * 7 + b"\x05", WireInt(5, "l")),
    (b"l\x7f" + b"\xff" * 7, 2**63 - 1),
    (b"L" + b"\xff" * 8, WireInt(-1, "L")),
    (b"f\x3f\x80\0\0", Float32(1.0)),
    (b"d\x3f\xf8" + b"\0" * 6, 1.5),
    (b"D\x02\0\0\x01\x3a", Decimal("3.14")),
    (b"D\x02\0\0\0\x64", Decimal("1.00")),
    (b"D\xff\xff\xff\xff\xff", Decimal(4294967295).scaleb(-255)),
    (b"S\0\0\0\x03a\xc3\xa9", "aé"),
    (b"S\0\0\0\x02\xff\xfe", "\udcff\udcfe"),
    (b"x\0\0\0\x02\xff\0", b"\xff\0"),
    (b"T" + b"\xff" * 8, Timestamp(2**64 - 1)),
    (b"V", None),
    (b"A\0\0\0\x07t\x01I\0\0\0\x02", [True, 2]),
    (b"F\0\0\0\x04\x01xt\0", {"x": False}),
    (b"F\0\0\0\0", {}),
]


@pytest.mark.parametrize(("raw", "value"), VALUES)
def test_each_type_is_read_and_written_back_with_the_same_bytes(raw: bytes, value: object) -> None:
    decoded = decode_table(table(raw))
    assert decoded == {"k": value}
    assert type(decoded["k"]) is type(value)
    assert encode_table(decoded) == table(raw)


def test_true_is_written_as_1_whatever_it_came_as() -> None:
    assert encode_table(decode_table(table(b"t\x07"))) == table(b"t\x01")


@pytest.mark.parametrize(
    ("value", "tag"),
    [
        (5, b"I"),
        (-(2**31), b"I"),
        (2**31, b"l"),
        (-(2**63), b"l"),
        (True, b"t"),
        ("s", b"S"),
        (b"s", b"x"),
        (bytearray(b"s"), b"x"),
        (0.5, b"d"),
        ([], b"A"),
        ((), b"A"),
        ({}, b"F"),
        (None, b"V"),
        (Decimal("0.1"), b"D"),
        (Timestamp(1), b"T"),
    ],
)
def test_plain_values_get_the_usual_tags(value: object, tag: bytes) -> None:
    assert encode_table({"k": value})[6:7] == tag


@pytest.mark.parametrize(
    "value",
    [
        2**63,
        -(2**63) - 1,
        WireInt(300, "B"),
        Decimal("-1"),
        Decimal("1e-256"),
        Decimal(2**32),
        Decimal("NaN"),
        Decimal("1e5"),
        Timestamp(-1),
        Timestamp(2**64),
    ],
)
def test_numbers_without_room_are_refused(value: object) -> None:
    with pytest.raises(ValueError):
        encode_table({"k": value})


def test_values_without_a_type_and_long_keys_are_refused() -> None:
    with pytest.raises(TypeError, match="no AMQP field type for object"):
        encode_table({"k": object()})
    with pytest.raises(TypeError, match="key 1 of a table, expected text"):
        encode_table({"k": [{1: 2}]})
    with pytest.raises(ValueError, match="256 bytes, at most 255"):
        encode_table({"k" * 256: 1})
    with pytest.raises(ValueError, match="integer tag 'z'"):
        WireInt(1, "z")


def test_a_wire_int_is_an_int_and_keeps_its_width_when_copied() -> None:
    value = WireInt(7, "u")
    assert value == 7
    assert value + 1 == 8
    for twin in (copy.deepcopy(value), pickle.loads(pickle.dumps(value))):
        assert (twin, twin.tag) == (7, "u")


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\0\0\0",
        b"\0\0\0\x01",
        table(b"?\0"),
        table(b"S\0\0\0\x09a"),
        table(b"I\0\0"),
        table(b"A\0\0\0\x02I\0"),
        table(b"F\0\0\0\x02\x05a"),
        table(b"t\x01") + b"x",
        table(b""),
        table(b"A\xff\xff\xff\xff"),
        table(b"d\0"),
        table(b"D\0\0"),
    ],
)
def test_what_does_not_fit_is_a_syntax_error(raw: bytes) -> None:
    with pytest.raises(WireError) as caught:
        decode_table(raw)
    assert caught.value.reply_code == 502


def nested(depth: int) -> bytes:
    raw = b"A\0\0\0\0"
    for _ in range(depth):
        raw = b"A" + len(raw).to_bytes(4, "big") + raw
    return table(raw)


def test_nesting_is_limited() -> None:
    decode_table(nested(DEPTH_MAX - 1))
    for depth in (DEPTH_MAX, 20_000):
        with pytest.raises(WireError, match="nested deeper than 64"):
            decode_table(nested(depth))


keys = st.text(max_size=20).filter(lambda key: len(key.encode("utf-8", "surrogateescape")) < 256)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.text(),
    st.binary(),
    st.floats(allow_nan=False),
    st.integers(0, 2**64 - 1).map(Timestamp),
    st.integers(-(2**31), 2**31 - 1).map(lambda n: WireInt(n, "l")),
    st.integers(-(2**63), 2**63 - 1).map(lambda n: WireInt(n, "L")),
    st.integers(-128, 127).map(lambda n: WireInt(n, "b")),
    st.integers(0, 65535).map(lambda n: WireInt(n, "u")),
    st.floats(width=32, allow_nan=False).map(Float32),
    st.builds(
        lambda n, k: Decimal((0, tuple(map(int, str(n))), -k)),
        st.integers(0, 2**32 - 1),
        st.integers(0, 255),
    ),
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4)
)
tables = st.dictionaries(keys, values, max_size=6)


@given(tables)
def test_tables_survive_the_wire(original: dict[str, object]) -> None:
    raw = encode_table(original)
    decoded = decode_table(raw)
    assert decoded == original
    assert encode_table(decoded) == raw


@given(st.binary(max_size=60))
def test_any_bytes_are_a_table_or_a_syntax_error(noise: bytes) -> None:
    raw = struct.pack(">I", len(noise)) + noise
    code = 502
    try:
        encode_table(decode_table(raw))
    except WireError as error:
        code = error.reply_code
    assert code == 502
