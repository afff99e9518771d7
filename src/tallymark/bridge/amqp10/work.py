"""A transaction on an AMQP 1.0 connection [amqp-1.0 §4].

The engine stages publishes and settlements until the end (engine/transactions.py). This module
stores only the confirmations due to the client then, and the deliveries that it has settled on its
side.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from tallymark.engine.intervals import IntervalSet
from tallymark.engine.staging import Transaction
from tallymark.wire.amqp10 import errors
from tallymark.wire.amqp10.outcomes import Accepted, DeliveryState, Error, TransactionalState
from tallymark.wire.amqp10.types import Symbol

if TYPE_CHECKING:
    from tallymark.bridge.amqp10.client import Client, Session

ID_BYTES: Final = 8
TXN_ID: Final = Symbol("txn-id")
"""Property of a flow: deliveries from then on belong to the transaction of that id [TX-16]."""


@final
class Work:
    """One transaction between declare and discharge. Only its own connection can name it."""

    __slots__ = (
        "_forgotten",
        "_parked",
        "_unsettled",
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
        self._parked: dict[Session, dict[bytes, IntervalSet]] = {}
        """Tags settled under the transaction, by outcome as encoded: b"" for none."""
        self._forgotten: dict[Session, IntervalSet] = {}
        """Tags among those that the client has settled on its side, so that it forgets them even
        after a rollback."""
        self._unsettled: list[tuple[Session, int, int, DeliveryState]] = []
        """Tags first..last whose outcome the client expects to be confirmed."""

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

    def park(self, session: Session, first: int, last: int, outcome: bytes) -> None:
        """Note that tags first..last were settled under the transaction, with this outcome as
        encoded."""
        of_session = self._parked.get(session)
        if of_session is None:
            of_session = self._parked[session] = {}
        parked = of_session.get(outcome)
        if parked is None:
            parked = of_session[outcome] = IntervalSet()
        parked.add(first, last + 1)

    def parked(self, session: Session, first: int, last: int) -> list[tuple[int, int]]:
        """Return the tags among first..last that were settled under the transaction, as (first,
        last)."""
        found: list[tuple[int, int]] = []
        for parked in self._parked.get(session, {}).values():
            found += [(low, high - 1) for low, high in parked.overlap(first, last + 1)]
        return found

    def reopen_others(self, session: Session, first: int, last: int, outcome: bytes) -> None:
        """Make those of tags first..last unsettled again that were settled under the transaction
        with another outcome, unless the client has settled them on its side."""
        forgotten = self._forgotten.get(session)
        for one, parked in self._parked.get(session, {}).items():
            if one == outcome:
                continue
            for low, high in parked.overlap(first, last + 1):
                for a, b in [(low, high)] if forgotten is None else forgotten.gaps(low, high):
                    self._reopen(session, a, b - 1)

    def _reopen(self, session: Session, first: int, last: int) -> None:
        self.client.broker.transactions.reopen(self.transaction, session.engine, first, last)
        for parked in self._parked[session].values():
            parked.remove(first, last + 1)
        kept: list[tuple[Session, int, int, DeliveryState]] = []
        for who, low, high, state in self._unsettled:
            if who is not session or high < first or last < low:
                kept.append((who, low, high, state))
                continue
            if low < first:
                kept.append((who, low, first - 1, state))
            if last < high:
                kept.append((who, last + 1, high, state))
        self._unsettled = kept

    def forget(self, session: Session, first: int, last: int) -> None:
        """Note that the client has settled these tags on its side: a rollback does not make them
        unsettled for it again [TX-15]."""
        for low, high in self.parked(session, first, last):
            forgotten = self._forgotten.get(session)
            if forgotten is None:
                forgotten = self._forgotten[session] = IntervalSet()
            forgotten.add(low, high + 1)

    def expect(self, session: Session, first: int, last: int, state: DeliveryState) -> None:
        """Note that the client expects a confirmation that tags first..last have this outcome."""
        unsettled = self._unsettled
        if unsettled:
            who, low, high, what = unsettled[-1]
            if who is session and high + 1 == first and what == state:
                unsettled[-1] = (session, low, last, state)
                return
        unsettled.append((session, first, last, state))

    def expected(self) -> list[tuple[Session, int, int, DeliveryState]]:
        """Return the outcomes that the client expects to be confirmed after the commit."""
        found: list[tuple[Session, int, int, DeliveryState]] = []
        for session, first, last, state in self._unsettled:
            forgotten = self._forgotten.get(session)
            stretches = (
                [(first, last + 1)] if forgotten is None else forgotten.gaps(first, last + 1)
            )
            for low, high in stretches:
                found.append((session, low, high - 1, state))
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
        for engine, low, high in self.transaction.acquisitions:
            if engine is session.engine and low <= last and first <= high:
                return True
        return False


def find(client: Client, id: object) -> Work | None:
    """Return this connection's open transaction of that id; None: it has none."""
    return client.works.get(id) if isinstance(id, bytes) else None


def unknown(id: object) -> Error:
    """Return the error for a transaction id that is unknown [TX-13, TX-14]."""
    shown = id.hex() if isinstance(id, bytes) else repr(id)
    text = f"no transaction {shown[:64]}: it was never declared on this connection, or has ended"
    return Error(errors.TRANSACTION_UNKNOWN_ID, text)
