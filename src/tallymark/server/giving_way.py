"""Giving way: a publisher that is ahead of its queue's consumers is not read until they caught up.

One read of a publisher can bring hundreds of messages, one of a consumer with a prefetch of 1 a
single settlement. Where both were read in turn, the backlog would grow for as long as the loop is
busy, and every message would wait behind it. So a publisher whose read found its queue with a
backlog gives way: it is read again once as many messages have left the queue as that read added.
A backlog is what is ready beyond the credit of the queue's consumers. The rest waits for the disk
or for a turn: a publisher that gave way to it would only stand idle meanwhile.

That is for consumers which the broker keeps waiting, not for those which are slow themselves: a
queue is there to be filled faster than it is emptied. So a round of the loop in which no message
leaves is followed by a pause of PAUSE_S. Consumers are waiting for the broker where BUSY messages
left in the pause; where it was at work for most of the pause, and SOME left, since a broker that is
interpreted, or on a slow machine, never comes to BUSY; or where they want messages that are ready,
which wait for the disk or for a turn, and something left in one of the last STILL pauses. A disk
that hangs lets nothing go: then the limit on memory is what holds a publisher.

Else the wait ends, and the publisher does not give way again for FIRST_RETRY_S, then for twice as
long each time, up to LAST_RETRY_S: consumers that were slow once, because they had just begun,
would else be behind for long. A wait ends after MOST_ROUNDS in any case.
"""

from __future__ import annotations

from typing import Final, final

from tallymark.engine.queue import Queue
from tallymark.server.clock import CLOCKS

LEAST: Final = 32
"""Messages of one read from which on a publisher gives way; fewer are no advantage."""
MOST_ROUNDS: Final = 1000
"""Rounds of the loop and pauses after which it is read in any case."""
PAUSE_S: Final = 0.005
BUSY: Final = 100
"""Messages that leave in a pause where the loop is busy with consumers: 20,000 a second."""
SOME: Final = 20
"""Messages that leave in a pause from which on it counts that the loop was busy: 4,000 a second."""
STILL: Final = 10
"""Pauses one after another in which nothing leaves: then nothing is going to."""
AT_WORK_NS: Final = 2_500_000
"""Nanoseconds of processor time in a pause from which on the loop counts as busy: half of it."""
FIRST_RETRY_S: Final = 0.02
LAST_RETRY_S: Final = 0.5
"""Seconds between two waits of a publisher for consumers that are slow: it loses a hundredth."""

IS_OVER: Final = 0
ROUND: Final = 1
"""Answer: wait for another round of the loop."""
PAUSE: Final = 2
"""Answer: wait for PAUSE_S, and not for every round meanwhile."""
IS_VAIN: Final = 3
"""Answer: the wait is over, and another one would help nobody for now."""


def is_kept_waiting(left: int, worked_ns: int, are_wanting: bool) -> bool:
    """Return whether consumers wait for the broker, and not it for them. left: messages that left
    the queue in a pause; worked_ns: processor time of the loop in it, in nanoseconds;
    are_wanting: whether at its end messages are ready that they have credit for."""
    return are_wanting or left >= BUSY or (left >= SOME and worked_ns >= AT_WORK_NS)


def what_next(goal: int, gone: int, before: int, rounds: int, waits: bool | None) -> int:
    """Return how a publisher goes on that gives way. goal: count of messages that are to have left
    its queue; gone: of those that have, `before` at the last look; rounds: number of looks so far;
    waits: whether consumers were kept waiting in the pause since the last one; None: there was
    none."""
    if gone >= goal or rounds >= MOST_ROUNDS:
        return IS_OVER
    if waits is not None:
        return ROUND if waits else IS_VAIN
    return ROUND if rounds == 0 or gone > before else PAUSE


def next_retry_s(found: int, retry_s: float) -> float:
    """Return the seconds until the next wait, should it be vain. found: how this one ended;
    retry_s: what it was for this one."""
    return min(2 * retry_s, LAST_RETRY_S) if found == IS_VAIN else FIRST_RETRY_S


def is_ahead(queue: Queue, entered: int) -> bool:
    """Return whether a read that added so many messages found a backlog that consumers work on.
    What they hold says nothing: all of it may just have been settled."""
    if entered < LEAST or queue.ready <= entered or not queue.consumers:
        return False
    return queue.ready - entered > queue.demand()  # the dearer question, and so the last


@final
class GivingWay:
    """One wait of a publisher."""

    __slots__ = ("_before", "_goal", "_has_paused", "_queue", "_rounds", "_still", "_worked_ns")

    def __init__(self, queue: Queue, entered: int) -> None:
        """entered: number of messages that the publisher's read added."""
        self._queue = queue
        self._before = _gone(queue)
        self._goal = self._before + entered
        self._rounds = 0
        self._has_paused = False
        self._still = 0
        """Pauses since something left."""
        self._worked_ns = 0
        """Processor time of the loop when the pause began, in nanoseconds."""

    def look(self) -> int:
        """Return IS_OVER, IS_VAIN, ROUND or PAUSE; to be asked after each of the latter two."""
        queue = self._queue
        gone = _gone(queue)
        waits: bool | None = None
        if self._has_paused:
            self._still = 0 if gone > self._before else self._still + 1
            are_wanting = self._still < STILL and queue.ready > 0 and queue.demand() > 0
            worked_ns = CLOCKS.worked_ns() - self._worked_ns
            waits = is_kept_waiting(gone - self._before, worked_ns, are_wanting)
        found = what_next(self._goal, gone, self._before, self._rounds, waits)
        self._before = gone
        self._rounds += 1
        self._has_paused = found == PAUSE
        if self._has_paused:
            self._worked_ns = CLOCKS.worked_ns()
        return found


def _gone(queue: Queue) -> int:
    """Count of the messages that have left a queue for good."""
    return queue.entered - queue.ready - queue.acquired
