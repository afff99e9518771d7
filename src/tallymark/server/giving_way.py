"""Giving way: a publisher that is ahead of its queue's consumers is not read until they caught up.

One read of a publisher can bring hundreds of messages, one of a consumer with a prefetch of 1 a
single settlement. Where both were read in turn, the backlog would grow for as long as the loop is
busy, and every message would wait behind it. So a publisher whose read found its queue with a
backlog gives way: it is read again once as many messages have left the queue as that read added.

It is the loop's time that is shared here, and nothing else: a round in which no message leaves ends
the wait, since then consumers are what is slow, or stand still. So do MOST_ROUNDS rounds.
"""

from __future__ import annotations

from typing import Final, final

from tallymark.engine.queue import Queue

LEAST: Final = 32
"""Messages of one read from which on a publisher gives way; fewer are no advantage."""
MOST_ROUNDS: Final = 100
"""Rounds of the loop after which it is read in any case."""


def has_caught_up(goal: int, gone: int, before: int, rounds: int) -> bool:
    """Return whether a publisher that gives way is read again. goal: count of messages that are to
    have left its queue; gone: of those that have, `before` in the round before this one; rounds:
    number of rounds that it has waited, the one in which it was read not counted."""
    return gone >= goal or rounds >= MOST_ROUNDS or (rounds > 0 and gone <= before)


def is_ahead(queue: Queue, entered: int) -> bool:
    """Return whether a read that added so many messages found a backlog behind consumers that
    settle."""
    return entered >= LEAST and queue.ready > entered and queue.acquired > 0


@final
class GivingWay:
    """One wait of a publisher."""

    __slots__ = ("_before", "_goal", "_queue", "_rounds")

    def __init__(self, queue: Queue, entered: int) -> None:
        """entered: number of messages that the publisher's read added."""
        self._queue = queue
        self._before = _gone(queue)
        self._goal = self._before + entered
        self._rounds = 0

    def is_over(self) -> bool:
        """Return whether the publisher is read again; to be asked once in each round."""
        gone = _gone(self._queue)
        is_over = has_caught_up(self._goal, gone, self._before, self._rounds)
        self._before = gone
        self._rounds += 1
        return is_over


def _gone(queue: Queue) -> int:
    """Count of the messages that have left a queue for good."""
    return queue.entered - queue.ready - queue.acquired
