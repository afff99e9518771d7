"""What the hot loops are made of, against what it stands for: nothing outside of the bytes is read,
however far off a place is."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from librt.strings import BytesWriter

from tallymark.wire.octets import (
    alike,
    begins,
    packed,
    pair,
    place,
    put_place,
    put_u32,
    u16,
    u32,
    unpacked,
)

numbers = st.integers(0, 2**32 - 1) | st.sampled_from([0, 2**31 - 1, 2**31, 2**32 - 1])


@given(st.binary(max_size=40), st.integers(0, 44), st.integers(0, 44), st.binary(max_size=3))
def test_begins_is_what_startswith_is(raw: bytes, at: int, size: int, behind: bytes) -> None:
    key = raw[at : at + size]
    assert begins(raw, at, key) == raw.startswith(key, at)
    assert begins(raw, at, key + behind) == raw.startswith(key + behind, at)
    for i in range(len(key)):
        other = key[:i] + bytes((key[i] ^ 0x80,)) + key[i + 1 :]
        assert not begins(raw, at, other)


@given(st.binary(max_size=24), st.binary(max_size=24), st.data())
def test_alike_compares_what_is_there(part: bytes, other: bytes, data: st.DataObject) -> None:
    raw = part + data.draw(st.sampled_from([part, other]))
    size = data.draw(st.integers(0, len(part)))
    at = data.draw(st.integers(0, len(raw) + 2))
    assert alike(raw, 0, at, size) == raw.startswith(raw[:size], at)
    assert alike(raw, 0, 1 << 40, 1) is False


@given(st.integers(0, 65535), st.binary(max_size=9))
def test_u16_is_two_bytes_big_end_first(number: int, front: bytes) -> None:
    assert u16(front + number.to_bytes(2, "big") + b"x", len(front)) == number


@given(numbers, st.binary(max_size=9), st.binary(max_size=9))
def test_numbers_are_four_bytes_big_end_first(number: int, front: bytes, behind: bytes) -> None:
    out = BytesWriter()
    put_u32(out, number)
    written = out.getvalue()
    assert written == number.to_bytes(4, "big")
    assert u32(front + written + behind, len(front)) == number


@given(st.lists(numbers, min_size=1, max_size=9), st.data())
def test_places_are_the_numbers_of_an_array(values: list[int], data: st.DataObject) -> None:
    out = BytesWriter()
    for value in values:
        put_place(out, value)
    whole = unpacked(out.getvalue())
    assert whole == array("I", values)
    lo = data.draw(st.integers(0, len(values) - 1))
    hi = data.draw(st.integers(lo, len(values) - 1))
    pack = packed(whole, lo, hi)
    assert whole == array("I", values)
    assert [place(pack, i) for i in range(hi + 1 - lo)] == values[lo : hi + 1]


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_a_pair_is_an_array_of_its_own(first: int, second: int) -> None:
    one, other = pair(first, second), pair(second, first)
    assert (one, other) == (array("I", (first, second)), array("I", (second, first)))


@pytest.mark.parametrize("at", [1, 4, 5, 1 << 40])
def test_what_is_not_all_there_is_an_error(at: int) -> None:
    with pytest.raises(IndexError):
        u32(b"\0" * 4, at)
    with pytest.raises(IndexError):
        place(b"\0" * 4, at)
    assert not begins(b"\0" * 4, at, b"\0" * 4)
