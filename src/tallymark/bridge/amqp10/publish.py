"""Links on which clients publish: our end, with credit, outcomes and the routing of messages.

Credit follows RabbitMQ's rule [FC-8]: the full amount at the start, and again whenever half of it
is used, unless as many messages are still being written to disk. So memory is bounded and clients
do not wait.

Messages that cannot be published are refused one by one: rejected with the error, or released if no
queue takes them [rabbitmq AMQP 1.0 outcomes]. If the client sent such a message settled, it cannot
be told by an outcome, and the link is closed [amqp-1.0 anonymous terminus].
"""

from __future__ import annotations

from typing import Final, final

from tallymark.bridge.amqp10.arrivals import Arrival, Arrivals
from tallymark.bridge.amqp10.client import Session
from tallymark.bridge.amqp10.confirms import FIRST, NEVER, SECOND
from tallymark.bridge.amqp10.errors import error_of
from tallymark.bridge.amqp10.stretch import RELEASED, Destination, Stretch, StretchLink
from tallymark.bridge.amqp10.work import find, unknown
from tallymark.bridge.conversion.annotated import shown
from tallymark.bridge.permissions import EXCHANGE, WRITE, check_keys
from tallymark.engine.errors import AccessRefused, BrokerError, PreconditionFailed
from tallymark.engine.queue import Queue
from tallymark.engine.topology import Targets
from tallymark.stored.annotations import Route
from tallymark.wire.amqp10 import errors
from tallymark.wire.amqp10.errors import DecodeError
from tallymark.wire.amqp10.events import TransfersReceived
from tallymark.wire.amqp10.outcomes import (
    Accepted,
    DeliveryState,
    Error,
    Rejected,
    TransactionalState,
)
from tallymark.wire.amqp10.receiver_link import ReceiverLink
from tallymark.wire.amqp10.serial import Serial, add, count
from tallymark.wire.conversion.addresses import BadAddress, Target, target_of

REASON: Final = "reason"
MAXLEN: Final = "maxlen"
DESTINATIONS_KEPT: Final = 1024
"""Number of message addresses cached per link."""


@final
class IncomingLink(StretchLink):
    """Our end of a link on which a client publishes (see the module's docstring)."""

    __slots__ = (
        "_arrivals",
        "_destinations",
        "_generation",
        "_queue",
        "can_reject",
        "is_dynamic",
        "link",
    )

    def __init__(
        self, session: Session, link: ReceiverLink, target: Target | None, queue: Queue | None
    ) -> None:
        text = "a queue has no room for it"
        info: dict[object, object] = {REASON: MAXLEN}
        if queue is not None:
            text = f"queue '{queue.name}' in vhost '{queue.vhost}' has no room for it"
            info["queue"] = shown(queue.name)
        no_room = Rejected(Error(errors.RESOURCE_LIMIT_EXCEEDED, text, info))
        super().__init__(session, target, no_room)
        self.link = link
        self._queue = queue
        """Queue that the link's address names."""
        self.can_reject = True
        """True if the sender supports the outcome rejected."""
        self.is_dynamic = False
        """True if the queue was made for this link, and is deleted with it."""
        self._arrivals = Arrivals()
        self._destinations: dict[str, Destination] = {}
        """Destinations by the address in a message; under "" the link's own."""
        self._generation = 0
        """Generation of the topology in which they were found."""
        if queue is not None:
            session.client.settings.watch.add(queue, self)

    # -- credit

    def grant(self) -> None:
        client = self.session.client
        most = client.settings.link_credit
        if (
            self.is_open
            and not client.is_held
            and self.link.credit <= most // 2
            and self.unconfirmed < most
        ):
            self.link.flow(most)

    def resume(self) -> None:
        self.grant()

    # -- outcomes

    def tell(self, first: Serial, last: Serial, mode: int, state: DeliveryState) -> None:
        work = self.work
        if work is not None:
            if mode == NEVER and not isinstance(state, Accepted):
                # Their sender cannot be told now: the discharge will fail instead [TX-13].
                work.fail(f"settled deliveries {first} to {last} could not be published")
            state = work.outcome(state)
        if mode == SECOND:
            self.unconfirmed += count(first, last)
            self.settle(first, last, state)
        elif mode == FIRST and self.is_open:
            self.session.wire.settle_received(first, last, state)

    def ends_by_refusal(self, mode: int) -> bool:
        return self.work is None and (mode == NEVER or not self.can_reject)

    def refuse(self, first: Serial, last: Serial, mode: int, error: Error) -> None:
        work = self.work
        if self.ends_by_refusal(mode):
            self.close(error)
        elif mode != NEVER and self.can_reject:
            self.tell(first, last, mode, Rejected(error))
        elif work is not None:
            work.fail(f"{error.condition}: {error.description}")
            self.tell(first, last, mode, RELEASED)

    def settle(self, first: Serial, last: Serial, state: DeliveryState) -> None:
        if self.is_open:
            self.link.settle(first, last, state)
        else:
            self.unconfirmed -= count(first, last)

    def settled(self, number: int) -> None:
        """Count deliveries that the sender has settled."""
        self.unconfirmed -= number
        self.grant()

    # -- the end

    def close(self, error: Error) -> None:
        if self.is_open:
            self.link.detach(error)
            self.session.leave(self.link)

    def rights_changed(self) -> None:
        """Apply changed permissions. Anonymous links check each message; other links end if they
        may no longer write."""
        self._destinations.clear()
        target = self.target
        if target is None:
            return
        try:
            client = self.session.client
            client.access.check(EXCHANGE, target.exchange, WRITE)
            exchange = client.vhost.exchanges.get(target.exchange)
            check_keys(client.access, exchange, (target.key,), WRITE)
        except AccessRefused as error:
            self.close(error_of(error))

    def gone(self, with_session: bool) -> None:
        self.is_open = False
        queue = self._queue
        if queue is None:
            return
        client = self.session.client
        client.settings.watch.remove(queue, self)
        if self.is_dynamic and not queue.deleted:
            client.broker.registry.delete_queue(client.connection, queue.name, False, False)

    def queue_deleted(self) -> None:
        self.session.client.lose(self)

    def detach_deleted(self) -> None:
        queue = self._queue
        if queue is None or not self.is_open:
            return
        self._queue = None
        text = f"queue '{queue.name}' in vhost '{queue.vhost}' was deleted"
        self.close(Error(errors.RESOURCE_DELETED, text))
        client = self.session.client
        client.settings.replies.written.append(client.owner)

    # -- publishing

    def received(self, event: TransfersReceived) -> None:
        n = len(event)
        last = add(event.first, n - 1)
        mode = FIRST
        if event.settled:
            mode = NEVER
        elif event.is_second:
            mode = SECOND
        state = event.state
        self.work = None
        if isinstance(state, TransactionalState):
            self.work = find(self.session.client, state.txn_id)
            if self.work is None:
                self.close(unknown(state.txn_id))
                return
        if state is not None and self.work is None:
            text = f"transfer in state {type(state).__name__}, expected none or a transaction"
            self.close(Error(errors.NOT_IMPLEMENTED, text))
        elif event.message_format:
            text = f"message format {event.message_format}, expected 0"
            self.refuse(event.first, last, mode, Error(errors.NOT_IMPLEMENTED, text))
        else:
            at = 0
            while at < n and self.is_open:
                at = self._publish(event, at, n, mode)
        self.grant()

    def _publish(self, event: TransfersReceived, lo: int, hi: int, mode: int) -> int:
        """Publish messages from `lo` on, up to the first malformed one, which is refused. Returns
        the index to continue at."""
        arrivals = self._arrivals
        sound = arrivals.read(event.data, event.cuts, lo, hi)
        for piece in arrivals.pieces:
            self._publish_stretch(event, piece, mode)
        if sound < hi:
            self._refuse_one(event, sound, mode, arrivals.problem)
            sound += 1
        return sound

    def _publish_stretch(self, event: TransfersReceived, piece: Arrival, mode: int) -> None:
        """Publish messages with one front."""
        if not self.is_open:
            return
        lo, hi = piece.lo, piece.hi
        stretch = Stretch(self, add(event.first, lo), piece.front, mode)
        try:
            stretch.read(event.data, event.cuts, piece)
        except DecodeError as error:
            if hi > lo + 1:
                for i in range(lo, hi):
                    one = Arrival(i, i + 1, piece.front, True)
                    self._publish_stretch(event, one, mode)
            else:
                self._refuse_one(event, lo, mode, error.text)
            return
        stretch.publish()

    def _refuse_one(self, event: TransfersReceived, i: int, mode: int, text: str) -> None:
        """Refuse message i because it is malformed."""
        if self.is_open:
            id = add(event.first, i)
            error = Error(errors.DECODE_ERROR, f"delivery {id} cannot be read: {text}")
            self.refuse(id, id, mode, error)

    def destination(self, address: str) -> Destination:
        generation = self.session.client.vhost.generation
        if generation != self._generation:
            self._destinations.clear()
            self._generation = generation
        found = self._destinations.get(address)
        if found is None:
            if len(self._destinations) >= DESTINATIONS_KEPT:
                self._destinations.clear()
            found = self._find(address)
            self._destinations[address] = found
        return found

    def _find(self, address: str) -> Destination:
        client = self.session.client
        target = self.target
        route = Route("", "")
        try:
            if target is None:
                if not address:
                    raise PreconditionFailed("anonymous terminus requires 'to' address to be set")
                target = target_of(address)
                client.access.check(EXCHANGE, target.exchange, WRITE)
                exchange = client.vhost.exchanges.get(target.exchange)
                check_keys(client.access, exchange, (target.key,), WRITE)
            route = Route(target.exchange, target.key)
            client.vhost.published_to(target.exchange)
            targets: Targets | None = None
            if not client.vhost.needs_headers(target.exchange):
                targets = client.vhost.route(target.exchange, [target.key], None)
        except BrokerError as error:
            return Destination(route, None, False, error_of(error))
        except BadAddress as bad:
            return Destination(route, None, False, Error(errors.PRECONDITION_FAILED, str(bad)))
        return Destination(route, targets, target.is_reply, None)
