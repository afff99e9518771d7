"""A server's end of one AMQP 0-9-1 connection, without I/O and without a clock.

The owner passes bytes and time in, asks for events until there are none, and writes the output of
`take_output`. Bytes are processed only when an event is asked for. So the owner's answer to one
event (such as a channel.close) takes effect before the next frame is read, however the bytes
arrived.

Any bytes result in events, or in one fatal `ProtocolFailure`, and never in an exception. The memory
used is bounded: one incomplete frame, or one incomplete single-frame publish, and the unfinished
contents of all channels up to `Limits.unfinished_bytes`.
"""

from __future__ import annotations

from typing import Final, final

from tallymark.wire.amqp091.channel import PUBLISH, Channel
from tallymark.wire.amqp091.errors import (
    CHANNEL_ERROR,
    FRAME_ERROR,
    RESOURCE_ERROR,
    UNEXPECTED_FRAME,
    WireError,
)
from tallymark.wire.amqp091.events import AckRange, Event, MethodReceived, Opening
from tallymark.wire.amqp091.frames import (
    BASIC,
    BODY,
    FRAME_END,
    HEAD,
    HEADER,
    HEARTBEAT,
    METHOD,
    OVERHEAD,
    PROTOCOL_HEADER,
    frame,
    snippet,
)
from tallymark.wire.amqp091.kernel import (
    Prelude,
    prelude_of,
    publish_needs,
    scan_acks,
    scan_publishes,
)
from tallymark.wire.amqp091.layouts import decode_method, encode_method, layout_of
from tallymark.wire.amqp091.lifecycle import EARLY_MAX, Lifecycle
from tallymark.wire.amqp091.limits import INITIAL_FRAME_MAX, Limits, check_tune
from tallymark.wire.amqp091.methods import (
    ChannelCloseOk,
    ChannelOpen,
    ConnectionCloseOk,
    ConnectionTuneOk,
    Method,
)
from tallymark.wire.amqp091.states import OUR_TURN, OVER, RECEIVING, ChannelState, State
from tallymark.wire.line import IN_TIME, LATE, MonotonicMs
from tallymark.wire.octets import u16, u32

__all__ = ["Connection", "Limits"]

_ACK: Final = BASIC << 16 | 80
_CHANNEL_CLOSE: Final = 20 << 16 | 40
_CHANNEL_CLOSE_OK: Final = 20 << 16 | 41
_CONNECTION_CLOSE: Final = 10 << 16 | 50
_CONNECTION_CLOSE_OK: Final = 10 << 16 | 51

UNLIMITED_FRAME_MIN: Final = 131_072
"""Payload bytes that always fit a frame when no frame-max was negotiated."""

# Protocol headers accepted, and the version connection.start then names. 0-9 and 0-8 are read as
# 0-9-1, which changed nothing they need [rabbitmq rabbit_reader]. 0-8 has two: most clients send
# its number, py-amqplib what its specification as published says.
VERSIONS: Final[dict[bytes, tuple[int, int, int]]] = {
    b"AMQP\0\0\x09\x01": (0, 9, 1),
    b"AMQP\x01\x01\0\x09": (0, 9, 0),
    b"AMQP\x01\x01\x08\0": (8, 0, 0),
    b"AMQP\x01\x01\x09\x01": (8, 0, 0),
}


@final
class Connection(Lifecycle):
    """A server's connection. Not thread-safe; one owner. Times are monotonic milliseconds."""

    __slots__ = ("_acking", "_prelude", "_frame_limit")

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self._frame_limit = INITIAL_FRAME_MAX  # payload bytes
        self._prelude: Prelude | None = None
        """That of the last message that was published alone."""
        self._acking: Channel | None = None
        """Channel of the last acknowledgements: more of them are mostly on the same."""

    def begin_open(self, channel: int) -> None:
        """Be open from the start, with this channel open: for frames that come without a
        handshake."""
        self._state = State.RUNNING
        self._frame_limit = self.limits.frame_max
        self._channels[channel] = Channel(channel, self.limits.max_message_bytes)

    # Input

    def receive_data(self, data: bytes, now_ms: MonotonicMs) -> None:
        """Add received bytes, or continue with earlier ones. Never raises; call next_event for
        their meaning. O(1)."""
        line = self.line
        line.receive(data, now_ms)
        if self._state in OUR_TURN and line.is_early():
            ahead = f"{line.inbox.waiting} bytes sent ahead of our answer"
            self._fail(WireError(RESOURCE_ERROR, f"{ahead}, at most {EARLY_MAX} expected"))
            self._stop_listening()

    def receive_eof(self) -> None:
        """Note the end of the peer's input. PeerClosed follows the events of earlier input."""
        self.line.is_ended = True

    def next_event(self) -> Event | None:
        """Return the next event; None: more bytes or more time is needed. Never raises."""
        events = self._events
        line = self.line
        while not events:
            if self._state is State.CLOSED:
                return None
            if self._state in OUR_TURN or not line.inbox.gather():
                if not line.is_ended:
                    return None
                self._end("closed by the peer without a closing handshake", False)
                continue
            if line.steps <= 0 and not line.is_ended:
                return None
            line.steps -= 1
            try:
                self._parse()
            except WireError as error:
                self._fail(error)
        return events.popleft()

    def _parse(self) -> None:
        """Process one frame, or one stretch of frames; or set the bytes that the inbox needs."""
        inbox = self.line.inbox
        data = inbox.data
        pos = inbox.pos
        end = len(data)
        is_running = self._state is State.RUNNING
        if is_running:
            prelude = self._prelude
            if prelude is not None:
                stretch = prelude.next(data, pos)
                if stretch is not None:
                    channel = self._channels.get(stretch.channel)
                    if channel is not None and channel.is_idle():
                        inbox.advance(pos + len(stretch.raw), HEAD)
                        self._events.append(stretch)
                        return
            acking = self._acking
            if acking is not None and acking.is_idle() and self._scan(acking, _ACK):
                return
        elif self._state is State.HEADER:
            self._read_protocol_header()
            return
        kind: int = data[pos]
        number: int = u16(data, pos + 1)
        size: int = u32(data, pos + 3)
        if size > self._frame_limit:
            self._stop_listening()
            most = self._frame_limit - OVERHEAD
            raise WireError(
                FRAME_ERROR,
                f"type {kind}, all octets = <<>>: {{frame_too_large,{size},{most}}}",
            )
        total: int = size + OVERHEAD
        if is_running and kind == METHOD and pos + 11 <= end:
            method_id: int = u32(data, pos + 7)
            if method_id in (PUBLISH, _ACK):
                channel = self._channels.get(number)
                if channel is not None and channel.is_idle() and self._scan(channel, method_id):
                    return
        if pos + total > end:
            inbox.need = total
            return
        inbox.advance(pos + total, HEAD)
        if data[pos + total - 1] != FRAME_END:
            self._stop_listening()
            octets = snippet(data[pos + 7 : pos + 7 + size])
            marker = data[pos + total - 1]
            raise WireError(
                FRAME_ERROR, f"type {kind}, {octets}: {{invalid_frame_end_marker,{marker}}}"
            )
        # Compiled, a slice of all is a copy, too.
        self._frame(kind, number, data if total == end else data[pos : pos + total])

    def _scan(self, channel: Channel, method_id: int) -> bool:
        """Try the fast paths. False: no complete publish or ack is next; the frame must be read
        singly."""
        inbox = self.line.inbox
        data = inbox.data
        pos = inbox.pos
        end = len(data)
        if method_id == _ACK:
            after, first, last, multiple = scan_acks(data, pos, end, channel.ack_prefix)
            if after == pos:
                return False
            self._acking = channel
            inbox.advance(after, HEAD)
            self._events.append(AckRange(channel.number, first, last, multiple))
            return True
        most = self.limits.max_message_bytes
        limit = self._frame_limit
        stretch = scan_publishes(data, pos, end, channel.number, limit, most, self._known)
        if stretch is not None:
            if len(stretch.cuts) == 2:
                self._prelude = prelude_of(stretch)
            inbox.advance(pos + len(stretch.raw), HEAD)
            self._events.append(stretch)
            return True
        need = publish_needs(data, pos, end, channel.number, limit, most)
        if need:
            inbox.need = need
        return need > 0

    def _read_protocol_header(self) -> None:
        inbox = self.line.inbox
        header = inbox.data[inbox.pos : inbox.pos + 8]
        inbox.advance(inbox.pos + 8, HEAD)
        version = VERSIONS.get(header)
        if version is None:
            self.line.out.append(PROTOCOL_HEADER)
            self._stop_listening()
            raise WireError(
                FRAME_ERROR, f"protocol header {header!r}, expected {PROTOCOL_HEADER!r}"
            )
        self.version = version
        self._state = State.OPENED
        self._events.append(Opening(version[0], version[1], version[2]))

    def _frame(self, kind: int, number: int, whole: bytes) -> None:
        """Process one complete frame, if its kind is allowed in this state."""
        if self._state in OVER:
            self._frame_when_over(kind, number, whole)
            return
        if kind == HEARTBEAT:
            if len(whole) > OVERHEAD:
                raise self._unknown_frame(kind, whole)
            if number:
                raise self._unexpected_frame(kind, whole)
        elif kind != METHOD and kind != HEADER and kind != BODY:
            raise self._unknown_frame(kind, whole)
        elif number == 0:
            if kind != METHOD:
                raise self._unexpected_frame(kind, whole)
            self._method_of_connection(decode_method(whole[7:-1]))
        elif self._state is not State.RUNNING:
            raise self._unexpected_frame(kind, whole)
        else:
            self._frame_of_channel(kind, number, whole)

    def _unknown_frame(self, kind: int, whole: bytes) -> WireError:
        return WireError(FRAME_ERROR, f"type {kind}, {snippet(whole[7:-1])}: unknown_frame")

    def _unexpected_frame(self, kind: int, whole: bytes) -> WireError:
        return WireError(UNEXPECTED_FRAME, f"type {kind}, {snippet(whole[7:-1])}")

    def _method_of_connection(self, method: Method) -> None:
        after = RECEIVING.get((self._state, type(method)))
        if after is None:
            layout = layout_of(method)
            raise WireError(
                CHANNEL_ERROR,
                f"unexpected method in connection state {self._state.value}",
                layout.class_id,
                layout.method_id,
            )
        if isinstance(method, ConnectionTuneOk):
            self._tune(method)
        self._state = after
        if after is State.PEER_CLOSING:
            self._drop_channels()
        self._events.append(MethodReceived(0, method))

    def _tune(self, method: ConnectionTuneOk) -> None:
        check_tune(self.limits, method)
        self.channel_max = method.channel_max or 65535
        self.frame_max = method.frame_max
        # RabbitMQ lets a frame exceed frame-max by its overhead: "quite a few get it wrong". Where
        # frames have no limit, one around the largest body is the largest there can be.
        most = max(self.limits.max_message_bytes, UNLIMITED_FRAME_MIN)
        self._frame_limit = method.frame_max or most
        interval_ms = method.heartbeat * 1000
        self.line.set_heartbeats(interval_ms // 2, 2 * interval_ms)

    def _frame_of_channel(self, kind: int, number: int, whole: bytes) -> None:
        if number > self.channel_max:
            raise WireError(
                CHANNEL_ERROR,
                f"channel number {number} is greater than the negotiated channel_max "
                f"({self.channel_max})",
            )
        channel = self._channels.get(number)
        if channel is None:
            self._frame_of_closed_channel(kind, number, whole)
        elif not channel.is_open():
            self._frame_when_closing(channel, kind, whole)
        else:
            before = channel.held()
            event = channel.receive(kind, whole)
            self._count_unfinished(channel.held() - before)
            if channel.is_closed():
                del self._channels[number]
            if event is not None:
                self._events.append(event)

    def _count_unfinished(self, change: int) -> None:
        line = self.line
        line.unfinished += change
        most = self.limits.unfinished_bytes()
        if change > 0 and line.unfinished > most:
            raise WireError(
                RESOURCE_ERROR,
                f"unfinished contents of {line.unfinished} bytes on all channels together, "
                f"at most {most} allowed",
            )

    def _frame_of_closed_channel(self, kind: int, number: int, whole: bytes) -> None:
        if kind != METHOD:
            raise WireError(UNEXPECTED_FRAME, "expected method frame, got non method frame instead")
        method = decode_method(whole[7:-1])
        if not isinstance(method, ChannelOpen):
            layout = layout_of(method)
            raise WireError(
                CHANNEL_ERROR, "expected 'channel.open'", layout.class_id, layout.method_id
            )
        self._channels[number] = Channel(number, self.limits.max_message_bytes)
        self._events.append(MethodReceived(number, method))

    def _frame_when_closing(self, channel: Channel, kind: int, whole: bytes) -> None:
        """Drop all frames except those of the closing handshake [amqp-0.9.1 channel.close]."""
        if kind != METHOD or len(whole) < 4 + OVERHEAD:
            return
        method_id = int.from_bytes(whole[7:11], "big")
        if method_id == _CHANNEL_CLOSE:
            self.line.out.append(frame(METHOD, channel.number, encode_method(ChannelCloseOk())))
            if channel.state is ChannelState.FAILED:
                del self._channels[channel.number]
                self._events.append(MethodReceived(channel.number, ChannelCloseOk()))
        elif method_id == _CHANNEL_CLOSE_OK and channel.state is ChannelState.CLOSING:
            del self._channels[channel.number]
            self._events.append(MethodReceived(channel.number, ChannelCloseOk()))

    # Endings

    def _frame_when_over(self, kind: int, number: int, whole: bytes) -> None:
        if kind != METHOD or number or len(whole) < 4 + OVERHEAD:
            return
        method_id = int.from_bytes(whole[7:11], "big")
        if method_id == _CONNECTION_CLOSE and self._state is not State.PEER_CLOSING:
            self.line.out.append(frame(METHOD, 0, encode_method(ConnectionCloseOk())))
            if self._state is State.FAILED:
                self._end("connection.close", True)
        elif method_id == _CONNECTION_CLOSE_OK and self._state is State.CLOSING:
            self._events.append(MethodReceived(0, ConnectionCloseOk()))
            self._end("connection.close-ok", True)

    # Time

    def next_deadline(self) -> MonotonicMs | None:
        """Return when tick is due; None: never."""
        if self._state is State.CLOSED:
            return None
        return self.line.next_deadline(self._state not in OVER)

    def tick(self, now_ms: MonotonicMs) -> None:
        """Send a due heartbeat, and detect a peer that is dead or too slow (PeerClosed)."""
        line = self.line
        is_over = self._state in OVER
        found = line.tick(now_ms, self._state in OUR_TURN, not is_over)
        if found == IN_TIME or self._state is State.CLOSED:
            return
        if found != LATE:
            interval_s = line.silence_ms // 2000
            self._end(f"missed heartbeats from client, timeout: {interval_s}s", False)
        elif is_over:
            self._end("no connection.close-ok in time", False)
        else:
            after_ms = self.limits.handshake_timeout_ms
            self._end(f"handshake not complete after {after_ms} ms", False)

    # Confirms

    def send_ack(self, channel: int, tag: int, multiple: bool) -> None:
        """Append a basic.ack, as send_method would: most of what a publisher is sent."""
        known = self._channels.get(channel)
        if known is not None and known.is_open() and self._state is State.RUNNING:
            flag = b"\x01\xce" if multiple else b"\x00\xce"
            self.line.out.append(known.ack_prefix + tag.to_bytes(8, "big") + flag)
