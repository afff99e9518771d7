"""Consumers of queues: how they come and go, which one is active, and what they came to (for lists,
logs and the ledger; nothing of that costs per message)."""

from __future__ import annotations

from typing import Final, final

from tallymark.engine.effects import Activated
from tallymark.engine.errors import AccessRefused, NotAllowed
from tallymark.engine.inflight import ranges_from
from tallymark.engine.ledger import consumer_record
from tallymark.engine.queue import Queue
from tallymark.engine.queue_consumers import consumers_of, join_queue, leave_queue
from tallymark.engine.record import Record
from tallymark.engine.session import Consumer, Session
from tallymark.engine.state import State
from tallymark.engine.upkeep import Upkeep
from tallymark.stored import records
from tallymark.units import UNLIMITED, EngineMs, Ms

VERSION: Final = 1


@final
class Consumers:
    """Adds consumers to queues and removes them."""

    def __init__(
        self,
        state: State,
        upkeep: Upkeep,
    ) -> None:
        self._state = state
        self._agenda = state.agenda
        self._clock = state.clock
        self._effects = state.effects
        self._ledger = state.ledger
        self._upkeep = upkeep

    def add(
        self,
        session: Session,
        queue: Queue,
        tag: str,
        no_ack: bool,
        exclusive: bool,
        priority: int,
        timeout_ms: Ms,
    ) -> Consumer:
        """Make a consumer, and give it its place among the queue's: after all of its priority.

        Raises: NotAllowed (a tag in use), AccessRefused (exclusive use, also where one consumer is
        active and the others wait for their turn).
        """
        if tag in session.consumers:
            raise NotAllowed(f"attempt to reuse consumer tag '{tag}'")
        self._upkeep.use(queue)
        consumers = consumers_of(queue)
        shares = bool(consumers or queue.subscriptions or queue.settings.single_active)
        if (exclusive and shares) or (consumers and consumers[0].exclusive):
            raise AccessRefused(f"queue '{queue.name}' in vhost '{queue.vhost}' in exclusive use")
        consumer = Consumer(
            self._state.owner_ids(),
            session,
            queue,
            tag,
            no_ack,
            exclusive,
            priority,
            session.consumer_limit,
            timeout_ms,
            self._clock.now_ms,
        )
        session.consumers[tag] = consumer
        join_queue(consumer)
        queue.comings += 1
        if queue.ready:
            self._agenda.mark(queue)
        return consumer

    def tell_start(self, consumer: Consumer) -> None:
        """Record a new consumer of a queue whose transitions are recorded."""
        if consumer.queue.stored:
            self._tell_window(consumer, records.CONSUMER_STARTED)

    def note_credit(self, consumer: Consumer) -> None:
        """Record the consumer's window if it differs much from the one recorded last: what a client
        grants bit by bit changes with every grant."""
        told = consumer.told_window
        if told < 0:
            return
        window = consumer.window()
        if window > 2 * told or 2 * window < told:
            self._tell_window(consumer, records.CONSUMER_CREDIT)

    def note_shared(self, session: Session) -> None:
        """Record a change of the limit that a session's consumers share."""
        for consumer in session.consumers.values():
            if consumer.told_window >= 0:
                self._tell_window(consumer, records.CONSUMER_CREDIT)

    def _tell_window(self, consumer: Consumer, event: int) -> None:
        consumer.told_window = consumer.window()
        self._ledger.emit(progress_record(consumer, event, self._clock.now_ms))

    def remove(self, consumer: Consumer) -> None:
        """Stop a consumer; its unsettled messages stay with its session."""
        if not consumer.active:
            return
        consumer.active = False
        session = consumer.session
        session.consumers.pop(consumer.tag, None)
        session.step_out(consumer)
        session.give_share_back(consumer)
        self._agenda.offer(session)
        queue = consumer.queue
        if consumer.progress or consumer.told_window >= 0:
            self._ledger.emit(progress_record(consumer, records.CONSUMER_ENDED, self._clock.now_ms))
        at = leave_queue(consumer)
        queue.comings += 1
        if consumer.cursors:
            queue.seekers.remove(consumer)
        if queue.active is consumer:
            queue.active = next_active = _next_active(queue)
            if next_active is not None and queue.settings.single_active:
                self._effects.append(Activated(next_active))
        self._upkeep.use(queue)
        if at < queue.next_turn:
            queue.next_turn -= 1
        if queue.ready and queue.consumers:
            self._agenda.mark(queue)

    def hand_over_activity(self, consumer: Consumer) -> None:
        """Make the next in line the active consumer if this is it."""
        queue = consumer.queue
        if queue.active is not consumer:
            return
        other = _next_active(queue)
        if other is None or not other.may_take_over():
            return
        queue.active = other
        if queue.settings.single_active:
            self._effects += (Activated(consumer), Activated(other))
            self._agenda.mark(queue)


def _next_active(queue: Queue) -> Consumer | None:
    """Return the consumer that takes over where the queue has a single active consumer: the first
    that takes messages from the head, and one that is retired only where all are."""
    found: Consumer | None = None
    for consumer in consumers_of(queue):
        if consumer.may_take_over():
            return consumer
        if found is None and not consumer.cursors:
            found = consumer
    return found


def figures(consumer: Consumer, now_ms: EngineMs) -> dict[str, object]:
    """Return the figures of one consumer. Times are in milliseconds, rate in messages per second.
    credit None: no limit. oldest_unsettled_ms: time since its oldest unsettled message was
    delivered. idle_ms: time for which it has had credit and received nothing; None while it has no
    credit or holds messages."""
    credit = consumer.wanted()
    idle: int | None = None
    if credit > 0 and not consumer.unacked:
        idle = max(0, now_ms - max(consumer.last_ms, consumer.since_ms, consumer.pace.last_ms))
    return {
        "tag": consumer.tag,
        "id": consumer.id,
        "acknowledges": not consumer.no_ack,
        "delivered": consumer.delivered,
        "settled": consumer.pace.done,
        "rate": round(consumer.pace.rate(now_ms), 3),
        "unsettled": consumer.unacked,
        "oldest_unsettled_ms": _oldest_held(consumer, now_ms),
        "credit": None if credit >= UNLIMITED else credit,
        "idle_ms": idle,
        "age_ms": max(0, now_ms - consumer.since_ms),
    }


def _oldest_held(consumer: Consumer, now_ms: EngineMs) -> Ms | None:
    if consumer.unacked:
        for entry in ranges_from(consumer.session, consumer.held_from):
            if entry.consumer is consumer and not entry.void:
                return Ms(max(0, now_ms - entry.given_ms))
    return None


def progress_record(consumer: Consumer, event: int, now_ms: EngineMs) -> Record:
    """Return the ledger's record of a consumer's progress. event: records.CONSUMER_*."""
    connection = consumer.session.connection
    about: dict[str, object] = {
        "v": VERSION,
        "vhost": connection.vhost,
        "queue": consumer.queue.name,
        "connection": connection.name,
        "user": connection.user,
        **figures(consumer, now_ms),
        **_terms(consumer),
    }
    consumer.told = consumer.progress
    return consumer_record(consumer.queue.id, consumer.id, event, consumer.pace.done, about)


def _terms(consumer: Consumer) -> dict[str, object]:
    """Return the terms on which a consumer is given messages. window, shared: the most that it, and
    its session, may hold unsettled; None: no limit. timeout_ms: -1: the queue's setting applies."""
    window, shared = consumer.window(), consumer.session.limit
    return {
        "session": consumer.session.id,
        "window": None if window >= UNLIMITED else window,
        "shared": None if shared >= UNLIMITED else shared,
        "exclusive": consumer.exclusive,
        "priority": consumer.priority,
        "timeout_ms": consumer.timeout_ms,
        "on_timeout": consumer.on_timeout,
        "filtered": bool(consumer.cursors),
    }
