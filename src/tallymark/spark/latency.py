"""End-to-end latency out of the ledger: from a message's entering a queue to its being settled.

What the broker's /stats shows as quantiles of the last minutes, here exactly and for as long as the
ledger is kept. Both ends are ranges of sequences with a time, so no row is made per message: where
a range that entered and one that was settled overlap, each message took as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tallymark.spark.sweep import MOVED_ON

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def latencies(rows: DataFrame) -> DataFrame:
    """(queue_id, low, high, settled_at, latency_ms) of everything in the ledger that was settled
    by a consumer, high exclusive. `rows`: the ledger, see tallymark.spark.reconcile.read_ledger.

    Messages that came before the ledger that is kept are left out.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    journal = f.col("source") == "journal"
    entered = rows.where(journal & (f.col("kind") == "entered"))
    by_consumer = (f.col("kind") == "settled") & ~f.col("reason").isin(*MOVED_ON)
    steps = _steps(entered, "entered").unionByName(
        _steps(rows.where(journal & by_consumer), "settled"), allowMissingColumns=True
    )
    names = ("entered", "entered_ms", "settled", "settled_ms")
    along = Window.partitionBy("queue_id").orderBy("low")
    running = along.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    summed = steps.fillna(0).groupBy("queue_id", "low").agg(*(f.sum(n).alias(n) for n in names))
    return (
        summed.select(
            "queue_id",
            "low",
            f.lead("low").over(along).alias("high"),
            *(f.sum(name).over(running).alias(name) for name in names),
        )
        .where((f.col("entered") == 1) & (f.col("settled") == 1))
        .select(
            "queue_id",
            "low",
            "high",
            f.timestamp_millis("settled_ms").alias("settled_at"),
            (f.col("settled_ms") - f.col("entered_ms")).alias("latency_ms"),
        )
    )


def _steps(rows: DataFrame, name: str) -> DataFrame:
    """Return the borders of ranges for a running sum: +1 and the time at the first sequence of each
    range, both negative behind the last one."""
    from pyspark.sql import functions as f

    def step(at: Column, sign: int) -> DataFrame:
        return rows.select(
            "queue_id",
            at.alias("low"),
            f.lit(sign).cast("long").alias(name),
            (f.unix_millis("time") * sign).alias(f"{name}_ms"),
        )

    return step(f.col("first"), 1).unionAll(step(f.col("first") + f.col("count"), -1))


def quantiles(found: DataFrame, wanted: Sequence[float]) -> DataFrame:
    """(queue_id, count, quantiles) of what `latencies` gave, or of a part of it: how many messages
    there are, and for each q of `wanted` the latency in ms that q of them did not exceed, between
    two neighbours interpolated."""
    from pyspark.sql import functions as f

    counted = found.withColumn("n", f.col("high") - f.col("low"))
    return counted.groupBy("queue_id").agg(
        f.sum("n").alias("count"),
        f.percentile("latency_ms", list(wanted), f.col("n")).alias("quantiles"),
    )
