"""What the tests of the stream share: publishing, looking, and a driver that can be killed."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pika

from tests.support.patience import PATIENCE_S, until
from tests.support.process import BrokerProcess

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

ROOT = Path(__file__).parents[2]
SUBSCRIPTION = "table"


def python_path() -> str:
    """PYTHONPATH for drivers and for Spark's workers, who import these tests' own modules."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join([str(ROOT), *(path for path in given if path)])


def spark_home(folder: Path) -> Path:
    """A SPARK_HOME of links to the PySpark that is installed (tallymark.spark.home), for a driver
    that makes its session itself."""
    import pyspark

    from tallymark.spark.home import link_all

    link_all(folder, Path(pyspark.__file__).parent)
    return folder


def publish(
    broker: BrokerProcess, queue: str, first: int, count: int, declares: bool = True
) -> None:
    """Messages with message-id first, first + 1, ... and body `line <id>`, each confirmed."""
    with pika.BlockingConnection(pika.ConnectionParameters(port=broker.amqp_port)) as connection:
        channel = connection.channel()
        if declares:
            channel.queue_declare(queue, durable=True)
        channel.confirm_delivery()
        for number in range(first, first + count):
            properties = pika.BasicProperties(delivery_mode=2, message_id=str(number))
            channel.basic_publish("", queue, f"line {number}".encode(), properties)


def stat(broker: BrokerProcess, queue: str, subscription: str = SUBSCRIPTION) -> dict[str, Any]:
    """The broker's word on a subscription; {} while it does not exist."""
    path = f"/api/tallymark/subscriptions/{quote('/', safe='')}/{queue}/{subscription}/stat"
    status, answer = broker.http("GET", path)
    return dict(answer) if status == 200 else {}


def floor(broker: BrokerProcess, queue: str) -> int:
    """Every lease sequence below it is settled; -1 while nothing is attached."""
    return int(stat(broker, queue).get("floor", -1))


def stream(
    spark: SparkSession, broker: BrokerProcess, queue: str, max_rows: int = 100
) -> DataFrame:
    from tallymark.spark.land import read_queue

    options = {"maxRows": str(max_rows), "waitMs": "200"}
    return read_queue(spark, queue, SUBSCRIPTION, url=broker.url, options=options)


def land_the_rest(spark: SparkSession, broker: BrokerProcess, queue: str, to: Path) -> None:
    """Run the pipeline over the same checkpoint until nothing is left, as a restart would."""
    from tallymark.spark.land import land

    query = land(stream(spark, broker, queue), to)
    assert query.awaitTermination(int(PATIENCE_S)), query.status


def assert_exactly_once(spark: SparkSession, to: Path, count: int) -> None:
    """The table, as the file sink's log has it, holds messages 0..count-1 once each."""
    rows = spark.read.parquet(str(to)).select("message_id", "body").collect()
    assert sorted(int(row.message_id) for row in rows) == list(range(count))
    assert all(bytes(row.body) == f"line {row.message_id}".encode() for row in rows)


def lost_and_doubled(found: list[int], expected: list[int]) -> tuple[list[int], list[int]]:
    """What is expected and not there, and what is there too often, or not expected."""
    here, wanted = Counter(found), Counter(expected)
    return sorted((wanted - here).elements()), sorted((here - wanted).elements())


def parquet_ids(folder: Path, word: str = "line") -> list[int]:
    """The ids in the files that Spark's sink log names, of messages with the body `<word> <id>`."""
    import pyarrow.parquet as pq

    paths: dict[str, str] = {}
    log = folder / "_spark_metadata"
    numbers = sorted(
        (int(name.removesuffix(".compact")), name)
        for name in (entry.name for entry in log.iterdir())
        if name.removesuffix(".compact").isdigit()
    )
    for _, name in numbers:
        for line in (log / name).read_text().splitlines()[1:]:
            entry = json.loads(line)
            paths[entry["path"]] = entry["action"]
    found = []
    for path, action in paths.items():
        if action == "add":
            table = pq.ParquetFile(path.removeprefix("file://")).read(["message_id", "body"])
            for id, body in zip(*(column.to_pylist() for column in table.columns), strict=True):
                assert body == f"{word} {id}".encode()
                found.append(int(id))
    return found


def held_at(sequence: int, folder: Path) -> Callable[[Iterator[pa.RecordBatch]], Any]:
    """For mapInArrow: let rows below a lease sequence pass; at it make the file `held` and stand
    still until there is a file `released`."""

    def hold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            leases = batch.column("lease_sequence").to_pylist()
            passed = sum(lease < sequence for lease in leases)
            if passed:
                yield batch.slice(0, passed)
            if passed < batch.num_rows:
                (folder / "held").touch()
                until((folder / "released").exists)
                yield batch.slice(passed)

    return hold


class DriverProcess:
    """A program that says `started` when its query runs, in a session of its own: it hangs, goes on
    and is killed with all its processes."""

    def __init__(self, module: str, arguments: dict[str, object], log: Path) -> None:
        """log: its stderr; what it leaves behind lies beside."""
        self.log = log
        with log.open("wb") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, json.dumps(arguments)],
                stdout=subprocess.PIPE,
                env=self._environment(log.with_suffix(".scratch")),
                stderr=stderr,
                start_new_session=True,
            )

    def wait_started(self) -> None:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            started = selector.select(PATIENCE_S)
        said = self._process.stdout.readline() if started else b"nothing"
        if said.strip() != b"started":
            self.kill()
            raise AssertionError(f"driver said {said!r}: {self.log.read_text()[-3000:]}")

    def _environment(self, scratch: Path) -> dict[str, str]:
        # What a killed JVM leaves behind shall lie where the test's other files are.
        home = scratch / "home"
        home.mkdir(parents=True)
        return {
            **os.environ,
            "PYTHONPATH": python_path(),
            "SPARK_HOME": str(spark_home(home)),
            "SPARK_LOCAL_DIRS": str(scratch),
            "JDK_JAVA_OPTIONS": f"-Djava.io.tmpdir={scratch}",
        }

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def hang(self) -> None:
        """Stop every process of it where it is."""
        while running := [pid for pid, state in self._states() if state != "T"]:
            for pid in running:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)

    def go_on(self) -> None:
        for pid in self._members():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def kill(self) -> None:
        """kill -9 of every process the driver started and of itself."""
        while members := list(self._members()):
            for pid in members:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.poll()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _members(self) -> Iterator[int]:
        return (pid for pid, _ in self._states())

    def _states(self) -> Iterator[tuple[int, str]]:
        """Its processes, and what each is doing, in the kernel's letters."""
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                    if int(fields[3]) == self._process.pid and fields[0] != "Z":
                        yield int(entry.name), fields[0]


class Driver(DriverProcess):
    """driver.py: a query that lands a queue."""

    def __init__(
        self, broker: BrokerProcess, queue: str, to: Path, *, trigger: str, max_rows: int, hold: int
    ) -> None:
        self.to = to
        to.mkdir(parents=True, exist_ok=True)
        arguments = {
            "url": broker.url, "queue": queue, "to": str(to), "trigger": trigger,
            "max_rows": max_rows, "hold": hold, "marks": str(to.parent),
        }  # fmt: skip
        super().__init__("tests.spark.driver", arguments, to.parent / f"{to.name}.driver.log")
        self.wait_started()

    def wait_held(self) -> None:
        """Until the batch with the hold's sequence stands still."""
        held = self.to.parent / "held"
        until(lambda: held.exists() or self.has_ended, what="a held batch")
        assert held.exists(), self.log.read_text()[-3000:]

    def kill_between(self, written: Callable[[int], Path], committed: Callable[[int], Path]) -> int:
        """kill -9 at a moment when `written(n)` exists and `committed(n)` does not; returns n. The
        JVM is stopped to look, and goes on if that moment was missed."""
        jvm = next(pid for pid in self._members() if _is_java(pid))
        for number in range(1, 1000):
            path = written(number)
            until(path.exists, lambda: None, what=f"batch {number} is written")
            os.kill(jvm, signal.SIGSTOP)
            if not committed(number).exists():
                self.kill()
                return number
            os.kill(jvm, signal.SIGCONT)
        raise AssertionError("every batch was committed before it was looked at")


def _is_java(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/exe").resolve().name == "java"
    return False
