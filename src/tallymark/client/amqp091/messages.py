"""Messages between AMQP 1.0 sections, which the client's messages are, and AMQP 0-9-1.

The rules are those of brokers [docs/conversion.md, wire/conversion]; in the place of the broker's
own annotations stands what basic.deliver says. Messages in a row that differ in their bodies only
are converted once.
"""

from __future__ import annotations

from typing import Final, final

from tallymark.wire.amqp091.errors import WireError
from tallymark.wire.amqp091.methods import BasicDeliver
from tallymark.wire.amqp091.properties import Properties, decode_properties, encode_properties
from tallymark.wire.amqp10 import types
from tallymark.wire.amqp10.codec import decode, encode
from tallymark.wire.amqp10.errors import DecodeError
from tallymark.wire.amqp10.sections import (
    APPLICATION_PROPERTIES,
    DATA,
    FOOTER,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    Sections,
)
from tallymark.wire.conversion import names
from tallymark.wire.conversion.to_amqp091 import join
from tallymark.wire.conversion.to_amqp10 import split
from tallymark.wire.conversion.values import text_or_bytes

LONGEST_TTL_MS: Final = (1 << 32) - 1
"""Longest ttl that a message header can carry."""
DELIVERY_COUNT: Final = "x-delivery-count"

_SECTION: Final = b"\x00\x53"


@final
class Front:
    """Encoded sections in front of the body of a message received over 0-9-1."""

    __slots__ = ("is_encoded", "of_data", "of_sections")

    def __init__(self, of_data: bytes, of_sections: bytes, is_encoded: bool) -> None:
        self.of_data = of_data
        self.of_sections = of_sections
        """Sections in front of a body that is encoded as AMQP 1.0 sections already."""
        self.is_encoded = is_encoded
        """The type says that bodies are; they may not be."""


@final
class Incoming:
    """Conversion of received messages from 0-9-1, for one channel."""

    __slots__ = ("_front", "_of")

    def __init__(self) -> None:
        self._of: tuple[bytes, bool, str, str] | None = None
        self._front = Front(b"", b"", False)

    def sections(self, method: BasicDeliver, section: bytes, body: bytes) -> bytes:
        """The message as sections. Properties that cannot be read are not there."""
        asked = (section, method.redelivered, method.exchange, method.routing_key)
        if asked != self._of:
            self._front = _front(section, method)
            self._of = asked
        front = self._front
        if front.is_encoded and _is_body(body):
            return front.of_sections + body
        size = len(body)
        head = b"\xa0" + bytes((size,)) if size < 256 else b"\xb0" + size.to_bytes(4, "big")
        return b"".join((front.of_data, b"\x00\x53\x75", head, body))


def _front(section: bytes, method: BasicDeliver) -> Front:
    try:
        properties = decode_properties(section)
    except WireError:
        properties = Properties()
    found = split(properties)
    annotations: dict[object, object] = {}
    failed: object = None
    for name, value in found.annotations:
        if name == DELIVERY_COUNT and isinstance(value, int) and 0 <= value <= LONGEST_TTL_MS:
            failed = types.UInt(value)
        else:
            annotations[types.Symbol(name)] = value
    annotations[types.Symbol(names.EXCHANGE)] = _text(method.exchange)
    annotations[types.Symbol(names.ROUTING_KEY)] = _text(method.routing_key)
    ttl = _ttl(properties.expiration, annotations)
    mode = properties.delivery_mode
    priority = None if properties.priority is None else types.UByte(properties.priority)
    header = [mode == 2, priority, ttl, not method.redelivered, failed]
    values = found.properties
    while values and values[-1] is None:
        values.pop()
    behind = _encoded(PROPERTIES, values) if values else b""
    if found.application:
        behind += _encoded(APPLICATION_PROPERTIES, found.application)
    front = _encoded(HEADER, header)
    of_sections = front + _encoded(MESSAGE_ANNOTATIONS, annotations) + behind
    if properties.type is None:
        return Front(of_sections, of_sections, False)
    annotations[types.Symbol(names.BASIC_TYPE)] = text_or_bytes(properties.type)
    of_data = front + _encoded(MESSAGE_ANNOTATIONS, annotations) + behind
    return Front(of_data, of_sections, properties.type == names.ENCODED)


def _encoded(code: int, value: object) -> bytes:
    return _SECTION + bytes((code,)) + encode(value)


def _text(name: str) -> str:
    """A name in which everything is Unicode: U+FFFD for bytes that are not UTF-8."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _ttl(expiration: str | None, annotations: dict[object, object]) -> object:
    if expiration is None:
        return None
    ttl_ms = int(expiration) if expiration.isascii() and expiration.isdigit() else -1
    if 0 <= ttl_ms <= LONGEST_TTL_MS:
        return types.UInt(ttl_ms)
    annotations[types.Symbol(names.BASIC_EXPIRATION)] = text_or_bytes(expiration)
    return None


def _is_body(body: bytes) -> bool:
    """Return whether the bytes are body sections of AMQP 1.0 (a value or sequences), perhaps with a
    footer, and nothing else."""
    try:
        sections = Sections(body, 0, len(body))
        values = sections.bodies
    except DecodeError:
        return False
    return len(values) > 0 and DATA < sections.bounds[0][0] < FOOTER


@final
class Outgoing:
    """Conversion of messages to 0-9-1, for one sender."""

    __slots__ = ("_annotations", "_front", "_head", "_header", "_section", "_to")

    def __init__(self) -> None:
        self._head = b""
        self._section = b""
        self._to: str | None = None
        self._front = b""
        """Header and annotations of the message before, as they came; and decoded:"""
        self._header: list[object] = [None, None, None]
        self._annotations: list[tuple[str, object]] = []

    def content(self, message: bytes) -> tuple[bytes, bytes, str | None]:
        """Property section, body, and the property `to`. Raises ValueError for bytes that are no
        message, or properties that 0-9-1 has no room for."""
        head = self._head
        if head and message.startswith(head):
            body = _only_data(message, len(head))
            if body is not None:
                return self._section, body, self._to
        try:
            sections = Sections(message, 0, len(message))
            section, to = self._properties(sections)
            body = _body(sections)
        except DecodeError as error:
            raise ValueError(f"message that cannot be read: {error.text}") from error
        starts = [value for code, _, value in sections.bounds if code == DATA]
        self._head = message[: starts[0]] if starts else b""
        self._section = section
        self._to = to
        return section, body, to

    def _properties(self, sections: Sections) -> tuple[bytes, str | None]:
        """The property section; and `to`."""
        front = sections.data[sections.start : sections.behind(MESSAGE_ANNOTATIONS)]
        if front != self._front:
            self._header = _list(sections, HEADER, 3)
            self._annotations = [
                (str(name), value)
                for name, value in _map(sections, MESSAGE_ANNOTATIONS).items()
                if isinstance(name, str)
            ]
            self._front = front
        durable, priority, ttl = self._header
        properties = Properties(delivery_mode=1 if durable is False else 2)
        if isinstance(priority, int):
            properties.priority = priority
        if isinstance(ttl, int):
            properties.expiration = str(int(ttl))
        found = _list(sections, PROPERTIES, 13)
        join(properties, self._annotations, found, _map(sections, APPLICATION_PROPERTIES))
        if sections.body_kind in ("value", "sequence"):
            properties.type = names.ENCODED
        to = found[2]
        return encode_properties(properties), str(to) if isinstance(to, str) else None


def _only_data(message: bytes, at: int) -> bytes | None:
    """The content of the binary value at `at`, if nothing is behind it."""
    code = message[at : at + 1]
    if code == b"\xa0":
        start = at + 2
        size = message[at + 1] if at + 1 < len(message) else -1
    elif code == b"\xb0":
        start = at + 5
        size = int.from_bytes(message[at + 1 : start], "big")
    else:
        return None
    return message[start:] if start + size == len(message) else None


def _values(sections: Sections, code: int) -> object:
    for found, _, value in sections.bounds:
        if found == code:
            return decode(sections.data, value, sections.end)[0]
    return None


def _list(sections: Sections, code: int, size: int) -> list[object]:
    value = _values(sections, code)
    found = list(value[:size]) if isinstance(value, list) else []
    return found + [None] * (size - len(found))


def _map(sections: Sections, code: int) -> dict[object, object]:
    value = _values(sections, code)
    return value if isinstance(value, dict) else {}


def _body(sections: Sections) -> bytes:
    if sections.body_kind in ("value", "sequence"):
        for code, at, _ in sections.bounds:
            if code > DATA:
                return sections.data[at : sections.end]
    return b"".join([part for part in sections.bodies if isinstance(part, bytes)])
