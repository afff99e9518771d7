"""What can be done about a subscription that is too slow [SC-6 to SC-8, SC-D7].

Every one of these reaches the subscription's own queue, the consumers of it and their sessions, and
nothing else [SC-1]. Messages that other queues hold too stay there.
"""

from __future__ import annotations

from typing import Final

from tallymark.engine import records
from tallymark.engine.broker import Broker
from tallymark.engine.effects import CloseConsumer, CloseSession
from tallymark.engine.errors import ResourceExhausted
from tallymark.engine.message import Slice
from tallymark.engine.queue import Queue
from tallymark.engine.slow_consumers import Reading

TEXT: Final = "Consuming too slow."


def is_durable(queue: Queue) -> bool:
    """Whether the subscription outlives its consumer [SC-7]."""
    return queue.durable and not queue.exclusive_owner and not queue.auto_delete


def disconnect(
    broker: Broker, reading: Reading, delete_persistent: bool, whole_session: bool = True
) -> bool:
    """Close the sessions that consume, and delete the queue [SC-7]. A durable subscription goes
    only where `delete_persistent`; else nothing happens and the answer is False.

    whole_session: False closes the consumer alone, where its protocol can say so.
    """
    queue = reading.queue
    if is_durable(queue) and not delete_persistent:
        return False
    error = ResourceExhausted(TEXT)
    connection = reading.consumers[0].session.connection
    if whole_session:
        for session in {c.session.id: c.session for c in reading.consumers}.values():
            broker.effects.append(CloseSession(session, error))
            broker.close_session(session, False)
    else:
        for consumer in reading.consumers:
            broker.effects.append(CloseConsumer(consumer, error))
            broker.detach(consumer)
    if not queue.deleted:
        owner = broker.connections.get(queue.exclusive_owner, connection)
        broker.delete_queue(owner, queue.name, False, False)
    return True


def drop_oldest(broker: Broker, reading: Reading) -> int:
    """Ready messages go from the head until the subscription is at its limits; returns how many.
    What its consumer holds stays with it."""
    pieces = _excess(broker, reading)
    for piece in pieces:
        broker.dead_letters.drop(reading.queue, piece, records.DROPPED_SLOW_CONSUMER)
    return sum(len(piece) for piece in pieces)


def dead_letter(broker: Broker, reading: Reading) -> int:
    """As drop_oldest; they go to the queue's dead-letter exchange, for reason maxlen."""
    pieces = _excess(broker, reading)
    if pieces:
        broker.dead_letters.bury(reading.queue, pieces, records.DEAD_MAXLEN)
    return sum(len(piece) for piece in pieces)


def _excess(broker: Broker, reading: Reading) -> list[Slice]:
    """Take out of the queue what is above its limits on number, bytes and age."""
    queue, rule = reading.queue, reading.rule
    count, depth = reading.count, reading.depth
    oldest = broker.clock.now_ms - rule.age
    gone: list[Slice] = []
    while queue.ready:
        lane = queue.lane()
        head = lane.head()
        assert head is not None
        excess = count - rule.count if rule.count > 0 else 0
        too_old = rule.age > 0 and head.entered_ms() < oldest
        too_much = rule.depth > 0 and depth > rule.depth
        if excess <= 0 and not too_old and not too_much:
            break
        n = len(head) if too_old else max(1, min(excess, len(head))) if excess > 0 else 1
        broker.entrance.weigh(head.payload)
        piece = queue.remove(lane, n)
        count -= n
        depth -= piece.body_bytes()
        gone.append(piece)
    return gone


def hold_publishers(broker: Broker, queue: Queue, held: bool) -> None:
    """Whoever publishes to the queue from now on is held back, or nobody is any more [SC-D7]."""
    if queue.holds_publishers == held or queue.deleted:
        return
    queue.holds_publishers = held
    broker.vhost(queue.vhost).routes_changed()
    if not held:
        broker.release_publishers(queue)
