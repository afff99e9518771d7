"""Upkeep: changes of a queue that follow from time and size: expiry, drops, retries of letters.

A queue that is watched is looked after whenever it changed and whenever its deadline comes. Only
the head of a lane expires [DL-4]; what goes over a limit leaves from the head [DL-6]. What a
consumer is about to be sent is spared: a message with a time to live of 0, or one too many, still
reaches a consumer that waits for it.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final, final

from tallymark.engine.account import MOVING, READY
from tallymark.engine.arguments import DROP_HEAD
from tallymark.engine.clock import NEVER
from tallymark.engine.deadletters import DeadLetters
from tallymark.engine.entrance import Entrance
from tallymark.engine.lanes import Lane
from tallymark.engine.message import Slice
from tallymark.engine.quarantine import Quarantine
from tallymark.engine.queue import Queue
from tallymark.engine.queue_parts import Deferred
from tallymark.engine.retries import Retries
from tallymark.engine.state import State
from tallymark.stored import records
from tallymark.stored.annotations import ready_since
from tallymark.units import UNLIMITED, EngineMs

IN_A_TURN: Final = 4096
"""Number of slices that may expire, exceed a limit or become due in one turn; other queues are
served in between."""


@final
class Upkeep:
    """The upkeep of queues."""

    def __init__(
        self,
        state: State,
        entrance: Entrance,
        letters: DeadLetters,
        retries: Retries,
        quarantine: Quarantine,
    ) -> None:
        self._state = state
        self._agenda = state.agenda
        self.clock = state.clock
        self.deadlines = state.deadlines
        self._entrance = entrance
        self._letters = letters
        self._pending = letters.pending
        self._retries = retries
        self._quarantine = quarantine
        self.room = UNLIMITED
        """Count of slices that may still leave in this turn. Commands are not limited by it."""

    def before(self, queue: Queue) -> bool:
        """Prepare a queue to be served: due deferrals become ready, expired messages leave. False:
        more messages are due or expired than one turn may handle, and the queue must not be served
        before the next turn."""
        if queue.deferred:
            self._end_deferrals(queue)
            if self._has_due(queue):  # one of them may be the next, whenever it was deferred
                return False
        return self._expire(queue, queue.seen)

    def attend(self, queue: Queue) -> None:
        """Attend to a queue after it was served, or before a command asks what it holds: deferrals,
        expiry, limits, retries."""
        if queue.settings.is_stream:
            if not self._retain(queue):
                self._agenda.mark(queue)
            self._arm(queue)
            return
        if queue.deferred and (self._end_deferrals(queue) or self._has_due(queue)):
            self._agenda.mark(queue)
        taken = queue.entered + queue.lanes.next_shift
        # The dearer question, O(consumers), is asked last: all else would be the same.
        may_spare = queue.ready > 0 and (queue.seen < taken or _is_over(queue))
        if may_spare and queue.is_wanted():
            self._expire(queue, queue.seen)
        else:
            queue.seen = taken
            done = self._expire(queue, queue.seen) and self._cut(queue)
            if not (done and self._expire(queue, queue.seen)):  # what lay behind those cut
                self._agenda.mark(queue)
        if queue.letters and self._pending.is_due(queue):
            self._entrance.weigh_queue(queue)  # a letter may enter it, and none may go meanwhile
            self._retries.retry(queue)
        if queue.own_ttl and not (queue.ready or queue.acquired or queue.account.staged):
            queue.own_ttl = False
        queue.watch()
        self._arm(queue)

    def use(self, queue: Queue) -> None:
        """Note the use of a queue: its expiry starts anew [x-expires]. It is attended to, over
        several turns if that is much."""
        queue.used_ms = self.clock.now_ms
        if queue.watched:
            self.room = IN_A_TURN
            self.attend(queue)
            self.room = UNLIMITED

    def next_head(self, queue: Queue) -> Slice | None:
        """Return the slice that leaves next, after the expired messages before it have left [DL-4];
        None: there is none, or no more messages may expire in this turn.

        O(1) where no time to live is said.
        """
        if not (queue.settings.ttl_ms >= 0 or queue.own_ttl):
            return queue.head()
        now = self.clock.now_ms
        gone: list[Slice] = []
        found: Slice | None = None
        while queue.ready:
            lane = queue.lanes.next_lane()
            head = lane.head()
            assert head is not None, queue.name
            n = self._overdue(queue, head, queue.seen, now)
            if n <= 0:
                found = head
                break
            if self.room <= 0:
                self._agenda.mark(queue)
                break
            self.room -= 1
            gone.append(queue.remove(lane, n))
        if gone:
            self._letters.bury(queue, gone, records.DEAD_EXPIRED)
        return found

    def expire_at(self, queue: Queue, lane: Lane, found: Slice) -> int:
        """Let the expired messages at the front of `found`, the next slice for a consumer with a
        filter, leave from any position in the lane [DL-4]. Returns their count."""
        if not (queue.settings.ttl_ms >= 0 or queue.own_ttl):
            return 0
        n = self._overdue(queue, found, queue.seen, self.clock.now_ms)
        if n <= 0:
            return 0
        piece = lane.pick(found.first + found.shift, n)
        queue.account.move(piece, READY, MOVING)
        self._letters.bury(queue, [piece], records.DEAD_EXPIRED)
        return n

    def _overdue(self, queue: Queue, head: Slice, upto: int, now: int) -> int:
        """Return how many messages at the front of a head have expired. Messages that were never
        delivered count only up to place `upto`."""
        if _expiry(queue, head) > now:
            return 0
        n = len(head)
        return n if head.acquired else min(n, upto + 1 - head.first - head.shift)

    def next_due(self, queue: Queue) -> int:
        """Return the time at which the queue must be attended to even if nothing else happens;
        engine time, ms."""
        due = NEVER
        if queue.settings.max_age_ms >= 0 and queue.ready:
            due = EngineMs(queue.lanes.lowest.fresh[0].entered_ms() + queue.settings.max_age_ms)
        if queue.ready and (queue.settings.ttl_ms >= 0 or queue.own_ttl):
            for lane in queue.lanes.by_priority:
                head = lane.head()
                if head is not None:
                    due = EngineMs(min(due, _expiry(queue, head)))
        if queue.deferrals:
            due = min(due, queue.deferrals.next_due())
        if queue.letters:
            due = min(due, queue.retry.due_ms)
        if queue.may_expire():
            due = EngineMs(min(due, queue.used_ms + queue.settings.expires_ms))
        return due

    def _arm(self, queue: Queue) -> None:
        due = self.next_due(queue)
        if due < NEVER:
            # A message that is due and was spared waits for its consumer, not for the clock.
            self.deadlines.arm(queue, EngineMs(max(due, self.clock.now_ms + 1)))

    def _end_deferrals(self, queue: Queue) -> bool:
        """Make due deferrals ready, as many as a turn may handle; False: none was due, or none may
        be handled."""
        due = queue.take_due(self.clock.now_ms, self.room)
        self.room -= len(due)
        found = bool(due)
        if queue.account.body_bytes >= 0:  # deferred before it had a limit on bytes, or a restart
            due = [entry for entry in due if self._is_weighed(queue, entry)]
        queue.end_deferrals(due)
        return found

    def _has_due(self, queue: Queue) -> bool:
        """Return whether a deferral is due."""
        return bool(queue.deferrals) and queue.deferrals.next_due() <= self.clock.now_ms

    def _is_weighed(self, queue: Queue, entry: Deferred) -> bool:
        """Compute the body bytes of a deferred slice. False: it cannot be read and was
        quarantined."""
        piece = entry.piece
        if self._entrance.is_weighed(piece.payload):
            return True
        known = piece.annotations
        if known is not None and known.due_ms:
            piece.annotations = ready_since(known, entry.due_ms)
        self._quarantine.put(queue, piece)
        return False

    def _expire(self, queue: Queue, upto: int) -> bool:
        """Let expired messages leave from the heads of their lanes. Messages that were never
        delivered expire only up to place `upto`. False: more expired than one turn may handle."""
        if not queue.ready or not (queue.settings.ttl_ms >= 0 or queue.own_ttl):
            return True
        now = self.clock.now_ms
        gone: list[Slice] = []
        done = True
        for lane in queue.lanes.by_priority:
            while True:
                head = lane.head()
                n = 0 if head is None else self._overdue(queue, head, upto, now)
                if n <= 0:
                    break
                if self.room <= 0:
                    done = False
                    break
                self.room -= 1
                gone.append(queue.remove(lane, n))
        if gone:
            self._letters.bury(queue, gone, records.DEAD_EXPIRED)
        return done

    def _retain(self, queue: Queue) -> bool:
        """Delete messages that are too old, or exceed the size, from the beginning of a stream.
        False: there are more than one turn may handle.

        Size is counted in bytes since the stream was made, and what is beyond it is cut off at a
        whole number of segments: so what is kept does not depend on when that is looked at.
        """
        settings = queue.settings
        lane = queue.lanes.lowest
        oldest = self.clock.now_ms - settings.max_age_ms + 1 if settings.max_age_ms >= 0 else -1
        excess = 0
        if settings.retain_bytes >= 0:
            cut = queue.retention.let_go_bytes + queue.account.ready_bytes - settings.retain_bytes
            if settings.segment_bytes:
                cut -= cut % settings.segment_bytes
            excess = cut - queue.retention.let_go_bytes
        while lane.fresh:
            head = lane.fresh[0]
            n = 0
            if excess > 0:
                cuts = head.payload.cuts
                wanted = cuts[head.lo] + excess
                n = min(len(head), bisect_left(cuts, wanted, head.lo + 1, head.hi) - head.lo)
            if oldest >= 0:
                n = max(n, head.older(EngineMs(oldest)))
            if n == 0:
                return True
            if self.room <= 0:
                return False
            self.room -= 1
            piece = queue.let_go(n)
            excess -= piece.size()
            for pin in queue.retention.pins:
                pin.keep(piece, self._state.store)
            self._state.drop(queue, piece, records.DROPPED_RETENTION)
        return True

    def _cut(self, queue: Queue) -> bool:
        """Drop messages until the queue is within its limits. Pending letters count and are the
        oldest. False: there are more than one turn may handle."""
        settings = queue.settings
        if settings.overflow != DROP_HEAD:
            return True
        limit, limit_bytes = settings.max_length, settings.max_bytes
        self._entrance.weigh_queue(queue)
        while queue.ready or queue.letters:
            excess = queue.ready + queue.pending - limit if limit >= 0 else 0
            excess_bytes = queue.account.body_bytes - limit_bytes if limit_bytes >= 0 else 0
            if excess <= 0 and excess_bytes <= 0:
                return True
            if self.room <= 0:
                return False
            self.room -= 1
            if queue.letters:
                piece = queue.letters[0].piece
                n = max(min(excess, len(piece)), _covering(piece, excess_bytes))
                self._pending.give_up(queue, n, records.DROPPED_MAXLEN)
                continue
            lane: Lane = queue.lanes.next_lane()
            head = lane.head()
            assert head is not None
            n = max(min(excess, len(head)), _covering(head, excess_bytes))
            self._letters.bury(queue, [queue.remove(lane, n)], records.DEAD_MAXLEN)
        return True


def _is_over(queue: Queue) -> bool:
    """Return whether messages may have to leave for a limit."""
    settings = queue.settings
    if settings.overflow != DROP_HEAD:
        return False
    if 0 <= settings.max_length < queue.ready + queue.pending:
        return True
    body_bytes = queue.account.body_bytes  # below 0: not known yet
    return settings.max_bytes >= 0 and (body_bytes < 0 or body_bytes > settings.max_bytes)


def _expiry(queue: Queue, piece: Slice) -> int:
    """Return the time at which a slice expires, engine time, ms. All its messages entered
    together."""
    ttl = queue.settings.ttl_ms
    known = piece.annotations
    if known is not None and known.ttl_ms >= 0 and (ttl < 0 or known.ttl_ms < ttl):
        ttl = known.ttl_ms
    return piece.entered_ms() + ttl if ttl >= 0 else NEVER


def _covering(piece: Slice, excess: int) -> int:
    """Return how many messages from the front have `excess` body bytes together; all of them if
    they have fewer."""
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
