"""An AMQP 1.0 client on a socket: our own wire layer in the client's role, a step at a time."""

from __future__ import annotations

import select
import socket
from typing import TypeVar

from tallymark.wire.amqp10.connection import Connection
from tallymark.wire.amqp10.events import (
    DispositionReceived,
    Event,
    LinkAttached,
    OpenReceived,
    SaslReceived,
    SessionBegun,
)
from tallymark.wire.amqp10.limits import Limits
from tallymark.wire.amqp10.link import Link
from tallymark.wire.amqp10.outcomes import (
    Accepted,
    Declare,
    Declared,
    DeliveryState,
    Discharge,
    encoded_state,
)
from tallymark.wire.amqp10.performatives import (
    RECEIVER,
    Attach,
    Coordinator,
    Open,
    Source,
    Target,
)
from tallymark.wire.amqp10.receiver_link import ReceiverLink
from tallymark.wire.amqp10.sasl import SaslMechanisms, SaslOutcome, plain_response
from tallymark.wire.amqp10.sections import encode_message
from tallymark.wire.amqp10.sender_link import SenderLink
from tallymark.wire.amqp10.sending import disposition_frame
from tallymark.wire.amqp10.session import Session
from tests.support.patience import PATIENCE_S

E = TypeVar("E", bound=Event)


class Client:
    """An AMQP 1.0 client on a socket: as far as its open."""

    def __init__(self, raw: socket.socket) -> None:
        raw.settimeout(PATIENCE_S)
        self.socket = raw
        self.wire = Connection(Limits(), is_server=False)
        self.events: list[Event] = []

    def exchange(self) -> Event | None:
        """The next thing the broker says; None: it hung up."""
        while not self.events:
            self.socket.sendall(b"".join(self.wire.take_output(0)))
            data = self.socket.recv(65536)
            if not data:
                return None
            self.wire.receive_data(data, 0)
            while (event := self.wire.next_event()) is not None:
                self.events.append(event)
        return self.events.pop(0)

    def _answer(self) -> Event:
        """The next thing the broker says. Raises ConnectionError: it hung up, by a reset or not."""
        event = self.exchange()
        if event is None:
            raise ConnectionError("the broker hung up")
        return event

    def mechanisms(self) -> tuple[str, ...]:
        """Raises ConnectionError, as the others do up to `login`: the broker hung up."""
        self.wire.start(True)
        event = self._answer()
        assert isinstance(event, SaslReceived)
        assert isinstance(event.frame, SaslMechanisms)
        return event.frame.sasl_server_mechanisms

    def authenticate(self, mechanism: str, response: bytes) -> int:
        """The code of the outcome."""
        self.wire.sasl_init(mechanism, response)
        event = self._answer()
        assert isinstance(event, SaslReceived)
        assert isinstance(event.frame, SaslOutcome)
        return event.frame.code

    def open(self) -> Open:
        self.wire.open(Open("test"))
        event = self._answer()
        assert isinstance(event, OpenReceived)
        return event.open

    # -- beyond open

    def work(self, wait_s: float = 0.01) -> list[Event]:
        """Write, read what is there, and return what that was; empty as well when the broker hung
        up."""
        output = b"".join(self.wire.take_output(0))
        if output:
            self.socket.sendall(output)
        while select.select([self.socket], [], [], wait_s)[0]:
            data = self.socket.recv(1 << 20)
            if not data:
                break
            self.wire.receive_data(data, 0)
            wait_s = 0
        found: list[Event] = []
        while (event := self.wire.next_event()) is not None:
            found.append(event)
        return found

    def login(self, user: str = "guest", password: str = "guest") -> Client:
        self.mechanisms()
        assert self.authenticate("PLAIN", plain_response(user, password)) == 0
        self.open()
        return self

    def session(self) -> Session:
        session = self.wire.begin()
        assert isinstance(self.exchange(), SessionBegun)
        return session

    def _attached(self, link: Link) -> None:
        while not isinstance(self.exchange(), LinkAttached):
            pass
        assert link.state.value == "ATTACHED"

    def sender(
        self, session: Session, address: str | None, snd: int | None = None, name: str = ""
    ) -> SenderLink:
        asked = Attach(
            name=name or f"to {address}", source=Source(), target=Target(address=address)
        )
        link = session.attach_sender(asked, snd)
        self._attached(link)
        return link

    def receiver(
        self,
        session: Session,
        address: str,
        snd: int | None = None,
        properties: dict[object, object] | None = None,
    ) -> ReceiverLink:
        asked = Attach(
            name=f"from {address}",
            source=Source(address=address),
            target=Target(),
            properties=properties,
        )
        link = session.attach_receiver(asked, snd)
        self._attached(link)
        return link

    # -- transactions

    def coordinator(self, session: Session) -> SenderLink:
        asked = Attach(
            name="control", source=Source(outcomes=("amqp:rejected:list",)), target=Coordinator()
        )
        link = session.attach_sender(asked)
        self._attached(link)
        return link

    def next_of(self, kind: type[E]) -> E:
        """The next event of a kind; others are passed over. Raises ConnectionError: the broker hung
        up."""
        while True:
            event = self.exchange()
            if event is None:
                raise ConnectionError("the broker hung up")
            if isinstance(event, kind):
                return event

    def outcome(self, number: int) -> DeliveryState | None:
        """Of one of our deliveries, as the broker says it next."""
        while True:
            event = self.next_of(DispositionReceived)
            if not event.by_sender and event.first <= number <= event.last:
                return event.state

    def declare(self, control: SenderLink) -> bytes:
        """The id of a new transaction."""
        state = self.outcome(control.send(encode_message(body=Declare())))
        assert isinstance(state, Declared), state
        return state.txn_id

    def discharge(self, control: SenderLink, id: bytes, fail: bool) -> None:
        state = self.outcome(control.send(encode_message(body=Discharge(id, fail))))
        assert isinstance(state, Accepted), state

    def dispose(self, session: Session, id: int, state: DeliveryState, settled: bool) -> None:
        """Of what was received; written with what is said next."""
        self.wire.write_frame(
            disposition_frame(session.channel, RECEIVER, id, id, settled, encoded_state(state))
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()
