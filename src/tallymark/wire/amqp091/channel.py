"""One channel on the peer's side: its state, the methods legal on it, and an incomplete publish."""

from __future__ import annotations

from typing import final

from tallymark.wire.amqp091.content import PUBLISH, PUBLISH_METHOD_ID, Content
from tallymark.wire.amqp091.errors import (
    CHANNEL_ERROR,
    COMMAND_INVALID,
    PRECONDITION_FAILED,
    UNEXPECTED_FRAME,
    WireError,
)
from tallymark.wire.amqp091.events import Event, MethodReceived, ProtocolFailure
from tallymark.wire.amqp091.frames import BASIC, METHOD
from tallymark.wire.amqp091.kernel import ack_prefix, is_publish_frame
from tallymark.wire.amqp091.layouts import decode_method, layout_of
from tallymark.wire.amqp091.methods import ChannelClose, ChannelCloseOk, ChannelOpen
from tallymark.wire.amqp091.states import FROM_CLIENT, ChannelState


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
        return 0 if self.content is None else len(self.content.raw)

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
