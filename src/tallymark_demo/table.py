"""A stock client publishes through a topic exchange, with confirms. The exchange feeds two queues:
one for a worker, which settles, rejects and crashes in mid-work; and one that Spark lands in a
table, where each message is settled only when its batch is committed.

Claims checked: every publish is confirmed; the crash of the worker loses nothing and its unsettled
messages come back flagged as redelivered; every message is in the table exactly once, byte for
byte.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from tallymark.spark import land
from tallymark.spark.client import counted
from tallymark_demo.input import Workload, workload
from tallymark_demo.publisher import Published, declare, publish
from tallymark_demo.stage import CheckFailed, Stage, rate, table_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

EXCHANGE: Final = "demo"
WORK: Final = "demo.work"
TABLE: Final = "demo.table"
SUBSCRIPTION: Final = "table"
CRASH_SHARE: Final = 3
"""The first worker is killed after a third of its share."""
WORKER_S: Final = 90.0
HEAD: Final = 5
BESIDE_BODY: Final = 56
"""Columns of the terminal that the head's other columns and its lines take."""


def play(stage: Stage) -> None:
    work = workload(stage.input)
    sent = _publish(stage, work)
    _consume(stage, work)
    table = _land(stage, sent)
    _compare(stage, sent, table)
    _show(stage, work, table)


def _publish(stage: Stage, work: Workload) -> Published:
    parameters = stage.broker.parameters()
    declare(parameters, EXCHANGE, {WORK: work.some, TABLE: work.everything})
    with stage.console.status(f"pika publishes {work.name}"):
        sent = publish(parameters, EXCHANGE, work)
    enough = sent.count >= land.ENOUGH_FOR_A_RATE
    speed = f", {rate(sent.count, sent.seconds)}" if enough else ""
    stage.say(
        f"pika published {counted(sent.count, 'message')} of {work.name} ({sent.bytes:,} bytes) in "
        f"{sent.seconds:.1f} s{speed}, each confirmed after fdatasync"
    )
    stage.check("every publish was confirmed", sent.confirmed == sent.count and not sent.refused)
    return sent


# -- the worker's half


def _consume(stage: Stage, work: Workload) -> None:
    share = int(stage.queue(WORK)["ready"])
    with stage.console.status("a worker consumes with aio-pika"):
        first = _worker(stage, share // CRASH_SHARE) if share >= 2 * CRASH_SHARE else {}
        begun = time.monotonic()
        second = _worker(stage, None)
        seconds = time.monotonic() - begun
    if first:
        stage.say(
            f"a worker (aio-pika, its own process) settled {first['settled']:,}, rejected "
            f"{first['rejected']:,} and was killed with kill -9, {first['holding']:,} unsettled"
        )
    who = "a second worker did the rest" if first else "a worker (aio-pika) did it all"
    stage.say(
        f"{who}: settled {second['settled']:,}, rejected "
        f"{second['rejected']:,}, {second['redelivered']:,} of them redelivered, in {seconds:.1f} s"
    )
    settled = first.get("settled", 0) + second["settled"]
    rejected = first.get("rejected", 0) + second["rejected"]
    queue = stage.queue(WORK)
    stage.check(
        f"the worker's {share:,} messages ended once each: {settled:,} settled, "
        f"{rejected:,} rejected",
        settled + rejected == share == int(queue["entered"])
        and int(queue["settled"]) == settled
        and int(queue["ready"]) == int(queue["acquired"]) == 0,
    )
    claim = "what the crash left unsettled came back flagged as redelivered"
    if first.get("holding", 0):
        stage.check(claim, second["redelivered"] >= first["holding"])
    elif first:
        stage.skip(claim, "the crash left nothing unsettled")
    else:
        least = counted(2 * CRASH_SHARE, "message")
        stage.skip(claim, f"the worker had {share:,}, a crash needs {least} or more")


def _worker(stage: Stage, crash_after: int | None) -> dict[str, int]:
    """One worker from start to end. With crash_after it is killed when it says that it is there."""
    command = [sys.executable, "-m", "tallymark_demo.worker", stage.broker.amqp_url, WORK]
    if crash_after is not None:
        command.append(str(crash_after))
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if crash_after is not None and line:
                process.send_signal(signal.SIGKILL)
            code = process.wait(WORKER_S)
        except BaseException:
            process.kill()
            raise
    if not line:
        raise CheckFailed(f"the worker ended with code {code} and without a report")
    return dict(json.loads(line))


# -- the table's half


def _land(stage: Stage, sent: Published) -> DataFrame:
    to = stage.out / "table"
    spark = stage.spark()
    options = {"maxRows": str(_batch_rows(sent))}
    messages = land.read_queue(spark, TABLE, SUBSCRIPTION, url=stage.broker.url, options=options)
    display = Progress(stage)
    landed = land.watch(land.land(messages, to), to, display)
    stage.say(
        f"Spark landed {counted(landed.rows, 'row')} in "
        f"{counted(landed.batches, 'batch', 'batches')}, {landed.seconds:.1f} s"
    )
    stage.files["the table (Parquet, by date of arrival)"] = to
    queue = stage.queue(TABLE)
    stage.check(
        "every landed message is settled, and nothing else",
        int(queue["settled"]) == landed.rows == sent.count and int(queue["ready"]) == 0,
    )
    return spark.read.parquet(str(to))


def _batch_rows(sent: Published) -> int:
    # A few batches, so that there is something to see.
    return max(1_000, -(-sent.count // 4))


class Progress:
    """Batches as lines of the play."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def batch(self, batch: land.Batch, so_far: int) -> None:
        self._stage.say(
            f"batch {batch.batch}: {counted(batch.rows, 'row')}, committed after "
            f"{batch.ms:,} ms, settled"
        )

    def close(self) -> None:
        pass

    def done(self, landed: land.Landed) -> None:
        pass


def _compare(stage: Stage, sent: Published, table: DataFrame) -> None:
    """Compare the published messages with the table: by number, and body for body."""
    from pyspark.sql import functions as f

    path = stage.out / "sent.parquet"
    numbers = [str(number) for number in range(sent.count)]
    columns = {
        "number": pa.array(numbers, pa.string()),
        "digest": pa.array([digest.hex() for digest in sent.digests], pa.string()),
    }
    pq.write_table(pa.table(columns), path)
    stage.files["what was sent (number and SHA-256 of each body)"] = path
    expected = table.sparkSession.read.parquet(str(path))
    found = table.groupBy(f.col("message_id").alias("number")).agg(
        f.count("*").alias("times"), f.max(f.sha2("body", 256)).alias("landed")
    )
    row = (
        expected.join(found, "number", "full_outer")
        .agg(
            f.count_if(f.col("times").isNull()).alias("missing"),
            f.count_if(f.col("digest").isNull()).alias("foreign"),
            f.count_if(f.col("times") > 1).alias("twice"),
            f.count_if(f.col("digest") != f.col("landed")).alias("changed"),
            f.count("*").alias("messages"),
        )
        .collect()[0]
    )
    faults = {name: row[name] for name in ("missing", "foreign", "twice", "changed") if row[name]}
    stage.check(
        f"the table holds exactly the {sent.count:,} messages, byte for byte"
        + (f": {faults}" if faults else ""),
        not faults and row["messages"] == sent.count,
    )


def _show(stage: Stage, work: Workload, table: DataFrame) -> None:
    from pyspark.sql import functions as f

    head = (
        table.orderBy("sequence")
        .select("sequence", "timestamp", "routing_key", f.decode("body", "UTF-8").alias("body"))
        .limit(HEAD)
        .collect()
    )
    room = max(16, stage.console.width - BESIDE_BODY)
    rows = [
        {**row.asDict(), "timestamp": f"{row.timestamp:%H:%M:%S.%f}", "body": row.body[:room]}
        for row in head
    ]
    table_of(stage.console, "The head of the table", rows)
    if work.input is None:
        _show_orders(stage, table)
    else:
        counts = table.groupBy("routing_key").count().orderBy("routing_key").collect()
        table_of(stage.console, "Rows by routing key", [row.asDict() for row in counts])


def _show_orders(stage: Stage, table: DataFrame) -> None:
    """Show the orders as Spark finds them: late, malformed and duplicate ones."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    fields = "order string, placed timestamp, region string, items int, amount double"
    parsed = table.select(
        f.split("routing_key", r"\.")[1].alias("region"),
        f.col("routing_key").endswith("late").alias("late"),
        f.from_json(f.decode("body", "UTF-8"), fields).alias("value"),
        "sequence",
    ).select("*", (f.col("value.amount").isNotNull()).alias("whole"))
    earlier = Window.partitionBy("value.order").orderBy("sequence")
    numbered = parsed.withColumn("again", f.col("whole") & (f.row_number().over(earlier) > 1))
    counts = (
        numbered.groupBy("region")
        .agg(
            f.count("*").alias("messages"),
            f.count_if(f.col("whole") & ~f.col("again")).alias("orders"),
            f.count_if("late").alias("late"),
            f.count_if(~f.col("whole")).alias("poisonous"),
            f.count_if("again").alias("sent twice"),
        )
        .orderBy("region")
        .collect()
    )
    table_of(stage.console, "The orders by region", [row.asDict() for row in counts])
