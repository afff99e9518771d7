"""Counts of all queues together since the start: what `/metrics` adds up.

The account of a queue survives restarts and goes with the queue. A counter for Prometheus must do
neither: it begins at 0 with the process and never falls.
"""

from __future__ import annotations

from collections.abc import Iterable

from tallymark.engine.queue import Queue
from tallymark.engine.queue_parts import HandedOut


class SinceStart:
    """The counts of queues that are gone, less those of all queues at the start. Added to the
    counts of the queues that are there, they make what happened since."""

    def __init__(self, queues: Iterable[Queue]) -> None:
        """queues: those that are there at the start."""
        self.entered = 0
        self.settled = 0
        self.dead_lettered = 0
        self.handed_out = HandedOut()
        self.dropped: dict[int, int] = {}
        """Counts by reason (records.DROPPED_*)."""
        for queue in queues:
            self.add(queue, -1)

    def observe(self, queue: Queue, is_there: bool) -> None:
        """Note that a queue was declared, or deleted."""
        if not is_there:
            self.add(queue)

    def add(self, queue: Queue, sign: int = 1) -> None:
        """Add the counts of a queue; sign -1: take them off."""
        account = queue.account
        self.entered += sign * account.entered
        self.settled += sign * account.settled
        self.dead_lettered += sign * account.dead_lettered
        self.handed_out.add(queue.handed_out, sign)
        for reason, count in account.dropped.items():
            self.dropped[reason] = self.dropped.get(reason, 0) + sign * count

    def copy(self) -> SinceStart:
        """Return a copy, to add the queues to that are there."""
        other = SinceStart(())
        other.entered, other.settled = self.entered, self.settled
        other.dead_lettered = self.dead_lettered
        other.handed_out.add(self.handed_out, 1)
        other.dropped = dict(self.dropped)
        return other
