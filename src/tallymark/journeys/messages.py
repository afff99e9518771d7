"""Messages in words: the properties that a message is looked for by, whatever its protocol.

Properties of AMQP 1.0 are converted as for an AMQP 0-9-1 consumer (docs/conversion.md). A message
of NSQ has a body and nothing else. What cannot be decoded is left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tallymark.journeys.reading import Stored
from tallymark.stored.formats import AMQP091, AMQP10, NSQ
from tallymark.wire.amqp091 import frames
from tallymark.wire.amqp091.errors import WireError
from tallymark.wire.amqp091.properties import Properties, decode_properties
from tallymark.wire.amqp10.encoded import begin, data_bytes, find_section, section_code
from tallymark.wire.amqp10.errors import DecodeError
from tallymark.wire.amqp10.front import read_front
from tallymark.wire.amqp10.sections import DATA
from tallymark.wire.conversion.to_amqp091 import section_of

MESSAGE_ID: Final = "message-id"
CORRELATION_ID: Final = "correlation-id"
HEADER: Final = "header"
BODY: Final = "body"
PROPERTIES: Final = (MESSAGE_ID, CORRELATION_ID, HEADER)
"""Places that are looked at for a text unless others are named."""
NSQ_SIZE_FIRST: Final = 0x43
"""Highest first byte of an NSQ message that is part of an MPUB: its size. Above it, a command."""


@dataclass(slots=True)
class Described:
    """A message that was found, without its body."""

    number: int
    arrived_ms: int
    exchange: str
    routing_key: str
    message_id: str | None = None
    correlation_id: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    body_bytes: int = 0


def described_if(message: Stored, text: str, places: tuple[str, ...]) -> Described | None:
    """Return the message in words if the text is in one of the places; None: it is elsewhere in
    the message's bytes."""
    properties, body = _decoded(message)
    headers = {name: _shown(value) for name, value in (properties.headers or {}).items()}
    found = (
        (MESSAGE_ID in places and properties.message_id == text)
        or (CORRELATION_ID in places and properties.correlation_id == text)
        or (HEADER in places and text in headers.values())
        or (BODY in places and text.encode() in body)
    )
    if not found:
        return None
    return Described(
        message.number,
        message.arrived_ms,
        message.exchange,
        message.routing_key,
        properties.message_id,
        properties.correlation_id,
        headers,
        len(body),
    )


def _decoded(message: Stored) -> tuple[Properties, bytes]:
    """Return a message's properties and body."""
    raw = message.raw
    if message.format == AMQP091:
        try:
            properties = decode_properties(frames.property_section(raw))
        except WireError:
            properties = Properties()
        return properties, frames.body(raw)
    if message.format == AMQP10:
        return _decoded_amqp10(raw)
    if message.format == NSQ:
        size_at = raw.find(b"\n") + 1 if raw[0] > NSQ_SIZE_FIRST else 0
        return Properties(), raw[size_at + 4 :]
    return Properties(), raw


def _decoded_amqp10(raw: bytes) -> tuple[Properties, bytes]:
    end = len(raw)
    try:
        front = read_front(raw, 0, end)
        at = find_section(raw, begin(raw, 0, end), end, DATA)
        section = section_of(front, raw, front.size, at, True, front.durable)
        is_data = at < end and section_code(raw, at, end) == DATA
        return decode_properties(section), data_bytes(raw, at, end) if is_data else raw[at:]
    except (DecodeError, WireError):
        return Properties(), raw


def _shown(value: object) -> str:
    """Return a header's value as text."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
