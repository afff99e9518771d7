"""The consumers of a queue: the order in which they are served, and which of them turns look at.

They are served by priority, and among equals in the order in which they came [rabbitmq consumer
priorities]. A queue may have very many, most of which want nothing. Turns pass over those, until
something happens that may make them want a message.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import cast

from tallymark.engine.queue import Queue
from tallymark.engine.session import Consumer
from tallymark.units import UNLIMITED


def consumers_of(queue: Queue) -> list[Consumer]:
    """Return the consumers of a queue: its own list."""
    return cast(list[Consumer], queue.consumers)


def seekers_of(queue: Queue) -> list[Consumer]:
    """Return the consumers of a queue that browse or filter: its own list."""
    return cast(list[Consumer], queue.seekers)


def active_of(queue: Queue) -> Consumer | None:
    """Return the one consumer that is served where the queue has a single active consumer."""
    return cast(Consumer | None, queue.active)


def looked_at_of(queue: Queue) -> list[Consumer]:
    """Return the consumers that turns of the queue look at: its own list."""
    return cast(list[Consumer], queue.consumers if queue.looked_at is None else queue.looked_at)


def rank(consumer: Consumer) -> int:
    """Return the rank of the consumer's priority; those of the lowest are served first."""
    return -consumer.priority


def _order(consumer: Consumer) -> tuple[int, int]:
    return -consumer.priority, consumer.id


def place_among(consumers: list[Consumer], consumer: Consumer) -> int:
    """Return the index at which a consumer stands, or would stand, in a list that has the order of
    its queue's consumers."""
    return bisect_left(consumers, _order(consumer), key=_order)


def reconsider(consumer: Consumer) -> None:
    """Have turns of its queue look at a consumer again, which may want something from now on.
    Whatever gives a consumer credit, or lifts what stopped it, calls this."""
    if consumer.is_passed_over:
        consumer.is_passed_over = False
        looked_at = looked_at_of(consumer.queue)
        looked_at.insert(place_among(looked_at, consumer), consumer)


def join_queue(consumer: Consumer) -> None:
    """Give a new consumer its place in its queue: behind all others of its priority.
    O(log consumers) comparisons."""
    queue = consumer.queue
    consumers = consumers_of(queue)
    consumers.insert(place_among(consumers, consumer), consumer)
    if queue.looked_at is not None:
        looked_at = looked_at_of(queue)
        looked_at.insert(place_among(looked_at, consumer), consumer)


def leave_queue(consumer: Consumer) -> int:
    """Take a consumer out of its queue; return the index that it had there. O(log consumers)
    comparisons."""
    queue = consumer.queue
    consumers = consumers_of(queue)
    if queue.looked_at is not None:
        looked_at = looked_at_of(queue)
        if not consumer.is_passed_over:
            del looked_at[place_among(looked_at, consumer)]
        if len(looked_at) + 1 >= len(consumers):
            queue.looked_at = None
    consumer.is_passed_over = False
    at = place_among(consumers, consumer)
    del consumers[at]
    return at


def pass_over(queue: Queue, full: list[Consumer]) -> None:
    """Have turns of a queue not look at those of some consumers that want nothing. The list may
    hold a consumer twice."""
    gone: list[Consumer] = []
    for consumer in full:
        if not consumer.is_passed_over and _wants_nothing(consumer):
            consumer.is_passed_over = True
            gone.append(consumer)
    looked_at = looked_at_of(queue)
    if queue.looked_at is not None and len(gone) * 16 < len(looked_at):
        for consumer in gone:
            del looked_at[place_among(looked_at, consumer)]
    elif gone:
        queue.looked_at = [one for one in looked_at if not one.is_passed_over]


def _wants_nothing(consumer: Consumer) -> bool:
    """Return whether the consumer wants nothing until `reconsider` is called for it. One that only
    a shared limit stops has to be in line for it."""
    if consumer.wanted() > 0:
        return False
    return (
        consumer.session.limit == UNLIMITED
        or consumer.in_line
        or not (consumer.no_ack or consumer.by_link or consumer.limit > consumer.unacked)
    )


def check_consumers(queue: Queue) -> None:
    """Assert that turns of the queue look at all its consumers that may want something, in
    order."""
    consumers = consumers_of(queue)
    assert consumers == sorted(consumers, key=_order), queue.name
    assert looked_at_of(queue) == [one for one in consumers if not one.is_passed_over], queue.name
    for consumer in consumers:
        assert not consumer.is_passed_over or _wants_nothing(consumer), consumer.tag
