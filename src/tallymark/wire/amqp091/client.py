"""A client's end of one AMQP 0-9-1 connection, without I/O and without a clock.

The owner calls `start`, passes bytes and time in, asks for events until there are none, and writes
the output of `take_output`. The owner carries out the handshake: it answers connection.start,
secure and tune (`send_tune_ok`), and sends open. A close of a channel, or of the connection, by the
server is answered before its event is returned.

Any bytes give events, or one `ProtocolFailure` with a `PeerClosed` behind it; never an exception.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from struct import Struct
from typing import Final, final

from tallymark.wire.amqp091.channel import Incoming
from tallymark.wire.amqp091.client_states import (
    CONTENT,
    FROM_SERVER,
    OVER,
    RECEIVING,
    SENDING,
    ClientChannelState,
    ClientState,
)
from tallymark.wire.amqp091.errors import (
    CHANNEL_ERROR,
    COMMAND_INVALID,
    CONNECTION,
    CONTENT_TOO_LARGE,
    FRAME_ERROR,
    UNEXPECTED_FRAME,
    WireError,
)
from tallymark.wire.amqp091.events import (
    ClientEvent,
    ContentReceived,
    MethodReceived,
    PeerClosed,
    ProtocolFailure,
)
from tallymark.wire.amqp091.frames import (
    BODY,
    FRAME_END,
    HEAD,
    HEADER,
    HEARTBEAT,
    HEARTBEAT_FRAME,
    METHOD,
    OVERHEAD,
    PROTOCOL_HEADER,
    content_frames,
    frame,
)
from tallymark.wire.amqp091.layouts import decode_method, encode_method, layout_of
from tallymark.wire.amqp091.limits import INITIAL_FRAME_MAX, Limits
from tallymark.wire.amqp091.methods import (
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ChannelOpenOk,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpenOk,
    ConnectionTune,
    ConnectionTuneOk,
    Method,
)
from tallymark.wire.amqp091.trace import line
from tallymark.wire.line import ALL, IN_TIME, LATE, NEVER, Line, MonotonicMs

CLOSING_TIMEOUT_MS: Final = 10_000
"""Time-out for the server's answer to connection.close, ms."""
CHANNEL_LIMIT: Final = 65_535

_frame_head: Final = Struct(">BHI").unpack_from


@final
class ClientChannel:
    """A channel that we opened; made by `ClientConnection.open_channel`."""

    __slots__ = ("incoming", "is_told", "number", "state")

    def __init__(self, number: int) -> None:
        self.number = number
        self.state = ClientChannelState.OPENING
        self.incoming: Incoming | None = None
        """Incomplete message; None if there is none."""
        self.is_told = False
        """True after the event that the server closed it."""


@final
class ClientConnection:
    """A client's connection. Not thread-safe; one owner. Times are monotonic milliseconds."""

    __slots__ = (
        "_channels",
        "_end_reason",
        "_events",
        "_free",
        "_frame_limit",
        "_state",
        "_trace",
        "channel_max",
        "frame_max",
        "limits",
        "line",
    )

    def __init__(self, limits: Limits, trace: Callable[[str], None] | None = None) -> None:
        """limits: handshake_timeout_ms, and max_message_bytes for received messages (0: no limit).
        channel_max, frame_max and heartbeat_s are proposals; the server may lower the first two."""
        self.limits = limits
        self.line = Line(HEAD, HEARTBEAT_FRAME, ALL, limits.handshake_timeout_ms, 0)
        self.channel_max = limits.channel_max or CHANNEL_LIMIT
        """Negotiated channel-max; our own before tune."""
        self.frame_max = limits.frame_max
        """Negotiated frame-max in bytes, 0: no limit; our own before tune."""
        self._trace = trace
        self._state = ClientState.NEW
        self._channels: dict[int, ClientChannel] = {}
        self._free = 1  # no number below it is free
        self._events: deque[ClientEvent] = deque()
        self._end_reason = ""  # of the end of input
        self._frame_limit = INITIAL_FRAME_MAX  # payload bytes

    @property
    def state(self) -> ClientState:
        return self._state

    @property
    def is_running(self) -> bool:
        return self._state is ClientState.RUNNING

    # Input

    def start(self, now_ms: MonotonicMs) -> None:
        """Begin the handshake; the transport is connected."""
        self.line.start(now_ms)
        self.line.out.append(PROTOCOL_HEADER)
        self._state = ClientState.GREETED

    def receive_data(self, data: bytes, now_ms: MonotonicMs) -> None:
        """Add received bytes; call next_event for their meaning."""
        self.line.receive(data, now_ms)

    def receive_end(self, reason: str) -> None:
        """Note the end of input: the server closed its side (""), or the error of the transport.
        PeerClosed follows the events of earlier input."""
        self.line.is_ended = True
        self._end_reason = reason or "the server closed the connection without a word"

    def next_event(self) -> ClientEvent | None:
        """Return the next event; None: more bytes or more time is needed. Never raises."""
        events = self._events
        line = self.line
        while not events:
            if self._state is ClientState.CLOSED:
                return None
            if not line.inbox.gather():
                if not line.is_ended:
                    return None
                self._end(self._end_reason, False)
                continue
            try:
                self._parse()
            except WireError as error:
                self._fail(error)
        return events.popleft()

    def _parse(self) -> None:
        """Process one frame, or set the bytes that the inbox needs."""
        inbox = self.line.inbox
        data = inbox.data
        pos = inbox.pos
        if self._state is ClientState.GREETED and data.startswith(b"AMQP", pos):
            offered = data[pos : pos + 8]
            self._end(f"the server does not speak AMQP 0-9-1, it offers {offered!r}", False)
            return
        kind, number, size = _frame_head(data, pos)
        if size > self._frame_limit:
            raise WireError(
                FRAME_ERROR, f"frame of {size} bytes, at most {self._frame_limit} expected"
            )
        after: int = pos + size + OVERHEAD
        if after > len(data):
            inbox.need = size + OVERHEAD
            return
        inbox.advance(after, HEAD)
        if data[after - 1] != FRAME_END:
            raise WireError(FRAME_ERROR, f"frame that ends with {data[after - 1]}, expected 206")
        self._frame(kind, number, data[pos:after])

    def _frame(self, kind: int, number: int, whole: bytes) -> None:
        if kind == HEARTBEAT:
            return
        if kind != METHOD and kind != HEADER and kind != BODY:
            raise WireError(FRAME_ERROR, f"frame of unknown type {kind}")
        if number:
            self._frame_of_channel(kind, number, whole)
        elif kind == METHOD:
            self._method_of_connection(decode_method(whole[7:-1]))
        else:
            raise WireError(UNEXPECTED_FRAME, f"frame of type {kind} on channel 0")

    def _method_of_connection(self, method: Method) -> None:
        self._show(False, 0, method)
        if isinstance(method, ConnectionClose):
            self._channels.clear()
            self._events.append(MethodReceived(0, method))
            self._write(0, ConnectionCloseOk())
            self._end("connection.close", True)
        elif isinstance(method, ConnectionCloseOk) and self._state is ClientState.CLOSING:
            self._end("connection.close-ok", True)
        elif self._state not in OVER:
            after = RECEIVING.get((self._state, type(method)))
            if after is None:
                raise _unexpected(method, f"in connection state {self._state.value}")
            if isinstance(method, ConnectionOpenOk):
                self.line.deadline_ms = NEVER
            self._state = after
            self._events.append(MethodReceived(0, method))

    def _frame_of_channel(self, kind: int, number: int, whole: bytes) -> None:
        if self._state is not ClientState.RUNNING:
            if self._state in OVER:
                return
            raise WireError(
                UNEXPECTED_FRAME, f"frame on channel {number} before connection.open-ok"
            )
        channel = self._channels.get(number)
        if channel is None:
            raise WireError(CHANNEL_ERROR, f"frame on channel {number}, which is not open")
        incoming = channel.incoming
        if incoming is not None:
            self._content(channel, incoming, kind, whole)
        elif kind == METHOD:
            self._method_of_channel(channel, decode_method(whole[7:-1]))
        elif channel.state is not ClientChannelState.CLOSING:
            raise WireError(UNEXPECTED_FRAME, f"frame of type {kind}, expected a method")

    def _method_of_channel(self, channel: ClientChannel, method: Method) -> None:
        number = channel.number
        if type(method) in CONTENT:
            if channel.state is ClientChannelState.OPENING:
                raise _unexpected(method, "before channel.open-ok")
            channel.incoming = Incoming(method)
            return
        self._show(False, number, method)
        if isinstance(method, ChannelClose):
            self._write(number, ChannelCloseOk())
            if channel.state is not ClientChannelState.CLOSING:
                self._forget(number)
            elif channel.is_told:
                return
            channel.is_told = True  # both sides closed at once: close-ok follows and is no event
        elif isinstance(method, ChannelCloseOk):
            if channel.state is not ClientChannelState.CLOSING:
                raise _unexpected(method, "on a channel that was not closed")
            self._forget(number)
            if channel.is_told:
                return
        elif channel.state is ClientChannelState.CLOSING:
            return
        elif isinstance(method, ChannelOpenOk):
            if channel.state is not ClientChannelState.OPENING:
                raise _unexpected(method, "on a channel that is open")
            channel.state = ClientChannelState.OPEN
        elif channel.state is ClientChannelState.OPENING:
            raise _unexpected(method, "before channel.open-ok")
        elif type(method) not in FROM_SERVER:
            raise _unexpected(method, "from a server")
        self._events.append(MethodReceived(number, method))

    def _content(self, channel: ClientChannel, incoming: Incoming, kind: int, whole: bytes) -> None:
        if not incoming.add(kind, whole):
            most = self.limits.max_message_bytes
            if 0 < most < incoming.missing:
                raise WireError(
                    CONTENT_TOO_LARGE,
                    f"message of {incoming.missing} bytes, at most {most} expected",
                )
            return
        channel.incoming = None
        if channel.state is ClientChannelState.CLOSING:
            return
        body = incoming.body
        self._show(False, channel.number, incoming.method, len(body))
        self._events.append(
            ContentReceived(channel.number, incoming.method, incoming.section, body)
        )

    def _forget(self, number: int) -> None:
        del self._channels[number]
        self._free = min(self._free, number)

    # Endings

    def _fail(self, error: WireError) -> None:
        """Close the connection because the server broke the protocol, without waiting for an
        answer."""
        if self._state is ClientState.RUNNING:
            self._write(
                0,
                ConnectionClose(
                    error.reply_code, error.reply_text, error.class_id, error.method_id
                ),
            )
        error.scope = CONNECTION
        self._events.append(ProtocolFailure(0, error))
        self._end(f"the server broke the protocol: {error}", False)

    def _end(self, reason: str, clean: bool) -> None:
        if self._state is not ClientState.CLOSED:
            self._state = ClientState.CLOSED
            self._channels.clear()
            self.line.stop_listening()
            self.line.deadline_ms = NEVER
            self._events.append(PeerClosed(reason, clean))

    # Time

    def next_deadline(self) -> MonotonicMs | None:
        """Return when tick is due; None: never."""
        if self._state is ClientState.CLOSED or self.line.now_ms < 0:
            return None
        return self.line.next_deadline(True)

    def tick(self, now_ms: MonotonicMs) -> None:
        """Send a due heartbeat, and detect a server that is dead or too slow (PeerClosed)."""
        line = self.line
        found = line.tick(now_ms, False, self._state is not ClientState.CLOSED)
        if found == IN_TIME or self._state is ClientState.CLOSED:
            return
        if found != LATE:
            self._end(f"nothing came from the server for {line.silence_ms // 1000} s", False)
        elif self._state is ClientState.CLOSING:
            self._end(f"no connection.close-ok within {CLOSING_TIMEOUT_MS} ms", False)
        else:
            after_ms = self.limits.handshake_timeout_ms
            self._end(f"handshake not complete after {after_ms} ms", False)

    # Output

    def take_output(self, now_ms: MonotonicMs) -> list[bytes]:
        """Take the output to write; see Line.take."""
        return self.line.take(now_ms)

    def send_handshake(self, method: Method) -> None:
        """Send the next step of the handshake: start-ok, secure-ok, open. Raises ValueError out of
        order."""
        after = SENDING.get((self._state, type(method)))
        if after is None:
            name = layout_of(method).name
            raise ValueError(f"{name} in connection state {self._state.value}")
        self._write(0, method)
        self._state = after

    def send_tune_ok(self, offered: ConnectionTune) -> None:
        """Send tune-ok with the lower of the offered and our own limits; the heartbeat is ours."""
        limits = self.limits
        channels = _lower(limits.channel_max, offered.channel_max)
        self.channel_max = channels or CHANNEL_LIMIT
        self.frame_max = _lower(limits.frame_max, offered.frame_max)
        # RabbitMQ's frames may exceed frame-max by their overhead; where frames have no limit, one
        # around the largest message is the largest there can be.
        self._frame_limit = self.frame_max or max(limits.max_message_bytes, 1 << 31)
        self.send_handshake(ConnectionTuneOk(channels, self.frame_max, limits.heartbeat_s))
        interval_ms = limits.heartbeat_s * 1000
        self.line.set_heartbeats(interval_ms // 2, 2 * interval_ms)

    def open_channel(self) -> ClientChannel:
        """Open a channel with the lowest free number. Methods may be sent on it at once. Raises
        ValueError if no channel is free, or the connection is not open."""
        if self._state is not ClientState.RUNNING:
            raise ValueError(f"the connection is {self._state.value}")
        number = self._free
        while number in self._channels:
            number += 1
        if number > self.channel_max:
            raise ValueError(f"{self.channel_max} channels are in use, which is all there are")
        self._free = number + 1
        channel = ClientChannel(number)
        self._channels[number] = channel
        self._write(number, ChannelOpen())
        return channel

    def send_method(self, channel: ClientChannel, method: Method) -> None:
        """Append a method. Dropped on a channel that is closing or closed.

        Raises ValueError for values that do not fit their fields; then nothing is sent.
        """
        if not self._may_send(channel):
            return
        self._write(channel.number, method)
        if isinstance(method, ChannelClose):
            channel.state = ClientChannelState.CLOSING

    def send_content(
        self, channel: ClientChannel, method: Method, section: bytes, body: bytes
    ) -> None:
        """Append a method with a message: property section and body. Dropped as by send_method.
        Raises ValueError for a section larger than one frame, since headers cannot be split."""
        if not self._may_send(channel):
            return
        size = len(section) + 12 + OVERHEAD
        if 0 < self.frame_max < size:
            raise ValueError(
                f"properties of {len(section)} bytes, a frame of {self.frame_max} has room for "
                f"{self.frame_max - 12 - OVERHEAD}"
            )
        number = channel.number
        self._write(number, method, len(body))
        self.line.out.append(content_frames(number, section, body, self.frame_max))

    def _may_send(self, channel: ClientChannel) -> bool:
        return (
            self._channels.get(channel.number) is channel
            and channel.state is not ClientChannelState.CLOSING
        )

    def close(self) -> None:
        """Begin to close the connection; one that is not open yet just ends. PeerClosed follows."""
        if self._state is ClientState.RUNNING or self._state is ClientState.OPENING:
            self._write(0, ConnectionClose(200, "closed by the application"))
            self._channels.clear()
            self._state = ClientState.CLOSING
            self.line.set_deadline(CLOSING_TIMEOUT_MS)
        elif self._state is not ClientState.CLOSING:
            self._end("closed before it was open", True)

    def _write(self, number: int, method: Method, content: int = -1) -> None:
        self.line.out.append(frame(METHOD, number, encode_method(method)))
        self._show(True, number, method, content)

    def _show(self, sent: bool, number: int, method: Method, content: int = -1) -> None:
        if self._trace is not None:
            self._trace(line(sent, number, method, content))


def _unexpected(method: Method, where: str) -> WireError:
    layout = layout_of(method)
    code = COMMAND_INVALID if where == "from a server" else CHANNEL_ERROR
    return WireError(code, f"unexpected {layout.name} {where}", layout.class_id, layout.method_id)


def _lower(ours: int, theirs: int) -> int:
    """Return the lower of two limits, where 0 means none."""
    return min(ours, theirs) if ours and theirs else ours or theirs
