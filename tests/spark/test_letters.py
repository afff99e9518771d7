"""Dead letters as Spark sees them: in a queue, in a landed table, and in the account."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pyspark.sql import SparkSession
from rich.console import Console

from tallymark.spark.account import STILL_THERE, Account, Letters, Reconciliation, Returned
from tallymark.spark.client import Endpoint
from tallymark.spark.reconcile_table import show
from tests.spark import both
from tests.spark.rig import land_the_rest
from tests.spark.test_source import browse
from tests.support.patience import until
from tests.support.process import BrokerProcess

pytestmark = pytest.mark.spark


@pytest.fixture
def channel(broker: BrokerProcess) -> BlockingChannel:
    connection = pika.BlockingConnection(pika.ConnectionParameters(port=broker.amqp_port))
    channel = connection.channel()
    channel.confirm_delivery()
    return channel


def queue(channel: BlockingChannel, name: str, durable: bool = True, **arguments: object) -> None:
    """Arguments with _ for -, without their x-."""
    table = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    channel.queue_declare(name, durable=durable, arguments=table)


def to(key: str) -> dict[str, object]:
    return {"dead_letter_exchange": "", "dead_letter_routing_key": key}


def fill(channel: BlockingChannel, queue: str, count: int, **properties: object) -> None:
    for number in range(count):
        made = pika.BasicProperties(delivery_mode=2, message_id=str(number), **properties)
        channel.basic_publish("", queue, f"line {number}".encode(), made)


def refuse(channel: BlockingChannel, queue: str, count: int) -> None:
    for _ in range(count):
        method, _, _ = channel.basic_get(queue)
        assert method is not None
        channel.basic_reject(method.delivery_tag, requeue=False)
    channel.queue_declare(queue, passive=True)


def account(outcome: Reconciliation, name: str) -> Account:
    return next(one for one in outcome.accounts if one.queue == name)


def test_dl_10_dl_12_a_landed_letter_has_its_history(
    spark: SparkSession, broker: BrokerProcess, channel: BlockingChannel, tmp_path: Path
) -> None:
    queue(channel, "l.work", **to("l.retry"))
    queue(channel, "l.retry", message_ttl=20, **to("l.parked"))
    queue(channel, "l.parked")
    fill(channel, "l.work", 4, expiration="600000", headers={"CC": ["also"]})
    refuse(channel, "l.work", 3)
    fill(channel, "l.parked", 1)
    until(lambda: broker.queues()["l.parked"]["ready"] == 4, what="letters are parked")
    seen = browse(spark, broker, "l.parked").orderBy("sequence").collect()
    land_the_rest(spark, broker, "l.parked", tmp_path / "table")
    landed = spark.read.parquet(str(tmp_path / "table")).orderBy("sequence").collect()
    for rows in (seen, landed):
        plain = [row for row in rows if row.deaths is None]
        letters = [row for row in rows if row.deaths is not None]
        assert [row.first_death for row in plain] == [None]
        assert [row.message_id for row in letters] == ["0", "1", "2"]
        for row in letters:
            assert (row.exchange, row.routing_key, row.expiration) == ("", "l.parked", None)
            assert not row.malformed
            expired, rejected = row.deaths
            assert tuple(expired)[:3] == ("l.retry", "expired", 1)
            assert (rejected.queue, rejected.reason) == ("l.work", "rejected")
            assert rejected.routing_keys == ["l.work", "also"]
            assert (rejected.original_expiration, expired.original_expiration) == ("600000", None)
            assert tuple(row.first_death) == ("rejected", "l.work", "")
            assert tuple(row.last_death) == ("expired", "l.retry", "")
            age = datetime.now(UTC) - rejected.first_time.astimezone(UTC)
            assert timedelta(0) <= age < timedelta(minutes=10)
            assert expired.first_time - rejected.first_time >= timedelta(milliseconds=20)


def test_letters_of_every_way_balance_and_are_followed(
    spark: SparkSession, broker: BrokerProcess, channel: BlockingChannel
) -> None:
    channel.exchange_declare("a.spread", "fanout", durable=True)
    queue(channel, "a.work", dead_letter_exchange="a.spread")
    queue(channel, "a.one")
    queue(channel, "a.two")
    queue(channel, "a.passing", durable=False)
    for name in ("a.one", "a.two", "a.passing"):
        channel.queue_bind(name, "a.spread")
    fill(channel, "a.work", 9)
    refuse(channel, "a.work", 5)
    # Nothing of it is stored but that it left.
    queue(channel, "a.leaving", **to("a.passing"))
    fill(channel, "a.leaving", 3)
    refuse(channel, "a.leaving", 3)
    queue(channel, "a.coming", durable=False, **to("a.one"))
    fill(channel, "a.coming", 2)
    refuse(channel, "a.coming", 2)
    # Full: what is refused goes on at once.
    full = {"max_length": 1, "overflow": "reject-publish-dlx"}
    queue(channel, "a.full", **full, **to("a.two"))
    with pytest.raises(pika.exceptions.NackError):
        fill(channel, "a.full", 2)
    queue(channel, "a.before", **to("a.full"))
    fill(channel, "a.before", 2)
    refuse(channel, "a.before", 2)
    # Nowhere to go: pending, then purged away or taken after all.
    waits = {"overflow": "reject-publish", "dead_letter_strategy": "at-least-once"}
    queue(channel, "a.waiting", dead_letter_exchange="a.none", **waits)
    fill(channel, "a.waiting", 4)
    refuse(channel, "a.waiting", 3)
    # A circle without a client's decision.
    queue(channel, "a.circle", message_ttl=1, **to("a.circle"))
    fill(channel, "a.circle", 2)
    until(lambda: broker.queues()["a.circle"]["ready"] == 0, what="the circle is over")
    outcome = both.run(spark, broker.data_dir, Endpoint(port=broker.http_port))
    assert [fault for fault in outcome.faults if fault.queue.startswith("a.")] == []
    assert {one.difference for one in outcome.accounts} == {0}
    ends = {
        name: (found.dead_lettered, found.still_there["dead_letter_pending"], found.dropped)
        for name in ("a.work", "a.leaving", "a.before", "a.full", "a.waiting", "a.circle")
        for found in [account(outcome, name)]
    }
    assert ends == {
        "a.work": (5, 0, {}),
        "a.leaving": (3, 0, {}),
        "a.before": (2, 0, {}),
        "a.full": (3, 0, {}),
        "a.waiting": (0, 3, {}),
        "a.circle": (0, 0, {"dead_letter_cycle": 2}),
    }
    moved = {(one.source, one.target): one.count for one in outcome.letters}
    assert moved[("a.work", "a.one")] == moved[("a.work", "a.two")] == 5
    assert moved[("a.coming", "a.one")] == 2
    assert moved[("a.before", "a.full")] == 2
    assert moved[("a.full", "a.two")] == 3  # two of a.before, one published

    channel.exchange_declare("a.none", "fanout", durable=True)
    channel.queue_bind("a.one", "a.none")
    channel.queue_declare("a.one", passive=True)
    again = both.run(spark, broker.data_dir, Endpoint(port=broker.http_port))
    assert [fault for fault in again.faults if fault.queue.startswith("a.")] == []
    assert account(again, "a.waiting").dead_lettered == 3
    pending = spark.read.format("tallymark").option("ledger", str(broker.data_dir)).load()
    rows = pending.where("kind in ('pending', 'dead_lettered')").collect()
    assert {(row.kind, row.reason) for row in rows} >= {
        ("pending", "rejected"),
        ("dead_lettered", "maxlen"),
    }


def test_what_was_dropped_and_returned_and_where_letters_went_is_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    there = dict.fromkeys(STILL_THERE, 0)
    accounts = [
        Account("work", "/", 9, there, 1, 5, {"maxlen": 2, "expired": 1}, 0),
        Account("parked", "/", 5, there | {"dead_letter_pending": 5}, 0, 0, {}, 0),
    ]
    returned = [Returned("work", "timeout", 1234)]
    letters = [Letters("work", "parked", 5)]
    outcome = Reconciliation(64, accounts, letters=letters, returned=returned)
    console = Console(width=80, record=True)
    show(outcome, console=console)
    text = console.export_text()
    assert "dropped from work: 1 expired, 2 maxlen" in text
    assert "dead letters from work to parked: 5" in text
    assert "deliveries returned to work: 1,234 by timeout" in text
    assert "lettered" in text
    assert "pending" in text
    assert max(map(len, text.splitlines())) <= 80
    capsys.readouterr()
    show(outcome, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["letters"] == [{"source": "work", "target": "parked", "count": 5}]
    assert told["returned"] == [{"queue": "work", "reason": "timeout", "count": 1234}]
