"""The ledger: the rows of the present turn, and one constructor for each kind of row.

A constructor says which field of a Record holds what; stored/records.py says what the kind means.
A row gets the time of the turn when it is emitted, unless it has a time of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Final, final

from tallymark.engine.clock import Clock
from tallymark.engine.message import Payload, Slice
from tallymark.engine.record import Record
from tallymark.stored import records
from tallymark.units import EngineMs, LeaseSequence, Position, QueueSequence

UNSTAMPED: Final = -1
"""Time of a row that was not emitted yet."""
_MOST_FAILED: Final = (1 << 15) - 1
"""Maximum number of failed deliveries in a LEASED row."""
_MOST_DELIVERED: Final = 255
"""Maximum number of deliveries in a LEASED row."""


@final
class Ledger:
    """The rows since the last block, in order."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.rows: list[Record] = []

    def emit(self, row: Record) -> None:
        """Add a row at the end, or extend the last one where this one continues it."""
        if row.time_ms == UNSTAMPED:
            row.time_ms = self._clock.now_ms
        kind = row.kind
        if kind == records.DROPPED:
            if self._extend_drop(row):
                return
        elif kind == records.DEAD_LETTERED and self._extend_letter(row):
            return
        self.rows.append(row)

    def take(self) -> list[Record]:
        """Remove and return all rows. They must become one block."""
        rows, self.rows = self.rows, []
        return rows

    def _extend_drop(self, row: Record) -> bool:
        """Extend the last row by drops from the same queue for the same reason."""
        rows = self.rows
        if not rows:
            return False
        last = rows[-1]
        if (
            last.kind != records.DROPPED
            or last.queue != row.queue
            or last.reason != row.reason
            or last.first + last.count != row.first
        ):
            return False
        last.count += row.count
        last.other += row.other
        return True

    def _extend_letter(self, died: Record) -> bool:
        """Extend the last ENTERED and DEAD_LETTERED rows by the ENTERED row after them and this
        DEAD_LETTERED one, as when a consumer rejects letters to one queue one by one."""
        rows = self.rows
        if len(rows) < 3:
            return False
        entered, died_before, entered_before = rows[-1], rows[-2], rows[-3]
        if (
            died_before.kind != records.DEAD_LETTERED
            or entered.kind != records.ENTERED
            or entered_before.kind != records.ENTERED
            or entered.owner != died.queue
            or entered.other != died.first
            or entered_before.owner != died.queue
            or entered_before.other != died_before.first
            or entered_before.count != died_before.count
            or not _follows(died_before, died)
            or not _follows(entered_before, entered)
        ):
            return False
        died_before.count += died.count
        entered_before.count += entered.count
        del rows[-1]
        return True


@final
class SettledRows:
    """The SETTLED rows of one queue in the present turn. What is settled one by one shares a row:
    they are emitted at the end of the turn."""

    def __init__(self, queue_id: int) -> None:
        self._queue_id = queue_id
        self._rows: list[Record] = []
        self._is_mixed = False
        """True if a row begins before the one it follows."""

    def add(self, first: QueueSequence, count: int, owner: int, reason: int) -> bool:
        """Add sequences. Returns whether they are the first of the turn."""
        rows = self._rows
        if rows:
            last = rows[-1]
            if last.first + last.count == first and last.owner == owner and last.reason == reason:
                last.count += count
                return False
            if first < last.first:
                self._is_mixed = True
        rows.append(settled_record(self._queue_id, first, count, reason, owner))
        return len(rows) == 1

    def emit(self, ledger: Ledger) -> None:
        """Emit the rows. The next turn begins with none."""
        if self._is_mixed:
            self._sort()
        for row in self._rows:
            ledger.emit(row)
        self._rows.clear()

    def _sort(self) -> None:
        """Put the rows into the order of their sequences, and join neighbours."""
        self._is_mixed = False
        found: list[Record] = []
        last: Record | None = None
        for row in sorted(self._rows, key=_first):
            if (
                last is not None
                and last.first + last.count == row.first
                and last.owner == row.owner
                and last.reason == row.reason
            ):
                last.count += row.count
            else:
                found.append(row)
                last = row
        self._rows = found


def _first(row: Record) -> int:
    return row.first


def _follows(before: Record, after: Record) -> bool:
    """Return whether one row can replace these two of one kind about stored messages."""
    return (
        before.queue == after.queue
        and before.first + before.count == after.first
        and before.payload is not None
        and before.payload is after.payload
        and before.lo + before.count == after.lo
        and before.time_ms == after.time_ms
        and before.reason == after.reason
        and before.flags == after.flags
        and before.blob is after.blob
    )


# -- messages: how they enter, move and end


def payload_record(payload: Payload, flags: int = 0) -> Record:
    """Return the PAYLOAD row of a payload, whose time is its arrival."""
    return Record(
        records.PAYLOAD, 0, payload.first_id, payload.count, payload.arrived_ms, payload,
        flags=flags,
    )  # fmt: skip


def moved_record(payload: Payload, old_position: Position, time_ms: int) -> Record:
    """Return the MOVED row of a payload that now has its new position."""
    return Record(
        records.MOVED, 0, payload.first_id, payload.count, time_ms, payload, other=old_position
    )


def entered_record(
    queue_id: int,
    first: QueueSequence,
    count: int,
    payload: Payload,
    lo: int = 0,
    priority: int = 0,
    annotations: bytes = b"",
    source: int = 0,
    source_first: QueueSequence = QueueSequence(0),
) -> Record:
    """Return the ENTERED row of stored messages: lo.. of the payload became sequences first...
    source, source_first: of dead letters and moved messages, the queue they come from."""
    return Record(
        records.ENTERED, queue_id, first, count, UNSTAMPED, payload, lo, source, source_first,
        priority, 0, annotations,
    )  # fmt: skip


def transient_record(
    queue_id: int,
    first: QueueSequence,
    count: int,
    priority: int = 0,
    source: int = 0,
    source_first: QueueSequence = QueueSequence(0),
) -> Record:
    """Return the ENTERED row of messages whose bytes are not stored."""
    return Record(
        records.ENTERED, queue_id, first, count, UNSTAMPED, None, 0, source, source_first,
        priority, records.TRANSIENT,
    )  # fmt: skip


def acquired_record(
    queue_id: int, first: QueueSequence, count: int, owner: int, deliveries: int
) -> Record:
    """Return the ACQUIRED row. deliveries: how often the messages were delivered before."""
    return Record(records.ACQUIRED, queue_id, first, count, UNSTAMPED, None, 0, owner, deliveries)


def settled_record(
    queue_id: int, first: QueueSequence, count: int, reason: int, owner: int = 0
) -> Record:
    """Return the SETTLED row. reason: records.SETTLED_*."""
    return Record(records.SETTLED, queue_id, first, count, UNSTAMPED, None, 0, owner, 0, reason)


def returned_record(
    queue_id: int, piece: Slice, reason: int, owner: int, failed: bool, to_tail: bool
) -> Record:
    """Return the RETURNED row of a slice. reason: records.RETURNED_*."""
    return Record(
        records.RETURNED, queue_id, piece.first, len(piece), UNSTAMPED, None, 0, owner, 0, reason,
        _return_flags(failed, to_tail), _noted(piece),
    )  # fmt: skip


def lost_delivery_record(queue_id: int, first: QueueSequence, count: int, sure: bool) -> Record:
    """Return the RETURNED row of messages whose deliveries ended with the broker.

    sure: a row says that they were delivered; otherwise they may have been.
    """
    reason = records.RETURNED_BY_LOSS if sure else records.RETURNED_UNSURE
    return Record(records.RETURNED, queue_id, first, count, UNSTAMPED, reason=reason)


def deferred_record(
    queue_id: int,
    piece: Slice,
    due_ms: EngineMs,
    to_tail: bool,
    reason: int = 0,
    owner: int = 0,
    failed: bool = False,
) -> Record:
    """Return the DEFERRED row of a slice that becomes ready at `due_ms`, engine time."""
    return Record(
        records.DEFERRED, queue_id, piece.first, len(piece), UNSTAMPED, None, 0, owner, due_ms,
        reason, _return_flags(failed, to_tail), _noted(piece),
    )  # fmt: skip


def _noted(piece: Slice) -> bytes:
    """Return the annotations of a slice if a client may have added notes [FC-20]; otherwise b""."""
    known = piece.annotations
    return known.to_bytes() if known is not None and known.notes else b""


def _return_flags(failed: bool, to_tail: bool) -> int:
    return (records.RETURNED_FAILED if failed else 0) | (records.TO_TAIL if to_tail else 0)


def dropped_record(
    queue_id: int, first: QueueSequence, count: int, reason: int, size: int = 0
) -> Record:
    """Return the DROPPED row. reason: records.DROPPED_*; size: bytes, where a stream lets go."""
    return Record(records.DROPPED, queue_id, first, count, UNSTAMPED, other=size, reason=reason)


def dead_lettered_record(
    queue_id: int,
    first: QueueSequence,
    count: int,
    reason: int,
    payload: Payload | None,
    lo: int,
    is_stored: bool,
) -> Record:
    """Return the DEAD_LETTERED row. reason: records.DEAD_*; payload: None if it is not stored;
    is_stored: a target's ENTERED row is in the same block."""
    return Record(
        records.DEAD_LETTERED, queue_id, first, count, UNSTAMPED, payload, lo, reason=reason,
        flags=0 if is_stored else records.TRANSIENT,
    )  # fmt: skip


def pending_record(
    queue_id: int,
    piece: Slice,
    payload: Payload | None,
    reason: int,
    died_ms: EngineMs,
    letter: dict[str, object],
) -> Record:
    """Return the PENDING row of dead letters, see pending.py. reason: records.DEAD_*; payload: None
    if it is not stored; died_ms: the row's time."""
    return Record(
        records.PENDING, queue_id, piece.first, len(piece), died_ms, payload, piece.lo, 0,
        _counts(piece), reason, 0, _json(letter),
    )  # fmt: skip


# -- leases, transactions and sinks


def leased_record(queue_id: int, epoch: int, lease_first: LeaseSequence, piece: Slice) -> Record:
    """Return the LEASED row of a slice whose lease sequences begin with `lease_first`. epoch: the
    subscription's."""
    failed = min(piece.failed, _MOST_FAILED)
    return Record(
        records.LEASED, queue_id, piece.first, len(piece), UNSTAMPED, piece.payload, piece.lo,
        epoch, lease_first | failed << 48, piece.priority, min(piece.acquired, _MOST_DELIVERED),
        piece.known(),
    )  # fmt: skip


def lease_settled_record(queue_id: int, epoch: int, floor: LeaseSequence) -> Record:
    """Return the LEASE_SETTLED row: all lease sequences below `floor` are settled."""
    return Record(records.LEASE_SETTLED, queue_id, 0, 0, UNSTAMPED, owner=epoch, other=floor)


def verdicts_record(
    queue_id: int, epoch: int, said: list[tuple[LeaseSequence, int, int]]
) -> Record:
    """Return the VERDICTS row: (first lease sequence, count, outcome)."""
    return Record(records.VERDICTS, queue_id, 0, 0, UNSTAMPED, owner=epoch, blob=_json(said))


def staged_record(
    queue_id: int, first: QueueSequence, count: int, transaction: int, outcome: int
) -> Record:
    """Return the STAGED row. outcome: records.STAGED_*."""
    return Record(
        records.STAGED, queue_id, first, count, UNSTAMPED, owner=transaction, reason=outcome
    )


def unstaged_record(queue_id: int, first: QueueSequence, count: int, transaction: int) -> Record:
    """Return the UNSTAGED row."""
    return Record(records.UNSTAGED, queue_id, first, count, UNSTAMPED, owner=transaction)


def committed_record(session: int, transaction: int, published: int, settled: int) -> Record:
    """Return the COMMITTED row: messages published and deliveries settled by a transaction."""
    return Record(
        records.COMMITTED, 0, session, published, UNSTAMPED, owner=transaction, other=settled
    )


def sink_staged_record(
    staging: int,
    index: int,
    payload: Payload,
    due_ms: EngineMs,
    mandatory: bool,
    said: dict[str, str],
    time_ms: int,
) -> Record:
    """Return the SINK_STAGED row of part `index` of a staging that expires at `due_ms`. said: see
    records.SINK_STAGED."""
    return Record(
        records.SINK_STAGED, 0, index, payload.count, time_ms, payload, 0, staging, due_ms, 0,
        records.MANDATORY if mandatory else 0, _json(said),
    )  # fmt: skip


def sink_ended_record(staging: int, count: int, reason: int) -> Record:
    """Return the SINK_ENDED row. reason: records.SINK_*."""
    return Record(records.SINK_ENDED, 0, 0, count, UNSTAMPED, owner=staging, reason=reason)


# -- queues, consumers and topology


def definition_record(definition: bytes) -> Record:
    """Return the DEFINITION row of an encoded definition (definitions.py)."""
    return Record(records.DEFINITION, 0, 0, 0, UNSTAMPED, blob=definition)


def defined_record(definition: dict[str, object]) -> Record:
    """Return the DEFINITION row of a definition all of whose values JSON can express."""
    return definition_record(_json(definition))


def mark_record(queue_id: int, mark: QueueSequence) -> Record:
    """Return the MARK row: all sequences below `mark` may have been delivered."""
    return Record(records.MARK, queue_id, mark, 0, UNSTAMPED)


def seen_record(queue_id: int, ids: list[str], time_ms: EngineMs) -> Record:
    """Return the SEEN row of publishers' message ids, accepted at `time_ms`."""
    return Record(records.SEEN, queue_id, 0, len(ids), time_ms, blob=_json(ids))


def publishers_record(queue_id: int, numbers: dict[str, int]) -> Record:
    """Return the PUBLISHERS row: the highest publishing number by name."""
    return Record(records.PUBLISHERS, queue_id, 0, len(numbers), UNSTAMPED, blob=_json(numbers))


def archived_record(
    queue_id: int, low: QueueSequence, high: QueueSequence, messages: int, place: dict[str, str]
) -> Record:
    """Return the ARCHIVED row of sequences low..high-1 of a stream. place: see streams.py."""
    return Record(
        records.ARCHIVED, queue_id, low, high - low, UNSTAMPED, other=messages, blob=_json(place)
    )


def slow_record(queue_id: int, consumer: int, event: int, values: dict[str, object]) -> Record:
    """Return the SLOW row. event: records.SLOW_*."""
    return Record(
        records.SLOW, queue_id, 0, 0, UNSTAMPED, owner=consumer, reason=event, blob=_json(values)
    )


def consumer_record(
    queue_id: int, consumer: int, event: int, settled: int, about: dict[str, object]
) -> Record:
    """Return the CONSUMER row. event: records.CONSUMER_*; settled: messages so far; about: see
    consumers.py."""
    return Record(
        records.CONSUMER, queue_id, 0, 0, UNSTAMPED, owner=consumer, other=settled, reason=event,
        blob=_json(about),
    )  # fmt: skip


# -- checkpoints, and answers to readers


def counters_record(queue_id: int, counters: dict[str, object]) -> Record:
    """Return the COUNTERS row of a queue's account."""
    return Record(records.COUNTERS, queue_id, 0, 0, UNSTAMPED, blob=_json(counters))


def live_record(
    queue_id: int, piece: Slice, payload: Payload | None, owner: int = 0, flags: int = 0
) -> Record:
    """Return the LIVE row of a slice. payload: None if it is not stored; flags: records.LIVE_*."""
    return Record(
        records.LIVE, queue_id, piece.first, len(piece), UNSTAMPED, payload, piece.lo, owner,
        _counts(piece), piece.priority, flags, piece.known(),
    )  # fmt: skip


def live_answer(
    queue_id: int,
    piece: Slice,
    first: QueueSequence,
    count: int,
    payload: Payload,
    lo: int,
    notes: bytes,
) -> Record:
    """Return the LIVE row of an answer: `count` messages of a slice from sequence `first` on, as
    messages lo.. of a payload in the answer. notes: their annotations."""
    return Record(
        records.LIVE, queue_id, first, count, payload.arrived_ms, payload, lo, 0, _counts(piece),
        piece.priority, 0, notes,
    )  # fmt: skip


def leased_answer(
    queue_id: int,
    epoch: int,
    lease_first: LeaseSequence,
    piece: Slice,
    first: QueueSequence,
    count: int,
    payload: Payload,
    lo: int,
    notes: bytes,
) -> Record:
    """Return the LEASED row of an answer, see live_answer. Its lease sequence stands alone in
    `other`."""
    return Record(
        records.LEASED, queue_id, first, count, payload.arrived_ms, payload, lo, epoch,
        lease_first, piece.priority, min(piece.acquired, _MOST_DELIVERED), notes,
    )  # fmt: skip


def missing_answer(queue_id: int, first: QueueSequence, count: int) -> Record:
    """Return the DROPPED row of an answer: these sequences are no longer there."""
    return Record(records.DROPPED, queue_id, first, count, 0)


def _counts(piece: Slice) -> int:
    """Return the number of deliveries of a slice and of those that failed, as LIVE stores them."""
    return piece.acquired | piece.failed << 32


_to_text: Final = json.JSONEncoder(separators=(",", ":")).encode


def _json(value: object) -> bytes:
    return _to_text(value).encode()


def expanded(rows: Iterable[Record]) -> Iterator[Record]:
    """Return the rows of a checkpoint as they are stored: a LIVE row of a packed payload becomes a
    PAYLOAD and a LIVE row for each message, or, with LIVE_PACKED, for all messages together."""
    for row in rows:
        payload = row.payload
        if payload is None or payload.pack is None:
            yield row
            continue
        if row.flags & records.LIVE_PACKED:
            part = payload.window(row.lo, row.lo + row.count)
            yield payload_record(part)
            yield row.part(0, row.count, part, row.blob)
            continue
        blobs = payload.pack.blobs(row.lo, row.lo + row.count)
        for i in range(row.count):
            one = payload.single(row.lo + i)
            yield payload_record(one)
            yield row.part(i, 1, one, blobs[i] if blobs else row.blob)
