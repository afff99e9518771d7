"""Registry: virtual hosts, queues and policies come and go; commands on all messages of a queue
together."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, final

from tallymark.engine import definitions
from tallymark.engine.account import ACQUIRED, MOVING, SETTLED
from tallymark.engine.admission import Admission
from tallymark.engine.arguments import check_default_type
from tallymark.engine.consumers import Consumers
from tallymark.engine.delivery import Dispatcher
from tallymark.engine.effects import Cancelled, Signal
from tallymark.engine.entrance import Entrance
from tallymark.engine.exchange import Exchange
from tallymark.engine.inflight import ranges_of
from tallymark.engine.leases import Leases
from tallymark.engine.ledger import (
    definition_record,
    settled_record,
)
from tallymark.engine.message import Slice
from tallymark.engine.pending import PendingLetters
from tallymark.engine.policies import Policy
from tallymark.engine.publishing import Publishing
from tallymark.engine.quarantine import Quarantine
from tallymark.engine.queue import Queue
from tallymark.engine.queue_consumers import consumers_of
from tallymark.engine.quotas import Quotas
from tallymark.engine.session import REQUEUES, Connection, InFlight
from tallymark.engine.settlement import Settlement
from tallymark.engine.sinks import Sinks
from tallymark.engine.state import State
from tallymark.engine.streams import not_of_streams
from tallymark.engine.subscription import subscriptions_of
from tallymark.engine.timeouts import Timeouts
from tallymark.engine.topology import Targets
from tallymark.engine.transactions import Transactions
from tallymark.engine.upkeep import Upkeep
from tallymark.engine.vhost import VirtualHost, check_description
from tallymark.stored import records
from tallymark.stored.annotations import deferred_until
from tallymark.units import EngineMs

IDS_IN_A_TURN: Final = 8192
"""Number of ids of a queue that are forgotten in one turn."""


@final
class Contents:
    """Purges and empties queues, moves their messages, and reads them."""

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
        self._holders = state.holders
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
            self._transactions.drop(queue, records.DROPPED_PURGED)

    def _empty_in_flight(self, queue: Queue, reason: int) -> None:
        """End all messages that sessions hold of a queue that is emptied [NQ-15]. Tags of a
        consumer whose time-outs requeue (NSQ) are removed from the session; other tags can still be
        settled, without effect."""
        account = queue.account
        for session in self._holders.of(queue):
            gone: set[InFlight] = set()
            for entry in ranges_of(session, queue):
                if account.acquired <= account.leased:
                    break
                if entry.queue is not queue or entry.void:
                    continue
                consumer = entry.consumer
                is_lenient = consumer is not None and consumer.on_timeout == REQUEUES
                for low, high in entry.pieces(entry.first, entry.last):
                    piece = entry.part(low, high)
                    account.move(piece, ACQUIRED, MOVING)
                    self._state.drop(queue, piece, reason)
                    if is_lenient:
                        self._settlement.free_credit(session, entry.consumer, len(piece))
                if is_lenient:
                    gone.add(entry)
                else:
                    entry.void = True
            if gone:
                session.inflight = deque([one for one in session.inflight if one not in gone])

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


@final
class Registry:
    """Commands on topology that concern messages, consumers and sinks as well."""

    def __init__(
        self,
        state: State,
        quotas: Quotas,
        dispatcher: Dispatcher,
        contents: Contents,
        consumers: Consumers,
        leases: Leases,
        settlement: Settlement,
        timeouts: Timeouts,
        transactions: Transactions,
        sinks: Sinks,
        publishing: Publishing,
    ) -> None:
        self._agenda = state.agenda
        self._clock = state.clock
        self._connections = state.connections
        self._effects = state.effects
        self._ledger = state.ledger
        self._queues = state.queues
        self._state = state
        self._vhosts = state.vhosts
        self._quotas = quotas
        self._dispatcher = dispatcher
        self._contents = contents
        self._consumers = consumers
        self._leases = leases
        self._settlement = settlement
        self._timeouts = timeouts
        self._transactions = transactions
        self._sinks = sinks
        self._publishing = publishing
        self.observers: list[Callable[[Queue, bool], None]] = []
        """Callbacks called at once with each queue that is declared (True) or deleted (False)."""
        self.followers: list[Callable[[Queue], None]] = []
        """Callbacks called at once with each queue that was bound, unbound, paused or resumed by a
        command of its own, and not with the exchange, the queue or the virtual host."""
        self.exchange_followers: list[Callable[[str, Exchange], None]] = []
        """Callbacks called at once with each exchange that is declared, and its virtual host's
        name."""
        self.policy_checks: list[Callable[[Policy], None]] = []
        """Callbacks called with each policy before it is set; they raise PreconditionFailed to
        refuse it. Policies read from the journal were checked when they were set."""

    def add_vhost(self, name: str) -> VirtualHost:
        """Return the virtual host of that name. It is made and recorded if it does not exist."""
        vhost = self._vhosts.get(name)
        if vhost is None:
            self._ledger.emit(definition_record(definitions.vhost_definition(name)))
            vhost = self.enter_vhost(name)
        return vhost

    def delete_vhost(self, name: str) -> None:
        """End a virtual host with all that is in it; nobody is connected to it.

        Raises: NotFound, PreconditionFailed (it is protected).
        """
        vhost = self._state.vhost(name)
        vhost.check_deletable()
        deleter = Connection(self._state.owner_ids(), name, "", "")
        while vhost.queues:  # the backlog of an NSQ topic is made anew while there are channels
            for queue in list(vhost.queues.values()):
                if not queue.deleted:  # by the end of another, as those of an ephemeral NSQ topic
                    self.delete_queue(deleter, queue.name, False, False)
        for exchange in list(vhost.exchanges):
            if exchange and not exchange.startswith("amq."):
                vhost.delete_exchange(exchange, False)
        self._sinks.forget_vhost(name)
        self._ledger.emit(definition_record(definitions.vhost_deletion(name)))
        del self._vhosts[name]

    def enter_vhost(self, name: str) -> VirtualHost:
        """Add a virtual host without a record, because it is in the journal already."""
        vhost = VirtualHost(name, self._clock, self._ledger, self._state.queue_ids)
        vhost.followers = self.followers
        vhost.exchange_followers = self.exchange_followers
        self._vhosts[name] = vhost
        return vhost

    def set_default_queue_type(self, vhost: VirtualHost, type: str) -> None:
        """Set the type of queues whose declaration names none, for future declarations; "":
        classic.

        Raises: PreconditionFailed.
        """
        check_default_type(type)
        if vhost.topology.default_queue_type != type:
            vhost.topology.default_queue_type = type
            self._ledger.emit(definition_record(vhost.topology.own_definition()))

    def describe_vhost(self, vhost: VirtualHost, description: str, tags: tuple[str, ...]) -> None:
        """Set what a virtual host says of itself to people.

        Raises: PreconditionFailed (too long).
        """
        check_description(description, tags)
        topology = vhost.topology
        if topology.description != description or topology.tags != tags:
            topology.description = description
            topology.tags = tags
            self._ledger.emit(definition_record(topology.own_definition()))

    def protect_vhost(self, vhost: VirtualHost, is_protected: bool) -> None:
        """Protect a virtual host from deletion, or no longer. [rabbitmq deletion protection]"""
        if vhost.topology.is_protected != is_protected:
            vhost.topology.is_protected = is_protected
            self._ledger.emit(definition_record(vhost.topology.own_definition()))

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
        vhost = self._state.vhost(connection.vhost)
        if not passive and (not name or name not in vhost.queues):
            self._quotas.check_queue(vhost.name, name, len(vhost.queues))
        queue = vhost.declare_queue(
            name, durable, exclusive, auto_delete, arguments, connection.id, passive
        )
        traffic = self._state.traffic
        traffic.queues_declared += 1
        if queue.id not in self._queues:
            self._queues[queue.id] = queue
            traffic.queues_created += 1
            if queue.exclusive_owner:
                connection.exclusive_queues[queue.id] = queue
            for observer in self.observers:
                observer(queue, True)
        self._dispatcher.use(queue)
        return queue

    def revive(self, queue: Queue) -> None:
        """Start a queue's timers now, after a restart."""
        queue.used_ms = self._clock.now_ms
        queue.follow(queue.settings)
        self._forget_ids(queue)
        if queue.watched:
            self._agenda.mark(queue)

    def resettle(self, queue: Queue) -> None:
        """Apply changed settings of a queue at once."""
        queue.used_ms = self._clock.now_ms
        queue.retry.due_ms = EngineMs(0)
        self._agenda.mark(queue)

    def delete_queue(
        self, connection: Connection, name: str, if_unused: bool, if_empty: bool
    ) -> int:
        """Delete a queue with all it holds; return how many messages nobody held.

        Raises:
            NotFound, ResourceLocked, PreconditionFailed (in use, not empty).
        """
        vhost = self._state.vhost(connection.vhost)
        known = vhost.queues.get(name)
        if known is not None:
            self._dispatcher.use_head(known)
        return self.end(vhost.delete_queue(name, if_unused, if_empty, connection.id))

    def pause(self, queue: Queue, paused: bool) -> None:
        """Stop or resume deliveries from a queue to all its consumers. Survives a restart if the
        queue does [NQ-9]."""
        if queue.paused != paused:
            self._state.vhost(queue.vhost).pause_queue(queue, paused)
            self._agenda.mark(queue)

    def keep(self, queue: Queue, kept: bool) -> None:
        """Have a queue not expire, because a part of the broker needs it that does not read it; or
        have its time begin anew [x-expires]. Says nothing to the journal."""
        if queue.kept != kept:
            queue.kept = kept
            queue.used_ms = self._clock.now_ms
            if queue.watched:
                self._agenda.mark(queue)

    def end(self, queue: Queue) -> int:
        """End everything that depends on a queue, after it was removed from its virtual host's
        tables. Returns the count of messages that nobody held."""
        self._state.traffic.queues_deleted += 1
        self._settlement.record_settled(queue)
        reason = records.DROPPED_QUEUE_DELETED
        count = self._contents.drop_all(queue, reason)
        for consumer in list(consumers_of(queue)):
            self._consumers.remove(consumer)
            self._effects.append(Cancelled(consumer))
        for subscription in list(subscriptions_of(queue)):
            for piece in self._leases.remove(subscription):
                queue.account.move(piece, ACQUIRED, MOVING)
                self._state.drop(queue, piece, reason)
        if queue.acquired:
            sessions = self._state.holders.of(queue)
            self._settlement.drop_in_flight(sessions, queue, reason)
        self._state.holders.end_queue(queue)
        if queue.account.staged:
            self._transactions.drop(queue, reason)
        queue.deleted = True
        self._publishing.release(queue)
        self._state.deadlines.forget(queue)
        del self._queues[queue.id]
        owner = self._connections.get(queue.exclusive_owner)
        if owner is not None:
            owner.exclusive_queues.pop(queue.id, None)
        for observer in self.observers:
            observer(queue, False)
        self._effects.append(
            Signal("queue.deleted", {"vhost": queue.vhost, "queue": queue.name, "ready": count})
        )
        return count

    def end_if_unused(self, queue: Queue) -> None:
        """End a queue without consumers that is to end with its last one [auto-delete]."""
        if (
            queue.had_consumer
            and not queue.consumers
            and not queue.subscriptions
            and self._state.vhost(queue.vhost).queue_unused(queue)
        ):
            self.end(queue)

    def set_policy(self, vhost_name: str, policy: Policy, operator: bool = False) -> None:
        """Set a policy, or an operator policy, effective at once.

        Raises: NotFound (virtual host), PreconditionFailed (its definition). What was there stays.
        """
        vhost = self._state.vhost(vhost_name)
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
        vhost = self._state.vhost(vhost_name)
        vhost.delete_policy(name, operator)
        self._resettle(vhost)

    def _resettle(self, vhost: VirtualHost) -> None:
        if not vhost.updated_queues:
            return
        for queue in vhost.updated_queues:
            self._timeouts.watch(queue)
            self.resettle(queue)
        vhost.updated_queues.clear()

    def look_at(self, queue: Queue) -> None:
        """Handle a deadline of a queue that has come: it expires, or its messages do."""
        if queue.deleted:
            return
        expires_ms = queue.used_ms + queue.settings.expires_ms
        if queue.may_expire() and expires_ms <= self._clock.now_ms:
            self._vhosts[queue.vhost].expire_queue(queue)
            self.end(queue)
        else:
            self._forget_ids(queue)
            self._agenda.mark(queue)

    def _forget_ids(self, queue: Queue) -> None:
        """Forget ids beyond a queue's window where nobody publishes to it. It is looked at again
        once in that time, and in the next turn where they are many."""
        ids = queue.deduplication
        if ids.ids:
            now, window_ms = self._clock.now_ms, queue.settings.dedup_ms
            is_done = ids.forget_until(EngineMs(now - window_ms), IDS_IN_A_TURN)
            if ids.ids:
                self._state.deadlines.arm(queue, EngineMs(now + window_ms) if is_done else now)
