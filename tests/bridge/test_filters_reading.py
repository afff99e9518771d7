"""Where filters look: messages of every protocol, what the broker knows, bytes that are no message,
answers that are remembered."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallymark.bridge.amqp10.delivery import Outgoing
from tallymark.bridge.filters import filters_of
from tallymark.bridge.filters.message_filter import ANSWERS, MessageFilter
from tallymark.engine.message import Filter, Payload, Slice
from tallymark.stored.annotations import NEWEST_FORM, Annotations, Death, Route
from tallymark.stored.formats import AMQP091, NSQ
from tallymark.wire.amqp091.fields import Timestamp as Seconds
from tallymark.wire.amqp091.fields import WireInt
from tallymark.wire.amqp091.properties import Properties as Basic
from tallymark.wire.amqp10.codec import encode
from tallymark.wire.amqp10.sections import Header, Properties, Sections
from tallymark.wire.amqp10.types import Described, Symbol, UByte, UInt, ULong
from tests.bridge.filter_rig import NOW_MS, clock, message, payload_of
from tests.support.amqp091 import publish


def sql_filter(text: str) -> Filter:
    found, _ = filters_of({"f": Described(ULong(0x120), text)}, clock())
    assert found is not None
    return found


def amqp091(*messages: Basic, persistent: bool = True) -> Payload:
    cells = [
        publish(1, b"body", exchange="x", routing_key="k" * i, properties=one)
        for i, one in enumerate(messages)
    ]
    return payload_of(*cells, format=AMQP091, persistent=persistent)


# -- AMQP 0-9-1

BASIC = Basic(
    content_type="text/plain",
    content_encoding="gzip",
    headers={
        "color": "blue",
        "size": WireInt(5, "b"),
        "ratio": 0.5,
        "when": Seconds(7),
        "x-mine": "yes",
        "list": [1],
        "raw": b"\xff",
    },
    delivery_mode=2,
    priority=3,
    correlation_id="c",
    reply_to="answers",
    expiration="60000",
    message_id="m",
    timestamp=1000,
    type="a type",
    user_id="guest",
    app_id="the app",
)


@pytest.mark.parametrize(
    "text",
    [
        "color = 'blue' AND size = 5 AND ratio = 0.5 AND when = 7000 AND raw = 0xFF",
        "list IS NULL AND [x-mine] IS NULL",
        "h.priority = 3 AND h.durable AND h.ttl = 60000",
        "p.message_id = 'm' AND p.correlation_id = 'c' AND p.user_id = 'guest'",
        "p.reply_to = '/queues/answers'",
        "p.content_type = 'text/plain' AND p.content_encoding = 'gzip'",
        "p.creation_time = 1000000 AND p.group_id = 'the app'",
        "p.to IS NULL AND p.subject IS NULL",
        "m.[x-mine] = 'yes' AND m.[x-basic-type] = 'a type'",
        "m.[x-exchange] = 'the exchange'",
    ],
)
def test_messages_of_amqp_0_9_1_are_seen_as_they_are_shown(text: str) -> None:
    payload = amqp091(BASIC, Basic(), BASIC)
    found = sql_filter(text)
    empty = ("IS NULL" in text and "=" not in text) or text.startswith("m.[x-exchange]")
    assert [found.matches(payload, i, None) for i in range(3)] == [True, empty, True], text


def test_what_a_message_of_amqp_0_9_1_does_not_say() -> None:
    found = sql_filter("h.priority = 4 AND h.ttl IS NULL AND p.message_id IS NULL AND x IS NULL")
    assert found.matches(amqp091(Basic()), 0, None)
    durable = sql_filter("h.durable")
    assert durable.matches(amqp091(Basic(), persistent=True), 0, None)
    assert not durable.matches(amqp091(Basic(), persistent=False), 0, None)


def test_headers_that_cannot_be_read_are_not_there() -> None:
    broken = b"\x20\x00\x00\x00\x00\x04\x01k?\x00"
    cell = publish(1, b"", properties=broken)
    payload = payload_of(cell, format=AMQP091)
    assert sql_filter("k IS NULL AND p.message_id IS NULL").matches(payload, 0, None)


def test_priority_0_is_a_priority() -> None:
    found = sql_filter("h.priority = 0")
    assert found.matches(amqp091(Basic(priority=0)), 0, None)
    assert not found.matches(amqp091(Basic()), 0, None)
    assert found.matches(payload_of(message(header=Header(priority=UByte(0)))), 0, None)


# -- AMQP 1.0, written in other ways


def test_every_encoding_of_a_section() -> None:
    """Long codes where short ones would do, descriptors in full, by number and by name."""
    key, value = b"\xb1\0\0\0\1a", b"\xb1\0\0\0\1x"
    symbol = b"\xb3\0\0\0\1b\x54\2"
    entries = key + value + symbol
    long_map = b"\xd1" + (4 + len(entries)).to_bytes(4, "big") + b"\0\0\0\4" + entries
    long_list = b"\xd0\0\0\0\x0a\0\0\0\3\x40\xa0\1g\x40"
    body = b"\0\x53\x75\xa0\0"
    for number, name in [
        (0x74, b"amqp:application-properties:map"),
        (0x73, b"amqp:properties:list"),
    ]:
        content = long_map if number == 0x74 else long_list
        text = "a = 'x' AND b = 2" if number == 0x74 else "p.user_id = 'g' AND p.to IS NULL"
        for descriptor in (
            b"\x53" + bytes((number,)),
            b"\x80" + number.to_bytes(8, "big"),
            b"\xa3" + bytes((len(name),)) + name,
        ):
            for start in (b"", b"\0\x53\x77\x40"):  # an empty body in front, as some write it
                payload = payload_of(start + b"\0" + descriptor + content + body)
                assert sql_filter(text).matches(payload, 0, None), (number, descriptor, start)
                fronted = sql_filter(f"{text} AND m.[x-exchange] = 'the exchange'")
                assert fronted.matches(payload, 0, None), (number, descriptor, start)


# -- NSQ


def test_messages_of_nsq_have_no_properties() -> None:
    payload = payload_of(b"12345678" * 4, format=NSQ)
    assert sql_filter("x IS NULL AND p.to IS NULL AND h.ttl IS NULL").matches(payload, 0, None)
    assert sql_filter("h.priority = 4 AND h.durable").matches(payload, 0, None)
    assert sql_filter("m.[x-routing-key] = 'the.key'").matches(payload, 0, None)
    assert not sql_filter("x = 1").matches(payload, 0, None)


# -- what the broker and consumers say


def test_annotations_are_those_that_a_reader_is_shown() -> None:
    death = Death("q", "rejected", 1, "e", ("k",), 5, 5)
    known = Annotations(
        route=Route("letters", "dead"),
        deaths=(death,),
        first_death=("rejected", "q", "e"),
        last_death=("rejected", "q", "e"),
        form=NEWEST_FORM,
        notes=(("x-note", encode("from a consumer")), ("x-other", encode(7))),
    )
    cell = message(
        {"a": 1},
        header=Header(ttl=UInt(5)),
        annotations={
            "x-note": "from the publisher",
            "x-exchange": "a lie",
            "x-opt-deaths": "another",
            "x-first-death-queue": "one more",
        },
    )
    payload = payload_of(cell)
    rows = {
        "m.[x-note] = 'from a consumer'": "m.[x-note] = 'from the publisher'",
        "m.[x-other] = 7": "m.[x-other] IS NULL",
        "m.[x-exchange] = 'letters'": "m.[x-exchange] = 'the exchange'",
        "m.[x-routing-key] = 'dead'": "m.[x-routing-key] = 'the.key'",
        "m.[x-first-death-queue] = 'q'": "m.[x-first-death-queue] = 'one more'",
        "m.[x-opt-deaths] IS NOT NULL": "m.[x-opt-deaths] IS NULL",
        "h.ttl IS NULL": "h.ttl = 5",  # gone with the first death [DL-11]
    }
    for dead, alive in rows.items():
        for text, answer in ((dead, True), (alive, False)):
            found = sql_filter(text)
            assert found.matches(payload, 0, known) is answer, text
            assert found.matches(payload, 0, None) is not answer, text
    # A lock is the reader's own business.
    assert sql_filter("m.[x-opt-locked-until] IS NULL").matches(payload, 0, known)
    # The rest of the message is read behind such a front too.
    assert sql_filter("m.[x-other] = 7 AND a = 1").matches(payload, 0, known)


ANY = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False),
    st.text(max_size=5), st.binary(max_size=5), st.uuids(),
)  # fmt: skip


@settings(max_examples=150)
@given(
    st.dictionaries(st.text("abc", min_size=1, max_size=2), ANY, max_size=4),
    st.dictionaries(st.text("abc", min_size=1, max_size=2), st.text(max_size=3), max_size=3),
    st.booleans(),
    st.sampled_from([None, UByte(0), UByte(9)]),
    st.booleans(),
)
def test_filters_see_what_readers_are_sent(
    application: dict[str, object],
    notes: dict[str, object],
    annotated: bool,
    priority: int | None,
    with_properties: bool,
) -> None:
    """Each value of the message as it leaves, asked for by a filter of the message as it is
    kept."""
    cell = message(
        application,
        Properties(message_id="1", group_id="2") if with_properties else None,
        None if priority is None else Header(priority=priority),
        {f"x-{name}": value for name, value in notes.items()} if annotated else None,
    )
    payload = payload_of(cell)
    (run,) = Outgoing().runs(Slice(payload, 0, 1, 1, 0), False, 0)
    sent = run.front + run.raw[run.cuts[run.lo] + run.skip : run.cuts[run.lo + 1]]
    shown = Sections(sent, 0, len(sent))
    header = shown.header
    assert header is not None
    asked: dict[object, object] = {}
    conditions = [
        f"h.priority = {header.priority}",
        f"h.durable = {header.durable}",
        f"p.group_id IS {'NOT ' if with_properties else ''}NULL",
    ]
    properties: dict[object, object] = dict(shown.application_properties or {})
    asked["f"] = Described(ULong(0x174), {k: _said(v) for k, v in properties.items() if v != ""})
    for key, value in (shown.message_annotations or {}).items():
        if isinstance(value, str) and not any(c < " " or c == "\x7f" for c in value):
            text = value.replace("'", "''")
            conditions.append(f"m.[{key}] = '{text}'")
    asked["g"] = Described(ULong(0x120), " AND ".join(conditions))
    found, _ = filters_of(asked, clock())
    assert found is not None
    nil = any(value is None for value in properties.values())
    assert found.matches(payload, 0, None) is not nil


def _said(value: object) -> object:
    """As a property filter asks for it."""
    return f"&{value}" if isinstance(value, str) and value.startswith("&") else value


# -- bytes that are no message


@settings(max_examples=300)
@given(st.data())
def test_no_bytes_are_too_strange(data: st.DataObject) -> None:
    cell = message(
        {"a": 1, "b": "x", "c": [1, 2]},
        Properties(message_id="1", group_sequence=UInt(1)),
        Header(priority=UByte(1)),
        {"x-opt-a": 1},
    )
    kind = data.draw(st.sampled_from(["cut", "flip", "any"]))
    if kind == "cut":
        cell = cell[: data.draw(st.integers(0, len(cell)))]
    elif kind == "flip":
        at = data.draw(st.integers(0, len(cell) - 1))
        cell = cell[:at] + bytes((data.draw(st.integers(0, 255)),)) + cell[at + 1 :]
    else:
        cell = data.draw(st.binary(max_size=40))
    payload = payload_of(cell)
    for text in ("a = 1 OR b = 'x'", "p.group_sequence = 1", "h.priority = 1", "m.[x-opt-a] = 1"):
        for found in (sql_filter(text), sql_filter(f"NOT ({text})"), sql_filter("UTC() > 0")):
            assert found.matches(payload, 0, None) in (True, False)


def test_what_cannot_be_read_does_not_match() -> None:
    payload = payload_of(b"\x00\x53\x74\xc1\x05\x02\xa1\x01a\x99")
    assert not sql_filter("a IS NULL").matches(payload, 0, None)
    assert not sql_filter("a IS NOT NULL").matches(payload, 0, None)


# -- answers that are remembered


def test_messages_that_differ_elsewhere_share_an_answer() -> None:
    cells = [message({"a": 1}, Properties(message_id=f"{i}")) for i in range(50)]
    found = sql_filter("a = 1")
    assert isinstance(found, MessageFilter)
    payload = payload_of(*cells)
    assert all(found.matches(payload, i, None) for i in range(50))
    assert found.remembered == 1
    by_id = sql_filter("a = 1 AND p.message_id = '7'")
    assert [i for i in range(50) if by_id.matches(payload, i, None)] == [7]


def test_no_more_is_remembered_than_so_much() -> None:
    found = sql_filter("a % 2 = 0")
    assert isinstance(found, MessageFilter)
    for i in range(2 * ANSWERS + 10):
        assert found.matches(payload_of(message({"a": i})), 0, None) is (i % 2 == 0)
        assert found.remembered <= ANSWERS
    kept = found.remembered
    assert found.matches(payload_of(message({"a": 2, "long": "x" * 2000})), 0, None)
    assert found.remembered == kept


def test_sections_of_one_message_are_not_taken_for_those_of_another() -> None:
    """Application properties alone, and behind properties: other bytes decide."""
    first, second = message({"a": 1}), message({"a": 1}, Properties(to="x"))
    third = message(None, Properties(to="x"))
    found = sql_filter("a = 1 AND p.to IS NULL")
    payload = payload_of(first, second, third, first)
    assert [found.matches(payload, i, None) for i in range(4)] == [True, False, False, True]


def test_a_payload_of_many_protocols_worth() -> None:
    found = sql_filter("color = 'blue'")
    expected = {AMQP091: True, 3: True, NSQ: False}
    payloads = [amqp091(BASIC), payload_of(message({"color": "blue"})),
                payload_of(b"x" * 32, format=NSQ)]  # fmt: skip
    for _ in range(2):
        for payload in payloads:
            assert found.matches(payload, 0, None) is expected[payload.format]


def test_routes_of_single_messages() -> None:
    cells = [message({"a": 1}), message({"a": 1})]
    cuts = array("I", (0, len(cells[0]), len(cells[0]) * 2))
    routes = [Route("x", "one"), Route("x", "two")]
    payload = Payload(3, b"".join(cells), cuts, routes[0], routes, 1, NOW_MS, True, 0)
    found = sql_filter("m.[x-routing-key] = 'two'")
    assert [found.matches(payload, i, None) for i in range(2)] == [False, True]
    assert Symbol("two") == "two"
