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
(`Agenda.commits`), so that no consumer gets half of a transaction that a crash undoes.

Bodies beyond AHEAD_BYTES are written to the journal before the commit, which then only names them;
they may leave memory like any others. After a crash no record names the bodies of a transaction
that was not committed, so that recovery ignores them.
"""

from __future__ import annotations

from typing import Final, final

from tallymark.engine.account import ACQUIRED, MOVING, STAGED
from tallymark.engine.admission import Admission
from tallymark.engine.commit import Commit, Rollback, record_unstaged
from tallymark.engine.effects import TransactionExpired
from tallymark.engine.entrance import Entrance
from tallymark.engine.errors import RolledBack
from tallymark.engine.inflight import index_of, put_back, take_out
from tallymark.engine.intervals import IntervalSet
from tallymark.engine.ledger import staged_record
from tallymark.engine.message import Payload
from tallymark.engine.parked import StagedDeliveries, StagedSettlement, stored_ranges, unstage
from tallymark.engine.queue import Queue
from tallymark.engine.session import InFlight, Session
from tallymark.engine.settlement import Settlement, counts_as
from tallymark.engine.staging import ENTRY_WEIGHT, StagedRun, Transaction
from tallymark.engine.state import State
from tallymark.engine.topology import Targets
from tallymark.stored.annotations import (
    Annotations,
    Notes,
)
from tallymark.units import EngineMs, MessageId, Ms, QueueSequence, Tag

AHEAD_BYTES: Final = 1 << 20
"""Bytes of a transaction that wait in memory for its commit. Bytes beyond are written to the
journal as they arrive."""


@final
class Transactions:
    """Operations on transactions."""

    def __init__(
        self, state: State, entrance: Entrance, admission: Admission, settlement: Settlement
    ) -> None:
        self._state = state
        self._agenda = state.agenda
        self._vhosts = state.vhosts
        self.clock = state.clock
        self._traffic = state.traffic
        self.deadlines = state.deadlines
        self.ledger = state.ledger
        self.effects = state.effects
        self.store = state.store
        self._entrance = entrance
        self._admission = admission
        self._settlement = settlement
        self.open: dict[int, Transaction] = {}
        """Open transactions by id."""
        self.committed = 0
        """Count of commits since the broker started, without empty ones."""
        self.rolled_back = 0
        self.is_half_done = False
        """True after a commit failed half-way because of a defect: the turn must not be written. No
        client can cause it."""
        self.staged = StagedDeliveries()
        self.unrecorded: list[Transaction] = []
        """Transactions with staged deliveries that are not in the ledger yet."""
        self._gathering: dict[int, Transaction] = {}
        """Transactions with open runs, by id."""
        self._of_session: dict[int, list[Transaction]] = {}

    # -- beginning

    def begin(self, session: Session, timeout_ms: Ms = Ms(0)) -> Transaction:
        """Begin a transaction that ends with the session at the latest. timeout_ms: time after
        which it is rolled back and a TransactionExpired effect emitted; 0: never."""
        transaction = Transaction(self._state.owner_ids(), session, self.staged)
        self.open[transaction.id] = transaction
        self._of_session.setdefault(session.id, []).append(transaction)
        if timeout_ms > 0:
            transaction.due_ms = EngineMs(self.clock.now_ms + timeout_ms)
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
            self._traffic.discarded += payload.count
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
        first: Tag,
        last: Tag,
        outcome: int,
        notes: Notes = (),
        due_ms: EngineMs = EngineMs(0),
        is_final: bool = False,
    ) -> None:
        """Stage the settlement of tags first..last: they are no longer unsettled, and their
        messages stay where they are [TX-4, TX-15]. outcome, notes, due_ms: as Settlement.settle.

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
            at = index_of(session, tag)
            entry = session.inflight[at]
            high = min(last, entry.last)
            if entry.done is not None:
                stop = entry.done.find(1, tag - entry.first, high - entry.first + 1)
                if stop >= 0:
                    high = Tag(entry.first + stop - 1)
            into = transaction.settlement_for(session, outcome, notes, due_ms, is_final)
            self._park(transaction, into, at, tag, high)
            tag = Tag(high + 1)

    def settle_up_to(
        self,
        transaction: Transaction,
        session: Session,
        last: Tag,
        outcome: int,
        notes: Notes = (),
        due_ms: EngineMs = EngineMs(0),
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
            index_of(session, last)
        while inflight and inflight[0].first <= last:
            transaction.fits(ENTRY_WEIGHT)
            entry = inflight[0]
            high = min(last, entry.last)
            into = transaction.settlement_for(session, outcome, notes, due_ms, is_final)
            self._park(transaction, into, 0, entry.first, high)

    def _park(
        self, transaction: Transaction, into: StagedSettlement, at: int, low: Tag, high: Tag
    ) -> None:
        """Stage the unsettled tags among low..high, all of the range at index `at` of the session.
        What had gone back after the time-out of its consumer comes again: settling it together with
        publishes is impossible, so that the transaction can only be rolled back [TX-13, LC-4]."""
        entry = take_out(into.session, at, low, high)
        if entry.is_late and not transaction.failure:
            transaction.failure = (
                f"a delivery of queue '{entry.queue.name}' that the transaction settles had gone "
                "back: its consumer held it for longer than its time-out"
            )
        if not entry.void:
            for a, b in entry.pieces(entry.first, entry.last):
                entry.queue.account.move(entry.part(a, b), ACQUIRED, STAGED)
        transaction.park(into, entry)
        if not transaction.is_unrecorded:
            transaction.is_unrecorded = True
            self.unrecorded.append(transaction)

    def reopen(self, transaction: Transaction, session: Session, first: Tag, last: Tag) -> None:
        """Make tags first..last unsettled again, as far as the transaction settles them: the client
        has changed its mind [TX-15]. Deliveries whose session or link is gone stay settled. Raises
        PreconditionFailed: it has ended."""
        transaction.check_open()
        parts = transaction.take_back(session, first, last)
        for part, is_recorded in parts:
            if is_recorded:
                record_unstaged(self.ledger, transaction, part)
            unstage(part)
        if parts:
            put_back(session, [part for part, _ in parts])
            self.deadlines.arm(session, self.clock.now_ms)

    def acquired(self, transaction: Transaction, session: Session, first: Tag, last: Tag) -> None:
        """Note that tags first..last were delivered under the transaction [TX-16]. Its rollback
        takes back those that are still unsettled."""
        acquisitions = transaction.acquisitions.get(session)
        if acquisitions is None:
            acquisitions = transaction.acquisitions[session] = IntervalSet()
        acquisitions.add(first, last + 1)

    def record_staged(self) -> None:
        """Emit records about deliveries that are still staged, once per turn."""
        for transaction in self.unrecorded:
            transaction.is_unrecorded = False
            if transaction.ended:
                continue
            for settlement in transaction.take_unrecorded():
                for entry in settlement.in_order():
                    outcome = counts_as(entry.queue, settlement.outcome)
                    self._record_staged(transaction, entry, outcome)
        self.unrecorded.clear()

    def seal_all(self) -> None:
        """Close and seal all open runs when memory is short, so that their bytes can leave it."""
        for transaction in self._gathering.values():
            for run in transaction.close_runs():
                self._seal(transaction, run)
        self._gathering.clear()

    def _seal(self, transaction: Transaction, run: StagedRun) -> None:
        """Make one payload of the run's messages. The transaction counts as its user."""
        if run.payload is not None:
            return
        first_id = self._state.message_ids.take(run.count) if len(run.parts) > 1 else 0
        payload = run.seal(MessageId(first_id))
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
        commit = Commit(transaction, self._state, self._entrance, self._admission, self._settlement)
        if not transaction.failure:
            for run in transaction.runs:
                self._seal(transaction, run)
            transaction.failure = commit.obstacle()
        if transaction.failure:
            self.rollback(transaction)
            raise RolledBack(transaction.failure)
        self._end(transaction)
        if not transaction.is_empty:
            self.committed += 1
        self._agenda.commits = True
        try:
            commit.carry_out()
        except Exception:
            self.is_half_done = True
            raise
        finally:
            self._agenda.commits = False
        return [run for run in transaction.runs if run.handle is not None]

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
        Rollback(transaction, lost, self._state, self._settlement).carry_out()

    def _end(self, transaction: Transaction) -> None:
        transaction.end()
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
            if not entry.void
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

    def drop(self, queue: Queue, reason: int) -> None:
        """End staged deliveries of a queue that is deleted or emptied. Their settlement has no
        effect."""
        for entry in self.staged.of(queue):
            self.staged.remove(entry)
            for low, high in entry.pieces(entry.first, entry.last):
                piece = entry.part(low, high)
                queue.account.move(piece, STAGED, MOVING)
                self._state.drop(queue, piece, reason)
            entry.void = True

    def check(self) -> tuple[dict[int, int], dict[int, int]]:
        """Assert that open transactions are consistent. Returns the count of staged deliveries by
        queue and by session."""
        by_queue: dict[int, int] = {}
        by_session: dict[int, int] = {}
        for transaction in self.open.values():
            transaction.check(by_queue, by_session)
        return by_queue, by_session

    def _record_staged(self, transaction: Transaction, entry: InFlight, outcome: int) -> None:
        for first, count in stored_ranges(entry):
            self.ledger.emit(
                staged_record(entry.queue.id, QueueSequence(first), count, transaction.id, outcome)
            )
