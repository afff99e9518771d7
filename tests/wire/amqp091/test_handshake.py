"""Opening and closing a connection, in every order that is legal and in some that are not."""

from __future__ import annotations

import pytest

from tallymark.wire.amqp091.connection import VERSIONS, Connection
from tallymark.wire.amqp091.events import MethodReceived, Opening, PeerClosed, ProtocolFailure
from tallymark.wire.amqp091.frames import PROTOCOL_HEADER, content_frames, frame
from tallymark.wire.amqp091.layouts import decode_method
from tallymark.wire.amqp091.lifecycle import Greeting
from tallymark.wire.amqp091.limits import Limits
from tallymark.wire.amqp091.methods import (
    ChannelOpen,
    ChannelOpenOk,
    ConnectionBlocked,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionSecure,
    ConnectionSecureOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
    ConnectionUpdateSecret,
    Method,
    QueueDeclare,
)
from tallymark.wire.amqp091.states import State
from tests.support.amqp091 import (
    HANDSHAKE,
    OPEN,
    Server,
    flatten,
    handshake,
    method_frame,
    running,
    tune_ok,
)


def failure_of(server: Server) -> ProtocolFailure:
    found = [event for event in server.events if isinstance(event, ProtocolFailure)]
    assert len(found) == 1
    return found[0]


def test_a_client_that_does_not_wait_gets_the_same_as_one_that_does() -> None:
    server = Server()
    server.feed(handshake(1))
    assert flatten(server.events) == [
        Opening,
        (0, ConnectionStartOk({}, "PLAIN", b"\0guest\0guest")),
        (0, ConnectionTuneOk(2047, 131_072, 0)),
        (0, ConnectionOpen("/")),
        (1, ChannelOpen()),
    ]
    assert server.sent() == [
        (0, ConnectionStart(0, 9, {}, b"PLAIN AMQPLAIN", b"en_US")),
        (0, ConnectionTune(2047, 131_072, 60)),
        (0, ConnectionOpenOk()),
        (1, ChannelOpenOk()),
    ]
    by_byte = Server()
    by_byte.feed(*[bytes((octet,)) for octet in handshake(1)])
    assert flatten(by_byte.events) == flatten(server.events)


@pytest.mark.parametrize(
    ("header", "version"),
    [
        (b"AMQP\0\0\x09\x01", (0, 9)),
        (b"AMQP\x01\x01\0\x09", (0, 9)),
        (b"AMQP\x01\x01\x08\0", (8, 0)),
        (b"AMQP\x01\x01\x09\x01", (8, 0)),
    ],
)
def test_older_versions_are_accepted_and_named(header: bytes, version: tuple[int, int]) -> None:
    server = Server()
    server.feed(header)
    assert isinstance(server.events[0], Opening)
    start = server.sent()[0][1]
    assert isinstance(start, ConnectionStart)
    assert (start.version_major, start.version_minor) == version


def test_channel_open_ok_has_no_field_in_0_8() -> None:
    server = Server()
    server.feed(b"AMQP\x01\x01\x08\0" + handshake(1)[8:])
    assert server.connection.line.out[-1] == frame(1, 1, b"\0\x14\0\x0b")


@pytest.mark.parametrize(
    "header",
    [
        b"AMQP\0\x01\0\0",
        b"AMQP\x03\x01\0\0",
        b"AMQP\0\0\x09\x02",
        b"GET / HT",
        b"\x16\x03\x01\0\0\x01\0\0",
    ],
)
def test_other_headers_are_answered_with_ours_and_closed(header: bytes) -> None:
    server = Server()
    server.feed(header + b"more of it", b"and more")
    assert [type(event) for event in server.events] == [ProtocolFailure, PeerClosed]
    assert server.connection.line.out == [PROTOCOL_HEADER]
    assert server.connection.state is State.CLOSED


def test_our_turn_means_waiting_and_what_comes_early_is_kept() -> None:
    connection = Connection(Limits())
    connection.receive_data(HANDSHAKE + tune_ok(), 0)
    assert isinstance(connection.next_event(), Opening)
    assert connection.next_event() is None
    connection.send_start(Greeting({}), b"PLAIN")
    event = connection.next_event()
    assert isinstance(event, MethodReceived)
    assert isinstance(event.method, ConnectionStartOk)
    assert connection.next_event() is None
    connection.send_method(0, ConnectionSecure(b"again"))
    connection.receive_data(b"", 0)
    failure = connection.next_event()  # tune-ok where secure-ok is expected
    assert isinstance(failure, ProtocolFailure)
    assert failure.error.text == "unexpected method in connection state securing"


def test_secure_asks_once_more() -> None:
    connection = Connection(Limits())
    connection.receive_data(HANDSHAKE, 0)
    connection.next_event()
    connection.send_start(Greeting({}), b"X")
    connection.next_event()
    connection.send_method(0, ConnectionSecure(b"challenge"))
    connection.receive_data(method_frame(0, ConnectionSecureOk(b"answer")), 0)
    event = connection.next_event()
    assert isinstance(event, MethodReceived)
    assert event.method == ConnectionSecureOk(b"answer")
    connection.send_tune()
    assert connection.state is State.TUNING


def test_a_flood_before_our_answer_ends_the_connection() -> None:
    connection = Connection(Limits())
    connection.receive_data(PROTOCOL_HEADER, 0)
    connection.next_event()
    for _ in range(17):
        connection.receive_data(bytes(4096), 0)
    failure = connection.next_event()
    assert isinstance(failure, ProtocolFailure)
    assert failure.error.reply_code == 506
    assert isinstance(connection.next_event(), PeerClosed)
    assert connection.next_event() is None


@pytest.mark.parametrize(
    ("tuned", "text"),
    [
        (
            tune_ok(frame_max=131_073),
            "negotiated frame_max = 131073 is higher than the maximum allowed value (131072)",
        ),
        (
            tune_ok(frame_max=0),
            "negotiated frame_max = 0 is higher than the maximum allowed value (131072)",
        ),
        (
            tune_ok(frame_max=4095),
            "negotiated frame_max = 4095 is lower than the minimum allowed value (4096)",
        ),
        (
            tune_ok(channel_max=2048),
            "negotiated channel_max = 2048 is higher than the maximum allowed value (2047)",
        ),
        (
            tune_ok(channel_max=0),
            "negotiated channel_max = 0 is higher than the maximum allowed value (2047)",
        ),
    ],
)
def test_a_client_may_not_ask_above_what_was_proposed(tuned: bytes, text: str) -> None:
    server = Server()
    server.feed(HANDSHAKE + tuned + OPEN)
    assert failure_of(server).error.reply_code == 530
    assert server.sent()[-1] == (0, ConnectionClose(530, f"NOT_ALLOWED - {text}", 10, 30))


def test_the_lower_limit_wins_and_zero_is_none() -> None:
    server = Server()
    server.feed(HANDSHAKE + tune_ok(10, 4096, 7) + OPEN)
    assert (server.connection.channel_max, server.connection.frame_max) == (10, 4096)
    server = Server(Limits(channel_max=0, frame_max=0))
    server.feed(HANDSHAKE + tune_ok(0, 0, 0) + OPEN)
    assert (server.connection.channel_max, server.connection.frame_max) == (65535, 0)


@pytest.mark.parametrize(
    "arguments",
    [{"frame_max": 4095}, {"frame_max": -1}, {"channel_max": 65536}, {"heartbeat_s": -1}],
)
def test_limits_are_checked(arguments: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="expected"):
        Limits(**arguments)


@pytest.mark.parametrize(
    "early",
    [
        method_frame(0, ConnectionOpen("/")),
        method_frame(0, ConnectionCloseOk()),
        method_frame(1, ChannelOpen()),
        method_frame(0, QueueDeclare()),
        content_frames(1, b"\0\0", b"x", 0),
        frame(8, 1, b""),
        frame(8, 0, b"x"),
        frame(4, 0, b"x"),
        frame(1, 0, b"\0\x0a"),
        b"\x01\0\0\0\0\x20\x01",
    ],
)
def test_nothing_is_said_to_a_stranger_who_breaks_the_protocol(early: bytes) -> None:
    server = Server()
    server.feed(PROTOCOL_HEADER)
    assert len(server.connection.take_output(0)) == 1
    server.feed(early)
    assert [type(event) for event in server.events] == [Opening, ProtocolFailure, PeerClosed]
    assert server.connection.line.out == []


def test_a_refused_login_can_be_told() -> None:
    connection = Connection(Limits())
    connection.receive_data(HANDSHAKE, 0)
    connection.next_event()
    connection.send_start(Greeting({}), b"PLAIN")
    connection.next_event()
    connection.send_method(0, ConnectionClose(403, "ACCESS_REFUSED - no"))
    connection.receive_data(method_frame(0, ConnectionCloseOk()), 0)
    assert flatten(iter(connection.next_event, None)) == [
        (0, ConnectionCloseOk()),
        ("closed", "connection.close-ok", True),
    ]


def test_our_own_mistakes_in_the_handshake_are_raised() -> None:
    connection = Connection(Limits())
    with pytest.raises(ValueError, match=r"connection.open-ok in connection state handshake"):
        connection.send_method(0, ConnectionOpenOk())


def test_the_client_closes() -> None:
    server = running(1)
    server.feed(method_frame(0, ConnectionClose(200, "bye")) + method_frame(1, QueueDeclare()))
    assert flatten(server.events) == [
        (0, ConnectionClose(200, "bye")),
        ("closed", "connection.close", True),
    ]
    assert server.sent() == [(0, ConnectionCloseOk())]
    server.connection.send_method(1, QueueDeclare())
    assert server.sent() == []


def test_the_server_closes_and_ignores_the_rest() -> None:
    server = running(1)
    connection = server.connection
    connection.send_method(0, ConnectionClose(320, "CONNECTION_FORCED - shutdown"))
    server.feed(method_frame(1, QueueDeclare()) + b"\x09\0\0\0\0\0\0\xce")
    assert server.events == []
    server.feed(method_frame(0, ConnectionCloseOk()) + b"noise")
    assert flatten(server.events) == [
        (0, ConnectionCloseOk()),
        ("closed", "connection.close-ok", True),
    ]


def test_both_close_at_once() -> None:
    server = running()
    server.connection.send_method(0, ConnectionClose(320, "x"))
    server.feed(method_frame(0, ConnectionClose(200, "y")))
    assert server.events == []
    assert server.sent() == [(0, ConnectionClose(320, "x")), (0, ConnectionCloseOk())]
    server.feed(method_frame(0, ConnectionCloseOk()))
    assert isinstance(server.events[-1], PeerClosed)


@pytest.mark.parametrize("cut", [0, 5, 30, len(handshake(1))])
def test_the_end_of_the_stream_comes_last_and_once(cut: int) -> None:
    server = Server()
    server.connection.receive_data(handshake(1)[:cut], 0)
    server.connection.receive_eof()
    server.drain()
    assert isinstance(server.events[-1], PeerClosed)
    assert not server.events[-1].clean
    server.feed(b"late")
    assert sum(isinstance(event, PeerClosed) for event in server.events) == 1


@pytest.mark.parametrize(
    "method",
    [
        ConnectionStartOk(),
        ConnectionTuneOk(),
        ConnectionOpen(),
        ConnectionCloseOk(),
        ConnectionBlocked("x"),
        ChannelOpen(),
        QueueDeclare(),
    ],
)
def test_methods_without_business_on_channel_0(method: Method) -> None:
    server = running()
    server.feed(method_frame(0, method))
    error = failure_of(server).error
    assert error.reply_text == ("CHANNEL_ERROR - unexpected method in connection state running")
    assert error.reply_code == 504


def test_update_secret_is_passed_on() -> None:
    server = running()
    server.feed(method_frame(0, ConnectionUpdateSecret(b"s", "r")))
    assert flatten(server.events) == [(0, ConnectionUpdateSecret(b"s", "r"))]


def test_closing_before_there_is_anything_to_close() -> None:
    connection = Connection(Limits())
    connection.send_method(0, ConnectionClose(320, "shutdown"))
    assert connection.line.out == []
    assert isinstance(connection.next_event(), PeerClosed)


def test_nothing_but_the_handshake_is_sent_before_it_is_complete() -> None:
    connection = Connection(Limits())
    connection.receive_data(HANDSHAKE, 0)
    connection.next_event()
    connection.send_method(0, ConnectionBlocked("disk"))
    connection.send_method(1, ChannelOpenOk())
    assert connection.line.out == []


def test_a_greeting_names_the_clients_version_and_the_mechanisms_offered() -> None:
    greeting = Greeting({"product": "x"})
    for header, version in [*VERSIONS.items(), *VERSIONS.items()]:
        for mechanisms in (b"PLAIN", b"PLAIN AMQPLAIN"):
            connection = Connection(Limits())
            connection.receive_data(header, 0)
            assert isinstance(connection.next_event(), Opening)
            connection.send_start(greeting, mechanisms)
            (sent,) = connection.line.take(0)
            assert decode_method(sent[7:-1]) == ConnectionStart(
                version[0], version[1], {"product": "x"}, mechanisms, b"en_US"
            )
