"""Commands of the client's side, as bytes [NQ-1]. For tests, tools and our own clients."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

MAGIC: Final = b"  V2"
NOP: Final = b"NOP\n"
CLS: Final = b"CLS\n"

_pack_size: Final = Struct(">I").pack


def sized(body: bytes) -> bytes:
    return _pack_size(len(body)) + body


def identify(body: bytes) -> bytes:
    """Make an IDENTIFY; `body` is JSON."""
    return b"IDENTIFY\n" + sized(body)


def auth(secret: bytes) -> bytes:
    return b"AUTH\n" + sized(secret)


def sub(topic: str, channel: str) -> bytes:
    return f"SUB {topic} {channel}\n".encode()


def pub(topic: str, body: bytes) -> bytes:
    return f"PUB {topic}\n".encode() + sized(body)


def dpub(topic: str, delay_ms: int, body: bytes) -> bytes:
    return f"DPUB {topic} {delay_ms}\n".encode() + sized(body)


def mpub(topic: str, bodies: Sequence[bytes]) -> bytes:
    body = _pack_size(len(bodies)) + b"".join([sized(body) for body in bodies])
    return f"MPUB {topic}\n".encode() + sized(body)


def rdy(count: int) -> bytes:
    return f"RDY {count}\n".encode()


def fin(message_id: int) -> bytes:
    return f"FIN {message_id:016x}\n".encode()


def req(message_id: int, delay_ms: int) -> bytes:
    return f"REQ {message_id:016x} {delay_ms}\n".encode()


def touch(message_id: int) -> bytes:
    return f"TOUCH {message_id:016x}\n".encode()
