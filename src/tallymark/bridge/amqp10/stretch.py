"""A stretch of deliveries on its way into queues, published as one payload.

All deliveries have the same header and annotations, so that they are one payload, which is not
copied. If the link has an address, they go to one set of queues. If each names its own in the
property `to`, or is routed by its headers, they are parts of that payload, in the order they
arrived.
"""

from __future__ import annotations

from array import array
from typing import Final, final

from tallymark.bridge.amqp10.arrivals import Arrival, destinations, user_ids
from tallymark.bridge.amqp10.client import Client, Session, Work
from tallymark.bridge.amqp10.confirms import ACCEPTED, ANSWERED, NEVER
from tallymark.bridge.amqp10.errors import error_of
from tallymark.bridge.amqp10.links import Publisher
from tallymark.bridge.direct_reply import ReplyConsumer, reply_keys
from tallymark.bridge.permissions import WRITE, check_keys
from tallymark.engine.arguments import LONGEST_MS
from tallymark.engine.errors import AccessRefused, ResourceExhausted
from tallymark.engine.message import Payload
from tallymark.engine.publishing import Part
from tallymark.engine.staging import AS_DUE, MUST_ARRIVE, StagedRun
from tallymark.engine.topology import Targets
from tallymark.engine.traffic import DISCARDED, REPLIED, RETURNED
from tallymark.stored.annotations import Annotations, Route
from tallymark.stored.formats import AMQP10
from tallymark.units import MessageId, WallMs
from tallymark.wire.amqp10 import errors
from tallymark.wire.amqp10.errors import DecodeError
from tallymark.wire.amqp10.front import Front, without_delivery_annotations
from tallymark.wire.amqp10.outcomes import DeliveryState, Error, Rejected, Released
from tallymark.wire.amqp10.serial import Serial, add
from tallymark.wire.conversion.addresses import Target

RELEASED: Final = Released()
NOWHERE: Final = Route("", "")


@final
class Destination:
    """The destination of messages for one generation of the topology, or the reason why there is
    none."""

    __slots__ = ("error", "is_reply", "route", "targets")

    def __init__(
        self, route: Route, targets: Targets | None, is_reply: bool, error: Error | None
    ) -> None:
        self.route = route
        self.targets = targets
        """Target queues; None: routing depends on the headers of each message."""
        self.is_reply = is_reply
        """True if the messages are direct replies to a waiting client [direct_reply]."""
        self.error = error
        """Error for messages that cannot be published."""


@final
class Reply:
    """Direct replies in a transaction: they leave at the commit, to those clients that still wait
    for them."""

    __slots__ = ("keys", "route")

    def __init__(self, route: Route, keys: list[str]) -> None:
        self.route = route
        self.keys = keys
        """Routing keys that clients may wait under."""

    def send(self, client: Client, run: StagedRun) -> None:
        """Send the run's messages."""
        payload = run.payload
        assert payload is not None, run.count
        all_waiting = waiting_for(client, self.keys)
        if not all_waiting:
            return
        client.broker.store.load(payload)
        raw, cuts = payload.raw, payload.cuts
        assert raw is not None, payload.position
        for i in range(run.count):
            for waiting in all_waiting:
                waiting.answer(payload.format, raw[cuts[i] : cuts[i + 1]], self.route, 0, 0)


def waiting_for(client: Client, keys: list[str]) -> list[ReplyConsumer]:
    """Return the clients that wait for direct replies under these keys."""
    found = [client.settings.replies.find(key) for key in keys]
    return [waiting for waiting in found if waiting is not None]


class StretchLink(Publisher):
    """Our end of a link, as far as a stretch that is published on it works on it."""

    __slots__ = ("session", "target", "work")

    def __init__(self, session: Session, target: Target | None, no_room: Rejected) -> None:
        super().__init__(no_room)
        self.session = session
        self.target = target
        """Target of the link; None: each message names its own."""
        self.work: Work | None = None
        """Transaction under which the present input is published [TX-14]."""

    def destination(self, address: str) -> Destination:
        """Return the destination of messages with this address in the property `to`; "": that of
        the link's own address."""
        raise NotImplementedError

    def tell(self, first: Serial, last: Serial, mode: int, state: DeliveryState) -> None:
        """Send the outcome of deliveries that were not published, or were published under a
        transaction."""
        raise NotImplementedError

    def ends_by_refusal(self, mode: int) -> bool:
        """Return whether `refuse` ends the link."""
        raise NotImplementedError

    def refuse(self, first: Serial, last: Serial, mode: int, error: Error) -> None:
        """Refuse deliveries. If their sender cannot be told by an outcome, the link is ended."""
        raise NotImplementedError

    def close(self, error: Error) -> None:
        """End the link from our side."""
        raise NotImplementedError


@final
class Stretch:
    """Deliveries with ids from `first` on: first read, then published."""

    __slots__ = (
        "_bounds",
        "_cuts",
        "_destinations",
        "_first",
        "_front",
        "_link",
        "_mode",
        "_parts",
        "_raw",
        "_work",
    )

    def __init__(self, link: StretchLink, first: Serial, front: Front, mode: int) -> None:
        self._link = link
        self._first = first
        self._front = front
        self._mode = mode
        self._work = link.work
        """Transaction under which they are published."""
        self._raw = b""
        self._cuts = array("I")
        """Cuts of the messages in stored form."""
        self._bounds = [0]
        """Bounds of the pieces: messages bounds[k]..bounds[k + 1] - 1 go to destinations[k]."""
        self._destinations: list[Destination] = []
        self._parts: list[Part] = []

    def read(self, data: bytes, cuts: array[int], piece: Arrival) -> None:
        """Read messages of these bytes, which have the stretch's front.

        Raises DecodeError: what has to be known of one of them cannot be read.
        """
        link = self._link
        self._raw, self._cuts = without_delivery_annotations(
            data, cuts, piece.lo, piece.hi, self._front
        )
        if not self._cuts[-1]:
            raise DecodeError("no sections but delivery annotations, if any")
        count = piece.hi - piece.lo
        access = link.session.client.access
        user = access.user.encode("utf-8", "surrogateescape")
        users = user_ids(data, cuts, piece)
        is_own = access.impersonates or users.count(None) + users.count(user) == count
        addresses: list[str | None] = []
        if link.target is None:
            addresses = destinations(data, cuts, piece)
        elif is_own:
            self._bounds.append(count)
            self._destinations.append(link.destination(""))
            return
        for i in range(count):
            id = users[i]
            if id is not None and id != user and not is_own:
                self._add(self._of_another(id), i)
            elif addresses:
                self._add(link.destination(addresses[i] or ""), i)
            else:
                self._add(link.destination(""), i)

    def _add(self, destination: Destination, i: int) -> None:
        """Add message i, the next one, with its destination."""
        known = self._destinations
        if known and known[-1] is destination:
            self._bounds[-1] = i + 1
        else:
            known.append(destination)
            self._bounds.append(i + 1)

    def _of_another(self, id: bytes) -> Destination:
        """Return the destination of a message with another user's user-id
        [rabbitmq validated user-id]."""
        user = self._link.session.client.access.user
        given = id.decode("utf-8", "replace")
        text = f"user_id property set to '{given}' but authenticated user was '{user}'"
        return Destination(NOWHERE, None, False, Error(errors.UNAUTHORIZED_ACCESS, text))

    def publish(self) -> None:
        """Publish all messages that can be published, and send the outcome of the others."""
        payload = self._payload()
        link = self._link
        for k, destination in enumerate(self._destinations):
            if not link.is_open:
                break
            lo, hi = self._bounds[k], self._bounds[k + 1]
            if destination.error is not None:
                self._refuse(payload, lo, hi, destination.error)
            elif destination.targets is None or self._front.cc:
                self._route(payload, destination, lo, hi)
            elif destination.is_reply:
                route = destination.route
                self._answer(payload, route, [route.key], destination.targets, lo, hi)
            else:
                self._to(payload, destination.targets, lo, hi)
        self._enter(payload)

    def _payload(self) -> Payload:
        client = self._link.session.client
        count = len(self._cuts) - 1
        route = self._destinations[0].route
        routes: list[Route] | None = None
        if len(self._destinations) > 1:
            routes = []
            for k, destination in enumerate(self._destinations):
                routes += [destination.route] * (self._bounds[k + 1] - self._bounds[k])
        return Payload(
            AMQP10, self._raw, self._cuts, route, routes, client.broker.new_message_ids(count),
            client.owner.engine_ms, self._front.durable, 0,
        )  # fmt: skip

    def _route(self, payload: Payload, destination: Destination, lo: int, hi: int) -> None:
        """Route messages that have more than one routing key, or whose headers matter."""
        client = self._link.session.client
        vhost = client.vhost
        exchange = destination.route.exchange
        keys = [destination.route.key, *self._front.cc]
        try:
            check_keys(client.access, vhost.exchanges.get(exchange), self._front.cc, WRITE)
        except AccessRefused as error:
            self._refuse(payload, lo, hi, error_of(error))
            return
        if not vhost.needs_headers(exchange):
            targets = vhost.route(exchange, keys, None)
            replies = reply_keys(exchange, keys)
            if replies:
                self._answer(payload, destination.route, replies, targets, lo, hi)
            else:
                self._to(payload, targets, lo, hi)
            return
        format = client.broker.formats[AMQP10]
        for i in range(lo, hi):
            targets = vhost.route(exchange, keys, format.headers(payload, i))
            self._to(payload, targets, i, i + 1)

    def _to(self, payload: Payload, targets: Targets, lo: int, hi: int) -> None:
        """Add messages lo..hi-1 with their target queues, as a part of the publish."""
        if not targets.queues:
            self._tell(lo, hi, RELEASED)
            return
        if self._work is not None:
            self._stage(self._work, payload, targets, lo, hi, None)
            return
        parts = self._parts
        if parts and parts[-1].targets is targets and parts[-1].hi == lo:
            parts[-1].hi = hi
        else:
            parts.append(Part(targets, lo, hi))

    def _answer(
        self, payload: Payload, route: Route, keys: list[str], targets: Targets, lo: int, hi: int
    ) -> None:
        """Deliver direct replies, at most once, to the clients that wait under these keys
        [rabbitmq direct reply-to], and add them to the target queues of their other keys."""
        all_waiting = waiting_for(self._link.session.client, keys)
        if not all_waiting:
            self._to(payload, targets, lo, hi)
            return
        if self._work is not None:
            self._stage(self._work, payload, targets, lo, hi, Reply(route, keys))
            return
        for i in range(lo, hi):
            cell = self._raw[self._cuts[i] : self._cuts[i + 1]]
            for waiting in all_waiting:
                waiting.answer(payload.format, cell, route, 0, 0)
        if targets.queues:
            self._to(payload, targets, lo, hi)
        else:
            self._tell(lo, hi, ACCEPTED)

    def _tell(self, lo: int, hi: int, state: DeliveryState) -> None:
        """Send the outcome of messages lo..hi-1 that enter no queue. They count as published."""
        link = self._link
        session = link.session
        broker = session.client.broker
        id = add(self._first, lo)
        fate = RETURNED if self._mode != NEVER else DISCARDED
        if state is ACCEPTED:
            fate = REPLIED
        if self._work is not None:
            broker.traffic.nowhere(hi - lo, fate)
        else:
            first = session.engine.published + 1
            broker.publishing.published_nowhere(session.engine, hi - lo, fate)
            session.confirms.published(first, hi - lo, link, id, ANSWERED)
        link.tell(id, add(self._first, hi - 1), self._mode, state)

    def _refuse(self, payload: Payload, lo: int, hi: int, error: Error) -> None:
        """Refuse messages. If the link's own address can no longer be published to, the first of
        them is released and the link is ended, and the others with it, as those are that come
        later; if a message's address is at fault, only the message is refused. A link that ends
        may take its queue along, so that messages before these are published first."""
        link = self._link
        first, last = add(self._first, lo), add(self._first, hi - 1)
        if link.target is None or error.condition == errors.UNAUTHORIZED_ACCESS:
            if link.ends_by_refusal(self._mode):
                self._enter(payload)
            link.refuse(first, last, self._mode, error)
        else:
            self._enter(payload)
            link.tell(first, first, self._mode, RELEASED)
            link.close(error)

    def _stage(
        self,
        work: Work,
        payload: Payload,
        targets: Targets,
        lo: int,
        hi: int,
        reply: Reply | None,
    ) -> None:
        """Stage messages lo..hi-1, which have one route, until the discharge [TX-14]. The outcome
        accepted only says that they were received."""
        link = self._link
        broker = link.session.client.broker
        part = payload if hi - lo == payload.count else _part(payload, lo, hi)
        rules = AS_DUE if self._front.due_ms else 0
        if targets.queues:
            rules |= MUST_ARRIVE
        first, last = add(self._first, lo), add(self._first, hi - 1)
        try:
            broker.publishing.stage(
                work.transaction, link.session.engine, targets, part, self._known(), reply, rules
            )
        except ResourceExhausted as error:
            link.refuse(first, last, self._mode, error_of(error))
        else:
            link.tell(first, last, self._mode, ACCEPTED)

    def _known(self) -> Annotations | None:
        """Return the annotations of the messages."""
        client = self._link.session.client
        front = self._front
        due_ms = 0
        if front.due_ms:
            due_ms = max(0, client.broker.clock.from_wall(WallMs(front.due_ms)))
        elif front.delay_ms:
            due_ms = client.owner.engine_ms + front.delay_ms
        due_ms = min(due_ms, client.owner.engine_ms + LONGEST_MS)
        return client.known_as(front.ttl_ms, front.cc, due_ms)

    def _enter(self, payload: Payload) -> None:
        """Publish the parts that have been found; done once, when there are no more."""
        parts, self._parts = self._parts, []
        if not parts:
            return
        link = self._link
        client = link.session.client
        engine = link.session.engine
        known = self._known()
        first = engine.published + 1
        if len(parts) == 1 and parts[0].hi - parts[0].lo == payload.count:
            client.broker.publishing.publish(engine, parts[0].targets, payload, known)
        else:
            client.broker.publishing.publish_parts(engine, payload, parts, known)
        for part in parts:
            count = part.hi - part.lo
            id = add(self._first, part.lo)
            link.session.confirms.published(first, count, link, id, self._mode)
            first += count


def _part(whole: Payload, lo: int, hi: int) -> Payload:
    """Return messages lo..hi-1, which have one route, as a payload of their own."""
    raw, cuts = whole.raw, whole.cuts
    assert raw is not None, whole.first_id
    base = cuts[lo]
    return Payload(
        whole.format, raw[base : cuts[hi]], array("I", [cut - base for cut in cuts[lo : hi + 1]]),
        whole.route if whole.routes is None else whole.routes[lo], None, MessageId(whole.first_id +
        lo), whole.arrived_ms, whole.persistent, whole.largest_frame,
    )  # fmt: skip
