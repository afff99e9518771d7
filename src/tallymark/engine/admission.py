"""Admission: which of the published messages a queue lets in.

Deduplication and the overflow behaviours reject-publish and reject-publish-dlx let some messages
pass and not others [DL-6]. Publishing asks about the messages that it is about to let in; a commit
asks about everything it publishes first, without publishing it, so that it lets in all of it or
nothing [TX-D1].
"""

from __future__ import annotations

from typing import Final, final

from tallymark.engine.account import DROPPED
from tallymark.engine.arguments import DROP_TAIL, REJECT_PUBLISH, REJECT_PUBLISH_DLX
from tallymark.engine.deadletters import DeadLetters
from tallymark.engine.entrance import Entrance, Seat
from tallymark.engine.ledger import dropped_record, publishers_record, seen_record
from tallymark.engine.message import NOWHERE, Payload, Slice
from tallymark.engine.queue import Queue
from tallymark.engine.state import State
from tallymark.engine.topology import Targets
from tallymark.stored import records
from tallymark.stored.annotations import Annotations
from tallymark.units import EngineMs, QueueSequence

ENTERED: Final = 0
REFUSED: Final = 1
DUPLICATE: Final = 2
MOST_PUBLISHERS: Final = 10_000
"""Maximum number of named publishers that a stream remembers. The one that has been silent for
longest is forgotten first."""


@final
class Admission:
    """Publishes to queues of which one may refuse messages, drop them, or know them already."""

    def __init__(self, state: State, entrance: Entrance, letters: DeadLetters) -> None:
        self._agenda = state.agenda
        self._clock = state.clock
        self._deadlines = state.deadlines
        self._formats = state.formats
        self._ledger = state.ledger
        self._store = state.store
        self._entrance = entrance
        self._letters = letters

    def publish(
        self,
        targets: Targets,
        payload: Payload,
        lo: int,
        hi: int,
        annotations: Annotations | None,
        kept: bool,
    ) -> list[tuple[int, int]]:
        """Publish messages lo..hi-1 to the target queues. The payload's users are counted for all
        messages in each queue; messages that do not enter a queue are finished here.

        Returns the stretches (lo, hi) that some queue refused, in order, without overlap.
        """
        refused = bytearray(hi - lo)
        any_refused = False
        for queue in targets.queues:
            if queue.settings.is_stream:
                self._publish_to_stream(queue, payload, lo, hi, annotations)
                continue
            if not queue.settings.guarded:
                self._entrance.enter(queue, payload, lo, hi, annotations, kept)
                continue
            verdict = self._judge(queue, payload, lo, hi, annotations, kept)
            if verdict.find(REFUSED) >= 0:
                any_refused = True
                refused = bytearray(
                    [a | (b & REFUSED) for a, b in zip(refused, verdict, strict=True)]
                )
        return _stretches(refused, REFUSED, lo) if any_refused else []

    def _publish_to_stream(
        self, queue: Queue, payload: Payload, lo: int, hi: int, annotations: Annotations | None
    ) -> None:
        """Append messages with publishing numbers to a stream once. Numbers received before are
        confirmed and not appended."""
        numbered = self._formats[payload.format].numbered(payload, lo, hi)
        if not numbered:
            self._entrance.append(queue, payload, lo, hi, annotations, 0, QueueSequence(0))
            return
        known = queue.deduplication.numbers
        taken: dict[str, int] = {}
        verdict = bytearray(hi - lo)
        for i in range(hi - lo):
            name, number = numbered[i]
            if not name:
                continue
            if number <= known.get(name, -1):
                verdict[i] = DUPLICATE
                continue
            known.pop(name, None)  # recent publishers are forgotten last
            known[name] = taken[name] = number
        if len(known) > MOST_PUBLISHERS:
            for name in list(known)[: len(known) - MOST_PUBLISHERS]:
                del known[name]
        for at, end in _runs(verdict):
            if verdict[at] == DUPLICATE:
                self._agenda.note_append(queue)
                self._pass_over(
                    queue, payload, lo + at, lo + end, annotations, payload.position != NOWHERE,
                    records.DROPPED_DUPLICATE,
                )  # fmt: skip
            else:
                self._entrance.append(
                    queue, payload, lo + at, lo + end, annotations, 0, QueueSequence(0)
                )
        if taken:
            self._ledger.emit(publishers_record(queue.id, taken))

    def refuses(self, queue: Queue, payload: Payload, annotations: Annotations | None) -> bool:
        """Return whether the queue would refuse any of these messages now. They have no
        publisher-given ids. O(messages); changes nothing."""
        verdict = self._verdicts(queue, payload, 0, payload.count, annotations, False)
        return verdict.find(REFUSED) >= 0

    def transfer(self, queue: Queue, piece: Slice, kept: bool, source: int) -> None:
        """Add messages that come from the queue with id `source`. They were confirmed to their
        publishers before, so they are not refused; only a queue that drops messages when full drops
        some."""
        payload, lo, hi, known = piece.payload, piece.lo, piece.hi, piece.annotations
        if queue.settings.overflow == DROP_TAIL:
            self._judge(queue, payload, lo, hi, known, kept)
        else:
            self._entrance.enter(queue, payload, lo, hi, known, kept, source, piece.first)

    def _judge(
        self,
        queue: Queue,
        payload: Payload,
        lo: int,
        hi: int,
        annotations: Annotations | None,
        kept: bool,
    ) -> bytes:
        """Decide which messages enter; return one byte a message: ENTERED, REFUSED, DUPLICATE."""
        settings = queue.settings
        if hi - lo > 1 and settings.max_bytes >= 0 and settings.max_priority > 0:
            # The bytes that consumers take depend on the priorities of earlier messages.
            return b"".join(
                [self._judge(queue, payload, i, i + 1, annotations, kept) for i in range(lo, hi)]
            )
        verdict = self._verdicts(queue, payload, lo, hi, annotations, kept)
        for at, end in _runs(verdict):
            what = verdict[at]
            if what == ENTERED:
                self._entrance.enter(queue, payload, lo + at, lo + end, annotations, kept)
            elif what == DUPLICATE:
                reason = records.DROPPED_DUPLICATE
                self._pass_over(queue, payload, lo + at, lo + end, annotations, kept, reason)
            elif settings.overflow == DROP_TAIL:
                reason = records.DROPPED_MAXLEN
                self._pass_over(queue, payload, lo + at, lo + end, annotations, kept, reason)
            elif settings.overflow == REJECT_PUBLISH_DLX:
                self._bury(queue, payload, lo + at, lo + end, annotations, kept)
            else:
                self._store.finish(payload, end - at)
        return bytes(len(verdict) if queue.settings.overflow == DROP_TAIL else verdict)

    def ids_of(self, queue: Queue, payload: Payload, lo: int, hi: int) -> list[str]:
        """Return the publisher-given ids of messages if the queue deduplicates; otherwise an empty
        list."""
        if queue.settings.dedup_ms <= 0:
            return []
        queue.deduplication.forget_until(EngineMs(self._clock.now_ms - queue.settings.dedup_ms))
        self._store.load(payload)
        return self._formats[payload.format].ids(payload, lo, hi)

    def _verdicts(
        self,
        queue: Queue,
        payload: Payload,
        lo: int,
        hi: int,
        annotations: Annotations | None,
        kept: bool,
    ) -> bytearray:
        """Return the decision on each message, as _judge does. Ids of messages that enter are
        remembered. Deferred ones need room now, but take none from those after them."""
        now = self._clock.now_ms
        is_deferred = self._entrance.defers(annotations)
        ids = self.ids_of(queue, payload, lo, hi)
        seat = self._entrance.seat(queue)
        by_bytes = queue.settings.max_bytes >= 0
        if by_bytes:
            self._entrance.weigh(payload)
        bodies = payload.bodies
        seen = queue.deduplication.ids
        taken: list[str] = []
        verdict = bytearray(hi - lo)
        for i in range(lo, hi):
            id = ids[i - lo] if ids else ""
            if id and id in seen:
                verdict[i - lo] = DUPLICATE
                continue
            size = 0
            if by_bytes:
                assert bodies is not None
                size = bodies[i + 1] - bodies[i]
            if not (seat.fits(size) if is_deferred else seat.take(size)):
                verdict[i - lo] = REFUSED
                continue
            if id:
                seen[id] = now
                taken.append(id)
        if taken:
            self._deadlines.arm(queue, EngineMs(now + queue.settings.dedup_ms))
        if taken and queue.stored:
            if kept:
                self._ledger.emit(seen_record(queue.id, taken, now))
            else:
                queue.deduplication.passing.update(taken)
        return verdict

    def _pass_over(
        self,
        queue: Queue,
        payload: Payload,
        lo: int,
        hi: int,
        annotations: Annotations | None,
        kept: bool,
        reason: int,
    ) -> None:
        """Count dropped messages as entered and dropped in one step, so that the account includes
        them."""
        first = queue.account.enter_moving(hi - lo)
        self._entrance.record(queue, first, payload, lo, hi, 0, annotations, kept)
        queue.account.end(hi - lo, DROPPED, reason)
        if queue.stored:
            self._ledger.emit(dropped_record(queue.id, first, hi - lo, reason))
        self._store.finish(payload, hi - lo)

    def _bury(
        self,
        queue: Queue,
        payload: Payload,
        lo: int,
        hi: int,
        annotations: Annotations | None,
        kept: bool,
    ) -> None:
        """Dead-letter refused messages, for reason maxlen; they were never ready [DL-6]."""
        first = queue.account.enter_moving(hi - lo)
        self._entrance.record(queue, first, payload, lo, hi, 0, annotations, kept)
        piece = Slice(payload, lo, hi, first, 0, 0, 0, annotations)
        self._letters.bury(queue, [piece], records.DEAD_MAXLEN)


@final
class CommitCheck:
    """Checks messages one after the other, for one commit."""

    def __init__(self, admission: Admission, entrance: Entrance) -> None:
        self._admission = admission
        self._entrance = entrance
        self._seats: dict[int, Seat] = {}
        self._ids: dict[int, set[str]] = {}
        """Publisher-given ids among the messages checked so far, by queue."""

    def takes(self, queue: Queue, payload: Payload, lo: int, hi: int, is_deferred: bool) -> bool:
        """Return whether the queue would accept messages lo..hi-1 after all messages checked
        before. is_deferred: they enter as deferred ones.

        It may say no where the answer is yes only if a queue with priorities is about to be full by
        its bytes: what consumers take from it depends on the priorities.
        """
        settings = queue.settings
        if not settings.guarded or settings.overflow not in (REJECT_PUBLISH, REJECT_PUBLISH_DLX):
            return True
        seat = self._seats.get(queue.id)
        if seat is None:
            seat = self._seats[queue.id] = self._entrance.seat(queue)
            if settings.max_bytes >= 0 and settings.max_priority > 0:
                seat.room_bytes = settings.max_bytes - queue.account.body_bytes
                seat.awaited = 0
        by_bytes = settings.max_bytes >= 0
        if by_bytes:
            self._entrance.weigh(payload)
        bodies = payload.bodies
        ids = self._admission.ids_of(queue, payload, lo, hi)
        known = self._ids.setdefault(queue.id, set())
        for i in range(lo, hi):
            id = ids[i - lo] if ids else ""
            if id and (id in queue.deduplication.ids or id in known):
                continue
            size = 0
            if by_bytes:
                assert bodies is not None, queue.name
                size = bodies[i + 1] - bodies[i]
            if not (seat.fits(size) if is_deferred else seat.take(size)):
                return False
            if id:
                known.add(id)
        return True


def _runs(marks: bytearray) -> list[tuple[int, int]]:
    """Return start and end of each stretch of equal marks."""
    found = []
    at = 0
    while at < len(marks):
        end = at + 1
        while end < len(marks) and marks[end] == marks[at]:
            end += 1
        found.append((at, end))
        at = end
    return found


def _stretches(marks: bytearray, what: int, offset: int) -> list[tuple[int, int]]:
    """Return the stretches of marks equal to `what`, as (lo, hi) counted from `offset`."""
    found = []
    at = marks.find(what)
    while at >= 0:
        end = at + 1
        while end < len(marks) and marks[end] == what:
            end += 1
        found.append((offset + at, offset + end))
        at = marks.find(what, end)
    return found
