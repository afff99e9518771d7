"""Frames [amqp-1.0 §2.3] and protocol headers [amqp-1.0 §2.2].

0      4      5      6         8                4 * doff           size
+------+------+------+---------+----------------+------------------+
| size | doff | type | channel | extended header| body             |
+------+------+------+---------+----------------+------------------+
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from tallymark.wire.amqp10.errors import FRAMING_ERROR, DecodeError
from tallymark.wire.octets import u32

AMQP_HEADER: Final = b"AMQP\x00\x01\x00\x00"
TLS_HEADER: Final = b"AMQP\x02\x01\x00\x00"
SASL_HEADER: Final = b"AMQP\x03\x01\x00\x00"
HEARTBEAT: Final = b"\0\0\0\x08\x02\0\0\0"
"""An empty frame [amqp-1.0 §2.4.5]."""

AMQP: Final = 0
"""Frame type of AMQP."""
SASL: Final = 1

HEAD: Final = 8
"""Bytes of a frame before its body, without an extended header."""

TAG_MAX: Final = 32
"""Maximum bytes of a delivery-tag [amqp-1.0 §2.8.7]."""

_head: Final = Struct(">IBBH")


def frame(channel: int, body: bytes, payload: bytes = b"") -> bytes:
    """Return an AMQP frame of an encoded performative and its payload."""
    return _head.pack(8 + len(body) + len(payload), 2, AMQP, channel) + body + payload


def sasl_frame(body: bytes) -> bytes:
    return _head.pack(8 + len(body), 2, SASL, 0) + body


def frame_head(data: bytes, pos: int) -> tuple[int, int, int, int]:
    """Decode the head of the frame at `pos` (8 bytes are there): its size, the bytes before its
    body, its type and its channel.

    Raises DecodeError, a framing error, for a size or a data offset that cannot be.
    """
    size = u32(data, pos)
    offset = data[pos + 4] * 4
    if not 8 <= offset <= size:
        raise DecodeError(
            f"frame of {size} bytes with its body at {offset}, expected 8 <= body <= size",
            FRAMING_ERROR,
        )
    return size, offset, data[pos + 5], data[pos + 6] << 8 | data[pos + 7]
