"""Output buffer for messages to one NSQ client, as its IDENTIFY requests [nsq output_buffer_size].

nsqd writes messages when the client can take no more, when its buffer is full or its time-out is
over, and with every answer [NQ-11]. Here the messages of a turn leave together. They wait for
several turns only if the client asked for another time-out than the default.
"""

from __future__ import annotations

from typing import final

from tallymark.wire.line import NEVER, MonotonicMs
from tallymark.wire.nsq.identify import Identify
from tallymark.wire.nsq.limits import Limits


@final
class MessageBuffer:
    """The buffer of one client. Times are monotonic milliseconds."""

    __slots__ = ("_chunks", "_due_ms", "_holds", "_limit", "_timeout_ms", "size")

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self.size = 0
        """Bytes in the buffer."""
        self._limit = 0
        self._timeout_ms = 0
        self._holds = False
        self._due_ms = NEVER
        """Time at which the buffer is flushed; -1: not by time."""

    def follow(self, identify: Identify, limits: Limits) -> None:
        """Apply the settings of the client's IDENTIFY."""
        self._limit = identify.output_buffer_size
        self._timeout_ms = identify.output_buffer_timeout_ms
        usual = self._timeout_ms == limits.output_buffer_timeout_ms
        self._holds = self._limit > 1 and not usual

    def add(self, frames: bytes, now_ms: MonotonicMs) -> None:
        if not self._chunks and self._timeout_ms:
            self._due_ms = MonotonicMs(now_ms + self._timeout_ms)
        self._chunks.append(frames)
        self.size += len(frames)

    def next_due(self) -> MonotonicMs | None:
        """Return the time at which the buffer must be flushed; None: there is none."""
        return self._due_ms if self._holds and self._chunks and self._due_ms >= 0 else None

    def take(self, now_ms: MonotonicMs, at_once: bool) -> list[bytes]:
        """Return the messages to write now. at_once: there is an answer to send, or the client
        takes no more."""
        if not self._chunks or (self._holds and not at_once and self._waits(now_ms)):
            return []
        chunks = self._chunks
        self._chunks = []
        self.size = 0
        self._due_ms = NEVER
        return chunks

    def _waits(self, now_ms: MonotonicMs) -> bool:
        return self.size < self._limit and (self._due_ms < 0 or now_ms < self._due_ms)
