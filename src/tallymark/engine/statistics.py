"""Statistics of consumers, for lists, logs and the ledger. Nothing here costs per message."""

from __future__ import annotations

from typing import Final

from tallymark.engine.ledger import consumer_record
from tallymark.engine.records import Record
from tallymark.engine.session import UNLIMITED, Consumer

VERSION: Final = 1


def figures(consumer: Consumer, now_ms: int) -> dict[str, object]:
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


def _oldest_held(consumer: Consumer, now_ms: int) -> int | None:
    if consumer.unacked:
        for entry in consumer.session.inflight:
            if entry.consumer is consumer and not entry.void:
                return max(0, now_ms - entry.given_ms)
    return None


def progress_record(consumer: Consumer, event: int, now_ms: int) -> Record:
    """Return the ledger's record of a consumer's progress. event: records.CONSUMER_*."""
    connection = consumer.session.connection
    about: dict[str, object] = {
        "v": VERSION,
        "vhost": connection.vhost,
        "queue": consumer.queue.name,
        "connection": connection.name,
        "user": connection.user,
        **figures(consumer, now_ms),
    }
    consumer.told = consumer.progress
    return consumer_record(consumer.queue.id, consumer.id, event, consumer.pace.done, about)
