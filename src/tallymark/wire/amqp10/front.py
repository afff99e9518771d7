"""The front of AMQP 1.0 messages: the sections before the bare message.

    front                                                bare message
    header | delivery annotations | message annotations | properties | ... | body | footer
             (dropped at publish)

The *front* is the part that a broker may change [amqp-1.0 §3.2]. It contains its own length. So
messages that begin with the same bytes, up to and including the descriptor of the first section
behind it, have the same front: it is decoded once, and each further message costs one comparison.
"""

from __future__ import annotations

from array import array
from typing import Final, cast, final

from mypy_extensions import i64

from tallymark.wire.amqp10 import types
from tallymark.wire.amqp10.codec import decode, encode, skip
from tallymark.wire.amqp10.encoded import (
    NO_SECTION,
    begin,
    find_section,
    opening,
    section_code,
    section_end,
    value_at,
)
from tallymark.wire.amqp10.errors import DecodeError
from tallymark.wire.amqp10.sections import (
    DELIVERY_ANNOTATIONS,
    HEADER,
    MESSAGE_ANNOTATIONS,
)
from tallymark.wire.amqp10.writer import encode_value
from tallymark.wire.octets import begins, packed, place, u32

UNREADABLE: Final = -1
"""Front.size of messages that cannot be read because they are malformed."""
LONGEST_TTL_MS: Final = (1 << 32) - 1
"""Largest value of a header's ttl, ms."""
IN_A_SECTION: Final = 2
"""Nesting depth of an annotation's value: it is in a map that is described."""

CC: Final = "x-cc"
DELIVERY_TIME: Final = "x-opt-delivery-time"
DELIVERY_DELAY: Final = "x-opt-delivery-delay"

Entry = tuple[str, bytes, int]
"""Entry of an annotations map: the key ("" where it is a number), key and value as encoded, and the
offset of the value in these bytes."""


@final
class Front:
    """The header and annotations that a publisher gave messages."""

    __slots__ = (
        "cc",
        "delay_ms",
        "due_ms",
        "durable",
        "entries",
        "has_delivery_annotations",
        "key",
        "priority",
        "size",
        "ttl_ms",
    )

    def __init__(self, priority: int, ttl_ms: int, entries: list[Entry]) -> None:
        self.priority = priority
        """Priority; -1: not given."""
        self.ttl_ms = ttl_ms
        """Time to live, ms; -1: not given."""
        self.entries = entries
        """Entries of the message annotations."""
        self.durable = True
        """Durability; also True where the header does not give it [rabbitmq]."""
        self.has_delivery_annotations = False
        self.size = 0
        """Size in bytes; also 0 for a front made for a message of another protocol."""
        self.key = b""
        """Leading bytes of messages with this front: the front, and the descriptor of the next
        section. Empty if no other message can be recognized by them."""
        self.cc: tuple[str, ...] = ()
        """Further routing keys, from x-cc."""
        self.due_ms = 0
        """Time before which the messages are not ready, wall time, ms, from x-opt-delivery-time; 0:
        not given."""
        self.delay_ms = 0
        """Delay before the messages are ready, ms, from x-opt-delivery-delay; 0: not given."""

    def begins(self, raw: bytes, at: int, end: int) -> bool:
        """Return whether the message raw[at:end] has this front."""
        key = self.key
        return len(key) > 0 and end - at >= len(key) and raw.startswith(key, at)

    def says_as(self, other: Front) -> bool:
        """Return whether the other front has the same content."""
        return (
            self.priority == other.priority
            and self.ttl_ms == other.ttl_ms
            and self.entries == other.entries
        )


def fronts(
    raw: bytes, cuts: array[int], lo: int, hi: int, last: Front | None = None
) -> list[tuple[int, int, Front]]:
    """Split messages lo..hi-1 into stretches with equal fronts: first, end, front.

    `last`: one that they may have, not to be read again. Raises DecodeError.
    """
    found: list[tuple[int, int, Front]] = []
    front = last
    places = packed(cuts, lo, hi)
    i: i64 = lo
    while i < hi:
        if front is None or not front.begins(raw, cuts[i], cuts[i + 1]):
            front = read_front(raw, cuts[i], cuts[i + 1])
        start = i
        i += 1
        key = front.key
        size = len(key)
        if size:
            while i < hi and place(places, i + 1 - lo) - place(places, i - lo) >= size:
                if not begins(raw, place(places, i - lo), key):
                    break
                i += 1
        found.append((start, i, front))
    return found


def lenient_fronts(
    raw: bytes, cuts: array[int], lo: int, hi: int, last: Front | None
) -> list[tuple[int, int, Front]]:
    """Split messages into stretches with equal fronts, as fronts does. A front that cannot be read
    has the size UNREADABLE and no content."""
    try:
        return fronts(raw, cuts, lo, hi, last)
    except DecodeError:
        pass
    found: list[tuple[int, int, Front]] = []
    for i in range(lo, hi):
        try:
            front = read_front(raw, cuts[i], cuts[i + 1])
        except DecodeError:
            front = Front(-1, -1, [])
            front.size = UNREADABLE
        found.append((i, i + 1, front))
    return found


def read_front(raw: bytes, start: int, end: int) -> Front:
    """Decode the front of the message raw[start:end]. Raises DecodeError."""
    front = Front(-1, -1, [])
    pos = begin(raw, start, end)
    lowest = HEADER
    code = section_code(raw, pos, end)
    while lowest <= code <= MESSAGE_ANNOTATIONS:
        after = section_end(raw, pos, end, code)
        if code == HEADER:
            _read_header(front, raw, value_at(raw, pos, end), end)
        elif code == DELIVERY_ANNOTATIONS:
            front.has_delivery_annotations = True
        else:
            front.entries = entries_of(raw, value_at(raw, pos, end), after)
            _read_annotations(front)
        pos = after
        lowest = code + 1
        code = section_code(raw, pos, end)
    if code == NO_SECTION and pos < end:
        shown = raw[pos : min(pos + 4, end)].hex()
        raise DecodeError(f"no section of a message begins with {shown}")
    front.size = pos - start
    if code > MESSAGE_ANNOTATIONS:
        front.key = opening(raw, start, pos, end)
    return front


def _read_header(front: Front, raw: bytes, at: int, end: int) -> None:
    value, _ = decode(raw, at, end)
    values = cast(list[object], value)
    for i, field in enumerate(values):
        kind = type(field)
        if field is None:
            continue
        if i == 0 and kind is bool:
            front.durable = field is True
        elif i == 1 and kind is types.UByte:
            front.priority = int(cast(int, field))
        elif i == 2 and kind is types.UInt:
            front.ttl_ms = int(cast(int, field))
        elif i < 3:
            raise DecodeError(f"field {i} of a header is {field!r}")


def entries_of(raw: bytes, at: int, end: int) -> list[Entry]:
    """Return the entries of the annotations map whose format code is at `at`. Raises
    DecodeError."""
    if raw[at] == 0xC1:
        count = raw[at + 2] if at + 2 < end else -1
        pos = at + 3
    else:
        count = u32(raw, at + 5) if at + 9 <= end else -1
        pos = at + 9
    if count < 0 or count & 1:
        raise DecodeError(f"annotations of {count} keys and values, expected an even number")
    found: list[Entry] = []
    while pos < end:
        start = pos
        value = skip(raw, pos, end)
        pos = skip(raw, value, end)
        found.append((_entry_name(raw, start, value), raw[start:pos], value - start))
    if 2 * len(found) != count:
        raise DecodeError(f"annotations of {count} keys and values, found {2 * len(found)}")
    return found


def _entry_name(raw: bytes, pos: int, end: int) -> str:
    """Return the name in a symbol, or in a string, which some clients write; "" for anything
    else."""
    if raw[pos] not in b"\xa1\xa3\xb1\xb3":
        return ""
    key, _ = decode(raw, pos, end)
    return str(cast(str, key))


def entry_value(entry: Entry) -> object:
    """Decode the value of an entry. Raises DecodeError."""
    value, _ = decode(entry[1], entry[2], len(entry[1]))
    return value


def _read_annotations(front: Front) -> None:
    for entry in front.entries:
        name = entry[0]
        if name == CC:
            value = entry_value(entry)
            if isinstance(value, list):
                front.cc = tuple([str(key) for key in value if isinstance(key, str)])
        elif name == DELIVERY_TIME:
            front.due_ms = _milliseconds(entry_value(entry))
        elif name == DELIVERY_DELAY:
            front.delay_ms = _milliseconds(entry_value(entry))


def _milliseconds(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        return 0
    return max(int(value), 0)


def without_delivery_annotations(
    raw: bytes, cuts: array[int], lo: int, hi: int, front: Front
) -> tuple[bytes, array[int]]:
    """Return messages lo..hi-1, which have this front, in the form in which they are stored. If
    nothing has to be removed from them, and they are all messages, the same objects are returned.
    Raises DecodeError."""
    base = cuts[lo]
    if not front.has_delivery_annotations:
        if lo == 0 and hi == len(cuts) - 1 and cuts[hi] == len(raw):
            return raw, cuts
        return raw[base : cuts[hi]], array("I", [cut - base for cut in cuts[lo : hi + 1]])
    at = find_section(raw, begin(raw, base, cuts[lo + 1]), cuts[lo + 1], DELIVERY_ANNOTATIONS)
    after = section_end(raw, at, cuts[lo + 1], DELIVERY_ANNOTATIONS)
    start = raw[base:at]
    parts: list[bytes] = []
    ends = [0]
    total = 0
    for i in range(lo, hi):
        rest = raw[cuts[i] + after - base : cuts[i + 1]]
        parts += (start, rest)
        total += len(start) + len(rest)
        ends.append(total)
    return b"".join(parts), array("I", ends)


def entry_key(name: str) -> bytes:
    """Return the key of an annotation, a symbol, as encoded."""
    return encode(types.Symbol(name))


def entry(name: str, value: object) -> Entry:
    """Return an annotation. Raises ValueError if it cannot be encoded."""
    key = entry_key(name)
    return name, key + encode_value(value, IN_A_SECTION), len(key)
