"""Commit and rollback: the two ends of a transaction.

A commit is checked as a whole before anything is changed, because a queue that refused messages
half-way would make it impossible to take effect as a whole [TX-D1].
"""

from __future__ import annotations

from collections import deque
from typing import final

from tallymark.engine.account import ACQUIRED, STAGED
from tallymark.engine.admission import Admission, CommitCheck
from tallymark.engine.entrance import Entrance
from tallymark.engine.inflight import put_back
from tallymark.engine.intervals import IntervalSet
from tallymark.engine.ledger import Ledger, committed_record, unstaged_record
from tallymark.engine.message import NOWHERE, Payload
from tallymark.engine.parked import StagedSettlement, is_gone, stored_ranges, unstage
from tallymark.engine.queue import Queue
from tallymark.engine.queue_consumers import reconsider
from tallymark.engine.session import InFlight, Session
from tallymark.engine.settlement import Settlement
from tallymark.engine.staging import AS_DUE, MUST_ARRIVE, StagedRun, Transaction
from tallymark.engine.state import State
from tallymark.engine.topology import Targets
from tallymark.stored import records
from tallymark.stored.annotations import Annotations, deferred_until, keys_of, ready_since
from tallymark.units import EngineMs, QueueSequence, Tag


def no_room_text(queue: Queue, what: str) -> str:
    """Return the error text about a queue that refuses messages of a commit. what: names their
    whole: transaction or batch."""
    return (
        f"queue '{queue.name}' in vhost '{queue.vhost}' has no room for what the {what} publishes, "
        "nothing of it was committed"
    )


@final
class Commit:
    """The commit of one transaction, whose runs are sealed."""

    def __init__(
        self,
        transaction: Transaction,
        state: State,
        entrance: Entrance,
        admission: Admission,
        settlement: Settlement,
    ) -> None:
        self._transaction = transaction
        self._entrance = entrance
        self._admission = admission
        self._settlement = settlement
        self._store = state.store
        self._vhosts = state.vhosts
        self._ledger = state.ledger
        self._traffic = state.traffic
        self._clock = state.clock
        self._dated: dict[Annotations | None, Annotations] = {}
        """Annotations with the time of the commit, by those without it: equal ones are shared."""

    def obstacle(self) -> str:
        """Route again what its queues have changed for, and return an error text if the transaction
        cannot be committed as a whole; empty: it can. Everything that carrying it out needs is in
        memory then."""
        check = CommitCheck(self._admission, self._entrance)
        now = self._clock.now_ms
        for run in self._transaction.runs:
            payload = run.payload
            assert payload is not None, run.count
            self._route_again(run, payload)
            if run.rules & MUST_ARRIVE and not run.targets.queues:
                return _gone_text(payload)
            if run.targets.plain:
                continue
            if not self._store.tried(payload):
                return (
                    f"{payload.size} bytes that the transaction publishes cannot be read back from "
                    f"the journal ({self._store.trouble}): nothing of it was committed"
                )
            is_deferred = _is_deferred(run, now)
            for queue in run.targets.queues:
                if not check.takes(queue, payload, 0, run.count, is_deferred):
                    return no_room_text(queue, "transaction")
        return ""

    def _route_again(self, run: StagedRun, payload: Payload) -> None:
        """Route the run's messages again if anything was declared, deleted or bound since. Queues
        that were deleted meanwhile get nothing, unless there is a new one of the same name."""
        vhost = self._vhosts[run.session.connection.vhost]
        if run.generation == vhost.generation:
            return
        if payload.route.exchange == "":
            run.targets = vhost.route("", keys_of(run.annotations, payload.route), None)
            return
        found = [vhost.queues.get(queue.name) for queue in run.targets.queues]
        run.targets = Targets([queue for queue in found if queue is not None])

    def carry_out(self) -> None:
        """Publish and settle all of it. Sets the transaction's `is_stored`."""
        transaction = self._transaction
        now = self._clock.now_ms
        before = len(self._ledger.rows)
        for run in transaction.runs:
            self._publish(run, now)
        stored = False
        for settlement in transaction.settlements:
            stored = self._settle(settlement) or stored
        transaction.is_stored = stored or len(self._ledger.rows) > before
        if transaction.is_stored:
            self._ledger.emit(
                committed_record(
                    transaction.session.id,
                    transaction.id,
                    transaction.published,
                    transaction.settled,
                )
            )

    def _publish(self, run: StagedRun, now: int) -> None:
        """Publish a run's messages at the commit; their times count from now."""
        payload = run.payload
        assert payload is not None, run.count
        queues = run.targets.queues
        annotations = run.annotations
        if annotations is not None and annotations.due_ms and not run.rules & AS_DUE:
            annotations = deferred_until(
                annotations, EngineMs(annotations.due_ms + now - run.staged_ms)
            )
        if payload.position == NOWHERE:
            payload.arrived_ms = EngineMs(now)
        elif payload.arrived_ms < now and (annotations is None or not annotations.due_ms):
            dated = self._dated.get(annotations)
            if dated is None:
                dated = self._dated[annotations] = ready_since(annotations, EngineMs(now))
            annotations = dated
        if queues:
            run.reached = True
            self._traffic.routed += run.count * len(queues)
            self._store.use(payload, run.count * len(queues))
            kept = payload.persistent and run.targets.durable
            if kept:
                self._entrance.keep(payload)
            refused = self._admission.publish(run.targets, payload, 0, run.count, annotations, kept)
            assert not refused, refused
        elif run.handle is None:
            self._traffic.discarded += run.count
        self._store.finish(payload, run.count)

    def _settle(self, settlement: StagedSettlement) -> bool:
        """Carry out a settlement. Returns whether a stored queue is involved."""
        session, outcome = settlement.session, settlement.outcome
        stored = False
        for entry in settlement.in_order():
            queue = entry.queue
            stored = stored or (queue.stored and not queue.deleted)
            for low, high in entry.pieces(entry.first, entry.last):
                if not entry.void:
                    queue.account.move(entry.part(low, high), STAGED, ACQUIRED)
                self._settlement.finish(
                    session, entry, low, high, outcome, settlement.notes, settlement.due_ms
                )
        return stored


@final
class Rollback:
    """The rollback of one transaction, which has ended."""

    def __init__(
        self, transaction: Transaction, lost: bool, state: State, settlement: Settlement
    ) -> None:
        self._transaction = transaction
        self._lost = lost
        """True if the client vanished."""
        self._settlement = settlement
        self._agenda = state.agenda
        self._store = state.store
        self._deadlines = state.deadlines
        self._ledger = state.ledger
        self._clock = state.clock

    def carry_out(self) -> None:
        """Discard its publishes, and give each settled delivery back to its session, or to its
        queue where the receiver is gone."""
        transaction = self._transaction
        for run in transaction.runs:
            if run.payload is None:
                self._store.hold(-run.size)
            else:
                self._store.finish(run.payload, run.count)
        for settlement in transaction.recorded():
            for entry in settlement.in_order():
                record_unstaged(self._ledger, transaction, entry)
        reopened: dict[Session, list[InFlight]] = {}
        for settlement in transaction.settlements:
            session = settlement.session
            for entry in settlement.in_order():
                unstage(entry)
                if settlement.is_final or is_gone(session, entry):
                    self._give_back(session, entry, self._lost and session.closed)
                else:
                    reopened.setdefault(session, []).append(entry)
        for session, entries in reopened.items():
            for entry in entries:
                transaction.reopened.append((session, entry.first, entry.last))
            put_back(session, entries)
            self._deadlines.arm(session, self._clock.now_ms)
        for session, tags in transaction.acquisitions.items():
            self._release(session, tags)

    def _give_back(self, session: Session, entry: InFlight, lost: bool) -> None:
        """Requeue an entry that is in no session."""
        queue = entry.queue
        reason = records.RETURNED_BY_CLIENT
        if is_gone(session, entry):
            reason = records.RETURNED_BY_LOSS if lost else records.RETURNED_BY_CLOSE
        self._settlement.free_credit(session, entry.consumer, entry.left)
        if entry.is_late and entry.consumer is not None:
            entry.consumer.overdue -= entry.left
            reconsider(entry.consumer)
            self._agenda.mark(queue)
        if entry.void:
            return
        pieces = [entry.part(low, high) for low, high in entry.pieces(entry.first, entry.last)]
        self._settlement.give_back(queue, pieces, session.id, reason, lost)

    def _release(self, session: Session, tags: IntervalSet) -> None:
        """Requeue those tags that were delivered under the transaction and are unsettled, in order.
        The session is gone through once."""
        inflight = session.inflight
        staying: deque[InFlight] = deque()
        taken: list[InFlight] = []
        for entry in inflight:
            end = entry.first
            for low, high in tags.overlap(entry.first, entry.last + 1):
                part = entry.cut(Tag(low), Tag(high - 1))
                if part is None:
                    continue
                rest = entry.cut(end, Tag(low - 1))
                if rest is not None:
                    staying.append(rest)
                taken.append(part)
                end = Tag(high)
            rest = entry if end == entry.first else entry.cut(end, entry.last)
            if rest is not None:
                staying.append(rest)
        inflight.clear()
        inflight.extend(staying)
        for part in taken:
            self._transaction.released.append((session, part.first, part.last))
            self._give_back(session, part, False)


def record_unstaged(ledger: Ledger, transaction: Transaction, entry: InFlight) -> None:
    """Emit rows which say that a delivery is no longer settled in the transaction."""
    for first, count in stored_ranges(entry):
        ledger.emit(unstaged_record(entry.queue.id, QueueSequence(first), count, transaction.id))


def _is_deferred(run: StagedRun, now: int) -> bool:
    """Return whether the run's messages are deferred ones when it is committed now."""
    known = run.annotations
    if known is None:
        return False
    return known.due_ms > (now if run.rules & AS_DUE else run.staged_ms)


def _gone_text(payload: Payload) -> str:
    """Return the error text about messages that stop a commit because no queue is left for them."""
    route = payload.route
    return (
        f"messages to exchange '{route.exchange}' with routing key '{route.key}' were accepted, "
        "but their queues were deleted since: nothing of the transaction was committed"
    )
