"""Handover: messages taken from their queue become a session's own, in flight under new tags."""

from __future__ import annotations

from typing import final

from tallymark.engine.ledger import acquired_record
from tallymark.engine.message import Slice
from tallymark.engine.queue import Queue
from tallymark.engine.session import Consumer, InFlight, Session
from tallymark.engine.state import State
from tallymark.engine.timeouts import MERGE_MS, timeout_of
from tallymark.stored import records
from tallymark.units import EngineMs, Tag


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
        """Add a slice taken from its queue to the session's in-flight ranges; return its first
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
