"""World: the engine, the one that serves, under a clock that is moved by hand, given what came in.

A step is a turn of the recording: what one block of the journal, or one moment within it, says came
from outside is given to the engine, then it has its turn. What consumers answer to deliveries comes
from players.py, and is given to the engine when its time has come.
"""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final

from tallymark.engine.broker import Broker
from tallymark.engine.effects import Deliver, Effect, TimedOut
from tallymark.engine.errors import NotFound, PreconditionFailed
from tallymark.engine.message import Format, Payload, Slice
from tallymark.engine.publishing import Part
from tallymark.engine.queue import Queue
from tallymark.engine.record import Record
from tallymark.engine.session import ACCEPTED, FAILED, REJECTED, RETURNED, STOPS, Consumer, Session
from tallymark.engine.topology import Targets
from tallymark.stored import records
from tallymark.stored.annotations import Annotations, Route
from tallymark.units import EngineMs, MessageId, Ms, Position, Tag
from tallymark.whatif import recording as told
from tallymark.whatif.changes import AS_IT_WAS, Change
from tallymark.whatif.declaring import Declaring
from tallymark.whatif.fates import ENDS, Fates, QueueName, fate_of
from tallymark.whatif.players import Learned, Player, Reply
from tallymark.whatif.recording import Recording, Taken, Terms

REPLAYED: Final = 200
"""Wire format of messages without bytes."""
MOST_TURNS: Final = 1000
"""Turns at one moment: more than that is a mistake."""
DUE: Final = -1
AT_LEAST_SYNCED: Final = -2
"""Orders of turns that are not in the recording: for a deadline; for a block that is on disk."""
NEVER: Final = (1 << 62, 0)
_OUTCOMES: Final = {
    told.ACCEPTS: ACCEPTED, told.REJECTS: REJECTED, told.RETURNS: RETURNED, told.FAILS: FAILED,
    told.DEFERS: FAILED,
}  # fmt: skip


class Replayed(Format):
    """The format of messages whose bytes are not there: their priorities are known."""

    def __init__(self, recording: Recording) -> None:
        self._priorities = recording.publishes.priorities

    def priorities(self, payload: Payload, lo: int, hi: int) -> bytes:
        known = self._priorities.get(payload.first_id)
        if known is None:
            return bytes(hi - lo)
        return bytes(known.get(i, 0) for i in range(lo, hi))


@dataclass(slots=True)
class Outcome:
    """Result of a world."""

    fates: dict[QueueName, Fates] = field(default_factory=dict)
    drawn: dict[QueueName, int] = field(default_factory=dict)
    """Deliveries whose answer, or its time, was drawn, by queue."""
    delivered: dict[QueueName, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    """Publishes that were refused because a queue was full, by exchange."""
    unroutable: dict[str, int] = field(default_factory=dict)
    """Publishes that no queue took, by exchange."""


@dataclass(slots=True)
class Place:
    """One consumer of the recording, or a copy of one, in the world."""

    player: Player
    session: Session
    consumer: Consumer | None
    queue: QueueName


class World:
    """A broker that lives through a recording. Used once."""

    def __init__(self, recording: Recording, change: Change = AS_IT_WAS, seed: int = 1) -> None:
        self._recording = recording
        self._learned = Learned(recording, seed)
        self.broker = Broker(_no_bytes)
        self.broker.formats[REPLAYED] = Replayed(recording)
        self.outcome = Outcome()
        self._declaring = Declaring(self.broker, self.outcome.fates, change)
        self._now = recording.begin_ms
        self._order = 0
        self._position = 0
        self._waits = False
        """True for a moment at which the engine is told something and has no turn."""
        self._synced = 0
        self._written = 0
        """Order of the last turn of the recording."""
        self._unsynced: deque[tuple[int, int]] = deque()
        """Positions that the disk has not reached, with the orders at which they were written."""
        self._at_input = self._at_publish = 0
        self._answers: list[tuple[int, int, int, Place, Tag, Reply]] = []
        """Heap of the answers to come, by time, order, and number."""
        self._number = 0
        self._places: dict[int, list[Place]] = {}
        """Places by consumer of the recording, or by who took messages."""
        self._of: dict[int, Place] = {}
        """Places by consumer of this broker."""
        self._sessions: dict[int, Session] = {}
        self._publishers: dict[str, Session] = {}
        self._routes: dict[tuple[str, int, int], tuple[int, Targets | None]] = {}
        self._annotations = [Annotations.from_bytes(b) for b in recording.publishes.annotations]
        self._made = [Route(*place) for place in recording.publishes.places]

    def run(self) -> Outcome:
        """Play the recording from its first to its last moment."""
        recording = self._recording
        end_ms = recording.end_ms
        at_turn = 0
        self.broker.clock.tell(EngineMs(self._now))
        while True:
            now, order = end_ms + 1, 0
            if at_turn < len(recording.turn_ms):
                now, order = recording.turn_ms[at_turn], recording.turn_order[at_turn]
            moment = self._between(now)
            if moment < (now, order):
                now, order = moment
            elif now <= end_ms:
                self._sync_below(recording.turn_synced[at_turn])
                self._written = order
                self._waits = not recording.turn_ends[at_turn]
                at_turn += 1
            if now > end_ms:
                return self.outcome
            self._step(max(now, self._now), order)

    def _between(self, turn_ms: int) -> tuple[int, int]:
        """Return when the engine has to have a turn before the next one of the recording."""
        found = self._answers[0][:2] if self._answers else NEVER
        due = self.broker.next_due()
        late = self._recording.late_ms
        if due < turn_ms - late:
            found = min(found, (due, DUE))
        if self.broker.durability.is_waiting() and self._now + late < turn_ms:
            found = min(found, (self._now + self._recording.sync_ms, AT_LEAST_SYNCED))
        return found

    def _step(self, now: int, order: int) -> None:
        """Live through one moment."""
        self._now, self._order = now, order
        self.broker.clock.tell(EngineMs(now))
        if order == AT_LEAST_SYNCED:
            self._synced = self._position
            self._unsynced.clear()
        for effect in self.broker.synced(Position(self._synced)):
            self._carry_out(effect)
        inputs, publishes = self._recording.inputs, self._recording.publishes
        at = self._at_input
        last: list[told.Input] = []
        while at < len(inputs) and inputs[at][:2] <= (now, order):
            if inputs[at][2] in told.LEAVING:
                last.append(inputs[at])
            else:
                self._take_input(inputs[at])
            at += 1
        self._at_input = at
        at = self._at_publish
        while at < len(publishes) and (publishes.time_ms[at], publishes.order[at]) <= (now, order):
            self._publish(at)
            at += 1
        self._at_publish = at
        while self._answers and self._answers[0][:2] <= (now, order):
            self._answer(heappop(self._answers))
        for one in last:  # who goes has said what it had to say
            self._take_input(one)
        if self._waits:
            self._waits = False
            return
        self._turns()
        self._unsynced.append((self._written, self._position))

    def _sync_below(self, order: int) -> None:
        """Note that the disk has what was written in turns before `order`."""
        unsynced = self._unsynced
        while unsynced and unsynced[0][0] < order:
            self._synced = unsynced.popleft()[1]

    # -- the turn

    def _turns(self) -> None:
        """Let the engine have turns until it has nothing to do at this moment."""
        broker = self.broker
        for _ in range(MOST_TURNS):
            effects = broker.turn(EngineMs(self._now))
            rows = broker.take_records()
            if rows:
                self._position += 64
                for row in rows:
                    self._note(row)
            broker.committed(Position(self._position))
            for effect in effects:
                self._carry_out(effect)
            broker.store.released.clear()
            if not broker.has_work():
                return
        raise AssertionError(f"{MOST_TURNS} turns at {self._now} and still work to do")

    def _note(self, row: Record) -> None:
        """Note what a row says of the fates of messages."""
        kind = row.kind
        if kind == records.ENTERED:
            payload = row.payload
            count = row.count
            first_id, sizes = 0, array("I", bytes(4 * count))
            if payload is not None:
                first_id = payload.first_id + row.lo
                cuts = payload.cuts
                for i in range(count):
                    sizes[i] = cuts[row.lo + i + 1] - cuts[row.lo + i]
            fates = self._declaring.fates_of(row.queue)
            fates.enter(row.first, count, row.time_ms, first_id, sizes)
        elif kind in ENDS:
            fates = self._declaring.fates_of(row.queue)
            fates.end(row.first, row.count, row.time_ms, fate_of(kind, row.reason))
        elif kind == records.ACQUIRED and row.other:
            fates = self._declaring.fates_of(row.queue)
            fates.again_ms.extend(array("q", (row.time_ms,)) * row.count)

    def _carry_out(self, effect: Effect) -> None:
        if isinstance(effect, Deliver):
            place = self._of[effect.consumer.id]
            if not effect.consumer.no_ack:
                self._hand(place, effect.slice, effect.first_tag)
        elif isinstance(effect, TimedOut):
            consumer = effect.consumer
            if consumer is None or consumer.on_timeout == STOPS:
                self.broker.clients.close_session(effect.session, False)

    def _hand(self, place: Place, piece: Slice, first_tag: int) -> None:
        """Give messages to a player."""
        attempt = told.attempt_of(piece.annotations, place.queue[1], piece.acquired)
        count = piece.hi - piece.lo
        first_id = piece.payload.first_id + piece.lo
        outcome, queue = self.outcome, place.queue
        outcome.delivered[queue] = outcome.delivered.get(queue, 0) + count
        replies = self._learned.replies(
            place.player, queue, attempt, first_id, count, self._now, self._order
        )
        for reply in replies:
            if reply.answer == told.HOLDS:
                first_tag += reply.count
                continue
            if reply.is_drawn:
                outcome.drawn[queue] = outcome.drawn.get(queue, 0) + reply.count
            self._number += 1
            heappush(
                self._answers,
                (max(reply.ended_ms, self._now), reply.order, self._number, place, Tag(first_tag),
                 reply),
            )  # fmt: skip
            first_tag += reply.count

    def _answer(self, said: tuple[int, int, int, Place, Tag, Reply]) -> None:
        """Give a player's answer to the engine."""
        place, first, reply = said[3:]
        session = place.session
        if session.closed:
            return
        settlement = self.broker.settlement
        try:
            if reply.answer == told.REQUEUES:
                for tag in range(first, first + reply.count):
                    settlement.requeue(session, Tag(tag), Ms(reply.delay_ms))
                return
            due = EngineMs(0)
            if reply.answer == told.DEFERS:
                due = EngineMs(self._now + reply.delay_ms)
            last = Tag(first + reply.count - 1)
            settlement.settle(session, first, last, _OUTCOMES[reply.answer], (), due)
        except PreconditionFailed:
            pass  # the broker has taken them back: the answer comes too late, as it may

    # -- what came in

    def _take_input(self, one: told.Input) -> None:
        _, _, kind, said = one
        if kind == told.DEFINE:
            assert isinstance(said, bytes)
            self._declaring.define(said)
        elif kind == told.COME:
            assert isinstance(said, Terms)
            self._come(said)
        elif kind == told.CREDIT:
            assert isinstance(said, Terms)
            self._credit(said)
        elif kind == told.GO:
            assert isinstance(said, tuple)
            self._go(*said)
        elif kind == told.TAKE:
            assert isinstance(said, Taken)
            self._take(said)
        elif kind == told.PURGE:
            assert isinstance(said, tuple)
            self._purge(*said)
        else:
            self._crash()

    def _publish(self, i: int) -> None:
        """Publish one payload of the recording."""
        said = self._recording.publishes
        count, start = said.count[i], said.start[i]
        cuts = array("I", (0,))
        total = 0
        for size in said.sizes[start : start + count]:
            total += size
            cuts.append(total)
        own = said.own_places.get(i)
        routes = None if own is None else [self._made[n] for n in own]
        route = self._made[said.place[i]] if routes is None else routes[0]
        payload = Payload(
            REPLAYED, b"", cuts, route, routes, MessageId(said.first_id[i]),
            EngineMs(said.arrived_ms[i]), bool(said.persistent[i]), 0,
        )  # fmt: skip
        bodies = array("Q", (0,))
        total = 0
        for size in said.bodies[start : start + count]:
            total += size
            bodies.append(total)
        payload.bodies = bodies
        vhost, known = said.vhost[i], said.known[i]
        annotations = self._annotations[known] if known >= 0 else None
        session = self._publisher(vhost)
        if own is None:
            targets = self._targets(vhost, said.place[i], known)
            if targets is not None:
                self.broker.publishing.publish(session, targets, payload, annotations)
            return
        parts: list[Part] = []
        lo = 0
        for hi in range(1, count + 1):
            if hi == count or own[hi] != own[lo]:
                targets = self._targets(vhost, own[lo], known)
                if targets is not None and targets.queues:
                    parts.append(Part(targets, lo, hi))
                lo = hi
        self.broker.publishing.publish_parts(session, payload, parts, annotations)

    def _targets(self, vhost: str, place: int, known: int) -> Targets | None:
        """Return the queues of a route; None: its exchange is not there."""
        host = self.broker.vhosts[vhost]
        cached = self._routes.get((vhost, place, known))
        if cached is not None and cached[0] == host.generation:
            return cached[1]
        exchange, key = self._recording.publishes.places[place]
        more = self._annotations[known].more_keys if known >= 0 else ()
        try:
            targets = host.route(exchange, [key, *more], {})
        except NotFound:
            targets = None
        self._routes[vhost, place, known] = (host.generation, targets)
        return targets

    def _publisher(self, vhost: str) -> Session:
        session = self._publishers.get(vhost)
        if session is None:
            session = self._publishers[vhost] = self._open(vhost)
        return session

    def _open(self, vhost: str) -> Session:
        connection = self.broker.clients.open_connection(vhost, "what-if", "what-if")
        return self.broker.clients.open_session(connection)

    def _come(self, terms: Terms) -> None:
        queue = self.broker.vhosts[terms.vhost].queues.get(terms.queue)
        if queue is None:
            return
        session = self._sessions.get(terms.session)
        if session is None or session.closed:
            session = self._sessions[terms.session] = self._open(terms.vhost)
        place = self._enter(terms, queue, session)
        self._places.setdefault(terms.consumer, []).append(place)

    def _enter(self, terms: Terms, queue: Queue, session: Session) -> Place:
        broker = self.broker
        arguments: dict[str, object] = {}
        if terms.timeout_ms >= 0:
            arguments["x-consumer-timeout"] = terms.timeout_ms
        if terms.shared >= 0:
            broker.consuming.set_prefetch(session, terms.shared, True)
        consumer = broker.consuming.consume(
            session, queue, str(terms.consumer), not terms.acknowledges, terms.exclusive,
            terms.priority, arguments,
        )  # fmt: skip
        consumer.on_timeout = terms.on_timeout
        if terms.window >= 0:
            broker.consuming.set_limit(consumer, terms.window)
        player = Player(terms.consumer, terms.consumer in self._recording.serial)
        place = Place(player, session, consumer, self._declaring.name_of(queue.id))
        self._of[consumer.id] = place
        return place

    def _credit(self, terms: Terms) -> None:
        consuming = self.broker.consuming
        for place in self._places.get(terms.consumer, ()):
            if place.consumer is None or place.session.closed:
                continue
            if terms.shared >= 0:
                consuming.set_prefetch(place.session, terms.shared, True)
            if terms.window >= 0:
                consuming.set_limit(place.consumer, terms.window)

    def _go(self, consumer: int, how: int) -> None:
        for place in self._places.pop(consumer, ()):
            if place.session.closed:
                continue
            if how == told.CANCELLED:
                if place.consumer is not None and place.consumer.active:
                    self.broker.consuming.cancel(place.consumer)
            else:
                self.broker.clients.close_session(place.session, how == told.LOST)

    def _take(self, taken: Taken) -> None:
        queue = self._declaring.queue_of(taken.queue)
        if queue is None:
            return
        places = self._places.get(taken.owner)
        if places is None:
            player = Player(taken.owner, taken.owner in self._recording.serial)
            places = [Place(player, self._open(taken.queue[0]), None, taken.queue)]
            self._places[taken.owner] = places
        session = places[0].session
        place = Place(places[0].player, session, None, taken.queue)
        for _ in range(taken.count):
            got = self.broker.consuming.get(session, queue, not taken.acknowledges)
            if got is None:
                return
            if taken.acknowledges:
                self._hand(place, got[0], got[1])

    def _purge(self, name: QueueName, held: bool) -> None:
        queue = self._declaring.queue_of(name)
        if queue is not None and held:
            self.broker.contents.empty(queue)
        elif queue is not None:
            self.broker.contents.purge(queue)

    def _crash(self) -> None:
        """Close all connections: what they held is given back as a failed delivery."""
        for connection in list(self.broker.connections.values()):
            self.broker.clients.close_connection(connection, True)
        self._places.clear()
        self._publishers.clear()


def _no_bytes(payload: Payload) -> bytes:
    return b""
