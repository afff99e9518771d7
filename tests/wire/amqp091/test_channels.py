"""Channels: their handshakes, and frames that do not belong."""

from __future__ import annotations

import pytest

from tallymark.wire.amqp091.errors import WireError
from tallymark.wire.amqp091.events import ProtocolFailure
from tallymark.wire.amqp091.frames import body_frames, content_frames, frame, header_frame
from tallymark.wire.amqp091.limits import Limits
from tallymark.wire.amqp091.methods import (
    BasicAck,
    BasicDeliver,
    BasicGetOk,
    BasicPublish,
    BasicQos,
    BasicQosOk,
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ChannelOpenOk,
    ConnectionClose,
    ConnectionOpen,
    QueueDeclare,
)
from tests.support.amqp091 import (
    HANDSHAKE,
    OPEN,
    Server,
    ack,
    flatten,
    method_frame,
    open_channels,
    publish,
    running,
    tune_ok,
)

PUBLISH = method_frame(1, BasicPublish("", "q"))

WRONG = [
    (method_frame(2, BasicQos()), 504, "expected 'channel.open'"),
    (ack(2, 1), 504, "expected 'channel.open'"),
    (publish(2, b"x"), 504, "expected 'channel.open'"),
    (method_frame(2, ChannelCloseOk()), 504, "expected 'channel.open'"),
    (method_frame(1, ChannelOpen()), 504, "second 'channel.open' seen"),
    (
        method_frame(2048, ChannelOpen()),
        504,
        "channel number 2048 is greater than the negotiated channel_max (2047)",
    ),
    (method_frame(1, ChannelCloseOk()), 503, "unimplemented method"),
    (method_frame(1, BasicDeliver()), 503, "unimplemented method"),
    (method_frame(1, BasicGetOk()), 503, "unimplemented method"),
    (method_frame(1, ConnectionOpen("/")), 503, "unimplemented method"),
    (frame(1, 1, b"\0\x3c\0\x63"), 540, "unknown method 60.99"),
    (frame(1, 1, b"\0\x3c"), 502, "method frame of 2 bytes, at least 4 expected"),
    (
        frame(1, 1, b"\0\x3c\0\x28\0\0\x01\xff\0\0"),
        502,
        "basic.publish: malformed UTF-8 in short string b'\\xff'",
    ),
    (frame(1, 1, b"\0\x3c\0\x50\0\0"), 502, "basic.ack: value of 8 bytes where only 2 are left"),
    (
        content_frames(1, b"\0\0", b"x", 0),
        505,
        "expected method frame, got non method frame instead",
    ),
    (
        content_frames(2, b"\0\0", b"x", 0),
        505,
        "expected method frame, got non method frame instead",
    ),
    (
        content_frames(0, b"\0\0", b"x", 0),
        505,
        "type 2, all octets = <<0,60,0,0,0,0,0,0,0,0,0,1,0,0>>",
    ),
    (body_frames(1, b"x", 0), 505, "expected method frame, got non method frame instead"),
    (frame(8, 1, b""), 505, "type 8, all octets = <<>>"),
    (frame(8, 0, b"abc"), 501, 'type 8, all octets = <<"abc">>: unknown_frame'),
    (
        frame(4, 1, b"0123456789abcdef+"),
        501,
        'type 4, first 16 octets = <<"0123456789abcdef">>: unknown_frame',
    ),
    (
        PUBLISH + ack(1, 1),
        505,
        "expected content header for class 60, got non content header frame instead",
    ),
    (
        PUBLISH + PUBLISH,
        505,
        "expected content header for class 60, got non content header frame instead",
    ),
    (
        PUBLISH + body_frames(1, b"x", 0),
        505,
        "expected content header for class 60, got non content header frame instead",
    ),
    (
        PUBLISH + frame(2, 1, b"\0\x3c\0\x01" + bytes(10)),
        505,
        "expected content header for class 60, got non content header frame instead",
    ),
    (
        PUBLISH + frame(2, 1, b"\0\x32\0\0" + bytes(10)),
        505,
        "expected content header for class 60, got one for class 50 instead",
    ),
    (
        PUBLISH + frame(2, 1, b"\0\x3c\0\0" + bytes(7)),
        501,
        "content header of 11 bytes, at least 12 expected",
    ),
    (
        PUBLISH + frame(2, 1, b"\0\x3c\0\0" + bytes(8)),
        502,
        "malformed properties in content header",
    ),
    (
        PUBLISH + header_frame(1, 1, b"\x80\0\x05ab") + body_frames(1, b"x", 0),
        502,
        "malformed properties in content header",
    ),
    (
        PUBLISH + header_frame(1, 5, b"\0\0") + header_frame(1, 5, b"\0\0"),
        505,
        "expected content body, got non content body frame instead",
    ),
    (
        PUBLISH + header_frame(1, 5, b"\0\0") + ack(1, 1),
        505,
        "expected content body, got non content body frame instead",
    ),
    (
        PUBLISH + header_frame(1, 5, b"\0\0") + body_frames(1, b"123456", 0),
        501,
        "content body frame exceeds remaining content size",
    ),
    (
        PUBLISH + header_frame(1, 5, b"\0\0") + body_frames(1, b"123", 0) * 2,
        501,
        "content body frame exceeds remaining content size",
    ),
    (
        PUBLISH + header_frame(1, 0, b"\0\0") + body_frames(1, b"1", 0),
        505,
        "expected method frame, got non method frame instead",
    ),
    (
        method_frame(1, BasicQos())[:-1] + b"\xcd",
        501,
        "type 1, all octets = <<0,60,0,10,0,0,0,0,0,0,0>>: {invalid_frame_end_marker,205}",
    ),
    (b"\x03\0\x01\0\x02\0\x01", 501, "type 3, all octets = <<>>: {frame_too_large,131073,131064}"),
]


@pytest.mark.parametrize(("raw", "code", "text"), WRONG)
def test_what_the_peer_did_wrong(raw: bytes, code: int, text: str) -> None:
    expected = None
    for chunks in ([raw], [raw[i : i + 1] for i in range(len(raw))], [raw + b"\xce" * 40]):
        server = running(1)
        before = publish(1, b"kept")
        server.feed(before, *chunks)
        failures = [event for event in server.events if isinstance(event, ProtocolFailure)]
        assert len(failures) == 1
        error = failures[0].error
        assert (error.reply_code, error.text, failures[0].channel) == (code, text, 0)
        close = server.sent()[-1][1]
        assert isinstance(close, ConnectionClose)
        assert (close.reply_code, close.reply_text) == (code, error.reply_text)
        if chunks != [raw + b"\xce" * 40]:
            expected = expected or flatten(server.events)
            assert flatten(server.events) == expected


def test_a_channel_that_was_closed_can_be_opened_again() -> None:
    server = running(1)
    server.feed(method_frame(1, ChannelClose(200, "bye")) + open_channels([1]) + publish(1, b"x"))
    assert [type(event).__name__ for event in server.events] == [
        "MethodReceived",
        "MethodReceived",
        "PublishReceived",
    ]
    assert server.sent() == [(1, ChannelCloseOk()), (1, ChannelOpenOk())]


def test_after_our_close_all_but_the_handshake_is_dropped() -> None:
    server = running(1, 2)
    server.connection.send_close(1, WireError(404, "no queue"))
    half = PUBLISH + header_frame(1, 10, b"\0\0")
    server.feed(publish(1, b"x") + ack(1, 1) + half + method_frame(1, QueueDeclare()))
    server.feed(frame(1, 1, b"??") + frame(1, 1, b"\xff\xff\xff\xff"))
    assert server.events == []
    server.feed(publish(2, b"y"))
    assert len(server.events) == 1
    server.feed(method_frame(1, ChannelCloseOk()) + open_channels([1]))
    assert flatten(server.events[1:]) == [(1, ChannelCloseOk()), (1, ChannelOpen())]


def test_the_close_comes_into_force_before_the_next_frame_of_the_same_read() -> None:
    server = running(1)
    connection = server.connection
    connection.receive_data(method_frame(1, QueueDeclare("missing")) + publish(1, b"x"), 0)
    connection.next_event()
    connection.send_close(1, WireError(404, "no queue"))
    assert connection.next_event() is None


def test_closing_from_both_sides_is_answered() -> None:
    server = running(1)
    server.connection.send_close(1, WireError(404, "no queue"))
    server.feed(method_frame(1, ChannelClose(200, "bye")))
    assert server.events == []
    assert server.sent()[-1] == (1, ChannelCloseOk())
    server.feed(method_frame(1, ChannelCloseOk()))
    assert flatten(server.events) == [(1, ChannelCloseOk())]


def test_nothing_more_is_sent_on_a_closing_channel() -> None:
    server = running(1)
    server.connection.send_close(1, WireError(404, "no queue"))
    server.connection.send_method(1, BasicQosOk())
    server.connection.send_message(1, BasicGetOk(), b"\0\0", b"x")
    server.connection.send_close(1, WireError(404, "again"))
    assert server.sent() == [(1, ChannelClose(404, "NOT_FOUND - no queue"))]


def test_a_body_above_the_limit_costs_the_channel_only() -> None:
    server = running(1, 2, limits=Limits(max_message_bytes=100))
    fits = publish(1, b"x" * 100)
    raw = fits + publish(1, b"x" * 101) + fits + publish(2, b"ok")
    server.feed(raw)
    failure = server.events[1]
    assert isinstance(failure, ProtocolFailure)
    assert not failure.is_fatal
    assert server.sent() == [
        (
            1,
            ChannelClose(
                406,
                "PRECONDITION_FAILED - message size 101 is larger than configured max size 100",
                60,
                40,
            ),
        ),
    ]
    assert len(server.events) == 3
    huge = running(1)
    huge.feed(PUBLISH + header_frame(1, 2**64 - 1, b"\0\0"))
    assert [type(event) for event in huge.events] == [ProtocolFailure]


def test_a_client_may_close_the_channel_it_failed_on() -> None:
    server = running(1, limits=Limits(max_message_bytes=1))
    connection = server.connection
    connection.receive_data(PUBLISH + header_frame(1, 2, b"\0\0"), 0)
    connection.receive_data(method_frame(1, ChannelClose(200, "bye")) + open_channels([1]), 0)
    assert isinstance(connection.next_event(), ProtocolFailure)
    assert flatten(iter(connection.next_event, None)) == [(1, ChannelCloseOk()), (1, ChannelOpen())]


def test_the_negotiated_frame_max_is_enforced_with_rabbitmqs_margin() -> None:
    raw = PUBLISH + header_frame(1, 10_000, b"\0\0")
    for size, is_fine in ((4088, True), (4096, True), (4097, False)):
        server = running(1, frame_max=4096)
        server.feed(raw + frame(3, 1, b"x" * size))
        assert (server.events == []) is is_fine


def test_before_tune_frames_are_limited_to_8192_bytes() -> None:
    for size, is_fine in ((8192, True), (8193, False)):
        server = Server()
        server.feed(HANDSHAKE[:8] + b"\x01\0\0" + size.to_bytes(4, "big"))
        assert (len(server.events) == 1) is is_fine


def test_channel_max_is_what_was_negotiated() -> None:
    server = Server()
    server.feed(HANDSHAKE + tune_ok(channel_max=3) + OPEN + open_channels([3, 4]))
    assert isinstance(server.events[-1], ProtocolFailure)
    assert "channel_max (3)" in server.events[-1].error.text


def test_content_is_framed_for_the_negotiated_frame_max() -> None:
    server = running(1, frame_max=4096)
    server.connection.send_message(1, BasicGetOk(1, False, "", "q", 0), b"\0\0", b"x" * 10_000)
    sizes = [len(part) for part in split(b"".join(server.connection.line.out))]
    assert sizes[1:] == [22, 4096, 4096, 10_000 - 2 * 4088 + 8]


def split(raw: bytes) -> list[bytes]:
    parts = []
    while raw:
        size = int.from_bytes(raw[3:7], "big") + 8
        parts.append(raw[:size])
        raw = raw[size:]
    return parts


@pytest.mark.parametrize(("tag", "multiple"), [(1, False), (2**63, True), (2**64 - 1, False)])
def test_a_confirm_is_the_frame_of_its_method_and_leaves_on_an_open_channel_only(
    tag: int, multiple: bool
) -> None:
    server = running(1)
    connection = server.connection
    connection.take_output(0)
    connection.send_ack(1, tag, multiple)
    connection.send_ack(2, tag, multiple)
    assert connection.take_output(0) == [method_frame(1, BasicAck(tag, multiple))]
    connection.send_method(1, ChannelClose(404, "gone"))
    connection.take_output(0)
    connection.send_ack(1, tag, multiple)
    assert connection.take_output(0) == []
