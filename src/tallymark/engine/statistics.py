"""What each consumer came to: for lists, logs and the ledger. Nothing here costs per message."""

from __future__ import annotations

import json
from typing import Final

from tallymark.engine import records
from tallymark.engine.records import Record
from tallymark.engine.session import UNLIMITED, Consumer

VERSION: Final = 1


def figures(consumer: Consumer, now_ms: int) -> dict[str, object]:
    """One consumer in numbers. Times in milliseconds; rate in messages per second; credit None: no
    limit; oldest_unsettled_ms: since what it holds longest was handed to it; idle_ms: for how long
    it has had credit and was sent nothing, None while it has none or holds something."""
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


def consumer_record(consumer: Consumer, reason: int, now_ms: int) -> Record:
    """The ledger's row of what it came to. reason: records.CONSUMER_*."""
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
    return Record(
        records.CONSUMER, consumer.queue.id, 0, 0, now_ms, owner=consumer.id,
        other=consumer.pace.done, reason=reason,
        blob=json.dumps(about, separators=(",", ":")).encode(),
    )  # fmt: skip
