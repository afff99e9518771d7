"""Delivery states [amqp-1.0 §3.4] and what transactions add to them [amqp-1.0 §4.5].

An *outcome* is a delivery state that is final: accepted, rejected, released, modified, declared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from tallymark.wire.amqp10.composites import Composite, Fields, Map, Row, register


class DeliveryState(Composite):
    """What may stand in a transfer or a disposition; equal when class and fields are."""


@final
@dataclass
class Error(Composite):
    """A condition (see errors.py), a text for people, and details [amqp-1.0 §2.8.14]."""

    condition: str = ""
    description: str | None = None
    info: Fields | None = None


@final
@dataclass
class Received(DeliveryState):
    """How far a delivery has arrived: the section and the byte of it that come next."""

    section_number: int = 0
    section_offset: int = 0


@final
@dataclass
class Accepted(DeliveryState):
    """Processed, done with."""


@final
@dataclass
class Rejected(DeliveryState):
    """Invalid and unprocessable, for the reason given."""

    error: Error | None = None


@final
@dataclass
class Released(DeliveryState):
    """Not processed, and not acted upon: anybody may have it."""


@final
@dataclass
class Modified(DeliveryState):
    """Not processed; annotations are to be merged over those of the message."""

    delivery_failed: bool | None = None
    undeliverable_here: bool | None = None
    message_annotations: Map | None = None


@final
@dataclass
class Declared(DeliveryState):
    """The transaction exists under this id."""

    txn_id: bytes = b""


@final
@dataclass
class TransactionalState(DeliveryState):
    """Part of a transaction, with the outcome that holds if it is committed."""

    txn_id: bytes = b""
    outcome: DeliveryState | None = None


@final
@dataclass
class Declare(Composite):
    """Body of a message to a coordinator: begin a transaction. Distributed ones are nobody's."""

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
