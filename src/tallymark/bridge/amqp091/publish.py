"""Publishing of AMQP 0-9-1 messages: from stretches of publishes to payloads in queues.

What a publish method frame means (where it goes, under which name) is looked up by its raw bytes.
A stretch with one set of target queues becomes one payload without copying anything. One that
interleaves several sets is grouped, a payload per set, unless two sets share a queue: then all of
it is one payload, and each queue gets slices of it in the order they were published. Where a queue
may refuse, sets are published one after the other: a refusal names the number of a publish.
"""

from __future__ import annotations

from array import array
from typing import Final, final

from tallymark.bridge.amqp091.channel import Channel, Client, Publish
from tallymark.bridge.amqp091.content import return_messages
from tallymark.bridge.amqp091.special import (
    Special,
    asks_for_reply,
    examine,
    headers_of,
    with_section,
)
from tallymark.bridge.direct_reply import PREFIX, reply_keys
from tallymark.bridge.permissions import EXCHANGE, WRITE, check_keys
from tallymark.engine.errors import BrokerError
from tallymark.engine.message import Payload
from tallymark.engine.publishing import Part
from tallymark.engine.topology import Targets
from tallymark.engine.traffic import DISCARDED, REPLIED, RETURNED
from tallymark.stored.annotations import Annotations, Route
from tallymark.stored.formats import AMQP091
from tallymark.wire.amqp091.errors import NOT_IMPLEMENTED, WireError
from tallymark.wire.amqp091.kernel import PERSISTENT, SPECIAL, PublishReceived

CLASS_ID: Final = 60
METHOD_ID: Final = 40


def publish(channel: Channel, event: PublishReceived) -> None:
    """Publish a stretch of messages.

    Raises:
        BrokerError, WireError: one of them was refused; those before it are in their queues, it and
        those after it are not.
    """
    client = channel.client
    known = shared(client, event)
    targets = None if known is None else known.targets
    if known is None or targets is None:
        stretch, failure = routed(channel, event)
        if stretch.publishes:
            _enter(channel, stretch)
        if failure is not None:
            raise failure
        return
    if known.is_reply:
        answer(
            channel, known, known.route.key, event.raw, event.cuts, 0, len(event.cuts) - 1,
            event.largest_frame,
        )  # fmt: skip
    if targets.queues:
        client.broker.publishing.publish(channel.session, targets, payload_of(client, event, known))
    else:
        _nowhere(channel, known, event.raw, event.cuts, 0, len(event.cuts) - 1)


def shared(client: Client, event: PublishReceived) -> Publish | None:
    """Return the publish that all messages of a stretch share, if none of their properties matter;
    otherwise None. Raises as publish."""
    if len(event.methods) > 1 or event.facts & SPECIAL:
        return None
    return _known(client, event.methods[0])


def plain(client: Client, event: PublishReceived) -> Publish | None:
    """Return the publish that all messages of a stretch share, if nothing but its targets matters;
    otherwise None. Raises as publish."""
    known = shared(client, event)
    return None if known is None or known.targets is None or known.is_reply else known


def payload_of(client: Client, event: PublishReceived, known: Publish) -> Payload:
    """Make a payload of a stretch without copying anything."""
    return Payload(
        AMQP091,
        event.raw,
        event.cuts,
        known.route,
        None,
        client.broker.new_message_ids(len(event.cuts) - 1),
        client.owner.engine_ms,
        event.facts & PERSISTENT != 0,
        event.largest_frame,
    )


def _known(client: Client, method: bytes) -> Publish:
    """Return the decoded publish of a method frame. Raises BrokerError or WireError if it is not
    allowed."""
    known = client.publish_of(method)
    if known is None:
        known = _read(client, method)
        client.remember(method, known)
    return known


def _read(client: Client, method: bytes) -> Publish:
    key_at = 14 + method[13]
    bits_at = key_at + 1 + method[key_at]
    if method[bits_at] & 2:
        raise WireError(NOT_IMPLEMENTED, "immediate=true", CLASS_ID, METHOD_ID)
    route = Route(method[14:key_at].decode(), method[key_at + 1 : bits_at].decode())
    client.access.check(EXCHANGE, route.exchange, WRITE)
    vhost = client.vhost
    check_keys(client.access, vhost.exchanges.get(route.exchange), (route.key,), WRITE)
    targets: Targets | None = None
    if not vhost.needs_headers(route.exchange):
        targets = vhost.route(route.exchange, [route.key], None)
    return Publish(route, method[bits_at] & 1 == 1, len(method), targets)


def _nowhere(
    channel: Channel, known: Publish, raw: bytes, cuts: array[int], lo: int, hi: int
) -> None:
    """Count messages lo..hi-1 as published to no queue. Mandatory ones are returned before their
    confirm."""
    fate = DISCARDED
    if known.mandatory:
        fate = RETURNED
        return_messages(channel, known.route, raw, cuts, lo, hi, known.size)
    elif known.is_reply and channel.client.replies.find(known.route.key) is not None:
        fate = REPLIED
    channel.client.broker.publishing.published_nowhere(channel.session, hi - lo, fate)


@final
class Stretch:
    """Publishes in order: messages bounds[k]..bounds[k+1]-1 were published by publishes[k] and go
    to targets[k]."""

    __slots__ = (
        "_places",
        "annotations",
        "bounds",
        "cuts",
        "facts",
        "has_replies",
        "largest_frame",
        "more_keys",
        "publishes",
        "raw",
        "returned_cuts",
        "returned_raw",
        "targets",
    )

    def __init__(self, event: PublishReceived) -> None:
        self.raw = self.returned_raw = event.raw
        self.cuts = self.returned_cuts = event.cuts
        """returned_raw, returned_cuts: the same messages in the form in which they are returned to
        their publisher."""
        self._places: list[int] = []
        """The cuts as a list, once they are cut into groups: an array makes a number at each
        look."""
        self.facts = event.facts
        self.largest_frame = event.largest_frame
        self.bounds = [0]
        self.publishes: list[Publish] = []
        self.targets: list[Targets] = []
        self.annotations: Annotations | None = None
        """Annotations of all messages."""
        self.has_replies = False
        """True if some messages are direct replies."""
        self.more_keys: list[str] = []
        """Routing keys of all messages besides their own."""

    def add(self, known: Publish, targets: Targets, end: int) -> None:
        """Add messages from the last bound to `end` - 1."""
        self.publishes.append(known)
        self.targets.append(targets)
        self.bounds.append(end)
        if known.is_reply:
            self.has_replies = True

    def payload(self, client: Client, pieces: list[int] | None) -> Payload:
        """Return the messages of these pieces, or of all, as one payload."""
        raw, cuts, routes = self.raw, self.cuts, self._routes(pieces)
        if pieces is not None:
            raw, cuts = self._copy(pieces)
        elif self.bounds[-1] < len(cuts) - 1:
            cuts = cuts[: self.bounds[-1] + 1]
            raw = raw[: cuts[-1]]
        route = routes[0]
        column = None if routes.count(route) == len(routes) else routes
        count = len(cuts) - 1
        return Payload(
            AMQP091,
            raw,
            cuts,
            route,
            column,
            client.broker.new_message_ids(count),
            client.owner.engine_ms,
            self.facts & PERSISTENT != 0,
            self.largest_frame,
        )

    def _routes(self, pieces: list[int] | None) -> list[Route]:
        """Return one route per message."""
        bounds, publishes = self.bounds, self.publishes
        routes: list[Route] = []
        for k in range(len(publishes)) if pieces is None else pieces:
            n = bounds[k + 1] - bounds[k]
            if n == 1:
                routes.append(publishes[k].route)
            else:
                routes += [publishes[k].route] * n
        return routes

    def _copy(self, pieces: list[int]) -> tuple[bytes, array[int]]:
        raw, bounds = self.raw, self.bounds
        if not self._places:
            self._places = self.cuts.tolist()
        places = self._places
        parts: list[bytes] = []
        ends = [0]
        at = 0
        for k in pieces:
            lo = bounds[k]
            hi = bounds[k + 1]
            start = places[lo]
            shift = at - start
            for i in range(lo + 1, hi + 1):
                ends.append(places[i] + shift)
            at = ends[-1]
            parts.append(raw[start : at - shift])
        return b"".join(parts), array("I", ends)


def routed(channel: Channel, event: PublishReceived) -> tuple[Stretch, Exception | None]:
    """Route a stretch with several routes, or with properties that matter, up to the first publish
    that is refused. Returns that error as well."""
    stretch = Stretch(event)
    try:
        if event.facts & SPECIAL:
            _route_special(channel.client, channel, event, stretch)
        else:
            _route_plain(channel.client, event, stretch)
    except (BrokerError, WireError) as error:
        return stretch, error
    return stretch, None


def _route_plain(client: Client, event: PublishReceived, stretch: Stretch) -> None:
    """Route each piece up to the first that is refused; then raise."""
    starts, methods = event.starts, event.methods
    count = len(event.cuts) - 1
    last = len(methods) - 1
    for k, method in enumerate(methods):
        known = _known(client, method)
        end = starts[k + 1] if k < last else count
        found = known.targets
        if found is None:
            _route_by_headers(client, event, stretch, known, starts[k], end)
        else:
            stretch.add(known, found, end)


def _route_by_headers(
    client: Client, event: PublishReceived, stretch: Stretch, known: Publish, lo: int, hi: int
) -> None:
    """Route messages lo..hi-1 of one publish frame, each by its own properties unless all are
    equal."""
    route = known.route
    vhost = client.vhost
    if event.uniform and not vhost.routes_singly(route.exchange):
        headers = headers_of(event.properties)
        stretch.add(known, vhost.route(route.exchange, [route.key], headers), hi)
        return
    raw, cuts = event.raw, event.cuts
    for i in range(lo, hi):
        at = cuts[i] + known.size
        end = at + 7 + int.from_bytes(raw[at + 3 : at + 7], "big")
        headers = headers_of(raw[at + 19 : end])
        stretch.add(known, vhost.route(route.exchange, [route.key], headers), i + 1)


def _route_special(
    client: Client, channel: Channel, event: PublishReceived, stretch: Stretch
) -> None:
    """Route messages whose property sections are equal and contain properties that matter."""
    starts, methods = event.starts, event.methods
    special: Special | None = None
    try:
        for k, method in enumerate(methods):
            known = _known(client, method)
            if special is None:
                if known.targets is not None:
                    special = asks_for_reply(channel, event.properties)
                if special is None:
                    special = examine(channel, event.properties)
            end = starts[k + 1] if k + 1 < len(starts) else len(event)
            found = known.targets
            if found is not None and not special.more_keys:
                stretch.add(known, found, end)
                continue
            route = known.route
            keys = [route.key, *special.more_keys]
            check_keys(
                client.access, client.vhost.exchanges.get(route.exchange), special.more_keys, WRITE
            )
            singly = client.vhost.routes_singly(route.exchange)
            for upto in range(starts[k] + 1, end + 1) if singly else (end,):
                if special.headers is None:
                    special.headers = headers_of(event.properties)
                to = client.vhost.route(route.exchange, keys, special.headers)
                stretch.add(known, to, upto)
    finally:
        if special is not None and special.section is not None and stretch.publishes:
            sizes = [known.size for known in stretch.publishes]
            stretch.raw, stretch.cuts = with_section(
                event.raw, event.cuts, stretch.bounds, sizes, special.section
            )
            if special.returned is special.section:
                stretch.returned_raw, stretch.returned_cuts = stretch.raw, stretch.cuts
            elif special.returned is not None:
                stretch.returned_raw, stretch.returned_cuts = with_section(
                    event.raw, event.cuts, stretch.bounds, sizes, special.returned
                )
            stretch.largest_frame = max(stretch.largest_frame, 20 + len(special.section))
        if special is not None:
            stretch.annotations = special.annotations
            for key in special.more_keys:
                if key.startswith(PREFIX):
                    stretch.more_keys = special.more_keys
                    stretch.has_replies = True


def answer(
    channel: Channel,
    known: Publish,
    key: str,
    raw: bytes,
    cuts: array[int],
    lo: int,
    hi: int,
    largest_frame: int,
) -> None:
    """Deliver messages lo..hi-1 to the client that waits for replies under that key; they are
    dropped if there is none."""
    consumer = channel.client.replies.find(key)
    if consumer is None:
        return
    for i in range(lo, hi):
        message = raw[cuts[i] : cuts[i + 1]]
        consumer.answer(AMQP091, message, known.route, known.size, largest_frame)


def _enter(channel: Channel, stretch: Stretch) -> None:
    """Publish the routed messages, in as few payloads as their order allows."""
    if stretch.has_replies:
        for k, known in enumerate(stretch.publishes):
            route = known.route
            for key in reply_keys(route.exchange, (route.key, *stretch.more_keys)):
                answer(
                    channel, known, key, stretch.raw, stretch.cuts, stretch.bounds[k],
                    stretch.bounds[k + 1], stretch.largest_frame,
                )  # fmt: skip
    client = channel.client
    targets = stretch.targets
    first = targets[0]
    if first.queues and targets.count(first) == len(targets):
        client.broker.publishing.publish(
            channel.session, first, stretch.payload(client, None), stretch.annotations
        )
        return
    groups = sets_apart(targets)
    if groups is None:
        _publish_sharing(channel, stretch)
        return
    for target in groups:
        if target.guarded:
            _publish_in_order(channel, stretch)
            return
    for target, group in groups.items():
        _publish_group(channel, stretch, target, group)


def sets_apart(targets: list[Targets]) -> dict[Targets, list[int]] | None:
    """Return the indexes of the pieces by the set of queues that they go to. targets: that set of
    each piece. None: two sets share a queue, which has to get the pieces of both in the order of
    publishing."""
    groups: dict[Targets, list[int]] = {}
    taken: set[int] = set()
    for k, target in enumerate(targets):
        group = groups.get(target)
        if group is None:
            for queue in target.queues:
                if queue.id in taken:
                    return None
                taken.add(queue.id)
            group = groups[target] = []
        group.append(k)
    return groups


def _publish_sharing(channel: Channel, stretch: Stretch) -> None:
    """Publish sets of queues that share some queues as one payload, so that each queue gets its
    messages in the order of publishing; where one may refuse, one set after the other."""
    for target in stretch.targets:
        if target.guarded:
            _publish_in_order(channel, stretch)
            return
    client = channel.client
    bounds = stretch.bounds
    parts: list[Part] = []
    for k, target in enumerate(stretch.targets):
        if target.queues:
            parts.append(Part(target, bounds[k], bounds[k + 1]))
        else:
            _nowhere(
                channel, stretch.publishes[k], stretch.returned_raw, stretch.returned_cuts,
                bounds[k], bounds[k + 1],
            )  # fmt: skip
    client.broker.publishing.publish_parts(
        channel.session, stretch.payload(client, None), parts, stretch.annotations
    )


def _publish_in_order(channel: Channel, stretch: Stretch) -> None:
    """Publish one payload per stretch of equal sets. Each publish gets the number the client gave
    it, which a refusal names."""
    targets = stretch.targets
    start = 0
    for k in range(1, len(targets) + 1):
        if k == len(targets) or targets[k] is not targets[start]:
            _publish_group(channel, stretch, targets[start], list(range(start, k)))
            start = k


def _publish_group(channel: Channel, stretch: Stretch, target: Targets, group: list[int]) -> None:
    if target.queues:
        client = channel.client
        client.broker.publishing.publish(
            channel.session, target, stretch.payload(client, group), stretch.annotations
        )
        return
    bounds = stretch.bounds
    for k in group:
        known = stretch.publishes[k]
        raw, cuts = stretch.returned_raw, stretch.returned_cuts
        _nowhere(channel, known, raw, cuts, bounds[k], bounds[k + 1])
