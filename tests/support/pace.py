"""A steady rate for clients that would otherwise go as fast as they can.

pace = Pace(50)
while pace.take():      # fifty times a second, whatever the loop around it takes
    ...
"""

from __future__ import annotations

import time
from collections.abc import Callable

BURST_S = 1.0
"""Longer pauses are not made up for."""


class Pace:
    """A bucket that fills at a rate per second and holds what comes in BURST_S."""

    def __init__(self, per_s: float, now: Callable[[], float] = time.monotonic) -> None:
        self._per_s = per_s
        self._now = now
        self._filled_at = now()
        self._full = max(1.0, per_s * BURST_S)
        self._left = 0.0

    def take(self) -> bool:
        """Whether one more may go; it counts as gone."""
        now = self._now()
        self._left = min(self._full, self._left + (now - self._filled_at) * self._per_s)
        self._filled_at = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True
