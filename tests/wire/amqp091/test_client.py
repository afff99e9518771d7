"""The client's end of a connection, byte by byte, against a server's end and against bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark.wire.amqp091.client import ClientChannel, ClientConnection
from tallymark.wire.amqp091.client_states import ClientState
from tallymark.wire.amqp091.events import (
    ContentReceived,
    Event,
    MethodReceived,
    PeerClosed,
    ProtocolFailure,
)
from tallymark.wire.amqp091.frames import (
    HEARTBEAT_FRAME,
    METHOD,
    PROTOCOL_HEADER,
    body_frames,
    frame,
    header_frame,
)
from tallymark.wire.amqp091.layouts import encode_method
from tallymark.wire.amqp091.limits import Limits
from tallymark.wire.amqp091.methods import (
    BasicAck,
    BasicConsumeOk,
    BasicDeliver,
    BasicPublish,
    ChannelClose,
    ChannelCloseOk,
    ChannelOpenOk,
    ConnectionBlocked,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
    Method,
    QueueDeclare,
    QueueDeclareOk,
)
from tests.support.amqp091 import Server, method_frame

START = ConnectionStart(0, 9, {"product": "p"}, b"PLAIN", b"en_US")
TUNE = ConnectionTune(100, 8192, 10)
DELIVER = method_frame(1, BasicDeliver("c", 1))


def events(client: ClientConnection) -> list[Event]:
    found = []
    while (event := client.next_event()) is not None:
        found.append(event)
    return found


def methods(found: list[Event]) -> list[Method]:
    return [event.method for event in found if isinstance(event, MethodReceived)]


def feed(
    client: ClientConnection, *said: bytes | tuple[int, Method], now_ms: int = 0
) -> list[Event]:
    for one in said:
        data = one if isinstance(one, bytes) else method_frame(one[0], one[1])
        for i in range(len(data)):  # byte by byte
            client.receive_data(data[i : i + 1], 0)
    return events(client)


def out(client: ClientConnection, now_ms: int = 0) -> bytes:
    return b"".join(client.take_output(now_ms))


def opened(**limits: int) -> ClientConnection:
    client = ClientConnection(Limits(**limits))
    client.start(0)
    feed(client, (0, START))
    client.send_handshake(ConnectionStartOk({}, "PLAIN", b"\0me\0secret", "en_US"))
    feed(client, (0, TUNE))
    client.send_tune_ok(TUNE)
    client.send_handshake(ConnectionOpen("/"))
    feed(client, (0, ConnectionOpenOk()))
    assert client.is_running
    out(client)
    return client


def with_channel(**limits: int) -> tuple[ClientConnection, ClientChannel]:
    client = opened(**limits)
    channel = client.open_channel()
    feed(client, (channel.number, ChannelOpenOk()))
    out(client)
    return client, channel


def test_the_handshake_byte_by_byte() -> None:
    client = ClientConnection(Limits(channel_max=0, frame_max=131_072, heartbeat_s=60))
    client.start(0)
    assert out(client) == PROTOCOL_HEADER
    assert methods(feed(client, (0, START))) == [START]
    answer = ConnectionStartOk({"a": 1}, "PLAIN", b"\0me\0secret", "en_US")
    client.send_handshake(answer)
    assert out(client) == method_frame(0, answer)
    assert methods(feed(client, (0, TUNE))) == [TUNE]
    client.send_tune_ok(TUNE)
    client.send_handshake(ConnectionOpen("v"))
    tuned = ConnectionTuneOk(100, 8192, 60)
    assert out(client) == method_frame(0, tuned) + method_frame(0, ConnectionOpen("v"))
    assert methods(feed(client, (0, ConnectionOpenOk()))) == [ConnectionOpenOk()]
    assert client.state is ClientState.RUNNING
    assert (client.channel_max, client.frame_max) == (100, 8192)


def test_a_server_that_has_no_limits_gets_ours() -> None:
    client = ClientConnection(Limits(channel_max=7, frame_max=5000, heartbeat_s=0))
    client.start(0)
    feed(client, (0, START))
    client.send_handshake(ConnectionStartOk({}, "PLAIN", b"", "en_US"))
    feed(client, (0, ConnectionTune(0, 0, 0)))
    out(client)
    client.send_tune_ok(ConnectionTune(0, 0, 0))
    assert out(client) == method_frame(0, ConnectionTuneOk(7, 5000, 0))


def test_a_step_out_of_turn_is_a_mistake_of_ours() -> None:
    client = ClientConnection(Limits())
    client.start(0)
    with pytest.raises(ValueError, match=r"connection\.open in connection state greeted"):
        client.send_handshake(ConnectionOpen("/"))


def test_it_speaks_to_our_server() -> None:
    server = Server(Limits(heartbeat_s=0))
    client = ClientConnection(Limits())
    client.start(0)
    seen: list[Method] = []
    for _ in range(4):
        server.feed(out(client))
        client.receive_data(b"".join(server.connection.take_output(0)), 0)
        for method in methods(events(client)):
            seen.append(method)
            if isinstance(method, ConnectionStart):
                client.send_handshake(ConnectionStartOk({}, "PLAIN", b"\0g\0g", "en_US"))
            elif isinstance(method, ConnectionTune):
                client.send_tune_ok(method)
                client.send_handshake(ConnectionOpen("/"))
    assert [type(method) for method in seen] == [ConnectionStart, ConnectionTune, ConnectionOpenOk]


def test_a_server_of_another_version_is_named() -> None:
    client = ClientConnection(Limits())
    client.start(0)
    (closed,) = feed(client, b"AMQP\0\1\0\0")
    assert isinstance(closed, PeerClosed)
    assert closed.reason == (
        "the server does not speak AMQP 0-9-1, it offers b'AMQP\\x00\\x01\\x00\\x00'"
    )


def test_channels_have_the_lowest_number_that_is_free() -> None:
    client = opened()
    channels = [client.open_channel() for _ in range(3)]
    assert [channel.number for channel in channels] == [1, 2, 3]
    feed(client, *[(number, ChannelOpenOk()) for number in (1, 2, 3)])
    client.send_method(channels[1], ChannelClose(200, "enough"))
    assert client.open_channel().number == 4  # 2 is not free before close-ok
    assert methods(feed(client, (2, ChannelCloseOk()))) == [ChannelCloseOk()]
    assert client.open_channel().number == 2
    out(client)
    client.send_method(channels[1], BasicAck(1))  # of the channel that was
    assert out(client) == b""


def test_no_more_channels_than_agreed_on() -> None:
    client = opened(channel_max=2)
    client.open_channel()
    client.open_channel()
    with pytest.raises(ValueError, match="2 channels are in use"):
        client.open_channel()


def test_a_channel_closed_by_the_server_is_answered_and_gone() -> None:
    client, channel = with_channel()
    close = ChannelClose(404, "NOT_FOUND - no queue", 50, 10)
    assert methods(feed(client, (1, close))) == [close]
    assert out(client) == method_frame(1, ChannelCloseOk())
    client.send_method(channel, QueueDeclare("q"))
    assert out(client) == b""
    assert client.open_channel().number == 1


def test_a_channel_that_both_sides_close_at_once() -> None:
    client, channel = with_channel()
    client.send_method(channel, ChannelClose(200, "done"))
    close = ChannelClose(406, "PRECONDITION_FAILED", 60, 80)
    assert methods(feed(client, (1, QueueDeclareOk("q")), (1, close))) == [close]
    assert client.open_channel().number == 2  # our own close is not answered yet
    assert feed(client, (1, ChannelCloseOk())) == []
    assert client.open_channel().number == 1


def test_content_in_pieces() -> None:
    client, _ = with_channel()
    deliver = BasicDeliver("c", 7, True, "ex", "key")
    body = bytes(range(256)) * 40
    said = header_frame(1, len(body), b"\x80\0\1x") + body_frames(1, body, 4096)
    (event,) = feed(client, (1, deliver), said)
    assert isinstance(event, ContentReceived)
    assert (event.channel, event.method) == (1, deliver)
    assert (event.section, event.body) == (b"\x80\0\1x", body)
    (empty,) = feed(client, (1, deliver), header_frame(1, 0, b"\0\0"))
    assert isinstance(empty, ContentReceived)
    assert empty.body == b""


def test_content_is_sent_in_frames_that_fit() -> None:
    client, channel = with_channel(frame_max=4096)
    client.send_content(channel, BasicPublish("", "q"), b"\0\0", bytes(10_000))
    raw = out(client)
    assert raw == (
        method_frame(1, BasicPublish("", "q"))
        + header_frame(1, 10_000, b"\0\0")
        + body_frames(1, bytes(10_000), 4096)
    )
    with pytest.raises(ValueError, match="properties of 5000 bytes"):
        client.send_content(channel, BasicPublish("", "q"), bytes(5000), b"")
    assert out(client) == b""


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (frame(9, 1, b""), 501),
        (b"\1\0\1\0\0\0\4" + b"\0\x3c\0\x0b" + b"\0", 501),
        (b"\1\0\1\xff\0\0\0", 501),
        (frame(METHOD, 9, encode_method(BasicAck(1))), 504),
        (frame(METHOD, 1, encode_method(ChannelOpenOk())), 504),
        (frame(METHOD, 1, encode_method(ChannelCloseOk())), 504),
        (frame(METHOD, 1, encode_method(BasicPublish())), 503),
        (frame(METHOD, 0, encode_method(ConnectionOpenOk())), 504),
        (frame(METHOD, 1, b"\0\x63\0\1"), 540),
        (frame(2, 1, bytes(14)), 505),
        (DELIVER + method_frame(1, BasicAck(1)), 505),
        (DELIVER + header_frame(1, 5, b"\0\1"), 502),
        (DELIVER + header_frame(1, 1, b"\0\0") + body_frames(1, b"12", 0), 501),
        (DELIVER + header_frame(1, 999_999, b"\0\0"), 311),
    ],
)  # fmt: skip
def test_a_server_that_breaks_the_protocol_is_told_and_left(said: bytes, code: int) -> None:
    client, _ = with_channel(max_message_bytes=1000)
    failure, closed = feed(client, said)
    assert isinstance(failure, ProtocolFailure)
    assert failure.error.reply_code == code
    assert isinstance(closed, PeerClosed)
    raw = out(client)
    assert raw[7:13] == b"\0\x0a\0\x32" + code.to_bytes(2, "big")
    client.receive_data(said, 0)
    assert events(client) == []


def test_the_server_closes_the_connection() -> None:
    client, _ = with_channel()
    close = ConnectionClose(320, "CONNECTION_FORCED - shutdown")
    received, closed = feed(client, (0, close))
    assert isinstance(received, MethodReceived)
    assert received.method == close
    assert isinstance(closed, PeerClosed)
    assert closed.clean
    assert out(client) == method_frame(0, ConnectionCloseOk())


def test_we_close_the_connection() -> None:
    client, _ = with_channel()
    client.close()
    assert out(client) == method_frame(0, ConnectionClose(200, "closed by the application"))
    (closed,) = feed(client, (1, BasicConsumeOk("late")), (0, ConnectionCloseOk()))
    assert isinstance(closed, PeerClosed)
    assert closed.clean


def test_a_server_that_does_not_answer_a_close_is_left() -> None:
    client, _ = with_channel(heartbeat_s=0)
    client.close()
    due = client.next_deadline()
    assert due == 10_000
    client.tick(due)
    (closed,) = events(client)
    assert isinstance(closed, PeerClosed)
    assert closed.reason == "no connection.close-ok within 10000 ms"


def test_the_end_of_the_stream_comes_behind_what_came_before() -> None:
    client = opened()
    client.receive_data(method_frame(0, ConnectionBlocked("low on disk")) + b"\1\0", 0)
    client.receive_end("reset")
    blocked, closed = events(client)
    assert isinstance(blocked, MethodReceived)
    assert isinstance(closed, PeerClosed)
    assert closed.reason == "reset"


def test_a_handshake_that_takes_too_long() -> None:
    client = ClientConnection(Limits(handshake_timeout_ms=5000))
    client.start(100)
    assert client.next_deadline() == 5100
    client.tick(5100)
    (closed,) = events(client)
    assert isinstance(closed, PeerClosed)
    assert closed.reason == "handshake not complete after 5000 ms"


def test_heartbeats_go_out_and_are_missed() -> None:
    client = opened(heartbeat_s=10)
    assert client.next_deadline() == 5000
    client.tick(5000)
    assert out(client, 5000) == HEARTBEAT_FRAME
    client.receive_data(HEARTBEAT_FRAME, 6000)
    assert events(client) == []
    client.tick(25_999)
    assert events(client) == []
    client.tick(26_000)
    (closed,) = events(client)
    assert isinstance(closed, PeerClosed)
    assert closed.reason == "nothing came from the server for 20 s"


def test_what_is_sent_puts_off_the_heartbeat() -> None:
    client = opened(heartbeat_s=10)
    client.open_channel()
    out(client, 4000)
    assert client.next_deadline() == 9000


def test_the_trace_has_methods_and_no_secrets() -> None:
    lines: list[str] = []
    client = ClientConnection(Limits(), lines.append)
    client.start(0)
    feed(client, (0, START))
    client.send_handshake(ConnectionStartOk({}, "PLAIN", b"\0me\0secret", "en_US"))
    feed(client, (0, TUNE))
    client.send_tune_ok(TUNE)
    client.send_handshake(ConnectionOpen("/"))
    feed(client, (0, ConnectionOpenOk()))
    channel = client.open_channel()
    client.send_content(channel, BasicPublish("", "q", True), b"\0\0", b"body!")
    assert lines[1] == "-> [0] connection.start-ok mechanism='PLAIN' response=... locale='en_US'"
    assert lines[-1] == "-> [1] basic.publish routing_key='q' mandatory=True +5"
    assert not [line for line in lines if "secret" in line or "body" in line]


SOME = st.one_of(
    st.binary(max_size=40),
    st.sampled_from(
        [
            method_frame(1, BasicDeliver("c", 1)),
            header_frame(1, 3, b"\0\0"),
            body_frames(1, b"abc", 0),
            method_frame(1, BasicAck(1)),
            method_frame(1, ChannelClose(404, "no")),
            method_frame(1, ChannelCloseOk()),
            method_frame(0, ConnectionClose(320, "bye")),
            HEARTBEAT_FRAME,
        ]
    ),
)


@given(st.lists(SOME, max_size=8), st.integers(1, 64))
def test_any_bytes_give_events_or_one_failure(pieces: list[bytes], size: int) -> None:
    """And the events do not depend on how the bytes came."""
    told = []
    for step in (size, 1 << 20):
        client, _ = with_channel()
        data = b"".join(pieces)
        found: list[Event] = []
        for start in range(0, len(data), step):
            client.receive_data(data[start : start + step], 0)
            found += events(client)
        failures = [event for event in found if isinstance(event, ProtocolFailure)]
        assert len(failures) <= 1
        if failures:
            assert isinstance(found[-1], PeerClosed)
        told.append([type(event) for event in found])
    assert told[0] == told[1]
