"""How tests wait for what other processes do: for a condition, with one limit for all of them.

    until(lambda: broker.queues()["q"]["ready"] == 2)

The limit is there to end a test that can never succeed. It says nothing of how fast anything is:
a machine with ten programs to a core must pass too, so no test has a shorter one of its own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

PATIENCE_S = 600.0
"""How long to wait for what must happen."""
CLOCKS_MS = 2
"""How far a broker's milliseconds may be from ours: both round."""
LOOK_S = 0.01
"""How often to look when there is nothing to wait on."""


def until(holds: Callable[[], object], *work: Callable[[], object], what: object = "") -> None:
    """Look until it holds; between two looks do the `work`, or pause where there is none.

    AssertionError after PATIENCE_S; it shows `what`, called if it can be.
    """
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(_late(what))
        for one in work:
            one()
        if not work:
            time.sleep(LOOK_S)


async def until_on_loop(holds: Callable[[], object], what: object = "") -> None:
    """As `until`, while the loop's other tasks go on."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(_late(what))
        await asyncio.sleep(LOOK_S)


def later() -> int:
    """Wait until the wall clock shows a later millisecond, and return it: what any process stamped
    before is earlier than that."""
    began_ms = wall_ms()
    until(lambda: wall_ms() > began_ms + CLOCKS_MS)
    return wall_ms()


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _late(what: object) -> str:
    said = what() if callable(what) else what
    return f"not within {PATIENCE_S:.0f} s: {said}" if said else f"not within {PATIENCE_S:.0f} s"
