"""End-to-end latencies out of the ledger, of ranges that overlap in every way."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tallymark.spark import ledger
from tallymark.spark.transitions import latencies, quantiles

pytestmark = pytest.mark.spark

START = datetime(2026, 1, 1, tzinfo=UTC)


def row(
    kind: str, queue: int, first: int, last: int, ms: int, reason: str | None = None
) -> tuple[Any, ...]:
    source = "checkpoint" if kind == "live" else "journal"
    at = START + timedelta(milliseconds=ms)
    rest = (None,) * (len(ledger.SCHEMA) - 12)
    return (source, 64, 0, kind, queue, first, last - first + 1, at, reason, 0, 0, 0, *rest)


ROWS = [
    row("entered", 1, 1, 10, 1000),
    row("entered", 1, 11, 20, 2000),
    row("settled", 1, 6, 15, 2500, "client"),
    row("settled", 1, 1, 3, 4000, "client"),
    row("dropped", 1, 4, 4, 4500, "expired"),
    row("live", 1, 5, 5, 5000),
    row("settled", 1, 16, 20, 9000, "transfer"),
    row("entered", 2, 1, 100, 0),
    row("settled", 2, 1, 90, 10, "client"),
    row("settled", 2, 91, 100, 1000, "batch"),
    row("settled", 3, 1, 5, 10, "client"),  # entered before the ledger that is kept
]


def test_latencies_and_their_quantiles(spark: SparkSession) -> None:
    found = latencies(spark.createDataFrame(ROWS, ledger.DDL)).cache()
    seen = sorted((one.queue_id, one.low, one.high, one.latency_ms) for one in found.collect())
    assert seen == [
        (1, 1, 4, 3000), (1, 6, 11, 1500), (1, 11, 16, 500), (2, 1, 91, 10), (2, 91, 101, 1000),
    ]  # fmt: skip
    by_queue = {
        one.queue_id: (one["count"], one.quantiles)
        for one in quantiles(found, (1.0, 0.95, 0.5)).collect()
    }
    assert by_queue[1] == (13, [3000.0, 3000.0, 1500.0])
    assert by_queue[2] == (100, [1000.0, 1000.0, 10.0])
    assert set(by_queue) == {1, 2}
    times = {one.low: one.settled_at for one in found.where("queue_id = 2").collect()}
    assert times[1].timestamp() == (START + timedelta(milliseconds=10)).timestamp()
