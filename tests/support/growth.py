"""How work grows with its size, on machines of any speed.

    def prepare(size):
        server = connected(pub("t", b"x") * size)
        return server.eof               # what is measured

    assert_linear(prepare, small=1000)

Sixteen times the size take about sixteen times the CPU, and 256 times where the work is done anew
for each piece. The limit lies between them. Other programs can only make a single measurement
longer, so it is repeated before it counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable

FACTOR = 16
LIMIT = 64
ATTEMPTS = 6


def assert_linear(prepare: Callable[[int], Callable[[], object]], small: int) -> None:
    """Compare `small` with FACTOR times as much. AssertionError where the work is quadratic."""
    ratios: list[float] = []
    while not ratios or min(ratios) > LIMIT:
        assert len(ratios) < ATTEMPTS, f"{FACTOR} times the size costs {ratios} times as much"
        large = _cpu_seconds(prepare(FACTOR * small))
        ratios.append(large / min(_cpu_seconds(prepare(small)) for _ in range(3)))


def _cpu_seconds(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin
