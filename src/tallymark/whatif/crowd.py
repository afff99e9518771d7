"""Crowd: the consumers of a world, who come, are given messages, answer, and go."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from heapq import heappop, heappush
from typing import Final

from tallymark.engine.broker import Broker
from tallymark.engine.errors import BrokerError, PreconditionFailed
from tallymark.engine.message import Slice
from tallymark.engine.outcomes import ACCEPTED, FAILED, REJECTED, RETURNED
from tallymark.engine.queue import Queue
from tallymark.engine.session import Consumer, Session
from tallymark.units import UNLIMITED, EngineMs, Ms, QueueSequence, Tag
from tallymark.whatif import recording as told
from tallymark.whatif.changes import AS_IT_WAS, Change, ConsumersChange
from tallymark.whatif.declaring import Declaring
from tallymark.whatif.fates import QueueName
from tallymark.whatif.players import Learned, Player, Reply
from tallymark.whatif.recording import Recording, Taken, Terms

_OUTCOMES: Final = {
    told.ACCEPTS: ACCEPTED, told.REJECTS: REJECTED, told.RETURNS: RETURNED, told.FAILS: FAILED,
    told.DEFERS: FAILED,
}  # fmt: skip
AS_THEY_WERE: Final = ConsumersChange("", "")


@dataclass(slots=True)
class Place:
    """One consumer of the recording, or a copy of one, in the world."""

    player: Player
    session: Session
    consumer: Consumer | None
    queue: QueueName
    granted: tuple[int, int] = (-1, 0)
    """Block in which it was last told to ask for messages, and for how many in all."""


class Crowd:
    """All consumers, and the answers that they will give."""

    def __init__(
        self, broker: Broker, recording: Recording, declaring: Declaring, change: Change, seed: int
    ) -> None:
        self._broker = broker
        self._recording = recording
        self._declaring = declaring
        self._change = change
        self._learned = Learned(recording, seed)
        self.now = recording.begin_ms
        self._answers: list[tuple[int, int, int, Place, Tag, Reply]] = []
        """Heap of the answers to come, by time, order, and number."""
        self._plans: list[tuple[int, int, Callable[[], None]]] = []
        """Heap of what consumers will do because of the change, by time and number."""
        self._number = 0
        self._here: dict[int, Terms] = {}
        """Terms of the consumers that have come and not gone."""
        self._places: dict[int, list[Place]] = {}
        """Places by consumer of the recording, or by who took messages."""
        self._of: dict[int, Place] = {}
        """Places by consumer of this broker."""
        self._sessions: dict[int, Session] = {}
        self.drawn: dict[QueueName, int] = {}
        self.delivered: dict[QueueName, int] = {}
        for one in change.consumers:
            if one.away_for_ms:
                self.plan(one.away_at_ms, partial(self._leave, one))
        if change.since_ms:
            self.plan(change.since_ms, self._take_effect)

    # -- time

    def plan(self, at_ms: int, what: Callable[[], None]) -> None:
        """Have something done at a time."""
        self._number += 1
        heappush(self._plans, (at_ms, self._number, what))

    def next_due(self) -> tuple[int, int]:
        """Return time and order of the next answer or plan."""
        found = self._answers[0][:2] if self._answers else told.NEVER
        if self._plans:
            found = min(found, (self._plans[0][0], told.PLANNED))
        return found

    def carry_out_plans(self) -> None:
        while self._plans and self._plans[0][0] <= self.now:
            heappop(self._plans)[2]()

    def answer(self, upto: tuple[int, int]) -> None:
        """Give the answers up to a moment to the engine."""
        answers = self._answers
        while answers and answers[0][:2] <= upto:
            _, _, _, place, first, reply = heappop(answers)
            if not place.session.closed:
                self._answer(place.session, first, reply)
                self._ask_later(place)

    def _answer(self, session: Session, first: Tag, reply: Reply) -> None:
        settlement = self._broker.settlement
        try:
            if reply.answer == told.REQUEUES:
                for tag in range(first, first + reply.count):
                    settlement.requeue(session, Tag(tag), Ms(reply.delay_ms))
                return
            due = EngineMs(0)
            if reply.answer == told.DEFERS:
                due = EngineMs(self.now + reply.delay_ms)
            last = Tag(first + reply.count - 1)
            settlement.settle(session, first, last, _OUTCOMES[reply.answer], (), due)
        except PreconditionFailed:
            pass  # the broker has taken them back: the answer comes too late, as it may

    # -- deliveries

    def deliver(self, consumer: Consumer, piece: Slice, first_tag: int) -> None:
        """Give messages to the player of a consumer."""
        place = self._of[consumer.id]
        if consumer.no_ack:
            self.delivered[place.queue] = self.delivered.get(place.queue, 0) + len(piece)
            self._ask_later(place)
        else:
            self._hand(place, piece, first_tag)

    def _hand(self, place: Place, piece: Slice, first_tag: int) -> None:
        queue, count = place.queue, piece.hi - piece.lo
        attempt = told.attempt_of(piece.annotations, queue[1], piece.acquired)
        first_id = piece.payload.first_id + piece.lo
        self.delivered[queue] = self.delivered.get(queue, 0) + count
        for reply in self._learned.replies(place.player, queue, attempt, first_id, count, self.now):
            if reply.answer != told.HOLDS:
                if reply.is_drawn:
                    self.drawn[queue] = self.drawn.get(queue, 0) + reply.count
                self._number += 1
                at = max(reply.ended_ms, self.now)
                if reply.keeps:
                    self.plan(at - 1, partial(self._touch, place, first_tag, reply.count))
                said = (at, reply.order, self._number, place, Tag(first_tag), reply)
                heappush(self._answers, said)
            first_tag += reply.count

    def _touch(self, place: Place, first_tag: int, count: int) -> None:
        """Let the time of deliveries begin once more."""
        for tag in range(first_tag, first_tag + count):
            with suppress(PreconditionFailed):  # they are not held any more
                self._broker.timeouts.touch(place.session, Tag(tag), Ms(1 << 40))

    # -- who comes and goes

    def come(self, terms: Terms, not_before: int) -> None:
        """Let a consumer come, when the change says, and not before a time."""
        self._here[terms.consumer] = terms
        due = max(self.now + self._changed(terms).late_ms, not_before)
        one = self._said_of(terms)
        if one.away_for_ms and one.away_at_ms <= due < one.away_at_ms + one.away_for_ms:
            due = one.away_at_ms + one.away_for_ms
        if due > self.now:
            self.plan(due, lambda: self._enter_if_here(terms))
        else:
            self._enter(terms)

    def _said_of(self, terms: Terms) -> ConsumersChange:
        """Return what the change says of a consumer, whenever it takes effect."""
        found = self._change.consumers_of(terms.vhost, terms.queue)
        return AS_THEY_WERE if found is None else found

    def _changed(self, terms: Terms) -> ConsumersChange:
        """Return what is different with a consumer by now."""
        return AS_THEY_WERE if self.now < self._change.since_ms else self._said_of(terms)

    def _take_effect(self) -> None:
        """Have the consumers that are there do as the change says. What they have begun to work on
        takes the time that it took."""
        for terms in self._here.values():
            places, one = self._places.get(terms.consumer, []), self._changed(terms)
            queue = self._broker.vhosts[terms.vhost].queues.get(terms.queue)
            if not places or queue is None or one is AS_THEY_WERE:
                continue
            for place in places:
                place.player.pace = 1 / one.speed
                if one.prefetch >= 0 and place.consumer is not None:
                    place.consumer.by_link = False
                    self._broker.consuming.set_limit(place.consumer, one.prefetch or UNLIMITED)
            for place in places[one.times :]:
                self._broker.clients.close_session(place.session, False)
            del places[one.times :]
            self._fill(terms, queue)

    def _enter_if_here(self, terms: Terms) -> None:
        known = self._here.get(terms.consumer)
        if known is not None and terms.consumer not in self._places:
            self._enter(known)

    def _enter(self, terms: Terms) -> None:
        queue = self._broker.vhosts[terms.vhost].queues.get(terms.queue)
        if queue is None:
            return
        self._places[terms.consumer] = []
        self._fill(terms, queue)

    def _fill(self, terms: Terms, queue: Queue) -> None:
        """Add consumers in place of one until there are as many as the change says."""
        one, places = self._changed(terms), self._places[terms.consumer]
        if one.prefetch >= 0:
            terms = replace(terms, window=one.prefetch or -1)
        for copy in range(len(places), one.times):
            session = self._sessions.get(terms.session)
            if session is None or session.closed or copy:
                session = self._open(terms.vhost)
                if not copy:
                    self._sessions[terms.session] = session
            player = Player(
                terms.consumer, terms.consumer in self._recording.serial, 1 / one.speed, copy > 0
            )
            try:
                consumer = self._consume(terms, session)
            except BrokerError:
                return  # somebody else consumes from it exclusively in this world
            place = Place(player, session, consumer, self._declaring.name_of(queue.id))
            self._of[consumer.id] = place
            places.append(place)
            self._ask_later(place)

    def _consume(self, terms: Terms, session: Session) -> Consumer:
        consuming = self._broker.consuming
        queue = self._broker.vhosts[terms.vhost].queues[terms.queue]
        if terms.shared >= 0:
            consuming.set_prefetch(session, terms.shared, True)
        consumer = consuming.consume(
            session, queue, str(terms.consumer), not terms.acknowledges, terms.exclusive,
            terms.priority, {},
        )  # fmt: skip
        consumer.timeout_ms = Ms(terms.timeout_ms)
        consumer.on_timeout = terms.on_timeout
        if terms.is_link and self._changed(terms).prefetch < 0:
            consuming.grant(consumer, 0, False)
        elif terms.window >= 0:
            consuming.set_limit(consumer, terms.window)
        return consumer

    def _open(self, vhost: str) -> Session:
        clients = self._broker.clients
        return clients.open_session(clients.open_connection(vhost, "what-if", "consumer"))

    def grant(self, owner: int, count: int, upto: int, block: int) -> None:
        """Let a consumer of AMQP 1.0 ask for messages, at the moment at which it was given them: it
        had asked before, so the mark covered those below `upto`. What it was given in one block it
        had asked for together."""
        terms = self._here.get(owner)
        for place in self._places.get(owner, ()):
            consumer = place.consumer
            if consumer is not None and consumer.by_link and terms is not None:
                last, asked = place.granted
                asked = count + (asked if last == block else 0)
                place.granted = (block, asked)
                most = max(asked, terms.window - consumer.unacked)
                _cover(consumer.queue, upto)
                self._broker.consuming.grant(consumer, min(consumer.limit + count, most), False)

    def _ask_later(self, place: Place) -> None:
        """Let a consumer of AMQP 1.0 that has nothing ask for a message of its own accord, as soon
        as it is used to. In the world as it was, that is told."""
        if self._change != AS_IT_WAS and place.consumer is not None and place.consumer.by_link:
            after_ms = self._recording.asks_ms.get(place.player.owner, 0)
            self.plan(self.now + after_ms, partial(self._ask, place))

    def _ask(self, place: Place) -> None:
        consumer = place.consumer
        if consumer is not None and consumer.active and consumer.limit + consumer.unacked <= 0:
            self._broker.consuming.grant(consumer, 1, False)

    def serve(self, name: QueueName, owner: int) -> None:
        """Let a consumer be the next to be served of several of its queue."""
        queue = self._declaring.queue_of(name)
        for place in self._places.get(owner, ()):
            if queue is not None and place.consumer in queue.consumers:
                queue.next_turn = queue.consumers.index(place.consumer)
                return

    def cover(self, name: QueueName, mark: int) -> None:
        """Let consumers of a queue be given what is below a mark: the disk had it. How far ahead
        the engine sets its own depends on what left in one turn, and how deliveries fall into
        turns is not determined."""
        queue = self._declaring.queue_of(name)
        if queue is not None and queue.consumers:
            _cover(queue, mark)
            self._broker.agenda.mark(queue)

    def credit(self, terms: Terms) -> None:
        """Let a consumer have other terms."""
        if terms.consumer in self._here:
            self._here[terms.consumer] = terms
        keeps = self._changed(terms).prefetch >= 0
        consuming = self._broker.consuming
        for place in self._places.get(terms.consumer, ()):
            if place.consumer is None or place.session.closed:
                continue
            place.consumer.timeout_ms = Ms(terms.timeout_ms)
            place.consumer.on_timeout = terms.on_timeout
            if terms.shared >= 0:
                consuming.set_prefetch(place.session, terms.shared, True)
            if terms.is_link and not keeps:
                if not place.consumer.by_link:
                    consuming.grant(place.consumer, 0, False)
                    self._ask_later(place)
                continue
            if terms.window >= 0 and not keeps:
                consuming.set_limit(place.consumer, terms.window)

    def bar(self, owner: int) -> None:
        """Let a consumer be given nothing until it goes. In this world another one may have held
        the message that it kept for too long."""
        for place in self._places.get(owner, ()):
            if place.consumer is not None and place.consumer.active:
                self._broker.consuming.cancel(place.consumer)

    def go(self, consumer: int, how: int) -> None:
        """Let a consumer go."""
        self._here.pop(consumer, None)
        for place in self._places.pop(consumer, ()):
            if place.session.closed:
                continue
            if how != told.CANCELLED:
                self._broker.clients.close_session(place.session, how == told.LOST)
            elif place.consumer is not None and place.consumer.active:
                self._broker.consuming.cancel(place.consumer)

    def _leave(self, one: ConsumersChange) -> None:
        """Let all consumers of a queue go for a while."""
        for terms in list(self._here.values()):
            if (terms.vhost, terms.queue) == (one.vhost, one.queue):
                for place in self._places.pop(terms.consumer, ()):
                    self._broker.clients.close_session(place.session, False)
                self.plan(self.now + one.away_for_ms, partial(self._enter_if_here, terms))

    def crash(self) -> None:
        """End all connections, as the end of a broker that is killed does. Those who consumed come
        back when the recording says."""
        for connection in list(self._broker.connections.values()):
            for session in connection.sessions:
                _put_back(session)
        self.stop(0)
        self._here.clear()

    def stop(self, back_ms: int) -> None:
        """End all connections, as a broker does that stops. back_ms: when the consumers are
        back."""
        for connection in list(self._broker.connections.values()):
            self._broker.clients.close_connection(connection, False)
        self._places.clear()
        for terms in self._here.values():
            self.plan(back_ms, partial(self._enter_if_here, terms))

    # -- messages that are asked for

    def take(self, taken: Taken) -> None:
        """Let somebody ask for messages, as many as there were."""
        queue = self._declaring.queue_of(taken.queue)
        if queue is None:
            return
        place = next(iter(self._places.get(taken.owner, ())), None)
        if place is None or place.session.closed:
            player = Player(taken.owner, taken.owner in self._recording.serial)
            place = Place(player, self._open(taken.queue[0]), None, taken.queue)
            self._places[taken.owner] = [place]
        place = Place(place.player, place.session, None, taken.queue)
        for _ in range(taken.count):
            got = self._broker.consuming.get(place.session, queue, not taken.acknowledges)
            if got is None:
                return
            if taken.acknowledges:
                self._hand(place, got[0], got[1])


def _cover(queue: Queue, upto: int) -> None:
    high = queue.high_water
    high.durable = QueueSequence(max(high.durable, upto))
    high.mark = QueueSequence(max(high.mark, upto))


def _put_back(session: Session) -> None:
    """Put back what a session holds, as a start does: what a queue has to say to messages that
    consumers give back, limits and delays, is not asked."""
    for entry in session.inflight:
        if not entry.void and not entry.queue.deleted:
            pieces = [entry.part(low, high) for low, high in entry.pieces(entry.first, entry.last)]
            entry.queue.give_back(pieces, False)
    session.inflight.clear()
