"""The whole engine behind one object: commands in, records and effects out, time as data.

Commands are plain method calls on its parts, by what they are about:

    registry     virtual hosts, queues, policies     publishing   publishes
    contents     all messages of a queue             consuming    consumers, credit, single messages
    clients      connections, sessions               settlement   settling, requeuing
    transactions, sinks, leases, archives, redrives, readmission

One that raises BrokerError has changed nothing (`settle` excepted, see there). What they cause
gathers until the end of the turn:

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

from tallymark.engine.admission import Admission
from tallymark.engine.clients import Clients, Consuming
from tallymark.engine.clock import Timed, in_wall_time
from tallymark.engine.consumers import Consumers
from tallymark.engine.deadletters import DeadLetters
from tallymark.engine.delivery import Dispatcher
from tallymark.engine.durability import Durability, Marks
from tallymark.engine.effects import Effect
from tallymark.engine.entrance import Backlogs, Entrance
from tallymark.engine.handover import Handover
from tallymark.engine.leases import Leases
from tallymark.engine.message import Payload
from tallymark.engine.pending import PendingLetters
from tallymark.engine.publishing import Publishing
from tallymark.engine.quarantine import Quarantine
from tallymark.engine.queue import Queue, check_queue
from tallymark.engine.queue_consumers import check_consumers
from tallymark.engine.quotas import Quotas
from tallymark.engine.record import Record
from tallymark.engine.redrive import Redrives
from tallymark.engine.registry import Contents, Registry
from tallymark.engine.retries import Readmission, Retries
from tallymark.engine.session import Consumer, Session
from tallymark.engine.settlement import Settlement
from tallymark.engine.sinks import Sink, Sinks, Staging
from tallymark.engine.slow.consumers import SlowConsumers
from tallymark.engine.staging import Transaction
from tallymark.engine.state import State
from tallymark.engine.streams import Archives
from tallymark.engine.subscription import Subscription, subscriptions_of
from tallymark.engine.timeouts import Timeouts
from tallymark.engine.transactions import Transactions
from tallymark.engine.upkeep import Upkeep
from tallymark.engine.vhost import VirtualHost
from tallymark.stored import records
from tallymark.units import EngineMs, MessageId, Position

DEFAULT_VHOST: Final = "/"


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
        self.agenda = state.agenda
        self.traffic = state.traffic
        self.owner_ids = state.owner_ids
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
        self.quotas = Quotas()
        self.publishing = Publishing(
            state, self.backlogs, self.admission, self.durability, self.transactions, self.sinks
        )
        self._consumers = Consumers(state, self.upkeep)
        self.contents = Contents(
            state, self.dispatcher, self.upkeep, self.quarantine, self.entrance, self.admission,
            self.pending, self.settlement, self.transactions,
        )  # fmt: skip
        self.registry = Registry(
            state, self.quotas, self.dispatcher, self.contents, self._consumers, self.leases,
            self.settlement, self.timeouts, self.transactions, self.sinks, self.publishing,
        )  # fmt: skip
        self.consuming = Consuming(
            state, self._consumers, self.dispatcher, self._handover, self.marks, self.quarantine,
            self.settlement, self.registry,
        )  # fmt: skip
        self.clients = Clients(
            state, self.quotas, self._consumers, self.registry, self.settlement,
            self.transactions, self.publishing,
        )  # fmt: skip

    def vhost(self, name: str) -> VirtualHost:
        """Return the virtual host of that name. Raises NotFound."""
        return self.state.vhost(name)

    def tighten_marks(self) -> None:
        """Lower the high-water marks in the journal to what was really delivered, when nothing has
        happened for a while. O(queues)."""
        for queue in self.queues.values():
            if not queue.settings.is_stream:
                self.marks.tighten(queue)

    def deliver_after_sync(self, is_so: bool) -> None:
        """Set whether persistent messages that enter from now on are delivered only once they are
        on disk, for queues whose arguments and policies do not say."""
        self.agenda.syncs_first = is_so

    def new_message_ids(self, n: int) -> MessageId:
        """Reserve n consecutive broker-wide message ids; return the first."""
        return MessageId(self.state.message_ids.take(n))

    def drop_subscription(self, subscription: Subscription) -> int:
        """Delete a durable subscription for an operator. Messages that it leased and has not
        settled return to their old positions; returns their count. The queue's expiry starts anew,
        as where a consumer leaves."""
        queue = subscription.queue
        pieces = self.leases.remove(subscription)
        count = sum(len(piece) for piece in pieces)
        reason = records.RETURNED_BY_RELEASE
        self.settlement.give_back(queue, pieces, subscription.epoch, reason, False)
        self.upkeep.use(queue)
        self.registry.end_if_unused(queue)
        return count

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

    def turn(self, now_ms: EngineMs) -> list[Effect]:
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
        if self.agenda.settling:
            self._record_settled()
        self.marks.look_around()
        effects: list[Effect] = []
        if self.effects:
            effects += self.effects
            self.effects.clear()
        return effects

    def record_settled(self) -> bool:
        """Record what was settled since the last turn, as a turn does, if all else can wait for the
        next one: nobody is to be handed or told anything, and nobody waits for the disk. False: a
        turn is needed, and nothing was recorded."""
        agenda = self.agenda
        if (
            not agenda.settling
            or self.effects
            or self.dispatcher.has_work()
            or self.durability.is_awaited()
            or self.transactions.unrecorded
            or self.pending.waiting
            or self.store.is_behind
        ):
            return False
        self._record_settled()
        return True

    def _record_settled(self) -> None:
        settling = self.agenda.settling
        for queue in settling:
            self.settlement.record_settled(queue)
        settling.clear()

    def next_due(self) -> EngineMs:
        """Return when a turn is due without any event; engine time, ms. deadlines.NEVER: never."""
        return self.state.deadlines.next_due()

    def _look_at(self, thing: Timed) -> None:
        """Handle a deadline that has come."""
        match thing:
            case Queue():
                self.registry.look_at(thing)
            case Session():
                for consumer in self.timeouts.look_at(thing):
                    self.consuming.cancel(consumer)
            case Transaction():
                self.transactions.look_at(thing)
            case Staging():
                self.sinks.look_at_staging(thing)
            case Sink():
                self.sinks.look_at_sink(thing)
            case _:
                raise TypeError(f"{type(thing).__name__} has a deadline that nobody attends to")

    def take_records(self) -> list[Record]:
        """Return the records since the last call, in order and in wall time. They must become one
        block."""
        return in_wall_time(self.ledger.take(), self.clock.ahead_ms)

    def committed(self, position: Position) -> int:
        """Note that the records taken last are in the block that ends at `position` (no records:
        the present end of the journal); return the number of publishes that are confirmed once it
        is on disk."""
        self.store.committed()
        return self.durability.committed(position)

    def synced(self, position: Position) -> list[Effect]:
        """Note that the journal is on disk up to `position`, and return the effects that this
        releases."""
        return self.durability.synced(position)

    def spill(self, budget: int, written: Position) -> None:
        """Reduce the payload bytes in memory to `budget` where possible. Payloads in the journal
        below `written` need no memory. Called after the turn's effects are carried out."""
        if self.transactions.open and self.store.resident_bytes > budget:
            self.transactions.seal_all()
        self.store.spill(budget, written, self.ledger)
        self.backlogs.pack(written)

    def pack_all(self, written: Position) -> None:
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
                    who = entry.consumer
                    if who is not None:
                        assert who.held_from <= entry.first, (who.tag, entry.first)
                        assert entry.last <= who.held_to, (who.tag, entry.last)
                    if not entry.void:
                        assert session.sources[entry.queue.id] <= entry.first, entry.first
                        assert session in self.state.holders.of(entry.queue), entry.queue.name
                        held[entry.queue.id] = held.get(entry.queue.id, 0) + n
                unacked += staged_of.get(session.id, 0)
                assert unacked == session.unacked, (unacked, session.unacked)
        for queue in self.queues.values():
            check_queue(queue)
            check_consumers(queue)
            leased = sum(len(x.slice) for s in subscriptions_of(queue) for x in s.leases)
            assert leased == queue.account.leased, (queue.name, leased, queue.account.leased)
            assert queue.acquired == held.get(queue.id, 0) + leased, (queue.name, queue.acquired)
            parked = staged.get(queue.id, 0)
            assert queue.account.staged == parked, (queue.name, queue.account.staged, parked)
        self.sinks.check()

    def _keeps_share(self, consumer: Consumer) -> bool:
        """Return whether the consumer may have a share now: the next turn looks at it, and until
        then its queue waits for the disk, or has waited, or has nothing more for it."""
        if not self.dispatcher.has_granted(consumer):
            return False
        queue = consumer.queue
        return queue.waits_for_disk() or queue.dirty or not consumer.is_waiting()

    def _check_shares(self, session: Session) -> None:
        """Assert that the shares of a session's consumers add up, and that no part of the shared
        limit is unused while a consumer waits for it."""
        reserved = 0
        assert 0 <= session.got <= session.unacked, (session.got, session.unacked)
        for consumer in session.consumers.values():
            reserved += consumer.share
            assert not consumer.share or self._keeps_share(consumer), consumer.tag
            assert consumer.in_line == (consumer.id in session.line), consumer.tag
        assert reserved == session.reserved, (reserved, session.reserved)
        connection = session.connection
        if session.flow and not connection.paused and not connection.gated and session.free() > 0:
            assert session.is_offered or not session.line, list(session.line)
