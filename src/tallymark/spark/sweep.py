"""Every sequence of every queue looked at, in one sweep over the borders of all ranges.

It must have entered once, and then either have ended once or still be there. A dead letter is
followed from its source to its targets and back: what was dead-lettered must have entered some
queue as a letter that names it, and what a letter names must have died.

Functions on DataFrames: rows of the ledger become ranges, ranges become stretches in which nothing
changes, stretches are judged and summed up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tallymark.stored.records import DROP_REASONS, TRANSIENT

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MS_OF_HOUR: Final = 3_600_000
ENDS: Final = ("settled", "dropped", "dead_lettered")
HAPPENED: Final = ("entered", *ENDS, "pending")
WHATS: Final = (*HAPPENED, "live", "letter", "transferred")
"""Properties and events of a range of sequences: see `intervals`."""
MOVED_ON: Final = ("transfer", "redrive")
"""Reasons of messages settled without a consumer: they were moved to other queues."""
REASONS: Final = ("", *sorted(DROP_REASONS.values()))
"""Reasons of drops by number: sums of numbers tell which one a stretch of sequences has."""


def intervals(rows: DataFrame) -> DataFrame:
    """The ranges that matter, as (queue_id, low, high, what, reason, hour), high exclusive; hour:
    of `entered`, counted from 1970, else 0; `what` is
    entered, settled, dropped, dead_lettered, pending (from the journal), live (from the checkpoint:
    there in whatever state), letter: messages of this queue which one that entered another queue
    names as its source, or transferred: settled because they were handed on as they were, or
    redriven.
    """
    from pyspark.sql import functions as f

    happened = (f.col("source") == "journal") & f.col("kind").isin(*HAPPENED)
    there = (f.col("source") == "checkpoint") & f.col("kind").isin("live", "leased", "pending")
    own = rows.where(happened | there).select(
        "queue_id",
        f.col("first").alias("low"),
        (f.col("first") + f.col("count")).alias("high"),
        f.when(there, "live").otherwise(f.col("kind")).alias("what"),
        f.when(f.col("kind") == "dropped", f.col("reason")).alias("reason"),
        f.when(f.col("kind") == "entered", f.floor(f.unix_millis("time") / MS_OF_HOUR))
        .otherwise(f.lit(0).cast("long"))
        .alias("hour"),
    )
    journal = f.col("source") == "journal"
    by_letter = (f.col("kind") == "entered") & f.col("from_queue_id").isNotNull()
    # Where no target outlives the broker none has rows: the source's own row has to do.
    unstored = (f.col("kind") == "dead_lettered") & (f.col("flags").bitwiseAND(TRANSIENT) != 0)
    low = f.when(unstored, f.col("first")).otherwise(f.col("from_first"))
    named = rows.where(journal & (by_letter | unstored)).select(
        f.when(unstored, f.col("queue_id")).otherwise(f.col("from_queue_id")).alias("queue_id"),
        low.alias("low"),
        (low + f.col("count")).alias("high"),
        f.lit("letter").alias("what"),
        f.lit(None).cast("string").alias("reason"),
        f.lit(0).cast("long").alias("hour"),
    )
    handed_on = rows.where(journal & _transferred()).select(
        "queue_id",
        f.col("first").alias("low"),
        (f.col("first") + f.col("count")).alias("high"),
        f.lit("transferred").alias("what"),
        f.lit(None).cast("string").alias("reason"),
        f.lit(0).cast("long").alias("hour"),
    )
    return own.unionAll(named).unionAll(handed_on)


def _transferred() -> Column:
    """Return whether a row records messages that were moved to other queues."""
    from pyspark.sql import functions as f

    return (f.col("kind") == "settled") & f.col("reason").isin(*MOVED_ON)


def sweep(ranges: DataFrame) -> DataFrame:
    """Count for every stretch of sequences between two borders how often each event happened to it:
    (queue_id, low, high) and a count for each of WHATS; `hour`, in which it entered (counted from
    1970), and `reason`, why it was dropped, null where neither or several can be. Stretches of
    nothing are left out."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    number = f.array_position(f.array(*map(f.lit, REASONS)), f.coalesce("reason", f.lit(""))) - 1
    told = ranges.select("queue_id", "low", "high", "what", "hour", number.alias("number"))

    def borders(at: str, sign: int) -> DataFrame:
        return told.select(
            "queue_id",
            f.col(at).alias("at"),
            "what",
            f.lit(sign).cast("long").alias("step"),
            (f.col("hour") * sign).alias("hour"),
            (f.col("number") * sign).alias("number"),
        )

    steps = (
        borders("low", 1)
        .unionAll(borders("high", -1))
        .groupBy("queue_id", "at")
        .agg(
            *(f.sum(f.when(f.col("what") == w, f.col("step"))).alias(w) for w in WHATS),
            f.sum("hour").alias("hour"),
            f.sum("number").alias("number"),
        )
        .fillna(0)
    )
    along = Window.partitionBy("queue_id").orderBy("at")
    running = along.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    anything = f.greatest(*(f.col(w) for w in WHATS)) > 0
    stretches = steps.select(
        "queue_id",
        f.col("at").alias("low"),
        f.lead("at").over(along).alias("high"),
        *(f.sum(w).over(running).alias(w) for w in (*WHATS, "hour", "number")),
    ).where(f.col("high").isNotNull() & anything)
    named = f.element_at(f.array(*map(f.lit, REASONS)), (f.col("number") + 1).cast("int"))
    return stretches.select(
        "queue_id",
        "low",
        "high",
        *WHATS,
        f.when(f.col("entered") == 1, f.col("hour")).alias("hour"),
        f.when((f.col("dropped") == 1) & (f.col("number") > 0), named).alias("reason"),
    )


def with_faults(stretches: DataFrame) -> DataFrame:
    """Return the stretches with `before` (older than the stored ledger) and `fault`, null where
    there is none."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    of_queue = Window.partitionBy("queue_id")
    begin = f.min(f.when(f.col("entered") > 0, f.col("low"))).over(of_queue)
    ended = f.col("settled") + f.col("dropped") + f.col("dead_lettered")
    known = ended + f.col("live") + f.col("pending")
    died = f.col("dead_lettered") + f.col("pending") + f.col("transferred")
    ends = [f.when(f.col(end) > 0, end.replace("_", "-")) for end in ENDS]
    fault = (
        f.when(f.col("before"), None)
        .when((f.col("entered") == 0) & (known == 0), "named by a letter, but never entered")
        .when(f.col("entered") == 0, "ended or is there, but never entered")
        .when(f.col("entered") > 1, "entered more than once")
        .when(f.col("settled") > 1, "settled more than once")
        .when(f.col("dropped") > 1, "dropped more than once")
        .when(f.col("dead_lettered") > 1, "dead-lettered more than once")
        .when(ended > 1, f.concat_ws(" and ", *ends))
        .when((ended == 1) & (f.col("live") > 0), "ended, and yet still there")
        .when(f.col("live") > 1, "there more than once")
        .when((ended == 0) & (f.col("live") == 0), "neither ended nor there: lost")
        .when(
            (f.col("dead_lettered") > 0) & (f.col("letter") == 0),
            "dead-lettered, but no queue has a letter of it",
        )
        .when((f.col("letter") > 0) & (died == 0), "named by a letter, but it never died")
    )
    return (
        stretches.withColumn("begin", begin)
        .withColumn("before", f.coalesce(f.col("high") <= f.col("begin"), f.lit(True)))
        .withColumn("fault", fault)
    )


def totals(stretches: DataFrame) -> DataFrame:
    """Per queue: the numbers of messages entered, settled, dropped and dead-lettered, the sequences
    before the ledger, and how many of those are still there. No row for what only letters name."""
    from pyspark.sql import functions as f

    length = f.col("high") - f.col("low")
    inside = f.when(~f.col("before"), length).otherwise(0)
    own = f.greatest(*(f.col(w) for w in WHATS if w != "letter")) > 0
    return (
        stretches.where(own)
        .groupBy("queue_id")
        .agg(
            f.sum(f.col("entered") * inside).alias("entered"),
            f.sum(f.col("settled") * inside).alias("settled"),
            f.sum(f.col("dropped") * inside).alias("dropped"),
            f.sum(f.col("dead_lettered") * inside).alias("dead_lettered"),
            f.sum(f.when(f.col("before"), f.col("live") * length).otherwise(0)).alias(
                "live_before"
            ),
            f.coalesce(f.max("begin") - 1, f.max("high") - 1).alias("before_ledger"),
        )
    )


def hours(stretches: DataFrame) -> DataFrame:
    """The equation for the messages that entered each queue in each hour, of `with_faults`:
    (queue_id, hour, reason) and the sums entered, live (there at the end, in whatever state),
    settled, dead_lettered, dropped (for that reason), faults (messages with one). hour is null for
    what never entered. What is older than the ledger that is kept is left out."""
    from pyspark.sql import functions as f

    length = f.col("high") - f.col("low")
    own = f.greatest(*(f.col(w) for w in WHATS if w != "letter")) > 0
    names = ("entered", "live", "settled", "dead_lettered", "dropped")
    return (
        stretches.where(own & ~f.col("before"))
        .groupBy("queue_id", "hour", "reason")
        .agg(
            *(f.sum(f.col(name) * length).alias(name) for name in names),
            f.sum(f.when(f.col("fault").isNotNull(), length).otherwise(0)).alias("faults"),
        )
    )


def drops(ranges: DataFrame) -> DataFrame:
    """Per queue and reason the number of messages dropped."""
    from pyspark.sql import functions as f

    begin = ranges.where("what = 'entered'").groupBy("queue_id").agg(f.min("low").alias("begin"))
    return (
        ranges.where("what = 'dropped'")
        .join(begin, "queue_id")
        .where("low >= begin")
        .groupBy("queue_id", "reason")
        .agg(f.sum(f.col("high") - f.col("low")).alias("count"))
    )


def moves(rows: DataFrame) -> DataFrame:
    """Return the number of dead letters from one queue to another: (source, target, letters), by
    id."""
    from pyspark.sql import functions as f

    entered = rows.where("source = 'journal' and kind = 'entered' and from_queue_id is not null")
    handed_on = rows.where((f.col("source") == "journal") & _transferred()).select(
        f.col("queue_id").alias("from_queue_id"),
        f.col("first").alias("low"),
        (f.col("first") + f.col("count")).alias("high"),
    )
    no_letter = (
        (entered["from_queue_id"] == handed_on["from_queue_id"])
        & (entered["from_first"] >= handed_on["low"])
        & (entered["from_first"] < handed_on["high"])
    )
    return (
        entered.join(f.broadcast(handed_on), no_letter, "left_anti")
        .groupBy(f.col("from_queue_id").alias("source"), f.col("queue_id").alias("target"))
        .agg(f.sum("count").alias("letters"))
    )


def returns(rows: DataFrame) -> DataFrame:
    """Return the number of returned deliveries by queue and reason: (queue_id, reason, deliveries).
    A message counts each time."""
    from pyspark.sql import functions as f

    return (
        rows.where("source = 'journal' and kind = 'returned'")
        .groupBy("queue_id", "reason")
        .agg(f.sum("count").alias("deliveries"))
    )
