"""Line: what every connection has, whatever protocol it speaks and whichever end it is.

Input that is not processed yet, output that is not written yet, the share of work, the clock, the
time-outs of handshake and close, and heartbeats in both directions. Each wire connection owns one;
a rule that holds for all connections stands here. Times are monotonic milliseconds.

The peer is dead when no byte came for the time-out of silence: any bytes count, not only
heartbeats. When we send heartbeats differs: AMQP sends one when nothing was sent for a while
[amqp-0.9.1 §4.2.7, amqp-1.0 §2.4.5], NSQ at a fixed interval, since the client's answer to it is
what keeps its connection [NQ-7, NQ-A13].

The share of work is the amount done on one read before other connections have their turn. The unit
is a step: a frame or a command, where a run of them that are alike counts once. A read of 64 KiB
holds tens of thousands of the smallest.
"""

from __future__ import annotations

from typing import Final, NewType, final

MonotonicMs = NewType("MonotonicMs", int)
"""Time of the monotonic clock, milliseconds: what deadlines and heartbeats are measured by. Neither
engine time nor wall time."""

ALL: Final = 1 << 62
"""Share of an owner that serves only one connection."""
SHARE: Final = 300
"""Share of a connection of a server: some milliseconds of what costs most. With 1,000 the floods
of two connections kept others waiting three times as long; 100 made a loop of rejected messages 8 %
dearer."""
ENTITY: Final = 4
"""Number of steps that a command counts more which makes or ends a queue, an exchange, a binding, a
channel, a session, a link or a consumer: it costs as much as some messages."""
CHUNKS_MAX: Final = 4096
"""Maximum number of reads kept apart while a frame is incomplete. A list entry takes more memory
than a one-byte read."""
APART: Final = 4096
"""Bytes of a frame from which on it is made whole apart from what came behind it."""
CLOSING_TIMEOUT_MS: Final = 30_000
"""Time-out for a client's answer to our close, ms [rabbitmq closing timeout]."""
DEAF_TIMEOUT_MS: Final = 3_000
"""Time-out for that answer where it could not be recognized, or is unlikely, ms."""

NEVER: Final = MonotonicMs(-1)
"""Value of a deadline that is not set."""

IN_TIME: Final = 0
LATE: Final = 1
"""The handshake, the close or an upgrade has exceeded its time-out."""
SILENT: Final = 2
"""The peer is dead, or has sent nothing for too long."""


@final
class Inbox:
    """Received bytes that are not processed yet.

    Reads are joined only when that completes the awaited bytes, a number of bytes or a line: each
    byte is moved a bounded number of times, whatever the sizes of reads, frames and commands. Of a
    read that completes a large frame and goes on for long behind it, no more is moved than the
    frame needs: the rest is worked on where it is.
    """

    __slots__ = ("_awaits_line", "_chunks", "_used", "data", "need", "pos", "waiting")

    def __init__(self, need: int) -> None:
        self.data = b""
        self.pos = 0
        """Offset in `data` at which the next frame or command begins."""
        self.need = need
        """Bytes from `pos` on that are needed for the next step."""
        self._awaits_line = False  # a newline will do as well
        self._chunks: list[bytes] = []
        self._used = 0
        """Bytes at the beginning of the first chunk that are in `data`, or were."""
        self.waiting = 0
        """Bytes received behind `data`."""

    def add(self, data: bytes) -> None:
        self._chunks.append(data)
        self.waiting += len(data)
        if self._awaits_line and b"\n" in data:
            self._awaits_line = False
            self.need = len(self.data) - self.pos + 1
        if len(self._chunks) >= CHUNKS_MAX:
            self._chunks = [b"".join(self._chunks)[self._used :]]
            self._used = 0

    def advance(self, pos: int, need: int) -> None:
        """Mark everything before `pos` as processed; `need` bytes are awaited from there on."""
        self.pos = pos
        self.need = need

    def await_line(self, most: int) -> None:
        """Wait for a newline, or for `most` bytes from `pos` on.

        In `data` there is neither.
        """
        for chunk in self._chunks:
            if b"\n" in chunk:
                self.need = len(self.data) - self.pos + 1
                return
        self.need = most
        self._awaits_line = True

    def gather(self) -> bool:
        """Return whether the awaited bytes are there from `pos` on; they are in `data` then."""
        left = len(self.data) - self.pos
        need = self.need
        if left >= need:
            return True
        if not left:
            self.data = b""
            self.pos = 0
        if not self._chunks:
            return False
        there = left + self.waiting
        if there < need:
            return False
        if need >= APART and there >= 2 * need and (left or len(self._chunks) > 1):
            self._gather_needed(need - left)
        else:
            self.gather_all()
        return True

    def _gather_needed(self, missing: int) -> None:
        """Move so many bytes into `data`, behind what is left there."""
        chunks = self._chunks
        self.waiting -= missing
        parts = [memoryview(self.data)[self.pos :]]
        while missing:
            first = memoryview(chunks[0])[self._used :]
            if len(first) > missing:
                parts.append(first[:missing])
                self._used += missing
                break
            parts.append(first)
            missing -= len(first)
            del chunks[0]
            self._used = 0
        self.data = b"".join(parts)
        self.pos = 0
        self._awaits_line = False

    def gather_all(self) -> None:
        """Move all bytes into `data`."""
        chunks = self._chunks
        if not chunks:
            return
        left = len(self.data) - self.pos
        if len(chunks) == 1 and not left:
            self.data = chunks[0]
            self.pos = self._used
        else:
            parts = [memoryview(self.data)[self.pos :], memoryview(chunks[0])[self._used :]]
            parts += [memoryview(chunk) for chunk in chunks[1:]]
            self.data = b"".join(parts)
            self.pos = 0
        self._awaits_line = False
        self._chunks = []
        self._used = 0
        self.waiting = 0

    def size(self) -> int:
        """Return the bytes kept."""
        return len(self.data) - self.pos + self.waiting

    def take(self) -> bytes:
        """Return all bytes and empty the inbox."""
        self.gather_all()
        rest = self.data[self.pos :]
        self.clear()
        return rest

    def clear(self) -> None:
        """Drop all bytes; the next ones are awaited one by one."""
        self.data = b""
        self.pos = 0
        self.need = 1
        self._awaits_line = False
        self._chunks = []
        self._used = 0
        self.waiting = 0


@final
class Line:
    """Input, output and time of one connection (see the module's docstring)."""

    __slots__ = (
        "_beat_ms",
        "_beats_always",
        "_early_max",
        "_handshake_ms",
        "_heartbeat",
        "_sent_ms",
        "_share",
        "content_bytes",
        "deadline_ms",
        "heard_ms",
        "inbox",
        "is_deaf",
        "is_ended",
        "is_sooner",
        "now_ms",
        "out",
        "silence_ms",
        "steps",
        "unfinished",
    )

    def __init__(
        self,
        need: int,
        heartbeat: bytes,
        share: int,
        handshake_ms: int,
        early_max: int,
        beats_always: bool = False,
    ) -> None:
        """need: bytes of the first step. heartbeat: what shows that we are alive. share: number of
        steps of work at a time. handshake_ms: time-out that begins with the first tick or byte.
        early_max: bytes accepted ahead while the peer waits for our answer. beats_always: whether
        heartbeats are sent at a fixed interval, traffic or not."""
        self.inbox = Inbox(need)
        self.out: list[bytes] = []
        """Output to write, in order; `take` takes it."""
        self.content_bytes = 0
        """Bytes of messages put into `out` in answer to the peer's input (basic.get, returns) since
        the owner set this to 0: a small input can request very many."""
        self.unfinished = 0
        """Bytes of messages of which only the beginning has come."""
        self.is_sooner = True
        """True if `next_deadline` may be earlier than when the owner looked last and set this to
        False. Traffic only makes it later."""
        self.is_ended = False
        """True once the peer's input has ended. What was received before is still processed."""
        self.is_deaf = False
        """True if all further input is discarded."""
        self.steps = share
        """Number of steps of work that may still be done on this read."""
        self.now_ms = NEVER
        self.deadline_ms = NEVER
        """Time at which the handshake, the close or an upgrade must be complete."""
        self.heard_ms = MonotonicMs(0)
        """Time of the peer's last bytes."""
        self.silence_ms = 0
        """Time without a byte after which the peer is dead, ms; 0: none."""
        self._share = share
        self._handshake_ms = handshake_ms
        self._early_max = early_max
        self._heartbeat = heartbeat
        self._beats_always = beats_always
        self._beat_ms = 0
        self._sent_ms = MonotonicMs(0)

    # Input

    def receive(self, data: bytes, now_ms: MonotonicMs) -> None:
        """Add received bytes, which begin a new share of work."""
        if self.now_ms < 0:
            self.start(now_ms)
        self.now_ms = self.heard_ms = now_ms
        self.steps = self._share
        if data and not self.is_deaf:
            self.inbox.add(data)

    def is_share_done(self) -> bool:
        """Return whether the share of work is done, although input may be left."""
        return self.steps <= 0

    def is_early(self) -> bool:
        """Return whether more bytes came ahead of our answer than are accepted."""
        return self.inbox.waiting > self._early_max

    def wants_data(self, is_our_turn: bool) -> bool:
        """Return whether the owner should read on. is_our_turn: the peer waits for our answer; what
        it sends ahead is read up to half of what is accepted."""
        if self.steps <= 0:
            return False
        return not is_our_turn or self.inbox.waiting < self._early_max // 2

    def unprocessed_bytes(self) -> int:
        """Return the bytes of received input that is not processed: incomplete frames and
        messages."""
        return self.inbox.size() + self.unfinished

    def stop_listening(self) -> None:
        """Discard all further input: frame boundaries are unknown, or it has no effect any more."""
        self.is_deaf = True
        self.inbox.clear()

    # Time

    def start(self, now_ms: MonotonicMs) -> None:
        """Set the time. With the first one the handshake's time-out begins."""
        if self.now_ms < 0:
            self._sent_ms = self.heard_ms = now_ms
            self.deadline_ms = MonotonicMs(now_ms + self._handshake_ms)
            self.is_sooner = True
        self.now_ms = now_ms

    def set_deadline(self, after_ms: int) -> None:
        self.deadline_ms = MonotonicMs(self.now_ms + after_ms)
        self.is_sooner = True

    def await_close(self) -> None:
        """Begin the time-out for the peer's answer to our close."""
        self.set_deadline(DEAF_TIMEOUT_MS if self.is_deaf else CLOSING_TIMEOUT_MS)

    def set_heartbeats(self, beat_ms: int, silence_ms: int) -> None:
        """Send a heartbeat after `beat_ms`, and take the peer for dead after `silence_ms` without a
        byte; 0: never."""
        self._beat_ms = beat_ms
        self.silence_ms = silence_ms
        self._sent_ms = self.heard_ms = self.now_ms
        self.is_sooner = True

    def next_deadline(self, has_heartbeats: bool) -> MonotonicMs | None:
        """Return when `tick` is due; None: never. 0 before the first tick or byte, so that the
        handshake's time-out begins at once. The time may be early if there was traffic meanwhile,
        but never late."""
        if self.now_ms < 0:
            return MonotonicMs(0)
        due: int = self.deadline_ms
        if has_heartbeats:
            if self._beat_ms and (due < 0 or self._sent_ms + self._beat_ms < due):
                due = self._sent_ms + self._beat_ms
            if self.silence_ms and (due < 0 or self.heard_ms + self.silence_ms < due):
                due = self.heard_ms + self.silence_ms
        return None if due < 0 else MonotonicMs(due)

    def tick(self, now_ms: MonotonicMs, is_our_turn: bool, has_heartbeats: bool) -> int:
        """Set the time and send a due heartbeat. Return IN_TIME, LATE or SILENT.

        is_our_turn: the time that we take for an answer does not count as the peer's.
        has_heartbeats: False while the peer is not expected to send or understand any.
        """
        self.start(now_ms)
        if 0 <= self.deadline_ms <= now_ms:
            if not is_our_turn:
                return LATE
            self.set_deadline(self._handshake_ms)
        if not has_heartbeats:
            return IN_TIME
        if self.silence_ms > 0 and now_ms - self.heard_ms >= self.silence_ms:
            return SILENT
        beat_ms = self._beat_ms
        if beat_ms > 0 and now_ms - self._sent_ms >= beat_ms:
            if self._beats_always:  # late ones are left out, so that the interval stays fixed
                self.out.append(self._heartbeat)
                late_ms = (now_ms - self._sent_ms) % beat_ms
                self._sent_ms = MonotonicMs(now_ms - late_ms)
            else:
                if not self.out:
                    self.out.append(self._heartbeat)
                self._sent_ms = now_ms
        return IN_TIME

    # Output

    def take(self, now_ms: MonotonicMs) -> list[bytes]:
        """Take the output to write. It counts as sent now, which delays the next heartbeat, except
        where those are sent always."""
        out = self.out
        if out:
            self.out = []
            if not self._beats_always:
                self._sent_ms = now_ms
        return out
