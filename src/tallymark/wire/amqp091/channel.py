"""One channel on the peer's side: its state, the methods legal on it, and an incomplete publish,
which arrives in several frames [amqp-0.9.1 §4.2.6].

Whole single-frame publishes never get here: the kernel takes them as stretches. States of
`Content`, after RabbitMQ's command assembler: a header is awaited, then body frames until the
announced size is there.
"""

from __future__ import annotations

from array import array
from typing import Final, final

from tallymark.wire.amqp091.errors import (
    CHANNEL_ERROR,
    COMMAND_INVALID,
    FRAME_ERROR,
    PRECONDITION_FAILED,
    SYNTAX_ERROR,
    UNEXPECTED_FRAME,
    WireError,
)
from tallymark.wire.amqp091.events import Event, MethodReceived, ProtocolFailure
from tallymark.wire.amqp091.frames import BASIC, BODY, HEADER, METHOD, OVERHEAD
from tallymark.wire.amqp091.kernel import (
    MALFORMED,
    PublishReceived,
    ack_prefix,
    classify_section,
    is_publish_frame,
)
from tallymark.wire.amqp091.layouts import decode_method, layout_of
from tallymark.wire.amqp091.methods import ChannelClose, ChannelCloseOk, ChannelOpen, Method
from tallymark.wire.amqp091.states import FROM_CLIENT, ChannelState

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

    __slots__ = (
        "_head", "_parts", "_small", "channel", "facts", "largest", "method", "missing", "size",
    )  # fmt: skip

    def __init__(self, channel: int, method: bytes) -> None:
        self.channel = channel
        self.method = method
        """Whole method frame."""
        self.size = len(method)
        """Bytes of all frames."""
        self.missing = 0
        """Bytes of the body that are missing."""
        self._head = 0
        """Offset of the body; 0 while the header is awaited."""
        self._parts = [method]
        """Whole frames, without the last one if that is small."""
        self._small = bytearray()
        """Last frame, if it is a body frame that others may be joined to."""
        self.facts = 0
        self.largest = 0

    def add(self, kind: int, frame: bytes) -> bool:
        """Add the next frame of the channel; True: the message is complete. Raises WireError 501,
        502 or 505 for a frame that does not belong here."""
        if self._head:
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
        self._parts.append(frame)
        self.size += len(frame)
        self._head = self.size
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
        small = self._small
        before = len(small) - OVERHEAD if small else MERGE_LIMIT
        if before + size <= MERGE_LIMIT:
            self.size += size
            size += before
            small.pop()
            small += memoryview(frame)[7:]
            small[3:7] = size.to_bytes(4, "big")
        else:
            self.size += len(frame)
            self._keep_small()
            if size < MERGE_LIMIT:
                small += frame
            else:
                self._parts.append(frame)
        self.largest = max(self.largest, size + OVERHEAD)

    def _keep_small(self) -> None:
        """Add the last frame to the others: nothing is joined to it any more."""
        if self._small:
            self._parts.append(bytes(self._small))
            self._small.clear()

    def finish(self) -> PublishReceived:
        """Return the complete message as a stretch of one."""
        self._keep_small()
        raw = b"".join(self._parts)
        return PublishReceived(
            self.channel,
            raw,
            array("I", (0, len(raw))),
            [0],
            [self.method],
            self.facts,
            raw[len(self.method) + 19 : self._head - 1],
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


@final
class Channel:
    """A channel that the peer opened; made by its channel.open."""

    __slots__ = ("ack_prefix", "body_limit", "content", "number", "state")

    def __init__(self, number: int, body_limit: int) -> None:
        self.number = number
        self.state = ChannelState.OPEN
        self.body_limit = body_limit
        """Largest body in bytes."""
        self.content: Content | None = None
        """Incomplete publish; None if there is none. The kernel handles publishes that arrive
        whole."""
        self.ack_prefix = ack_prefix(number)
        """First bytes of every basic.ack, in both directions."""

    def is_open(self) -> bool:
        return self.state is ChannelState.OPEN

    def is_closed(self) -> bool:
        return self.state is ChannelState.CLOSED

    def is_idle(self) -> bool:
        """Return whether the channel is open and between two methods."""
        return self.content is None and self.state is ChannelState.OPEN

    def held(self) -> int:
        """Return the bytes kept of an incomplete publish."""
        return 0 if self.content is None else self.content.size

    def receive(self, kind: int, whole: bytes) -> Event | None:
        """Process a method, header or body frame while OPEN. Raises WireError for one out of
        place."""
        content = self.content
        if content is not None:
            return self._receive_content(content, kind, whole)
        if kind != METHOD:
            raise WireError(UNEXPECTED_FRAME, "expected method frame, got non method frame instead")
        if int.from_bytes(whole[7:11], "big") == PUBLISH and is_publish_frame(whole):
            self.content = Content(self.number, whole)
            return None
        method = decode_method(whole[7:-1])
        layout = layout_of(method)
        if type(method) not in FROM_CLIENT or isinstance(method, ChannelCloseOk):
            raise WireError(
                COMMAND_INVALID, "unimplemented method", layout.class_id, layout.method_id
            )
        if isinstance(method, ChannelOpen):
            raise WireError(
                CHANNEL_ERROR, "second 'channel.open' seen", layout.class_id, layout.method_id
            )
        if isinstance(method, ChannelClose):
            self.state = ChannelState.CLOSED
        return MethodReceived(self.number, method)

    def _receive_content(self, content: Content, kind: int, whole: bytes) -> Event | None:
        if content.add(kind, whole):
            self.content = None
            return content.finish()
        if content.missing > self.body_limit:
            self.state = ChannelState.FAILED
            self.content = None
            return ProtocolFailure(
                self.number,
                WireError(
                    PRECONDITION_FAILED,
                    f"message size {content.missing} is larger than configured max size "
                    f"{self.body_limit}",
                    BASIC,
                    PUBLISH_METHOD_ID,
                ),
            )
        return None
