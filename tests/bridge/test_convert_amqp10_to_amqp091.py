"""AMQP 1.0 publisher to AMQP 0-9-1 reader: every property, every type, every body."""

from __future__ import annotations

from decimal import Decimal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark.bridge.amqp091.annotated import Additions
from tallymark.bridge.conversion.amqp10_to_amqp091 import Converter, as_amqp091, frames_of
from tallymark.engine.message import Slice
from tallymark.stored.annotations import Annotations, Route
from tallymark.wire.amqp091 import fields
from tallymark.wire.amqp091.fields import Float32, WireInt
from tallymark.wire.amqp091.frames import body, frame_length, property_section
from tallymark.wire.amqp091.layouts import decode_method
from tallymark.wire.amqp091.methods import BasicPublish
from tallymark.wire.amqp091.properties import Properties as BasicProperties
from tallymark.wire.amqp091.properties import decode_properties, encode_properties
from tallymark.wire.amqp10 import types
from tallymark.wire.amqp10.codec import encode
from tallymark.wire.amqp10.sections import (
    Body,
    Data,
    Properties,
    Sequences,
    Value,
    encode_message,
)
from tallymark.wire.amqp10.types import Symbol, Timestamp, UByte, UInt, ULong
from tests.bridge import test_annotated
from tests.bridge.conversion import (
    SOME_UUID,
    URN,
    annotation_section,
    header,
    in_amqp091,
    message,
    only,
    payload,
    same,
    whole,
)

PERSISTENT = BasicProperties(delivery_mode=2)


def read(raw: bytes) -> BasicProperties:
    """The properties of a message that was published durable."""
    [(found, _)] = in_amqp091(payload(3, raw))
    assert found.delivery_mode == 2
    found.delivery_mode = None
    return found


def read_body(content: Body | bytes) -> tuple[str | None, bytes]:
    """Type and body."""
    [(found, raw)] = in_amqp091(payload(3, message(body=content)))
    return found.type, raw


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        (Properties(), BasicProperties()),
        (Properties(message_id="m"), BasicProperties(message_id="m")),
        (Properties(message_id="m" * 255), BasicProperties(message_id="m" * 255)),
        (Properties(message_id="m" * 256), BasicProperties(headers={"x-message-id": "m" * 256})),
        (Properties(message_id="é" * 128), BasicProperties(headers={"x-message-id": "é" * 128})),
        (Properties(message_id=SOME_UUID), BasicProperties(message_id=URN)),
        (Properties(message_id=ULong(2**64 - 1)), BasicProperties(message_id=str(2**64 - 1))),
        (Properties(message_id=ULong(0)), BasicProperties(message_id="0")),
        (Properties(message_id=b"\xff"), BasicProperties(headers={"x-message-id": b"\xff"})),
        (Properties(message_id=b"text"), BasicProperties(headers={"x-message-id": b"text"})),
        (Properties(user_id=b"guest"), BasicProperties(user_id="guest")),
        (Properties(user_id=b"\xff"), BasicProperties(headers={"x-user-id": b"\xff"})),
        (Properties(user_id=b"u" * 256), BasicProperties(headers={"x-user-id": b"u" * 256})),
        (Properties(to="/queues/q"), BasicProperties(headers={"x-to": "/queues/q"})),
        (Properties(subject="s"), BasicProperties(headers={"x-subject": "s"})),
        (Properties(reply_to="/queues/q%20%C3%A9"), BasicProperties(reply_to="q é")),
        (Properties(reply_to="q"), BasicProperties(reply_to="q")),
        (Properties(reply_to="/exchanges/e/k"), BasicProperties(reply_to="/exchanges/e/k")),
        (Properties(reply_to="/queues/%zz"), BasicProperties(reply_to="/queues/%zz")),
        (Properties(reply_to="$me"), BasicProperties(reply_to="$me")),
        (Properties(reply_to="r" * 256), BasicProperties(headers={"x-reply-to": "r" * 256})),
        (Properties(correlation_id="c"), BasicProperties(correlation_id="c")),
        (Properties(correlation_id=SOME_UUID), BasicProperties(correlation_id=URN)),
        (Properties(correlation_id=ULong(9)), BasicProperties(correlation_id="9")),
        (Properties(correlation_id=b""), BasicProperties(headers={"x-correlation-id": b""})),
        (Properties(correlation_id="c" * 256),
         BasicProperties(headers={"x-correlation-id": "c" * 256})),
        (Properties(content_type="text/plain"), BasicProperties(content_type="text/plain")),
        (Properties(content_type="t" * 256),
         BasicProperties(headers={"x-content-type": "t" * 256})),
        (Properties(content_encoding="gzip"), BasicProperties(content_encoding="gzip")),
        (Properties(content_encoding="e" * 256),
         BasicProperties(headers={"x-content-encoding": "e" * 256})),
        (Properties(absolute_expiry_time=1999),
         BasicProperties(headers={"x-absolute-expiry-time": fields.Timestamp(1)})),
        (Properties(creation_time=1_700_000_000_999), BasicProperties(timestamp=1_700_000_000)),
        (Properties(creation_time=-1), BasicProperties()),
        (Properties(group_id="g"), BasicProperties(app_id="g")),
        (Properties(group_id="g" * 256), BasicProperties(headers={"x-group-id": "g" * 256})),
        (Properties(group_sequence=0),
         BasicProperties(headers={"x-group-sequence": WireInt(0, "i")})),
        (Properties(reply_to_group_id="g"),
         BasicProperties(headers={"x-reply-to-group-id": "g"})),
    ],
)  # fmt: skip
def test_a_property_becomes_a_property_or_a_header(
    properties: Properties, expected: BasicProperties
) -> None:
    found = read(message(properties))
    assert found == expected
    assert same(found.headers, expected.headers)


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        (header(), BasicProperties()),
        (header(True, UByte(0)), BasicProperties(priority=0)),
        (header(None, UByte(255)), BasicProperties(priority=255)),
        (header(None, None, UInt(0)), BasicProperties(expiration="0")),
        (header(False, None, UInt(2**32 - 1), True, UInt(7)),
         BasicProperties(expiration="4294967295")),
        (encode(types.Described(Symbol("amqp:header:list"), [None, UByte(3)])),
         BasicProperties(priority=3)),
        (b"\0\x80" + bytes(7) + b"\x70" + encode([None, UByte(3)]),
         BasicProperties(priority=3)),
    ],
)  # fmt: skip
def test_the_header_becomes_properties(section: bytes, expected: BasicProperties) -> None:
    assert read(message(front=section)) == expected


@pytest.mark.parametrize(("persistent", "mode"), [(True, 2), (False, 1)])
def test_the_delivery_mode_is_what_the_broker_did(persistent: bool, mode: int) -> None:
    [(found, _)] = in_amqp091(payload(3, message(), persistent=persistent))
    assert found == BasicProperties(delivery_mode=mode)


SIMPLE: list[tuple[object, object]] = [
    (None, None),
    (True, True),
    (UByte(255), WireInt(255, "B")),
    (types.UShort(65535), WireInt(65535, "u")),
    (UInt(1), WireInt(1, "i")),
    (ULong(1), WireInt(1, "l")),
    (ULong(2**63), str(2**63)),
    (types.Byte(-1), WireInt(-1, "b")),
    (types.Short(-1), WireInt(-1, "s")),
    (types.Int(-1), -1),
    (-1, WireInt(-1, "l")),
    (2**40, 2**40),
    (types.Float(0.5), Float32(0.5)),
    (0.1, 0.1),
    (types.Decimal(0x74, bytes.fromhex("32800005")), Decimal(5)),
    (types.Decimal(0x84, bytes.fromhex("31c0000000000005")), Decimal(5)),
    (types.Decimal(0x94, (6176 << 113 | 5).to_bytes(16, "big")), Decimal(5)),
    (types.Char("x"), "x"),
    (Timestamp(1500), fields.Timestamp(1)),
    (UUID(int=5), f"urn:uuid:{UUID(int=5)}"),
    (b"\0\xff", b"\0\xff"),
    ("text é", "text é"),
    (Symbol("sym"), "sym"),
]
NESTED: list[tuple[object, object]] = [
    ([1, [UByte(2)], {}], [WireInt(1, "l"), [WireInt(2, "B")], {}]),
    ({Symbol("s"): "a", "t": {ULong(1): None}}, {"s": "a", "t": {"1": None}}),
    (types.Array([Symbol("a"), Symbol("b")], 0xA3), ["a", "b"]),
    (types.Array([], 0x40), []),
    (types.Described(Symbol("d"), [True]), [True]),
]


@pytest.mark.parametrize(("value", "field"), SIMPLE)
def test_an_application_property_of_each_type_is_a_header(value: object, field: object) -> None:
    found = read(message(application={"k": value}))
    assert same(found, BasicProperties(headers=found.headers))
    assert same(found.headers, {"k": field})


@pytest.mark.parametrize(("value", "field"), SIMPLE + NESTED)
def test_an_annotation_of_each_type_is_a_header(value: object, field: object) -> None:
    found = read(message(front=annotation_section({Symbol("x-k"): value})))
    assert same(found.headers, {"x-k": field})


def test_which_annotations_are_headers() -> None:
    front = annotation_section(
        {
            Symbol("x-opt-mine"): 1,
            "x-string": 2,
            ULong(4): "a number",
            Symbol("not-x"): "reserved",
            Symbol("x-exchange"): "forged",
            Symbol("x-routing-key"): "forged",
            Symbol("x-opt-locked-until"): Timestamp(1),
            Symbol("x-opt-deaths"): types.Array([{Symbol("queue"): "forged"}], 0xC1),
            Symbol("x-cc"): ["a", "b"],
            Symbol("x-opt-headers"): {Symbol("t"): {}, b"\xff": 5, 1.5: "no name"},
            Symbol("x-basic-unknown"): "nothing",
            Symbol("x-" + "k" * 254): "too long",
        }
    )
    assert same(
        read(message(front=front)).headers,
        {
            "x-opt-mine": WireInt(1, "l"),
            "x-string": WireInt(2, "l"),
            "CC": ["a", "b"],
            "t": {},
            "\udcff": WireInt(5, "l"),
        },
    )


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("x-basic-type", "t", BasicProperties(type="t")),
        ("x-basic-type", b"\xff", BasicProperties(type="\udcff")),
        ("x-basic-type", "t" * 256, BasicProperties()),
        ("x-basic-type", 5, BasicProperties()),
        ("x-basic-cluster-id", "c", BasicProperties(cluster_id="c")),
        ("x-basic-content-type", "ü", BasicProperties(content_type="ü")),
        ("x-basic-content-encoding", b"\xff", BasicProperties(content_encoding="\udcff")),
        ("x-basic-app-id", b"\xff", BasicProperties(app_id="\udcff")),
        ("x-basic-timestamp", ULong(2**64 - 1), BasicProperties(timestamp=2**64 - 1)),
        ("x-basic-timestamp", -1, BasicProperties()),
        ("x-basic-expiration", str(2**32), BasicProperties(expiration=str(2**32))),
        ("x-basic-expiration", "soon", BasicProperties()),
        ("x-basic-expiration", "²", BasicProperties()),
    ],
)
def test_an_annotation_that_was_a_property_is_one_again(
    name: str, value: object, expected: BasicProperties
) -> None:
    assert read(message(front=annotation_section({Symbol(name): value}))) == expected


def test_the_properties_of_1_0_go_before_what_was_made_of_others() -> None:
    front = header(None, None, UInt(7)) + annotation_section(
        {Symbol("x-basic-expiration"): "8", Symbol("x-basic-content-type"): "old"}
    )
    found = read(message(Properties(content_type="new"), front=front))
    assert (found.expiration, found.content_type) == ("7", "new")


def test_of_one_header_application_properties_have_the_last_word() -> None:
    front = annotation_section({Symbol("x-k"): 1, Symbol("x-opt-headers"): {Symbol("k"): 1}})
    found = read(message(application={"x-k": "a", "k": "b"}, front=front))
    assert found.headers == {"x-k": "a", "k": "b"}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", b""),
        (b"one", b"one"),
        (b"x" * 256, b"x" * 256),
        (Data(b"one"), b"one"),
        (Data(b"one", b"", b"two" * 100), b"one" + b"two" * 100),
    ],
)
def test_data_is_the_body(content: Body | bytes, expected: bytes) -> None:
    assert read_body(content) == (None, expected)


@pytest.mark.parametrize("content", [Sequences([1], [Symbol("x")]), Value("text"), Value({})])
def test_any_other_body_is_there_as_it_was_encoded(content: Body) -> None:
    raw = encode_message(body=content, footer={Symbol("x-f"): 1})
    application = encode_message(application_properties={"k": 1}, body=b"")[
        : -len(b"\0\x53\x75\xa0\0")
    ]
    [(found, left)] = in_amqp091(payload(3, application + raw))
    assert (found.type, found.headers) == ("amqp-1.0", {"k": True})
    assert left == raw


def test_a_footer_behind_data_is_not_shown() -> None:
    raw = encode_message(body=Data(b"a", b"b"), footer={Symbol("x-f"): 1})
    assert in_amqp091(payload(3, raw)) == [(PERSISTENT, b"ab")]


def test_a_message_without_a_body_has_an_empty_one() -> None:
    """Some clients leave it out."""
    front = header(True)
    footer = encode(types.Described(ULong(0x78), {}))
    for raw in (front, front + footer, b""):
        assert in_amqp091(payload(3, raw)) == [(PERSISTENT, b"")]


def test_messages_in_a_row_are_told_apart() -> None:
    long_id = message(Properties(message_id="m"), {"k": 1}, b"a")
    other_id = message(Properties(message_id="n"), {"k": 1}, b"a")
    other_kind = message(Properties(message_id="m"), {"k": 1}, Value(b"a"))
    longer = message(Properties(message_id="m"), {"k": 1}, b"ab")
    more = message(Properties(message_id="m"), {"k": 1}, Data(b"a", b"b"))
    urgent = message(Properties(message_id="m"), {"k": 1}, b"a", header(None, UByte(9)))
    row = [long_id, long_id, longer, more, other_id, other_kind, urgent, long_id]
    found = in_amqp091(payload(3, *row))
    alone = [in_amqp091(payload(3, each))[0] for each in row]
    assert found == alone
    assert [each[1] for each in found] == [
        b"a", b"a", b"ab", b"ab", b"a", b"\0\x53\x77\xa0\x01a", b"a", b"a"
    ]  # fmt: skip
    assert [each[0].message_id for each in found] == ["m"] * 4 + ["n"] + ["m"] * 3
    assert [each[0].priority for each in found] == [None] * 6 + [9, None]


@pytest.mark.parametrize("value", [b"a", None])
def test_a_value_is_not_taken_for_the_null_in_front_of_its_neighbour(value: object) -> None:
    """As clients made of qpid-proton write messages without a body."""
    alone = message(body=Value(value))
    named = b"\0\x53\x77\x40" + message(Properties(message_id="m"), None, b"a")
    found = in_amqp091(payload(3, alone, named))
    assert found == [in_amqp091(payload(3, each))[0] for each in (alone, named)]
    assert (found[1][0].message_id, found[1][1]) == ("m", b"a")


def test_a_null_before_a_footer_is_the_body() -> None:
    raw = encode_message(body=Value(None), footer={Symbol("x-f"): 1})
    ((properties, body),) = in_amqp091(payload(3, raw))
    assert (properties.type, body) == ("amqp-1.0", raw)


def test_a_slice_keeps_what_the_engine_knows_of_it() -> None:
    known = Annotations(route=Route("dlx", "new"))
    routes = [Route("e", "0"), Route("e", "1"), Route("e", "2")]
    stored = payload(3, *[message(body=b"%d" % i) for i in range(3)], routes=routes)
    piece = Slice(stored, 1, 3, 40, 2, 1, 5, known, 6)
    found = as_amqp091(piece)
    assert (found.lo, found.hi, found.first, found.acquired) == (0, 2, 40, 2)
    assert (found.failed, found.priority, found.shift) == (1, 5, 6)
    assert found.annotations is known
    assert found.payload.format == 1
    assert found.payload.first_id == stored.first_id + 1
    assert found.payload.routes == routes[1:]
    raw, cuts = found.payload.raw, found.payload.cuts
    assert raw is not None
    for i in range(2):
        frames = raw[cuts[i] : cuts[i + 1]]
        size = frame_length(frames, 0)
        assert decode_method(frames[7 : size - 1]) == BasicPublish("e", str(i + 1), False, False)
        assert body(frames) == b"%d" % (i + 1)


def test_the_largest_frame_is_known() -> None:
    stored = payload(3, message(body=b"x" * 5000))
    assert as_amqp091(whole(stored)).payload.largest_frame == 5008
    wide = message(application={"k": "v" * 9000}, body=b"x")
    frames = as_amqp091(whole(payload(3, wide))).payload
    assert frames.raw is not None
    start = frame_length(frames.raw, 0)
    assert frames.largest_frame == frame_length(frames.raw, start)


def test_dl_18_a_clients_history_of_either_protocol_never_is_the_brokers() -> None:
    forged = {
        Symbol("x-opt-deaths"): types.Array([{Symbol("queue"): "forged"}], 0xC1),
        Symbol("x-death"): [{Symbol("queue"): "mine"}],
    }
    stored = payload(3, message(front=annotation_section(forged)))
    [(alive, _)] = in_amqp091(stored)
    assert alive.headers == {"x-death": [{"queue": "mine"}]}
    piece = as_amqp091(whole(stored, test_annotated.annotations()))
    raw = piece.payload.raw
    assert raw is not None
    at = frame_length(raw, 0)
    patched = Additions(piece.annotations, 0, 0).header_frame(raw, at, at + frame_length(raw, at))
    headers = decode_properties(patched[19:-1]).headers
    assert headers is not None
    death = only(headers["x-death"])
    assert death["queue"] == "q"


def test_fc_20_what_consumers_noted_is_a_header() -> None:
    notes = (
        ("x-count", encode(UInt(3))),
        ("x-exchange", encode("forged")),
        ("x-list", encode([Symbol("a"), 1])),
        ("x-own", encode("noted")),
        ("x-torn", b"\xa1\x05x"),
    )
    own = BasicProperties(headers={"x-own": "published", "k": 1})
    section = encode_properties(own)
    patched = Additions(Annotations(notes=notes), 0, 0).section(section, 0, len(section))
    assert same(
        decode_properties(patched).headers,
        {"k": 1, "x-count": WireInt(3, "i"), "x-list": ["a", WireInt(1, "l")], "x-own": "noted"},
    )


def test_a_direct_reply_is_frames() -> None:
    raw = message(Properties(correlation_id="c"), body=b"answer", front=header(False))
    frames, size = frames_of(raw, Route("", "amq.rabbitmq.reply-to.t"))
    assert frame_length(frames, 0) == size
    method = decode_method(frames[7 : size - 1])
    assert method == BasicPublish("", "amq.rabbitmq.reply-to.t", False, False)
    expected = BasicProperties(delivery_mode=1, correlation_id="c")
    assert decode_properties(property_section(frames)) == expected
    assert body(frames) == b"answer"


@pytest.mark.parametrize(
    "raw",
    [
        b"?",
        b"\0\x53\x75",
        b"\0\x53\x75\xa0\x05abc",
        b"\0\x53\x79\xa0\x01a",
        b"\0\x53\x70\xc0\xff",
        b"\0\x53\x72\xc1\x02\x02\x40" + encode_message(body=b"b"),
        header("durable") + encode_message(body=b"b"),
    ],
)
def test_what_nobody_can_read_is_a_body_that_says_so(raw: bytes) -> None:
    good = message(body=b"good")
    found = in_amqp091(payload(3, good, raw, good))
    assert found == [
        (PERSISTENT, b"good"),
        (BasicProperties(type="amqp-1.0"), raw),
        (PERSISTENT, b"good"),
    ]


@pytest.mark.parametrize(
    "bad",
    [
        b"\0\x53\x73\xc0\x03\x01\xa1\x09",  # properties with a torn field
        b"\0\x53\x74\xc1\x03\x01\xa1\x00",  # a map of one thing
    ],
)
def test_a_section_with_a_bad_inside_is_not_there(bad: bytes) -> None:
    found = in_amqp091(payload(3, header(True, UByte(1)) + bad + encode_message(body=b"b")))
    assert found == [(BasicProperties(delivery_mode=2, priority=1), b"b")]


@given(st.binary(max_size=60), st.binary(max_size=20))
def test_any_bytes_become_a_message(front: bytes, rest: bytes) -> None:
    for raw in (front, header(True) + front, front + encode_message(body=rest)):
        [(properties, content)] = in_amqp091(payload(3, raw))
        assert len(content) <= len(raw)
        assert encode_properties(properties)


def test_a_converter_remembers_no_durability() -> None:
    converter = Converter()
    raw = message()
    modes = []
    for persistent in (True, False, True):
        frames = converter.slice(whole(payload(3, raw, persistent=persistent))).payload.raw
        assert frames is not None
        modes.append(decode_properties(property_section(frames)).delivery_mode)
    assert modes == [2, 1, 2]
