"""Archiving of streams: ranges are written to Parquet and then released by the broker; the archive
and the stream are read as one table.

For each range, in this order: its rows are written, while a plan of the broker holds them; they are
read back and compared with what was written, by number and checksum; the files are brought to disk
and the manifest says that the range is complete; the broker records it, durably; the broker lets go
of it. Whatever is killed in between, the next run goes on from there: a range without a manifest is
written again, one with a manifest is recorded and let go of. So no row is lost, and none is twice
in what `read_archived` gives.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tallymark.spark.broker_options import options_of
from tallymark.spark.client import (
    Client,
    Endpoint,
    Gone,
    api_path,
    counted,
)
from tallymark.spark.command import command
from tallymark.spark.pipelines.folder import Archive, ArchiveDamaged, Range

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

ROWS: Final = 1_000_000
"""Most messages of a range."""
BYTES: Final = 256 << 20
"""Most raw bytes of a range."""

WRITTEN: Final = "written"
COMPLETE: Final = "complete"
RECORDED: Final = "recorded"
RELEASED: Final = "released"
Told = Callable[[str, Range], None]
"""Callback that gets an event (complete, recorded or released) and its range."""


@dataclass(slots=True)
class Archived:
    """Result of one run."""

    to: str
    stream: str
    ranges: int = 0
    rows: int = 0
    upto: int = 0
    """Offsets below it are archived, all that were there."""
    first: int = 0
    """First offset that the stream still has."""
    lost: list[tuple[int, int]] = field(default_factory=list)
    """Ranges of offsets (from, to) behind the archived ones that retention deleted before they were
    archived."""
    seconds: float = 0.0


class Stream:
    """A stream of the broker, as an archiver sees it."""

    def __init__(self, endpoint: Endpoint, vhost: str, name: str) -> None:
        self.endpoint = endpoint
        self.vhost = vhost
        self.name = name
        self.client = Client(endpoint)
        self.id = int(self.client.patient("GET", api_path("streams", vhost, name))["id"])

    def archived(self) -> dict[str, Any]:
        return self._call("GET", "archive")

    def reach(self, first: int, rows: int, size: int) -> tuple[int, int]:
        """Return the end of a range that begins at `first`, and the end of the stream."""
        query = f"range?from={first}&id={self.id}&max_rows={rows}&max_bytes={size}"
        found = self._call("GET", query)
        return int(found["to"]), int(found["next"])

    def record(self, archive: Archive, one: Range) -> None:
        """Have the broker know that a range is safe."""
        place = str((archive.folder / one.folder).absolute())[-1000:]
        said = {
            "from": one.low, "to": one.high, "id": self.id, "rows": one.rows,
            "archive": archive.id, "checksum": one.checksum, "place": place,
        }  # fmt: skip
        self._call("POST", "archive", said)

    def release(self, upto: int) -> int:
        """Have it let go of offsets below `upto`; where the stream begins now."""
        return int(self._call("POST", "release", {"to": upto, "id": self.id})["first"])

    def read(self, spark: SparkSession, low: int, high: int | None = None) -> DataFrame:
        """Offsets low..high-1, or from low on."""
        reader = spark.read.format("tallymark").options(
            **options_of(self.endpoint), vhost=self.vhost, stream=self.name,
            startingOffsets=str(low),
        )  # fmt: skip
        return (reader if high is None else reader.option("endingOffsets", str(high))).load()

    def _call(
        self, method: str, what: str, body: dict[str, object] | None = None
    ) -> dict[str, Any]:
        return self.client.call(
            method, api_path("streams", self.vhost, self.name) + "/" + what, body
        )


def archive(
    spark: SparkSession,
    stream: str,
    to: Path | str,
    *,
    endpoint: Endpoint | None = None,
    vhost: str = "/",
    rows: int = ROWS,
    max_bytes: int = BYTES,
    everything: bool = False,
    release: bool = True,
    told: Told | None = None,
) -> Archived:
    """Archive a stream in ranges of at most `rows` messages and `max_bytes` raw bytes, and have the
    broker release them. A range that new messages could still join stays, unless `everything`.

    to: the folder, the same for every run; seen by this process and by the executors.
    release: False: the broker keeps what was archived.

    Raises ValueError (a folder or arguments that cannot be right), ArchiveInUse, ArchiveDamaged,
    BrokerRefused, BrokerUnreachable, and what Spark raises: what was archived until then is, and
    the same may be called again.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    if rows < 1 or max_bytes < 1:
        raise ValueError(f"ranges of {rows} rows and {max_bytes} bytes, expected at least 1")
    begun = time.monotonic()
    source = Stream(endpoint or Endpoint(), vhost, stream)
    try:
        folder = Archive.of(to, vhost, stream, source.id)
        done = Archived(str(to), stream)
        with folder.held():
            say = told or _nothing
            upto, first = _go_on(source, folder, release, say)
            folder.clean()  # only now: the broker has recorded nothing of what goes
            while True:
                if first > upto:
                    if upto:
                        done.lost.append((upto, first))
                    upto = first
                try:
                    end, following = source.reach(upto, rows, max_bytes)
                    if end == upto or (end == following and not everything):
                        break
                    one = _write_range(spark, source, folder, upto, end, say)
                except (Gone, PySparkException, Py4JError):
                    first = int(source.archived()["first"])
                    if first <= upto:
                        raise
                    folder.clean()
                    continue  # retention was faster: not held yet, and gone
                source.record(folder, one)
                say(RECORDED, one)
                first = source.release(end) if release else int(source.archived()["first"])
                say(RELEASED, one)
                done.ranges += 1
                done.rows += one.rows
                upto = end
        done.upto, done.first = upto, first
        done.seconds = round(time.monotonic() - begun, 3)
        return done
    finally:
        source.client.close()


def _nothing(what: str, one: Range) -> None:
    """Ignore an event."""


def _go_on(source: Stream, folder: Archive, release: bool, say: Told) -> tuple[int, int]:
    """Bring the broker up to date with the folder. Returns where both have come to, and where the
    stream begins."""
    known = source.archived()
    newest = known["archived"] or {"to": 0, "archive": folder.id, "place": ""}
    if newest["archive"] != folder.id:
        raise ValueError(
            f"the archive of stream {source.name!r} is at {newest['place']}, not in {folder.folder}"
        )
    ranges = folder.ranges()
    upto = max((one.high for one in ranges), default=0)
    if newest["to"] > upto:
        raise ArchiveDamaged(
            f"{folder.folder}: complete up to offset {upto}, but the broker knows of an archive up "
            f"to {newest['to']}, newest at {newest['place']}"
        )
    for one in ranges:
        if one.low >= newest["to"]:
            source.record(folder, one)
            say(RECORDED, one)
    first = int(known["first"])
    if release and first < upto:
        first = source.release(upto)
        say(RELEASED, ranges[-1])
    return upto, first


def _write_range(
    spark: SparkSession, source: Stream, folder: Archive, low: int, high: int, say: Told
) -> Range:
    """Write a range, compare it with the broker's rows, and bring it to disk."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    attempt = folder.attempt(low, high)
    path = str(attempt)
    messages = source.read(spark, low, high)
    seen = Observation()
    given = messages.observe(seen, f.count(f.lit(1)).alias("rows"), _checksum(messages))
    given.write.parquet(path)
    wanted = seen.get
    say(WRITTEN, Range(low, high, int(wanted["rows"]), ""))
    read = spark.read.schema(messages.schema).parquet(path)
    found = read.agg(
        f.count(f.lit(1)).alias("rows"),
        _checksum(read),
        f.count_distinct("offset").alias("offsets"),
        f.coalesce(f.min("offset"), f.lit(low)).alias("least"),
        f.coalesce(f.max("offset"), f.lit(low)).alias("most"),
    ).collect()[0]
    if (
        (found["rows"], found["checksum"]) != (wanted["rows"], wanted["checksum"])
        or found["offsets"] != found["rows"]
        or not low <= found["least"] <= found["most"] < high
    ):
        raise ArchiveDamaged(
            f"{path}: {found.asDict()} was read back, expected {wanted} of offsets {low} to "
            f"{high - 1}"
        )
    made = folder.complete(attempt, low, high, int(wanted["rows"]), _hex(wanted["checksum"]))
    say(COMPLETE, made)
    return made


def _checksum(messages: DataFrame) -> Column:
    """Return a checksum of all rows in any order: the exclusive or of a hash of every column."""
    from pyspark.sql import functions as f

    columns = [
        f.map_entries(name) if kind.startswith("map") else f.col(name)
        for name, kind in messages.dtypes
    ]
    return f.bit_xor(f.xxhash64(*columns)).alias("checksum")


def _hex(number: int | None) -> str:
    """Return a checksum in hexadecimal; None: it is of no rows."""
    return f"xxh64:{(number or 0) & (1 << 64) - 1:016x}"


def read_archived(
    spark: SparkSession,
    folder: Path | str,
    *,
    live: bool = True,
    endpoint: Endpoint | None = None,
) -> DataFrame:
    """A stream from the first archived message to the last one it has now, as one table; with live
    False what is archived alone, without a broker.

    The border is that of this moment. What is let go of behind it before the table is read is an
    error of the reading, never a row less: call this again then.

    Raises FileNotFoundError, ArchiveDamaged, BrokerRefused, BrokerUnreachable; ValueError where the
    stream is another one by now.
    """
    from tallymark.spark import schema

    found = Archive.open(folder)
    paths, end = found.paths(), found.end()
    ddl = schema.ddl(schema.ALL_OF_STREAM)
    rows = spark.read.schema(ddl).parquet(*paths) if paths else spark.createDataFrame([], ddl)
    if not live:
        return rows
    source = Stream(endpoint or Endpoint(), found.vhost, found.stream)
    source.client.close()
    Archive.of(found.folder, found.vhost, found.stream, source.id)
    return rows.unionByName(source.read(spark, end))


# -- the command


def main(
    stream: str,
    to: Path,
    rows: int = ROWS,
    everything: bool = False,
    release: bool = True,
    vhost: str = "/",
    master: str = "local[*]",
    url: str | None = None,
    user: str | None = None,
    password: str | None = None,
    as_json: bool = False,
) -> int:
    """`tallymark pipeline archive`: returns 0, or 1 with the reason on stderr.

    Raises ValueError for arguments that cannot be right.
    """
    from tallymark.spark.options import SourceOptions

    if rows < 1:
        raise ValueError(f"--rows {rows}: expected at least 1")
    given = {"url": url, "user": user, "password": password, "vhost": vhost, "stream": stream}
    endpoint = SourceOptions.parse({k: v for k, v in given.items() if v is not None}).endpoint
    display = Display(stream, as_json)

    def prepare() -> None:
        source = Stream(endpoint, vhost, stream)
        source.archived()
        source.client.close()
        if to.exists():
            Archive.of(to, vhost, stream, source.id)

    def run(spark: SparkSession) -> int:
        done = archive(
            spark, stream, to, endpoint=endpoint, vhost=vhost, rows=rows, everything=everything,
            release=release, told=display.progress,
        )  # fmt: skip
        display.done(done)
        return 0

    title, doing = f"tallymark archive {stream}", f"archiving {stream}"
    return command(run, title, doing, master, prepare=prepare)


class Display:
    """Output of the command: one JSON object a line, or words."""

    def __init__(self, stream: str, as_json: bool) -> None:
        self._stream = stream
        self._as_json = as_json

    def progress(self, what: str, one: Range) -> None:
        """Show a range that was archived now, or was archived before and is recorded now."""
        if what != RECORDED:
            return
        if self._as_json:
            said = {"from": one.low, "to": one.high, "rows": one.rows, "checksum": one.checksum}
            print(json.dumps(said), flush=True)
            return
        print(f"  offsets {one.low:,} to {one.high - 1:,}: {counted(one.rows, 'row')}", flush=True)

    def done(self, done: Archived) -> None:
        """Show the result of a run that archived all it could."""
        if self._as_json:
            print(json.dumps({"done": True, **asdict(done)}), flush=True)
            return
        print(
            f"{self._stream} -> {done.to}: {counted(done.rows, 'row')} in "
            f"{counted(done.ranges, 'range')}, {done.seconds:.1f} s; archived up to offset "
            f"{done.upto:,}, the stream begins at {done.first:,}"
        )
        for low, high in done.lost:
            print(f"lost to retention before they were archived: offsets {low:,} to {high - 1:,}")
