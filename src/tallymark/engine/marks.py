"""A queue's mark: sequences below it may have been delivered, as far as the disk is told.

No message is delivered before that, so that after a crash every message that a consumer may have
seen has the redelivered flag. Messages between the last delivery and the mark are flagged, too,
although no consumer received them. Their number has two bounds:

- by pace: by what leaves while the disk takes a mark, twice, since a mark is renewed at half way;
- by credit: nothing leaves beyond what the queue's consumers may be sent without settling anything,
  and what came back to them lately [LC-3]. A consumer that settles nothing is exact.

The mark of a queue without deliveries is lowered to the last delivery, with the next block that is
written anyway, or when the whole broker is idle.
"""

from __future__ import annotations

from typing import Final, final

from tallymark.engine import records
from tallymark.engine.clock import Clock
from tallymark.engine.queue import Queue
from tallymark.engine.records import Record
from tallymark.engine.settings import UNLIMITED

LARGEST_RESERVE: Final = 8192
"""Sequences that a mark may be ahead of what asks for it."""
SMALLEST_RESERVE: Final = 32
"""The same at least, where credit has room for it."""
NO_CREDIT: Final = -1
SMALLEST_RETURN: Final = 8
"""Credit that is expected back, at least, where any came back lately: one mark for four messages
that leave one by one."""
REST_MS: Final = 250
"""Engine time without a delivery after which a mark is set back."""


@final
class MarkWait:
    """A queue whose mark is on its way to the disk."""

    __slots__ = ("budget", "comings", "mark", "queue", "reached")

    def __init__(self, queue: Queue, mark: int, reached: int) -> None:
        self.queue = queue
        self.mark = mark
        self.reached = reached
        """Sequence up to which messages had been delivered when the mark was emitted."""
        self.budget = queue.budget
        """The queue's budget when the mark before this one was asked for."""
        self.comings = queue.comings


@final
class Marks:
    """Sets the marks of all queues, and collects those that wait for the disk."""

    __slots__ = ("_clock", "_look_ms", "_loose", "_records", "turns", "waits")

    def __init__(self, clock: Clock, out: list[Record]) -> None:
        """out: where records go."""
        self._clock = clock
        self._records = out
        self._loose: list[Queue] = []
        """Queues whose mark may be ahead of what was delivered."""
        self._look_ms = 0
        """Engine time at which these are looked at again."""
        self.turns = 0
        self.waits: list[MarkWait] = []
        """Marks asked for in this turn."""

    def cover(self, queue: Queue, upto: int, first: int = NO_CREDIT) -> bool:
        """Ask the journal to mark sequences below `upto` as possibly delivered.

        Returns whether the disk is already known to say so. first: the sequence from which on the
        credit of the queue's consumers bounds how many messages leave; NO_CREDIT: none does.
        """
        if upto > queue.reached:
            if queue.turn != self.turns:
                queue.turn = self.turns
                queue.burst = 0
            queue.burst += upto - queue.reached
            queue.reached = upto
        if upto > queue.renew_at:
            self._renew(queue, upto, first)
        if upto <= queue.mark_durable:
            return True
        queue.stalled = True
        return False

    def _renew(self, queue: Queue, upto: int, first: int) -> None:
        """Set the mark as far ahead of `upto` as pace and credit have it. Where credit does not let
        it move, it is not asked for again in this turn. O(consumers)."""
        if queue.is_capped and queue.asked == self.turns and upto <= queue.mark:
            return
        queue.asked = self.turns
        mark = upto + max(queue.reserve, SMALLEST_RESERVE)
        budget = UNLIMITED
        queue.is_capped = False
        if first != NO_CREDIT:
            demand = queue.demand()
            if demand < UNLIMITED // 2:
                budget = queue.taken() + demand
                most = max(upto, first + demand + queue.returns)
                queue.is_capped = most < mark
                mark = min(mark, most)
        if mark > queue.mark:
            queue.mark = mark
            self._records.append(Record(records.MARK, queue.id, mark, 0, self._clock.now_ms))
            self.waits.append(MarkWait(queue, mark, queue.reached))
            queue.renew_at = mark - (mark - upto) // 2
            if not queue.is_loose:
                queue.is_loose = True
                queue.was_reached = queue.reached
                self._loose.append(queue)
        queue.budget = budget

    def covered(self, wait: MarkWait) -> None:
        """The disk says that sequences below `wait.mark` may have been delivered.

        The next mark is set ahead by what the last turn delivered that delivered anything, and by
        twice what was delivered meanwhile, since it is renewed at half way; and twice as far as the
        last one where delivery had to wait for it. Credit is expected to come back as it did
        meanwhile.
        """
        queue = wait.queue
        queue.mark_durable = max(queue.mark_durable, wait.mark)
        ahead = 2 * (queue.reached - wait.reached) + queue.burst
        if queue.stalled:
            queue.stalled = False
            ahead = max(ahead, 2 * queue.reserve)
        queue.reserve = min(max(ahead, SMALLEST_RESERVE), LARGEST_RESERVE)
        if not queue.is_capped:
            queue.renew_at = min(queue.renew_at, queue.mark - queue.reserve // 2)
        queue.returns = 0
        if wait.budget < UNLIMITED and wait.comings == queue.comings:
            back = queue.taken() + queue.demand() - wait.budget
            if 0 < back < LARGEST_RESERVE:
                queue.returns = max(2 * back, SMALLEST_RETURN)
            elif back > 0:
                queue.returns = LARGEST_RESERVE

    def tighten(self, queue: Queue) -> None:
        """Nothing was delivered for a while: set the mark back to what was. Nothing above it is
        delivered from now on before a new mark is on disk."""
        if queue.stored and queue.reached < queue.mark == queue.mark_durable:
            queue.mark = queue.mark_durable = queue.renew_at = queue.reached
            queue.reserve = queue.returns = 0
            self._records.append(Record(records.MARK, queue.id, queue.mark, 0, self._clock.now_ms))

    def look_around(self) -> None:
        """Set back the marks of queues whose delivery rests, with a block that is written anyway.

        A queue whose consumers took all there is keeps its mark: what enters next need not wait.
        O(1) in most turns; every REST_MS, O(queues that had a mark set ahead).
        """
        if not self._loose or not self._records or self._clock.now_ms < self._look_ms:
            return
        self._look_ms = self._clock.now_ms + REST_MS
        loose, self._loose = self._loose, []
        for queue in loose:
            rests = queue.was_reached == queue.reached and queue.mark == queue.mark_durable
            queue.was_reached = queue.reached
            if rests and (queue.ready or not queue.consumers):
                self.tighten(queue)
            if queue.deleted or queue.mark <= queue.reached:
                queue.is_loose = False
            else:
                self._loose.append(queue)
