"""Giving way: a publisher that is ahead of its queue's consumers is not read until they caught up.

One read of a publisher can bring hundreds of messages, one of a consumer with a prefetch of 1 a
single settlement. Where both were read in turn, the backlog would grow for as long as the loop is
busy, and every message would wait behind it. So a publisher whose read found its queue with a
backlog gives way: it is read again once as many messages have left the queue as that read added.

That is for consumers which the broker keeps waiting, not for those which are slow themselves: a
queue is there to be filled faster than it is emptied. So a round of the loop in which no message
leaves is followed by a pause of PAUSE_S. Where fewer than BUSY left in the pause the wait ends, and
the publisher does not give way again for RETRY_S. It ends after MOST_ROUNDS in any case.
"""

from __future__ import annotations

from typing import Final, final

from tallymark.engine.queue import Queue

LEAST: Final = 32
"""Messages of one read from which on a publisher gives way; fewer are no advantage."""
MOST_ROUNDS: Final = 1000
"""Rounds of the loop and pauses after which it is read in any case."""
PAUSE_S: Final = 0.005
BUSY: Final = 100
"""Messages that leave in a pause where the loop is busy with consumers: 20,000 a second."""
RETRY_S: Final = 0.5
"""Seconds between two waits of a publisher for consumers that are slow: it loses a hundredth."""

IS_OVER: Final = 0
ROUND: Final = 1
"""Answer: wait for another round of the loop."""
PAUSE: Final = 2
"""Answer: wait for PAUSE_S, and not for every round meanwhile."""
IS_VAIN: Final = 3
"""Answer: the wait is over, and another one would help nobody for now."""


def what_next(goal: int, gone: int, before: int, rounds: int, has_paused: bool) -> int:
    """Return how a publisher goes on that gives way. goal: count of messages that are to have left
    its queue; gone: of those that have, `before` at the last look; rounds: number of looks so far;
    has_paused: whether there was a pause since the last one."""
    if gone >= goal or rounds >= MOST_ROUNDS:
        return IS_OVER
    if has_paused:
        return ROUND if gone - before >= BUSY else IS_VAIN
    return ROUND if rounds == 0 or gone > before else PAUSE


def is_ahead(queue: Queue, entered: int) -> bool:
    """Return whether a read that added so many messages found a backlog that consumers work on.
    What they hold says nothing: all of it may just have been settled."""
    return entered >= LEAST and queue.ready > entered and bool(queue.consumers)


@final
class GivingWay:
    """One wait of a publisher."""

    __slots__ = ("_before", "_goal", "_has_paused", "_queue", "_rounds")

    def __init__(self, queue: Queue, entered: int) -> None:
        """entered: number of messages that the publisher's read added."""
        self._queue = queue
        self._before = _gone(queue)
        self._goal = self._before + entered
        self._rounds = 0
        self._has_paused = False

    def look(self) -> int:
        """Return IS_OVER, IS_VAIN, ROUND or PAUSE; to be asked after each of the latter two."""
        gone = _gone(self._queue)
        found = what_next(self._goal, gone, self._before, self._rounds, self._has_paused)
        self._before = gone
        self._rounds += 1
        self._has_paused = found == PAUSE
        return found


def _gone(queue: Queue) -> int:
    """Count of the messages that have left a queue for good."""
    return queue.entered - queue.ready - queue.acquired
