"""Comparison of a restarted broker with notes about the end of its journal."""

from __future__ import annotations

from tallymark.engine.arguments import named
from tallymark.engine.broker import Broker


def tail_of(broker: Broker) -> tuple[list[tuple[int, str, str, int]], list[tuple[int, str, int]]]:
    """Return the present state of what survives a restart: (id, virtual host, name, entered) of
    queues, (epoch, text, floor) of durable subscriptions."""
    queues = [(q.id, q.vhost, q.name, q.entered) for q in broker.queues.values() if q.stored]
    subscriptions = [
        (s.epoch, f"subscription '{s.name}' on {named('queue', s.queue.name, s.queue.vhost)}",
         s.floor)
        for s in broker.leases.subscriptions.values()
    ]  # fmt: skip
    return queues, subscriptions


def missing_since(
    broker: Broker,
    queues: list[tuple[int, str, str, int]],
    subscriptions: list[tuple[int, str, int]],
) -> list[str]:
    """Return descriptions of what the notes contain and this restored broker lacks."""
    found: list[str] = []
    for id, vhost, name, entered in queues:
        queue = broker.queues.get(id)
        where = named("queue", name, vhost)
        if queue is None:
            found.append(f"{where} is missing; {entered} messages had entered it")
        elif queue.entered < entered:
            found.append(
                f"{where}: messages {queue.entered + 1} to {entered} had entered and are gone, and "
                "messages that were settled in the lost blocks are ready again"
            )
    for epoch, text, floor in subscriptions:
        subscription = broker.leases.subscriptions.get(epoch)
        if subscription is None:
            found.append(f"{text} is missing; it was settled up to {floor}")
        elif subscription.floor < floor:
            found.append(
                f"{text} was settled up to {floor} and is now up to {subscription.floor}: the "
                "messages between are delivered again"
            )
    return found
