"""A driver program of its own process, for tests that kill it: lands a queue as the pipeline does.

python driver.py JSON       with url, queue, to, trigger, max_rows, hold (-1: never), marks
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tallymark.spark.land import land, read_queue
from tallymark.spark.session import build_session
from tests.spark.rig import SUBSCRIPTION, held_at


def main(url: str, queue: str, to: str, trigger: str, max_rows: int, hold: int, marks: str) -> None:
    spark = build_session("local[2]", "tallymark test driver", brief=True)
    options = {"maxRows": str(max_rows), "waitMs": "200"}
    messages = read_queue(spark, queue, SUBSCRIPTION, url=url, options=options)
    if hold >= 0:
        messages = messages.mapInArrow(held_at(hold, Path(marks)), messages.schema)
    query = land(messages, to, trigger)
    print("started", flush=True)
    query.awaitTermination()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
