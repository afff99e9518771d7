"""The functions of wire/ in C, where they were built. What they give is tested as that of their
twins; here is what they refuse, and the one that has no twin."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

native = pytest.importorskip("tallymark.wire.native", reason="nothing was compiled")

RAW = b"0123456789"
CUTS = array("I", [0, 4, 10])


@pytest.mark.parametrize(
    ("cuts", "lo", "hi"),
    [
        (CUTS, 0, 3),
        (CUTS, -1, 2),
        (CUTS, 2, 1),
        (array("I", [0, 4, 11]), 0, 2),
        (array("I", [4, 0, 10]), 0, 2),
        (array("Q", [0, 4, 10]), 0, 2),
        (array("I"), 0, 0),
    ],
)
def test_cuts_that_are_not_of_the_bytes_are_refused(cuts: array[int], lo: int, hi: int) -> None:
    with pytest.raises(ValueError, match=r"message"):
        native.encode_deliveries(b"p", b"s", 1, RAW, cuts, lo, hi, 0)
    with pytest.raises(ValueError, match=r"message"):
        native.encode_mixed_deliveries([b"p"] * 2, [b"s"] * 2, 1, RAW, cuts, lo, hi)
    with pytest.raises(ValueError, match=r"message"):
        native.encode_transfers(b"b", b"t", b"e", 1, 1, RAW, cuts, lo, hi, 0, 1000)


def test_a_message_that_is_shorter_than_what_is_left_out_of_it_is_refused() -> None:
    assert native.encode_deliveries(b"p", b"s", 1, RAW, CUTS, 0, 1, 4) == b"p\0\0\0\0\0\0\0\1s"
    with pytest.raises(ValueError, match="message 0 has 4 bytes, expected 5 or more"):
        native.encode_deliveries(b"p", b"s", 1, RAW, CUTS, 0, 2, 5)
    with pytest.raises(ValueError, match="message 0 has 4 bytes, expected 5 or more"):
        native.encode_transfers(b"b", b"t", b"e", 1, 1, RAW, CUTS, 0, 2, 5, 1000)
    frame = b"\1\0\1\0\0\0\2ab\xce"
    one = array("I", [0, len(frame)])
    assert native.encode_mixed_deliveries([b"p"], [b"s"], 1, frame, one, 0, 1)[-1:] == b"s"
    for cut in (4, len(frame) - 1):
        with pytest.raises(ValueError, match="message 0 has"):
            native.encode_mixed_deliveries([b"p"], [b"s"], 1, frame, array("I", [0, cut]), 0, 1)
    with pytest.raises(ValueError, match="1 prefixes and 2 suffixes, expected 1"):
        native.encode_mixed_deliveries([b"p"], [b"s"] * 2, 1, frame, one, 0, 1)


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (native.encode_deliveries, (b"p", b"s", 1, bytearray(RAW), CUTS, 0, 2, 0)),
        (native.encode_deliveries, ("p", b"s", 1, RAW, CUTS, 0, 2, 0)),
        (native.encode_deliveries, (b"p", b"s", "1", RAW, CUTS, 0, 2, 0)),
        (native.encode_deliveries, (b"p", b"s", 1, RAW, [0, 4, 10], 0, 2, 0)),
        (native.encode_deliveries, (b"p", b"s", 1)),
        (native.encode_mixed_deliveries, ((b"p", b"p"), [b"s"] * 2, 1, RAW, CUTS, 0, 2)),
        (native.encode_mixed_deliveries, ([None, b"p"], [b"s"] * 2, 1, RAW, CUTS, 0, 2)),
        (native.encode_transfers, (b"b", None, b"e", 1, 1, RAW, CUTS, 0, 2, 0, 1000)),
        (native.count_units, (RAW, 0, 10, "1", 2)),
    ],
)
def test_what_is_of_another_type_is_refused(function: object, arguments: Sequence[object]) -> None:
    assert callable(function)
    with pytest.raises(TypeError):
        function(*arguments)


@given(
    st.lists(st.sampled_from([b"ab-\xce", b"ab+\xce", b"ab-\x00", b"ax-\xce"]), max_size=9),
    st.binary(max_size=5),
    st.binary(max_size=3),
    st.integers(0, 8),
)
def test_units_are_counted_up_to_the_first_that_is_none(
    units: list[bytes], before: bytes, behind: bytes, less: int
) -> None:
    data = before + b"".join(units) + behind
    end = max(len(before), len(data) - less)
    expected = 0
    while (one := data[len(before) + 4 * expected : end][:4])[-1:] == b"\xce" and len(one) == 4:
        if not one.startswith(b"ab"):
            break
        expected += 1
    assert native.count_units(data, len(before), end, b"ab", 4) == expected


@pytest.mark.parametrize(
    ("pos", "end", "unit", "size"),
    [(-1, 4, b"a", 2), (0, 11, b"a", 2), (0, 4, b"abc", 2), (0, 4, b"", 0)],
)
def test_units_that_cannot_be_are_refused(pos: int, end: int, unit: bytes, size: int) -> None:
    with pytest.raises(ValueError, match="units of"):
        native.count_units(RAW, pos, end, unit, size)
