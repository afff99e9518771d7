"""The sections of AMQP 1.0 messages as they are stored: where they are, and whether they are sound.

    header | message annotations | properties | application properties | body | footer

All are optional, in this order [amqp-1.0 §3.2]; a body is data or sequences, one or more, or one
value. The standard has a body in every message and behind its properties, but some clients leave an
empty one out, and clients made of qpid-proton may put the value null in front of all other
sections: it is passed over. Nothing is decoded here that nobody asks for;
`tallymark.wire.amqp10.sections` gives the values of all.
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
    """Which section begins at `pos`; NO_SECTION: none of the standard's, or not all of its
    descriptor is there."""
    if pos + 3 < end and raw[pos] == 0 and raw[pos + 1] == 0x53:
        code = raw[pos + 2]
        return code if HEADER <= code <= FOOTER else NO_SECTION
    try:
        code, at = sections.section_code(raw, pos, end)
    except DecodeError:
        return NO_SECTION
    return code if at < end else NO_SECTION


def begin(raw: bytes, pos: int, end: int) -> int:
    """Where the sections of the message raw[pos:end] begin, behind a null that stands in front."""
    if raw.startswith(_NULL_BODY, pos) and pos + 4 < end:
        return pos + 4
    return pos


def value_at(raw: bytes, pos: int, end: int) -> int:
    """Where the value of the section at `pos` begins."""
    return pos + 3 if raw[pos + 1] == 0x53 else skip(raw, pos + 1, end)


def section_end(raw: bytes, pos: int, end: int, code: int) -> int:
    """Where the section of this code at `pos` ends. Raises DecodeError."""
    at = value_at(raw, pos, end)
    if code != VALUE and raw[at] not in _CODES[code]:
        raise DecodeError(f"section 0x{code:02x} with a value of format code 0x{raw[at]:02x}")
    return skip(raw, at, end)


def find_section(raw: bytes, pos: int, end: int, wanted: int) -> int:
    """Where a section of the code `wanted`, or the first of a higher one, begins; `end`: nowhere.
    Looks from `pos`, where a section begins. Raises DecodeError."""
    while pos < end:
        code = section_code(raw, pos, end)
        if code == NO_SECTION:
            raise DecodeError(f"no section of a message begins with {raw[pos : pos + 4].hex()}")
        if code >= wanted:
            return pos
        pos = section_end(raw, pos, end, code)
    return end


def section_value(raw: bytes, pos: int, end: int, wanted: int) -> object:
    """The value of the one section of that code at or behind `pos`; None: there is none."""
    at = find_section(raw, pos, end, wanted)
    if at == end or section_code(raw, at, end) != wanted:
        return None
    value, _ = decode(raw, value_at(raw, at, end), end)
    return value


def data_bytes(raw: bytes, pos: int, end: int) -> bytes:
    """What is in the data sections from `pos` on, joined; nothing where there are none. Raises
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
    """Whether raw[pos:end] is sections of a message, in their order and complete, one at least that
    is stored. What is inside of lists and maps is not looked at."""
    try:
        return _walk(raw, begin(raw, pos, end), end, HEADER)
    except DecodeError:
        return False


def is_body(raw: bytes) -> bool:
    """Whether it is a body that is no data, and maybe a footer, and nothing else."""
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
    """Sections in their order, none below `lowest`, data and sequence as often as they come."""
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
    """Where what is in the last section of a sound message begins, if that is data: a message as
    long as this one which begins like it up to there is sound as well. Else `end`."""
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
    """The thirteen fields of the properties of the message whose bare part begins at `pos` or
    behind it; None where one is not there. Raises DecodeError."""
    value = section_value(raw, pos, end, PROPERTIES)
    fields: list[object] = []
    if isinstance(value, list):
        fields += value[:13]
    fields += [None] * (13 - len(fields))
    return fields


def application_properties_of(raw: bytes, pos: int, end: int) -> dict[object, object]:
    """Raises DecodeError."""
    value = section_value(raw, pos, end, APPLICATION_PROPERTIES)
    return value if isinstance(value, dict) else {}
