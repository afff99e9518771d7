"""format("tallymark") as a sink, and verdicts: what is written arrives whole and once."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pika
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from tallymark.spark.sink_options import SinkOptions
from tallymark.spark.starting import begin
from tallymark.spark.verdicts import ranges, send_verdicts
from tests.spark.rig import PATIENCE_S, SUBSCRIPTION, publish, stat, stream
from tests.support.process import BrokerProcess

pytestmark = pytest.mark.spark


def declare(broker: BrokerProcess, queue: str, arguments: dict[str, Any] | None = None) -> None:
    parameters = pika.ConnectionParameters(port=broker.amqp_port)
    with pika.BlockingConnection(parameters) as connection:
        connection.channel().queue_declare(queue, durable=True, arguments=arguments)
        connection.channel().queue_bind(queue, "amq.direct", queue)


def contents(broker: BrokerProcess, queue: str) -> list[tuple[pika.BasicProperties, bytes]]:
    """Take everything out of a queue."""
    found = []
    parameters = pika.ConnectionParameters(port=broker.amqp_port)
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        while True:
            method, properties, body = channel.basic_get(queue, auto_ack=True)
            if method is None:
                return found
            found.append((properties, body))


def write(rows: DataFrame, broker: BrokerProcess, **options: object) -> None:
    given = {name: str(value) for name, value in options.items()}
    rows.write.format("tallymark").option("url", broker.url).options(**given).mode("append").save()


def sinks(broker: BrokerProcess, name: str) -> dict[str, Any]:
    """The sinks whose name begins so, by name; and under "" what waits for a commit."""
    answer = broker.http("GET", "/api/tallymark/sinks")[1]
    found = {row["name"]: row for row in answer["sinks"] if row["name"].startswith(name)}
    found[""] = [row for row in answer["stagings"] if row["sink"].startswith(name)]
    return found


def test_columns_are_properties_and_a_batch_id_is_written_once(
    spark: SparkSession, broker: BrokerProcess
) -> None:
    declare(broker, "w.props")
    when = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
    rows = spark.createDataFrame(
        [
            ("m1", b"one", {"kind": "a", "n": "1"}, 7, when, "text/plain", "app"),
            ("m2", "zwei \U0001f600".encode(), None, None, None, None, None),
            ("m3", bytes(300_000), {}, 0, when, None, None),
        ],
        "message_id string, body binary, headers map<string,string>, priority int, "
        "app_timestamp timestamp, content_type string, app_id string",
    ).coalesce(1)
    named = {"queue": "w.props", "sink": "w.props", "checkpoint": "c"}
    write(rows, broker, **named, batchId=3)
    write(rows, broker, **named, batchId=3)
    first, second, third = contents(broker, "w.props")
    assert first[0].headers == {"kind": "a", "n": "1"}
    assert (first[0].priority, first[0].content_type, first[0].app_id) == (7, "text/plain", "app")
    assert first[0].timestamp == int(when.timestamp())
    assert [one.delivery_mode for one, _ in (first, second, third)] == [2, 2, 2]
    assert (second[0].message_id, second[1]) == ("m2", "zwei \U0001f600".encode())
    assert (second[0].headers, second[0].priority) == (None, None)
    assert third[1] == bytes(300_000)
    with pytest.raises(Exception, match="which has batch 3 already"):
        write(rows, broker, **named, batchId=2)
    with pytest.raises(Exception, match="has batches of 'c', not of 'd'"):
        write(rows, broker, **{**named, "checkpoint": "d"}, batchId=4)
    declare(broker, "w.other")
    with pytest.raises(Exception, match=r"batch 3 .* was written to queue 'w.props', and is not"):
        write(rows, broker, **{**named, "queue": "w.other"}, batchId=3)
    assert contents(broker, "w.props") == []
    assert sinks(broker, "w.props")[""] == [], "what was refused is dropped"


def test_a_write_is_whole_or_not_at_all(spark: SparkSession, broker: BrokerProcess) -> None:
    declare(broker, "w.whole")
    good = spark.range(0, 30_000, 1, 4).selectExpr(
        "cast(id as string) message_id", "concat('line ', id) body", "'w.whole' routing_key"
    )
    write(good, broker, queue="w.whole")
    row = broker.queues()["w.whole"]
    assert (row["entered"], row["ready"]) == (30_000, 30_000)
    poisoned = good.withColumn("body", f.expr("if(message_id = '29999', null, body)"))
    with pytest.raises(Exception, match=r"column 'body' is null.*message_id='29999'"):
        write(poisoned, broker, queue="w.whole")
    lost = good.withColumn("routing_key", f.expr("if(message_id = '7', 'nowhere', 'w.whole')"))
    with pytest.raises(Exception, match=r"routing key 'nowhere'.*reaches no queue"):
        write(lost, broker, exchange="amq.direct")
    assert broker.queues()["w.whole"]["entered"] == 30_000
    assert sinks(broker, "spark.")[""] == []


@pytest.mark.parametrize(
    ("columns", "options", "reason"),
    [
        ("body, 1 as foo", {}, "column 'foo' is no part of a message"),
        ("body, 1 as bodi", {}, "did you mean 'body'"),
        ("1 as body", {}, "column 'body' is of type int, expected binary or string"),
        ("'x' as message_id", {}, "column 'body' is missing"),
        ("body, 'high' as priority", {}, "column 'priority' is of type string, expected tinyint"),
        ("body", {"queue": "", "exchange": "x"}, "column 'routing_key' is missing"),
        ("body", {"batchId": "1"}, "option \"sink\" is missing"),
        ("body", {"batchId": "1", "sink": "s"}, "option \"checkpoint\" is missing"),
        ("body", {"checkpoint": "c"}, "option checkpoint needs batchId"),
        ("body", {"exchange": "x"}, "expected one of these options"),
        ("body", {"que": "x"}, "no option 'que' for writing; did you mean 'queue'"),
        ("body", {"mandatory": "maybe"}, "expected true or false"),
    ],
)  # fmt: skip
def test_what_cannot_be_written_is_said_before_anything_is(
    spark: SparkSession, broker: BrokerProcess, columns: str, options: dict[str, str], reason: str
) -> None:
    rows = spark.range(1).selectExpr("cast('x' as binary) body").selectExpr(*columns.split(", "))
    given = {name: value for name, value in {"queue": "w.q", **options}.items() if value}
    with pytest.raises(Exception, match=reason):
        write(rows, broker, **given)


def test_a_stream_needs_a_name_and_a_writer() -> None:
    for options, reason in (
        ({}, 'option "sink" is missing'),
        ({"sink": "s"}, 'option "checkpoint" is missing'),
        ({"sink": "s", "checkpoint": "c", "batchId": "1"}, "a stream numbers its own"),
    ):
        with pytest.raises(ValueError, match=reason):
            SinkOptions.parse({"queue": "q", **options}).for_stream()


def test_what_was_read_can_be_written_as_it_is(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    declare(broker, "w.out")
    publish(broker, "w.in", 0, 250)
    for _ in range(2):  # the second run finds nothing to do
        query = begin(
            stream(spark, broker, "w.in")
            .writeStream.format("tallymark")
            .options(url=broker.url, queue="w.out", sink="w.copy", checkpoint="c")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .queryName("copy")
            .trigger(availableNow=True)
            .start
        )
        assert query.awaitTermination(int(PATIENCE_S))
    copied = contents(broker, "w.out")
    assert sorted(int(one.message_id) for one, _ in copied) == list(range(250))
    assert all(body == f"line {one.message_id}".encode() for one, body in copied)
    assert sinks(broker, "w.copy")["w.copy"]["batch"] == 2


def test_dl_1_a_poison_message_found_in_spark_is_dead_lettered(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    declare(broker, "v.dead")
    declare(
        broker, "v.in",
        {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "v.dead"},
    )  # fmt: skip
    write(
        spark.range(60).coalesce(1).selectExpr("cast(id as string) message_id", "'x' as body"),
        broker, queue="v.in",
    )  # fmt: skip
    outcome = f.expr(
        "case when int(message_id) % 5 = 0 then 'rejected' when redelivered then 'accepted' "
        "when int(message_id) % 7 = 1 then 'released' when int(message_id) % 7 = 2 then 'modified' "
        "else 'accepted' end"
    )
    told: list[dict[str, int]] = []

    def judge(batch: DataFrame, number: int) -> None:
        rejected = batch.withColumn("outcome", f.lit("rejected"))
        send_verdicts(rejected, "v.in", SUBSCRIPTION, url=broker.url)
        assert broker.queues()["v.in"]["dead_lettered"] == sum(one["rejected"] for one in told)
        checked = batch.withColumn("outcome", outcome)
        told.append(send_verdicts(checked, "v.in", SUBSCRIPTION, url=broker.url))

    while broker.queues()["v.in"]["settled"] < 48:  # what is given back is for a later run
        query = begin(
            stream(spark, broker, "v.in", 40)
            .writeStream.foreachBatch(judge)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start
        )
        assert query.awaitTermination(int(PATIENCE_S))
        assert query.exception() is None
    given_back = [n for n in range(60) if n % 5 and n % 7 in (1, 2)]
    assert sum(one["released"] + one["modified"] for one in told) == len(given_back)
    row = broker.queues()["v.in"]
    assert (row["ready"], row["acquired"], row["dead_lettered"], row["settled"]) == (0, 0, 12, 48)
    letters = contents(broker, "v.dead")
    assert [int(one.message_id) for one, _ in letters] == list(range(0, 60, 5))
    assert letters[0][0].headers["x-death"][0]["reason"] == "rejected"
    assert stat(broker, "v.in")["verdicts"] == 0


def test_verdicts_are_checked_before_they_are_sent(spark: SparkSession) -> None:
    import pyarrow as pa

    rows = spark.range(1)
    with pytest.raises(ValueError, match="column 'lease_sequence' is missing, expected bigint"):
        send_verdicts(rows, "q", "s")
    judged = rows.selectExpr("id as lease_sequence", "'accepted' as outcome")
    with pytest.raises(ValueError, match="column 'lease_fence' is missing, expected bigint"):
        send_verdicts(judged, "q", "s")
    judged = rows.selectExpr("id as lease_sequence", "id as lease_fence", "1 as outcome")
    with pytest.raises(ValueError, match="column 'outcome' is of type int, expected string"):
        send_verdicts(judged, "q", "s")

    two = spark.range(2).selectExpr(
        "id as lease_sequence", "id as lease_fence", "'accepted' as outcome"
    )
    with pytest.raises(
        ValueError, match=r"column 'lease_fence' is 0 and 1: .* one after the other"
    ):
        send_verdicts(two, "q", "s")

    def found(*pairs: tuple[int | None, str | None]) -> list[tuple[int, int, str]]:
        numbers = pa.chunked_array([pa.array([a for a, _ in pairs], pa.int64())])
        return ranges(numbers, pa.chunked_array([pa.array([b for _, b in pairs], pa.string())]))

    assert found() == []
    some = found((4, "rejected"), (2, "accepted"), (3, "accepted"), (3, "accepted"))
    assert some == [(2, 2, "accepted"), (4, 1, "rejected")]
    with pytest.raises(ValueError, match="lease sequence 3 is accepted and rejected"):
        found((3, "accepted"), (3, "rejected"))
    with pytest.raises(ValueError, match="column 'outcome' is None, expected one of accepted"):
        found((3, None))
    with pytest.raises(ValueError, match="column 'lease_sequence' is null"):
        found((None, "accepted"))
