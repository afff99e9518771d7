"""Reading the fields of one message for filters, in the form its AMQP 1.0 reader sees, whatever its
protocol.

Only the fields that are asked for are decoded; what stands between them is skipped. Messages of
AMQP 0-9-1 are looked at as they are converted for readers; those of NSQ have no properties. Where a
filter asks for annotations or the ttl, header and annotations are those that a reader would get:
the broker and consumers had their say.
"""

from __future__ import annotations

from typing import Final, final

from tallymark.bridge.conversion.annotated import Shown
from tallymark.bridge.conversion.cells import route_of
from tallymark.bridge.filters.fields import HEADER_FIELDS, PROPERTY_FIELDS, Fields
from tallymark.bridge.filters.foreign import Foreign
from tallymark.bridge.filters.values import plain
from tallymark.engine.message import Payload
from tallymark.stored.annotations import Annotations
from tallymark.stored.formats import AMQP091, AMQP10
from tallymark.wire.amqp091.frames import property_section
from tallymark.wire.amqp10.codec import skip
from tallymark.wire.amqp10.encoded import begin, section_code, section_end, value_at
from tallymark.wire.amqp10.front import Front, read_front
from tallymark.wire.amqp10.reader import Reader as ValueReader
from tallymark.wire.amqp10.sections import (
    APPLICATION_PROPERTIES,
    DATA,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
)

DEFAULT_PRIORITY: Final = 4
"""Priority of a message without one [amqp-1.0 §3.2.1]."""
NOT_ASKED: Final = -1
"""Placeholder in the place of a slot for a field that no filter uses."""
EMPTY_LIST: Final = 0x45
STRINGS: Final = b"\xa1\xb1\xa3\xb3"
"""Format codes of strings and symbols, short and long."""
NO_FRONT: Final = Front(-1, -1, [])
"""Front of messages without header and annotations."""


@final
class Reader:
    """Reads one set of fields. Messages are in memory. Raises DecodeError for a malformed one."""

    __slots__ = (
        "_annotations",
        "_application",
        "_durable",
        "_foreign",
        "_header",
        "_priority",
        "_properties",
        "_sections",
        "reads_front",
    )

    def __init__(self, fields: Fields) -> None:
        self._header = _by_place(HEADER_FIELDS, fields.header)
        self._properties = _by_place(PROPERTY_FIELDS, fields.properties)
        self._application = fields.application
        self._annotations = fields.annotations
        self._durable = fields.header.get("durable", NOT_ASKED)
        self._priority = fields.header.get("priority", NOT_ASKED)
        self._sections = {
            code
            for code, asked in (
                (HEADER, bool(self._header)),
                (MESSAGE_ANNOTATIONS, bool(fields.annotations)),
                (PROPERTIES, bool(fields.properties)),
                (APPLICATION_PROPERTIES, bool(fields.application)),
            )
            if asked
        }
        """Codes of the sections with fields in use."""
        self.reads_front = bool(fields.annotations) or "ttl" in fields.header
        """True if values depend on more than the publisher's bytes."""
        self._foreign = Foreign()

    def deciding(self, payload: Payload, i: int) -> bytes:
        """Return bytes of message i that determine all values: where they and `payload.persistent`
        are equal, so are the values (unless reads_front)."""
        if payload.format == AMQP10:
            raw = payload.raw
            assert raw is not None, payload.position
            end = payload.cuts[i + 1]
            bounds = self._bounds(raw, begin(raw, payload.cuts[i], end), end)
            if len(bounds) == 1:
                return raw[bounds[0][1] : bounds[0][2]]
            return b"".join([raw[start:stop] for _, start, stop in bounds])
        return _section(payload, i) if payload.format == AMQP091 else b""

    def read(
        self, payload: Payload, i: int, known: Annotations | None, values: list[object]
    ) -> None:
        """Store the values of message i in their slots; None remains where there is none."""
        said: Front = NO_FRONT
        if payload.format == AMQP10:
            raw = payload.raw
            assert raw is not None, payload.position
            start, end = payload.cuts[i], payload.cuts[i + 1]
            if self.reads_front:
                said = read_front(raw, start, end)
                start += said.size
            else:
                start = begin(raw, start, end)
            self._read_sections(raw, start, end, values)
        elif payload.format == AMQP091:
            said, bare = self._foreign.converted(_section(payload, i))
            self._read_sections(bare, 0, len(bare), values)
            if self._priority != NOT_ASKED and said.priority >= 0:
                values[self._priority] = said.priority
        if self.reads_front:
            front = _shown(payload, i, known).front(said, 0)
            self._read_sections(front, 0, len(front), values)
        if self._durable != NOT_ASKED:
            values[self._durable] = payload.persistent
        if self._priority != NOT_ASKED and values[self._priority] is None:
            values[self._priority] = DEFAULT_PRIORITY

    def _read_sections(self, raw: bytes, at: int, end: int, values: list[object]) -> None:
        for code, start, stop in self._bounds(raw, at, end):
            value = value_at(raw, start, stop)
            if code == HEADER:
                _read_list(raw, value, stop, self._header, values)
            elif code == PROPERTIES:
                _read_list(raw, value, stop, self._properties, values)
            elif code == APPLICATION_PROPERTIES:
                _read_map(raw, value, stop, self._application, values)
            else:
                _read_map(raw, value, stop, self._annotations, values)

    def _bounds(self, raw: bytes, at: int, end: int) -> list[tuple[int, int, int]]:
        """Return code, begin and end of each section with fields in use."""
        found: list[tuple[int, int, int]] = []
        left = len(self._sections)
        while left and at < end:
            code = section_code(raw, at, end)
            if not HEADER <= code < DATA:
                break
            after = section_end(raw, at, end, code)
            if code in self._sections:
                found.append((code, at, after))
                left -= 1
            at = after
        return found


def _shown(payload: Payload, i: int, known: Annotations | None) -> Shown:
    """Return the header and annotations that readers of message i get, without delivery counts."""
    route = route_of(payload, i)
    if known is not None and known.route is not None:
        route = known.route
    return Shown(route, payload.persistent, known, 0, 0, True)


def _section(payload: Payload, i: int) -> bytes:
    """Return the property section of message i, which was published by AMQP 0-9-1."""
    assert payload.raw is not None, payload.position
    return property_section(payload.raw, payload.cuts[i])


def _by_place(names: tuple[str, ...], slots: dict[str, int]) -> list[int]:
    """Return the slot of each field of a list section, up to the last field in use."""
    places = [slots.get(name, NOT_ASKED) for name in names]
    while places and places[-1] == NOT_ASKED:
        places.pop()
    return places


def _read_list(raw: bytes, at: int, end: int, places: list[int], values: list[object]) -> None:
    reader = ValueReader(raw, at, end)
    code = reader.octet()
    if code == EMPTY_LIST:
        return
    reader.enter(code)
    count = min(reader.size_of(code), len(places))
    for slot in places[:count]:
        if slot == NOT_ASKED:
            reader.pos = skip(raw, reader.pos, reader.end)
        else:
            values[slot] = plain(reader.value())


def _read_map(raw: bytes, at: int, end: int, slots: dict[bytes, int], values: list[object]) -> None:
    reader = ValueReader(raw, at, end)
    code = reader.octet()
    reader.enter(code)
    pairs = reader.size_of(code) >> 1
    for _ in range(pairs):
        key_at = reader.pos
        value = skip(raw, key_at, reader.end)
        key = raw[key_at]
        slot = NOT_ASKED
        if key in STRINGS:
            slot = slots.get(raw[key_at + (5 if key & 0x10 else 2) : value], NOT_ASKED)
        if slot == NOT_ASKED:
            reader.pos = skip(raw, value, reader.end)
        else:
            reader.pos = value
            values[slot] = plain(reader.value())
