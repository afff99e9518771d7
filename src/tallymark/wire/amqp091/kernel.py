"""Fast paths for what clients send: stretches of publishes and of acknowledgements. Pure functions,
and the stretch of publishes that one finds.

The only place where a tuned twin may stand in for the plain functions; nothing here judges the
peer. What a scan does not recognise it leaves to the connection, which reads frame by frame.

    publish   | method frame | header frame              | body frame          |
              0              h             h+19       b-1 b       b+7      after-1
                             | head  | body size | props  | head    | body     xCE
"""

from __future__ import annotations

from array import array
from struct import Struct
from typing import Final, final

from librt.strings import BytesWriter, read_i64_be
from mypy_extensions import i64

from tallymark.wire.in_c import NATIVE
from tallymark.wire.octets import (
    IS_INTERPRETED,
    alike,
    begins,
    put_place,
    u32,
    unpacked,
)

PERSISTENT: Final = 1
"""Fact about messages: delivery-mode is 2."""
SPECIAL: Final = 2
"""Fact about messages: a property needs the broker's attention; see PublishReceived."""
MALFORMED: Final = 4
"""Result for bytes that are no property section."""

NOWHERE: Final = -1
"""Offset of what was not found yet."""

KNOWN_MAX: Final = 4096
"""Number of valid publish method frames cached per connection."""
PRELUDE_MAX: Final = 1024
"""Bytes of a prelude that is worth remembering."""

_PUBLISH: Final = b"\0\x3c\0\x28"
"""Class and method of basic.publish."""
_header_head: Final = Struct(">BHIHHQ").unpack_from  # type, channel, size, class, weight, body size
_frame_head: Final = Struct(">BHI").unpack_from  # type, channel, size
_pack_head: Final = Struct(">BHI").pack


@final
class PublishReceived:
    """A stretch of complete publishes on one channel.

    Either *plain*: all have the same persistence, and none has anything a broker has to look at
    (expiration, user-id, reply-to `amq.rabbitmq.reply-to...`, headers CC, BCC, x-delay); whatever
    else is in their properties may vary. Or *special*: then all property sections are equal.
    """

    __slots__ = (
        "channel",
        "cuts",
        "facts",
        "largest_frame",
        "methods",
        "properties",
        "raw",
        "starts",
        "uniform",
    )

    def __init__(
        self,
        channel: int,
        raw: bytes,
        cuts: array[int],
        starts: list[int],
        methods: list[bytes],
        facts: int,
        properties: bytes,
        uniform: bool,
        largest_frame: int,
    ) -> None:
        self.channel = channel
        self.raw = raw
        """Method, header and body frames of all messages, end to end."""
        self.cuts = cuts
        """array('I'): message i is raw[cuts[i]:cuts[i + 1]]."""
        self.starts = starts
        self.methods = methods
        """Method frames: methods[k] is the whole frame of messages starts[k]..starts[k + 1] - 1.
        Equal frames are mostly the same object, so that a dict finds them without hashing again."""
        self.facts = facts
        """Facts about all messages: PERSISTENT | SPECIAL."""
        self.properties = properties
        """Property section of message 0."""
        self.uniform = uniform
        """True if all property sections are equal. They may be equal even if it is False."""
        self.largest_frame = largest_frame
        """Bytes of the largest header or body frame, overhead included."""

    def __len__(self) -> int:
        return len(self.cuts) - 1

    def repeated(self, raw: bytes) -> PublishReceived:
        """Return a stretch of one message like the one of this stretch but for its body."""
        return PublishReceived(
            self.channel,
            raw,
            self.cuts[:],
            self.starts,
            self.methods,
            self.facts,
            self.properties,
            True,
            self.largest_frame,
        )


@final
class Prelude:
    """Prelude of a message: its method, its header and the head of its body frame. Of messages that
    come one at a time most have that of the one before, and cost one comparison."""

    __slots__ = ("_last", "_size", "_unit")

    def __init__(self, message: PublishReceived, unit: bytes) -> None:
        """message: a stretch of one. unit: its bytes up to its body."""
        self._unit = unit
        self._size: i64 = len(message.raw)
        self._last = message.repeated(b"")

    def next(self, data: bytes, pos: i64) -> PublishReceived | None:
        """Return the publish at `pos` as a stretch of its own, if it begins so, is complete and no
        further one follows on the channel; otherwise None."""
        after: i64 = pos + self._size
        end: i64 = len(data)
        if after > end or data[after - 1] != 0xCE or not begins(data, pos, self._unit):
            return None
        if begins(data, after, self._unit[:3]) and begins(data, after + 7, _PUBLISH):
            return None
        # Compiled, a slice of all is a copy, too.
        raw = data if after - pos == end else data[pos:after]
        return self._last.repeated(raw)


def prelude_of(message: PublishReceived) -> Prelude | None:
    """Return the prelude of a stretch of one message; None: it is not worth remembering."""
    size = len(message.methods[0]) + 27 + len(message.properties)
    raw = message.raw
    if size > PRELUDE_MAX or size >= len(raw):  # without a body there is no head of its frame
        return None
    return Prelude(message, raw[:size])


def scan_publishes(
    data: bytes,
    pos: i64,
    end: i64,
    channel: int,
    frame_limit: i64,
    body_limit: i64,
    known: dict[bytes, bytes],
) -> PublishReceived | None:
    """Return the longest stretch of complete single-frame publishes at data[pos:end]; None: there
    is none.

    `frame_limit` and `body_limit` are in bytes of payload and of body. `known` holds method frames
    found valid before (a cache the caller only keeps). O(bytes), and mostly far less: a message
    that begins like the one before costs one comparison.
    """
    start: i64 = pos
    cuts = BytesWriter()
    put_place(cuts, 0)
    count = 0
    starts: list[int] = []
    methods: list[bytes] = []
    unit = b""  # method frame, header frame and head of the body frame: all equal last time
    unit_size: i64 = 0
    method = b""
    content: i64 = NOWHERE  # a header frame and the head of its body frame: alike if the bodies
    content_head: i64 = 0  # are of one size
    content_size: i64 = 0
    before: i64 = NOWHERE  # a header frame: alike up to the body size,
    behind: i64 = 0  # and so many bytes behind it, to the size of the body frame
    body_most: i64 = frame_limit if frame_limit < body_limit else body_limit
    section: i64 = NOWHERE
    section_size: i64 = NOWHERE
    first_section = b""
    high: i64 = channel >> 8
    low: i64 = channel & 255
    facts = -1
    uniform = True
    largest: i64 = 0
    last_size: i64 = -1
    after: i64
    while True:
        if unit:
            if begins(data, pos, unit):
                after = pos + unit_size
                if after > end or data[after - 1] != 0xCE:
                    break
                put_place(cuts, after - start)
                count += 1
                pos = after
                if NATIVE is not None:
                    more: int = NATIVE.count_units(data, pos, end, unit, unit_size)
                    for _ in range(more):
                        pos += unit_size
                        put_place(cuts, pos - start)
                    count += more
                continue
            unit = b""
        if method and begins(data, pos, method):
            frame = method
        else:
            frame = _publish_frame(data, pos, end, channel, frame_limit, known)
            if not frame:
                break
        h: i64 = pos + len(frame)
        if content >= 0 and alike(data, content, h, content_head):
            after = h + content_size
            if after > end or data[after - 1] != 0xCE:
                break
            if frame is method:
                unit = data[pos : h + content_head]
                unit_size = after - pos
        elif (
            before >= 0 and alike(data, before, h, 11) and alike(data, before + 19, h + 19, behind)
        ):
            b: i64 = h + 19 + behind
            body_size: i64 = read_i64_be(data, h + 11)  # more than 2^63: below 0
            if not 0 < body_size <= body_most:
                break
            after = b + 5 + body_size
            if after > end or data[after - 1] != 0xCE or u32(data, b) != body_size:
                break
            # Sizes differ more often than not: only two equal ones in a row are remembered.
            content = h if body_size == last_size else NOWHERE
            content_head = b + 4 - h
            content_size = after - h
            last_size = body_size
            if body_size + 8 > largest:
                largest = body_size + 8
        else:
            if h + 19 > end:
                break
            size: i64 = u32(data, h + 3)
            b = h + 8 + size
            body_size = read_i64_be(data, h + 11)  # more than 2^63: below 0
            if (
                data[h] != 2
                or data[h + 1] != high
                or data[h + 2] != low
                or size < 14
                or size > frame_limit
                or data[h + 8] != 60  # class basic, weight 0
                or data[h + 7] | data[h + 9] | data[h + 10]
                or body_size < 0
                or body_size > body_limit
                or b > end
                or data[b - 1] != 0xCE
            ):
                break
            if body_size > 0:
                if b + 7 > end:
                    break
                after = b + 8 + body_size
                if (
                    data[b] != 3
                    or data[b + 1] != high
                    or data[b + 2] != low
                    or u32(data, b + 3) != body_size
                    or body_size > frame_limit
                    or after > end
                    or data[after - 1] != 0xCE
                ):
                    break
                content_head = b + 7 - h
            else:
                after = b
                content_head = b - h
            content = h
            before = NOWHERE
            if section_size == size - 12 and alike(data, section, h + 19, section_size):
                if body_size > 0:
                    before = h
                    behind = b - h - 16
            else:
                found = classify_section(data, h + 19, b - 1)
                if facts < 0:
                    if found == MALFORMED:
                        break
                    facts = found
                    first_section = data[h + 19 : b - 1]
                else:
                    if found != facts or found & SPECIAL:
                        break
                    uniform = False
                section = h + 19
                section_size = size - 12
            content_size = after - h
            last_size = body_size
            if size + 8 > largest:
                largest = size + 8
            if body_size + 8 > largest:
                largest = body_size + 8
        if frame is not method:
            starts.append(count)
            methods.append(frame)
            method = frame
        put_place(cuts, after - start)
        count += 1
        pos = after
    if pos == start:
        return None
    return PublishReceived(
        channel,
        data[start:pos],
        unpacked(cuts.getvalue()),
        starts,
        methods,
        facts,
        first_section,
        uniform,
        largest,
    )


def _publish_frame(
    data: bytes, pos: i64, end: i64, channel: i64, frame_limit: i64, known: dict[bytes, bytes]
) -> bytes:
    """Return the valid publish method frame at `pos`; empty if there is none."""
    if pos + 11 > end:
        return b""
    size: i64 = u32(data, pos + 3)
    after: i64 = pos + 8 + size
    if (
        data[pos] != 1
        or data[pos + 1] << 8 | data[pos + 2] != channel
        or data[pos + 8] != 60
        or data[pos + 10] != 40
        or data[pos + 7] | data[pos + 9]
        or size > frame_limit
        or after > end
    ):
        return b""
    frame = data[pos:after]
    found = known.get(frame)
    if found is not None:
        return found
    if not is_publish_frame(frame):
        return b""
    if len(known) >= KNOWN_MAX:
        known.clear()
    known[frame] = frame
    return frame


def is_publish_frame(frame: bytes) -> bool:
    """Return whether a whole frame with the head of a basic.publish has well-formed fields."""
    last = len(frame) - 1
    if last < 16 or frame[last] != 0xCE:
        return False
    key = 14 + frame[13]
    if key >= last:
        return False
    bits = key + 1 + frame[key]
    if bits != last - 1:
        return False
    try:
        frame[14:key].decode()
        frame[key + 1 : bits].decode()
    except UnicodeDecodeError:
        return False
    return True


def publish_needs(
    data: bytes, pos: int, end: int, channel: int, frame_limit: int, body_limit: int
) -> int:
    """Return how many bytes from `pos` on (a publish's method frame head is there) could complete a
    single-frame publish, or decide whether it is one; 0: it is none and must be read frame by
    frame.

    Never asks for more than the rest of a frame that has begun, so waiting for it stalls nobody.
    """
    size = int.from_bytes(data[pos + 3 : pos + 7], "big")
    h = pos + 8 + size
    if h > end:
        return h - pos
    if not is_publish_frame(data[pos:h]):
        return 0
    if h + 7 > end:
        return h + 7 - pos
    _, number, size = _frame_head(data, h)
    b: int = h + 8 + size
    if number != channel or size < 14 or size > frame_limit:
        return 0
    if b > end:
        return b - pos
    _, number, size, class_id, weight, body_size = _header_head(data, h)
    if (
        class_id != 60
        or weight != 0
        or data[b - 1] != 0xCE
        or body_size == 0
        or body_size > body_limit
        or body_size > frame_limit
        or classify_section(data, h + 19, b - 1) == MALFORMED
    ):
        return 0
    if b + 7 > end:
        return b + 7 - pos
    _, number, size = _frame_head(data, b)
    after: int = b + 8 + body_size
    if number != channel or size != body_size or after <= end:
        return 0
    return after - pos


def classify_section(data: bytes, pos: i64, end: i64) -> int:
    """Classify the property section data[pos:end]: PERSISTENT | SPECIAL, or MALFORMED.

    Checks that the properties fill the section exactly; headers are not decoded, only searched.
    """
    if end - pos < 2:
        return MALFORMED
    high: i64 = data[pos]
    low: i64 = data[pos + 1]
    facts: i64 = 0
    pos += 2
    if high & 0x80:  # content-type
        if pos >= end:
            return MALFORMED
        pos += 1 + data[pos]
    if high & 0x40:  # content-encoding
        if pos >= end:
            return MALFORMED
        pos += 1 + data[pos]
    if high & 0x20:  # headers
        table: i64 = pos + 4
        if table > end:
            return MALFORMED
        pos = table + u32(data, pos)
        if pos > end:
            return MALFORMED
        if has_special_header(data, table, pos):
            facts = SPECIAL
    if high & 0x10:  # delivery-mode
        if pos >= end:
            return MALFORMED
        if data[pos] == 2:
            facts |= PERSISTENT
        pos += 1
    if high & 0x08:  # priority
        pos += 1
    if high & 0x04:  # correlation-id
        if pos >= end:
            return MALFORMED
        pos += 1 + data[pos]
    if high & 0x02:  # reply-to
        if pos >= end:
            return MALFORMED
        if data[pos] >= 21 and data.startswith(b"amq.rabbitmq.reply-to", pos + 1):
            facts |= SPECIAL
        pos += 1 + data[pos]
    if high & 0x01:  # expiration
        if pos >= end:
            return MALFORMED
        facts |= SPECIAL
        pos += 1 + data[pos]
    if low & 0x80:  # message-id
        if pos >= end:
            return MALFORMED
        pos += 1 + data[pos]
    if low & 0x40:  # timestamp
        pos += 8
    if low & 0x3F:
        if low & 3:
            return MALFORMED
        if low & 0x10:
            facts |= SPECIAL
        bit: i64 = 0x20
        while bit > 2:  # type, user-id, app-id, cluster-id
            if low & bit:
                if pos >= end:
                    return MALFORMED
                pos += 1 + data[pos]
            bit >>= 1
    return facts if pos == end else MALFORMED


def has_special_header(data: bytes, pos: i64, end: i64) -> bool:
    """Return whether the table entries data[pos:end] have a key CC, BCC or x-delay at the top
    level.

    A table that cannot be walked counts as having one if the bytes of such a key are in it: whoever
    looks will find out. To search is cheaper than to walk where this is interpreted.
    """
    if IS_INTERPRETED and not _has_special_bytes(data, pos, end):
        return False
    at = pos
    while at < end:
        size: i64 = data[at]
        value: i64 = at + 1 + size
        if value >= end or (
            (size == 2 and begins(data, at + 1, b"CC"))
            or (size == 3 and begins(data, at + 1, b"BCC"))
            or (size == 7 and begins(data, at + 1, b"x-delay"))
        ):
            break
        taken: i64 = _VALUE_SIZES[data[value]]
        if taken == _UNKNOWN:
            break
        at = value + 1 + (taken & 15)
        if taken & _COUNTED:
            if at > end:
                break
            at += u32(data, value + 1)
    return at != end and _has_special_bytes(data, pos, end)


def _has_special_bytes(data: bytes, pos: i64, end: i64) -> bool:
    return (
        data.find(b"\x02CC", pos, end) >= 0
        or data.find(b"\x03BCC", pos, end) >= 0
        or data.find(b"\x07x-delay", pos, end) >= 0
    )


_COUNTED: Final = 16
_UNKNOWN: Final = 255
_VALUE_SIZES: Final = bytes(
    {"t": 1, "b": 1, "B": 1, "s": 2, "u": 2, "I": 4, "i": 4, "l": 8, "L": 8, "f": 4, "d": 8, "D": 5,
     "S": 4 | _COUNTED, "x": 4 | _COUNTED, "T": 8, "A": 4 | _COUNTED, "F": 4 | _COUNTED, "V": 0}
    .get(chr(tag), _UNKNOWN)
    for tag in range(256)
)  # fmt: skip
"""Bytes behind a value's tag, at the tag's number. _COUNTED: they are the length of what
follows."""


def ack_prefix(channel: int) -> bytes:
    """Return the first 11 bytes of every basic.ack on a channel."""
    return _pack_head(1, channel, 13) + b"\x00\x3c\x00\x50"


def scan_acks(data: bytes, pos: i64, end: i64, prefix: bytes) -> tuple[int, int, int, bool]:
    """Join consecutive basic.acks whose first 11 bytes are `prefix` into one range of tags.

    Returns (where it stopped, first tag, last tag, multiple); stopped at `pos`: there is none.
    """
    first: i64 = 0
    last: i64 = 0
    while pos + 21 <= end and begins(data, pos, prefix):
        tag: i64 = read_i64_be(data, pos + 11)
        is_multiple = data[pos + 19] & 1 == 1
        if data[pos + 20] != 0xCE:
            break
        if tag < 0:
            if last:
                break
            huge = int.from_bytes(data[pos + 11 : pos + 19], "big")
            return pos + 21, huge, huge, is_multiple
        if last:
            if tag != last + 1 or is_multiple:
                break
            last = tag
        elif is_multiple or tag == 0:
            return pos + 21, tag, tag, is_multiple
        else:
            first = last = tag
        pos += 21
    return pos, first, last, False
