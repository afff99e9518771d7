"""Property filters: fields and values, modifiers, types."""

from __future__ import annotations

from uuid import UUID

import pytest

from tallymark.bridge.filters.attach import APPLICATION_PROPERTIES_FILTER, PROPERTIES_FILTER
from tallymark.bridge.filters.properties import MOST_ENTRIES
from tallymark.wire.amqp10.sections import Properties
from tallymark.wire.amqp10.types import Float, Symbol, Timestamp, UByte, UInt, ULong
from tests.bridge.filter_rig import asked, made, message, refused

ID = UUID(int=7)
FULL = message(
    {
        "color": "blue",
        "kind": Symbol("round"),
        "size": UByte(5),
        "ratio": 1.5,
        "paid": True,
        "raw": b"\x01\x02\x03",
        "id": ID,
        "amp": "&p:x",
        "one": "&",
        "nil": None,
        "empty": "",
    },
    Properties(
        message_id="order-17-eu",
        user_id=b"guest",
        to="/queues/q",
        subject="new order",
        correlation_id=ULong(9),
        content_type=Symbol("text/plain"),
        creation_time=Timestamp(1000),
        group_id="g",
        group_sequence=UInt(3),
    ),
)


def props(**wanted: object) -> bool:
    fields = {Symbol(name.replace("_", "-")): value for name, value in wanted.items()}
    return asked(made(PROPERTIES_FILTER, fields), FULL)


def app(wanted: dict[str, object]) -> bool:
    return asked(made(APPLICATION_PROPERTIES_FILTER, wanted), FULL)


def test_all_fields_must_match() -> None:
    assert props(message_id="order-17-eu", subject="new order", group_sequence=UInt(3))
    assert not props(message_id="order-17-eu", subject="old order", group_sequence=UInt(3))
    assert app({"color": "blue", "size": 5, "paid": True})
    assert not app({"color": "blue", "size": 6, "paid": True})


def test_each_field_of_the_properties() -> None:
    assert props(user_id=b"guest", to="/queues/q", correlation_id=ULong(9), group_id="g")
    assert props(content_type=Symbol("text/plain"), creation_time=Timestamp(1000))
    assert props(content_type="text/plain", correlation_id=9, creation_time=1000)
    assert not props(correlation_id="9")
    assert not props(content_encoding="gzip")
    assert not props(reply_to="x")
    assert not props(absolute_expiry_time=Timestamp(0))
    assert not props(reply_to_group_id="")


def test_modifiers() -> None:
    assert props(message_id="&p:order-", subject="&s:order")
    assert not props(message_id="&p:rder-")
    assert not props(message_id="&s:order-")
    assert props(message_id="&p:", subject="&s:")
    assert props(content_type="&p:text/")
    assert not props(correlation_id="&p:")  # there is a number
    assert not props(reply_to="&p:")  # nothing is there
    assert app({"color": "&p:bl", "kind": "&s:nd"})
    assert not app({"color": "&p:blues"})
    assert not app({"color": "&s:a blue"})
    assert app({"raw": "&p:\x01", "empty": "&p:"})
    assert not app({"size": "&p:5"})
    assert not app({"missing": "&p:"})


def test_an_ampersand_in_front() -> None:
    assert app({"amp": "&&p:x"})
    assert not app({"amp": "&p:x"})
    assert app({"one": "&&"})
    assert app({"color": "blue", "empty": ""})
    for text in ("&", "&x", "&P:x", "& p:x"):
        assert refused(APPLICATION_PROPERTIES_FILTER, {"a": text}) == (
            f"'a' is {text!r}, expected &p:, &s: or && where a string begins with &"
        )


def test_null_asks_of_an_application_property_that_it_is_there() -> None:
    assert props(message_id=None, reply_to=None, group_id="g")
    assert not props(message_id=None, group_id="h")
    assert app({"color": None})
    assert not app({"missing": None})
    assert not app({"nil": None})
    assert not app({"nil": 0})


def test_types() -> None:
    assert app({"size": 5.0, "ratio": Float(1.5), "kind": "round", "color": Symbol("blue")})
    assert app({"id": ID, "raw": b"\x01\x02\x03"})
    assert app({"id": ID.bytes})
    assert not app({"size": "5"})
    assert not app({"paid": 1})
    assert not app({"size": True})
    assert not app({"color": "Blue"})


def test_an_empty_filter_asks_nothing() -> None:
    from tallymark.bridge.filters import filters_of
    from tallymark.wire.amqp10.types import Described
    from tests.bridge.filter_rig import clock

    empty: dict[object, object] = {Symbol("f"): Described(Symbol(PROPERTIES_FILTER), {})}
    assert filters_of(empty, clock()) == (None, empty)


def test_limits() -> None:
    most = {f"k{i}": i for i in range(MOST_ENTRIES)}
    assert not app(dict(most))
    assert refused(APPLICATION_PROPERTIES_FILTER, most | {"one": 1}) == (
        "17 entries, at most 16 are taken"
    )
    assert not app({"color": "x" * 4096})
    text = refused(APPLICATION_PROPERTIES_FILTER, {"color": "x" * 4097})
    assert text == "'color' asks for 4097 bytes, at most 4096 are compared"


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("color = 'blue'", "\"color = 'blue'\" found, expected a map"),
        ([1], "[1] found, expected a map"),
        ({Symbol("nothing"): 1}, "'nothing' is no field of properties, expected one of message-id"),
        ({7: 1}, "the key 7, expected a name"),
        ({Symbol("to"): [1]}, "'to' is [1], expected a value of a simple type"),
        ({Symbol("to"): 1}, "'to' is 1, expected a string"),
        ({Symbol("to"): b"q"}, "'to' is b'q', expected a string"),
        ({Symbol("user-id"): 1}, "'user-id' is 1, expected binary"),
        ({Symbol("message-id"): True}, "'message-id' is True, expected a string, binary, ulong or"),
        (
            {Symbol("correlation-id"): 1.5},
            "'correlation-id' is 1.5, expected a string, binary",
        ),
        ({Symbol("creation-time"): "now"}, "'creation-time' is 'now', expected a timestamp"),
        ({Symbol("group-sequence"): "1"}, "'group-sequence' is '1', expected an integer"),
    ],
)
def test_errors(wanted: object, expected: str) -> None:
    assert refused(PROPERTIES_FILTER, wanted).startswith(expected)
