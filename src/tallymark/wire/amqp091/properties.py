"""Basic properties: the fourteen fields of a content header [amqp-0.9.1 §4.2.6.1, basic].

A *property section* is what stands in a header frame behind the body size: two bytes of flags,
highest bit first for content-type, then the properties that are there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from tallymark.wire.amqp091.errors import SYNTAX_ERROR, WireError
from tallymark.wire.amqp091.fields import (
    Reader,
    write_short_string,
    write_table,
)
from tallymark.wire.amqp091.kernel import MALFORMED, PERSISTENT, SPECIAL, classify_section

__all__ = [
    "MALFORMED",
    "PERSISTENT",
    "SPECIAL",
    "Properties",
    "classify",
    "decode_properties",
    "encode_properties",
]

CONTENT_TYPE: Final = 1 << 15
CONTENT_ENCODING: Final = 1 << 14
HEADERS: Final = 1 << 13
DELIVERY_MODE: Final = 1 << 12
PRIORITY: Final = 1 << 11
CORRELATION_ID: Final = 1 << 10
REPLY_TO: Final = 1 << 9
EXPIRATION: Final = 1 << 8
MESSAGE_ID: Final = 1 << 7
TIMESTAMP: Final = 1 << 6
TYPE: Final = 1 << 5
USER_ID: Final = 1 << 4
APP_ID: Final = 1 << 3
CLUSTER_ID: Final = 1 << 2


@final
@dataclass
class Properties:
    """Basic properties; None: not present. Strings that are not UTF-8 contain surrogate escapes."""

    content_type: str | None = None
    content_encoding: str | None = None
    headers: dict[str, object] | None = None
    delivery_mode: int | None = None
    priority: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    expiration: str | None = None
    message_id: str | None = None
    timestamp: int | None = None
    """Seconds since 1970."""
    type: str | None = None
    user_id: str | None = None
    app_id: str | None = None
    cluster_id: str | None = None


def classify(section: bytes) -> int:
    """Classify a property section without decoding it: PERSISTENT | SPECIAL, or MALFORMED.
    O(properties); in the headers only the keys CC, BCC and x-delay are searched."""
    return classify_section(section, 0, len(section))


def decode_properties(section: bytes) -> Properties:
    """Decode a property section. Raises WireError 502 if it is malformed."""
    reader = Reader(section, 0, len(section))
    flags = reader.unsigned(2)
    if flags & 3:
        raise WireError(SYNTAX_ERROR, f"unknown property flags {flags & 3:#x}")
    properties = Properties()
    if flags & CONTENT_TYPE:
        properties.content_type = reader.lenient_short_string()
    if flags & CONTENT_ENCODING:
        properties.content_encoding = reader.lenient_short_string()
    if flags & HEADERS:
        properties.headers = reader.table()
    if flags & DELIVERY_MODE:
        properties.delivery_mode = reader.unsigned(1)
    if flags & PRIORITY:
        properties.priority = reader.unsigned(1)
    if flags & CORRELATION_ID:
        properties.correlation_id = reader.lenient_short_string()
    if flags & REPLY_TO:
        properties.reply_to = reader.lenient_short_string()
    if flags & EXPIRATION:
        properties.expiration = reader.lenient_short_string()
    if flags & MESSAGE_ID:
        properties.message_id = reader.lenient_short_string()
    if flags & TIMESTAMP:
        properties.timestamp = reader.unsigned(8)
    if flags & TYPE:
        properties.type = reader.lenient_short_string()
    if flags & USER_ID:
        properties.user_id = reader.lenient_short_string()
    if flags & APP_ID:
        properties.app_id = reader.lenient_short_string()
    if flags & CLUSTER_ID:
        properties.cluster_id = reader.lenient_short_string()
    if reader.pos != reader.end:
        raise WireError(SYNTAX_ERROR, f"{reader.end - reader.pos} bytes after the last property")
    return properties


def decode_readable(section: bytes) -> tuple[Properties, str]:
    """Decode a property section whose headers may be no table: what is nested in them is not
    checked at publish. Return the properties, without such headers, and what is wrong with these;
    "": nothing. Raises WireError 502 if the section itself is malformed."""
    try:
        return decode_properties(section), ""
    except WireError as error:
        if not section[0] & HEADERS >> 8:
            raise
        at = table_at(section, 0)
        after = at + 4 + int.from_bytes(section[at : at + 4], "big")
        rest = bytes((section[0] & ~(HEADERS >> 8) & 0xFF,)) + section[1:at] + section[after:]
        return decode_properties(rest), error.text


def encode_properties(properties: Properties) -> bytes:
    """Encode a property section. Raises ValueError or TypeError for a value that cannot be
    encoded."""
    out = bytearray(2)
    flags = _string(out, properties.content_type, CONTENT_TYPE)
    flags |= _string(out, properties.content_encoding, CONTENT_ENCODING)
    if properties.headers is not None:
        flags |= HEADERS
        write_table(out, properties.headers)
    flags |= _integer(out, properties.delivery_mode, 1, DELIVERY_MODE)
    flags |= _integer(out, properties.priority, 1, PRIORITY)
    flags |= _string(out, properties.correlation_id, CORRELATION_ID)
    flags |= _string(out, properties.reply_to, REPLY_TO)
    flags |= _string(out, properties.expiration, EXPIRATION)
    flags |= _string(out, properties.message_id, MESSAGE_ID)
    flags |= _integer(out, properties.timestamp, 8, TIMESTAMP)
    flags |= _string(out, properties.type, TYPE)
    flags |= _string(out, properties.user_id, USER_ID)
    flags |= _string(out, properties.app_id, APP_ID)
    flags |= _string(out, properties.cluster_id, CLUSTER_ID)
    out[0] = flags >> 8
    out[1] = flags & 255
    return bytes(out)


def _string(out: bytearray, text: str | None, flag: int) -> int:
    if text is None:
        return 0
    write_short_string(out, text)
    return flag


def _integer(out: bytearray, value: int | None, size: int, flag: int) -> int:
    if value is None:
        return 0
    if not 0 <= value < 1 << 8 * size:
        raise ValueError(f"property {value} does not fit {8 * size} unsigned bits")
    out += value.to_bytes(size, "big")
    return flag


def after_table(raw: bytes, at: int) -> int:
    """Return the end of a property section's headers; if it has none, the offset where they would
    be."""
    end = table_at(raw, at)
    return end + 4 + int.from_bytes(raw[end : end + 4], "big") if raw[at] & 0x20 else end


def table_at(raw: bytes, at: int) -> int:
    """Return the offset of a property section's headers (their length field), if it has any."""
    high = raw[at]
    at += 2
    if high & 0x80:  # content-type
        at += 1 + raw[at]
    if high & 0x40:  # content-encoding
        at += 1 + raw[at]
    return at


def before_correlation_id(raw: bytes, at: int) -> int:
    """Return the end of content-type, content-encoding, headers, delivery-mode and priority."""
    high = raw[at]
    at = table_at(raw, at)
    if high & 0x20:  # headers
        at += 4 + int.from_bytes(raw[at : at + 4], "big")
    if high & 0x10:  # delivery-mode
        at += 1
    if high & 0x08:  # priority
        at += 1
    return at


def is_special_by_reply_to_alone(section: bytes) -> bool:
    """Return whether a section has a reply-to, and neither headers nor expiration nor user-id."""
    return section[0] & 0x23 == 0x02 and not section[1] & USER_ID


def reply_to_at(raw: bytes, at: int) -> int:
    """Return the offset of the reply-to of a property section (its length byte), if it has one."""
    high = raw[at]
    at = before_correlation_id(raw, at)
    if high & 0x04:  # correlation-id
        at += 1 + raw[at]
    return at


def expiration_at(raw: bytes, at: int) -> int:
    """Return the offset of the expiration of a property section (its length byte), if it has
    one."""
    high = raw[at]
    at = reply_to_at(raw, at)
    if high & 0x02:  # reply-to
        at += 1 + raw[at]
    return at
