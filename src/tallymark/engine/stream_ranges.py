"""Ranges of a stream, for short-lived readers: Spark's tasks, a page of an HTTP client.

All numbers here are sequences, low..high-1; a message's offset is its sequence less one. A range
may have gaps: sequences of messages that were not appended (repeated by a publisher that numbers
them) or were lost.

Retention waits for no reader: reading a range of which it has deleted a part raises `Gone`; the
result is never silently shorter. A reader that must be able to read a range again pins it. Messages
that retention deletes from then on leave the stream, its account and all other readers as usual,
and stay readable under the pin.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import final

from tallymark.engine.arguments import named
from tallymark.engine.errors import Fenced, Gone, PreconditionFailed
from tallymark.engine.message import Slice
from tallymark.engine.queue import Queue
from tallymark.engine.store import Store


@final
class Pin:
    """A reader's claim to sequences low..high-1, which stay readable while it is in queue.pins."""

    __slots__ = ("held", "high", "low")

    def __init__(self, low: int, high: int) -> None:
        self.low = low
        self.high = high
        self.held: list[Slice] = []
        """Slices that retention has deleted from the stream since then, in order."""

    def keep(self, piece: Slice, store: Store) -> None:
        """Keep a slice that retention deletes."""
        start = max(0, self.low - piece.first)
        stop = min(len(piece), self.high - piece.first)
        if start < stop:
            store.use(piece.payload, stop - start)
            self.held.append(piece.part(start, stop))

    def between(self, low: int, high: int) -> list[Slice]:
        """Return the pinned slices of sequences low..high-1, as parts of their own."""
        found: list[Slice] = []
        for piece in self.held:
            start = max(0, low - piece.first)
            stop = min(len(piece), high - piece.first)
            if start < stop:
                found.append(piece.part(start, stop))
        return found


def pin(queue: Queue, low: int, high: int) -> Pin:
    """Pin the range: it stays readable until `unpin`. O(1).

    Raises: as check_range.
    """
    check_range(queue, low, high)
    made = Pin(low, high)
    queue.pins.append(made)
    return made


def unpin(queue: Queue, which: Pin, store: Store) -> None:
    """Release a pin. A second call has no effect."""
    if which in queue.pins:
        queue.pins.remove(which)
        for piece in which.held:
            store.finish(piece.payload, len(piece))
        which.held.clear()


def check_stream(queue: Queue, id: int) -> None:
    """Check that the queue is a stream and has this id (0: any); another id means that it was
    deleted and declared anew. Raises PreconditionFailed or Fenced."""
    if not queue.settings.is_stream:
        raise PreconditionFailed(f"{named('queue', queue.name, queue.vhost)} is no stream")
    if id and id != queue.id:
        raise Fenced(
            f"stream {id} is not the present one ({queue.id}): '{queue.name}' in vhost "
            f"'{queue.vhost}' was deleted and made again"
        )


def check_range(queue: Queue, low: int, high: int, under: Pin | None = None) -> None:
    """Check that the range can be read. Raises Gone if retention has deleted part of it and the pin
    does not hold that, and PreconditionFailed if it ends behind what readers may see, or before it
    begins."""
    if under is not None and under.low <= low <= high <= under.high:
        return
    if low < queue.kept_from:
        raise Gone(
            f"offsets {low - 1} to {queue.kept_from - 2} of stream '{queue.name}' in vhost "
            f"'{queue.vhost}' are not kept any more: it begins at {queue.kept_from - 1}"
        )
    if not low <= high <= queue.end():
        raise PreconditionFailed(
            f"offsets from {low - 1} to {high - 1} of stream '{queue.name}' in vhost "
            f"'{queue.vhost}', expected from <= to <= {queue.end() - 1}"
        )


def between(queue: Queue, low: int, high: int, under: Pin | None = None) -> list[Slice]:
    """Return the slices of a checked range, in order, as new parts; packed ones stay packed.
    O(slices) of the range."""
    found: list[Slice] = []
    if under is not None and low < queue.kept_from:
        found = under.between(low, high)
    return found + queue.lanes[0].between(low, high)


@final
class Batch:
    """The extent of a batch for a reader with limits."""

    __slots__ = ("bytes", "end", "messages")

    def __init__(self, end: int) -> None:
        self.end = end
        """Sequence behind the last message."""
        self.messages = 0
        self.bytes = 0
        """Raw bytes, framing included."""


def batch(queue: Queue, low: int, most: int, most_bytes: int) -> Batch:
    """Find the end of a batch from `low` on: after `most` messages, before the message that exceeds
    `most_bytes` (but after the first one), or where readers may see no more.

    Raises: as check_range.
    """
    end = queue.end()
    check_range(queue, low, max(low, end))
    found = Batch(low)
    lane = queue.lanes[0]
    index = lane.index_of(low)
    while index < len(lane.fresh) and found.messages < most:
        piece = lane.fresh[index]
        start = max(0, low - piece.first)
        stop = min(len(piece), end - piece.first)
        if stop <= start:
            break
        cuts = piece.payload.cuts
        lo = piece.lo + start
        n = min(stop - start, most - found.messages)
        room = cuts[lo] + most_bytes - found.bytes
        fitting = bisect_left(cuts, room + 1, lo, lo + n + 1) - 1 - lo
        fitting = max(fitting, 0 if found.messages else 1)
        taken = min(n, fitting)
        found.messages += taken
        found.bytes += cuts[lo + taken] - cuts[lo]
        if taken:
            found.end = piece.first + start + taken
        if taken < stop - start:
            return found
        index += 1
    if found.messages < most:
        found.end = max(found.end, end)  # includes missing sequences at the end
    return found
