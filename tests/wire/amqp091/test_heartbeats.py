"""Time: heartbeats sent and missed, the handshake's time, the time to answer a close."""

from __future__ import annotations

from tallymark.wire.amqp091.connection import Connection
from tallymark.wire.amqp091.errors import WireError
from tallymark.wire.amqp091.events import PeerClosed, ProtocolFailure
from tallymark.wire.amqp091.frames import HEARTBEAT_FRAME, PROTOCOL_HEADER
from tallymark.wire.amqp091.limits import Limits
from tests.support.amqp091 import Server, publish, running


def test_a_heartbeat_is_sent_after_half_an_interval_of_silence() -> None:
    server = running(heartbeat=10, now_ms=1000)
    connection = server.connection
    assert connection.next_deadline() == 6000
    connection.tick(5999)
    assert connection.line.out == []
    connection.tick(6000)
    assert connection.take_output(6000) == [HEARTBEAT_FRAME]
    assert connection.next_deadline() == 11_000


def test_other_output_puts_it_off() -> None:
    connection = running(heartbeat=10, now_ms=0).connection
    connection.line.out.append(b"anything")
    connection.take_output(4000)
    assert connection.next_deadline() == 9000
    connection.tick(5000)
    assert connection.line.out == []
    connection.line.out.append(b"about to be written")
    connection.tick(9000)
    assert connection.line.out == [b"about to be written"]


def test_a_peer_is_dead_after_two_intervals_without_a_byte() -> None:
    server = running(1, heartbeat=10, now_ms=0)
    connection = server.connection
    server.feed(HEARTBEAT_FRAME, now_ms=15_000)
    assert server.events == []
    connection.line.out.append(b"anything")
    connection.take_output(34_000)
    assert connection.next_deadline() == 35_000
    connection.tick(34_999)
    assert connection.next_event() is None
    connection.tick(35_000)
    event = connection.next_event()
    assert isinstance(event, PeerClosed)
    assert event.reason == "missed heartbeats from client, timeout: 10s"
    assert connection.next_event() is None
    assert connection.next_deadline() is None


def test_half_a_frame_is_a_sign_of_life() -> None:
    server = running(1, heartbeat=10, now_ms=0)
    server.feed(publish(1, b"x" * 500)[:100], now_ms=19_000)
    server.connection.tick(20_000)
    assert server.connection.next_event() is None


def test_a_driver_that_obeys_the_deadlines_keeps_a_silent_link_alive_and_ends_a_dead_one() -> None:
    connection = running(heartbeat=8, now_ms=0).connection
    beats = []
    while (deadline := connection.next_deadline()) is not None:
        connection.tick(deadline)
        beats += [deadline] * len(connection.take_output(deadline))
    assert beats == [4000, 8000, 12_000]
    assert isinstance(connection.next_event(), PeerClosed)


def test_without_heartbeats_there_is_nothing_to_wait_for() -> None:
    connection = running(heartbeat=0).connection
    assert connection.next_deadline() is None
    connection.tick(10**9)
    assert connection.line.out == []
    assert connection.next_event() is None


def test_the_handshake_has_its_time_from_the_first_tick_on() -> None:
    connection = Connection(Limits(handshake_timeout_ms=500))
    assert connection.next_deadline() == 0
    connection.tick(10_000)
    assert connection.next_deadline() == 10_500
    connection.receive_data(PROTOCOL_HEADER[:4], 10_400)
    connection.tick(10_499)
    assert connection.next_event() is None
    connection.tick(10_500)
    event = connection.next_event()
    assert isinstance(event, PeerClosed)
    assert event.reason == "handshake not complete after 500 ms"


def test_a_peer_that_does_not_answer_our_close_is_left_after_30_seconds() -> None:
    server = running(heartbeat=10, now_ms=0)
    connection = server.connection
    connection.send_close(0, WireError(320, "shutdown"))
    assert connection.next_deadline() == 30_000
    connection.tick(29_999)
    assert connection.next_event() is None
    connection.tick(30_000)
    assert isinstance(connection.next_event(), PeerClosed)


def test_where_the_answer_could_not_be_read_3_seconds_are_enough() -> None:
    server = running(1, now_ms=0)
    server.feed(b"\x01\0\0\0\0\0\0\0garbage", now_ms=1000)
    assert isinstance(server.events[0], ProtocolFailure)
    assert server.connection.next_deadline() == 4000
    server.feed(b"more garbage" * 1000, now_ms=2000)
    server.connection.tick(4000)
    server.drain()
    assert [type(event) for event in server.events] == [ProtocolFailure, PeerClosed]


def test_a_failure_nobody_answers_ends_too() -> None:
    connection = running(1).connection
    connection.receive_data(publish(2, b""), 50)
    assert isinstance(connection.next_event(), ProtocolFailure)
    assert connection.next_event() is None
    assert connection.next_deadline() == 30_050
    connection.tick(30_050)
    assert isinstance(connection.next_event(), PeerClosed)


def test_a_server_in_its_handshake_has_one_deadline() -> None:
    server = Server(Limits(handshake_timeout_ms=700))
    server.feed(PROTOCOL_HEADER, now_ms=100)
    assert server.connection.next_deadline() == 800
