"""A password for the broker stays out of what Spark shows and keeps: plans, descriptions,
checkpoints, texts of errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tallymark.environment import USER
from tallymark.spark.client import Endpoint
from tallymark.spark.land import land
from tallymark.spark.options import SourceOptions
from tests.server.management import FULL, done
from tests.spark.rig import publish, python_path
from tests.support.long import long
from tests.support.patience import until
from tests.support.process import BrokerProcess

SECRET = "planted-for-spark-3b7d"


def test_no_text_of_ours_has_it() -> None:
    endpoint = Endpoint.from_url(f"http://ann:{SECRET}@127.0.0.1:1")
    assert endpoint.password == SECRET
    assert SECRET not in f"{endpoint} {endpoint!r}"
    for url in (f"ftp://ann:{SECRET}@host", f"http://ann:{SECRET}@host/path", f"ann:{SECRET}@:1"):
        with pytest.raises(ValueError, match="url") as error:
            Endpoint.from_url(url)
        assert SECRET not in str(error.value)
    with pytest.raises(ValueError, match="says host and port") as error:
        SourceOptions.parse({"url": f"http://ann:{SECRET}@host", "host": "other", "queue": "q"})
    assert SECRET not in str(error.value)


@pytest.mark.spark
@pytest.mark.parametrize("way", ["option", "url"])
def test_neither_plan_nor_checkpoint_nor_description_has_it(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path, way: str
) -> None:
    done(broker, "PUT", "users/ann", {"password": SECRET, "tags": ""})
    done(broker, "PUT", "permissions/%2F/ann", FULL)
    queue = f"secret-{way}"
    publish(broker, queue, 0, 10)
    given = {"url": broker.url, "user": "ann", "password": SECRET, "queue": queue}
    if way == "url":
        given = {"url": f"http://ann:{SECRET}@127.0.0.1:{broker.http_port}", "queue": queue}
    frame: Any = spark.read.format("tallymark").options(**given).load()
    assert frame.count() == 10
    assert SECRET not in frame._jdf.queryExecution().toString()
    reader = spark.readStream.format("tallymark").options(**given)
    query = land(reader.option("subscription", "s").load(), tmp_path / "table", "50ms")
    try:
        until(lambda: query.lastProgress is not None, what="a batch")
        progress = str(query.lastProgress.json if query.lastProgress else "")
        assert SECRET not in progress
        assert SECRET not in str(query._jsq.toString())
    finally:
        query.stop()
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes(), path
    assert SECRET not in broker.log()


LOUD = """
import json, sys
import urllib.request
from pathlib import Path
from pyspark.sql import SparkSession
from tallymark.spark import register
from tallymark.spark.home import use_compiled
from tallymark.spark.java import use_java
from tallymark.spark.session import LOGGING
from tallymark.spark.starting import begin

given, folder = json.loads(sys.argv[1]), Path(sys.argv[2])
use_java()
use_compiled()
logging = folder / "log4j2.properties"
logging.write_text(LOGGING.format(level="info"))
spark = (
    SparkSession.builder.config(
        "spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile=file:{logging}"
    ).master("local[2,4]").appName("loud")
    .config("spark.ui.enabled", "true").config("spark.ui.port", "0")
    .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.eventLog.enabled", "true").config("spark.eventLog.dir", str(folder / "events"))
    .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
    .config("spark.sql.shuffle.partitions", "1").getOrCreate()
)
spark.sparkContext.setLogLevel("INFO")
register(spark)
said = []
for way, options in given.items():
    frame = spark.read.format("tallymark").options(**options).load()
    frame.explain("extended")
    said.append(str(frame.count()))
    frame.selectExpr("body").write.format("tallymark").options(**options).mode("append").save()
    stream = spark.readStream.format("tallymark").options(**options, subscription=way).load()
    writer = stream.writeStream.format("parquet").option("path", str(folder / way))
    writer = writer.option("checkpointLocation", str(folder / way / "c")).trigger(availableNow=True)
    query = begin(writer.start)
    query.awaitTermination()
    query.explain(True)
    said.append(str(query.lastProgress))
    wrong = {**options, "queue": "nowhere"}
    try:
        spark.read.format("tallymark").options(**wrong).load().count()
    except Exception as error:
        said.append(str(error))
ui = spark.sparkContext.uiWebUrl
app = spark.sparkContext.applicationId
pages = ["/jobs/", "/stages/", "/environment/", "/executors/", "/SQL/", "/StreamingQuery/"]
pages += [f"/SQL/execution/?id={n}" for n in range(8)]
pages += [f"/api/v1/applications/{app}/{what}" for what in ("jobs", "environment", "sql", "stages")]
for page in pages:
    with urllib.request.urlopen(ui + page) as answer:
        said.append(answer.read().decode())
(folder / "ui.txt").write_text("\\n".join(said))
spark.stop()
"""


@long(ci=False)  # a session of its own, which says and keeps all it can
def test_neither_log_nor_event_log_nor_ui_has_it(broker: BrokerProcess, tmp_path: Path) -> None:
    done(broker, "PUT", "users/ann", {"password": SECRET, "tags": ""})
    done(broker, "PUT", "permissions/%2F/ann", FULL)
    publish(broker, "loud", 0, 10)
    (tmp_path / "events").mkdir()
    file = tmp_path.parent / f"{tmp_path.name}.password"
    file.write_text(SECRET)
    named = {"url": broker.url, "user": "ann", "queue": "loud"}
    address = f"127.0.0.1:{broker.http_port}"
    given = {
        "option": {**named, "password": SECRET},
        "file": {**named, "passwordFile": str(file)},
        "url": {"url": f"http://ann:{SECRET}@{address}", "queue": "loud"},
        "environment": {"url": broker.url, "queue": "loud"},
    }
    command = [sys.executable, "-c", LOUD, json.dumps(given), str(tmp_path)]
    ran = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, check=False,
        env={
            **os.environ, "PYTHONPATH": python_path(), "PYSPARK_PYTHON": sys.executable,
            USER: f"ann:{SECRET}",
        },
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert "INFO" in ran.stderr, "it says all it can"
    assert list((tmp_path / "events").iterdir())
    assert "loud" in (tmp_path / "ui.txt").read_text()
    assert SECRET not in ran.stdout + ran.stderr + broker.log()
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes(), path
