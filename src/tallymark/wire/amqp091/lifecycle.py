"""Lifecycle of a server's AMQP 0-9-1 connection: its state, its end and its output.
connection.py handles input and time."""

from __future__ import annotations

from collections import deque
from typing import Final, final

from tallymark.wire.amqp091.channel import Channel
from tallymark.wire.amqp091.errors import CONNECTION, WireError
from tallymark.wire.amqp091.events import Event, PeerClosed, ProtocolFailure
from tallymark.wire.amqp091.frames import HEARTBEAT_FRAME, METHOD, content_frames, frame
from tallymark.wire.amqp091.layouts import encode_method, layout_of
from tallymark.wire.amqp091.limits import Limits
from tallymark.wire.amqp091.methods import (
    ChannelClose,
    ChannelCloseOk,
    ChannelOpenOk,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpenOk,
    ConnectionStart,
    ConnectionTune,
    Method,
)
from tallymark.wire.amqp091.states import HANDSHAKE, LOGGED_IN, OVER, SENDING, ChannelState, State
from tallymark.wire.line import DEAF_TIMEOUT_MS, NEVER, Line, MonotonicMs

EARLY_MAX: Final = 65_536
"""Bytes a peer may send ahead while the handshake waits for us."""


@final
class Greeting:
    """connection.start of a server, whose server properties are the same for every client: encoded
    once for each version and each list of mechanisms."""

    __slots__ = ("_frames", "_properties")

    def __init__(self, server_properties: dict[str, object]) -> None:
        self._properties = server_properties
        self._frames: dict[tuple[int, int, bytes], bytes] = {}

    def frame(self, major: int, minor: int, mechanisms: bytes) -> bytes:
        """Return the frame; `mechanisms` is a list separated by spaces."""
        key = (major, minor, mechanisms)
        found = self._frames.get(key)
        if found is None:
            method = ConnectionStart(major, minor, self._properties, mechanisms, b"en_US")
            found = self._frames[key] = frame(METHOD, 0, encode_method(method))
        return found


class Lifecycle:
    """Base of `Connection`."""

    __slots__ = (
        "_channels",
        "_events",
        "_known",
        "_state",
        "channel_max",
        "frame_max",
        "limits",
        "line",
        "version",
    )

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.line = Line(8, HEARTBEAT_FRAME, limits.steps, limits.handshake_timeout_ms, EARLY_MAX)
        self.channel_max = limits.channel_max
        """Negotiated channel-max; our own before tune-ok."""
        self.frame_max = limits.frame_max
        """Negotiated frame-max in bytes, 0: no limit; our own before tune-ok."""
        self.version = (0, 9, 1)
        self._state = State.HEADER
        self._channels: dict[int, Channel] = {}
        self._events: deque[Event] = deque()
        self._known: dict[bytes, bytes] = {}

    @property
    def state(self) -> State:
        return self._state

    @property
    def is_over(self) -> bool:
        """Return whether the connection is ending, by either side: input has no effect."""
        return self._state in OVER

    # Endings

    def _drop_channels(self) -> None:
        self._channels.clear()
        self._known.clear()
        self.line.unfinished = 0

    def _fail(self, error: WireError) -> None:
        """End the connection because the peer broke the protocol."""
        if self._state in OVER:
            return
        may_answer = self._state in LOGGED_IN
        self._state = State.FAILED
        self._drop_channels()
        error.scope = CONNECTION
        self._events.append(ProtocolFailure(0, error))
        if may_answer:
            self.line.await_close()
        else:
            self._end(f"not answered: {error}", False)

    def _stop_listening(self) -> None:
        """Discard all further input, because frame boundaries are unknown."""
        self.line.stop_listening()
        if self._state is State.CLOSING:
            self.line.set_deadline(DEAF_TIMEOUT_MS)

    def _end(self, reason: str, clean: bool) -> None:
        if self._state is State.CLOSED:
            return
        self._state = State.CLOSED
        self._drop_channels()
        self._stop_listening()
        self.line.deadline_ms = NEVER
        self._events.append(PeerClosed(reason, clean))

    # Output

    def take_output(self, now_ms: MonotonicMs) -> list[bytes]:
        """Take the output to write; see Line.take."""
        return self.line.take(now_ms)

    def send_start(self, greeting: Greeting, mechanisms: bytes) -> None:
        """Answer Opening with connection.start; `mechanisms` is a list separated by spaces."""
        if self._send_on_connection(ConnectionStart(0, 0, {}, b"", b"")):
            major, minor, _ = self.version
            self.line.out.append(greeting.frame(major, minor, mechanisms))

    def send_tune(self) -> None:
        """Send connection.tune with our limits, after the credentials were accepted."""
        limits = self.limits
        self.send_method(
            0, ConnectionTune(limits.channel_max, limits.frame_max, limits.heartbeat_s)
        )

    def send_method(self, channel: int, method: Method) -> None:
        """Append a method frame and apply its effect on the states.

        Dropped where nothing may be sent: on a connection that is over or not yet open, a channel
        that is closing or closed. Raises ValueError for values that do not fit their fields, and
        for a step of the handshake out of turn.
        """
        if channel:
            if self._state is not State.RUNNING:
                return
            if not self._send_on_channel(channel, method):
                return
        elif not self._send_on_connection(method):
            return
        payload = encode_method(method)
        if self.version[0] == 8 and isinstance(method, ChannelOpenOk):
            payload = payload[:4]  # has no fields there
        self.line.out.append(frame(METHOD, channel, payload))

    def _send_on_channel(self, number: int, method: Method) -> bool:
        channel = self._channels.get(number)
        if channel is None:  # closed by the peer
            return isinstance(method, ChannelCloseOk)
        if isinstance(method, ChannelClose):
            if channel.state is ChannelState.CLOSING:
                return False
            channel.state = ChannelState.CLOSING
            self.line.unfinished -= channel.held()
            channel.content = None
            return True
        return channel.state is ChannelState.OPEN

    def _send_on_connection(self, method: Method) -> bool:
        after = SENDING.get((self._state, type(method)))
        if after is None:
            if self._state in OVER:
                return False
            if isinstance(method, ConnectionClose):
                self._end("closed before the protocol header came", False)
                return False
            if type(method) in HANDSHAKE or isinstance(method, ConnectionCloseOk):
                raise ValueError(
                    f"{layout_of(method).name} in connection state {self._state.value}"
                )
            return self._state is State.RUNNING
        if isinstance(method, ConnectionClose):
            self._close_state()
        elif isinstance(method, ConnectionCloseOk):
            self._end("connection.close", True)
        else:
            if isinstance(method, ConnectionOpenOk):
                self.line.deadline_ms = NEVER
            self._state = after
        return True

    def _close_state(self) -> None:
        self._state = State.CLOSING
        self._drop_channels()
        self.line.await_close()

    def send_close(self, channel: int, error: WireError) -> None:
        """Close the channel, or the connection if `error.scope` says so (channel 0: the
        connection), with the peer's error.

        For a connection that may not be answered nothing is written.
        """
        if channel and error.scope != CONNECTION:
            self.send_method(
                channel,
                ChannelClose(error.reply_code, error.reply_text, error.class_id, error.method_id),
            )
        else:
            self.send_method(
                0,
                ConnectionClose(
                    error.reply_code, error.reply_text, error.class_id, error.method_id
                ),
            )

    def send_content(self, channel: int, method: Method, header: bytes, body_frames: bytes) -> None:
        """Append a method and its content as complete frames of this channel (either may contain
        both). No other frame comes between them."""
        known = self._channels.get(channel)
        if known is not None and known.is_open() and self._state is State.RUNNING:
            self.send_method(channel, method)
            self.line.out.append(header)
            self.line.content_bytes += len(header) + len(body_frames)
            if body_frames:
                self.line.out.append(body_frames)

    def send_message(self, channel: int, method: Method, properties: bytes, body: bytes) -> None:
        """Append a method and its content, framed for the negotiated frame-max. properties: a
        property section."""
        self.send_content(
            channel, method, content_frames(channel, properties, body, self.frame_max), b""
        )
