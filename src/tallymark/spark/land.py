"""Land a queue in a table: a durable subscription to Parquet files, partitioned by date of arrival.

Every message is in the table exactly once, whatever is killed on the way: the subscription leases
the same messages for the same batch again, the file sink keeps a log of which files belong to
which batch (`_spark_metadata`; other readers than Spark must heed it), and the broker settles a
batch only when Spark has committed it.
"""

from __future__ import annotations

import http.client
import json
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event, current_thread, main_thread
from typing import TYPE_CHECKING, Any, Final, Protocol

from tallymark.spark.bodies import CHECKPOINT, below
from tallymark.spark.client import BrokerRefused, CannotRun, Client, api_path, counted
from tallymark.spark.command import cause, command
from tallymark.spark.starting import begin
from tallymark.spark.tables import (
    BY_BATCH,
    DATE,
    IN_DELTA,
    PLAIN,
    check_quarantine,
    check_table,
    partitioning,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from tallymark.spark.batches import Reader
    from tallymark.spark.options import SourceOptions

AVAILABLE_NOW: Final = "available-now"
LOOK_EVERY_S: Final = 1
ENOUGH_FOR_A_RATE: Final = 1_000
"""Rows of a batch: below it the rate is that of Spark's planning."""

_PERIOD: Final = re.compile(r"(\d+)\s*(ms|s|m|h)")
_ADDRESS: Final = re.compile(r"[A-Za-z][\w+.-]+:/.*", re.DOTALL)
"""An address such as hdfs://host/lake, as a Path has it."""
_UNITS: Final = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours"}


@dataclass(frozen=True, slots=True)
class Batch:
    """One committed micro-batch."""

    batch: int
    rows: int
    ms: int
    """Milliseconds from its planning to its commit."""
    sequence: int
    """Every lease sequence below it is in the table."""


@dataclass(frozen=True, slots=True)
class Landed:
    """Rows and batches that one run added to the table."""

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
    if found is None or not int(found[1]):
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


def land(
    messages: DataFrame,
    to: Path | str,
    trigger: str = AVAILABLE_NOW,
    stop: Event | None = None,
    partition_by: Sequence[str] = (DATE,),
) -> StreamingQuery:
    """Start writing a stream of messages (it needs `timestamp`) as Parquet under `to`; see `begin`
    for a busy machine, and for `stop`. partition_by: columns of the messages, or `date`, the day of
    arrival.

    Settled in the broker when committed; the checkpoint lies in `to`/_checkpoint and belongs to one
    subscription for ever.
    """
    from tallymark.spark.schema import utc_date

    writer = (
        messages.drop("lease_fence")
        .withColumn(DATE, utc_date("timestamp"))
        .writeStream.format("parquet")
        .outputMode("append")
        .partitionBy(*partition_by)
        .option("path", str(to))
        .option("checkpointLocation", below(to, CHECKPOINT))
        .trigger(**trigger_arguments(trigger))
    )
    return begin(writer.start, stop)


def land_batches(
    messages: DataFrame,
    to: Path | str,
    landing: Callable[[DataFrame, int], None],
    trigger: str = AVAILABLE_NOW,
    stop: Event | None = None,
) -> StreamingQuery:
    """Land each batch through a Landing: to Delta, with bodies as columns; otherwise as `land`."""
    writer = (
        messages.writeStream.foreachBatch(landing)
        .option("checkpointLocation", below(to, CHECKPOINT))
        .trigger(**trigger_arguments(trigger))
    )
    return begin(writer.start, stop)


def follow(query: StreamingQuery, stop: Event | None = None) -> Iterator[Batch]:
    """Each batch of a query once it is committed, until the query ends or `stop` is set, which
    silences the JVM's log and stops it.

    Raises StreamingQueryException as the query does.
    """
    from tallymark.spark.session import hush

    last = -1
    ended = False
    while not ended:
        ended = query.awaitTermination(LOOK_EVERY_S) or not query.isActive
        if stop is not None and stop.is_set():
            hush()
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
        _sequence(end) if end else 0,
    )


def _sequence(end: dict[str, Any]) -> int:
    """The lease sequence of an offset; of several queues, their sum."""
    if "queues" in end:
        return sum(int(one["seq"]) for one in end["queues"].values())
    return int(end["seq"])


class Display(Protocol):
    """Output of the progress."""

    def batch(self, batch: Batch, so_far: int) -> None:
        """A batch was committed; so_far counts the rows of this run."""

    def close(self) -> None:
        """The query has ended, well or not."""

    def done(self, landed: Landed) -> None:
        """Show the result of a run that ended well."""


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
        from rich.markup import escape

        self._escape = escape
        self._console = Console(emoji=False)
        self._status = self._console.status(f"{escape(what)}: waiting for messages")
        self._what = what
        if self._console.is_terminal:
            self._status.start()

    def batch(self, batch: Batch, so_far: int) -> None:
        rate = f" ({batch.rows * 1000 / max(1, batch.ms):,.0f}/s)"
        self._console.print(
            f"  batch {batch.batch}: {counted(batch.rows, 'row')} in {batch.ms:,} ms"
            + (rate if batch.rows >= ENOUGH_FOR_A_RATE else ""),
            markup=False,
        )
        self._status.update(f"{self._escape(self._what)}: {counted(so_far, 'row')}")

    def close(self) -> None:
        self._status.stop()

    def done(self, landed: Landed) -> None:
        self._console.print(
            f"{self._what}: {counted(landed.rows, 'row')} in "
            f"{counted(landed.batches, 'batch', 'batches')}, {landed.seconds:.1f} s",
            markup=False,
            soft_wrap=True,
        )


def watch(
    query: StreamingQuery, to: Path | str, display: Display, stop: Event | None = None
) -> Landed:
    """Show a query's progress until it ends by itself, or until SIGINT, SIGTERM or `stop` stops
    it. What was not committed then stays leased, and comes again with the next run."""
    rows = batches = 0
    begun = time.monotonic()
    try:
        with _signals(stop or Event()) as stopped:
            for batch in follow(query, stopped):
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
def _signals(stop: Event) -> Iterator[Event]:
    """Let SIGINT and SIGTERM set this event. They raise nothing: an exception in the middle of a
    call to the JVM would leave Python and the JVM at odds with each other."""
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


class CannotLand(CannotRun):
    """The landing is refused before it begins."""


def preflight(options: SourceOptions, to: Path) -> str | None:
    """Ask the broker whether this landing can begin; nothing is made or changed there.

    Returns a warning for people, or None. Raises BrokerUnreachable (once it has said on stderr that
    it goes on trying) and CannotLand.
    """
    client = Client(options.endpoint)
    name = options.subscription
    try:
        path = api_path("subscriptions", options.vhost, options.queue, name, "stat")
        try:
            stat = client.patient("GET", path)
        except BrokerRefused as error:
            if error.status != http.client.NOT_FOUND or not _can_be_subscribed(client, options):
                who = f" (user {options.endpoint.user!r})" if error.status in (401, 403) else ""
                text = error.reason.removeprefix(f"{path}: ")
                raise CannotLand(f"{options.endpoint}: {text}{who}") from None
            stat = {}
    finally:
        client.close()
    floor = int(stat.get("floor", 0))
    begun = _begun(to / CHECKPOINT)
    if begun is None:
        if floor == 0:
            return None
        return (
            f"subscription {name!r} has already settled {counted(floor, 'message')}, into another "
            "table or checkpoint: this table begins after them"
        )
    whose, epoch, start = begun
    if whose != name:
        raise CannotLand(
            f"{to} belongs to subscription {whose!r}, not to {name!r}: use one folder each"
        )
    if epoch != stat.get("epoch"):
        raise CannotLand(
            f"{to} was begun with an earlier subscription {name!r} of this queue, which was "
            "deleted: begin with a new folder"
        )
    if start < floor:
        raise CannotLand(
            f"{to} stands at message {start:,} of subscription {name!r}, which has settled "
            f"{floor:,}: another checkpoint moved this subscription on, its messages are in that "
            "table. Begin with a new folder"
        )
    return None


def _can_be_subscribed(client: Client, options: SourceOptions) -> bool:
    """Return whether the queue exists. Raises CannotLand when it cannot have subscriptions."""
    for row in client.call("GET", api_path("queues"))["queues"]:
        if (row["vhost"], row["name"]) == (options.vhost, options.queue):
            if not row["durable"] or row["exclusive"]:
                raise CannotLand(
                    f"queue {options.queue!r} is not durable and shared, which a subscription needs"
                )
            return True
    return False


def _begun(checkpoint: Path) -> tuple[str, int, int] | None:
    """Subscription, epoch and start of the next batch as Spark's checkpoint has them; None for a
    fresh folder, and for one that only Spark can judge."""
    try:
        numbers = [int(path.name) for path in (checkpoint / "offsets").iterdir() if _is_batch(path)]
        done = [int(path.name) for path in (checkpoint / "commits").iterdir() if _is_batch(path)]
        at = max(set(numbers) & set(done))
        text = (checkpoint / "offsets" / str(at)).read_text().splitlines()[-1]
        offset = json.loads(text)
        return str(offset["subscription"]), int(offset["epoch"]), int(offset["seq"])
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return None


def _is_batch(path: Path) -> bool:
    return path.name.isdigit()


def _check_arguments(
    to: Path,
    trigger: str,
    max_rows: int | None,
    partitions: int | None,
    format: str,
    schema: str | None,
    quarantine: Path | None,
    partition_by: str | None,
) -> None:
    from tallymark.spark.batches import FORMATS
    from tallymark.spark.bodies import QUARANTINE, text_of

    try:
        trigger_arguments(trigger)
    except ValueError as error:
        raise ValueError(f"--{error}") from None
    for name, number in (("--max-rows", max_rows), ("--partitions", partitions)):
        if number is not None and number < 1:
            raise ValueError(f"{name} {number}: expected at least 1")
    if _ADDRESS.fullmatch(str(to)):
        raise ValueError(
            f"--to {str(to)!r}: expected a folder; a program of your own lands to an address, by "
            "`land` of tallymark.spark.land"
        )
    if to.exists() and not to.is_dir():
        raise ValueError(f"--to {str(to)!r}: expected a folder")
    if format not in FORMATS:
        raise ValueError(f"--format {format!r}: expected {' or '.join(FORMATS)}")
    if quarantine is not None and schema is None:
        raise ValueError("--quarantine is for rows that do not fit a --schema")
    if schema is not None:
        text_of(schema)
        check_quarantine(to, quarantine or to / QUARANTINE)
    check_table(to, _mark(format, schema))
    partitioning(to, _mark(format, schema), partition_by)


def _mark(format: str, schema: str | None) -> str:
    """Return the mark of the kind of table."""
    from tallymark.spark.batches import PARQUET

    return IN_DELTA if format != PARQUET else PLAIN if schema is None else BY_BATCH


def _begin(
    messages: DataFrame,
    to: Path,
    trigger: str,
    format: str,
    schema: str | None,
    quarantine: Path | None,
    partition_by: str | None,
    reader: Reader,
    stop: Event,
) -> StreamingQuery:
    """Start the query that lands these messages."""
    from tallymark.spark.batches import PARQUET, Landing
    from tallymark.spark.bodies import Schema

    columns = partitioning(to, _mark(format, schema), partition_by)
    if format == PARQUET and schema is None:
        return land(messages, to, trigger, stop, columns)
    bodies = None if schema is None else Schema(schema, to)
    landing = Landing(to, format, reader, bodies, quarantine, columns)
    return land_batches(messages, to, landing, trigger, stop)


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
    format: str = "parquet",
    schema: str | None = None,
    quarantine: Path | None = None,
    partitions: int | None = None,
    partition_by: str | None = None,
) -> int:
    """`tallymark pipeline land`: returns 0, or 1 with the reason on stderr when the query fails.

    Raises ValueError for arguments that cannot be right.
    """
    from tallymark.spark.batches import Reader
    from tallymark.spark.options import SourceOptions

    _check_arguments(to, trigger, max_rows, partitions, format, schema, quarantine, partition_by)
    given = {"url": url, "user": user, "password": password, "vhost": vhost}
    named = {"queue": queue, "subscription": subscription}
    asked = SourceOptions.parse({**{k: v for k, v in given.items() if v is not None}, **named})
    stop = Event()

    def prepare() -> None:
        warning = preflight(asked.for_stream(), to)
        if warning is not None:
            print(f"tallymark: {warning}", file=sys.stderr, flush=True)

    def run(spark: SparkSession) -> int:
        limits = {"maxRowsPerBatch": max_rows, "partitions": partitions}
        options = {name: str(number) for name, number in limits.items() if number}
        display: Display = JsonLines() if as_json else Terminal(f"{queue} -> {to}")
        if stop.is_set():
            display.close()
            display.done(Landed(0, 0, 0.0, str(to)))
            return 0
        messages = read_queue(spark, queue, subscription, options=options, **given)
        reader = Reader(queue=queue, subscription=subscription, **given)
        query = _begin(
            messages, to, trigger, format, schema, quarantine, partition_by, reader, stop
        )
        watch(query, to, display, stop)
        return 0

    def run_until_stopped(spark: SparkSession) -> int:
        try:
            with _signals(stop):  # again: PySpark has put a handler of its own in place of ours
                return run(spark)
        except OSError as error:
            raise CannotLand(f"landing {queue} failed: {cause(error)}") from error

    return command(
        run_until_stopped, f"tallymark land {queue}", f"landing {queue}", master,
        prepare=prepare, starting=_signals(stop),
    )  # fmt: skip
