"""Lifecycle of a connection: open and close, errors, time-outs and output [amqp-1.0 §2.4].
connection.py handles the input of an open connection."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from tallymark.wire.amqp10 import errors
from tallymark.wire.amqp10.ends import ConnectionEnd, Event
from tallymark.wire.amqp10.errors import DecodeError
from tallymark.wire.amqp10.events import (
    CloseReceived,
    ConnectionFailed,
    Ended,
    OpenReceived,
)
from tallymark.wire.amqp10.frames import HEAD, HEARTBEAT, frame
from tallymark.wire.amqp10.limits import FRAME_MIN, INITIAL_FRAME_MAX, Limits
from tallymark.wire.amqp10.outcomes import Error
from tallymark.wire.amqp10.performatives import Close, Open
from tallymark.wire.amqp10.states import (
    CAN_CLOSE,
    CAN_OPEN,
    CHECKING,
    CLOSING,
    OVER,
    RECEIVING,
    SENDING,
    Input,
    State,
)
from tallymark.wire.amqp10.trace import RECEIVED, SENT, Tracer
from tallymark.wire.line import (
    CLOSING_TIMEOUT_MS,
    DEAF_TIMEOUT_MS,
    IN_TIME,
    LATE,
    NEVER,
    Line,
    MonotonicMs,
)

EARLY_MAX: Final = 65_536
"""Bytes accepted ahead while the peer waits for our answer; see Connection.wants_data."""
IDLE_TIME_OUT_MIN_MS: Final = 100
"""Smallest idle-time-out accepted from a peer, ms. A lower one ends the connection."""


class Lifecycle(ConnectionEnd):
    """Base of `Connection`."""

    __slots__ = (
        "_events",
        "_frame_limit",
        "_trace_in",
        "_trace_out",
        "channel_max",
        "line",
        "remote_open",
        "state",
    )

    def __init__(self, limits: Limits, trace: Callable[[str], None] | None) -> None:
        super().__init__(limits)
        self.state = State.START
        self.line = Line(HEAD, HEARTBEAT, limits.steps, limits.handshake_timeout_ms, EARLY_MAX)
        self.remote_open: Open | None = None
        self.channel_max = limits.channel_max
        """Smaller of both sides' channel-max."""
        self._events: deque[Event] = deque()
        self._frame_limit = INITIAL_FRAME_MAX
        self._trace_in = None if trace is None else Tracer(RECEIVED, trace)
        self._trace_out = None if trace is None else Tracer(SENT, trace)

    def _drop_sessions(self) -> None:
        """Drop all sessions and their links."""
        raise NotImplementedError

    # Opening and closing

    def open(self, open: Open) -> None:
        """Open, or answer OpenReceived. The limits in `open` are set here, and its properties are
        left out where a peer that has said so takes no frame with them. Raises ValueError in a
        wrong state."""
        if self.state in OVER:
            return
        limits = self.limits
        open.max_frame_size = limits.max_frame_size
        open.channel_max = limits.channel_max
        open.idle_time_out = limits.idle_time_out_ms or None
        raw = frame(0, open.encode())
        if self.remote_open is not None and len(raw) > self.max_frame_size:
            open.properties = None
            raw = frame(0, open.encode())
        self._send_moves(Input.OPEN)
        self.line.out.append(raw)
        if self.state is State.OPENED:
            self._run()

    def _receive_open(self, open: Open) -> None:
        after = RECEIVING.get((self.state, Input.OPEN))
        if after is None:
            raise DecodeError(f"open in state {self.state.value}", errors.ILLEGAL_STATE)
        limits = self.limits
        frame_size = limits.max_frame_size if open.max_frame_size is None else open.max_frame_size
        if frame_size < FRAME_MIN:
            raise DecodeError(
                f"max-frame-size {frame_size}, at least {FRAME_MIN} expected", errors.INVALID_FIELD
            )
        wanted = open.idle_time_out or 0
        if 0 < wanted < IDLE_TIME_OUT_MIN_MS:
            raise DecodeError(
                f"idle-time-out {wanted} ms, at least {IDLE_TIME_OUT_MIN_MS} expected",
                errors.NOT_ALLOWED,
            )
        self.state = after
        self.remote_open = open
        self.max_frame_size = min(frame_size, limits.max_frame_size)
        if open.channel_max is not None:
            self.channel_max = min(open.channel_max, limits.channel_max)
        if after not in CLOSING:
            if after is State.OPENED:
                self._run()
            self._events.append(OpenReceived(open))

    def _run(self) -> None:
        """Enter the open state: both opens were exchanged."""
        assert self.remote_open is not None
        self.line.deadline_ms = NEVER
        self._frame_limit = self.limits.max_frame_size
        wanted = self.remote_open.idle_time_out or 0
        self.line.set_heartbeats(wanted // 2, 2 * self.limits.idle_time_out_ms)

    def close(self, error: Error | None = None) -> None:
        """Close, or answer CloseReceived; sessions and links are dropped. Nothing is sent to a peer
        that is not identified yet. `Ended` follows. Does nothing if we have closed."""
        if self.state in CLOSING or self.state is State.END:
            return
        answers = self.state is State.CLOSE_RCVD
        if not self._send_close(error):
            self._end("closed before it was open", False)
        elif answers:
            self._end("closed by the peer", True)
        else:
            self._drop_sessions()
            self.line.await_close()

    def _send_close(self, error: Error | None) -> bool:
        """Send a close. False: none may be sent, since an open must precede it."""
        if self.state in CAN_OPEN:
            self.open(Open(""))
        if self.state not in CAN_CLOSE:
            return False
        raw = frame(0, Close(error).encode())
        after = SENDING[self.state, Input.CLOSE if error is None else Input.CLOSE_ERROR]
        if after is not State.END:  # that is for _end
            self.state = after
        excess = len(raw) - self.max_frame_size
        if error is not None and excess > 0:
            raw = frame(0, Close(error.shortened(excess)).encode())
        self.line.out.append(raw)
        return True

    def _receive_close(self, close: Close) -> None:
        after = RECEIVING.get((self.state, Input.CLOSE))
        if after is None:
            raise DecodeError(f"close in state {self.state.value}", errors.ILLEGAL_STATE)
        if after is State.CLOSE_RCVD:
            self.state = after
            self._drop_sessions()
            self._stop_listening()
            self._events.append(CloseReceived(close.error))
            self.line.set_deadline(CLOSING_TIMEOUT_MS)
        else:
            error = close.error
            self._end("closed" if error is None else f"closed: {error.condition}", True)

    def _send_moves(self, moved: Input) -> None:
        after = SENDING.get((self.state, moved))
        if after is None:
            raise ValueError(f"{moved.value} in state {self.state.value}")
        self.state = after

    # Endings

    def _fail(self, condition: str, text: str) -> None:
        """End the connection because the peer broke the protocol."""
        if self.state in OVER:
            return
        error = Error(condition, text)
        self._drop_sessions()
        is_said = self._send_close(error)
        self._events.append(ConnectionFailed(error))
        if is_said:
            self.line.await_close()
        else:
            self._end(f"{condition}: {text}", False)

    def fail_frame_size(self, size: int, what: str = "a frame") -> None:
        self._fail(
            errors.FRAME_SIZE_TOO_SMALL,
            f"{what} of {size} bytes is due, max-frame-size is {self.max_frame_size}",
        )

    def _stop_listening(self) -> None:
        """Discard all further input: frame boundaries are unknown, or it has no effect any more."""
        self.line.stop_listening()
        if self.state in CLOSING:
            self.line.set_deadline(DEAF_TIMEOUT_MS)

    def _end(self, reason: str, is_clean: bool) -> None:
        if self.state is State.END:
            return
        self.state = State.END
        self._drop_sessions()
        self._stop_listening()
        self.line.deadline_ms = NEVER
        self._events.append(Ended(reason, is_clean))

    def emit(self, event: Event) -> None:
        if self.state not in OVER:
            self._events.append(event)

    # Time

    def next_deadline(self) -> MonotonicMs | None:
        """Return when tick is due; None: never."""
        if self.state is State.END:
            return None
        return self.line.next_deadline(self.state not in OVER)

    def tick(self, now_ms: MonotonicMs) -> None:
        """Send a due empty frame, and detect a peer that is dead or too slow.

        We announce half of what we bear: the peer is dead when nothing came for twice the
        idle-time-out that we announced [amqp-1.0 §2.4.5].
        """
        line = self.line
        is_over = self.state in OVER
        found = line.tick(now_ms, self.state in CHECKING, not is_over)
        if found == IN_TIME or self.state is State.END:
            return
        if found != LATE:
            silent_ms = now_ms - line.heard_ms
            self._fail(errors.RESOURCE_LIMIT_EXCEEDED, f"nothing received for {silent_ms} ms")
            line.set_deadline(DEAF_TIMEOUT_MS)
        elif is_over:
            self._end("no close in time", False)
        else:
            self._end(f"not open after {self.limits.handshake_timeout_ms} ms", False)

    # Output

    def take_output(self, now_ms: MonotonicMs) -> list[bytes]:
        """Take the output to write; see Line.take."""
        out = self.line.take(now_ms)
        if self._trace_out is not None:
            for data in out:
                self._trace_out.add(data)
        return out

    def write_frame(self, raw: bytes) -> None:
        if self.state is State.OPENED:
            if len(raw) > self.max_frame_size:
                self.fail_frame_size(len(raw))
            else:
                self.line.out.append(raw)

    def write(self, frames: bytes) -> None:
        if self.state is State.OPENED:
            self.line.out.append(frames)
