"""NSQ's protocol V2 as bytes, commands, frames and legal states. Without I/O, without a clock."""

from tallymark.wire.nsq.connection import Connection
from tallymark.wire.nsq.errors import WireError
from tallymark.wire.nsq.events import (
    AuthReceived,
    ClsReceived,
    Event,
    FinReceived,
    IdentifyReceived,
    PeerClosed,
    ProtocolFailure,
    PublishReceived,
    RdyReceived,
    ReqReceived,
    SubReceived,
    TouchReceived,
    UpgradeDue,
)
from tallymark.wire.nsq.identify import Identify
from tallymark.wire.nsq.kernel import encode_bodies, encode_messages
from tallymark.wire.nsq.limits import Limits

__all__ = [
    "AuthReceived",
    "ClsReceived",
    "Connection",
    "Event",
    "FinReceived",
    "Identify",
    "IdentifyReceived",
    "Limits",
    "PeerClosed",
    "ProtocolFailure",
    "PublishReceived",
    "RdyReceived",
    "ReqReceived",
    "SubReceived",
    "TouchReceived",
    "UpgradeDue",
    "WireError",
    "encode_bodies",
    "encode_messages",
]
