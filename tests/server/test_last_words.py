"""How connections end: what was said last arrives, though the client still has things under way."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest

from bench.lean import method, publish, short
from tallymark.wire.nsq.commands import MAGIC, pub
from tests.server.lines import DOORS, GUEST, until_closed
from tests.support.amqp10_socket import Client as Client10
from tests.support.process import BrokerProcess

BY_NAME = {door.name: door for door in DOORS}
UNDER_WAY = 4 << 20
"""Bytes: more than the sockets between hold, so that most of it comes after the answer."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("words") / "data") as process:
        yield process


def amqp091(broker: BrokerProcess) -> bytes:
    """connection.close, and a publisher that has not heard of it."""
    raw = BY_NAME["amqp-0-9-1"].opened(broker)
    raw.sendall(method(1, (20, 10), b"\0"))
    close = method(0, (10, 50), b"\0\xc8" + short("bye") + b"\0\0\0\0")
    more = publish(1, "", "q", b"\0\0", b"x" * 1000) * (UNDER_WAY // 1000)
    return said(raw, close + more)


def refused(broker: BrokerProcess) -> bytes:
    """What is not AMQP is answered with the version that is expected."""
    return said(BY_NAME["amqp-0-9-1"].connect(broker), b"GET / HTTP/1.1\r\n" + b"x" * UNDER_WAY)


def amqp10(broker: BrokerProcess) -> bytes:
    raw = BY_NAME["amqp-1.0"].connect(broker)
    client = Client10(raw)
    client.login()
    client.wire.close()
    raw.sendall(b"".join(client.wire.take_output(0)))
    raw.sendall(b"\0\0\0\x08\x02\0\0\0" * (UNDER_WAY // 8))
    with raw:
        return until_closed(raw)


def nsq(broker: BrokerProcess) -> bytes:
    raw = BY_NAME["nsq"].connect(broker)
    return said(raw, MAGIC + b"NONSENSE\n" + pub("t", b"x" * 1000) * (UNDER_WAY // 1000))


def too_large(broker: BrokerProcess) -> bytes:
    size = 6 << 20
    head = b"POST /pub?topic=t HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % size
    return said(BY_NAME["nsq-http"].connect(broker), head + b"x" * size, b"MSG_TOO_BIG")


def not_found(broker: BrokerProcess) -> bytes:
    head = b"POST /api/nosuch HTTP/1.1\r\nHost: a\r\nAuthorization: Basic %s\r\n" % GUEST
    head += b"Content-Length: %d\r\n\r\n" % UNDER_WAY
    return said(BY_NAME["management"].connect(broker), head + b"x" * UNDER_WAY, b"404")


def said(raw: socket.socket, data: bytes, expected: bytes = b"") -> bytes:
    """Send all of it, then read what the broker has said; until it hangs up, or `expected`."""
    with raw:
        raw.sendall(data)
        if not expected:
            return until_closed(raw)
        found = b""
        while expected not in found:
            data = raw.recv(65536)
            assert data, found
            found += data
        return found


WAYS = [
    (amqp091, b"\0\x0a\0\x33"),
    (refused, b"AMQP\0\0\x09\x01"),
    (amqp10, b"\0\x53\x18"),
    (nsq, b"E_INVALID"),
    (too_large, b"413"),
    (not_found, b"404"),
]


@pytest.mark.parametrize(("way", "word"), WAYS, ids=[way.__name__ for way, _ in WAYS])
def test_the_last_word_arrives_in_place_of_a_reset(
    broker: BrokerProcess, way: Callable[[BrokerProcess], bytes], word: bytes
) -> None:
    assert word in way(broker)


@pytest.mark.parametrize("name", ["amqp-0-9-1", "amqp-1.0", "nsq"])
def test_who_never_goes_is_dropped(broker: BrokerProcess, name: str) -> None:
    """After the last word nothing is waited for without end."""
    raw = BY_NAME[name].connect(broker)
    raw.sendall(MAGIC + b"NONSENSE\n" if name == "nsq" else b"NONSENSE")
    until_closed(raw)
    raw.settimeout(0.05)
    with pytest.raises(ConnectionError), raw:
        flood(raw)


def flood(raw: socket.socket) -> None:
    while True:
        try:
            raw.sendall(b"x" * 1000)
            raw.recv(1)
        except TimeoutError:
            pass
