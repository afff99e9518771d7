"""Journeys of messages, from entering a queue to the end there, as ranges: latencies and rates are
computed from them.

Both ends of a message's stay are rows that speak of ranges. Where a range that entered and one that
ended overlap, each message has the same entry and the same end: no row is made per message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tallymark.spark.ranges import MOVED_ON

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CONSUMED: Final = 1
ENDED_AS: Final = {"consumed": CONSUMED, "moved": 2, "dead_lettered": 3, "dropped": 4}
QUANTILES: Final = (0.5, 0.9, 0.95, 0.99, 0.999, 1.0)


def topics_of(rows: DataFrame) -> list[str]:
    """The exchanges that messages were published to, as far as the ledger knows them."""
    found = rows.where("kind = 'payload' and exchange is not null").select("exchange").distinct()
    return sorted(row.exchange for row in found.collect())


def journeys(rows: DataFrame, topics: list[str]) -> DataFrame:
    """(queue_id, low, high, entered_ms, topic, ended, ended_ms) of everything that entered a queue
    within the ledger: high exclusive, times in milliseconds since 1970, ended one of ENDED_AS or
    null for what is still there. topic: the exchange, one of `topics`, null where it is another or
    not known."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    numbers = f.array(*map(f.lit, topics or [""]))
    journal = rows.where("source = 'journal' and count > 0")
    entered = journal.where("kind = 'entered'").select(
        "queue_id", "first", "count",
        f.lit(1).cast("long").alias("entered"),
        f.unix_millis("time").alias("entered_ms"),
        f.coalesce(f.array_position(numbers, f.col("exchange")), f.lit(0)).alias("topic"),
    )  # fmt: skip
    how = (
        f.when(f.col("kind") == "dead_lettered", ENDED_AS["dead_lettered"])
        .when(f.col("kind") == "dropped", ENDED_AS["dropped"])
        .when(f.col("reason").isin(*MOVED_ON), ENDED_AS["moved"])
        .otherwise(CONSUMED)
    )
    ended = journal.where("kind in ('settled', 'dead_lettered', 'dropped')").select(
        "queue_id", "first", "count",
        f.lit(1).cast("long").alias("ends"),
        f.unix_millis("time").alias("ended_ms"),
        how.cast("long").alias("ended"),
    )  # fmt: skip
    names = ("entered", "entered_ms", "topic", "ends", "ended_ms", "ended")
    steps = _borders(entered, dict.fromkeys(names[:3])).unionByName(
        _borders(ended, dict.fromkeys(names[3:])), allowMissingColumns=True
    )
    along = Window.partitionBy("queue_id").orderBy("at")
    running = along.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    summed = steps.fillna(0).groupBy("queue_id", "at").agg(*(f.sum(n).alias(n) for n in names))
    once = f.col("ends") == 1
    return (
        summed.select(
            "queue_id",
            f.col("at").alias("low"),
            f.lead("at").over(along).alias("high"),
            *(f.sum(name).over(running).alias(name) for name in names),
        )
        .where((f.col("entered") == 1) & (f.col("ends") <= 1))
        .select(
            "queue_id",
            "low",
            "high",
            "entered_ms",
            f.when(f.col("topic") > 0, f.element_at(numbers, f.col("topic").cast("int"))).alias(
                "topic"
            ),
            f.when(once, f.col("ended").cast("int")).alias("ended"),
            f.when(once, f.col("ended_ms")).alias("ended_ms"),
        )
    )


def _borders(of: DataFrame, names: dict[str, object]) -> DataFrame:
    """Return + at the first sequence of each range, - behind its last one."""
    from pyspark.sql import functions as f

    first, end = f.col("first"), f.col("first") + f.col("count")
    border = f.array(
        f.struct(first.alias("at"), *(f.col(name).alias(name) for name in names)),
        f.struct(end.alias("at"), *((-f.col(name)).alias(name) for name in names)),
    )
    each = of.select("queue_id", "first", "count", *names)
    return each.select("queue_id", f.explode(border).alias("border")).select("queue_id", "border.*")


def latency(found: DataFrame) -> DataFrame:
    """(queue_id, count, quantiles) of the messages that consumers settled: milliseconds from
    entering the queue, for each of QUANTILES."""
    from pyspark.sql import functions as f

    count = f.col("high") - f.col("low")
    took = f.greatest(f.col("ended_ms") - f.col("entered_ms"), f.lit(0))
    return (
        found.where(f.col("ended") == CONSUMED)
        .select("queue_id", count.alias("n"), took.alias("ms"))
        .groupBy("queue_id")
        .agg(
            f.sum("n").alias("count"),
            f.percentile("ms", list(QUANTILES), f.col("n")).alias("quantiles"),
        )
    )


def latency_over_time(found: DataFrame, bucket_ms: int) -> DataFrame:
    """(bucket, count, quantiles) as `latency` has them, of all queues together, by when the
    messages were settled."""
    from pyspark.sql import functions as f

    count = f.col("high") - f.col("low")
    took = f.greatest(f.col("ended_ms") - f.col("entered_ms"), f.lit(0))
    bucket = f.floor(f.col("ended_ms") / bucket_ms) * bucket_ms
    return (
        found.where(f.col("ended") == CONSUMED)
        .select(bucket.alias("bucket"), count.alias("n"), took.alias("ms"))
        .groupBy("bucket")
        .agg(
            f.sum("n").alias("count"),
            f.percentile("ms", list(QUANTILES), f.col("n")).alias("quantiles"),
        )
    )


def consumption(found: DataFrame, bucket_ms: int) -> DataFrame:
    """(topic, queue_id, bucket, count) of the messages that consumers settled in each stretch of
    bucket_ms; bucket is its beginning, in milliseconds since 1970."""
    from pyspark.sql import functions as f

    bucket = f.floor(f.col("ended_ms") / bucket_ms) * bucket_ms
    return (
        found.where(f.col("ended") == CONSUMED)
        .groupBy("topic", "queue_id", bucket.alias("bucket"))
        .agg(f.sum(f.col("high") - f.col("low")).alias("count"))
    )
