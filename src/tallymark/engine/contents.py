"""Contents: commands on all messages of a queue together."""

from __future__ import annotations

from collections import deque
from typing import final

from tallymark.engine import records
from tallymark.engine.account import ACQUIRED, MOVING, SETTLED
from tallymark.engine.admission import Admission
from tallymark.engine.annotations import deferred_until
from tallymark.engine.delivery import Dispatcher
from tallymark.engine.entrance import Entrance
from tallymark.engine.ledger import (
    settled_record,
)
from tallymark.engine.message import Slice
from tallymark.engine.pending import PendingLetters
from tallymark.engine.quarantine import Quarantine
from tallymark.engine.queue import Queue
from tallymark.engine.routing import Targets
from tallymark.engine.session import REQUEUES, InFlight
from tallymark.engine.settlement import Settlement
from tallymark.engine.state import State
from tallymark.engine.streams import not_of_streams
from tallymark.engine.transactions import Transactions
from tallymark.engine.upkeep import Upkeep


@final
class Contents:
    """Purges and empties queues, moves their messages, and reads them."""

    __slots__ = (
        "_admission", "_agenda", "_connections", "_dispatcher", "_entrance", "_ledger",
        "_pending", "_quarantine", "_queues", "_settlement", "_state", "_store",
        "_transactions", "_upkeep",
    )  # fmt: skip

    def __init__(
        self,
        state: State,
        dispatcher: Dispatcher,
        upkeep: Upkeep,
        quarantine: Quarantine,
        entrance: Entrance,
        admission: Admission,
        pending: PendingLetters,
        settlement: Settlement,
        transactions: Transactions,
    ) -> None:
        self._agenda = state.agenda
        self._connections = state.connections
        self._ledger = state.ledger
        self._queues = state.queues
        self._state = state
        self._store = state.store
        self._dispatcher = dispatcher
        self._upkeep = upkeep
        self._quarantine = quarantine
        self._entrance = entrance
        self._admission = admission
        self._pending = pending
        self._settlement = settlement
        self._transactions = transactions

    def purge(self, queue: Queue) -> int:
        """Drop all ready, deferred, quarantined and dead-letter-pending messages; return their
        count. Unsettled and leased messages stay.

        Raises: Unsupported (a stream).
        """
        self._check_purge(queue)
        self._dispatcher.use_head(queue)
        return self.drop_all(queue, records.DROPPED_PURGED)

    def _check_purge(self, queue: Queue) -> None:
        if queue.settings.is_stream:
            raise not_of_streams("queue.purge", queue)

    def empty(self, queue: Queue) -> None:
        """Drop all messages, including unsettled ones that consumers hold; leased messages stay
        [NQ-15]. Deliveries not sent yet are not sent."""
        self._check_purge(queue)
        self._upkeep.use(queue)
        self.drop_all(queue, records.DROPPED_PURGED)
        self._empty_in_flight(queue, records.DROPPED_PURGED)
        if queue.account.staged:
            self._transactions.drop(queue, records.DROPPED_PURGED, True)

    def _empty_in_flight(self, queue: Queue, reason: int) -> None:
        """End all messages that sessions hold of a queue that is emptied [NQ-15]. Tags of a
        consumer whose time-outs requeue (NSQ) are removed from the session; other tags can still be
        settled, without effect."""
        for session in [s for c in self._connections.values() for s in c.sessions]:
            kept: deque[InFlight] = deque()
            for entry in session.inflight:
                if entry.queue is not queue or entry.void:
                    kept.append(entry)
                    continue
                consumer = entry.consumer
                is_lenient = consumer is not None and consumer.on_timeout == REQUEUES
                for low, high in entry.pieces(entry.first, entry.last):
                    piece = entry.part(low, high)
                    queue.account.move(piece, ACQUIRED, MOVING)
                    self._state.drop(queue, piece, reason)
                    if is_lenient:
                        self._settlement.free_credit(session, entry.consumer, len(piece))
                if not is_lenient:
                    entry.void = True
                    kept.append(entry)
            session.inflight = kept

    def transfer(self, source: Queue, targets: list[Queue]) -> None:
        """Move all ready and deferred messages of `source` to each of `targets`, in one step;
        delivery counts start anew there. Without a target they stay. A target that drops messages
        when full does so [NQ-10]. Messages that must be read for this and cannot be are
        quarantined."""
        if not targets:
            return
        self._dispatcher.use(source)
        source.unpack()
        for entry in source.deferrals:
            entry.piece.annotations = deferred_until(entry.piece.annotations, entry.due_ms)
        is_plain = Targets(targets).plain
        for piece in [*source.clear(), *source.clear_deferred()]:
            payload = piece.payload
            if not is_plain and not self._store.tried(payload):
                self._quarantine.put(source, piece)
                continue
            n = len(piece)
            self._store.use(payload, n * len(targets))
            for target in targets:
                kept = payload.persistent and target.stored
                if kept:
                    self._entrance.keep(payload)
                self._admission.transfer(target, piece, kept, source.id)
            source.account.end(n, SETTLED)
            if source.stored:
                self._ledger.emit(
                    settled_record(source.id, piece.first, n, records.SETTLED_BY_TRANSFER)
                )
            self._store.finish(payload, n)

    def drop_all(self, queue: Queue, reason: int) -> int:
        """Drop all messages that nobody holds; return how many there were."""
        count = queue.ready + queue.deferred + queue.pending + queue.account.quarantined
        aside = self._quarantine.clear(queue)
        for piece in [*queue.clear(), *queue.clear_deferred(), *aside]:
            self._state.drop(queue, piece, reason)
        self._pending.give_up_all(queue, reason)
        return count

    def pause_unreadable(self, pauses: bool) -> None:
        """Set whether queues stop deliveries while any of their messages cannot be read."""
        self._quarantine.pauses = pauses
        for queue in self._queues.values():
            rests = pauses and queue.account.quarantined > 0
            if queue.rests != rests:
                queue.rests = rests
                self._agenda.mark(queue)

    def pin(self, queue: Queue) -> list[Slice]:
        """Return the messages that are ready now, as slices whose bytes stay readable until
        `unpin`."""
        queue.unpack()
        pieces = [piece.part(0, len(piece)) for piece in queue.slices()]
        for piece in pieces:
            piece.payload.live += len(piece)
        return pieces

    def unpin(self, pieces: list[Slice]) -> None:
        for piece in pieces:
            self._store.finish(piece.payload, len(piece))
