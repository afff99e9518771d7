"""The client's end of the link to a session's coordinator: it begins and ends transactions
[amqp-1.0 §4, TX-11 to TX-13].

The link is attached when transactions are wanted, and again when the broker has detached it: with
it go those that were open [TX-16]. Requests wait for the broker's credit, in their order.

A broker without transactions may take the link for one to a queue, echo its target and give credit
(Proton's example does). So a session's first link is tried with a transaction that is begun and
ended at once: only a broker that answers `declared` has a coordinator.
"""

from __future__ import annotations

import uuid
from collections import deque
from typing import Final, final

from tallymark.client.amqp10.words import OUTCOMES, error_of
from tallymark.client.dispatcher import Dispatcher
from tallymark.client.errors import (
    ClientError,
    CommitUncertain,
    LinkClosed,
    NotPossible,
    TransactionError,
)
from tallymark.client.work import Work, caused, rolled_back
from tallymark.wire.amqp10.errors import (
    TRANSACTION_ROLLBACK,
    TRANSACTION_TIMEOUT,
    TRANSACTION_UNKNOWN_ID,
)
from tallymark.wire.amqp10.link import SenderLink
from tallymark.wire.amqp10.outcomes import (
    Accepted,
    Declare,
    Declared,
    Discharge,
    Rejected,
)
from tallymark.wire.amqp10.performatives import Attach, Coordinator, Source
from tallymark.wire.amqp10.sections import encode_message
from tallymark.wire.amqp10.session import Session

LOCAL: Final = "amqp:local-transactions"
SEVERAL: Final = "amqp:multi-txns-per-ssn"
ROLLED_BACK: Final = (TRANSACTION_UNKNOWN_ID, TRANSACTION_ROLLBACK, TRANSACTION_TIMEOUT)
"""Error conditions with which a broker reports that it rolled back instead of committing."""


@final
class CoordinatorEnd:
    """One session's link to the transaction coordinator."""

    __slots__ = (
        "_asked",
        "_dispatcher",
        "_is_attached",
        "_is_proven",
        "_link",
        "_waiting",
        "_wire",
    )

    def __init__(self, wire: Session, dispatcher: Dispatcher) -> None:
        self._wire = wire
        self._dispatcher = dispatcher
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
        """Unless it is. ValueError where the peer takes no more links."""
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
        assert isinstance(work.handle, bytes), work.handle
        self._ask(work, False, encode_message(body=Discharge(work.handle, fail)))

    def _ask(self, work: Work, is_begin: bool, message: bytes) -> None:
        try:
            self.attach()
        except ValueError as error:
            work.failed(TransactionError(f"no link to a coordinator: {error}"))
            return
        self._waiting.append((work, is_begin, message))
        self.may_send()

    # What the peer says

    def attached(self, attach: Attach) -> bool:
        """Returns whether several transactions may be open."""
        self._is_attached = True
        if self._is_proven:
            self._dispatcher.selected(None)
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

    def answered(self, low: int, high: int, state: object) -> None:
        """Handle the outcomes of messages with these numbers that were sent here."""
        for number in [known for known in self._asked if low <= known <= high]:
            work, is_begin = self._asked.pop(number)
            if work is None:
                self._tried(is_begin, state)
            elif is_begin:
                self._begun(work, state)
            else:
                self._ended(work, state)

    def _tried(self, is_begin: bool, state: object) -> None:
        if not is_begin:
            self._is_proven = True
            self._dispatcher.selected(None)
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
        known = [(work, is_begin) for work, is_begin, _ in self._waiting]
        known += self._asked.values()
        ending = [work for work, is_begin in known if work is not None and not is_begin]
        self._waiting.clear()
        self._asked.clear()
        for work in ending:
            if not work.is_committing:
                work.ended(None)
            elif error.condition in ROLLED_BACK:
                work.ended(rolled_back(f"by the broker: {error}", error))
            else:
                work.ended(caused(CommitUncertain(f"commit not answered: {error}"), error))
        self._dispatcher.transactions_lost(rolled_back(f"with their coordinator: {error}", error))
        if not (was_attached and self._is_proven):
            self._dispatcher.selected(error)
