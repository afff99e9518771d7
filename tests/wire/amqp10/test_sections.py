"""Messages as sections [amqp-1.0 §3.2]: split, decoded on demand, written, and what is refused."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark.wire.amqp10.codec import encode
from tallymark.wire.amqp10.errors import DecodeError
from tallymark.wire.amqp10.sections import (
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    SEQUENCE,
    VALUE,
    Data,
    Header,
    Properties,
    Sections,
    Sequences,
    Value,
    encode_message,
    section_code,
)
from tallymark.wire.amqp10.types import Described, Symbol, UByte, UInt, ULong


def split(raw: bytes) -> Sections:
    """The sections of `raw`, somewhere in a buffer."""
    return Sections(b"\xff" * 3 + raw + b"\x00\x53", 3, 3 + len(raw))


# python-qpid-proton 0.40, Message.encode() with everything set
PROTON = (
    b"\x00Sp\xc0\x0c\x05AP\x07p\x00\x00\x05\xdcAR\x03"
    b"\x00Sq\xd1\x00\x00\x00\x0b\x00\x00\x00\x02\xa3\x03x-dU\x01"
    b"\x00Sr\xd1\x00\x00\x00\x10\x00\x00\x00\x02\xa3\x07x-opt-a\xa1\x01v"
    b'\x00Ss\xc0c\r\x98\x00\x11"3DUfw\x88\x99\xaa\xbb\xcc\xdd\xee\xff\xa0\x05guest\xa1\t/queues/q'
    b"\xa1\x03sub\xa1\t/queues/rSM\xa3\ntext/plain\xa3\x04gzip\x83\x00\x00\x01\x8b\xcf\xe5h\x00"
    b"\x83\x00\x00\x01t\x87n\x81\xf4\xa1\x01gR\t\xa1\x02rg"
    b"\x00St\xd1\x00\x00\x00\r\x00\x00\x00\x04\xa1\x01pA\xa1\x01nU\x05"
    b"\x00Sw\xd1\x00\x00\x00\x14\x00\x00\x00\x02\xa1\x01k\xd0\x00\x00\x00\x08\x00\x00\x00\x02U\x01U\x02"
)


def test_a_message_of_proton() -> None:
    message = split(PROTON)
    assert message.header == Header(True, 7, 1500, True, 3)
    assert message.delivery_annotations == {"x-d": 1}
    assert message.message_annotations == {"x-opt-a": "v"}
    assert message.properties == Properties(
        UUID("00112233-4455-6677-8899-aabbccddeeff"),
        b"guest",
        "/queues/q",
        "sub",
        "/queues/r",
        ULong(77),
        "text/plain",
        "gzip",
        1700000000000,
        1600000000500,
        "g",
        9,
        "rg",
    )
    assert message.application_properties == {"p": True, "n": 5}
    assert message.body_kind == "value"
    assert message.bodies == [{"k": [1, 2]}]
    assert message.footer is None
    again = encode_message(
        message.header,
        message.delivery_annotations,
        message.message_annotations,
        message.properties,
        message.application_properties,
        Value(message.bodies[0]),
    )
    assert split(again).properties == message.properties
    assert split(again).bodies == message.bodies


def test_messages_of_rhea() -> None:
    raw = bytes.fromhex(
        "005370d00000000b00000003414070000003e8005372d10000001000000002a307782d6f70742d70a1016b"
        "005373d00000001b0000000aa1026d3140a101714040404040408300000174876e8000005374d10000000f"
        "00000004a101615201a10162a10178005375a00568656c6c6f"
    )
    message = split(raw)
    assert message.header == Header(True, 4, 1000)
    assert message.message_annotations == {"x-opt-p": "k"}
    assert message.properties == Properties("m1", to="q", creation_time=1600000000000)
    assert message.application_properties == {"a": UInt(1), "b": "x"}
    assert (message.body_kind, message.bodies) == ("data", [b"hello"])
    message = split(bytes.fromhex("0053704500537345005375a00161005375a00162"))
    assert (message.body_kind, message.bodies) == ("data", [b"a", b"b"])
    message = split(bytes.fromhex("0053704500537345005376d000000009000000025201a10161"))
    assert (message.body_kind, message.bodies) == ("sequence", [[UInt(1), "a"]])


def test_a_message_without_a_body_is_taken_as_proton_sends_it() -> None:
    message = split(b"\x00\x53\x70\x45\x00\x53\x73\x45")
    assert (message.body_kind, message.bodies) == ("", [])
    assert (message.header, message.properties) == (Header(), Properties())
    empty = split(b"")
    assert (empty.body_kind, empty.bodies, empty.header, empty.footer) == ("", [], None, None)
    assert empty.bounds == []


FULL = encode_message(
    Header(durable=True, priority=4),
    {"x-d": 1},
    {"x-opt-a": None, ULong(7): 2},
    Properties(message_id=5),
    {"key": "value"},
    b"body",
    {"crc": b"\0"},
)
FULL_BYTES = (
    b"\x00\x53\x70\xc0\x02\x01\x41"
    b"\x00\x53\x71\xc1\x08\x02\xa3\x03x-d\x55\x01"
    b"\x00\x53\x72\xc1\x0f\x04\xa3\x07x-opt-a\x40\x53\x07\x55\x02"
    b"\x00\x53\x73\xc0\x03\x01\x53\x05"
    b"\x00\x53\x74\xc1\x0d\x02\xa1\x03key\xa1\x05value"
    b"\x00\x53\x75\xa0\x04body"
    b"\x00\x53\x78\xc1\x09\x02\xa3\x03crc\xa0\x01\x00"
)


def test_every_section_is_written_and_found() -> None:
    assert FULL == FULL_BYTES
    message = split(FULL)
    assert [bound[0] for bound in message.bounds] == [0x70, 0x71, 0x72, 0x73, 0x74, 0x75, 0x78]
    assert [bound[1] - 3 for bound in message.bounds] == [0, 7, 20, 40, 48, 66, 75]
    assert all(bound[2] == bound[1] + 3 for bound in message.bounds)
    assert message.raw(HEADER) == FULL[:7]
    assert message.raw(DATA) == FULL[66:75]
    assert message.raw(FOOTER) == FULL[75:]
    assert message.raw(SEQUENCE) == b""
    assert b"".join(message.raw(bound[0]) for bound in message.bounds) == FULL
    assert message.delivery_annotations == {"x-d": 1}
    assert message.message_annotations == {"x-opt-a": None, 7: 2}
    assert message.properties == Properties(message_id=5)
    assert message.footer == {"crc": b"\0"}
    assert type(next(iter(message.footer))) is Symbol


def test_what_is_absent_is_none() -> None:
    message = split(encode_message(body=b""))
    assert [bound[0] for bound in message.bounds] == [DATA]
    assert message.header is None
    assert message.delivery_annotations is None
    assert message.message_annotations is None
    assert message.properties is None
    assert message.application_properties is None
    assert message.footer is None
    assert message.bodies == [b""]


@pytest.mark.parametrize(
    ("body", "raw"),
    [
        (b"x", b"\x00\x53\x75\xa0\x01x"),
        (memoryview(b"x"), b"\x00\x53\x75\xa0\x01x"),
        (b"x" * 256, b"\x00\x53\x75\xb0\0\0\1\0" + b"x" * 256),
        (Data(b"a", b""), b"\x00\x53\x75\xa0\x01a\x00\x53\x75\xa0\x00"),
        (Data(), b""),
        (Sequences([], [1]), b"\x00\x53\x76\x45\x00\x53\x76\xc0\x03\x01\x55\x01"),
        (Value(b"x"), b"\x00\x53\x77\xa0\x01x"),
        ("x", b"\x00\x53\x77\xa1\x01x"),
        (None, b"\x00\x53\x77\x40"),
        ([1], b"\x00\x53\x77\xc0\x03\x01\x55\x01"),
        (Described(ULong(9), 1), b"\x00\x53\x77\x00\x53\x09\x55\x01"),
    ],
)
def test_bodies_are_written_as_their_kind(body: object, raw: bytes) -> None:
    assert encode_message(body=body) == raw


def test_other_encodings_of_a_descriptor_are_read() -> None:
    for descriptor in (
        b"\x00\x53\x75",
        b"\x00\x80\0\0\0\0\0\0\0\x75",
        b"\x00\xa3\x10amqp:data:binary",
        b"\x00\xb3\0\0\0\x10amqp:data:binary",
    ):
        raw = descriptor + b"\xa0\x01x"
        assert section_code(raw, 0, len(raw)) == (DATA, len(descriptor))
        assert split(raw).bodies == [b"x"]
    names = {
        HEADER: "header:list",
        DELIVERY_ANNOTATIONS: "delivery-annotations:map",
        MESSAGE_ANNOTATIONS: "message-annotations:map",
        PROPERTIES: "properties:list",
        APPLICATION_PROPERTIES: "application-properties:map",
        DATA: "data:binary",
        SEQUENCE: "amqp-sequence:list",
        VALUE: "amqp-value:*",
        FOOTER: "footer:map",
    }
    for code, name in names.items():
        raw = b"\x00" + encode(Symbol("amqp:" + name))
        assert section_code(raw, 0, len(raw)) == (code, len(raw))
    header = b"\x00\xa3\x10amqp:header:list\xc0\x02\x01\x41"
    assert split(header).header == Header(durable=True)


UNSOUND = [
    (b"\x75\xa0\x00", "has to begin with a descriptor"),
    (b"\x00", "cut off"),
    (b"\x00\x53", "cut off"),
    (b"\x00\x53\x75", "cut off"),
    (b"\x00\x53\x75\xa0\x02x", "behind the last byte"),
    (b"\x00\x53\x79\xa0\x00", "unknown descriptor 0x79"),
    (b"\x00\x53\x24\x45", "unknown descriptor 0x24"),
    (b"\x00\x80\0\0\0\0\0\0\1\x75\xa0\x00", r"unknown descriptor ULong\(373\)"),
    (b"\x00\xa3\x03abc\xa0\x00", r"unknown descriptor Symbol\('abc'\)"),
    (b"\x00\x45\xa0\x00", r"unknown descriptor \[\]"),
    (b"\x00\x53\x73\x45\x00\x53\x70\x45", "section 0x70 behind section 0x73"),
    (b"\x00\x53\x70\x45\x00\x53\x70\x45", "section 0x70 behind section 0x70"),
    (b"\x00\x53\x77\x40\x00\x53\x77\x40", "section 0x77 behind section 0x77"),
    (b"\x00\x53\x75\xa0\x00\x00\x53\x76\x45", "section 0x76 behind section 0x75"),
    (b"\x00\x53\x75\xa0\x00\x00\x53\x77\x40", "section 0x77 behind section 0x75"),
    (b"\x00\x53\x76\x45\x00\x53\x77\x40", "section 0x77 behind section 0x76"),
    (b"\x00\x53\x78\xc1\x01\x00\x00\x53\x75\xa0\x00", "section 0x75 behind section 0x78"),
    (b"\x00\x53\x78\xc1\x01\x00\x00\x53\x78\xc1\x01\x00", "section 0x78 behind section 0x78"),
]


@pytest.mark.parametrize(("raw", "text"), UNSOUND)
def test_what_is_no_message_is_refused_at_once(raw: bytes, text: str) -> None:
    with pytest.raises(DecodeError, match=text):
        split(raw)


@pytest.mark.parametrize(
    ("name", "raw", "text"),
    [
        ("header", b"\x00\x53\x70\xc1\x01\x00", "header: format code 0xc1 where a list"),
        ("header", b"\x00\x53\x70\xc0\x02\x01\x43", "header.durable: format code 0x43"),
        ("delivery_annotations", b"\x00\x53\x71\x45", "section 0x71 with a list, not a map"),
        ("message_annotations", b"\x00\x53\x72\x40", "section 0x72 with a NoneType, not a map"),
        ("properties", b"\x00\x53\x73\xc0\x03\x01\x52\x01", "message_id: format code 0x52"),
        ("application_properties", b"\x00\x53\x74\xc1\x02\x01\x40", "map of 1 keys"),
        ("bodies", b"\x00\x53\x75\xa1\x00", "body section 0x75 with a str"),
        ("bodies", b"\x00\x53\x76\xc1\x01\x00", "body section 0x76 with a dict"),
        ("bodies", b"\x00\x53\x76\xe0\x02\x00\x50", "body section 0x76 with a Array"),
        ("bodies", b"\x00\x53\x77\xc0\x02\x01\x3f", "unknown format code 0x3f"),
        ("footer", b"\x00\x53\x78\xa0\x00", "section 0x78 with a bytes, not a map"),
    ],
)
def test_what_is_wrong_inside_is_refused_when_asked_for(name: str, raw: bytes, text: str) -> None:
    message = split(raw)
    with pytest.raises(DecodeError, match=text):
        getattr(message, name)


ids = st.one_of(
    st.none(), st.integers(0, 2**64 - 1).map(ULong), st.uuids(), st.binary(max_size=9), st.text()
)
maps = st.none() | st.dictionaries(
    st.text(st.characters(max_codepoint=127), max_size=9).map(Symbol),
    st.one_of(st.integers(0, 255).map(UByte), st.text(), st.lists(st.booleans())),
    max_size=4,
)
bodies = st.one_of(
    st.lists(st.binary(max_size=300), max_size=3).map(lambda parts: Data(*parts)),
    st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=3).map(lambda p: Sequences(*p)),
    st.one_of(st.none(), st.text(), st.binary(), st.lists(st.text())).map(Value),
)


@given(
    st.none() | st.builds(Header, st.booleans(), st.integers(0, 255), st.integers(0, 99)),
    maps,
    maps,
    st.none() | st.builds(Properties, ids, st.binary(), st.text(), correlation_id=ids),
    maps,
    bodies,
    maps,
)
def test_any_message_comes_back_as_it_was(
    header: Header | None,
    delivery_annotations: dict[object, object] | None,
    message_annotations: dict[object, object] | None,
    properties: Properties | None,
    application_properties: dict[object, object] | None,
    body: Data | Sequences | Value,
    footer: dict[object, object] | None,
) -> None:
    raw = encode_message(
        header,
        delivery_annotations,
        message_annotations,
        properties,
        application_properties,
        body,
        footer,
    )
    message = split(raw)
    assert message.header == header
    assert message.delivery_annotations == delivery_annotations
    assert message.message_annotations == message_annotations
    assert message.properties == properties
    assert message.application_properties == application_properties
    assert message.footer == footer
    parts = [body.value] if isinstance(body, Value) else list(body.parts)
    assert message.bodies == parts
    kinds = {Data: "data", Sequences: "sequence", Value: "value"}
    assert message.body_kind == (kinds[type(body)] if parts else "")
    codes = {bound[0] for bound in message.bounds}
    assert b"".join(message.raw(code) for code in sorted(codes)) == raw
