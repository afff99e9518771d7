"""Deferred messages as Spark sees them: in the account, in the ledger, in a landed table."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pyspark.sql import SparkSession

from tallymark.spark.client import Endpoint
from tests.spark import both
from tests.spark.rig import land_the_rest
from tests.support.patience import CLOCKS_MS, until
from tests.support.process import BrokerProcess

pytestmark = pytest.mark.spark

HOUR_MS = 3_600_000


@pytest.fixture
def channel(broker: BrokerProcess) -> BlockingChannel:
    connection = pika.BlockingConnection(pika.ConnectionParameters(port=broker.amqp_port))
    channel = connection.channel()
    channel.confirm_delivery()
    return channel


def fill(channel: BlockingChannel, queue: str, *delays: int | None) -> None:
    """A message each, that waits so many ms or not at all; its number is its message id."""
    for number, delay in enumerate(delays):
        headers = None if delay is None else {"x-delay": delay}
        made = pika.BasicProperties(delivery_mode=2, message_id=str(number), headers=headers)
        channel.basic_publish("", queue, b"line %d" % number, made)


def test_lc_5_what_waits_is_a_term_of_the_equation(
    spark: SparkSession, broker: BrokerProcess, channel: BlockingChannel
) -> None:
    retry = {
        "x-delayed-retry-type": "all", "x-delayed-retry-min": HOUR_MS, "x-delivery-limit": 0,
        "x-delivery-limit-counts": "failures",  # nack is none, so that it waits
    }  # fmt: skip
    channel.queue_declare("d.work", durable=True, arguments=retry)
    fill(channel, "d.work", None, None, None, None, HOUR_MS, HOUR_MS, None)
    before = datetime.now(UTC)
    for settle in (channel.basic_ack, channel.basic_nack, channel.basic_nack, channel.basic_reject):
        method, _, _ = channel.basic_get("d.work")
        assert method is not None
        settle(method.delivery_tag)
    channel.queue_declare("d.work", passive=True)
    outcome = both.run(spark, broker.data_dir, Endpoint(port=broker.http_port))
    assert [fault for fault in outcome.faults if fault.queue == "d.work"] == []
    found = next(one for one in outcome.accounts if one.queue == "d.work")
    assert (found.entered, found.settled, found.difference) == (7, 1, 0)
    assert (found.still_there["ready"], found.still_there["deferred"]) == (1, 4)
    assert found.dropped == {"delivery_limit": 1}

    number = broker.queues()["d.work"]["id"]
    rows = spark.read.format("tallymark").option("ledger", str(broker.data_dir)).load()
    told = (
        rows.where(f"queue_id = {number} and source = 'journal' and due is not null")
        .orderBy("position", "row")
        .collect()
    )
    assert [(row.kind, row.first, row["count"], row.reason, row.failed) for row in told] == [
        ("entered", 5, 1, None, None),
        ("entered", 6, 1, None, None),
        ("deferred", 2, 1, "client", False),
        ("deferred", 3, 1, "client", False),
    ]
    for row in told[2:]:
        waits = row.due.astimezone(UTC) - before
        assert timedelta(hours=1, milliseconds=-CLOCKS_MS) <= waits <= timedelta(hours=1, minutes=5)
    there = rows.where(f"queue_id = {number} and source = 'checkpoint' and kind = 'deferred'")
    assert sorted(row.first for row in there.collect()) == [2, 3, 5, 6]


def test_what_waited_is_landed_once_when_its_time_has_come(
    spark: SparkSession, broker: BrokerProcess, channel: BlockingChannel, tmp_path: Path
) -> None:
    channel.queue_declare("d.land", durable=True)
    fill(channel, "d.land", None, 300, 100, HOUR_MS, None)
    until(lambda: broker.queues()["d.land"]["deferred"] == 1, what="two became ready")
    land_the_rest(spark, broker, "d.land", tmp_path / "table")
    landed = spark.read.parquet(str(tmp_path / "table")).orderBy("lease_sequence").collect()
    assert [(row.message_id, row.malformed) for row in landed] == [
        ("0", False), ("4", False), ("2", False), ("1", False),
    ]  # fmt: skip
    assert [row.headers and row.headers["x-delay"] for row in landed] == [
        None, None, "-100", "-300",
    ]  # fmt: skip
    assert {row.deaths is None for row in landed} == {True}
    fill(channel, "d.land", None)
    land_the_rest(spark, broker, "d.land", tmp_path / "table")
    assert spark.read.parquet(str(tmp_path / "table")).count() == 5
