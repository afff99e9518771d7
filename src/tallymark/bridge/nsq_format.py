"""NSQ messages for the engine and for readers of other protocols, and theirs for NSQ clients.

An NSQ message is a body. To AMQP 0-9-1 readers it is content without properties, published to the
topic's exchange with the topic's name as routing key; of an AMQP message NSQ clients get the body.
"""

from __future__ import annotations

from array import array
from typing import Final, final

from tallymark.engine.formats import Format
from tallymark.engine.message import Payload, Route, Slice
from tallymark.wire.amqp091.frames import BODY, HEADER, METHOD, frame
from tallymark.wire.amqp091.layouts import encode_method
from tallymark.wire.amqp091.methods import BasicPublish
from tallymark.wire.nsq.kernel import FORMAT, body_of, body_sizes

AMQP091: Final = 1
"""Payload.format of AMQP 0-9-1 frames [amqp091_publish]."""
CHANNEL: Final = 1
"""Of the frames made here; a reader's own is put in their place."""
HEADER_START: Final = b"\x00\x3c\x00\x00"
NO_PROPERTIES: Final = b"\x00\x00"


@final
class NsqFormat(Format):
    """What queues may ask about NSQ messages: they have bodies and say nothing."""

    __slots__ = ()

    def bodies(self, payload: Payload) -> array[int]:
        raw = payload.raw
        assert raw is not None, payload.position
        totals = array("Q", (0,))
        total = 0
        for size in body_sizes(raw, payload.cuts, 0, payload.count):
            total += size
            totals.append(total)
        return totals


def as_amqp091(piece: Slice) -> Slice:
    """NSQ messages whose bytes are in memory as an AMQP 0-9-1 publisher would have sent them: the
    same slice over a payload of its own, for one reader."""
    payload = piece.payload
    raw, cuts = payload.raw, payload.cuts
    assert payload.format == FORMAT, payload.format
    assert raw is not None, payload.position
    out: list[bytes] = []
    ends = [0]
    largest = total = 0
    method = b""
    known: Route | None = None
    for i in range(piece.lo, piece.hi):
        route = payload.route if payload.routes is None else payload.routes[i]
        if route is not known:
            known = route
            publish = BasicPublish(route.exchange, route.key, False, False)
            method = frame(METHOD, CHANNEL, encode_method(publish))
        body = body_of(raw, cuts[i], cuts[i + 1])
        size = len(body)
        largest = max(largest, size + 8)
        header = frame(HEADER, CHANNEL, HEADER_START + size.to_bytes(8, "big") + NO_PROPERTIES)
        content = frame(BODY, CHANNEL, body) if size else b""
        out += (method, header, content)
        total += len(method) + len(header) + len(content)
        ends.append(total)
    whole = Payload(
        AMQP091, b"".join(out), array("I", ends), payload.route,
        None if payload.routes is None else payload.routes[piece.lo : piece.hi],
        payload.first_id + piece.lo, payload.arrived_ms, payload.persistent, largest,
    )  # fmt: skip
    return Slice(
        whole, 0, len(piece), piece.first, piece.acquired, piece.failed, piece.priority,
        piece.annotations, piece.shift,
    )  # fmt: skip


def amqp091_bodies(raw: bytes, cuts: array[int], lo: int, hi: int) -> list[bytes]:
    """The bodies of AMQP 0-9-1 messages lo..hi-1."""
    found: list[bytes] = []
    for i in range(lo, hi):
        at = cuts[i]
        end = cuts[i + 1]
        at += 8 + int.from_bytes(raw[at + 3 : at + 7], "big")  # the method frame
        at += 8 + int.from_bytes(raw[at + 3 : at + 7], "big")  # the header frame
        parts: list[bytes] = []
        while at < end:
            after = at + 8 + int.from_bytes(raw[at + 3 : at + 7], "big")
            parts.append(raw[at + 7 : after - 1])
            at = after
        found.append(parts[0] if len(parts) == 1 else b"".join(parts))
    return found
