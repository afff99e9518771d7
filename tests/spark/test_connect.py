"""Spark Connect: a session that has no `sparkContext`, over a server on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.spark.rig import publish, python_path
from tests.support.long import long
from tests.support.patience import PATIENCE_S
from tests.support.process import BrokerProcess

pytestmark = pytest.mark.spark

CLIENT = """
import json, sys
from pathlib import Path
from tallymark.spark.java import use_java
use_java()
from pyspark.sql import SparkSession
from tallymark.spark import register
from tallymark.spark.formats.functions import from_message

given, folder = json.loads(sys.argv[1]), sys.argv[2]
builder = SparkSession.builder.remote("local[2]").config("spark.sql.shuffle.partitions", "1")
spark = builder.getOrCreate()
assert not hasattr(spark, "_jsc"), type(spark)
register(spark)
table = spark.read.format("tallymark").options(**given, queue="in").load()
read = table.select(from_message("body", schema="id bigint").alias("read"))
said = {"ids": sorted(row.id for row in read.select("read.data.id").collect())}
table.select("body", "message_id").write.format("tallymark").options(**given, queue="out") \\
    .mode("append").save()
stream = spark.readStream.format("tallymark").options(**given, queue="in", subscription="s").load()
writer = stream.drop("lease_fence").writeStream.format("parquet").trigger(availableNow=True)
query = writer.option("checkpointLocation", folder + "/c").start(folder)
query.awaitTermination()
said["landed"] = spark.read.parquet(folder).count()
print(json.dumps(said))
spark.stop()
"""


@long(ci=False)  # starts a server of its own
@pytest.mark.skipif(find_spec("grpc") is None, reason="pip install 'tallymark[connect]'")
def test_a_queue_is_read_written_and_landed_over_connect(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", heartbeat_s="0") as broker:
        publish(broker, "in", 0, 0)
        publish(broker, "out", 0, 0)
        status, _ = broker.http(
            "POST", "/api/exchanges/%2F/amq.default/publish",
            {
                "routing_key": "in", "payload": '{"id": 7}', "payload_encoding": "string",
                "properties": {"delivery_mode": 2},
            },
        )  # fmt: skip
        assert status == 200
        command = [
            sys.executable, "-c", CLIENT, json.dumps({"url": broker.url}), str(tmp_path / "table"),
        ]  # fmt: skip
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=tmp_path, check=False,
            timeout=5 * PATIENCE_S,
            env={
                **os.environ, "PYTHONPATH": python_path(), "PYSPARK_PYTHON": sys.executable,
                "SPARK_LOCAL_IP": "127.0.0.1",
            },
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        assert json.loads(done.stdout.splitlines()[-1]) == {"ids": [7], "landed": 1}
        queues = broker.queues()
        assert (queues["out"]["ready"], queues["in"]["acquired"]) == (1, 0)
