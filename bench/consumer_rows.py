"""What the ledger's rows of consumers cost: microseconds of CPU, the least of five measurements.

    python -m bench.consumer_rows

A row is written when a consumer begins, when it ends, and when its window becomes more than twice
or less than half of what was recorded last (tallymark.engine.consumers). Messages write none. The
consumer is one of a broker that has a day of generated traffic behind it (day_of_traffic.py).
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.day_of_traffic import Day, Plan

TRANSITIONS = 20_000
BLOCKS, CHANGES = 50, 100
"""Blocks that are written, and changes in each."""


def least_us(work: Callable[[], None], times: int) -> float:
    """Return the CPU of one call in microseconds."""
    least = float("inf")
    for _ in range(5):
        began = time.process_time()
        for _ in range(times):
            work()
        least = min(least, time.process_time() - began)
    return least / times * 1e6


class OneDay(Day):
    """A day after which everybody is still connected."""

    def end(self) -> None:
        self._turn()

    def change_window(self, windows: tuple[int, int], times: int) -> None:
        """Give a consumer the two windows in turn, and write the rows of that in one block."""
        consuming, consumer = self.broker.consuming, next(iter(self._workers.values())).consumer
        for number in range(times):
            consuming.set_limit(consumer, windows[number & 1])
        if block := self.broker.take_records():
            self.journal.commit(block, self.now_ms)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        day = OneDay(Path(folder), Plan(TRANSITIONS))
        day.run()
        without = least_us(lambda: day.change_window((40, 41), CHANGES), BLOCKS) / CHANGES
        with_row = least_us(lambda: day.change_window((40, 400), CHANGES), BLOCKS) / CHANGES
    print(f"a change of the window without a row {without:.2f} us, with one {with_row:.1f} us")


if __name__ == "__main__":
    main()
