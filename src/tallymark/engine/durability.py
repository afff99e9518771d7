"""Durability: what waits for the disk, and the high-water marks that deliveries wait for.

Confirms, marks, stream messages and external waiters: everything asked for in a turn waits for the
end of that turn's block; positions only grow, so one queue of waits serves all. Confirms leave in
publish order, several at once as one [rabbitmq confirms, multiple].

Sequences below a queue's high-water mark may have been delivered, as recorded on disk. No message
is delivered before that, so that after a crash every message that a consumer may have seen has the
redelivered flag. Messages between the last delivery and the mark are flagged, too, although no
consumer received them. Their number has two bounds:

- by pace: by what leaves while the disk takes a mark, twice, since a mark is renewed at half way;
- by credit: nothing leaves beyond what the queue's consumers may be sent without settling anything,
  and what came back to them lately [LC-3]. A consumer that settles nothing is exact.

The mark of a queue without deliveries is lowered to the last delivery, with the next block that is
written anyway, or when the whole broker is idle."""

from __future__ import annotations

from collections import deque
from typing import Final, TypeAlias, assert_never, final

from tallymark.engine.effects import Confirm, Durable, Effect
from tallymark.engine.ledger import mark_record
from tallymark.engine.queue import Queue
from tallymark.engine.session import Session
from tallymark.engine.state import Returns, State
from tallymark.units import UNLIMITED, EngineMs, Position, PublishNumber, QueueSequence

LARGEST_RESERVE: Final = 8192
"""Maximum distance between a mark and the sequence that requests it."""
SMALLEST_RESERVE: Final = 32
"""Minimum distance between a mark and the sequence that requests it, if credit allows it."""
NO_CREDIT: Final = -1
SMALLEST_RETURN: Final = 8
"""Minimum of the credit that is expected to return where any returned lately: one mark for four
messages that leave one by one."""
REST_MS: Final = 250
"""Time without a delivery after which a mark is lowered; engine time, ms."""


@final
class MarkWait:
    """A queue whose mark is being written to disk."""

    def __init__(self, queue: Queue, mark: QueueSequence, reached: QueueSequence) -> None:
        self.queue = queue
        self.mark = mark
        self.reached = reached
        """Sequence up to which messages had been delivered when the mark was emitted."""
        self.budget = queue.high_water.budget
        """Budget of the queue when the mark before this one was emitted."""
        self.comings = queue.comings


@final
class Marks:
    """Sets the marks of all queues, and collects those that are being written to disk."""

    def __init__(self, state: State) -> None:
        self._clock = state.clock
        self._ledger = state.ledger
        self._ahead: list[Queue] = []
        """Queues whose mark may be ahead of the last delivery."""
        self._look_ms = EngineMs(0)
        """Time at which these queues are examined next, engine time, ms."""
        self.turns = 0
        self.waits: list[MarkWait] = []
        """Marks emitted in this turn."""

    def cover(
        self, queue: Queue, upto: QueueSequence, first: QueueSequence = QueueSequence(NO_CREDIT)
    ) -> bool:
        """Ask the journal to mark sequences below `upto` as possibly delivered.

        Returns whether that is on disk already. first: the sequence from which on the credit of the
        queue's consumers bounds how many messages leave; NO_CREDIT: nothing bounds them.
        """
        high = queue.high_water
        if upto > high.reached:
            if high.turn != self.turns:
                high.turn = self.turns
                high.burst = 0
            high.burst += upto - high.reached
            high.reached = upto
        if upto > high.renew_at:
            self._renew(queue, upto, first)
        if upto <= high.durable:
            return True
        high.stalled = True
        return False

    def _renew(self, queue: Queue, upto: QueueSequence, first: QueueSequence) -> None:
        """Set the mark as far ahead of `upto` as pace and credit allow. If credit prevents that, it
        is not tried again in this turn. O(consumers)."""
        high = queue.high_water
        if high.is_capped and high.asked == self.turns and upto <= high.mark:
            return
        high.asked = self.turns
        mark = upto + max(high.reserve, SMALLEST_RESERVE)
        budget = UNLIMITED
        high.is_capped = False
        if first != NO_CREDIT:
            demand = queue.demand()
            if demand < UNLIMITED // 2:
                budget = queue.taken() + demand
                most = max(upto, first + demand + high.returns)
                high.is_capped = most < mark
                mark = min(mark, most)
        if mark > high.mark:
            high.mark = QueueSequence(mark)
            self._ledger.emit(mark_record(queue.id, QueueSequence(mark)))
            self.waits.append(MarkWait(queue, QueueSequence(mark), high.reached))
            high.renew_at = QueueSequence(mark - (mark - upto) // 2)
            if not high.is_ahead:
                high.is_ahead = True
                high.was_reached = high.reached
                self._ahead.append(queue)
        high.budget = budget

    def covered(self, wait: MarkWait) -> None:
        """Note that the mark of `wait` is on disk, and set how far ahead the next one is.

        The next mark is ahead by the count of the last turn that delivered anything, plus twice the
        count delivered while this mark was written, since a mark is renewed at half way. It is
        twice as far ahead as the last one if a delivery had to wait for it. Credit is expected to
        return at the rate at which it returned meanwhile.
        """
        queue = wait.queue
        high = queue.high_water
        high.durable = max(high.durable, wait.mark)
        ahead = 2 * (high.reached - wait.reached) + high.burst
        if high.stalled:
            high.stalled = False
            ahead = max(ahead, 2 * high.reserve)
        high.reserve = min(max(ahead, SMALLEST_RESERVE), LARGEST_RESERVE)
        if not high.is_capped:
            high.renew_at = QueueSequence(min(high.renew_at, high.mark - high.reserve // 2))
        high.returns = 0
        if wait.budget < UNLIMITED and wait.comings == queue.comings:
            back = queue.taken() + queue.demand() - wait.budget
            if 0 < back < LARGEST_RESERVE:
                high.returns = max(2 * back, SMALLEST_RETURN)
            elif back > 0:
                high.returns = LARGEST_RESERVE

    def tighten(self, queue: Queue) -> None:
        """Lower the mark to the last delivery, when nothing was delivered for a while. Nothing
        above it is delivered before a new mark is on disk."""
        high = queue.high_water
        if queue.stored and high.reached < high.mark == high.durable:
            high.settle_at(high.reached)
            high.reserve = high.returns = 0
            self._ledger.emit(mark_record(queue.id, high.mark))

    def look_around(self) -> None:
        """Lower the marks of queues without deliveries, with a block that is written anyway.

        A queue whose consumers took all there is keeps its mark: what enters next need not wait.
        O(1) in most turns; every REST_MS, O(queues that had a mark set ahead).
        """
        if not self._ahead or not self._ledger.rows or self._clock.now_ms < self._look_ms:
            return
        self._look_ms = EngineMs(self._clock.now_ms + REST_MS)
        ahead, self._ahead = self._ahead, []
        for queue in ahead:
            high = queue.high_water
            rests = high.was_reached == high.reached and high.mark == high.durable
            high.was_reached = high.reached
            if rests and (queue.ready or not queue.consumers):
                self.tighten(queue)
            if queue.deleted or high.mark <= high.reached:
                high.is_ahead = False
            else:
                self._ahead.append(queue)


@final
class ConfirmWait:
    """A session that confirms its publishes up to `upto`."""

    def __init__(self, session: Session, upto: PublishNumber) -> None:
        self.session = session
        self.upto = upto


@final
class AppendWait:
    """A stream whose readers may see its messages below `end`."""

    def __init__(self, queue: Queue, end: QueueSequence) -> None:
        self.queue = queue
        self.end = end


@final
class HoldWait:
    """A queue that delivers its messages below `end`."""

    def __init__(self, queue: Queue, end: QueueSequence) -> None:
        self.queue = queue
        self.end = end


@final
class OutsideWait:
    """A waiter of the engine's owner, which a Durable effect names."""

    def __init__(self, waiter: object) -> None:
        self.waiter = waiter


QueueWait: TypeAlias = MarkWait | AppendWait | HoldWait | Returns
Wait: TypeAlias = ConfirmWait | QueueWait | OutsideWait


@final
class BlockWaits:
    """All that waits until the journal is on disk up to `position`, the end of one block."""

    def __init__(self, position: Position, waits: list[Wait]) -> None:
        self.position = position
        self.waits = waits


@final
class Durability:
    """Collects the waits of the present turn, and holds those of earlier turns."""

    def __init__(self, state: State, marks: Marks) -> None:
        self._agenda = state.agenda
        self._marks = marks
        self._confirming: list[Session] = []
        self._otherwise = 0
        """Count of the publishes of this turn that are confirmed without a confirming session, less
        those of such sessions that are refused."""
        self._asked: list[object] = []
        self._blocks: deque[BlockWaits] = deque()

    def published(self, session: Session, count: int) -> None:
        """Request confirms for `count` publishes of a confirming session."""
        if session.published == session.confirm_asked:
            self._confirming.append(session)
        session.published = PublishNumber(session.published + count)

    def refused(self, count: int) -> None:
        """Note that `count` of the publishes of confirming sessions in this turn are refused."""
        self._otherwise -= count

    def answered(self, count: int) -> None:
        """Note that `count` publishes of this turn are confirmed by an answer that somebody asked
        for, once it is on disk [nsq OK]."""
        self._otherwise += count

    def ask(self, waiter: object) -> None:
        """Request a Durable effect for the waiter, once this turn is on disk."""
        self._asked.append(waiter)

    def is_waiting(self) -> bool:
        """Return whether anything waits for the disk."""
        return bool(self._blocks or self._confirming or self._asked)

    def is_awaited(self) -> bool:
        """Return whether anything waits for the records that are not committed yet."""
        agenda = self._agenda
        if self._confirming or self._asked or self._marks.waits or agenda.returns:
            return True
        if agenda.appended or agenda.held:
            return any(queue.consumers for queue in [*agenda.appended, *agenda.held])
        return False

    def committed(self, position: Position) -> int:
        """Note that this turn's block ends at `position`; return the number of publishes that are
        confirmed once it is on disk."""
        agenda = self._agenda
        waits: list[Wait] = []
        confirming, self._otherwise = self._otherwise, 0
        for session in self._confirming:
            confirming += session.published - session.confirm_asked
            session.confirm_asked = session.published
            waits.append(ConfirmWait(session, session.published))
        if self._confirming:
            self._confirming.clear()
        marks = self._marks
        if marks.waits:
            waits += marks.waits
            marks.waits.clear()
        if agenda.appended:
            for queue in agenda.appended:
                queue.appended = False
                waits.append(AppendWait(queue, QueueSequence(queue.entered + 1)))
            agenda.appended.clear()
        if agenda.held:
            for queue in agenda.held:
                queue.disk_hold.is_held = False
                waits.append(HoldWait(queue, QueueSequence(queue.entered + 1)))
            agenda.held.clear()
        if agenda.returns:
            waits += agenda.returns
            agenda.returns.clear()
        if self._asked:
            for waiter in self._asked:
                waits.append(OutsideWait(waiter))
            self._asked.clear()
        if waits:
            self._blocks.append(BlockWaits(position, waits))
        return confirming

    def synced(self, position: Position) -> list[Effect]:
        """Note that the journal is on disk up to `position`, and return the effects that this
        releases, in order."""
        blocks = self._blocks
        out: list[Effect] = []
        if not blocks or blocks[0].position > position:
            return out
        confirms: dict[int, Confirm] = {}
        while blocks and blocks[0].position <= position:
            for wait in blocks.popleft().waits:
                match wait:
                    case ConfirmWait():
                        known = confirms.get(wait.session.id)
                        if known is not None:
                            known.upto = wait.upto
                        elif not wait.session.closed:
                            known = confirms[wait.session.id] = Confirm(wait.session, wait.upto)
                            out.append(known)
                    case OutsideWait():
                        out.append(Durable(wait.waiter))
                    case _:
                        self._release(wait)
        return out

    def _release(self, wait: QueueWait) -> None:
        """Let a queue deliver what the disk knows now."""
        queue = wait.queue
        match wait:
            case MarkWait():
                self._marks.covered(wait)
            case AppendWait():
                high = queue.high_water
                high.durable = max(high.durable, wait.end)
            case HoldWait():
                hold = queue.disk_hold
                hold.turns -= 1
                hold.shown = wait.end if hold.turns else QueueSequence(UNLIMITED)
            case Returns():
                wait.end()
            case _:
                assert_never(wait)
        if queue.ready and queue.consumers:
            self._agenda.mark(queue)
