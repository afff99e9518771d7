"""The two clocks. Everything below the server is told the time by them (`Node.tell_time`)."""

from __future__ import annotations

import time
from typing import Final

TOGETHER_NS: Final = 50_000_000
"""Clocks that are read within so many nanoseconds were read at one moment: a process may be
stopped anywhere, and what passed meanwhile is no step of a clock."""


def now_ms() -> int:
    """Monotonic milliseconds, for protocol deadlines."""
    return time.monotonic_ns() // 1_000_000


def wall_ms() -> int:
    """Milliseconds since 1970, for what is shown."""
    return time.time_ns() // 1_000_000


def both_ms() -> tuple[int, int]:
    """Wall time and monotonic milliseconds, certainly of one moment."""
    while True:
        before = time.monotonic_ns()
        wall = time.time_ns()
        after = time.monotonic_ns()
        if after - before < TOGETHER_NS:
            return wall // 1_000_000, after // 1_000_000
