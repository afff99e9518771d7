"""Extents: messages as rows of an answer, and the places of their bytes in the journal. Readers of
ranges are sent the bytes from there."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import Final, final

from tallymark.engine.errors import Unreadable
from tallymark.engine.ledger import leased_answer, live_answer, missing_answer, payload_record
from tallymark.engine.message import Payload, Slice
from tallymark.engine.record import Record
from tallymark.engine.store import Store
from tallymark.stored.layout import crc32c
from tallymark.units import LeaseSequence, MessageId, Position, QueueSequence

BLOCK_BYTES: Final = 4 << 20
"""A block of an answer ends with the message that passes this; only a single message makes a larger
one."""
UNCUT: Final = 1 << 20
"""A slice of so many bytes or less, behind others, is added whole or not at all: for a part of it
the bytes would have to be read, as its checksum is computed here."""
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
    """The rows of one answer and the places of their bytes. Subclasses define the rows.

    What an answer means stays in the journal until `release`.
    """

    def __init__(self, queue_id: int, most_bytes: int, store: Store) -> None:
        self._store = store
        self.rows: list[Record] = []
        self.spans: list[Span] = []
        self.held: list[Slice] = []
        """Slices that were added, of which the answer is a user."""
        self._queue_id = queue_id
        self._room = most_bytes

    @property
    def full(self) -> bool:
        return self._room <= 0 or len(self.held) >= PIECES

    def release(self) -> None:
        """Let go of what the answer means. A second call has no effect."""
        for piece in self.held:
            self._store.finish(piece.payload, len(piece))
        self.held.clear()

    def put(self, piece: Slice) -> int:
        """Add a slice, or the part of it that there is room for, at least one message to an empty
        answer. Its bytes are in the journal. Returns how many messages were added.

        The receiver of the bytes checks them: each payload of the answer has a checksum, or one for
        each message. For a part of a payload it is computed here. Raises Unreadable: that part's
        bytes cannot be read; nothing was added.
        """
        payload, lo = piece.payload, piece.lo
        cuts = payload.cuts
        fitting = bisect_left(cuts, cuts[lo] + self._room + 1, lo, piece.hi + 1) - 1
        hi = max(fitting, lo if self.rows else lo + 1)
        if hi < piece.hi:
            self._room = 0
            if hi == lo or (self.rows and cuts[piece.hi] - cuts[lo] <= UNCUT):
                return 0
            piece = piece.part(0, hi - lo)
        part = payload.window(lo, hi)
        self._sum(payload, part, lo)
        self.rows.append(payload_record(part))
        self._add_rows(piece, part)
        self._add_spans(part)
        self._room -= part.size
        self._store.use(payload, part.count)
        self.held.append(piece)
        return part.count

    def _sum(self, payload: Payload, part: Payload, lo: int) -> None:
        pack = part.pack
        if pack is None:
            if part.sum < 0:
                begin = payload.cuts[lo]
                part.sum = crc32c(self._store.read(payload)[begin : begin + part.size])
        elif pack.sums is None:
            sums = array("I")
            for i in range(part.count):
                sums.append(crc32c(self._store.read(part.single(i))))
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

    def __init__(self, queue_id: int, low: QueueSequence, most_bytes: int, store: Store) -> None:
        super().__init__(queue_id, most_bytes, store)
        self.next = low
        """Sequence at which the answer ends; it is not included."""

    def add(self, pieces: list[Slice], high: QueueSequence) -> None:
        """Add the slices below `high`, as `put` does, as far as there is room. Sequences between
        them are reported as missing. Raises Unreadable, with nothing held."""
        for piece in pieces:
            self._pass_over(piece.first)
            try:
                self.next = QueueSequence(piece.first + self.put(piece))
            except Unreadable:
                self.release()
                raise
            if self.full:
                return
        self._pass_over(high)

    def _pass_over(self, high: QueueSequence) -> None:
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
        store: Store,
    ) -> None:
        super().__init__(queue_id, most_bytes, store)
        self.next = low
        """Lease sequence at which the answer ends; it is not included."""
        self._epoch = epoch

    def add(self, leased: list[tuple[LeaseSequence, Slice]]) -> Slice | None:
        """Add the slices with these first lease sequences, as `put` does, as far as there is room.
        Returns the one whose bytes cannot be read, with nothing held; else None."""
        for first, piece in leased:
            self.next = first
            try:
                self.next = LeaseSequence(first + self.put(piece))
            except Unreadable as error:
                self.release()
                self._store.trouble = str(error)
                return piece
            if self.full:
                break
        return None

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
