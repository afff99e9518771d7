"""Decoding of AMQP 0-9-1 messages for queues: the answers to the engine's Format, read from the
frames as published.

    message   | method frame | header frame               | body frames
              start          h              h+19
              | head  | ...  | head  | body size | flags, properties | xCE |

Only requested fields are decoded. Flags are walked for a priority or a message id; a table is
decoded only if a search finds the bytes of the requested key.
"""

from __future__ import annotations

from array import array
from hashlib import sha256
from typing import Final, final

from librt.strings import BytesWriter
from mypy_extensions import i64

from tallymark.bridge.amqp091.special import headers_of
from tallymark.bridge.names import (
    DEDUPLICATION,
    HOP_LIMIT,
    LONGEST_ID,
    MOST_HOPS,
    PUBLISHER_NAME,
    PUBLISHING_ID,
    checked_number,
)
from tallymark.engine.message import Format, Payload
from tallymark.wire.amqp091.errors import WireError
from tallymark.wire.amqp091.fields import Reader, Timestamp, decode_table
from tallymark.wire.amqp091.frames import OVERHEAD, section_at
from tallymark.wire.amqp091.properties import (
    after_table,
    before_correlation_id,
    expiration_at,
    table_at,
)
from tallymark.wire.octets import begins, packed, place, u32

_DEDUPLICATION: Final = bytes((len(DEDUPLICATION),)) + DEDUPLICATION.encode()
SIGNED: Final = b"bsIlL"
"""Field type tags of integers that may be negative."""
_PUBLISHER_NAME: Final = bytes((len(PUBLISHER_NAME),)) + PUBLISHER_NAME.encode()
_PUBLISHING_ID: Final = bytes((len(PUBLISHING_ID),)) + PUBLISHING_ID.encode()
_HOP_LIMIT: Final = bytes((len(HOP_LIMIT),)) + HOP_LIMIT.encode()


@final
class Amqp091Format(Format):
    """The Format of AMQP 0-9-1 (see the module's docstring); the base class describes the
    methods."""

    __slots__ = ()

    def priorities(self, payload: Payload, lo: int, hi: int) -> bytes:
        raw, cuts = _bytes_of(payload)
        places = packed(cuts, lo, hi)
        out = BytesWriter()
        known = b""  # start of the last section, up to its priority: equal bytes, equal priority
        found: i64 = 0
        count: i64 = hi - lo
        for i in range(count):
            start: i64 = place(places, i)
            at: i64 = start + OVERHEAD + u32(raw, start + 3) + 19
            high: i64 = raw[at]
            if not high & 0x08:
                out.append(0)
            elif not high & 0xE0:  # only delivery-mode may stand before it
                out.append(raw[at + 3 if high & 0x10 else at + 2])
            else:
                if not known or not begins(raw, at, known):
                    end: i64 = before_correlation_id(raw, at)
                    known = raw[at:end]
                    found = raw[end - 1]
                out.append(found)
        return out.getvalue()

    def ids(self, payload: Payload, lo: int, hi: int) -> list[str]:
        raw, cuts = _bytes_of(payload)
        return [_id(raw, section_at(raw, cuts[i])) for i in range(lo, hi)]

    def numbered(self, payload: Payload, lo: int, hi: int) -> list[tuple[str, int]]:
        raw, cuts = _bytes_of(payload)
        found: list[tuple[str, int]] = []
        plain = b""  # a section up to its headers, as seen last, in which nothing is numbered
        front = b""  # the same up to the number in it
        known = NOT_NUMBERED
        for i in range(lo, hi):
            at = section_at(raw, cuts[i])
            if plain and raw.startswith(plain, at):
                found.append(("", 0))
            elif front and raw.startswith(front, at):
                found.append(known.of_another(raw, at + len(front)))
            else:
                end = after_table(raw, at)
                said = Numbered(raw, at, end)
                if said.name:
                    known = said
                    front = said.front
                else:
                    plain = raw[at:end]
                found.append((said.name, said.number))
        return found if known.name else []

    def headers(self, payload: Payload, i: int) -> dict[str, object]:
        raw, cuts = _bytes_of(payload)
        at = section_at(raw, cuts[i])
        try:
            return headers_of(raw[at : at - 12 + _header_size(raw, at)])
        except WireError:  # flags are checked at publish, the content of a table is not
            return {}

    def hop_limit(self, payload: Payload, i: int) -> int:
        raw, cuts = _bytes_of(payload)
        value = _header(raw, section_at(raw, cuts[i]), HOP_LIMIT, _HOP_LIMIT)
        if isinstance(value, bool) or not isinstance(value, int):
            return -1
        hops: int = value
        return hops if 0 <= hops <= MOST_HOPS else -1

    def bodies(self, payload: Payload) -> array[int]:
        raw, cuts = _bytes_of(payload)
        totals = array("Q", (0,))
        total = 0
        for i in range(payload.count):
            at = section_at(raw, cuts[i])  # the body's size stands right before it
            total += int.from_bytes(raw[at - 8 : at], "big")
            totals.append(total)
        return totals


@final
class Numbered:
    """Publisher name and number of a message, from two headers of the table's top level."""

    __slots__ = ("front", "is_signed", "name", "number", "size")

    def __init__(self, raw: bytes, at: int, end: int) -> None:
        """raw[at:end]: the property section up to the end of its headers."""
        self.name = ""
        self.number = 0
        self.front = b""
        """Section up to the number; empty where the name follows the number."""
        self.size = 0
        """Size of the number in bytes."""
        self.is_signed = False
        if raw.find(_PUBLISHER_NAME, at, end) >= 0 and raw.find(_PUBLISHING_ID, at, end) >= 0:
            self._read(raw, at, end)

    def _read(self, raw: bytes, at: int, end: int) -> None:
        reader = Reader(raw, table_at(raw, at) + 4, end)
        name: object = None
        number: object = None
        front_end = 0
        try:
            while reader.pos < end:
                key = reader.lenient_short_string()
                value_at = reader.pos
                value = reader.value(0)
                if key == PUBLISHER_NAME:
                    name = value
                    front_end = 0
                elif key == PUBLISHING_ID:
                    number = value
                    front_end = value_at + 1 if name is not None else 0
                    self.size = reader.pos - value_at - 1
                    self.is_signed = raw[value_at] in SIGNED
        except WireError:  # the content of the table is not checked at publish
            return
        if isinstance(number, (bool, Timestamp)):
            return
        if isinstance(number, int) and isinstance(name, str):
            self.name, self.number = checked_number(name, number)
            if front_end and self.name:
                self.front = raw[at:front_end]

    def of_another(self, raw: bytes, at: int) -> tuple[str, int]:
        """Return name and number of another message with the same front, whose number is at
        `at`."""
        value = raw[at : at + self.size]
        return checked_number(self.name, int.from_bytes(value, "big", signed=self.is_signed))


NOT_NUMBERED: Final = Numbered(b"\0\0", 0, 2)


def _bytes_of(payload: Payload) -> tuple[bytes, array[int]]:
    raw = payload.raw
    assert raw is not None, payload.position
    return raw, payload.cuts


def _header_size(raw: bytes, at: int) -> int:
    """Return the size of a header frame's payload. at: offset of its property section."""
    return int.from_bytes(raw[at - 16 : at - 12], "big")


def _message_id(raw: bytes, at: int) -> str:
    if not raw[at + 1] & 0x80:
        return ""
    high = raw[at]
    at = expiration_at(raw, at)
    if high & 0x01:  # expiration
        at += 1 + raw[at]
    return raw[at + 1 : at + 1 + raw[at]].decode("utf-8", "surrogateescape")


def _id(raw: bytes, at: int) -> str:
    """Return the deduplication header where there is one, else the message id."""
    value = _header(raw, at, DEDUPLICATION, _DEDUPLICATION)
    if isinstance(value, str):
        if len(value) <= LONGEST_ID:
            return value
        return sha256(value.encode("utf-8", "surrogateescape")).hexdigest()
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    return _message_id(raw, at)


def _header(raw: bytes, at: int, name: str, key: bytes) -> object:
    """Return a header's value, None if it is not there; `key` is its name as a table has it."""
    if not raw[at] & 0x20:
        return None
    table = table_at(raw, at)
    end = table + 4 + int.from_bytes(raw[table : table + 4], "big")
    if raw.find(key, table + 4, end) < 0:
        return None
    try:
        return decode_table(raw[table:end]).get(name)
    except WireError:  # the content of the table is not checked at publish
        return None
