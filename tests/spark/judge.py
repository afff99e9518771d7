"""A driver program for tests with two of them: lands a queue in a Delta table, and rejects every
third message.

python judge.py JSON        with url, queue, folder (of the table and of its checkpoint)
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tallymark.spark.delta import QueryId, append_batch
from tallymark.spark.land import read_queue
from tallymark.spark.session import build_session
from tallymark.spark.starting import begin
from tallymark.spark.verdicts import send_verdicts
from tests.spark.rig import SUBSCRIPTION

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BAD = "int(message_id) % 3 = 0"
MAX_ROWS = 20
SETTINGS = {"spark.sql.shuffle.partitions": "2", "spark.sql.codegen.wholeStage": "false"}


def is_bad(number: int) -> bool:
    return number % 3 == 0


def main(url: str, queue: str, folder: str) -> None:
    spark = build_session("local[2]", "tallymark judge", brief=True, settings=SETTINGS)
    options = {"maxRows": str(MAX_ROWS), "waitMs": "200"}
    messages = read_queue(spark, queue, SUBSCRIPTION, url=url, options=options)
    checkpoint = str(Path(folder) / "checkpoint")
    query_id = QueryId(checkpoint)

    def judge(batch: DataFrame, number: int) -> None:
        from pyspark.sql import functions as f

        good = batch.where(f"NOT {BAD}").select("message_id")
        append_batch(good, number, str(Path(folder) / "table"), query_id, None)
        rejected = batch.where(BAD).withColumn("outcome", f.lit("rejected"))
        send_verdicts(rejected, queue, SUBSCRIPTION, url=url)

    writer = messages.writeStream.foreachBatch(judge).option("checkpointLocation", checkpoint)
    query = begin(writer.trigger(processingTime="50 milliseconds").start)
    print("started", flush=True)
    query.awaitTermination()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
