"""Consumers of queues: who they are, in which order they are served, and which one is active."""

from __future__ import annotations

from typing import final

from tallymark.engine import records
from tallymark.engine.effects import Activated
from tallymark.engine.errors import AccessRefused, NotAllowed
from tallymark.engine.queue import Queue
from tallymark.engine.session import (
    Consumer,
    Session,
    consumers_of,
)
from tallymark.engine.state import State
from tallymark.engine.statistics import progress_record
from tallymark.engine.upkeep import Upkeep


@final
class Consumers:
    """Adds consumers to queues and removes them."""

    __slots__ = (
        "_agenda", "_clock", "_effects", "_ledger", "_state", "_upkeep",
    )  # fmt: skip

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
        timeout_ms: int,
    ) -> Consumer:
        """Make a consumer, and give it its place among the queue's: after all of its priority.

        Raises: NotAllowed (a tag in use), AccessRefused (exclusive use).
        """
        if tag in session.consumers:
            raise NotAllowed(f"attempt to reuse consumer tag '{tag}'")
        self._upkeep.use(queue)
        consumers = consumers_of(queue)
        if (consumers and (exclusive or consumers[0].exclusive)) or (
            exclusive and queue.subscriptions
        ):
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
        at = len(consumers)
        while at > 0 and consumers[at - 1].priority < priority:
            at -= 1
        consumers.insert(at, consumer)
        queue.had_consumer = True
        queue.comings += 1
        if queue.ready:
            self._agenda.mark(queue)
        return consumer

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
        if consumer.progress:
            self._ledger.emit(progress_record(consumer, records.CONSUMER_ENDED, self._clock.now_ms))
        at = queue.consumers.index(consumer)
        del consumers_of(queue)[at]
        queue.comings += 1
        if consumer.cursors:
            queue.seekers.remove(consumer)
        if queue.active is consumer:
            queue.active = None
            for other in consumers_of(queue):
                if not other.cursors:
                    queue.active = other
                    if queue.settings.single_active:
                        self._effects.append(Activated(other))
                    break
        self._upkeep.use(queue)
        if at < queue.next_turn:
            queue.next_turn -= 1
        if queue.ready and queue.consumers:
            self._agenda.mark(queue)
