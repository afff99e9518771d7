"""Counts of deleted queues, which sums over queues keep.

The account of a queue goes with the queue. Sums over queues that are shown as counters never fall,
so they have the counts of deleted queues in them: those of a virtual host in lists, samples and
charts, those of the broker in metrics.
"""

from __future__ import annotations

from collections.abc import Iterable

from tallymark.engine.queue import Queue
from tallymark.engine.queue_parts import HandedOut


class QueueSums:
    """Sums of the counts of queues that only grow."""

    def __init__(self) -> None:
        self.entered = 0
        self.settled = 0
        self.dead_lettered = 0
        self.handed_out = HandedOut()
        self.dropped: dict[int, int] = {}
        """Counts by reason (records.DROPPED_*)."""

    def add(self, queue: Queue, sign: int = 1) -> None:
        """Add the counts of a queue; sign -1: take them off."""
        account = queue.account
        self.entered += sign * account.entered
        self.settled += sign * account.settled
        self.dead_lettered += sign * account.dead_lettered
        self.handed_out.add(queue.handed_out, sign)
        for reason, count in account.dropped.items():
            self.dropped[reason] = self.dropped.get(reason, 0) + sign * count

    def copy(self) -> QueueSums:
        """Return a copy, to add other queues to."""
        other = QueueSums()
        other.entered, other.settled = self.entered, self.settled
        other.dead_lettered = self.dead_lettered
        other.handed_out.add(self.handed_out, 1)
        other.dropped = dict(self.dropped)
        return other


class DeletedQueues:
    """The queues of one broker that were deleted since the start, as sums of their counts."""

    def __init__(self, queues: Iterable[Queue]) -> None:
        """queues: those that are there at the start."""
        self._since_start = QueueSums()
        for queue in queues:
            self._since_start.add(queue, -1)
        self._of_vhosts: dict[str, QueueSums] = {}

    def observe(self, queue: Queue, is_there: bool) -> None:
        """Note that a queue was declared, or deleted."""
        if not is_there:
            self._since_start.add(queue)
            self._of_vhosts.setdefault(queue.vhost, QueueSums()).add(queue)

    def forget_vhost(self, name: str) -> None:
        """Forget the queues of a virtual host that is deleted; the broker's sums keep them."""
        self._of_vhosts.pop(name, None)

    def of_vhost(self, name: str) -> QueueSums:
        """Return the sums of a virtual host's deleted queues. They are not to be changed."""
        return self._of_vhosts.get(name) or QueueSums()

    def since_start(self) -> QueueSums:
        """Return the sums of all deleted queues, less what queues had counted before the start.
        With the counts of the queues that are there, they are what has happened since: a counter
        for Prometheus begins at 0 with the process."""
        return self._since_start.copy()
