"""The two clocks. Everything below the server is told the time by them (`Turns.tell_time`).

Both are told in whole milliseconds, and those of both begin at the same moments: engine time, which
begins with the one and goes with the other, would else be up to a millisecond ahead of wall time,
and what is deferred would come before its time [NQ-16].
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final

from tallymark.units import WallMs
from tallymark.wire.line import MonotonicMs

MS_NS: Final = 1_000_000

TOGETHER_NS: Final = 50_000_000
"""Nanoseconds within which two readings of the clocks count as simultaneous: the process may have
been stopped between them, and that is no step of a clock."""
READINGS: Final = 20
"""Number of times that both clocks are read at the start; the reading that took least is used."""


def alignment_ns(readings: Iterable[tuple[int, int, int]]) -> int:
    """Return how many nanoseconds are added to the monotonic clock, so that its milliseconds begin
    with those of the wall clock; rather later by what a reading took than earlier."""
    _, wall, after = min(readings, key=lambda one: one[2] - one[0])
    return (wall - after) % MS_NS


class Clocks:
    """The monotonic and the wall clock, and the processor time of the thread that asks, in
    nanoseconds; and the sleep of that thread, in seconds. `CLOCKS` has those of this process."""

    def __init__(
        self,
        monotonic_ns: Callable[[], int],
        wall_ns: Callable[[], int],
        worked_ns: Callable[[], int],
        sleep: Callable[[float], None],
    ) -> None:
        self.set(monotonic_ns, wall_ns, worked_ns, sleep)

    def set(
        self,
        monotonic_ns: Callable[[], int],
        wall_ns: Callable[[], int],
        worked_ns: Callable[[], int] = lambda: 0,
        sleep: Callable[[float], None] = lambda _: None,
    ) -> None:
        """Read other clocks from now on: a simulation has its own, and neither its work nor its
        sleep takes time."""
        self.monotonic_ns = monotonic_ns
        self.wall_ns = wall_ns
        self.worked_ns = worked_ns
        self.sleep = sleep
        self.alignment_ns = alignment_ns([self.read() for _ in range(READINGS)])
        """Nanoseconds that are added to the monotonic clock."""

    def read(self) -> tuple[int, int, int]:
        """Return the monotonic clock, the wall clock and the monotonic clock again."""
        return self.monotonic_ns(), self.wall_ns(), self.monotonic_ns()


CLOCKS: Final = Clocks(time.monotonic_ns, time.time_ns, time.thread_time_ns, time.sleep)


def now_ms() -> MonotonicMs:
    """Monotonic milliseconds, for protocol deadlines."""
    return MonotonicMs((CLOCKS.monotonic_ns() + CLOCKS.alignment_ns) // MS_NS)


def wall_ms() -> WallMs:
    """Milliseconds since 1970, for output and logs."""
    return WallMs(CLOCKS.wall_ns() // MS_NS)


def both_ms() -> tuple[WallMs, MonotonicMs]:
    """Wall time and monotonic milliseconds, certainly of one moment."""
    while True:
        before, wall, after = CLOCKS.read()
        if after - before < TOGETHER_NS:
            return WallMs(wall // MS_NS), MonotonicMs((after + CLOCKS.alignment_ns) // MS_NS)
