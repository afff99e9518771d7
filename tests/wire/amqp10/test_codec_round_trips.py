"""Any value comes back as it was written, types and all."""

from __future__ import annotations

import math
import struct

from hypothesis import given
from hypothesis import strategies as st

from tallymark.wire.amqp10.codec import decode, encode, skip
from tallymark.wire.amqp10.types import (
    Array,
    Byte,
    Char,
    Decimal,
    Described,
    Float,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)


def again(value: object) -> object:
    """The value once it was written and read."""
    raw = encode(value)
    found, end = decode(raw, 0, len(raw))
    assert end == len(raw)
    assert skip(raw, 0, len(raw)) == len(raw)
    assert encode(found) == raw
    return found


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(0, 255).map(UByte),
    st.integers(0, 2**16 - 1).map(UShort),
    st.integers(0, 2**32 - 1).map(UInt),
    st.integers(0, 2**64 - 1).map(ULong),
    st.integers(-128, 127).map(Byte),
    st.integers(-(2**15), 2**15 - 1).map(Short),
    st.integers(-(2**31), 2**31 - 1).map(Int),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(width=32, allow_nan=False).map(Float),
    st.floats(allow_nan=False),
    st.characters(exclude_categories=["Cs"]).map(Char),
    st.integers(-(2**63), 2**63 - 1).map(Timestamp),
    st.uuids(),
    st.binary(max_size=300),
    st.text(max_size=300),
    st.text(st.characters(max_codepoint=127), max_size=300).map(Symbol),
    st.binary(min_size=4, max_size=4).map(lambda raw: Decimal(0x74, raw)),
    st.binary(min_size=8, max_size=8).map(lambda raw: Decimal(0x84, raw)),
    st.binary(min_size=16, max_size=16).map(lambda raw: Decimal(0x94, raw)),
)
uniform = st.sampled_from(
    [
        st.none(),
        st.booleans(),
        st.integers(0, 2**32 - 1).map(UInt),
        st.integers(0, 300).map(ULong),
        st.integers(-(2**63), 2**63 - 1),
        st.text(max_size=300),
        st.binary(max_size=300),
        st.uuids(),
        st.lists(st.booleans(), max_size=300),
        st.dictionaries(st.text(max_size=5), st.integers(0, 5), max_size=3),
    ]
)
arrays = uniform.flatmap(lambda element: st.lists(element, max_size=300)).map(Array)
described_arrays = st.lists(st.integers(0, 255).map(UByte), max_size=9).map(
    lambda values: Array([Described(ULong(7), Described("x", value)) for value in values])
)
values = st.recursive(
    st.one_of(scalars, arrays, described_arrays),
    lambda inner: st.one_of(
        st.lists(inner, max_size=6),
        st.dictionaries(scalars, inner, max_size=4),
        st.builds(Described, scalars, inner),
        st.lists(st.lists(inner, max_size=3), max_size=3).map(lambda v: Array(v, 0xC0)),
    ),
    max_leaves=12,
)


def types_of(value: object) -> object:
    """The types in a value, all the way down."""
    if isinstance(value, Described):
        return type(value), types_of(value.descriptor), types_of(value.value)
    if isinstance(value, dict):
        return dict, [(types_of(k), types_of(v)) for k, v in value.items()]
    if isinstance(value, list):
        return type(value), [types_of(element) for element in value]
    return type(value)


@given(values)
def test_any_value_comes_back_as_it_was(value: object) -> None:
    found = again(value)
    assert found == value
    assert types_of(found) == types_of(value)


@given(st.floats(), st.floats(width=32))
def test_floats_come_back_bit_by_bit(double: float, single: float) -> None:
    assert struct.pack(">d", again(double)) == struct.pack(">d", double)
    found = again(Float(single))
    assert isinstance(found, Float)
    if math.isnan(single):
        assert math.isnan(found)
    else:
        assert struct.pack(">f", found) == struct.pack(">f", single)
