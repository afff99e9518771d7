"""Content assembly: publishes that arrive in several frames [amqp-0.9.1 §4.2.6].

Whole single-frame publishes never get here: the kernel takes them as stretches. States, after
RabbitMQ's command assembler: a header is awaited, then body frames until the announced size is
there.
"""

from __future__ import annotations

from array import array
from typing import Final, final

from tallymark.wire.amqp091.errors import (
    FRAME_ERROR,
    SYNTAX_ERROR,
    UNEXPECTED_FRAME,
    WireError,
)
from tallymark.wire.amqp091.events import PublishReceived
from tallymark.wire.amqp091.frames import BASIC, BODY, HEADER, OVERHEAD
from tallymark.wire.amqp091.kernel import MALFORMED, classify_section
from tallymark.wire.amqp091.methods import Method

PUBLISH_METHOD_ID: Final = 40
PUBLISH: Final = BASIC << 16 | PUBLISH_METHOD_ID

MERGE_LIMIT: Final = 4088
"""Payload bytes up to which small body frames are joined as they arrive: the content of the
smallest frame-max. It keeps framing below 0.5 % of a body that arrives byte by byte in frames of
its own, which would otherwise take nine times its size, and drops empty frames, of which there
might be very many."""


def wrong_frame(text: str) -> WireError:
    return WireError(UNEXPECTED_FRAME, text, BASIC, PUBLISH_METHOD_ID)


@final
class Content:
    """The incomplete publish on one channel."""

    __slots__ = ("channel", "facts", "head", "largest", "last", "method", "missing", "raw")

    def __init__(self, channel: int, method: bytes) -> None:
        self.channel = channel
        self.method = method
        """Whole method frame."""
        self.raw = bytearray(method)
        self.head = 0
        """Offset of the body in raw; 0 while the header is awaited."""
        self.missing = 0
        """Bytes of the body that are missing."""
        self.last = 0
        """Offset of the last body frame in raw; 0: there is none."""
        self.facts = 0
        self.largest = 0

    def add(self, kind: int, frame: bytes) -> bool:
        """Add the next frame of the channel; True: the message is complete. Raises WireError 501,
        502 or 505 for a frame that does not belong here."""
        if self.head:
            if kind != BODY:
                raise wrong_frame("expected content body, got non content body frame instead")
            self._add_body(frame)
        else:
            if kind != HEADER:
                raise wrong_frame(
                    f"expected content header for class {BASIC}, "
                    "got non content header frame instead"
                )
            self._add_header(frame)
        return self.missing == 0

    def _add_header(self, frame: bytes) -> None:
        if len(frame) < 12 + OVERHEAD:
            raise WireError(
                FRAME_ERROR,
                f"content header of {len(frame) - OVERHEAD} bytes, at least 12 expected",
            )
        class_id = int.from_bytes(frame[7:9], "big")
        if frame[9] or frame[10]:
            raise wrong_frame(
                f"expected content header for class {BASIC}, got non content header frame instead"
            )
        if class_id != BASIC:
            raise wrong_frame(
                f"expected content header for class {BASIC}, got one for class {class_id} instead"
            )
        self.facts = classify_section(frame, 19, len(frame) - 1)
        if self.facts == MALFORMED:
            raise WireError(
                SYNTAX_ERROR, "malformed properties in content header", BASIC, PUBLISH_METHOD_ID
            )
        self.missing = int.from_bytes(frame[11:19], "big")
        self.raw += frame
        self.head = len(self.raw)
        self.largest = len(frame)

    def _add_body(self, frame: bytes) -> None:
        size = len(frame) - OVERHEAD
        if size > self.missing:
            raise WireError(
                FRAME_ERROR,
                "content body frame exceeds remaining content size",
                BASIC,
                PUBLISH_METHOD_ID,
            )
        if size == 0:
            return
        self.missing -= size
        raw = self.raw
        last = self.last
        before = len(raw) - last - OVERHEAD if last else MERGE_LIMIT
        if before + size <= MERGE_LIMIT:
            raw.pop()
            raw += memoryview(frame)[7:]
            raw[last + 3 : last + 7] = (before + size).to_bytes(4, "big")
            size += before
        else:
            self.last = len(raw)
            raw += frame
        self.largest = max(self.largest, size + OVERHEAD)

    def finish(self) -> PublishReceived:
        """Return the complete message as a stretch of one."""
        raw = bytes(self.raw)
        return PublishReceived(
            self.channel,
            raw,
            array("I", (0, len(raw))),
            [0],
            [self.method],
            self.facts,
            raw[len(self.method) + 19 : self.head - 1],
            True,
            self.largest,
        )


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
