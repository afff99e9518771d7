"""format("tallymark") with option `stream`, against a real broker: ranges, following from a
checkpoint, what retention took, and the journal's files read in place."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from tallymark.spark import schema
from tallymark.spark.blocks import blocks
from tallymark.spark.client import Client, Endpoint, Gone
from tallymark.spark.command import cause
from tallymark.spark.decode import decode_offsets
from tallymark.spark.options import SourceOptions
from tallymark.spark.source import TallymarkDataSource
from tallymark.spark.starting import begin
from tallymark.spark.streams import DataLoss, StreamTable, StreamTail, Stretch
from tallymark.stored.layout import COLUMNS, LayoutError
from tallymark.stored.records import PAYLOAD
from tests.support.process import BrokerProcess

pytestmark = pytest.mark.spark

Row = tuple[int, str, bytes]


def publish(
    broker: BrokerProcess, name: str, first: int, count: int, size: int = 0, **arguments: object
) -> None:
    """Messages with message-id and number first, first + 1, ..., all on disk; each a run of its own
    where they are alone."""
    alone = arguments.pop("alone", False)
    asked = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    with pika.BlockingConnection(pika.ConnectionParameters(port=broker.amqp_port)) as connection:
        channel = connection.channel()
        channel.queue_declare(name, durable=True, arguments={"x-queue-type": "stream", **asked})
        for number in range(first, first + count):
            if number == first + count - 1:
                channel.confirm_delivery()  # it is behind all others on disk
            properties = pika.BasicProperties(
                delivery_mode=2, message_id=str(number), headers={"n": str(number % 3)},
                expiration="100000" if alone else None,
            )  # fmt: skip
            channel.basic_publish("", name, body_of(number, size), properties)


def body_of(number: int, size: int = 0) -> bytes:
    return struct.pack(">Q", number) * (1 + size // 8)


def expected(low: int, high: int, size: int = 0) -> list[Row]:
    return [(number, str(number), body_of(number, size)) for number in range(low, high)]


def table(spark: SparkSession, broker: BrokerProcess, name: str, **options: object) -> Any:
    reader = spark.read.format("tallymark").option("url", broker.url).option("stream", name)
    return reader.options(**options).load()


def rows(frame: Any) -> list[Row]:
    found = frame.select("offset", "message_id", "body").orderBy("offset").collect()
    return [(row.offset, row.message_id, bytes(row.body)) for row in found]


def parsed(broker: BrokerProcess, name: str, **options: object) -> SourceOptions:
    given = {"url": broker.url, "stream": name, "waitMs": 0, "retryMs": 2000, **options}
    return SourceOptions.parse({key: str(value) for key, value in given.items()})


def read(reader: StreamTable | StreamTail, partitions: Any) -> list[Row]:
    return [
        (row["offset"], row["message_id"], row["body"])
        for stretch in partitions
        for batch in reader.read(stretch)
        for row in batch.to_pylist()
    ]


def follow(
    spark: SparkSession, broker: BrokerProcess, name: str, to: Path, **options: object
) -> list[int]:
    """One available-now run over a checkpoint; returns the rows of its batches."""
    reader = spark.readStream.format("tallymark").option("url", broker.url).option("stream", name)
    query = begin(
        reader.options(**options).load().writeStream.format("parquet")
        .option("path", str(to)).option("checkpointLocation", str(to / "_checkpoint"))
        .trigger(availableNow=True).start
    )  # fmt: skip
    query.awaitTermination()
    return [int(one["numInputRows"]) for one in query.recentProgress if one["numInputRows"]]


def test_a_range_is_a_table_and_nothing_is_taken(
    spark: SparkSession, broker: BrokerProcess
) -> None:
    publish(broker, "t", 0, 60)
    everything = table(spark, broker, "t")
    assert tuple(everything.columns) == schema.ALL_OF_STREAM
    assert rows(everything) == expected(0, 60)
    assert {row.headers["n"] for row in everything.collect()} == {"0", "1", "2"}
    times = [row.timestamp for row in everything.orderBy("offset").collect()]
    middle = int(times[30].timestamp() * 1000)
    before = sum(time.timestamp() * 1000 < middle for time in times)
    for options, low, high in (
        ({"startingOffsets": 20, "endingOffsets": 25}, 20, 25),
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, 0, 60),
        ({"startingOffsets": "latest"}, 60, 60),
        ({"startingTimestamp": middle}, before, 60),
        ({"endingTimestamp": middle}, 0, before),
        ({"startingTimestamp": "2000-01-01T00:00:00Z", "endingOffsets": 1000}, 0, 60),
        ({"startingOffsets": 30, "endingOffsets": 10}, 0, 0),
    ):
        reader = StreamTable(parsed(broker, "t", columns="offset, message_id, body", **options))
        assert read(reader, reader.partitions()) == expected(low, high), options
    assert broker.queues()["t"]["ready"] == 60


def test_a_query_goes_on_from_its_checkpoint_in_batches_of_so_many_rows(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    publish(broker, "f", 0, 50)
    earliest: dict[str, object] = {"startingOffsets": "earliest", "maxRowsPerBatch": 20}
    assert follow(spark, broker, "f", tmp_path / "f", **earliest) == [20, 20, 10]
    assert follow(spark, broker, "f", tmp_path / "f", **earliest) == []
    publish(broker, "f", 50, 10)
    # Where it begins is of a new query only.
    latest: dict[str, object] = {"startingOffsets": "latest"}
    assert follow(spark, broker, "f", tmp_path / "f", **latest) == [10]
    assert rows(spark.read.parquet(str(tmp_path / "f"))) == expected(0, 60)
    broker.http("DELETE", "/api/queues/%2F/f")
    publish(broker, "f", 0, 5)
    with pytest.raises(Exception, match="deleted and made again") as refused:
        follow(spark, broker, "f", tmp_path / "f")
    assert "Begin with a new checkpoint" in cause(refused.value)


@pytest.mark.parametrize("option", ["stream", "streams"])
def test_the_first_batch_begins_where_it_began_although_latest_is_elsewhere_by_then(
    broker: BrokerProcess, option: str
) -> None:
    name = f"latest.{option}"
    publish(broker, name, 0, 5)
    given = {
        "url": broker.url, option: name, "startingOffsets": "latest", "partitions": "1",
        "columns": "offset, message_id, body", "waitMs": "0",
    }  # fmt: skip

    def reader() -> Any:
        return TallymarkDataSource(given).streamReader(StructType())  # type: ignore[arg-type]

    killed = reader()
    begun = killed.initialOffset()
    publish(broker, name, 5, 5)
    end = killed.latestOffset(begun, killed.getDefaultReadLimit())
    publish(broker, name, 10, 5)
    # Spark has the end of batch 0 in its log, and asks the next process for its start.
    again = reader()
    start = again.initialOffset()
    assert start != begun
    assert read(again, again.partitions(start, end)) == expected(5, 10)
    after = again.latestOffset(end, again.getDefaultReadLimit())
    assert read(again, again.partitions(end, after)) == expected(10, 15)
    for one in (killed, again):
        one.stop()


def test_an_offset_of_an_earlier_version_does_not_say_where_its_query_began(
    broker: BrokerProcess,
) -> None:
    publish(broker, "earlier", 0, 10)
    tail = StreamTail(parsed(broker, "earlier", columns="offset, message_id, body"))
    kept = {key: value for key, value in tail.initialOffset().items() if key != "began"}
    end = tail.latestOffset({**kept, "offset": 4}, tail.getDefaultReadLimit())
    assert end == {**kept, "offset": 10}
    assert read(tail, tail.partitions({**kept, "offset": 4}, end)) == expected(4, 10)
    tail.stop()


def test_a_planned_range_is_held_against_retention(broker: BrokerProcess) -> None:
    limits: dict[str, object] = {"max_length_bytes": 100_000}
    publish(broker, "held", 0, 50, 1000, **limits)
    reader = StreamTable(parsed(broker, "held", partitions=1))
    (stretch,) = reader.partitions()
    publish(broker, "held", 50, 200, 1000, **limits)
    assert not any(one["offset"] < 50 for one in broker_rows(broker, "held"))
    assert read(reader, [stretch]) == expected(0, 50, 1000)


def broker_rows(broker: BrokerProcess, name: str) -> list[dict[str, Any]]:
    reader = StreamTable(parsed(broker, name, columns="offset"))
    return [
        row
        for one in reader.partitions()
        for batch in reader.read(one)
        for row in batch.to_pylist()
    ]


def test_a_query_says_how_far_it_is_behind(broker: BrokerProcess) -> None:
    publish(broker, "behind", 0, 10, 1000)
    tail = StreamTail(parsed(broker, "behind", startingOffsets="earliest", maxRowsPerBatch="4"))
    assert tail.reportLatestOffset() is None, "nothing is planned"
    begin = tail.initialOffset()
    end = tail.latestOffset(begin, tail.getDefaultReadLimit())
    told = tail.reportLatestOffset()
    assert told is not None
    size = broker.http("GET", "/api/tallymark/streams/%2F/behind")[1]["bytes"]
    assert (end["offset"], told["offset"]) == (4, 10)
    assert (told["rowsBehind"], told["bytesBehind"]) == (6, round(size * 0.6))
    tail.stop()


def test_what_retention_took_fails_the_query_or_is_said_and_left_out(
    broker: BrokerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    limits: dict[str, object] = {"max_length_bytes": 100_000}
    publish(broker, "lost", 0, 10, 1000, **limits)
    strict = StreamTail(parsed(broker, "lost", startingOffsets="earliest"))
    begin = strict.initialOffset()
    limit = strict.getDefaultReadLimit()
    end = strict.latestOffset(begin, limit)
    publish(broker, "lost", 10, 200, 1000, **limits)
    with pytest.raises(DataLoss, match="failOnDataLoss"):
        strict.latestOffset(begin, limit)
    with pytest.raises(DataLoss, match="offsets 0 to 9 of stream 'lost'"):
        strict.partitions(begin, end)
    with pytest.raises(DataLoss, match="begins at"):
        list(strict.read(Stretch(0, 10, begin["id"], "")))
    with pytest.raises(DataLoss, match="begins at"):
        StreamTable(parsed(broker, "lost", startingOffsets=0)).partitions()
    loose = StreamTail(parsed(broker, "lost", failOnDataLoss="false"))
    after = loose.latestOffset(begin, limit)
    assert after["offset"] == 210
    assert loose.partitions(begin, end) == []
    found = read(loose, loose.partitions(begin, after))
    assert found == expected(found[0][0], 210, 1000)
    assert 10 < found[0][0] < 210
    assert f"offsets 0 to {found[0][0] - 1} of stream 'lost'" in capsys.readouterr().err
    loose.stop()


def test_a_plan_of_before_a_restart_is_done_without(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        publish(broker, "s", 0, 20)
        reader = StreamTable(parsed(broker, "s", partitions=1))
        (stretch,) = reader.partitions()
        broker.kill()
        broker.restart()
        again = StreamTable(parsed(broker, "s"))
        assert read(again, [stretch]) == expected(0, 20)


@pytest.mark.parametrize("size", [0, 30_000])
def test_the_journals_files_are_read_in_place(
    spark: SparkSession, broker: BrokerProcess, size: int
) -> None:
    name = f"files.{size}"
    publish(broker, name, 0, 40, size)
    plain = table(spark, broker, name).drop("redelivered")
    direct = table(spark, broker, name, readSegments="true").drop("redelivered")
    assert rows(direct) == expected(0, 40, size)
    assert sorted(map(str, direct.collect())) == sorted(map(str, plain.collect()))


def test_single_messages_of_a_deep_stream_are_read_where_they_lie(tmp_path: Path) -> None:
    """They are packed: each has its own place, in one of several files."""
    with BrokerProcess(tmp_path / "data", max_memory="16MiB", segment_size="4MiB") as broker:
        publish(broker, "deep", 0, 9_000, 2000, alone=True)
        places = Client(Endpoint.from_url(broker.url))
        answer, headers = places.fetch(
            "/api/tallymark/streams/%2F/deep/places", {"from": 4_500, "to": 9_000}
        )
        assert len(json.loads(headers["Tallymark-Segments"])) > 1
        (block,) = blocks(answer)
        assert (block.rows["flags"][block.rows["kind"] == PAYLOAD] & COLUMNS).any()
        places.close()
        for direct in ("true", "false"):
            reader = StreamTable(parsed(broker, "deep", readSegments=direct, partitions=3))
            assert read(reader, reader.partitions()) == expected(0, 9_000, 2000)


def test_files_that_are_not_there_are_named(broker: BrokerProcess) -> None:
    from tallymark.spark.blocks import Segments

    segments = Segments().of_answer('{"7": "/nowhere/7.tmj"}')
    with pytest.raises(LookupError, match=r"/nowhere/7.tmj cannot be read here"):
        segments.segment(7)
    with pytest.raises(LookupError, match="no file for segment 8"):
        segments.segment(8)


def test_an_answer_that_leaves_something_out_is_refused(broker: BrokerProcess) -> None:
    publish(broker, "gaps", 0, 6)
    client = Client(Endpoint.from_url(broker.url))
    path = "/api/tallymark/streams/%2F/gaps"
    answer, headers = client.fetch(f"{path}/read", {"from": 2, "to": 5})
    assert headers["tallymark-next"] == "5"

    def decoded(low: int, end: int) -> Iterator[Any]:
        return decode_offsets(answer, low, end, "gaps", ("offset",), None)

    assert sum(batch.num_rows for batch in decoded(2, 5)) == 3
    for low, end in ((1, 5), (2, 6), (3, 5)):
        with pytest.raises(LayoutError, match=r"gap|ends before"):
            list(decoded(low, end))
    with pytest.raises(Gone, match="410"):
        raise Gone(410, "gone", "x")
    client.close()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"stream": "s", "queue": "q"}, "exclude each other"),
        ({"stream": "s", "subscription": "x"}, "exclude each other"),
        ({"queue": "q", "startingOffsets": "earliest"}, "is of streams"),
        ({"stream": "s", "startingOffsets": "soon"}, "expected earliest or latest, or an offset"),
        ({"stream": "s", "endingOffsets": "earliest"}, "expected latest, or an offset"),
        ({"stream": "s", "startingOffsets": "1", "startingTimestamp": "1"}, "exclude each other"),
        ({"stream": "s", "startingTimestamp": "2026-01-31T12:00:00"}, "expected ms since 1970"),
        ({"stream": "s", "startingTimestamp": "noon"}, "expected ms since 1970"),
        ({"stream": "s", "failOnDataLoss": "perhaps"}, "expected true or false"),
        ({"stream": "s", "columns": "lease_sequence"}, "no column 'lease_sequence'"),
        ({"queue": "q", "columns": "offset"}, "no column 'offset'"),
    ],
)  # fmt: skip
def test_options_that_make_no_sense_are_told(given: dict[str, str], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        SourceOptions.parse(given)
    with pytest.raises(ValueError, match="for batch reads"):
        SourceOptions.parse({"stream": "s", "endingOffsets": "7"}).for_tail()


def test_times_are_taken_with_their_zone() -> None:
    said = {"stream": "s", "startingTimestamp": "1970-01-01T01:00:01+01:00"}
    assert SourceOptions.parse(said).starting == "time=1000"
    assert SourceOptions.parse({"stream": "s", "startingTimestamp": "1500"}).starting == "time=1500"


def test_a_queue_is_no_stream_and_a_stream_no_queue(broker: BrokerProcess) -> None:
    publish(broker, "kind", 0, 1)
    from tallymark.spark.source import QueueBrowser

    options = SourceOptions.parse({"url": broker.url, "queue": "kind"})
    with pytest.raises(Exception, match="is a stream"):
        QueueBrowser(options).partitions()
    broker.http("PUT", "/api/queues/%2F/plain", {"durable": True})
    with pytest.raises(Exception, match="is no stream"):
        StreamTable(parsed(broker, "plain")).partitions()
