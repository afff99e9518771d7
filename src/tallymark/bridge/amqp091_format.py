"""What queues may ask about AMQP 0-9-1 messages, read off the frames as they were published.

    message   | method frame | header frame               | body frames
              start          h              h+19
              | head  | ...  | head  | body size | flags, properties | xCE |

Only what was asked for is decoded: flags are walked for a priority or a message id; a table is
decoded where a search for its key's bytes says that it may be there.
"""

from __future__ import annotations

from array import array
from hashlib import sha256
from typing import Final, final

from tallymark.bridge.amqp091_special import headers_of
from tallymark.engine.formats import Format
from tallymark.engine.message import Payload
from tallymark.wire.amqp091.errors import WireError
from tallymark.wire.amqp091.fields import decode_table

DEDUPLICATION: Final = "x-deduplication-header"
HOP_LIMIT: Final = "x-opt-dead-letter-hop-limit"
MOST_HOPS: Final = 255
LONGEST_ID: Final = 255
"""Letters of an id that is kept as it is; of longer ones a hash is."""
_DEDUPLICATION: Final = bytes((len(DEDUPLICATION),)) + DEDUPLICATION.encode()
_HOP_LIMIT: Final = bytes((len(HOP_LIMIT),)) + HOP_LIMIT.encode()


@final
class Amqp091Format(Format):
    """See the module's text, and the base class for what is promised."""

    __slots__ = ()

    def priorities(self, payload: Payload, lo: int, hi: int) -> bytes:
        raw, cuts = _bytes_of(payload)
        out = bytearray(hi - lo)
        known = b""  # a section up to its priority, as seen last: what begins so has the same one
        priority = 0
        for i in range(lo, hi):
            at = section_at(raw, cuts[i])
            if not known or not raw.startswith(known, at):
                end = _before_correlation_id(raw, at)
                known = raw[at:end]
                priority = raw[end - 1] if raw[at] & 0x08 else 0
            out[i - lo] = priority
        return bytes(out)

    def ids(self, payload: Payload, lo: int, hi: int) -> list[str]:
        raw, cuts = _bytes_of(payload)
        return [_id(raw, section_at(raw, cuts[i])) for i in range(lo, hi)]

    def headers(self, payload: Payload, i: int) -> dict[str, object]:
        raw, cuts = _bytes_of(payload)
        at = section_at(raw, cuts[i])
        try:
            return headers_of(raw[at : at - 12 + _header_size(raw, at)])
        except WireError:  # flags are checked at publish, the inside of a table is not
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


def section_at(raw: bytes, start: int) -> int:
    """Where the property section of the message that begins at `start` is: its flags."""
    return start + 27 + int.from_bytes(raw[start + 3 : start + 7], "big")


def _bytes_of(payload: Payload) -> tuple[bytes, array[int]]:
    raw = payload.raw
    assert raw is not None, payload.position
    return raw, payload.cuts


def _header_size(raw: bytes, at: int) -> int:
    """Of the header frame's payload, by the place of its property section."""
    return int.from_bytes(raw[at - 16 : at - 12], "big")


def table_at(raw: bytes, at: int) -> int:
    """Where the headers of a property section begin (their length), if it has any."""
    high = raw[at]
    at += 2
    if high & 0x80:  # content-type
        at += 1 + raw[at]
    if high & 0x40:  # content-encoding
        at += 1 + raw[at]
    return at


def _before_correlation_id(raw: bytes, at: int) -> int:
    """The end of content-type, content-encoding, headers, delivery-mode and priority."""
    high = raw[at]
    at = table_at(raw, at)
    if high & 0x20:  # headers
        at += 4 + int.from_bytes(raw[at : at + 4], "big")
    if high & 0x10:  # delivery-mode
        at += 1
    if high & 0x08:  # priority
        at += 1
    return at


def expiration_at(raw: bytes, at: int) -> int:
    """Where the expiration of a property section is (its length), if it has one."""
    high = raw[at]
    at = _before_correlation_id(raw, at)
    if high & 0x04:  # correlation-id
        at += 1 + raw[at]
    if high & 0x02:  # reply-to
        at += 1 + raw[at]
    return at


def _message_id(raw: bytes, at: int) -> str:
    if not raw[at + 1] & 0x80:
        return ""
    high = raw[at]
    at = expiration_at(raw, at)
    if high & 0x01:  # expiration
        at += 1 + raw[at]
    return raw[at + 1 : at + 1 + raw[at]].decode("utf-8", "surrogateescape")


def _id(raw: bytes, at: int) -> str:
    """The deduplication header where there is one, else the message id."""
    value = _header(raw, at, DEDUPLICATION, _DEDUPLICATION)
    if isinstance(value, str):
        if len(value) <= LONGEST_ID:
            return value
        return sha256(value.encode("utf-8", "surrogateescape")).hexdigest()
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    return _message_id(raw, at)


def _header(raw: bytes, at: int, name: str, key: bytes) -> object:
    """A header's value, None where it is not there; `key` is its name as a table has it."""
    if not raw[at] & 0x20:
        return None
    table = table_at(raw, at)
    end = table + 4 + int.from_bytes(raw[table : table + 4], "big")
    if raw.find(key, table + 4, end) < 0:
        return None
    try:
        return decode_table(raw[table:end]).get(name)
    except WireError:  # its inside is nobody's business at publish
        return None
