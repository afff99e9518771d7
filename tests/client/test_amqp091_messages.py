"""Messages of the client in AMQP 0-9-1 and back, beside what the broker makes of them."""

from __future__ import annotations

from array import array
from datetime import UTC, datetime
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark.bridge.conversion.amqp10_to_amqp091 import Converter
from tallymark.client import BadMessage, Message
from tallymark.client.amqp091.messages import Incoming, Outgoing
from tallymark.wire.amqp091.methods import BasicDeliver
from tallymark.wire.amqp091.properties import (
    Properties,
    classify,
    decode_properties,
    encode_properties,
)
from tallymark.wire.amqp10.front import lenient_fronts
from tallymark.wire.amqp10.types import Symbol, UInt, ULong

DELIVER = BasicDeliver("c", 1, False, "ex", "key")

MESSAGES = [
    Message(b""),
    Message(b"x", durable=False),
    Message(b"x" * 300, priority=9, ttl_ms=60_000),
    Message(b"x", priority=4),
    Message(b"x", priority=4, durable=False),
    Message(
        b"body",
        message_id=UUID(int=7),
        user_id="me",
        to="/queues/q",
        subject="s",
        reply_to="/queues/an%20swer",
        correlation_id=ULong(5),
        content_type="text/plain",
        content_encoding="gzip",
        expires_at=datetime(2030, 1, 1, tzinfo=UTC),
        creation_time=datetime(2020, 1, 1, tzinfo=UTC),
        group_id="g",
        group_sequence=3,
        reply_to_group_id="r",
        application_properties={"a": 1, "b": "two", "c": None, "d": 1.5, "e": b"raw"},
        annotations={"x-cc": ["k1", "k2"], "x-own": UInt(7), "not-shown": 1},
    ),
    Message(b"x", message_id=b"\1\2", correlation_id="c" * 300),
    Message("text"),
    Message({"a": [1, "b"]}),
    Message([1, 2], kind="sequence"),
    Message(b"value", kind="value", footer={"f": 1}),
    Message(None),
]


@pytest.mark.parametrize("number", range(len(MESSAGES)))
def test_a_message_becomes_what_a_broker_makes_of_it(number: int) -> None:
    message = MESSAGES[number].encode()
    front = lenient_fronts(message, array("I", (0, len(message))), 0, 1, None)[0][2]
    expected = Converter().message(message, 0, len(message), front, front.durable)
    section, body, to = Outgoing().content(message)
    assert (decode_properties(section), body) == (decode_properties(expected[0]), expected[1])
    assert to == MESSAGES[number].to


@pytest.mark.parametrize("number", range(len(MESSAGES)))
def test_and_comes_back(number: int) -> None:
    sent = MESSAGES[number]
    section, body, _ = Outgoing().content(sent.encode())
    back = Message.parse(Incoming().sections(DELIVER, section, body))
    assert (back.body, back.kind) == (sent.body, sent.kind)
    assert (back.durable, back.ttl_ms) == (sent.durable, sent.ttl_ms)
    assert back.priority == sent.priority
    assert back.subject == sent.subject
    assert back.application_properties == sent.application_properties
    for name in ("message_id", "user_id", "to", "reply_to", "content_type", "content_encoding",
                 "group_id", "group_sequence", "creation_time", "expires_at"):  # fmt: skip
        assert getattr(back, name) == getattr(sent, name), name
    own = {k: v for k, v in sent.annotations.items() if str(k).startswith("x-")}
    told = {Symbol("x-exchange"): "ex", Symbol("x-routing-key"): "key"}
    assert back.annotations == own | told


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("priority", [None, 0, 4, 9])
def test_a_priority_is_there_where_it_was_said(priority: int | None, durable: bool) -> None:
    """Queues with priorities take none for 0: a 4 that is left out would be another one."""
    sent = Message(b"x", priority=priority, durable=durable)
    section, body, _ = Outgoing().content(sent.encode())
    assert decode_properties(section).priority == priority
    back = Message.parse(Incoming().sections(DELIVER, section, body))
    again, _, _ = Outgoing().content(back.replace(annotations={}).encode())
    assert again == section


def test_what_the_broker_says_of_a_delivery() -> None:
    properties = Properties(
        headers={"x-delivery-count": 3, "x-death": [{"queue": "q", "count": 1}], "n": 1},
        type="order",
        cluster_id="c",
    )
    method = BasicDeliver("c", 9, True, "", "q")
    message = Message.parse(Incoming().sections(method, encode_properties(properties), b"x"))
    assert message._parts.header.delivery_count == 3
    assert not message._parts.header.first_acquirer
    assert not message.durable
    assert message.application_properties == {"n": 1}
    assert message.annotations == {
        Symbol("x-death"): [{Symbol("queue"): "q", Symbol("count"): 1}],
        Symbol("x-exchange"): "",
        Symbol("x-routing-key"): "q",
        Symbol("x-basic-type"): "order",
        Symbol("x-basic-cluster-id"): "c",
    }


def test_a_type_that_promises_too_much() -> None:
    section = encode_properties(Properties(type="amqp-1.0"))
    incoming = Incoming()
    for body in (b"plain text", b"", b"\0\x53\x75\xa0\1x", b"\0\x53\x77\xa1\x09short"):
        message = Message.parse(incoming.sections(DELIVER, section, body))
        assert (message.body, message.kind) == (body, "data")
        assert message.annotations[Symbol("x-basic-type")] == "amqp-1.0"
    value = Message.parse(incoming.sections(DELIVER, section, b"\0\x53\x77\xa1\1v"))
    assert (value.body, value.kind) == ("v", "value")
    assert Symbol("x-basic-type") not in value.annotations


def test_an_expiration_that_is_none() -> None:
    for text, ttl_ms in (("60000", 60_000), ("4294967296", None), ("soon", None), ("", None)):
        section = encode_properties(Properties(expiration=text))
        message = Message.parse(Incoming().sections(DELIVER, section, b""))
        assert message.ttl_ms == ttl_ms
        shown = {} if ttl_ms else {Symbol("x-basic-expiration"): text}
        assert {k: v for k, v in message.annotations.items() if "basic" in str(k)} == shown


def test_messages_in_a_row_are_told_apart() -> None:
    """What is remembered of the last one is not taken for the next."""
    outgoing = Outgoing()
    incoming = Incoming()
    row = [*MESSAGES, *MESSAGES[::-1], *MESSAGES[:3], *MESSAGES[:3]]
    for message in row:
        section, body, to = outgoing.content(message.encode())
        assert (section, body, to) == Outgoing().content(message.encode())
        assert incoming.sections(DELIVER, section, body) == Incoming().sections(
            DELIVER, section, body
        )


def test_several_data_sections_are_joined() -> None:
    raw = b"\0\x53\x75\xa0\1a\0\x53\x75\xa0\1b"
    outgoing = Outgoing()
    outgoing.content(b"\0\x53\x75\xa0\1a")
    assert outgoing.content(raw)[1] == b"ab"


@given(st.binary(max_size=60))
def test_bytes_that_are_no_message_are_a_value_error(raw: bytes) -> None:
    try:
        section, body, _ = Outgoing().content(raw)
    except ValueError:
        return
    assert decode_properties(section)
    assert isinstance(body, bytes)


@given(st.binary(max_size=60), st.binary(max_size=30))
def test_any_properties_make_a_message_that_can_be_read(section: bytes, body: bytes) -> None:
    if classify(section) == 4:
        return
    message = Message.parse(Incoming().sections(DELIVER, section, body))
    try:
        assert message.annotations[Symbol("x-exchange")] == "ex"
        assert message.properties is not None
    except BadMessage as error:
        raise AssertionError(section) from error
