"""Delivery: the assignment of ready messages to consumers, and its limits, in one turn.

Limits, each checked per slice:
- the consumer's credit, and its session's where that is shared [LC-3];
- its turn, where other consumers of its session share a limit and wait in line: see `_share_out`;
- time to live: expired messages leave from the head before each delivery [DL-4];
- its connection's room for this turn, and none while its socket is full [SC-D6];
- the room that all connections have together in this turn, so that many who may have much do not
  make it a long one: whoever got nothing of it is served first in the next turn;
- a quota where several consumers share a queue, so that ten messages do not all go to one of two;
- the queue's high-water mark on disk: nothing leaves before the disk has a mark above it, so that
  after a crash every message that a consumer may have seen has the redelivered flag.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Final, final

from tallymark.engine.durability import Marks
from tallymark.engine.effects import Activated, Deliver, Drained, Effect
from tallymark.engine.handover import Handover
from tallymark.engine.message import Slice
from tallymark.engine.quarantine import Quarantine
from tallymark.engine.queue import Queue
from tallymark.engine.queue_consumers import (
    active_of,
    consumers_of,
    looked_at_of,
    pass_over,
    place_among,
    rank,
    reconsider,
)
from tallymark.engine.seeking import Seeking
from tallymark.engine.session import Consumer, Session
from tallymark.engine.state import State
from tallymark.engine.upkeep import IN_A_TURN, Upkeep
from tallymark.units import UNLIMITED, QueueSequence

LARGEST_QUOTA: Final = 32
FEW: Final = 32
"""Number of consumers of a queue up to which each turn looks at all of them. Of more, those that
want nothing are passed over until they may want something."""


@final
class Dispatcher:
    """Serves the queues of the `Agenda`, as far as the connections have room in this turn."""

    def __init__(
        self,
        state: State,
        handover: Handover,
        marks: Marks,
        upkeep: Upkeep,
        quarantine: Quarantine,
    ) -> None:
        self.clock = state.clock
        self._agenda = state.agenda
        self._effects = state.effects
        self._handover = handover
        self._marks = marks
        self._upkeep = upkeep
        self._quarantine = quarantine
        self._seeking = Seeking(state, handover, marks, upkeep, quarantine)
        self.again: list[Queue] = []
        """Queues that stopped only because their connections had no room; served in the next turn,
        after all others."""
        self._starved: list[Queue] = []
        """Queues that for that reason delivered nothing at all, or that the turn had no room for;
        served before all others."""
        self._is_line_first = False
        """True if the turn had no room left for consumers in line: in the next one they come before
        the queues."""
        self._granted: list[Consumer] = []
        """Consumers that have a reserved share."""
        self._left: list[Queue] = []
        """Queues that the turn served and left with ready messages."""
        self.few = FEW
        self._looked_at = False
        """True while a queue is served on behalf of a command that examines it."""
        self.carry_out: Callable[[Effect], None] | None = None
        """Callback of the owner that carries an effect out at once, see `look`; None: effects are
        collected with the turn's others."""

    def share(self, session: Session, limit: int) -> None:
        """Set the limit that the session's consumers share from now on."""
        session.limit = limit
        for consumer in list(session.line.values()):
            session.step_out(consumer)
        self._agenda.mark_session(session)

    def has_work(self) -> bool:
        """Return whether another `pump` would do something that nothing else announces."""
        return bool(self._agenda.changed or self.again or self._starved or self._agenda.offers)

    def keeps_waiting(self) -> bool:
        """Return whether the last turn served a queue and left it with ready messages that no
        consumer has credit for: the next settlement brings a consumer more. O(queues served)."""
        return any(queue.ready > 0 and queue.demand() <= 0 for queue in self._left)

    def pump(self) -> None:
        """Serve every changed queue once, then distribute free shared limits among the consumers in
        line."""
        agenda = self._agenda
        self._marks.turns += 1
        if self._left:
            self._left.clear()
        if agenda.spent:
            for connection in agenda.spent:
                connection.room = connection.allowance
            agenda.spent.clear()
        changed = agenda.changed
        if self.again or self._starved:
            for queue in self.again:
                if not queue.dirty:
                    queue.dirty = True
                    changed.append(queue)
            self.again = []
            for queue in self._starved:
                queue.dirty = True
            changed = self._starved + changed
            self._starved = []
        agenda.changed = []
        agenda.room = agenda.allowance
        self._upkeep.room = IN_A_TURN
        was_line_first = self._is_line_first
        if was_line_first:
            self._serve_line()
        for at, queue in enumerate(changed):
            if agenda.room <= 0:
                self._starved += [left for left in changed[at:] if left.dirty]
                break
            if queue.dirty:  # else it stood in both lists
                queue.dirty = False
                self._pump(queue)
        self._is_line_first = bool(agenda.offers) and agenda.room <= 0 and not was_line_first
        if agenda.offers and agenda.room > 0:
            self._serve_line()
        self._upkeep.room = UNLIMITED
        if self._granted:
            self._end_shares()

    def _serve_line(self) -> None:
        if self._agenda.offers:
            for queue in self._share_out():
                self._pump(queue)

    def _pump(self, queue: Queue) -> None:
        if queue.deleted:
            return
        if queue.watched and not self._upkeep.before(queue):
            self._agenda.mark(queue)
            return
        if queue.ready and queue.consumers and not (queue.paused or queue.rests):
            if queue.seekers and self._seeking.serve(queue):
                self.again.append(queue)
            self._serve(queue)
            if queue.ready:
                self._left.append(queue)
        if queue.draining:
            self._end_drains(queue)
        if queue.watched:
            self._upkeep.attend(queue)

    def look(self, queue: Queue) -> None:
        """Serve a queue before a command examines or changes its ready messages, so that its
        consumers first get what they can be given in this turn.

        What that causes is carried out at once, so that it is said in the order in which it was
        done. A message that the queue's mark does not cover yet is taken too where its consumer's
        connection can hold it back until the disk says so.
        """
        if self.carry_out is None or not queue.ready or not queue.consumers:
            return
        if queue.paused or queue.rests:
            return
        if queue.watched and not self._upkeep.before(queue):
            return
        said = len(self._effects)
        self._looked_at = True
        try:
            if queue.seekers and self._seeking.serve(queue):
                self.again.append(queue)
            self._serve(queue)
        finally:
            self._looked_at = False
            caused = self._effects[said:]
            del self._effects[said:]
        for effect in caused:
            self.carry_out(effect)

    def use(self, queue: Queue) -> None:
        """Note the use of a queue: its expiry starts anew [x-expires]. Its content is brought up to
        date first: consumers get what they can be given, and messages that expired or exceed a
        limit leave, over several turns if they are many."""
        self.look(queue)
        self._upkeep.use(queue)

    def use_head(self, queue: Queue) -> None:
        """Note the use of a queue, as `use` does, before a command that takes messages: all expired
        messages leave first."""
        self.look(queue)
        queue.used_ms = self.clock.now_ms
        if queue.watched:
            self._upkeep.attend(queue)

    def expire_behind(self, queue: Queue) -> None:
        """Let messages that expired behind one which a command took leave, over several turns if
        they are many: what the command says is left does not count them."""
        self._upkeep.use(queue)

    def _share_out(self) -> list[Queue]:
        """Distribute the free part of shared limits, one message to each consumer in line in turn.
        A consumer that got one goes to the end of the line. Returns the queues to serve them from.

        O(consumers that get something), however many wait.
        """
        queues: dict[int, Queue] = {}
        offers, self._agenda.offers = self._agenda.offers, []
        for session in offers:
            session.is_offered = False
            connection = session.connection
            if session.closed or not session.flow or connection.paused or connection.gated:
                continue  # it is offered anew when that ends
            line = session.line
            free = session.free()
            if free >= len(line):
                for consumer in list(line.values()):
                    if not consumer.is_waiting():
                        self._step_out(consumer)
                each = free // len(line) if line else 0
                if each:
                    for consumer in line.values():
                        self._grant(session, consumer, each, queues)
                        free -= each
            while line and free > 0:
                consumer = line[next(iter(line))]
                if consumer.is_waiting():
                    line.move_to_end(consumer.id)
                    self._grant(session, consumer, 1, queues)
                    free -= 1
                else:
                    self._step_out(consumer)
        return list(queues.values())

    def _grant(
        self, session: Session, consumer: Consumer, n: int, queues: dict[int, Queue]
    ) -> None:
        if not consumer.share:
            self._granted.append(consumer)
        consumer.share += n
        session.reserved += n
        reconsider(consumer)
        queues[consumer.queue.id] = consumer.queue

    def _end_shares(self) -> None:
        """Release unused shares for the next consumers in line. A consumer that waits for the disk
        keeps its share; one whose connection has no room keeps its place in the line."""
        granted, self._granted = self._granted, []
        for consumer in granted:
            if not consumer.share:
                continue
            session = consumer.session
            if consumer.queue.waits_for_disk() and consumer.is_waiting() and consumer.room() > 0:
                self._granted.append(consumer)
                continue
            session.give_share_back(consumer)
            if session.connection.room > 0 and self._agenda.room > 0:
                self._step_out(consumer)
            self._agenda.offer(session)

    def _step_out(self, consumer: Consumer) -> None:
        """Remove a consumer from its session's line."""
        consumer.session.step_out(consumer)
        reconsider(consumer)

    def has_granted(self, consumer: Consumer) -> bool:
        """Return whether the next turn looks at the consumer's share, and may release it."""
        return consumer in self._granted

    def _line_up(self, queue: Queue, consumers: list[Consumer]) -> None:
        """Put consumers that only a shared limit stops in their session's line."""
        for consumer in consumers:
            if (
                consumer.session.limit != UNLIMITED
                and not consumer.in_line
                and (not queue.settings.single_active or consumer is queue.active)
                and consumer.is_waiting()
                and consumer.session.left_for(consumer) <= 0
            ):
                consumer.session.step_in(consumer)

    def _serve(self, queue: Queue) -> None:
        consumers = looked_at_of(queue)
        full: list[Consumer] | None = None
        before = queue.acquired + queue.account.settled
        if queue.settings.single_active or len(queue.consumers) == 1:
            consumer = active_of(queue) or consumers_of(queue)[0]
            if consumer.overdue:
                consumer = self._in_place_of(consumer)
            while queue.ready:
                credit = consumer.credit()
                if credit <= 0 or not self._hand_over(queue, consumer, credit):
                    break
            if len(consumers) != 1:
                consumers = [consumer]
        else:
            if len(consumers) > self.few:
                full = []
            start = 0
            while start < len(consumers) and queue.ready:
                end = _end_of_equals(consumers, start)
                self._serve_equals(queue, consumers, start, end, full)
                start = end
        if queue.ready:
            shared = stops = False
            is_over = self._agenda.room <= 0
            for consumer in consumers:
                session = consumer.session
                shared = shared or session.limit != UNLIMITED
                connection = session.connection
                has_none = connection.room <= 0 and not (connection.paused or connection.gated)
                stops = stops or is_over or has_none
                if stops and shared:
                    break
            if stops:
                if self._looked_at:
                    self._agenda.mark(queue)
                elif queue.acquired + queue.account.settled > before:
                    self.again.append(queue)
                else:
                    self._starved.append(queue)
            if shared:
                self._line_up(queue, consumers)
        if full:
            pass_over(queue, full)

    def _in_place_of(self, late: Consumer) -> Consumer:
        """Make another consumer the active one, because this one holds back what it was told of
        [LC-4]; return the active one."""
        queue = late.queue
        for other in consumers_of(queue):
            if other.may_take_over() and not other.overdue:
                queue.active = other
                self._effects += (Activated(late), Activated(other))
                return other
        return late

    def _serve_equals(
        self,
        queue: Queue,
        consumers: list[Consumer],
        start: int,
        end: int,
        full: list[Consumer] | None,
    ) -> None:
        """Serve consumers start..end-1 of those that the turn looks at, all of one priority, in
        turn. Those found without credit are appended to `full`, if any are to be."""
        eligible = 0
        enough = queue.ready >> 3  # of more, each gets one message at a time
        for at in range(start, end):
            if consumers[at].credit() > 0:
                eligible += 1
                if eligible > enough and eligible > 1:
                    break
            elif full is not None:
                full.append(consumers[at])
        if not eligible:
            return
        quota = max(1, min(LARGEST_QUOTA, queue.ready // (4 * eligible)))
        if eligible == 1:
            quota = queue.ready
        at = _turn_of(queue, consumers, start, end)
        idle = 0
        last = consumers[at]
        while queue.ready and idle < end - start:
            here = at
            consumer = consumers[at]
            at += 1
            if at == end:
                at = start
            credit = consumer.credit()
            if credit <= 0:
                idle += 1
                if full is not None:
                    full.append(consumer)
                continue
            idle = 0
            last = consumer
            left = min(credit, quota)
            connection = consumer.session.connection
            while left and queue.ready and connection.room > 0:
                n = self._hand_over(queue, consumer, left)
                if not n:
                    if queue.looked_at is not None:
                        here = place_among(consumers_of(queue), consumer)
                    queue.next_turn = here  # it has not had its turn
                    return
                left -= n
        if queue.looked_at is None:
            queue.next_turn = at
        else:
            _give_turn_behind(queue, last)

    def _end_drains(self, queue: Queue) -> None:
        """End the drain of consumers that have got all messages available to them: their unused
        credit becomes void."""
        queue.draining = 0
        for consumer in consumers_of(queue):
            if not consumer.draining:
                continue
            served = (
                consumer.limit <= 0
                or not queue.ready
                or queue.paused
                or queue.rests
                or bool(consumer.overdue)
                or (queue.settings.single_active and consumer is not queue.active)
                or (bool(consumer.cursors) and not queue.has_beyond(consumer.cursors))
            )
            if served:
                consumer.limit = 0
                consumer.draining = False
                self._effects.append(Drained(consumer))
            else:
                queue.draining += 1

    def _hand_over(self, queue: Queue, consumer: Consumer, most: int) -> int:
        """Give the consumer up to `most` messages of the head slice; return their count."""
        if self._agenda.room <= 0:
            return 0
        head = self._upkeep.next_head(queue) if queue.watched else queue.head()
        if head is None:
            return 0
        if head.payload.raw is None and not self._quarantine.has_read(queue, head):
            self._agenda.mark(queue)  # what is behind it is looked at in the next turn
            return 0
        session = consumer.session
        connection = session.connection
        n = min(head.hi - head.lo, most)
        if n > 1:
            room = min(connection.room, self._agenda.room)
            if head.size() > room:
                cuts = head.payload.cuts
                n = min(n, bisect_left(cuts, cuts[head.lo] + room, head.lo + 1, head.hi) - head.lo)
        waits = False
        if queue.stored:
            covered = self._within_mark(queue, head, n, min(most, queue.ready))
            if covered > 0:
                n = covered
            elif self._looked_at and connection.holds_output:
                waits = True
            else:
                return 0
        if head.first + n > queue.disk_hold.shown:
            if self._looked_at and connection.holds_output:
                waits = True
            else:
                n = queue.disk_hold.shown - head.first
                if n <= 0:
                    return 0
        if queue.disk_hold.returning and head.acquired:
            if self._looked_at and connection.holds_output:
                waits = True
            else:
                n = queue.disk_hold.before_returns(head.first, n)
                if not n:
                    return 0
        piece = queue.take(n)
        self._agenda.spend(connection, piece.size())
        self._effects.append(Deliver(consumer, piece, session.next_tag, waits))
        self._handover.acquire(session, queue, piece, consumer, consumer.no_ack)
        consumer.sent(n, self.clock.now_ms)
        return n

    def _within_mark(self, queue: Queue, head: Slice, n: int, wanted: int) -> int:
        """Return how many of n messages the mark on disk allows to leave now. The mark is requested
        as if `wanted` messages left together, up to a quota, so that the waiting does not depend on
        how the messages were published."""
        upto = head.first + max(n, min(wanted, LARGEST_QUOTA))
        if self._marks.cover(queue, QueueSequence(upto), head.first):
            return n
        return min(n, queue.high_water.durable - head.first)


def _end_of_equals(consumers: list[Consumer], start: int) -> int:
    """Return the index behind the consumers that have the priority of the one at `start`."""
    priority = consumers[start].priority
    if consumers[-1].priority == priority:
        return len(consumers)
    end = start + 1
    while consumers[end].priority == priority:
        end += 1
    return end


def _turn_of(queue: Queue, consumers: list[Consumer], start: int, end: int) -> int:
    """Return the index of the consumer, among start..end-1 of those that the turn looks at, whose
    turn it is: the first from the queue's next one on."""
    at = queue.next_turn
    if queue.looked_at is not None:
        everybody = consumers_of(queue)
        at = place_among(consumers, everybody[at]) if at < len(everybody) else end
    return at if start <= at < end else start


def _give_turn_behind(queue: Queue, consumer: Consumer) -> None:
    """Give the next turn to the consumer behind this one, or to the first of its priority."""
    consumers = consumers_of(queue)
    at = place_among(consumers, consumer) + 1
    if at == len(consumers) or consumers[at].priority != consumer.priority:
        at = bisect_left(consumers, -consumer.priority, key=rank)
    queue.next_turn = at
