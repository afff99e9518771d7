"""Deliveries: frames around the bytes that a publisher sent. Pure functions."""

from __future__ import annotations

from array import array
from struct import Struct
from typing import Final

from librt.strings import BytesWriter, write_i64_be
from mypy_extensions import i64

from tallymark.wire.in_c import NATIVE
from tallymark.wire.octets import packed, place, u32

_frame_head: Final = Struct(">BHI").unpack_from  # type, channel, size
_pack_head: Final = Struct(">BHI").pack


def encode_deliveries(
    prefix: bytes,
    suffix: bytes,
    tag: i64,
    raw: bytes,
    cuts: array[int],
    lo: int,
    hi: int,
    method_size: i64,
) -> bytes:
    """Return basic.deliver frames and the unchanged content of messages lo..hi-1, with tags from
    `tag` on, below 2^63.

    `prefix` is the frame up to the delivery tag, `suffix` what follows it, frame end included;
    `method_size` the bytes of the publish method frame in front of each message.
    """
    if NATIVE is not None:
        made: bytes = NATIVE.encode_deliveries(prefix, suffix, tag, raw, cuts, lo, hi, method_size)
        return made
    out = BytesWriter()
    places = packed(cuts, lo, hi)
    count: i64 = hi - lo
    start: i64 = place(places, 0) + method_size
    for i in range(count):
        cut = place(places, i + 1)
        out.write(prefix)
        write_i64_be(out, tag)
        out.write(suffix)
        out.write(raw[start:cut])
        tag += 1
        start = cut + method_size
    return out.getvalue()


def encode_mixed_deliveries(
    prefixes: list[bytes],
    suffixes: list[bytes],
    tag: i64,
    raw: bytes,
    cuts: array[int],
    lo: int,
    hi: int,
) -> bytes:
    """Return deliveries, as encode_deliveries does, of messages with different routes: prefixes[i]
    and suffixes[i] are those of message lo + i, and the length of each method frame is read from
    it."""
    if NATIVE is not None:
        made: bytes = NATIVE.encode_mixed_deliveries(prefixes, suffixes, tag, raw, cuts, lo, hi)
        return made
    out = BytesWriter()
    places = packed(cuts, lo, hi)
    cut: i64 = place(places, 0)
    for i in range(hi - lo):
        start: i64 = cut + 8 + u32(raw, cut + 3)
        cut = place(places, i + 1)
        out.write(prefixes[i])
        write_i64_be(out, tag)
        out.write(suffixes[i])
        out.write(raw[start:cut])
        tag += 1
    return out.getvalue()


def rechannel(raw: bytes, channel: int) -> bytes:
    """Return the frames with another channel number. `raw` is whole frames, end to end."""
    out = bytearray(raw)
    high = channel >> 8
    low = channel & 255
    head = _frame_head
    pos = 0
    end = len(raw)
    while pos < end:
        out[pos + 1] = high
        out[pos + 2] = low
        pos += 8 + head(raw, pos)[2]
    return bytes(out)


def reframe(raw: bytes, method_size: int, channel: int, frame_max: int) -> bytes:
    """Return header and body frames of one message for a reader with a smaller frame-max (bytes).

    The method frame is left out, `method_size` bytes of it. A header frame is never cut: the
    protocol has no way to.
    """
    header: int = method_size + 8 + _frame_head(raw, method_size)[2]
    limit = frame_max - 8
    out: list[bytes] = [rechannel(raw[method_size:header], channel)]
    pos = header
    while pos < len(raw):
        body_end: int = pos + 7 + _frame_head(raw, pos)[2]
        start = pos + 7
        while start < body_end:
            after = start + limit if start + limit < body_end else body_end
            out += (_pack_head(3, channel, after - start), raw[start:after], b"\xce")
            start = after
        pos = body_end + 1
    return b"".join(out)
