"""AMQP 1.0 messages as Spark reads them: properties as an AMQP 0-9-1 consumer sees them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallymark.engine.message import Payload
from tallymark.journal import packer
from tallymark.spark import schema
from tallymark.stored.formats import AMQP091, AMQP10, NSQ
from tallymark.wire.amqp10.codec import encode
from tallymark.wire.amqp10.sections import (
    Body,
    Data,
    Properties,
    Sequences,
    Value,
    encode_message,
)
from tallymark.wire.amqp10.types import Described, Symbol, UByte, UInt, ULong
from tests.bridge.conversion import SOME_UUID, URN, annotation_section, header, in_amqp091, message
from tests.bridge.conversion import payload as stored
from tests.spark.test_decode import cell, entry, leased, payload_of, rows_of
from tests.spark.test_nsq_cells import nsq, pub

LEADING_NULL = b"\0\x53\x77\x40"


def made(cells: list[bytes], first_id: int = 1) -> Payload:
    found = payload_of(cells, first_id)
    found.format = AMQP10
    return found


def read(*payloads: Payload, names: tuple[str, ...] = schema.ALL) -> list[dict[str, Any]]:
    """All their messages, in one block."""
    rows, at = [], 1
    for payload in payloads:
        rows += [entry(payload), leased(payload, 0, payload.count, at, at)]
        at += payload.count
    return rows_of(packer.pack(rows, 64), names)


def body_of(row: dict[str, Any]) -> bytes | None:
    return None if row["body"] is None else bytes(row["body"])


BODIES: list[tuple[Body | bytes, bytes, str | None]] = [
    (b"", b"", None),
    (b"one", b"one", None),
    (b"x" * 300, b"x" * 300, None),
    (Data(b"a", b"", b"b" * 256), b"a" + b"b" * 256, None),
    (Value(b"binary"), b"binary", None),
    (Value(b"b" * 256), b"b" * 256, None),
    (Value("text é"), "text é".encode(), None),
    (Value("t" * 300), b"t" * 300, None),
    (Value(Symbol("sym")), b"sym", None),
    (Value(7), encode_message(body=Value(7)), "amqp-1.0"),
    (Value(None), encode_message(body=Value(None)), "amqp-1.0"),
    (Sequences([1], ["x"]), encode_message(body=Sequences([1], ["x"])), "amqp-1.0"),
]


def test_the_numbers_of_formats_are_stored_and_stay() -> None:
    assert (AMQP091, NSQ, AMQP10) == (1, 2, 3)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(BODIES), st.integers(0, 2), st.booleans(), st.booleans()),
        min_size=1,
        max_size=12,
    )
)
def test_bodies_of_all_kinds_come_out(
    row: list[tuple[tuple[Body | bytes, bytes, str | None], int, bool, bool]],
) -> None:
    cells, expected = [], []
    for (content, body, type), kind, has_front, has_null in row:
        front = header(True) if has_front else b""
        front = (LEADING_NULL if has_null else b"") + front
        properties = (None, Properties(to="t"), Properties(message_id=b"\xff"))[kind]
        cells.append(message(properties, {"k": 1} if kind else None, content, front))
        expected.append((body, type, False))
    found = read(made(cells))
    assert [(body_of(each), each["type"], each["malformed"]) for each in found] == expected


def test_properties_are_in_their_columns() -> None:
    properties = Properties(
        message_id=SOME_UUID,
        user_id=b"guest",
        to="t",
        subject="s",
        reply_to="/queues/a%20b",
        correlation_id=ULong(7),
        content_type="text/plain",
        content_encoding="gzip",
        creation_time=1_700_000_000_999,
        group_id="app",
    )
    front = header(False, UByte(3), UInt(60_000)) + annotation_section(
        {Symbol("x-a"): [1, "b"], Symbol("x-basic-type"): "order", Symbol("x-opt-deaths"): 1}
    )
    [row] = read(made([message(properties, {"k": True, "n": 5}, b"body", front)]))
    assert {
        name: row[name]
        for name in ("content_type", "content_encoding", "correlation_id", "reply_to", "message_id")
    } == {
        "content_type": "text/plain",
        "content_encoding": "gzip",
        "correlation_id": "7",
        "reply_to": "a b",
        "message_id": URN,
    }
    assert (row["delivery_mode"], row["priority"], row["expiration"]) == (1, 3, "60000")
    assert (row["type"], row["user_id"], row["app_id"]) == ("order", "guest", "app")
    assert row["app_timestamp"] == datetime.fromtimestamp(1_700_000_000, UTC)
    table = dict(row["headers"])
    assert json.loads(table.pop("x-a")) == [1, "b"]
    assert table == {"k": "true", "n": "5", "x-to": "t", "x-subject": "s"}
    assert row["malformed"] is False


def test_a_message_that_says_nothing() -> None:
    [row] = read(made([message()]))
    assert row["delivery_mode"] == 2  # not said is durable, as everywhere
    said = {"delivery_mode", "body", "malformed"}
    of_content = {"content_type", "headers", "priority", "expiration", "message_id", "type"}
    assert {row[name] for name in of_content - said} == {None}


TORN = [
    b"?",
    b"\0\x53\x75\xa0\x05abc",
    b"\0\x53\x75\xb0\0\0\xff\xff" + b"x" * 10,
    b"\0\x53\x70\xc0\xff",
    b"\0\x53\x73\xd0\xff\xff\xff\xff",
    encode_message(body=b"a") + encode_message(body=Value(1)),
    encode_message(body=b"a") + b"?",
]


def test_what_is_no_message_is_malformed_and_has_no_body() -> None:
    good = message(Properties(message_id="m"), body=b"good")
    cells = []
    for torn in TORN:
        cells += [good, torn]
    found = read(made([*cells, good]))
    for i, row in enumerate(found):
        if i % 2:
            assert (row["malformed"], row["body"], row["message_id"]) == (True, None, None), i
            assert row["delivery_mode"] is None
        else:
            assert (row["malformed"], body_of(row), row["message_id"]) == (False, b"good", "m"), i


def test_a_message_of_a_header_only_has_an_empty_body() -> None:
    [row] = read(made([header(True)]))
    assert (body_of(row), row["malformed"]) == (b"", False)


@pytest.mark.parametrize(
    "section",
    [
        b"\0\x53\x73\xc0\x03\x01\xa1\x09",
        b"\0\x53\x74\xc1\x03\x01\xa1\x00",
        b"\0\x53\x72\xc1\x03\x04\x40\x40",
        header("no"),
    ],
)
def test_properties_that_cannot_be_read_are_said_and_the_body_is_there(section: bytes) -> None:
    good = message(Properties(message_id="m"), body=b"good")
    found = read(made([good, section + message(body=b"body"), good]))
    assert [row["malformed"] for row in found] == [False, True, False]
    assert [body_of(row) for row in found] == [b"good", b"body", b"good"]
    assert found[1]["message_id"] is None


def test_descriptors_of_other_forms_are_read() -> None:
    cells = [
        encode(Described(Symbol("amqp:header:list"), [True, UByte(9)]))
        + encode(Described(Symbol("amqp:properties:list"), ["m"]))
        + encode(Described(Symbol("amqp:data:binary"), b"body")),
        b"\0\x80" + (0x77).to_bytes(8, "big") + encode("text"),
    ]
    first, second = read(made(cells))
    assert (first["priority"], first["message_id"], body_of(first)) == (9, "m", b"body")
    assert (body_of(second), second["type"]) == (b"text", None)


def test_three_formats_in_one_block() -> None:
    found = read(
        made([message(Properties(message_id="a"), body=b"1")]),
        nsq([pub(b"2")], 2),
        payload_of([cell(b"3")], 3),
        made([message(body=Value("4")), message(body=b"5")], 4),
    )
    assert [body_of(row) for row in found] == [b"1", b"2", b"3", b"4", b"5"]
    assert [row["message_id"] for row in found] == ["a", None, None, None, None]
    assert {row["malformed"] for row in found} == {False}


@pytest.mark.parametrize(
    "names", [("body",), ("malformed",), ("headers",), ("sequence",), ("message_id", "type")]
)
def test_columns_can_be_chosen(names: tuple[str, ...]) -> None:
    cells = [message(Properties(message_id="m"), {"k": 1}, Value(7)), message(), TORN[2]]
    whole = read(made(cells), nsq([pub(b"x")], 4))
    for row, expected in zip(
        read(made(cells), nsq([pub(b"x")], 4), names=names), whole, strict=True
    ):
        assert row == {name: expected[name] for name in names}


@settings(deadline=None)
@given(st.lists(st.binary(max_size=60), min_size=1, max_size=6), st.binary(max_size=20))
def test_any_bytes_are_rows(cells: list[bytes], rest: bytes) -> None:
    cells = [*cells, header(True) + rest, message(body=rest), b"\0\x53\x77" + rest]
    found = read(made(cells))
    assert len(found) == len(cells)
    assert body_of(found[-2]) == rest


@settings(deadline=None)
@given(st.data())
def test_rows_agree_with_what_an_amqp_0_9_1_consumer_sees(data: st.DataObject) -> None:
    texts = st.none() | st.text(max_size=8)
    cells = [
        message(
            Properties(
                message_id=data.draw(texts),
                correlation_id=data.draw(texts),
                group_id=data.draw(texts),
            ),
            data.draw(st.none() | st.dictionaries(st.text(max_size=4), st.text(max_size=4))),  # type: ignore[arg-type]
            data.draw(st.binary(max_size=10)),
            data.draw(st.sampled_from([b"", header(True), header(None, UByte(7))])),
        )
        for _ in range(data.draw(st.integers(1, 6)))
    ]
    found = read(made(cells))
    for row, (properties, body) in zip(found, in_amqp091(stored(3, *cells)), strict=True):
        assert body_of(row) == body
        assert row["message_id"] == properties.message_id
        assert row["correlation_id"] == properties.correlation_id
        assert row["app_id"] == properties.app_id
        assert row["priority"] == properties.priority
        assert dict(row["headers"] or []) == (properties.headers or {})
