"""Publishers that number their messages and readers of one stream, under kill -9, and what they
know together: which message is at which offset.

A message is (publisher, number); its body repeats both. A publisher sends again, under the same
numbers, what was not confirmed when its connection broke, and now and then what was.
"""

from __future__ import annotations

import random
import struct
import threading
from collections import deque
from dataclasses import dataclass, field

from bench.lean import ACK, DELIVER, ClosedByBroker, Link, publish, settle, short, table
from tallymark.bridge.amqp091_format import PUBLISHER_NAME, PUBLISHING_ID
from tallymark.engine.records import DROPPED, PAYLOAD
from tallymark.journal import layout

STREAM = "stream"
WINDOW = 400
"""Unconfirmed publishes at most."""
LOST = (OSError, ClosedByBroker, TimeoutError)
REPEATS = (1, 8, 64, 600)
_OFFSET = b"\x0fx-stream-offsetl"
Message = tuple[int, int]


def body_of(message: Message, repeats: int) -> bytes:
    return struct.pack(">IQ", *message) * repeats


def message_in(body: bytes) -> Message:
    """Fails on a damaged body."""
    head = body[:12]
    assert body == head * (len(body) // 12), f"damaged body of {len(body)} bytes"
    publisher, number = struct.unpack(">IQ", head)
    return publisher, number


@dataclass(slots=True)
class Known:
    """What all clients have seen so far. Never forgotten: an offset is for ever."""

    at: dict[int, Message] = field(default_factory=dict)
    confirmed: dict[int, int] = field(default_factory=dict)
    """By publisher: every number up to this one is confirmed."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    breaches: list[str] = field(default_factory=list)

    def saw(self, offset: int, message: Message) -> None:
        with self.lock:
            known = self.at.setdefault(offset, message)
            if known != message:
                self.breaches.append(f"offset {offset} was {known} and is {message}")


class Publisher:
    """Goes on over any number of connections."""

    def __init__(self, id: int, known: Known, chance: random.Random) -> None:
        self.id = id
        self.known = known
        self.sent = 0
        """The highest number ever sent."""
        self._chance = chance
        known.confirmed[id] = 0

    def run(self, port: int, ended: threading.Event) -> None:
        """Publish until the connection breaks, or the event says so."""
        try:
            self._run(Link(port), ended)
        except LOST:
            return

    def _run(self, link: Link, ended: threading.Event) -> None:
        link.open_channel(1, confirms=True)
        link.set_loose()
        confirmed = self.known.confirmed[self.id]
        again = self._chance.choice([0, 0, 3])  # what the broker must pass over
        number = max(0, confirmed - again)
        waiting: deque[int] = deque()  # numbers in the order of their publishes
        tag = 0
        while not ended.is_set():
            while len(waiting) < WINDOW and len(link.outbox) < 1 << 18:
                number += 1
                link.outbox += self._message(number)
                waiting.append(number)
                self.sent = max(self.sent, number)
            link.flush()
            link.fill()
            for name, _, upto, multiple, _ in link.events():
                assert name == ACK, name
                assert multiple or upto == tag + 1
                while tag < upto:
                    tag += 1
                    done = waiting.popleft()
                    self.known.confirmed[self.id] = max(self.known.confirmed[self.id], done)

    def _message(self, number: int) -> bytes:
        headers = table({"x": 1, PUBLISHER_NAME: f"p{self.id}", PUBLISHING_ID: number})
        flags = 0x3000  # headers, delivery-mode
        properties = struct.pack(">H", flags) + headers + bytes([1 + number % 2])
        body = body_of((self.id, number), self._chance.choice(REPEATS))
        return publish(1, "", STREAM, properties, body)


def follow(port: int, start: int, prefetch: int, known: Known, ended: threading.Event) -> None:
    """Read from an offset on over AMQP, acknowledge, and compare, until the connection breaks."""
    try:
        link = Link(port)
        link.open_channel(1, prefetch=prefetch)
        link.sections = []
        link.set_loose()
        arguments = b"\0\0" + short(STREAM) + short("r") + b"\0" + table({"x-stream-offset": start})
        link.socket.setblocking(True)
        link.call(1, (60, 20), arguments)
        link.set_loose()
        last = start - 1
        while not ended.is_set():
            link.fill()
            for name, _, tag, _, body in link.events():
                assert name == DELIVER, name
                section = link.sections.pop(0)
                at = section.index(_OFFSET) + len(_OFFSET)
                offset = int.from_bytes(section[at : at + 8], "big")
                if offset <= last:
                    known.breaches.append(f"offset {offset} came after {last}")
                last = offset
                known.saw(offset, message_in(body))
                link.outbox += settle(1, ACK, tag, 0)
            link.flush()
    except LOST:
        return


def read_range(data: bytes, low: int, high: int) -> dict[int, Message]:
    """An answer of the HTTP interface: the message at each offset."""
    found: dict[int, Message] = {}
    at = low + 1
    for record in layout.unpack(data):
        if record.kind == PAYLOAD:
            continue
        assert record.first == at, (record.first, at)
        at += record.count
        payload = record.payload
        if record.kind == DROPPED or payload is None:
            continue
        assert payload.raw is not None
        for i in range(record.lo, record.lo + record.count):
            cell = payload.raw[payload.cuts[i] : payload.cuts[i + 1]]
            found[record.first - 1 + i - record.lo] = message_in(_body(cell))
    assert at == high + 1, (at, high)
    return found


def _body(cell: bytes) -> bytes:
    at = 0
    body = b""
    while at < len(cell):
        size = int.from_bytes(cell[at + 3 : at + 7], "big")
        if cell[at] == 3:
            body += cell[at + 7 : at + 7 + size]
        at += 8 + size
    return body


def declare(port: int, arguments: dict[str, object]) -> None:
    link = Link(port)
    link.open_channel(1)
    asked = table({"x-queue-type": "stream", **arguments})
    link.call(1, (50, 10), b"\0\0" + short(STREAM) + b"\2" + asked)
    link.close()
