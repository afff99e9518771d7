"""Clock: the time that the engine was given last. The engine never asks the operating system.

There are two. *Engine time* is for deadlines and ages, and is what everything in memory is noted
in: it goes with the monotonic clock, so that no step of the wall clock stops or triggers anything
[NQ-D8]. *Wall time* is for what is stored and shown. At a start the two are the same. From then on
a small difference is slewed away; a jump of the wall clock becomes `ahead_ms`, which is added to
whatever leaves (`walltime.py`) and taken off the times that clients name.
"""

from __future__ import annotations

from typing import Final, final

from tallymark.engine.units import EngineMs, WallMs

JUMP_MS: Final = 2000
"""Step of the wall clock, in ms, above which it is a jump that engine time does not follow."""
SLEW: Final = 20
"""Slew rate: engine time is corrected by at most one in this many milliseconds."""


@final
class Clock:
    """The time of one broker, shared by all its parts."""

    def __init__(self) -> None:
        self.now_ms = EngineMs(0)
        """Engine time of the present turn: milliseconds since 1970, as the wall clock would show
        without its jumps since the start. Never decreases."""
        self.ahead_ms = 0
        """Lead of wall time over engine time, ms: the sum of all jumps since the start; may be
        negative."""
        self.jumps = 0
        self.jumped_ms = 0
        """Size of the last jump, ms."""
        self._monotonic_ms = -1
        self._wall_ms = -1
        self._off = 0
        """Deviation of the wall clock from its expected value at the last reading, ms."""
        self._room = 0
        """Time since the deviation began that slewing has not used up yet, ms."""

    @property
    def wall_ms(self) -> WallMs:
        """Wall time of the present turn, milliseconds since 1970. May decrease."""
        return WallMs(self.now_ms + self.ahead_ms)

    def read(self, wall_ms: WallMs, monotonic_ms: int) -> EngineMs:
        """Set the time from the machine's two clocks; return engine time. At the first call engine
        time is wall time, in which all stored times are given."""
        if self._monotonic_ms < 0:
            self._monotonic_ms = monotonic_ms
            self.tell(EngineMs(wall_ms))
            return self.now_ms
        if wall_ms == self._wall_ms and monotonic_ms == self._monotonic_ms:
            return self.now_ms
        self._wall_ms = wall_ms
        passed = max(0, monotonic_ms - self._monotonic_ms)
        self._monotonic_ms += passed
        now = self.now_ms + passed
        off = wall_ms - self.ahead_ms - now
        if not -JUMP_MS <= off <= JUMP_MS:
            self.ahead_ms += off
            self.jumps += 1
            self.jumped_ms = off
            off = 0
            if -JUMP_MS <= self.ahead_ms <= JUMP_MS:  # undone, or nearly: slew the rest
                off = self.ahead_ms
                self.ahead_ms = 0
        if off == 0 or self._off == 0:
            self._room = 0
        else:
            self._room += passed
            slewed = min(abs(off), self._room // SLEW)
            self._room -= slewed * SLEW
            step = slewed if off > 0 else -slewed
            now += step
            off -= step
        self._off = off
        self.tell(EngineMs(now))
        return self.now_ms

    def tell(self, now_ms: EngineMs) -> None:
        """Set engine time to now_ms, for a clock that is moved by hand. It never decreases."""
        if now_ms > self.now_ms:
            self.now_ms = now_ms

    def to_wall(self, time_ms: EngineMs) -> WallMs:
        """Return the present wall time of a moment in engine time; not before 1970."""
        return WallMs(max(0, time_ms + self.ahead_ms))

    def from_wall(self, wall_ms: WallMs) -> EngineMs:
        """Return the engine time of a moment that a client gives in wall time."""
        return EngineMs(wall_ms - self.ahead_ms)
