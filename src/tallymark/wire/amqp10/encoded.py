"""Sections of stored AMQP 1.0 messages: their positions, and whether they are well formed.

    header | message annotations | properties | application properties | body | footer

All are optional, in this order [amqp-1.0 §3.2]; a body is one or more data sections or sequences,
or one value. The standard requires a body behind the properties, but some clients leave an empty
one out, and clients made of qpid-proton may put the value null before all other sections, which is
ignored. Values are decoded only on request; `tallymark.wire.amqp10.sections` decodes all of them.
"""

from __future__ import annotations

from typing import Final

from tallymark.wire.amqp10 import sections
from tallymark.wire.amqp10.codec import decode, skip
from tallymark.wire.amqp10.errors import DecodeError
from tallymark.wire.amqp10.sections import (
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    SEQUENCE,
    VALUE,
)

NO_SECTION: Final = -1

_NULL: Final = 0x40
"""Format code of null."""
_NULL_BODY: Final = b"\0\x53\x77\x40"

# The format codes that the value of a section may have; of VALUE any.
_LISTS: Final = b"\x45\xc0\xd0"
_MAPS: Final = b"\xc1\xd1"
_CODES: Final = {
    HEADER: _LISTS,
    DELIVERY_ANNOTATIONS: _MAPS,
    MESSAGE_ANNOTATIONS: _MAPS,
    PROPERTIES: _LISTS,
    APPLICATION_PROPERTIES: _MAPS,
    DATA: b"\xa0\xb0",
    SEQUENCE: _LISTS,
    FOOTER: _MAPS,
}


def section_code(raw: bytes, pos: int, end: int) -> int:
    """Return the code of the section that begins at `pos`; NO_SECTION if it is not one of the
    standard's, or its descriptor is incomplete."""
    if pos + 3 < end and raw[pos] == 0 and raw[pos + 1] == 0x53:
        code = raw[pos + 2]
        return code if HEADER <= code <= FOOTER else NO_SECTION
    try:
        code, at = sections.section_code(raw, pos, end)
    except DecodeError:
        return NO_SECTION
    return code if at < end else NO_SECTION


def begin(raw: bytes, pos: int, end: int) -> int:
    """Return the offset at which the sections of the message raw[pos:end] begin, after a leading
    null. One that only a footer follows is the body."""
    if raw.startswith(_NULL_BODY, pos) and pos + 4 < end:
        after = pos + 4
        return pos if section_code(raw, after, end) == FOOTER else after
    return pos


def value_at(raw: bytes, pos: int, end: int) -> int:
    """Return the offset of the value of the section at `pos`."""
    return pos + 3 if raw[pos + 1] == 0x53 else skip(raw, pos + 1, end)


def opening(raw: bytes, start: int, pos: int, end: int) -> bytes:
    """Return the bytes by which other messages are known that begin as raw[start:end] does up to
    its section at `pos`: all up to and including the descriptor of that section. Empty where none
    is known by them: a value null at the beginning may be a body, or be passed over, see `begin`.
    """
    at = value_at(raw, pos, end)
    if pos > start or section_code(raw, pos, end) != VALUE:
        return raw[start:at]
    return b"" if raw[at] == _NULL else raw[start : at + 1]


def section_end(raw: bytes, pos: int, end: int, code: int) -> int:
    """Return the end of the section of this code at `pos`. Raises DecodeError."""
    at = value_at(raw, pos, end)
    if code != VALUE and raw[at] not in _CODES[code]:
        raise DecodeError(f"section 0x{code:02x} with a value of format code 0x{raw[at]:02x}")
    return skip(raw, at, end)


def find_section(raw: bytes, pos: int, end: int, wanted: int) -> int:
    """Return the offset of the section with code `wanted`, or of the first with a higher code;
    `end` if there is neither. The search begins at `pos`, at the start of a section. Raises
    DecodeError."""
    while pos < end:
        code = section_code(raw, pos, end)
        if code == NO_SECTION:
            shown = raw[pos : min(pos + 4, end)].hex()
            raise DecodeError(f"no section of a message begins with {shown}")
        if code >= wanted:
            return pos
        pos = section_end(raw, pos, end, code)
    return end


def section_value(raw: bytes, pos: int, end: int, wanted: int) -> object:
    """Return the value of the section of that code at or behind `pos`; None: there is none."""
    at = find_section(raw, pos, end, wanted)
    if at == end or section_code(raw, at, end) != wanted:
        return None
    value, _ = decode(raw, value_at(raw, at, end), end)
    return value


def data_bytes(raw: bytes, pos: int, end: int) -> bytes:
    """Return the joined content of the data sections from `pos` on; empty if there are none. Raises
    DecodeError."""
    parts: list[bytes] = []
    while pos < end:
        code = section_code(raw, pos, end)
        if code == FOOTER:
            break
        if code != DATA:
            raise DecodeError(f"section of code {code:#x} behind data")
        at = value_at(raw, pos, end)
        pos = section_end(raw, pos, end, DATA)
        parts.append(raw[at + (2 if raw[at] == 0xA0 else 5) : pos])
    return parts[0] if len(parts) == 1 else b"".join(parts)


def is_sound(raw: bytes, pos: int, end: int) -> bool:
    """Return whether raw[pos:end] consists of complete message sections in their order, at least
    one of them stored. The content of lists and maps is not examined."""
    try:
        return _walk(raw, begin(raw, pos, end), end, HEADER)
    except DecodeError:
        return False


def is_body(raw: bytes) -> bool:
    """Return whether the bytes are a body other than data, with an optional footer, and nothing
    else."""
    try:
        return (
            section_code(raw, 0, len(raw)) in (SEQUENCE, VALUE)
            and _walk(raw, 0, len(raw), SEQUENCE)
            and _decodes(raw)
        )
    except DecodeError:
        return False


def _decodes(raw: bytes) -> bool:
    pos = 0
    while pos < len(raw):
        _, pos = decode(raw, pos, len(raw))
    return True


def _walk(raw: bytes, pos: int, end: int, lowest: int) -> bool:
    """Return whether the sections are in their order, none below `lowest`; data and sequence may
    repeat."""
    has_body = is_any = False
    while pos < end:
        code = section_code(raw, pos, end)
        if code < lowest or (has_body and code < FOOTER and code != lowest):
            return False
        lowest = code if code in (DATA, SEQUENCE) else code + 1
        has_body = has_body or DATA <= code <= VALUE
        is_any = is_any or code != DELIVERY_ANNOTATIONS
        pos = section_end(raw, pos, end, code)
    return is_any


def last_content(raw: bytes, pos: int, end: int) -> int:
    """Return the offset of the content of a well-formed message's last section if that is data,
    else `end`. A message of the same length with the same bytes before that offset is well formed,
    too."""
    pos = begin(raw, pos, end)
    at = pos
    while pos < end:
        at = pos
        pos = section_end(raw, pos, end, section_code(raw, pos, end))
    if at == end:
        return end
    value = value_at(raw, at, end)
    if raw[value] == 0xA0:
        return value + 2
    return value + 5 if raw[value] == 0xB0 else end


def properties_of(raw: bytes, pos: int, end: int) -> list[object]:
    """Return the thirteen fields of the properties of the message whose bare part begins at `pos`
    or behind it; None where one is not there. Raises DecodeError."""
    value = section_value(raw, pos, end, PROPERTIES)
    fields: list[object] = []
    if isinstance(value, list):
        fields += value[:13]
    fields += [None] * (13 - len(fields))
    return fields


def application_properties_of(raw: bytes, pos: int, end: int) -> dict[object, object]:
    """Return the application properties of the message. Raises DecodeError."""
    value = section_value(raw, pos, end, APPLICATION_PROPERTIES)
    return value if isinstance(value, dict) else {}
