"""format("tallymark") against a real broker: what a stream refuses, what a browse sees, and that
every content arrives as it was published."""

from __future__ import annotations

import json
import tracemalloc
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pika
import pytest
from pyspark.sql import SparkSession

from tallymark.spark.client import Endpoint
from tallymark.spark.command import cause
from tallymark.spark.land import land
from tallymark.spark.options import SourceOptions
from tallymark.spark.source import QueueBrowser, Span
from tests.spark import both
from tests.spark.rig import (
    SUBSCRIPTION,
    assert_exactly_once,
    floor,
    land_the_rest,
    publish,
    stat,
    stream,
)
from tests.support.patience import PATIENCE_S, until
from tests.support.process import BrokerProcess

pytestmark = pytest.mark.spark


def browse(spark: SparkSession, broker: BrokerProcess, queue: str, **options: str) -> Any:
    reader = spark.read.format("tallymark").option("url", broker.url).option("queue", queue)
    return reader.options(**options).load()


def test_a_second_reader_takes_over_and_the_first_is_told(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    publish(broker, "fence", 0, 50)
    first = land(stream(spark, broker, "fence"), tmp_path / "first", "50ms")
    until(lambda: floor(broker, "fence") == 50, what="the first reader at work")
    second = land(stream(spark, broker, "fence"), tmp_path / "second", "50ms")
    until(lambda: not first.isActive, what="the first reader fenced")
    error = first.exception()
    assert error is not None
    assert "Fenced" in cause(error)
    assert "attached again" in cause(error)
    publish(broker, "fence", 50, 10)
    until(lambda: floor(broker, "fence") == 60, what="the second reader at work")
    second.stop()
    assert second.exception() is None


def test_progress_says_how_far_a_query_is_behind(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    publish(broker, "lag", 0, 250)
    size = broker.queues()["lag"]["ready_bytes"]
    query = land(stream(spark, broker, "lag"), tmp_path / "table")
    assert query.awaitTermination(int(PATIENCE_S))
    told = [json.loads(one["sources"][0]["latestOffset"]) for one in query.recentProgress]
    assert [(one["seq"], one["rowsBehind"]) for one in told[:3]] == [
        (250, 150), (250, 50), (250, 0),
    ]  # fmt: skip
    assert size > told[0]["bytesBehind"] > told[1]["bytesBehind"] > told[2]["bytesBehind"] == 0
    assert min(one["oldestUnsettledMs"] for one in told[:3]) >= 0, "its batch is not settled"


def test_an_old_checkpoint_cannot_settle_a_new_subscription(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    publish(broker, "epoch", 0, 20)
    land_the_rest(spark, broker, "epoch", tmp_path / "table")
    status, _ = broker.http("DELETE", f"/api/tallymark/subscriptions/%2F/epoch/{SUBSCRIPTION}")
    assert status == 200
    publish(broker, "epoch", 20, 20)
    with pytest.raises(Exception, match="deleted and made again") as refused:
        land_the_rest(spark, broker, "epoch", tmp_path / "table")
    assert "Begin with a new checkpoint" in cause(refused.value)
    assert broker.queues()["epoch"]["settled"] == 20


def test_a_queue_that_is_not_there_is_named(spark: SparkSession, broker: BrokerProcess) -> None:
    with pytest.raises(Exception, match="no queue 'nowhere' in vhost '/'"):
        browse(spark, broker, "nowhere").collect()


def test_a_frame_sees_what_was_there_when_it_was_first_used(
    spark: SparkSession, broker: BrokerProcess
) -> None:
    publish(broker, "looked-at", 0, 3)
    frame = browse(spark, broker, "looked-at")
    publish(broker, "looked-at", 3, 1)
    assert frame.count() == 4
    publish(broker, "looked-at", 4, 1)
    assert (frame.count(), browse(spark, broker, "looked-at").count()) == (4, 5)


def test_a_plan_that_is_not_held_any_more_is_told(broker: BrokerProcess) -> None:
    reader = QueueBrowser(SourceOptions.parse({"url": broker.url, "queue": "looked-at"}))
    with pytest.raises(LookupError, match=r"'looked-at': the messages that this DataFrame .* Load"):
        list(reader.read(Span(0, 1, "given-up")))


def test_a_browse_sees_all_and_takes_nothing(spark: SparkSession, broker: BrokerProcess) -> None:
    publish(broker, "browsed", 0, 100)
    frame = browse(spark, broker, "browsed", columns="sequence, message_id, body, lease_sequence")
    rows = frame.orderBy("sequence").collect()
    assert [row.message_id for row in rows] == [str(number) for number in range(100)]
    assert [row.sequence for row in rows] == list(range(1, 101))
    assert {row.lease_sequence for row in rows} == {None}
    queue = broker.queues()["browsed"]
    assert (queue["ready"], queue["acquired"], queue["settled"]) == (100, 0, 0)
    assert stat(broker, "browsed") == {}


def test_a_browse_of_large_messages_holds_a_few_of_them(broker: BrokerProcess) -> None:
    """However many they are."""
    count, size = 64, 1 << 20
    with pika.BlockingConnection(pika.ConnectionParameters(port=broker.amqp_port)) as link:
        channel = link.channel()
        channel.queue_declare("large", durable=True)
        for number in range(count):
            channel.basic_publish("", "large", bytes([number]) * size)
    until(lambda: broker.queues()["large"]["ready"] == count)
    options = {"url": broker.url, "queue": "large", "partitions": "1", "columns": "body"}
    reader = QueueBrowser(SourceOptions.parse(options))
    (span,) = reader.partitions()
    seen = []
    tracemalloc.start()
    try:
        for batch in reader.read(span):
            seen += [body[0].as_py()[:1] for body in zip(batch.column("body"), strict=True)]
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert seen == [bytes([number]) for number in range(count)]
    assert most < count * size, most


def test_an_empty_queue_is_an_empty_table(spark: SparkSession, broker: BrokerProcess) -> None:
    publish(broker, "empty", 0, 0)
    assert browse(spark, broker, "empty").count() == 0


def test_every_content_arrives_as_it_was_published(
    spark: SparkSession, broker: BrokerProcess
) -> None:
    large = bytes(range(256)) * 1200  # three body frames
    sent = [
        (b"", pika.BasicProperties(message_id="0")),
        (large, pika.BasicProperties(message_id="1", content_type="application/octet-stream")),
        (b"\xff\x00", pika.BasicProperties(message_id="2", priority=9, timestamp=1_700_000_000)),
        (
            b"x",
            pika.BasicProperties(
                message_id="3",
                headers={
                    "text": "gr\u00fc\u00df",
                    "number": 7,
                    "yes": True,
                    "nothing": None,
                    "price": Decimal("1.25"),
                    "when": datetime(2026, 1, 2, 3, 4, 5),  # noqa: DTZ001  pika takes it as UTC
                    "list": [1, "a"],
                    "nested": {"k": "v"},
                },
            ),
        ),
    ]
    with pika.BlockingConnection(pika.ConnectionParameters(port=broker.amqp_port)) as connection:
        channel = connection.channel()
        channel.queue_declare("contents", durable=True)
        channel.confirm_delivery()
        for body, properties in sent:
            properties.delivery_mode = 2
            channel.basic_publish("", "contents", body, properties)
    rows = browse(spark, broker, "contents").orderBy("message_id").collect()
    assert [bytes(row.body) for row in rows] == [body for body, _ in sent]
    assert not any(row.malformed for row in rows)
    assert (rows[2].priority, rows[2].app_timestamp.astimezone(UTC)) == (
        9,
        datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC),
    )
    assert rows[3].headers == {
        "text": "gr\u00fc\u00df",
        "number": "7",
        "yes": "true",
        "nothing": None,
        "price": "1.25",
        "when": "2026-01-02T03:04:05Z",
        "list": '[1, "a"]',
        "nested": '{"k": "v"}',
    }
    assert (rows[0].exchange, rows[0].routing_key, rows[0].redelivered) == ("", "contents", False)


def test_the_ledger_of_a_running_broker_balances(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    publish(broker, "account", 0, 60)
    with pika.BlockingConnection(pika.ConnectionParameters(port=broker.amqp_port)) as connection:
        channel = connection.channel()
        for number in range(30):
            method, _, _ = channel.basic_get("account")
            if number % 3:
                channel.basic_ack(method.delivery_tag)
            elif number % 2:
                channel.basic_reject(method.delivery_tag, requeue=False)
        outcome = both.run(spark, broker.data_dir, Endpoint(port=broker.http_port))
        found = next(one for one in outcome.accounts if one.queue == "account")
        assert (found.entered, found.settled, found.dropped) == (60, 20, {"rejected": 5})
        assert (found.still_there["ready"], found.still_there["acquired"]) == (30, 5)
        assert (outcome.faults, outcome.balanced) == ([], True)
    land_the_rest(spark, broker, "account", tmp_path / "table")
    kinds = {
        (row.kind, row.reason)
        for row in spark.read.format("tallymark")
        .option("ledger", str(broker.data_dir))
        .load()
        .collect()
    }
    assert {("entered", None), ("settled", "client"), ("dropped", "rejected")} <= kinds
    outcome = both.run(spark, broker.data_dir, Endpoint(port=broker.http_port))
    found = next(one for one in outcome.accounts if one.queue == "account")
    assert (found.settled, found.still_there["ready"], outcome.balanced) == (55, 0, True)


def test_nothing_is_lost_between_available_now_runs(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    for start in (0, 30, 60):
        publish(broker, "left", start, 30)
        land_the_rest(spark, broker, "left", tmp_path / "table")
    assert_exactly_once(spark, tmp_path / "table", 90)
