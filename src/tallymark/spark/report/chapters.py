"""The chapters of the report as functions on DataFrames: rows of the ledger in, a small table out.

All take the rows of tallymark.spark.ledger_rows.read_ledger and name queues by id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tallymark.spark.ranges import MOVED_ON
from tallymark.stored.records import LIVE_ACQUIRED, UNSURE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ENTRY_AND_ENDS: Final = ("entered", "settled", "dead_lettered", "dropped")
FLOWS: Final = ("entered", "settled", "returned", "dead_lettered", "dropped")


def totals(rows: DataFrame) -> DataFrame:
    """(queue_id, kind, reason, count, first, last) of everything that happened to messages: how
    many of them, the first time and the last."""
    from pyspark.sql import functions as f

    return (
        rows.where("source = 'journal' and count > 0 and queue_id > 0")
        .groupBy("queue_id", "kind", "reason")
        .agg(
            f.sum("count").alias("count"), f.min("time").alias("first"), f.max("time").alias("last")
        )
    )


def flow(rows: DataFrame, bucket_ms: int) -> DataFrame:
    """(bucket, kind, count) for each stretch of bucket_ms and each of FLOWS; bucket is its
    beginning, in milliseconds since 1970. Moves from queue to queue count as neither settled nor
    entered, and what only may have been delivered as not given back."""
    from pyspark.sql import functions as f

    bucket = f.floor(f.unix_millis("time") / bucket_ms) * bucket_ms
    moved = f.coalesce(f.col("reason").isin(*MOVED_ON, UNSURE), f.lit(False))
    moved = moved | ((f.col("kind") == "entered") & f.col("from_queue_id").isNotNull())
    return (
        rows.where((f.col("source") == "journal") & f.col("kind").isin(*FLOWS) & ~moved)
        .groupBy(bucket.alias("bucket"), "kind")
        .agg(f.sum("count").alias("count"))
    )


def traffic(rows: DataFrame, bucket_ms: int) -> DataFrame:
    """(queue_id, bucket, kind, count) of what entered each queue and what ended there, moves from
    queue to queue as well."""
    from pyspark.sql import functions as f

    bucket = f.floor(f.unix_millis("time") / bucket_ms) * bucket_ms
    return (
        rows.where((f.col("source") == "journal") & f.col("kind").isin(*ENTRY_AND_ENDS))
        .groupBy("queue_id", bucket.alias("bucket"), "kind")
        .agg(f.sum("count").alias("count"))
    )


def there(rows: DataFrame) -> DataFrame:
    """(queue_id, count) of what is in each queue at the checkpoint, in whatever state."""
    from pyspark.sql import functions as f

    state = rows.where("source = 'checkpoint' and kind in ('live', 'leased', 'pending')")
    return state.groupBy("queue_id").agg(f.sum("count").alias("count"))


def deliveries(rows: DataFrame) -> DataFrame:
    """(queue_id, attempt, count): how many deliveries were the first, the second, ... of their
    message. What is settled as it is sent is in the totals, reason on_send."""
    from pyspark.sql import functions as f

    return (
        rows.where("source = 'journal' and kind = 'acquired'")
        .groupBy("queue_id", (f.col("other") + 1).alias("attempt"))
        .agg(f.sum("count").alias("count"))
    )


def paths(rows: DataFrame) -> DataFrame:
    """Return (source, target, cause, count) of messages that moved from queue to queue, with the
    cause of their death, or `transfer` or `redrive`; null where the row of their end is not stored
    any more."""
    from pyspark.sql import functions as f

    journal = rows.where("source = 'journal'")
    ends = journal.where(
        (f.col("kind") == "dead_lettered")
        | ((f.col("kind") == "settled") & f.col("reason").isin(*MOVED_ON))
        | (f.col("kind") == "pending")
    ).select(
        f.col("position").alias("in_block"),
        f.col("queue_id").alias("source"),
        f.col("first").alias("low"),
        (f.col("first") + f.col("count")).alias("high"),
        f.col("reason").alias("cause"),
    )
    entered = journal.where("kind = 'entered' and from_queue_id is not null").select(
        "position", "from_queue_id", "from_first", "queue_id", "count"
    )
    joined = entered.join(
        ends,
        (f.col("position") == f.col("in_block"))
        & (f.col("from_queue_id") == f.col("source"))
        & (f.col("from_first") >= f.col("low"))
        & (f.col("from_first") < f.col("high")),
        "left",
    )
    return joined.groupBy(
        f.col("from_queue_id").alias("source"), f.col("queue_id").alias("target"), "cause"
    ).agg(f.sum("count").alias("count"))


def inversions(rows: DataFrame) -> DataFrame:
    """(queue_id, redelivered, count, furthest): deliveries of messages that came after a later one
    of their queue had been handed out; `redelivered` where they had been given back before;
    furthest: how many places back the worst of them was."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    last = f.col("first") + f.col("count") - 1
    before = (
        Window.partitionBy("queue_id")
        .orderBy("position", "row")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    handed_out = rows.where("source = 'journal' and kind = 'acquired'").select(
        "queue_id", "first", last.alias("last"), "other", f.max(last).over(before).alias("newest")
    )
    return (
        handed_out.where(f.col("first") < f.col("newest"))
        .groupBy("queue_id", (f.col("other") > 0).alias("redelivered"))
        .agg(
            f.sum(f.least("last", "newest") - f.col("first") + 1).alias("count"),
            f.max(f.col("newest") - f.col("first")).alias("furthest"),
        )
    )


def consumers(each: DataFrame) -> DataFrame:
    """Return (queue_id, consumer, delivered, settled, refused, given_back, timed_out, p50_ms,
    p95_ms, longest_ms, first, last) from `transitions`: how long each consumer held its
    deliveries."""
    from pyspark.sql import functions as f

    event, held = f.col("event"), f.col("held_ms")
    return (
        each.where("consumer is not null")
        .groupBy("queue_id", "consumer")
        .agg(
            f.count_if((event == "acquired") | (f.col("cause") == "on_send")).alias("delivered"),
            f.count_if(event == "settled").alias("settled"),
            f.count_if(event.isin("dead_lettered", "dropped")).alias("refused"),
            f.count_if(event.isin("returned", "deferred")).alias("given_back"),
            f.count_if((event != "settled") & (f.col("cause") == "timeout")).alias("timed_out"),
            f.percentile(held, f.lit(0.5)).alias("p50_ms"),
            f.percentile(held, f.lit(0.95)).alias("p95_ms"),
            f.max(held).alias("longest_ms"),
            f.min("time").alias("first"),
            f.max("time").alias("last"),
        )
    )


def credit(rows: DataFrame) -> DataFrame:
    """(queue_id, consumer, held, oldest, settled_last) for each link that holds messages at the
    checkpoint: how many, since when it holds the oldest, and when it settled something last.
    consumer 0: taken by single gets, or staged in transactions of those."""
    from pyspark.sql import functions as f

    acquired = f.col("flags").bitwiseAND(LIVE_ACQUIRED) != 0
    held = rows.where((f.col("source") == "checkpoint") & (f.col("kind") == "live") & acquired)
    held = held.select("queue_id", "owner", "first", "count")
    journal = rows.where("source = 'journal'")
    given = journal.where("kind = 'acquired'").select(
        f.col("queue_id").alias("of_queue"),
        f.col("owner").alias("of_owner"),
        f.col("first").alias("low"),
        (f.col("first") + f.col("count")).alias("high"),
        "time",
    )
    newest = given.join(
        f.broadcast(held),
        (f.col("queue_id") == f.col("of_queue"))
        & (f.col("owner") == f.col("of_owner"))
        & (f.col("low") < f.col("first") + f.col("count"))
        & (f.col("high") > f.col("first")),
    )
    since = (
        newest.groupBy("queue_id", "owner", "first")
        .agg(f.max("time").alias("time"))
        .groupBy("queue_id", "owner")
        .agg(f.min("time").alias("oldest"))
    )
    settled = (
        journal.where("kind = 'settled' and reason = 'client'")
        .groupBy("queue_id", "owner")
        .agg(f.max("time").alias("settled_last"))
    )
    return (
        held.groupBy("queue_id", "owner")
        .agg(f.sum("count").alias("held"))
        .join(since, ["queue_id", "owner"], "left")
        .join(settled, ["queue_id", "owner"], "left")
        .withColumnRenamed("owner", "consumer")
    )


def leases(rows: DataFrame) -> DataFrame:
    """(queue_id, epoch, held, oldest) of each durable subscription that holds messages."""
    from pyspark.sql import functions as f

    held = (
        rows.where("source = 'checkpoint' and kind = 'leased'")
        .groupBy("queue_id", "owner")
        .agg(f.sum("count").alias("held"), f.min("first").alias("lowest"))
    )
    given = rows.where("source = 'journal' and kind = 'leased'").select(
        f.col("queue_id").alias("of_queue"),
        f.col("owner").alias("of_owner"),
        f.col("first").alias("low"),
        (f.col("first") + f.col("count")).alias("high"),
        "time",
    )
    return (
        held.join(
            given,
            (f.col("queue_id") == f.col("of_queue"))
            & (f.col("owner") == f.col("of_owner"))
            & (f.col("lowest") >= f.col("low"))
            & (f.col("lowest") < f.col("high")),
            "left",
        )
        .groupBy("queue_id", f.col("owner").alias("epoch"), "held")
        .agg(f.max("time").alias("oldest"))
    )


def told(rows: DataFrame) -> DataFrame:
    """Return (queue_id, owner, kind, reason, blob) of the broker's own records about consumers: the
    newest row of each, and every row on slow ones. Empty where its ledger has no such rows."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    newest = Window.partitionBy("queue_id", "owner", "kind").orderBy(
        f.desc("position"), f.desc("row")
    )
    said = rows.where("source = 'journal' and kind in ('consumer', 'slow_consumer')")
    return (
        said.withColumn("n", f.row_number().over(newest))
        .where("n = 1 or kind = 'slow_consumer'")
        .select("queue_id", "owner", "kind", "reason", "time", "blob")
    )
