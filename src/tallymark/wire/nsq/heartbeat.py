"""Heartbeats: ours at a fixed interval; any bytes from the client show that it is alive [NQ-7].

One goes out every interval, traffic or not: the client's answer, a NOP, is what keeps its
connection. It is dead when nothing came for two intervals [NQ-A13].
"""

from __future__ import annotations

from typing import final


@final
class Heartbeat:
    """The heartbeats of one connection. Times are monotonic milliseconds."""

    __slots__ = ("due_ms", "interval_ms", "received_ms")

    def __init__(self, interval_ms: int, now_ms: int) -> None:
        self.interval_ms = interval_ms
        """Interval in ms; 0: no heartbeats, and no time-out either."""
        self.due_ms = now_ms + interval_ms
        self.received_ms = now_ms

    def next_deadline(self) -> int | None:
        """Return when to check again. The time may be early if there was traffic meanwhile, but
        never late."""
        if not self.interval_ms:
            return None
        return min(self.due_ms, self.received_ms + 2 * self.interval_ms)

    def is_due(self, now_ms: int) -> bool:
        return self.interval_ms > 0 and now_ms >= self.due_ms

    def is_missed(self, now_ms: int) -> bool:
        return self.interval_ms > 0 and now_ms - self.received_ms >= 2 * self.interval_ms

    def sent(self, now_ms: int) -> None:
        """Note that a heartbeat was sent. Late ones are left out, so that the interval stays
        fixed."""
        late = now_ms - self.due_ms
        self.due_ms += (late // self.interval_ms + 1) * self.interval_ms
