"""A driver that runs every way out of and into the broker at once, for tests that kill things.

python every_way.py JSON      with url, folder, master, ways

Each way reads a queue of its name through a subscription, in small batches:

    parquet    to Parquet files by Spark's own sink
    delta      to a Delta table through delta-rs, from foreachBatch
    copy       to the queue copied, by the sink
    judge      accepted ones to the queue passed, by the sink from foreachBatch; every fifth is
               rejected, some are released or modified the first time they are seen
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.errors import StreamingQueryException

from tallymark.spark.delta import QueryId, append_batch
from tallymark.spark.land import land, read_queue
from tallymark.spark.session import FAST_COMPILER, build_session
from tallymark.spark.starting import TOO_BUSY, begin
from tallymark.spark.verdicts import send_verdicts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

WAYS = ("parquet", "delta", "copy", "judge")
SUBSCRIPTION = "out"
TRIGGER = "100ms"
MAX_ROWS = {"parquet": 60, "delta": 60, "copy": 60, "judge": 240}
"""Of a batch. To judge one takes several jobs: it would fall ever more behind."""
LOOK_S = 1.0
BEGUN_LOOK_S = 0.1
OUTCOME = """case when int(message_id) % 5 = 0 then 'rejected' when redelivered then 'accepted'
    when int(message_id) % 7 = 1 then 'released' when int(message_id) % 7 = 2 then 'modified'
    else 'accepted' end"""
SETTINGS = {
    # What is killed here again and again is no reason to give up.
    "spark.scheduler.mode": "FAIR",
    "spark.task.maxFailures": "100",
    "spark.deploy.maxExecutorRetries": "-1",
    "spark.excludeOnFailure.enabled": "false",
    "spark.executor.memory": "512m",
    # Nothing here lives long.
    "spark.executor.extraJavaOptions": FAST_COMPILER,
    # Nor is a machine that is busy with something else.
    "spark.python.authenticate.socketTimeout": "120s",
    "spark.network.timeout": "300s",
    "spark.sql.shuffle.partitions": "2",
}


class Ways:
    """The queries of one driver."""

    def __init__(self, spark: SparkSession, url: str, folder: Path) -> None:
        self._spark = spark
        self._url = url
        self._folder = folder

    def run(self, ways: list[str]) -> None:
        """Until one of them ends for another reason than that the machine is too busy to start a
        Python process within the ten seconds that Spark gives it."""
        all_starts = (self._parquet, self._delta, self._copy, self._judge)
        starts = [start for way, start in zip(WAYS, all_starts, strict=True) if way in ways]
        print("started", flush=True)
        queries = [self._begin(start) for start in starts]
        while True:
            for at, query in enumerate(queries):
                if _is_over(query, LOOK_S):
                    queries[at] = self._begin(starts[at])

    def _begin(self, start: Callable[[], StreamingQuery]) -> StreamingQuery:
        """One after the other, since each starts a Python process."""
        query = start()
        while query.lastProgress is None:
            if _is_over(query, BEGUN_LOOK_S):
                query = start()
        print(f"{start.__name__} goes on", file=sys.stderr, flush=True)
        return query

    def _read(self, queue: str) -> DataFrame:
        options = {"maxRows": str(MAX_ROWS[queue]), "waitMs": "300", "retryMs": "120000"}
        return read_queue(self._spark, queue, SUBSCRIPTION, url=self._url, options=options)

    def _checkpoint(self, way: str) -> str:
        return str(self._folder / way / "_checkpoint")

    def _parquet(self) -> StreamingQuery:
        return land(self._read("parquet"), self._folder / "parquet", TRIGGER)

    def _delta(self) -> StreamingQuery:
        table, query = str(self._folder / "delta" / "table"), QueryId(self._checkpoint("delta"))

        def append(batch: DataFrame, number: int) -> None:
            append_batch(batch.select("message_id", "body"), number, table, query, None)

        writer = self._read("delta").writeStream.foreachBatch(append)
        writer = writer.option("checkpointLocation", self._checkpoint("delta"))
        return begin(writer.trigger(processingTime="100 milliseconds").start)

    def _copy(self) -> StreamingQuery:
        rows = self._read("copy").repartition(2)
        writer = rows.writeStream.format("tallymark").options(
            url=self._url, queue="copied", sink="copy", checkpoint="copy", retryMs="120000"
        )
        writer = writer.option("checkpointLocation", self._checkpoint("copy"))
        return begin(writer.trigger(processingTime="100 milliseconds").start)

    def _judge(self) -> StreamingQuery:
        url = self._url

        def judge(batch: DataFrame, number: int) -> None:
            from pyspark.sql import functions as f

            judged = batch.withColumn("outcome", f.expr(OUTCOME))
            accepted = judged.where("outcome = 'accepted'").write.format("tallymark")
            accepted.options(
                url=url, queue="passed", sink="judge", checkpoint="judge", batchId=str(number),
                retryMs="120000",
            ).mode("append").save()  # fmt: skip
            send_verdicts(judged, "judge", SUBSCRIPTION, url=url)

        writer = self._read("judge").writeStream.foreachBatch(judge)
        writer = writer.option("checkpointLocation", self._checkpoint("judge"))
        return begin(writer.trigger(processingTime="100 milliseconds").start)


def _is_over(query: StreamingQuery, seconds: float) -> bool:
    """Whether it has to be started again; takes so many seconds if not."""
    try:
        ended = query.awaitTermination(seconds)
    except StreamingQueryException as error:
        if TOO_BUSY not in str(error):
            raise
        print(f"{TOO_BUSY}: started again", file=sys.stderr, flush=True)
        return True
    assert not ended, "a query ended by itself"
    return False


def main(url: str, folder: str, master: str, ways: list[str]) -> None:
    spark = build_session(master, "tallymark every way", brief=True, settings=SETTINGS)
    Ways(spark, url, Path(folder)).run(ways)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
