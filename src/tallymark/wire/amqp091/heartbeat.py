"""Heartbeats in both directions [amqp-0.9.1 §4.2.7]. Times are monotonic milliseconds.

A heartbeat goes out when nothing was sent for half an interval; the peer is dead when nothing came
for two. Any bytes count, not only heartbeat frames.
"""

from __future__ import annotations

from typing import final


@final
class Heartbeat:
    __slots__ = ("interval_ms", "received_ms", "sent_ms")

    def __init__(self, interval_s: int, now_ms: int) -> None:
        self.interval_ms = interval_s * 1000
        """Interval in ms; 0: no heartbeats."""
        self.sent_ms = now_ms
        self.received_ms = now_ms

    def next_deadline(self) -> int | None:
        """Return when to check again. The time may be early if there was traffic meanwhile, but
        never late."""
        if not self.interval_ms:
            return None
        return min(self.sent_ms + self.interval_ms // 2, self.received_ms + 2 * self.interval_ms)

    def is_due(self, now_ms: int) -> bool:
        """Return whether a heartbeat is to be sent."""
        return self.interval_ms > 0 and now_ms - self.sent_ms >= self.interval_ms // 2

    def is_missed(self, now_ms: int) -> bool:
        """Return whether the peer is dead, or has sent nothing for too long."""
        return self.interval_ms > 0 and now_ms - self.received_ms >= 2 * self.interval_ms
