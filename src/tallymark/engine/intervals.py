"""Ranges of sequences: sets of them, counts of numbers that were added in ranges, and the deferrals
of a log in order.

Ranges are half open, [low, high). Adding next to the last range, the common case, is O(1); anywhere
else it is a bisection and a list insertion.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import accumulate
from typing import final

from tallymark.units import EngineMs


@final
class IntervalSet:
    """A set of integers as disjoint, sorted, non-touching ranges."""

    def __init__(self) -> None:
        self._lows: list[int] = []
        self._highs: list[int] = []

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(list(zip(self._lows, self._highs, strict=True)))

    def __len__(self) -> int:
        """Return the number of ranges, not of the numbers in them."""
        return len(self._lows)

    def count(self) -> int:
        """Return the count of numbers in the set. O(ranges)."""
        return sum(self._highs) - sum(self._lows)

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._lows, number) - 1
        return at >= 0 and number < self._highs[at]

    def add(self, low: int, high: int) -> None:
        """Add low..high-1. Numbers that are in the set already change nothing."""
        if low >= high:
            return
        lows, highs = self._lows, self._highs
        if not lows or low > highs[-1]:
            lows.append(low)
            highs.append(high)
            return
        if low == highs[-1]:
            highs[-1] = high
            return
        start = bisect_left(highs, low)
        end = bisect_right(lows, high)
        if start < end:
            low = min(low, lows[start])
            high = max(high, highs[end - 1])
        lows[start:end] = [low]
        highs[start:end] = [high]

    def remove(self, low: int, high: int) -> None:
        """Remove low..high-1. Numbers that are not in the set change nothing."""
        if low >= high:
            return
        lows, highs = self._lows, self._highs
        start = bisect_right(highs, low)
        end = bisect_left(lows, high)
        if start >= end:
            return
        kept: list[tuple[int, int]] = []
        if lows[start] < low:
            kept.append((lows[start], low))
        if highs[end - 1] > high:
            kept.append((high, highs[end - 1]))
        lows[start:end] = [a for a, _ in kept]
        highs[start:end] = [b for _, b in kept]

    def overlap(self, low: int, high: int) -> list[tuple[int, int]]:
        """Return the parts of low..high-1 that are in the set, ascending."""
        found = []
        at = bisect_right(self._highs, low)
        while at < len(self._lows) and self._lows[at] < high:
            found.append((max(low, self._lows[at]), min(high, self._highs[at])))
            at += 1
        return found

    def meets(self, low: int, high: int) -> bool:
        """Return whether any of low..high-1 is in the set."""
        at = bisect_right(self._highs, low)
        return low < high and at < len(self._lows) and self._lows[at] < high

    def gaps(self, low: int, high: int) -> list[tuple[int, int]]:
        """Return the parts of low..high-1 that are not in the set, ascending."""
        found = []
        for a, b in self.overlap(low, high):
            if low < a:
                found.append((low, a))
            low = b
        if low < high:
            found.append((low, high))
        return found


@final
class Tally:
    """Counts how often each number was added. All ranges are added before the first query."""

    def __init__(self) -> None:
        self._steps: dict[int, int] = {}
        self._edges: list[int] = []
        self._counts: list[int] = []

    def add(self, low: int, high: int) -> None:
        """Count each of low..high-1 once more."""
        steps = self._steps
        steps[low] = steps.get(low, 0) + 1
        steps[high] = steps.get(high, 0) - 1
        self._edges = []

    def of(self, low: int, high: int) -> list[tuple[int, int, int]]:
        """Return low..high-1 as stretches (low, high, count) of equal counts, ascending."""
        if not self._steps:
            return [(low, high, 0)]
        if not self._edges:
            self._edges = sorted(self._steps)
            self._counts = list(accumulate([self._steps[edge] for edge in self._edges]))
        edges = self._edges
        at = bisect_right(edges, low)
        found: list[tuple[int, int, int]] = []
        while low < high:
            end = min(high, edges[at]) if at < len(edges) else high
            count = self._counts[at - 1] if at else 0
            if found and found[-1][2] == count:
                found[-1] = (found[-1][0], end, count)
            else:
                found.append((low, end, count))
            low = end
            at += 1
        return found


@final
class LoggedDeferral:
    """Deferral of sequences low..high-1 until `due_ms`; then they are ready at the tail, or at
    their place."""

    __slots__ = ("due_ms", "high", "low", "to_tail")

    def __init__(self, low: int, high: int, due_ms: EngineMs, to_tail: bool) -> None:
        self.low = low
        self.high = high
        self.due_ms = due_ms
        self.to_tail = to_tail


@final
class DeferralLog:
    """All deferrals of one queue in a log. All are added before the first query."""

    def __init__(self) -> None:
        self._added: list[LoggedDeferral] = []
        self._in_order: list[LoggedDeferral] | None = None
        self._lows: list[int] = []

    def add(self, deferral: LoggedDeferral) -> None:
        """Add a deferral. It replaces earlier ones of the same sequences."""
        self._added.append(deferral)
        self._in_order = None

    def of(self, low: int, high: int) -> list[LoggedDeferral]:
        """Return the deferrals among low..high-1, cut to that range, ascending and without
        overlap."""
        known = self._in_order
        if known is None:
            known = self._put_in_order()
        at = max(0, bisect_right(self._lows, low) - 1)
        found = []
        while at < len(known) and known[at].low < high:
            one = known[at]
            if one.high > low:
                found.append(
                    LoggedDeferral(max(low, one.low), min(high, one.high), one.due_ms, one.to_tail)
                )
            at += 1
        return found

    def _put_in_order(self) -> list[LoggedDeferral]:
        covered = IntervalSet()
        known: list[LoggedDeferral] = []
        for one in reversed(self._added):
            for low, high in covered.gaps(one.low, one.high):
                known.append(LoggedDeferral(low, high, one.due_ms, one.to_tail))
            covered.add(one.low, one.high)
        known.sort(key=_low)
        self._in_order = known
        self._lows = [one.low for one in known]
        return known


def _low(one: LoggedDeferral) -> int:
    return one.low
