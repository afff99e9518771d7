"""The nine performatives [amqp-1.0 §2.7] and the ends of links [amqp-1.0 §3.5, §4.5.1].

Class and field names are the standard's. A field that is absent is None, or () where it takes many
values; one that came without a value that the standard has a default for is read as that default
(so max_frame_size, channel_max, handle_max and the settle modes are never None once decoded).
`LAYOUTS` says how each is written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from tallymark.wire.amqp10.composites import (
    BY_CLASS,
    Composite,
    Fields,
    Map,
    Row,
    read_composite,
    register,
)
from tallymark.wire.amqp10.outcomes import DeliveryState, Error
from tallymark.wire.amqp10.reader import Reader
from tallymark.wire.amqp10.serial import ZERO, Serial
from tallymark.wire.amqp10.types import Described, ULong

SENDER: Final = False
"""A role [amqp-1.0 §2.8.1]."""
RECEIVER: Final = True

SND_UNSETTLED: Final = 0
"""A sender-settle-mode [amqp-1.0 §2.8.2]."""
SND_SETTLED: Final = 1
SND_MIXED: Final = 2
RCV_FIRST: Final = 0
"""A receiver-settle-mode [amqp-1.0 §2.8.3]."""
RCV_SECOND: Final = 1

DURABLE_NONE: Final = 0
"""A terminus-durability [amqp-1.0 §3.5.5]."""
DURABLE_CONFIGURATION: Final = 1
DURABLE_UNSETTLED_STATE: Final = 2

EXPIRE_LINK_DETACH: Final = "link-detach"
"""A terminus-expiry-policy [amqp-1.0 §3.5.6]."""
EXPIRE_SESSION_END: Final = "session-end"
EXPIRE_CONNECTION_CLOSE: Final = "connection-close"
EXPIRE_NEVER: Final = "never"

MOVE: Final = "move"
"""A distribution mode [amqp-1.0 §3.5.7]."""
COPY: Final = "copy"

DELETE_ON_CLOSE: Final = Described(ULong(0x2B), [])
"""A lifetime policy: value of `lifetime-policy` in dynamic_node_properties [amqp-1.0 §3.5.10]."""
DELETE_ON_NO_LINKS: Final = Described(ULong(0x2C), [])
DELETE_ON_NO_MESSAGES: Final = Described(ULong(0x2D), [])
DELETE_ON_NO_LINKS_OR_MESSAGES: Final = Described(ULong(0x2E), [])


class Performative(Composite):
    """Base of the performatives, the content of frames; equal when class and fields are."""


class Terminus(Composite):
    """One end of a link."""


@final
@dataclass
class Open(Performative):
    """Identity of the peer and limits of the connection; idle_time_out in ms, 0 or None: none."""

    container_id: str = ""
    hostname: str | None = None
    max_frame_size: int | None = None
    channel_max: int | None = None
    idle_time_out: int | None = None
    outgoing_locales: tuple[str, ...] = ()
    incoming_locales: tuple[str, ...] = ()
    offered_capabilities: tuple[str, ...] = ()
    desired_capabilities: tuple[str, ...] = ()
    properties: Fields | None = None


@final
@dataclass
class Begin(Performative):
    """Begin of a session; remote_channel: the channel of the Begin that this one answers."""

    remote_channel: int | None = None
    next_outgoing_id: Serial = ZERO
    incoming_window: int = 0
    outgoing_window: int = 0
    handle_max: int | None = None
    offered_capabilities: tuple[str, ...] = ()
    desired_capabilities: tuple[str, ...] = ()
    properties: Fields | None = None


@final
@dataclass
class Source(Terminus):
    """Source of a link's messages; timeout in seconds."""

    address: str | None = None
    durable: int = 0
    expiry_policy: str = "session-end"
    timeout: int = 0
    dynamic: bool = False
    dynamic_node_properties: Fields | None = None
    distribution_mode: str | None = None
    filter: Fields | None = None
    default_outcome: DeliveryState | None = None
    outcomes: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()


@final
@dataclass
class Target(Terminus):
    """Target of a link's messages; timeout in seconds."""

    address: str | None = None
    durable: int = 0
    expiry_policy: str = "session-end"
    timeout: int = 0
    dynamic: bool = False
    dynamic_node_properties: Fields | None = None
    capabilities: tuple[str, ...] = ()


@final
@dataclass
class Coordinator(Terminus):
    """The target of a link that begins and ends transactions."""

    capabilities: tuple[str, ...] = ()


@final
@dataclass
class Attach(Performative):
    """Attach of a link to a session; max_message_size in bytes, 0 or None: no limit."""

    name: str = ""
    handle: int = 0
    role: bool = SENDER
    snd_settle_mode: int | None = None
    rcv_settle_mode: int | None = None
    source: Source | None = None
    target: Target | Coordinator | None = None
    unsettled: Map | None = None
    incomplete_unsettled: bool = False
    initial_delivery_count: Serial | None = None
    max_message_size: int | None = None
    offered_capabilities: tuple[str, ...] = ()
    desired_capabilities: tuple[str, ...] = ()
    properties: Fields | None = None


@final
@dataclass
class Flow(Performative):
    """Windows of the session, and with a handle the credit of a link."""

    next_incoming_id: Serial | None = None
    incoming_window: int = 0
    next_outgoing_id: Serial = ZERO
    outgoing_window: int = 0
    handle: int | None = None
    delivery_count: Serial | None = None
    link_credit: int | None = None
    available: int | None = None
    drain: bool = False
    echo: bool = False
    properties: Fields | None = None


@final
@dataclass
class Transfer(Performative):
    """A message, or part of one; the frame's payload follows."""

    handle: int = 0
    delivery_id: Serial | None = None
    delivery_tag: bytes | None = None
    message_format: int | None = None
    settled: bool | None = None
    more: bool = False
    rcv_settle_mode: int | None = None
    state: DeliveryState | None = None
    resume: bool = False
    aborted: bool = False
    batchable: bool = False


@final
@dataclass
class Disposition(Performative):
    """The state of the deliveries first..last (absent: first alone), from this role's side."""

    role: bool = SENDER
    first: Serial = ZERO
    last: Serial | None = None
    settled: bool = False
    state: DeliveryState | None = None
    batchable: bool = False


@final
@dataclass
class Detach(Performative):
    """Detach of a link, which may close it for good."""

    handle: int = 0
    closed: bool = False
    error: Error | None = None


@final
@dataclass
class End(Performative):
    """End of a session."""

    error: Error | None = None


@final
@dataclass
class Close(Performative):
    """Close of a connection."""

    error: Error | None = None


_CAPABILITIES: Final = "offered_capabilities:symbol* desired_capabilities:symbol* properties:fields"

LAYOUTS: Final[tuple[Row, ...]] = (
    (
        0x10,
        "amqp:open:list",
        Open,
        "performative",
        "container_id:string! hostname:string max_frame_size:uint=4294967295 "
        "channel_max:ushort=65535 idle_time_out:uint outgoing_locales:symbol* "
        "incoming_locales:symbol* " + _CAPABILITIES,
    ),
    (
        0x11,
        "amqp:begin:list",
        Begin,
        "performative",
        "remote_channel:ushort next_outgoing_id:uint! incoming_window:uint! outgoing_window:uint! "
        "handle_max:uint=4294967295 " + _CAPABILITIES,
    ),
    (
        0x12,
        "amqp:attach:list",
        Attach,
        "performative",
        "name:string! handle:uint! role:boolean! snd_settle_mode:ubyte=2 rcv_settle_mode:ubyte=0 "
        "source:source target:target unsettled:map incomplete_unsettled:boolean=false "
        "initial_delivery_count:uint max_message_size:ulong " + _CAPABILITIES,
    ),
    (
        0x13,
        "amqp:flow:list",
        Flow,
        "performative",
        "next_incoming_id:uint incoming_window:uint! next_outgoing_id:uint! outgoing_window:uint! "
        "handle:uint delivery_count:uint link_credit:uint available:uint drain:boolean=false "
        "echo:boolean=false properties:fields",
    ),
    (
        0x14,
        "amqp:transfer:list",
        Transfer,
        "performative",
        "handle:uint! delivery_id:uint delivery_tag:binary message_format:uint settled:boolean "
        "more:boolean=false rcv_settle_mode:ubyte state:delivery-state resume:boolean=false "
        "aborted:boolean=false batchable:boolean=false",
    ),
    (
        0x15,
        "amqp:disposition:list",
        Disposition,
        "performative",
        "role:boolean! first:uint! last:uint settled:boolean=false state:delivery-state "
        "batchable:boolean=false",
    ),
    (
        0x16,
        "amqp:detach:list",
        Detach,
        "performative",
        "handle:uint! closed:boolean=false error:error",
    ),
    (0x17, "amqp:end:list", End, "performative", "error:error"),
    (0x18, "amqp:close:list", Close, "performative", "error:error"),
    (
        0x28,
        "amqp:source:list",
        Source,
        "source",
        "address:string durable:uint=0 expiry_policy:symbol=session-end timeout:uint=0 "
        "dynamic:boolean=false dynamic_node_properties:fields distribution_mode:symbol "
        "filter:fields default_outcome:delivery-state outcomes:symbol* capabilities:symbol*",
    ),
    (
        0x29,
        "amqp:target:list",
        Target,
        "target",
        "address:string durable:uint=0 expiry_policy:symbol=session-end timeout:uint=0 "
        "dynamic:boolean=false dynamic_node_properties:fields capabilities:symbol*",
    ),
    (0x30, "amqp:coordinator:list", Coordinator, "target", "capabilities:symbol*"),
)
register(LAYOUTS)


def decode_performative(data: bytes, pos: int, end: int) -> tuple[Performative, int]:
    """Decode the performative that begins at `pos`; return it and its end, where a payload may
    begin.

    Raises DecodeError.
    """
    reader = Reader(data, pos, end)
    performative = read_composite(reader, "performative")
    assert isinstance(performative, Performative)
    return performative, reader.pos


def name_of(composite: Composite) -> str:
    """Return the standard's name: `open`, `transactional-state`."""
    return BY_CLASS[type(composite)].name
