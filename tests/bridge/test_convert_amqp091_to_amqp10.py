"""AMQP 0-9-1 publisher to AMQP 1.0 reader: every property, every kind of header, every body."""

from __future__ import annotations

import pytest

from tallymark.bridge.amqp10.delivery import Outgoing
from tallymark.bridge.conversion.amqp091_to_amqp10 import sections_of
from tallymark.engine.message import Slice
from tallymark.stored.annotations import Annotations, Route
from tallymark.wire.amqp091 import fields
from tallymark.wire.amqp091.fields import Float32, WireInt
from tallymark.wire.amqp091.properties import Properties as BasicProperties
from tallymark.wire.amqp091.properties import encode_properties
from tallymark.wire.amqp10.sections import (
    Properties,
    Sections,
    Sequences,
    Value,
    encode_message,
)
from tallymark.wire.amqp10.types import (
    Byte,
    Float,
    Int,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from tests.bridge.conversion import (
    SOME_UUID,
    URN,
    in_amqp10,
    only,
    payload,
    published,
    same,
    sent,
    values,
    whole,
)
from tests.bridge.test_annotated import annotations
from tests.support.amqp091 import publish

PLACE = {Symbol("x-exchange"): "ex", Symbol("x-routing-key"): "rk"}


def read(properties: BasicProperties, content: bytes = b"body") -> Sections:
    [found] = in_amqp10(payload(1, published(properties, content)))
    return found


def annotations_of(properties: BasicProperties) -> dict[object, object]:
    """Those that come of the properties."""
    found = read(properties).message_annotations
    assert found is not None
    assert same({key: found.pop(key) for key in PLACE}, PLACE)
    return found


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("content_type", "text/plain", Properties(content_type="text/plain")),
        ("content_type", "", Properties(content_type="")),
        ("content_encoding", "gzip", Properties(content_encoding="gzip")),
        ("correlation_id", "c 1", Properties(correlation_id="c 1")),
        ("correlation_id", URN, Properties(correlation_id=SOME_UUID)),
        ("correlation_id", URN.upper(), Properties(correlation_id=URN.upper())),
        ("correlation_id", "\udcff", Properties(correlation_id=b"\xff")),
        ("reply_to", "answers", Properties(reply_to="/queues/answers")),
        ("reply_to", "a/ß %", Properties(reply_to="/queues/a%2F%C3%9F%20%25")),
        ("reply_to", "\udcff", Properties(reply_to="/queues/%FF")),
        ("reply_to", "/exchanges/e/k", Properties(reply_to="/exchanges/e/k")),
        ("reply_to", "/exchanges/ß/%2F", Properties(reply_to="/exchanges/ß/%2F")),
        ("reply_to", "/exchanges/%/\udcff", Properties(reply_to="/exchanges/%/%FF")),
        ("message_id", "m", Properties(message_id="m")),
        ("message_id", "7", Properties(message_id="7")),
        ("message_id", URN, Properties(message_id=SOME_UUID)),
        ("message_id", "urn:uuid:" + "-" * 36, Properties(message_id="urn:uuid:" + "-" * 36)),
        ("timestamp", 1_700_000_000, Properties(creation_time=1_700_000_000_000)),
        ("timestamp", 0, Properties(creation_time=0)),
        ("user_id", "guest", Properties(user_id=b"guest")),
        ("user_id", "\udcffü", Properties(user_id=b"\xff\xc3\xbc")),
        ("app_id", "app", Properties(group_id="app")),
        ("headers", {"x-to": "/queues/t"}, Properties(to="/queues/t")),
        ("headers", {"x-subject": "s"}, Properties(subject="s")),
        ("headers", {"x-reply-to-group-id": "g"}, Properties(reply_to_group_id="g")),
        ("headers", {"x-group-sequence": WireInt(2**32 - 1, "i")},
         Properties(group_sequence=2**32 - 1)),
        ("headers", {"x-absolute-expiry-time": fields.Timestamp(9)},
         Properties(absolute_expiry_time=9000)),
        ("headers", {"x-message-id": b"\xff\0"}, Properties(message_id=b"\xff\0")),
        ("headers", {"x-message-id": "i" * 256}, Properties(message_id="i" * 256)),
        ("headers", {"x-correlation-id": b""}, Properties(correlation_id=b"")),
        ("headers", {"x-user-id": b"\xff"}, Properties(user_id=b"\xff")),
        ("headers", {"x-reply-to": "r" * 256}, Properties(reply_to="r" * 256)),
        ("headers", {"x-group-id": "g" * 256}, Properties(group_id="g" * 256)),
        ("headers", {"x-content-type": "t" * 256}, Properties(content_type="t" * 256)),
        ("headers", {"x-content-encoding": "e" * 256}, Properties(content_encoding="e" * 256)),
    ],
)  # fmt: skip
def test_a_property_becomes_a_property(name: str, value: object, expected: Properties) -> None:
    found = read(BasicProperties(**{name: value}))  # type: ignore[arg-type]
    assert found.properties == expected
    assert found.application_properties is None
    assert annotations_of(BasicProperties(**{name: value})) == {}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value", "annotation"),
    [
        ("type", "order", {"x-basic-type": "order"}),
        ("type", "\udcff", {"x-basic-type": b"\xff"}),
        ("cluster_id", "cl", {"x-basic-cluster-id": "cl"}),
        ("content_type", "ü", {"x-basic-content-type": "ü"}),
        ("content_encoding", "\udcff", {"x-basic-content-encoding": b"\xff"}),
        ("app_id", "\udcff", {"x-basic-app-id": b"\xff"}),
        ("timestamp", 2**64 - 1, {"x-basic-timestamp": ULong(2**64 - 1)}),
        ("delivery_mode", 0, {"x-basic-delivery-mode": UByte(0)}),
        ("delivery_mode", 3, {"x-basic-delivery-mode": UByte(3)}),
        ("expiration", str(2**32), {"x-basic-expiration": str(2**32)}),
    ],
)
def test_a_property_without_a_place_in_1_0_becomes_an_annotation(
    name: str, value: object, annotation: dict[str, object]
) -> None:
    properties = BasicProperties(**{name: value})  # type: ignore[arg-type]
    expected = {Symbol(key): item for key, item in annotation.items()}
    assert same(annotations_of(properties), expected)
    assert read(properties).properties is None


@pytest.mark.parametrize(
    ("properties", "header"),
    [
        (BasicProperties(), [True, None, None, True]),
        (BasicProperties(priority=0), [True, UByte(0), None, True]),
        (BasicProperties(priority=255), [True, UByte(255), None, True]),
        (BasicProperties(expiration="0"), [True, None, UInt(0), True]),
        (BasicProperties(expiration=str(2**32 - 1)), [True, None, UInt(2**32 - 1), True]),
        (BasicProperties(expiration="+60"), [True, None, UInt(60), True]),
    ],
)
def test_priority_and_expiration_are_in_the_header(
    properties: BasicProperties, header: list[object]
) -> None:
    message = sent(Outgoing().runs(whole(payload(1, published(properties))), False, 0))[0]
    first = values(message)[0]
    assert same(getattr(first, "descriptor", None), ULong(0x70))
    assert same(getattr(first, "value", None), header)


@pytest.mark.parametrize("persistent", [True, False])
def test_durable_is_what_the_broker_did(persistent: bool) -> None:
    mode = 2 if persistent else 1
    stored = payload(1, published(BasicProperties(delivery_mode=mode)), persistent=persistent)
    [found] = in_amqp10(stored)
    assert found.header is not None
    assert found.header.durable is persistent


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, True),
        (WireInt(-3, "b"), Byte(-3)),
        (WireInt(3, "B"), UByte(3)),
        (WireInt(9, "u"), UShort(9)),
        (7, Int(7)),
        (WireInt(7, "i"), UInt(7)),
        (2**40, 2**40),
        (Float32(0.5), Float(0.5)),
        (0.1, 0.1),
        ("text", "text"),
        ("long " * 100, "long " * 100),
        (b"\xff", b"\xff"),
        ("\udcff", b"\xff"),
        (fields.Timestamp(5), Timestamp(5000)),
        (None, None),
    ],
)
def test_a_header_of_each_type_is_an_application_property_or_an_annotation(
    value: object, expected: object
) -> None:
    found = read(BasicProperties(headers={"k": value, "x-k": value}))
    assert same(found.application_properties, {"k": expected})
    known = annotations_of(BasicProperties(headers={"k": value, "x-k": value}))
    assert same(known, {Symbol("x-k"): expected})


def test_headers_that_application_properties_have_no_room_for_are_in_a_map() -> None:
    headers: dict[str, object] = {
        "list": [1, "a"],
        "table": {"a": {"b": True}},
        "\udcff": "not UTF-8",
        "x-\udcff": 1,
        "x-é": 2,
        "x-exchange": "forged",
        "x-opt-deaths": [],
        "x-cc": "not CC",
        "x-basic-type": "not the type",
        "x-opt-headers": {},
        "plain": 1,
    }
    properties = BasicProperties(headers=headers)
    assert same(read(properties).application_properties, {"plain": Int(1)})
    assert same(
        annotations_of(properties),
        {
            Symbol("x-opt-headers"): {
                Symbol("list"): [Int(1), "a"],
                Symbol("table"): {Symbol("a"): {Symbol("b"): True}},
                b"\xff": "not UTF-8",
                b"x-\xff": Int(1),
                "x-é": Int(2),
                Symbol("x-exchange"): "forged",
                Symbol("x-opt-deaths"): [],
                Symbol("x-cc"): "not CC",
                Symbol("x-basic-type"): "not the type",
                Symbol("x-opt-headers"): {},
            }
        },
    )


def test_an_x_header_keeps_lists_and_tables() -> None:
    death: dict[str, object] = {"queue": "q", "count": WireInt(1, "l"), "routing-keys": ["rk"]}
    assert same(
        annotations_of(BasicProperties(headers={"x-death": [death]})),
        {
            Symbol("x-death"): [
                {Symbol("queue"): "q", Symbol("count"): 1, Symbol("routing-keys"): ["rk"]}
            ]
        },
    )


def test_dl_10_cc_is_shown_as_x_cc() -> None:
    found = annotations_of(BasicProperties(headers={"CC": ["a", "b"]}))
    assert same(found, {Symbol("x-cc"): ["a", "b"]})
    assert read(BasicProperties(headers={"CC": "text"})).application_properties == {"CC": "text"}


@pytest.mark.parametrize(
    ("headers", "properties"),
    [
        ({"x-message-id": "short"}, {}),
        ({"x-message-id": b"b"}, {"message_id": "there"}),
        ({"x-correlation-id": 5}, {}),
        ({"x-user-id": b"text"}, {}),
        ({"x-to": "\udcff"}, {}),
        ({"x-subject": 1}, {}),
        ({"x-group-sequence": 1}, {}),
        ({"x-absolute-expiry-time": fields.Timestamp(2**60)}, {}),
        ({"x-content-type": "ü" * 200}, {}),
        ({"x-reply-to": "short"}, {}),
    ],
)
def test_a_header_that_is_named_like_a_property_but_is_none_stays_a_header(
    headers: dict[str, object], properties: dict[str, object]
) -> None:
    [name] = headers
    known = annotations_of(BasicProperties(headers=headers, **properties))  # type: ignore[arg-type]
    assert list(known) == [Symbol(name)]


def test_what_is_nested_deeper_than_1_0_goes_is_left_out() -> None:
    value: object = 1
    for _ in range(64):
        value = [value]
    known = annotations_of(BasicProperties(headers={"x-deep": value, "deep": value, "k": [1]}))
    assert same(known, {Symbol("x-opt-headers"): {Symbol("k"): [Int(1)]}})


def test_a_table_that_nobody_can_read_is_not_there() -> None:
    good = encode_properties(BasicProperties(content_type="t", headers={"k": 1}, message_id="m"))
    assert good.count(b"\x01kI") == 1
    [found] = in_amqp10(payload(1, published(good.replace(b"\x01kI", b"\x01k?"))))
    assert found.properties == Properties(content_type="t", message_id="m")
    assert found.application_properties is None


@pytest.mark.parametrize("size", [0, 1, 255, 256, 300_000])
@pytest.mark.parametrize("frame_max", [4096, 131_072])
def test_a_body_is_one_data_section(size: int, frame_max: int) -> None:
    content = bytes(i & 255 for i in range(size))
    raw = publish(1, content, properties=BasicProperties(), frame_max=frame_max)
    [found] = in_amqp10(payload(1, raw))
    assert found.body_kind == "data"
    assert found.bodies == [content]


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (encode_message(body=Value("text")), "value"),
        (encode_message(body=Value(None), footer={Symbol("x-f"): 1}), "value"),
        (encode_message(body=Sequences([1], [2, "x"])), "sequence"),
    ],
)
def test_a_body_of_the_type_amqp_1_0_is_that_body(body: bytes, kind: str) -> None:
    found = read(BasicProperties(type="amqp-1.0"), body)
    assert found.body_kind == kind
    assert found.data[found.bounds[-1][1] - len(body) :].endswith(body)
    assert found.message_annotations is not None
    assert Symbol("x-basic-type") not in found.message_annotations


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"text",
        encode_message(body=b"data"),
        encode_message(body=Value(1)) * 2,
        encode_message(body=Value(1))[:-1],
        encode_message(properties=Properties(to="x"), body=Value(1)),
        b"\0\x53\x77\xc1\x05\x03\x41\x41\x41\x41",
    ],
)
def test_a_body_that_only_says_so_is_data(body: bytes) -> None:
    found = read(BasicProperties(type="amqp-1.0"), body)
    assert found.bodies == [body]
    assert found.message_annotations is not None
    assert found.message_annotations[Symbol("x-basic-type")] == "amqp-1.0"


def test_messages_of_one_front_are_one_run() -> None:
    """However much their own properties and bodies differ."""
    sections = [BasicProperties(message_id=f"m{i}", headers={"n": i}) for i in range(5)]
    stored = payload(1, *[published(each, b"x" * i) for i, each in enumerate(sections)])
    runs = Outgoing().runs(whole(stored), False, 0)
    assert len(runs) == 1
    found = [Sections(raw, 0, len(raw)) for raw in sent(runs)]
    assert [each.properties for each in found] == [Properties(message_id=f"m{i}") for i in range(5)]
    assert [each.application_properties for each in found] == [{"n": i} for i in range(5)]
    assert [each.bodies for each in found] == [[b"x" * i] for i in range(5)]


def test_runs_end_where_fronts_or_routes_change() -> None:
    plain, urgent = published(BasicProperties()), published(BasicProperties(priority=9))
    one, other = Route("ex", "1"), Route("ex", "2")
    stored = payload(1, plain, plain, urgent, urgent, plain, routes=[one, one, one, other, other])
    piece = Slice(stored, 1, 5, 1, 0)
    runs = Outgoing().runs(piece, False, 0)
    assert [(run.lo, run.hi) for run in runs] == [(0, 1), (1, 2), (2, 3), (3, 4)]
    found = [Sections(raw, 0, len(raw)) for raw in sent(runs)]
    keys = [(each.message_annotations or {})[Symbol("x-routing-key")] for each in found]
    assert keys == ["1", "1", "2", "2"]
    priorities = [each.header.priority for each in found if each.header]
    assert priorities == [4, 9, 9, 4]


def test_dl_11_a_dead_letter_has_lost_its_time_to_live() -> None:
    for expiration in ("60000", str(2**32)):
        stored = payload(1, published(BasicProperties(expiration=expiration)))
        [found] = in_amqp10(stored, annotations())
        assert found.header is not None
        assert found.header.ttl is None
        assert Symbol("x-basic-expiration") not in (found.message_annotations or {})


def test_dl_18_a_clients_own_history_is_shown_until_it_dies_and_never_as_ours() -> None:
    own = BasicProperties(headers={"x-death": "mine", "x-first-death-queue": "mine"})
    stored = payload(1, published(own))
    [alive] = in_amqp10(stored)
    known = alive.message_annotations or {}
    assert known[Symbol("x-death")] == "mine"
    assert known[Symbol("x-first-death-queue")] == "mine"
    assert Symbol("x-opt-deaths") not in known
    [dead] = in_amqp10(stored, annotations())
    known = dead.message_annotations or {}
    assert Symbol("x-death") not in known
    assert known[Symbol("x-first-death-queue")] == "q"
    death = only(known[Symbol("x-opt-deaths")])
    assert death["queue"] == "q"


def test_a_converter_tells_sections_apart_that_begin_alike() -> None:
    short = encode_properties(BasicProperties(cluster_id="a"))
    longer = encode_properties(BasicProperties(cluster_id="ab"))
    stored = payload(1, *[published(each) for each in (short, longer, short, short)])
    found = [each.message_annotations or {} for each in in_amqp10(stored)]
    assert [each[Symbol("x-basic-cluster-id")] for each in found] == ["a", "ab", "a", "a"]


def test_what_filters_look_at_is_what_readers_are_shown() -> None:
    section = encode_properties(
        BasicProperties(priority=3, message_id="m", headers={"k": 1, "x-a": 2}, type="t")
    )
    front, bare = sections_of(section)
    assert front.priority == 3
    assert [entry[0] for entry in front.entries] == ["x-a", "x-basic-type"]
    [shown] = sent(Outgoing().runs(whole(payload(1, published(section))), False, 0))
    assert shown.endswith(bare + b"\0\x53\x75\xa0\x04body")
    assert [getattr(each, "value", None) for each in values(bare)] == [["m"], {"k": 1}]


def test_annotations_say_where_it_is_and_not_where_it_was() -> None:
    known = Annotations(route=Route("dlx", "new"))
    stored = payload(1, published(BasicProperties()), routes=[Route("ex", "old")])
    [found] = in_amqp10(stored, known)
    place = replace_keys(found.message_annotations)
    assert (place["x-exchange"], place["x-routing-key"]) == ("dlx", "new")


def replace_keys(found: dict[object, object] | None) -> dict[str, object]:
    return {str(key): value for key, value in (found or {}).items()}
