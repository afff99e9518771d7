"""Stretches of messages: what is joined, what the cells are, what large ones cost."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from tallymark.wire.nsq.commands import dpub, mpub, pub, sized
from tallymark.wire.nsq.connection import KNOWN_LINE_MAX, LINES_MAX
from tallymark.wire.nsq.events import PublishReceived
from tallymark.wire.nsq.limits import Limits
from tests.support.growth import assert_linear
from tests.support.nsq import bodies_of, connected, failures, flatten


def publishes(*chunks: bytes, limits: Limits | None = None) -> list[PublishReceived]:
    events = connected(limits).feed(*chunks)
    for event in events:
        assert isinstance(event, PublishReceived)
    return events  # type: ignore[return-value]


def test_equal_lines_are_one_stretch_of_the_bytes_received() -> None:
    bodies = [b"a" * 10, b"b" * 10, b"c" * 10, b"\nPUB t\n\0\0\0\1x", b"d", b"e", b"f" * 10]
    raw = b"".join(pub("t", body) for body in bodies)
    (event,) = publishes(raw)
    assert (event.verb, event.topic, event.delay_ms, len(event)) == ("PUB", "t", 0, 7)
    assert event.answers == 7
    assert event.raw == raw
    assert event.head == len(b"PUB t\n") + 4
    assert event.cuts.typecode == "I"
    assert [event.cuts[0], event.cuts[-1]] == [0, len(raw)]
    assert bodies_of(event) == bodies


def test_another_line_begins_another_stretch() -> None:
    raw = pub("t", b"1") * 2 + pub("u", b"2") + b"PUB t\r\n" + sized(b"3") + dpub("t", 5, b"4") * 2
    raw += dpub("t", 6, b"5") + mpub("t", [b"6", b"7"]) + mpub("t", [b"8"])
    events = publishes(raw)
    assert [(e.verb, e.topic, e.delay_ms, len(e), e.answers) for e in events] == [
        ("PUB", "t", 0, 2, 2),
        ("PUB", "u", 0, 1, 1),
        ("PUB", "t", 0, 1, 1),
        ("DPUB", "t", 5, 2, 2),
        ("DPUB", "t", 6, 1, 1),
        ("MPUB", "t", 0, 2, 1),
        ("MPUB", "t", 0, 1, 1),
    ]
    assert [body for event in events for body in bodies_of(event)] == [
        *(b"1", b"1", b"2", b"3", b"4", b"4", b"5", b"6", b"7", b"8")
    ]


def test_an_mpub_is_one_stretch_whose_cells_are_sizes_and_bodies() -> None:
    bodies = [b"aa", b"bb", b"c", b"\0\0\0\1", b"PUB t", b"dd", b"dd"]
    (event,) = publishes(mpub("topic#ephemeral", bodies))
    assert event.topic == "topic#ephemeral"
    assert event.head == 4
    assert event.raw == b"".join(sized(body) for body in bodies)
    assert bodies_of(event) == bodies


def test_nq_d5_an_mpub_is_taken_whole_or_not_at_all() -> None:
    server = connected()
    good = mpub("t", [b"a", b"b", b"c"])
    events = server.feed(good, good[:-1])
    assert len(events) == 1
    server = connected()
    bad = bytearray(good)
    bad[-2] = 0  # the size of the last message
    assert [str(e) for e in failures(server.feed(bytes(bad)))] == [
        "E_BAD_MESSAGE MPUB invalid message(2) body size 0"
    ]
    assert len(server.events) == 2


def test_limits_are_reached_and_not_passed() -> None:
    limits = Limits(max_msg_size=100, max_body_size=1000)
    assert len(publishes(pub("t", b"x" * 100), limits=limits)) == 1
    most = (1000 - 4) // 5
    (event,) = publishes(mpub("t", [b"x"] * most), limits=limits)
    assert len(event) == most
    assert len(mpub("t", [b"x"] * most)) - len(b"MPUB t\n") - 4 == 999
    assert flatten(publishes(dpub("t", 3_600_000, b"x"))) == [("DPUB", "t", 3_600_000, b"x")]


@given(
    st.lists(st.tuples(st.sampled_from("tu"), st.binary(min_size=1, max_size=40)), max_size=20),
    st.lists(st.integers(0, 1500), max_size=6),
)
def test_any_splitting_gives_the_same_messages(
    messages: list[tuple[str, bytes]], cuts: list[int]
) -> None:
    raw = b"".join(pub(topic, body) for topic, body in messages)
    ends = sorted(min(cut, len(raw)) for cut in cuts)
    chunks = [raw[a:b] for a, b in zip([0, *ends], [*ends, len(raw)], strict=True)]
    expected = [("PUB", topic, 0, body) for topic, body in messages]
    assert flatten(publishes(*chunks)) == expected
    assert flatten(publishes(*[raw[i : i + 1] for i in range(len(raw))])) == expected


def test_large_bodies_in_small_reads_cost_their_size() -> None:

    def prepare(size: int) -> Callable[[], object]:
        limits = Limits(max_msg_size=8_000_000, max_body_size=8_000_000)
        raw = pub("t", b"x" * size) + mpub("t", [b"x" * size])
        chunks = [raw[i : i + 16] for i in range(0, len(raw), 16)]

        def read() -> None:
            events = publishes(*chunks, limits=limits)
            assert [len(body) for event in events for body in bodies_of(event)] == [size, size]

        return read

    assert_linear(prepare, 60_000)


def test_a_long_line_in_small_reads_is_joined_once() -> None:
    server = connected()
    line = b"PUB " + b"t" + b" x" * 8000 + b"\n"
    inbox = server.connection.line.inbox
    for i in range(len(line)):
        server.feed(line[i : i + 1])
        if 1 < i < len(line) - 1:
            assert len(inbox.data) <= 1
    server.feed(sized(b"body"))
    assert flatten(server.events) == [("PUB", "t", 0, b"body")]


def test_reads_that_come_while_events_are_left() -> None:
    """The owner may read on before it has taken all events."""
    server = connected()
    connection = server.connection
    connection.receive_data(pub("t", b"1") + pub("u", b"2") + b"PU", 0)
    assert connection.next_event() is not None
    connection.receive_data(b"B t\n\0\0", 0)
    connection.receive_data(b"\0\0013PUB", 0)
    server.drain()
    assert flatten(server.events) == [("PUB", "u", 0, b"2"), ("PUB", "t", 0, b"3")]


def test_what_is_left_at_the_end_costs_its_length() -> None:
    def prepare(count: int) -> Callable[[], object]:
        server = connected()
        raw = (pub("t", b"x" * 500) + pub("u", b"y" * 500)) * count
        server.connection.receive_data(raw, 0)

        def end() -> None:
            server.eof()
            assert len(server.events) == 2 * count + 1

        return end

    assert_linear(prepare, 600)


def test_what_is_remembered_is_bounded() -> None:
    server = connected()
    for number in range(LINES_MAX + 10):
        server.feed(pub(f"t{number}", b"x"))
    server.feed(b"PUB t " + b"x" * KNOWN_LINE_MAX + b"\n" + sized(b"x"))
    known = server.connection._known
    assert 0 < len(known) <= LINES_MAX
    assert max(map(len, known)) <= KNOWN_LINE_MAX
    assert len(server.events) == LINES_MAX + 11


def test_runs_that_end_badly_cost_their_length() -> None:
    """Good commands in front of a bad one are looked at once."""
    for verb, suffix in ((b"FIN ", b"\n"), (b"TOUCH ", b"\n"), (b"REQ ", b" 5\n")):

        def prepare(good: int, verb: bytes = verb, suffix: bytes = suffix) -> Callable[[], object]:
            server = connected()
            server.feed(b"SUB t c\n")
            units = [verb + (b"%016x" % number) + suffix for number in range(good)]
            raw = b"".join([*units, verb + b"#" * 16 + suffix, units[0]])

            def read() -> None:
                flat = flatten(server.feed(raw))
                assert [row[1] for row in flat[:good]] == list(range(good))
                assert flat[good][0] == "FAILED"
                assert flat[good + 1][1] == 0

            return read

        assert_linear(prepare, 1250)
