"""What queues ask about AMQP 0-9-1 messages: priorities, ids, headers, hop limits."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark.bridge.amqp091.format import Amqp091Format
from tallymark.bridge.names import LARGEST_NUMBER, PUBLISHER_NAME, PUBLISHING_ID
from tallymark.engine.exchange import property_key
from tallymark.engine.message import Format, Payload
from tallymark.stored.annotations import Route
from tallymark.stored.formats import AMQP091
from tallymark.wire.amqp091.fields import Timestamp, WireInt
from tallymark.wire.amqp091.properties import Properties, encode_properties
from tests.support.amqp091 import publish
from tests.wire.amqp091.test_properties import properties

LAST_HOPS = "x-opt-dead-letter-hop-limit"
ID_HEADER = "x-deduplication-header"
BROKEN = b"\x07\x01k?\x02CCx"
"""Table entries that nobody can read: there is no type `?`."""


def payload(*messages: Properties | bytes, routes: list[Route] | None = None) -> Payload:
    """One payload of such properties; bodies say which message it is."""
    parts, cuts = [], [0]
    for i, one in enumerate(messages):
        route = routes[i] if routes is not None else Route("", "q")
        raw = publish(
            3, b"body %d" % i, exchange=route.exchange, routing_key=route.key, properties=one
        )
        parts.append(raw)
        cuts.append(cuts[-1] + len(raw))
    return Payload(
        AMQP091, b"".join(parts), array("I", cuts), routes[0] if routes else Route("", "q"), routes,
        1, 0, True, 100,
    )  # fmt: skip


def of_routes(n: int) -> list[Route]:
    """Method frames of many lengths."""
    return [Route("e" * (i % 5), "key" * (i % 7)) for i in range(n)]


FORMAT_091 = Amqp091Format()


@given(st.lists(properties, min_size=1, max_size=6))
def test_priorities_agree_with_decoding(messages: list[Properties]) -> None:
    expected = bytes([one.priority or 0 for one in messages])
    for routes in (None, of_routes(len(messages))):
        made = payload(*messages, routes=routes)
        assert FORMAT_091.priorities(made, 0, len(messages)) == expected
        assert FORMAT_091.priorities(made, 1, len(messages)) == expected[1:]


@given(st.lists(st.sampled_from([None, 0, 1, 255]), max_size=20), st.booleans())
def test_priorities_of_messages_that_differ_in_little_else(
    given: list[int | None], with_ids: bool
) -> None:
    messages = [
        Properties(
            headers={"k": "v"}, delivery_mode=2, priority=priority,
            message_id=f"{i}" if with_ids else None,
        )
        for i, priority in enumerate(given)
    ]  # fmt: skip
    found = FORMAT_091.priorities(payload(*messages), 0, len(messages))
    assert list(found) == [priority or 0 for priority in given]


def test_a_message_without_priority_behind_one_with_all_flags_has_none() -> None:
    everything = Properties(
        "a", "b", {}, 2, 9, "c", "d", "1", "e", 1, "f", "g", "h", "i"
    )  # all flags set: the first byte of the section is 0xFF
    assert encode_properties(everything)[0] == 0xFF
    made = payload(everything, Properties(), everything)
    assert list(FORMAT_091.priorities(made, 0, 3)) == [9, 0, 9]
    assert list(FORMAT_091.priorities(made, 0, 1)) == [9]


@given(st.lists(properties, min_size=1, max_size=6))
def test_ids_are_message_ids_where_no_header_says_otherwise(messages: list[Properties]) -> None:
    made = payload(*messages, routes=of_routes(len(messages)))
    expected = [one.message_id or "" for one in messages]
    assert FORMAT_091.ids(made, 0, len(messages)) == expected
    assert FORMAT_091.ids(made, len(messages) - 1, len(messages)) == expected[-1:]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("one", "one"),
        ("", ""),
        (7, "7"),
        (-7, "-7"),
        (WireInt(255, "B"), "255"),
        (2**40, str(2**40)),
        (1.5, "1.5"),
        (True, "the id"),
        (None, "the id"),
        (b"bytes", "the id"),
        (["one"], "the id"),
    ],
)
def test_the_id_header_goes_before_the_message_id(value: object, expected: str) -> None:
    made = payload(Properties(headers={"a": 1, ID_HEADER: value}, message_id="the id"))
    assert FORMAT_091.ids(made, 0, 1) == [expected]


def test_an_id_header_further_down_or_as_a_text_is_none() -> None:
    made = payload(
        Properties(headers={"a": {ID_HEADER: "nested"}}, message_id="m1"),
        Properties(headers={"a": "\x16" + ID_HEADER}, message_id="m2"),
        Properties(headers={ID_HEADER + "s": "longer"}, message_id="m3"),
    )
    assert FORMAT_091.ids(made, 0, 3) == ["m1", "m2", "m3"]


def test_headers_are_those_that_routing_looks_at() -> None:
    made = payload(
        Properties(),
        Properties(headers={"a": 1}, message_id="m", correlation_id="c", timestamp=Timestamp(5)),
        routes=of_routes(2),
    )
    assert FORMAT_091.headers(made, 0) == {}
    assert FORMAT_091.headers(made, 1) == {
        "a": 1,
        property_key("message_id"): "m",
        property_key("correlation_id"): "c",
        property_key("timestamp"): 5,
    }


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, 0),
        (32, 32),
        (255, 255),
        (WireInt(9, "B"), 9),
        (WireInt(9, "l"), 9),
        (256, -1),
        (-1, -1),
        (2**40, -1),
        ("5", -1),
        (5.0, -1),
        (True, -1),
        (None, -1),
    ],
)
def test_dl_d1_the_publisher_says_how_many_deaths_are_left(value: object, expected: int) -> None:
    made = payload(Properties(), Properties(headers={"a": "b", LAST_HOPS: value}))
    assert FORMAT_091.hop_limit(made, 0) == -1
    assert FORMAT_091.hop_limit(made, 1) == expected


@pytest.mark.parametrize("frame_max", [4096, 131_072])
def test_dl_6_bodies_are_weighed_without_their_frames(frame_max: int) -> None:
    sizes = [3, 0, 10_000, 4088, 1]
    messages = [
        publish(1, bytes(size), properties=Properties(app_id="a" * i), frame_max=frame_max)
        for i, size in enumerate(sizes)
    ]
    cuts = [sum(map(len, messages[:i])) for i in range(6)]
    made = Payload(
        AMQP091, b"".join(messages), array("I", cuts), Route("", "q"), None, 1, 0, True, 100
    )
    totals = FORMAT_091.bodies(made)
    assert totals.typecode == "Q"
    assert list(totals) == [0, 3, 3, 10_003, 14_091, 14_092]


@pytest.mark.parametrize("name", [ID_HEADER, LAST_HOPS])
def test_a_table_nobody_can_read_says_nothing(name: str) -> None:
    """It is in a queue all the same: properties are checked at publish, tables are not."""
    entries = bytes((len(name),)) + name.encode() + b"?" + BROKEN
    flags = b"\xa8\x80"  # content-type, headers, priority, message-id
    section = flags + b"\x01t" + len(entries).to_bytes(4, "big") + entries + b"\x04" + b"\x02id"
    made = payload(section, Properties(priority=1))
    assert FORMAT_091.ids(made, 0, 2) == ["id", ""]
    assert FORMAT_091.hop_limit(made, 0) == -1
    assert FORMAT_091.headers(made, 0) == {}
    assert list(FORMAT_091.priorities(made, 0, 2)) == [4, 1]


def test_a_format_of_which_nothing_is_known_says_nothing() -> None:
    made = payload(Properties(priority=5, message_id="m", headers={LAST_HOPS: 3}))
    plain = Format()
    assert plain.priorities(made, 0, 1) == b"\0"
    assert plain.ids(made, 0, 1) == [""]
    assert plain.headers(made, 0) == {}
    assert plain.hop_limit(made, 0) == -1


# -- what publishers number


def numbers_by_decoding(messages: list[Properties]) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    for one in messages:
        headers = one.headers or {}
        name, number = headers.get(PUBLISHER_NAME), headers.get(PUBLISHING_ID)
        is_number = isinstance(number, int) and not isinstance(number, bool | Timestamp)
        is_name = isinstance(name, str) and 0 < len(name) <= 255
        if is_name and is_number and 0 <= number <= LARGEST_NUMBER:  # type: ignore[operator]
            found.append((name, number))  # type: ignore[arg-type]
        else:
            found.append(("", 0))
    return found if any(name for name, _ in found) else []


names = st.sampled_from(["", "p", "q", "n" * 255, "n" * 256, "ü", 5, None, b"p"])
whole = st.one_of(
    st.integers(-3, 3), st.integers(-(1 << 62), 1 << 63 - 1), st.just(LARGEST_NUMBER),
    st.builds(WireInt, st.integers(0, 255), st.just("B")),
    st.builds(WireInt, st.integers(-128, 127), st.just("b")),
    st.builds(WireInt, st.integers(0, (1 << 32) - 1), st.just("i")),
    st.builds(WireInt, st.integers(-1, 1 << 40), st.just("l")),
)  # fmt: skip
ids = st.one_of(whole, st.sampled_from([True, 1.0, "1", None, Timestamp(5), [1]]))
entries = st.lists(
    st.one_of(
        st.tuples(st.just(PUBLISHER_NAME), names),
        st.tuples(st.just(PUBLISHING_ID), ids),
        st.tuples(st.sampled_from(["a", "b"]), st.sampled_from([1, "x", {PUBLISHER_NAME: "in"}])),
    ),
    max_size=4,
)


@given(
    st.lists(
        st.builds(
            lambda table, type: Properties(content_type=type, headers=dict(table) or None),
            entries, st.sampled_from([None, "t"]),
        ),
        min_size=1, max_size=8,
    )
)  # fmt: skip
def test_numbers_of_publishers_agree_with_decoding(messages: list[Properties]) -> None:
    made = payload(*messages, routes=of_routes(len(messages)))
    assert FORMAT_091.numbered(made, 0, len(messages)) == numbers_by_decoding(messages)
    last = len(messages) - 1
    assert FORMAT_091.numbered(made, last, last + 1) == numbers_by_decoding(messages[last:])


@given(st.lists(st.tuples(st.sampled_from(["p", "q"]), whole), min_size=1, max_size=20))
def test_numbers_of_messages_that_differ_in_nothing_else(given: list[tuple[str, int]]) -> None:
    messages = [
        Properties(headers={"h": 1, PUBLISHER_NAME: name, PUBLISHING_ID: number, "z": "z"})
        for name, number in given
    ]
    assert FORMAT_091.numbered(payload(*messages), 0, len(messages)) == numbers_by_decoding(
        messages
    )


def test_a_table_that_cannot_be_read_numbers_nothing() -> None:
    section = encode_properties(Properties(headers={PUBLISHER_NAME: "p", PUBLISHING_ID: 1}))
    table = section[6:] + BROKEN
    broken = section[:2] + len(table).to_bytes(4, "big") + table
    assert FORMAT_091.numbered(payload(broken), 0, 1) == []
    assert Format().numbered(payload(Properties()), 0, 1) == []
