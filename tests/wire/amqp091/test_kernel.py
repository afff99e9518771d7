"""The hot loops against plain models of what they do."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark.wire.amqp091 import frames
from tallymark.wire.amqp091.deliveries import (
    encode_deliveries,
    encode_mixed_deliveries,
    rechannel,
    reframe,
)
from tallymark.wire.amqp091.kernel import (
    KNOWN_MAX,
    PERSISTENT,
    SPECIAL,
    PublishReceived,
    ack_prefix,
    prelude_of,
    scan_acks,
    scan_publishes,
)
from tallymark.wire.amqp091.methods import BasicDeliver
from tallymark.wire.amqp091.properties import Properties, encode_properties
from tests.support.amqp091 import ack, messages, method_frame, publish

PERSISTENT_TEXT = Properties(content_type="text/plain", delivery_mode=2)


def scan(
    data: bytes, *, pos: int = 0, frame_limit: int = 131_072, body_limit: int = 2**27
) -> PublishReceived | None:
    return scan_publishes(data, pos, len(data), 1, frame_limit, body_limit, {})


def test_one_route_is_one_stretch_with_one_method_frame() -> None:
    raw = publish(1, b"x" * 100, properties=PERSISTENT_TEXT) * 5
    event = scan(raw)
    assert event is not None
    assert (event.raw, len(event), event.starts) == (raw, 5, [0])
    assert event.methods == [raw[: frames.frame_length(raw, 0)]]
    assert event.facts == PERSISTENT
    assert event.properties == encode_properties(PERSISTENT_TEXT)
    assert event.uniform
    assert event.largest_frame == 108


def test_routes_sizes_and_harmless_properties_may_vary_within_a_stretch() -> None:
    parts = [
        publish(1, b"a" * 10, routing_key="a", properties=Properties(message_id="1")),
        publish(1, b"a" * 10, routing_key="a", properties=Properties(message_id="2")),
        publish(1, b"", routing_key="b", properties=Properties(message_id="2")),
        publish(1, b"", routing_key="b", properties=Properties(message_id="2")),
        publish(1, b"a" * 300, routing_key="a", properties=Properties(headers={"n": 1})),
        publish(1, b"a" * 301, routing_key="a", properties=Properties(headers={"n": 1})),
        publish(1, b"a" * 302, routing_key="a", properties=Properties(headers={"n": 1})),
        publish(1, b"a" * 302, routing_key="c", properties=Properties(headers={"n": 1})),
    ]
    event = scan(b"".join(parts))
    assert event is not None
    assert [message[3] for message in messages(event)] == parts
    assert event.starts == [0, 2, 4, 7]
    assert not event.uniform
    assert event.largest_frame == 310


@pytest.mark.parametrize(
    "other",
    [
        Properties(delivery_mode=2),
        Properties(expiration="5"),
        Properties(user_id="guest"),
        Properties(reply_to="amq.rabbitmq.reply-to"),
        Properties(headers={"CC": ["k"]}),
        Properties(headers={"BCC": ["k"]}),
        Properties(headers={"x-delay": 5}),
    ],
)
def test_other_facts_begin_another_stretch(other: Properties) -> None:
    plain = publish(1, b"1", properties=Properties(delivery_mode=1))
    raw = plain * 2 + publish(1, b"1", properties=other) * 3 + plain
    event = scan(raw)
    assert event is not None
    assert len(event) == 2
    event = scan(raw, pos=len(event.raw))
    assert event is not None
    assert len(event) == 3
    assert event.facts in (PERSISTENT, SPECIAL)
    assert event.uniform


def test_specials_with_other_properties_are_apart() -> None:
    raw = publish(1, b"1", properties=Properties(expiration="5"))
    raw += publish(1, b"1", properties=Properties(expiration="6"))
    event = scan(raw)
    assert event is not None
    assert len(event) == 1


GOOD = publish(1, b"x" * 50, properties=PERSISTENT_TEXT)


BEFORE = {
    "one like it": GOOD,
    "several like it": GOOD * 3,
    "several of other sizes": b"".join(
        publish(1, b"x" * size, properties=PERSISTENT_TEXT) for size in (40, 41, 42)
    ),
    "another route": publish(1, b"x" * 50, routing_key="z", properties=PERSISTENT_TEXT),
}


@pytest.mark.parametrize("before", BEFORE.values(), ids=BEFORE.keys())
@pytest.mark.parametrize("at", range(len(GOOD)))
def test_a_changed_byte_never_makes_it_wrong(at: int, before: bytes) -> None:
    """What the scan takes reads the same frame by frame, and it stops before what does not."""
    for value in (0, 1, 2, 3, 60, 0xCE, 0xFF, GOOD[at] ^ 1):
        bad = GOOD[:at] + bytes((value,)) + GOOD[at + 1 :]
        event = scan(before + bad + GOOD)
        assert event is not None
        pos = 0
        for cut in event.cuts[1:]:
            method, header, *body = walk(event.raw[pos:cut])
            assert {frame[1:3] for frame in (method, header, *body)} == {b"\0\1"}
            assert (method[0], header[0]) == (1, 2)
            assert [frame[0] for frame in body] in ([], [3])
            assert int.from_bytes(header[11:19], "big") == sum(len(frame) - 8 for frame in body)
            pos = cut


def walk(raw: bytes) -> list[bytes]:
    found = []
    pos = 0
    while pos < len(raw):
        after = pos + frames.frame_length(raw, pos)
        assert after <= len(raw)
        assert raw[after - 1] == frames.FRAME_END
        found.append(raw[pos:after])
        pos = after
    return found


@pytest.mark.parametrize("before", BEFORE.values(), ids=BEFORE.keys())
@pytest.mark.parametrize("cut", range(len(GOOD)))
def test_an_incomplete_message_is_left(cut: int, before: bytes) -> None:
    event = scan(before + GOOD[:cut])
    assert event is not None
    assert event.raw == before
    assert scan(GOOD[:cut]) is None


@pytest.mark.parametrize("before", BEFORE.values(), ids=BEFORE.keys())
def test_a_message_without_body_ends_with_its_header(before: bytes) -> None:
    empty = publish(1, b"", properties=PERSISTENT_TEXT)
    raw = before + empty + frames.frame(frames.BODY, 1, b"")
    taken = b""
    while (event := scan(raw, pos=len(taken))) is not None:
        taken += event.raw
    assert taken == before + empty


def fields(event: PublishReceived | None) -> tuple[object, ...]:
    assert event is not None
    return (
        event.channel, event.raw, list(event.cuts), event.starts, event.methods, event.facts,
        event.properties, event.uniform, event.largest_frame,
    )  # fmt: skip


ALONE = {
    "persistent": PERSISTENT_TEXT,
    "special": Properties(reply_to="amq.rabbitmq.reply-to"),
    "bare": Properties(),
}


@pytest.mark.parametrize("properties", ALONE.values(), ids=ALONE.keys())
def test_a_message_that_begins_like_the_last_one_is_found_by_that(properties: Properties) -> None:
    one, other = (publish(1, body * 50, properties=properties) for body in (b"x", b"y"))
    before = scan(one)
    assert before is not None
    prelude = prelude_of(before)
    assert prelude is not None
    found = prelude.next(other, 0)
    assert fields(found) == fields(scan(other)) != fields(before)
    for behind in (ack(1, 1), publish(2, b"z"), other[:10], b"\1"):
        found = prelude.next(ack(1, 1) + other + behind, 21)
        assert fields(found) == fields(scan(other))
    assert prelude.next(other + publish(1, b"z", routing_key="z"), 0) is None
    assert prelude.next(other[:-1] + b"\0", 0) is None


@pytest.mark.parametrize("at", range(len(GOOD)))
def test_a_changed_byte_before_its_body_or_one_less_is_another_prelude(at: int) -> None:
    before = scan(GOOD)
    assert before is not None
    prelude = prelude_of(before)
    assert prelude is not None
    assert prelude.next(GOOD[:at], 0) is None
    bad = GOOD[:at] + bytes((GOOD[at] ^ 1,)) + GOOD[at + 1 :]
    is_body = len(GOOD) - 51 <= at < len(GOOD) - 1
    assert (prelude.next(bad, 0) is not None) == is_body


@pytest.mark.parametrize("message", [
    publish(1, b"", properties=PERSISTENT_TEXT),
    publish(1, b"x", properties=Properties(headers={"long": "x" * 1000})),
])  # fmt: skip
def test_without_a_body_or_with_much_before_it_nothing_is_remembered(message: bytes) -> None:
    event = scan(message)
    assert event is not None
    assert prelude_of(event) is None


def test_limits_are_left_to_the_connection() -> None:
    assert scan(GOOD, frame_limit=49) is None
    assert scan(GOOD, body_limit=49) is None
    big = publish(1, b"x" * 90, properties=PERSISTENT_TEXT)
    bigger = publish(1, b"x" * 91, properties=PERSISTENT_TEXT)
    event = scan(GOOD * 2 + big + bigger, body_limit=90)
    assert event is not None
    assert len(event) == 3


def test_the_memory_for_method_frames_is_bounded() -> None:
    known: dict[bytes, bytes] = {}
    raw = b"".join(publish(1, b"", routing_key=str(n)) for n in range(KNOWN_MAX + 100))
    event = scan_publishes(raw, 0, len(raw), 1, 131_072, 2**27, known)
    assert event is not None
    assert len(event.methods) == KNOWN_MAX + 100
    assert len(known) == 100


def test_acks_in_a_row_are_one_range() -> None:
    raw = b"".join(ack(1, tag) for tag in (5, 6, 7, 9)) + ack(1, 10, True) + ack(1, 0, True)
    ranges = []
    pos = 0
    while pos < len(raw):
        pos, first, last, multiple = scan_acks(raw, pos, len(raw), ack_prefix(1))
        ranges.append((first, last, multiple))
    assert ranges == [(5, 7, False), (9, 9, False), (10, 10, True), (0, 0, True)]
    assert scan_acks(raw[:20], 0, 20, ack_prefix(1))[0] == 0
    assert scan_acks(raw, 0, len(raw), ack_prefix(2))[0] == 0
    top = ack(1, 2**64 - 1)
    assert scan_acks(top, 0, 21, ack_prefix(1)) == (21, 2**64 - 1, 2**64 - 1, False)


bodies = st.lists(st.binary(max_size=60), min_size=1, max_size=8)


@given(bodies, st.integers(1, 2**63 - 9), st.data())
def test_deliveries_are_what_encoding_one_by_one_gives(
    sizes: list[bytes], tag: int, data: st.DataObject
) -> None:
    keys = [data.draw(st.sampled_from(["a", "bb", "ccc"])) for _ in sizes]
    parts = [publish(1, body, routing_key=key) for body, key in zip(sizes, keys, strict=True)]
    raw = b"".join(parts)
    cuts = array("I", [sum(map(len, parts[:i])) for i in range(len(parts) + 1)])
    lo = data.draw(st.integers(0, len(parts) - 1))
    hi = data.draw(st.integers(lo + 1, len(parts)))
    prefixes, suffixes, expected = [], [], b""
    for i in range(lo, hi):
        deliver = method_frame(1, BasicDeliver("tag", tag + i - lo, True, "", keys[i]))
        prefixes.append(deliver[:15])
        suffixes.append(deliver[23:])
        expected += deliver + parts[i][frames.frame_length(parts[i], 0) :]
    assert encode_mixed_deliveries(prefixes, suffixes, tag, raw, cuts, lo, hi) == expected
    if len(set(keys[lo:hi])) == 1:
        size = frames.frame_length(parts[lo], 0)
        alike = b"".join(parts[lo:hi])
        cuts = array("I", [cut - cuts[lo] for cut in cuts[lo : hi + 1]])
        assert (
            encode_deliveries(prefixes[0], suffixes[0], tag, alike, cuts, 0, hi - lo, size)
            == expected
        )


@given(bodies, st.integers(1, 65535))
def test_rechannel_changes_the_channel_and_nothing_else(parts: list[bytes], channel: int) -> None:
    raw = b"".join(publish(1, body) for body in parts)
    assert rechannel(raw, channel) == b"".join(publish(channel, body) for body in parts)


@given(st.binary(max_size=20_000), st.integers(20, 9000), st.integers(1, 65535))
def test_reframe_keeps_the_body_and_obeys_the_limit(
    body: bytes, frame_max: int, channel: int
) -> None:
    message = publish(1, body, properties=b"\0\0", frame_max=8192)
    size = frames.frame_length(message, 0)
    again = reframe(message, size, channel, frame_max)
    assert frames.body(method_frame(1, BasicDeliver()) + again) == body
    header, *rest = walk(again)
    assert header == frames.header_frame(channel, len(body), b"\0\0")
    assert all(len(frame) <= frame_max and frame[1:3] == header[1:3] for frame in rest)
    assert all(len(frame) > 8 for frame in rest)
