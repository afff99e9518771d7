"""AMQP 0-9-1 as bytes, frames, methods and legal states. Without I/O, without a clock."""

from tallymark.wire.amqp091.client import ClientChannel, ClientConnection
from tallymark.wire.amqp091.connection import Connection
from tallymark.wire.amqp091.errors import WireError
from tallymark.wire.amqp091.events import (
    AckRange,
    ContentReceived,
    Event,
    MethodReceived,
    Opening,
    PeerClosed,
    ProtocolFailure,
)
from tallymark.wire.amqp091.fields import Float32, Timestamp, WireInt, decode_table, encode_table
from tallymark.wire.amqp091.kernel import PublishReceived
from tallymark.wire.amqp091.layouts import decode_method, encode_method, layout_of
from tallymark.wire.amqp091.limits import Limits
from tallymark.wire.amqp091.methods import Method
from tallymark.wire.amqp091.properties import (
    Properties,
    classify,
    decode_properties,
    encode_properties,
)

__all__ = [
    "AckRange",
    "ClientChannel",
    "ClientConnection",
    "Connection",
    "ContentReceived",
    "Event",
    "Float32",
    "Limits",
    "Method",
    "MethodReceived",
    "Opening",
    "PeerClosed",
    "Properties",
    "ProtocolFailure",
    "PublishReceived",
    "Timestamp",
    "WireError",
    "WireInt",
    "classify",
    "decode_method",
    "decode_properties",
    "decode_table",
    "encode_method",
    "encode_properties",
    "encode_table",
    "layout_of",
]
