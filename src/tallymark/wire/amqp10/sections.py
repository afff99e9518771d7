"""Messages [amqp-1.0 §3.2]: sections, one behind the other, in this order, most of them optional.

    header | delivery-annotations | message-annotations | properties | application-properties |
    data... or amqp-sequence... or amqp-value | footer

A section is a described value: 0x00 0x53, its code, and a list, a map, binary or whatever.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final
from uuid import UUID

from tallymark.wire.amqp10.codec import decode, skip
from tallymark.wire.amqp10.composites import (
    Composite,
    Map,
    Row,
    read_composite,
    register,
)
from tallymark.wire.amqp10.errors import DecodeError, shown
from tallymark.wire.amqp10.reader import Reader
from tallymark.wire.amqp10.writer import (
    encode_binary,
    encode_list,
    encode_symbol_map,
    encode_value,
)

HEADER: Final = 0x70
DELIVERY_ANNOTATIONS: Final = 0x71
MESSAGE_ANNOTATIONS: Final = 0x72
PROPERTIES: Final = 0x73
APPLICATION_PROPERTIES: Final = 0x74
DATA: Final = 0x75
SEQUENCE: Final = 0x76
VALUE: Final = 0x77
FOOTER: Final = 0x78


MessageId = int | UUID | bytes | str
"""Type of a message id; an int is a ulong."""


@final
@dataclass
class Header(Composite):
    """Transfer headers [amqp-1.0 §3.2.1]; ttl in ms, delivery_count: unsuccessful attempts."""

    durable: bool = False
    priority: int = 4
    ttl: int | None = None
    first_acquirer: bool = False
    delivery_count: int = 0


@final
@dataclass
class Properties(Composite):
    """The standard's properties [amqp-1.0 §3.2.4]; times in ms since 1970.

    An id that is read is ULong, UUID, bytes or str; any int is written as ulong.
    """

    message_id: MessageId | None = None
    user_id: bytes | None = None
    to: str | None = None
    subject: str | None = None
    reply_to: str | None = None
    correlation_id: MessageId | None = None
    content_type: str | None = None
    content_encoding: str | None = None
    absolute_expiry_time: int | None = None
    creation_time: int | None = None
    group_id: str | None = None
    group_sequence: int | None = None
    reply_to_group_id: str | None = None


LAYOUTS: Final[tuple[Row, ...]] = (
    (
        0x70,
        "amqp:header:list",
        Header,
        "header",
        "durable:boolean=false priority:ubyte=4 ttl:uint first_acquirer:boolean=false "
        "delivery_count:uint=0",
    ),
    (
        0x73,
        "amqp:properties:list",
        Properties,
        "properties",
        "message_id:message-id user_id:binary to:string subject:string reply_to:string "
        "correlation_id:message-id content_type:symbol content_encoding:symbol "
        "absolute_expiry_time:timestamp creation_time:timestamp group_id:string "
        "group_sequence:uint reply_to_group_id:string",
    ),
)
register(LAYOUTS)

_SYMBOLS: Final[dict[str, int]] = {
    "amqp:header:list": 0x70,
    "amqp:delivery-annotations:map": 0x71,
    "amqp:message-annotations:map": 0x72,
    "amqp:properties:list": 0x73,
    "amqp:application-properties:map": 0x74,
    "amqp:data:binary": 0x75,
    "amqp:amqp-sequence:list": 0x76,
    "amqp:amqp-value:*": 0x77,
    "amqp:footer:map": 0x78,
}


def section_code(data: bytes, pos: int, end: int) -> tuple[int, int]:
    """Return the code (0x70..0x78) of the section at `pos` and the offset of its value. Raises
    DecodeError."""
    if pos + 3 <= end and data[pos] == 0 and data[pos + 1] == 0x53:
        code = data[pos + 2]
        if 0x70 <= code <= 0x78:
            return code, pos + 3
        raise DecodeError(f"section with the unknown descriptor 0x{code:02x}")
    if pos >= end or data[pos] != 0:
        raise DecodeError("a section has to begin with a descriptor")
    descriptor, after = decode(data, pos + 1, end)
    code = -1
    if isinstance(descriptor, str):
        code = _SYMBOLS.get(descriptor, -1)
    elif isinstance(descriptor, int):
        code = descriptor
    if not 0x70 <= code <= 0x78:
        raise DecodeError(f"section with the unknown descriptor {shown(descriptor)}")
    return code, after


@final
class Sections:
    """One encoded message, data[start:end]. The constructor finds the sections; values are decoded
    on each access.

    Raises DecodeError, at once where the bytes are not sections in their order, later where a
    section is not what it has to be.
    """

    __slots__ = ("body_kind", "bounds", "data", "end", "start")

    def __init__(self, data: bytes, start: int, end: int) -> None:
        self.data = data
        self.start = start
        self.end = end
        self.bounds: list[tuple[int, int, int]] = []
        """Sections as (code, offset of the descriptor, offset of the value); each ends where the
        next begins."""
        self.body_kind = ""
        """Kind of body: "data", "sequence", "value", or "" for a message without a body, which the
        standard does not allow and some clients send."""
        pos = start
        last = 0
        while pos < end:
            code, value = section_code(data, pos, end)
            repeated = code == last and DATA <= code <= SEQUENCE
            mixed = DATA <= last < code < FOOTER
            if (code <= last and not repeated) or mixed:
                raise DecodeError(f"section 0x{code:02x} behind section 0x{last:02x}")
            self.bounds.append((code, pos, value))
            pos = skip(data, value, end)
            last = code
            if DATA <= code < FOOTER:
                self.body_kind = _KINDS[code - DATA]

    def raw(self, code: int) -> bytes:
        """Return all sections with that code as received, descriptors included; b"" if there are
        none."""
        bounds = self.bounds
        first = -1
        for i in range(len(bounds)):
            if bounds[i][0] == code:
                if first < 0:
                    first = bounds[i][1]
            elif first >= 0:
                return self.data[first : bounds[i][1]]
        return b"" if first < 0 else self.data[first : self.end]

    def behind(self, code: int) -> int:
        """Return the offset behind all sections with codes up to this one."""
        for bound in self.bounds:
            if bound[0] > code:
                return bound[1]
        return self.end

    def _values(self, code: int) -> list[int]:
        """Return the offsets of the values of the sections with that code."""
        return [bound[2] for bound in self.bounds if bound[0] == code]

    def _composite(self, code: int, name: str) -> Composite | None:
        for bound in self.bounds:
            if bound[0] == code:
                return read_composite(Reader(self.data, bound[1], self.end), name)
        return None

    def _map(self, code: int) -> Map | None:
        for pos in self._values(code):
            value = decode(self.data, pos, self.end)[0]
            if not isinstance(value, dict):
                raise DecodeError(f"section 0x{code:02x} with a {type(value).__name__}, not a map")
            return value
        return None

    @property
    def header(self) -> Header | None:
        found = self._composite(HEADER, "header")
        assert found is None or isinstance(found, Header)
        return found

    @property
    def delivery_annotations(self) -> Map | None:
        return self._map(DELIVERY_ANNOTATIONS)

    @property
    def message_annotations(self) -> Map | None:
        return self._map(MESSAGE_ANNOTATIONS)

    @property
    def properties(self) -> Properties | None:
        found = self._composite(PROPERTIES, "properties")
        assert found is None or isinstance(found, Properties)
        return found

    @property
    def application_properties(self) -> Map | None:
        return self._map(APPLICATION_PROPERTIES)

    @property
    def bodies(self) -> list[object]:
        """Return the values of the body sections: bytes each, a list each, or one value."""
        if not self.body_kind:
            return []
        code = DATA + _KINDS.index(self.body_kind)
        values = [decode(self.data, pos, self.end)[0] for pos in self._values(code)]
        expected = _TYPES.get(code)
        for value in values:
            if expected is not None and type(value) is not expected:
                raise DecodeError(f"body section 0x{code:02x} with a {type(value).__name__}")
        return values

    @property
    def footer(self) -> Map | None:
        return self._map(FOOTER)


_KINDS: Final = ("data", "sequence", "value")
_TYPES: Final[dict[int, type]] = {DATA: bytes, SEQUENCE: list}


@final
class Data:
    """A body of data sections, for `encode_message`."""

    __slots__ = ("parts",)

    def __init__(self, *parts: bytes) -> None:
        self.parts = parts


@final
class Sequences:
    """A body of amqp-sequence sections, for `encode_message`."""

    __slots__ = ("parts",)

    def __init__(self, *parts: list[object]) -> None:
        self.parts = parts


@final
class Value:
    """A body of one amqp-value section, for `encode_message`."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value


Body = Data | Sequences | Value


def encode_message(
    header: Header | None = None,
    delivery_annotations: Map | None = None,
    message_annotations: Map | None = None,
    properties: Properties | None = None,
    application_properties: Map | None = None,
    body: object = None,
    footer: Map | None = None,
) -> bytes:
    """Encode a message. The body is Data, Sequences or Value; bytes stand for one data section,
    anything else for Value of it. Absent sections are left out, empty ones are written.

    Raises ValueError or TypeError where a value does not fit.
    """
    parts: list[bytes] = []
    if header is not None:
        parts.append(header.encode())
    if delivery_annotations is not None:
        parts.append(b"\0\x53\x71" + encode_symbol_map(delivery_annotations, 1))
    if message_annotations is not None:
        parts.append(b"\0\x53\x72" + encode_symbol_map(message_annotations, 1))
    if properties is not None:
        parts.append(properties.encode())
    if application_properties is not None:
        parts.append(b"\0\x53\x74" + encode_value(application_properties, 0))
    parts.append(encode_body(body))
    if footer is not None:
        parts.append(b"\0\x53\x78" + encode_symbol_map(footer, 1))
    return b"".join(parts)


def encode_body(body: object) -> bytes:
    """Encode the body sections; see `encode_message`."""
    if isinstance(body, (bytes, bytearray, memoryview)):
        return b"\0\x53\x75" + encode_binary(bytes(body))
    if isinstance(body, Data):
        return b"".join([b"\0\x53\x75" + encode_binary(part) for part in body.parts])
    if isinstance(body, Sequences):
        return b"".join([b"\0\x53\x76" + encode_list(part, 1) for part in body.parts])
    return b"\0\x53\x77" + encode_value(body.value if isinstance(body, Value) else body, 0)
