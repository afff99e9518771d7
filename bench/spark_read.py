#!/usr/bin/env python3
"""How fast Spark reads a deep stream and a deep queue, and what that costs the broker.

Messages of 1 KiB are published once for each kind of headers: `equal`, the same property list in
every message, or `varying`, another one in each. Then Spark reads them, with `--partitions` tasks
at a time, following the stream (or the queue, through a durable subscription) until all is read
(available-now), or as one batch. A first read that is not counted warms Spark up.

    spark_read.py [--messages 5000000] [--runs 3] [--partitions 2] [--only stream/equal/noop ...]

CPU is user and system time of the broker (with what the kernel does for its sockets), of the JVM,
and of Spark's Python workers, per row; load is the machine's load average beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.brokers import Running, cpu_s, scratch, tallymark
from bench.lean import ACK, PERSISTENT, Link, publish, short, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SIZE = 1024
WINDOW = 20_000
CHUNK = 1000
QUEUE_ROWS = 1_000_000
"""Of a batch from a queue, where nothing is said: a stream's default, so that both have as many
batches."""


@dataclass(frozen=True, slots=True)
class Way:
    """What is read, and how."""

    source: str
    """stream or queue."""
    headers: str
    sink: str
    """noop, parquet, or batch: spark.read to noop."""
    columns: str = "*"
    direct: bool = False
    """Executors read the journal's files."""

    @property
    def name(self) -> str:
        parts = [self.source, self.headers, self.sink]
        if self.columns != "*":
            parts.append("columns")
        if self.direct:
            parts.append("direct")
        return "/".join(parts)


WAYS = (
    Way("stream", "equal", "noop"),
    Way("stream", "varying", "noop"),
    Way("stream", "equal", "noop", "offset, body"),
    Way("stream", "equal", "noop", "*", True),
    Way("stream", "equal", "batch"),
    Way("stream", "equal", "parquet"),
    Way("stream", "varying", "parquet"),
    Way("queue", "equal", "noop"),
    Way("queue", "varying", "noop"),
)


@dataclass(frozen=True, slots=True)
class Result:
    way: str
    rows: int
    seconds: float
    rows_per_s: int
    broker_us: float
    jvm_us: float
    python_us: float
    load: float


def messages(headers: str, key: str, first: int) -> bytes:
    """CHUNK publishes; bodies are 1 KiB in either case."""
    body = bytes(range(256)) * (SIZE // 256)
    if headers == "equal":
        return publish(1, "", key, PERSISTENT, body) * CHUNK
    out = []
    for number in range(first, first + CHUNK):
        section = struct.pack(">H", 0x3000) + table({"n": number, "trace": f"{number:016x}"})
        out.append(publish(1, "", key, section + b"\x02", body))
    return b"".join(out)


def fill(port: int, kind: str, headers: str, count: int) -> str:
    """Publish with confirms; returns the name."""
    name = f"{kind}.{headers}"
    link = Link(port)
    link.open_channel(1, confirms=True)
    arguments = table({"x-queue-type": "stream"} if kind == "stream" else {})
    link.call(1, (50, 10), b"\0\0" + short(name) + b"\2" + arguments)
    chunk = messages(headers, name, 0)
    sent = confirmed = 0
    while confirmed < count:
        while sent < count and sent - confirmed < WINDOW:
            if headers != "equal":
                chunk = messages(headers, name, sent)
            link.socket.sendall(chunk)
            sent += CHUNK
        assert link.fill(), "the broker closed the connection"
        confirmed = max([confirmed, *(event[2] for event in link.events() if event[0] == ACK)])
    link.close()
    return name


def jvm_pid() -> int:
    """The Java process below this one."""
    for path in Path("/proc").glob("[0-9]*/comm"):
        try:
            if path.read_text().strip() == "java" and os.getpid() in ancestors(int(path.parts[2])):
                return int(path.parts[2])
        except OSError:
            continue
    raise LookupError("no java process below this one")


def ancestors(pid: int) -> Iterator[int]:
    while pid > 1:
        stat = Path(f"/proc/{pid}/stat").read_text()
        pid = int(stat.rpartition(")")[2].split()[1])
        yield pid


def own_cpu_s(pid: int) -> float:
    """Of one process, without its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def opened(spark: SparkSession, broker: Running, way: Way, options: argparse.Namespace,
           subscription: str) -> DataFrame:  # fmt: skip
    reader = spark.read if way.sink == "batch" else spark.readStream
    given = {
        way.source: f"{way.source}.{way.headers}",
        "url": f"http://127.0.0.1:{broker.http_port}",
        "columns": way.columns,
        "partitions": str(options.partitions),
    }
    rows = options.rows_per_batch or (QUEUE_ROWS if way.source == "queue" else 0)
    if rows:
        given["maxRowsPerBatch"] = str(rows)
        given["maxBytesPerBatch"] = str(rows * 2 * SIZE)
    if way.source == "stream":
        given["startingOffsets"] = "earliest"
        given["readSegments"] = str(way.direct).lower()
    else:
        given["subscription"] = subscription
    return reader.format("tallymark").options(**given).load()


def read_all(frame: DataFrame, way: Way, folder: Path, count: int) -> int:
    """Returns how many rows were read."""
    if way.sink == "batch":
        frame.write.format("noop").mode("overwrite").save()
        return count
    writer = frame.writeStream.format(way.sink).option("checkpointLocation", str(folder / "check"))
    if way.sink == "parquet":
        writer = writer.option("path", str(folder / "table"))
    from tallymark.spark.starting import begin

    query = begin(writer.trigger(availableNow=True).start)
    query.awaitTermination()
    # Spark keeps the last hundred.
    return sum(int(progress["numInputRows"]) for progress in query.recentProgress)


def measure(
    spark: SparkSession, broker: Running, way: Way, options: argparse.Namespace, run: int,
    refill: Callable[[], None],
) -> Result:  # fmt: skip
    subscription = f"s{run}"
    if way.source == "queue":  # the last run has emptied it
        refill()
    frame = opened(spark, broker, way, options, subscription)
    java = jvm_pid()
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        broker_s, all_s, java_s = cpu_s(broker.pid), cpu_s(java), own_cpu_s(java)
        rows = read_all(frame, way, Path(folder), options.messages)
        seconds = time.perf_counter() - began
        broker_s = cpu_s(broker.pid) - broker_s
        all_s, java_s = cpu_s(java) - all_s, own_cpu_s(java) - java_s
    if rows != options.messages:
        raise SystemExit(f"{way.name}: {rows} rows of {options.messages}")
    each = 1e6 / rows
    return Result(
        way.name, rows, round(seconds, 2), round(rows / seconds), round(broker_s * each, 3),
        round(java_s * each, 2), round((all_s - java_s) * each, 2), os.getloadavg()[0],
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=5_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument(
        "--rows-per-batch", type=int, default=0, help="0: 1,000,000, a stream's default"
    )
    parser.add_argument(
        "--conf", nargs="*", default=[], metavar="NAME=VALUE", help="settings of the Spark session"
    )
    parser.add_argument("--only", nargs="*", default=[way.name for way in WAYS])
    options = parser.parse_args()
    options.messages -= options.messages % CHUNK
    ways = [way for way in WAYS if way.name in options.only]
    if len(ways) < len(set(options.only)):
        raise SystemExit(f"--only: expected some of {', '.join(way.name for way in WAYS)}")

    from tallymark.spark.session import build_session, stop_session

    with scratch() as folder, tallymark(folder / "data") as broker:
        filled: set[str] = set()

        def refill(way: Way) -> None:
            fill(broker.port, way.source, way.headers, options.messages)

        settings = dict(one.split("=", 1) for one in options.conf)
        spark = build_session(
            f"local[{options.partitions}]", "tallymark bench", silent=True, settings=settings
        )
        try:
            for way in ways:
                if way.source == "stream" and way.headers not in filled:
                    filled.add(way.headers)
                    refill(way)
                for run in range(options.runs + 1):
                    result = measure(spark, broker, way, options, run, lambda way=way: refill(way))
                    if run:
                        print(json.dumps(asdict(result)), flush=True)
        finally:
            stop_session(spark)


if __name__ == "__main__":
    main()
