"""What queues are told about AMQP 1.0 messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark.bridge.amqp10.format import Amqp10Format
from tallymark.engine.exchange import property_key
from tallymark.wire.amqp091 import fields
from tallymark.wire.amqp091.fields import WireInt
from tallymark.wire.amqp10.codec import encode
from tallymark.wire.amqp10.sections import (
    Body,
    Data,
    Properties,
    Sequences,
    Value,
    encode_message,
)
from tallymark.wire.amqp10.types import (
    Array,
    Described,
    Float,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
)
from tests.bridge.conversion import (
    SOME_UUID,
    URN,
    annotation_section,
    header,
    message,
    payload,
    same,
)

FORMAT = Amqp10Format()
TORN = [b"?", b"", b"\0\x53\x70\xc0\xff", header("no") + message(), b"\0\x53\x75\xa0\x09x"]


def test_priorities_are_the_headers_and_else_the_standards_default() -> None:
    row = [
        message(),
        message(front=header(True)),
        message(front=header(True, UByte(0))),
        message(front=header(True, UByte(0))),
        message(front=header(None, UByte(255))),
        message(front=annotation_section({Symbol("x-a"): 1})),
    ]
    assert FORMAT.priorities(payload(3, *row), 0, 6) == bytes((4, 4, 0, 0, 255, 4))
    assert FORMAT.priorities(payload(3, *row), 3, 5) == bytes((0, 255))


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (message(), ""),
        (message(Properties(message_id="m")), "m"),
        (message(Properties(message_id="")), ""),
        (message(Properties(message_id=SOME_UUID)), URN),
        (message(Properties(message_id=ULong(2**64 - 1))), str(2**64 - 1)),
        (message(Properties(message_id=b"\xff")), "\udcff"),
        (message(Properties(message_id="m"), {"x-deduplication-header": "d"}), "d"),
        (message(Properties(message_id="m"), {"x-deduplication-header": ULong(5)}), "5"),
        (message(Properties(message_id="m"), {"x-deduplication-header": Float(1.5)}), "1.5"),
        (message(Properties(message_id="m"), {"x-deduplication-header": True}), "m"),
        (message(Properties(message_id="m"), {"k": "x-deduplication-header"}), "m"),
        (message(Properties(message_id="m"),
                 front=annotation_section({Symbol("x-deduplication-header"): "d"})), "d"),
    ],
)  # fmt: skip
def test_ids_are_the_deduplication_header_or_the_message_id(raw: bytes, expected: str) -> None:
    stored = payload(3, message(), raw, message())
    assert FORMAT.ids(stored, 0, 3) == ["", expected, ""]
    assert FORMAT.ids(stored, 1, 2) == [expected]


def test_long_ids_are_told_apart_by_their_hash() -> None:
    rows = [message(Properties(message_id="m" * size)) for size in (255, 256, 257)]
    rows.append(message(application={"x-deduplication-header": "m" * 256}))
    first, second, third, fourth = FORMAT.ids(payload(3, *rows), 0, 4)
    assert first == "m" * 255
    assert len(second) == len(third) == 64
    assert second != third
    assert second == fourth


def test_headers_are_application_properties_and_x_annotations() -> None:
    known = {
        Symbol("x-tag"): "a",
        Symbol("other"): "b",
        ULong(1): "c",
        Symbol("x-opt-deaths"): "forged",
        Symbol("x-exchange"): "forged",
        "x-k": "annotation",
    }
    raw = message(
        Properties(message_id=ULong(7), correlation_id=b"\xff", creation_time=1999),
        {"k": UInt(1), "text": Symbol("s"), "time": Timestamp(5999), "x-k": "application"},
        front=header(True) + annotation_section(known),
    )
    assert same(
        dict(sorted(FORMAT.headers(payload(3, message(), raw), 1).items())),
        dict(
            sorted(
                {
                    "x-tag": "a",
                    "x-k": "application",
                    "k": WireInt(1, "i"),
                    "text": "s",
                    "time": fields.Timestamp(5),
                    property_key("message_id"): "7",
                    property_key("correlation_id"): "\udcff",
                    property_key("timestamp"): fields.Timestamp(1),
                }.items()
            )
        ),
    )
    assert FORMAT.headers(payload(3, message(), raw), 0) == {}


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0, 0), (UByte(255), 255), (256, -1), (-1, -1), (True, -1), ("5", -1), (1.0, -1)],
)
def test_dl_d1_the_publisher_says_how_many_deaths_are_left(value: object, expected: int) -> None:
    raw = message(front=annotation_section({Symbol("x-opt-dead-letter-hop-limit"): value}))
    assert FORMAT.hop_limit(payload(3, message(), raw), 1) == expected
    assert FORMAT.hop_limit(payload(3, message(), raw), 0) == -1


BODIES: list[tuple[Body | bytes, int]] = [
    (b"", 0),
    (b"x" * 300, 300),
    (Data(b"a", b"", b"b" * 256), 257),
    (Value(b"abc"), len(encode_message(body=Value(b"abc")))),
    (Sequences([1], [2]), len(encode_message(body=Sequences([1], [2])))),
]


@given(st.lists(st.sampled_from(BODIES), max_size=6), st.booleans())
def test_dl_6_bodies_are_weighed_without_the_rest(
    row: list[tuple[Body | bytes, int]], has_front: bool
) -> None:
    front = header(True) if has_front else b""
    stored = payload(3, *[message(Properties(to="t"), {"k": 1}, each, front) for each, _ in row])
    totals = [0]
    for _, size in row:
        totals.append(totals[-1] + size)
    assert FORMAT.bodies(stored).tolist() == totals


def test_a_footer_behind_data_weighs_nothing_and_no_body_neither() -> None:
    with_footer = encode_message(body=b"abc", footer={Symbol("x-f"): 1})
    assert FORMAT.bodies(payload(3, with_footer, header(True), b"")).tolist() == [0, 3, 3, 3]


def test_what_cannot_be_read_says_nothing() -> None:
    stored = payload(3, *TORN)
    assert FORMAT.priorities(stored, 0, len(TORN)) == bytes((4,)) * len(TORN)
    assert FORMAT.ids(stored, 0, len(TORN)) == [""] * len(TORN)
    for i in range(len(TORN)):
        assert FORMAT.headers(stored, i) == {}
        assert FORMAT.hop_limit(stored, i) == -1
    assert len(FORMAT.bodies(stored)) == len(TORN) + 1


@given(st.binary(max_size=60), st.binary(max_size=30))
def test_nothing_raises_whatever_a_publisher_wrote(section: bytes, rest: bytes) -> None:
    torn = annotation_section(
        {Symbol("x-opt-dead-letter-hop-limit"): 5, Symbol("x-k"): Array([1], 0x55)}
    )
    for raw in (section, torn + section, header(True) + section + message(), section + rest):
        stored = payload(3, raw)
        assert len(FORMAT.priorities(stored, 0, 1)) == 1
        assert len(FORMAT.ids(stored, 0, 1)) == 1
        assert isinstance(FORMAT.headers(stored, 0), dict)
        assert -1 <= FORMAT.hop_limit(stored, 0) <= 255
        assert FORMAT.bodies(stored)[1] <= len(raw)


@pytest.mark.parametrize("name", ["x-deduplication-header", "x-opt-dead-letter-hop-limit", "x-k"])
def test_an_annotation_with_a_torn_inside_says_nothing(name: str) -> None:
    """Its size is right, so that it is found; what is in it is no map."""
    value = b"\xc1\x03\x03\x41\x41"
    content = encode(Symbol(name)) + value
    raw = b"\0\x53\x72\xc1" + bytes((len(content) + 1, 2)) + content + message()
    stored = payload(3, raw)
    assert FORMAT.ids(stored, 0, 1) == [""]
    assert FORMAT.headers(stored, 0) == {}
    assert FORMAT.hop_limit(stored, 0) == -1


def test_described_values_match_as_what_they_describe() -> None:
    raw = message(application={"k": Described(Symbol("d"), "v")})
    assert FORMAT.headers(payload(3, raw), 0) == {"k": "v"}
