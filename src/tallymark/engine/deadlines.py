"""One structure of deadlines for the whole broker [NQ-D1].

A heap of (due, thing). A thing's deadline mostly moves later or ends early, so nothing is removed
from the middle of the heap: a thing that comes up is asked for its real deadline, and armed again.
An idle thing costs nothing, a busy one a comparison. The owner sleeps until `next_due`.
"""

from __future__ import annotations

import heapq
from typing import Final, final

NEVER: Final = 1 << 62
SWEEP: Final = 1024
"""Number of stale entries that are tolerated however few other entries there are."""


class Timed:
    """Something with a deadline: a queue, a session."""

    __slots__ = ("armed_ms",)

    def __init__(self) -> None:
        self.armed_ms = NEVER
        """Time of its earliest entry in the heap; engine time, ms."""


@final
class Deadlines:
    """The deadlines of a broker (see the module's docstring)."""

    __slots__ = ("_heap", "_number", "_stale")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timed]] = []
        self._number = 0
        """Number of armings so far. It orders things with equal deadlines, so that these are never
        compared."""
        self._stale = 0
        """Count of entries whose thing waits for another time by now."""

    def arm(self, thing: Timed, due_ms: int) -> None:
        """Make sure that the thing is attended to at `due_ms` or earlier."""
        if due_ms < thing.armed_ms:
            if thing.armed_ms < NEVER:
                self._gone_stale()
            thing.armed_ms = due_ms
            self._number += 1
            heapq.heappush(self._heap, (due_ms, self._number, thing))

    def forget(self, thing: Timed) -> None:
        """Remove the deadlines of a thing that is gone."""
        if thing.armed_ms < NEVER:
            thing.armed_ms = NEVER
            self._gone_stale()

    def _gone_stale(self) -> None:
        """Count one more stale entry, and sweep if most are stale."""
        self._stale += 1
        if self._stale > SWEEP and self._stale * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].armed_ms == entry[0]]
            heapq.heapify(self._heap)
            self._stale = 0

    def next_due(self) -> int:
        """Return the time of the next deadline, engine time, ms; NEVER: there is none."""
        heap = self._heap
        while heap and heap[0][2].armed_ms != heap[0][0]:
            heapq.heappop(heap)
            self._stale -= 1
        return heap[0][0] if heap else NEVER

    def take_due(self, now_ms: int) -> list[Timed]:
        """Return all things that are due, disarmed, in order of their deadlines."""
        heap = self._heap
        out = []
        while heap and heap[0][0] <= now_ms:
            due, _, thing = heapq.heappop(heap)
            if thing.armed_ms == due:
                thing.armed_ms = NEVER
                out.append(thing)
            else:
                self._stale -= 1
        return out
