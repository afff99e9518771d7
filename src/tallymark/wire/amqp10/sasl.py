"""The SASL security layer's frames [amqp-1.0 §5.3.3]: frame type 1, at most 512 bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from tallymark.wire.amqp10.composites import Composite, Row, read_composite, register
from tallymark.wire.amqp10.reader import Reader

OK: Final = 0
"""A sasl-code [amqp-1.0 §5.3.3.6]: authenticated."""
AUTH: Final = 1
"""Code: unspecified problem of credentials."""
SYS: Final = 2
"""Code: failure on our side."""
SYS_PERM: Final = 3
SYS_TEMP: Final = 4


class SaslFrame(Composite):
    """Base of the contents of SASL frames; equal when class and fields are."""


@final
@dataclass
class SaslMechanisms(SaslFrame):
    """Mechanisms that the server offers."""

    sasl_server_mechanisms: tuple[str, ...] = ()


@final
@dataclass
class SaslInit(SaslFrame):
    """Mechanism that the client chose, and its first response."""

    mechanism: str = ""
    initial_response: bytes | None = None
    hostname: str | None = None


@final
@dataclass
class SaslChallenge(SaslFrame):
    """Challenge of the server [amqp-1.0 §5.3.3.3]."""

    challenge: bytes = b""


@final
@dataclass
class SaslResponse(SaslFrame):
    """Response of the client [amqp-1.0 §5.3.3.4]."""

    response: bytes = b""


@final
@dataclass
class SaslOutcome(SaslFrame):
    """Outcome of the authentication."""

    code: int = 0
    additional_data: bytes | None = None


LAYOUTS: Final[tuple[Row, ...]] = (
    (
        0x40,
        "amqp:sasl-mechanisms:list",
        SaslMechanisms,
        "sasl-frame",
        "sasl_server_mechanisms:symbol*",
    ),
    (
        0x41,
        "amqp:sasl-init:list",
        SaslInit,
        "sasl-frame",
        "mechanism:symbol! initial_response:binary hostname:string",
    ),
    (0x42, "amqp:sasl-challenge:list", SaslChallenge, "sasl-frame", "challenge:binary!"),
    (0x43, "amqp:sasl-response:list", SaslResponse, "sasl-frame", "response:binary!"),
    (
        0x44,
        "amqp:sasl-outcome:list",
        SaslOutcome,
        "sasl-frame",
        "code:ubyte! additional_data:binary",
    ),
)
register(LAYOUTS)


def decode_sasl(data: bytes, pos: int, end: int) -> tuple[SaslFrame, int]:
    """Decode the SASL frame body that begins at `pos`; return it and its end. Raises
    DecodeError."""
    reader = Reader(data, pos, end)
    body = read_composite(reader, "sasl-frame")
    assert isinstance(body, SaslFrame)
    return body, reader.pos


def plain_response(user: str, password: str) -> bytes:
    """Return the initial response of mechanism PLAIN [RFC 4616]."""
    return b"\0" + user.encode() + b"\0" + password.encode()


def split_plain(response: bytes) -> tuple[str, str, str] | None:
    """Return identity, user and password of a PLAIN response; None: it is malformed."""
    parts = response.split(b"\0")
    if len(parts) != 3:
        return None
    try:
        return parts[0].decode(), parts[1].decode(), parts[2].decode()
    except UnicodeDecodeError:
        return None
