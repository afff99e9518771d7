"""The world: one clock, one source of chance, and the event loops of all processes in it.

Each simulated process has an asyncio loop of its own. The world runs one of them at a time: any
that has something to do now, else the one whose timer is next, and moves the clock there. Nothing
waits, and a seed gives the same run each time.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final, Protocol

SECOND_NS: Final = 1_000_000_000
EPOCH_NS: Final = 1_700_000_000 * SECOND_NS
"""Wall time at which every world begins, nanoseconds since 1970."""
NEVER_NS: Final = 1 << 62


class Stuck(Exception):
    """Report that somebody waits for what cannot happen any more."""


class Loop(Protocol):
    """The loop of one process, as the world runs it."""

    def next_ns(self) -> int:
        """Return when something is to be done, nanoseconds; 0: now; NEVER_NS: nothing is."""

    def run_round(self) -> None:
        """Run what is ready once."""


class Troubles:
    """Times in which something hung: a disk, a network, a process, a database. What takes a bounded
    time otherwise may have taken as much longer."""

    def __init__(self) -> None:
        self._times: list[tuple[int, int]] = []

    def add(self, begin_ns: int, seconds: float) -> None:
        """Note that something hangs from then on, for so long."""
        self._times.append((begin_ns, begin_ns + int(seconds * SECOND_NS)))

    def end_ns(self) -> int:
        """Return when all will be over."""
        return max((end for _, end in self._times), default=0)

    def within_ns(self, begin_ns: int, end_ns: int) -> int:
        """Return for how long, in a time, something may have hung: twice, where two things did."""
        return sum(max(0, min(end_ns, end) - max(begin_ns, begin)) for begin, end in self._times)

    def leave_more_than(self, bound_ns: int, begin_ns: int, end_ns: int) -> bool:
        """Return whether a time is longer than `bound_ns`, even without what hung in it."""
        left_ns = end_ns - begin_ns - bound_ns
        return left_ns > 0 and left_ns > self.within_ns(begin_ns, end_ns)


class World:
    """The clock, the chance and the loops."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.now_ns = 1000 * SECOND_NS
        self.wall_ahead_ns = EPOCH_NS
        """Nanoseconds by which the wall clock is ahead of `now_ns`: clock steps change it."""
        self.loops: list[Loop] = []
        self.failures: list[str] = []
        """Texts about what must not happen in any world: the run ends at the first."""
        self.steps = 0
        self.troubles = Troubles()

    @property
    def now_s(self) -> float:
        return self.now_ns / SECOND_NS

    def monotonic_ns(self) -> int:
        return self.now_ns

    def wall_ns(self) -> int:
        return self.now_ns + self.wall_ahead_ns

    def step(self) -> None:
        """Let one loop do what is ready. Raises Stuck."""
        self.steps += 1
        now_ns, first_ns = self.now_ns, NEVER_NS
        loop: Loop | None = None
        others: list[Loop] | None = None
        """All that may be next, if they are more than one."""
        for one in self.loops:
            next_ns = max(one.next_ns(), now_ns)
            if next_ns < first_ns:  # the clock moves to the next timer
                first_ns, loop, others = next_ns, one, None
            elif next_ns == first_ns and loop is not None:
                if others is None:
                    others = [loop]
                others.append(one)
        if loop is None:
            raise Stuck("no loop has anything to do, and no timer is set")
        self.now_ns = first_ns
        if others is not None:
            loop = self.random.choice(others)
        loop.run_round()

    def run_until(self, is_done: Callable[[], bool], limit_s: float) -> None:
        """Run until that holds. Raises Stuck: it does not within so many simulated seconds."""
        end = self.now_ns + int(limit_s * SECOND_NS)
        while not is_done():
            if self.failures:
                return
            if self.now_ns > end:
                raise Stuck(f"not done after {limit_s} simulated seconds")
            self.step()
