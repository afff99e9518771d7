"""Rates: limits on messages a second, and measurement of messages a second.

A limited rate is a bucket of one second's messages, filled by time and emptied by publishes. A read
of a client's socket is counted whole, so the bucket may go below empty; its publishers rest until
it is not. So nothing is refused, nothing is looked at per message, and over any time no more is
published than the rate and the burst of one second allow, but for the last read.

Amounts in a bucket are in thousandths of a message: a rate of n a second is n of them per
millisecond.
"""

from __future__ import annotations

from typing import Final, final

WINDOW_MS: Final = 10_000
"""Window of a rate, ms."""
HALF_MS: Final = WINDOW_MS // 2
SHORTEST_MS: Final = 1_000
"""Shortest time that a rate is computed over, ms: activity in less time is spread over this
long."""

SCALE: Final = 1000


@final
class Bucket:
    """The state of one limit. Times are engine time, milliseconds."""

    __slots__ = ("_at_ms", "_level")

    def __init__(self, rate: int, now_ms: int) -> None:
        self._level = rate * SCALE
        self._at_ms = now_ms

    def spend(self, rate: int, count: int, now_ms: int) -> None:
        """Count messages that were published."""
        self._fill(rate, now_ms)
        self._level -= count * SCALE

    def due(self, rate: int, now_ms: int) -> int:
        """Return when publishers may go on: now, or later."""
        self._fill(rate, now_ms)
        return now_ms if self._level >= 0 else now_ms - self._level // rate

    def _fill(self, rate: int, now_ms: int) -> None:
        passed = max(0, now_ms - self._at_ms)
        self._at_ms = now_ms
        self._level = min(rate * SCALE, self._level + passed * rate)


@final
class Pace:
    """Counter that remembers two earlier readings, half a window or more apart. A rate is measured
    from one of them, between half a window and a whole one ago. Nothing happens by time alone."""

    __slots__ = ("_at_done", "_at_ms", "_before_done", "_before_ms", "done", "last_ms")

    def __init__(self, now_ms: int) -> None:
        self.done = 0
        self.last_ms = 0
        """Time of the last activity, ms; 0: none yet."""
        self._at_ms = self._before_ms = now_ms
        self._at_done = self._before_done = 0

    def add(self, n: int, now_ms: int) -> None:
        """Count n more."""
        if now_ms - self._at_ms >= HALF_MS:
            self._before_ms, self._before_done = self._at_ms, self._at_done
            if now_ms - self.last_ms >= WINDOW_MS:
                self._before_ms, self._before_done = now_ms - WINDOW_MS, self.done
            self._at_ms, self._at_done = now_ms, self.done
        self.done += n
        self.last_ms = now_ms

    def rate(self, now_ms: int) -> float:
        """Return messages per second; 0 if nothing was counted for a whole window."""
        if not self.done or now_ms - self.last_ms >= WINDOW_MS:
            return 0.0
        since, done = self._before_ms, self._before_done
        if now_ms - since > WINDOW_MS and now_ms - self._at_ms >= HALF_MS:
            since, done = self._at_ms, self._at_done
        if now_ms - since > WINDOW_MS:
            since = now_ms - WINDOW_MS
        return (self.done - done) * 1000 / max(now_ms - since, SHORTEST_MS)
