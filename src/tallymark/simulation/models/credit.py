"""Shared credit: what the consumers of several queues may hold together, and how it goes round.

    own limit       nobody holds more than it asked for
    shared limit    all together hold no more than the limit that they share
    fairness        freed credit goes to all queues that have messages for it, in turn

Where two queues have messages all the time, and consumers that may take some, neither gets ahead of
the other by more than the limits and one round. A client cannot see what the disk of the broker, or
the network, holds up meanwhile. So a queue is treated unfairly only where that took a time, and the
other one got several times as much.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sized
from dataclasses import dataclass, field
from typing import Final

from tallymark.simulation.violated import Violated
from tallymark.simulation.world import World

TIMES: Final = 4
"""Factor by which a queue may be ahead of another that waits."""
STRETCHES: Final = 4
"""Number of patiences after which two queues are compared."""


@dataclass
class _Stretch:
    """Time in which a queue had messages, and its consumer could take some, without a break."""

    since_ns: int
    silent_ns: int
    """Time since when it was given nothing."""
    given: Counter[str] = field(default_factory=Counter)
    """Messages of each queue that were given to consumers in the whole time."""
    passed_over: Counter[str] = field(default_factory=Counter)
    """Messages given since this one was given nothing."""
    limit: int = 0
    """Highest shared limit in the whole time."""


class Shared:
    """Model of the limits of one connection's consumers."""

    def __init__(
        self,
        world: World,
        queues: tuple[str, ...],
        own: int,
        untouched: Mapping[str, Sized],
        patience_ns: int,
        in_doubt: int,
    ) -> None:
        """untouched: what each queue certainly has, but for `in_doubt` messages that a connection
        may have taken along which is gone."""
        self._world = world
        self._queues = queues
        self._own = own
        self._untouched = untouched
        self._patience_ns = patience_ns
        self._in_doubt = in_doubt
        self._limits = [own * len(queues)]  # what their own limits come to
        self._changed_ns = 0
        self._held: Counter[str] = Counter()
        self._stretches: dict[str, _Stretch] = {}
        self.was_full = False
        """True once all together held what they may hold."""
        self.was_contested = False
        """True once a queue had something to wait for while another one was served."""

    def limits(self, limit: int) -> None:
        """Note that another limit is asked for: until the broker has certainly heard of it, the one
        before holds, too."""
        kept = self._limits[-1:] if self._is_settled() else self._limits
        self._limits = [*kept, limit]
        self._changed_ns = self._world.now_ns

    @property
    def limit(self) -> int:
        """Messages that they may hold together now."""
        # What was held when a lower limit was set stays with its consumer.
        return self._limits[-1] if self._is_settled() else max(self._limits)

    def _is_settled(self) -> bool:
        """Return whether the broker has certainly heard of the last limit."""
        return self._has_passed(self._patience_ns, self._changed_ns)

    def _has_passed(self, patience_ns: int, since_ns: int) -> bool:
        """Return whether so much time has passed in which nothing hung."""
        world = self._world
        return world.troubles.leave_more_than(patience_ns, since_ns, world.now_ns)

    def delivered(self, queue: str, where: str) -> None:
        """Check a delivery to the consumer of a queue. Raises Violated."""
        self._held[queue] += 1
        if self._held[queue] > self._own:
            raise Violated(f"beyond its credit: {where}, {self._held[queue]} of {self._own}")
        limit, held = self.limit, self._held.total()
        if held > limit:
            raise Violated(f"beyond the shared credit: {where}, {held} of {limit}")
        self.was_full |= held == limit < self._own * len(self._queues)
        for other in self._queues:
            self._compare(other, queue, where)

    def answered(self, queue: str) -> None:
        """Note that a message of a queue is settled."""
        self._held[queue] -= 1

    def _compare(self, one: str, served: str, where: str) -> None:
        """Count a delivery in the stretch of time in which this queue waits. Another one that was
        served first may be ahead of it by a bound. Raises Violated."""
        has_messages = len(self._untouched[one]) > self._in_doubt
        if not has_messages or self._held[one] >= self._own:
            self._stretches.pop(one, None)
            return
        now = self._world.now_ns
        stretch = self._stretches.setdefault(one, _Stretch(now, now))
        stretch.given[served] += 1
        stretch.limit = max(stretch.limit, self.limit)
        if served == one:
            stretch.silent_ns = now
            stretch.passed_over.clear()
            return
        self.was_contested = True
        stretch.passed_over[served] += 1
        got, passed = stretch.given[served], stretch.passed_over[served]
        # What was under way when the other one began to wait, the limits, and one round.
        bound = 2 * stretch.limit + len(self._queues)
        if passed > bound and self._has_passed(self._patience_ns, stretch.silent_ns):
            raise Violated(f"unfair: {where}, {passed} of {served} while {one} got none")
        if self._has_passed(STRETCHES * self._patience_ns, stretch.since_ns):
            if got > bound + TIMES * stretch.given[one]:
                raise Violated(
                    f"unfair: {where}, {got} of {served} while {one} got {stretch.given[one]}"
                )
            del self._stretches[one]
