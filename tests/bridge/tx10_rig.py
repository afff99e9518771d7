"""Transactions of an AMQP 1.0 client: what it says to a coordinator, and what it is told."""

from __future__ import annotations

from tallymark.wire.amqp10.events import LinkDetached
from tallymark.wire.amqp10.outcomes import (
    Accepted,
    Declare,
    Declared,
    DeliveryState,
    Discharge,
    Error,
    Modified,
    Rejected,
    Released,
    TransactionalState,
    encoded_state,
)
from tallymark.wire.amqp10.performatives import RCV_FIRST, Attach, Coordinator, Source
from tallymark.wire.amqp10.sections import Sections, encode_message
from tallymark.wire.amqp10.sender_link import SenderLink
from tallymark.wire.amqp10.sending import disposition_frame
from tallymark.wire.amqp10.session import Session
from tests.bridge.rig10 import Got, Peer, Rig

ACCEPTED = Accepted()
RELEASED = Released()
REJECTED = Rejected()
FAILED = Modified(delivery_failed=True)
OUTCOMES = (
    "amqp:accepted:list",
    "amqp:rejected:list",
    "amqp:released:list",
    "amqp:modified:list",
)


UNKNOWN_ID = "amqp:transaction:unknown-id"
ROLLBACK = "amqp:transaction:rollback"


class Control:
    """A link to a coordinator."""

    def __init__(
        self,
        peer: Peer,
        session: Session,
        *,
        outcomes: tuple[str, ...] = OUTCOMES,
        rcv: int | None = None,
    ) -> None:
        self.peer = peer
        asked = Attach(
            source=Source(outcomes=outcomes), target=Coordinator(("amqp:local-transactions",))
        )
        self.link: SenderLink = peer.sender(session, attach=asked, rcv=rcv)

    def declare(self, global_id: object = None) -> bytes:
        """The id of a new transaction."""
        state = self.state(self.ask(Declare(global_id)))
        assert isinstance(state, Declared), state
        assert 0 < len(state.txn_id) <= 32
        return state.txn_id

    def ask(self, request: object, settled: bool = False) -> int:
        """The number of the delivery."""
        number = self.link.send(encode_message(body=request), settled=settled)
        self.peer.told.pop(number, None)  # of another session
        self.peer.pump()
        return number

    def discharge(self, id: bytes, fail: bool | None = None) -> DeliveryState | None:
        return self.state(self.ask(Discharge(id, fail)))

    def state(self, number: int) -> DeliveryState | None:
        """The answer to a request: one, which settles it where the link says so."""
        told = self.peer.told.pop(number)
        assert told.settled == (self.link.rcv_settle_mode == RCV_FIRST)
        (state,) = told.states
        return state

    def commit(self, id: bytes) -> None:
        assert self.discharge(id) == ACCEPTED

    def roll_back(self, id: bytes) -> None:
        assert self.discharge(id, True) == ACCEPTED


def begun(
    rig: Rig, *, chunk: int = 0, outcomes: tuple[str, ...] = OUTCOMES, rcv: int | None = None
) -> tuple[Peer, Session, Control]:
    """A client, a session of it, and a link to a coordinator on that."""
    peer = rig.connect10(chunk=chunk)
    session = peer.session()
    return peer, session, Control(peer, session, outcomes=outcomes, rcv=rcv)


def under(id: bytes, outcome: DeliveryState | None = None) -> TransactionalState:
    return TransactionalState(id, outcome)


def post(peer: Peer, link: SenderLink, id: bytes, *bodies: str, settled: bool = False) -> list[int]:
    """Publish under a transaction; the numbers."""
    numbers = [
        link.send(encode_message(body=body.encode()), state=under(id), settled=settled)
        for body in bodies
    ]
    peer.pump()
    return numbers


def dispose(
    peer: Peer, first: Got, state: DeliveryState | None, *, settled: bool, last: Got | None = None
) -> None:
    """A disposition, settled or not."""
    session = first.link.session
    end = first if last is None else last
    session.connection.write_frame(
        disposition_frame(session.channel, True, first.id, end.id, settled, encoded_state(state))
    )
    peer.pump()


def retire(
    peer: Peer, got: Got, id: bytes, outcome: DeliveryState | None, settled: bool = True
) -> None:
    """Settle under a transaction."""
    dispose(peer, got, under(id, outcome), settled=settled)


def detached(peer: Peer) -> Error:
    """Why the broker ended a link."""
    error = peer.take(LinkDetached).error
    assert error is not None
    return error


def error_of(state: object) -> Error:
    assert isinstance(state, Rejected), state
    assert state.error is not None
    return state.error


def ready(rig: Rig, name: str = "q") -> list[str]:
    """The bodies of a queue's ready messages."""
    pieces = rig.broker.contents.pin(rig.queue(name))
    out = []
    for piece in pieces:
        raw = piece.payload.raw
        assert raw is not None
        cuts = piece.payload.cuts
        for i in range(piece.lo, piece.hi):
            (body,) = Sections(raw, cuts[i], cuts[i + 1]).bodies
            assert isinstance(body, bytes)
            out.append(body.decode())
    rig.broker.contents.unpin(pieces)
    return out
