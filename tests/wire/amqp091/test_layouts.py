"""Methods: the classes, the table that lays them out, and both directions of the codec."""

from __future__ import annotations

import dataclasses
import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark.wire.amqp091 import methods
from tallymark.wire.amqp091.errors import WireError
from tallymark.wire.amqp091.fields import encode_table
from tallymark.wire.amqp091.layouts import (
    BY_CLASS,
    BY_ID,
    METHODS,
    decode_method,
    encode_method,
    layout_of,
)
from tallymark.wire.amqp091.methods import (
    BasicConsume,
    BasicGetEmpty,
    BasicPublish,
    BasicReturn,
    ChannelClose,
    ConnectionBlocked,
    ConnectionClose,
    ConnectionOpen,
    ConnectionStartOk,
    ConnectionUpdateSecretOk,
    Method,
    QueueDeclare,
)
from tests.wire.amqp091.test_fields import tables

ALL = [row[2] for row in METHODS]

TYPES = {
    "octet": int,
    "short": int,
    "long": int,
    "longlong": int,
    "shortstr": str,
    "text": str,
    "longstr": bytes,
    "bit": bool,
    "table": dict[str, object],
}


def test_every_method_class_has_one_layout() -> None:
    classes = {
        value
        for value in vars(methods).values()
        if isinstance(value, type) and issubclass(value, Method) and value is not Method
    }
    assert classes == set(ALL)
    assert len(BY_ID) == len(BY_CLASS) == len(METHODS) == len(classes)


@pytest.mark.parametrize("kind", ALL)
def test_a_field_has_the_type_of_its_kind(kind: type[Method]) -> None:
    shown = {name: TYPES[t] for name, t in BY_CLASS[kind].fields if name != "-"}
    assert [field.name for field in dataclasses.fields(kind)] == list(shown)  # type: ignore[arg-type]
    fresh = kind()
    for name, hint in typing.get_type_hints(kind).items():
        expected = typing.get_origin(shown[name]) or shown[name]
        assert (typing.get_origin(hint) or hint) is expected
        assert type(getattr(fresh, name)) is expected


def test_names_and_reserved_fields_are_the_specifications() -> None:
    assert layout_of(ConnectionOpen()).name == "connection.open"
    assert layout_of(ConnectionOpen()).fields == [
        ("virtual_host", "shortstr"),
        ("-", "shortstr"),
        ("-", "bit"),
    ]
    assert layout_of(ConnectionStartOk()).name == "connection.start-ok"
    assert layout_of(ConnectionUpdateSecretOk()).name == "connection.update-secret-ok"
    assert layout_of(BasicGetEmpty()).fields == [("-", "shortstr")]
    assert layout_of(BasicPublish()).fields[:2] == [("-", "short"), ("exchange", "shortstr")]


names = st.text(max_size=60).filter(lambda text: len(text.encode("utf-8", "replace")) < 256)
FIELD_VALUES: dict[str, st.SearchStrategy[object]] = {
    "octet": st.integers(0, 255),
    "short": st.integers(0, 2**16 - 1),
    "long": st.integers(0, 2**32 - 1),
    "longlong": st.integers(0, 2**64 - 1),
    "shortstr": names.filter(lambda text: text.isprintable()),
    "text": names.filter(lambda text: text.isprintable()),
    "longstr": st.binary(max_size=300),
    "bit": st.booleans(),
    "table": tables,
}


@st.composite
def any_method(draw: st.DrawFn) -> Method:
    layout = BY_CLASS[draw(st.sampled_from(ALL))]
    return layout.kind(**{name: draw(FIELD_VALUES[t]) for name, t in layout.fields if name != "-"})


@given(any_method())
def test_methods_survive_the_wire(method: Method) -> None:
    raw = encode_method(method)
    assert decode_method(raw) == method
    assert encode_method(decode_method(raw)) == raw


@given(any_method(), st.integers(0, 400))
def test_a_method_cut_short_is_a_syntax_error_that_names_it(method: Method, cut: int) -> None:
    raw = encode_method(method)
    layout = layout_of(method)
    if 4 <= cut < len(raw):
        with pytest.raises(WireError) as caught:
            decode_method(raw[:cut])
        assert caught.value.reply_code == 502
        assert (caught.value.class_id, caught.value.method_id) == (
            layout.class_id,
            layout.method_id,
        )


def test_bytes_behind_the_last_field_are_refused() -> None:
    with pytest.raises(WireError, match=r"basic.publish: 1 bytes after the last field"):
        decode_method(encode_method(BasicPublish("x", "k")) + b"\0")


def test_the_bytes_of_known_methods() -> None:
    assert encode_method(ConnectionOpen("/")) == b"\0\x0a\0\x28\x01/\0\0"
    assert encode_method(QueueDeclare("q", durable=True, no_wait=True)) == (
        b"\0\x32\0\x0a\0\0\x01q\x12\0\0\0\0"
    )
    assert encode_method(BasicPublish("e", "k", mandatory=True)) == (
        b"\0\x3c\0\x28\0\0\x01e\x01k\x01"
    )
    assert encode_method(BasicConsume("q", "t", no_ack=True, arguments={"x-priority": 1})) == (
        b"\0\x3c\0\x14\0\0\x01q\x01t\x02" + encode_table({"x-priority": 1})
    )


def test_reserved_fields_are_ignored() -> None:
    assert decode_method(b"\0\x3c\0\x28\x12\x34\x01e\x01k\x01") == BasicPublish("e", "k", True)


def test_unknown_methods_are_not_implemented() -> None:
    with pytest.raises(WireError, match=r"unknown method 60.99") as caught:
        decode_method(b"\0\x3c\0\x63")
    assert caught.value.reply_code == 540
    with pytest.raises(WireError, match="at least 4 expected"):
        decode_method(b"\0\x3c")


def test_names_have_to_be_utf8_and_response_bytes_need_not() -> None:
    with pytest.raises(WireError, match="malformed UTF-8") as caught:
        decode_method(b"\0\x3c\0\x28\0\0\x01\xff\x00\x00")
    assert caught.value.reply_code == 502
    method = ConnectionStartOk({}, "PLAIN", b"\0\xff\0\xfe", "en_US")
    assert decode_method(encode_method(method)) == method


@pytest.mark.parametrize("kind", [ChannelClose, ConnectionClose, ConnectionBlocked, BasicReturn])
def test_texts_for_people_are_read_whatever_their_bytes_are(kind: type[Method]) -> None:
    """RabbitMQ cuts a reply text at a byte, perhaps within a letter. Whoever closed with such a
    text, or with one in Latin-1, was told of a syntax error in place of being answered."""
    name = "reason" if kind is ConnectionBlocked else "reply_text"
    whole = encode_method(kind(**{name: "queue 'caf??'"}))
    found = decode_method(whole.replace(b"caf??", b"caf\xc3\xe9"))
    assert getattr(found, name) == "queue 'caf\ufffd\ufffd'"


def test_reply_texts_are_cut_to_fit_and_names_are_not() -> None:
    method = decode_method(encode_method(ChannelClose(404, "é" * 200)))
    assert isinstance(method, ChannelClose)
    assert method.reply_text == "é" * 126 + "..."
    with pytest.raises(ValueError, match="at most 255"):
        encode_method(QueueDeclare("q" * 256))
    with pytest.raises(ValueError, match="does not fit 16 unsigned bits"):
        encode_method(ChannelClose(70_000))
