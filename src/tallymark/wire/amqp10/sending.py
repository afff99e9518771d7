"""Fast paths for output: runs of transfers, and dispositions [amqp-1.0 §2.7.5, §2.7.6]."""

from __future__ import annotations

from array import array
from struct import Struct
from typing import Final, final

from librt.strings import BytesWriter
from mypy_extensions import i64

from tallymark.wire.amqp10.frames import AMQP, TAG_MAX, frame
from tallymark.wire.amqp10.writer import encode_uint
from tallymark.wire.in_c import NATIVE
from tallymark.wire.octets import packed, place, put_u32

ACCEPTED: Final = b"\0\x53\x24\x45"
"""Encoded outcome accepted."""
RELEASED: Final = b"\0\x53\x26\x45"

_pack_u32: Final = Struct(">I").pack


@final
class TransferForm:
    """Encoding of the fields that all transfers of one kind on one link share."""

    __slots__ = ("_count", "_handle", "_parts", "_prefix", "rest")

    def __init__(
        self,
        channel: int,
        handle: int,
        message_format: int = 0,
        settled: bool = False,
        state: bytes = b"",
        more: bool = False,
    ) -> None:
        """state: as encoded; b"" for none. more: True unless it is the last frame of its
        delivery."""
        self._prefix = bytes((2, AMQP, channel >> 8, channel & 255)) + b"\0\x53\x14"
        self._handle = encode_uint(handle)
        rest = encode_uint(message_format)
        self._count = 4
        if settled or more or state:
            rest += b"\x41" if settled else b"\x42"
            self._count += 1
        if more or state:
            rest += b"\x41" if more else b"\x42"
            self._count += 1
        if state:
            rest += b"\x40" + state
            self._count += 2
        self.rest = rest
        """Fields behind the tag, encoded."""
        self._parts: dict[int, tuple[bytes, bytes]] = {}

    def parts(self, tag_size: int) -> tuple[bytes, bytes]:
        """Return the bytes between size and delivery-id, and those between that and the tag."""
        parts = self._parts.get(tag_size)
        if parts is None:
            size = len(self._handle) + 5 + 2 + tag_size + len(self.rest)
            if size < 255:
                head = bytes((0xC0, size + 1, self._count))
            else:
                head = b"\xd0" + _pack_u32(size + 4) + _pack_u32(self._count)
            parts = (self._prefix + head + self._handle + b"\x70", bytes((0xA0, tag_size)))
            self._parts[tag_size] = parts
        return parts

    def front(self, delivery_id: int, tag: bytes) -> bytes:
        """Return a transfer frame from behind its size up to its payload; see `sized`."""
        if len(tag) > TAG_MAX:
            raise ValueError(f"delivery-tag of {len(tag)} bytes, at most {TAG_MAX} fit")
        before, between = self.parts(len(tag))
        return before + _pack_u32(delivery_id) + between + tag + self.rest


def transfer_more(channel: int, handle: int, more: bool, aborted: bool = False) -> bytes:
    """Return the front of a delivery's second or later frame, like `TransferForm.front`."""
    fields = encode_uint(handle) + b"\x40\x40\x40\x40" + (b"\x41" if more else b"\x42")
    count = 6
    if aborted:
        fields += b"\x40\x40\x42\x41"
        count = 10
    head = bytes((2, AMQP, channel >> 8, channel & 255)) + b"\0\x53\x14"
    return head + bytes((0xC0, len(fields) + 1, count)) + fields


def sized(front: bytes, payload: bytes) -> bytes:
    """Return the whole frame."""
    return _pack_u32(4 + len(front) + len(payload)) + front + payload


def text_tag(number: i64) -> i64:
    """Return the delivery-tag of four bytes for a number, as a number: its low 28 bits, seven in a
    byte.

    So every tag is ASCII. python-qpid-proton takes tags for UTF-8, and raises an error in whatever
    program looks at one that is not.
    """
    return (
        number & 0x7F
        | (number & 0x3F80) << 1
        | (number & 0x1F_C000) << 2
        | (number & 0xFE0_0000) << 3
    )


def _carried(tag: i64) -> i64:
    """Return a text tag with a carry, after an addition of 1 overflowed its last byte."""
    tag += 0x80
    if tag & 0x8000:
        tag += 0x8000
        if tag & 0x80_0000:
            tag += 0x80_0000
            if tag & 0x8000_0000:
                return 0
    return tag


def encode_transfers(
    form: TransferForm,
    delivery_id: i64,
    tag: i64,
    raw: bytes,
    cuts: array[int],
    lo: i64,
    hi: i64,
    front: bytes,
    skip: i64,
    frame_limit: i64,
) -> tuple[bytes, int]:
    """Encode transfer frames of messages lo..hi-1 of `raw`, with `front` in place of the first
    `skip` bytes of each. Ids count from `delivery_id`, modulo 2^32, tags from `tag`, see
    `text_tag`.

    Returns the frames and the message at which it stopped: `hi`, or the first that is larger than
    fits a frame of `frame_limit` bytes.
    """
    before, between = form.parts(4)
    behind = form.rest + front
    around: i64 = 4 + len(before) + 4 + 2 + 4 + len(behind)
    tag = text_tag(tag)
    if NATIVE is not None:
        made: tuple[bytes, int] = NATIVE.encode_transfers(
            before, between, behind, delivery_id, tag, raw, cuts, lo, hi, skip, frame_limit
        )
        return made
    places = packed(cuts, lo, hi)
    out = BytesWriter()
    start: i64 = cuts[lo] + skip
    i: i64 = lo
    while i < hi:
        cut: i64 = place(places, i - lo + 1)
        size: i64 = around + cut - start
        if size > frame_limit:
            break
        put_u32(out, size)
        out.write(before)
        put_u32(out, delivery_id)
        out.write(between)
        put_u32(out, tag)
        out.write(behind)
        out.write(raw[start:cut])
        delivery_id = (delivery_id + 1) & 0xFFFF_FFFF
        tag += 1
        if tag & 0x80:
            tag = _carried(tag)
        start = cut + skip
        i += 1
    return out.getvalue(), i


def encode_tagged_transfers(
    form: TransferForm,
    delivery_id: int,
    tags: list[bytes],
    raw: bytes,
    cuts: array[int],
    lo: int,
    hi: int,
    front: bytes,
    skip: int,
    frame_limit: int,
) -> tuple[bytes, int]:
    """Encode transfer frames, as `encode_transfers` does, with given tags: tags[i] is that of
    message lo + i."""
    out: list[bytes] = []
    for i in range(lo, hi):
        payload = raw[cuts[i] + skip : cuts[i + 1]]
        before = form.front(delivery_id, tags[i - lo])
        size = 4 + len(before) + len(front) + len(payload)
        if size > frame_limit:
            return b"".join(out), i
        out += (_pack_u32(size), before, front, payload)
        delivery_id = (delivery_id + 1) & 0xFFFF_FFFF
    return b"".join(out), hi


def disposition_frame(
    channel: int, role: bool, first: int, last: int, settled: bool, state: bytes
) -> bytes:
    """Encode a disposition of first..last, `state` as encoded; b"" for none."""
    fields = (b"\x41" if role else b"\x42") + encode_uint(first)
    count = 2
    if last != first or settled or state:
        fields += b"\x40" if last == first else encode_uint(last)
        fields += b"\x41" if settled else b"\x42"
        fields += state
        count = 5 if state else 4
    if len(fields) < 255:
        head = b"\0\x53\x15\xc0" + bytes((len(fields) + 1, count))
    else:
        head = b"\0\x53\x15\xd0" + _pack_u32(len(fields) + 4) + _pack_u32(count)
    return frame(channel, head, fields)
