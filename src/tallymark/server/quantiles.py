"""Quantiles of a latency over a sliding window, in memory that does not grow with the traffic.

A value is counted in a bucket that is at most 1/64 of the value wide, so a quantile is off by less
than 0.8 %; values below 128 are counted exactly. As in nsqd the window has two halves: the older
one is dropped whole when the newer one is full, so an answer covers between half the window and all
of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, final

from tallymark.units import EngineMs

SUB_BITS: Final = 6
"""Each power of two has 1 << SUB_BITS buckets."""
EXACT: Final = 2 << SUB_BITS


def bucket_of(value: int) -> int:
    """The bucket that counts `value`; a negative one counts as 0."""
    if value < EXACT:
        return max(value, 0)
    shift = value.bit_length() - SUB_BITS - 1
    return (shift << SUB_BITS) + (value >> shift)


def value_of(bucket: int) -> float:
    """The middle of the values that `bucket` counts."""
    if bucket < EXACT:
        return float(bucket)
    shift = (bucket >> SUB_BITS) - 1
    low = ((1 << SUB_BITS) + (bucket & ((1 << SUB_BITS) - 1))) << shift
    return low + ((1 << shift) - 1) / 2


@final
class Window:
    """Counts of the present half window and of the one before it."""

    __slots__ = ("_half_ms", "_newer", "_older", "_turned_ms")

    def __init__(self, window_ms: int, now_ms: EngineMs) -> None:
        self._half_ms = max(1, window_ms // 2)
        self._turned_ms = now_ms
        self._newer: dict[int, int] = {}
        self._older: dict[int, int] = {}

    def add(self, value: int, now_ms: EngineMs, count: int = 1) -> None:
        """Add `count` events of this value; now_ms never decreases."""
        if now_ms - self._turned_ms >= self._half_ms:
            self._turn(now_ms)
        bucket = bucket_of(value)
        self._newer[bucket] = self._newer.get(bucket, 0) + count

    def _turn(self, now_ms: EngineMs) -> None:
        halves = (now_ms - self._turned_ms) // self._half_ms
        self._turned_ms = EngineMs(self._turned_ms + halves * self._half_ms)
        self._older = self._newer if halves == 1 else {}
        self._newer = {}

    def counts(self, now_ms: EngineMs) -> dict[int, int]:
        """Events by bucket, of the window that ends now."""
        if now_ms - self._turned_ms >= self._half_ms:
            self._turn(now_ms)
        return merged((self._older, self._newer))

    def is_empty(self, now_ms: EngineMs) -> bool:
        return not self.counts(now_ms)


def merged(parts: Iterable[dict[int, int]]) -> dict[int, int]:
    """The sum of several windows' counts."""
    total: dict[int, int] = {}
    for part in parts:
        for bucket, count in part.items():
            total[bucket] = total.get(bucket, 0) + count
    return total


def quantiles(counts: dict[int, int], wanted: Iterable[float]) -> list[float]:
    """Return for each q of `wanted`, 0 < q <= 1, the smallest value that at least q of all events
    do not exceed; 0 where there are no events."""
    ordered = sorted(counts.items())
    total = sum(counts.values())
    found = []
    for quantile in wanted:
        rank = quantile * total * (1 - 1e-12)  # 0.07 of 100 is 7.000000000000001
        seen = 0
        value = 0.0
        for bucket, count in ordered:
            seen += count
            value = value_of(bucket)
            if seen >= rank:
                break
        found.append(value)
    return found
