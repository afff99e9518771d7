"""Reasons of the ledger's rows in words, by kind of row."""

from __future__ import annotations

from typing import Final

from tallymark.stored import records

_RETURNED: Final = {
    records.RETURNED_BY_CLIENT: "client",
    records.RETURNED_BY_CLOSE: "close",
    records.RETURNED_BY_LOSS: "loss",
    records.RETURNED_BY_RELEASE: "release",
    records.RETURNED_BY_TIMEOUT: "timeout",
}
REASONS: Final = {
    records.SETTLED: {
        records.SETTLED_BY_CLIENT: "client",
        records.SETTLED_ON_SEND: "on_send",
        records.SETTLED_BY_BATCH: "batch",
        records.SETTLED_BY_TRANSFER: "transfer",
        records.SETTLED_BY_REDRIVE: "redrive",
    },
    records.RETURNED: _RETURNED,
    records.DEFERRED: _RETURNED,
    records.DROPPED: records.DROP_REASONS,
    records.DEAD_LETTERED: records.DEATHS,
    records.PENDING: records.DEATHS,
    records.STAGED: records.OUTCOMES,
    records.SINK_ENDED: records.SINK_ENDS,
    records.SLOW: records.SLOW_EVENTS,
    records.CONSUMER: records.CONSUMER_EVENTS,
}
