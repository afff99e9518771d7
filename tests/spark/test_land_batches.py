"""Landing with bodies as columns: what does not fit is set apart, and rejected at the broker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tallymark.spark.batches import DELTA, PARQUET, Landing, Reader
from tallymark.spark.bodies import BEGUN, CHECKPOINT, FOUND, NoSchema, Schema
from tallymark.spark.land import land_batches
from tallymark.spark.tables import BY_BATCH, IN_DELTA, partitioning
from tests.spark.rig import PATIENCE_S, SUBSCRIPTION, stream
from tests.spark.test_sink import contents, declare, write
from tests.support.long import long
from tests.support.patience import until
from tests.support.process import BrokerProcess

pytestmark = pytest.mark.spark

GIVEN = "id bigint, note string"
OTHER = "id string, note string"
"""More of the bodies fit it."""
BODIES = [
    '{"id": 0, "note": "a"}', '{"id": 1}', "no JSON", '{"id": "two", "note": "b"}', "[1]", "",
    '{"id": 6, "note": "c", "more": [1]}', "null",
]  # fmt: skip
GOOD = {
    GIVEN: [(0, "a"), (1, None), (6, "c")],
    "infer": [("0", "a"), ("1", None), ("6", "c"), ("two", "b")],
}
BAD = {GIVEN: [2, 3, 4, 5, 7], "infer": [2, 4, 5, 7]}


@pytest.mark.parametrize(("format", "schema"), [(DELTA, GIVEN), (PARQUET, "infer")])
def test_dl_1_what_does_not_fit_is_quarantined_and_dead_lettered(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path, format: str, schema: str
) -> None:
    if format == DELTA and find_spec("deltalake") is None:
        pytest.skip("the extra delta is not installed")
    queue = f"land.{format}.{schema[:2]}"
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{queue}.dead"}
    declare(broker, f"{queue}.dead")
    declare(broker, queue, dead)
    rows = spark.createDataFrame(list(enumerate(BODIES)), "n int, body string").coalesce(1)
    write(rows.selectExpr("cast(n as string) message_id", "body"), broker, queue=queue)
    to = tmp_path / "table"
    reader = Reader(queue=queue, subscription=SUBSCRIPTION, url=broker.url)
    parts = ["date"] if format == DELTA else ["routing_key", "date"]
    landing = Landing(to, format, reader, Schema(schema, to), None, parts)

    def killed(batch: DataFrame, number: int) -> None:
        landing(batch, number)
        raise RuntimeError("before the batch is committed")

    query = land_batches(stream(spark, broker, queue), to, killed)
    with pytest.raises(StreamingQueryException, match="before the batch is committed"):
        query.awaitTermination(int(PATIENCE_S))
    assert broker.queues()[queue]["acquired"] == len(BODIES), "nothing is settled yet"
    bodies = Schema(schema, to)
    assert bodies.of(1), "what was found is kept"
    if schema == GIVEN:
        again = Schema(OTHER, to)  # is that of later batches
    else:
        (to / FOUND).unlink()  # and found again
        (to / CHECKPOINT / BEGUN).unlink()
        again = Schema(schema, to)
    assert partitioning(to, IN_DELTA if format == DELTA else BY_BATCH, None) == parts
    landing = Landing(to, format, reader, again, None, parts)
    query = land_batches(stream(spark, broker, queue), to, landing)
    assert query.awaitTermination(int(PATIENCE_S))
    assert query.exception() is None
    assert [one["numInputRows"] for one in query.recentProgress if one["numInputRows"]] == [
        len(BODIES)
    ], "the broker was asked for each message once"
    assert Schema(schema, to).of(0) == bodies.of(0)
    assert again.of(1) == (Schema(OTHER, to) if schema == GIVEN else bodies).of(1)
    found = table(spark, to, format)
    columns = "data.id, data.note"
    assert (
        sorted(tuple(row) for row in found.selectExpr(*columns.split(", ")).collect())
        == GOOD[schema]
    )
    bad = table(spark, to / "_quarantine", format).select("message_id", "reason").collect()
    assert sorted(int(row.message_id) for row in bad) == BAD[schema]
    assert {row.reason for row in bad} == {"the body does not fit the schema"}
    row = broker.queues()[queue]
    assert (row["settled"], row["dead_lettered"], row["acquired"]) == (
        len(GOOD[schema]), len(BAD[schema]), 0,
    )  # fmt: skip
    assert [int(one.message_id) for one, _ in contents(broker, f"{queue}.dead")] == BAD[schema]


@long(ci=False)
@pytest.mark.parametrize(("format", "schema"), [(DELTA, GIVEN), (PARQUET, "infer")])
def test_the_command_does_the_same_batch_by_batch(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path, format: str, schema: str
) -> None:
    queue = f"command.{format}"
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{queue}.dead"}
    declare(broker, f"{queue}.dead")
    declare(broker, queue, dead)
    rows = spark.createDataFrame(list(enumerate(BODIES)), "n int, body string").coalesce(1)
    write(rows.selectExpr("cast(n as string) message_id", "body"), broker, queue=queue)
    to, bad = tmp_path / "table", tmp_path / "bad"
    command = [
        sys.executable, "-m", "tallymark", "pipeline", "land", "--queue", queue,
        "--subscription", SUBSCRIPTION, "--url", broker.url, "--to", str(to), "--format", format,
        "--schema", schema, "--quarantine", str(bad), "--max-rows", "3", "--json",
    ]  # fmt: skip
    for batches in ([3, 3, 2], []):
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert done.returncode == 0, done.stderr
        said = [json.loads(line) for line in done.stdout.splitlines()]
        assert [one["rows"] for one in said[:-1]] == batches
        assert (said[-1]["done"], said[-1]["rows"]) == (True, sum(batches))
    good = table(spark, to, format).select("data.id", "data.note").collect()
    assert sorted(tuple(row) for row in good) == GOOD[GIVEN]
    refused = table(spark, bad, format).select("message_id").collect()
    assert sorted(int(row.message_id) for row in refused) == BAD[GIVEN]
    row = broker.queues()[queue]
    assert (row["settled"], row["dead_lettered"], row["acquired"]) == (3, 5, 0)


STOPPED = """
import sys
from pathlib import Path
from typing import Any
from tallymark.spark.session import build_session, hush

spark = build_session("local[2]", "stopped", silent=True)
from tests.support.patience import until
marks = Path(sys.argv[2])

def hold(row):
    (marks / "held").touch()
    until((marks / "never").exists)

def work(batch, number):
    batch.rdd.map(hold).count()

rows = spark.readStream.format("rate").option("rowsPerSecond", 10).load()
writer = rows.writeStream.foreachBatch(work).option("checkpointLocation", sys.argv[1])
query = writer.start()
until((marks / "held").exists)
hush()
query.stop()
spark.stop()
"""


@long(ci=False)
def test_java_says_nothing_of_a_query_that_is_stopped_in_mid_batch(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STOPPED, str(tmp_path / "checkpoint"), str(tmp_path)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])},
    )  # fmt: skip
    assert "StackOverflowError" not in done.stderr


@long(ci=False)
def test_a_command_that_is_stopped_in_mid_batch_says_no_more_than_that(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    count = 300_000
    queue = "command.stopped"
    declare(broker, queue)
    rows = spark.range(count).selectExpr("cast(id as string) message_id", "'{\"id\": 1}' body")
    write(rows, broker, queue=queue)
    to = tmp_path / "table"
    command = [
        sys.executable, "-m", "tallymark", "pipeline", "land", "--queue", queue,
        "--subscription", SUBSCRIPTION, "--url", broker.url, "--to", str(to), "--format", DELTA,
        "--schema", GIVEN, "--json", "--max-rows", str(count),
    ]  # fmt: skip
    running = subprocess.Popen(
        [*command, "--trigger", "1s"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    until((to / "_checkpoint" / "offsets" / "0").exists, what="a batch begun")
    running.send_signal(signal.SIGINT)
    said, complaints = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 0, complaints
    assert json.loads(said.splitlines()[-1])["done"]
    assert "Exception" not in complaints
    subprocess.run(command, check=True, timeout=PATIENCE_S)
    from deltalake import DeltaTable

    ids = DeltaTable(str(to)).to_pyarrow_table(columns=["message_id"])["message_id"]
    assert (len(ids), len(ids.unique())) == (count, count)


def table(spark: SparkSession, path: Path, format: str) -> DataFrame:
    if format == PARQUET:
        return spark.read.parquet(str(path))
    from deltalake import DeltaTable

    return spark.createDataFrame(DeltaTable(str(path)).to_pyarrow_table())


def test_a_batch_of_delta_is_written_once(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pytest.importorskip("deltalake")
    from tallymark.spark.delta import NO_VERSION, append_once, committed

    to, rows = str(tmp_path / "table"), pa.table({"n": [1, 2]})
    assert committed(to, "a") == NO_VERSION
    assert append_once(to, rows, "a", 0), "no version is not version 0"
    assert not append_once(to, rows, "a", 0)
    assert append_once(to, rows, "b", 0), "another query's batches have numbers of their own"
    assert append_once(to, rows, "a", 5)
    assert not append_once(to, rows, "a", 4)
    assert (committed(to, "a"), committed(to, "b")) == (5, 0)
    from deltalake import DeltaTable

    assert DeltaTable(to).to_pyarrow_table().num_rows == 6


@pytest.mark.parametrize(
    "text", ["id bigin", "", '{"type": "struct"}', '{"type": "struct", "fields": []}']
)
def test_a_schema_that_is_none_is_refused(spark: SparkSession, tmp_path: Path, text: str) -> None:
    with pytest.raises(NoSchema, match="schema"):
        Schema(text, tmp_path)
    (tmp_path / "file").write_text(text)
    with pytest.raises(NoSchema, match="schema"):
        Schema(f"@{tmp_path / 'file'}", tmp_path)


def test_a_schema_may_stand_in_a_file(spark: SparkSession, tmp_path: Path) -> None:
    for text in (GIVEN, Schema(GIVEN, tmp_path)._known.json()):  # type: ignore[union-attr]
        (tmp_path / "file").write_text(text)
        assert Schema(f"@{tmp_path / 'file'}", tmp_path)._known == Schema(GIVEN, tmp_path)._known


@pytest.mark.parametrize(
    ("zone", "hour"), [("America/Los_Angeles", "02"), ("Asia/Tokyo", "22"), ("UTC", "00")]
)
def test_a_row_lies_in_the_folder_of_its_date_in_utc_whoever_lands_it(
    spark: SparkSession, tmp_path: Path, zone: str, hour: str
) -> None:
    ours = spark.conf.get("spark.sql.session.timeZone")
    assert ours is not None
    spark.conf.set("spark.sql.session.timeZone", zone)  # as a cluster may have it
    try:
        rows = spark.sql(f"select timestamp'2026-03-01 {hour}:30:00 UTC' as timestamp, 'x' as body")
        Landing(tmp_path, PARQUET, Reader(queue="q", subscription="s"))(rows, 0)
    finally:
        spark.conf.set("spark.sql.session.timeZone", ours)
    assert [path.name for path in tmp_path.glob("batch=0/date=*")] == ["date=2026-03-01"]


def test_of_two_that_append_one_batch_to_delta_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that hung after it had looked at the table goes on when another has committed."""
    import deltalake
    import pyarrow as pa

    from tallymark.spark.delta import append_once

    rows = pa.table({"id": [1, 2]})
    write = deltalake.write_deltalake
    came: list[bool] = []

    def hang(*given: Any, **named: Any) -> None:
        monkeypatch.setattr(deltalake, "write_deltalake", write)
        came.append(append_once(str(tmp_path), rows, "q", len(came)))
        write(*given, **named)

    for batch in range(2):  # the first makes the table
        monkeypatch.setattr(deltalake, "write_deltalake", hang)
        assert not append_once(str(tmp_path), rows, "q", batch)
    assert came == [True, True]
    assert deltalake.DeltaTable(str(tmp_path)).to_pyarrow_table().num_rows == 4
