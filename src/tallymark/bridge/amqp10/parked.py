"""Tags that are settled under a transaction of AMQP 1.0, and the outcomes that they have at its
commit [TX-15]."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import final

from tallymark.wire.amqp10.outcomes import DeliveryState

Outcome = tuple[bytes, DeliveryState | None]
"""Outcome as encoded, by which outcomes are compared, and itself; b"" and None: none."""


@final
class ParkedTags:
    """Tags of one session that are settled under one transaction, with their outcomes: disjoint,
    sorted ranges, half open, of equal ones."""

    def __init__(self) -> None:
        self._lows: list[int] = []
        self._highs: list[int] = []
        self._outcomes: list[Outcome] = []

    def __iter__(self) -> Iterator[tuple[int, int, Outcome]]:
        return iter(list(zip(self._lows, self._highs, self._outcomes, strict=True)))

    def put(self, low: int, high: int, outcome: Outcome) -> None:
        """Note the outcome of tags low..high-1, in place of any that they have."""
        self.remove(low, high)
        lows, highs, outcomes = self._lows, self._highs, self._outcomes
        at = bisect_left(lows, low)
        if at > 0 and highs[at - 1] == low and outcomes[at - 1][0] == outcome[0]:
            highs[at - 1] = high
            return
        lows.insert(at, low)
        highs.insert(at, high)
        outcomes.insert(at, outcome)

    def remove(self, low: int, high: int) -> None:
        """Remove tags low..high-1. Those that are not there change nothing."""
        lows, highs, outcomes = self._lows, self._highs, self._outcomes
        start = bisect_right(highs, low)
        end = bisect_left(lows, high)
        if start >= end:
            return
        kept: list[tuple[int, int, Outcome]] = []
        if lows[start] < low:
            kept.append((lows[start], low, outcomes[start]))
        if highs[end - 1] > high:
            kept.append((high, highs[end - 1], outcomes[end - 1]))
        lows[start:end] = [a for a, _, _ in kept]
        highs[start:end] = [b for _, b, _ in kept]
        outcomes[start:end] = [outcome for _, _, outcome in kept]

    def overlap(self, low: int, high: int) -> list[tuple[int, int, Outcome]]:
        """Return the parts of low..high-1 that are there, ascending."""
        found = []
        at = bisect_right(self._highs, low)
        while at < len(self._lows) and self._lows[at] < high:
            found.append((max(low, self._lows[at]), min(high, self._highs[at]), self._outcomes[at]))
            at += 1
        return found
