"""One turn of the event loop: what is decided in it leaves together, at its end.

A hundred settlements of one turn become one range and one flow; a hundred sends one write. Whoever
has something to say marks itself; nothing is per message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, final


class Flushable(Protocol):
    def flush(self) -> None:
        """Send what was collected. Called once after any number of marks."""
        ...


@final
class Turn:
    """Turns of the event loop for one connection, whichever transport carries it at the time."""

    __slots__ = ("_handle", "_marked", "is_paused", "loop", "write")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.write: Callable[[], None] | None = None
        """Writes the protocol's output; None while there is no transport."""
        self.is_paused = False
        """The transport's buffer is full: keep messages that can wait."""
        self._marked: list[Flushable] = []
        self._handle: asyncio.Handle | None = None

    def mark(self, what: Flushable) -> None:
        """Have `what` flushed at the end of this turn; it is to be marked once, until it is
        flushed."""
        self._marked.append(what)
        self.request()

    def request(self) -> None:
        """Have the output written at the end of this turn."""
        if self._handle is None:
            self._handle = self.loop.call_soon(self._run)

    def finish(self) -> None:
        """End the turn now: when this returns, all that was decided is with the transport."""
        if self._handle is not None:
            self._handle.cancel()
        self._run()

    def now_ms(self) -> int:
        """Monotonic."""
        return int(self.loop.time() * 1000)

    def _run(self) -> None:
        self._handle = None
        while self._marked:
            marked = self._marked
            self._marked = []
            for what in marked:
                what.flush()
        if self.write is not None:
            self.write()
