"""A histogram: how many values there were of which size, in powers of two."""

from __future__ import annotations

from typing import final


@final
class Histogram:
    """Counts of whole numbers from 0 on. Bucket i counts those below 2**i that no bucket before it
    counts, the last one all that are larger."""

    def __init__(self, size: int) -> None:
        """size: number of buckets."""
        self.counts = [0] * size
        self.total = 0
        """Sum of all values."""

    def add(self, value: int, count: int) -> None:
        """Count a value that occurred `count` times. One below 0, as of a clock that was set back
        while the broker was down, counts as 0."""
        if value < 0:
            value = 0
        counts = self.counts
        bucket = value.bit_length()
        last = len(counts) - 1
        counts[bucket if bucket < last else last] += count
        self.total += value * count
