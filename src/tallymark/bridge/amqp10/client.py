"""The state of an AMQP 1.0 client: its connection, its sessions and the ends of its links. All AMQP
1.0 modules work on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, final

from tallymark.bridge.amqp import AmqpBridge, default_mechanisms
from tallymark.bridge.amqp10.confirms import Confirms
from tallymark.bridge.amqp10.watch import Watch
from tallymark.bridge.bridge import Waiter
from tallymark.bridge.direct_reply import DirectReplies
from tallymark.bridge.permissions import Access, OnDenied
from tallymark.engine.annotations import Annotations
from tallymark.engine.broker import Broker
from tallymark.engine.patterns import compile_pattern
from tallymark.engine.session import Connection as EngineConnection
from tallymark.engine.session import Session as EngineSession
from tallymark.engine.vhost import VirtualHost
from tallymark.wire.amqp10.ends import LinkEnd as WireLink
from tallymark.wire.amqp10.events import CreditReceived, TransfersReceived
from tallymark.wire.amqp10.limits import Limits
from tallymark.wire.amqp10.serial import MASK
from tallymark.wire.amqp10.session import Session as WireSession

if TYPE_CHECKING:
    from tallymark.bridge.amqp10.dispositions import Answers
    from tallymark.bridge.amqp10.management_link import LinkPair
    from tallymark.bridge.amqp10.work import Work

LINK_CREDIT: Final = 170
"""Link credit that RabbitMQ grants to a publisher [FC-8]."""


@final
class Settings:
    """Settings that all connections of a broker share."""

    __slots__ = (
        "anonymous_user",
        "auto_create",
        "limits",
        "link_credit",
        "mechanisms",
        "node_name",
        "on_denied",
        "platform",
        "random_name",
        "replies",
        "transaction_timeout_ms",
        "watch",
    )

    def __init__(
        self,
        limits: Limits,
        random_name: Callable[[], str],
        replies: DirectReplies,
        watch: Watch,
        *,
        node_name: str = "tallymark@localhost",
        platform: str = "Python",
        link_credit: int = LINK_CREDIT,
        anonymous_user: str = "",
        auto_create: str = "",
        transaction_timeout_ms: int = 0,
        mechanisms: Callable[[], tuple[str, ...]] = default_mechanisms,
        on_denied: OnDenied | None = None,
    ) -> None:
        self.limits = limits
        self.random_name = random_name
        """Function that returns 22 random characters of [A-Za-z0-9_-] that cannot be guessed."""
        self.replies = replies
        self.watch = watch
        self.mechanisms = mechanisms
        """Function that returns the mechanisms by which clients may log in now, in the order they
        are offered."""
        self.on_denied = on_denied
        self.node_name = node_name
        self.platform = platform
        """Name of the platform shown to clients, such as "Python 3.11.2"."""
        self.link_credit = link_credit
        """Messages a publisher may send on a link before more credit is granted."""
        self.anonymous_user = anonymous_user
        """User for clients that give no name; empty: such clients may not log in."""
        self.auto_create = compile_pattern(auto_create) if auto_create else None
        """Pattern of the names of queues that an attach declares; None: no queue is."""
        self.transaction_timeout_ms = transaction_timeout_ms
        """Maximum age of an open transaction, ms; 0: no limit [TX-16]."""


@final
class Client:
    """A client that is logged in to a virtual host."""

    __slots__ = (
        "access",
        "annotations",
        "broker",
        "answering",
        "closed",
        "connection",
        "deleted",
        "is_held",
        "owner",
        "sessions",
        "settings",
        "vhost",
        "wall_ms",
        "works",
    )

    def __init__(
        self,
        broker: Broker,
        settings: Settings,
        connection: EngineConnection,
        access: Access,
        owner: AmqpBridge,
    ) -> None:
        self.broker = broker
        self.settings = settings
        self.connection = connection
        self.vhost: VirtualHost = broker.vhost(connection.vhost)
        self.access = access
        self.owner = owner
        """Bridge of the client: the object to flush."""
        self.closed = False
        """True once nothing may be delivered any more."""
        self.is_held = False
        """True while publishers are granted no credit because memory or disk space is low."""
        self.sessions: list[Session] = []
        self.works: dict[bytes, Work] = {}
        """Open transactions by id."""
        self.wall_ms = 0
        """Arrival time of the last input, milliseconds since 1970."""
        self.annotations: Annotations | None = None
        """Annotations of the last messages published with a time or further routing keys; reused
        for equal ones."""
        self.answering = 0
        """Count of requests to `/management` in progress, including those whose answer waits for
        the disk."""
        self.deleted: list[LinkEnd] = []
        """Link ends whose queue was deleted, to be detached after those answers."""

    def lose(self, end: LinkEnd) -> None:
        """Detach a link end whose queue was deleted. A client that deleted it through `/management`
        is answered first, as by RabbitMQ: clients that wait for the answer do not expect a detach
        before it."""
        if self.answering:
            self.deleted.append(end)
        else:
            end.detach_deleted()

    def answered(self) -> None:
        """Note that an answer of `/management` was sent, or that the client gives no credit for
        it."""
        self.answering -= 1
        if not self.answering and self.deleted:
            deleted = self.deleted
            self.deleted = []
            for end in deleted:
                end.detach_deleted()

    def known_as(self, ttl_ms: int, more_keys: tuple[str, ...], due_ms: int) -> Annotations | None:
        """Return the annotations for messages with these properties; None if they need none. Equal
        annotations of consecutive messages are one object, since stretches in a queue can only be
        merged if they share it."""
        if ttl_ms < 0 and not more_keys and not due_ms:
            return None
        last = self.annotations
        if (
            last is None
            or last.ttl_ms != ttl_ms
            or last.more_keys != more_keys
            or last.due_ms != due_ms
        ):
            last = Annotations(ttl_ms=ttl_ms, more_keys=more_keys, due_ms=due_ms)
            self.annotations = last
        return last


@final
class Session:
    """One session: the engine's and the wire's, with matching delivery numbers.

    Deliveries of the engine have tags 1, 2, ...; on the wire they are numbers 0, 1, ... modulo
    2^32. Every tag is sent or skipped, in order, so that either follows from the other.
    """

    __slots__ = ("answers", "client", "confirms", "ends", "engine", "pairs", "wire")

    def __init__(self, client: Client, wire: WireSession, engine: EngineSession) -> None:
        self.client = client
        self.wire = wire
        self.engine = engine
        self.confirms = Confirms(wire)
        """Publishes that are not answered yet."""
        self.ends: dict[LinkEnd, WireLink] = {}
        """Our ends of the session's links."""
        self.answers: Answers | None = None
        """Settlements in the present input whose answer waits for the disk."""
        self.pairs: dict[str, LinkPair] = {}
        """Link pairs for management, by the name of their links."""
        engine.confirming = True
        engine.handle = self
        wire.context = self

    def tag_of(self, number: int) -> int:
        """Return the engine's tag of a delivery that was sent."""
        last = self.engine.next_tag - 1
        return last - ((last - 1 - number) & MASK)

    @property
    def number(self) -> int:
        """Channel number of the session."""
        return self.wire.channel

    def enter(self, link: WireLink, end: LinkEnd) -> None:
        """Add an attached link with our end of it."""
        link.context = end
        self.ends[end] = link

    def leave(self, link: WireLink) -> None:
        """Remove a link that either side has ended."""
        end = link.context
        link.context = None
        if isinstance(end, LinkEnd) and end in self.ends:
            del self.ends[end]
            end.gone(False)

    def close(self, lost: bool) -> None:
        """End the engine's side and that of all links. Sends nothing to the peer."""
        client = self.client
        if self in client.sessions:
            client.sessions.remove(self)
        client.broker.close_session(self.engine, lost)
        ends = self.ends
        self.ends = {}
        for end, link in ends.items():
            link.context = None
            end.gone(True)
        # Late events of the session have no effect; and no reference cycle keeps it in memory.
        self.confirms.clear()
        self.wire.context = None
        self.engine.handle = None


def number_of(tag: int) -> int:
    """Return the delivery number on the wire of an engine's tag."""
    return (tag - 1) & MASK


class LinkEnd:
    """Our end of an attached link: its `context`. Methods that a kind of link does not need do
    nothing."""

    __slots__ = ()

    def received(self, event: TransfersReceived) -> None:
        """Handle messages that arrived."""

    def granted(self, event: CreditReceived) -> None:
        """Handle credit granted by the peer's receiver."""

    def resume(self) -> None:
        """Grant credit to publishers again."""

    def rights_changed(self) -> None:
        """Apply a change of the user's permissions."""

    def detach_deleted(self) -> None:
        """Detach the link because its queue was deleted. Does nothing if the link has ended."""

    def gone(self, with_session: bool) -> None:
        """End the engine's side of a link that has ended. Called once. with_session: the engine's
        session is closed already."""


class Delayed(Waiter):
    """An answer that is sent once its cause is on disk."""

    __slots__ = ()

    def say(self) -> None:
        raise NotImplementedError
