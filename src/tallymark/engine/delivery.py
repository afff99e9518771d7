"""Delivery: the assignment of ready messages to consumers, and its limits, in one turn.

Limits, each checked per slice:
- the consumer's credit, and its session's where that is shared [LC-3];
- its turn, where other consumers of its session share a limit and wait in line: see `share_out`;
- time to live: expired messages leave from the head before each delivery [DL-4];
- its connection's room for this turn: TURN_BYTES, and none while its socket is full [SC-D6];
- a quota where several consumers share a queue, so that ten messages do not all go to one of two;
- the queue's high-water mark on disk: nothing leaves before the disk has a mark above it, so that
  after a crash every message that a consumer may have seen has the redelivered flag.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, final

from tallymark.engine import records
from tallymark.engine.clock import Clock
from tallymark.engine.deadlines import Deadlines
from tallymark.engine.effects import Deliver, Drained, Effect
from tallymark.engine.ledger import Ledger, acquired_record
from tallymark.engine.marks import Marks
from tallymark.engine.message import Slice
from tallymark.engine.queue import Queue
from tallymark.engine.session import (
    MERGE_MS,
    UNLIMITED,
    Connection,
    Consumer,
    InFlight,
    Session,
    timeout_of,
)
from tallymark.engine.store import Store

if TYPE_CHECKING:
    from tallymark.engine.quarantine import Quarantine
    from tallymark.engine.seeking import Seeking
    from tallymark.engine.upkeep import Upkeep

TURN_BYTES: Final = 1 << 20
"""Raw bytes that one connection is given in one turn. The message that reaches the limit is the
last one."""
IN_A_TURN: Final = 4096
"""Number of slices that may expire or exceed a limit in one turn; other queues are served in
between."""
LARGEST_QUOTA: Final = 32


@final
class Returns:
    """Messages of a queue that were given back in one turn, and that the disk does not know of."""

    __slots__ = ("queue", "sequences")

    def __init__(self, queue: Queue, sequences: list[int]) -> None:
        self.queue = queue
        self.sequences = sequences

    def end(self) -> None:
        """Let the messages be delivered, but those that were given back again since."""
        returning = self.queue.returning
        for at in self.sequences:
            if returning.get(at) is self:
                del returning[at]


@final
class Dispatcher:
    """Serves queues. Owns the connections' room in this turn and the list of queues to serve."""

    __slots__ = (
        "_granted",
        "_looked_at",
        "_starved",
        "again",
        "appended",
        "carry_out",
        "changed",
        "clock",
        "commits",
        "deadlines",
        "effects",
        "held",
        "marks",
        "offers",
        "quarantine",
        "ledger",
        "returns",
        "seeking",
        "spent",
        "store",
        "syncs_first",
        "upkeep",
    )

    def __init__(
        self,
        clock: Clock,
        deadlines: Deadlines,
        store: Store,
        ledger: Ledger,
        effects: list[Effect],
    ) -> None:
        self.clock = clock
        self.deadlines = deadlines
        self.store = store
        self.ledger = ledger
        self.effects = effects
        self.seeking: Seeking
        """Service of consumers that browse or filter. Set by the Broker."""
        self.quarantine: Quarantine
        """Quarantine for a head that cannot be read. Set by the Broker."""
        self.upkeep: Upkeep
        """Upkeep of watched queues around serving them. Set by the Broker."""
        self.changed: list[Queue] = []
        """Queues to serve in the coming turn."""
        self.again: list[Queue] = []
        """Queues that stopped only because their connections had no room; served in the next turn,
        after all others."""
        self._starved: list[Queue] = []
        """Queues that for that reason delivered nothing at all; served before all others."""
        self.offers: list[Session] = []
        """Sessions with free shared limit and consumers that wait for it."""
        self._granted: list[Consumer] = []
        """Consumers that have a reserved share."""
        self._looked_at = False
        """True while a queue is served on behalf of a command that examines it."""
        self.carry_out: Callable[[Effect], None] | None = None
        """Callback of the owner that carries an effect out at once, see `look`; None: effects are
        collected with the turn's others."""
        self.appended: list[Queue] = []
        """Streams that received messages in this turn. Readers see the messages once they are on
        disk."""
        self.marks = Marks(clock, ledger)
        self.held: list[Queue] = []
        """Queues that received messages in this turn which are delivered only once they are on
        disk."""
        self.returns: list[Returns] = []
        """Messages given back in this turn that are delivered again only once that is on disk."""
        self.commits = False
        """True while entering messages belong to an atomic commit: of a transaction or of a sink's
        batch."""
        self.syncs_first = False
        """True if all persistent messages wait for the disk before delivery, in queues without a
        setting of their own."""
        self.spent: list[Connection] = []

    def mark(self, queue: Queue) -> None:
        """Put the queue in the list of queues to serve."""
        if not queue.dirty:
            queue.dirty = True
            self.changed.append(queue)

    def note_append(self, queue: Queue) -> None:
        """Put the stream in the list of streams with new messages. Readers see these only once they
        are on disk, so that an offset that a reader has seen never gets another message after a
        crash."""
        if not queue.appended:
            queue.appended = True
            self.appended.append(queue)

    def entered(self, queue: Queue, first: int, kept: bool, is_moved: bool) -> None:
        """Decide whether messages from sequence `first` on, which just entered, wait for the disk
        before delivery. Those of a commit, or from another queue, do: a crash might undo the commit
        or the move. Other persistent messages follow the queue's setting.

        kept: the journal keeps them. is_moved: they come from another queue.
        """
        if self.commits or is_moved or (kept and self._syncs_first(queue)):
            self.hold(queue, first)

    def given_back(self, queue: Queue, pieces: list[Slice]) -> None:
        """Hold messages back that were just given back to a stored queue, where its deliveries wait
        for the disk: after a crash their attempts go on from what was delivered."""
        if self._syncs_first(queue):
            sequences = [at for one in pieces for at in range(one.first, one.first + len(one))]
            returns = Returns(queue, sequences)
            for at in sequences:
                queue.returning[at] = returns
            self.returns.append(returns)

    def _syncs_first(self, queue: Queue) -> bool:
        """Return whether the queue delivers persistent messages only once they are on disk."""
        after = queue.settings.after_sync
        return after > 0 or (after < 0 and self.syncs_first)

    def hold(self, queue: Queue, first: int) -> None:
        """Deliver sequences from `first` on only when the records of this turn are on disk."""
        if first < queue.shown:
            queue.shown = first
        if not queue.is_held:
            queue.is_held = True
            queue.holds += 1
            self.held.append(queue)

    def mark_session(self, session: Session) -> None:
        """Put the queues of the session's consumers in the list, as they may have credit now."""
        for consumer in session.consumers.values():
            if consumer.queue.ready:
                self.mark(consumer.queue)
        self.offer(session)

    def offer(self, session: Session) -> None:
        """Note that part of the session's shared limit may be free. O(1): queues are examined when
        it is distributed."""
        if session.line and not session.is_offered:
            session.is_offered = True
            self.offers.append(session)

    def share(self, session: Session, limit: int) -> None:
        """Set the limit that the session's consumers share from now on."""
        session.limit = limit
        for consumer in list(session.line.values()):
            session.step_out(consumer)
        self.mark_session(session)

    def has_work(self) -> bool:
        """Return whether another `pump` would do something that nothing else announces."""
        return bool(self.changed or self.again or self._starved or self.offers)

    def pump(self) -> None:
        """Serve every changed queue once, then distribute free shared limits among the consumers in
        line."""
        self.marks.turns += 1
        for connection in self.spent:
            connection.room = connection.allowance
        self.spent.clear()
        changed = self.changed
        if self.again or self._starved:
            for queue in self.again:
                if not queue.dirty:
                    queue.dirty = True
                    changed.append(queue)
            self.again = []
            for queue in self._starved:
                queue.dirty = True
            changed = self._starved + changed
            self._starved = []
        self.changed = []
        self.upkeep.room = IN_A_TURN
        for queue in changed:
            if queue.dirty:  # else it stood in both lists
                queue.dirty = False
                self._pump(queue)
        if self.offers:
            for queue in self._share_out():
                self._pump(queue)
        self.upkeep.room = UNLIMITED
        if self._granted:
            self._end_shares()

    def _pump(self, queue: Queue) -> None:
        if queue.deleted:
            return
        if queue.watched and not self.upkeep.before(queue):
            self.mark(queue)
            return
        if queue.ready and queue.consumers and not (queue.paused or queue.rests):
            if queue.seekers:
                self.seeking.serve(queue)
            self._serve(queue)
        if queue.draining:
            self._end_drains(queue)
        if queue.watched:
            self.upkeep.attend(queue)

    def look(self, queue: Queue) -> None:
        """Serve a queue before a command examines or changes its ready messages, so that its
        consumers first get what they can be given in this turn.

        What that causes is carried out at once, so that it is said in the order in which it was
        done. A message that the queue's mark does not cover yet is taken too where its consumer's
        connection can hold it back until the disk says so.
        """
        if self.carry_out is None or not queue.ready or not queue.consumers:
            return
        if queue.paused or queue.rests:
            return
        if queue.watched and not self.upkeep.before(queue):
            return
        said = len(self.effects)
        self._looked_at = True
        try:
            if queue.seekers:
                self.seeking.serve(queue)
            self._serve(queue)
        finally:
            self._looked_at = False
            caused = self.effects[said:]
            del self.effects[said:]
        for effect in caused:
            self.carry_out(effect)

    def _share_out(self) -> list[Queue]:
        """Distribute the free part of shared limits, one message to each consumer in line in turn.
        A consumer that got one goes to the end of the line. Returns the queues to serve them from.

        O(consumers that get something), however many wait.
        """
        queues: dict[int, Queue] = {}
        offers, self.offers = self.offers, []
        for session in offers:
            session.is_offered = False
            connection = session.connection
            if session.closed or not session.flow or connection.paused or connection.gated:
                continue  # it is offered anew when that ends
            line = session.line
            free = session.free()
            if free >= len(line):
                for consumer in list(line.values()):
                    if not consumer.is_waiting():
                        session.step_out(consumer)
                each = free // len(line) if line else 0
                if each:
                    for consumer in line.values():
                        self._grant(session, consumer, each, queues)
                        free -= each
            while line and free > 0:
                consumer = line[next(iter(line))]
                if consumer.is_waiting():
                    line.move_to_end(consumer.id)
                    self._grant(session, consumer, 1, queues)
                    free -= 1
                else:
                    session.step_out(consumer)
        return list(queues.values())

    def _grant(
        self, session: Session, consumer: Consumer, n: int, queues: dict[int, Queue]
    ) -> None:
        if not consumer.share:
            self._granted.append(consumer)
        consumer.share += n
        session.reserved += n
        queues[consumer.queue.id] = consumer.queue

    def _end_shares(self) -> None:
        """Release unused shares for the next consumers in line. A consumer that waits for the disk
        keeps its share; one whose connection has no room keeps its place in the line."""
        granted, self._granted = self._granted, []
        for consumer in granted:
            if not consumer.share:
                continue
            session = consumer.session
            if consumer.queue.waits_for_disk() and consumer.is_waiting() and consumer.room() > 0:
                self._granted.append(consumer)
                continue
            session.give_share_back(consumer)
            if session.connection.room > 0:
                session.step_out(consumer)
            self.offer(session)

    def _line_up(self, queue: Queue) -> None:
        """Put consumers that only a shared limit stops in their session's line."""
        for consumer in queue.consumers:
            if (
                consumer.session.limit != UNLIMITED
                and not consumer.in_line
                and (not queue.settings.single_active or consumer is queue.active)
                and consumer.is_waiting()
                and consumer.session.left_for(consumer) <= 0
            ):
                consumer.session.step_in(consumer)

    def _serve(self, queue: Queue) -> None:
        consumers = queue.consumers
        before = queue.acquired + queue.settled
        if len(consumers) == 1 or queue.settings.single_active:
            consumer = consumers[0] if queue.active is None else queue.active
            while queue.ready:
                credit = consumer.credit()
                if credit <= 0 or not self._hand_over(queue, consumer, credit):
                    break
        else:
            start = 0
            while start < len(consumers) and queue.ready:
                end = start + 1
                while end < len(consumers) and consumers[end].priority == consumers[start].priority:
                    end += 1
                self._serve_equals(queue, start, end)
                start = end
        if queue.ready:
            shared = False
            for consumer in consumers:
                session = consumer.session
                shared = shared or session.limit != UNLIMITED
                connection = session.connection
                if connection.room <= 0 and not (connection.paused or connection.gated):
                    if self._looked_at:
                        self.mark(queue)
                    elif queue.acquired + queue.settled > before:
                        self.again.append(queue)
                    else:
                        self._starved.append(queue)
                    break
            if shared:
                self._line_up(queue)

    def _serve_equals(self, queue: Queue, start: int, end: int) -> None:
        """Serve consumers start..end-1, all of one priority, in turn."""
        consumers = queue.consumers
        eligible = 0
        for at in range(start, end):
            if consumers[at].credit() > 0:
                eligible += 1
        if not eligible:
            return
        quota = max(1, min(LARGEST_QUOTA, queue.ready // (4 * eligible)))
        if eligible == 1:
            quota = queue.ready
        at = queue.next_turn
        if at < start or at >= end:
            at = start
        idle = 0
        while queue.ready and idle < end - start:
            consumer = consumers[at]
            at += 1
            if at == end:
                at = start
            credit = consumer.credit()
            if credit <= 0:
                idle += 1
                continue
            idle = 0
            left = min(credit, quota)
            connection = consumer.session.connection
            while left and queue.ready and connection.room > 0:
                n = self._hand_over(queue, consumer, left)
                if not n:
                    queue.next_turn = consumers.index(consumer)  # it has not had its turn
                    return
                left -= n
        queue.next_turn = at

    def _end_drains(self, queue: Queue) -> None:
        """End the drain of consumers that have got all messages available to them: their unused
        credit becomes void."""
        queue.draining = 0
        for consumer in queue.consumers:
            if not consumer.draining:
                continue
            served = (
                consumer.limit <= 0
                or not queue.ready
                or queue.paused
                or queue.rests
                or bool(consumer.overdue)
                or (queue.settings.single_active and consumer is not queue.active)
                or (bool(consumer.cursors) and self.seeking.has_seen(queue, consumer))
            )
            if served:
                consumer.limit = 0
                consumer.draining = False
                self.effects.append(Drained(consumer))
            else:
                queue.draining += 1

    def _hand_over(self, queue: Queue, consumer: Consumer, most: int) -> int:
        """Give the consumer up to `most` messages of the head slice; return their count."""
        head = self.upkeep.next_head(queue) if queue.watched else queue.head()
        if head is None:
            return 0
        if head.payload.raw is None and not self.quarantine.has_read(queue, head):
            self.mark(queue)  # what is behind it is looked at in the next turn
            return 0
        session = consumer.session
        connection = session.connection
        n = min(head.hi - head.lo, most)
        room = connection.room
        if n > 1 and head.size() > room:
            cuts = head.payload.cuts
            n = min(n, bisect_left(cuts, cuts[head.lo] + room, head.lo + 1, head.hi) - head.lo)
        waits = False
        if queue.stored:
            covered = self._within_mark(queue, head, n, min(most, queue.ready))
            if covered > 0:
                n = covered
            elif self._looked_at and connection.holds_output:
                waits = True
            else:
                return 0
        if head.first + n > queue.shown:
            if self._looked_at and connection.holds_output:
                waits = True
            else:
                n = queue.shown - head.first
                if n <= 0:
                    return 0
        if queue.returning and head.acquired:
            if self._looked_at and connection.holds_output:
                waits = True
            else:
                n = queue.before_returns(head.first, n)
                if not n:
                    return 0
        piece = queue.take(n)
        self.spend(connection, piece.size())
        self.effects.append(Deliver(consumer, piece, session.next_tag, waits))
        self.acquire(session, queue, piece, consumer, consumer.no_ack)
        consumer.sent(n, self.clock.now_ms)
        return n

    def acquire(
        self, session: Session, queue: Queue, piece: Slice, consumer: Consumer | None, no_ack: bool
    ) -> int:
        """Add a slice taken from its queue to the session's in-flight entries; return its first
        tag."""
        n = piece.hi - piece.lo
        tag = session.next_tag
        session.next_tag = tag + n
        owner = consumer.id if consumer is not None else session.id
        if no_ack:
            if queue.settle(piece, piece.lo, piece.hi, owner, records.SETTLED_ON_SEND):
                self.store.settling.append(queue)
            self.store.finish(piece.payload, n)
            return tag
        session.unacked += n
        if consumer is not None:
            consumer.unacked += n
        else:
            session.got += n
        if queue.stored and queue.settings.records_deliveries:
            self.ledger.emit(acquired_record(queue.id, piece.first, n, owner, piece.acquired))
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
                and last.since_ms + MERGE_MS >= self.clock.now_ms
            ):
                whole = whole.part(0, len(whole))
                whole.hi = piece.hi
                last.slice = whole
                last.last = tag + n - 1
                last.left += n
                return tag
        now = self.clock.now_ms
        inflight.append(InFlight(tag, tag + n - 1, piece, queue, consumer, now))
        timeout = timeout_of(consumer, queue)
        if timeout and now + timeout + MERGE_MS < session.armed_ms:
            self.deadlines.arm(session, now + timeout + MERGE_MS)
        return tag

    def _within_mark(self, queue: Queue, head: Slice, n: int, wanted: int) -> int:
        """Return how many of n messages the mark on disk allows to leave now. The mark is requested
        as if `wanted` messages left together, up to a quota, so that the waiting does not depend on
        how the messages were published."""
        upto = head.first + max(n, min(wanted, LARGEST_QUOTA))
        if self.marks.cover(queue, upto, head.first):
            return n
        return min(n, queue.mark_durable - head.first)

    def spend(self, connection: Connection, size: int) -> None:
        """Subtract bytes from the connection's room in this turn."""
        if connection.room == connection.allowance:
            self.spent.append(connection)
        connection.room -= size
