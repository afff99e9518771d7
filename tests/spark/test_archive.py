"""`tallymark pipeline archive` and a broker: the same rows before and after, whatever is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pika
import pytest
from pyspark.errors import AnalysisException

from tallymark.spark import pipelines
from tallymark.spark.client import Client, Endpoint, Gone
from tallymark.spark.pipelines import archives
from tallymark.spark.pipelines.folder import Archive, ArchiveDamaged, ArchiveInUse, Range
from tests.spark import both
from tests.spark.rig import python_path
from tests.support.long import long, sized
from tests.support.patience import PATIENCE_S
from tests.support.process import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

pytestmark = pytest.mark.spark
ENVIRONMENT = {**os.environ, "PYTHONPATH": python_path()}


class Killed(RuntimeError):
    """The archiver ends here."""


def publish(broker: BrokerProcess, stream: str, first: int, count: int) -> None:
    """Messages with everything that a row may hold, and what a publisher sent twice among them."""
    parameters = pika.ConnectionParameters(port=broker.amqp_port)
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.queue_declare(stream, durable=True, arguments={"x-queue-type": "stream"})
        channel.confirm_delivery()
        for number in range(first, first + count):
            headers: dict[str, Any] = {"customer": f"c{number % 5}", "list": [number, None]}
            if number % 3 == 0:
                headers |= {"x-publisher-name": "p", "x-publishing-id": number // 12}
            properties = pika.BasicProperties(
                delivery_mode=2, message_id=str(number), headers=headers if number % 2 else None,
                expiration="60000" if number % 7 == 0 else None, timestamp=number,
            )  # fmt: skip
            channel.basic_publish(
                "", stream, b"" if number % 11 == 0 else b"%d" % number, properties
            )


def read(spark: SparkSession, broker: BrokerProcess, stream: str) -> DataFrame:
    return spark.read.format("tallymark").options(url=broker.url, stream=stream).load()


def rows_of(table: DataFrame) -> list[Row]:
    return table.orderBy("offset").collect()


def endpoint(broker: BrokerProcess) -> Endpoint:
    return Endpoint.from_url(broker.url)


def first_of(broker: BrokerProcess, stream: str) -> int:
    return int(broker.http("GET", f"/api/tallymark/streams/%2F/{stream}")[1]["first"])


def command(broker: BrokerProcess, stream: str, to: Path, *more: str) -> list[str]:
    return [
        sys.executable, "-m", "tallymark", "pipeline", "archive", "--url", broker.url, "--json",
        "--stream", stream, "--to", str(to), "--master", "local[2]", *more,
    ]  # fmt: skip


def run(arguments: list[str]) -> tuple[int, list[dict[str, Any]], str]:
    """Exit code, lines of stdout, stderr."""
    done = subprocess.run(
        arguments, capture_output=True, text=True, timeout=PATIENCE_S, env=ENVIRONMENT
    )
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


@long(ci=False)
def test_archived_by_the_command_killed_and_run_again_it_reads_as_before(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    """Must hold: archive, then delete, then read gives the same rows as before."""
    publish(broker, "log", 0, 150)
    before = rows_of(read(spark, broker, "log"))
    assert 120 < len(before) < 150  # some were sent twice
    to = tmp_path / "lake"
    arguments = command(broker, "log", to, "--rows", "25")
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT, start_new_session=True
    ) as running:
        assert running.stdout is not None
        lines = [json.loads(running.stdout.readline()) for _ in range(3)]
        os.killpg(running.pid, signal.SIGKILL)
    assert [line["rows"] for line in lines] == [25, 25, 25]
    broker.kill()
    broker.restart()
    where = endpoint(broker)
    assert first_of(broker, "log") >= lines[1]["to"]
    assert rows_of(pipelines.read_archived(spark, to, endpoint=where)) == before

    code, lines, errors = run(command(broker, "log", to, "--rows", "25"))
    assert code == 0, errors
    done = lines[-1]
    assert done["upto"] == done["first"] == first_of(broker, "log")
    assert done["lost"] == []
    live = read(spark, broker, "log").count()
    assert 0 <= live < 25  # the newest range is not full
    assert rows_of(pipelines.read_archived(spark, to, endpoint=where)) == before
    publish(broker, "log", 150, 10)
    assert len(rows_of(pipelines.read_archived(spark, to, endpoint=where))) > len(before)

    done_all = archives.archive(spark, "log", to, endpoint=where, everything=True)
    assert done_all.upto == done_all.first
    assert read(spark, broker, "log").count() == 0
    assert rows_of(pipelines.read_archived(spark, to, live=False))[: len(before)] == before
    account = broker.queues()["log"]
    assert account["dropped"]["archived"] == account["entered"] - account["dropped"]["duplicate"]
    outcome = both.run(spark, broker.data_dir, where)
    assert outcome.balanced, outcome.faults


@long  # 20 s of CPU: Spark reads the stream and the folder after each step
def test_killed_after_any_step_it_goes_on_from_there(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    publish(broker, "steps", 0, 45)
    before = rows_of(read(spark, broker, "steps"))
    where, to = endpoint(broker), tmp_path / "lake"
    steps = [archives.WRITTEN, archives.COMPLETE, archives.RECORDED, archives.RELEASED]
    for step in sized([], steps, steps * 5):
        first = Archive.open(to).end() if to.exists() else 0

        def kill(what: str, one: Range, step: str = step, first: int = first) -> None:
            if what == step and one.high > first:
                raise Killed(what)

        with pytest.raises(Killed):
            archives.archive(spark, "steps", to, endpoint=where, rows=8, told=kill)
        end = Archive.open(to).end()
        assert (end > first) == (step != archives.WRITTEN)
        assert first_of(broker, "steps") == (end if step == archives.RELEASED else first)
        assert rows_of(pipelines.read_archived(spark, to, endpoint=where)) == before
    done = archives.archive(spark, "steps", to, endpoint=where, everything=True)
    assert read(spark, broker, "steps").count() == 0
    assert rows_of(pipelines.read_archived(spark, to, endpoint=where)) == before
    names = {path.name for path in to.iterdir() if path.name.startswith("range-")}
    assert names == {one.folder for one in Archive.open(to).ranges()}
    assert done.upto == done.first == Archive.open(to).end()


def test_what_is_not_what_it_was_is_refused(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    publish(broker, "bad", 0, 20)
    where, to = endpoint(broker), tmp_path / "lake"
    kept = archives.archive(spark, "bad", to, endpoint=where, rows=8, release=False)
    assert (kept.first, kept.ranges) == (0, 2)
    assert rows_of(pipelines.read_archived(spark, to, endpoint=where)) == rows_of(
        read(spark, broker, "bad")
    )
    with pytest.raises(ValueError, match=r"the archive of stream 'bad' is at .*range-.*, not in"):
        archives.archive(spark, "bad", tmp_path / "other", endpoint=where, rows=8)
    publish(broker, "bad2", 0, 1)
    with pytest.raises(ValueError, match="is the archive of stream 'bad'"):
        archives.archive(spark, "bad2", to, endpoint=where)
    with Archive.open(to).held(), pytest.raises(ArchiveInUse):
        archives.archive(spark, "bad", to, endpoint=where)
    newest = Archive.open(to).ranges()[-1]
    manifest = to / "_archive" / f"{newest.name}.json"
    text = manifest.read_text()
    manifest.unlink()
    with pytest.raises(ArchiveDamaged, match="but the broker knows of an archive up to"):
        archives.archive(spark, "bad", to, endpoint=where)
    manifest.write_text(text)  # its rows were left alone
    assert Archive.open(to).end() == newest.high
    path = Path(Archive.open(to).paths()[0])
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ArchiveDamaged, match="bytes, expected"):
        pipelines.read_archived(spark, to, live=False)


def test_a_stream_made_again_is_not_taken_for_the_archived_one(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    publish(broker, "again", 0, 5)
    where, to = endpoint(broker), tmp_path / "lake"
    archives.archive(spark, "again", to, endpoint=where, everything=True)
    archived = rows_of(pipelines.read_archived(spark, to, live=False))
    parameters = pika.ConnectionParameters(port=broker.amqp_port)
    with pika.BlockingConnection(parameters) as connection:
        connection.channel().queue_delete("again")
    publish(broker, "again", 0, 5)
    for call in (
        lambda: pipelines.read_archived(spark, to, endpoint=where),
        lambda: archives.archive(spark, "again", to, endpoint=where),
    ):
        with pytest.raises(ValueError, match="it was deleted and made again"):
            call()
    assert rows_of(pipelines.read_archived(spark, to, live=False)) == archived


def test_what_retention_takes_first_is_said(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    publish(broker, "short", 0, 20)
    where, to = endpoint(broker), tmp_path / "lake"
    archives.archive(spark, "short", to, endpoint=where, everything=True)
    end = Archive.open(to).end()
    publish(broker, "short", 20, 20)
    policy = {
        "pattern": "^short$", "apply-to": "streams",
        "definition": {"max-length-bytes": 1500, "stream-max-segment-size-bytes": 100},
    }  # fmt: skip
    assert broker.http("PUT", "/api/policies/%2F/short", policy)[0] in (201, 204)
    begin = first_of(broker, "short")
    assert begin > end
    left = rows_of(read(spark, broker, "short"))
    done = archives.archive(spark, "short", to, endpoint=where, everything=True)
    assert done.lost == [(end, begin)]
    assert rows_of(pipelines.read_archived(spark, to, live=False))[-len(left) :] == left


class Short(archives.Stream):
    """A stream from which retention takes what is not written yet."""

    def __init__(self, *_: object) -> None:
        self.id, self.first, self.next = 7, 0, 30
        self.client = Client(Endpoint())
        self.recorded: list[Range] = []

    def archived(self) -> dict[str, Any]:
        return {"archived": None, "first": self.first}

    def reach(self, first: int, rows: int, size: int) -> tuple[int, int]:
        if first < self.first:
            raise Gone(410, "gone", f"it begins at {self.first}")
        return min(first + rows, self.next), self.next

    def record(self, archive: Archive, one: Range) -> None:
        self.recorded.append(one)

    def release(self, upto: int) -> int:
        self.first = max(self.first, upto)
        return self.first


@pytest.mark.parametrize("faster", [True, False])
def test_what_retention_takes_before_a_range_is_held_is_lost_and_no_error(
    faster: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Short()

    def write(_: Any, source: Short, folder: Archive, low: int, high: int, *__: Any) -> Range:
        attempt = folder.attempt(low, high)
        attempt.mkdir()
        if low == 10 and not stream.recorded[1:]:
            source.first = 15 if faster else 10
            raise AnalysisException("DataLoss: offsets 10 to 14 are not kept any more")
        return folder.complete(attempt, low, high, high - low, "")

    monkeypatch.setattr(archives, "Stream", lambda *_: stream)
    monkeypatch.setattr(archives, "_write_range", write)
    spark: Any = None
    if not faster:  # and so it is Spark's own trouble
        with pytest.raises(AnalysisException):
            archives.archive(spark, "s", tmp_path / "lake", rows=10, everything=True)
        return
    done = archives.archive(spark, "s", tmp_path / "lake", rows=10, everything=True)
    assert (done.lost, done.upto, done.ranges) == ([(10, 15)], 30, 3)
    ranges = Archive.open(tmp_path / "lake").ranges()
    assert [(one.low, one.high) for one in ranges] == [(0, 10), (15, 25), (25, 30)]
    assert len(list((tmp_path / "lake").glob("range-*"))) == 3, "nothing is left of the attempt"


@pytest.mark.parametrize(
    ("more", "code", "text"),
    [
        (["--rows", "0"], 2, "--rows 0: expected at least 1"),
        (["--stream", "nothing"], 1, "no queue 'nothing'"),
        (["--stream", "plain"], 1, "is no stream"),
        (["--to", "USED"], 2, "expected a new or empty folder, or an archive"),
    ],
)
def test_mistakes_are_told_in_a_line(
    broker: BrokerProcess, tmp_path: Path, more: list[str], code: int, text: str
) -> None:
    publish(broker, "fine", 0, 1)
    parameters = pika.ConnectionParameters(port=broker.amqp_port)
    with pika.BlockingConnection(parameters) as connection:
        connection.channel().queue_declare("plain", durable=True)
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").touch()
    more = [str(tmp_path / "used") if word == "USED" else word for word in more]
    found, lines, errors = run(command(broker, "fine", tmp_path / "new", *more))
    assert (found, lines, len(errors.splitlines())) == (code, [], 1), errors
    assert text in errors
