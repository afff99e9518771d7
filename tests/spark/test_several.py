"""Several queues and streams in one query: admission, checkpoints, and kills between any two steps
of the driver. Without Spark: a reader is driven as Spark drives it."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pika
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    LessThan,
    LessThanOrEqual,
    Not,
)
from pyspark.sql.types import StructType

from tallymark.spark.admission import Admission, shares
from tallymark.spark.client import BrokerRefused, Fenced
from tallymark.spark.land import follow, land
from tallymark.spark.options import SourceOptions
from tallymark.spark.several import SeveralStreams
from tallymark.spark.source import QueueStream, TallymarkDataSource
from tests.spark.rig import publish, stat
from tests.support.http_server import HttpServer
from tests.support.long import long, longer, seeded, sized
from tests.support.patience import PATIENCE_S
from tests.support.process import BrokerProcess

ROUNDS = int(os.environ.get("SEVERAL_ROUNDS", sized(25, 100, 2_000)))
SEED = int(os.environ.get("SEVERAL_SEED", seeded(20261122)))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("several") / "data", heartbeat_s="0") as running:
        yield running


def options(broker: BrokerProcess, **more: str) -> dict[str, str]:
    given = {"url": broker.url, "subscription": "s", "columns": "queue, message_id", "waitMs": "0"}
    return {**given, **more}


def reader(broker: BrokerProcess, **more: str) -> Any:
    source = TallymarkDataSource(options(broker, **more))  # type: ignore[arg-type]
    return source.streamReader(StructType())


def rows(stream: Any, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[str, int]]:
    """(queue, message) of a batch."""
    return [
        (row["queue"], int(row["message_id"]))
        for part in stream.partitions(start, end)
        for batch in stream.read(part)
        for row in batch.to_pylist()
    ]


def taken(stream: Any, start: dict[str, Any]) -> tuple[dict[str, Any], Counter[str]]:
    """The end of the next batch, and how many rows it has of each queue."""
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    return end, Counter(queue for queue, _ in rows(stream, start, end))


def declare(broker: BrokerProcess, name: str, **arguments: Any) -> None:
    with pika.BlockingConnection(pika.ConnectionParameters(port=broker.amqp_port)) as link:
        link.channel().queue_declare(name, durable=True, arguments=arguments)


def test_each_gives_its_share() -> None:
    assert shares({"a": 1000, "b": 1}, 10) == {"a": 9, "b": 1}
    assert shares({"a": 3, "b": 3}, 100) == {"a": 3, "b": 3}
    assert shares({"a": 1000, "b": 1000}, 10, most_each=2) == {"a": 2, "b": 2}
    assert shares({"a": 0}, 10) == {}
    assert [sorted(shares({"a": 9, "b": 9, "c": 9}, 1, turn=turn)) for turn in range(4)] == [
        ["a"], ["b"], ["c"], ["a"],
    ]  # fmt: skip
    chance = random.Random(SEED)
    for _ in range(200):
        waiting = {name: chance.choice([0, 1, 5, 10_000]) for name in "abcdef"}
        most = chance.randint(6, 5_000)
        found = shares(waiting, most)
        assert sum(found.values()) <= most
        assert found.keys() == {name for name, there in waiting.items() if there}
        assert all(0 < found[name] <= waiting[name] for name in found)


def test_a_batch_waits_for_rows_or_for_its_time() -> None:
    now_s = 0.0
    parsed = SourceOptions.parse(
        {"queue": "q", "minRowsPerBatch": "10", "maxTriggerDelay": "2s", "maxRowsPerBatch": "10"}
    )
    admission = Admission(parsed, lambda: now_s)
    assert not admission.is_enough(9)
    assert admission.is_enough(10)
    now_s = 1.5
    assert admission.wait_ms(10_000) == 501
    assert not admission.is_enough(9)
    now_s = 2.0
    assert not admission.is_enough(0), "nothing is no batch, however late"
    assert admission.is_enough(1)
    assert not admission.is_enough(1), "its time begins with each batch"


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ({"subscribe": "a, ,b"}, "names with commas"),
        ({"subscribe": "a,a"}, "each once"),
        ({"subscribe": "a", "queue": "b"}, 'options "queue" and "subscribe" exclude each other'),
        ({"streams": "a", "subscription": "s"}, 'options "streams" and "subscription" exclude'),
        ({"subscribePattern": "("}, "expected a regular expression"),
        ({"urls": "http://a,http://a:15672", "queue": "q"}, "each broker once"),
        ({"urls": "http://a", "url": "http://a"}, "exclude each other"),
        ({"queue": "q", "failOnDataLoss": "false"}, "fails the query"),
        ({"queue": "q", "maxTriggerDelay": "soon"}, "such as 500ms"),
        ({"queue": "q", "minRowsPerBatch": "60000"}, "at most maxRowsPerBatch=50000"),
    ],
)
def test_options_that_cannot_be_right_are_refused(given: dict[str, str], wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        SourceOptions.parse(given)


def test_a_batch_has_the_share_of_each_queue(broker: BrokerProcess) -> None:
    for name, count in (("sh.a", 30), ("sh.b", 10), ("sh.c", 0)):
        publish(broker, name, 0, count)
    stream = reader(broker, subscribe="sh.a, sh.b, sh.c", maxRowsPerBatch="20")
    start = stream.initialOffset()
    end, found = taken(stream, start)
    assert found == {"sh.a": 15, "sh.b": 5}
    assert {key: one["seq"] for key, one in end["queues"].items()} == {
        "sh.a": 15, "sh.b": 5, "sh.c": 0,
    }  # fmt: skip
    told = stream.reportLatestOffset()
    assert (told["rowsBehind"], told["queues"]["sh.a"]["rowsBehind"]) == (20, 15)
    assert stat(broker, "sh.a", "s")["floor"] == 0, "nothing is settled before its batch is"
    last, found = taken(stream, end)
    assert found == {"sh.a": 15, "sh.b": 5}
    assert [stat(broker, name, "s")["floor"] for name in ("sh.a", "sh.b")] == [15, 5]
    assert stream.latestOffset(last, stream.getDefaultReadLimit()) == last
    assert [stat(broker, name, "s")["floor"] for name in ("sh.a", "sh.b")] == [30, 10]
    stream.stop()


def test_available_now_ends_with_what_was_there(broker: BrokerProcess) -> None:
    for name in ("now.a", "now.b"):
        publish(broker, name, 0, 5)
    stream = reader(broker, subscribe="now.a,now.b", maxRowsPerBatch="4")
    start = stream.initialOffset()
    stream.prepareForTriggerAvailableNow()
    publish(broker, "now.a", 5, 5)
    found: Counter[str] = Counter()
    while (ahead := taken(stream, start))[0] != start:
        start, found = ahead[0], found + ahead[1]
    assert found == {"now.a": 5, "now.b": 5}
    stream.stop()


@pytest.mark.parametrize("way", ["subscribe", "queue", "stream"])
def test_a_batch_that_is_too_small_waits(broker: BrokerProcess, way: str) -> None:
    name = f"min.{way}"
    declare(broker, name, **({"x-queue-type": "stream"} if way == "stream" else {}))
    of_stream = {"subscription": "", "startingOffsets": "earliest"}
    given = {way: name, "minRowsPerBatch": "8", **(of_stream if way == "stream" else {})}
    patient = reader(broker, **given, maxTriggerDelay="1h")
    start = patient.initialOffset()
    publish(broker, name, 0, 7, declares=False)
    assert taken(patient, start)[0] == start
    publish(broker, name, 7, 1, declares=False)
    start, found = taken(patient, start)
    assert found == {name: 8}
    assert taken(patient, start)[0] == start
    patient.stop()
    hasty = reader(broker, **given, maxTriggerDelay="0s")
    assert taken(hasty, start)[0] == start
    publish(broker, name, 8, 1, declares=False)
    assert taken(hasty, start)[1] == {name: 1}
    hasty.stop()


def test_a_pattern_finds_queues_as_they_come(broker: BrokerProcess) -> None:
    publish(broker, "pat.a", 0, 2)
    publish(broker, "pat.other.a", 0, 2)
    declare(broker, "pat.log", **{"x-queue-type": "stream"})
    stream = reader(broker, subscribePattern="pat\\.[a-z]+")
    start = stream.initialOffset()
    assert list(start["queues"]) == ["pat.a"]
    start, found = taken(stream, start)
    assert found == {"pat.a": 2}
    publish(broker, "pat.b", 0, 2)
    start, found = taken(stream, start)
    assert (list(start["queues"]), found) == (["pat.a", "pat.b"], {})
    start, found = taken(stream, start)
    assert found == {"pat.b": 2}
    stream.stop()


@pytest.mark.parametrize("lenient", [False, True])
def test_a_queue_of_a_pattern_that_was_deleted(
    broker: BrokerProcess, capfd: pytest.CaptureFixture[str], lenient: bool
) -> None:
    names = [f"gone{lenient}.a", f"gone{lenient}.b"]
    for name in names:
        publish(broker, name, 0, 2)
    told = {"failOnDataLoss": "false"} if lenient else {}
    stream = reader(broker, subscribePattern=f"gone{lenient}.*", **told)
    start, found = taken(stream, stream.initialOffset())
    assert found == dict.fromkeys(names, 2)
    assert broker.http("DELETE", f"/api/queues/%2F/{names[0]}")[0] == 204
    publish(broker, names[1], 2, 1)
    if not lenient:
        with pytest.raises(Exception, match="no queue"):
            taken(stream, start)
    else:
        end, found = taken(stream, start)
        assert (list(end["queues"]), found) == ([names[1]], {names[1]: 1})
        assert f"data loss: {names[0]}" in capfd.readouterr().err
    stream.stop()


def test_a_queue_of_a_pattern_that_was_made_again_begins_anew(broker: BrokerProcess) -> None:
    """Deleted and declared between two looks: its batch has to be one that can be planned."""
    for name in ("anew.a", "anew.b"):
        publish(broker, name, 0, 2)
    given = {"subscribePattern": "anew\\..", "failOnDataLoss": "false"}
    stream = reader(broker, **given)
    start, found = taken(stream, stream.initialOffset())
    assert found == {"anew.a": 2, "anew.b": 2}
    assert broker.http("DELETE", "/api/queues/%2F/anew.a")[0] == 204
    publish(broker, "anew.a", 5, 2)
    end, found = taken(stream, start)
    stream.stop()
    stream = reader(broker, **given)
    assert rows(stream, start, end) == [(queue, 5) for queue in found], "as it was planned"
    last, found = taken(stream, end)
    assert found == {"anew.a": 2}
    assert last["queues"]["anew.a"]["epoch"] != start["queues"]["anew.a"]["epoch"]
    stream.stop()
    # The same where it was so while no driver was there.
    assert broker.http("DELETE", "/api/queues/%2F/anew.a")[0] == 204
    publish(broker, "anew.a", 7, 1)
    stream = reader(broker, **given)
    end, found = taken(stream, last)
    end, more = taken(stream, end)
    assert found + more == {"anew.a": 1}
    stream.stop()


def test_a_queue_that_is_deleted_while_its_batch_runs_fails_no_progress(
    broker: BrokerProcess, capfd: pytest.CaptureFixture[str]
) -> None:
    """Spark asks for the query's progress behind each batch."""
    publish(broker, "progress.a", 0, 2)
    publish(broker, "progress.b", 0, 2)
    stream = reader(broker, subscribePattern="progress\\..", failOnDataLoss="false")
    start, _ = taken(stream, stream.initialOffset())
    assert broker.http("DELETE", "/api/queues/%2F/progress.a")[0] == 204
    assert list(stream.reportLatestOffset()["queues"]) == ["progress.b"]
    assert "data loss: progress.a" in capfd.readouterr().err
    # It is not asked again and again, and said each time, until something comes elsewhere.
    start, found = taken(stream, start)
    assert (list(start["queues"]), found) == (["progress.b"], {})
    assert "data loss: progress.a" in capfd.readouterr().err
    assert taken(stream, start)[0] == start
    assert capfd.readouterr().err == ""
    stream.stop()


def test_a_queue_that_is_deleted_in_an_available_now_run_is_left_out(
    broker: BrokerProcess,
) -> None:
    publish(broker, "ebb.a", 0, 4)
    publish(broker, "ebb.b", 0, 4)
    stream = reader(broker, subscribePattern="ebb\\..", failOnDataLoss="false", maxRowsPerBatch="4")
    start = stream.initialOffset()
    stream.prepareForTriggerAvailableNow()
    start, found = taken(stream, start)
    assert found == {"ebb.a": 2, "ebb.b": 2}
    assert broker.http("DELETE", "/api/queues/%2F/ebb.a")[0] == 204
    start, found = taken(stream, start)
    assert (list(start["queues"]), found) == (["ebb.b"], {"ebb.b": 2})
    assert taken(stream, start)[0] == start
    stream.stop()


def test_what_is_taken_out_of_the_list_is_settled_and_not_asked_again(
    broker: BrokerProcess,
) -> None:
    for name in ("out.a", "out.b"):
        publish(broker, name, 0, 2)
    both = reader(broker, subscribe="out.a,out.b")
    begun = both.initialOffset()
    end, _ = taken(both, begun)
    both.stop()
    publish(broker, "out.b", 2, 2)
    one = reader(broker, subscribe="out.a")
    assert sorted(rows(one, begun, end)) == [
        ("out.a", 0), ("out.a", 1), ("out.b", 0), ("out.b", 1),
    ], "the batch is what it was, whatever the options say now"  # fmt: skip
    publish(broker, "out.a", 2, 1)
    after, found = taken(one, end)
    assert (list(after["queues"]), found) == (["out.a"], {"out.a": 1})
    assert (stat(broker, "out.b", "s")["floor"], stat(broker, "out.b", "s")["leased"]) == (2, 0)
    one.stop()


@pytest.mark.parametrize("gone", ["queue", "subscription"])
def test_what_is_taken_out_of_the_list_may_be_deleted_before_the_next_run(
    broker: BrokerProcess, gone: str
) -> None:
    """There is nothing to settle in it any more, and nothing of it was lost to this query."""
    for name in (f"left.{gone}.a", f"left.{gone}.b"):
        publish(broker, name, 0, 2)
    both = reader(broker, subscribe=f"left.{gone}.a,left.{gone}.b")
    end, _ = taken(both, both.initialOffset())
    assert both.latestOffset(end, both.getDefaultReadLimit()) == end
    both.stop()
    path = f"/api/queues/%2F/left.{gone}.b"
    if gone == "subscription":
        path = f"/api/tallymark/subscriptions/%2F/left.{gone}.b/s"
    assert broker.http("DELETE", path)[0] in (200, 204)
    publish(broker, f"left.{gone}.a", 2, 1)
    one = reader(broker, subscribe=f"left.{gone}.a")
    after, found = taken(one, end)
    assert (list(after["queues"]), found) == ([f"left.{gone}.a"], {f"left.{gone}.a": 1})
    assert stat(broker, f"left.{gone}.b", "s") == {}, "and it is not made again"
    one.stop()
    again = reader(broker, subscribe=f"left.{gone}.a,left.{gone}.b")
    with pytest.raises((BrokerRefused, ValueError), match=r"no queue|made again"):
        taken(again, end)
    again.stop()


def test_a_second_query_fences_every_queue(broker: BrokerProcess) -> None:
    for name in ("two.a", "two.b"):
        publish(broker, name, 0, 2)
    first = reader(broker, subscribe="two.a,two.b")
    start = first.initialOffset()
    second = reader(broker, subscribe="two.b")
    second.initialOffset()
    with pytest.raises(Fenced):
        taken(first, start)
    first.stop()
    second.stop()


def test_streams_by_list_and_a_table_of_several(broker: BrokerProcess) -> None:
    for name, count in (("log.a", 3), ("log.b", 4)):
        declare(broker, name, **{"x-queue-type": "stream"})
        publish(broker, name, 0, count, declares=False)
        publish(broker, f"q.{name}", 0, count)
    given = {"url": broker.url, "columns": "queue, message_id", "waitMs": "0"}
    source = TallymarkDataSource({**given, "streams": "log.a,log.b", "startingOffsets": "earliest"})  # type: ignore[arg-type]
    tail: Any = source.streamReader(StructType())
    start, found = taken(tail, tail.initialOffset())
    assert found == {"log.a": 3, "log.b": 4}
    publish(broker, "log.b", 4, 2, declares=False)
    assert taken(tail, start)[1] == {"log.b": 2}
    assert tail.reportLatestOffset()["rowsBehind"] == 0
    tail.stop()
    for which in ({"streams": "log.a,log.b"}, {"subscribe": "q.log.a,q.log.b"}):
        table: Any = TallymarkDataSource({**given, **which}).reader(StructType())  # type: ignore[arg-type]
        batches = [batch for part in table.partitions() for batch in table.read(part)]
        names = Counter(row["queue"] for batch in batches for row in batch.to_pylist())
        assert sorted(names.values()) == ([3, 6] if "streams" in which else [3, 4])


@pytest.mark.parametrize("way", ["stream", "streams"])
@pytest.mark.parametrize("ends", [False, True])
def test_a_checkpoint_beyond_the_end_of_its_stream_is_refused(
    broker: BrokerProcess, way: str, ends: bool
) -> None:
    """So it is after a backup was restored: what comes next has offsets that were read before."""
    name = f"older.{way}.{ends}"
    declare(broker, name, **{"x-queue-type": "stream"})
    publish(broker, name, 0, 3, declares=False)
    given = {way: name, "subscription": "", "startingOffsets": "earliest"}
    first = reader(broker, **given)
    start, found = taken(first, first.initialOffset())
    assert found == {name: 3}
    first.stop()
    beyond = json.loads(json.dumps(start).replace('"offset": 3', '"offset": 5'))
    second = reader(broker, **given)
    if ends:
        second.prepareForTriggerAvailableNow()
    with pytest.raises(ValueError, match=f"at offset 5 of stream '{name}', which ends at 3"):
        taken(second, beyond)
    second.stop()
    third = reader(broker, **given)
    assert taken(third, start) == (start, {})
    publish(broker, name, 3, 4, declares=False)
    assert taken(third, start)[1] == {name: 4}
    third.stop()


class Behind(HttpServer):
    """A broker that stands by, a moment behind its leader: it looks again before it refuses."""

    def respond(self, path: str) -> tuple[int, dict[str, str], bytes]:
        end = 9 if "/range?" in path else 3
        return 200, {}, json.dumps({"id": 1, "next": end, "to": end}).encode()


def test_a_broker_that_stands_by_may_be_behind_a_checkpoint() -> None:
    at = {"stream": "s", "id": 1, "offset": 5}
    with Behind() as server:
        given = {"url": f"http://{server.address}", "stream": "s", "waitMs": "0"}
        source = TallymarkDataSource(given)  # type: ignore[arg-type]
        tail: Any = source.streamReader(StructType())
        assert tail.latestOffset(at, tail.getDefaultReadLimit()) == {**at, "offset": 9}
        tail.stop()


def test_a_table_reads_the_offsets_that_filters_allow(broker: BrokerProcess) -> None:
    declare(broker, "log.filtered", **{"x-queue-type": "stream"})
    publish(broker, "log.filtered", 0, 10, declares=False)
    given = {"url": broker.url, "stream": "log.filtered", "columns": "offset"}

    def offsets(*filters: Filter) -> list[int]:
        source = TallymarkDataSource({**given, "pushFilters": "true"})  # type: ignore[arg-type]
        table: Any = source.reader(StructType())
        assert list(table.pushFilters(list(filters))) == list(filters), "Spark applies them, too"
        batches = [one for part in table.partitions() for one in table.read(part)]
        return [row["offset"] for one in batches for row in one.to_pylist()]

    at, other = ("offset",), ("sequence",)
    assert offsets() == list(range(10))
    assert offsets(GreaterThanOrEqual(at, 7)) == [7, 8, 9]
    assert offsets(GreaterThan(at, 2), LessThan(at, 5)) == [3, 4]
    assert offsets(LessThanOrEqual(at, 1), LessThan(other, 1)) == [0, 1]
    assert offsets(EqualTo(at, 4)) == [4]
    assert offsets(Not(EqualTo(at, 4)), EqualTo(("offset", "deep"), 1)) == list(range(10))
    assert offsets(GreaterThan(at, 100)) == []
    plain: Any = TallymarkDataSource(given).reader(StructType())  # type: ignore[arg-type]
    assert plain.pushFilters.__func__ is DataSourceReader.pushFilters, "or Spark refuses it"


def test_several_brokers(broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> None:
    with BrokerProcess(tmp_path_factory.mktemp("other") / "data") as other:
        publish(broker, "shard", 0, 2)
        publish(other, "shard", 2, 2)
        given = {"urls": f"{broker.url}, {other.url}", "queue": "shard"}
        more = {name: value for name, value in options(broker).items() if name != "url"}
        source = TallymarkDataSource({**more, **given})  # type: ignore[arg-type]
        stream: Any = source.streamReader(StructType())
        start = stream.initialOffset()
        end, found = taken(stream, start)
        keys = [f"127.0.0.1:{one.http_port}/shard" for one in (broker, other)]
        assert (list(end["queues"]), found) == (keys, dict.fromkeys(keys, 2))
        stream.commit(end)
        assert [stat(one, "shard", "s")["floor"] for one in (broker, other)] == [2, 2]
        stream.stop()


def test_a_broker_at_an_ipv6_address_is_shown_in_brackets_and_its_checkpoints_go_on() -> None:
    """The key has none: it is in checkpoints."""
    given = {"urls": "http://[::1]:1,http://b:2", "subscribe": "q/1,r", "subscription": "s"}
    stream = SeveralStreams(SourceOptions.parse(given), lambda one: Shown(one.shown))  # type: ignore[arg-type, return-value]
    end: dict[str, Any] = {"queues": {key: {} for key in ("::1:1/q/1", "::1:1/r", "b:2/q/1")}}
    assert stream.initialOffset()["queues"].keys() == {*end["queues"], "b:2/r"}
    shown = [part.inner.text for part in stream.partitions({"queues": {}}, end)]  # type: ignore[attr-defined]
    assert shown == ["[::1]:1/q/1", "[::1]:1/r", "b:2/q/1"]
    with pytest.raises(ValueError, match=r"each broker once, got \[::1\]:1, \[::1\]:1"):
        SourceOptions.parse({"urls": "http://[::1]:1,http://[::1]:1", "queue": "q"})


@dataclass
class Shown:
    """A reader that says of its partition what its rows have in the column `queue`."""

    text: str

    def initialOffset(self) -> dict[str, Any]:
        return {"at": 0}

    def partitions(self, start: object, end: object) -> list[Shown]:
        return [self]


@pytest.mark.spark
@long  # in `make test` without Spark: the tests around it
def test_a_query_of_several_queues_lands_each_message_once(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    names = ["land.a", "land.b"]
    given = options(broker, subscribePattern="land\\..", maxRowsPerBatch="6")
    del given["columns"]
    frame = spark.readStream.format("tallymark").options(**given).load()
    for run in range(2):
        for name in names:
            publish(broker, name, 5 * run, 5)
        query = land(frame, tmp_path / "table")
        assert query.awaitTermination(int(PATIENCE_S))
        assert [one.rows for one in follow(query)] == [6, 4]
        told = json.loads(query.recentProgress[0]["sources"][0]["latestOffset"])
        assert told["rowsBehind"] == 4
    found = spark.read.parquet(str(tmp_path / "table")).select("queue", "message_id").collect()
    assert sorted((row.queue, int(row.message_id)) for row in found) == [
        (name, number) for name in names for number in range(10)
    ]
    assert [broker.queues()[name]["settled"] for name in names] == [10, 10]


class Killed(Exception):
    """The driver was killed here."""


@dataclass
class Fate:
    """Deals after how many steps the driver is killed."""

    chance: random.Random
    left: int = 0

    def step(self) -> None:
        if self.left == 0:
            self.left = self.chance.randint(1, 25)
        self.left -= 1
        if self.left == 0:
            raise Killed


class Mortal(QueueStream):
    """A queue's reader whose driver may be killed before and after each of its calls."""

    fate: Fate

    def _mortal(self, work: Callable[[], Any]) -> Any:
        self.fate.step()
        done = work()
        self.fate.step()
        return done

    def committed(self, offset: dict[str, Any]) -> int:
        return int(self._mortal(partial(super().committed, offset)))

    def commit(self, end: dict[str, Any]) -> None:
        self._mortal(partial(super().commit, end))

    def extend(self, begin: int, max_rows: int, max_bytes: int, wait_ms: int) -> int:
        return int(self._mortal(partial(super().extend, begin, max_rows, max_bytes, wait_ms)))


@dataclass
class Checkpoint:
    """Spark's own, and a sink that heeds batch ids."""

    offsets: dict[int, dict[str, Any]] = field(default_factory=dict)
    commits: set[int] = field(default_factory=set)
    table: dict[int, list[tuple[str, int]]] = field(default_factory=dict)


def drive(stream: Any, checkpoint: Checkpoint, fate: Fate, batches: int) -> None:
    """Do what Spark does with a streaming source, until there is nothing or it is killed."""
    last = max(checkpoint.offsets, default=-1)
    start = stream.initialOffset() if last < 1 else checkpoint.offsets[last - 1]
    if last >= 0 and last not in checkpoint.commits:
        write(stream, checkpoint, fate, last, start)
    if last >= 0:
        start = checkpoint.offsets[last]
    for number in range(last + 1, last + 1 + batches):
        end = stream.latestOffset(start, stream.getDefaultReadLimit())
        if end == start:
            return
        fate.step()
        checkpoint.offsets[number] = end
        if number:
            stream.commit(start)
        write(stream, checkpoint, fate, number, start)
        start = end


def write(
    stream: Any, checkpoint: Checkpoint, fate: Fate, number: int, start: dict[str, Any]
) -> None:
    found = sorted(rows(stream, start, checkpoint.offsets[number]))
    fate.step()
    assert checkpoint.table.setdefault(number, found) == found, "a batch is what it was"
    fate.step()
    checkpoint.commits.add(number)
    fate.step()


@longer
def test_each_message_is_in_the_table_once_wherever_the_driver_is_killed(
    broker: BrokerProcess,
) -> None:
    chance = random.Random(SEED)
    fate = Fate(chance)
    names = [f"mortal.{which}" for which in "abc"]
    published = dict.fromkeys(names, 0)
    for name in names:
        declare(broker, name)
    parsed = SourceOptions.parse(
        options(broker, subscribe=",".join(names), maxRowsPerBatch="9")
    ).for_stream()
    checkpoint = Checkpoint()

    def make(one: SourceOptions) -> QueueStream:
        mortal = Mortal(one)
        mortal.fate = fate
        return mortal

    kills = 0
    for _ in range(ROUNDS):
        for name in chance.sample(names, chance.randint(0, 2)):
            more = chance.randint(1, 8)
            publish(broker, name, published[name], more, declares=False)
            published[name] += more
        stream = SeveralStreams(parsed, make)
        try:
            drive(stream, checkpoint, fate, chance.randint(1, 4))
        except Killed:
            kills += 1
        finally:
            stream.stop()
    calm = SeveralStreams(parsed, QueueStream)
    endless = Fate(chance, 1_000_000)
    drive(calm, checkpoint, endless, 1_000)
    calm.stop()
    assert kills > ROUNDS // 4
    landed = sorted(row for batch in checkpoint.table.values() for row in batch)
    expected = sorted((name, n) for name, count in published.items() for n in range(count))
    assert landed == expected, SEED
    held = {name: broker.queues()[name] for name in names}
    assert [held[name]["settled"] for name in names] == [published[name] for name in names]
