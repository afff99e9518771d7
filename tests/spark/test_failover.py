"""Reads from a standby, and one query over a list of hosts, while the leader is killed and another
broker takes over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tallymark.stored.segment import parsed_checkpoint
from tests.cluster.brokers import Broker, Brokers
from tests.support import forked
from tests.support.long import long
from tests.support.patience import until
from tests.support.postgresql import MISSING, Cluster, find_postgresql

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(find_postgresql() is None, reason=MISSING),
    long(ci=False),  # PostgreSQL, two brokers and Spark: a minute. CI has no PostgreSQL
]
HALF = 500


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    with Cluster() as servers:
        folder = tmp_path_factory.mktemp("failover")
        flags = {"lease": "10m", "heartbeat_s": "0", "checkpoint_every": "1MiB"}
        with Brokers(folder, servers, 2, **flags) as made:
            yield made


def publish(leader: Broker, numbers: range) -> None:
    """Put messages into the queue and append them to the stream; all are confirmed."""
    with pika.BlockingConnection(pika.ConnectionParameters(port=leader.amqp_port)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("q", durable=True)
        channel.queue_declare("log", durable=True, arguments={"x-queue-type": "stream"})
        for name in ("q", "log"):
            for number in numbers:
                kept = pika.BasicProperties(delivery_mode=2, message_id=str(number))
                channel.basic_publish("", name, b"row", kept)


def started(spark: SparkSession, folder: Path, name: str, **options: str) -> StreamingQuery:
    """A query that lands a queue or a stream in a folder, a few rows at a time."""
    given = {"maxRowsPerBatch": "50", "waitMs": "100", "columns": "message_id", **options}
    rows = spark.readStream.format("tallymark").options(**given).load()
    return (
        rows.writeStream.format("parquet")
        .option("path", str(folder / name))
        .option("checkpointLocation", str(folder / f"{name}.checkpoint"))
        .start()
    )


def landed(spark: SparkSession, query: StreamingQuery, folder: Path) -> list[int]:
    """Return the messages in a table, in order. Fails when its query has ended."""
    assert query.isActive, query.exception()
    if not list((folder / "_spark_metadata").glob("[0-9]*")):
        return []  # what is there of the first batch does not count yet
    return sorted(int(row.message_id) for row in spark.read.parquet(str(folder)).collect())


def checkpoint(broker: Broker) -> int:
    """Return the position of the newest checkpoint in a broker's folder, 0 for none."""
    return max(parsed_checkpoint(path.name) or 0 for path in broker.data_dir.iterdir())


def ledger(spark: SparkSession, broker: Broker, upto: int) -> list[str]:
    rows = spark.read.format("tallymark").options(ledger=str(broker.data_dir), upto=str(upto))
    return sorted(map(str, rows.load().collect()))


def test_a_table_and_the_ledger_are_read_from_the_standby(
    spark: SparkSession, brokers: Brokers
) -> None:
    """What a standby gives is what the leader does: a queue, with both hosts in one URL and the
    standby first, and every row of the journal from its folder."""
    leader = brokers.leader()
    standby = next(one for one in brokers.all if one is not leader)
    with pika.BlockingConnection(pika.ConnectionParameters(port=leader.amqp_port)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("table", durable=True)
        kept = pika.BasicProperties(delivery_mode=2)
        for number in range(HALF):
            channel.basic_publish("", "table", f"{number:04096}".encode(), kept)
        for _ in range(HALF // 2):
            method, _, _ = channel.basic_get("table")
            channel.basic_ack(method.delivery_tag)
    left = [f"{number:04096}".encode() for number in range(HALF // 2, HALF)]
    ports = standby.http_port, leader.http_port
    for hosts in (ports, ports[:1]):
        url = "http://" + ",".join(f"127.0.0.1:{port}" for port in hosts)
        read = spark.read.format("tallymark").options(url=url, queue="table").load()
        assert [bytes(row.body) for row in read.orderBy("sequence").collect()] == left
    until(lambda: 0 < checkpoint(leader) == checkpoint(standby))
    upto = checkpoint(leader)
    rows = ledger(spark, leader, upto)
    assert len(rows) > HALF
    assert ledger(spark, standby, upto) == rows


def test_a_query_goes_on_with_the_next_leader_and_a_stream_is_read_from_the_standby(
    spark: SparkSession, brokers: Brokers, tmp_path: Path
) -> None:
    leader = brokers.leader()
    standby = next(one for one in brokers.all if one is not leader)
    publish(leader, range(HALF))
    hosts = f"http://127.0.0.1:{leader.http_port},127.0.0.1:{standby.http_port}"
    alone = f"http://127.0.0.1:{standby.http_port}"
    queue = started(spark, tmp_path, "q", url=hosts, queue="q", subscription="table")
    stream = started(spark, tmp_path, "log", url=alone, stream="log", startingOffsets="earliest")
    try:
        until(lambda: landed(spark, stream, tmp_path / "log") == list(range(HALF)))
        until(lambda: landed(spark, queue, tmp_path / "q"))
        leader.kill()
        done = forked.run("takeover", "--journal", standby.journal)
        assert done.returncode == 0, done.stderr
        assert brokers.leader(leader) is standby
        publish(standby, range(HALF, 2 * HALF))
        for query, name in ((queue, "q"), (stream, "log")):
            folder = tmp_path / name
            until(lambda q=query, f=folder: len(landed(spark, q, f)) >= 2 * HALF)  # type: ignore[misc]
            assert landed(spark, query, folder) == list(range(2 * HALF))
    finally:
        queue.stop()
        stream.stop()
