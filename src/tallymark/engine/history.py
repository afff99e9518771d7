"""Histories: what the rows of a journal say about each queue, and its content computed from that.

The order of the log is trusted. Messages that were delivered when the broker stopped, or may have
been (below the queue's high-water mark), are ready again with the redelivered flag, and a RETURNED
row says so.
"""

from __future__ import annotations

import json
from typing import Final, final

from tallymark.engine.account import (
    DEAD_LETTERED,
    DROPPED,
    LEASED,
    MOVING,
    READY,
    SETTLED,
    TERMS,
)
from tallymark.engine.intervals import DeferralLog, IntervalSet, LoggedDeferral, Tally
from tallymark.engine.ledger import Ledger, dropped_record, lost_delivery_record
from tallymark.engine.message import Slice
from tallymark.engine.names import named
from tallymark.engine.pending import pending_letter
from tallymark.engine.queue import Queue
from tallymark.engine.queue_parts import Archived, Letter
from tallymark.engine.record import Record
from tallymark.engine.subscription import subscriptions_of
from tallymark.stored import records
from tallymark.stored.annotations import Annotations, ready_since
from tallymark.stored.records import decoded, number_in
from tallymark.units import EngineMs, QueueSequence

OF_STREAMS: Final = ("kept_from", "let_go_bytes")
"""Names of a stream's counters, besides the terms of its account."""


@final
class StoredAnnotations:
    """Annotations decoded from rows. Messages which shared an object share one again."""

    def __init__(self) -> None:
        self._by_blob: dict[bytes, Annotations] = {}

    def read(self, blob: bytes) -> Annotations | None:
        """Decode stored annotations. Raises ValueError for those of a newer version [DL-20]."""
        if not blob:
            return None
        found = self._by_blob.get(blob)
        if found is None:
            found = self._by_blob[blob] = Annotations.from_bytes(blob)
        return found


@final
class QueueHistory:
    """The rows of one queue, collected during the replay."""

    def __init__(self, queue: Queue, stored: StoredAnnotations) -> None:
        self.queue = queue
        self.stored = stored
        self.entered: list[Slice] = []
        self.known: dict[int, bytes] = {}
        """Stored annotations of these messages by first sequence. They are decoded if the messages
        are still present."""
        self.transient = IntervalSet()
        """Sequences that entered without stored bytes."""
        self.finished = IntervalSet()
        """Sequences that were settled, dropped or dead-lettered."""
        self.acquired = IntervalSet()
        """Sequences held by a consumer when the log ends."""
        self.returns = Tally()
        """Deliveries that were returned, since the messages entered or since the checkpoint."""
        self.supposed = IntervalSet()
        """Sequences below the high-water mark that no record shows as delivered. They count as
        delivered once, and this is recorded, so that later deliveries are counted from there."""
        self.failures = Tally()
        """Returned deliveries that failed."""
        self.letters: list[Letter] = []
        """Dead letters kept pending, in the order of their records; a later record replaces an
        earlier one."""
        self.released: list[Slice] = []
        """Messages released by subscriptions; the checkpoint contains them only as leased."""
        self.deferrals = DeferralLog()
        self.mark = 0
        self.noted: dict[int, bytes] = {}
        """Annotations by sequence, of messages to which consumers added notes when they returned
        them."""
        self.counted = 0
        """Highest sequence that is included in the checkpoint's totals."""

    def note(self, record: Record) -> None:
        """Note a RETURNED or DEFERRED record, which may contain new annotations of the messages."""
        if record.blob:
            for sequence in range(record.first, record.first + record.count):
                self.noted[sequence] = record.blob

    def noted_parts(self, low: int, high: int) -> list[tuple[int, int, bytes]]:
        """Split sequences low..high-1 into stretches with equal noted annotations; b"" where there
        are none."""
        parts: list[tuple[int, int, bytes]] = []
        begin = low
        blob = self.noted.get(low, b"")
        for at in range(low + 1, high):
            now = self.noted.get(at, b"")
            if now != blob:
                parts.append((begin, at, blob))
                begin, blob = at, now
        parts.append((begin, high, blob))
        return parts

    def reach(self, record: Record) -> None:
        """Count the sequences of a row as entered, also where the block with their ENTERED row was
        lost."""
        end = record.first + record.count
        if record.kind != records.MARK and end > self.queue.entered:
            self.queue.account.enter_up_to(QueueSequence(end - 1))

    def apply(self, record: Record) -> None:
        """Take in a row about this queue; LEASED rows are the subscriptions' own."""
        kind, queue = record.kind, self.queue
        first, end = record.first, record.first + record.count
        if kind == records.SEEN:
            for id in json.loads(record.blob):
                queue.deduplication.restore_id(id, EngineMs(record.time_ms))
            return
        if kind == records.PUBLISHERS:
            for name, number in json.loads(record.blob).items():
                queue.deduplication.restore_number(name, number)
            return
        if kind == records.ARCHIVED:
            queue.retention.archive = Archived.from_record(record)
            return
        self.reach(record)
        if kind == records.ENTERED or kind == records.LIVE:
            self._enter(record, QueueSequence(first), QueueSequence(end))
        elif kind == records.ACQUIRED:
            self.acquired.add(first, end)
        elif kind == records.SETTLED:
            queue.account.end(record.count, SETTLED)
            self._end(QueueSequence(first), QueueSequence(end))
        elif kind == records.DEFERRED:
            self.note(record)
            if record.owner:
                self._return(record, QueueSequence(first), QueueSequence(end))
            to_tail = record.flags & records.TO_TAIL != 0
            self.deferrals.add(LoggedDeferral(first, end, EngineMs(record.other), to_tail))
        elif kind == records.DEAD_LETTERED:
            queue.account.end(record.count, DEAD_LETTERED)
            self._end(QueueSequence(first), QueueSequence(end))
        elif kind == records.PENDING:
            self.acquired.remove(first, end)
            self._keep_letter(record, QueueSequence(first), QueueSequence(end))
        elif kind == records.DROPPED:
            queue.account.end(record.count, DROPPED, record.reason)
            self._end(QueueSequence(first), QueueSequence(end))
            if record.reason in (records.DROPPED_RETENTION, records.DROPPED_ARCHIVED):
                queue.retention.kept_from = QueueSequence(max(queue.retention.kept_from, end))
                queue.retention.let_go_bytes += record.other
            if record.reason in (records.DROPPED_LOST, records.DROPPED_UNREADABLE):
                for subscription in subscriptions_of(queue):
                    subscription.lose(QueueSequence(first), QueueSequence(end))
        elif kind == records.RETURNED:
            self.note(record)
            self._return(record, QueueSequence(first), QueueSequence(end))
        elif kind == records.MARK:
            self.mark = first
        elif kind == records.COUNTERS:
            _set_counters(queue, decoded(record.blob))
            self.counted = queue.entered

    def _end(self, first: QueueSequence, end: QueueSequence) -> None:
        self.finished.add(first, end)
        self.acquired.remove(first, end)

    def _return(self, record: Record, first: QueueSequence, end: QueueSequence) -> None:
        self.acquired.remove(first, end)
        self.returns.add(first, end)
        if record.flags & records.RETURNED_FAILED:
            self.failures.add(first, end)

    def _enter(self, record: Record, first: QueueSequence, end: QueueSequence) -> None:
        if record.payload is None:
            self.transient.add(first, end)
        else:
            lo = record.lo
            acquired = failed = 0
            if record.kind == records.LIVE:
                acquired, failed = record.other & 0xFFFFFFFF, record.other >> 32
            if record.blob:
                self.known[first] = record.blob
            self.entered.append(
                Slice(
                    record.payload, lo, lo + record.count, first, acquired, failed, record.reason
                )
            )  # fmt: skip
        if record.kind == records.LIVE and record.flags & records.LIVE_ACQUIRED:
            self.acquired.add(first, end)

    def _keep_letter(self, record: Record, first: QueueSequence, end: QueueSequence) -> None:
        if record.payload is None:
            self.transient.add(first, end)
            return
        piece = Slice(record.payload, record.lo, record.lo + record.count, first, 0)
        self.letters.append(pending_letter(record, piece))

    def release(self, piece: Slice) -> None:
        """Take in messages that a subscription released: they are ready, unless later rows say more
        about them."""
        if piece.payload.persistent:
            self.released.append(piece)
        else:
            self.transient.add(piece.first, piece.first + len(piece))


@final
class Contents:
    """The content of one queue, computed from its history by subtracting ranges:
    entered - finished - leased."""

    def __init__(self, history: QueueHistory, ledger: Ledger, now_ms: EngineMs) -> None:
        self._history = history
        self._ledger = ledger
        self._now_ms = now_ms

    def restore(self) -> None:
        """Put the messages where they were, and emit the rows of what the restart changed."""
        history = self._history
        queue = history.queue
        queue.account.ignore_bodies()
        self._count_leased()
        self._place_letters()
        if history.released:
            _readmit(history)
        self._place_entered()
        self._emit_rows()
        queue.high_water.settle_at(QueueSequence(history.mark))
        if queue.settings.is_stream:
            queue.high_water.durable = QueueSequence(
                queue.entered + 1
            )  # all restored messages are on disk

    def _count_leased(self) -> None:
        """Count what durable subscriptions hold as acquired: it is not ready."""
        queue = self._history.queue
        leased = IntervalSet()
        for subscription in subscriptions_of(queue):
            for lease in subscription.leases:
                piece = lease.slice
                leased.add(piece.first, piece.first + len(piece))
                piece.payload.live += len(piece)
                queue.account.move(piece, MOVING, LEASED)
                queue.note_time_to_live(piece)
        for low, high in leased:
            self._history.finished.add(low, high)

    def _place_entered(self) -> None:
        history = self._history
        gone = history.finished
        history.entered.sort(key=lambda piece: piece.first)
        for whole in history.entered:
            for low, high in gone.gaps(whole.first, whole.first + len(whole)):
                if whole.annotations is None:
                    whole.annotations = history.stored.read(history.known.get(whole.first, b""))
                if not history.noted:
                    self._place(whole, low, high)
                    continue
                for a, b, blob in history.noted_parts(low, high):
                    part = whole.part(a - whole.first, b - whole.first)
                    if blob:
                        part.annotations = history.stored.read(blob)
                    self._place(part, a, b)

    def _emit_rows(self) -> None:
        """Emit rows about messages that had no stored bytes, and about deliveries that the restart
        ended."""
        history, queue = self._history, self._history.queue
        gone = history.finished
        for low, high in history.transient:
            for a, b in gone.gaps(low, high):
                reason = records.DROPPED_TRANSIENT
                queue.account.end(b - a, DROPPED, reason)
                history.acquired.remove(a, b)
                self._ledger.emit(dropped_record(queue.id, QueueSequence(a), b - a, reason))
        for low, high in history.acquired:
            self._emit_lost(low, high, True)
        for low, high in history.supposed:
            for a, b in history.acquired.gaps(low, high):
                self._emit_lost(a, b, False)
        for low, high in history.supposed:
            history.acquired.add(low, high)

    def _emit_lost(self, low: int, high: int, sure: bool) -> None:
        """Emit the rows of those among low..high-1 that are still there."""
        history = self._history
        for a, b in history.finished.gaps(low, high):
            row = lost_delivery_record(history.queue.id, QueueSequence(a), b - a, sure)
            self._ledger.emit(row)

    def even_out(self) -> str:
        """Balance an account that its rows do not explain. Returns an error text about it; empty:
        it balances."""
        queue = self._history.queue
        if not queue.account.moving:
            return ""
        text = _sum_of(queue)
        self._drop_missing()
        queue.account.even_out(records.DROPPED_LOST)
        return text

    def _drop_missing(self) -> None:
        """Count messages as lost of which only their sequences are known, after lost blocks were
        accepted."""
        queue = self._history.queue
        known = self._history.finished
        for whole in self._history.entered:
            known.add(whole.first, whole.first + len(whole))
        for low, high in self._history.transient:
            known.add(low, high)
        for low, high in known.gaps(self._history.counted + 1, queue.entered + 1):
            reason = records.DROPPED_LOST
            queue.account.end(high - low, DROPPED, reason)
            self._ledger.emit(dropped_record(queue.id, QueueSequence(low), high - low, reason))

    def _place(self, whole: Slice, low: int, high: int) -> None:
        """Make sequences low..high-1 of a slice ready, flagged as redelivered if they may have been
        delivered."""
        for a, b, returns in self._history.returns.of(low, high):
            for c, d, failures in self._history.failures.of(a, b):
                self._place_counted(whole.part(c - whole.first, d - whole.first), returns, failures)

    def _place_counted(self, whole: Slice, returns: int, failures: int) -> None:
        """Make messages ready that were returned equally often since their last ENTERED or LIVE
        record."""
        queue = self._history.queue
        whole.acquired += returns
        whole.failed += failures
        low, high = whole.first, whole.first + len(whole)
        held = IntervalSet()
        if not whole.acquired and not self._is_due_later(whole) and low < self._history.mark:
            held.add(low, min(high, self._history.mark))
            self._history.supposed.add(low, min(high, self._history.mark))
        for a, b in self._history.acquired.overlap(low, high):
            held.add(a, b)
        pieces = [(a, b, 1) for a, b in held]
        pieces += [(a, b, 0) for a, b in held.gaps(low, high)]
        for a, b, more in sorted(pieces):
            piece = whole.part(a - low, b - low)
            if piece.payload.pack is not None:  # keep columns of present messages only
                piece.payload = piece.payload.window(piece.lo, piece.hi)
                piece.lo, piece.hi = 0, piece.payload.count
            piece.acquired += more
            piece.priority = min(piece.priority, len(queue.lanes.by_priority) - 1)
            piece.payload.live += b - a
            self._place_ready(piece)

    def _is_due_later(self, piece: Slice) -> bool:
        """Return whether the messages were published with a due time in the future: no consumer can
        have received them."""
        known = piece.annotations
        return known is not None and known.due_ms > self._now_ms

    def _place_ready(self, piece: Slice) -> None:
        """Make messages ready, or defer them if their due time has not come."""
        queue = self._history.queue
        now = self._now_ms
        known = piece.annotations
        if known is not None and known.due_ms:
            if known.due_ms > now:
                queue.defer(piece, known.due_ms, True)
                return
            piece.annotations = ready_since(known, known.due_ms)
        at = 0
        for deferral in self._history.deferrals.of(piece.first, piece.first + len(piece)):
            if deferral.due_ms > now:
                start, stop = deferral.low - piece.first, deferral.high - piece.first
                if start > at:
                    _enter_ready(queue, piece.part(at, start))
                queue.defer(piece.part(start, stop), deferral.due_ms, deferral.to_tail)
                at = stop
        if at < len(piece):
            _enter_ready(queue, piece.part(at, len(piece)))

    def _place_letters(self) -> None:
        """Restore pending letters, in the order in which they first became pending. Their messages
        are not ready. The last record about a message counts."""
        queue = self._history.queue
        later = IntervalSet()
        turns: dict[int, int] = {}
        for turn, letter in enumerate(self._history.letters):
            start = letter.piece.first
            for low, high in self._history.finished.gaps(start, start + len(letter.piece)):
                for seq in range(low, high):
                    turns.setdefault(seq, turn)
        found: list[tuple[int, int, Letter]] = []
        for letter in reversed(self._history.letters):
            first = letter.piece.first
            for low, high in later.gaps(first, first + len(letter.piece)):
                for a, b in self._history.finished.gaps(low, high):
                    found.append((turns[a], a, letter.part(a - first, b - first)))
            later.add(first, first + len(letter.piece))
        found.sort(key=_turn)
        for _, _, letter in found:
            piece = letter.piece
            piece.payload.live += len(piece)
            queue.keep(letter)
            self._history.finished.add(piece.first, piece.first + len(piece))


def _turn(found: tuple[int, int, Letter]) -> tuple[int, int]:
    """Return the sort key of pending letters: the order in which they died."""
    return found[0], found[1]


def _enter_ready(queue: Queue, piece: Slice) -> None:
    queue.account.move(piece, MOVING, READY)
    queue.note_time_to_live(piece)
    queue.lanes.by_priority[piece.priority].fresh.append(piece)


def _readmit(history: QueueHistory) -> None:
    """Add messages that dropped subscriptions released to those that entered, as they may have
    entered before the checkpoint."""
    known = IntervalSet()
    for piece in history.entered:
        known.add(piece.first, piece.first + len(piece))
    for piece in history.released:
        for low, high in known.gaps(piece.first, piece.first + len(piece)):
            history.entered.append(piece.part(low - piece.first, high - piece.first))
            known.add(low, high)


def _sum_of(queue: Queue) -> str:
    """Return an error text about an account that does not balance."""
    here, ended = queue.account.present(), queue.account.ended()
    return (
        f"{named('queue', queue.name, queue.vhost)} does not balance: {queue.entered} messages "
        f"entered, {here} are there and {ended} ended, which makes {here + ended}"
    )


def _set_counters(queue: Queue, counters: dict[str, object]) -> None:
    """Begin with a checkpoint's counters. Raises ValueError, for a term that this version does not
    know, too: the account would not balance without it."""
    for name in counters:
        if name not in TERMS and name not in OF_STREAMS:
            raise ValueError(f"counter {name!r} is not known: written by a newer version?")
    queue.account.restore(counters)
    queue.retention.kept_from = QueueSequence(number_in(counters, "kept_from", 1))
    queue.retention.let_go_bytes = number_in(counters, "let_go_bytes", 0)
