"""Sinks and verdicts in the account: what was committed, repeated, refused, left behind and judged
makes no difference in it, and what is forged is named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from tallymark.spark import pipelines
from tallymark.spark.account import Account, Reconciliation
from tallymark.spark.claims import claims_of_checkpoint
from tallymark.spark.client import BrokerRefused, Endpoint
from tallymark.spark.sink import BatchWriter
from tallymark.spark.sink_options import SinkOptions
from tests.spark import both
from tests.support.long import long
from tests.support.process import BrokerProcess

pytestmark = pytest.mark.spark

MESSAGES = 60
LEASE = "/api/tallymark/subscriptions/%2F/k.in/job"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """One that is killed."""
    with BrokerProcess(tmp_path / "data", heartbeat_s="0") as process:
        yield process


def prepare(broker: BrokerProcess) -> None:
    """k.in with 60 messages, whose dead letters go to k.dead; and behind an exchange k.out, which
    keeps all, and k.short, which keeps five and lets the oldest die."""
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "k.dead"}
    with pika.BlockingConnection(pika.ConnectionParameters(port=broker.amqp_port)) as connection:
        channel = connection.channel()
        channel.exchange_declare("k.both", "fanout", durable=True)
        channel.queue_declare("k.dead", durable=True)
        channel.queue_declare("k.in", durable=True, arguments=dead)
        channel.queue_declare("k.out", durable=True)
        channel.queue_declare("k.short", durable=True, arguments={**dead, "x-max-length": 5})
        for queue in ("k.out", "k.short"):
            channel.queue_bind(queue, "k.both")
        channel.confirm_delivery()
        for number in range(MESSAGES):
            properties = pika.BasicProperties(delivery_mode=2, message_id=str(number))
            channel.basic_publish("", "k.in", b"%d" % number, properties)


def sink(broker: BrokerProcess, batch: int, checkpoint: str = "c") -> BatchWriter:
    options = {
        "url": broker.url, "exchange": "k.both", "routingKey": "x", "sink": "k",
        "checkpoint": checkpoint, "batchId": str(batch),
    }  # fmt: skip
    return BatchWriter(SinkOptions.parse(options).for_batch())


def stage(writer: BatchWriter, numbers: list[int]) -> Any:
    ids = pa.array([str(number) for number in numbers])
    rows = pa.RecordBatch.from_arrays([ids, ids.cast(pa.binary())], ["message_id", "body"])
    return writer.write(iter([rows]))


def ask(broker: BrokerProcess, operation: str, **body: object) -> dict[str, Any]:
    status, answer = broker.http("POST", f"{LEASE}/{operation}", body)
    assert status == 200, answer
    return dict(answer)


def account(outcome: Reconciliation, name: str) -> Account:
    return next(one for one in outcome.accounts if one.queue == name)


def there(outcome: Reconciliation, name: str) -> dict[str, int]:
    return {state: n for state, n in account(outcome, name).still_there.items() if n}


def first_half(broker: BrokerProcess) -> None:
    """Lease sequences 0..29 are settled: 20 accepted, 6 rejected, 4 given back. 30..49 are leased,
    with verdicts that wait. Of the sink, a batch is committed twice, one is refused, one waits."""
    holder = ask(broker, "attach")
    mine = {"fence": holder["fence"], "epoch": holder["epoch"]}
    ask(broker, "lease", **mine, start=0, max_rows=50)
    ask(broker, "verdicts", fence=holder["fence"], verdicts=[[0, 50, "rejected"]])
    said = [[0, 50, "accepted"], [4, 6, "rejected"], [20, 2, "released"], [28, 2, "modified"]]
    ask(broker, "verdicts", fence=holder["fence"], verdicts=[*said, [40, 5, "rejected"]])
    accepted = [*range(4), *range(10, 20), *range(22, 28)]
    writer = sink(broker, 0)
    writer.commit([stage(writer, accepted[:7]), stage(writer, accepted[7:])])
    writer.commit([stage(writer, accepted)])
    other = sink(broker, 1, "another")
    refused = stage(other, [1, 2, 3])
    with pytest.raises(BrokerRefused, match="has batches of 'c', not of 'another'"):
        other.commit([refused])
    other.abort([refused])
    stage(sink(broker, 1), [7, 8, 9])  # of a task that was killed
    ask(broker, "settle", **mine, end=30)


def second_half(broker: BrokerProcess) -> None:
    """After a crash the rest is leased, judged and settled; the batch is committed, and then again
    by one who does not know that it was."""
    holder = ask(broker, "attach")
    assert holder["floor"] == 30
    mine = {"fence": holder["fence"], "epoch": holder["epoch"]}
    end = ask(broker, "lease", **mine, start=50, max_rows=100)["end"]
    assert end == MESSAGES + 4, "four came back"
    ask(broker, "verdicts", fence=holder["fence"], verdicts=[[end - 1, 1, "rejected"]])
    writer = sink(broker, 1)
    for _ in range(2):
        writer.commit([stage(writer, list(range(30)))])
    ask(broker, "settle", **mine, end=end)


@long(ci=False)
def test_lc_5_what_sinks_and_verdicts_did_balances_and_what_is_forged_is_named(
    spark: SparkSession, broker: BrokerProcess
) -> None:
    prepare(broker)
    first_half(broker)
    outcome = both.run(spark, broker.data_dir, Endpoint(port=broker.http_port))
    assert (outcome.faults, {one.difference for one in outcome.accounts}) == ([], {0})
    judged = account(outcome, "k.in")
    assert (judged.entered, judged.settled, judged.dead_lettered) == (60, 20, 6)
    assert there(outcome, "k.in") == {"ready": 14, "acquired": 20}
    assert [(one.queue, one.count) for one in outcome.returned] == [("k.in", 4)]
    assert there(outcome, "k.out") == {"ready": 20}, "what is staged is in no queue"
    assert (account(outcome, "k.short").dead_lettered, there(outcome, "k.short")) == (
        15, {"ready": 5},
    )  # fmt: skip
    letters = {(one.source, one.target): one.count for one in outcome.letters}
    assert letters == {("k.in", "k.dead"): 6, ("k.short", "k.dead"): 15}

    broker.kill()
    broker.restart()
    second_half(broker)
    broker.stop()
    outcome = both.run(spark, broker.data_dir, None, hourly=True)
    assert outcome.balanced, (outcome.faults, outcome.accounts, outcome.hours)
    judged = account(outcome, "k.in")
    assert (judged.entered, judged.settled, judged.dead_lettered) == (60, 48, 12)
    assert there(outcome, "k.in") == {}
    assert there(outcome, "k.out") == {"ready": 50}
    assert account(outcome, "k.short").dead_lettered == 45
    forge(pipelines.read_ledger(spark, broker.data_dir).cache())


def forge(rows: DataFrame) -> None:
    """What was settled with sequence 11 is not any more, nor did what died with 41; and k.out got
    batch 1 of the sink twice."""
    position, claims = claims_of_checkpoint(rows)
    numbers = {claim.name: claim.id for claim in claims}
    own, out = f"queue_id = {numbers['k.in']}", f"queue_id = {numbers['k.out']}"
    settled = rows.where(f"{own} and kind = 'settled' and first <= 11 and first + count > 11")
    died = rows.where(f"{own} and kind = 'dead_lettered' and first = 41")
    batch = rows.where(f"{out} and kind = 'entered' and first > 20")
    entered = pipelines.transitions(rows).where(f"{own} and event = 'entered'")
    ids = {row.sequence: row.message_id for row in entered.collect()}
    expected = {}
    left = rows
    for told in (settled, died):
        (row,) = told.collect()
        left = left.where((f.col("position") != row.position) | (f.col("row") != row.row))
        for sequence in range(row["first"], row["first"] + row["count"]):
            expected[("k.in", sequence)] = ("neither ended nor there: lost", ids[sequence])
    outcome = both.reconcile(left.unionAll(batch), position, claims)
    named = {
        (one.queue, sequence): (one.fault, one.message_id and one.message_id + sequence - one.first)
        for one in outcome.faults
        for sequence in range(one.first, one.last + 1)
    }
    assert {at: said for at, said in named.items() if at[0] == "k.in"} == expected
    twice = {at: said[0] for at, said in named.items() if at[0] != "k.in"}
    of_broker = {at: said for at, said in twice.items() if said.startswith("entered: ")}
    assert set(of_broker.values()) == {"entered: 50 by the broker, 80 here"}
    assert {at: said for at, said in twice.items() if at not in of_broker} == {
        ("k.out", sequence): "entered more than once" for sequence in range(21, 51)
    }
    assert set(expected) >= {("k.in", 11), ("k.in", 41)}
