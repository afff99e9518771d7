"""The adapter for AMQP 1.0, a session with its receivers, its senders, and its link to the
transaction coordinator [amqp-1.0 §4, TX-11 to TX-13].

The coordinator's link is attached when transactions are wanted, and again when the broker has
detached it: with it go those that were open [TX-16]. Requests wait for the broker's credit, in
their order.

A broker without transactions may take the link for one to a queue, echo its target and give credit
(Proton's example does). So a session's first link is tried with a transaction that is begun and
ended at once: only a broker that answers `declared` has a coordinator.
"""

from __future__ import annotations

import uuid
from array import array
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeVar, cast, final

from tallymark.client.adapter import (
    Number,
    ReceiverOwner,
    ReceiverPort,
    SenderOwner,
    SenderPort,
    SessionOwner,
    SessionPort,
)
from tallymark.client.arguments import ReceiverOptions, SenderOptions
from tallymark.client.errors import (
    ClientError,
    Closed,
    CommitUncertain,
    LinkClosed,
    NotPossible,
    TransactionError,
)
from tallymark.client.outcomes import RELEASED, Modified, Outcome, Released
from tallymark.client.transaction import Tag, Work, caused, rolled_back
from tallymark.wire.amqp10.ends import LinkEnd
from tallymark.wire.amqp10.errors import (
    TRANSACTION_ROLLBACK,
    TRANSACTION_TIMEOUT,
    TRANSACTION_UNKNOWN_ID,
)
from tallymark.wire.amqp10.outcomes import (
    Accepted,
    Declare,
    Declared,
    DeliveryState,
    Discharge,
    Error,
    Rejected,
    TransactionalState,
)
from tallymark.wire.amqp10.performatives import (
    COPY,
    DURABLE_UNSETTLED_STATE,
    EXPIRE_NEVER,
    Attach,
    Coordinator,
    Source,
    Target,
)
from tallymark.wire.amqp10.receiver_link import ReceiverLink
from tallymark.wire.amqp10.sections import encode_message
from tallymark.wire.amqp10.sender_link import SenderLink
from tallymark.wire.amqp10.serial import MASK, Serial, diff
from tallymark.wire.amqp10.session import Session

OUTCOMES: Final = (
    "amqp:accepted:list",
    "amqp:rejected:list",
    "amqp:released:list",
    "amqp:modified:list",
)
"""Outcomes that the client supports, of either role."""

E = TypeVar("E", bound=Closed)


def fields_of(values: Mapping[str, object] | None) -> dict[object, object] | None:
    fields: dict[object, object] = {}
    for key, value in (values or {}).items():
        fields[key] = value
    return fields or None


def outcome_of(state: object) -> Outcome | None:
    """Return the outcome in a delivery state, also where it holds only if a transaction is
    committed."""
    if isinstance(state, TransactionalState):
        state = state.outcome
    return state if isinstance(state, (Accepted, Rejected, Released, Modified)) else None


def error_of(kind: type[E], error: Error | None, text: str) -> E:
    """Return an error of this kind with the condition and description that the peer gave."""
    if error is None:
        return kind(text, is_remote=True)
    return kind(
        error.description or text,
        condition=error.condition,
        info=dict(error.info or {}),
        is_remote=True,
    )


LOCAL: Final = "amqp:local-transactions"
SEVERAL: Final = "amqp:multi-txns-per-ssn"
ROLLED_BACK: Final = (TRANSACTION_UNKNOWN_ID, TRANSACTION_ROLLBACK, TRANSACTION_TIMEOUT)
"""Error conditions with which a broker reports that it rolled back instead of committing."""


@final
class CoordinatorEnd:
    """One session's link to the transaction coordinator."""

    __slots__ = (
        "_asked",
        "_owner",
        "_is_attached",
        "_is_proven",
        "_link",
        "_waiting",
        "_wire",
    )

    def __init__(self, wire: Session, owner: SessionOwner) -> None:
        self._wire = wire
        self._owner = owner
        self._link: SenderLink | None = None
        self._is_attached = False
        self._is_proven = False
        """True once it has begun a transaction."""
        self._waiting: deque[tuple[Work | None, bool, bytes]] = deque()
        """Transaction (None: the one it is tried with), whether it begins, message."""
        self._asked: dict[int, tuple[Work | None, bool]] = {}
        """Transaction of each message sent to the coordinator, and whether the message begins it,
        by message number."""

    # What the client asks for

    def attach(self) -> None:
        """Attach the link, unless it is attached. Raises ValueError where the peer takes no more
        links."""
        if self._link is None:
            attach = Attach(
                name=f"coordinator-{uuid.uuid4().hex[:12]}",
                source=Source(outcomes=OUTCOMES),
                target=Coordinator(capabilities=(LOCAL, SEVERAL)),
            )
            link = self._wire.attach_sender(attach)
            link.context = self
            self._link = link

    def declare(self, work: Work) -> None:
        self._ask(work, True, encode_message(body=Declare()))

    def discharge(self, work: Work, fail: bool) -> None:
        self._ask(work, False, encode_message(body=Discharge(work.handle, fail)))

    def _ask(self, work: Work, is_begin: bool, message: bytes) -> None:
        try:
            self.attach()
        except ValueError as error:
            work.failed(TransactionError(f"no link to a coordinator: {error}"))
            return
        self._waiting.append((work, is_begin, message))
        self.may_send()

    # Called by the adapter

    def attached(self, attach: Attach) -> bool:
        """Return whether several transactions may be open side by side."""
        self._is_attached = True
        if self._is_proven:
            self._owner.selected(None)
        else:
            self._waiting.appendleft((None, True, encode_message(body=Declare())))
        self.may_send()
        target = attach.target
        return isinstance(target, Coordinator) and SEVERAL in (target.capabilities or ())

    def may_send(self) -> None:
        link = self._link
        while link is not None and self._waiting and link.credit:
            work, is_begin, message = self._waiting.popleft()
            self._asked[link.send(message)] = (work, is_begin)

    def answered(self, low: Number, high: Number, state: object) -> None:
        """Handle the outcomes of messages with these numbers that were sent here."""
        for number in [one for one in self._asked if low <= one <= high]:
            work, is_begin = self._asked.pop(number)
            if work is None:
                self._probed(is_begin, state)
            elif is_begin:
                self._begun(work, state)
            else:
                self._ended(work, state)

    def _probed(self, is_begin: bool, state: object) -> None:
        if not is_begin:
            self._is_proven = True
            self._owner.selected(None)
            return
        if isinstance(state, Declared):
            end = encode_message(body=Discharge(state.txn_id, True))
            self._waiting.appendleft((None, False, end))
            self.may_send()
            return
        link = self._link
        assert link is not None
        link.context = None
        link.detach()
        error = state.error if isinstance(state, Rejected) else None
        refused = error_of(LinkClosed, error, f"declare was answered with {state}")
        self.detached(NotPossible(f"no transactions: {refused}", condition=refused.condition))

    def _begun(self, work: Work, state: object) -> None:
        if isinstance(state, Declared):
            work.handle = state.txn_id
            work.begun()
        else:
            error = state.error if isinstance(state, Rejected) else None
            refused = error_of(LinkClosed, error, f"declare was answered with {state}")
            work.failed(rolled_back(f"before it began: {refused}", refused))

    def _ended(self, work: Work, state: object) -> None:
        if isinstance(state, Accepted) or not work.is_committing:
            work.ended(None)  # a rollback is refused where it has been rolled back already
        elif isinstance(state, Rejected):
            refused = error_of(LinkClosed, state.error, "the broker refused the commit")
            work.ended(rolled_back(f"by the broker: {refused.text}", refused))
        else:
            work.ended(CommitUncertain(f"the commit was answered with {state}", is_remote=True))

    def detached(self, error: ClientError) -> None:
        """Fail the open transactions, which are lost with the link [TX-16]."""
        was_attached = self._is_attached
        self._link = None
        self._is_attached = False
        requests = [(work, is_begin) for work, is_begin, _ in self._waiting]
        requests += self._asked.values()
        ending = [work for work, is_begin in requests if work is not None and not is_begin]
        self._waiting.clear()
        self._asked.clear()
        for work in ending:
            if not work.is_committing:
                work.ended(None)
            elif error.condition in ROLLED_BACK:
                work.ended(rolled_back(f"by the broker: {error}", error))
            else:
                work.ended(caused(CommitUncertain(f"commit not answered: {error}"), error))
        self._owner.transactions_lost(rolled_back(f"with their coordinator: {error}", error))
        if not (was_attached and self._is_proven):
            self._owner.selected(error)


EXCLUSIVE: Final = "tallymark:exclusive"
"""Property of a link that wants to be the only one to consume."""

SND_MODES: Final = {"unsettled": 0, "settled": 1, "mixed": 2}
RCV_MODES: Final = {"first": 0, "second": 1}


@final
class Amqp10Session(SessionPort):
    __slots__ = ("_flowing", "coordinator", "owner", "has_several", "is_closing", "wire")

    def __init__(self, session: Session, owner: SessionOwner) -> None:
        self.wire = session
        self.owner = owner
        self.is_closing = False
        self.has_several = False
        self.coordinator = CoordinatorEnd(session, owner)
        self._flowing: set[ReceiverLink] | None = None  # while the inflow is being stopped

    def tag_of(self, delivery_id: Serial) -> Tag:
        """Return the tag of a delivery-id: ids begin again after 2^32 - 1, tags do not."""
        highest = self.owner.highest_tag
        if highest < 0:
            return Tag(delivery_id)
        return Tag(highest + diff(delivery_id, id_of(highest)))

    def add_receiver(self, owner: ReceiverOwner, options: ReceiverOptions) -> ReceiverPort:
        source = Source(
            address=options.address,
            durable=DURABLE_UNSETTLED_STATE if options.durable else 0,
            dynamic=options.dynamic,
            distribution_mode=COPY if options.browse else None,
            filter=fields_of(options.filter),
            outcomes=OUTCOMES,
            capabilities=options.capabilities,
        )
        if options.durable:
            source.expiry_policy = EXPIRE_NEVER
        asked = {EXCLUSIVE: True} if options.exclusive else {}
        attach = Attach(
            name=options.name,
            source=source,
            target=Target(),
            properties=fields_of({**asked, **(options.properties or {})}),
        )
        rcv_mode = _mode(RCV_MODES, options.rcv_mode)
        with possible("receiver"):
            link = self.wire.attach_receiver(attach, _mode(SND_MODES, options.snd_mode), rcv_mode)
        port = Amqp10Receiver(self, link, owner)
        link.context = port
        return port

    def add_sender(self, owner: SenderOwner, options: SenderOptions) -> SenderPort:
        target = Target(
            address=options.address,
            durable=DURABLE_UNSETTLED_STATE if options.durable else 0,
            dynamic=options.dynamic,
            capabilities=options.capabilities,
        )
        attach = Attach(
            name=options.name,
            source=Source(outcomes=OUTCOMES),
            target=target,
            properties=fields_of(options.properties),
        )
        snd_mode = _mode(SND_MODES, options.settle_mode)
        with possible("sender"):
            link = self.wire.attach_sender(attach, snd_mode, _mode(RCV_MODES, options.rcv_mode))
        port = Amqp10Sender(self, link, owner)
        link.context = port
        return port

    def settle(self, first: Tag, last: Tag, outcome: Outcome, work: Work | None = None) -> None:
        self.wire.settle_received(id_of(first), id_of(last), _state(outcome, work))

    def close(self) -> None:
        self.is_closing = True
        self.wire.end()

    # Transactions

    def select(self) -> None:
        with possible("link"):
            self.coordinator.attach()

    def begin(self, work: Work) -> None:
        self.coordinator.declare(work)

    def commit(self, work: Work) -> None:
        self.coordinator.discharge(work, False)

    def rollback(self, work: Work) -> None:
        self.coordinator.discharge(work, True)

    def stop_inflow(self) -> None:
        links = [link for link in self.wire.links if isinstance(link, ReceiverLink)]
        self._flowing = {link for link in links if link.stop()}
        self._report_stopped()

    def link_stopped(self, link: LinkEnd) -> None:
        """Note that the link gets no more deliveries."""
        if self._flowing is not None and isinstance(link, ReceiverLink):
            self._flowing.discard(link)
            self._report_stopped()

    def _report_stopped(self) -> None:
        if self._flowing is not None and not self._flowing:
            self._flowing = None
            self.owner.inflow_stopped()

    def resume_inflow(self) -> None:
        """Do nothing: credit that is granted from now on resumes deliveries."""

    def give_back(self, ranges: list[tuple[Tag, Tag]]) -> None:
        for first, last in ranges:
            self.wire.settle_received(id_of(first), id_of(last), RELEASED)
        self.owner.given_back()  # what is sent from now on is heard behind it


@final
class Amqp10Receiver(ReceiverPort):
    __slots__ = ("link", "owner", "session")

    def __init__(self, session: Amqp10Session, link: ReceiverLink, owner: ReceiverOwner) -> None:
        self.session = session
        self.link = link
        self.owner = owner

    @property
    def credit(self) -> int:
        return self.link.credit

    @property
    def delivery_count(self) -> int:
        return self.link.delivery_count

    def grant(self, credit: int) -> None:
        self.link.flow(credit)

    def drain(self) -> bool:
        return self.link.drain()

    def revoke(self) -> None:
        self.link.flow(0)

    def settle(self, first: Tag, last: Tag, outcome: Outcome, work: Work | None = None) -> None:
        assert work is None, "a settlement in a transaction has one step"
        self.link.settle(id_of(first), id_of(last), outcome)

    def close(self) -> None:
        self.link.detach()


@final
class Amqp10Sender(SenderPort):
    __slots__ = ("link", "max_message_size", "owner", "session")

    def __init__(self, session: Amqp10Session, link: SenderLink, owner: SenderOwner) -> None:
        self.session = session
        self.link = link
        self.owner = owner
        self.max_message_size = 0

    @property
    def sendable(self) -> int:
        session = self.session.wire
        if session.is_blocked:
            return 0
        # one more than fits: so that we hear when the window opens
        return min(self.link.credit, session.remote_incoming_window + 1)

    @property
    def is_blocked(self) -> bool:
        return self.session.wire.is_blocked

    def send(
        self, messages: list[bytes], settled: bool, work: Work | None = None
    ) -> Iterable[Number]:
        link = self.link
        state = None if work is None else _state(None, work)
        if len(messages) == 1:
            return (Number(link.send(messages[0], settled=settled, state=state)),)
        cuts = array("I", [0])
        end = 0
        for message in messages:
            end += len(message)
            cuts.append(end)
        count = len(messages)
        first = link.send_run(b"".join(messages), cuts, 0, count, settled=settled, state=state)
        if first + count <= MASK:
            return cast("Sequence[Number]", range(first, first + count))
        return [Number((first + i) & MASK) for i in range(count)]

    def withdraw(self, number: Number) -> bool:
        return self.link.cancel(Serial(number))

    def idle(self) -> None:
        self.link.drained()

    def close(self) -> None:
        self.link.detach()


@final
class possible:
    """Translation of the wire's ValueError about a limit of the peer into NotPossible."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ValueError):
            raise NotPossible(f"no further {self._what}: {error}") from error


def id_of(tag: Tag) -> Serial:
    """Return the delivery-id of a tag."""
    return Serial(tag & MASK)


def _mode(modes: Mapping[str, int], name: str | None) -> int | None:
    return None if name is None else modes[name]


def _state(outcome: Outcome | None, work: Work | None) -> DeliveryState | None:
    """Return the delivery state for an outcome, or for none yet; in a transaction, for the outcome
    that a commit gives it."""
    if work is None:
        return outcome
    return TransactionalState(work.handle, outcome)
