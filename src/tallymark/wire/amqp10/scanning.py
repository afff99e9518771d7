"""Fast paths for input: runs of transfers, and joined dispositions [amqp-1.0 §2.7.5, §2.7.6].

    transfer     head | 00 53 14 | list head | handle | delivery-id | delivery-tag | rest | payload
    disposition  head | 00 53 15 | list head | role | first | last | rest

Pure functions. They do not judge the peer: input that a scan does not recognize is left to the
connection, which reads frame by frame. A scan returns the same result as that would.
"""

from __future__ import annotations

from array import array
from typing import Final, final

from librt.strings import BytesWriter
from mypy_extensions import i64

from tallymark.wire.amqp10.composites import BY_CLASS, read_fields
from tallymark.wire.amqp10.errors import DecodeError
from tallymark.wire.amqp10.frames import AMQP, TAG_MAX
from tallymark.wire.amqp10.limits import FRAME_MIN
from tallymark.wire.amqp10.outcomes import DeliveryState
from tallymark.wire.amqp10.performatives import Disposition, Transfer
from tallymark.wire.amqp10.reader import FREE_MAX, Reader
from tallymark.wire.amqp10.serial import Serial
from tallymark.wire.octets import alike, begins, put_place, u32, unpacked

_TRANSFER: Final = b"\0\x53\x14"
_DISPOSITION: Final = b"\0\x53\x15"
KNOWN_MAX: Final = 256
"""Number of cached ends of transfers and dispositions, per connection. They have FRAME_MIN bytes at
most, and no values without bytes, of which there might be very many."""


@final
class Shape:
    """The decoded fields behind the delivery-tag of a transfer. Shared by all transfers with the
    same bytes, so that neither it nor its state may be changed."""

    __slots__ = ("is_plain", "message_format", "rcv_settle_mode", "settled", "state")

    def __init__(
        self,
        is_plain: bool,
        message_format: int,
        settled: bool,
        rcv_settle_mode: int | None,
        state: DeliveryState | None,
    ) -> None:
        self.is_plain = is_plain
        """True for one whole delivery: not more, aborted or resumed."""
        self.message_format = message_format
        self.settled = settled
        self.rcv_settle_mode = rcv_settle_mode
        self.state = state


_NOT_PLAIN: Final = Shape(False, 0, False, None, None)


@final
class Transfers:
    """A run of whole deliveries on one link: consecutive ids, equal fields."""

    __slots__ = ("cuts", "data", "end", "first", "handle", "shape", "tags")

    def __init__(
        self,
        handle: int,
        first: Serial,
        tags: list[bytes],
        data: bytes,
        cuts: array[int],
        shape: Shape,
        end: int,
    ) -> None:
        self.handle = handle
        self.first = first
        """Delivery-id of the first delivery; the others follow it, modulo 2^32."""
        self.tags = tags
        """Delivery-tags; empty if they are not wanted."""
        self.data = data
        """Payloads, end to end: message i is data[cuts[i]:cuts[i + 1]]."""
        self.cuts = cuts
        self.shape = shape
        self.end = end
        """Offset in the buffer at which the run ends."""

    def __len__(self) -> int:
        return len(self.cuts) - 1


@final
class _Place:
    """Offsets of the parts of one transfer frame from its beginning."""

    __slots__ = ("body", "handle", "id", "id_at", "rest_at", "shape", "tag_at")

    def __init__(self) -> None:
        self.handle = 0
        self.id = 0
        self.id_at = 0
        self.tag_at = 0
        """Offset of the tag's bytes, behind its code and size."""
        self.rest_at = 0
        self.body = 0
        """Offset of the payload."""
        self.shape = _NOT_PLAIN


def scan_transfers(
    data: bytes,
    pos: i64,
    end: i64,
    channel: int,
    frame_limit: i64,
    payload_limit: i64,
    most: i64,
    known: dict[bytes, Shape],
    wants_tags: bool = True,
) -> Transfers | None:
    """Return the longest run of complete single-frame deliveries at data[pos:end], at most `most`;
    None: there is none.

    `frame_limit` and `payload_limit` are the most bytes of a frame and of a message. `known` holds
    ends of transfers read before (a cache the caller only keeps). A frame laid out as the one
    before costs two comparisons of bytes. `wants_tags`: whether delivery-tags are given.
    """
    tags: list[bytes] = []
    payloads: list[bytes] = []
    cuts = BytesWriter()
    put_place(cuts, 0)
    total: i64 = 0
    shape = _NOT_PLAIN
    handle = -1
    first = 0
    expected: i64 = 0
    head = b""  # from behind the size up to the delivery-id
    id_at: i64 = 0
    tag_at: i64 = 0
    rest_at: i64 = 0
    rest = b""  # the fields behind the tag
    body: i64 = 0
    while pos + 8 <= end and most > 0:
        after: i64 = pos + u32(data, pos)
        if after > end or after - pos > frame_limit:
            break
        if not (
            head
            and after - pos >= body
            and begins(data, pos + 4, head)
            and _uint(data, pos + id_at, tag_at - 2 - id_at) == expected
            and data[pos + tag_at - 2] == 0xA0
            and data[pos + tag_at - 1] == rest_at - tag_at
            and begins(data, pos + rest_at, rest)
        ):
            place = _parse(data, pos, after, channel, known)
            if place is None or not place.shape.is_plain:
                break
            if handle < 0:
                handle = place.handle
                first = place.id
                shape = place.shape
            elif place.handle != handle or place.id != expected or place.shape is not shape:
                break
            expected = place.id
            id_at = place.id_at
            tag_at = place.tag_at
            rest_at = place.rest_at
            body = place.body
            head = data[pos + 4 : pos + id_at]
            rest = data[pos + rest_at : pos + body]
        size: i64 = after - pos - body
        if size > payload_limit:
            break
        total += size
        if wants_tags:
            tags.append(data[pos + tag_at : pos + rest_at])
        payloads.append(data[pos + body : after])
        put_place(cuts, total)
        expected = (expected + 1) & 0xFFFF_FFFF
        most -= 1
        pos = after
    if not payloads:
        return None
    raw = b"".join(payloads)
    return Transfers(handle, Serial(first), tags, raw, unpacked(cuts.getvalue()), shape, pos)


def _parse(
    data: bytes, pos: i64, after: i64, channel: i64, known: dict[bytes, Shape]
) -> _Place | None:
    """Return the offsets in the transfer frame data[pos:after]; None for another frame, or an
    unusual encoding."""
    if (
        after - pos < 20
        or data[pos + 4] != 2
        or data[pos + 5] != AMQP
        or data[pos + 6] << 8 | data[pos + 7] != channel
        or not begins(data, pos + 8, _TRANSFER)
    ):
        return None
    code = data[pos + 11]
    if code == 0xC0:
        body: i64 = pos + 13 + data[pos + 12]
        count: i64 = data[pos + 13]
        p: i64 = pos + 14
    elif code == 0xD0:
        body = pos + 16 + u32(data, pos + 12)
        count = u32(data, pos + 16)
        p = pos + 20
    else:
        return None
    if body > after or not 4 <= count <= 11:
        return None
    place = _Place()
    place.body = body - pos
    width: i64 = _width(data, p, body)
    if width < 0:
        return None
    place.handle = _uint(data, p + 1, width)
    p += 1 + width
    width = _width(data, p, body)
    if width < 0:
        return None
    place.id = _uint(data, p + 1, width)
    place.id_at = p + 1 - pos
    p += 1 + width
    if p + 2 > body or data[p] != 0xA0 or data[p + 1] > TAG_MAX:
        return None
    place.tag_at = p + 2 - pos
    p += 2 + data[p + 1]
    if p > body:
        return None
    place.rest_at = p - pos
    if body - p > FRAME_MIN:  # kept by `known`, so not just any size
        return None
    key = bytes((count,)) + data[p:body]
    found = known.get(key)
    if found is None:
        found = _shape(data[p:body], count - 3)
        if len(known) >= KNOWN_MAX:
            known.clear()
        known[key] = found
    place.shape = found
    return place


def _width(data: bytes, pos: i64, end: i64) -> i64:
    """Return the size in bytes of the uint whose format code is at `pos`; -1: it is no uint, or
    incomplete."""
    if pos >= end:
        return -1
    code: i64 = data[pos]
    width: i64 = 0 if code == 0x43 else 1 if code == 0x52 else 4 if code == 0x70 else -1
    return width if pos + 1 + width <= end else -1


def _uint(data: bytes, pos: i64, width: i64) -> i64:
    return u32(data, pos) if width == 4 else data[pos] if width == 1 else 0


def _shape(rest: bytes, count: int) -> Shape:
    """Decode the last `count` fields of a transfer."""
    reader = Reader(rest, 0, len(rest))
    try:
        values = read_fields(reader, BY_CLASS[Transfer], 3, count)
    except DecodeError:
        return _NOT_PLAIN
    if reader.free < FREE_MAX:
        return _NOT_PLAIN
    values += [None] * (8 - count)
    message_format, settled, more, mode, state, resume, aborted = values[:7]
    if reader.pos != len(rest) or message_format is None or more or resume or aborted:
        return _NOT_PLAIN
    assert isinstance(message_format, int)
    assert mode is None or isinstance(mode, int)
    assert state is None or isinstance(state, DeliveryState)
    return Shape(True, message_format, settled is True, mode, state)


@final
class Dispositions:
    """Consecutive dispositions with equal content for adjacent deliveries, as one. The state is
    shared and must not be changed."""

    __slots__ = ("end", "first", "last", "role", "settled", "state")

    def __init__(
        self, role: bool, first: Serial, last: Serial, settled: bool, state: DeliveryState | None
    ) -> None:
        self.role = role
        """Role of the sender of the dispositions: True for the receiver of the deliveries."""
        self.first = first
        self.last = last
        """Last delivery-id, included; at most 2^31 - 1 behind `first`."""
        self.settled = settled
        self.state = state
        self.end = 0
        """Offset in the buffer at which the run ends."""


Meaning = tuple[bool, DeliveryState | None]
"""Content of a disposition: settled or not, and the state."""


def scan_dispositions(
    data: bytes, pos: i64, end: i64, channel: i64, known: dict[bytes, Meaning]
) -> Dispositions | None:
    """Join consecutive dispositions at data[pos:end] with equal content that continue each other.
    None: there is none, or it has an unusual encoding, or it exceeds the smallest frame limit.

    `known` holds ends of dispositions read before (a cache the caller only keeps).
    """
    found: Dispositions | None = None
    said: i64 = 0  # offset of the fields behind `last`, which are alike, as is their number
    said_size: i64 = 0
    said_count: i64 = 0
    while pos + 8 <= end:
        after: i64 = pos + u32(data, pos)
        if (
            after > end
            or not 18 <= after - pos <= FRAME_MIN
            or data[pos + 4] != 2
            or data[pos + 5] != AMQP
            or data[pos + 6] << 8 | data[pos + 7] != channel
            or not begins(data, pos + 8, _DISPOSITION)
        ):
            break
        code: i64 = data[pos + 11]
        if code == 0xC0:
            body_end: i64 = pos + 13 + data[pos + 12]
            p: i64 = pos + 13
        elif code == 0xD0:
            body_end = pos + 16 + u32(data, pos + 12)
            p = pos + 19
            if not begins(data, pos + 16, b"\0\0\0"):
                break
        else:
            break
        if body_end != after or p + 2 > after:
            break
        count: i64 = data[p]
        role = data[p + 1] == 0x41
        if not role and data[p + 1] != 0x42:
            break
        p += 2
        width: i64 = _width(data, p, after)
        if width < 0:
            break
        first: i64 = _uint(data, p + 1, width)
        last: i64 = first
        p += 1 + width
        if p < after and data[p] == 0x40:
            p += 1
        else:
            width = _width(data, p, after)
            if width < 0:
                break
            last = _uint(data, p + 1, width)
            p += 1 + width
        if (last - first) & 0xFFFF_FFFF >= 0x8000_0000:
            break
        if found is not None:
            if (
                count != said_count
                or after - p != said_size
                or not alike(data, said, p, said_size)
                or role is not found.role
                or first != (found.last + 1) & 0xFFFF_FFFF
                or (last - found.first) & 0xFFFF_FFFF >= 0x8000_0000
            ):
                break
            found.last = Serial(last)
        else:
            meaning = _meaning(bytes((count,)) + data[p:after], known)
            if meaning is None:
                break
            found = Dispositions(role, Serial(first), Serial(last), meaning[0], meaning[1])
            said = p
            said_size = after - p
            said_count = count
        found.end = pos = after
    return found


def _meaning(says: bytes, known: dict[bytes, Meaning]) -> Meaning | None:
    found = known.get(says)
    if found is not None:
        return found
    count = says[0] - 3
    if not 0 <= count <= 3:
        return None
    reader = Reader(says, 1, len(says))
    try:
        values = read_fields(reader, BY_CLASS[Disposition], 3, count)
    except DecodeError:
        return None
    if reader.pos != len(says) or reader.free < FREE_MAX:
        return None
    state = values[1] if count > 1 else None
    assert state is None or isinstance(state, DeliveryState)
    found = (count > 0 and values[0] is True, state)
    if len(known) >= KNOWN_MAX:
        known.clear()
    known[says] = found
    return found
