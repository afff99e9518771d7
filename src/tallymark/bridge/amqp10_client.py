"""What the AMQP 1.0 modules work on: one client connection, its sessions, the ends of its links."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, final

from tallymark.bridge.amqp import AmqpBridge, default_mechanisms
from tallymark.bridge.amqp10_confirms import Confirms
from tallymark.bridge.amqp10_watch import Watch
from tallymark.bridge.bridge import Waiter
from tallymark.bridge.direct_reply import DirectReplies
from tallymark.bridge.permissions import Access, OnDenied
from tallymark.engine.annotations import Annotations
from tallymark.engine.broker import Broker
from tallymark.engine.patterns import compile_pattern
from tallymark.engine.session import Connection as EngineConnection
from tallymark.engine.session import Session as EngineSession
from tallymark.engine.vhost import VirtualHost
from tallymark.wire.amqp10.events import CreditReceived, TransfersReceived
from tallymark.wire.amqp10.limits import Limits
from tallymark.wire.amqp10.link import Link
from tallymark.wire.amqp10.serial import MASK
from tallymark.wire.amqp10.session import Session as WireSession

if TYPE_CHECKING:
    from tallymark.bridge.amqp10_dispositions import Answers
    from tallymark.bridge.amqp10_management_link import LinkPair
    from tallymark.bridge.amqp10_work import Work

LINK_CREDIT: Final = 170
"""What RabbitMQ grants to a publisher [FC-8]."""


@final
class Settings:
    """What all connections of a broker share."""

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
        """Gives 22 characters of [A-Za-z0-9_-] that nobody can guess."""
        self.replies = replies
        self.watch = watch
        self.mechanisms = mechanisms
        """Gives those by which clients may log in now, in the order they are offered."""
        self.on_denied = on_denied
        self.node_name = node_name
        self.platform = platform
        """Shown to clients, such as "Python 3.11.2"."""
        self.link_credit = link_credit
        """Messages a publisher may send on a link before more is granted."""
        self.anonymous_user = anonymous_user
        """Who clients without a name are; empty: they may not log in."""
        self.auto_create = compile_pattern(auto_create) if auto_create else None
        """Names of queues that an attach declares."""
        self.transaction_timeout_ms = transaction_timeout_ms
        """How long a transaction may stay open; 0: without limit [TX-16]."""


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
        """The bridge: what is flushed."""
        self.closed = False
        """Nothing may be delivered any more."""
        self.is_held = False
        """Whether nothing is granted to publishers: memory or disk run low."""
        self.sessions: list[Session] = []
        self.works: dict[bytes, Work] = {}
        """Its open transactions, by id."""
        self.wall_ms = 0
        """Milliseconds since 1970 of what was received last."""
        self.annotations: Annotations | None = None
        """Of what it published last with a time or further routing keys, to be shared."""
        self.answering = 0
        """Requests to `/management` that are being done, or whose answer waits for the disk."""
        self.deleted: list[LinkEnd] = []
        """Ends whose queue is gone, to be detached behind those answers."""

    def lose(self, end: LinkEnd) -> None:
        """The queue of a link is gone. Whoever has deleted it through `/management` is answered
        first, as by RabbitMQ: clients that wait for the answer stumble over a detach before it."""
        if self.answering:
            self.deleted.append(end)
        else:
            end.detach_deleted()

    def answered(self) -> None:
        """An answer of `/management` is out, or as far as it can be: nobody gives it credit."""
        self.answering -= 1
        if not self.answering and self.deleted:
            deleted = self.deleted
            self.deleted = []
            for end in deleted:
                end.detach_deleted()

    def known_as(self, ttl_ms: int, more_keys: tuple[str, ...], due_ms: int) -> Annotations | None:
        """What the broker keeps beside messages that say this. The last ones as long as they say
        the same: stretches may follow one another in a queue only where they share theirs."""
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
    """One session: the engine's and the wire's, whose numbers go together.

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
        self.ends: dict[LinkEnd, Link] = {}
        """Ours of its links."""
        self.answers: Answers | None = None
        """Settlements whose answer waits for the disk, of what is being received now."""
        self.pairs: dict[str, LinkPair] = {}
        """Of management, by the name of their links."""
        engine.confirming = True
        engine.handle = self
        wire.context = self

    def tag_of(self, number: int) -> int:
        """The engine's tag of a delivery that was sent."""
        last = self.engine.next_tag - 1
        return last - ((last - 1 - number) & MASK)

    @property
    def number(self) -> int:
        """Of its channel."""
        return self.wire.channel

    def enter(self, link: Link, end: LinkEnd) -> None:
        """The link is attached, and this is our end of it."""
        link.context = end
        self.ends[end] = link

    def leave(self, link: Link) -> None:
        """The link is no more, by whoever's will."""
        end = link.context
        link.context = None
        if isinstance(end, LinkEnd) and end in self.ends:
            del self.ends[end]
            end.gone(False)

    def close(self, lost: bool) -> None:
        """End the engine's side and that of all links; says nothing to the peer."""
        client = self.client
        if self in client.sessions:
            client.sessions.remove(self)
        client.broker.close_session(self.engine, lost)
        ends = self.ends
        self.ends = {}
        for end, link in ends.items():
            link.context = None
            end.gone(True)
        # Whatever still comes of it means nothing; and nothing is kept by a cycle.
        self.confirms.clear()
        self.wire.context = None
        self.engine.handle = None


def number_of(tag: int) -> int:
    """On the wire, of the engine's tag."""
    return (tag - 1) & MASK


class LinkEnd:
    """Our end of an attached link: its `context`. What a kind of link has no use for is nothing
    here."""

    __slots__ = ()

    def received(self, event: TransfersReceived) -> None:
        """Messages came."""

    def granted(self, event: CreditReceived) -> None:
        """The peer's receiver says how many messages it wants."""

    def resume(self) -> None:
        """Publishers may be granted credit again."""

    def rights_changed(self) -> None:
        """The user's permissions are others now."""

    def detach_deleted(self) -> None:
        """The queue that the link is about is gone. Nothing where the link is, too."""

    def gone(self, with_session: bool) -> None:
        """The link is no more: end the engine's side. Called once. with_session: the engine's
        session is closed already."""


class Delayed(Waiter):
    """Something that is said once the disk has what it follows from."""

    __slots__ = ()

    def say(self) -> None:
        raise NotImplementedError
