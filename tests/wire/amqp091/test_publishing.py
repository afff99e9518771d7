"""Publishes and acks in any chunking: the same messages, in bounded memory and linear time."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallymark.wire.amqp091 import frames
from tallymark.wire.amqp091.channel import MERGE_LIMIT
from tallymark.wire.amqp091.events import AckRange, Event, ProtocolFailure
from tallymark.wire.amqp091.frames import body_frames, content_frames, frame, header_frame
from tallymark.wire.amqp091.kernel import PERSISTENT, PublishReceived
from tallymark.wire.amqp091.limits import Limits
from tallymark.wire.amqp091.methods import (
    BasicNack,
    BasicPublish,
    ChannelClose,
    ConnectionClose,
    QueueDeclare,
)
from tallymark.wire.amqp091.properties import Properties
from tests.support.amqp091 import ack, flatten, method_frame, open_channels, publish, running

PUBLISH = method_frame(1, BasicPublish("", "q"))


def only(events: Sequence[Event]) -> PublishReceived:
    assert len(events) == 1
    event = events[0]
    assert isinstance(event, PublishReceived)
    return event


@pytest.mark.parametrize("size", [0, 1, 4087, 4088, 4089, 20_000])
@pytest.mark.parametrize("frame_max", [4096, 8192, 131_072])
def test_bodies_of_any_size_in_frames_of_any_size(size: int, frame_max: int) -> None:
    body = bytes(range(256)) * (size // 256 + 1)
    body = body[:size]
    raw = publish(1, body, properties=Properties(delivery_mode=2), frame_max=frame_max)
    for chunks in ([raw], [raw[:30], raw[30:]], [raw[i : i + 97] for i in range(0, len(raw), 97)]):
        server = running(1)
        event = only(server.feed(*chunks))
        assert (event.raw, len(event), event.facts) == (raw, 1, PERSISTENT)
        assert frames.body(event.raw) == body
        assert event.largest_frame == max(len(part) for part in split(raw)[1:])


def split(raw: bytes) -> list[bytes]:
    parts = []
    while raw:
        size = frames.frame_length(raw, 0)
        parts.append(raw[:size])
        raw = raw[size:]
    return parts


def test_a_publish_like_the_last_one_needs_its_channel_open_and_idle() -> None:
    server = running(1)
    for body in (b"1", b"2"):
        assert only(server.feed(publish(1, body))).raw == publish(1, body)
    assert not server.feed(PUBLISH + frame(frames.HEARTBEAT, 0, b""))
    assert isinstance(server.feed(publish(1, b"3"))[0], ProtocolFailure)
    server = running(1)
    close = method_frame(1, ChannelClose(0, "", 0, 0))
    events = server.feed(publish(1, b"1"), close + publish(1, b"2"))
    assert not [event for event in events[1:] if isinstance(event, PublishReceived)]


@pytest.mark.parametrize("step", [1, 7, 50, 1000])
def test_a_publish_split_over_reads_stays_one_message(step: int) -> None:
    raw = publish(1, b"x" * 333, properties=Properties(message_id="m")) * 3
    server = running(1)
    server.feed(*[raw[i : i + step] for i in range(0, len(raw), step)])
    assert flatten(server.events) == flatten(running(1).feed(raw))
    assert all(isinstance(event, PublishReceived) for event in server.events)


def test_bodies_interleaved_over_channels() -> None:
    one = split(publish(1, b"a" * 9000, frame_max=4096))
    two = split(publish(2, b"b" * 9000, frame_max=4096))
    mixed = b"".join(part for pair in zip(one, two, strict=True) for part in pair)
    for chunks in ([mixed], [mixed[i : i + 100] for i in range(0, len(mixed), 100)]):
        server = running(1, 2)
        server.feed(*chunks)
        events = server.events
        assert [event.raw for event in events if isinstance(event, PublishReceived)] == [
            b"".join(one),
            b"".join(two),
        ]


def test_a_heartbeat_between_method_and_content_does_not_matter() -> None:
    method, header, body = split(publish(1, b"x"))
    beat = frames.HEARTBEAT_FRAME
    server = running(1)
    event = only(server.feed(method + beat + header + beat + body + beat))
    assert event.raw == publish(1, b"x")


def test_nothing_waits_for_bytes_that_need_not_come() -> None:
    """A publish under way must not hold back what other channels send."""
    parts = split(publish(1, b"x"))
    raw = b"".join(parts)
    for cut in (len(parts[0]), len(parts[0] + parts[1])):
        server = running(1, 2)
        server.feed(raw[:cut])
        assert server.events == []
        server.feed(method_frame(2, QueueDeclare("q")))
        assert flatten(server.events) == [(2, QueueDeclare("q"))]
        server.feed(method_frame(0, ConnectionClose(200, "bye")))
        assert len(server.events) == 3


def test_small_body_frames_are_joined_and_empty_ones_dropped() -> None:
    body = bytes(range(250)) * 40
    small = b"".join(frame(3, 1, b"") + frame(3, 1, body[i : i + 1]) for i in range(len(body)))
    server = running(1)
    event = only(server.feed(PUBLISH + header_frame(1, len(body), b"\0\0") + small))
    assert frames.body(event.raw) == body
    sizes = [len(part) - 8 for part in split(event.raw)[2:]]
    assert sizes == [MERGE_LIMIT, MERGE_LIMIT, len(body) - 2 * MERGE_LIMIT]
    assert event.largest_frame == MERGE_LIMIT + 8


def test_acks_are_joined_per_channel() -> None:
    server = running(1, 2)
    raw = ack(1, 1) + ack(1, 2) + ack(2, 3) + ack(2, 5) + ack(1, 9, True) + ack(1, 0, True)
    raw += method_frame(1, BasicNack(4, True, False)) + ack(1, 2**64 - 1)
    server.feed(raw)
    ranges = [
        (event.channel, event.first, event.last, event.multiple)
        for event in server.events
        if isinstance(event, AckRange)
    ]
    assert ranges == [
        (1, 1, 2, False),
        (2, 3, 3, False),
        (2, 5, 5, False),
        (1, 9, 9, True),
        (1, 0, 0, True),
        (1, 2**64 - 1, 2**64 - 1, False),
    ]


class Peer:
    """Draws what a client might send on channels 1 to 3, right or not quite."""

    PROPERTIES = (
        Properties(),
        Properties(delivery_mode=2),
        Properties(delivery_mode=2, message_id="a"),
        Properties(delivery_mode=2, message_id="b"),
        Properties(expiration="9"),
        Properties(headers={"CC": ["x"]}),
        Properties(headers={"a": 1}),
        Properties(user_id="u"),
    )

    @staticmethod
    def publishes() -> st.SearchStrategy[bytes]:
        return st.builds(
            lambda channel, body, key, properties, frame_max, times: (
                publish(channel, body, routing_key=key, properties=properties, frame_max=frame_max)
                * times
            ),
            st.integers(1, 3),
            st.binary(max_size=40),
            st.sampled_from(["a", "b", "cc"]),
            st.sampled_from(Peer.PROPERTIES),
            st.sampled_from([12, 20, 4096]),
            st.integers(1, 3),
        )

    @staticmethod
    def others() -> st.SearchStrategy[bytes]:
        return st.one_of(
            st.builds(ack, st.integers(1, 3), st.integers(0, 5), st.booleans()),
            st.just(frames.HEARTBEAT_FRAME),
            st.just(method_frame(2, QueueDeclare("q", arguments={"a": 1}))),
            st.just(method_frame(3, ChannelClose(200, ""))),
            st.just(open_channels([3])),
            st.just(PUBLISH),
            st.just(content_frames(1, b"\0\0", b"abc", 0)),
            st.just(body_frames(2, b"abc", 0)),
            st.binary(max_size=3),
        )


@given(st.lists(Peer.publishes() | Peer.publishes() | Peer.others(), max_size=12), st.data())
@settings(max_examples=300)
def test_messages_do_not_depend_on_how_bytes_arrive(
    parts: list[bytes], data: st.DataObject
) -> None:
    raw = b"".join(parts)
    expected = flatten(running(1, 2, 3).feed(raw))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=8)))
    chunks = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    assert flatten(running(1, 2, 3).feed(*chunks)) == expected
    assert flatten(running(1, 2, 3).feed(*[bytes((octet,)) for octet in raw])) == expected


def test_a_large_body_in_small_reads_costs_linear_work() -> None:
    """Where each read moved all that came before, this took minutes."""
    body = bytes(1 << 20) * 8
    raw = publish(1, body)
    server = running(1)
    tracemalloc.start()
    events = server.feed(*[raw[i : i + 65_536] for i in range(0, len(raw), 65_536)])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert only(events).raw == raw
    assert peak < 4 * len(raw)


def test_a_frame_without_limit_waits_for_its_end_without_copies() -> None:
    server = running(1, limits=Limits(frame_max=0), frame_max=0)
    body = bytes(4 << 20)
    raw = publish(1, body, frame_max=0)
    for i in range(0, len(raw), 4096):
        server.feed(raw[i : i + 4096])
    assert frames.body(only(server.events).raw) == body


def test_unfinished_contents_of_all_channels_are_limited_together() -> None:
    limits = Limits(max_message_bytes=100_000, max_unfinished_bytes=250_000)
    server = running(*range(1, 11), limits=limits)
    for number in range(1, 11):
        method = method_frame(number, BasicPublish("", "q"))
        head = header_frame(number, 100_000, b"\0\0")
        server.feed(method + head + body_frames(number, b"x" * 60_000, 0))
    failures = [event for event in server.events if isinstance(event, ProtocolFailure)]
    assert [failure.error.reply_code for failure in failures] == [506]
    assert "at most 250000 allowed" in failures[0].error.text
    assert server.connection.line.unfinished == 0


def test_finished_and_dropped_contents_are_not_counted() -> None:
    limits = Limits(max_message_bytes=100_000, max_unfinished_bytes=100_500)
    server = running(1, 2, limits=limits)
    half = PUBLISH + header_frame(1, 100_000, b"\0\0") + body_frames(1, b"x" * 60_000, 0)
    for _ in range(5):
        assert len(server.feed(half + body_frames(1, b"x" * 40_000, 0))) == 1
    for _ in range(5):
        server.feed(half)
        server.connection.send_method(1, ChannelClose(404, "no"))
        server.feed(method_frame(1, ChannelClose(200, "")))
        server.feed(frame(1, 1, b"\0\x14\0\x29") + open_channels([1]))
    assert not any(isinstance(event, ProtocolFailure) for event in server.events)


def test_empty_body_frames_for_ever_take_no_memory() -> None:
    server = running(1)
    server.feed(PUBLISH + header_frame(1, 10, b"\0\0"))
    empties = frame(3, 1, b"") * 10_000
    server.feed(empties)
    tracemalloc.start()
    for _ in range(5):
        server.feed(empties)
    grown = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert grown < 300_000
    assert server.events == []


def test_an_idle_connection_keeps_no_read_buffer() -> None:
    server = running(1)
    server.feed(publish(1, b"x" * 1000) * 200)
    server.events.clear()
    assert server.connection.line.inbox.data == b""
