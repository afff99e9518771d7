"""Entrance: the way of messages into a queue where more is needed than to append them, and which
queues became so deep by it that they are to be packed.

Priorities split a stretch into lanes; a limit on bytes wants bodies weighed. Queues that ask for
none of this are appended to in `Publishing.publish` itself; which messages a full queue lets in is
decided before (admission.py). How messages are packed is in packing.py.
"""

from __future__ import annotations

from array import array
from typing import final

from tallymark.engine.account import MOVING, PENDING
from tallymark.engine.arguments import DROP_HEAD
from tallymark.engine.ledger import (
    entered_record,
    payload_record,
    transient_record,
)
from tallymark.engine.message import NOWHERE, ON_ITS_WAY, Payload, Slice
from tallymark.engine.packing import Packing
from tallymark.engine.quarantine import Quarantine
from tallymark.engine.queue import Queue
from tallymark.engine.state import State
from tallymark.stored.annotations import Annotations, ready_since
from tallymark.units import UNLIMITED, MessageId, Position, QueueSequence


@final
class Backlogs:
    """Collects deep queues as they are published to, and packs them after the turn."""

    def __init__(self, state: State) -> None:
        self._store = state.store
        self._deep: list[Queue] = []
        self.packing = Packing()
        """Thresholds and operation of packing."""

    def note(self, queue: Queue) -> None:
        """Note a queue for packing. Called when its new slices exceed `packing.look_after`."""
        if queue.lanes.awaits_packing or (queue.seekers and not queue.settings.is_stream):
            return
        if queue.lanes.depth() > self.packing.after:
            queue.lanes.awaits_packing = True
            self._deep.append(queue)
        else:
            queue.lanes.unexamined = 0

    def look_at(self, queue: Queue) -> None:
        """Consider all slices of the queue, as if all were new."""
        queue.lanes.unexamined = queue.lanes.depth()
        if queue.lanes.unexamined > self.packing.look_after:
            self.note(queue)

    def pack(self, written: Position) -> None:
        """Pack the noted queues, as far as their bytes are below journal position `written`."""
        if not self._deep:
            return
        for queue in self._deep:
            lanes = queue.lanes
            lanes.awaits_packing = False
            for lane in lanes.by_priority:
                for payload in self.packing.pack_newest(lane.fresh, lanes.unexamined, written):
                    self._store.forget(payload)
            lanes.unexamined = self.packing.fresh
        self._deep.clear()


@final
class Entrance:
    """The operations by which messages enter queues."""

    def __init__(self, state: State, backlogs: Backlogs, quarantine: Quarantine) -> None:
        self._agenda = state.agenda
        self.clock = state.clock
        self.formats = state.formats
        self.ledger = state.ledger
        self.store = state.store
        self.backlogs = backlogs
        self.quarantine = quarantine

    def keep(self, payload: Payload) -> None:
        """Store the payload's bytes in the journal unless they are there already."""
        if payload.position == NOWHERE:
            self.store.load(payload)
            payload.position = Position(ON_ITS_WAY)
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
        source_first: QueueSequence = QueueSequence(0),
    ) -> None:
        """Make messages lo..hi-1 ready, in their lanes. The payload's users have been counted
        already.

        kept: the journal has or gets the bytes. source, source_first: of a letter, the queue it
        died in and its first sequence there.
        """
        if queue.settings.is_stream:
            self.append(queue, payload, lo, hi, annotations, source, source_first)
            return
        self._agenda.entered(queue, QueueSequence(queue.entered + 1), kept, source > 0)
        if queue.account.body_bytes >= 0:
            self.weigh(payload)
        if annotations is not None and self.defers(annotations):
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
                    QueueSequence(source_first + at - lo if source else 0),
                )  # fmt: skip
                at = end
        if annotations is not None and annotations.ttl_ms >= 0:
            queue.own_ttl = queue.watched = True
        if queue.lanes.unexamined > self.backlogs.packing.look_after:
            self.backlogs.note(queue)
        if queue.consumers or queue.watched:
            self._agenda.mark(queue)

    def defers(self, annotations: Annotations | None) -> bool:
        """Return whether messages with these annotations enter a queue as deferred ones."""
        return annotations is not None and annotations.due_ms > self.clock.now_ms

    def append(
        self,
        queue: Queue,
        payload: Payload,
        lo: int,
        hi: int,
        annotations: Annotations | None,
        source: int,
        source_first: QueueSequence,
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
        self._agenda.note_append(queue)
        if queue.lanes.unexamined > self.backlogs.packing.look_after:
            self.backlogs.note(queue)
        if queue.watched:
            self._agenda.mark(queue)

    def _lasting(self, payload: Payload, lo: int, hi: int) -> Payload:
        """Return messages lo..hi-1 of a transient payload as a payload that the journal stores. The
        original is not changed, as other queues use it."""
        self.store.load(payload)
        raw, cuts, routes = payload.raw, payload.cuts, payload.routes
        assert raw is not None
        base = cuts[lo]
        copy = Payload(
            payload.format, raw[base : cuts[hi]], array("I", [cut - base for cut in cuts[lo : hi +
            1]]), payload.route, None if routes is None else routes[lo:hi],
            MessageId(payload.first_id + lo), payload.arrived_ms, True, payload.largest_frame,
        )  # fmt: skip
        self.store.enter(copy, hi - lo)
        self.store.finish(payload, hi - lo)
        return copy

    def _enter_deferred(
        self,
        queue: Queue,
        payload: Payload,
        lo: int,
        hi: int,
        annotations: Annotations,
        kept: bool,
        source: int,
        source_first: QueueSequence,
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
            first = queue.account.enter_moving(end - at)
            priority = min(level, highest)
            piece = Slice(payload, at, end, first, 0, 0, priority, annotations)
            queue.defer(piece, annotations.due_ms, True)
            self.record(
                queue, first, payload, at, end, priority, annotations, kept, source,
                QueueSequence(source_first + at - lo if source else 0),
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
        source_first: QueueSequence,
    ) -> None:
        first = queue.push_part(payload, lo, hi, priority, annotations)
        self.record(
            queue, first, payload, lo, hi, priority, annotations, kept, source, source_first
        )

    def record(
        self,
        queue: Queue,
        first: QueueSequence,
        payload: Payload,
        lo: int,
        hi: int,
        priority: int,
        annotations: Annotations | None,
        kept: bool,
        source: int = 0,
        source_first: QueueSequence = QueueSequence(0),
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
        """Compute the body bytes of a queue that has a limit on them, unless it counts them
        already. O(slices); bodies are read from the journal, and what cannot be read is
        quarantined."""
        if queue.settings.max_bytes < 0 or queue.account.body_bytes >= 0:
            return
        queue.unpack()
        aside = [piece for piece in queue.slices() if not self.is_weighed(piece.payload)]
        self.quarantine.put_ready(queue, aside)
        for letter in list(queue.letters):
            if not self.is_weighed(letter.piece.payload):
                queue.letters.remove(letter)
                queue.account.move(letter.piece, PENDING, MOVING)
                self.quarantine.put(queue, letter.piece, letter)
        held = [*queue.slices(), *[letter.piece for letter in queue.letters]]
        queue.account.count_bodies(held)

    def room(self, queue: Queue) -> int:
        """Return how many more messages a limit on their number admits. Messages that a consumer
        would be sent at once do not count. UNLIMITED without such a limit."""
        limit = queue.settings.max_length
        if limit < 0:
            return UNLIMITED
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
            return UNLIMITED
        self.weigh_queue(queue)
        return limit - queue.account.body_bytes + _leading_bytes(queue, queue.demand())

    def seat(self, queue: Queue) -> Seat:
        """Return the room for the next messages, in a queue that refuses messages when full."""
        if queue.settings.overflow == DROP_HEAD:
            return Seat(UNLIMITED, UNLIMITED, 0)
        room, room_bytes = self.room(queue), self.room_bytes(queue)
        return Seat(room, room_bytes, self.awaited(queue) if queue.settings.max_bytes >= 0 else 0)


@final
class Seat:
    """The room in one queue: for a number of messages, of which some need no room for their
    bytes."""

    def __init__(self, room: int, room_bytes: int, awaited: int) -> None:
        self.room = room
        self.room_bytes = room_bytes
        """Room for bodies of messages that no consumer waits for, in bytes."""
        self.awaited = awaited
        """Count of further messages that consumers would be sent at once; their bodies take no
        room."""

    def fits(self, size: int) -> bool:
        """Return whether there is room for one more message with a body of `size` bytes."""
        return self.room > 0 and (size <= self.room_bytes or self.awaited > 0)

    def take(self, size: int) -> bool:
        """Use the room for one more message with a body of `size` bytes; False: there is no
        room."""
        if not self.fits(size):
            return False
        self.room -= 1
        if self.awaited > 0:
            self.awaited -= 1
        else:
            self.room_bytes -= size
        return True


def _leading_bytes(queue: Queue, n: int) -> int:
    """Return the body bytes of the n messages that leave next. The queue must count body bytes.
    O(slices)."""
    if n >= queue.ready:
        return queue.account.body_bytes - sum(letter.piece.body_bytes() for letter in queue.letters)
    total = 0
    for lane in reversed(queue.lanes.by_priority):
        for pieces in (lane.in_front(), lane.fresh):
            for piece in pieces:
                if n <= 0:
                    return total
                part = piece.part(0, min(n, len(piece)))
                total += part.body_bytes()
                n -= len(part)
    return total
