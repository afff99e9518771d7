"""Sections and fronts of AMQP 1.0 messages: found, checked, told apart."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark.bridge.amqp10.arrivals import Arrival, Arrivals, destinations, user_ids
from tallymark.wire.amqp10.codec import encode
from tallymark.wire.amqp10.encoded import is_sound
from tallymark.wire.amqp10.errors import DecodeError
from tallymark.wire.amqp10.front import (
    Front,
    fronts,
    lenient_fronts,
    read_front,
    without_delivery_annotations,
)
from tallymark.wire.amqp10.sections import (
    Body,
    Data,
    Header,
    Properties,
    Sections,
    Sequences,
    Value,
    encode_message,
)
from tallymark.wire.amqp10.types import Described, Symbol, Timestamp, UByte, UInt, ULong
from tests.bridge.conversion import annotation_section, header, message

DELIVERY = encode(Described(ULong(0x71), {Symbol("d"): 1}))
LEADING_NULL = b"\0\x53\x77\x40"


def together(*messages: bytes) -> tuple[bytes, array[int]]:
    cuts = [0]
    for each in messages:
        cuts.append(cuts[-1] + len(each))
    return b"".join(messages), array("I", cuts)


def arrived(*messages: bytes) -> tuple[bytes, array[int], list[Arrival]]:
    """Messages that can all be read."""
    raw, cuts = together(*messages)
    arrivals = Arrivals()
    assert arrivals.read(raw, cuts, 0, len(messages)) == len(messages)
    return raw, cuts, arrivals.pieces


def each_user_id(*messages: bytes) -> list[bytes | None]:
    raw, cuts, pieces = arrived(*messages)
    return [one for piece in pieces for one in user_ids(raw, cuts, piece)]


def each_destination(*messages: bytes) -> list[str | None]:
    raw, cuts, pieces = arrived(*messages)
    return [one for piece in pieces for one in destinations(raw, cuts, piece)]


def stored(*messages: bytes) -> list[bytes]:
    raw, cuts, pieces = arrived(*messages)
    found = []
    for piece in pieces:
        data, ends = without_delivery_annotations(raw, cuts, piece.lo, piece.hi, piece.front)
        assert ends[0] == 0
        found += [data[ends[i] : ends[i + 1]] for i in range(piece.hi - piece.lo)]
    return found


def front_of(raw: bytes) -> Front:
    return read_front(b"??" + raw, 2, 2 + len(raw))


# -- what is sound


@pytest.mark.parametrize(
    "raw",
    [
        encode_message(body=b""),
        encode_message(body=Data(b"a", b"b" * 300)),
        encode_message(body=Sequences([], [1])),
        encode_message(body=Value(Described(1, {}))),
        encode_message(Header(), {}, {Symbol("x-a"): 1}, Properties(to="t"), {"k": 1}, b"b", {}),
        header(True),  # some clients leave an empty body out
        LEADING_NULL,
        LEADING_NULL + header(True) + message(Properties(to="t"), body=Value(1))[:-5],
        encode(Described(Symbol("amqp:data:binary"), b"x")),
        b"\0\x80" + (0x75).to_bytes(8, "big") + encode(b"x"),
    ],
)
def test_sections_in_their_order_are_sound(raw: bytes) -> None:
    assert is_sound(b"?" + raw + b"?", 1, 1 + len(raw))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        DELIVERY,  # nothing is left of it to be stored
        b"?",
        b"\0",
        b"\0\x53\x75",
        b"\0\x53\x75\xa0\x02x",
        b"\0\x53\x75\xb0\0\0\0\x02x",
        b"\0\x53\x6f\xa0\x00",
        b"\0\x53\x79\xa0\x00",
        b"\0\x53\x75\xa1\x01x",  # data that is a string
        b"\0\x53\x72\xc0\x01\x00",  # annotations that are a list
        b"\0\x53\x73\xc1\x01\x00",  # properties that are a map
        encode(Described(Symbol("amqp:unknown:list"), [])),
        encode_message(body=b"a") + encode_message(body=Value(1)),
        encode_message(body=b"a") + encode_message(body=Sequences([1])),
        encode_message(body=Value(1)) * 2,
        encode_message(body=b"a") + header(True),
        header(True) * 2,
        annotation_section({}) + header(True),
        LEADING_NULL * 2 + encode_message(body=b"x"),
        encode_message(body=b"a", footer={}) * 2,
        encode_message(body=b"a") + b"\0",
    ],
)
def test_anything_else_is_not(raw: bytes) -> None:
    assert not is_sound(raw, 0, len(raw))
    data, cuts = together(encode_message(body=b"a"), raw, encode_message(body=b"a"))
    arrivals = Arrivals()
    assert arrivals.read(data, cuts, 0, 3) == 1
    assert [(piece.lo, piece.hi) for piece in arrivals.pieces] == [(0, 1)]
    assert arrivals.problem
    assert arrivals.read(data, cuts, 2, 3) == 3
    assert [(piece.lo, piece.hi) for piece in arrivals.pieces] == [(2, 3)]


@given(st.lists(st.sampled_from([b"", b"a", b"bb", b"\0\x53\x75\xa0\0"]), max_size=8), st.data())
def test_equal_beginnings_hide_nothing(bodies: list[bytes], data: st.DataObject) -> None:
    """Messages that begin like the one before are not walked: the answer must be the same."""
    row = []
    for content in bodies:
        raw = encode_message(properties=Properties(to="t"), body=Data(content, content))
        if data.draw(st.booleans()):
            at = data.draw(st.integers(0, len(raw) - 1))
            raw = raw[:at] + bytes((data.draw(st.integers(0, 255)),)) + raw[at + 1 :]
        row.append(raw)
    raw, cuts = together(*row)
    arrivals = Arrivals()
    at = 0
    for i, each in enumerate(row):
        if not is_readable(each):
            assert arrivals.read(raw, cuts, at, len(row)) == i
            assert [piece.hi for piece in arrivals.pieces][-1:] == ([i] if i > at else [])
            at = i + 1
    assert arrivals.read(raw, cuts, at, len(row)) == len(row)


def is_readable(raw: bytes) -> bool:
    try:
        read_front(raw, 0, len(raw))
    except DecodeError:
        return False
    return is_sound(raw, 0, len(raw))


@given(st.binary(max_size=80))
def test_soundness_agrees_with_the_wire_layer(raw: bytes) -> None:
    try:
        Sections(raw, 0, len(raw))
        expected = True
    except DecodeError:
        expected = False
    if is_sound(raw, 0, len(raw)):
        assert expected or raw.startswith(LEADING_NULL)


# -- fronts


def test_a_front_says_what_its_sections_say() -> None:
    bare = message(Properties(to="t"))
    known = {
        Symbol("x-cc"): ["a", Symbol("b"), 5],
        Symbol("x-opt-delivery-time"): Timestamp(2_000),
        Symbol("x-opt-delivery-delay"): UInt(30),
        ULong(9): True,
        "x-string": 1,
    }
    section = header(False, UByte(7), UInt(50)) + annotation_section(known)
    front = front_of(section + bare)
    assert (front.durable, front.priority, front.ttl_ms) == (False, 7, 50)
    assert (front.cc, front.due_ms, front.delay_ms) == (("a", "b"), 2_000, 30)
    assert [entry[0] for entry in front.entries] == [
        "x-cc", "x-opt-delivery-time", "x-opt-delivery-delay", "", "x-string",
    ]  # fmt: skip
    assert b"".join(entry[1] for entry in front.entries) == b"".join(
        encode(key) + encode(value) for key, value in known.items()
    )
    assert front.size == len(section)
    assert not front.has_delivery_annotations


@pytest.mark.parametrize(
    "section",
    [
        b"",
        header(),
        header(None, None, None),
        annotation_section({}),
        header() + annotation_section({}),
    ],
)
def test_what_a_front_does_not_say(section: bytes) -> None:
    front = front_of(section + encode_message(body=b"b"))
    assert front.durable  # RabbitMQ's rule: nothing said, nothing lost
    assert (front.priority, front.ttl_ms, front.due_ms, front.delay_ms) == (-1, -1, 0, 0)
    assert (front.cc, front.entries) == ((), [])
    assert front.size == len(section)


@pytest.mark.parametrize(
    ("value", "expected"), [(5, 5), (ULong(5), 5), (-5, 0), (True, 0), ("5", 0), (None, 0)]
)
def test_a_delay_is_a_whole_number_above_0(value: object, expected: int) -> None:
    raw = annotation_section({Symbol("x-opt-delivery-delay"): value}) + message()
    assert front_of(raw).delay_ms == expected


@pytest.mark.parametrize(
    "raw",
    [
        header("yes") + message(),
        header(None, UInt(1)) + message(),
        header(None, None, 5) + message(),
        b"\0\x53\x70\xc0\x02\x02\x40" + message(),
        b"\0\x53\x72\xc1\x02\x01\x40" + message(),
        b"\0\x53\x72\xc1\x03\x04\x40\x40" + message(),
        b"\0\x53\x72\xd1\0\0\0\x01\0" + message(),
        annotation_section({Symbol("x-cc"): 1}).replace(b"x-cc\x55", b"x-cc\xa1") + message(),
    ],
)
def test_a_front_that_is_none_is_refused(raw: bytes) -> None:
    with pytest.raises(DecodeError):
        front_of(raw)
    data, cuts = together(message(), raw)
    assert [found.size for _, _, found in lenient_fronts(data, cuts, 0, 2, None)] == [0, -1]


def test_stretches_share_a_front() -> None:
    one, other = header(True), header(True) + annotation_section({Symbol("x-a"): 1})
    row = [
        message(front=one, body=b"1"),
        message(front=one, body=Value("2"), properties=Properties(to="t")),
        message(front=one, body=b"3"),
        message(front=other, body=b"4"),
        message(front=other, body=b"5"),
        message(body=b"6"),
    ]
    raw, cuts = together(*row)
    found = fronts(raw, cuts, 0, 6)
    assert [(lo, hi) for lo, hi, _ in found] == [(0, 1), (1, 2), (2, 3), (3, 5), (5, 6)]
    assert [front.size for _, _, front in found] == [len(one)] * 3 + [len(other), 0]


def test_a_front_is_no_other_that_begins_alike() -> None:
    """Data behind the header, then annotations behind the same header."""
    plain = message(front=header(True))
    longer = message(front=header(True) + annotation_section({Symbol("x-a"): 1}))
    raw, cuts = together(plain, longer, plain, plain)
    assert [(lo, hi) for lo, hi, _ in fronts(raw, cuts, 0, 4)] == [(0, 1), (1, 2), (2, 4)]


def test_a_front_that_is_known_is_not_read_again() -> None:
    raw, cuts = together(*[message(front=header(True))] * 3)
    [(_, _, first)] = fronts(raw, cuts, 0, 3)
    [(lo, hi, second)] = fronts(raw, cuts, 1, 3, first)
    assert (lo, hi) == (1, 3)
    assert second is first


def test_a_short_message_is_not_taken_for_its_neighbour() -> None:
    """It ends where the bytes of the next one go on like the front before."""
    whole = message(front=header(True), body=b"x")
    cut = header(True)[:4]
    raw, cuts = together(whole, cut, header(True)[4:] + message(body=b"x"))
    assert raw.startswith(header(True), cuts[1])
    assert Arrivals().read(raw, cuts, 0, 3) == 1
    with pytest.raises(DecodeError):
        fronts(raw, cuts, 0, 2)


@given(st.data())
def test_what_arrives_is_the_same_whatever_came_before(data: st.DataObject) -> None:
    """Remembering the last message is for speed only."""
    kinds = [
        message(body=b"a"),
        message(body=b"b"),
        message(body=b"ab"),
        message(Properties(to="t"), body=b"a"),
        message(Properties(to="u"), body=b"a"),
        message(front=header(True)),
        message(front=header(True) + annotation_section({Symbol("x-a"): 1})),
        message(front=header(True, UByte(3))),
        header(True),
        b"?",
    ]
    rows = data.draw(st.lists(st.lists(st.sampled_from(kinds), max_size=6), max_size=4))
    arrivals = Arrivals()
    for row in rows:
        raw, cuts = together(*row)
        alone = Arrivals()
        end = alone.read(raw, cuts, 0, len(row))
        assert arrivals.read(raw, cuts, 0, len(row)) == end
        assert end == next((i for i, each in enumerate(row) if each == b"?"), len(row))
        for found in (arrivals, alone):
            flat = []
            for piece in found.pieces:
                for i in range(piece.lo, piece.hi):
                    own = front_of(row[i])
                    assert piece.front.says_as(own)
                    assert piece.front.size == own.size
                    flat.append(i)
                heads = {row[i][:-1] for i in range(piece.lo, piece.hi)}
                assert not piece.is_uniform or len(heads) == 1 or b"ab" not in b"".join(heads)
            assert flat == list(range(end))


def test_equal_messages_are_uniform_and_others_are_not() -> None:
    one, other = message(Properties(to="t"), body=b"1"), message(Properties(to="u"), body=b"2")
    _, _, [piece] = arrived(one, message(Properties(to="t"), body=b"3"), one)
    assert piece.is_uniform
    _, _, [piece] = arrived(one, one, other)
    assert not piece.is_uniform
    _, _, pieces = arrived(one, message(front=header(True)), message(front=header(True)))
    assert [piece.is_uniform for piece in pieces] == [True, True]


# -- storing


def test_delivery_annotations_are_dropped() -> None:
    bare = message(Properties(to="t"))
    known = annotation_section({Symbol("x-a"): 1})
    row = [header(True) + DELIVERY + known + bare] * 3 + [DELIVERY + bare, header(True) + bare]
    assert stored(*row) == [header(True) + known + bare] * 3 + [bare, header(True) + bare]


def test_messages_without_them_are_stored_as_they_are() -> None:
    raw, cuts, [piece] = arrived(message(body=b"1"), message(body=b"2"))
    found = without_delivery_annotations(raw, cuts, 0, 2, piece.front)
    assert found[0] is raw
    assert found[1] is cuts
    part = without_delivery_annotations(raw, cuts, 1, 2, piece.front)
    assert part == (message(body=b"2"), array("I", (0, len(message(body=b"2")))))


# -- single properties

ROW: list[tuple[bytes, bytes | None, str | None]] = [
    (message(), None, None),
    (message(Properties()), None, None),
    (message(Properties(message_id="m")), None, None),
    (message(Properties(message_id="n", user_id=b"u")), b"u", None),
    (message(Properties(message_id="n", user_id=b"u", to="t")), b"u", "t"),
    (message(Properties(message_id="n", user_id=b"u", to="t")), b"u", "t"),
    (message(Properties(message_id="n", user_id=b"v", to="t")), b"v", "t"),
    (message(Properties(to="/queues/q")), None, "/queues/q"),
    (message(Properties(user_id=b"")), b"", None),
    (message(Properties(to="t" * 300, subject="s" * 300)), None, "t" * 300),
    (message(application={"k": 1}), None, None),
    (header(True), None, None),
    (header(True) + message(Properties(user_id=b"w", to="x")), b"w", "x"),
]


@given(st.lists(st.sampled_from(ROW), max_size=10))
def test_user_ids_and_destinations(row: list[tuple[bytes, bytes | None, str | None]]) -> None:
    assert each_user_id(*[each[0] for each in row]) == [each[1] for each in row]
    assert each_destination(*[each[0] for each in row]) == [each[2] for each in row]


def test_equal_destinations_are_one_object() -> None:
    for bodies in ([b"1", b"2", b"3"], [b"", b"22", b"333"]):
        row = [message(Properties(to="/queues/q"), body=body) for body in bodies]
        first, second, third = each_destination(*row)
        assert first is second is third


@pytest.mark.parametrize(
    "section",
    [
        b"\0\x53\x73\xc0\x04\x02\x40\xa1\x00",  # a user-id that is a string
        # fewer fields than it says: what follows is not looked at, else a client could show us
        # one name and its readers another
        b"\0\x53\x73\xc0\x02\x02\x40",
        b"\0\x53\x73\xd0\0\0\0\x01\x05",
    ],
)
def test_a_user_id_that_is_none_is_refused(section: bytes) -> None:
    with pytest.raises(DecodeError):
        each_user_id(section + encode_message(body=b"\xa0\x01u"))


def test_an_address_that_is_no_string_is_none() -> None:
    assert each_destination(
        encode(Described(ULong(0x73), [None, None, 5])) + encode_message(body=b"")
    ) == [None]


@pytest.mark.parametrize("value", ["a", None])
def test_a_value_is_not_taken_for_the_null_in_front_of_its_neighbour(value: object) -> None:
    alone = message(body=Value(value))
    section = header(True, UByte(9))
    raw, cuts = together(alone, LEADING_NULL + section + message())
    assert [front.priority for _, _, front in fronts(raw, cuts, 0, 2)] == [-1, 9]
    raw, cuts = together(LEADING_NULL + section + message(), alone)
    assert [front.priority for _, _, front in fronts(raw, cuts, 0, 2)] == [9, -1]


def test_a_null_before_a_footer_is_the_body() -> None:
    raw = encode_message(body=Value(None), footer={Symbol("x-f"): 1})
    assert front_of(raw).size == 0
    assert is_sound(raw, 0, len(raw))


BODIES: list[Body | bytes] = [b"b", Value(None), Sequences([])]


@pytest.mark.parametrize("body", BODIES)
def test_a_null_in_front_is_passed_over(body: Body | bytes) -> None:
    """As clients made of qpid-proton write messages without a body."""
    section = header(True, UByte(9)) + annotation_section({Symbol("x-a"): 1})
    raw = LEADING_NULL + section + message(Properties(user_id=b"u", to="t"), body=body)
    front = front_of(raw)
    assert (front.priority, front.size) == (9, len(LEADING_NULL) + len(section))
    assert each_user_id(raw, raw) == [b"u", b"u"]
    assert each_destination(raw, raw) == ["t", "t"]
    assert stored(raw, raw) == [raw, raw]
    with_delivery = LEADING_NULL + header(True) + DELIVERY + message()
    assert stored(with_delivery) == [LEADING_NULL + header(True) + message()]
