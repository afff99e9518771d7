"""Messages: building, reading, passing on."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from tallymark.client import BadMessage, Message
from tallymark.client.outcomes import REJECTED, modified, rejected
from tallymark.wire.amqp10.errors import DecodeError
from tallymark.wire.amqp10.outcomes import Error
from tallymark.wire.amqp10.sections import Data, Properties, Sequences, encode_message
from tallymark.wire.amqp10.types import Described, Float, Symbol, Timestamp, UInt, ULong
from tests.support.amqp10_client import receiver_of, session_of
from tests.support.amqp10_peer import Peer
from tests.support.virtual_loop import virtual

NOON = datetime(2026, 11, 20, 12, 0, 0, 250_000, UTC)


def again(message: Message) -> Message:
    return Message.parse(message.encode())


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"bytes", "data"),
        (b"", "data"),
        (bytearray(b"b"), "data"),
        ("text", "value"),
        (17, "value"),
        (2.5, "value"),
        (True, "value"),
        (None, "value"),
        (UUID(int=7), "value"),
        ({"a": [1, {"b": b"c"}]}, "value"),
        ([1, "two", b"three"], "value"),
        (Timestamp(5), "value"),
        (Described(Symbol("x:y"), 1), "value"),
    ],
)
def test_bodies(body: Any, kind: str) -> None:
    found = again(Message(body))
    assert (found.body, found.kind) == (body, kind)


def test_the_body_sections_may_be_chosen() -> None:
    assert (again(Message([1, 2], kind="sequence")).body) == [1, 2]
    assert again(Message([1, 2], kind="sequence")).kind == "sequence"
    assert again(Message(b"x", kind="value")).kind == "value"
    with pytest.raises(
        ValueError, match="kind='text', expected one of 'data', 'value', 'sequence'"
    ):
        Message("x", kind="text")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="data of type str, expected bytes"):
        Message("x", kind="data").encode()
    with pytest.raises(TypeError, match="a sequence of type int, expected a list"):
        Message(1, kind="sequence").encode()


def test_several_body_sections_are_one_body() -> None:
    assert Message.parse(encode_message(body=Data(b"one ", b"two"))).body == b"one two"
    assert Message.parse(encode_message(body=Sequences([1, 2], [3]))).body == [1, 2, 3]
    empty = Message.parse(b"")
    assert (empty.body, empty.kind) == (None, "")


def test_text() -> None:
    assert again(Message("ü")).text == "ü"
    assert again(Message("ü".encode())).text == "ü"
    with pytest.raises(TypeError, match="a body of type dict, expected text"):
        _ = Message({}).text
    with pytest.raises(UnicodeDecodeError):
        _ = Message(b"\xff").text


FULL: dict[str, Any] = {
    "message_id": "m1",
    "user_id": b"guest",
    "to": "/queues/q",
    "subject": "s",
    "reply_to": "/queues/r",
    "correlation_id": UUID(int=9),
    "content_type": "text/plain",
    "content_encoding": "gzip",
    "creation_time": NOON,
    "group_id": "g",
    "group_sequence": 4294967295,
    "reply_to_group_id": "rg",
    "durable": False,
    "priority": 9,
    "ttl_ms": 60_000,
    "application_properties": {"n": 1, "f": Float(0.5), "traceparent": "00-ab-cd-01"},
    "annotations": {"x-opt-key": "k"},
    "delivery_annotations": {"x-hop": UInt(1)},
    "footer": {"x-sum": b"\1"},
}


def test_every_field_comes_through() -> None:
    message = again(Message("b", expires_at=NOON + timedelta(hours=1), **FULL))
    for name, value in FULL.items():
        assert getattr(message, name) == value, name
    assert message.expires_at == NOON + timedelta(hours=1)
    assert message.properties.absolute_expiry_time == int(NOON.timestamp() * 1000) + 3_600_000
    assert type(next(iter(message.annotations))) is Symbol
    assert again(Message("b", user_id="guest")).user_id == b"guest"
    assert again(Message("b", message_id=5)).message_id == ULong(5)


def test_what_was_not_said_has_its_default() -> None:
    message = Message.parse(encode_message(body=b"x"))
    for name in FULL.keys() - {"durable", "priority"}:
        assert not getattr(message, name), name
    assert (message.durable, message.priority, message.expires_at) == (False, 4, None)
    assert Message(b"x").durable  # what we send, is durable unless we say otherwise


def test_replace_keeps_times_that_datetime_cannot_hold() -> None:
    ends = Timestamp(253_402_300_800_000)  # the year 10000
    properties = Properties(absolute_expiry_time=ends, creation_time=Timestamp(-(1 << 62)))
    old = Message.parse(encode_message(properties=properties, body="x"))
    assert old.expires_at is None
    kept = again(old.replace(subject="s"))._parts.properties
    assert (kept.absolute_expiry_time, kept.creation_time) == (ends, -(1 << 62))
    new = again(old.replace(expires_at=NOON, creation_time=None))
    assert (new.expires_at, new._parts.properties.creation_time) == (NOON, None)


def test_a_transient_message_says_so() -> None:
    """Brokers take a header without the field for durable."""
    assert Message(b"x", durable=False).encode().startswith(b"\0Sp\xc0\2\1B")
    message = again(Message(b"x", durable=False, ttl_ms=300, priority=0))
    assert (message.durable, message.ttl_ms, message.priority) == (False, 300, 0)


def test_replace_makes_another_message() -> None:
    old = Message("b", expires_at=NOON, **FULL)
    new = again(again(old).replace(subject="t", application_properties={"n": 2}))
    assert (new.subject, new.application_properties, new.body) == ("t", {"n": 2}, "b")
    for name in FULL.keys() - {"subject", "application_properties"}:
        assert getattr(new, name) == FULL[name], name
    assert new.expires_at == NOON
    assert old.subject == "s"
    assert again(old.replace(b"other")).body == b"other"
    assert again(old.replace(b"other")).kind == "data"
    assert again(Message([1], kind="sequence").replace(subject="x")).kind == "sequence"
    with pytest.raises(TypeError, match="colour"):
        old.replace(colour="red")


def test_what_does_not_fit_is_refused_when_it_is_encoded() -> None:
    for bad in (
        Message(object()),
        Message("x", priority=256),
        Message("x", ttl_ms=-1),
        Message("x", group_sequence=1 << 32),
        Message("x", application_properties={"a": object()}),
    ):
        with pytest.raises((ValueError, TypeError)):
            bad.encode()
    with pytest.raises(ValueError, match="without a time zone"):
        Message("x", creation_time=datetime(2026, 1, 1))  # noqa: DTZ001


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("message_id", 1.5, "a whole number, a UUID, bytes, text or None"),
        ("correlation_id", ["m1"], "a whole number, a UUID, bytes, text or None"),
        ("user_id", 7, "bytes, text or None"),
        ("to", b"/queues/q", "text"),
        ("subject", 5, "text"),
        ("reply_to", UUID(int=1), "text"),
        ("content_type", b"text/plain", "text"),
        ("content_encoding", True, "text"),
        ("group_id", 1, "text"),
        ("group_sequence", "1", "a whole number"),
        ("reply_to_group_id", 1, "text"),
        ("ttl_ms", 1.5, "a whole number"),
        ("priority", "5", "a whole number or None"),
    ],
)
def test_a_field_of_a_wrong_type_is_named_with_its_value(
    field: str, value: object, expected: str
) -> None:
    change: dict[str, Any] = {field: value}
    for make in (partial(Message, "x"), again(Message("x")).replace):
        with pytest.raises(TypeError) as raised:
            make(**change)
        assert str(raised.value).startswith(f"{field}={value!r}, expected {expected}")


def test_what_cannot_be_decoded_is_an_error_where_it_is_asked_for() -> None:
    message = Message.parse(b"\0Su\xa0\5hell")  # cut off
    with pytest.raises(BadMessage, match="amqp:decode-error"):
        _ = message.body
    half = Message.parse(b"\0Sr\xa0\1x" + b"\0Su\xa0\1y")  # annotations that are no map
    assert half.body == b"y"
    with pytest.raises(BadMessage) as raised:
        _ = half.annotations
    assert isinstance(raised.value.__cause__, DecodeError)


@virtual
async def test_a_received_message_is_passed_on_untouched() -> None:
    """Trace context and everything else: byte for byte."""
    peer = Peer()
    raw = Message("b", expires_at=NOON, **FULL).encode()
    peer.put("q", raw)
    async with session_of(peer) as session:
        receiver, sender = await session.receiver("q"), await session.sender("t")
        async with await receiver.receive() as message:
            assert message.application_properties["traceparent"] == "00-ab-cd-01"
            await sender.send(message)
            await sender.send(message.replace(subject="changed"))
    assert peer.received[0] == raw
    changed = Message.parse(peer.received[1])
    assert changed.application_properties == FULL["application_properties"]


@virtual
async def test_a_message_that_cannot_be_decoded_can_still_be_settled() -> None:
    peer = Peer()
    peer.put("q", b"\0Su\xa0\5hell", b"good")
    async with receiver_of(peer) as receiver:
        message = await receiver.receive()
        with pytest.raises(BadMessage):
            _ = message.body
        await message.reject("undecodable")
        await (await receiver.receive()).accept()
        assert next(outcome for *_, outcome in peer.ranges()) == "rejected"


def test_outcomes_are_made_of_what_is_at_hand() -> None:
    assert rejected(None) is REJECTED
    assert rejected("no").error == Error("amqp:internal-error", "no")
    error = Error("amqp:not-allowed", "x")
    assert rejected(error).error is error
    made = rejected(ValueError("y" * 5000)).error
    assert made is not None
    assert made.description is not None
    assert made.description.startswith("ValueError: yyy")
    assert len(made.description) == 1000
    changes = modified(True, False, {"x-why": "busy"}).message_annotations
    assert changes == {"x-why": "busy"}
    assert modified(False, True, None).message_annotations is None


def test_times_beyond_what_datetime_knows_are_none() -> None:
    raw = encode_message(properties=Message("x", expires_at=NOON).properties, body=b"")
    assert Message.parse(raw).expires_at == NOON
    far = Message("x").properties
    far.absolute_expiry_time = 1 << 62
    assert Message.parse(encode_message(properties=far, body=b"")).expires_at is None
