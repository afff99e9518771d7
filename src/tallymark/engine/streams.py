"""Streams: where a reader begins [rabbitmq x-stream-offset], ranges for readers that live
shortly (a task of Spark, a page of HTTP), and ranges that were archived and may be deleted.

A message's *offset* is its sequence less one: the first that ever entered has offset 0. It never
changes, and never is another message's. The numbers of ranges here are sequences, low..high-1. A
range may have gaps: sequences of messages that were not appended (repeated by a publisher that
numbers them) or were lost.

Retention waits for no reader: reading a range of which it has deleted a part raises `Gone`; the
result is never silently shorter. A reader that must be able to read a range again pins it. Messages
that retention deletes from then on leave the stream, its account and all other readers as usual,
and stay readable under the pin.

An archiver reports a range when its copy is safe. `Archives.record` checks the claim against the
content of the stream and stores it durably. `Archives.release` deletes messages below the end of
the archive, and never more than what was archived. A stream has one archive, with an id of its own,
which grows at its end. Between two ranges no message may be missing that the stream still retains.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final, final

from tallymark.engine.arguments import age_ms
from tallymark.engine.clock import Clock
from tallymark.engine.errors import Fenced, Gone, PreconditionFailed, Unsupported
from tallymark.engine.message import Slice
from tallymark.engine.names import named
from tallymark.engine.queue import Queue
from tallymark.engine.queue_parts import Archived, Pin
from tallymark.engine.session import Consumer
from tallymark.engine.state import State
from tallymark.engine.store import Store
from tallymark.engine.table_values import table_term, type_name
from tallymark.stored import records
from tallymark.units import UNLIMITED, EngineMs, QueueSequence, WallMs

FIRST: Final = "first"
LAST: Final = "last"
NEXT: Final = "next"
OFFSET: Final = "offset"
TIME: Final = "time"
AGO: Final = "ago"
IN_A_TURN: Final = 1000
"""Number of slices deleted in one turn."""
MOST: Final = 1 << 31
"""Maximum number of sequences in one range."""


@final
class Start:
    """A position in a stream, as its reader specifies it."""

    def __init__(self, kind: str, value: int = 0) -> None:
        """kind: FIRST (the oldest message), LAST (the last stored batch), NEXT (messages still to
        come), OFFSET (value, or the first one behind it), TIME (messages that arrived at value or
        later; wall time, ms) or AGO (the same, value ms before now)."""
        self.kind = kind
        self.value = value

    def place(self, queue: Queue, clock: Clock) -> int:
        """Return the first sequence of the stream that its reader is to see."""
        lane = queue.lanes.lowest
        if self.kind == OFFSET:
            return self.value + 1
        if self.kind == NEXT or not lane.fresh:
            return queue.entered + 1 if self.kind != FIRST else 1
        if self.kind == LAST:
            newest = lane.fresh[-1]
            return newest.first + (len(newest) - 1 if newest.payload.pack is not None else 0)
        if self.kind == TIME:
            return lane.since(clock.from_wall(WallMs(self.value)))
        if self.kind == AGO:
            return lane.since(EngineMs(clock.now_ms - self.value))
        return 1


def start_of(value: object, what: str) -> Start:
    """Parse `x-stream-offset`: first, last, next (also None), an offset, of which a negative one
    means the first, or an interval such as 5m. Every protocol has a type of its own for a time: its
    bridge makes a Start(TIME, ms) of it. what: names the queue.

    Raises:
        PreconditionFailed: it says nothing that has a meaning [rabbitmq].
    """
    if value is None:
        return Start(NEXT)
    if isinstance(value, int) and not isinstance(value, bool):
        return Start(OFFSET, max(0, value))
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    if isinstance(text, str):
        if text in (FIRST, LAST, NEXT):
            return Start(text)
        ago = age_ms(text)
        if ago >= 0:
            return Start(AGO, ago)
    raise PreconditionFailed(
        f"invalid arg 'x-stream-offset' for {what}: {{invalid_stream_offset_arg,"
        f"{{{type_name(value)},{table_term(value)}}}}}"
    )


def first_offset(queue: Queue) -> int:
    """Return the offset of the oldest message that a stream retains and readers may see. Retention
    may have taken more than they have seen by now: that is told when it is on disk."""
    return min(queue.retention.kept_from, queue.end()) - 1


def offset_of(consumer: Consumer) -> int:
    """Return the offset of the message that the reader of a stream will see next."""
    return consumer.cursors[0] - 1


def pin(queue: Queue, low: QueueSequence, high: QueueSequence) -> Pin:
    """Pin the range: it stays readable until `unpin`. O(1).

    Raises: as check_range.
    """
    check_range(queue, low, high)
    made = Pin(low, high)
    queue.retention.pins.append(made)
    return made


def unpin(queue: Queue, which: Pin, store: Store) -> None:
    """Release a pin. A second call has no effect."""
    if which in queue.retention.pins:
        queue.retention.pins.remove(which)
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


def check_range(
    queue: Queue, low: QueueSequence, high: QueueSequence, under: Pin | None = None
) -> None:
    """Check that the range can be read. Raises Gone if retention has deleted part of it and the pin
    does not hold that, and PreconditionFailed if it begins before the first offset of all, or ends
    behind what readers may see, or before it begins."""
    if under is not None and under.low <= low <= high <= under.high:
        return
    begin = first_offset(queue)
    if 0 < low <= begin:
        raise Gone(
            f"offsets {low - 1} to {begin - 1} of stream '{queue.name}' in vhost "
            f"'{queue.vhost}' are not kept any more: it begins at {begin}"
        )
    if not 0 < low <= high <= queue.end():
        raise PreconditionFailed(
            f"offsets from {low - 1} to {high - 1} of stream '{queue.name}' in vhost "
            f"'{queue.vhost}', expected 0 <= from <= to <= {queue.end() - 1}"
        )


def between(
    queue: Queue,
    low: QueueSequence,
    high: QueueSequence,
    under: Pin | None = None,
    most_bytes: int = UNLIMITED,
) -> list[Slice]:
    """Return the slices of a checked range, in order, as new parts; packed ones stay packed. None
    that the stream has is behind those that have `most_bytes` together. O(slices) in the result."""
    found: list[Slice] = []
    if under is not None and low < queue.retention.kept_from:
        found = under.between(low, high)
    return found + queue.lanes.lowest.between(low, high, most_bytes)


@final
class Batch:
    """The extent of a batch for a reader with limits."""

    def __init__(self, end: int) -> None:
        self.end = end
        """Sequence behind the last message."""
        self.messages = 0
        self.bytes = 0
        """Raw bytes, framing included."""


def batch(queue: Queue, low: QueueSequence, most: int, most_bytes: int) -> Batch:
    """Find the end of a batch from `low` on: after `most` messages, before the message that exceeds
    `most_bytes` (but after the first one), or where readers may see no more.

    Raises: as check_range.
    """
    end = queue.end()
    check_range(queue, low, max(low, end))
    found = Batch(low)
    lane = queue.lanes.lowest
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


def not_of_streams(what: str, queue: Queue) -> Unsupported:
    """Return RabbitMQ's error for an operation that streams do not support."""
    where = named("queue", queue.name, queue.vhost)
    return Unsupported(f"{what} not supported by stream queues {where}")


@final
class Archives:
    """Operations on the archives of streams."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._ledger = state.ledger

    def record(self, queue: Queue, made: Archived) -> bool:
        """Record a range as archived. False: it was recorded before. Messages deleted by retention
        are not counted again.

        Raises:
            Fenced: the stream's archive has another id.
            PreconditionFailed: it is no stream; the range leaves out messages that are kept, or
            was archived before with another content, or ends behind what readers may see; or it
            does not have as many messages as the stream.
        """
        check_stream(queue, 0)
        what = named("stream", queue.name, queue.vhost)
        known = queue.retention.archive
        if known is not None and known.archive != made.archive:
            raise Fenced(
                f"the archive of {what} is '{known.archive}' at {known.place}, not '{made.archive}'"
            )
        if known is not None and known.same(made):
            return False
        low = 1 if known is None else known.high
        if not low <= made.low <= max(low, queue.retention.kept_from):
            raise PreconditionFailed(
                f"archived offsets from {made.low - 1} on of {what}, expected {low - 1}"
                + (
                    f" to {queue.retention.kept_from - 1}"
                    if queue.retention.kept_from > low
                    else ""
                )
            )
        if not made.low < made.high <= queue.end() or made.high - made.low >= MOST:
            raise PreconditionFailed(
                f"archived offsets {made.low - 1} to {made.high - 2} of {what}, expected a range "
                f"that ends before {queue.end() - 1}"
            )
        begin = max(made.low, queue.retention.kept_from)
        found = 0
        if begin < made.high:
            pieces = between(queue, begin, made.high)
            found = sum([len(piece) for piece in pieces])
        if found > made.rows or (made.low >= queue.retention.kept_from and found != made.rows):
            raise PreconditionFailed(
                f"archived {made.rows} messages of offsets {made.low - 1} to {made.high - 2} of "
                f"{what}, expected {found}"
            )
        queue.retention.archive = made
        self._ledger.emit(made.to_record(queue.id))
        return True

    def release(self, queue: Queue, high: QueueSequence) -> bool:
        """Delete the archived messages below `high`, a part of them in each turn. False: call again
        in the next turn.

        Raises:
            PreconditionFailed: it is no stream, or not all of that was archived.
        """
        check_stream(queue, 0)
        known = queue.retention.archive
        archived = 1 if known is None else known.high
        if high > archived:
            raise PreconditionFailed(
                f"release of offsets below {high - 1} of "
                f"{named('stream', queue.name, queue.vhost)}, archived are those below "
                f"{archived - 1}"
            )
        fresh = queue.lanes.lowest.fresh
        room = IN_A_TURN
        while fresh and fresh[0].first < high:
            if room == 0:
                return False
            room -= 1
            piece = queue.let_go(min(len(fresh[0]), high - fresh[0].first))
            for pin in queue.retention.pins:
                pin.keep(piece, self._state.store)
            self._state.drop(queue, piece, records.DROPPED_ARCHIVED)
        queue.retention.kept_from = max(queue.retention.kept_from, high)
        return True
