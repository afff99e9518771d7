"""AMQP 1.0 clients of a whole broker without sockets: our own wire layer in the client's role, byte
by byte or whole, joined to real bridges, the real engine and a journal in memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from tallymark.bridge.amqp10.connection import Amqp10
from tallymark.bridge.amqp10.format import Amqp10Format
from tallymark.bridge.amqp10.settings import Settings, Watch
from tallymark.bridge.bridge import Bridge, Waiter
from tallymark.bridge.nsq.format import NsqFormat
from tallymark.bridge.permissions import Permissions
from tallymark.engine.effects import (
    Activated,
    Cancelled,
    CloseConsumer,
    CloseSession,
    Confirm,
    Deliver,
    Drained,
    Durable,
    Effect,
    Refused,
    TimedOut,
    TransactionExpired,
)
from tallymark.engine.queue import Queue
from tallymark.engine.session import Session as EngineSession
from tallymark.stored.formats import AMQP10, NSQ
from tallymark.wire.amqp10.connection import Connection
from tallymark.wire.amqp10.events import (
    ConnectionFailed,
    DispositionReceived,
    Ended,
    Event,
    LinkAttached,
    LinkDetached,
    OpenReceived,
    SaslReceived,
    SessionBegun,
    SettlementReceived,
    TransfersReceived,
)
from tallymark.wire.amqp10.limits import Limits
from tallymark.wire.amqp10.link import Link
from tallymark.wire.amqp10.outcomes import DeliveryState, Error
from tallymark.wire.amqp10.performatives import Attach, Open, Source, Target
from tallymark.wire.amqp10.receiver_link import ReceiverLink
from tallymark.wire.amqp10.sasl import SaslMechanisms, SaslOutcome, plain_response
from tallymark.wire.amqp10.sections import Sections, encode_message
from tallymark.wire.amqp10.sender_link import SenderLink
from tallymark.wire.amqp10.serial import add
from tallymark.wire.amqp10.session import Session
from tests.bridge import rig

E = TypeVar("E", bound=Event)


class Rig(rig.Rig):
    """One broker process, for clients of both versions of AMQP."""

    def __init__(self, limits: Limits | None = None, **settings: object) -> None:
        super().__init__()
        self.broker.formats.update({AMQP10: Amqp10Format(), NSQ: NsqFormat()})
        self.watch = Watch()
        self.broker.registry.observers.append(self.watch.observe)
        self.settings10 = Settings(
            limits or Limits(), self._name, self.replies, self.watch, **settings,  # type: ignore[arg-type]
        )  # fmt: skip
        self.owner = self.broker.clients.open_connection("/", "guest", "rig")

    def turn(self) -> None:
        self.now_ms += 1
        broker, journal = self.broker, self.journal
        effects = broker.turn(self.now_ms)
        records = broker.take_records()
        position = journal.commit(records, self.now_ms) if records else journal.end
        broker.committed(position)
        if not self.hold_disk:
            journal.sync()
        effects += broker.synced(journal.synced)
        for effect in effects:
            carry_out(effect)

    def settle_down(self) -> None:
        super().settle_down()
        self.broker.check()

    def declare(self, name: str, durable: bool = True, **arguments: object) -> Queue:
        """A queue; x- is left out of the names of arguments, and _ stands for -."""
        given = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
        return self.broker.registry.declare_queue(
            self.owner, name, durable, False, False, given, False
        )

    def queue(self, name: str) -> Queue:
        return self.broker.vhost("/").queues[name]

    def delete(self, name: str) -> None:
        self.broker.registry.delete_queue(self.owner, name, False, False)

    def connect10(self, user: str = "guest", **more: object) -> Peer:
        """A client that is in the virtual host."""
        peer = Peer(self, **more)  # type: ignore[arg-type]
        peer.login(user)
        return peer


def carry_out(effect: Effect) -> None:
    """As server/client.py does."""
    if isinstance(effect, Deliver):
        _bridge_of(effect.consumer.session).deliver(effect)
    elif isinstance(effect, Confirm):
        _bridge_of(effect.session).confirm(effect)
    elif isinstance(effect, Refused):
        _bridge_of(effect.session).refused(effect)
    elif isinstance(effect, Activated):
        _bridge_of(effect.consumer.session).activated(effect)
    elif isinstance(effect, TimedOut):
        _bridge_of(effect.session).timed_out(effect)
    elif isinstance(effect, Drained):
        _bridge_of(effect.consumer.session).drained(effect)
    elif isinstance(effect, Cancelled):
        _bridge_of(effect.consumer.session).cancelled(effect)
    elif isinstance(effect, TransactionExpired):
        _bridge_of(effect.transaction.session).transaction_expired(effect)
    elif isinstance(effect, CloseSession):
        _bridge_of(effect.session).close_session(effect)
    elif isinstance(effect, CloseConsumer):
        _bridge_of(effect.consumer.session).close_consumer(effect)
    elif isinstance(effect, Durable):
        assert isinstance(effect.waiter, Waiter)
        effect.waiter.durable()


def _bridge_of(session: EngineSession) -> Bridge:
    bridge = session.connection.handle
    assert isinstance(bridge, Bridge)
    return bridge


@dataclass(frozen=True, slots=True)
class Got:
    """One message as it came."""

    link: ReceiverLink
    id: int
    tag: bytes
    data: bytes
    settled: bool

    @property
    def sections(self) -> Sections:
        return Sections(self.data, 0, len(self.data))

    @property
    def body(self) -> bytes:
        (body,) = self.sections.bodies
        assert isinstance(body, bytes)
        return body


@dataclass(slots=True)
class Told:
    """What a sender was told of one of its deliveries: states in order, and whether it is over."""

    states: list[DeliveryState | None] = field(default_factory=list)
    settled: bool = False


class Peer:
    """A client. `chunk`: bytes that each side reads at a time; 0: all that is there."""

    def __init__(
        self,
        rig: Rig,
        *,
        chunk: int = 0,
        limits: Limits | None = None,
        external: str = "",
        hostname: str | None = None,
    ) -> None:
        self.rig = rig
        self.bridge = Amqp10(rig.broker, rig.settings10, "peer10", external)
        rig.bridges.append(self.bridge)  # type: ignore[arg-type]
        self.wire = Connection(limits or Limits(incoming_window=5000), is_server=False)
        self.chunk = chunk
        self.hostname = hostname
        self.events: list[Event] = []
        """All but those that the helpers below have taken care of."""
        self.got: list[Got] = []
        self.told: dict[int, Told] = {}
        """By number of the delivery, over all sessions: tests have one."""
        self.auto_settle_second = True
        self.sent_bytes: list[bytes] = []
        """Written by the broker."""

    # -- moving bytes

    def pump(self, turns: bool = True) -> None:
        """Until both sides and the broker are quiet."""
        for _ in range(1000):
            moved = self._to_broker()
            if turns:
                self.rig.settle_down()
            moved = self._from_broker() or moved
            moved = self._take_events() or moved
            if not moved:
                return
        raise AssertionError("a thousand rounds and still talking")

    def _to_broker(self) -> bool:
        data = b"".join(self.wire.take_output(self.rig.now_ms))
        for part in _parts(data, self.chunk):
            self.bridge.receive(part, self.rig.now_ms, self.rig.now_ms)
        return bool(data)

    def _from_broker(self) -> bool:
        data = b"".join(self.bridge.take_output())
        if data:
            self.sent_bytes.append(data)
        for part in _parts(data, self.chunk):
            self.wire.receive_data(part, self.rig.now_ms)
            self._take_events()
        return bool(data)

    def _take_events(self) -> bool:
        any_taken = False
        while (event := self.wire.next_event()) is not None:
            any_taken = True
            self._take(event)
        return any_taken

    def _take(self, event: Event) -> None:
        if isinstance(event, TransfersReceived):
            assert isinstance(event.link, ReceiverLink)
            for i, tag in enumerate(event.tags):
                data = event.data[event.cuts[i] : event.cuts[i + 1]]
                self.got.append(Got(event.link, add(event.first, i), tag, data, event.settled))
            return
        if isinstance(event, DispositionReceived) and not event.by_sender:
            id = event.first
            while True:
                told = self.told.setdefault(id, Told())
                told.states.append(event.state)
                told.settled = told.settled or event.settled
                if id == event.last:
                    break
                id = add(id, 1)
            if not event.settled and self.auto_settle_second:
                event.session.settle_sent(event.first, event.last, event.state)
            return
        self.events.append(event)

    def take(self, kind: type[E]) -> E:
        """The one event of a kind; it is gone then."""
        found = [event for event in self.events if isinstance(event, kind)]
        assert len(found) == 1, (kind.__name__, [type(event).__name__ for event in self.events])
        self.events.remove(found[0])
        return found[0]

    # -- the handshake

    def start(self) -> SaslMechanisms:
        self.wire.start(True)
        self.pump()
        frame = self.take(SaslReceived).frame
        assert isinstance(frame, SaslMechanisms)
        return frame

    def login(self, user: str = "guest") -> None:
        assert "PLAIN" in self.start().sasl_server_mechanisms
        self.wire.sasl_init("PLAIN", plain_response(user, user))
        self.pump()
        assert self.bridge.pending_login == ("PLAIN", user, user)
        self.bridge.login_succeeded(self.rig.users.get(user) or Permissions.all(user))
        self.pump()
        outcome = self.take(SaslReceived).frame
        assert isinstance(outcome, SaslOutcome)
        assert outcome.code == 0
        self.open()

    def open(self) -> Open:
        self.wire.open(Open(container_id="test", hostname=self.hostname))
        self.pump()
        return self.take(OpenReceived).open

    # -- sessions and links

    def session(self) -> Session:
        session = self.wire.begin()
        self.pump()
        assert self.take(SessionBegun).session is session
        return session

    def attach(
        self,
        session: Session,
        attach: Attach,
        is_sender: bool,
        snd: int | None = None,
        rcv: int | None = None,
    ) -> Link:
        """Ask for a link, whatever the answer."""
        if not attach.name:
            attach.name = f"link-{len(session.links)}"
        if is_sender:
            link: Link = session.attach_sender(attach, snd, rcv)
        else:
            link = session.attach_receiver(attach, snd, rcv)
        self.pump()
        return link

    def sender(
        self,
        session: Session,
        address: str | None = "/queues/q",
        *,
        snd: int | None = None,
        rcv: int | None = None,
        attach: Attach | None = None,
    ) -> SenderLink:
        """A link to publish on, with the broker's first credit."""
        asked = attach or Attach(source=Source(), target=Target(address=address))
        link = self.attach(session, asked, True, snd, rcv)
        assert isinstance(link, SenderLink)
        assert self.take(LinkAttached).link is link
        return link

    def receiver(
        self,
        session: Session,
        address: str | None = "/queues/q",
        credit: int = 0,
        *,
        snd: int | None = None,
        rcv: int | None = None,
        source: Source | None = None,
        attach: Attach | None = None,
    ) -> ReceiverLink:
        asked = attach or Attach(source=source or Source(address=address), target=Target())
        link = self.attach(session, asked, False, snd, rcv)
        assert isinstance(link, ReceiverLink)
        assert self.take(LinkAttached).link is link
        if credit:
            link.flow(credit)
            self.pump()
        return link

    def refused(self, session: Session, attach: Attach, is_sender: bool) -> Error:
        """Why a link cannot be had; the session goes on."""
        link = self.attach(session, attach, is_sender)
        detached = self.take(LinkDetached)
        assert detached.link is link
        assert detached.refused
        assert detached.error is not None
        assert not [event for event in self.events if getattr(event, "link", None) is link]
        link.detach()
        self.pump()
        return detached.error

    # -- messages

    def send(
        self,
        link: SenderLink,
        *messages: bytes | str,
        settled: bool = False,
        **sections: object,
    ) -> list[int]:
        """Messages with these bodies; returns their numbers."""
        numbers = []
        for message in messages:
            body = message.encode() if isinstance(message, str) else message
            data = encode_message(body=body, **sections)  # type: ignore[arg-type]
            numbers.append(link.send(data, settled=settled))
        self.pump()
        return numbers

    def states(self, numbers: Iterable[int]) -> list[DeliveryState | None]:
        """The outcome of each of these deliveries, all of them settled."""
        found = []
        for number in numbers:
            told = self.told.pop(number)
            assert told.settled, number
            found.append(told.states[-1])
        return found

    def bodies(self) -> list[bytes]:
        """Of what has come since the last call."""
        got, self.got = self.got, []
        return [one.body for one in got]

    def settle(self, got: Got, state: DeliveryState) -> None:
        got.link.settle(got.id, got.id, state)
        self.pump()

    def vanish(self) -> None:
        """The network is gone."""
        self.bridge.eof()
        self.rig.settle_down()

    def failed(self) -> Error:
        return self.take(ConnectionFailed).error

    def ended(self) -> bool:
        return any(isinstance(event, Ended) for event in self.events)


def _parts(data: bytes, size: int) -> list[bytes]:
    if not size:
        return [data] if data else []
    return [data[at : at + size] for at in range(0, len(data), size)]


__all__ = ["Got", "Peer", "Rig", "SettlementReceived", "Told"]
