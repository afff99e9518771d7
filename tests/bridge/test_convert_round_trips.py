"""From one protocol to another and back: nothing is lost but what docs/conversion.md says."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tallymark.bridge.amqp10.delivery import Outgoing
from tallymark.wire.amqp091 import fields
from tallymark.wire.amqp091.fields import WireInt, encode_table
from tallymark.wire.amqp091.properties import Properties as BasicProperties
from tallymark.wire.amqp10.sections import Properties, encode_message
from tallymark.wire.amqp10.types import Symbol, ULong
from tests.bridge.conversion import (
    facts,
    in_amqp091,
    in_amqp10,
    message,
    payload,
    published,
    same,
    sent,
    whole,
)
from tests.support.amqp091 import publish
from tests.wire.amqp091.test_fields import tables
from tests.wire.test_conversion_values import lossy

short = st.text(max_size=60).filter(lambda text: len(text.encode("utf-8", "surrogateescape")) < 256)
loose = short | st.binary(max_size=40).map(lambda raw: raw.decode("utf-8", "surrogateescape"))
ids = loose | st.uuids().map(lambda one: f"urn:uuid:{one}")
names = st.sampled_from(
    [
        "x-to",
        "x-subject",
        "x-message-id",
        "x-correlation-id",
        "x-user-id",
        "x-group-sequence",
        "x-absolute-expiry-time",
        "x-reply-to",
        "x-content-type",
        "x-opt-headers",
        "x-cc",
        "CC",
        "x-exchange",
        "x-death",
        "x-opt-mine",
        "x-basic-type",
        "x-é",
    ]
)
of_names = st.one_of(
    st.text(max_size=300),
    st.binary(max_size=300),
    st.lists(st.text(max_size=4), max_size=3),
    st.dictionaries(st.text(max_size=4), st.booleans(), max_size=3),
    st.integers(0, 2**32 - 1).map(lambda n: WireInt(n, "i")),
    st.integers(0, 2**40).map(fields.Timestamp),
)
headers = st.builds(lambda one, two: {**one, **two}, tables, st.dictionaries(names, of_names))
sections = st.builds(
    BasicProperties,
    content_type=st.none() | loose,
    content_encoding=st.none() | loose,
    headers=st.none() | headers,
    delivery_mode=st.none() | st.integers(0, 255),
    priority=st.none() | st.integers(0, 255),
    correlation_id=st.none() | ids,
    reply_to=st.none() | loose,
    expiration=st.none() | st.integers(0, 2**33).map(str),
    message_id=st.none() | ids,
    timestamp=st.none() | st.integers(0, 2**64 - 1),
    type=st.none() | loose | st.just("amqp-1.0"),
    user_id=st.none() | loose,
    app_id=st.none() | loose,
    cluster_id=st.none() | loose,
)


def is_text(text: str) -> bool:
    return not any("\ud800" <= c <= "\udfff" for c in text)


def documented(original: BasicProperties, persistent: bool) -> BasicProperties:
    """What comes back: the list of docs/conversion.md."""
    expected = replace(original)
    table = lossy(original.headers or {})
    assert isinstance(table, dict)
    # an id that is no text comes back as a header, and a header that looks like a long user-id...
    for name in ("message_id", "correlation_id"):
        value = getattr(original, name)
        if value is not None and not is_text(value):
            setattr(expected, name, None)
            table[f"x-{name.replace('_', '-')}"] = value.encode("utf-8", "surrogateescape")
    if original.user_id is not None and not is_text(original.user_id):
        expected.user_id = None
        table["x-user-id"] = original.user_id.encode("utf-8", "surrogateescape")
    # delivery-mode is what the broker did; what it does not know stays
    if original.delivery_mode is None or 1 <= original.delivery_mode <= 2:
        expected.delivery_mode = 2 if persistent else 1
    expected.headers = table or None
    return expected


def there_and_back(
    properties: BasicProperties, content: bytes, persistent: bool
) -> tuple[BasicProperties, bytes]:
    stored = payload(1, published(properties, content), persistent=persistent)
    [raw] = sent(Outgoing().runs(whole(stored), False, 0))
    [found] = in_amqp091(payload(3, raw, persistent=persistent))
    return found


@given(sections, st.binary(max_size=300), st.booleans())
def test_from_0_9_1_to_1_0_and_back(
    original: BasicProperties, content: bytes, persistent: bool
) -> None:
    found, body = there_and_back(original, content, persistent)
    expected = documented(original, persistent)
    assert body == content
    assert encode_sorted(found) == encode_sorted(expected)


def encode_sorted(properties: BasicProperties) -> tuple[BasicProperties, bytes]:
    """Equal for equal properties with equal types in their headers, in whatever order."""
    table = properties.headers or {}
    return replace(properties, headers=None), encode_table(dict(sorted(table.items())))


@given(sections, st.binary(max_size=30), st.booleans())
def test_what_came_back_once_stays_as_it_is(
    original: BasicProperties, content: bytes, persistent: bool
) -> None:
    once = there_and_back(original, content, persistent)
    again = there_and_back(*once, persistent)
    assert (encode_sorted(again[0]), again[1]) == (encode_sorted(once[0]), once[1])


symbols = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=300).map(Symbol)
texts = st.text(max_size=300)
ids_1_0 = st.one_of(texts, st.binary(max_size=300), st.uuids())
properties_1_0 = st.builds(
    Properties,
    message_id=st.none() | ids_1_0,
    user_id=st.none() | st.binary(max_size=300),
    to=st.none() | texts,
    subject=st.none() | texts,
    reply_to=st.none() | short.map(lambda name: f"/exchanges/{name}") | st.just("/queues/a%20b"),
    correlation_id=st.none() | ids_1_0,
    content_type=st.none() | symbols,
    content_encoding=st.none() | symbols,
    absolute_expiry_time=st.none() | st.integers(0, 2**40).map(lambda s: s * 1000),
    creation_time=st.none() | st.integers(0, 2**40).map(lambda s: s * 1000),
    group_id=st.none() | texts,
    group_sequence=st.none() | st.integers(0, 2**32 - 1),
    reply_to_group_id=st.none() | texts,
)


@given(properties_1_0, st.binary(max_size=300))
def test_the_properties_of_1_0_come_back_from_0_9_1(original: Properties, content: bytes) -> None:
    """All of whole seconds, but for a ulong id, which comes back as text."""
    stored = payload(3, message(original, body=content))
    [(properties, body)] = in_amqp091(stored)
    [found] = in_amqp10(payload(1, publish(1, body, properties=properties)))
    assert found.bodies == [content]
    expected = replace(original)
    if isinstance(original.message_id, str) and original.message_id.startswith("urn:uuid:"):
        expected.message_id = found.properties and found.properties.message_id
    assert (found.properties or Properties()) == expected
    assert same(
        [type(value) for value in facts(found.properties or Properties()).values()],
        [type(value) for value in facts(expected).values()],
    )


def test_a_ulong_id_comes_back_as_text() -> None:
    [(properties, _)] = in_amqp091(payload(3, message(Properties(message_id=ULong(7)))))
    [found] = in_amqp10(payload(1, published(properties)))
    assert found.properties == Properties(message_id="7")


def test_a_value_comes_back_as_it_was() -> None:
    raw = encode_message(body={Symbol("k"): [1, None]}, footer={Symbol("x-f"): 1})
    [(properties, body)] = in_amqp091(payload(3, raw))
    [found] = in_amqp10(payload(1, publish(1, body, properties=properties)))
    assert (found.bodies, found.footer) == ([{"k": [1, None]}], {"x-f": 1})


def test_annotations_come_back_as_annotations() -> None:
    known: dict[object, object] = {
        Symbol("x-opt-a"): {Symbol("b"): [1, "c"]},
        Symbol("x-cc"): ["k"],
    }
    raw = encode_message(message_annotations=known, body=b"")
    [(properties, _)] = in_amqp091(payload(3, raw))
    [found] = in_amqp10(payload(1, published(properties)))
    shown = dict(found.message_annotations or {})
    del shown[Symbol("x-exchange")], shown[Symbol("x-routing-key")]
    assert same(dict(sorted(shown.items())), dict(sorted(known.items())))
