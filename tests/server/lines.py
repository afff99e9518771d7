"""Bare sockets on every port of a broker, in every protocol: for tables over all of them."""

from __future__ import annotations

import base64
import errno
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tallymark.wire.amqp091.frames import PROTOCOL_HEADER
from tallymark.wire.amqp091.methods import ConnectionStartOk
from tallymark.wire.nsq.commands import MAGIC
from tests.support.amqp091 import OPEN, method_frame, tune_ok
from tests.support.amqp10_socket import Client as Client10
from tests.support.patience import PATIENCE_S
from tests.support.process import BrokerProcess

GUEST = base64.b64encode(b"guest:guest")


@dataclass(frozen=True)
class Door:
    """A port, and how a connection to it begins."""

    name: str
    port: Callable[[BrokerProcess], int]
    enter: Callable[[socket.socket], None]
    """As far as the client is somebody, or has been answered something."""

    def connect(self, broker: BrokerProcess) -> socket.socket:
        """Raises OSError."""
        raw = socket.create_connection(("127.0.0.1", self.port(broker)), timeout=PATIENCE_S)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return raw

    def opened(self, broker: BrokerProcess) -> socket.socket:
        raw = self.connect(broker)
        self.enter(raw)
        return raw


def _amqp091(raw: socket.socket) -> None:
    start_ok = ConnectionStartOk({"capabilities": {}}, "PLAIN", b"\0guest\0guest")
    raw.sendall(PROTOCOL_HEADER + method_frame(0, start_ok) + tune_ok() + OPEN)
    open_ok = b"\0\x0a\0\x29"
    seen = b""
    while open_ok not in seen:
        data = raw.recv(65536)
        if not data:
            raise ConnectionError(f"hung up after {seen!r}")
        seen += data


def _amqp10(raw: socket.socket) -> None:
    Client10(raw).login()


def _nsq(raw: socket.socket) -> None:
    raw.sendall(MAGIC + b"IDENTIFY\n\0\0\0\x02{}")
    if not raw.recv(65536):
        raise ConnectionError("hung up")


def _http(path: bytes) -> Callable[[socket.socket], None]:
    def enter(raw: socket.socket) -> None:
        raw.sendall(
            b"GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Basic %s\r\n\r\n" % (path, GUEST)
        )
        if not raw.recv(65536).startswith(b"HTTP/1.1 200"):
            raise ConnectionError("hung up")

    return enter


DOORS = [
    Door("amqp-0-9-1", lambda broker: broker.amqp_port, _amqp091),
    Door("amqp-1.0", lambda broker: broker.amqp_port, _amqp10),
    Door("nsq", lambda broker: broker.nsq_port, _nsq),
    Door("nsq-http", lambda broker: broker.nsq_http_port, _http(b"/ping")),
    Door("management", lambda broker: broker.http_port, _http(b"/api/overview")),
]
HTTP_DOORS = [door for door in DOORS if door.name in ("nsq-http", "management")]


def until_closed(raw: socket.socket) -> bytes:
    """Read until the broker hangs up; what it said. Raises ConnectionResetError, TimeoutError."""
    parts = []
    while data := raw.recv(1 << 20):
        parts.append(data)
    return b"".join(parts)


def say_no_more(raw: socket.socket) -> None:
    """End what this side says. A broker that has reset the connection by now leaves nothing to
    end."""
    try:
        raw.shutdown(socket.SHUT_WR)
    except OSError as error:
        if error.errno != errno.ENOTCONN:
            raise


def memory_mib(broker: BrokerProcess) -> float:
    for line in Path(f"/proc/{broker.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmRSS")
