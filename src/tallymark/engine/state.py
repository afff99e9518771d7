"""State: what the managers of one broker share, and nothing that only one of them knows.

Every manager is made of the State and of the managers below it. What it has to tell one above it is
noted here, mostly in the agenda, and looked at in the turn: whoever changes a queue or a session
says so there, and knows nothing of those who look at it. The Dispatcher serves queues
(delivery.py), Durability waits for the disk (durability.py), the Broker records what was settled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from tallymark.engine.account import DROPPED
from tallymark.engine.clock import Clock, Deadlines
from tallymark.engine.effects import Effect
from tallymark.engine.errors import NotFound
from tallymark.engine.histogram import Histogram
from tallymark.engine.ledger import Ledger, dropped_record
from tallymark.engine.message import Format, Payload, Slice
from tallymark.engine.queue import Queue
from tallymark.engine.queue_consumers import reconsider
from tallymark.engine.session import Connection, Session
from tallymark.engine.store import Store
from tallymark.engine.traffic import Traffic
from tallymark.engine.vhost import VirtualHost
from tallymark.stored import records
from tallymark.units import QueueSequence

SETTLE_TIMES: Final = 32
"""Buckets of the times from publish to settlement: the last but one ends at 12 days."""
TURN_BYTES: Final = 1 << 20
"""Raw bytes that are handed out in one turn, and so the most that one connection is given. The
message that reaches the limit is the last one."""


@final
class Counter:
    """A counter that returns 1, 2, 3, ... and continues after a restart."""

    def __init__(self) -> None:
        self.last = 0

    def __call__(self) -> int:
        self.last += 1
        return self.last

    def take(self, n: int) -> int:
        """Reserve n consecutive numbers; return the first."""
        first = self.last + 1
        self.last += n
        return first

    def at_least(self, number: int) -> None:
        """Skip all numbers up to `number`."""
        if number > self.last:
            self.last = number


@final
class State:
    """The shared parts of a broker."""

    def __init__(self, fetch: Callable[[Payload], bytes]) -> None:
        """fetch: function that reads a payload's bytes back from the journal."""
        self.clock = Clock()
        self.ledger = Ledger(self.clock)
        """Rows since the last block."""
        self.effects: list[Effect] = []
        """Effects since the last turn."""
        self.store = Store(fetch)
        self.agenda = Agenda()
        self.deadlines = Deadlines()
        self.formats: dict[int, Format] = {}
        """Decoders of wire formats by Payload.format; filled by the owner of the broker."""
        self.vhosts: dict[str, VirtualHost] = {}
        self.queues: dict[int, Queue] = {}
        """All queues by id."""
        self.connections: dict[int, Connection] = {}
        self.holders = Holders()
        self.queue_ids = Counter()
        self.owner_ids = Counter()
        """Counter of ids, shared by consumers, sessions, connections and transactions."""
        self.message_ids = Counter()
        self.traffic = Traffic()
        self.settle_times = Histogram(SETTLE_TIMES)
        """Times for which settled messages had been in their queue, ms; of runs that were settled
        together, that of their first message."""

    def vhost(self, name: str) -> VirtualHost:
        """Return the virtual host of that name. Raises NotFound."""
        vhost = self.vhosts.get(name)
        if vhost is None:
            raise NotFound(f"vhost {name} not found")
        return vhost

    def drop(self, queue: Queue, piece: Slice, reason: int) -> None:
        """Drop messages of no bucket, and count them."""
        n = len(piece)
        of_stream = reason == records.DROPPED_RETENTION or reason == records.DROPPED_ARCHIVED
        size = piece.size() if of_stream else 0
        queue.retention.let_go_bytes += size
        queue.account.end(n, DROPPED, reason)
        self.store.finish(piece.payload, n)
        if queue.stored:
            self.ledger.emit(dropped_record(queue.id, piece.first, n, reason, size))


@final
class Holders:
    """Sessions that may hold messages of a queue: those that were given some and are open. So
    whoever looks for a queue's messages in flight need not ask every session there is."""

    def __init__(self) -> None:
        self._sessions: dict[int, dict[int, Session]] = {}
        """Sessions by queue id and session id."""

    def add(self, queue: Queue, session: Session) -> None:
        """Note that a session is given messages of a queue for the first time, under its next
        tag."""
        session.sources[queue.id] = session.next_tag
        self._sessions.setdefault(queue.id, {})[session.id] = session

    def of(self, queue: Queue) -> list[Session]:
        """Return the sessions that may hold messages of the queue."""
        return list(self._sessions.get(queue.id, {}).values())

    def end_queue(self, queue: Queue) -> None:
        """Forget a queue that is deleted."""
        for session in self._sessions.pop(queue.id, {}).values():
            del session.sources[queue.id]

    def end_session(self, session: Session) -> None:
        """Forget a session that holds nothing any more."""
        for id in session.sources:
            sessions = self._sessions[id]
            del sessions[session.id]
            if not sessions:
                del self._sessions[id]
        session.sources.clear()


@final
class Returns:
    """Messages of a queue that were given back in one turn, and that the disk does not know of."""

    def __init__(self, queue: Queue, sequences: list[QueueSequence]) -> None:
        self.queue = queue
        self.sequences = sequences

    def end(self) -> None:
        """Let the messages be delivered, but those that were given back again since."""
        returning = self.queue.disk_hold.returning
        for at in self.sequences:
            if returning.get(at) is self:
                del returning[at]


@final
class Agenda:
    """Lists of the queues, sessions and connections that the turn looks at."""

    def __init__(self) -> None:
        self.changed: list[Queue] = []
        """Queues to serve in the coming turn."""
        self.offers: list[Session] = []
        """Sessions with free shared limit and consumers that wait for it."""
        self.spent: list[Connection] = []
        """Connections that have used some of their room in this turn."""
        self.allowance = TURN_BYTES
        """Bytes that all connections together are given in one turn."""
        self.room = TURN_BYTES
        """Bytes that are left of it."""
        self.settling: list[Queue] = []
        """Queues with settled ranges that have no records yet."""
        self.appended: list[Queue] = []
        """Streams that received messages in this turn. Readers see the messages once they are on
        disk."""
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

    def mark(self, queue: Queue) -> None:
        """Put the queue in the list of queues to serve."""
        if not queue.dirty:
            queue.dirty = True
            self.changed.append(queue)

    def mark_session(self, session: Session) -> None:
        """Put the queues of the session's consumers in the list, as they may have credit now."""
        for consumer in session.consumers.values():
            if consumer.is_passed_over:
                reconsider(consumer)
            if consumer.queue.ready:
                self.mark(consumer.queue)
        self.offer(session)

    def offer(self, session: Session) -> None:
        """Note that part of the session's shared limit may be free. O(1): queues are examined when
        it is distributed."""
        if session.line and not session.is_offered:
            session.is_offered = True
            self.offers.append(session)

    def spend(self, connection: Connection, size: int) -> None:
        """Subtract bytes from the connection's room in this turn, and from that of all."""
        self.room -= size
        if connection.room == connection.allowance:
            self.spent.append(connection)
        connection.room -= size

    # -- waits for the disk

    def note_append(self, queue: Queue) -> None:
        """Put the stream in the list of streams with new messages. Readers see these only once they
        are on disk, so that an offset that a reader has seen never gets another message after a
        crash."""
        if not queue.appended:
            queue.appended = True
            self.appended.append(queue)

    def entered(self, queue: Queue, first: QueueSequence, kept: bool, is_moved: bool) -> None:
        """Decide whether messages from sequence `first` on, which just entered, wait for the disk
        before delivery. Those of a commit, or from another queue, do: a crash might undo the commit
        or the move. Other persistent messages follow the queue's setting.

        kept: the journal keeps them. is_moved: they come from another queue.
        """
        if self.commits or is_moved or (kept and self._syncs_first(queue)):
            self._hold(queue, first)

    def given_back(self, queue: Queue, pieces: list[Slice]) -> None:
        """Hold messages back that were just given back to a stored queue, where its deliveries wait
        for the disk: after a crash their attempts go on from what was delivered."""
        if self._syncs_first(queue):
            sequences = [
                QueueSequence(at) for one in pieces for at in range(one.first, one.first + len(one))
            ]
            returns = Returns(queue, sequences)
            for at in sequences:
                queue.disk_hold.returning[at] = returns
            self.returns.append(returns)

    def _syncs_first(self, queue: Queue) -> bool:
        """Return whether the queue delivers persistent messages only once they are on disk."""
        after = queue.settings.after_sync
        return after > 0 or (after < 0 and self.syncs_first)

    def _hold(self, queue: Queue, first: QueueSequence) -> None:
        """Deliver sequences from `first` on only when the records of this turn are on disk."""
        if first < queue.disk_hold.shown:
            queue.disk_hold.shown = first
        if not queue.disk_hold.is_held:
            queue.disk_hold.is_held = True
            queue.disk_hold.turns += 1
            self.held.append(queue)
