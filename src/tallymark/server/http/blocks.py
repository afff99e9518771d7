"""Messages as an answer: blocks of the journal's own layout, made and sent a few MiB at a time."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable
from typing import Final

from aiohttp import web

from tallymark.engine.errors import BrokerError
from tallymark.engine.message import Payload, Slice
from tallymark.engine.records import PAYLOAD, Record
from tallymark.engine.walltime import in_wall_time
from tallymark.journal import layout
from tallymark.server.http.requests import Refused
from tallymark.server.logs import log_of

BLOCK_BYTES: Final = 4 << 20
"""A block ends with the message that passes this; only a single message makes a larger one."""

log = log_of("http")


class Excerpts:
    """The rows of one block: payload rows first seen, then the rows that mean them."""

    def __init__(self, ahead_ms: int) -> None:
        """ahead_ms: how far wall time, which rows are in, is ahead of engine time."""
        self._ahead_ms = ahead_ms
        self.records: list[Record] = []
        self._size = 0

    @property
    def full(self) -> bool:
        return self._size >= BLOCK_BYTES

    def add(self, piece: Slice) -> tuple[Payload, int, int]:
        """Put the bytes of a slice, or of as much of it as the block still takes. Its payload is in
        memory. Returns what a row should name: payload, first message in it, how many."""
        payload = piece.payload
        cuts, lo = payload.cuts, piece.lo
        room = BLOCK_BYTES - self._size
        hi = min(piece.hi, max(lo + 1, bisect_left(cuts, cuts[lo] + room, lo, piece.hi + 1)))
        part = _excerpt(payload, lo, hi)
        self._size += part.size
        self.records.append(Record(PAYLOAD, 0, part.first_id, part.count, part.arrived_ms, part))
        return part, 0, hi - lo

    def pack(self) -> bytes:
        return layout.pack(in_wall_time(self.records, self._ahead_ms))


def _excerpt(payload: Payload, lo: int, hi: int) -> Payload:
    """Messages lo..hi-1 as a payload of their own."""
    raw = payload.raw
    assert raw is not None
    if lo == 0 and hi == payload.count:
        return payload
    cuts = payload.cuts
    base = cuts[lo]
    return Payload(
        payload.format,
        raw[base : cuts[hi]],
        array("I", [cut - base for cut in cuts[lo : hi + 1]]),
        payload.route,
        payload.routes[lo:hi] if payload.routes is not None else None,
        payload.first_id + lo,
        payload.arrived_ms,
        payload.persistent,
        payload.largest_frame,
    )


async def send_blocks(
    request: web.Request,
    low: int,
    high: int,
    take: Callable[[int, Excerpts], int],
    ahead_ms: int,
) -> web.StreamResponse:
    """Answer rows low..high-1 as application/octet-stream.

    take(at, excerpts) adds rows from `at` on and returns where to go on, beyond `at`. ahead_ms: how
    far wall time is ahead of engine time. A refusal
    after the first block cuts the answer off (it is chunked, so that the reader notices).
    """
    excerpts = Excerpts(ahead_ms)
    at = take(low, excerpts) if low < high else high
    response = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
    if at >= high:
        return web.Response(
            body=excerpts.pack() if excerpts.records else b"",
            content_type="application/octet-stream",
        )
    response.enable_chunked_encoding()
    await response.prepare(request)
    await response.write(excerpts.pack())
    while at < high:
        excerpts = Excerpts(ahead_ms)
        try:
            at = take(at, excerpts)
        except (BrokerError, Refused) as error:
            log.info("answer.cut_off", path=request.path, error=str(error))
            if request.transport is not None:
                request.transport.abort()
            return response
        if excerpts.records:
            await response.write(excerpts.pack())
    await response.write_eof()
    return response
