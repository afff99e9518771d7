"""Transactions as Spark sees them: staged messages in the account, commits in the ledger."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
from pyspark.sql import SparkSession

from tallymark.spark.client import Endpoint
from tallymark.wire.amqp10.events import TransfersReceived
from tallymark.wire.amqp10.outcomes import Accepted, Rejected, Released, TransactionalState
from tallymark.wire.amqp10.sections import encode_message
from tests.spark import both
from tests.support.amqp10_socket import Client
from tests.support.process import BrokerProcess

pytestmark = pytest.mark.spark

PERSISTENT = pika.BasicProperties(delivery_mode=2)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """One whose ledger has nobody else's transactions."""
    with BrokerProcess(tmp_path / "data", heartbeat_s="0") as process:
        yield process


def test_lc_5_staged_is_a_term_of_the_equation(spark: SparkSession, broker: BrokerProcess) -> None:
    connection = pika.BlockingConnection(pika.ConnectionParameters(port=broker.amqp_port))
    channel = connection.channel()
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "t.letters"}
    channel.queue_declare("t.work", durable=True, arguments=arguments)
    channel.queue_declare("t.letters", durable=True)
    channel.tx_select()
    for n in range(10):
        channel.basic_publish("", "t.work", b"%d" % n, PERSISTENT)
    channel.tx_commit()
    for _ in range(7):
        channel.basic_get("t.work")
    channel.basic_ack(1)
    channel.basic_reject(2, requeue=False)
    channel.basic_publish("", "t.letters", b"x", PERSISTENT)
    channel.tx_commit()
    channel.basic_ack(3)
    channel.queue_declare("t.work", passive=True)
    channel.tx_rollback()
    channel.basic_ack(4)
    channel.basic_nack(6, multiple=True, requeue=True)
    channel.queue_declare("t.work", passive=True)

    outcome = both.run(spark, broker.data_dir, Endpoint(port=broker.http_port))
    faults = [fault for fault in outcome.faults if fault.queue.startswith("t.")]
    assert faults == []
    found = {one.queue: one for one in outcome.accounts}
    work = found["t.work"]
    assert (work.entered, work.settled, work.dead_lettered, work.difference) == (10, 1, 1, 0)
    there = {name: n for name, n in work.still_there.items() if n}
    assert there == {"ready": 3, "acquired": 1, "staged": 4}
    assert (found["t.letters"].entered, found["t.letters"].difference) == (2, 0)

    number = broker.queues()["t.work"]["id"]
    rows = spark.read.format("tallymark").option("ledger", str(broker.data_dir)).load()
    told = (
        rows.where(f"queue_id = {number} and kind in ('staged', 'unstaged')")
        .orderBy("position", "row")
        .collect()
    )
    # By message: what was handed out within 20 ms shares a row, and a machine may need longer.
    seen = [
        (row.kind, sequence, row.reason)
        for row in told
        if row.first > 2
        for sequence in range(row.first, row.first + row["count"])
    ]
    assert seen == [
        ("staged", 3, "accepted"),
        ("unstaged", 3, None),
        ("staged", 4, "accepted"),
        ("staged", 3, "failed"),  # a nack with requeue counts toward a delivery limit
        ("staged", 5, "failed"),
        ("staged", 6, "failed"),
    ]
    committed = rows.where("kind = 'committed'").orderBy("position").collect()
    assert [(row["count"], row.other) for row in committed] == [(10, 0), (1, 2)]
    # All rows of a commit are in its block.
    block = rows.where(f"position = {committed[1].position}").collect()
    kinds = [row.kind for row in block]
    assert kinds.count("entered") == 2
    assert {"settled", "dead_lettered"} <= set(kinds)
    connection.close()


def test_tx_15_transactions_of_amqp_10_in_the_account(
    spark: SparkSession, broker: BrokerProcess
) -> None:
    """One that is committed, one that is rolled back, one that is open: as those of 0-9-1."""
    with pika.BlockingConnection(pika.ConnectionParameters(port=broker.amqp_port)) as connection:
        channel = connection.channel()
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "t10.letters"}
        channel.queue_declare("t10.work", durable=True, arguments=arguments)
        channel.queue_declare("t10.letters", durable=True)
        for n in range(10):
            channel.basic_publish("", "t10.work", b"%d" % n, PERSISTENT)
        channel.queue_declare("t10.work", passive=True)
    with Client(socket.create_connection(("127.0.0.1", broker.amqp_port))) as client:
        client.login()
        session = client.session()
        control = client.coordinator(session)
        sender = client.sender(session, "t10.letters")
        receiver = client.receiver(session, "t10.work")
        receiver.flow(7)
        ids: list[int] = []
        while len(ids) < 7:
            event = client.next_of(TransfersReceived)
            ids += range(event.first, event.first + len(event))

        def settle(id: bytes, at: int, outcome: Accepted | Rejected | Released) -> None:
            client.dispose(session, ids[at], TransactionalState(id, outcome), False)

        one, two, three = [client.declare(control) for _ in range(3)]
        settle(one, 0, Accepted())
        settle(one, 1, Rejected())
        client.outcome(sender.send(encode_message(body=b"x"), state=TransactionalState(one)))
        settle(two, 2, Accepted())
        settle(three, 3, Accepted())
        client.discharge(control, client.declare(control), False)  # the ledger has been told
        settle(three, 3, Released())
        client.discharge(control, one, False)
        client.discharge(control, two, True)

        outcome = both.run(spark, broker.data_dir, Endpoint(port=broker.http_port))
        assert [fault for fault in outcome.faults if fault.queue.startswith("t10.")] == []
        found = {account.queue: account for account in outcome.accounts}
        work = found["t10.work"]
        assert (work.entered, work.settled, work.dead_lettered, work.difference) == (10, 1, 1, 0)
        there = {name: n for name, n in work.still_there.items() if n}
        assert there == {"ready": 3, "acquired": 4, "staged": 1}
        assert (found["t10.letters"].entered, found["t10.letters"].difference) == (2, 0)
        number = broker.queues()["t10.work"]["id"]
        rows = spark.read.format("tallymark").option("ledger", str(broker.data_dir)).load()
        told = (
            rows.where(f"queue_id = {number} and kind in ('staged', 'unstaged') and first > 2")
            .orderBy("position", "row")
            .collect()
        )
        assert sorted((row.first, row.kind, str(row.reason)) for row in told) == [
            (3, "staged", "accepted"),
            (3, "unstaged", "None"),
            (4, "staged", "accepted"),
            (4, "staged", "returned"),
            (4, "unstaged", "None"),
        ]
        owners = {row.owner for row in told if row.first == 4}
        assert owners == {int.from_bytes(three, "big")}
        committed = rows.where(f"kind = 'committed' and owner = {int.from_bytes(one, 'big')}")
        assert [(row["count"], row.other) for row in committed.collect()] == [(1, 2)]
