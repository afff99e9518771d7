"""What the handlers work on: one client connection and its channels."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, final

from tallymark.bridge.amqp091_gate import OutputGate
from tallymark.bridge.direct_reply import DirectReplies
from tallymark.bridge.permissions import Access
from tallymark.engine.annotations import Annotations
from tallymark.engine.broker import Broker
from tallymark.engine.errors import NotFound
from tallymark.engine.session import Connection as EngineConnection
from tallymark.engine.session import Session
from tallymark.engine.staging import Transaction
from tallymark.engine.vhost import VirtualHost
from tallymark.wire.amqp091.connection import Connection as WireConnection
from tallymark.wire.amqp091.errors import CHANNEL_ERROR, WireError
from tallymark.wire.amqp091.methods import Method

if TYPE_CHECKING:
    from tallymark.bridge.amqp091_content import ReplyRecipient
    from tallymark.bridge.amqp091_publish import Publish
    from tallymark.bridge.amqp091_sink import Intake

ROUTES_KEPT: Final = 4096
"""Publish method frames remembered per connection."""
REPLIES_HELD: Final = 16 << 20
"""Bytes of direct replies written to a connection whose socket is full, or kept for a channel that
wants no deliveries; more are dropped."""


@final
class Client:
    """A client that is logged in to a virtual host."""

    __slots__ = (
        "_held_replies",
        "access",
        "annotations",
        "broker",
        "cancel_notify",
        "channels",
        "closed",
        "connection",
        "gate",
        "generation",
        "owner",
        "random_name",
        "recover_counts",
        "replies",
        "routes",
        "shares_prefetch",
        "vhost",
        "wall_ms",
        "wire",
    )

    def __init__(
        self,
        broker: Broker,
        wire: WireConnection,
        gate: OutputGate,
        replies: DirectReplies,
        random_name: Callable[[], str],
        connection: EngineConnection,
        access: Access,
        cancel_notify: bool,
        shares_prefetch: bool,
        recover_counts: bool,
        owner: object,
    ) -> None:
        self.broker = broker
        self.wire = wire
        self.gate = gate
        self.replies = replies
        self.random_name = random_name
        """22 characters of [A-Za-z0-9_-] that nobody can guess."""
        self.connection = connection
        self.vhost: VirtualHost = broker.vhost(connection.vhost)
        self.access = access
        self.cancel_notify = cancel_notify
        """Whether the client wants to hear that a consumer's queue is gone."""
        self.shares_prefetch = shares_prefetch
        """Whether basic.qos without `global` is meant for all consumers of the channel at once."""
        self.recover_counts = recover_counts
        """True if basic.recover counts toward a delivery limit as basic.nack does [DL-5]."""
        self.owner = owner
        """The bridge: what is flushed."""
        self.closed = False
        """Nothing may be delivered any more."""
        self.channels: dict[int, Channel] = {}
        self.routes: dict[bytes, Publish] = {}
        """By the bytes of the publish method frame, channel included."""
        self.generation = self.vhost.generation
        """Of the topology that `routes` was made with."""
        self.wall_ms = 0
        """Milliseconds since 1970 of what was received last."""
        self.annotations: Annotations | None = None
        """Of what it published last with an expiration or further routing keys, to be shared."""
        self._held_replies = 0

    def publish_of(self, method: bytes) -> Publish | None:
        """What is known of a publish method frame, unless the topology changed since."""
        if self.generation != self.vhost.generation:
            self.routes.clear()
            self.generation = self.vhost.generation
        return self.routes.get(method)

    def remember(self, method: bytes, publish: Publish) -> None:
        if len(self.routes) >= ROUTES_KEPT:
            self.routes.clear()
        self.routes[method] = publish

    def takes_reply(self, size: int) -> bool:
        """Whether a direct reply may be written: not without end to a client that reads nothing."""
        if not self.connection.paused:
            self._held_replies = 0
        self._held_replies += size
        return not self.closed and self._held_replies <= REPLIES_HELD


@final
class Channel:
    """One open channel: the engine's session and what only AMQP 0-9-1 knows."""

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
        """Declared last; what an empty queue name stands for [amqp-0.9.1 queue.declare]."""
        self.confirmed = 0
        """Number of the last publish that was answered together with all before it."""
        self.refused: deque[tuple[int, int]] = deque()
        """First and last numbers of publishes beyond `confirmed` that got a basic.nack."""
        self.returned = 0
        """Messages sent back as unroutable."""
        self.prefetch = 0
        self.prefetch_shared = 0
        self.reply_consumer: ReplyRecipient | None = None
        self.transaction: Transaction | None = None
        """Under which everything is published and settled; None: at once [TX-1]."""
        self.committing = False
        """The answer to tx.commit waits for the disk: the client has to wait for it [TX-5]."""
        self.intake: Intake | None = None
        """Takes what is published in the place of its queues; None: it is published."""
        session.handle = self

    def send(self, method: Method) -> None:
        self.client.wire.send_method(self.number, method)

    def check_idle(self, class_id: int, method_id: int) -> None:
        """Raises WireError while tx.commit is being carried out [TX-5]."""
        if self.committing:
            text = "unexpected command while processing 'tx.commit'"
            raise WireError(CHANNEL_ERROR, text, class_id, method_id)

    def queue_name(self, given: str) -> str:
        """The name given, or the queue declared last on this channel.

        Raises:
            NotFound: no name, and nothing was declared.
        """
        if given:
            return given
        if not self.current_queue:
            raise NotFound("no previously declared queue")
        return self.current_queue

    def accepted(self, upto: int) -> tuple[int, int]:
        """Of the publishes after `confirmed` up to `upto`: the number of the last that was not
        refused, and how many were not. What was refused among them is forgotten."""
        refused = self.refused
        passed: list[tuple[int, int]] = []
        count = upto - self.confirmed
        while refused and refused[0][0] <= upto:
            first, end = refused.popleft()
            if end > upto:
                refused.appendleft((upto + 1, end))
                end = upto
            count -= end - first + 1
            passed.append((first, end))
        last = upto
        while passed and passed[-1][1] == last:
            last = passed.pop()[0] - 1
        return last, count

    def unanswered(self) -> int:
        """How many publishes have neither been confirmed nor refused."""
        count = self.session.published - self.confirmed
        for first, last in self.refused:
            count -= last - first + 1
        return count

    def close(self, lost: bool) -> None:
        """End the engine's side; says nothing to the peer."""
        client = self.client
        if self.reply_consumer is not None:
            client.replies.remove(self.reply_consumer)
            self.reply_consumer = None
        client.channels.pop(self.number, None)
        client.broker.close_session(self.session, lost)
        self.session.handle = None
