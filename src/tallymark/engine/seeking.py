"""Seeking: service of consumers that do not take messages from the head, which are browsers,
readers of streams, and consumers with a filter.

Each of these consumers goes through the ready messages once, lane by lane. Its *cursors* separate
the places it has examined in each lane from those it has not. A browser is sent copies and removes
nothing. A consumer with a filter takes messages that match and have not expired; a message that
returns to a place before its cursor moves the cursor back. A queue has few of these consumers. One
turn examines LOOKS messages of a queue, and fewer large ones, shared by the filters that have any
left to examine, so that a deep queue without matches delays no other queue, however many filters
it has.
"""

from __future__ import annotations

from array import array
from typing import Final, final

from tallymark.engine.account import MOVING, READY
from tallymark.engine.durability import Marks
from tallymark.engine.effects import Deliver
from tallymark.engine.handover import Handover
from tallymark.engine.lanes import Lane
from tallymark.engine.message import Payload, Slice
from tallymark.engine.quarantine import Quarantine
from tallymark.engine.queue import Queue
from tallymark.engine.queue_consumers import seekers_of
from tallymark.engine.session import Consumer, InFlight
from tallymark.engine.state import State
from tallymark.engine.upkeep import Upkeep
from tallymark.stored.annotations import Route
from tallymark.units import EngineMs, MessageId, QueueSequence, Tag

LOOKS: Final = 2048
"""Number of messages of a queue that are examined in one turn, for all its filters together."""
LOOK_BYTES: Final = 4096
"""Number of bytes that count as one more examined message: they may have to be read from disk."""
_NOTHING: Final = Payload(
    0, b"", array("I", (0,)), Route("", ""), None, MessageId(0), EngineMs(0), False, 0
)
"""Placeholder for the messages that readers of streams hold."""


@final
class Seeking:
    """Service of the consumers that browse or filter."""

    def __init__(
        self,
        state: State,
        handover: Handover,
        marks: Marks,
        upkeep: Upkeep,
        quarantine: Quarantine,
    ) -> None:
        self._agenda = state.agenda
        self._clock = state.clock
        self._effects = state.effects
        self._store = state.store
        self._handover = handover
        self._marks = marks
        self._upkeep = upkeep
        self._quarantine = quarantine

    def serve(self, queue: Queue) -> bool:
        """Give the queue's seeking consumers all messages available to them. True: one of them has
        more to examine, or to be given, in the next turn."""
        has_more = False
        share = self._share(queue)
        seekers = seekers_of(queue)
        start = queue.next_seeker if queue.next_seeker < len(seekers) else 0
        queue.next_seeker = 0
        order = seekers[start:] + seekers[:start] if start else seekers
        for at, consumer in enumerate(order):
            if self._agenda.room <= 0:
                queue.next_seeker = (start + at) % len(seekers)
                return True
            looks = share
            for number in range(len(queue.lanes.by_priority) - 1, -1, -1):
                looks = self._serve_lane(queue, consumer, number, looks)
                if consumer.room() <= 0 or looks <= 0 or self._agenda.room <= 0:
                    break
            connection = consumer.session.connection
            if looks <= 0 or (connection.room <= 0 and not (connection.paused or connection.gated)):
                has_more = True
        if self._agenda.room <= 0:
            queue.next_seeker = start
            return True
        return has_more

    def _share(self, queue: Queue) -> int:
        """Return how many messages each filter may examine in this turn."""
        if len(queue.seekers) < 2:
            return LOOKS
        count = 0
        for consumer in seekers_of(queue):
            if consumer.filter is not None and consumer.room() > 0:
                count += queue.has_beyond(consumer.cursors)
        return max(1, LOOKS // count) if count else LOOKS

    def _serve_lane(self, queue: Queue, consumer: Consumer, number: int, looks: int) -> int:
        """Serve a consumer from one lane. Returns how many messages may still be examined in this
        turn; below 0: none."""
        lane = queue.lanes.by_priority[number]
        store = self._store
        while looks > 0:
            most = consumer.room()
            if most <= 0 or self._agenda.room <= 0:
                return looks
            if queue.settings.is_stream:
                found = shown(queue, consumer.cursors[number])
            else:
                found = lane.at(consumer.cursors[number])
            if found is None:
                return looks
            if found.first + len(found) > queue.disk_hold.shown:
                if found.first >= queue.disk_hold.shown:
                    return looks
                found = found.part(0, queue.disk_hold.shown - found.first)
            place = found.first + found.shift
            if not (store.tried if found.payload.live else store.lent)(found.payload):
                self._put_aside(queue, found, lane)
                continue
            skipped = 0
            if consumer.filter is not None:
                count = min(len(found), looks)
                skipped, end = _matching(consumer, found, count, most)
                cuts = found.payload.cuts
                looks -= end + (cuts[found.lo + end] - cuts[found.lo]) // LOOK_BYTES
                if skipped == end:
                    consumer.cursors[number] = place + end
                    continue
                found = found.part(skipped, end)
            if queue.watched and not consumer.browses:
                gone = self._upkeep.expire_at(queue, lane, found)
                if gone:
                    consumer.cursors[number] = place + skipped + gone
                    continue
            n = self._hand_over(queue, consumer, number, found, most)
            consumer.cursors[number] = place + skipped + n
            if n == 0:
                return looks
        return looks

    def _put_aside(self, queue: Queue, found: Slice, lane: Lane) -> None:
        """Quarantine messages found for a consumer, a part of one slice, that cannot be read."""
        quarantine = self._quarantine
        if queue.settings.is_stream:
            quarantine.put_from_stream(queue, found)
            return
        piece = lane.pick(found.first + found.shift, len(found))
        queue.account.move(piece, READY, MOVING)
        quarantine.put(queue, piece)

    def _hand_over(
        self, queue: Queue, consumer: Consumer, number: int, found: Slice, most: int
    ) -> int:
        """Send the consumer messages found for it; return how many could be sent."""
        session = consumer.session
        connection = session.connection
        n = min(len(found), most)
        room = min(connection.room, self._agenda.room)
        size = cuts = 0
        payload_cuts = found.payload.cuts
        while cuts < n and size < room:
            size = payload_cuts[found.lo + cuts + 1] - payload_cuts[found.lo]
            cuts += 1
        n = cuts
        if consumer.browses:
            piece = found.part(0, n)
            self._effects.append(Deliver(consumer, piece, session.next_tag))
            if consumer.no_ack:
                session.next_tag = Tag(session.next_tag + n)
            else:
                _lend(consumer, n, self._clock.now_ms)
        else:
            if queue.stored and not self._marks.cover(queue, QueueSequence(found.first + n)):
                n = min(n, queue.high_water.durable - found.first)
                if n <= 0:
                    return 0
            if queue.disk_hold.returning and found.acquired:
                n = queue.disk_hold.before_returns(found.first, n)
                if not n:
                    return 0
            piece = queue.pick(queue.lanes.by_priority[number], found.first + found.shift, n)
            self._effects.append(Deliver(consumer, piece, session.next_tag))
            self._handover.acquire(session, queue, piece, consumer, consumer.no_ack)
        self._agenda.spend(connection, piece.size())
        consumer.sent(n, self._clock.now_ms)
        return n


def shown(queue: Queue, place: int) -> Slice | None:
    """Return the messages of a stream that readers may see from sequence `place` on, up to the end
    of one slice; None: there are none yet."""
    found = queue.lanes.lowest.peek(place)
    end = queue.end()
    if found is None or found.first >= end:
        return None
    return found if found.first + len(found) <= end else found.part(0, end - found.first)


def _lend(consumer: Consumer, n: int, now_ms: EngineMs) -> None:
    """Settle messages shown to the reader of a stream. Settling only returns credit, so that only
    tags are stored and the bytes, which are lent, need not stay in memory."""
    session = consumer.session
    tag = session.next_tag
    session.next_tag = Tag(tag + n)
    session.unacked += n
    consumer.hold(tag, n)
    inflight = session.inflight
    if inflight:
        last = inflight[-1]
        if last.consumer is consumer and last.done is None and last.last + 1 == tag and last.void:
            last.slice.hi += n
            last.last = Tag(last.last + n)
            last.left += n
            return
    piece = Slice(_NOTHING, 0, n, QueueSequence(1), 0)
    entry = InFlight(tag, Tag(tag + n - 1), piece, consumer.queue, consumer, now_ms)
    entry.void = True
    inflight.append(entry)


def _matching(consumer: Consumer, found: Slice, count: int, most: int) -> tuple[int, int]:
    """Return start and end of the first stretch of matching messages, at most `most`, among the
    first `count`. Both are `count` if no message matches."""
    filter = consumer.filter
    assert filter is not None
    payload, known = found.payload, found.annotations
    begin = 0
    while begin < count and not filter.matches(payload, found.lo + begin, known):
        begin += 1
    end = begin
    while end < count and end - begin < most:
        if end > begin and not filter.matches(payload, found.lo + end, known):
            break
        end += 1
    return begin, end
