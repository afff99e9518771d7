"""Transactions: publishes and settlements that come into effect together, or not at all.

Until its end everything in a transaction is staged (staging.py): publishes are invisible; settled
deliveries are *staged*, so that their session no longer has them, but they count in its window and
in the account of their queue [TX-4]. A commit carries all of it out in one step: publishes in their
order, then settlements in theirs, with the dead letters they cause [TX-5]. A step is in one turn,
and a turn is one block of the journal: so a transaction takes effect whole or not at all, across
queues and crashes [TX-D1]. A queue that refuses messages, which would make this impossible, is
found before anything is changed.

A rollback only ends the transaction. Messages published under it are discarded, staged deliveries
are unsettled in their session again under the same tags, and nothing is redelivered [TX-6].

Messages of a commit, and the dead letters that it causes, are delivered once they are on disk
(`Dispatcher.hold`), so that no consumer gets half of a transaction that a crash undoes.

Bodies beyond AHEAD_BYTES are written to the journal before the commit, which then only names them;
they may leave memory like any others. After a crash no record names the bodies of a transaction
that was not committed, so that recovery ignores them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from tallymark.engine import records
from tallymark.engine.admission import Admission
from tallymark.engine.annotations import (
    Annotations,
    Notes,
    deferred_until,
    keys_of,
    ready_since,
)
from tallymark.engine.clock import Clock
from tallymark.engine.deadlines import Deadlines
from tallymark.engine.effects import Effect, TransactionExpired
from tallymark.engine.entrance import Entrance
from tallymark.engine.errors import RolledBack
from tallymark.engine.ledger import Ledger, committed_record, staged_record, unstaged_record
from tallymark.engine.message import NOWHERE, Payload
from tallymark.engine.queue import Queue
from tallymark.engine.routing import Targets
from tallymark.engine.session import InFlight, Session
from tallymark.engine.settlement import Settlement, counts_as
from tallymark.engine.staging import (
    AS_DUE,
    ENTRY_WEIGHT,
    MUST_ARRIVE,
    StagedRun,
    StagedSettlement,
    Transaction,
    put_back,
    take_out,
)
from tallymark.engine.store import Store
from tallymark.engine.vhost import VirtualHost

AHEAD_BYTES: Final = 1 << 20
"""Bytes of a transaction that wait in memory for its commit. Bytes beyond are written to the
journal as they arrive."""


ENTRIES_A_WEIGHT: Final = 64
"""Number of settlements searched, in order to change some, that weighs as much as one queue."""


@final
class Transactions:
    """Operations on transactions. Clock, queues and records are the Broker's own objects."""

    __slots__ = (
        "_entrance",
        "_gathering",
        "_of_session",
        "_settlement",
        "_vhosts",
        "clock",
        "committed",
        "deadlines",
        "effects",
        "new_id",
        "new_message_ids",
        "open",
        "ledger",
        "rolled_back",
        "store",
        "torn",
        "untold",
    )

    def __init__(
        self,
        clock: Clock,
        deadlines: Deadlines,
        entrance: Entrance,
        settlement: Settlement,
        store: Store,
        vhosts: dict[str, VirtualHost],
        ledger: Ledger,
        effects: list[Effect],
        new_id: Callable[[], int],
        new_message_ids: Callable[[int], int],
    ) -> None:
        self.clock = clock
        self.deadlines = deadlines
        self._entrance = entrance
        self._settlement = settlement
        self.store = store
        self._vhosts = vhosts
        self.ledger = ledger
        self.effects = effects
        self.new_id = new_id
        self.new_message_ids = new_message_ids
        self.open: dict[int, Transaction] = {}
        """Open transactions by id."""
        self.committed = 0
        """Count of commits since the broker started, without empty ones."""
        self.rolled_back = 0
        self.torn = False
        """True after a commit failed half-way because of a defect: the turn must not be written. No
        client can cause it."""
        self.untold: list[Transaction] = []
        """Transactions with staged deliveries that are not in the ledger yet."""
        self._gathering: dict[int, Transaction] = {}
        """Transactions with open runs, by id."""
        self._of_session: dict[int, list[Transaction]] = {}

    # -- beginning

    def begin(self, session: Session, timeout_ms: int = 0) -> Transaction:
        """Begin a transaction that ends with the session at the latest. timeout_ms: time after
        which it is rolled back and a TransactionExpired effect emitted; 0: never."""
        transaction = Transaction(self.new_id(), session)
        self.open[transaction.id] = transaction
        self._of_session.setdefault(session.id, []).append(transaction)
        if timeout_ms > 0:
            transaction.due_ms = self.clock.now_ms + timeout_ms
            self.deadlines.arm(transaction, transaction.due_ms)
        return transaction

    # -- staging

    def publish(
        self,
        transaction: Transaction,
        session: Session,
        targets: Targets,
        payload: Payload,
        annotations: Annotations | None = None,
        handle: object = None,
        rules: int = 0,
    ) -> None:
        """Stage messages until the commit [TX-4]. Their queues are those they are routed to now;
        through the default exchange, the queues of those names at the commit, as in RabbitMQ.

        Through the default exchange all messages of a payload must have one route.

        handle: the caller's own: the commit says of those with a handle whether they are in any
        queue. Without one, messages for which there is none are gone.
        rules: MUST_ARRIVE, AS_DUE, see staging.

        Raises:
            ResourceExhausted: it holds as much as it may; the messages are not held.
            PreconditionFailed: it has ended.
        """
        transaction.check_open()
        if not targets.queues and handle is None and payload.route.exchange != "":
            return
        vhost = self._vhosts[session.connection.vhost]
        run, full = transaction.run_for(
            session, targets, payload, annotations, handle, rules, vhost.generation,
            self.clock.now_ms,
        )  # fmt: skip
        for other in full:
            self._seal(transaction, other)
        run.parts.append(payload)
        run.count += payload.count
        run.size += payload.size
        transaction.published += payload.count
        self._gathering[transaction.id] = transaction
        self.store.hold(payload.size)

    def settle(
        self,
        transaction: Transaction,
        session: Session,
        first: int,
        last: int,
        outcome: int,
        notes: Notes = (),
        due_ms: int = 0,
        is_final: bool = False,
    ) -> None:
        """Stage the settlement of tags first..last: they are no longer unsettled, and their
        messages stay where they are [TX-4, TX-15]. outcome, notes, due_ms: as Broker.settle.

        is_final: the client forgets them whatever becomes of the transaction: its rollback gives
        the messages back.

        Raises:
            PreconditionFailed: at the first tag that is not outstanding; those before it are held.
            It has ended.
            ResourceExhausted: it holds as much as it may.
        """
        transaction.check_open()
        tag = first
        while tag <= last:
            transaction.fits(ENTRY_WEIGHT)
            at = session.find(tag)
            entry = session.inflight[at]
            high = min(last, entry.last)
            if entry.done is not None:
                stop = entry.done.find(1, tag - entry.first, high - entry.first + 1)
                if stop >= 0:
                    high = entry.first + stop - 1
            into = transaction.settlement_for(session, outcome, notes, due_ms, is_final)
            self._park(transaction, into, at, tag, high)
            tag = high + 1

    def settle_up_to(
        self,
        transaction: Transaction,
        session: Session,
        last: int,
        outcome: int,
        notes: Notes = (),
        due_ms: int = 0,
        is_final: bool = False,
    ) -> None:
        """Stage the settlement of every unsettled tag up to `last`, or of all when it is 0, as
        settle does.

        Raises: as settle, but `last` not outstanding changes nothing.
        """
        transaction.check_open()
        inflight = session.inflight
        if last == 0:
            if not inflight:
                return
            last = inflight[-1].last
        else:
            session.find(last)
        while inflight and inflight[0].first <= last:
            transaction.fits(ENTRY_WEIGHT)
            entry = inflight[0]
            high = min(last, entry.last)
            into = transaction.settlement_for(session, outcome, notes, due_ms, is_final)
            self._park(transaction, into, 0, entry.first, high)

    def _park(
        self, transaction: Transaction, into: StagedSettlement, at: int, low: int, high: int
    ) -> None:
        """Stage the unsettled tags among low..high, all of the range at index `at` of the
        session."""
        entry = take_out(into.session, at, low, high)
        if not entry.void and not entry.queue.deleted:
            for a, b in entry.pieces(entry.first, entry.last):
                entry.queue.stage(entry.part(a, b))
        transaction.park(into, entry)
        if not transaction.untold:
            transaction.untold = True
            self.untold.append(transaction)

    def reopen(self, transaction: Transaction, session: Session, first: int, last: int) -> None:
        """Make tags first..last unsettled again, as far as the transaction settles them: the client
        has changed its mind [TX-15]. Deliveries whose session or link is gone stay settled.
        O(settlements), which counts towards the transaction's weight. Raises PreconditionFailed: it
        has ended."""
        transaction.check_open()
        told = len(transaction.told())
        found: list[InFlight] = []
        looked_at = 0
        for at, settlement in enumerate(transaction.settlements):
            if settlement.session is not session:
                continue
            looked_at += len(settlement.entries)
            kept: list[InFlight] = []
            for entry in settlement.entries:
                low, high = max(first, entry.first), min(last, entry.last)
                part = None if _is_gone(session, entry) else entry.cut(low, high)
                if part is None:
                    kept.append(entry)
                    continue
                for rest in (entry.cut(entry.first, low - 1), entry.cut(high + 1, entry.last)):
                    if rest is not None:
                        kept.append(rest)
                if at < told:
                    self._record_unstaged(transaction, part)
                self._unstage(part)
                transaction.settled -= part.left
                found.append(part)
            settlement.entries = kept
        transaction.weight += looked_at // ENTRIES_A_WEIGHT
        if found:
            put_back(session, found)
            self.deadlines.arm(session, self.clock.now_ms)

    def acquired(self, transaction: Transaction, session: Session, first: int, last: int) -> None:
        """Note that tags first..last were delivered under the transaction [TX-16]. Its rollback
        takes back those that are still unsettled."""
        acquisitions = transaction.acquisitions
        if acquisitions:
            who, low, high = acquisitions[-1]
            if who is session and high + 1 == first:
                acquisitions[-1] = (session, low, last)
                return
        acquisitions.append((session, first, last))

    def tell(self) -> None:
        """Emit records about deliveries that are still staged, once per turn."""
        for transaction in self.untold:
            transaction.untold = False
            if transaction.ended:
                continue
            for settlement in transaction.take_untold():
                for entry in settlement.entries:
                    outcome = counts_as(entry.queue, settlement.outcome)
                    self._record_staged(transaction, entry, outcome)
        self.untold.clear()

    def press(self) -> None:
        """Close and seal all open runs when memory is short, so that their bytes can leave it."""
        for transaction in self._gathering.values():
            for run in transaction.close_runs():
                self._seal(transaction, run)
        self._gathering.clear()

    def _seal(self, transaction: Transaction, run: StagedRun) -> None:
        """Make one payload of the run's messages. The transaction counts as its user."""
        if run.payload is not None:
            return
        first_id = self.new_message_ids(run.count) if len(run.parts) > 1 else 0
        payload = run.seal(first_id)
        self.store.hold(-run.size)
        self.store.enter(payload, run.count)
        if not payload.persistent or not run.targets.durable:
            return
        if transaction.unwritten + payload.size <= AHEAD_BYTES:
            transaction.unwritten += payload.size
        else:
            self._entrance.keep(payload)

    # -- the end

    def commit(self, transaction: Transaction) -> list[StagedRun]:
        """Carry out all publishes and settlements of a transaction. Returns its runs with a handle,
        in the order in which they were published; `reached` is true for runs whose messages are in
        any queue.

        `transaction.is_stored` is true afterwards if its outcome is safe only when all records
        emitted so far are on disk.

        Raises:
            RolledBack: a queue has no room for all of it, or it was marked: nothing came into
            effect, and it is rolled back.
            PreconditionFailed: it has ended.
        """
        transaction.check_open()
        if not transaction.failure:
            for run in transaction.runs:
                self._seal(transaction, run)
                self._resolve(run)
            transaction.failure = self._obstacle(transaction)
        if transaction.failure:
            self.rollback(transaction)
            raise RolledBack(transaction.failure)
        self._end(transaction)
        if not transaction.is_empty:
            self.committed += 1
        dispatcher = self._settlement.dispatcher
        dispatcher.commits = True
        try:
            self._carry_out(transaction)
        except Exception:
            self.torn = True
            raise
        finally:
            dispatcher.commits = False
        return [run for run in transaction.runs if run.handle is not None]

    def _obstacle(self, transaction: Transaction) -> str:
        """Return an error text if the transaction cannot be committed as a whole; empty: it can.
        Everything that carrying it out needs is in memory then."""
        admission = Admission(self._entrance)
        for run in transaction.runs:
            payload = run.payload
            assert payload is not None, run.count
            if run.rules & MUST_ARRIVE and not run.targets.queues:
                return _gone_text(payload)
            if run.targets.plain:
                continue
            if not self.store.tried(payload):
                return (
                    f"{payload.size} bytes that the transaction publishes cannot be read back from "
                    f"the journal ({self.store.trouble}): nothing of it was committed"
                )
            for queue in run.targets.queues:
                if not admission.takes(queue, payload, 0, run.count):
                    return (
                        f"queue '{queue.name}' in vhost '{queue.vhost}' has no room for what the "
                        "transaction publishes, nothing of it was committed"
                    )
        return ""

    def _resolve(self, run: StagedRun) -> None:
        """Route the run's messages anew. Queues that were deleted meanwhile get nothing, unless
        there is a new one of the same name."""
        vhost = self._vhosts[run.session.connection.vhost]
        if run.generation == vhost.generation:
            return
        payload = run.payload
        assert payload is not None, run.count
        if payload.route.exchange == "":
            run.targets = vhost.route("", keys_of(run.annotations, payload.route), None)
            return
        found = [vhost.queues.get(queue.name) for queue in run.targets.queues]
        run.targets = Targets([queue for queue in found if queue is not None])

    def _carry_out(self, transaction: Transaction) -> None:
        now = self.clock.now_ms
        before = len(self.ledger.rows)
        known: dict[Annotations | None, Annotations] = {}
        for run in transaction.runs:
            self._publish(run, now, known)
        stored = False
        for settlement in transaction.settlements:
            stored = self._settle(settlement) or stored
        transaction.is_stored = stored or len(self.ledger.rows) > before
        if transaction.is_stored:
            self.ledger.emit(
                committed_record(
                    transaction.session.id,
                    transaction.id,
                    transaction.published,
                    transaction.settled,
                )
            )

    def _publish(
        self, run: StagedRun, now: int, known: dict[Annotations | None, Annotations]
    ) -> None:
        """Publish a run's messages at the commit; their times count from now."""
        payload = run.payload
        assert payload is not None, run.count
        queues = run.targets.queues
        annotations = run.annotations
        if annotations is not None and annotations.due_ms and not run.rules & AS_DUE:
            annotations = deferred_until(annotations, annotations.due_ms + now - run.staged_ms)
        if payload.position == NOWHERE:
            payload.arrived_ms = now
        elif payload.arrived_ms < now and (annotations is None or not annotations.due_ms):
            dated = known.get(annotations)
            if dated is None:
                dated = known[annotations] = ready_since(annotations, now)
            annotations = dated
        if queues:
            run.reached = True
            self.store.use(payload, run.count * len(queues))
            kept = payload.persistent and run.targets.durable
            if kept:
                self._entrance.keep(payload)
            refused = self._entrance.publish(run.targets, payload, 0, run.count, annotations, kept)
            assert not refused, refused
        self.store.finish(payload, run.count)

    def _settle(self, settlement: StagedSettlement) -> bool:
        """Carry out a settlement. Returns whether a stored queue is involved."""
        session, outcome = settlement.session, settlement.outcome
        stored = False
        for entry in settlement.entries:
            queue = entry.queue
            stored = stored or (queue.stored and not queue.deleted)
            for low, high in entry.pieces(entry.first, entry.last):
                if not entry.void and not queue.deleted:
                    queue.unstage(entry.part(low, high))
                self._settlement.finish(
                    session, entry, low, high, outcome, settlement.notes, settlement.due_ms
                )
        return stored

    def rollback(self, transaction: Transaction, lost: bool = False) -> None:
        """Discard publishes, and make settled deliveries unsettled again in their sessions with the
        same tags [TX-6]. Deliveries whose session or link is gone, or which the client forgot,
        return to their queue. `reopened` and `released` of the transaction list both.

        lost: the client vanished: what is given back for that counts as failed [FC-19].
        Raises PreconditionFailed: it has ended.
        """
        transaction.check_open()
        self._end(transaction)
        if not transaction.is_empty:
            self.rolled_back += 1
        for run in transaction.runs:
            if run.payload is None:
                self.store.hold(-run.size)
            else:
                self.store.finish(run.payload, run.count)
        for settlement in transaction.told():
            for entry in settlement.entries:
                self._record_unstaged(transaction, entry)
        reopened: dict[Session, list[InFlight]] = {}
        for settlement in transaction.settlements:
            session = settlement.session
            for entry in settlement.entries:
                self._unstage(entry)
                if settlement.is_final or _is_gone(session, entry):
                    self._give_back(session, entry, lost and session.closed)
                else:
                    reopened.setdefault(session, []).append(entry)
        for session, entries in reopened.items():
            for entry in entries:
                transaction.reopened.append((session, entry.first, entry.last))
            put_back(session, entries)
            self.deadlines.arm(session, self.clock.now_ms)
        for session, first, last in transaction.acquisitions:
            self._release(transaction, session, first, last)

    def _unstage(self, entry: InFlight) -> None:
        if not entry.void and not entry.queue.deleted:
            for low, high in entry.pieces(entry.first, entry.last):
                entry.queue.unstage(entry.part(low, high))

    def _give_back(self, session: Session, entry: InFlight, lost: bool) -> None:
        """Requeue an entry that is in no session."""
        queue = entry.queue
        reason = records.RETURNED_BY_CLIENT
        if _is_gone(session, entry):
            reason = records.RETURNED_BY_LOSS if lost else records.RETURNED_BY_CLOSE
        self._settlement.free_credit(session, entry.consumer, entry.left)
        if entry.is_late and entry.consumer is not None:
            entry.consumer.overdue -= entry.left
            self._settlement.dispatcher.mark(queue)
        if entry.void:
            return
        pieces = [entry.part(low, high) for low, high in entry.pieces(entry.first, entry.last)]
        if queue.deleted:
            for piece in pieces:
                self.store.finish(piece.payload, len(piece))
        else:
            self._settlement.give_back(queue, pieces, session.id, reason, lost)

    def _release(self, transaction: Transaction, session: Session, first: int, last: int) -> None:
        """Requeue those tags that were delivered under the transaction and are unsettled."""
        at = 0
        inflight = session.inflight
        while at < len(inflight) and inflight[at].first <= last:
            entry = inflight[at]
            low, high = max(first, entry.first), min(last, entry.last)
            if low > high or entry.cut(low, high) is None:
                at += 1
                continue
            taken = take_out(session, at, low, high)
            transaction.released.append((session, taken.first, taken.last))
            self._give_back(session, taken, False)

    def _end(self, transaction: Transaction) -> None:
        transaction.ended = True
        del self.open[transaction.id]
        self._gathering.pop(transaction.id, None)
        others = self._of_session[transaction.session.id]
        others.remove(transaction)
        if not others:
            del self._of_session[transaction.session.id]
        self.deadlines.forget(transaction)

    def close_session(self, session: Session, lost: bool) -> None:
        """Roll back the transactions of a session that ends, before its unsettled messages return
        [TX-7, TX-16]."""
        for transaction in self.of(session):
            self.rollback(transaction, lost)

    def look_at(self, transaction: Transaction) -> None:
        """Roll back a transaction whose time-out has come."""
        if not transaction.ended and transaction.due_ms:
            self.rollback(transaction)
            self.effects.append(TransactionExpired(transaction))

    # -- queries

    def of(self, session: Session) -> list[Transaction]:
        """Return the transactions of a session, in the order they began."""
        return list(self._of_session.get(session.id, ()))

    def parked(self) -> list[InFlight]:
        """Return all staged deliveries that their queues still count."""
        return [
            entry
            for transaction in self.open.values()
            for settlement in transaction.settlements
            for entry in settlement.entries
            if not entry.void and not entry.queue.deleted
        ]

    def payloads(self) -> list[Payload]:
        """Return the payloads of messages published in open transactions that have a position in
        the journal."""
        return [
            run.payload
            for transaction in self.open.values()
            for run in transaction.runs
            if run.payload is not None and run.payload.position >= 0
        ]

    def drop(self, queue: Queue, reason: int, is_emptied: bool) -> None:
        """End staged deliveries of a queue that is deleted or emptied. Their settlement has no
        effect."""
        for entry in self.parked():
            if entry.queue is not queue:
                continue
            for low, high in entry.pieces(entry.first, entry.last):
                piece = entry.part(low, high)
                queue.leave_staged(piece)
                if is_emptied:
                    self._settlement.letters.drop(queue, piece, reason)
                else:
                    queue.drop(len(piece), reason)
                    self._settlement.record_drop(
                        queue, piece.first, piece.first + len(piece), reason
                    )
            entry.void = is_emptied

    def check(self) -> tuple[dict[int, int], dict[int, int]]:
        """Assert that open transactions are consistent. Returns the count of staged deliveries by
        queue and by session."""
        by_queue: dict[int, int] = {}
        by_session: dict[int, int] = {}
        for transaction in self.open.values():
            settled = 0
            for settlement in transaction.settlements:
                for entry in settlement.entries:
                    n = sum(b - a + 1 for a, b in entry.pieces(entry.first, entry.last))
                    assert n == entry.left, (entry.first, entry.last, n, entry.left)
                    settled += n
                    id = settlement.session.id
                    by_session[id] = by_session.get(id, 0) + n
                    if not entry.void and not entry.queue.deleted:
                        by_queue[entry.queue.id] = by_queue.get(entry.queue.id, 0) + n
            assert settled == transaction.settled, (transaction.id, settled, transaction.settled)
            published = sum(run.count for run in transaction.runs)
            assert published == transaction.published, (transaction.id, published)
        return by_queue, by_session

    def _record_staged(self, transaction: Transaction, entry: InFlight, outcome: int) -> None:
        for first, count in _stored_ranges(entry):
            self.ledger.emit(staged_record(entry.queue.id, first, count, transaction.id, outcome))

    def _record_unstaged(self, transaction: Transaction, entry: InFlight) -> None:
        for first, count in _stored_ranges(entry):
            self.ledger.emit(unstaged_record(entry.queue.id, first, count, transaction.id))


def _stored_ranges(entry: InFlight) -> list[tuple[int, int]]:
    """Return the sequences that an entry holds, as (first, count); none if its queue is not stored
    or is gone."""
    queue = entry.queue
    if not queue.stored or queue.deleted or entry.void:
        return []
    return [
        (entry.slice.first + low - entry.first, high - low + 1)
        for low, high in entry.pieces(entry.first, entry.last)
    ]


def _gone_text(payload: Payload) -> str:
    """Return the text about messages that stop a commit because no queue is left for them."""
    route = payload.route
    return (
        f"messages to exchange '{route.exchange}' with routing key '{route.key}' were accepted, "
        "but their queues were deleted since: nothing of the transaction was committed"
    )


def _is_gone(session: Session, entry: InFlight) -> bool:
    """Return whether the receiver of the messages is gone: their session, or with AMQP 1.0 their
    link [FC-19]."""
    consumer = entry.consumer
    return session.closed or (consumer is not None and consumer.by_link and not consumer.active)
