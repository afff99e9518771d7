"""Transactions of AMQP 1.0: the coordinator, and settling under a transaction [TX-11 to TX-16].

A client attaches to a coordinator and declares transactions there. It names them in its publishes,
its settlements and its credit, and discharges them. A connection may have several at a time; a
session may use several, and a transaction several sessions. A transaction that was not discharged
is rolled back with the link it was declared on.

The answer to a discharge means that all of the transaction is on disk [TX-D1].
"""

from __future__ import annotations

from typing import Final, final

from tallymark.bridge.amqp10.client import Delayed, Session, Work, number_of
from tallymark.bridge.amqp10.consume import OutgoingLink
from tallymark.bridge.amqp10.dispositions import (
    UNKNOWN,
    default_outcomes,
    due_of,
    holders,
    notes_of,
    outcome_of,
    outstanding,
    settle_by_default,
)
from tallymark.bridge.amqp10.links import LinkEnd
from tallymark.bridge.amqp10.stretch import Reply
from tallymark.bridge.amqp10.work import find, unknown
from tallymark.engine.errors import ResourceExhausted, RolledBack
from tallymark.units import EngineMs, Ms, Tag
from tallymark.wire.amqp10 import errors
from tallymark.wire.amqp10.composites import read_composite
from tallymark.wire.amqp10.errors import DecodeError
from tallymark.wire.amqp10.events import DispositionReceived, TransfersReceived
from tallymark.wire.amqp10.outcomes import (
    Accepted,
    Declare,
    Declared,
    DeliveryState,
    Discharge,
    Error,
    Rejected,
    Released,
    TransactionalState,
    encoded_state,
)
from tallymark.wire.amqp10.performatives import Attach, Coordinator
from tallymark.wire.amqp10.reader import Reader
from tallymark.wire.amqp10.receiver_link import ReceiverLink
from tallymark.wire.amqp10.sections import VALUE, Sections
from tallymark.wire.amqp10.serial import Serial, add

CAPABILITIES: Final = (
    "amqp:local-transactions",
    "amqp:multi-txns-per-ssn",
    "amqp:multi-ssns-per-txn",
)
"""Capabilities of a coordinator here [amqp-1.0 §4.5.2]."""
CREDIT: Final = 16
"""Credit of each coordinator link: the number of declares and discharges that may be on their
way."""
MOST_OPEN: Final = 1024
"""Maximum number of open transactions of a connection."""
REJECTED: Final = "amqp:rejected:list"
ACCEPTED: Final = Accepted()
RELEASED: Final = Released()
OF_ANOTHER: Final = b"?"
"""Key for an outcome that differs from every encoded outcome."""


def attach(session: Session, link: ReceiverLink, attach: Attach) -> None:
    """Attach a link to a coordinator."""
    link.answer(
        Attach(
            source=attach.source,
            target=Coordinator(CAPABILITIES),
            max_message_size=session.client.settings.limits.max_message_size or None,
        )
    )
    source = attach.source
    outcomes: tuple[str, ...] = () if source is None else source.outcomes
    end = CoordinatorLink(session, link, REJECTED in outcomes, bool(outcomes))
    session.enter(link, end)
    end.resume()


@final
class CoordinatorLink(LinkEnd):
    """Our end of a link to a coordinator."""

    __slots__ = ("_lists_outcomes", "_lists_rejected", "_link", "_session", "_works", "is_open")

    def __init__(
        self, session: Session, link: ReceiverLink, lists_rejected: bool, lists_outcomes: bool
    ) -> None:
        self._session = session
        self._link = link
        self._lists_rejected = lists_rejected
        """True if the client listed the outcome rejected as supported."""
        self._lists_outcomes = lists_outcomes
        """True if the client listed any outcomes. Many clients list none and support rejected."""
        self._works: dict[bytes, Work] = {}
        """Open transactions declared on the link, by id."""
        self.is_open = True

    def resume(self) -> None:
        """Do nothing: coordinator links always have credit, since a discharge frees memory."""
        if self.is_open and self._link.credit <= CREDIT // 2:
            self._link.flow(CREDIT)

    def received(self, event: TransfersReceived) -> None:
        for i in range(len(event)):
            if not self.is_open:
                return
            id = add(event.first, i)
            if event.settled:
                # A declare's sender needs the id, a discharge's sender the result.
                text = f"delivery {id} to a coordinator is settled, expected unsettled"
                self.close(Error(errors.NOT_ALLOWED, text))
                return
            self._request(id, event.is_second, event.data[event.cuts[i] : event.cuts[i + 1]])
        self.resume()

    def _request(self, id: Serial, is_second: bool, message: bytes) -> None:
        try:
            request = _read(message)
        except DecodeError as error:
            self._refuse(id, is_second, Error(error.condition, error.text))
            return
        if isinstance(request, Declare):
            self._declare(id, is_second, request)
        else:
            self._discharge(id, is_second, request)

    def _declare(self, id: Serial, is_second: bool, request: Declare) -> None:
        """Begin a transaction [TX-12]."""
        session = self._session
        client = session.client
        if request.global_id is not None:
            text = "declare with a global-id: transactions are local, expected none"
            self._refuse(id, is_second, Error(errors.NOT_IMPLEMENTED, text))
            return
        if len(client.works) >= MOST_OPEN:
            text = f"{MOST_OPEN} transactions open on this connection, one more declared"
            self._refuse(id, is_second, Error(errors.RESOURCE_LIMIT_EXCEEDED, text))
            return
        timeout_ms = client.settings.transaction_timeout_ms
        work = Work(client, client.broker.transactions.begin(session.engine, Ms(timeout_ms)))
        client.works[work.id] = self._works[work.id] = work
        self.tell(id, is_second, Declared(work.id))

    def _discharge(self, id: Serial, is_second: bool, request: Discharge) -> None:
        """End a transaction, which may be declared on another link of the connection
        [TX-12, TX-13]."""
        client = self._session.client
        work = find(client, request.txn_id)
        if work is None:
            nothing = unknown(request.txn_id)
            if self._lists_rejected:
                self.tell(id, is_second, Rejected(nothing))
            else:
                self.close(nothing)
            return
        del client.works[work.id]
        self._works.pop(work.id, None)
        if request.fail:
            roll_back(work)
            self.tell(id, is_second, ACCEPTED)
            return
        try:
            runs = client.broker.transactions.commit(work.transaction)
        except RolledBack as error:
            after_rollback(work)
            self._refuse(id, is_second, Error(errors.TRANSACTION_ROLLBACK, str(error)))
            return
        for run in runs:
            reply = run.handle
            assert isinstance(reply, Reply), reply
            reply.send(client, run)
        answer = Discharged(self, work, id, is_second)
        if work.transaction.is_stored:
            client.broker.await_durable(answer)
        else:
            answer.say()

    # -- answers

    def tell(self, id: Serial, is_second: bool, state: DeliveryState) -> None:
        """Send the outcome of a request."""
        if not self.is_open:
            return
        if is_second:
            self._link.settle(id, id, state)
        else:
            self._session.wire.settle_received(id, id, state)

    def _refuse(self, id: Serial, is_second: bool, error: Error) -> None:
        """Refuse a request by the outcome rejected, or, if the client does not support that, by a
        detach."""
        if self._lists_rejected or not self._lists_outcomes:
            self.tell(id, is_second, Rejected(error))
        else:
            self.close(error)

    # -- the end

    def close(self, error: Error) -> None:
        """End the link from our side, and roll back the transactions declared on it."""
        if self.is_open:
            self._link.detach(error)
            self._session.leave(self._link)

    def gone(self, with_session: bool) -> None:
        self.is_open = False
        client = self._session.client
        for id, work in list(self._works.items()):
            client.works.pop(id, None)
            roll_back(work)
        self._works.clear()

    def owns(self, work: Work) -> bool:
        """Return whether the transaction was declared on this link."""
        return work.id in self._works


@final
class Discharged(Delayed):
    """A commit that is confirmed once it is on disk: first to the settlers of deliveries under it,
    then to the sender of the discharge."""

    __slots__ = ("_end", "_id", "_is_second", "_work")

    def __init__(self, end: CoordinatorLink, work: Work, id: Serial, is_second: bool) -> None:
        super().__init__(end._session.client)
        self._end = end
        self._work = work
        self._id = id
        self._is_second = is_second

    def say(self) -> None:
        for session, first, last, state in self._work.expected():
            if not session.engine.closed:
                session.wire.settle_sent(number_of(Tag(first)), number_of(Tag(last)), state)
        self._end.tell(self._id, self._is_second, ACCEPTED)


def _read(message: bytes) -> Declare | Discharge:
    """Decode a message to a coordinator. Raises DecodeError."""
    sections = Sections(message, 0, len(message))
    for code, _, at in sections.bounds:
        if code == VALUE:
            request = read_composite(Reader(message, at, len(message)), "transaction")
            if isinstance(request, (Declare, Discharge)):
                return request
    raise DecodeError("message to a coordinator without an amqp-value")


# -- rolling back


def roll_back(work: Work) -> None:
    """Roll back a transaction, unless the engine has done so already."""
    if not work.transaction.ended:
        work.client.broker.transactions.rollback(work.transaction)
    after_rollback(work)


def after_rollback(work: Work) -> None:
    """Settle deliveries after a rollback. Those that the client has settled on its side get the
    default outcome of their link [TX-15]; the client is told about deliveries under the transaction
    that were taken back [TX-16]."""
    for session, first, last in work.forgotten():
        if not session.engine.closed:
            settle_by_default(session, first, last)
    for engine, first, last in work.transaction.released:
        holder = engine.handle
        assert isinstance(holder, Session), holder
        if not engine.closed:
            _withdraw_unsent(holder, first, last)
            holder.wire.settle_sent(number_of(Tag(first)), number_of(Tag(last)), RELEASED)


def _withdraw_unsent(session: Session, first: int, last: int) -> None:
    """Withdraw those deliveries taken back that still wait for the client's window: none may follow
    the answer to the discharge [amqp-1.0 §4.4.3]. They return their credit."""
    for tag in range(last, first - 1, -1):
        number = number_of(Tag(tag))
        if session.wire.outbox.has_left(number):
            return  # and so have all before it
        for end in session.ends:
            if isinstance(end, OutgoingLink) and end.link.cancel(number):
                end.give_credit_back(1)
                break


# -- settling under one


def retire(session: Session, event: DispositionReceived, state: TransactionalState) -> None:
    """Handle a disposition under a transaction: its outcome takes effect at the commit [TX-15].
    What was taken back with its link can have none, so that the transaction can only be rolled
    back [TX-13]."""
    client = session.client
    first, last = session.tag_of(event.first), session.tag_of(event.last)
    work = find(client, state.txn_id)
    if work is None:
        for end in holders(session, first, last):
            end.close(unknown(state.txn_id))
        return
    if session.taken_back.overlap(first, last + 1):
        work.fail("a delivery settled under the transaction had gone back when its link was ended")
    for other in list(client.works.values()):
        if other is not work and other.acquired(session, first, last):
            _end_link_of(client.sessions, work)
            return
    if outcome_of(state.outcome) != UNKNOWN:
        if outstanding(session.engine, first, last) != [(first, last)]:
            for other in client.works.values():
                key = encoded_state(state.outcome) if other is work else OF_ANOTHER
                other.reopen_others(session, first, last, key)
        for low, high in outstanding(session.engine, first, last):
            _hold(session, work, low, high, state.outcome, encoded_state(state.outcome))
    elif event.settled:
        for low, high, outcome in default_outcomes(session, first, last):
            _hold(session, work, low, high, outcome, b"")
    if event.settled:
        work.forget(session, first, last)


def _hold(
    session: Session,
    work: Work,
    low: int,
    high: int,
    state: DeliveryState | None,
    key: bytes,
) -> None:
    """Stage the settlement of unsettled tags until the discharge."""
    broker = session.client.broker
    try:
        broker.transactions.settle(
            work.transaction, session.engine, Tag(low), Tag(high), outcome_of(state),
            notes_of(state), EngineMs(due_of(state, broker.clock)),
        )  # fmt: skip
    except ResourceExhausted as error:
        work.fail(str(error))
    work.park(session, low, high, (key, state if key else None))


def _end_link_of(sessions: list[Session], work: Work) -> None:
    """End the transaction under which a delivery was acquired, and its control link, because the
    delivery was settled under another one [amqp-1.0 §4.4.2]."""
    text = "delivery settled under a transaction that was handed out under another, still open"
    for session in list(sessions):
        for end in list(session.ends):
            if isinstance(end, CoordinatorLink) and end.owns(work):
                end.close(Error(errors.TRANSACTION_ROLLBACK, text))
                return
