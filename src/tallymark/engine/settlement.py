"""From acquired to settled, dropped or ready again: what clients say of what they were given.

Each transition is one step: the session's tags, the consumer's credit, the queue's account and the
record change together [LC-2].
"""

from __future__ import annotations

from typing import final

from tallymark.engine import records
from tallymark.engine.delivery import Dispatcher
from tallymark.engine.message import Slice
from tallymark.engine.queue import Queue
from tallymark.engine.records import Record
from tallymark.engine.session import (
    ACCEPTED,
    REJECTED,
    UNLIMITED,
    Consumer,
    InFlight,
    Session,
)
from tallymark.engine.store import Store


@final
class Settlement:
    """Settles tags of sessions. Shares its lists with the Broker and the Dispatcher."""

    __slots__ = ("dispatcher", "records", "store")

    def __init__(self, dispatcher: Dispatcher, store: Store, records: list[Record]) -> None:
        self.dispatcher = dispatcher
        self.store = store
        self.records = records

    def settle(self, session: Session, first: int, last: int, outcome: int) -> None:
        """See Broker.settle."""
        tag = first
        while tag <= last:
            at = session.find(tag)
            entry = session.inflight[at]
            high = min(last, entry.last)
            if entry.done is not None:
                stop = entry.done.find(1, tag - entry.first, high - entry.first + 1)
                if stop >= 0:
                    high = entry.first + stop - 1
            self._finish(session, entry, tag, high, outcome)
            session.forget(at, tag, high)
            tag = high + 1

    def settle_up_to(self, session: Session, last: int, outcome: int) -> None:
        """See Broker.settle_up_to."""
        inflight = session.inflight
        if last == 0:
            if not inflight:
                return
            last = inflight[-1].last
        else:
            session.find(last)
        while inflight and inflight[0].first <= last:
            entry = inflight[0]
            high = min(last, entry.last)
            for a, b in entry.pieces(entry.first, high):
                self._finish(session, entry, a, b, outcome)
                entry.left -= b - a + 1
            if entry.left == 0:
                inflight.popleft()
            else:
                session.shorten(entry, high + 1 - entry.first)

    def return_all(self, session: Session, reason: int) -> None:
        """Everything the session holds goes back to its old position, redelivered."""
        gathered: dict[int, list[Slice]] = {}
        queues: dict[int, Queue] = {}
        inflight = session.inflight
        for entry in inflight:
            queue = entry.queue
            for low, high in entry.pieces(entry.first, entry.last):
                self._free_credit(session, entry.consumer, high - low + 1)
                if queue.deleted:
                    self.store.finish(entry.slice.payload, high - low + 1)
                else:
                    queues[queue.id] = queue
                    gathered.setdefault(queue.id, []).append(entry.part(low, high))
        inflight.clear()
        for queue_id, pieces in gathered.items():
            self.give_back(queues[queue_id], pieces, session.id, reason)

    def give_back(self, queue: Queue, pieces: list[Slice], owner: int, reason: int) -> None:
        """Acquired slices become ready again at their old positions."""
        if queue.stored:
            for piece in pieces:
                self.records.append(
                    Record(
                        records.RETURNED, queue.id, piece.first, len(piece),
                        self.dispatcher.clock.now_ms, owner=owner, reason=reason,
                    )
                )  # fmt: skip
        queue.give_back(pieces)
        if queue.consumers:
            self.dispatcher.mark(queue)

    def record_drop(self, queue: Queue, low: int, high: int, reason: int) -> None:
        """Sequences low..high-1 are gone without success."""
        if queue.stored and high > low:
            self.records.append(
                Record(
                    records.DROPPED, queue.id, low, high - low, self.dispatcher.clock.now_ms,
                    reason=reason,
                )
            )  # fmt: skip

    def drop_in_flight(self, sessions: list[Session], queue: Queue, reason: int) -> None:
        """What sessions hold of a dying queue ends; its tags can still be settled, in vain."""
        for session in sessions:
            for entry in session.inflight:
                if entry.queue is queue:
                    for low, high in entry.pieces(entry.first, entry.last):
                        piece = entry.part(low, high)
                        queue.drop_acquired(len(piece), piece.size(), reason)
                        self.record_drop(queue, piece.first, piece.first + len(piece), reason)

    def _finish(self, session: Session, entry: InFlight, low: int, high: int, outcome: int) -> None:
        """Tags low..high of one entry, all unsettled, end with an outcome. The caller forgets
        them in the session."""
        queue = entry.queue
        count = high - low + 1
        self._free_credit(session, entry.consumer, count)
        if queue.deleted:
            self.store.finish(entry.slice.payload, count)
        elif outcome == ACCEPTED:
            piece = entry.slice
            lo = piece.lo + low - entry.first
            consumer = entry.consumer
            owner = consumer.id if consumer is not None else session.id
            if queue.settle(piece, lo, lo + count, owner, records.SETTLED_BY_CLIENT):
                self.store.settling.append(queue)
            self.store.finish(piece.payload, count)
        elif outcome == REJECTED:
            part = entry.part(low, high)
            queue.drop_acquired(count, part.size(), records.DROPPED_REJECTED)
            self.store.finish(part.payload, count)
            self.record_drop(queue, part.first, part.first + count, records.DROPPED_REJECTED)
        else:
            part = entry.part(low, high)
            self.give_back(queue, [part], session.id, records.RETURNED_BY_CLIENT)

    def _free_credit(self, session: Session, consumer: Consumer | None, n: int) -> None:
        session.unacked -= n
        if consumer is not None:
            consumer.unacked -= n
            if consumer.active and consumer.queue.ready:
                self.dispatcher.mark(consumer.queue)
        if session.limit != UNLIMITED:
            self.dispatcher.mark_session(session)
