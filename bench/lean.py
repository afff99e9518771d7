"""A lean AMQP 0-9-1 client on a raw socket: what load generation and crash rounds need, no more.

Publishes are prebuilt bytes, what arrives comes back as plain tuples, nothing is hidden behind
callbacks: about 2 us a message on both ways together. It shares no code with the broker.
"""

from __future__ import annotations

import socket
import struct

METHOD, HEADER, BODY, END = 1, 2, 3, b"\xce"
PERSISTENT = b"\x10\x00\x02"
"""Property section with delivery-mode 2 alone."""
TRANSIENT = b"\x10\x00\x01"
READ_SIZE = 256 * 1024
TIMEOUT_S = 120.0
"""It ends what can never succeed, and says nothing of how fast anything is."""

_FRAME = struct.Struct(">BHI")
_METHOD = struct.Struct(">HH")
_TAG = struct.Struct(">Q")
_ACK = struct.Struct(">BHIHHQBB")

CONNECTION_CLOSE, CHANNEL_CLOSE = (10, 50), (20, 40)
DELIVER, ACK, NACK, RETURN = (60, 60), (60, 80), (60, 120), (60, 50)

Event = tuple[tuple[int, int], int, int, bool, bytes]
"""(method, channel, tag, flag, body): flag is redelivered of a delivery, multiple of a confirm;
body is the message's, or the arguments of any other method."""


class ClosedByBroker(Exception):
    """connection.close or channel.close arrived; the text holds code and reason."""


def short(text: str) -> bytes:
    """A short string [amqp-0.9.1 §4.2.5.3]."""
    raw = text.encode()
    return bytes([len(raw)]) + raw


def table(values: dict[str, object]) -> bytes:
    """A field table of truths, integers of 32 bits and texts [amqp-0.9.1 §4.2.5.5]."""
    out = bytearray()
    for name, value in values.items():
        out += short(name)
        if isinstance(value, bool):
            out += b"t" + bytes([value])
        elif isinstance(value, int):
            out += b"I" + value.to_bytes(4, "big", signed=True)
        else:
            raw = str(value).encode()
            out += b"S" + len(raw).to_bytes(4, "big") + raw
    return len(out).to_bytes(4, "big") + out


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    """One frame [amqp-0.9.1 §4.2.3]."""
    return _FRAME.pack(kind, channel, len(payload)) + payload + END


def method(channel: int, name: tuple[int, int], arguments: bytes = b"") -> bytes:
    """A method frame."""
    return frame(METHOD, channel, _METHOD.pack(*name) + arguments)


def publish(
    channel: int,
    exchange: str,
    key: str,
    properties: bytes,
    body: bytes,
    frame_max: int = 131072,
) -> bytes:
    """basic.publish with its content; `properties` are the flags and the values."""
    arguments = b"\x00\x00" + short(exchange) + short(key) + b"\x00"
    header = struct.pack(">HHQ", 60, 0, len(body)) + properties
    parts = [method(channel, (60, 40), arguments), frame(HEADER, channel, header)]
    step = frame_max - 8
    parts += [frame(BODY, channel, body[at : at + step]) for at in range(0, len(body), step)]
    return b"".join(parts)


def settle(channel: int, name: tuple[int, int], tag: int, flags: int) -> bytes:
    """basic.ack (flags 1: multiple), basic.nack (1: multiple, 2: requeue), basic.reject (1:
    requeue)."""
    return _ACK.pack(METHOD, channel, 13, *name, tag, flags, 0xCE)


class Link:
    """One connection. Blocking for calls; `fill` and `flush` do not block after `set_loose`."""

    def __init__(
        self,
        port: int,
        host: str = "127.0.0.1",
        *,
        heartbeat_s: int = 0,
        frame_max: int = 131072,
    ) -> None:
        self.socket = socket.create_connection((host, port), timeout=TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.inbox = bytearray()
        self.outbox = bytearray()
        self.frame_max = frame_max
        self.heartbeats = 0
        """How many the broker sent; we send none."""
        self.sections: list[bytes] | None = None
        """Set to [] to be given the property section of every delivery, in their order."""
        self._partial: list[bytes] = []
        self._missing = 0
        self._delivery: tuple[int, int, bool] | None = None
        self._early: list[Event] = []
        self._open(heartbeat_s)

    def _open(self, heartbeat_s: int) -> None:
        self.socket.sendall(b"AMQP\x00\x00\x09\x01")
        self.wait((10, 10))
        response = b"\x00guest\x00guest"
        self.socket.sendall(
            method(
                0,
                (10, 11),
                struct.pack(">I", 0)
                + short("PLAIN")
                + struct.pack(">I", len(response))
                + response
                + short("en_US"),
            )
        )
        channels, frame_max = struct.unpack_from(">HI", self.wait((10, 30)))
        self.frame_max = min(frame_max or self.frame_max, self.frame_max)
        tuned = struct.pack(">HIH", channels, self.frame_max, heartbeat_s)
        self.socket.sendall(method(0, (10, 31), tuned))
        self.call(0, (10, 40), short("/") + b"\x00\x00")

    def open_channel(self, channel: int, *, confirms: bool = False, prefetch: int = 0) -> None:
        """Open a channel and set it up."""
        self.call(channel, (20, 10), b"\x00")
        if confirms:
            self.call(channel, (85, 10), b"\x00")
        if prefetch:
            self.call(channel, (60, 10), struct.pack(">IHB", 0, prefetch, 0))

    def declare_queue(self, name: str, *, durable: bool = True) -> None:
        """queue.declare without arguments."""
        flags = bytes([2 if durable else 0])
        self.call(1, (50, 10), b"\x00\x00" + short(name) + flags + bytes(4))

    def consume(self, channel: int, queue: str, *, no_ack: bool = False) -> None:
        """basic.consume; the tag is the queue's name."""
        arguments = b"\x00\x00" + short(queue) + short(queue) + bytes([2 if no_ack else 0])
        self.call(channel, (60, 20), arguments + bytes(4))

    def call(self, channel: int, name: tuple[int, int], arguments: bytes = b"") -> bytes:
        """Send a method and wait for its -ok; returns the arguments of that."""
        self.socket.sendall(method(channel, name, arguments))
        return self.wait((name[0], name[1] + 1))

    def wait(self, name: tuple[int, int]) -> bytes:
        """Block until this method arrives; what comes before it is kept for `events`.

        Raises:
            ClosedByBroker, TimeoutError, ConnectionError.
        """
        while True:
            self._early += self._parse()
            for index, event in enumerate(self._early):
                if event[0] == name:
                    del self._early[index]
                    return event[4]
            if not self.fill():
                raise ConnectionError(f"closed while waiting for method {name}")

    def set_loose(self) -> None:
        """From now on reads and writes do not block."""
        self.socket.setblocking(False)

    def fill(self) -> bool:
        """Read once; False at the end of the stream. A reset raises ConnectionError."""
        try:
            data = self.socket.recv(READ_SIZE)
        except BlockingIOError:
            return True
        self.inbox += data
        return bool(data)

    def flush(self) -> None:
        """Send what the socket takes of the outbox."""
        if not self.outbox:
            return
        try:
            with memoryview(self.outbox) as view:
                sent = self.socket.send(view)
        except BlockingIOError:
            return
        del self.outbox[:sent]

    def events(self) -> list[Event]:
        """Everything complete in the inbox.

        Raises:
            ClosedByBroker
        """
        early, self._early = self._early, []
        return early + self._parse() if early else self._parse()

    def _parse(self) -> list[Event]:
        found: list[Event] = []
        inbox, at, have = self.inbox, 0, len(self.inbox)
        delivery, missing = self._delivery, self._missing
        while have - at >= 8:
            kind, channel, size = _FRAME.unpack_from(inbox, at)
            start, end = at + 7, at + 7 + size
            if end >= have:
                break
            at = end + 1
            if kind == BODY:
                body = bytes(inbox[start:end])
                missing -= size
                if missing or self._partial:
                    self._partial.append(body)
                    if missing:
                        continue
                    body = b"".join(self._partial)
                    self._partial = []
                assert delivery is not None
                found.append((DELIVER, *delivery, body))
            elif kind == HEADER:
                (missing,) = _TAG.unpack_from(inbox, start + 4)
                if self.sections is not None:
                    self.sections.append(bytes(inbox[start + 12 : end]))
                if not missing:
                    assert delivery is not None
                    found.append((DELIVER, *delivery, b""))
            elif kind == METHOD:
                name = _METHOD.unpack_from(inbox, start)
                if name == DELIVER:
                    tag_at = start + 5 + inbox[start + 4]
                    (tag,) = _TAG.unpack_from(inbox, tag_at)
                    delivery = (channel, tag, bool(inbox[tag_at + 8]))
                elif name in (ACK, NACK):
                    (tag,) = _TAG.unpack_from(inbox, start + 4)
                    found.append((name, channel, tag, bool(inbox[start + 12] & 1), b""))
                else:
                    found.append(self._other(name, channel, bytes(inbox[start + 4 : end])))
            else:
                self.heartbeats += 1
        del inbox[:at]
        self._delivery, self._missing = delivery, missing
        return found

    def _other(self, name: tuple[int, int], channel: int, arguments: bytes) -> Event:
        if name in (CONNECTION_CLOSE, CHANNEL_CLOSE):
            code, length = struct.unpack_from(">HB", arguments)
            raise ClosedByBroker(f"{code} {arguments[3 : 3 + length].decode()}")
        return (name, channel, 0, False, arguments)

    def close(self) -> None:
        """Orderly: what was sent before has been seen by the broker when this returns."""
        self.socket.setblocking(True)
        self.socket.settimeout(TIMEOUT_S)
        self.socket.sendall(self.outbox)
        self.outbox.clear()
        self.call(0, CONNECTION_CLOSE, b"\x00\xc8" + short("bye") + bytes(4))
        self.socket.close()

    def drop(self) -> None:
        """Close the socket without a word."""
        self.socket.close()
