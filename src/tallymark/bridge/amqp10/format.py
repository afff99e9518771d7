"""Decoding of AMQP 1.0 messages for queues: the answers to the engine's Format, read from the
sections as sent.

Only what was asked for is decoded, and the header and the annotations once for all messages in a
row that begin with the same bytes.
"""

from __future__ import annotations

from array import array
from contextlib import suppress
from hashlib import sha256
from operator import index
from typing import Final, final

from tallymark.bridge.names import (
    DEDUPLICATION,
    HOP_LIMIT,
    LONGEST_ID,
    MOST_HOPS,
    PUBLISHER_NAME,
    PUBLISHING_ID,
    checked_number,
)
from tallymark.engine.exchange import property_key
from tallymark.engine.message import Format, Payload
from tallymark.wire.amqp10 import types
from tallymark.wire.amqp10.encoded import (
    application_properties_of,
    find_section,
    properties_of,
    section_code,
    section_end,
    value_at,
)
from tallymark.wire.amqp10.errors import DecodeError
from tallymark.wire.amqp10.front import UNREADABLE, Front, entry_value, lenient_fronts
from tallymark.wire.amqp10.sections import DATA, SEQUENCE, VALUE
from tallymark.wire.conversion import names
from tallymark.wire.conversion.values import field_name, to_field

PRIORITY: Final = 4
"""Priority of a message whose header gives none: clients leave out the standard's default
[amqp-1.0 §3.2.1]."""


_PUBLISHER_NAME: Final = PUBLISHER_NAME.encode()


@final
class Amqp10Format(Format):
    """The Format of AMQP 1.0 (see the module's docstring); the base class describes the methods."""

    __slots__ = ()

    def priorities(self, payload: Payload, lo: int, hi: int) -> bytes:
        raw, cuts = _bytes_of(payload)
        out = bytearray()
        for first, end, front in lenient_fronts(raw, cuts, lo, hi, None):
            level = front.priority if front.priority >= 0 else PRIORITY
            out += bytes((level,)) * (end - first)
        return bytes(out)

    def ids(self, payload: Payload, lo: int, hi: int) -> list[str]:
        raw, cuts = _bytes_of(payload)
        found: list[str] = []
        for first, stop, front in lenient_fronts(raw, cuts, lo, hi, None):
            for i in range(first, stop):
                found.append(_id(raw, cuts[i], cuts[i + 1], front))
        return found

    def numbered(self, payload: Payload, lo: int, hi: int) -> list[tuple[str, int]]:
        raw, cuts = _bytes_of(payload)
        if raw.find(_PUBLISHER_NAME, cuts[lo], cuts[hi]) < 0:
            return []
        found: list[tuple[str, int]] = []
        for first, stop, front in lenient_fronts(raw, cuts, lo, hi, None):
            for i in range(first, stop):
                found.append(_numbered(raw, cuts[i], cuts[i + 1], front))
        return found

    def headers(self, payload: Payload, i: int) -> dict[str, object]:
        raw, cuts = _bytes_of(payload)
        front = lenient_fronts(raw, cuts, i, i + 1, None)[0][2]
        seen: dict[str, object] = {}
        if front.size == UNREADABLE:
            return seen
        for entry in front.entries:
            if entry[0].startswith("x-") and entry[0] not in names.OURS:
                with suppress(DecodeError):
                    seen[entry[0]] = to_field(entry_value(entry))
        start = cuts[i] + front.size
        for key, value in _application_properties(raw, start, cuts[i + 1]).items():
            name = field_name(key)
            if name is not None:
                seen[name] = to_field(value)
        _hashable(_properties(raw, start, cuts[i + 1]), seen)
        return seen

    def hop_limit(self, payload: Payload, i: int) -> int:
        raw, cuts = _bytes_of(payload)
        front = lenient_fronts(raw, cuts, i, i + 1, None)[0][2]
        hops = _whole(_annotation(front, HOP_LIMIT))
        return hops if 0 <= hops <= MOST_HOPS else -1

    def bodies(self, payload: Payload) -> array[int]:
        raw, cuts = _bytes_of(payload)
        totals = array("Q", (0,))
        total = 0
        for first, stop, front in lenient_fronts(raw, cuts, 0, payload.count, None):
            for i in range(first, stop):
                total += body_size(raw, cuts[i] + max(front.size, 0), cuts[i + 1])
                totals.append(total)
        return totals


def body_size(raw: bytes, start: int, end: int) -> int:
    """Return the size of a body: of the content of its data sections, else of its sections as
    encoded, and of all bytes if they are malformed. start: offset of a section before the body, or
    of the body."""
    try:
        pos = find_section(raw, start, end, DATA)
        if pos < end and SEQUENCE <= section_code(raw, pos, end) <= VALUE:
            return end - pos
        size = 0
        while pos < end and section_code(raw, pos, end) == DATA:
            at = value_at(raw, pos, end)
            pos = section_end(raw, pos, end, DATA)
            size += pos - at - (2 if raw[at] == 0xA0 else 5)
        return size
    except DecodeError:
        return end - start


def _bytes_of(payload: Payload) -> tuple[bytes, array[int]]:
    raw = payload.raw
    assert raw is not None, payload.position
    return raw, payload.cuts


def _properties(raw: bytes, start: int, end: int) -> list[object]:
    try:
        return properties_of(raw, start, end)
    except DecodeError:
        return [None] * 13


def _application_properties(raw: bytes, start: int, end: int) -> dict[object, object]:
    try:
        return application_properties_of(raw, start, end)
    except DecodeError:
        return {}


def _annotation(front: Front, name: str) -> object:
    """Return an annotation's value; None if it is missing or cannot be decoded."""
    for entry in front.entries:
        if entry[0] == name:
            with suppress(DecodeError):
                return entry_value(entry)
    return None


def _hashable(found: list[object], seen: dict[str, object]) -> None:
    """Add the properties that x-consistent-hash can be set to hash, named as for AMQP 0-9-1."""
    message_id = _id_text(found[0])
    if message_id:
        seen[property_key("message_id")] = message_id
    correlation_id = _id_text(found[5])
    if correlation_id:
        seen[property_key("correlation_id")] = correlation_id
    if type(found[9]) is types.Timestamp:
        seen[property_key("timestamp")] = to_field(found[9])


def _id(raw: bytes, start: int, end: int, front: Front) -> str:
    """Return the deduplication annotation or application property where there is one, else the
    message id."""
    if front.size == UNREADABLE:
        return ""
    value = _annotation(front, DEDUPLICATION)
    start += front.size
    if value is None and raw.find(DEDUPLICATION.encode(), start, end) >= 0:
        value = _application_properties(raw, start, end).get(DEDUPLICATION)
    if isinstance(value, str):
        text = str(value)
        return text if len(text) <= LONGEST_ID else sha256(text.encode()).hexdigest()
    if isinstance(value, float):
        return str(float(value))
    if isinstance(value, int) and not isinstance(value, bool):
        return str(index(value))
    return _id_text(_properties(raw, start, end)[0])


def _numbered(raw: bytes, start: int, end: int, front: Front) -> tuple[str, int]:
    """Return the publisher's name and publishing number of a message, from annotations or
    application properties; ("", 0): it has none."""
    if front.size == UNREADABLE or raw.find(_PUBLISHER_NAME, start, end) < 0:
        return "", 0
    name, number = _annotation(front, PUBLISHER_NAME), _annotation(front, PUBLISHING_ID)
    if name is None or number is None:
        said = _application_properties(raw, start + front.size, end)
        name, number = said.get(PUBLISHER_NAME), said.get(PUBLISHING_ID)
    if isinstance(number, (bool, types.Timestamp)):
        return "", 0
    if isinstance(number, int) and isinstance(name, str):
        return checked_number(str(name), index(number))
    return "", 0


def _id_text(value: object) -> str:
    """Return the text of a message id; "": there is none."""
    if isinstance(value, bytes):
        text = value.decode("utf-8", "surrogateescape")
    else:
        text = names.id_to_text(value) or ""
    if len(text) <= LONGEST_ID:
        return text
    return sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _whole(value: object) -> int:
    """Return an integer; -1 for any other value."""
    if isinstance(value, bool) or not isinstance(value, int):
        return -1
    return int(value)
