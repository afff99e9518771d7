"""Staging: the publishes, as runs, and the settlements of a transaction, in their order, until it
ends.

Publishes that arrive one by one are gathered into runs, so that a commit costs per run, as
publishing in stretches does. A run is added to for as long as no queue that its messages go to
could be sent another run's messages in between: several are open at a time, and no two of them have
a target in common. So the order in each queue is that of publishing, whatever the runs.
"""

from __future__ import annotations

from array import array
from typing import Final, final

from tallymark.engine.clock import Timed
from tallymark.engine.errors import PreconditionFailed, ResourceExhausted
from tallymark.engine.intervals import IntervalSet
from tallymark.engine.message import Payload
from tallymark.engine.parked import (
    SessionDeliveries,
    StagedDeliveries,
    StagedSettlement,
    is_gone,
)
from tallymark.engine.session import InFlight, Session
from tallymark.engine.topology import Targets
from tallymark.stored.annotations import Annotations, Notes, Route, keys_of
from tallymark.units import EngineMs, MessageId, Tag

RUN_BYTES: Final = 64 * 1024
"""Size in bytes at which a run is closed to further messages."""
OPEN_RUNS: Final = 64
"""Maximum number of open runs in one transaction."""
MOST_WEIGHT: Final = 1 << 20
"""Maximum weight of a transaction: about 4 for each run or settlement and 1 for each queue a run
goes to. It bounds the memory besides bodies (a few hundred MiB) and the size of the transaction's
block."""
ENTRY_WEIGHT: Final = 4

MUST_ARRIVE: Final = 1
"""Rule for messages: if they reach no queue at the commit, nothing is committed."""
AS_DUE: Final = 2
"""Rule for messages: their due time is a moment, not a delay that would count from the commit."""


@final
class StagedRun:
    """Messages of one session, published to the same places, in their order."""

    def __init__(
        self,
        session: Session,
        targets: Targets,
        annotations: Annotations | None,
        handle: object,
        rules: int,
        generation: int,
        staged_ms: EngineMs,
    ) -> None:
        self.session = session
        self.targets = targets
        """Target queues at the topology generation `generation`."""
        self.annotations = annotations
        self.handle = handle
        """Object of the bridge: see `Transactions.publish`. None: the bridge wants no
        notification."""
        self.rules = rules
        """Rules of the messages: MUST_ARRIVE, AS_DUE."""
        self.generation = generation
        self.staged_ms = staged_ms
        """Time at which the first message was published; engine time, ms."""
        self.parts: list[Payload] = []
        """Payloads as they arrived, until the run is sealed."""
        self.payload: Payload | None = None
        """Payload of all messages; None until the run is sealed."""
        self.count = 0
        self.size = 0
        self.reached = False
        """True after the commit if the messages entered any queue."""

    def seal(self, first_id: MessageId) -> Payload:
        """Make one payload of the parts and close the run. first_id: first of as many consecutive
        message ids as there are messages."""
        parts, self.parts = self.parts, []
        whole = parts[0] if len(parts) == 1 else _joined(parts, first_id)
        self.payload = whole
        return whole


def _joined(parts: list[Payload], first_id: MessageId) -> Payload:
    """Return the messages of several payloads as one payload. Their bytes are in memory."""
    first = parts[0]
    cuts = array("I", (0,))
    raws: list[bytes] = []
    routes: list[Route] = []
    largest = end = 0
    for part in parts:
        raw = part.raw
        assert raw is not None, part.first_id
        raws.append(raw)
        if part.count == 1:
            cuts.append(end + part.size)
        else:
            cuts.extend([end + cut for cut in part.cuts[1:]])
        end += part.size
        routes += part.routes if part.routes is not None else [part.route] * part.count
        largest = max(largest, part.largest_frame)
    route = routes[0]
    column = None if routes.count(route) == len(routes) else routes
    return Payload(
        first.format, b"".join(raws), cuts, route, column, first_id, first.arrived_ms,
        first.persistent, largest,
    )  # fmt: skip


@final
class Transaction(Timed):
    """Publishes and settlements that come into effect together, or not at all.

    It belongs to a session and ends with it; what it holds may be of other sessions of the same
    connection too. Made and ended by Transactions.
    """

    def __init__(self, id: int, session: Session, staged: StagedDeliveries) -> None:
        super().__init__()
        self.id = id
        """Broker-wide number, never reused; also the owner number of the transaction's ledger
        rows."""
        self._staged = staged
        """Staged deliveries of all transactions, its own among them."""
        self.session = session
        """Session whose end also ends the transaction."""
        self.due_ms = EngineMs(0)
        """Time-out of the transaction, engine time, ms; 0: none."""
        self.ended = False
        self.failure = ""
        """Error text if the transaction can only be rolled back [TX-13]; empty otherwise."""
        self.is_stored = False
        """True after the commit if any part of the transaction must reach the disk."""
        self.runs: list[StagedRun] = []
        """Runs, in the order in which the first message of each was published."""
        self.settlements: list[StagedSettlement] = []
        """Settlements, in the order in which they were issued."""
        self.acquisitions: dict[Session, IntervalSet] = {}
        """Tags delivered under the transaction [TX-16]."""
        self.published = 0
        """Count of messages it publishes."""
        self.settled = 0
        """Count of deliveries it settles."""
        self.reopened: list[tuple[Session, int, int]] = []
        """After a rollback: tags that are unsettled in their sessions again."""
        self.released: list[tuple[Session, int, int]] = []
        """After a rollback: tags delivered under the transaction, whose messages are ready
        again."""
        self.weight = 0
        """Weight of the transaction; see MOST_WEIGHT."""
        self.unwritten = 0
        """Bytes of its sealed runs that the journal will store and has not received yet."""
        self.is_unrecorded = False
        """True while the transaction is in the list of those with settlements not yet in the
        ledger."""
        self._recorded = 0
        """Count of the settlements that are in the ledger."""
        self.last_handled: StagedRun | None = None
        """Last run with a handle. Only that run of those with a handle is extended, so that their
        order is kept."""
        self._of_session: dict[Session, SessionDeliveries] = {}
        """Deliveries that the settlements have, by session."""
        self._open: dict[tuple[object, ...], StagedRun] = {}
        """Open runs, by the properties that their messages share."""
        self._names: set[str] = set()
        """Names of all queues that messages of the open runs may reach, however the topology
        changes."""

    @property
    def is_empty(self) -> bool:
        return not self.runs and not self.settlements

    def check_open(self) -> None:
        """Raise PreconditionFailed if the transaction has ended."""
        if self.ended:
            raise PreconditionFailed(f"transaction {self.id} has ended")

    def fits(self, weight: int) -> None:
        """Raise ResourceExhausted if the added weight exceeds the maximum."""
        if self.weight + weight > MOST_WEIGHT:
            raise ResourceExhausted(
                f"transaction of weight {self.weight + weight}, at most {MOST_WEIGHT} expected: "
                f"{len(self.runs)} runs of messages, {len(self.settlements)} settlements"
            )

    # -- publishes

    def run_for(
        self,
        session: Session,
        targets: Targets,
        payload: Payload,
        annotations: Annotations | None,
        handle: object,
        rules: int,
        generation: int,
        now_ms: EngineMs,
    ) -> tuple[StagedRun, list[StagedRun]]:
        """Return the run that the messages belong to, and the runs that are closed now. Raises
        ResourceExhausted."""
        direct = payload.route.exchange == ""
        key = (
            session.id, id(targets), id(annotations), id(handle), rules, generation,
            payload.format, payload.persistent, payload.route.key if direct else None,
        )  # fmt: skip
        old = self._open.get(key)
        goes_on = old is not None and (handle is None or old is self.last_handled)
        if old is not None and goes_on and old.size + payload.size <= RUN_BYTES:
            return old, []
        weight = ENTRY_WEIGHT + len(targets.queues)
        self.fits(weight)
        self.weight += weight
        full: list[StagedRun] = []
        if not goes_on:
            names = _names_of(targets, payload, annotations, direct)
            if len(self._open) >= OPEN_RUNS or self._names.intersection(names):
                full = self.close_runs()
            self._names.update(names)
        if old is not None and not full:
            full.append(old)
        run = StagedRun(session, targets, annotations, handle, rules, generation, now_ms)
        self._open[key] = run
        self.runs.append(run)
        if handle is not None:
            self.last_handled = run
        return run, full

    def close_runs(self) -> list[StagedRun]:
        """Close all runs; return those that are not sealed."""
        closed = list(self._open.values())
        self._open.clear()
        self._names.clear()
        return closed

    # -- settlements

    def settlement_for(
        self, session: Session, outcome: int, notes: Notes, due_ms: EngineMs, is_final: bool
    ) -> StagedSettlement:
        """Return the last settlement if it has the same properties; else a new one."""
        if self.settlements and not self.settlements[-1].is_recorded:
            last = self.settlements[-1]
            if (
                last.session is session
                and last.outcome == outcome
                and last.notes == notes
                and last.due_ms == due_ms
                and last.is_final == is_final
            ):
                return last
        made = StagedSettlement(session, outcome, notes, due_ms, is_final)
        self.settlements.append(made)
        return made

    def park(self, into: StagedSettlement, entry: InFlight) -> None:
        """Add an entry, taken out of its session, to a settlement until the transaction ends."""
        self.settled += entry.left
        if not into.add(entry):
            self._note(into, entry)

    def _note(self, into: StagedSettlement, entry: InFlight) -> None:
        """Note a new entry of a settlement, so that it is found."""
        self.weight += ENTRY_WEIGHT
        if not entry.void:
            self._staged.add(entry)
        of_session = self._of_session.get(into.session)
        if of_session is None:
            of_session = self._of_session[into.session] = SessionDeliveries()
        of_session.add(entry, into)

    def end(self) -> None:
        """Note that the transaction has ended: nothing is staged under it any more."""
        self.ended = True
        for settlement in self.settlements:
            for entry in settlement.entries:
                self._staged.remove(entry)

    def take_unrecorded(self) -> list[StagedSettlement]:
        """Return the settlements that are not in the ledger, and count them as recorded."""
        found = self.settlements[self._recorded :]
        self._recorded = len(self.settlements)
        for settlement in found:
            settlement.is_recorded = True
        return found

    def recorded(self) -> list[StagedSettlement]:
        """Return the settlements that are in the ledger."""
        return self.settlements[: self._recorded]

    def take_back(self, session: Session, first: Tag, last: Tag) -> list[tuple[InFlight, bool]]:
        """Take tags first..last of a session out of the settlements, as far as these have them and
        their receiver is there. Returns each part with whether its settlement is in the ledger."""
        found: list[tuple[InFlight, bool]] = []
        of_session = self._of_session.get(session)
        if of_session is None:
            return found
        for entry, settlement in of_session.among(first, last):
            part = entry.cut(max(first, entry.first), min(last, entry.last))
            if part is None or is_gone(session, entry):
                continue
            begin = entry.first
            if part.left == entry.left:
                of_session.remove(begin)
                self._staged.remove(entry)
                settlement.remove(entry)
            else:
                after = entry.cut_away(part)
                of_session.moved(begin, entry.first)
                if after is not None:
                    settlement.add_rest(after, entry)
                    self._note(settlement, after)
            self.settled -= part.left
            found.append((part, settlement.is_recorded))
        return found

    def check(self, by_queue: dict[int, int], by_session: dict[int, int]) -> None:
        """Assert that its counts are those of its runs and settlements, and add the staged
        deliveries to the counts by queue and by session."""
        settled = 0
        for settlement in self.settlements:
            for entry in settlement.entries:
                n = sum(b - a + 1 for a, b in entry.pieces(entry.first, entry.last))
                assert n == entry.left, (entry.first, entry.last, n, entry.left)
                settled += n
                id = settlement.session.id
                by_session[id] = by_session.get(id, 0) + n
                if not entry.void:
                    assert entry in self._staged, (self.id, entry.first)
                    by_queue[entry.queue.id] = by_queue.get(entry.queue.id, 0) + n
        assert settled == self.settled, (self.id, settled, self.settled)
        published = sum(run.count for run in self.runs)
        assert published == self.published, (self.id, published)


def _names_of(
    targets: Targets, payload: Payload, annotations: Annotations | None, direct: bool
) -> list[str]:
    """Return the names of the queues that messages may reach at the commit: the queues they were
    routed to, or, through the default exchange, queues named like their keys, whether or not these
    exist."""
    if not direct:
        return [queue.name for queue in targets.queues]
    routes = [payload.route] if payload.routes is None else payload.routes
    names: list[str] = []
    for route in routes:
        names += keys_of(annotations, route)
    return names
