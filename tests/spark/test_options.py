"""Options, offsets and spans of format("tallymark"): mistakes are told before anything is asked."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tallymark.spark import ledger, schema
from tallymark.spark.client import BrokerUnreachable, Client, Endpoint, api_path
from tallymark.spark.command import cause
from tallymark.spark.land import trigger_arguments
from tallymark.spark.options import FEWEST_ROWS, KNOWN, OF_KAFKA, SourceOptions
from tallymark.spark.session import local_master
from tallymark.spark.sink_options import OF_KAFKA as KAFKA_SINK
from tallymark.spark.sink_options import SinkOptions
from tallymark.spark.source import QueueStream, TallymarkDataSource
from tests.spark.rig import ROOT


def test_an_unknown_option_is_refused_and_the_nearest_named() -> None:
    with pytest.raises(ValueError, match="did you mean 'subscription'"):
        SourceOptions.parse({"subscribtion": "s"})


def test_of_a_table_of_the_catalog_only_its_options_are_read() -> None:
    table = {
        "provider": "tallymark", "owner": "ann", "location": "file:/t", "comment": "", "team": "x",
        "queue": "q", "option.queue": "q", "maxRows": "7", "option.maxRows": "7",
    }  # fmt: skip
    options = SourceOptions.parse(table)
    assert (options.queue, options.max_rows) == ("q", 7)
    assert SinkOptions.parse({"provider": "tallymark", "option.queue": "q"}).routing_key == "q"
    with pytest.raises(ValueError, match="did you mean 'queue'"):
        SourceOptions.parse({**table, "option.queu": "q"})


def test_what_spark_adds_to_the_options_of_a_write_is_passed_over() -> None:
    sparks = {"path": "p", "checkpointlocation": "c", "queryname": "orders"}
    assert SinkOptions.parse({"queue": "q", **sparks}) == SinkOptions.parse({"queue": "q"})


def test_names_of_options_have_no_case() -> None:
    assert SourceOptions.parse({"maxrows": "7", "QUEUE": "q"}).max_rows == 7


@pytest.mark.parametrize(
    "given",
    [{"maxRows": "0"}, {"maxRows": "many"}, {"partitions": "-1"}, {"columns": "sequence, bdy"}],
)
def test_a_value_out_of_range_is_refused(given: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"expected|did you mean 'body'"):
        SourceOptions.parse(given)


def test_a_port_that_is_none_is_refused() -> None:
    assert SourceOptions.parse({"port": "65535"}).endpoint.port == 65_535
    for port in ("0", "65536", "http"):
        with pytest.raises(ValueError, match=f"option port='{port}': expected .*65535"):
            SourceOptions.parse({"port": port})


def test_async_progress_tracking_is_refused() -> None:
    with pytest.raises(ValueError, match="asyncProgressTrackingEnabled is refused"):
        SourceOptions.parse({"asyncProgressTrackingEnabled": "true"})


def test_a_stream_needs_a_subscription_and_a_queue() -> None:
    with pytest.raises(ValueError, match='"subscription" is missing'):
        SourceOptions.parse({"queue": "q"}).for_stream()
    with pytest.raises(ValueError, match='"queue" is missing'):
        SourceOptions.parse({"subscription": "s"}).for_stream()


def test_url_gives_host_port_and_login() -> None:
    endpoint = SourceOptions.parse({"url": "http://ann:pw@broker:99"}).endpoint
    assert (endpoint.host, endpoint.port, endpoint.user, endpoint.password) == (
        "broker", 99, "ann", "pw",
    )  # fmt: skip
    with pytest.raises(ValueError, match="leave these options out"):
        SourceOptions.parse({"url": "http://broker:99", "port": "1"})
    with pytest.raises(ValueError, match="expected http"):
        Endpoint.from_url("ftp://broker")


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(1, 64))
def test_spans_cover_a_range_once(first: int, rows: int, partitions: int) -> None:
    options = SourceOptions(partitions=partitions)
    spans = options.spans(first, first + rows)
    at = first
    for low, high in spans:
        assert low == at < high
        at = high
    assert at == first + rows
    assert len(spans) <= max(1, min(partitions, -(-rows // FEWEST_ROWS)))


@pytest.mark.spark
def test_the_schema_is_what_spark_makes_of_the_ddl(spark: SparkSession) -> None:
    names = tuple(schema.BY_NAME)
    spark_type = StructType.fromDDL(schema.ddl(names))
    assert to_arrow_schema(spark_type, timezone="UTC") == schema.arrow(names)


@pytest.mark.spark
def test_the_ledgers_schema_is_what_spark_makes_of_its_ddl(spark: SparkSession) -> None:
    assert to_arrow_schema(StructType.fromDDL(ledger.DDL), timezone="UTC") == ledger.SCHEMA


def test_a_reader_pickles_without_its_connection() -> None:
    source = TallymarkDataSource({"queue": "q", "subscription": "s"})
    reader = source.streamReader(None)  # type: ignore[arg-type]
    assert isinstance(reader, QueueStream)
    copy = pickle.loads(pickle.dumps(reader))
    assert copy._options == reader._options


def test_an_offset_of_another_subscription_is_refused() -> None:
    reader = QueueStream(SourceOptions.parse({"queue": "q", "subscription": "mine"}))
    with pytest.raises(ValueError, match="belongs to subscription 'theirs'"):
        reader._sequence({"subscription": "theirs", "epoch": 0, "seq": 1})
    with pytest.raises(ValueError, match="deleted and made again"):
        reader._sequence({"subscription": "mine", "epoch": 9, "seq": 1})


def test_a_broker_that_never_answers_is_named() -> None:
    client = Client(Endpoint(port=1, retry_ms=60))
    with pytest.raises(
        BrokerUnreachable, match=r"127\.0\.0\.1:1/api/tallymark/status: no answer within 60"
    ):
        client.call("GET", api_path("status"))


def test_triggers() -> None:
    assert trigger_arguments("available-now") == {"availableNow": True}
    assert trigger_arguments("500ms") == {"processingTime": "500 milliseconds"}
    with pytest.raises(ValueError, match="expected available-now or a period such as 30s"):
        trigger_arguments("soon")


def test_local_masters_try_tasks_again() -> None:
    assert local_master("local[2]") == "local[2,4]"
    assert local_master("local[2,1]") == "local[2,1]"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("tallymark.spark.client.Fenced: /api/x: attached again (HTTP 409, fenced)",
         "Fenced: /api/x: attached again (HTTP 409, fenced)"),
        ("tallymark.spark.bodies.NoSchema: no body is JSON", "NoSchema: no body is JSON"),
        ("pyspark.errors.PySparkRuntimeError: out of order", "PySparkRuntimeError: out of order"),
        ("java.io.IOException: no space left", "IOException: no space left"),
        ("py4j.protocol.Py4JJavaError: An error occurred while calling o65.parquet.\n"
         ": org.apache.spark.SparkException: Job aborted: Lost task 0.3\n"
         "\tat org.apache.spark.errors.SparkErrors.failed(SparkErrors.scala:83)\n"
         "Caused by: java.io.IOException: Mkdirs failed", "IOException: Mkdirs failed"),
        ("pyspark.errors.PythonException: An exception was thrown from the Python worker:\n"
         "ZeroDivisionError: division by zero", "ZeroDivisionError: division by zero"),
    ],
)  # fmt: skip
def test_the_cause_of_a_spark_error_is_its_python_line(line: str, said: str) -> None:
    error = RuntimeError(
        "[STREAM_FAILED] Query [id = 1] terminated with exception: boom\n"
        f"Traceback (most recent call last):\n{line}\n"
    )
    assert cause(error) == said


KAFKAS = [
    "assign",
    "subscribe",
    "subscribePattern",
    "kafka.bootstrap.servers",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "endingOffsets",
    "failOnDataLoss",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "groupIdPrefix",
    "kafka.group.id",
    "includeHeaders",
    "startingOffsetsByTimestampStrategy",
    "topic",
    "kafka.transactional.id",
    "kafka.security.protocol",
    "spark.kafka.consumer.cache.*",
    "spark.kafka.consumer.fetchedData.cache.*",
    "spark.kafka.producer.cache.*",
    "spark.kafka.clusters.*",
    "kafka.ssl.*",
    "kafka.sasl.*",
    "spark.sql.streaming.kafka.useDeprecatedOffsetFetching",
]
"""Options of Spark 4's guide to Kafka, of the source, the sink and their configuration."""


def test_the_page_has_each_option_of_kafkas() -> None:
    page = (ROOT / "docs/spark.md").read_text()
    table = page.partition("| Kafka's source |")[2].partition("## Bodies as data")[0]
    named = {part for line in table.splitlines() for part in line.split("|")[1:2]}
    left = " ".join(named)
    assert [name for name in (*KAFKAS, *OF_KAFKA, *KAFKA_SINK) if f"`{name}`" not in left] == []


@pytest.mark.parametrize(("theirs", "ours"), OF_KAFKA.items())
def test_an_option_of_kafkas_is_told_what_it_is_here(theirs: str, ours: str) -> None:
    assert ours in KNOWN
    with pytest.raises(ValueError, match=f"{theirs}.* is of Kafka.*{ours}"):
        SourceOptions.parse({theirs: "x", "queue": "q"})


@pytest.mark.parametrize(("theirs", "ours"), KAFKA_SINK.items())
def test_an_option_of_kafkas_sink_is_told_what_it_is_here(theirs: str, ours: str) -> None:
    with pytest.raises(ValueError, match=f"{theirs}.* is of Kafka.*{ours}"):
        SinkOptions.parse({theirs: "x", "queue": "q"})


def test_an_option_of_kafkas_client_that_nothing_answers_to_is_told_so() -> None:
    for name in ("kafka.isolation.level", "kafka.linger.ms"):
        with pytest.raises(ValueError, match=f"{name}.* is of Kafka.*nothing to set"):
            SourceOptions.parse({name: "x", "queue": "q"})
    with pytest.raises(ValueError, match=r"kafka\.ssl\.keystore\.location.*'certFile'"):
        SinkOptions.parse({"kafka.ssl.keystore.location": "x", "queue": "q"})


def test_every_option_of_the_source_and_of_kafkas_is_in_the_docs() -> None:
    page = (Path(__file__).parents[2] / "docs/spark.md").read_text()
    refused = {"asyncProgressTrackingEnabled"}
    missing = [name for name in (*KNOWN, *OF_KAFKA, *KAFKA_SINK) if f"`{name}`" not in page]
    assert set(missing) - refused == set()


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"queue": "q", "subscription": "s"}, "one queue"),
        ({"stream": "q"}, "one stream"),
        ({"subscribe": "q", "subscription": "s"}, "several queues"),
        ({"streams": "q"}, "several streams"),
    ],
)
def test_a_checkpoint_of_another_way_to_read_is_refused(
    options: dict[str, str], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(QueueStream, "_attach", lambda self: None)
    queue = {"subscription": "s", "epoch": 0, "seq": 5}
    stream = {"stream": "q", "id": 1, "offset": 5}
    offsets = {
        "one queue": queue, "one stream": stream, "several queues": {"queues": {"q": queue}},
        "several streams": {"streams": {"q": stream}},
    }  # fmt: skip
    reader = TallymarkDataSource(options).streamReader(StructType())  # type: ignore[arg-type]
    for other in offsets.keys() - {what}:
        with pytest.raises(ValueError, match=f"the checkpoint is not of {what}, but has"):
            reader.partitions(offsets[other], offsets[other])
