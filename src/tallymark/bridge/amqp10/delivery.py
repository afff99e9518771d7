"""Deliveries of messages of all protocols to AMQP 1.0 readers.

A slice becomes runs. All messages of a run have the same front, made once; the rest of each is
copied as its sender encoded it. What came by another protocol is converted first, once per slice.
"""

from __future__ import annotations

from array import array
from typing import Final, final

from tallymark.bridge.conversion import amqp091_to_amqp10 as from_amqp091
from tallymark.bridge.conversion import nsq_to_amqp10 as from_nsq
from tallymark.bridge.conversion.annotated import Shown
from tallymark.engine.message import Payload, Slice
from tallymark.stored.annotations import Annotations, Route
from tallymark.stored.formats import AMQP091, AMQP10
from tallymark.units import EngineMs, MessageId, QueueSequence
from tallymark.wire.amqp10.front import UNREADABLE, Front, lenient_fronts

ROUTES_KEPT: Final = 1024
"""Number of routes whose annotations are cached per link."""


@final
class Run:
    """Messages that leave with one front: message i of lo..hi-1 is front + raw[cuts[i] + skip :
    cuts[i + 1]]."""

    __slots__ = ("cuts", "front", "hi", "lo", "raw", "skip")

    def __init__(
        self, raw: bytes, cuts: array[int], lo: int, hi: int, skip: int, front: bytes
    ) -> None:
        self.raw = raw
        self.cuts = cuts
        self.lo = lo
        self.hi = hi
        self.skip = skip
        self.front = front


@final
class Outgoing:
    """Encoder of one outgoing link, with caches of the last messages."""

    __slots__ = ("_acquired", "_converter", "_failed", "_fresh", "_known", "_of_stream",
                 "_persistent", "_said", "_shown")  # fmt: skip

    def __init__(self, of_stream: bool = False) -> None:
        """of_stream: messages come from a stream and are sent with their offsets."""
        self._of_stream = of_stream
        self._converter = from_amqp091.Converter()
        self._said: Front | None = None
        """Front that was read last."""
        self._shown: dict[Route, Shown] = {}
        """Annotations by route, all for messages with the following properties."""
        self._known: Annotations | None = None
        self._persistent = False
        self._failed = 0
        self._acquired = 0
        self._fresh = False

    def runs(self, piece: Slice, shows_counts: bool, locked_until_ms: int) -> list[Run]:
        """Encode a slice whose bytes are in memory as runs in its order.

        shows_counts: whether its queue tells how often messages were delivered. locked_until_ms:
        when the reader's lock on them ends, wall time; 0: never.
        """
        payload = piece.payload
        raw, cuts = payload.raw, payload.cuts
        assert raw is not None, payload.position
        self._follow(piece, shows_counts)
        shift = 0
        if payload.format == AMQP10:
            stretches = lenient_fronts(raw, cuts, piece.lo, piece.hi, self._said)
            self._said = stretches[-1][2]
        else:
            if payload.format == AMQP091:
                cells = self._converter.cells(piece)
            else:
                cells = from_nsq.cells(piece)
            raw, cuts, stretches = cells.raw, cells.cuts, cells.stretches
            shift = piece.lo
        out: list[Run] = []
        for lo, hi, said in stretches:
            if said.size == UNREADABLE:
                out.append(Run(raw, cuts, lo, hi, 0, b""))
                continue
            while lo < hi:
                route, end = _route_until(piece, lo + shift, hi + shift)
                shown = self._shown_for(route)
                if self._of_stream:
                    offset = piece.first - 1 + lo + shift - piece.lo
                    start = shown.before_offset(said)
                    out.append(_numbered(raw, cuts, lo, end - shift, said.size, start, offset))
                else:
                    front = shown.front(said, locked_until_ms)
                    out.append(Run(raw, cuts, lo, end - shift, said.size, front))
                lo = end - shift
        return out

    def _follow(self, piece: Slice, shows_counts: bool) -> None:
        """Note the properties of the whole slice, and clear caches made for others."""
        known = piece.annotations
        failed = piece.failed
        acquired = piece.acquired
        is_dead = False
        if known is not None:
            failed += known.failed
            acquired += known.acquired
            shows_counts = shows_counts or known.failed > 0 or known.acquired > 0
            is_dead = len(known.deaths) > 0
        fresh = acquired == 0 and not is_dead
        if not shows_counts:
            acquired = 0
        if (
            self._known is not known
            or self._failed != failed
            or self._acquired != acquired
            or self._fresh != fresh
            or self._persistent != piece.payload.persistent
        ):
            self._shown.clear()
            self._known = known
            self._failed = failed
            self._acquired = acquired
            self._fresh = fresh
            self._persistent = piece.payload.persistent

    def _shown_for(self, route: Route) -> Shown:
        found = self._shown.get(route)
        if found is None:
            if len(self._shown) >= ROUTES_KEPT:
                self._shown.clear()
            found = Shown(
                route, self._persistent, self._known, self._failed, self._acquired, self._fresh
            )
            self._shown[route] = found
        return found


def _numbered(
    raw: bytes, cuts: array[int], lo: int, hi: int, skip: int, start: bytes, offset: int
) -> Run:
    """Return messages lo..hi-1, each with a front of its own: `start` and its offset, counted from
    `offset`."""
    out: list[bytes] = []
    ends = array("I", (0,))
    size = 0
    more = len(start) + 8
    at = cuts[lo] + skip
    for cut in cuts[lo + 1 : hi + 1]:
        out += (start, offset.to_bytes(8, "big"), raw[at:cut])
        size += more + cut - at
        ends.append(size)
        offset += 1
        at = cut + skip
    return Run(b"".join(out), ends, 0, hi - lo, 0, b"")


def _route_until(piece: Slice, lo: int, hi: int) -> tuple[Route, int]:
    """Return the route of message `lo` of the payload, and the end, at most `hi`, of the messages
    that share it."""
    payload = piece.payload
    known = piece.annotations
    if known is not None and known.route is not None:
        return known.route, hi
    routes = payload.routes
    if routes is None:
        return payload.route, hi
    route = routes[lo]
    end = lo + 1
    while end < hi and routes[end] is route:
        end += 1
    return route, end


def reply_to_amqp10(format: int, message: bytes, route: Route) -> bytes:
    """Return one message, a cell of that payload format, as sections for the client that waits for
    it as a direct reply."""
    payload = Payload(
        format,
        message,
        array("I", (0, len(message))),
        route,
        None,
        MessageId(0),
        EngineMs(0),
        False,
        len(message),
    )
    run = Outgoing().runs(Slice(payload, 0, 1, QueueSequence(1), 0), False, 0)[0]
    return run.front + run.raw[run.cuts[0] + run.skip :]
