"""The ledger message by message: one row for each message and each thing that happened to it.

The ledger's own rows speak of ranges. Here each message has rows of its own, which say what a range
cannot: which attempt it was, how long the consumer had held it, how long the message had been in
its queue by then. Costs as many rows as messages times events; what can be said of ranges is said
of ranges (sweep.py).

So are latencies, from a message's entering a queue to its being settled: what the broker's /stats
shows as quantiles of the last minutes, here exactly and for as long as the ledger is kept. Where a
range that entered and one that was settled overlap, each message took as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tallymark.spark.client import counted
from tallymark.spark.ledger_rows import over_ledger
from tallymark.spark.ranges import MOVED_ON
from tallymark.spark.schema import utc_date

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

EVENTS: Final = (
    "entered", "acquired", "settled", "returned", "deferred", "dropped", "dead_lettered", "staged",
    "leased",
)  # fmt: skip
"""Kinds of the ledger that say of each of their messages that something happened to it."""
REFUSED: Final = ("rejected", "delivery_limit")
"""Reasons of deaths of messages that a consumer held."""


def identified(rows: DataFrame) -> DataFrame:
    """The rows `entered` of the ledger's journal with the message ids that lie in another file."""
    from pyspark.sql import functions as f

    entered = rows.where("source = 'journal' and kind = 'entered'")
    payloads = (
        rows.where("kind = 'payload'")
        .groupBy(f.col("payload").alias("lies_at"))
        .agg(f.min("first").alias("first_id"))
    )
    known = entered.where("message_id is not null or payload is null")
    looked_up = (
        entered.where("message_id is null and payload is not null")
        .join(payloads, f.col("payload") == f.col("lies_at"), "left")
        .withColumn("message_id", f.col("first_id") + f.col("lo"))
        .drop("lies_at", "first_id")
    )
    return known.unionByName(looked_up)


def transitions(rows: DataFrame) -> DataFrame:
    """One row for each message and event of the ledger's journal, as docs/pipelines.md lists them:
    time, queue_id, sequence, message_id, event, attempt, consumer, outcome, cause, latency_ms,
    held_ms, and position and row, in whose order things happened.

    rows: the ledger, see ledger_rows.read_ledger. message_id and latency_ms are null
    for messages that entered before the ledger that is kept.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    kinds = [kind for kind in EVENTS if kind != "entered"]
    others = rows.where((f.col("source") == "journal") & f.col("kind").isin(*kinds))
    events = identified(rows).unionByName(others).where("count > 0")
    each = events.select(
        "queue_id",
        f.explode(f.sequence(f.lit(0).cast("long"), f.col("count") - 1)).alias("place"),
        "first", "time", "position", "row", "owner", "other", "flags", "reason", "failed",
        "message_id", f.col("kind").alias("event"),
    ).withColumn("sequence", f.col("first") + f.col("place"))  # fmt: skip
    along = Window.partitionBy("queue_id", "sequence").orderBy("position", "row")
    so_far = along.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    ms = f.unix_millis("time")
    entered, acquired = f.col("event") == "entered", f.col("event") == "acquired"
    leased = f.col("event") == "leased"
    before = f.when(acquired, f.col("other")).when(leased, f.col("flags"))
    handed_out = f.max(before + 1).over(so_far)
    on_send = (f.col("event") == "settled") & (f.col("reason") == "on_send")
    # A subscription has no consumer's number: who had the message before does not have it then.
    given = f.struct(ms.alias("ms"), f.when(acquired, f.col("owner")).alias("by"))
    last_given = f.last(f.when(acquired | leased, given), ignorenulls=True).over(so_far)
    back = f.col("event").isin("returned", "deferred")
    settled = (f.col("event") == "settled") & f.col("reason").isin("client", "batch")
    refused = f.col("event").isin("dead_lettered", "dropped") & f.col("reason").isin(*REFUSED)
    ends_attempt = back | settled | refused
    return each.select(
        "time",
        "queue_id",
        "sequence",
        f.max(f.when(entered, f.col("message_id") + f.col("place"))).over(so_far).alias(
            "message_id"
        ),
        "event",
        (f.coalesce(handed_out, f.lit(0)) + on_send.cast("int")).cast("int").alias("attempt"),
        f.when(acquired | on_send, f.col("owner")).when(ends_attempt, last_given["by"]).alias(
            "consumer"
        ),
        _outcome().alias("outcome"),
        f.col("reason").alias("cause"),
        (ms - f.max(f.when(entered, ms)).over(so_far)).alias("latency_ms"),
        f.when(ends_attempt, ms - last_given["ms"]).alias("held_ms"),
        "position",
        "row",
    )  # fmt: skip


def _outcome() -> Column:
    """Return the message's outcome with this event; null where the event decides none."""
    from pyspark.sql import functions as f

    event, reason = f.col("event"), f.col("reason")
    return (
        f.when((event == "settled") & reason.isin(*MOVED_ON), "moved")
        .when(event == "settled", "accepted")
        .when((event == "returned") & f.col("failed"), "failed")
        .when(event == "dead_lettered", "dead-lettered")
        .when(event.isin("returned", "deferred", "dropped"), event)
    )


def main(
    data_dir: Path,
    to: Path,
    url: str | None = None,
    user: str | None = None,
    password: str | None = None,
    master: str = "local[*]",
) -> int:
    """`tallymark pipeline ledger`: write the transitions to a new Parquet table, a folder for each
    date (UTC), with the names of the queues. Returns and raises as `over_ledger`; FileExistsError.
    """
    if to.exists():
        raise FileExistsError(f"--to is {str(to)!r}, which exists; expected a new folder")

    def work(rows: DataFrame, as_of: datetime) -> None:
        count = write_table(rows.cache(), to)
        print(f"{counted(count, 'transition')} up to {as_of:%Y-%m-%d %H:%M:%S} UTC in {to}")

    return over_ledger(data_dir, url, user, password, master, "ledger", work)


def write_table(rows: DataFrame, to: Path) -> int:
    """Write the transitions, with `queue` and `vhost`, as a Parquet table with a folder for each
    date (UTC); returns how many there are."""
    from pyspark.sql import functions as f

    each = transitions(rows).withColumn("date", utc_date("time"))
    table = each.join(f.broadcast(queues(rows)), "queue_id", "left")
    table.write.partitionBy("date").parquet(str(to))
    return rows.sparkSession.read.parquet(str(to)).count()


def queues(rows: DataFrame) -> DataFrame:
    """(queue_id, vhost, queue) from the definitions in the ledger."""
    from pyspark.sql import functions as f

    told = f.from_json("blob", "op string, id long, vhost string, name string").alias("told")
    return (
        rows.where("kind = 'definition'")
        .select(told)
        .where("told.op = 'queue'")
        .groupBy(f.col("told.id").alias("queue_id"))
        .agg(f.max("told.vhost").alias("vhost"), f.max("told.name").alias("queue"))
    )


def latencies(rows: DataFrame) -> DataFrame:
    """(queue_id, low, high, settled_at, latency_ms) of everything in the ledger that was settled
    by a consumer, high exclusive. `rows`: the ledger, see tallymark.spark.ledger_rows.read_ledger.

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
