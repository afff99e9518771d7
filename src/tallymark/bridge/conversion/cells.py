"""Building blocks of converted messages, common to all source protocols."""

from __future__ import annotations

from array import array
from typing import Final, final

from tallymark.engine.message import Payload, Slice
from tallymark.stored.annotations import Route
from tallymark.stored.formats import AMQP091
from tallymark.units import MessageId
from tallymark.wire.amqp091.frames import BODY, METHOD, frame, header_frame
from tallymark.wire.amqp091.layouts import encode_method
from tallymark.wire.amqp091.methods import BasicPublish
from tallymark.wire.amqp10.front import Front

CHANNEL: Final = 1
"""Channel number of frames made here; it is replaced by that of the reader."""
NO_PROPERTIES: Final = b"\x00\x00"
FRAME_END: Final = b"\xce"


@final
class Cells:
    """A slice in AMQP 1.0: message i, counted from the slice's first, is raw[cuts[i] : cuts[i + 1]]
    without its front; the stretches (first, end, front) have the fronts."""

    __slots__ = ("cuts", "raw", "stretches")

    def __init__(
        self, raw: bytes, cuts: array[int], stretches: list[tuple[int, int, Front]]
    ) -> None:
        self.raw = raw
        self.cuts = cuts
        self.stretches = stretches


def data_head(size: int) -> bytes:
    """Return the bytes before a content of this size in a data section."""
    if size < 256:
        return b"\x00\x53\x75\xa0" + bytes((size,))
    return b"\x00\x53\x75\xb0" + size.to_bytes(4, "big")


def route_of(payload: Payload, i: int) -> Route:
    return payload.route if payload.routes is None else payload.routes[i]


def method_of(route: Route) -> bytes:
    """Return the publish method frame of a message of this route."""
    return frame(
        METHOD, CHANNEL, encode_method(BasicPublish(route.exchange, route.key, False, False))
    )


def _in_front(section: bytes, size: int) -> bytes:
    """Return the header frame, and the bytes before a body of that size in its frame, if it has a
    body."""
    header = header_frame(CHANNEL, size, section)
    if not size:
        return header
    return header + bytes((BODY, 0, CHANNEL)) + size.to_bytes(4, "big")


@final
class Frames:
    """Collects the messages of a slice as AMQP 0-9-1 frames."""

    __slots__ = ("_ends", "_head", "_largest", "_out", "_payload", "_piece", "_route", "_section",
                 "_size", "_total")  # fmt: skip

    def __init__(self, piece: Slice) -> None:
        self._piece = piece
        self._payload = piece.payload
        self._out: list[bytes] = []
        self._ends = [0]
        self._total = 0
        self._largest = 0
        self._route: Route | None = None
        self._section = b""
        self._size = -1
        """Size of the last body added."""
        self._head = b""
        """Bytes before that body."""

    def add(self, i: int, section: bytes, body: bytes) -> None:
        """Add the next message: number i of the payload."""
        route = route_of(self._payload, i)
        size = len(body)
        if size != self._size or section is not self._section or route is not self._route:
            self._route = route
            self._section = section
            self._size = size
            self._head = method_of(route) + _in_front(section, size)
            self._largest = max(self._largest, size + 8, len(section) + 20)
        self._out.append(self._head)
        self._total += len(self._head)
        if size:
            self._out += (body, FRAME_END)
            self._total += size + 1
        self._ends.append(self._total)

    def slice(self) -> Slice:
        """Return the slice over a payload of its own, for one reader."""
        piece = self._piece
        payload = self._payload
        whole = Payload(
            AMQP091, b"".join(self._out), array("I", self._ends), payload.route, None if
            payload.routes is None else payload.routes[piece.lo : piece.hi],
            MessageId(payload.first_id + piece.lo), payload.arrived_ms, payload.persistent,
            self._largest,
        )  # fmt: skip
        return Slice(
            whole, 0, len(piece), piece.first, piece.acquired, piece.failed, piece.priority,
            piece.annotations, piece.shift,
        )  # fmt: skip
