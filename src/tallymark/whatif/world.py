"""World: the engine, the one that serves, under a clock that is moved by hand, given what came in.

A step is a moment of the recording: what one block of the journal, or one time within it, says came
from outside is given to the engine, then it has its turn. What consumers answer to deliveries comes
from crowd.py, and is given to the engine when its time has come.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from tallymark.engine.account import DEFERRED, MOVING
from tallymark.engine.broker import Broker
from tallymark.engine.effects import Deliver, Effect, TimedOut
from tallymark.engine.message import Payload, Slice
from tallymark.engine.queue import Queue
from tallymark.engine.queue_consumers import reconsider
from tallymark.engine.record import Record
from tallymark.engine.session import STOPS
from tallymark.engine.slow.rules import POLICY_PREFIX
from tallymark.stored import records
from tallymark.units import EngineMs, Position, QueueSequence
from tallymark.whatif import recording as told
from tallymark.whatif.changes import AS_IT_WAS, Change, Restart
from tallymark.whatif.crowd import Crowd
from tallymark.whatif.declaring import Declaring
from tallymark.whatif.drivers import Drivers
from tallymark.whatif.fates import ENDS, Fates, QueueName, fate_of
from tallymark.whatif.publisher import Publisher
from tallymark.whatif.recording import Recording, Taken, Terms
from tallymark.whatif.slow import MARK, PERIOD_MS, SlowWatch

MOST_TURNS: Final = 1000
"""Turns at one moment: more than that is a mistake."""
DUE: Final = -1
AT_LEAST_SYNCED: Final = -2
"""Orders of turns that are not in the recording: for a deadline; for a block that is on disk."""
TOLD_AFTER: Final = 1000
"""Moments between two reports of progress."""


@dataclass(slots=True)
class Outcome:
    """Result of a world."""

    fates: dict[QueueName, Fates] = field(default_factory=dict)
    drawn: dict[QueueName, int] = field(default_factory=dict)
    """Deliveries whose answer, or its time, was drawn, by queue."""
    delivered: dict[QueueName, int] = field(default_factory=dict)
    published: int = 0
    unroutable: int = 0
    """Messages that no queue took."""
    timed_out: dict[QueueName, int] = field(default_factory=dict)
    """Consumers that held a message for too long, by queue."""


class World:
    """A broker that lives through a recording. Used once."""

    def __init__(self, recording: Recording, change: Change = AS_IT_WAS, seed: int = 1) -> None:
        self._recording = recording
        self._change = change
        self.broker = Broker(_no_bytes)
        self.outcome = Outcome()
        self._declaring = Declaring(self.broker, self.outcome.fates, change)
        self._publisher = Publisher(self.broker, recording, change, self._note_refused)
        self._crowd = Crowd(self.broker, recording, self._declaring, change, seed)
        self._drivers = Drivers(self.broker, self._declaring)
        self._slow = SlowWatch(self.broker)
        self._looks = False
        self._now = recording.begin_ms
        self._position = 0
        self._waits = False
        """True for a moment at which the engine is told something and has no turn."""
        self._goes_on = False
        """True for a moment that another one of the recording follows at the same time: what the
        engine has left to do then comes behind what it is told there."""
        self._synced = 0
        self._written = 0
        """Order of the last turn of the recording."""
        self._unsynced: deque[tuple[int, int]] = deque()
        """Positions that the disk has not reached, with the orders at which they were written."""
        self._at_input = self._at_publish = 0
        self._down_until = 0
        self._held: list[int] = []
        """Payloads that are published when the broker is back."""
        if any(key.startswith(POLICY_PREFIX) for one in change.policies for key in one.definition):
            self._crowd.plan(self._now, self._look_from_now_on)
        if change.since_ms:
            self._crowd.plan(change.since_ms, lambda: self._declaring.follow(self._now))
        for one in change.restarts:
            self._crowd.plan(one.at_ms, partial(self._stop, one))

    def run(self, progress: Callable[[float], None] | None = None) -> Outcome:
        """Play the recording from its first to its last moment. progress: told now and then which
        part of it is over, 0 to 1."""
        recording, turns = self._recording, len(self._recording.turn_ms)
        end_ms = recording.end_ms
        at_turn = 0
        self.broker.clock.tell(EngineMs(self._now))
        while True:
            now, order = end_ms + 1, 0
            if at_turn < turns:
                now, order = recording.turn_ms[at_turn], recording.turn_order[at_turn]
            moment = self._between(now)
            if moment < (now, order):
                now, order = moment
            elif at_turn < turns:
                self._sync_below(recording.turn_synced[at_turn])
                self._written = order
                order = recording.turn_upto[at_turn]
                self._waits = not recording.turn_ends[at_turn]
                at_turn += 1
                self._goes_on = at_turn < turns and recording.turn_ms[at_turn] == now
                if progress is not None and at_turn % TOLD_AFTER == 0:
                    progress(at_turn / turns)
            if now > end_ms:
                return self._ended()
            self._step(max(now, self._now), order)

    def _ended(self) -> Outcome:
        made, crowd = self.outcome, self._crowd
        made.drawn, made.delivered = crowd.drawn, crowd.delivered
        made.published, made.unroutable = self._publisher.published, self._publisher.unroutable
        return made

    def _between(self, turn_ms: int) -> tuple[int, int]:
        """Return when the engine has to have a turn before the next one of the recording."""
        found = self._crowd.next_due()
        due = self.broker.next_due()
        late = self._recording.late_ms
        if due < turn_ms - late:
            found = min(found, (due, DUE))
        if self.broker.durability.is_waiting() and self._now + late < turn_ms:
            found = min(found, (self._now + self._recording.sync_ms, AT_LEAST_SYNCED))
        return found

    def _step(self, now: int, order: int) -> None:
        """Live through one moment."""
        self._now = self._crowd.now = now
        self.broker.clock.tell(EngineMs(now))
        if order == AT_LEAST_SYNCED:
            self._synced = self._position
            self._unsynced.clear()
        for effect in self.broker.synced(Position(self._synced)):
            self._carry_out(effect)
        self._crowd.carry_out_plans()
        self._hear((now, order))
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
            if self._goes_on or not broker.has_work():
                self._goes_on = False
                return
        raise AssertionError(f"{MOST_TURNS} turns at {self._now} and still work to do")

    def _note(self, row: Record) -> None:
        """Note what a row says of the fates of messages."""
        kind = row.kind
        if kind == records.ENTERED:
            first_id, sizes = 0, array("I", bytes(4 * row.count))
            if row.payload is not None:
                first_id = row.payload.first_id + row.lo
                cuts = row.payload.cuts
                for i in range(row.count):
                    sizes[i] = cuts[row.lo + i + 1] - cuts[row.lo + i]
            fates = self._declaring.fates_of(row.queue)
            fates.enter(row.first, row.count, row.time_ms, first_id, sizes)
        elif kind in ENDS:
            fates = self._declaring.fates_of(row.queue)
            fates.end(row.first, row.count, row.time_ms, fate_of(kind, row.reason))
        elif kind == records.ACQUIRED and row.other:
            fates = self._declaring.fates_of(row.queue)
            fates.again_ms.extend(array("q", (row.time_ms,)) * row.count)

    def _note_refused(self, queue: Queue, count: int) -> None:
        fates = self._declaring.fates_of(queue.id)
        fates.refused_ms.extend(array("q", (self._now,)) * count)

    def _carry_out(self, effect: Effect) -> None:
        if isinstance(effect, Deliver):
            self._crowd.deliver(effect.consumer, effect.slice, effect.first_tag)
        elif isinstance(effect, TimedOut):
            consumer = effect.consumer
            if consumer is not None:
                name = self._declaring.name_of(consumer.queue.id)
                self.outcome.timed_out[name] = self.outcome.timed_out.get(name, 0) + 1
            if consumer is None or consumer.on_timeout == STOPS:
                self.broker.clients.close_session(effect.session, False)
            elif consumer.by_link:
                consumer.overdue = 0  # it settles them all the same before it asks again
                reconsider(consumer)
                self.broker.agenda.mark(consumer.queue)

    # -- what came in

    def _hear(self, upto: tuple[int, int]) -> None:
        """Tell the engine what came from outside up to a moment, in its order."""
        inputs, publishes, crowd = self._recording.inputs, self._recording.publishes, self._crowd
        while True:
            at, given = self._at_publish, self._at_input
            published = told.NEVER
            if at < len(publishes):
                published = publishes.time_ms[at], publishes.order[at]
            came = inputs[given][:2] if given < len(inputs) else told.NEVER
            first = min(published, came)
            crowd.answer(min(first, upto))
            if first > upto:
                return
            if came <= published:
                self._at_input = given + 1
                self._take_input(inputs[given][2], inputs[given][3])
            else:
                self._at_publish = at + 1
                if self._now < self._down_until:
                    self._held.append(at)
                else:
                    self._publisher.publish(at, self._now)

    def _take_input(self, kind: int, said: object) -> None:
        if kind == told.DEFINE:
            assert isinstance(said, bytes)
            self._declaring.define(said, self._now)
            if MARK in said:
                self._look_from_now_on()
        elif kind == told.COME:
            assert isinstance(said, Terms)
            self._crowd.come(said, self._down_until)
        elif kind == told.CREDIT:
            assert isinstance(said, Terms)
            self._crowd.credit(said)
        elif kind == told.GO:
            assert isinstance(said, tuple)
            self._crowd.go(*said)
        elif kind == told.TAKE:
            assert isinstance(said, Taken)
            self._crowd.take(said)
        elif kind == told.PURGE:
            assert isinstance(said, tuple)
            self._purge(*said)
        elif kind == told.GRANT:
            assert isinstance(said, tuple)
            self._crowd.grant(*said)
        elif kind == told.LOOK:
            self._slow.look()
        elif kind == told.SERVED:
            assert isinstance(said, tuple)
            self._crowd.serve(*said)
        elif kind == told.COVERED:
            assert isinstance(said, tuple)
            self._crowd.cover(*said)
        elif kind == told.BARRED:
            assert isinstance(said, tuple)
            self._crowd.bar(*said)
        elif kind == told.TRANSFER:
            assert isinstance(said, tuple)
            self._transfer(*said)
        elif kind == told.CRASH:
            self._crowd.crash()
            assert said is None or isinstance(said, dict)
            self._begin_again(said)
        else:
            self._drivers.take(kind, said)

    def _purge(self, name: QueueName, held: bool) -> None:
        queue = self._declaring.queue_of(name)
        if queue is not None and held:
            self.broker.contents.empty(queue)
        elif queue is not None:
            self.broker.contents.purge(queue)

    def _look_from_now_on(self) -> None:
        """Look at slow consumers now and then, where others may be slow than were: the recording
        tells when the broker acted."""
        change = self._change
        if not self._looks and (change.policies or change.publishers or change.consumers):
            self._looks = True
            self._look()

    def _look(self) -> None:
        self._slow.look()
        if self._now < self._recording.end_ms:
            self._crowd.plan(self._now + PERIOD_MS, self._look)

    def _transfer(self, name: QueueName, targets: list[QueueName]) -> None:
        queue = self._declaring.queue_of(name)
        found = [self._declaring.queue_of(target) for target in targets]
        if queue is not None:
            self.broker.contents.transfer(queue, [one for one in found if one is not None])

    def _begin_again(self, marks: dict[QueueName, tuple[int, int]] | None = None) -> None:
        """Leave in the queues what a start brings back: no transient messages, and every other one
        at the place at which it entered. After a clean end no mark is in force (None); after
        another one, what is below it counts as delivered. marks: those that were in force, and how
        far each was ahead of what was delivered. That depends on how deliveries fell into turns: a
        world with a change, where other messages were delivered, has marks as far ahead."""
        for queue in self.broker.queues.values():
            if queue.settings.is_stream:
                continue
            if marks is None:
                queue.high_water.settle_at(QueueSequence(0))
            else:
                own = queue.high_water
                mark, ahead = marks.get(self._declaring.name_of(queue.id), (own.mark, 0))
                if self._change != AS_IT_WAS:
                    mark = own.reached + ahead
                own.settle_at(QueueSequence(mark))
            queue.unpack()
            deferred = queue.deferrals.take_all()
            for entry in deferred:
                queue.account.move(entry.piece, DEFERRED, MOVING)
                if entry.piece.payload.persistent:
                    queue.defer(entry.piece, entry.due_ms, entry.to_tail)
                else:
                    self.broker.state.drop(queue, entry.piece, records.DROPPED_TRANSIENT)
            for piece in queue.clear():
                if piece.payload.persistent:
                    piece.shift = 0
                    for part in _supposed(piece, queue.high_water.mark):
                        queue.make_ready(part)
                else:
                    self.broker.state.drop(queue, piece, records.DROPPED_TRANSIENT)

    def _stop(self, restart: Restart) -> None:
        """Stop the broker, in effect, for a while: who publishes meanwhile does so when it is
        back."""
        self._down_until = max(self._down_until, self._now + restart.outage_ms)
        self._crowd.stop(self._down_until)
        self._begin_again()
        self._crowd.plan(self._down_until, self._resume)

    def _resume(self) -> None:
        for i in self._held:
            self._publisher.publish(i, self._now)
        self._held.clear()


def _supposed(piece: Slice, mark: int) -> Iterator[Slice]:
    """Yield the parts of a slice below a mark, supposed to have been delivered, and behind it."""
    below = min(max(mark - piece.first, 0), len(piece))
    if below and not piece.acquired:
        head = piece.part(0, below)
        head.acquired = 1
        yield head
        piece = piece.part(below, len(piece))
    if len(piece):
        yield piece


def _no_bytes(payload: Payload) -> bytes:
    return b""
