"""The state that the AMQP 0-9-1 handlers work on: one client connection and its channels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from tallymark.bridge.amqp import AmqpBridge, AmqpClient
from tallymark.bridge.direct_reply import PREFIX, DirectReplies, ReplyConsumer
from tallymark.bridge.permissions import Access
from tallymark.engine.broker import Broker
from tallymark.engine.errors import NotFound
from tallymark.engine.message import Payload
from tallymark.engine.session import Connection as EngineConnection
from tallymark.engine.session import Session
from tallymark.engine.sinks import StagedPart
from tallymark.engine.staging import Transaction
from tallymark.engine.topology import Targets
from tallymark.stored.annotations import Annotations, Route
from tallymark.units import EngineMs
from tallymark.wire.amqp091.connection import Connection as WireConnection
from tallymark.wire.amqp091.errors import CHANNEL_ERROR, WireError
from tallymark.wire.amqp091.methods import Method

ROUTES_KEPT: Final = 4096
"""Number of publish method frames cached per connection."""
REPLIES_HELD: Final = 16 << 20
"""Bytes of direct replies that may wait for a connection whose socket is full, or for a channel
that has stopped deliveries. Further replies are dropped."""


@final
class Publish:
    """A decoded publish method frame, with its target queues for one generation of the topology."""

    __slots__ = ("is_reply", "mandatory", "route", "size", "targets")

    def __init__(self, route: Route, mandatory: bool, size: int, targets: Targets | None) -> None:
        self.route = route
        self.mandatory = mandatory
        self.size = size
        """Size of the method frame in bytes."""
        self.targets = targets
        """Target queues; None: routing depends on the headers of each message."""
        self.is_reply = route.exchange == "" and route.key.startswith(PREFIX)


@final
class Intake:
    """The publishes that one channel has collected so far."""

    __slots__ = ("count", "parts")

    def __init__(self) -> None:
        self.parts: list[StagedPart] = []
        self.count = 0
        """Count of messages."""

    def add(
        self, payload: Payload, known: Annotations | None, mandatory: bool, now_ms: EngineMs
    ) -> None:
        self.parts.append(StagedPart(payload, known, mandatory, now_ms))
        self.count += payload.count


class Replies(ReplyConsumer):
    """A channel's consumer of direct replies."""

    __slots__ = ("address", "tag")

    def __init__(self, tag: str, token: str) -> None:
        super().__init__(token)
        self.tag = tag
        name = (PREFIX + token).encode()
        self.address = bytes((len(name),)) + name
        """The reply-to of its requests, as their consumers see it."""

    def go_on(self) -> None:
        """Deliver held replies after the client has resumed deliveries."""
        raise NotImplementedError


@final
class Client(AmqpClient):
    """A client that is logged in to a virtual host."""

    __slots__ = (
        "_held_replies",
        "cancel_notify",
        "channels",
        "gate",
        "generation",
        "random_name",
        "recover_counts",
        "replies",
        "routes",
        "shares_prefetch",
        "wire",
    )

    def __init__(
        self,
        broker: Broker,
        wire: WireConnection,
        replies: DirectReplies,
        random_name: Callable[[], str],
        connection: EngineConnection,
        access: Access,
        cancel_notify: bool,
        shares_prefetch: bool,
        recover_counts: bool,
        owner: AmqpBridge,
    ) -> None:
        super().__init__(broker, connection, access, owner)
        self.wire = wire
        self.gate = owner.gate
        self.replies = replies
        self.random_name = random_name
        """Function that returns 22 random characters of [A-Za-z0-9_-] that cannot be guessed."""
        self.cancel_notify = cancel_notify
        """True if the client wants to be told when a consumer's queue is deleted."""
        self.shares_prefetch = shares_prefetch
        """True if basic.qos without `global` applies to all consumers of the channel together."""
        self.recover_counts = recover_counts
        """True if basic.recover counts toward a delivery limit as basic.nack does [DL-5]."""
        self.channels: dict[int, Channel] = {}
        self.routes: dict[bytes, Publish] = {}
        """Cached publishes by the bytes of the publish method frame, channel included."""
        self.generation = self.vhost.generation
        """Generation of the topology that `routes` was made with."""
        self._held_replies = 0

    def publish_of(self, method: bytes) -> Publish | None:
        """Return the cached publish of a method frame, unless the topology has changed since."""
        if self.generation != self.vhost.generation:
            self.routes.clear()
            self.generation = self.vhost.generation
        return self.routes.get(method)

    def remember(self, method: bytes, publish: Publish) -> None:
        if len(self.routes) >= ROUTES_KEPT:
            self.routes.clear()
        self.routes[method] = publish

    def takes_reply(self, size: int) -> bool:
        """Return whether a direct reply may be written. A client that reads nothing gets only a
        limited number of bytes."""
        if not self.connection.paused:
            self._held_replies = 0
        self._held_replies += size
        return not self.closed and self._held_replies <= REPLIES_HELD


@final
class Channel:
    """One open channel: the engine's session, and state that is specific to AMQP 0-9-1."""

    __slots__ = (
        "client",
        "committing",
        "confirmed",
        "current_queue",
        "intake",
        "number",
        "prefetch",
        "prefetch_shared",
        "refused",
        "reply_consumer",
        "returned",
        "session",
        "transaction",
    )

    def __init__(self, client: Client, number: int, session: Session) -> None:
        self.client = client
        self.number = number
        self.session = session
        self.current_queue = ""
        """Name of the queue declared last, which an empty queue name refers to
        [amqp-0.9.1 queue.declare]."""
        self.confirmed = 0
        """Number of the last publish that was answered together with all before it."""
        self.refused: list[tuple[int, int]] = []
        """First and last numbers of publishes beyond `confirmed` that got a basic.nack."""
        self.returned = 0
        """Count of messages returned as unroutable."""
        self.prefetch = 0
        self.prefetch_shared = 0
        self.reply_consumer: Replies | None = None
        self.transaction: Transaction | None = None
        """Transaction under which everything is published and settled; None: outside of tx mode
        [TX-1]."""
        self.committing = False
        """True while the answer to tx.commit waits for the disk; the client must wait for it
        [TX-5]."""
        self.intake: Intake | None = None
        """Sink intake that receives publishes instead of queues; None: publishes go to queues."""
        session.handle = self

    def send(self, method: Method) -> None:
        self.client.wire.send_method(self.number, method)

    def check_idle(self, class_id: int, method_id: int) -> None:
        """Raise WireError while tx.commit is being carried out [TX-5]."""
        if self.committing:
            text = "unexpected command while processing 'tx.commit'"
            raise WireError(CHANNEL_ERROR, text, class_id, method_id)

    def queue_name(self, given: str) -> str:
        """Return the given name, or that of the queue declared last on this channel.

        Raises:
            NotFound: no name, and nothing was declared.
        """
        if given:
            return given
        if not self.current_queue:
            raise NotFound("no previously declared queue")
        return self.current_queue

    def accepted(self, upto: int) -> tuple[int, int]:
        """Return the number of the last publish up to `upto` that was not refused, and the count of
        such publishes after `confirmed`. Refusals among them are removed."""
        refused = self.refused
        count = upto - self.confirmed
        if not refused:
            return upto, count
        passed: list[tuple[int, int]] = []
        at = 0
        while at < len(refused) and refused[at][0] <= upto:
            first, end = refused[at]
            if end > upto:
                refused[at] = (upto + 1, end)
                end = upto
            else:
                at += 1
            count -= end - first + 1
            passed.append((first, end))
        del refused[:at]
        last = upto
        while passed and passed[-1][1] == last:
            last = passed.pop()[0] - 1
        return last, count

    def unanswered(self) -> int:
        """Count of publishes that were neither confirmed nor refused."""
        count = self.session.published - self.confirmed
        for first, last in self.refused:
            count -= last - first + 1
        return count

    def close(self, lost: bool) -> None:
        """End the engine's side. Sends nothing to the peer."""
        client = self.client
        if self.reply_consumer is not None:
            client.replies.remove(self.reply_consumer)
            self.reply_consumer = None
        client.channels.pop(self.number, None)
        client.broker.clients.close_session(self.session, lost)
        self.session.handle = None
