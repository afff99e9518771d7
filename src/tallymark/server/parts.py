"""Long answers of HTTP, made a part at a time: the rows of a list, the metrics of all queues.

All requests of a node stand in one line for a part, so that a round of the loop makes one at most,
however many ask; sockets are read in between. What a list shows may be some rounds apart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

Thing = TypeVar("Thing")

PART: Final = 50
"""Number of queues, bindings and the like in one part: about a millisecond."""


class Parts:
    """The line of one node."""

    def __init__(self) -> None:
        self._line = asyncio.Lock()
        self.made = 0
        """Number of parts so far."""

    async def turn(self) -> None:
        """Wait until the caller may make one part. At least one round of the loop passes."""
        async with self._line:
            await asyncio.sleep(0)
        self.made += 1


def cut(things: Iterable[Thing], size: int = PART) -> Iterator[list[Thing]]:
    """Return the things as they are now in lists of one size; without any, one empty list."""
    every = list(things)
    for at in range(0, max(1, len(every)), size):
        yield every[at : at + size]
