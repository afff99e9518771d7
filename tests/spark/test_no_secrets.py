"""A password for the broker stays out of what Spark shows and keeps: plans, descriptions,
checkpoints, texts of errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tallymark.spark.client import Endpoint
from tallymark.spark.land import land
from tallymark.spark.options import SourceOptions
from tests.server.management import FULL, done
from tests.spark.rig import publish
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
