"""Input that is worked on later: clients of which more was read than their share, in line.

A round of the loop works for ROUND_NS on such input, however many clients have some, one share at a
time [wire.line]; then the sockets of all others are read. So what a client with little to say
waits for is one round, and not a share of each of the many that flood the broker.
"""

from __future__ import annotations

from collections import deque
from time import monotonic_ns
from typing import TYPE_CHECKING, Final, Protocol, final

if TYPE_CHECKING:
    import asyncio

ROUND_NS: Final = 2_000_000
"""Nanoseconds of postponed input in one round: the share that reaches it is the last."""


class Postponable(Protocol):
    """A client as the line knows it."""

    is_in_line: bool

    def work_on(self) -> None:
        """Work for one share, and join the line again if some input is left."""


@final
class Postponed:
    """The line of one node."""

    __slots__ = ("_is_due", "_line", "_loop", "_round_ns")

    def __init__(self, loop: asyncio.AbstractEventLoop, round_ns: int = ROUND_NS) -> None:
        """round_ns: 0 gives one share to one client in each round."""
        self._loop = loop
        self._round_ns = round_ns
        self._line: deque[Postponable] = deque()
        self._is_due = False

    def add(self, client: Postponable) -> None:
        """Put a client at the end of the line; one that stands in it keeps its place."""
        if client.is_in_line:
            return
        client.is_in_line = True
        self._line.append(client)
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._round)

    def _round(self) -> None:
        self._is_due = False
        end = monotonic_ns() + self._round_ns
        while self._line:
            client = self._line.popleft()
            client.is_in_line = False
            client.work_on()
            if monotonic_ns() >= end:
                break
        if self._line and not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._round)
