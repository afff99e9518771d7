"""Settlement: the transitions from acquired to settled, dropped or ready, as clients settle
deliveries.

Each transition is one step: the session's tags, the consumer's credit, the queue's account and the
record change together [LC-2].
"""

from __future__ import annotations

from typing import final

from tallymark.engine.account import ACQUIRED, DROPPED, MOVING
from tallymark.engine.arguments import RETRY_DISABLED
from tallymark.engine.deadletters import DeadLetters
from tallymark.engine.entrance import Entrance
from tallymark.engine.errors import PreconditionFailed
from tallymark.engine.inflight import index_of, ranges_of, remove_tags, take_all_of
from tallymark.engine.ledger import deferred_record, dropped_record, returned_record
from tallymark.engine.message import Slice
from tallymark.engine.outcomes import ACCEPTED, DISCARDED, FAILED, NACKED, REJECTED, RETURNED
from tallymark.engine.queue import Queue
from tallymark.engine.queue_consumers import reconsider
from tallymark.engine.session import Consumer, InFlight, Session
from tallymark.engine.state import State
from tallymark.stored import records
from tallymark.stored.annotations import Notes, with_notes
from tallymark.units import UNLIMITED, EngineMs, Ms, QueueSequence, Tag


@final
class Settlement:
    """Settles tags of sessions."""

    def __init__(self, state: State, entrance: Entrance, letters: DeadLetters) -> None:
        self.agenda = state.agenda
        self.clock = state.clock
        self.ledger = state.ledger
        self.store = state.store
        self._times = state.settle_times
        self._entrance = entrance
        self._letters = letters

    def settle(
        self,
        session: Session,
        first: Tag,
        last: Tag,
        outcome: int,
        notes: Notes = (),
        due_ms: EngineMs = EngineMs(0),
    ) -> None:
        """Settle tags first..last one after the other with one outcome.

        notes: what the consumer adds to the messages, where they are given back or refused [FC-20].
        due_ms: what is given back is not ready before then (engine time; 0: at once) and keeps its
        place [LC-1].

        Raises:
            PreconditionFailed: at the first tag that is unknown or settled; those before it are
            settled, it and those after it are not.
        """
        tag = first
        while tag <= last:
            at = index_of(session, tag)
            entry = session.inflight[at]
            high = min(last, entry.last)
            if entry.done is not None and high > tag:
                stop = entry.done.find(1, tag - entry.first, high - entry.first + 1)
                if stop >= 0:
                    high = Tag(entry.first + stop - 1)
            self.finish(session, entry, tag, high, outcome, notes, due_ms)
            remove_tags(session, at, tag, high)
            tag = Tag(high + 1)

    def take_back(self, session: Session, tag: Tag) -> tuple[Queue, Slice]:
        """Take one unsettled tag out of the session. The caller decides about its message. Raises
        PreconditionFailed if the tag is not unsettled, or is void."""
        at = index_of(session, tag)
        entry = session.inflight[at]
        if entry.void:
            raise PreconditionFailed(f"unknown delivery tag {tag}")
        piece = entry.part(tag, tag)
        self.free_credit(session, entry.consumer, 1)
        remove_tags(session, at, tag, tag)
        return entry.queue, piece

    def return_of(self, session: Session, consumer: Consumer, reason: int) -> None:
        """Requeue all messages that the session holds through one consumer at their old
        positions."""
        pieces: list[Slice] = []
        queue = consumer.queue
        for entry in take_all_of(session, consumer):
            for low, high in entry.pieces(entry.first, entry.last):
                session.unacked -= high - low + 1
                if not entry.void:
                    pieces.append(entry.part(low, high))
        consumer.unacked = consumer.overdue = 0
        if pieces:
            self.give_back(queue, pieces, consumer.id, reason, False)
        if session.limit != UNLIMITED:
            self.agenda.offer(session)

    def settle_up_to(self, session: Session, last: Tag, outcome: int) -> None:
        """Settle every outstanding tag up to `last`, or all when it is 0.

        Raises:
            PreconditionFailed: `last` itself is unknown or settled; nothing has changed.
        """
        inflight = session.inflight
        if last == 0:
            if not inflight:
                return
            last = inflight[-1].last
        else:
            index_of(session, last)
        while inflight and inflight[0].first <= last:
            entry = inflight[0]
            high = min(last, entry.last)
            for a, b in entry.pieces(entry.first, high):
                self.finish(session, entry, a, b, outcome)
                entry.left -= b - a + 1
            if entry.left == 0:
                inflight.popleft()
            else:
                entry.shorten(high + 1 - entry.first)

    def return_all(self, session: Session, reason: int, outcome: int = RETURNED) -> None:
        """Return all messages that the session holds to their old positions, marked as
        redelivered, with an outcome that each queue reads as it does one of a single message."""
        gathered: dict[int, list[Slice]] = {}
        queues: dict[int, Queue] = {}
        inflight = session.inflight
        for entry in inflight:
            queue = entry.queue
            for low, high in entry.pieces(entry.first, entry.last):
                self.free_credit(session, entry.consumer, high - low + 1)
                if not entry.void:
                    queues[queue.id] = queue
                    gathered.setdefault(queue.id, []).append(entry.part(low, high))
        inflight.clear()
        for queue_id, pieces in gathered.items():
            queue = queues[queue_id]
            nacked = outcome == NACKED
            failed = reason == records.RETURNED_BY_LOSS or counts_as(queue, outcome) == FAILED
            self.give_back(queue, pieces, session.id, reason, failed, nacked=nacked)

    def recover(self, session: Session, outcome: int = RETURNED) -> None:
        """Return all unsettled messages of a session to their old positions, marked as redelivered
        [TX-8].

        outcome: RETURNED, or NACKED where the queues are to count it as they do basic.nack [DL-5].
        """
        self.return_all(session, records.RETURNED_BY_CLIENT, outcome)

    def give_back(
        self,
        queue: Queue,
        pieces: list[Slice],
        owner: int,
        reason: int,
        failed: bool,
        to_tail: bool = False,
        nacked: bool = False,
    ) -> None:
        """Requeue acquired slices at their old positions. Messages that failed, or were delivered,
        more often than the queue allows are dead-lettered instead [DL-5, DL-D6]. A queue with
        delayed retry defers them first.

        failed: this delivery counts as a failed one. to_tail: they go to the tail [NQ-12]. nacked:
        for delayed retry, which reads it so whatever it counts as, they were returned.
        """
        settings = queue.settings
        if settings.delivery_limit >= 0 or settings.acquired_limit >= 0:
            pieces = self._bury_worn(queue, pieces, failed)
            if not pieces:
                return
        if settings.delayed_retry != RETRY_DISABLED:
            pieces = self._delay(queue, pieces, owner, reason, failed, to_tail, nacked)
            if not pieces:
                return
        if queue.stored:
            for piece in pieces:
                self.ledger.emit(returned_record(queue.id, piece, reason, owner, failed, to_tail))
            self.agenda.given_back(queue, pieces)
        if queue.account.body_bytes >= 0:  # delivered before the queue had a limit on bytes
            pieces = [piece for piece in pieces if self._is_weighed(queue, piece, failed)]
        queue.give_back(pieces, failed, to_tail)
        if queue.consumers or queue.watched:
            self.agenda.mark(queue)

    def _is_weighed(self, queue: Queue, piece: Slice, failed: bool) -> bool:
        """Compute the body bytes of requeued messages. False: they cannot be read and were
        quarantined."""
        entrance = self._entrance
        if entrance.is_weighed(piece.payload):
            return True
        queue.account.move(piece, ACQUIRED, MOVING)
        piece.acquired += 1
        if failed:
            piece.failed += 1
        entrance.quarantine.put(queue, piece)
        return False

    def requeue(self, session: Session, tag: Tag, delay_ms: Ms) -> None:
        """Requeue one delivery at the tail of its queue, now or in `delay_ms` [NQ-12].

        Raises:
            PreconditionFailed: the tag is unknown or settled.
        """
        queue, piece = self.take_back(session, tag)
        queue.requeued += 1
        if delay_ms <= 0:
            self.give_back(queue, [piece], session.id, records.RETURNED_BY_CLIENT, False, True)
        elif queue.settings.acquired_limit < 0 or self._bury_worn(queue, [piece], False):
            due_ms = self.clock.now_ms + delay_ms
            self.defer_acquired(queue, piece, session.id, EngineMs(due_ms), False, True)

    def _delay(
        self,
        queue: Queue,
        pieces: list[Slice],
        owner: int,
        reason: int,
        failed: bool,
        to_tail: bool,
        nacked: bool,
    ) -> list[Slice]:
        """Defer requeued messages that have to wait for their next delivery; return the others."""
        left: list[Slice] = []
        for piece in pieces:
            failures = piece.failed + 1 if failed else piece.failed
            delay = queue.settings.retry_delay_ms(failures, failed and not nacked)
            if delay > 0:
                due_ms = self.clock.now_ms + delay
                self.defer_acquired(queue, piece, owner, EngineMs(due_ms), failed, to_tail, reason)
            else:
                left.append(piece)
        return left

    def _put_off(
        self, queue: Queue, piece: Slice, owner: int, due_ms: EngineMs, failed: bool
    ) -> None:
        """Defer acquired messages, or dead-letter those that were returned or delivered too
        often."""
        pieces = [piece]
        if queue.settings.delivery_limit >= 0 or queue.settings.acquired_limit >= 0:
            pieces = self._bury_worn(queue, pieces, failed)
        for left in pieces:
            self.defer_acquired(queue, left, owner, due_ms, failed, False)

    def defer_acquired(
        self,
        queue: Queue,
        piece: Slice,
        owner: int,
        due_ms: EngineMs,
        failed: bool,
        to_tail: bool,
        reason: int = records.RETURNED_BY_CLIENT,
    ) -> None:
        """Defer acquired messages until `due_ms` (engine time)."""
        queue.account.move(piece, ACQUIRED, MOVING)
        piece.acquired += 1
        if failed:
            piece.failed += 1
        self.defer(queue, piece, owner, due_ms, failed, to_tail, reason)

    def defer(
        self,
        queue: Queue,
        piece: Slice,
        owner: int,
        due_ms: EngineMs,
        failed: bool,
        to_tail: bool,
        reason: int,
    ) -> None:
        """Defer messages that are no longer ready or acquired until `due_ms` (engine time)."""
        entrance = self._entrance
        if queue.account.body_bytes >= 0 and not entrance.is_weighed(piece.payload):
            entrance.quarantine.put(queue, piece)
        else:
            queue.defer(piece, due_ms, to_tail)
        if queue.stored:
            self.ledger.emit(
                deferred_record(queue.id, piece, due_ms, to_tail, reason, owner, failed)
            )
            if piece.acquired:
                self.agenda.given_back(queue, [piece])
        self.agenda.mark(queue)

    def _bury_worn(self, queue: Queue, pieces: list[Slice], failed: bool) -> list[Slice]:
        """Dead-letter the messages that reached a limit; return the others."""
        delivery_limit, acquired_limit = (
            queue.settings.delivery_limit,
            queue.settings.acquired_limit,
        )
        left: list[Slice] = []
        for piece in pieces:
            if (failed and 0 <= delivery_limit < piece.failed + 1) or (
                0 <= acquired_limit < piece.acquired + 1
            ):
                self._bury(queue, piece, records.DEAD_DELIVERY_LIMIT, failed)
            else:
                left.append(piece)
        return left

    def refuse(self, queue: Queue, piece: Slice) -> None:
        """Dead-letter acquired messages that were rejected for good, as a failed delivery
        [DL-1]."""
        self._bury(queue, piece, records.DEAD_REJECTED, True)

    def _bury(self, queue: Queue, piece: Slice, reason: int, failed: bool) -> None:
        """Dead-letter acquired messages. Their letters carry the counts of this delivery."""
        queue.account.move(piece, ACQUIRED, MOVING)
        piece.acquired += 1
        if failed:
            piece.failed += 1
        self._letters.bury(queue, [piece], reason)
        if queue.watched:
            self.agenda.mark(queue)

    def record_drop(
        self, queue: Queue, low: QueueSequence, high: QueueSequence, reason: int
    ) -> None:
        """Record that sequences low..high-1 ended without success."""
        if queue.stored and high > low:
            self.ledger.emit(dropped_record(queue.id, low, high - low, reason))

    def drop_in_flight(self, sessions: list[Session], queue: Queue, reason: int) -> None:
        """End all messages of a queue that is deleted which sessions hold. Their tags can still be
        settled, without effect."""
        for session in sessions:
            for entry in ranges_of(session, queue):
                if entry.queue is queue and not entry.void:
                    for low, high in entry.pieces(entry.first, entry.last):
                        piece = entry.part(low, high)
                        queue.account.move(piece, ACQUIRED, DROPPED, reason)
                        self.record_drop(
                            queue, piece.first, QueueSequence(piece.first + len(piece)), reason
                        )
                        self.store.finish(piece.payload, len(piece))
                    entry.void = True
                    if not queue.acquired:
                        return

    def finish(
        self,
        session: Session,
        entry: InFlight,
        low: Tag,
        high: Tag,
        outcome: int,
        notes: Notes = (),
        due_ms: EngineMs = EngineMs(0),
    ) -> None:
        """Settle tags low..high of one entry, all unsettled, with an outcome. The caller removes
        them from the session, or has done so."""
        queue = entry.queue
        count = high - low + 1
        if entry.consumer is not None:
            entry.consumer.pace.add(count, self.clock.now_ms)
            if entry.is_late:
                entry.consumer.overdue -= count
                reconsider(entry.consumer)
                self.agenda.mark(queue)
        self.free_credit(session, entry.consumer, count)
        if entry.void:
            return
        if outcome == ACCEPTED:
            piece = entry.slice
            lo = piece.lo + low - entry.first
            consumer = entry.consumer
            owner = consumer.id if consumer is not None else session.id
            if queue.settle(piece, lo, lo + count, owner, records.SETTLED_BY_CLIENT):
                self.agenda.settling.append(queue)
            self._times.add(self.clock.now_ms - piece.entered_ms(), count)
            self.store.finish(piece.payload, count)
            return
        part = entry.part(low, high)
        if notes:
            part.annotations = with_notes(part.annotations, notes)
        if outcome in (REJECTED, DISCARDED):
            self._bury(queue, part, records.DEAD_REJECTED, outcome == REJECTED)
            return
        failed = counts_as(queue, outcome) == FAILED
        if due_ms > self.clock.now_ms:
            self._put_off(queue, part, session.id, due_ms, failed)
        else:
            reason = records.RETURNED_BY_CLIENT
            nacked = outcome == NACKED
            self.give_back(queue, [part], session.id, reason, failed, nacked=nacked)

    def record_settled(self, queue: Queue) -> None:
        """Emit rows for the ranges of a queue that were settled in this turn."""
        queue.settled_rows.emit(self.ledger)

    def free_credit(self, session: Session, consumer: Consumer | None, n: int) -> None:
        """Return the credit of n messages that the session no longer holds."""
        session.unacked -= n
        if consumer is not None:
            consumer.unacked -= n
            if consumer.is_passed_over and not consumer.by_link:
                reconsider(consumer)
            if consumer.active and consumer.queue.ready and not consumer.by_link:
                self.agenda.mark(consumer.queue)
            if session.limit != UNLIMITED:
                self.agenda.offer(session)
        else:
            session.got -= n


def counts_as(queue: Queue, outcome: int) -> int:
    """Return the outcome as the queue counts it: a nack with requeue is a failure unless the queue
    counts it otherwise [DL-5]."""
    if outcome != NACKED:
        return outcome
    return FAILED if queue.settings.counts_nacks else RETURNED
