"""Extents: messages as rows of an answer, and the places of their bytes in the journal. Readers of
ranges are sent the bytes from there."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable
from typing import Final, final

from tallymark.engine.ledger import leased_answer, live_answer, missing_answer, payload_record
from tallymark.engine.message import Payload, Slice
from tallymark.engine.record import Record
from tallymark.stored.layout import crc32c
from tallymark.units import LeaseSequence, MessageId, Position, QueueSequence

BLOCK_BYTES: Final = 4 << 20
"""A block of an answer ends with the message that passes this; only a single message makes a larger
one."""
PIECES: Final = 4096
"""Maximum number of slices in one answer."""


@final
class Span:
    """A stretch of the journal: bytes from a position on, all in one segment."""

    __slots__ = ("position", "size")

    def __init__(self, position: Position, size: int) -> None:
        self.position = position
        self.size = size


class Extents:
    """The rows of one answer and the places of their bytes. Subclasses define the rows."""

    def __init__(self, queue_id: int, most_bytes: int, read: Callable[[Payload], bytes]) -> None:
        """read: function that returns a payload's bytes, checked."""
        self._read = read
        self.rows: list[Record] = []
        self.spans: list[Span] = []
        self._queue_id = queue_id
        self._room = most_bytes
        self._pieces = 0

    @property
    def full(self) -> bool:
        return self._room <= 0 or self._pieces >= PIECES

    def put(self, piece: Slice) -> Slice:
        """Add a slice, or the part of it that there is room for, at least one message to an empty
        answer. Its bytes are in the journal. Returns the part that was added.

        The receiver of the bytes checks them: each payload of the answer has a checksum, or one for
        each message. For a part of a payload it is computed here. Raises as `read`.
        """
        payload, lo = piece.payload, piece.lo
        cuts = payload.cuts
        fitting = bisect_left(cuts, cuts[lo] + self._room + 1, lo, piece.hi + 1) - 1
        hi = max(fitting, lo if self.rows else lo + 1)
        if hi < piece.hi:
            self._room = 0
            piece = piece.part(0, hi - lo)
            if hi == lo:
                return piece
        part = payload.window(lo, hi)
        self._sum(payload, part, lo)
        self.rows.append(payload_record(part))
        self._add_rows(piece, part)
        self._add_spans(part)
        self._room -= part.size
        self._pieces += 1
        return piece

    def _sum(self, payload: Payload, part: Payload, lo: int) -> None:
        pack = part.pack
        if pack is None:
            if part.sum < 0:
                begin = payload.cuts[lo]
                part.sum = crc32c(self._read(payload)[begin : begin + part.size])
        elif pack.sums is None:
            sums = array("I")
            for i in range(part.count):
                sums.append(crc32c(self._read(part.single(i))))
            pack.sums = sums

    def _add_rows(self, piece: Slice, part: Payload) -> None:
        """Add rows with the messages' annotations: one row, or several where the messages died
        separately."""
        pack = piece.payload.pack
        if pack is None or not pack.annotations:
            self._add_row(piece, part, 0, part.count, piece.known())
            return
        blobs = pack.blobs(piece.lo, piece.hi)
        at = 0
        while at < len(blobs):
            end = at + 1
            while end < len(blobs) and blobs[end] == blobs[at]:
                end += 1
            self._add_row(piece, part, at, end, blobs[at])
            at = end

    def _add_row(self, piece: Slice, part: Payload, lo: int, hi: int, known: bytes) -> None:
        raise NotImplementedError

    def _add_spans(self, part: Payload) -> None:
        pack = part.pack
        if pack is None:
            self._add_span(part.position, part.size)
            return
        cuts = part.cuts
        for i, position in enumerate(pack.positions):
            self._add_span(Position(position), cuts[i + 1] - cuts[i])

    def _add_span(self, position: Position, size: int) -> None:
        spans = self.spans
        if spans and spans[-1].position + spans[-1].size == position:
            spans[-1].size += size
        else:
            spans.append(Span(position, size))


@final
class StreamExtents(Extents):
    """Messages of a stream, from one sequence on."""

    def __init__(
        self, queue_id: int, low: QueueSequence, most_bytes: int, read: Callable[[Payload], bytes]
    ) -> None:
        super().__init__(queue_id, most_bytes, read)
        self.next = low
        """Sequence at which the answer ends; it is not included."""

    def add(self, piece: Slice) -> Slice:
        """Add a slice, as `put` does. Sequences before it are reported as missing."""
        self.pass_over(piece.first)
        put = self.put(piece)
        self.next = QueueSequence(put.first + len(put))
        return put

    def pass_over(self, high: QueueSequence) -> None:
        """Report the sequences below `high` that were not added as missing."""
        if high > self.next:
            self.rows.append(missing_answer(self._queue_id, self.next, high - self.next))
            self.next = high

    def _add_row(self, piece: Slice, part: Payload, lo: int, hi: int, known: bytes) -> None:
        first, count = piece.first + lo, hi - lo
        self.rows.append(
            live_answer(self._queue_id, piece, QueueSequence(first), count, part, lo, known)
        )


@final
class LeaseExtents(Extents):
    """Messages leased to one subscription."""

    def __init__(
        self,
        queue_id: int,
        epoch: int,
        low: LeaseSequence,
        most_bytes: int,
        read: Callable[[Payload], bytes],
    ) -> None:
        super().__init__(queue_id, most_bytes, read)
        self.next = low
        """Lease sequence at which the answer ends; it is not included."""
        self._epoch = epoch

    def add(self, first: LeaseSequence, piece: Slice) -> Slice:
        """Add a slice, as `put` does. first: its first lease sequence."""
        self.next = first
        put = self.put(piece)
        self.next = LeaseSequence(first + len(put))
        return put

    def _add_row(self, piece: Slice, part: Payload, lo: int, hi: int, known: bytes) -> None:
        self.rows.append(
            leased_answer(
                self._queue_id, self._epoch, LeaseSequence(self.next + lo), piece,
                QueueSequence(piece.first + lo), hi - lo, part, lo, known,
            )
        )  # fmt: skip


@final
class Excerpts:
    """The rows of one block of an answer, with the bytes of its messages."""

    def __init__(self, queue_id: int) -> None:
        self.rows: list[Record] = []
        self._queue_id = queue_id
        self._size = 0

    @property
    def full(self) -> bool:
        return self._size >= BLOCK_BYTES

    def add(self, piece: Slice) -> int:
        """Add a slice, or as much of it as there is room for, at least one message. Its payload is
        in memory. Returns how many messages were added."""
        part = self._put(piece)
        n = part.count
        self.rows.append(live_answer(self._queue_id, piece, piece.first, n, part, 0, piece.known()))
        return n

    def add_leased(self, epoch: int, lease_first: LeaseSequence, piece: Slice) -> int:
        """Add a slice as `add` does, whose lease sequences begin with `lease_first`."""
        part = self._put(piece)
        n = part.count
        self.rows.append(
            leased_answer(
                self._queue_id, epoch, lease_first, piece, piece.first, n, part, 0, piece.known()
            )
        )
        return n

    def _put(self, piece: Slice) -> Payload:
        """Add the bytes of a slice and return them as a payload of their own."""
        payload = piece.payload
        cuts, lo = payload.cuts, piece.lo
        room = BLOCK_BYTES - self._size
        hi = min(piece.hi, max(lo + 1, bisect_left(cuts, cuts[lo] + room, lo, piece.hi + 1)))
        part = _excerpt(payload, lo, hi)
        self._size += part.size
        self.rows.append(payload_record(part))
        return part


def _excerpt(payload: Payload, lo: int, hi: int) -> Payload:
    """Return messages lo..hi-1 as a payload of their own."""
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
        MessageId(payload.first_id + lo),
        payload.arrived_ms,
        payload.persistent,
        payload.largest_frame,
    )
