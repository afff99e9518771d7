"""Land a queue in a table: a durable subscription to Parquet files, partitioned by date of arrival.

Every message is in the table exactly once, whatever is killed on the way: the subscription leases
the same messages for the same batch again, the file sink keeps a log of which files belong to
which batch (`_spark_metadata`; other readers than Spark must heed it), and the broker settles a
batch only when Spark has committed it.
"""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event, current_thread, main_thread
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

AVAILABLE_NOW: Final = "available-now"
CHECKPOINT: Final = "_checkpoint"
"""Folder under the target: Spark passes over names that begin with an underscore."""
LOOK_EVERY_S: Final = 1

_ERROR_LINE: Final = re.compile(
    r"(?:[\w.]+\.)?(\w*(?:Error|Exception|Refused|Fenced|Unreachable)): (.+)"
)
_WRAPPINGS: Final = ("StreamingQueryException", "SparkException", "Exception")
_PERIOD: Final = re.compile(r"(\d+)\s*(ms|s|m|h)")
_UNITS: Final = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours"}


@dataclass(frozen=True, slots=True)
class Batch:
    """One committed micro-batch."""

    batch: int
    rows: int
    ms: int
    """From its planning to its commit."""
    sequence: int
    """Every lease sequence below it is in the table."""


@dataclass(frozen=True, slots=True)
class Landed:
    """What one run put into the table."""

    rows: int
    batches: int
    seconds: float
    to: str

    @property
    def rate(self) -> float:
        return self.rows / self.seconds if self.seconds else 0.0


def trigger_arguments(trigger: str) -> dict[str, Any]:
    """`available-now`, or a period such as `500ms`, `30s`, `5m`, `1h`, in Spark's words.

    >>> trigger_arguments("30s")
    {'processingTime': '30 seconds'}

    Raises ValueError.
    """
    if trigger == AVAILABLE_NOW:
        return {"availableNow": True}
    found = _PERIOD.fullmatch(trigger.strip())
    if found is None:
        raise ValueError(f"trigger {trigger!r}: expected {AVAILABLE_NOW} or a period such as 30s")
    return {"processingTime": f"{int(found[1])} {_UNITS[found[2]]}"}


def read_queue(
    spark: SparkSession,
    queue: str,
    subscription: str,
    *,
    url: str | None = None,
    user: str | None = None,
    password: str | None = None,
    vhost: str | None = None,
    options: dict[str, str] | None = None,
) -> DataFrame:
    """The queue as a stream through a durable subscription. options: see format("tallymark")."""
    given = {"url": url, "user": user, "password": password, "vhost": vhost}
    reader = spark.readStream.format("tallymark")
    for name, value in given.items():
        if value is not None:
            reader = reader.option(name, value)
    reader = reader.option("queue", queue).option("subscription", subscription)
    return reader.options(**(options or {})).load()


def land(messages: DataFrame, to: Path | str, trigger: str = AVAILABLE_NOW) -> StreamingQuery:
    """Start writing a stream of messages (it needs `timestamp`) as Parquet under `to`.

    Settled in the broker when committed; the checkpoint lies in `to`/_checkpoint and belongs to one
    subscription for ever.
    """
    from pyspark.sql import functions as f

    return (
        messages.withColumn("date", f.to_date("timestamp"))
        .writeStream.format("parquet")
        .outputMode("append")
        .partitionBy("date")
        .option("path", str(to))
        .option("checkpointLocation", str(Path(to) / CHECKPOINT))
        .trigger(**trigger_arguments(trigger))
        .start()
    )


def follow(query: StreamingQuery, stop: Event | None = None) -> Iterator[Batch]:
    """Each batch of a query once it is committed, until the query ends or `stop` is set.

    Raises StreamingQueryException as the query does.
    """
    last = -1
    ended = False
    while not ended:
        ended = query.awaitTermination(LOOK_EVERY_S) or not query.isActive
        if stop is not None and stop.is_set():
            query.stop()
            ended = True
        for progress in query.recentProgress:
            number = int(progress["batchId"])
            if number > last and int(progress["numInputRows"]):
                last = number
                yield _batch(progress)


def _batch(progress: Any) -> Batch:
    end = progress["sources"][0]["endOffset"]
    if isinstance(end, str):
        end = json.loads(end)
    return Batch(
        int(progress["batchId"]),
        int(progress["numInputRows"]),
        int(progress["durationMs"].get("triggerExecution", 0)),
        int(end["seq"]) if end else 0,
    )


class Display(Protocol):
    """Where progress goes."""

    def batch(self, batch: Batch, so_far: int) -> None:
        """A batch was committed; so_far counts the rows of this run."""

    def close(self) -> None:
        """The query has ended, well or not."""

    def done(self, landed: Landed) -> None:
        """It has ended well."""


class JsonLines:
    """One JSON object a line: each batch, and at the end the sum."""

    def batch(self, batch: Batch, so_far: int) -> None:
        print(json.dumps({**asdict(batch), "rows_so_far": so_far}), flush=True)

    def close(self) -> None:
        pass

    def done(self, landed: Landed) -> None:
        print(json.dumps({"done": True, **asdict(landed)}), flush=True)


class Terminal:
    """A line per batch; on a terminal also a line that moves."""

    def __init__(self, what: str) -> None:
        from rich.console import Console

        self._console = Console()
        self._status = self._console.status(f"{what}: waiting for messages")
        self._what = what
        if self._console.is_terminal:
            self._status.start()

    def batch(self, batch: Batch, so_far: int) -> None:
        rate = batch.rows * 1000 / max(1, batch.ms)
        self._console.print(
            f"  batch {batch.batch}: {batch.rows:,} rows in {batch.ms:,} ms ({rate:,.0f}/s)"
        )
        self._status.update(f"{self._what}: {so_far:,} rows")

    def close(self) -> None:
        self._status.stop()

    def done(self, landed: Landed) -> None:
        self._console.print(
            f"{self._what}: {landed.rows:,} rows in {landed.batches} batches, "
            f"{landed.seconds:.1f} s -> {landed.to}"
        )


def watch(query: StreamingQuery, to: Path | str, display: Display) -> Landed:
    """Show a query's progress until it ends by itself, or until SIGINT or SIGTERM stops it. What
    was not committed then stays leased, and comes again with the next run."""
    rows = batches = 0
    begun = time.monotonic()
    try:
        with _signals() as stop:
            for batch in follow(query, stop):
                rows += batch.rows
                batches += 1
                display.batch(batch, rows)
    finally:
        query.stop()
        display.close()
    landed = Landed(rows, batches, round(time.monotonic() - begun, 3), str(to))
    display.done(landed)
    return landed


@contextmanager
def _signals() -> Iterator[Event]:
    """An event that SIGINT and SIGTERM set. They raise nothing: an exception in the middle of a
    call to the JVM would leave Python and the JVM at odds with each other."""
    stop = Event()
    if current_thread() is not main_thread():
        yield stop  # only the main thread is given signals
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda *_: stop.set()) for number in numbers]
    try:
        yield stop
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def cause(error: BaseException) -> str:
    """The line that matters of an error that crossed two processes and three languages."""
    lines = [line.strip() for line in str(error).splitlines()]
    for line in lines:
        found = _ERROR_LINE.match(line)
        if found and found[1] not in _WRAPPINGS:
            return f"{found[1]}: {found[2]}"
    return lines[0] if lines else type(error).__name__


def main(
    queue: str,
    subscription: str,
    to: Path,
    trigger: str = AVAILABLE_NOW,
    master: str = "local[*]",
    url: str | None = None,
    user: str | None = None,
    password: str | None = None,
    vhost: str | None = None,
    as_json: bool = False,
    max_rows: int | None = None,
) -> int:
    """`tallymark pipeline land`: returns 0, or 1 with the reason on stderr when the query fails."""
    import sys

    from pyspark.errors import PySparkException

    from tallymark.spark.session import build_session

    trigger_arguments(trigger)  # a mistake in it is told before Spark takes its seconds to start
    spark = build_session(master, f"tallymark land {queue}")
    try:
        options = {"maxRows": str(max_rows)} if max_rows else {}
        messages = read_queue(
            spark, queue, subscription, url=url, user=user, password=password, vhost=vhost,
            options=options,
        )  # fmt: skip
        display: Display = JsonLines() if as_json else Terminal(f"{queue} -> {to}")
        watch(land(messages, to, trigger), to, display)
    except PySparkException as error:
        print(f"tallymark: landing {queue} failed: {cause(error)}", file=sys.stderr)
        return 1
    finally:
        spark.stop()
    return 0
