"""The time, as the engine was told last. Nothing in the engine asks an operating system for it.

There are two. *Engine time* is for deadlines and ages, and is what everything in memory is noted
in: it goes with the monotonic clock, so that no step of the wall clock stops or triggers anything
[NQ-D8]. *Wall time* is for what is stored and shown. At a start the two are the same. From then on
a small difference is slewed away; a jump of the wall clock becomes `ahead_ms`, which is added to
whatever leaves (`walltime.py`) and taken off the times that clients name.
"""

from __future__ import annotations

from typing import Final, final

JUMP_MS: Final = 2000
"""A step of the wall clock above this is a jump: engine time does not follow it."""
SLEW: Final = 20
"""Engine time is slewed by one in so many milliseconds, at most."""


@final
class Clock:
    """One per broker, shared by all its parts."""

    __slots__ = (
        "_monotonic_ms",
        "_off",
        "_room",
        "_wall_ms",
        "ahead_ms",
        "jumped_ms",
        "jumps",
        "now_ms",
    )

    def __init__(self) -> None:
        self.now_ms = 0
        """Engine time of the present turn: milliseconds since 1970, as the wall clock would count
        them had it not jumped since the start. Never goes back."""
        self.ahead_ms = 0
        """How far wall time is ahead of it, by all jumps since the start; negative: behind."""
        self.jumps = 0
        self.jumped_ms = 0
        """The last jump."""
        self._monotonic_ms = -1
        self._wall_ms = -1
        self._off = 0
        """How far the wall clock was from what it is taken for when it was read last."""
        self._room = 0
        """For how long it has been off, so far as that was not yet used for slewing."""

    @property
    def wall_ms(self) -> int:
        """Wall time of the present turn, milliseconds since 1970. May go back."""
        return self.now_ms + self.ahead_ms

    def read(self, wall_ms: int, monotonic_ms: int) -> int:
        """The two clocks of the machine say this now; returns engine time. The first call begins
        it: with that, everything that is stored is told from wall time."""
        if self._monotonic_ms < 0:
            self._monotonic_ms = monotonic_ms
            self.tell(wall_ms)
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
            if -JUMP_MS <= self.ahead_ms <= JUMP_MS:  # right again, or nearly: slewed to
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
        self.tell(now)
        return self.now_ms

    def tell(self, now_ms: int) -> None:
        """Engine time is now_ms, for whoever moves it by hand. It never goes back."""
        if now_ms > self.now_ms:
            self.now_ms = now_ms

    def to_wall(self, time_ms: int) -> int:
        """The wall time, as it counts now, of a moment in engine time; not before 1970."""
        return max(0, time_ms + self.ahead_ms)

    def from_wall(self, wall_ms: int) -> int:
        """The engine time of a moment that a client names in wall time."""
        return wall_ms - self.ahead_ms
