"""The whole engine behind one object: commands in, records and effects out, time as data.

Commands are plain method calls. One that raises BrokerError has changed nothing (`settle` excepted,
see there). What they cause gathers until the end of the turn:

    effects = broker.turn(now_ms)                    deliveries and whatever commands caused
    position = journal.commit(broker.take_records()) one block: kept whole or not at all
    broker.committed(position)                       confirms and waiters of this turn wait for it
    effects += broker.synced(journal.synced)         those whose position is on disk
    ... carry the effects out ...
    broker.spill(budget, journal.written)            bring memory down

Nothing here reads a clock, draws a random number, logs or awaits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from tallymark.engine import definitions, records
from tallymark.engine.account import ACQUIRED, MOVING, SETTLED
from tallymark.engine.admission import Admission
from tallymark.engine.annotations import Annotations, Notes, deferred_until
from tallymark.engine.archives import Archives
from tallymark.engine.arguments import check_default_type, consumer_timeout_ms, named
from tallymark.engine.backlogs import Backlogs
from tallymark.engine.deadletters import DeadLetters
from tallymark.engine.deadlines import Timed
from tallymark.engine.delivery import IN_A_TURN, TURN_BYTES, Dispatcher
from tallymark.engine.durability import Durability
from tallymark.engine.effects import Activated, Cancelled, Effect, PublisherHeld, Refused, Signal
from tallymark.engine.entrance import Entrance
from tallymark.engine.errors import AccessRefused, NotAllowed, NotFound, Unsupported
from tallymark.engine.formats import Filter
from tallymark.engine.handover import Handover
from tallymark.engine.leases import Leases
from tallymark.engine.ledger import (
    definition_record,
    entered_record,
    payload_record,
    settled_record,
    transient_record,
)
from tallymark.engine.marks import Marks
from tallymark.engine.message import ON_ITS_WAY, Payload, Slice
from tallymark.engine.pending import PendingLetters
from tallymark.engine.policies import Policy
from tallymark.engine.quarantine import Quarantine
from tallymark.engine.queue import Queue
from tallymark.engine.quotas import Quotas
from tallymark.engine.readmission import Readmission
from tallymark.engine.records import Record
from tallymark.engine.redrive import Redrives
from tallymark.engine.retries import Retries
from tallymark.engine.routing import Targets
from tallymark.engine.session import (
    RETURNED,
    UNLIMITED,
    Connection,
    Consumer,
    Session,
    consumers_of,
)
from tallymark.engine.settlement import Settlement
from tallymark.engine.sinks import Committed, Sink, Sinks, Staging
from tallymark.engine.slow.consumers import SlowConsumers
from tallymark.engine.staging import Transaction
from tallymark.engine.state import State
from tallymark.engine.statistics import progress_record
from tallymark.engine.streams import Start
from tallymark.engine.subscription import Subscription, subscriptions_of
from tallymark.engine.timeouts import Timeouts
from tallymark.engine.transactions import Transactions
from tallymark.engine.upkeep import Upkeep
from tallymark.engine.vhost import VirtualHost
from tallymark.engine.walltime import in_wall_time

DEFAULT_VHOST: Final = "/"


@final
class Part:
    """Messages lo..hi-1 of a payload and their target queues."""

    __slots__ = ("hi", "lo", "targets")

    def __init__(self, targets: Targets, lo: int, hi: int) -> None:
        self.targets = targets
        self.lo = lo
        self.hi = hi


@final
class Broker:
    """All virtual hosts, queues, sessions and subscriptions of one process."""

    def __init__(self, fetch: Callable[[Payload], bytes]) -> None:
        state = State(fetch)
        self.state = state
        """State that the managers share; a restart fills it."""
        self.clock = state.clock
        self.store = state.store
        self.ledger = state.ledger
        self.effects = state.effects
        self.formats = state.formats
        self.vhosts = state.vhosts
        self.queues = state.queues
        self.connections = state.connections
        self._agenda = state.agenda
        self.backlogs = Backlogs(state)
        self.marks = Marks(state)
        self.quarantine = Quarantine(state)
        """Messages that cannot be read."""
        self.entrance = Entrance(state, self.backlogs, self.quarantine)
        self.pending = PendingLetters(state, self.entrance, self.quarantine)
        """Dead letters that no target takes for now."""
        self.dead_letters = DeadLetters(state, self.entrance, self.pending, self.quarantine)
        self.readmission = Readmission(state, self.quarantine, self.entrance, self.dead_letters)
        """Operations to retry quarantined messages, or to drop them."""
        self.archives = Archives(state)
        """Archived ranges of streams."""
        self.upkeep = Upkeep(
            state,
            self.entrance,
            self.dead_letters,
            Retries(state, self.dead_letters, self.pending),
            self.quarantine,
        )
        self._handover = Handover(state)
        self.dispatcher = Dispatcher(
            state, self._handover, self.marks, self.upkeep, self.quarantine
        )
        self.settlement = Settlement(state, self.entrance, self.dead_letters)
        self.leases = Leases(state, self.dispatcher, self.upkeep, self.settlement, self.quarantine)
        """Durable subscriptions: attach, lease, read, settle, stat."""
        self.timeouts = Timeouts(state, self.settlement)
        self.durability = Durability(state, self.marks)
        self.admission = Admission(state, self.entrance, self.dead_letters)
        self.transactions = Transactions(state, self.entrance, self.admission, self.settlement)
        """Operations on transactions: begin, settle, commit, roll back. Publishing under one is
        `stage`."""
        self.sinks = Sinks(state, self.entrance, self.admission)
        """Operations on sinks: stage, commit, abort batches that are published once."""
        self.redrives = Redrives(state, self.entrance, self.transactions)
        """Operations that return dead letters to the exchange they were first published to."""
        self.slow = SlowConsumers(state, self.entrance, self.transactions)
        """Measurement of subscriptions to topics that hold too much; the actions are in
        slow/actions.py."""
        self.held: dict[int, dict[int, Connection]] = {}
        """Publishing connections that are held back, by id of the queue that caused it and by
        connection id."""
        self.published = 0
        self.quotas = Quotas()
        self.observers: list[Callable[[Queue, bool], None]] = []
        """Callbacks called at once with each queue that is declared (True) or deleted (False)."""
        self.policy_checks: list[Callable[[Policy], None]] = []
        """Callbacks called with each policy before it is set; they raise PreconditionFailed to
        refuse it. Policies read from the journal were checked when they were set."""
        self.get_must_wait = False
        """True if the message that `get` returned last must wait for `await_durable`."""

    # -- virtual hosts and topology

    def add_vhost(self, name: str) -> VirtualHost:
        """Return the virtual host of that name. It is made and recorded if it does not exist."""
        vhost = self.vhosts.get(name)
        if vhost is None:
            self.ledger.emit(definition_record(definitions.vhost_definition(name)))
            vhost = self.enter_vhost(name)
        return vhost

    def delete_vhost(self, name: str) -> None:
        """End a virtual host with all that is in it; nobody is connected to it. Raises NotFound."""
        vhost = self.vhost(name)
        deleter = self.open_connection(name, "", "")
        for queue in list(vhost.queues.values()):
            if not queue.deleted:  # by the end of another, as those of an ephemeral NSQ topic
                self.delete_queue(deleter, queue.name, False, False)
        self.close_connection(deleter, False)
        for exchange in list(vhost.exchanges):
            if exchange and not exchange.startswith("amq."):
                vhost.delete_exchange(exchange, False)
        self.sinks.forget_vhost(name)
        self.ledger.emit(definition_record(definitions.vhost_deletion(name)))
        del self.vhosts[name]

    def enter_vhost(self, name: str) -> VirtualHost:
        """Add a virtual host without a record, because it is in the journal already."""
        vhost = VirtualHost(name, self.clock, self.ledger, self.state.queue_ids)
        self.vhosts[name] = vhost
        return vhost

    def set_default_queue_type(self, vhost: VirtualHost, type: str) -> None:
        """Set the type of queues whose declaration names none, for future declarations; "":
        classic.

        Raises: PreconditionFailed.
        """
        check_default_type(type)
        if vhost.topology.default_queue_type != type:
            vhost.topology.default_queue_type = type
            self.ledger.emit(definition_record(definitions.vhost_definition(vhost.name, type)))

    def vhost(self, name: str) -> VirtualHost:
        """Return the virtual host of that name. Raises NotFound."""
        vhost = self.vhosts.get(name)
        if vhost is None:
            raise NotFound(f"vhost {name} not found")
        return vhost

    def declare_queue(
        self,
        connection: Connection,
        name: str,
        durable: bool,
        exclusive: bool,
        auto_delete: bool,
        arguments: dict[str, object],
        passive: bool,
    ) -> Queue:
        """Make a queue, or find the one that is there. [amqp-0.9.1 queue.declare]

        Raises:
            NotFound: passive, and there is none.
            PreconditionFailed: it exists with other properties, an argument is out of range, or
                there are as many queues as there may be.
            ResourceLocked: it belongs to another connection.
            AccessRefused: the name is reserved.
            InvalidCommand: the name is no UTF-8, or longer than 255 bytes.
        """
        vhost = self.vhost(connection.vhost)
        if not passive and (not name or name not in vhost.queues):
            self.quotas.check_queue(vhost.name, name, len(vhost.queues))
        queue = vhost.declare_queue(
            name, durable, exclusive, auto_delete, arguments, connection.id, passive
        )
        if queue.id not in self.queues:
            self.queues[queue.id] = queue
            if queue.exclusive_owner:
                connection.exclusive_queues.append(queue)
            for observer in self.observers:
                observer(queue, True)
        self.use(queue)
        return queue

    def use(self, queue: Queue) -> None:
        """Note the use of a queue: its expiry starts anew [x-expires]. Its content is brought up to
        date first: consumers get what they can be given, and messages that expired or exceed a
        limit leave, over several turns if they are many."""
        self.dispatcher.look(queue)
        self._attend(queue)

    def _attend(self, queue: Queue) -> None:
        queue.used_ms = self.clock.now_ms
        if queue.watched:
            self.upkeep.room = IN_A_TURN
            self.upkeep.attend(queue)
            self.upkeep.room = UNLIMITED

    def _use_head(self, queue: Queue) -> None:
        """Note the use of a queue, as `use` does, before a command that takes messages: all expired
        messages leave first."""
        self.dispatcher.look(queue)
        queue.used_ms = self.clock.now_ms
        if queue.watched:
            self.upkeep.attend(queue)

    def revive(self, queue: Queue) -> None:
        """Start a queue's timers now, after a restart."""
        queue.used_ms = self.clock.now_ms
        queue.follow(queue.settings)
        if queue.watched:
            self._agenda.mark(queue)

    def resettle(self, queue: Queue) -> None:
        """Apply changed settings of a queue at once."""
        queue.used_ms = self.clock.now_ms
        queue.retry.due_ms = 0
        self._agenda.mark(queue)

    def delete_queue(
        self, connection: Connection, name: str, if_unused: bool, if_empty: bool
    ) -> int:
        """Delete a queue with all it holds; return how many messages were ready or pending.

        Raises:
            NotFound, ResourceLocked, PreconditionFailed (in use, not empty).
        """
        vhost = self.vhost(connection.vhost)
        known = vhost.queues.get(name)
        if known is not None:
            self._use_head(known)
        return self._bury(vhost.delete_queue(name, if_unused, if_empty, connection.id))

    def set_policy(self, vhost_name: str, policy: Policy, operator: bool = False) -> None:
        """Set a policy, or an operator policy, effective at once.

        Raises: NotFound (virtual host), PreconditionFailed (its definition). What was there stays.
        """
        vhost = self.vhost(vhost_name)
        self.check_policy(policy)
        vhost.set_policy(policy, operator)
        self._resettle(vhost)

    def check_policy(self, policy: Policy) -> None:
        """Ask the policy checks about a policy. They know keys that the engine does not. Raises
        PreconditionFailed."""
        for check in self.policy_checks:
            check(policy)

    def delete_policy(self, vhost_name: str, name: str, operator: bool = False) -> None:
        """Delete a policy, effective at once. Raises NotFound."""
        vhost = self.vhost(vhost_name)
        vhost.delete_policy(name, operator)
        self._resettle(vhost)

    def _resettle(self, vhost: VirtualHost) -> None:
        if not vhost.resettled:
            return
        for connection in self.connections.values():
            if connection.vhost == vhost.name:
                self.timeouts.watch(connection)
        for queue in vhost.resettled:
            self.resettle(queue)
        vhost.resettled.clear()

    def purge(self, queue: Queue) -> int:
        """Drop all ready, deferred, quarantined and dead-letter-pending messages; return their
        count. Unsettled and leased messages stay.

        Raises: Unsupported (a stream).
        """
        self._check_purge(queue)
        self._use_head(queue)
        return self._drop_ready(queue, records.DROPPED_PURGED)

    def _check_purge(self, queue: Queue) -> None:
        if queue.settings.is_stream:
            raise _not_of_streams("queue.purge", queue)

    def empty(self, queue: Queue) -> None:
        """Drop all messages, including unsettled ones that consumers hold; leased messages stay
        [NQ-15]. Deliveries not sent yet are not sent."""
        self._check_purge(queue)
        self._attend(queue)
        self._drop_ready(queue, records.DROPPED_PURGED)
        sessions = [s for c in self.connections.values() for s in c.sessions]
        self.settlement.empty_in_flight(sessions, queue, records.DROPPED_PURGED)
        if queue.account.staged:
            self.transactions.drop(queue, records.DROPPED_PURGED, True)

    def pause(self, queue: Queue, paused: bool) -> None:
        """Stop or resume deliveries from a queue to all its consumers. Survives a restart if the
        queue does [NQ-9]."""
        if queue.paused != paused:
            self.vhost(queue.vhost).pause_queue(queue, paused)
            self._agenda.mark(queue)

    def tighten_marks(self) -> None:
        """Lower the high-water marks in the journal to what was really delivered, when nothing has
        happened for a while. O(queues)."""
        for queue in self.queues.values():
            if not queue.settings.is_stream:
                self.marks.tighten(queue)

    def deliver_after_sync(self, is_so: bool) -> None:
        """Set whether persistent messages that enter from now on are delivered only once they are
        on disk, for queues whose arguments and policies do not say."""
        self._agenda.syncs_first = is_so

    def pause_unreadable(self, pauses: bool) -> None:
        """Set whether queues stop deliveries while any of their messages cannot be read."""
        self.quarantine.pauses = pauses
        for queue in self.queues.values():
            rests = pauses and queue.account.quarantined > 0
            if queue.rests != rests:
                queue.rests = rests
                self._agenda.mark(queue)

    def transfer(self, source: Queue, targets: list[Queue]) -> None:
        """Move all ready and deferred messages of `source` to each of `targets`, in one step;
        delivery counts start anew there. Without a target they stay. A target that drops messages
        when full does so [NQ-10]. Messages that must be read for this and cannot be are
        quarantined."""
        if not targets:
            return
        self.use(source)
        source.unpack()
        for entry in source.deferrals:
            entry.piece.annotations = deferred_until(entry.piece.annotations, entry.due_ms)
        is_plain = Targets(targets).plain
        for piece in [*source.clear(), *source.clear_deferred()]:
            payload = piece.payload
            if not is_plain and not self.store.tried(payload):
                self.quarantine.put(source, piece)
                continue
            n = len(piece)
            self.store.use(payload, n * len(targets))
            for target in targets:
                kept = payload.persistent and target.stored
                if kept:
                    self.entrance.keep(payload)
                self.admission.transfer(target, piece, kept, source.id)
            source.account.move(piece, MOVING, SETTLED)
            if source.stored:
                self.ledger.emit(
                    settled_record(source.id, piece.first, n, records.SETTLED_BY_TRANSFER)
                )
            self.store.finish(payload, n)

    def _drop_ready(self, queue: Queue, reason: int) -> int:
        count = queue.ready + queue.deferred + queue.pending + queue.account.quarantined
        aside = self.quarantine.clear(queue)
        for piece in [*queue.clear(), *queue.clear_deferred(), *aside]:
            self.state.drop(queue, piece, reason)
        self.pending.give_up_all(queue, reason)
        return count

    def _bury(self, queue: Queue) -> int:
        """End everything that depends on a queue, after it was removed from its virtual host's
        tables. Returns the count of messages that were ready or pending."""
        self._flush_settled(queue)
        reason = records.DROPPED_QUEUE_DELETED
        count = self._drop_ready(queue, reason)
        for consumer in list(consumers_of(queue)):
            self._forget_consumer(consumer)
            self.effects.append(Cancelled(consumer))
        for subscription in list(subscriptions_of(queue)):
            for piece in self.leases.remove(subscription):
                queue.account.move(piece, ACQUIRED, MOVING)
                self.state.drop(queue, piece, reason)
        if queue.acquired:
            sessions = [s for c in self.connections.values() for s in c.sessions]
            self.settlement.drop_in_flight(sessions, queue, reason)
        if queue.account.staged:
            self.transactions.drop(queue, reason, False)
        queue.deleted = True
        self._release_publishers(queue)
        self.state.deadlines.forget(queue)
        del self.queues[queue.id]
        owner = self.connections.get(queue.exclusive_owner)
        if owner is not None and queue in owner.exclusive_queues:
            owner.exclusive_queues.remove(queue)
        for observer in self.observers:
            observer(queue, False)
        self.effects.append(
            Signal("queue.deleted", {"vhost": queue.vhost, "queue": queue.name, "ready": count})
        )
        return count

    # -- connections and sessions

    def open_connection(self, vhost: str, user: str, name: str) -> Connection:
        """Open a connection. Raises NotFound if the virtual host does not exist, NotAllowed above a
        limit."""
        self.vhost(vhost)
        self.quotas.enter(vhost, user)
        connection = Connection(self.state.owner_ids(), vhost, user, name)
        connection.allowance = connection.room = TURN_BYTES
        self.connections[connection.id] = connection
        return connection

    def close_connection(self, connection: Connection, lost: bool) -> None:
        """End a connection: its sessions close, its exclusive queues are deleted. A second call has
        no effect."""
        for session in list(connection.sessions):
            self.close_session(session, lost)
        for queue in list(connection.exclusive_queues):
            self.delete_queue(connection, queue.name, False, False)
        if self.connections.pop(connection.id, None) is not None:
            self.quotas.leave(connection.vhost, connection.user)
        for held in self.held.values():
            held.pop(connection.id, None)

    def open_session(self, connection: Connection) -> Session:
        """Open a session. Raises NotAllowed above a limit."""
        self.quotas.begin(connection.user)
        session = Session(self.state.owner_ids(), connection)
        connection.sessions.append(session)
        return session

    def close_session(self, session: Session, lost: bool) -> None:
        """End a session: its consumers stop, its transactions are rolled back, unsettled messages
        return to their old positions.

        lost: the peer vanished without a closing handshake. Repeating is no error.
        """
        if session.closed:
            return
        session.closed = True
        self.quotas.end(session.connection.user)
        self.state.deadlines.forget(session)
        session.connection.sessions.remove(session)
        consumers = list(session.consumers.values())
        for consumer in consumers:
            self._forget_consumer(consumer)
        reason = records.RETURNED_BY_LOSS if lost else records.RETURNED_BY_CLOSE
        self.transactions.close_session(session, lost)
        self.settlement.return_all(session, reason)
        for consumer in consumers:
            self._maybe_unused(consumer.queue)

    def wake(self, connection: Connection) -> None:
        """Resume deliveries to a connection that can take output again (`paused` is false now)."""
        for session in connection.sessions:
            self._agenda.mark_session(session)

    # -- publishing

    def new_message_ids(self, n: int) -> int:
        """Reserve n consecutive broker-wide message ids; return the first."""
        return self.state.message_ids.take(n)

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
        if session.confirming:
            self.durability.published(session, count)
        queues = targets.queues
        if not queues:
            return
        ledger = self.ledger
        self.store.enter(payload, count * len(queues))
        kept = payload.persistent and targets.durable
        if kept:
            payload.position = ON_ITS_WAY
            ledger.emit(payload_record(payload))
        if not targets.plain or annotations is not None:
            self._publish_part(session, targets, payload, 0, count, annotations, kept, number)
            return
        look_after = self.backlogs.packing.look_after
        for queue in queues:
            first = queue.push(payload, None)
            if queue.loose > look_after:
                self.backlogs.note(queue)
            if queue.stored:
                if kept:
                    ledger.emit(entered_record(queue.id, first, count, payload))
                    self._agenda.entered(queue, first, True, False)
                else:
                    ledger.emit(transient_record(queue.id, first, count))
            if queue.consumers or queue.watched:
                self._agenda.mark(queue)

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
            self._hold_publisher(session.connection, targets)
        refused = self.admission.publish(targets, payload, lo, hi, annotations, kept)
        if session.confirming:
            for start, stop in refused:
                self.effects.append(Refused(session, number + 1 + start - lo, number + stop - lo))

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
            self.durability.published(session, count)
        if not users:
            return
        self.store.enter(payload, users)
        if kept:
            payload.position = ON_ITS_WAY
            self.ledger.emit(payload_record(payload))
        entered: dict[int, Record] = {}
        look_after = self.backlogs.packing.look_after
        for part in parts:
            n = part.hi - part.lo
            if not part.targets.plain or annotations is not None:
                entered.clear()
                self._publish_part(
                    session, part.targets, payload, part.lo, part.hi, annotations, kept, number
                )
                number += n
                continue
            number += n
            for queue in part.targets.queues:
                first = queue.push_part(payload, part.lo, part.hi, 0, None)
                if queue.loose > look_after:
                    self.backlogs.note(queue)
                if queue.consumers or queue.watched:
                    self._agenda.mark(queue)
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
                self.ledger.emit(row)
                entered[queue.id] = row

    def commit_sink(
        self, vhost: str, name: str, identity: str, batch: int, ids: list[int], forget_ms: int = 0
    ) -> Committed:
        """Publish a staged batch of a sink: see Sinks.commit."""
        done = self.sinks.commit(vhost, name, identity, batch, ids, forget_ms)
        self.published += done.published
        return done

    def hold_publishers(self, queue: Queue, held: bool) -> None:
        """Hold back publishers to the queue from now on, each announced by a PublisherHeld effect,
        or release them [SC-D7]."""
        if queue.holds_publishers == held or queue.deleted:
            return
        queue.holds_publishers = held
        self.vhost(queue.vhost).topology.changed()
        if not held:
            self._release_publishers(queue)

    def _hold_publisher(self, connection: Connection, targets: Targets) -> None:
        for queue in targets.queues:
            if not queue.holds_publishers:
                continue
            held = self.held.setdefault(queue.id, {})
            if connection.id not in held and not _consumes(connection, queue):
                held[connection.id] = connection
                self.effects.append(PublisherHeld(connection, queue, True))

    def _release_publishers(self, queue: Queue) -> None:
        for connection in self.held.pop(queue.id, {}).values():
            self.effects.append(PublisherHeld(connection, queue, False))

    def published_nowhere(self, session: Session, count: int) -> None:
        """Count publishes that reached no queue (unroutable, refused), so that they are
        confirmed."""
        self.published += count
        if session.confirming:
            self.durability.published(session, count)

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
        self.transactions.publish(
            transaction, session, targets, payload, annotations, handle, rules
        )

    # -- consuming

    def consume(
        self,
        session: Session,
        queue: Queue,
        tag: str,
        no_ack: bool,
        exclusive: bool,
        priority: int,
        arguments: dict[str, object],
        filter: Filter | None = None,
    ) -> Consumer:
        """Start a consumer. Deliveries come with the next turn. [amqp-0.9.1 basic.consume]

        filter: it is given only what matches; None: everything.

        Raises:
            NotAllowed: the session has a consumer of that tag; a filter where only one consumer is
            active.
            AccessRefused: exclusive use, by this or by another consumer.
        """
        if queue.settings.is_stream:
            raise NotAllowed(f"{named('queue', queue.name, queue.vhost)} is a stream: it is read")
        if filter is not None and queue.settings.single_active:
            raise NotAllowed(
                f"filter on queue '{queue.name}' in vhost '{queue.vhost}', which has a single "
                "active consumer"
            )
        consumer = self._new_consumer(
            session, queue, tag, no_ack, exclusive, priority, consumer_timeout_ms(arguments)
        )
        if filter is None:
            if queue.active is None:
                queue.active = consumer
        else:
            consumer.filter = filter
            self._seek(consumer)
        return consumer

    def browse(self, session: Session, queue: Queue, tag: str, filter: Filter | None) -> Consumer:
        """Start a consumer that is sent copies of all messages, ready now or later, each once and
        in order. It removes none, and its tags need no settlement.

        Raises: NotAllowed, AccessRefused: as consume.
        """
        consumer = self._new_consumer(session, queue, tag, True, False, 0, 0)
        consumer.browses = True
        consumer.filter = filter
        self._seek(consumer)
        return consumer

    def read(
        self,
        session: Session,
        queue: Queue,
        tag: str,
        start: Start,
        no_ack: bool,
        filter: Filter | None = None,
    ) -> Consumer:
        """Start a reader of a stream, which is sent all messages from `start` on. Settling returns
        credit, whatever the outcome, and changes nothing in the stream [DL-17].

        no_ack: nothing has to be settled.

        Raises: NotAllowed (no stream, or a tag in use).
        """
        if not queue.settings.is_stream:
            raise NotAllowed(f"{named('queue', queue.name, queue.vhost)} is no stream")
        consumer = self._new_consumer(session, queue, tag, no_ack, False, 0, 0)
        consumer.browses = True
        consumer.filter = filter
        self._seek(consumer)
        consumer.cursors = [start.place(queue, self.clock)]
        return consumer

    def _seek(self, consumer: Consumer) -> None:
        queue = consumer.queue
        consumer.cursors = [1] * len(queue.lanes)
        queue.seekers.append(consumer)

    def _new_consumer(
        self,
        session: Session,
        queue: Queue,
        tag: str,
        no_ack: bool,
        exclusive: bool,
        priority: int,
        timeout_ms: int,
    ) -> Consumer:
        if tag in session.consumers:
            raise NotAllowed(f"attempt to reuse consumer tag '{tag}'")
        self._attend(queue)
        consumers = consumers_of(queue)
        if (consumers and (exclusive or consumers[0].exclusive)) or (
            exclusive and queue.subscriptions
        ):
            raise AccessRefused(f"queue '{queue.name}' in vhost '{queue.vhost}' in exclusive use")
        consumer = Consumer(
            self.state.owner_ids(),
            session,
            queue,
            tag,
            no_ack,
            exclusive,
            priority,
            session.consumer_limit,
            timeout_ms,
            self.clock.now_ms,
        )
        session.consumers[tag] = consumer
        at = len(consumers)
        while at > 0 and consumers[at - 1].priority < priority:
            at -= 1
        consumers.insert(at, consumer)
        queue.had_consumer = True
        queue.comings += 1
        if queue.ready:
            self._agenda.mark(queue)
        return consumer

    def cancel(self, consumer: Consumer) -> None:
        """Stop a consumer; its unsettled messages stay with its session [LC]."""
        self._forget_consumer(consumer)
        self._maybe_unused(consumer.queue)

    def detach(self, consumer: Consumer) -> None:
        """Stop a consumer; its unsettled messages return to their old positions, not counted as
        failed [FC-19]."""
        self._forget_consumer(consumer)
        self.settlement.return_of(consumer.session, consumer, records.RETURNED_BY_CLOSE)
        self._maybe_unused(consumer.queue)

    def grant(self, consumer: Consumer, credit: int, drain: bool) -> None:
        """Set a consumer's credit to `credit` messages [FC-3]. drain: credit that is unused when no
        more messages are available becomes void, announced by a Drained effect [FC-5]."""
        if not consumer.active:
            return
        queue = consumer.queue
        consumer.by_link = True
        consumer.limit = credit
        if drain and not consumer.draining:
            queue.draining += 1
        consumer.draining = drain
        if drain or queue.ready:
            self._agenda.mark(queue)

    def _forget_consumer(self, consumer: Consumer) -> None:
        if not consumer.active:
            return
        consumer.active = False
        session = consumer.session
        session.consumers.pop(consumer.tag, None)
        session.step_out(consumer)
        session.give_share_back(consumer)
        self._agenda.offer(session)
        queue = consumer.queue
        if consumer.progress:
            self.ledger.emit(progress_record(consumer, records.CONSUMER_ENDED, self.clock.now_ms))
        at = queue.consumers.index(consumer)
        del consumers_of(queue)[at]
        queue.comings += 1
        if consumer.cursors:
            queue.seekers.remove(consumer)
        if queue.active is consumer:
            queue.active = None
            for other in consumers_of(queue):
                if not other.cursors:
                    queue.active = other
                    if queue.settings.single_active:
                        self.effects.append(Activated(other))
                    break
        self._attend(queue)
        if at < queue.next_turn:
            queue.next_turn -= 1
        if queue.ready and queue.consumers:
            self._agenda.mark(queue)

    def _maybe_unused(self, queue: Queue) -> None:
        if (
            queue.had_consumer
            and not queue.consumers
            and not queue.subscriptions
            and self.vhost(queue.vhost).queue_unused(queue)
        ):
            self._bury(queue)

    def set_prefetch(self, session: Session, count: int, shared: bool) -> None:
        """Limit unsettled messages; 0 = no limit. [amqp-0.9.1 basic.qos, as RabbitMQ reads it]

        shared: all consumers of the session together, at once; else each consumer made later.
        """
        limit = count if count else UNLIMITED
        if shared:
            self.dispatcher.share(session, limit)
        else:
            session.consumer_limit = limit

    def set_flow(self, session: Session, active: bool) -> None:
        """Stop or resume deliveries to a session; after False, none is made [TX-10]."""
        session.flow = active
        if active:
            self._agenda.mark_session(session)

    def get(self, session: Session, queue: Queue, no_ack: bool) -> tuple[Slice, int] | None:
        """Take one message; return it with its tag, or None when none is ready.

        It may leave for the client only when `await_durable` says so if `get_must_wait` is true:
        the queue's mark does not yet cover it, or it is handed out once the disk has it.

        Raises: Unsupported (a stream).
        """
        if queue.settings.is_stream:
            raise _not_of_streams("basic.get", queue)
        self._use_head(queue)
        head = queue.head()
        while head is not None and not queue.rests and not self.quarantine.has_read(queue, head):
            self._use_head(queue)
            head = queue.head()
        if head is None or queue.rests:
            return None
        self.get_must_wait = queue.stored and not self.marks.cover(queue, head.first + 1)
        if head.first >= queue.shown or head.first in queue.returning:
            self.get_must_wait = True
        piece = queue.take(1)
        if queue.watched:
            self._agenda.mark(queue)  # what was behind it has a time of its own
        return piece, self._handover.acquire(session, queue, piece, None, no_ack)

    # -- settling

    def settle(
        self,
        session: Session,
        first: int,
        last: int,
        outcome: int,
        notes: Notes = (),
        due_ms: int = 0,
    ) -> None:
        """Settle tags first..last one after the other with one outcome.

        notes: what the consumer adds to the messages, where they are given back or refused [FC-20].
        due_ms: what is given back is not ready before then (engine time; 0: at once) and keeps its
        place [LC-1].

        Raises:
            PreconditionFailed: at the first tag that is unknown or settled; those before it are
            settled, it and those after it are not.
        """
        self.settlement.settle(session, first, last, outcome, notes, due_ms)

    def requeue(self, session: Session, tag: int, delay_ms: int) -> None:
        """Requeue one delivery at the tail of its queue, now or in `delay_ms` [NQ-12].

        Raises:
            PreconditionFailed: the tag is unknown or settled.
        """
        queue, piece = self.settlement.take_back(session, tag)
        queue.requeued += 1
        self.settlement.requeue(queue, piece, session.id, delay_ms)

    def touch(self, session: Session, tag: int, most_ms: int) -> None:
        """Restart the time-out of one delivery; it ends `most_ms` after the delivery at the latest
        [NQ-13].

        Raises:
            PreconditionFailed: the tag is unknown or settled.
        """
        self.timeouts.touch(session, tag, most_ms)

    def settle_up_to(self, session: Session, last: int, outcome: int) -> None:
        """Settle every outstanding tag up to `last`, or all when it is 0.

        Raises:
            PreconditionFailed: `last` itself is unknown or settled; nothing has changed.
        """
        self.settlement.settle_up_to(session, last, outcome)

    def recover(self, session: Session, outcome: int = RETURNED) -> None:
        """Return all unsettled messages of a session to their old positions, marked as redelivered
        [TX-8].

        outcome: RETURNED, or NACKED where the queues are to count it as they do basic.nack [DL-5].
        """
        self.settlement.return_all(session, records.RETURNED_BY_CLIENT, outcome)

    def drop_subscription(self, subscription: Subscription) -> int:
        """Delete a durable subscription for an operator. Messages that it leased and has not
        settled return to their old positions; returns their count."""
        queue = subscription.queue
        pieces = self.leases.remove(subscription)
        count = sum(len(piece) for piece in pieces)
        reason = records.RETURNED_BY_RELEASE
        self.settlement.give_back(queue, pieces, subscription.epoch, reason, False)
        self._maybe_unused(queue)
        return count

    # -- browsing

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
            self.store.finish(piece.payload, len(piece))

    # -- the turn

    def await_durable(self, waiter: object) -> None:
        """Request a Durable(waiter) effect once all records emitted so far are on disk."""
        self.durability.ask(waiter)

    def is_awaited(self) -> bool:
        """Return whether a confirm, a high-water mark or a waiter waits for the records emitted so
        far."""
        return self.durability.is_awaited()

    def has_work(self) -> bool:
        """Return whether a turn would do something that no later command announces."""
        return self.dispatcher.has_work() or bool(self.ledger.rows) or self.store.is_behind

    def turn(self, now_ms: int) -> list[Effect]:
        """Deliver messages to consumers; return all effects since the last turn, in order. now_ms:
        engine time."""
        self.clock.tell(now_ms)
        self.store.sweep()
        assert not self.transactions.is_half_done, "a transaction was carried out in part"
        assert not self.sinks.is_half_done, "a batch was published in part"
        for thing in self.state.deadlines.take_due(now_ms):
            self._look_at(thing)
        if self.pending.waiting:
            self.pending.look_at_topology()
        self.dispatcher.pump()
        if self.transactions.unrecorded:
            self.transactions.record_staged()
        settling = self._agenda.settling
        if settling:
            for queue in settling:
                self._flush_settled(queue)
            settling.clear()
        self.marks.look_around()
        effects = self.effects[:]
        self.effects.clear()
        return effects

    def next_due(self) -> int:
        """Return when a turn is due without any event; engine time, ms. deadlines.NEVER: never."""
        return self.state.deadlines.next_due()

    def _look_at(self, thing: Timed) -> None:
        """Handle a deadline that has come."""
        if isinstance(thing, Session):
            for consumer in self.timeouts.look_at(thing):
                self.cancel(consumer)
            return
        if isinstance(thing, Transaction):
            self.transactions.look_at(thing)
            return
        if isinstance(thing, Staging):
            self.sinks.look_at_staging(thing)
            return
        if isinstance(thing, Sink):
            self.sinks.look_at_sink(thing)
            return
        assert isinstance(thing, Queue), thing
        if thing.deleted:
            return
        expires = thing.settings.expires_ms
        if (
            expires >= 0
            and not thing.consumers
            and not thing.subscriptions
            and thing.used_ms + expires <= self.clock.now_ms
        ):
            self.vhosts[thing.vhost].expire_queue(thing)
            self._bury(thing)
        else:
            self._agenda.mark(thing)

    def _flush_settled(self, queue: Queue) -> None:
        for done in queue.settled_ranges:
            self.ledger.emit(
                settled_record(queue.id, done.low, done.high - done.low, done.reason, done.owner)
            )
        queue.settled_ranges.clear()

    def take_records(self) -> list[Record]:
        """Return the records since the last call, in order and in wall time. They must become one
        block."""
        return in_wall_time(self.ledger.take(), self.clock.ahead_ms)

    def committed(self, position: int) -> None:
        """Note that the records taken last are in the block that ends at `position` (no records:
        the present end of the journal)."""
        self.store.committed()
        self.durability.committed(position)

    def synced(self, position: int) -> list[Effect]:
        """Note that the journal is on disk up to `position`, and return the effects that this
        releases."""
        return self.durability.synced(position)

    def spill(self, budget: int, written: int) -> None:
        """Reduce the payload bytes in memory to `budget` where possible. Payloads in the journal
        below `written` need no memory. Called after the turn's effects are carried out."""
        if self.transactions.open and self.store.resident_bytes > budget:
            self.transactions.seal_all()
        self.store.spill(budget, written, self.ledger)
        self.backlogs.pack(written)

    def pack_all(self, written: int) -> None:
        """Pack deep backlogs after a restore; all their messages are in the journal."""
        for queue in self.queues.values():
            self.backlogs.look_at(queue)
        self.backlogs.pack(written)

    def check(self) -> None:
        """Assert the account of every queue against itself and against the sessions [LC-5]."""
        held: dict[int, int] = {}
        staged, staged_of = self.transactions.check()
        for connection in self.connections.values():
            for session in connection.sessions:
                self._check_shares(session)
                unacked = 0
                for entry in session.inflight:
                    n = sum(b - a + 1 for a, b in entry.pieces(entry.first, entry.last))
                    assert n == entry.left, (entry.first, entry.last, n, entry.left)
                    unacked += n
                    if not entry.queue.deleted and not entry.void:
                        held[entry.queue.id] = held.get(entry.queue.id, 0) + n
                unacked += staged_of.get(session.id, 0)
                assert unacked == session.unacked, (unacked, session.unacked)
        for queue in self.queues.values():
            queue.check()
            leased = sum(len(x.slice) for s in subscriptions_of(queue) for x in s.leases)
            assert leased == queue.account.leased, (queue.name, leased, queue.account.leased)
            assert queue.acquired == held.get(queue.id, 0) + leased, (queue.name, queue.acquired)
            parked = staged.get(queue.id, 0)
            assert queue.account.staged == parked, (queue.name, queue.account.staged, parked)
        self.sinks.check()

    def _check_shares(self, session: Session) -> None:
        """Assert that the shares of a session's consumers add up, and that no part of the shared
        limit is unused while a consumer waits for it."""
        reserved = 0
        assert 0 <= session.got <= session.unacked, (session.got, session.unacked)
        for consumer in session.consumers.values():
            reserved += consumer.share
            assert not consumer.share or consumer.queue.waits_for_disk(), consumer.tag
            assert consumer.in_line == (consumer.id in session.line), consumer.tag
        assert reserved == session.reserved, (reserved, session.reserved)
        connection = session.connection
        if session.flow and not connection.paused and not connection.gated and session.free() > 0:
            assert session.is_offered or not session.line, list(session.line)


def _consumes(connection: Connection, queue: Queue) -> bool:
    """Return whether this connection also consumes from the queue. Its socket has to be read then,
    or the queue never gets shorter."""
    return any(consumer.session.connection is connection for consumer in consumers_of(queue))


def _not_of_streams(what: str, queue: Queue) -> Unsupported:
    """Return RabbitMQ's error for an operation that streams do not support."""
    where = named("queue", queue.name, queue.vhost)
    return Unsupported(f"{what} not supported by stream queues {where}")
