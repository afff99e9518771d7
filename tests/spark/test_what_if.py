"""Worlds as tasks of Spark: the example of docs/what-if.md, as it is printed."""

from __future__ import annotations

from pathlib import Path

import pika
import pytest
from pyspark.sql import SparkSession

from tests.docs.page import examples
from tests.support.process import BrokerProcess

LIMITS = '[[queue]]\nname = "orders"\nmax-length = [10, 1000]\n'


@pytest.mark.long(ci=False)
def test_worlds_are_tasks_and_are_not_run_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "tallymark-data"
    with BrokerProcess(data) as broker:
        connection = pika.BlockingConnection(pika.ConnectionParameters(port=broker.amqp_port))
        channel = connection.channel()
        channel.queue_declare("orders", durable=True)
        for _ in range(50):
            channel.basic_publish("", "orders", b"x", pika.BasicProperties(delivery_mode=2))
        connection.close()
    (tmp_path / "limits.toml").write_text(LIMITS)
    monkeypatch.chdir(tmp_path)
    [example] = [one for one in examples("docs/what-if.md") if one.language == "python"]
    known: dict[str, object] = {"spark": spark}
    exec(example.text, known)
    results = sorted((tmp_path / "work").glob("*.json"))
    assert len(results) == 3, "as it was, and two changes"
    written = [one.stat().st_mtime_ns for one in results]
    exec(example.text, known)
    assert [one.stat().st_mtime_ns for one in results] == written, "they were there"
    answers = known["answers"]
    found = {
        (row.world, row.measure): (row.before, row.after)
        for row in answers.collect()  # type: ignore[attr-defined]
    }
    assert found["limits: max-length 10", "dropped (maxlen)"] == (0, 40)
    assert found["limits: max-length 1000", "there"] == (50, 50)
