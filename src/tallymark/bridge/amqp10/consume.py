"""Links on which clients consume: our end, which sends deliveries as the engine makes them.

Credit is the engine's to count [LC-3]; the wire counts along. A delivery leaves at once, or behind
what the session's window holds back: then the engine hands out no more for the session until that
has left.
"""

from __future__ import annotations

from typing import Final, final

from tallymark.bridge.amqp10.client import Session, Work, number_of
from tallymark.bridge.amqp10.delivery import Outgoing, Run
from tallymark.bridge.amqp10.errors import error_of
from tallymark.bridge.amqp10.links import LinkEnd
from tallymark.bridge.amqp10.work import TXN_ID, find, unknown
from tallymark.bridge.permissions import CONFIGURE, QUEUE, READ
from tallymark.engine.effects import Deliver, TimedOut
from tallymark.engine.errors import AccessRefused
from tallymark.engine.outcomes import DISCARDED
from tallymark.engine.queue import Queue
from tallymark.engine.session import Consumer
from tallymark.engine.timeouts import timeout_of
from tallymark.units import Tag
from tallymark.wire.amqp10 import errors
from tallymark.wire.amqp10.events import CreditReceived
from tallymark.wire.amqp10.outcomes import DeliveryState, Error, Released
from tallymark.wire.amqp10.sender_link import SenderLink

RELEASED: Final = Released()
ACTIVE: Final = "rabbitmq:active"
"""Property of our flows on a link from a queue with a single active consumer: True if the link's
consumer is the active one. Sent with the first credit, and when it changes
[rabbitmq link state properties]."""


@final
class OutgoingLink(LinkEnd):
    """Our end of a link on which a client consumes (see the module's docstring). It is the
    Consumer.handle."""

    __slots__ = (
        "_has_credit",
        "_is_dynamic",
        "_outgoing",
        "_settled",
        "consumer",
        "default_outcome",
        "link",
        "session",
        "work",
    )

    def __init__(
        self,
        session: Session,
        link: SenderLink,
        consumer: Consumer,
        settled: bool,
        is_dynamic: bool,
    ) -> None:
        self.session = session
        self.link = link
        self.consumer = consumer
        self._settled = settled
        """True if deliveries are sent settled."""
        self._has_credit = False
        """True once the client has granted credit."""
        self._is_dynamic = is_dynamic
        """True if the queue was made for this link, and is deleted with it."""
        self.default_outcome: DeliveryState = RELEASED
        """Outcome of a delivery that is settled without one."""
        self._outgoing = Outgoing(consumer.queue.settings.is_stream)
        self.work: Work | None = None
        """Transaction under which deliveries are acquired, while it is open [TX-16]."""

    @property
    def available(self) -> int:
        """Return the count of messages available to the link, including those that its filter would
        not match."""
        queue = self.consumer.queue
        if not queue.settings.is_stream:
            return queue.ready
        return min(queue.ready, max(0, queue.end() - self.consumer.cursors[0]))

    def granted(self, event: CreditReceived) -> None:
        said = event.properties
        if said is not None and TXN_ID in said and not self._acquire_under(said[TXN_ID]):
            return
        self.link.available = self.available
        if not self._has_credit:
            self._has_credit = True
            self._say_active()
        self.session.client.broker.consuming.grant(self.consumer, event.credit, event.drain)

    def activated(self) -> None:
        """Tell the client that its consumer has become the active one, or no longer is."""
        if self._has_credit and self.consumer.active:
            self._say_active()

    def _say_active(self) -> None:
        consumer = self.consumer
        queue = consumer.queue
        if queue.settings.single_active and not consumer.browses:
            self.link.flow(properties={ACTIVE: queue.active is consumer})

    def _acquire_under(self, id: object) -> bool:
        """Acquire deliveries from now on under the transaction that the client names; None: under
        none. False: that is not possible, and the link was ended."""
        if id is None:
            self.work = None
            return True
        work = find(self.session.client, id)
        if work is None:
            self.close(unknown(id))
            return False
        if self._settled or self.consumer.browses:
            text = "link sends copies or settled deliveries: it cannot do so in a transaction"
            self.close(Error(errors.NOT_IMPLEMENTED, text))
            return False
        self.work = work
        return True

    def deliver(self, effect: Deliver) -> None:
        session, consumer, link = self.session, self.consumer, self.link
        queue = consumer.queue
        piece = effect.slice
        if not consumer.active:
            session.wire.skip(len(piece))
            return
        broker = session.client.broker
        locked_until_ms = 0
        if not (consumer.no_ack or consumer.browses):
            lock_ms = timeout_of(consumer, queue)
            if lock_ms:
                locked_until_ms = broker.clock.wall_ms + lock_ms
        tag = effect.first_tag
        state: DeliveryState | None = None
        work = self.work
        if work is not None and work.transaction.ended:
            work = self.work = None
        if work is not None:
            last = tag + len(piece) - 1
            broker.transactions.acquired(work.transaction, session.engine, tag, Tag(last))
            state = work.state
        for run in self._outgoing.runs(piece, queue.shows_counts, locked_until_ms):
            size = run.cuts[run.hi] - run.cuts[run.lo] + len(run.front)
            if 0 < link.max_message_size < size:  # size of all of them together
                self._send_fitting(run, tag, state)
            else:
                number = link.send_run(
                    run.raw, run.cuts, run.lo, run.hi, settled=self._settled, front=run.front,
                    skip=run.skip, state=state,
                )  # fmt: skip
                assert number == number_of(tag), (number, tag)
            tag = Tag(tag + run.hi - run.lo)
        link.available = self.available
        if session.wire.is_blocked and session.engine.flow:
            broker.consuming.set_flow(session.engine, False)

    def _send_fitting(self, run: Run, tag: int, state: DeliveryState | None) -> None:
        """Send a run to a client with a maximum message size. Larger messages are rejected in its
        name, and so dead-lettered."""
        link, session = self.link, self.session
        most = link.max_message_size + run.skip - len(run.front)
        start = run.lo
        for i in range(run.lo, run.hi + 1):
            if i < run.hi and run.cuts[i + 1] - run.cuts[i] <= most:
                continue
            if start < i:
                link.send_run(
                    run.raw, run.cuts, start, i, settled=self._settled, front=run.front,
                    skip=run.skip, state=state,
                )  # fmt: skip
            if i < run.hi:
                session.wire.skip(1)
                broker = session.client.broker
                if not self.consumer.no_ack:  # settled deliveries and copies are not in flight
                    one = tag + i - run.lo
                    broker.settlement.settle(session.engine, Tag(one), Tag(one), DISCARDED)
                self.give_credit_back(1)
            start = i + 1

    def give_credit_back(self, count: int) -> None:
        """Return engine credit for deliveries that cost the client no link credit."""
        consumer = self.consumer
        broker = self.session.client.broker
        broker.consuming.grant(consumer, consumer.limit + count, consumer.draining)

    def drained(self) -> None:
        """Complete a drain: the engine has no more messages for the link now."""
        consumer = self.consumer
        self.link.available = self.available
        self.link.drained()
        if consumer.limit:  # credit returned for messages that were too large
            self.session.client.broker.consuming.grant(consumer, 0, False)

    def timed_out(self, effect: TimedOut) -> None:
        """Tell the client that deliveries exceeded the time-out and were returned to their queue
        [FC-18]."""
        for first, last in effect.tags:
            self.session.wire.settle_sent(
                number_of(first), number_of(last), RELEASED, settled=False
            )

    def rights_changed(self) -> None:
        """Check the permissions for the attach again, and end the link if they are missing."""
        operation = CONFIGURE if self._is_dynamic else READ
        try:
            self.session.client.access.check(QUEUE, self.consumer.queue.name, operation)
        except AccessRefused as error:
            self.close(error_of(error))

    def queue_deleted(self) -> None:
        """Detach the link because its queue was deleted; the engine has stopped the consumer."""
        self.session.client.lose(self)

    def detach_deleted(self) -> None:
        if self not in self.session.ends:
            return
        queue = self.consumer.queue
        text = f"queue '{queue.name}' in vhost '{queue.vhost}' was deleted"
        self.close(Error(errors.RESOURCE_DELETED, text))

    def close(self, error: Error) -> None:
        """End the link from our side; its unsettled messages return to their queue. The client may
        settle them under a transaction before it hears of that, which has to fail then."""
        taken_back = self.session.taken_back
        for entry in self.session.engine.inflight:
            if entry.consumer is self.consumer and (entry.queue.deleted or not entry.void):
                for low, high in entry.pieces(entry.first, entry.last):
                    taken_back.add(low, high + 1)
        self.link.detach(error)
        self.session.leave(self.link)

    def gone(self, with_session: bool) -> None:
        broker = self.session.client.broker
        queue: Queue = self.consumer.queue
        if with_session:
            self.consumer.handle = None
        else:
            broker.consuming.detach(self.consumer)
        if self._is_dynamic and not queue.deleted:
            broker.registry.delete_queue(self.session.client.connection, queue.name, False, False)
