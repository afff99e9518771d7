"""The state of an AMQP 1.0 client: its connection, its sessions and the ends of its links. All AMQP
1.0 modules work on it."""

from __future__ import annotations

from typing import Final, final

from tallymark.bridge.amqp import AmqpBridge, AmqpClient
from tallymark.bridge.amqp10.confirms import Confirms
from tallymark.bridge.amqp10.links import LinkEnd
from tallymark.bridge.amqp10.parked import Outcome, ParkedTags
from tallymark.bridge.amqp10.settings import Settings
from tallymark.bridge.bridge import Waiter
from tallymark.bridge.permissions import Access
from tallymark.engine.broker import Broker
from tallymark.engine.intervals import IntervalSet
from tallymark.engine.session import Connection as EngineConnection
from tallymark.engine.session import Session as EngineSession
from tallymark.engine.staging import Transaction
from tallymark.stored.annotations import Annotations
from tallymark.units import EngineMs, Ms, Tag
from tallymark.wire.amqp10.ends import LinkEnd as WireLink
from tallymark.wire.amqp10.outcomes import Accepted, DeliveryState, TransactionalState
from tallymark.wire.amqp10.serial import MASK, Serial
from tallymark.wire.amqp10.session import Session as WireSession

ID_BYTES: Final = 8
"""Bytes of a transaction id."""


@final
class Client(AmqpClient):
    """A client that is logged in to a virtual host."""

    __slots__ = ("answering", "deleted", "is_held", "sessions", "settings", "works")

    def __init__(
        self,
        broker: Broker,
        settings: Settings,
        connection: EngineConnection,
        access: Access,
        owner: AmqpBridge,
    ) -> None:
        super().__init__(broker, connection, access, owner)
        self.settings = settings
        self.is_held = False
        """True while publishers are granted no credit because memory or disk space is low."""
        self.sessions: list[Session] = []
        self.works: dict[bytes, Work] = {}
        """Open transactions by id."""
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
            last = Annotations(ttl_ms=Ms(ttl_ms), more_keys=more_keys, due_ms=EngineMs(due_ms))
            self.annotations = last
        return last


@final
class Session:
    """One session: the engine's and the wire's, with matching delivery numbers.

    Deliveries of the engine have tags 1, 2, ...; on the wire they are numbers 0, 1, ... modulo
    2^32. Every tag is sent or skipped, in order, so that either follows from the other.
    """

    __slots__ = ("answers", "client", "confirms", "ends", "engine", "taken_back", "wire")

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
        self.taken_back = IntervalSet()
        """Tags that went back to their queue, unsettled, as the broker ended their link."""
        engine.confirming = True
        engine.handle = self
        wire.context = self

    def tag_of(self, number: Serial) -> Tag:
        """Return the engine's tag of a delivery that was sent."""
        last = self.engine.next_tag - 1
        return Tag(last - ((last - 1 - number) & MASK))

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
        client.broker.clients.close_session(self.engine, lost)
        ends = self.ends
        self.ends = {}
        for end, link in ends.items():
            link.context = None
            end.gone(True)
        # Late events of the session have no effect; and no reference cycle keeps it in memory.
        self.confirms.clear()
        self.wire.context = None
        self.engine.handle = None


def number_of(tag: Tag) -> Serial:
    """Return the delivery number on the wire of an engine's tag."""
    return Serial((tag - 1) & MASK)


@final
class Work:
    """One transaction between declare and discharge. Only its own connection can name it."""

    __slots__ = (
        "_forgotten",
        "_parked",
        "accepted",
        "client",
        "id",
        "state",
        "transaction",
    )

    def __init__(self, client: Client, transaction: Transaction) -> None:
        self.client = client
        self.transaction = transaction
        self.id = transaction.id.to_bytes(ID_BYTES, "big")
        self.accepted = TransactionalState(self.id, Accepted())
        """Delivery state of messages published under the transaction."""
        self.state = TransactionalState(self.id)
        """Delivery state of messages delivered under the transaction."""
        self._parked: dict[Session, ParkedTags] = {}
        """Tags settled under the transaction."""
        self._forgotten: dict[Session, IntervalSet] = {}
        """Tags among those that the client has settled on its side, so that it forgets them even
        after a rollback."""

    def outcome(self, state: DeliveryState) -> DeliveryState:
        """Return an outcome under this transaction."""
        if isinstance(state, Accepted):
            return self.accepted
        return TransactionalState(self.id, state)

    def fail(self, text: str) -> None:
        """Mark the transaction: it can only be rolled back [TX-13]. The first reason counts."""
        if not self.transaction.failure:
            self.transaction.failure = text

    # -- settlements

    def park(self, session: Session, first: int, last: int, outcome: Outcome) -> None:
        """Note that tags first..last were settled under the transaction, with this outcome."""
        parked = self._parked.get(session)
        if parked is None:
            parked = self._parked[session] = ParkedTags()
        parked.put(first, last + 1, outcome)

    def parked(self, session: Session, first: int, last: int) -> list[tuple[int, int]]:
        """Return the tags among first..last that were settled under the transaction, as (first,
        last)."""
        parked = self._parked.get(session)
        if parked is None:
            return []
        return [(low, high - 1) for low, high, _ in parked.overlap(first, last + 1)]

    def reopen_others(self, session: Session, first: int, last: int, outcome: bytes) -> None:
        """Make those of tags first..last unsettled again that were settled under the transaction
        with another outcome, unless the client has settled them on its side."""
        parked = self._parked.get(session)
        if parked is None:
            return
        forgotten = self._forgotten.get(session)
        for low, high, (one, _) in parked.overlap(first, last + 1):
            if one == outcome:
                continue
            for a, b in [(low, high)] if forgotten is None else forgotten.gaps(low, high):
                self.client.broker.transactions.reopen(
                    self.transaction, session.engine, Tag(a), Tag(b - 1)
                )
                parked.remove(a, b)

    def forget(self, session: Session, first: int, last: int) -> None:
        """Note that the client has settled these tags on its side: a rollback does not make them
        unsettled for it again [TX-15]."""
        for low, high in self.parked(session, first, last):
            forgotten = self._forgotten.get(session)
            if forgotten is None:
                forgotten = self._forgotten[session] = IntervalSet()
            forgotten.add(low, high + 1)

    def expected(self) -> list[tuple[Session, int, int, DeliveryState]]:
        """Return the outcomes that the client expects to be confirmed after the commit: of all that
        it has not settled on its side."""
        found: list[tuple[Session, int, int, DeliveryState]] = []
        for session, parked in self._parked.items():
            forgotten = self._forgotten.get(session)
            for low, high, (_, state) in parked:
                if state is None:
                    continue
                for a, b in [(low, high)] if forgotten is None else forgotten.gaps(low, high):
                    found.append((session, a, b - 1, state))
        return found

    def forgotten(self) -> list[tuple[Session, int, int]]:
        """Return the tags that the client has settled on its side: session, first, last."""
        return [
            (session, low, high - 1)
            for session, ranges in self._forgotten.items()
            for low, high in ranges
        ]

    # -- acquisitions

    def acquired(self, session: Session, first: int, last: int) -> bool:
        """Return whether any of the tags first..last were delivered under the transaction."""
        acquisitions = self.transaction.acquisitions.get(session.engine)
        return acquisitions is not None and acquisitions.meets(first, last + 1)


class Delayed(Waiter):
    """An answer that is sent once its cause is on disk."""

    __slots__ = ("_client",)

    def __init__(self, client: Client) -> None:
        super().__init__(client.owner)
        self._client = client

    def durable(self) -> None:
        if not self._client.closed:
            self.say()

    def say(self) -> None:
        raise NotImplementedError


@final
class Answers(Delayed):
    """Settlements of one session that are confirmed to the client once they are on disk."""

    __slots__ = ("_ranges", "_session")

    def __init__(self, session: Session) -> None:
        super().__init__(session.client)
        self._session = session
        self._ranges: list[tuple[Serial, Serial, DeliveryState]] = []

    def add(self, first: Serial, last: Serial, state: DeliveryState) -> None:
        self._ranges.append((first, last, state))

    def say(self) -> None:
        if not self._session.engine.closed:
            for first, last, state in self._ranges:
                self._session.wire.settle_sent(first, last, state)
