"""Frames [amqp-0.9.1 §4.2.3]: type, channel, payload size, payload, frame end.

    0      1         3             7                  7+size
    +------+---------+-------------+------------------+-----+
    | type | channel | size        | payload          | xCE |
    +------+---------+-------------+------------------+-----+

A content header's payload [amqp-0.9.1 §4.2.6.1]:

    0       2          4              12
    +-------+----------+--------------+------------------------+
    | class | weight 0 | body size    | property section       |
    +-------+----------+--------------+------------------------+

A *message* is a publish method frame, its header frame and its body frames, end to end.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

METHOD: Final = 1
HEADER: Final = 2
BODY: Final = 3
HEARTBEAT: Final = 8
FRAME_END: Final = 0xCE

OVERHEAD: Final = 8
"""Bytes of a frame around its payload."""
HEAD: Final = 7
"""Bytes of a frame before its payload."""
FRAME_MIN: Final = 4096
"""Smallest frame-max that a peer may ask for, bytes [amqp-0.9.1 constants frame-min-size]."""
BASIC: Final = 60

HEARTBEAT_FRAME: Final = b"\x08\0\0\0\0\0\0\xce"
PROTOCOL_HEADER: Final = b"AMQP\0\0\x09\x01"

_head: Final = Struct(">BHI")
_header: Final = Struct(">BHIHHQ")


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return _head.pack(kind, channel, len(payload)) + payload + b"\xce"


def header_frame(channel: int, body_size: int, properties: bytes) -> bytes:
    """Make a content header of class basic; `properties` is a property section."""
    head = _header.pack(HEADER, channel, 12 + len(properties), BASIC, 0, body_size)
    return head + properties + b"\xce"


def body_frames(channel: int, body: bytes, frame_max: int) -> bytes:
    """Return the body in as few frames as frame_max (bytes, 0: no limit) allows; none for an empty
    body."""
    if not body:
        return b""
    limit = frame_max - OVERHEAD if frame_max else len(body)
    if len(body) <= limit:
        return frame(BODY, channel, body)
    out: list[bytes] = []
    for start in range(0, len(body), limit):
        out.append(frame(BODY, channel, body[start : start + limit]))
    return b"".join(out)


def content_frames(channel: int, properties: bytes, body: bytes, frame_max: int) -> bytes:
    """Return header frame and body frames."""
    return header_frame(channel, len(body), properties) + body_frames(channel, body, frame_max)


def frame_length(raw: bytes, pos: int) -> int:
    """Return the bytes of the whole frame that begins at `pos`; its head must be there."""
    size = raw[pos + 3] << 24 | raw[pos + 4] << 16 | raw[pos + 5] << 8 | raw[pos + 6]
    return size + OVERHEAD


def section_at(raw: bytes, start: int) -> int:
    """Return the offset of the property section of the message that begins at `start`: its
    flags."""
    return start + frame_length(raw, start) + 19


def property_section(raw: bytes, start: int = 0) -> bytes:
    """Return the property section of the message that begins at `start`."""
    header = start + frame_length(raw, start)
    return raw[header + 19 : header + frame_length(raw, header) - 1]


def body(message: bytes) -> bytes:
    """Return the body of a message, without its framing."""
    pos = frame_length(message, 0)
    return joined(message, pos + frame_length(message, pos), len(message))


def joined(raw: bytes, pos: int, end: int) -> bytes:
    """Return the payloads of the frames in raw[pos:end], joined."""
    parts: list[bytes] = []
    while pos < end:
        after = pos + frame_length(raw, pos)
        parts.append(raw[pos + 7 : after - 1])
        pos = after
    return parts[0] if len(parts) == 1 else b"".join(parts)


def snippet(payload: bytes) -> str:
    """Return a payload in the form of RabbitMQ's error texts: `all octets = <<1,2>>`, the first
    16."""
    shown = payload[:16]
    if shown and all(32 <= octet < 127 for octet in shown):
        octets = f'"{shown.decode("ascii")}"'
    else:
        octets = ",".join([str(octet) for octet in shown])
    return f"{'all' if len(payload) <= 16 else 'first 16'} octets = <<{octets}>>"
