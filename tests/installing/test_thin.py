"""tallymark-spark: the connector alone, from a wheel that is never installed, beside PySpark, numpy
and pyarrow."""

from __future__ import annotations

import ast
import importlib.util
import json
import random
import shutil
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from tests.installing.environments import ROOT, Environment, build
from tests.support.long import long
from tests.support.process import BrokerProcess

pytest.importorskip("pyspark", reason="pip install 'tallymark[spark]'")

SMALL_BYTES = 400_000
"""Of a file that goes to every executor with each job."""
ALSO_THERE = ("google_crc32c", "librt", "mypy_extensions", "aiohttp", "rich", "typer", "cramjam")
"""What the broker needs, and a cluster has not."""


@pytest.fixture(scope="module")
def thin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("dist"), "spark")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """What is on the machines of a cluster."""
    environment = Environment(tmp_path_factory.mktemp("cluster"))
    for name in ("pyspark", "pyarrow", "numpy", "pandas"):
        environment.link(name)
    return environment


def names_in(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_it_is_small_and_plain(thin: Path) -> None:
    names = names_in(thin)
    assert thin.name.endswith("-py3-none-any.whl")
    assert thin.stat().st_size < SMALL_BYTES
    assert not [name for name in names if name.endswith((".so", ".c", ".pyi"))]
    barred = ("engine", "journal", "server", "bridge", "cli", "client")
    assert not [name for name in names if name.startswith(tuple(f"tallymark/{b}" for b in barred))]


READS = """
import json, sys
import pyspark_tallymark, tallymark.spark.verdicts, tallymark.spark.bodies
import tallymark.spark.formats.functions
from tallymark.spark.source import TallymarkDataSource

def rows(**options):
    reader = TallymarkDataSource(options).reader(None)
    return [row for part in reader.partitions() for batch in reader.read(part)
            for row in batch.to_pylist()]

folder, url = sys.argv[1:]
queue = rows(queue="q", url=url)
print(json.dumps({
    "bodies": sorted(row["body"].decode() for row in queue),
    "ids": [row["message_id"] for row in queue],
    "kinds": sorted({row["kind"] for row in rows(ledger=folder)}),
    "file": pyspark_tallymark.DefaultSource.__module__ and sys.modules["tallymark"].__file__,
    "there": [name for name in %r if name in sys.modules],
}))
"""


def test_it_reads_a_queue_and_a_segment_from_the_zip(
    thin: Path, cluster: Environment, tmp_path: Path
) -> None:
    """As a worker of Spark's does, without the JVM: the source is imported, planned and read."""
    import pika

    with BrokerProcess(tmp_path / "data") as broker:
        with pika.BlockingConnection(pika.ConnectionParameters(port=broker.amqp_port)) as one:
            channel = one.channel()
            channel.queue_declare("q", durable=True)
            channel.confirm_delivery()
            for number in range(5):
                properties = pika.BasicProperties(delivery_mode=2, message_id=str(number))
                channel.basic_publish("", "q", b"line %d" % number, properties)
        broker.stop()  # with a checkpoint, from which a ledger begins
        broker.restart()
        program = READS % (ALSO_THERE,)
        words = (str(cluster.python), "-c", program, str(tmp_path / "data"), broker.url)
        found = json.loads(cluster.run(*words, PYTHONPATH=str(thin)))
    assert found["bodies"] == [f"line {number}" for number in range(5)]
    assert sorted(found["ids"]) == [str(number) for number in range(5)]
    assert "entered" in found["kinds"]
    assert found["file"].startswith(str(thin))
    assert found["there"] == []


@pytest.fixture(scope="module")
def standins() -> ModuleType:
    place = ROOT / "deploy/spark/standins.py"
    spec = importlib.util.spec_from_file_location("standins", place)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_its_checksums_are_those_of_the_broker(standins: ModuleType) -> None:
    import google_crc32c

    chance = random.Random(1)
    few, lane, many = standins.FEW, standins.LANE, standins.MANY
    sizes = [0, 1, 2, 255, 256, few - 1, few, few + 1, 3 * lane + few, many, many + few + 7]
    for size in sizes:
        data, before = chance.randbytes(size), chance.getrandbits(32)
        assert standins.numpy_extend(before, data) == google_crc32c.extend(before, data), size


def test_its_writer_and_numbers_are_those_of_the_broker(standins: ModuleType) -> None:
    from librt import strings

    for module in (standins, strings):
        writer = module.BytesWriter()
        writer.write(b"a")
        writer.append(98)
        module.write_i32_be(writer, -2)
        module.write_i32_le(writer, -2)
        module.write_i64_be(writer, 3)
        data = writer.getvalue()
        assert data == b"ab\xff\xff\xff\xfe\xfe\xff\xff\xff" + bytes(7) + b"\3"
        assert len(writer) == len(data)
        assert module.read_i32_le(data, 6) == -2
        assert module.read_i64_be(data, 10) == 3
        assert module.read_i64_le(data, 10) == 3 << 56


def test_what_stands_in_has_each_name_that_is_imported(thin: Path, standins: ModuleType) -> None:
    """Names that only some functions use would be missed where the wheel is tried."""
    with zipfile.ZipFile(thin) as archive:
        texts = {n: archive.read(n).decode() for n in archive.namelist() if n.endswith(".py")}
    del texts["tallymark/standins.py"]
    asked = set()
    for name, text in texts.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                tops = {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                tops = {str(node.module).partition(".")[0]}
            else:
                continue
            assert not tops & set(ALSO_THERE), name
            if isinstance(node, ast.ImportFrom) and node.module == "tallymark.standins":
                asked |= {alias.name for alias in node.names}
    assert asked
    assert [name for name in asked if not hasattr(standins, name)] == []


def test_both_wheels_in_one_environment_are_refused(
    thin: Path, cluster: Environment, tmp_path: Path
) -> None:
    """As pip leaves them: the one's files over the other's."""
    place = tmp_path / "both"
    (place / "tallymark").mkdir(parents=True)
    shutil.copytree(ROOT / "src/tallymark/server/http", place / "tallymark/server/http")
    with zipfile.ZipFile(thin) as archive:
        archive.extractall(place)
    for module in ("tallymark", "tallymark.spark", "pyspark_tallymark"):
        said = cluster.fails("-c", f"import sys; sys.path[:0] = [{str(place)!r}]; import {module}")
        assert "both tallymark and tallymark-spark are installed in" in said
        assert "pip uninstall tallymark tallymark-spark" in said
    shutil.rmtree(place / "tallymark/server")
    cluster.run(
        str(cluster.python), "-c", "import tallymark, pyspark_tallymark", PYTHONPATH=str(place)
    )


JOB = """
import sys
from pyspark.sql import SparkSession
from tallymark.spark import register
import tallymark

spark = SparkSession.builder.config("spark.ui.enabled", "false").getOrCreate()
register(spark)
url = sys.argv[1]
source = {"url": url, "queue": "q", "subscription": "table", "partitions": "2"}
orders = spark.readStream.format("tallymark").options(**source).load()
query = orders.select("message_id", "body").writeStream.format("parquet").trigger(availableNow=True)
query.option("path", "table").option("checkpointLocation", "checkpoint").start().awaitTermination()
table = spark.read.parquet("table")
print("rows", table.count(), "ids", table.select("message_id").distinct().count())
where = spark.sparkContext.range(2, numSlices=2).map(lambda _: __import__("tallymark").__file__)
print("from", *sorted(set(where.collect())), tallymark.__file__)
table.where("int(message_id) < 3").write.format("tallymark").options(url=url, queue="copy").mode(
    "append").save()
"""


@long(ci=False)  # a JVM, and workers that compile what they import from the zip: a minute
@pytest.mark.spark
def test_a_job_of_spark_submit_has_it_by_py_files(
    thin: Path, cluster: Environment, tmp_path: Path
) -> None:
    import pika

    from tallymark.spark.java import find_java

    (archive,) = thin.parent.glob("*.zip")
    (tmp_path / "job.py").write_text(JOB)
    home = cluster.packages / "pyspark"
    with BrokerProcess(tmp_path / "data") as broker:
        with pika.BlockingConnection(pika.ConnectionParameters(port=broker.amqp_port)) as one:
            channel = one.channel()
            channel.confirm_delivery()
            for queue in ("q", "copy"):
                channel.queue_declare(queue, durable=True)
            for number in range(100):
                properties = pika.BasicProperties(delivery_mode=2, message_id=str(number))
                channel.basic_publish("", "q", b"line %d" % number, properties)
        said = cluster.run(
            str(home / "bin/spark-submit"), "--master", "local[2]", "--driver-memory", "1g",
            "--conf", f"spark.sql.warehouse.dir={tmp_path / 'warehouse'}",
            "--py-files", str(archive), str(tmp_path / "job.py"), broker.url,
            SPARK_HOME=str(home),
            PYSPARK_PYTHON=str(cluster.python),
            JAVA_HOME=str(find_java().home),
        )  # fmt: skip
        queues = broker.queues()
    assert "rows 100 ids 100" in said
    (line,) = (line for line in said.splitlines() if line.startswith("from "))
    assert all(archive.name in word for word in line.split()[1:]), line
    assert (queues["q"]["settled"], queues["copy"]["ready"]) == (100, 3)
