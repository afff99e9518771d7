"""Publishing: messages of a session enter the queues that they were routed to.

Most queues only append them, and that is done here; one that may refuse or drop messages is asked
(admission.py). Publishers to a queue whose consumer is too slow are held back [SC-D7].
"""

from __future__ import annotations

from typing import final

from tallymark.engine.admission import Admission
from tallymark.engine.durability import Durability
from tallymark.engine.effects import PublisherHeld, Refused
from tallymark.engine.entrance import Backlogs
from tallymark.engine.ledger import (
    entered_record,
    payload_record,
    transient_record,
)
from tallymark.engine.message import ON_ITS_WAY, Payload
from tallymark.engine.queue import Queue
from tallymark.engine.queue_consumers import consumers_of
from tallymark.engine.record import Record
from tallymark.engine.session import NOBODY, Connection, Session
from tallymark.engine.sinks import Committed, Sinks
from tallymark.engine.staging import Transaction
from tallymark.engine.state import State
from tallymark.engine.topology import Targets
from tallymark.engine.transactions import Transactions
from tallymark.stored.annotations import Annotations
from tallymark.units import Ms, Position, PublishNumber


@final
class Part:
    """Messages lo..hi-1 of a payload and their target queues."""

    def __init__(self, targets: Targets, lo: int, hi: int) -> None:
        self.targets = targets
        self.lo = lo
        self.hi = hi


@final
class Publishing:
    """The commands by which messages are published."""

    def __init__(
        self,
        state: State,
        backlogs: Backlogs,
        admission: Admission,
        durability: Durability,
        transactions: Transactions,
        sinks: Sinks,
    ) -> None:
        self._agenda = state.agenda
        self._effects = state.effects
        self._ledger = state.ledger
        self._state = state
        self._store = state.store
        self._traffic = state.traffic
        self._backlogs = backlogs
        self._admission = admission
        self._durability = durability
        self._transactions = transactions
        self._sinks = sinks
        self.held: dict[int, dict[int, Connection]] = {}
        """Publishing connections that are held back, by id of the queue that caused it and by
        connection id."""
        self.published = 0
        """Count of messages published since the broker started, wherever they went."""
        self.into: Queue | None = None
        """Queue that messages were published to last; who looks at it may clear it."""

    def publish(
        self,
        session: Session,
        targets: Targets,
        payload: Payload,
        annotations: Annotations | None = None,
    ) -> None:
        """Publish every message of the payload to every target queue; each counts as a publish of
        the session. With no target the messages end here (the bridge returns mandatory ones).

        annotations: what is known of them all. Messages that a queue has no room for are refused
        [DL-6]: a confirming session is told by a Refused effect.
        """
        count = payload.count
        self.published += count
        number = session.published
        traffic = self._traffic
        if session.confirming:
            traffic.to_confirm += count
            self._durability.published(session, count)
        queues = targets.queues
        if not queues:
            traffic.discarded += count
            return
        ledger = self._ledger
        traffic.routed += count * len(queues)
        self._store.enter(payload, count * len(queues))
        kept = payload.persistent and targets.durable
        if kept:
            payload.position = Position(ON_ITS_WAY)
            ledger.emit(payload_record(payload))
        if not targets.plain or annotations is not None:
            self._publish_part(session, targets, payload, 0, count, annotations, kept, number)
            return
        look_after = self._backlogs.packing.look_after
        for queue in queues:
            first = queue.push(payload, None)
            if queue.lanes.unexamined > look_after:
                self._backlogs.note(queue)
            if queue.stored:
                if kept:
                    ledger.emit(entered_record(queue.id, first, count, payload))
                    self._agenda.entered(queue, first, True, False)
                else:
                    ledger.emit(transient_record(queue.id, first, count))
            if queue.consumers or queue.watched:
                self._agenda.mark(queue)
        self.into = queues[-1]

    def _publish_part(
        self,
        session: Session,
        targets: Targets,
        payload: Payload,
        lo: int,
        hi: int,
        annotations: Annotations | None,
        kept: bool,
        number: int,
    ) -> None:
        """Publish messages lo..hi-1 to targets of which at least one must do more than append.
        number: the session's last publish number before these messages."""
        if targets.holding:
            self.hold_publisher(session.connection, targets)
        if targets.queues:
            self.into = targets.queues[-1]
        refused = self._admission.publish(targets, payload, lo, hi, annotations, kept)
        if session.confirming:
            for start, stop in refused:
                self._durability.refused(stop - start)
                self._effects.append(
                    Refused(
                        session,
                        PublishNumber(number + 1 + start - lo),
                        PublishNumber(number + stop - lo),
                    )
                )

    def publish_parts(
        self,
        session: Session,
        payload: Payload,
        parts: list[Part],
        annotations: Annotations | None = None,
    ) -> None:
        """Publish a payload whose messages go to different sets of queues, as `publish` does. The
        parts are in order and do not overlap; messages in no part go nowhere and are not counted
        here."""
        kept = False
        count = users = 0
        for part in parts:
            n = part.hi - part.lo
            count += n
            users += n * len(part.targets.queues)
            kept = kept or (payload.persistent and part.targets.durable)
        self.published += count
        number = session.published
        if session.confirming:
            self._traffic.to_confirm += count
            self._durability.published(session, count)
        if not users:
            return
        self._traffic.routed += users
        self._store.enter(payload, users)
        if kept:
            payload.position = Position(ON_ITS_WAY)
            self._ledger.emit(payload_record(payload))
        entered: dict[int, Record] = {}
        look_after = self._backlogs.packing.look_after
        for part in parts:
            n = part.hi - part.lo
            if not part.targets.plain or annotations is not None:
                entered.clear()
                self._publish_part(
                    session, part.targets, payload, part.lo, part.hi, annotations, kept, number
                )
                number = PublishNumber(number + n)
                continue
            number = PublishNumber(number + n)
            for queue in part.targets.queues:
                first = queue.push_part(payload, part.lo, part.hi, 0, None)
                if queue.lanes.unexamined > look_after:
                    self._backlogs.note(queue)
                if queue.consumers or queue.watched:
                    self._agenda.mark(queue)
                self.into = queue
                if not queue.stored:
                    continue
                if kept:
                    self._agenda.entered(queue, first, True, False)
                last = entered.get(queue.id)
                if last is not None and (not kept or last.lo + last.count == part.lo):
                    last.count += n
                    continue
                if kept:
                    row = entered_record(queue.id, first, n, payload, part.lo)
                else:
                    row = transient_record(queue.id, first, n)
                self._ledger.emit(row)
                entered[queue.id] = row

    def published_nowhere(self, session: Session, count: int, fate: int) -> None:
        """Count publishes that reached no queue, so that they are confirmed. fate: traffic.REPLIED,
        RETURNED or DISCARDED."""
        self.published += count
        self._traffic.nowhere(count, fate)
        if session.confirming:
            self._traffic.to_confirm += count
            self._durability.published(session, count)

    def stage(
        self,
        transaction: Transaction,
        session: Session,
        targets: Targets,
        payload: Payload,
        annotations: Annotations | None = None,
        handle: object = None,
        rules: int = 0,
    ) -> None:
        """Publish messages under a transaction, effective at its commit: see
        Transactions.publish."""
        self.published += payload.count
        self._transactions.publish(
            transaction, session, targets, payload, annotations, handle, rules
        )
        if targets.holding:
            self.hold_publisher(session.connection, targets)

    def commit_sink(
        self,
        vhost: str,
        name: str,
        identity: str,
        batch: int,
        ids: list[int],
        forget_ms: Ms = Ms(0),
        after: int | None = None,
        target: str = "",
    ) -> Committed:
        """Publish a staged batch of a sink: see Sinks.commit."""
        done = self._sinks.commit(vhost, name, identity, batch, ids, forget_ms, after, target)
        self.published += done.published
        return done

    def hold_publishers(self, queue: Queue, held: bool) -> None:
        """Hold back publishers to the queue from now on, each announced by a PublisherHeld effect,
        or release them [SC-D7]."""
        if queue.holds_publishers == held or queue.deleted:
            return
        queue.holds_publishers = held
        self._state.vhost(queue.vhost).topology.changed()
        if not held:
            self.release(queue)

    def hold_publisher(self, connection: Connection, targets: Targets) -> None:
        """Hold back a connection that has published to these queues, for those of them whose
        consumer is too slow [SC-D7]."""
        if connection.id == NOBODY:
            return
        for queue in targets.queues:
            if not queue.holds_publishers:
                continue
            held = self.held.setdefault(queue.id, {})
            if connection.id not in held and not _consumes(connection, queue):
                held[connection.id] = connection
                self._effects.append(PublisherHeld(connection, queue, True))

    def release(self, queue: Queue) -> None:
        """Let the publishers read on that were held back for the queue."""
        for connection in self.held.pop(queue.id, {}).values():
            self._effects.append(PublisherHeld(connection, queue, False))

    def forget(self, connection: Connection) -> None:
        """Note that a connection is gone: nothing holds it back."""
        for held in self.held.values():
            held.pop(connection.id, None)


def _consumes(connection: Connection, queue: Queue) -> bool:
    """Return whether this connection also consumes from the queue. Its socket has to be read then,
    or the queue never gets shorter."""
    return any(consumer.session.connection is connection for consumer in consumers_of(queue))
