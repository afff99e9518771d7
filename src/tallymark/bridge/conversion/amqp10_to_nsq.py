"""AMQP 1.0 messages as NSQ clients see them: a body.

Data sections are joined; of a value that is text or binary it is the value; anything else is handed
over as its sections are encoded, footer and all.
"""

from __future__ import annotations

from array import array

from tallymark.wire.amqp10.codec import decode
from tallymark.wire.amqp10.encoded import (
    NO_SECTION,
    begin,
    data_bytes,
    find_section,
    section_code,
    section_end,
    value_at,
)
from tallymark.wire.amqp10.errors import DecodeError
from tallymark.wire.amqp10.sections import DATA, FOOTER, VALUE


def bodies(raw: bytes, cuts: array[int], lo: int, hi: int) -> list[bytes]:
    """Return the bodies of messages lo..hi-1; all bytes of a malformed one."""
    found: list[bytes] = []
    for i in range(lo, hi):
        try:
            found.append(body_of(raw, cuts[i], cuts[i + 1]))
        except DecodeError:
            found.append(raw[cuts[i] : cuts[i + 1]])
    return found


def body_of(raw: bytes, start: int, end: int) -> bytes:
    """Return the body of a message. Raises DecodeError."""
    at = find_section(raw, begin(raw, start, end), end, DATA)
    code = section_code(raw, at, end)
    if code in (DATA, FOOTER, NO_SECTION):
        return data_bytes(raw, at, end)
    if code == VALUE:
        section_end(raw, at, end, VALUE)
        value, _ = decode(raw, value_at(raw, at, end), end)
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, bytes):
            return value
    return raw[at:end]
