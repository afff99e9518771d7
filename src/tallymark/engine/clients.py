"""Commands of clients: connections and sessions come and go; consumers, credit, single messages."""

from __future__ import annotations

from typing import final

from tallymark.engine.arguments import consumer_timeout_ms
from tallymark.engine.consumers import Consumers
from tallymark.engine.delivery import Dispatcher
from tallymark.engine.durability import Marks
from tallymark.engine.errors import NotAllowed
from tallymark.engine.handover import Handover
from tallymark.engine.message import Filter, Slice
from tallymark.engine.names import named
from tallymark.engine.publishing import Publishing
from tallymark.engine.quarantine import Quarantine
from tallymark.engine.queue import Queue
from tallymark.engine.queue_consumers import active_of, reconsider
from tallymark.engine.quotas import Quotas
from tallymark.engine.registry import Registry
from tallymark.engine.session import Connection, Consumer, Session
from tallymark.engine.settlement import Settlement
from tallymark.engine.state import TURN_BYTES, State
from tallymark.engine.streams import Start, not_of_streams
from tallymark.engine.transactions import Transactions
from tallymark.stored import records
from tallymark.units import UNLIMITED, Ms, QueueSequence


@final
class Clients:
    """The commands by which connections and sessions are opened and closed."""

    def __init__(
        self,
        state: State,
        quotas: Quotas,
        consumers: Consumers,
        registry: Registry,
        settlement: Settlement,
        transactions: Transactions,
        publishing: Publishing,
    ) -> None:
        self._agenda = state.agenda
        self._connections = state.connections
        self._state = state
        self._traffic = state.traffic
        self._quotas = quotas
        self._consumers = consumers
        self._registry = registry
        self._settlement = settlement
        self._transactions = transactions
        self._publishing = publishing

    def open_connection(self, vhost: str, user: str, name: str) -> Connection:
        """Open a connection. Raises NotFound if the virtual host does not exist, NotAllowed above a
        limit."""
        self._state.vhost(vhost)
        self._quotas.enter(vhost, user)
        connection = Connection(self._state.owner_ids(), vhost, user, name)
        connection.allowance = connection.room = TURN_BYTES
        self._connections[connection.id] = connection
        self._traffic.connections_opened += 1
        return connection

    def close_connection(self, connection: Connection, lost: bool) -> None:
        """End a connection: its sessions close, its exclusive queues are deleted. A second call has
        no effect."""
        for session in list(connection.sessions):
            self.close_session(session, lost)
        for queue in list(connection.exclusive_queues.values()):
            self._registry.delete_queue(connection, queue.name, False, False)
        if self._connections.pop(connection.id, None) is not None:
            self._quotas.leave(connection.vhost, connection.user)
            self._traffic.connections_closed += 1
        self._publishing.forget(connection)

    def open_session(self, connection: Connection) -> Session:
        """Open a session. Raises NotAllowed above a limit."""
        self._quotas.begin(connection.user)
        session = Session(self._state.owner_ids(), connection)
        connection.sessions.append(session)
        self._traffic.sessions_opened += 1
        return session

    def close_session(self, session: Session, lost: bool) -> None:
        """End a session: its consumers stop, its transactions are rolled back, unsettled messages
        return to their old positions.

        lost: the peer vanished without a closing handshake. Repeating is no error.
        """
        if session.closed:
            return
        session.closed = True
        self._traffic.sessions_closed += 1
        self._quotas.end(session.connection.user)
        self._state.deadlines.forget(session)
        session.connection.sessions.remove(session)
        consumers = list(session.consumers.values())
        for consumer in consumers:
            self._consumers.remove(consumer)
        reason = records.RETURNED_BY_LOSS if lost else records.RETURNED_BY_CLOSE
        self._transactions.close_session(session, lost)
        self._settlement.return_all(session, reason)
        self._state.holders.end_session(session)
        for consumer in consumers:
            self._registry.end_if_unused(consumer.queue)

    def wake(self, connection: Connection) -> None:
        """Resume deliveries to a connection that can take output again (`paused` is false now)."""
        for session in connection.sessions:
            self._agenda.mark_session(session)


@final
class Consuming:
    """The commands by which messages are consumed."""

    def __init__(
        self,
        state: State,
        consumers: Consumers,
        dispatcher: Dispatcher,
        handover: Handover,
        marks: Marks,
        quarantine: Quarantine,
        settlement: Settlement,
        registry: Registry,
    ) -> None:
        self._agenda = state.agenda
        self._clock = state.clock
        self._consumers = consumers
        self._dispatcher = dispatcher
        self._handover = handover
        self._marks = marks
        self._quarantine = quarantine
        self._settlement = settlement
        self._registry = registry
        self.get_must_wait = False
        """True if the message that `get` returned last must wait for `Broker.await_durable`."""

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
        consumer = self._consumers.add(
            session, queue, tag, no_ack, exclusive, priority, consumer_timeout_ms(arguments)
        )
        queue.had_consumer = True
        if filter is None:
            active = active_of(queue)
            if active is None or active.is_retired:
                queue.active = consumer
        else:
            consumer.filter = filter
            self._seek(consumer)
        self._consumers.tell_start(consumer)
        return consumer

    def browse(self, session: Session, queue: Queue, tag: str, filter: Filter | None) -> Consumer:
        """Start a consumer that is sent copies of all messages, ready now or later, each once and
        in order. It removes none, and its tags need no settlement. A queue that was only browsed
        does not end with it [auto-delete].

        Raises: NotAllowed, AccessRefused: as consume.
        """
        consumer = self._consumers.add(session, queue, tag, True, False, 0, Ms(0))
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
        consumer = self._consumers.add(session, queue, tag, no_ack, False, 0, Ms(0))
        consumer.browses = True
        consumer.filter = filter
        self._seek(consumer)
        consumer.cursors = [start.place(queue, self._clock)]
        return consumer

    def _seek(self, consumer: Consumer) -> None:
        queue = consumer.queue
        consumer.cursors = [1] * len(queue.lanes.by_priority)
        queue.seekers.append(consumer)

    def cancel(self, consumer: Consumer) -> None:
        """Stop a consumer; its unsettled messages stay with its session [LC]."""
        self._consumers.remove(consumer)
        self._registry.end_if_unused(consumer.queue)

    def detach(self, consumer: Consumer) -> None:
        """Stop a consumer; its unsettled messages return to their old positions, not counted as
        failed [FC-19]."""
        self._consumers.remove(consumer)
        self._settlement.return_of(consumer.session, consumer, records.RETURNED_BY_CLOSE)
        self._registry.end_if_unused(consumer.queue)

    def retire(self, consumer: Consumer) -> None:
        """Give a consumer nothing more. It stays among its queue's until it ends, and settles what
        it holds; where one consumer is active, the next takes over. [nsq CLS]"""
        if not consumer.active:
            return
        consumer.is_retired = True
        self.set_limit(consumer, 0)
        self._consumers.hand_over_activity(consumer)

    def grant(self, consumer: Consumer, credit: int, drain: bool) -> None:
        """Set a consumer's credit to `credit` messages [FC-3]. drain: credit that is unused when no
        more messages are available becomes void, announced by a Drained effect [FC-5]."""
        if not consumer.active:
            return
        queue = consumer.queue
        consumer.by_link = True
        consumer.limit = credit
        reconsider(consumer)
        self._consumers.note_credit(consumer)
        if drain and not consumer.draining:
            queue.draining += 1
        consumer.draining = drain
        if drain or queue.ready:
            self._agenda.mark(queue)

    def set_limit(self, consumer: Consumer, limit: int) -> None:
        """Set the number of messages that a consumer may hold unsettled. [nsq RDY]"""
        if not consumer.active:
            return
        consumer.limit = limit
        reconsider(consumer)
        self._consumers.note_credit(consumer)
        if consumer.queue.ready:
            self._agenda.mark(consumer.queue)

    def set_prefetch(self, session: Session, count: int, shared: bool) -> None:
        """Limit unsettled messages; 0 = no limit. [amqp-0.9.1 basic.qos, as RabbitMQ reads it]

        shared: all consumers of the session together, at once; else each consumer made later.
        """
        limit = count if count else UNLIMITED
        if shared:
            self._dispatcher.share(session, limit)
            self._consumers.note_shared(session)
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
            raise not_of_streams("basic.get", queue)
        self._dispatcher.use_head(queue)
        head = queue.head()
        while head is not None and not queue.rests and not self._quarantine.has_read(queue, head):
            self._dispatcher.use_head(queue)
            head = queue.head()
        if head is None or queue.rests:
            queue.handed_out.got_nothing += 1
            return None
        self.get_must_wait = queue.stored and not self._marks.cover(
            queue, QueueSequence(head.first + 1)
        )
        if head.first >= queue.disk_hold.shown or head.first in queue.disk_hold.returning:
            self.get_must_wait = True
        piece = queue.take(1)
        if no_ack:
            queue.handed_out.got_for_good += 1
        else:
            queue.handed_out.got_to_settle += 1
        tag = self._handover.acquire(session, queue, piece, None, no_ack)
        if queue.watched:  # what was behind it has a time of its own
            self._agenda.mark(queue)
            self._dispatcher.expire_behind(queue)
        return piece, tag
