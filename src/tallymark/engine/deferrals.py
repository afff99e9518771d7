"""Deferrals from a log, put in order for a restart."""

from __future__ import annotations

from bisect import bisect_right
from typing import final

from tallymark.engine.intervals import IntervalSet


@final
class Deferral:
    """Deferral of sequences low..high-1 until `due_ms`; then they are ready at the tail, or at
    their place."""

    __slots__ = ("due_ms", "high", "low", "to_tail")

    def __init__(self, low: int, high: int, due_ms: int, to_tail: bool) -> None:
        self.low = low
        self.high = high
        self.due_ms = due_ms
        self.to_tail = to_tail


@final
class Deferrals:
    """All deferrals of one queue. All are added before the first query."""

    __slots__ = ("_known", "_lows", "_told")

    def __init__(self) -> None:
        self._told: list[Deferral] = []
        self._known: list[Deferral] | None = None
        self._lows: list[int] = []

    def tell(self, deferral: Deferral) -> None:
        """Add a deferral. It replaces earlier ones of the same sequences."""
        self._told.append(deferral)
        self._known = None

    def of(self, low: int, high: int) -> list[Deferral]:
        """Return the deferrals among low..high-1, cut to that range, ascending and without
        overlap."""
        known = self._known
        if known is None:
            known = self._settle()
        at = max(0, bisect_right(self._lows, low) - 1)
        found = []
        while at < len(known) and known[at].low < high:
            one = known[at]
            if one.high > low:
                found.append(
                    Deferral(max(low, one.low), min(high, one.high), one.due_ms, one.to_tail)
                )
            at += 1
        return found

    def _settle(self) -> list[Deferral]:
        covered = IntervalSet()
        known: list[Deferral] = []
        for one in reversed(self._told):
            for low, high in covered.gaps(one.low, one.high):
                known.append(Deferral(low, high, one.due_ms, one.to_tail))
            covered.add(one.low, one.high)
        known.sort(key=_low)
        self._known = known
        self._lows = [one.low for one in known]
        return known


def _low(one: Deferral) -> int:
    return one.low
