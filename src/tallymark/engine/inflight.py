"""Messages in flight: put there by a delivery, taken back when they are there for too long [LC-4].

Messages that were taken from their queue become a session's own, under new tags. The time that one
may stay unsettled is the consumer's own argument, else the queue's setting, else half an hour; 0
means no limit. Only overdue messages return, and their consumers are stopped. Their tags remain
valid, so that a late settlement is no error and has no effect: the message may have been delivered
to another consumer [LC-2]."""

from __future__ import annotations

from collections import deque
from typing import Final, final

from tallymark.engine.clock import NEVER
from tallymark.engine.effects import TimedOut
from tallymark.engine.errors import PreconditionFailed
from tallymark.engine.ledger import acquired_record
from tallymark.engine.message import Slice
from tallymark.engine.queue import Queue
from tallymark.engine.session import (
    MERGE_MS,
    RELEASES,
    REQUEUES,
    Consumer,
    InFlight,
    Session,
    timeout_of,
)
from tallymark.engine.settlement import Settlement
from tallymark.engine.state import State
from tallymark.stored import records
from tallymark.units import EngineMs, Ms, Tag

ENTRIES_A_MS: Final = 1000
"""In-flight entries of a session for each millisecond between two searches of it. A session with a
hundred thousand entries thus costs little, and is 100 ms late at most [NQ-D1]."""


@final
class Handover:
    """Puts messages in flight."""

    def __init__(self, state: State) -> None:
        self._clock = state.clock
        self._deadlines = state.deadlines
        self._holders = state.holders
        self._ledger = state.ledger
        self._settling = state.agenda.settling
        self._store = state.store
        self._times = state.settle_times

    def acquire(
        self, session: Session, queue: Queue, piece: Slice, consumer: Consumer | None, no_ack: bool
    ) -> Tag:
        """Add a slice taken from its queue to the session's in-flight entries; return its first
        tag."""
        n = piece.hi - piece.lo
        tag = session.next_tag
        if piece.acquired:
            queue.handed_out.again += n
        if not no_ack and queue.id not in session.sources:
            self._holders.add(queue, session)
        session.next_tag = Tag(tag + n)
        owner = consumer.id if consumer is not None else session.id
        if no_ack:
            if queue.settle(piece, piece.lo, piece.hi, owner, records.SETTLED_ON_SEND):
                self._settling.append(queue)
            self._times.add(self._clock.now_ms - piece.entered_ms(), n)
            self._store.finish(piece.payload, n)
            return tag
        session.unacked += n
        if consumer is not None:
            consumer.hold(tag, n)
        else:
            session.got += n
        if queue.stored and queue.settings.records_deliveries:
            self._ledger.emit(acquired_record(queue.id, piece.first, n, owner, piece.acquired))
        inflight = session.inflight
        if inflight:
            last = inflight[-1]
            whole = last.slice
            if (
                last.consumer is consumer
                and last.done is None
                and last.last + 1 == tag
                and whole.payload is piece.payload
                and whole.lo + last.last - last.first + 1 == piece.lo
                and whole.first + piece.lo - whole.lo == piece.first
                and whole.acquired == piece.acquired
                and whole.annotations is piece.annotations
                and whole.failed == piece.failed
                and whole.priority == piece.priority
                and whole.shift == piece.shift
                and last.queue is queue
                and not last.void
                and last.since_ms == last.given_ms
                and last.since_ms + MERGE_MS >= self._clock.now_ms
            ):
                whole = whole.part(0, len(whole))
                whole.hi = piece.hi
                last.slice = whole
                last.last = Tag(tag + n - 1)
                last.left += n
                return tag
        now = self._clock.now_ms
        inflight.append(InFlight(tag, Tag(tag + n - 1), piece, queue, consumer, now))
        timeout = timeout_of(consumer, queue)
        if timeout and now + timeout + MERGE_MS < session.armed_ms:
            self._deadlines.arm(session, EngineMs(now + timeout + MERGE_MS))
        return tag


@final
class Timeouts:
    """Handling of consumer time-outs."""

    def __init__(self, state: State, settlement: Settlement) -> None:
        self.clock = state.clock
        self.deadlines = state.deadlines
        self.settlement = settlement
        self.effects = state.effects
        self._holders = state.holders

    def look_at(self, session: Session) -> list[Consumer]:
        """Return overdue messages of a session whose deadline has come, and arm its next deadline.
        Returns the consumers to be stopped."""
        if session.closed:
            return []
        now = self.clock.now_ms
        late: list[InFlight] = []
        next_due = NEVER
        for entry in session.inflight:
            if entry.void:
                continue
            due = _due(entry)
            if due <= now:
                late.append(entry)
            else:
                next_due = EngineMs(min(next_due, due))
        if next_due < NEVER:
            self.deadlines.arm(
                session, EngineMs(max(next_due, now + len(session.inflight) // ENTRIES_A_MS))
            )
        stopped: list[Consumer] = []
        told: dict[int, TimedOut] = {}
        lenient: list[InFlight] = []
        for entry in late:
            consumer = entry.consumer
            if consumer is not None and consumer.on_timeout == REQUEUES:
                lenient.append(entry)
                continue
            tags = self._return(session, entry)
            releases = consumer is not None and consumer.on_timeout == RELEASES
            if consumer is not None and not consumer.active and not releases:
                continue  # it was reported before, or its client stopped it
            whose = 0 if consumer is None else consumer.id
            if whose not in told:
                told[whose] = TimedOut(session, consumer, timeout_of(consumer, entry.queue))
                self.effects.append(told[whose])
                if consumer is not None and not releases:
                    stopped.append(consumer)
            told[whose].tags += tags
        if lenient:
            self._requeue(session, lenient)
        return stopped

    def touch(self, session: Session, tag: Tag, most_ms: Ms) -> None:
        """Restart the time-out of one delivery, up to `most_ms` after it was delivered [NQ-13].
        It comes before a time-out or after it, never in between [NQ-A7]. Raises PreconditionFailed
        if the tag is not unsettled."""
        at = session.find(tag)
        if session.inflight[at].void:
            raise PreconditionFailed(f"unknown delivery tag {tag}")
        entry = session.isolate(at, tag)
        timeout = timeout_of(entry.consumer, entry.queue)
        entry.since_ms = EngineMs(
            min(self.clock.now_ms, entry.given_ms + max(0, most_ms - timeout))
        )

    def _requeue(self, session: Session, late: list[InFlight]) -> None:
        """Requeue all of these entries at the tail and remove their tags from the session."""
        gone = set(late)
        session.inflight = deque([entry for entry in session.inflight if entry not in gone])
        for entry in late:
            queue = entry.queue
            consumer = entry.consumer
            assert consumer is not None
            pieces = [entry.part(a, b) for a, b in entry.pieces(entry.first, entry.last)]
            count = sum([len(piece) for piece in pieces])
            queue.timed_out += count
            self.settlement.free_credit(session, consumer, count)
            self.settlement.give_back(
                queue, pieces, consumer.id, records.RETURNED_BY_TIMEOUT, False, True
            )

    def watch(self, queue: Queue) -> None:
        """Arm deadlines after a change of a queue's settings. They may come earlier for all its
        unsettled deliveries, also those of cancelled consumers and of basic.get."""
        for session in self._holders.of(queue):
            if session.inflight:
                self.deadlines.arm(session, self.clock.now_ms)

    def _return(self, session: Session, entry: InFlight) -> list[tuple[Tag, Tag]]:
        """Return the messages of an entry to their queue; return their tags."""
        tags = entry.pieces(entry.first, entry.last)
        pieces: list[Slice] = []
        for low, high in tags:
            pieces.append(entry.part(low, high))
        entry.void = entry.is_late = True
        consumer = entry.consumer
        owner = session.id if consumer is None else consumer.id
        if consumer is not None:
            consumer.overdue += entry.left
        self.settlement.give_back(entry.queue, pieces, owner, records.RETURNED_BY_TIMEOUT, False)
        return tags


def _due(entry: InFlight) -> int:
    timeout = timeout_of(entry.consumer, entry.queue)
    return entry.since_ms + MERGE_MS + timeout if timeout else NEVER
