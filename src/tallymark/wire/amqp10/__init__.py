"""AMQP 1.0 as values, sections, frames and legal states, for both ends. Without I/O, without a
clock."""

from tallymark.wire.amqp10.connection import Connection
from tallymark.wire.amqp10.errors import DecodeError
from tallymark.wire.amqp10.events import (
    AnyEvent,
    CloseReceived,
    ConnectionFailed,
    CreditReceived,
    DeliveriesWithdrawn,
    DispositionReceived,
    DrainFinished,
    Ended,
    Event,
    FlowReceived,
    InflowStopped,
    LinkAttached,
    LinkDetached,
    LinkFailed,
    LinkRequested,
    OpenReceived,
    SaslReceived,
    SessionBegun,
    SessionEnded,
    SessionFailed,
    SessionRequested,
    SessionUnblocked,
    SettlementReceived,
    TransfersReceived,
)
from tallymark.wire.amqp10.limits import Limits
from tallymark.wire.amqp10.link import Link
from tallymark.wire.amqp10.receiver_link import ReceiverLink
from tallymark.wire.amqp10.sender_link import SenderLink
from tallymark.wire.amqp10.session import Session
from tallymark.wire.amqp10.states import LinkState, SessionState, State

__all__ = [
    "AnyEvent",
    "CloseReceived",
    "Connection",
    "ConnectionFailed",
    "CreditReceived",
    "DecodeError",
    "DeliveriesWithdrawn",
    "DispositionReceived",
    "DrainFinished",
    "Ended",
    "Event",
    "FlowReceived",
    "InflowStopped",
    "Limits",
    "Link",
    "LinkAttached",
    "LinkDetached",
    "LinkFailed",
    "LinkRequested",
    "LinkState",
    "OpenReceived",
    "ReceiverLink",
    "SaslReceived",
    "SenderLink",
    "Session",
    "SessionBegun",
    "SessionEnded",
    "SessionFailed",
    "SessionRequested",
    "SessionState",
    "SessionUnblocked",
    "SettlementReceived",
    "State",
    "TransfersReceived",
]
