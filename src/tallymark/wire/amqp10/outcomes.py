"""Delivery states [amqp-1.0 §3.4] and what transactions add to them [amqp-1.0 §4.5].

An *outcome* is a delivery state that is final: accepted, rejected, released, modified, declared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from tallymark.wire.amqp10.codec import encode
from tallymark.wire.amqp10.composites import Composite, Fields, Map, Row, register
from tallymark.wire.amqp10.sending import ACCEPTED

CUT: Final = "..."
"""End of a description that was cut."""


class DeliveryState(Composite):
    """Base of the states in transfers and dispositions; equal when class and fields are."""


@final
@dataclass
class Error(Composite):
    """A condition (see errors.py), a text for people, and details [amqp-1.0 §2.8.14]."""

    condition: str = ""
    description: str | None = None
    info: Fields | None = None

    def shortened(self, excess: int) -> Error:
        """Return the error in `excess` bytes less: with less of its description, or with its
        condition alone where that is not enough."""
        raw = (self.description or "").encode("utf-8", "replace")
        left = len(raw) - excess - len(CUT)
        if left <= 0:
            return Error(self.condition)
        return Error(self.condition, raw[:left].decode("utf-8", "ignore") + CUT, self.info)


@final
@dataclass
class Received(DeliveryState):
    """Progress of a delivery: the next section and byte of it that are expected."""

    section_number: int = 0
    section_offset: int = 0


@final
@dataclass
class Accepted(DeliveryState):
    """Outcome: the message was processed."""


@final
@dataclass
class Rejected(DeliveryState):
    """Outcome: the message is invalid and cannot be processed, for the given reason."""

    error: Error | None = None


@final
@dataclass
class Released(DeliveryState):
    """Outcome: the message was not processed, and may go to any receiver."""


@final
@dataclass
class Modified(DeliveryState):
    """Outcome: the message was not processed; annotations are to be merged over its own."""

    delivery_failed: bool | None = None
    undeliverable_here: bool | None = None
    message_annotations: Map | None = None


@final
@dataclass
class Declared(DeliveryState):
    """Outcome of a declare: the transaction exists under this id."""

    txn_id: bytes = b""


@final
@dataclass
class TransactionalState(DeliveryState):
    """State within a transaction, with the outcome that takes effect at its commit."""

    txn_id: bytes = b""
    outcome: DeliveryState | None = None


@final
@dataclass
class Declare(Composite):
    """Body of a message to a coordinator: begin a transaction. Distributed transactions are not
    supported."""

    global_id: object | None = None


@final
@dataclass
class Discharge(Composite):
    """Body of a message to a coordinator: commit, or with `fail` roll back."""

    txn_id: bytes = b""
    fail: bool | None = None


LAYOUTS: Final[tuple[Row, ...]] = (
    (0x1D, "amqp:error:list", Error, "error", "condition:symbol! description:text info:fields"),
    (
        0x23,
        "amqp:received:list",
        Received,
        "delivery-state",
        "section_number:uint! section_offset:ulong!",
    ),
    (0x24, "amqp:accepted:list", Accepted, "delivery-state", ""),
    (0x25, "amqp:rejected:list", Rejected, "delivery-state", "error:error"),
    (0x26, "amqp:released:list", Released, "delivery-state", ""),
    (
        0x27,
        "amqp:modified:list",
        Modified,
        "delivery-state",
        "delivery_failed:boolean undeliverable_here:boolean message_annotations:annotations",
    ),
    (0x31, "amqp:declare:list", Declare, "transaction", "global_id:any"),
    (0x32, "amqp:discharge:list", Discharge, "transaction", "txn_id:binary! fail:boolean"),
    (0x33, "amqp:declared:list", Declared, "delivery-state", "txn_id:binary!"),
    (
        0x34,
        "amqp:transactional-state:list",
        TransactionalState,
        "delivery-state",
        "txn_id:binary! outcome:delivery-state",
    ),
)
register(LAYOUTS)


def shortened(state: DeliveryState | None, excess: int) -> DeliveryState | None:
    """Return the state in `excess` bytes less, where the text of an error is what makes it long;
    any other as it is."""
    if isinstance(state, Rejected) and state.error is not None:
        return Rejected(state.error.shortened(excess))
    if isinstance(state, TransactionalState):
        return TransactionalState(state.txn_id, shortened(state.outcome, excess))
    return state


def encoded_state(state: DeliveryState | None) -> bytes:
    """Encode a delivery state for frames; b"" for none."""
    if state is None:
        return b""
    if type(state) is Accepted:
        return ACCEPTED
    return encode(state)
