"""Waking: the timer for the engine's next deadline, and what happens when a turn finds it over.

A process may be stopped: by a pause of its machine, by SIGSTOP, by a disk that hangs. Deadlines
pass meanwhile, and what clients send waits in the sockets. An acknowledgement that came in time
must not count as late for that. How late a turn is does not say how long the process was stopped:
the deadline may have come at the end of the stop. So each turn that finds a deadline over gives way
to one more round of the loop, in which the sockets are read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, final

from tallymark.engine.clock import NEVER
from tallymark.units import EngineMs

LONGEST_SLEEP_MS: Final = 60_000
"""Milliseconds after which the timer wakes the loop at the latest: engine time is slewed, and jumps
of the wall clock are logged."""


@final
class Waking:
    """The timer of one node's turns."""

    __slots__ = ("_gave_way", "_loop", "_schedule", "_timer", "_unread_ms", "armed_ms")

    def __init__(self, loop: asyncio.AbstractEventLoop, schedule: Callable[[], None]) -> None:
        """schedule: has a turn with the next round of the loop."""
        self._loop = loop
        self._schedule = schedule
        self._timer: asyncio.TimerHandle | None = None
        self.armed_ms = NEVER
        """Engine time for which the timer is set; NEVER: it is not."""
        self._unread_ms: int = NEVER
        """Engine time of the first deadline since which no turn has given way to the sockets."""
        self._gave_way = False

    def set(self, due_ms: EngineMs, now_ms: EngineMs) -> None:
        """Have a turn at engine time `due_ms`, and for no other deadline; NEVER: for none."""
        self.armed_ms = due_ms
        self._unread_ms = due_ms
        self._gave_way = False  # a turn at once has come before the one that gave way
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due_ms < NEVER:
            wait_ms = min(max(0, due_ms - now_ms), LONGEST_SLEEP_MS)
            self._timer = self._loop.call_later(wait_ms / 1000, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self.armed_ms = NEVER
        self._schedule()

    def is_over(self, now_ms: EngineMs) -> bool:
        """Return whether a deadline is over, and no turn has given way since."""
        return now_ms >= self._unread_ms

    def gives_way(self, now_ms: EngineMs) -> bool:
        """Return whether the turn that is due comes one round of the loop later."""
        if now_ms < self._unread_ms:
            return False
        self._gave_way = not self._gave_way
        if not self._gave_way:
            self._unread_ms = self.armed_ms
        return self._gave_way
