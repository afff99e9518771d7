"""What a queue does by itself as time passes and as it fills up: expire, drop, retry letters.

A queue that is watched is looked after whenever it changed and whenever its deadline comes. Only
the head of a lane expires [DL-4]; what goes over a limit leaves from the head [DL-6]. What a
consumer is about to be sent is spared: a message with a time to live of 0, or one too many, still
reaches a consumer that waits for it.
"""

from __future__ import annotations

from typing import final

from tallymark.engine import records
from tallymark.engine.clock import Clock
from tallymark.engine.deadletters import DeadLetters
from tallymark.engine.deadlines import NEVER, Deadlines
from tallymark.engine.delivery import Dispatcher
from tallymark.engine.entrance import Entrance
from tallymark.engine.message import Slice
from tallymark.engine.queue import Queue
from tallymark.engine.ready import Ready
from tallymark.engine.settings import DROP_HEAD


@final
class Upkeep:
    """Shares its parts with the Broker."""

    __slots__ = ("clock", "deadlines", "dispatcher", "entrance", "letters")

    def __init__(
        self,
        clock: Clock,
        deadlines: Deadlines,
        dispatcher: Dispatcher,
        entrance: Entrance,
        letters: DeadLetters,
    ) -> None:
        self.clock = clock
        self.deadlines = deadlines
        self.dispatcher = dispatcher
        self.entrance = entrance
        self.letters = letters

    def before(self, queue: Queue) -> None:
        """About to be served: what was deferred until now joins, what had its time goes."""
        if queue.deferred:
            self._end_deferrals(queue)
        self._expire(queue, queue.seen)

    def attend(self, queue: Queue) -> None:
        """It was served as far as that went, or is about to be asked what it holds."""
        if queue.deferred and self._end_deferrals(queue):
            self.dispatcher.mark(queue)
        if queue.ready > 0 and self.dispatcher.demand(queue) > 0:
            self._expire(queue, queue.seen)
        else:
            queue.seen = queue.entered + queue.shift
            self._expire(queue, queue.seen)
            self._cut(queue)
            self._expire(queue, queue.seen)  # what lay behind those that were cut
        if queue.letters and self.letters.pending.is_due(queue):
            self.letters.pending.retry(queue)
        if queue.own_ttl and not queue.ready and not queue.acquired:
            queue.own_ttl = False
        queue.watch()
        self._arm(queue)

    def next_due(self, queue: Queue) -> int:
        """When the queue must be looked after though nothing else happens to it."""
        due = NEVER
        if queue.ready and (queue.settings.ttl_ms >= 0 or queue.own_ttl):
            for lane in queue.lanes:
                head = lane.head()
                if head is not None:
                    due = min(due, _expiry(queue, head))
        if queue.deferrals:
            due = min(due, queue.deferrals[0][0])
        if queue.letters:
            due = min(due, queue.retry_ms)
        expires = queue.settings.expires_ms
        if expires >= 0 and not queue.consumers and not queue.subscriptions:
            due = min(due, queue.used_ms + expires)
        return due

    def _arm(self, queue: Queue) -> None:
        due = self.next_due(queue)
        if due < NEVER:
            # What is due already and was spared waits for its consumer, not for the clock.
            self.deadlines.arm(queue, max(due, self.clock.now_ms + 1))

    def _end_deferrals(self, queue: Queue) -> bool:
        """What is due becomes ready; False: nothing was."""
        due = queue.take_due(self.clock.now_ms)
        if queue.body_bytes >= 0:
            for entry in due:  # deferred before the queue had a limit on bytes, or a restart
                self.entrance.weigh(entry[3].payload)
        queue.end_deferrals(due)
        return bool(due)

    def _expire(self, queue: Queue, upto: int) -> None:
        """Messages whose time has come leave from the heads of their lanes; those that were never
        handed out only up to place `upto`."""
        if not queue.ready or not (queue.settings.ttl_ms >= 0 or queue.own_ttl):
            return
        now = self.clock.now_ms
        gone: list[Slice] = []
        for lane in queue.lanes:
            while True:
                head = lane.head()
                if head is None or _expiry(queue, head) > now:
                    break
                n = len(head)
                if not head.acquired:
                    n = min(n, upto + 1 - head.first - head.shift)
                if n <= 0:
                    break
                gone.append(queue.remove(lane, n))
        if gone:
            self.letters.bury(queue, gone, records.DEAD_EXPIRED)

    def _cut(self, queue: Queue) -> None:
        """Bring the queue down to its limits; pending letters count, and are the oldest."""
        settings = queue.settings
        if settings.overflow != DROP_HEAD:
            return
        limit, limit_bytes = settings.max_length, settings.max_bytes
        if limit_bytes >= 0 and queue.body_bytes < 0:
            self.entrance.weigh_queue(queue)
        while queue.ready or queue.letters:
            excess = queue.ready + queue.pending - limit if limit >= 0 else 0
            excess_bytes = queue.body_bytes - limit_bytes if limit_bytes >= 0 else 0
            if excess <= 0 and excess_bytes <= 0:
                return
            if queue.letters:
                piece = queue.letters[0].piece
                n = max(min(excess, len(piece)), _covering(piece, excess_bytes))
                self.letters.pending.give_up(queue, n, records.DROPPED_MAXLEN)
                continue
            lane: Ready = queue.lane()
            head = lane.head()
            assert head is not None
            n = max(min(excess, len(head)), _covering(head, excess_bytes))
            self.letters.bury(queue, [queue.remove(lane, n)], records.DEAD_MAXLEN)


def _expiry(queue: Queue, piece: Slice) -> int:
    """When a slice expires; all its messages entered together."""
    ttl = queue.settings.ttl_ms
    known = piece.annotations
    if known is not None and known.ttl_ms >= 0 and (ttl < 0 or known.ttl_ms < ttl):
        ttl = known.ttl_ms
    return piece.entered_ms() + ttl if ttl >= 0 else NEVER


def _covering(piece: Slice, excess: int) -> int:
    """How many messages from the front have `excess` body bytes between them; all if too few."""
    if excess <= 0:
        return 0
    bodies = piece.payload.bodies
    assert bodies is not None, piece.first
    low, high = piece.lo, piece.hi
    wanted = bodies[low] + excess
    while low < high:
        middle = (low + high) >> 1
        if bodies[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return max(1, low - piece.lo)
