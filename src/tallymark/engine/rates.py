"""Publish rates: messages a second that a user, or all of a virtual host, may publish.

A rate is a bucket of one second's messages, filled by time and emptied by publishes. What a client
has sent is taken whole, so the bucket may go below empty; its publishers rest until it is not. So
nothing is refused, nothing is looked at per message, and over any time no more is published than
the rate and the burst of one second allow, but for what was read at the end.

Amounts are in thousandths of a message: a rate of n a second is n of them per millisecond.
"""

from __future__ import annotations

from typing import Final, final

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
