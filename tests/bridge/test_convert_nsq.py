"""NSQ messages for AMQP readers, and theirs for NSQ clients: the body, whatever it is made of."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark.bridge.conversion.amqp091_to_nsq import bodies as from_amqp091
from tallymark.bridge.conversion.amqp10_to_nsq import bodies as from_amqp10
from tallymark.bridge.conversion.nsq_to_amqp091 import as_amqp091
from tallymark.bridge.conversion.nsq_to_amqp10 import cells
from tallymark.engine.message import Payload, Slice
from tallymark.stored.annotations import Route
from tallymark.stored.formats import NSQ
from tallymark.wire.amqp091.frames import body, property_section
from tallymark.wire.amqp091.properties import Properties as BasicProperties
from tallymark.wire.amqp10.sections import (
    Body,
    Data,
    Properties,
    Sequences,
    Value,
    encode_message,
)
from tallymark.wire.amqp10.types import Char, Described, Symbol
from tallymark.wire.nsq.kernel import make_cells
from tests.bridge.conversion import header, message, payload, values
from tests.support.amqp091 import publish


def stored(*contents: bytes) -> Payload:
    raw, cuts = make_cells(list(contents))
    return Payload(NSQ, raw, cuts, Route("t", "t"), None, 1, 1, True, len(raw))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", b""),
        (b"one", b"one"),
        (b"x" * 300, b"x" * 300),
        (Data(b"a", b"", b"b" * 256), b"a" + b"b" * 256),
        (Value(b"binary"), b"binary"),
        (Value("text é"), "text é".encode()),
        (Value(Symbol("sym")), b"sym"),
        (Value(Char("é")), "é".encode()),
        (Value(7), encode_message(body=Value(7))),
        (Value(None), encode_message(body=Value(None))),
        (Value({"k": "v"}), encode_message(body=Value({"k": "v"}))),
        (Value(Described(1, "text")), encode_message(body=Value(Described(1, "text")))),
        (Sequences([1], ["x"]), encode_message(body=Sequences([1], ["x"]))),
    ],
)
def test_of_an_amqp_1_0_message_the_body(content: Body | bytes, expected: bytes) -> None:
    one = message(Properties(to="t"), {"k": 1}, content, header(True))
    found = payload(3, one, b"", one, b"\0\x53\x77\x40" + one)
    assert found.raw is not None
    assert from_amqp10(found.raw, found.cuts, 0, 4) == [expected, b"", expected, expected]
    assert from_amqp10(found.raw, found.cuts, 2, 3) == [expected]


def test_a_footer_goes_with_a_value_and_not_with_data() -> None:
    value = encode_message(body=Value(7), footer={Symbol("x-f"): 1})
    found = payload(3, value, encode_message(body=b"d", footer={Symbol("x-f"): 1}))
    assert found.raw is not None
    assert from_amqp10(found.raw, found.cuts, 0, 2) == [value, b"d"]


@given(st.lists(st.binary(max_size=40), max_size=4))
def test_what_nobody_can_read_is_handed_over_whole(row: list[bytes]) -> None:
    found = payload(3, *row, b"\0\x53\x77\xa1\x02\xff\xff")
    assert found.raw is not None
    assert from_amqp10(found.raw, found.cuts, 0, found.count)[-1] == b"\0\x53\x77\xa1\x02\xff\xff"


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=4), st.data())
def test_from_nsq_to_amqp_1_0_and_back(contents: list[bytes], data: st.DataObject) -> None:
    lo = data.draw(st.integers(0, len(contents) - 1))
    found = cells(Slice(stored(*contents), lo, len(contents), 1, 0))
    count = len(contents) - lo
    assert [(first, end) for first, end, _ in found.stretches] == [(0, count)]
    assert from_amqp10(found.raw, found.cuts, 0, count) == contents[lo:]
    assert [each.value for each in values(found.raw)] == contents[lo:]  # type: ignore[attr-defined]


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=4), st.data())
def test_from_nsq_to_amqp_0_9_1_and_back(contents: list[bytes], data: st.DataObject) -> None:
    lo = data.draw(st.integers(0, len(contents) - 1))
    piece = as_amqp091(Slice(stored(*contents), lo, len(contents), 1, 0))
    raw, cuts = piece.payload.raw, piece.payload.cuts
    assert raw is not None
    assert from_amqp091(raw, cuts, 0, len(piece)) == contents[lo:]
    assert body(raw[: cuts[1]]) == contents[lo]
    assert property_section(raw[: cuts[1]]) == b"\0\0"


@pytest.mark.parametrize("frame_max", [4096, 131_072])
def test_of_an_amqp_0_9_1_message_the_body_from_all_its_frames(frame_max: int) -> None:
    properties = BasicProperties(headers={"k": "v"})
    row = [
        publish(1, content, properties=properties, frame_max=frame_max)
        for content in (b"", b"x" * 10_000, b"y")
    ]
    found = payload(1, *row)
    assert found.raw is not None
    assert from_amqp091(found.raw, found.cuts, 0, 3) == [b"", b"x" * 10_000, b"y"]
