"""Idle time-outs in both directions [amqp-1.0 §2.4.5]. Times are monotonic milliseconds.

An empty frame goes out when nothing was sent for half the time-out the peer asked for. We announce
half of what we bear: the peer is dead when nothing came for twice the announced time. Any bytes
count, not only empty frames.
"""

from __future__ import annotations

from typing import final


@final
class Heartbeat:
    __slots__ = ("announced_ms", "received_ms", "sent_ms", "wanted_ms")

    def __init__(self, announced_ms: int, wanted_ms: int, now_ms: int) -> None:
        self.announced_ms = announced_ms
        """Our idle-time-out, ms; 0: none."""
        self.wanted_ms = wanted_ms
        """Peer's idle-time-out, ms; 0: none."""
        self.sent_ms = now_ms
        self.received_ms = now_ms

    def next_deadline(self) -> int | None:
        """Return when to check again. The time may be early if there was traffic meanwhile, but
        never late."""
        due = self.sent_ms + self.wanted_ms // 2
        missed = self.received_ms + 2 * self.announced_ms
        if self.wanted_ms and self.announced_ms:
            return min(due, missed)
        if self.wanted_ms:
            return due
        return missed if self.announced_ms else None

    def is_due(self, now_ms: int) -> bool:
        """Return whether an empty frame is to be sent."""
        return self.wanted_ms > 0 and now_ms - self.sent_ms >= self.wanted_ms // 2

    def is_missed(self, now_ms: int) -> bool:
        """Return whether the peer is dead, or has sent nothing for too long."""
        return self.announced_ms > 0 and now_ms - self.received_ms >= 2 * self.announced_ms
