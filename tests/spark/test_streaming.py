"""The jobs in docs/streaming.md, run as they are printed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pika
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.spark.rig import ROOT
from tests.support.long import long
from tests.support.process import BrokerProcess

pytestmark = pytest.mark.spark

NOON = "2026-01-01T12:{:02}:00Z"
NOON_S = 1_767_268_800


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("streaming") / "data", heartbeat_s="0") as broker:
        yield broker


@pytest.fixture
def job(
    own: BrokerProcess, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Job:
    # A session that is there has the folder it was started in.
    monkeypatch.setenv("TALLYMARK_URL", own.url)
    monkeypatch.setattr("tallymark.spark.session.build_session", lambda: spark)
    return Job(own, tmp_path)


class Job:
    """The blocks of the page, in a folder of their own."""

    def __init__(self, broker: BrokerProcess, folder: Path) -> None:
        self.broker = broker
        self.folder = folder
        (folder / "lake").mkdir()

    def publish(self, queue: str, *bodies: Any, **arguments: str) -> None:
        """Bodies: text, or what becomes JSON."""
        parameters = pika.ConnectionParameters(port=self.broker.amqp_port)
        with pika.BlockingConnection(parameters) as connection:
            channel = connection.channel()
            channel.queue_declare(queue, durable=True, arguments=arguments or None)
            channel.confirm_delivery()
            for body in bodies:
                text = body if isinstance(body, str) else json.dumps(body)
                properties = pika.BasicProperties(delivery_mode=2)
                channel.basic_publish("", queue, text.encode(), properties)

    def run(self, heading: str) -> None:
        """Run the beginning and the block below a heading."""
        page = (ROOT / "docs/streaming.md").read_text()
        begin, *blocks = re.findall(r"```python\n(.*?)```", page, re.S)
        headings = re.findall(r"^## (.*)$", page, re.M)
        assert len(blocks) == len(headings)
        block = blocks[headings.index(heading)]
        names: dict[str, Any] = {}
        for text in (begin, block):
            text = text.replace('"lake/', f'"{self.folder}/lake/')
            exec(text.replace('"labels', f'"{self.folder}/labels'), names)
        assert names["query"].exception() is None

    def table(self, name: str) -> list[dict[str, Any]]:
        """Rows of the files of Parquet in a folder."""
        files = sorted((self.folder / "lake" / name).glob("*.parquet"))
        return [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]

    def delta(self, name: str) -> list[dict[str, Any]]:
        from deltalake import DeltaTable

        table = DeltaTable(str(self.folder / "lake" / name)).to_pyarrow_table()
        return list(table.to_pylist())

    def settled(self, queue: str) -> int:
        return int(self.broker.queues()[queue]["settled"])


@long(ci=False)
def test_sessions_with_state(job: Job) -> None:
    clicks = [{"user": "ann", "at": NOON.format(minute)} for minute in (0, 20, 5)]
    job.publish("clicks", *clicks, {"user": "bob", "at": NOON.format(1)})
    job.run("Sessions with state")
    assert job.table("sessions") == [], "they are open"
    later = NOON.replace("T12", "T13")
    job.publish("clicks", {"user": "ann", "at": later.format(0)})
    job.run("Sessions with state")
    (ann,) = [row for row in job.table("sessions") if row["user"] == "ann"]
    assert ann == {"user": "ann", "begin": NOON_S, "end": NOON_S + 1200, "clicks": 3}
    assert job.settled("clicks") == 5


@long(ci=False)
def test_two_queues_joined(job: Job) -> None:
    orders = [{"id": n, "at": NOON.format(n), "item": f"item {n}"} for n in range(5)]
    job.publish("orders", *orders)
    job.publish("payments", {"id": 1, "paid_at": NOON.format(30), "amount": 2.5})
    job.run("Two queues joined")
    later = NOON.replace("T12", "T13")
    job.publish("payments", {"id": 3, "paid_at": NOON.format(40), "amount": 1.0},
                {"id": 4, "paid_at": later.format(5), "amount": 1.0})  # fmt: skip
    job.run("Two queues joined")
    found = {row["id"]: (row["item"], row["amount"]) for row in job.table("paid")}
    assert found == {1: ("item 1", 2.5), 3: ("item 3", 1.0)}
    assert (job.settled("orders"), job.settled("payments")) == (5, 3)


@long(ci=False)
@pytest.mark.skipif(find_spec("deltalake") is None, reason="pip install 'tallymark[delta]'")
def test_enrichment_from_a_delta_table(job: Job) -> None:
    from deltalake import write_deltalake

    customers = str(job.folder / "lake/customers")
    write_deltalake(customers, pa.table({"customer": [1, 2], "name": ["ann", "bob"]}))
    job.publish("visits", {"customer": 1, "page": "a"}, {"customer": 3, "page": "b"})
    job.run("Enrichment from a Delta table")
    write_deltalake(customers, pa.table({"customer": [3], "name": ["eve"]}), mode="append")
    job.publish("visits", {"customer": 3, "page": "c"})
    job.run("Enrichment from a Delta table")
    found = {row["page"]: row["name"] for row in job.delta("enriched")}
    assert found == {"a": "ann", "b": None, "c": "eve"}
    assert job.settled("visits") == 3


@long
@pytest.mark.skipif(find_spec("deltalake") is None, reason="pip install 'tallymark[delta]'")
def test_upsert(job: Job) -> None:
    from deltalake import write_deltalake

    fields = [("device", pa.int64()), ("sequence", pa.int64()), ("state", pa.string())]
    write_deltalake(str(job.folder / "lake/devices"), pa.schema(fields).empty_table())
    said = ((1, "on"), (2, "on"), (1, "off"))
    job.publish("states", *({"device": device, "state": state} for device, state in said))
    job.run("Upsert")
    job.publish("states", {"device": 2, "state": "lost"})
    job.run("Upsert")
    found = {row["device"]: row["state"] for row in job.delta("devices")}
    assert found == {1: "off", 2: "lost"}
    assert job.settled("states") == 4


@long(ci=False)
@pytest.mark.skipif(find_spec("sklearn") is None, reason="pip install 'tallymark[examples]'")
def test_dead_letters_judged_by_a_model(job: Job) -> None:
    labels = [{"text": f"timeout of host {n}", "retry": True} for n in range(5)]
    labels += [{"text": f"invalid amount {n}", "retry": False} for n in range(5)]
    (job.folder / "labels.jsonl").write_text("\n".join(map(json.dumps, labels)))
    job.publish("work")
    back = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "work"}
    letters = ["timeout of host 9", "invalid amount 77", "timeout of host 8"]
    job.publish("parked", *letters, **back)
    job.run("Dead letters, judged by a model")
    queues = job.broker.queues()
    assert (queues["parked"]["settled"], queues["parked"]["dead_lettered"]) == (1, 2)
    assert (queues["work"]["ready"], queues["parked"]["ready"]) == (2, 0)
