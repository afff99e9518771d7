"""Frames of a server: size, type, data; all numbers big-endian [nsq frame format].

    | size (4): of type and data | type (4) | data |

A message's data: int64 timestamp (ns since 1970), uint16 attempts, 16 hex digits of its id, body.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

RESPONSE: Final = 0
ERROR: Final = 1
MESSAGE: Final = 2

HEAD: Final = 8
"""Bytes before a frame's data."""
MESSAGE_HEAD: Final = 26
"""Bytes between a message frame's head and its body."""

_pack_head: Final = Struct(">II").pack
_unpack_head: Final = Struct(">ii").unpack_from
_message_head: Final = Struct(">qH").unpack_from


def frame(kind: int, content: bytes) -> bytes:
    return _pack_head(len(content) + 4, kind) + content


OK: Final = b"OK"
CLOSE_WAIT: Final = b"CLOSE_WAIT"
HEARTBEAT: Final = b"_heartbeat_"

OK_FRAME: Final = frame(RESPONSE, OK)
CLOSE_WAIT_FRAME: Final = frame(RESPONSE, CLOSE_WAIT)
HEARTBEAT_FRAME: Final = frame(RESPONSE, HEARTBEAT)
BAD_PROTOCOL_FRAME: Final = frame(ERROR, b"E_BAD_PROTOCOL")


def split_frames(data: bytes) -> tuple[list[tuple[int, bytes]], bytes]:
    """Split a client's input: (type, data) of each whole frame, and the bytes behind them.

    Raises ValueError for a size below 4.
    """
    frames: list[tuple[int, bytes]] = []
    pos = 0
    while pos + HEAD <= len(data):
        size, kind = _unpack_head(data, pos)
        if size < 4:
            raise ValueError(f"frame size {size}, expected at least 4")
        after = pos + 4 + size
        if after > len(data):
            break
        frames.append((kind, data[pos + HEAD : after]))
        pos = after
    return frames, data[pos:]


def decode_message(content: bytes) -> tuple[int, int, bytes, bytes]:
    """Decode a message frame's data: (timestamp in ns, attempts, id, body). Raises ValueError if it
    is too short."""
    if len(content) < MESSAGE_HEAD:
        raise ValueError(f"message of {len(content)} bytes, expected at least {MESSAGE_HEAD}")
    timestamp, attempts = _message_head(content)
    return timestamp, attempts, content[10:MESSAGE_HEAD], content[MESSAGE_HEAD:]
