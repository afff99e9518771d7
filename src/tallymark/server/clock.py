"""The two clocks. Everything below the server is told the time by it."""

from __future__ import annotations

import time


def now_ms() -> int:
    """Monotonic milliseconds, for protocol deadlines."""
    return time.monotonic_ns() // 1_000_000


def wall_ms() -> int:
    """Milliseconds since 1970, for what is stored."""
    return time.time_ns() // 1_000_000
