"""A message on its way to a client: method, header, bodies."""

from __future__ import annotations

from typing import final

from tallymark.wire.amqp091.errors import (
    FRAME_ERROR,
    SYNTAX_ERROR,
    UNEXPECTED_FRAME,
    WireError,
)
from tallymark.wire.amqp091.frames import BASIC, BODY, HEADER, OVERHEAD
from tallymark.wire.amqp091.kernel import MALFORMED, classify_section
from tallymark.wire.amqp091.methods import Method


@final
class Incoming:
    """An incomplete message. It takes the frames behind the method, one by one."""

    __slots__ = ("_parts", "method", "missing", "section")

    def __init__(self, method: Method) -> None:
        self.method = method
        self.section = b""
        """Property section; empty before the header came."""
        self.missing = 0
        """Bytes of the body that are missing."""
        self._parts: list[bytes] = []

    def add(self, kind: int, frame: bytes) -> bool:
        """Add the next frame of the channel, whole; True: the message is complete. Raises WireError
        for one that does not belong here."""
        if self.section:
            if kind != BODY:
                raise WireError(UNEXPECTED_FRAME, f"frame of type {kind}, expected a content body")
            size = len(frame) - OVERHEAD
            if size > self.missing:
                raise WireError(
                    FRAME_ERROR, f"content body of {size} bytes, {self.missing} remain of it"
                )
            self.missing -= size
            self._parts.append(frame[7:-1])
        else:
            if kind != HEADER:
                raise WireError(
                    UNEXPECTED_FRAME, f"frame of type {kind}, expected a content header"
                )
            self._add_header(frame)
        return self.missing == 0

    def _add_header(self, frame: bytes) -> None:
        if len(frame) < 14 + OVERHEAD or int.from_bytes(frame[7:9], "big") != BASIC:
            raise WireError(
                FRAME_ERROR,
                f"content header {frame[7:15].hex()}, expected one of class {BASIC}",
            )
        section = frame[19:-1]
        if classify_section(frame, 19, len(frame) - 1) == MALFORMED:
            raise WireError(SYNTAX_ERROR, "malformed properties in a content header")
        self.section = section
        self.missing = int.from_bytes(frame[11:19], "big")

    @property
    def body(self) -> bytes:
        parts = self._parts
        return parts[0] if len(parts) == 1 else b"".join(parts)
