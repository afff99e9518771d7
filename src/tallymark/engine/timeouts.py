"""Consumer time-outs: messages that are unsettled for too long go back to their queue [LC-4].

The time that a message may stay unsettled is the consumer's own argument, else the queue's setting,
else half an hour; 0 means no limit. Only overdue messages return, and their consumers are stopped.
Their tags remain valid, so that a late settlement is no error and has no effect: the message may
have been delivered to another consumer [LC-2].
"""

from __future__ import annotations

from collections import deque
from typing import Final, final

from tallymark.engine.clock import NEVER
from tallymark.engine.effects import TimedOut
from tallymark.engine.errors import PreconditionFailed
from tallymark.engine.inflight import index_of, isolate
from tallymark.engine.message import Slice
from tallymark.engine.queue import Queue
from tallymark.engine.session import RELEASES, REQUEUES, Consumer, InFlight, Session
from tallymark.engine.settlement import Settlement
from tallymark.engine.state import State
from tallymark.stored import records
from tallymark.units import EngineMs, Ms, Tag

MERGE_MS: Final = 20
"""Messages delivered within this many milliseconds share a range, and so a time-out, which may be
late by as much."""
CONSUMER_TIMEOUT_MS: Final = Ms(30 * 60 * 1000)
"""Default consumer timeout: milliseconds a delivery may stay unsettled unless the queue or the
consumer sets another [LC-4]."""
ENTRIES_A_MS: Final = 1000
"""In-flight ranges of a session for each millisecond between two searches of it. A session with a
hundred thousand ranges thus costs little, and is 100 ms late at most [NQ-D1]."""


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
        at = index_of(session, tag)
        if session.inflight[at].void:
            raise PreconditionFailed(f"unknown delivery tag {tag}")
        entry = isolate(session, at, tag)
        timeout = timeout_of(entry.consumer, entry.queue)
        entry.since_ms = EngineMs(
            min(self.clock.now_ms, entry.given_ms + max(0, most_ms - timeout))
        )

    def _requeue(self, session: Session, late: list[InFlight]) -> None:
        """Requeue all of these ranges at the tail and remove their tags from the session."""
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
        """Return the messages of a range to their queue; return their tags."""
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


def timeout_of(consumer: Consumer | None, queue: Queue) -> Ms:
    """Return how long a delivery may stay unsettled, in milliseconds; 0: no limit [LC-4]."""
    if consumer is not None and consumer.timeout_ms >= 0:
        return consumer.timeout_ms
    given = queue.settings.consumer_timeout_ms
    return given if given >= 0 else CONSUMER_TIMEOUT_MS
