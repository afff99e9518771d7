"""Publishers that number their messages and readers of one stream, under kill -9, and what they
know together: which message is at which offset.

A message is (publisher, number); its body repeats both. A publisher sends again, under the same
numbers, what was not confirmed when its connection broke, and now and then what was.
"""

from __future__ import annotations

import json
import random
import select
import struct
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from bench.lean import ACK, DELIVER, ClosedByBroker, Link, publish, settle, short, table
from tallymark.bridge.names import PUBLISHER_NAME, PUBLISHING_ID
from tallymark.journal import unpacking
from tallymark.stored.records import DROPPED, PAYLOAD
from tests.support.pace import Pace
from tests.support.process import BrokerProcess

STREAM = "stream"
WINDOW = 400
"""Unconfirmed publishes at most."""
LOST = (OSError, ClosedByBroker, TimeoutError)
REPEATS = (1, 8, 64, 600)
PAUSE_S = 0.05
"""How long who has nothing to do waits for the broker at most."""
BASE = f"/api/tallymark/streams/%2F/{STREAM}"
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

    def __init__(
        self, id: int, known: Known, chance: random.Random, pace: Pace | None = None
    ) -> None:
        self.id = id
        self.known = known
        self.sent = 0
        """The highest number ever sent."""
        self._chance = chance
        self._pace = pace
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
                if self._pace is not None and not self._pace.take():
                    select.select([link.socket], [], [], PAUSE_S)
                    break
                number += 1
                link.outbox += self._message(number)
                waiting.append(number)
                self.sent = max(self.sent, number)
            link.flush()
            if not link.fill():
                return
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
            select.select([link.socket], [], [], PAUSE_S)
            if not link.fill():
                return
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
    for record in unpacking.unpack(data):
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


def stat(broker: BrokerProcess) -> dict[str, Any]:
    """The stream's row: `first` and `next` offset, and more."""
    status, found = broker.http("GET", BASE)
    assert status == 200, found
    return dict(found)


def read_all(broker: BrokerProcess) -> tuple[int, int, dict[int, Message]]:
    """The stream as it is now, over HTTP: from, to, and each message."""
    row = stat(broker)
    low, high = row["first"], row["next"]
    found: dict[int, Message] = {}
    at = low
    while at < high:
        status, far = broker.http("GET", f"{BASE}/range?from={at}&max_bytes=1000000")
        assert status == 200, far
        end = far["to"]
        while at < end:
            path = f"{BASE}/read?from={at}&to={end}&max_bytes=300000"
            status, data = broker.http_bytes("GET", path)
            assert status == 200, json.loads(data)
            # How far an answer goes its rows say too.
            rows = [row for row in unpacking.unpack(data) if row.kind != PAYLOAD]
            rows_end = rows[-1].first + rows[-1].count - 1
            found |= read_range(data, at, rows_end)
            at = rows_end
    return low, high, found


def check(
    known: Known, publishers: list[Publisher], low: int, high: int, found: dict[int, Message]
) -> None:
    """A stream that nobody publishes to holds what its clients know. Raises AssertionError."""
    for offset, message in found.items():
        known.saw(offset, message)
    assert known.breaches == []
    read = [offset for offset in known.at if offset >= low]
    assert set(read) == set(found), "what was read once is there, at its offset"
    assert max(known.at, default=-1) < high
    for publisher in publishers:
        mine = [n for id, n in (found[at] for at in sorted(found)) if id == publisher.id]
        assert mine == sorted(set(mine)), f"numbers of {publisher.id} twice or out of order"
        confirmed = known.confirmed[publisher.id]
        if mine:
            missing = set(range(mine[0], confirmed + 1)) - set(mine)
            assert not missing, f"{len(missing)} confirmed messages are missing"
            assert mine[-1] <= publisher.sent


def declare(port: int, arguments: dict[str, object]) -> None:
    link = Link(port)
    link.open_channel(1)
    asked = table({"x-queue-type": "stream", **arguments})
    link.call(1, (50, 10), b"\0\0" + short(STREAM) + b"\2" + asked)
    link.close()
