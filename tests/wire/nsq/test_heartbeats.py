"""Time: heartbeats, dead clients, the time for the first bytes and for upgrades [NQ-7, NQ-A13]."""

from __future__ import annotations

from tallymark.wire.nsq.commands import MAGIC, NOP, identify, pub
from tallymark.wire.nsq.connection import Connection
from tallymark.wire.nsq.events import PeerClosed, UpgradeDue
from tallymark.wire.nsq.frames import HEARTBEAT_FRAME
from tallymark.wire.nsq.lifecycle import UPGRADE_TIMEOUT_MS
from tallymark.wire.nsq.limits import Limits
from tests.support.nsq import Server, connected, flatten

BEAT = (0, b"_heartbeat_")


def test_nq_7_one_every_interval_traffic_or_not() -> None:
    server = connected()
    connection = server.connection
    assert connection.next_deadline() == 30_000
    connection.tick(29_999)
    assert server.sent() == []
    server.feed(pub("t", b"x"), now_ms=29_999)
    connection.tick(30_000)
    assert server.sent() == [(0, b"OK"), BEAT]
    assert connection.next_deadline() == 60_000
    server.feed(NOP, now_ms=30_001)
    connection.tick(61_000)
    assert connection.take_output(0) == [HEARTBEAT_FRAME]
    assert connection.next_deadline() == 90_000  # the rhythm is kept


def test_nq_a13_two_intervals_without_a_byte() -> None:
    server = connected()
    connection = server.connection
    server.feed(identify(b'{"heartbeat_interval":1000}'), now_ms=5000)
    server.sent()
    for now_ms in (6000, 6999):
        connection.tick(now_ms)
    assert server.sent() == [BEAT]
    connection.tick(7000)
    server.drain()
    assert flatten(server.events[1:]) == [("CLOSED", "nothing received for 2000 ms", False)]
    assert connection.next_deadline() is None
    connection.tick(99_000)
    assert server.sent() == []


def test_nq_a13_any_byte_is_a_sign_of_life() -> None:
    server = connected()
    server.feed(identify(b'{"heartbeat_interval":1000}'), now_ms=0)
    body = pub("t", b"x" * 40)
    for second in range(len(body)):
        server.feed(body[second : second + 1], now_ms=1000 * second + 999)
        server.connection.tick(1000 * second + 1000)
    assert [row[0] for row in flatten(server.events)] == ["IDENTIFY", "PUB"]


def test_late_heartbeats_are_left_out() -> None:
    server = connected()
    server.feed(NOP, now_ms=100_000)
    server.connection.tick(100_000)
    assert server.sent() == [BEAT]
    assert server.connection.next_deadline() == 120_000


def test_nq_7_heartbeats_off() -> None:
    server = connected()
    server.feed(identify(b'{"heartbeat_interval":-1}'))
    assert server.connection.next_deadline() is None
    assert server.connection.write_timeout_ms == 0
    server.connection.tick(10_000_000)
    assert server.sent() == [(0, b"OK")]
    assert len(server.events) == 1


def test_write_timeout_is_one_interval() -> None:
    server = connected()
    assert server.connection.write_timeout_ms == 30_000
    server.feed(identify(b'{"heartbeat_interval":2000}'))
    assert server.connection.write_timeout_ms == 2000


def test_the_first_bytes_do_not_take_for_ever() -> None:
    connection = Connection(Limits(client_timeout_ms=5000))
    assert connection.next_deadline() == 0
    connection.tick(1000)
    assert connection.next_deadline() == 6000
    connection.receive_data(MAGIC[:3], 5000)
    connection.tick(5999)
    assert connection.next_event() is None
    connection.tick(6000)
    closed = connection.next_event()
    assert isinstance(closed, PeerClosed)
    assert closed.reason == "no protocol header after 5000 ms"


def test_an_upgrade_has_five_seconds() -> None:
    server = connected(Limits(tls_available=True))
    connection = server.connection
    connection.receive_data(identify(b'{"feature_negotiation":true,"tls_v1":true}'), 1000)
    assert connection.next_event() is not None
    connection.send_identify()
    assert isinstance(connection.next_event(), UpgradeDue)
    assert connection.next_deadline() == 1000 + UPGRADE_TIMEOUT_MS
    connection.tick(5999)
    assert connection.next_event() is None
    connection.tick(6000)
    assert flatten([connection.next_event() or 0]) == [  # type: ignore[list-item]
        ("CLOSED", "no tls after 5000 ms", False)
    ]
    connection.upgraded()
    assert len(server.sent()) == 1


def test_a_failed_connection_waits_for_its_owner_only() -> None:
    connection = Server().connection
    connection.receive_data(MAGIC + b"ASDF\n", 0)
    assert connection.next_event() is not None
    assert connection.next_deadline() is None
    connection.tick(10_000_000)
    assert connection.next_event() is None
    assert connection.line.out == []


def test_nops_are_work_like_everything_else() -> None:
    """A read of 256 KiB of them is many shares: other clients have their turn in between."""
    server = Server(Limits(steps=10))
    server.feed(b"  V2" + b"NOP\n" * 65_536)
    shares = 1
    while server.connection.line.is_share_done():
        server.feed(b"")
        shares += 1
    assert shares > 100
