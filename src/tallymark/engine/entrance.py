"""Entrance: the way of messages into a queue where more is needed than to append them.

Priorities split a stretch into lanes; a limit on bytes wants bodies weighed; deduplication and the
overflow behaviours reject-publish and reject-publish-dlx let some messages pass and not others
[DL-6]. Queues that ask for none of this are appended to in `Broker.publish` itself.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final, final

from tallymark.engine import records
from tallymark.engine.annotations import Annotations, ready_since
from tallymark.engine.backlogs import Backlogs
from tallymark.engine.clock import Clock
from tallymark.engine.delivery import Dispatcher
from tallymark.engine.formats import Format
from tallymark.engine.ledger import (
    Ledger,
    dropped_record,
    entered_record,
    payload_record,
    publishers_record,
    seen_record,
    transient_record,
)
from tallymark.engine.message import NOWHERE, ON_ITS_WAY, Payload, Slice
from tallymark.engine.quarantine import Quarantine
from tallymark.engine.queue import Queue
from tallymark.engine.settings import DROP_HEAD, DROP_TAIL, REJECT_PUBLISH_DLX
from tallymark.engine.store import Store

if TYPE_CHECKING:
    from tallymark.engine.deadletters import DeadLetters
    from tallymark.engine.routing import Targets

ENTERED: Final = 0
REFUSED: Final = 1
DUPLICATE: Final = 2
MOST_PUBLISHERS: Final = 10_000
"""Maximum number of named publishers that a stream remembers. The one that has been silent for
longest is forgotten first."""


@final
class Entrance:
    """The operations by which messages enter queues. Clock, stores and records are the Broker's own
    objects."""

    __slots__ = (
        "backlogs", "clock", "dispatcher", "formats", "letters", "quarantine", "ledger", "store",
    )  # fmt: skip

    def __init__(
        self,
        clock: Clock,
        store: Store,
        dispatcher: Dispatcher,
        backlogs: Backlogs,
        formats: dict[int, Format],
        ledger: Ledger,
        quarantine: Quarantine,
    ) -> None:
        self.clock = clock
        self.store = store
        self.dispatcher = dispatcher
        self.backlogs = backlogs
        self.formats = formats
        self.ledger = ledger
        self.quarantine = quarantine
        self.letters: DeadLetters | None = None
        """Dead-letter operations, for messages refused by queues with reject-publish-dlx. Set by
        the Broker."""

    def keep(self, payload: Payload) -> None:
        """Store the payload's bytes in the journal unless they are there already."""
        if payload.position == NOWHERE:
            self.store.load(payload)
            payload.position = ON_ITS_WAY
            self.ledger.emit(payload_record(payload))

    def enter(
        self,
        queue: Queue,
        payload: Payload,
        lo: int,
        hi: int,
        annotations: Annotations | None,
        kept: bool,
        source: int = 0,
        source_first: int = 0,
    ) -> None:
        """Make messages lo..hi-1 ready, in their lanes. The payload's users have been counted
        already.

        kept: the journal has or gets the bytes. source, source_first: of a letter, the queue it
        died in and its first sequence there.
        """
        if queue.settings.is_stream:
            self._append(queue, payload, lo, hi, annotations, source, source_first)
            return
        self.dispatcher.entered(queue, queue.entered + 1, kept, source > 0)
        if queue.body_bytes >= 0:
            self.weigh(payload)
        if annotations is not None and annotations.due_ms > self.clock.now_ms:
            self._enter_deferred(queue, payload, lo, hi, annotations, kept, source, source_first)
        elif queue.settings.max_priority == 0:
            self._enter_run(queue, payload, lo, hi, 0, annotations, kept, source, source_first)
        else:
            self.store.load(payload)
            levels = self.formats[payload.format].priorities(payload, lo, hi)
            highest = queue.settings.max_priority
            at = lo
            while at < hi:
                level = levels[at - lo]
                end = at + 1
                while end < hi and levels[end - lo] == level:
                    end += 1
                self._enter_run(
                    queue, payload, at, end, min(level, highest), annotations, kept, source,
                    source_first + at - lo if source else 0,
                )  # fmt: skip
                at = end
        if annotations is not None and annotations.ttl_ms >= 0:
            queue.own_ttl = queue.watched = True
        if queue.loose > self.backlogs.packing.look_after:
            self.backlogs.note(queue)
        if queue.consumers or queue.watched:
            self.dispatcher.mark(queue)

    def _append(
        self,
        queue: Queue,
        payload: Payload,
        lo: int,
        hi: int,
        annotations: Annotations | None,
        source: int,
        source_first: int,
    ) -> None:
        """Append messages to a stream, at once and in order. A delay set by the publisher is
        ignored, and transient messages are stored, too."""
        if annotations is not None and annotations.due_ms:
            annotations = ready_since(annotations, self.clock.now_ms)
        if not payload.persistent:
            if payload.live == hi - lo:
                payload.persistent = True
            else:
                payload = self._lasting(payload, lo, hi)
                lo, hi = 0, payload.count
        self.keep(payload)
        self._enter_run(queue, payload, lo, hi, 0, annotations, True, source, source_first)
        self.dispatcher.note_append(queue)
        if queue.loose > self.backlogs.packing.look_after:
            self.backlogs.note(queue)
        if queue.watched:
            self.dispatcher.mark(queue)

    def _lasting(self, payload: Payload, lo: int, hi: int) -> Payload:
        """Return messages lo..hi-1 of a transient payload as a payload that the journal stores. The
        original is not changed, as other queues use it."""
        self.store.load(payload)
        raw, cuts, routes = payload.raw, payload.cuts, payload.routes
        assert raw is not None
        base = cuts[lo]
        copy = Payload(
            payload.format, raw[base : cuts[hi]],
            array("I", [cut - base for cut in cuts[lo : hi + 1]]), payload.route,
            None if routes is None else routes[lo:hi], payload.first_id + lo, payload.arrived_ms,
            True, payload.largest_frame,
        )  # fmt: skip
        self.store.enter(copy, hi - lo)
        self.store.finish(payload, hi - lo)
        return copy

    def _publish_to_stream(
        self, queue: Queue, payload: Payload, lo: int, hi: int, annotations: Annotations | None
    ) -> None:
        """Append messages with publishing numbers to a stream once. Numbers received before are
        confirmed and not appended."""
        numbered = self.formats[payload.format].numbered(payload, lo, hi)
        if not numbered:
            self._append(queue, payload, lo, hi, annotations, 0, 0)
            return
        known = queue.publishers
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
                self.dispatcher.note_append(queue)
                self._pass_over(
                    queue, payload, lo + at, lo + end, annotations, payload.position != NOWHERE,
                    records.DROPPED_DUPLICATE,
                )  # fmt: skip
            else:
                self._append(queue, payload, lo + at, lo + end, annotations, 0, 0)
        if taken:
            self.ledger.emit(publishers_record(queue.id, taken))

    def _enter_deferred(
        self,
        queue: Queue,
        payload: Payload,
        lo: int,
        hi: int,
        annotations: Annotations,
        kept: bool,
        source: int,
        source_first: int,
    ) -> None:
        """Defer messages until their publisher's due time; then they are ready at the tail [NQ-16].
        Lanes are chosen now, so that there is one slice for each priority."""
        levels = bytes(hi - lo)
        highest = queue.settings.max_priority
        if highest:
            self.store.load(payload)
            levels = self.formats[payload.format].priorities(payload, lo, hi)
        at = lo
        while at < hi:
            level = levels[at - lo]
            end = at + 1
            while end < hi and levels[end - lo] == level:
                end += 1
            first = queue.pass_by(end - at)
            priority = min(level, highest)
            piece = Slice(payload, at, end, first, 0, 0, priority, annotations)
            queue.defer(piece, annotations.due_ms, True)
            self.record(
                queue, first, payload, at, end, priority, annotations, kept, source,
                source_first + at - lo if source else 0,
            )  # fmt: skip
            at = end

    def _enter_run(
        self,
        queue: Queue,
        payload: Payload,
        lo: int,
        hi: int,
        priority: int,
        annotations: Annotations | None,
        kept: bool,
        source: int,
        source_first: int,
    ) -> None:
        first = queue.push_part(payload, lo, hi, priority, annotations)
        self.record(
            queue, first, payload, lo, hi, priority, annotations, kept, source, source_first
        )

    def record(
        self,
        queue: Queue,
        first: int,
        payload: Payload,
        lo: int,
        hi: int,
        priority: int,
        annotations: Annotations | None,
        kept: bool,
        source: int = 0,
        source_first: int = 0,
    ) -> None:
        """Emit the ENTERED record of messages lo..hi-1 if the queue is stored."""
        if not queue.stored:
            return
        if not kept:
            self.ledger.emit(
                transient_record(queue.id, first, hi - lo, priority, source, source_first)
            )
            return
        blob = b"" if annotations is None else annotations.to_bytes()
        self.ledger.emit(
            entered_record(
                queue.id, first, hi - lo, payload, lo, priority, blob, source, source_first
            )
        )

    def weigh(self, payload: Payload) -> None:
        """Compute payload.bodies, the body sizes. Raises Unreadable."""
        if payload.bodies is None:
            self.store.load(payload)
            payload.bodies = self.formats[payload.format].bodies(payload)

    def is_weighed(self, payload: Payload) -> bool:
        """Compute payload.bodies, as weigh does; False: the bytes cannot be read."""
        if payload.bodies is None:
            if not self.store.tried(payload):
                return False
            payload.bodies = self.formats[payload.format].bodies(payload)
        return True

    def weight_of(self, payload: Payload) -> int:
        """Return the body bytes of a payload that no queue needs now. Its bytes leave memory
        afterwards. A payload that cannot be read counts with its framing."""
        if not self.store.tried(payload):
            return payload.size
        total = self.formats[payload.format].bodies(payload)[payload.count]
        self.store.forget(payload)
        return int(total)

    def weigh_queue(self, queue: Queue) -> None:
        """Compute the body bytes of a queue that has a limit on them and did not count them so far.
        O(slices); bodies are read from the journal, and what cannot be read is quarantined."""
        queue.unpack()
        aside = [piece for piece in queue.slices() if not self.is_weighed(piece.payload)]
        self.quarantine.put_ready(queue, aside)
        for letter in list(queue.letters):
            if not self.is_weighed(letter.piece.payload):
                queue.letters.remove(letter)
                queue.release(letter.piece)
                self.quarantine.put(queue, letter.piece, letter)
        held = [*queue.slices(), *[letter.piece for letter in queue.letters]]
        queue.body_bytes = sum(piece.body_bytes() for piece in held)

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
                self.enter(queue, payload, lo, hi, annotations, kept)
                continue
            verdict = self._judge(queue, payload, lo, hi, annotations, kept)
            if verdict.find(REFUSED) >= 0:
                any_refused = True
                refused = bytearray(
                    [a | (b & REFUSED) for a, b in zip(refused, verdict, strict=True)]
                )
        return _stretches(refused, REFUSED, lo) if any_refused else []

    def refuses(self, queue: Queue, payload: Payload) -> bool:
        """Return whether the queue would refuse any of these messages now. They have no
        publisher-given ids. O(messages); changes nothing."""
        return self._verdicts(queue, payload, 0, payload.count, False).find(REFUSED) >= 0

    def transfer(self, queue: Queue, piece: Slice, kept: bool, source: int) -> None:
        """Add messages that come from the queue with id `source`. They were confirmed to their
        publishers before, so they are not refused; only a queue that drops messages when full drops
        some."""
        payload, lo, hi, known = piece.payload, piece.lo, piece.hi, piece.annotations
        if queue.settings.overflow == DROP_TAIL:
            self._judge(queue, payload, lo, hi, known, kept)
        else:
            self.enter(queue, payload, lo, hi, known, kept, source, piece.first)

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
        verdict = self._verdicts(queue, payload, lo, hi, kept)
        for at, end in _runs(verdict):
            what = verdict[at]
            if what == ENTERED:
                self.enter(queue, payload, lo + at, lo + end, annotations, kept)
            elif what == DUPLICATE:
                reason = records.DROPPED_DUPLICATE
                self._pass_over(queue, payload, lo + at, lo + end, annotations, kept, reason)
            elif settings.overflow == DROP_TAIL:
                reason = records.DROPPED_MAXLEN
                self._pass_over(queue, payload, lo + at, lo + end, annotations, kept, reason)
            elif settings.overflow == REJECT_PUBLISH_DLX:
                self._bury(queue, payload, lo + at, lo + end, annotations, kept)
            else:
                self.store.finish(payload, end - at)
        return bytes(len(verdict) if queue.settings.overflow == DROP_TAIL else verdict)

    def room(self, queue: Queue) -> int:
        """Return how many more messages a limit on their number admits. Messages that a consumer
        would be sent at once do not count. UNLIMITED without such a limit."""
        limit = queue.settings.max_length
        if limit < 0:
            return 1 << 62
        return max(0, limit - queue.ready - queue.pending + queue.demand())

    def awaited(self, queue: Queue) -> int:
        """Return how many more messages consumers would be sent at once, beyond those that are
        ready: these take no room."""
        return max(0, queue.demand() - queue.ready)

    def room_bytes(self, queue: Queue) -> int:
        """Return how many more body bytes a limit on them admits, for messages that no consumer
        waits for."""
        limit = queue.settings.max_bytes
        if limit < 0:
            return 1 << 62
        if queue.body_bytes < 0:
            self.weigh_queue(queue)
        return limit - queue.body_bytes + queue.leading_bytes(queue.demand())

    def seat(self, queue: Queue) -> Seat:
        """Return the room for the next messages, in a queue that refuses messages when full."""
        if queue.settings.overflow == DROP_HEAD:
            return Seat(1 << 62, 1 << 62, 0)
        room, room_bytes = self.room(queue), self.room_bytes(queue)
        return Seat(room, room_bytes, self.awaited(queue) if queue.settings.max_bytes >= 0 else 0)

    def ids_of(self, queue: Queue, payload: Payload, lo: int, hi: int) -> list[str]:
        """Return the publisher-given ids of messages if the queue deduplicates; otherwise an empty
        list."""
        if queue.settings.dedup_ms <= 0:
            return []
        forget_ids(queue, self.clock.now_ms)
        self.store.load(payload)
        return self.formats[payload.format].ids(payload, lo, hi)

    def _verdicts(self, queue: Queue, payload: Payload, lo: int, hi: int, kept: bool) -> bytearray:
        """Return the decision on each message, as _judge does. Ids of messages that enter are
        remembered."""
        now = self.clock.now_ms
        ids = self.ids_of(queue, payload, lo, hi)
        seat = self.seat(queue)
        by_bytes = queue.settings.max_bytes >= 0
        if by_bytes:
            self.weigh(payload)
        bodies = payload.bodies
        seen = queue.seen_ids
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
            if not seat.take(size):
                verdict[i - lo] = REFUSED
                continue
            if id:
                seen[id] = now
                taken.append(id)
        if taken and queue.stored and kept:
            self.ledger.emit(seen_record(queue.id, taken, now))
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
        first = queue.pass_by(hi - lo)
        self.record(queue, first, payload, lo, hi, 0, annotations, kept)
        queue.drop(hi - lo, reason)
        if queue.stored:
            self.ledger.emit(dropped_record(queue.id, first, hi - lo, reason))
        self.store.finish(payload, hi - lo)

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
        first = queue.pass_by(hi - lo)
        self.record(queue, first, payload, lo, hi, 0, annotations, kept)
        assert self.letters is not None
        piece = Slice(payload, lo, hi, first, 0, 0, 0, annotations)
        self.letters.bury(queue, [piece], records.DEAD_MAXLEN)


def forget_ids(queue: Queue, now_ms: int) -> None:
    """Forget ids that were seen before the deduplication window."""
    seen = queue.seen_ids
    oldest = now_ms - queue.settings.dedup_ms
    while seen:
        first = next(iter(seen))
        if seen[first] > oldest:
            return
        del seen[first]


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


@final
class Seat:
    """The room in one queue: for a number of messages, of which some need no room for their
    bytes."""

    __slots__ = ("awaited", "room", "room_bytes")

    def __init__(self, room: int, room_bytes: int, awaited: int) -> None:
        self.room = room
        self.room_bytes = room_bytes
        """Room for bodies of messages that no consumer waits for, in bytes."""
        self.awaited = awaited
        """Count of further messages that consumers would be sent at once; their bodies take no
        room."""

    def take(self, size: int) -> bool:
        """Use the room for one more message with a body of `size` bytes; False: there is no
        room."""
        if self.room <= 0 or (size > self.room_bytes and self.awaited <= 0):
            return False
        self.room -= 1
        if self.awaited > 0:
            self.awaited -= 1
        else:
            self.room_bytes -= size
        return True
