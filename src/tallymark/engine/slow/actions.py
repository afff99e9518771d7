"""Actions on a subscription that is too slow [SC-6 to SC-8, SC-D7].

A policy is handed a `SlowSubscription` and nothing else, and whatever that does reaches the
subscription's own queue, the consumers of it and their sessions [SC-1]. Messages that other queues
hold too stay there.
"""

from __future__ import annotations

from typing import Final, final

from tallymark.engine.broker import Broker
from tallymark.engine.effects import CloseConsumer, CloseSession
from tallymark.engine.errors import TooSlow
from tallymark.engine.lanes import Lane
from tallymark.engine.ledger import slow_record
from tallymark.engine.message import Slice
from tallymark.engine.slow.consumers import Reading, messages_of
from tallymark.engine.upkeep import IN_A_TURN
from tallymark.stored import records
from tallymark.units import EngineMs

TEXT: Final = "Consuming too slow."
"""Text sent to the client [SC-7]."""


@final
class SlowSubscription:
    """A subscription that exceeds a limit. Valid only during the call that it is passed to."""

    __slots__ = ("_broker", "reading")

    def __init__(self, broker: Broker, reading: Reading) -> None:
        self._broker = broker
        self.reading = reading

    @property
    def is_durable(self) -> bool:
        """Return whether the subscription outlives its consumer [SC-7]."""
        queue = self.reading.queue
        return queue.durable and not queue.exclusive_owner and not queue.auto_delete

    def disconnect(self, delete_persistent: bool, whole_session: bool = True) -> bool:
        """Close the consuming sessions and delete the queue [SC-7]. A durable subscription is
        closed and deleted only with `delete_persistent`; otherwise nothing happens and the result
        is False.

        whole_session: False closes the consumer alone, where its protocol has links.
        """
        broker, queue = self._broker, self.reading.queue
        if not self._may_act() or (self.is_durable and not delete_persistent):
            return False
        error = TooSlow(TEXT)
        owner = self.reading.consumers[0].session.connection
        for consumer in self.reading.consumers:
            session = consumer.session
            if not whole_session and consumer.by_link:
                if consumer.active:
                    broker.effects.append(CloseConsumer(consumer, error))
                    broker.consuming.detach(consumer)
            elif not session.closed:
                broker.effects.append(CloseSession(session, error))
                broker.clients.close_session(session, False)
        if not queue.deleted:
            owner = broker.connections.get(queue.exclusive_owner, owner)
            broker.registry.delete_queue(owner, queue.name, False, False)
        return True

    def drop_oldest(self) -> int:
        """Drop ready messages from the head until the subscription is within its limits, and return
        their count. Messages held by its consumer stay with it."""
        pieces = self._excess()
        for piece in pieces:
            self._broker.state.drop(self.reading.queue, piece, records.DROPPED_SLOW_CONSUMER)
        return sum([len(piece) for piece in pieces])

    def dead_letter(self) -> int:
        """Dead-letter ready messages from the head, for reason maxlen, until the subscription is
        within its limits. Returns their count."""
        pieces = self._excess()
        if pieces:
            self._broker.dead_letters.bury(self.reading.queue, pieces, records.DEAD_MAXLEN)
        return sum([len(piece) for piece in pieces])

    def hold_publishers(self) -> bool:
        """Hold back the publishers to the queue from now on; False if they are held back already.
        Publishing.hold_publishers ends it."""
        queue = self.reading.queue
        if not self._may_act() or queue.holds_publishers:
            return False
        self._broker.publishing.hold_publishers(queue, True)
        return True

    def _may_act(self) -> bool:
        return self._broker.slow.is_subscription(self.reading.queue)

    def _excess(self) -> list[Slice]:
        """Take the messages above the limits on age, count and bytes out of the queue, up to as
        many as one turn may handle."""
        if not self._may_act():
            return []
        queue, rule = self.reading.queue, self.reading.rule
        gone: list[Slice] = []
        if rule.age > 0:
            oldest = self._broker.clock.now_ms - rule.age
            for lane in queue.lanes.by_priority:
                self._take_older(lane, EngineMs(oldest), gone)
        excess = messages_of(queue) - rule.count if rule.count > 0 else 0
        if rule.depth > 0 and queue.ready:
            excess = max(excess, queue.ready - self._broker.slow.fitting(queue, rule.depth))
        while queue.ready and excess > 0 and len(gone) < IN_A_TURN:
            lane = queue.lanes.next_lane()
            head = lane.head()
            assert head is not None
            piece = queue.remove(lane, min(excess, len(head)))
            excess -= len(piece)
            gone.append(piece)
        if gone and queue.watched:
            self._broker.agenda.mark(queue)
        return gone

    def _take_older(self, lane: Lane, than_ms: EngineMs, gone: list[Slice]) -> None:
        queue = self.reading.queue
        while len(gone) < IN_A_TURN:
            head = lane.head()
            if head is None or head.entered_ms() >= than_ms:
                return
            gone.append(queue.remove(lane, len(head)))


def record(broker: Broker, reading: Reading, event: int, values: dict[str, object]) -> None:
    """Add a record to the ledger about a subscription's state or an action on it. event:
    records.SLOW_*; values: those of the reading, taken before its consumer was ended."""
    broker.ledger.emit(
        slow_record(reading.queue.id, reading.consumers[0].id, event, {"v": 1, **values})
    )
