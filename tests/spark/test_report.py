"""The report's figures out of a ledger that was written by hand, and the command."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from tallymark.cli.app import build
from tallymark.spark import ledger, pipelines
from tallymark.spark.report import reporting
from tallymark.spark.transitions import write_table
from tests.support.long import long

pytestmark = pytest.mark.spark

START = datetime(2026, 1, 1, tzinfo=UTC)
WORK, RETRY, PARKED, ONCE, CHANNEL = 1, 2, 3, 4, 5
MINUTE = 60_000


class Story:
    """A ledger in the making. Each call of `block` begins a block; times are ms from START."""

    def __init__(self) -> None:
        self.rows: list[tuple[Any, ...]] = []
        self.position = 0
        self.time = 0

    def block(self, ms: int) -> None:
        self.position += 64
        self.time = ms

    def add(
        self, kind: str, queue: int = 0, first: int = 0, last: int = -1, reason: str | None = None,
        source: str = "journal", **more: Any,
    ) -> None:  # fmt: skip
        values: dict[str, Any] = {
            "source": source, "position": self.position, "row": len(self.rows), "kind": kind,
            "queue_id": queue, "first": first, "count": last - first + 1,
            "time": START + timedelta(milliseconds=self.time), "reason": reason, "owner": 0,
            "other": 0, "flags": 0, **more,
        }  # fmt: skip
        self.rows.append(tuple(values.get(name) for name in ledger.SCHEMA.names))


def tell() -> Story:
    story = Story()
    add = story.add
    names = {WORK: "work", RETRY: "retry", PARKED: "parked", ONCE: "once", CHANNEL: "news:mail"}
    for id, name in names.items():
        blob = json.dumps({"op": "queue", "vhost": "/", "id": id, "name": name})
        add("definition", blob=blob)
        add("counters", id, source="checkpoint", blob="{}")
    add("definition", blob=json.dumps({"op": "queue", "vhost": "v", "id": 9, "name": "old"}))
    add("definition", blob=json.dumps({"op": "subscription", "epoch": 3, "name": "lake"}))
    # Ten messages, in order, 1 s each; consumer 70.
    story.block(0)
    add("payload", first=100, last=109, payload=4096, message_id=100, exchange="orders")
    add("entered", WORK, 1, 10, payload=4096, lo=0, message_id=100, exchange="orders")
    add("entered", 9, 1, 1, payload=4096, lo=0, message_id=100, exchange="orders")
    story.block(100)
    add("acquired", WORK, 1, 10, owner=70)
    story.block(1000)
    add("settled", WORK, 1, 4, "client", owner=70)
    # 5 and 6 are given back, handed out again to consumer 71, and rejected: a cycle with retry.
    add("returned", WORK, 5, 6, "client", owner=7, failed=False)
    story.block(2000)
    add("acquired", WORK, 5, 6, owner=71, other=1)
    story.block(5000)
    add("dead_lettered", WORK, 5, 6, "rejected")
    add("entered", RETRY, 1, 2, payload=4096, lo=4, from_queue_id=WORK, from_first=5)
    story.block(6000)
    add("dead_lettered", RETRY, 1, 2, "expired")
    add("entered", WORK, 11, 12, payload=4096, lo=4, from_queue_id=RETRY, from_first=1)
    story.block(7000)
    add("acquired", WORK, 11, 12, owner=71)
    add("dropped", WORK, 11, 11, "delivery_limit")
    story.block(8000)
    add("dead_lettered", WORK, 12, 12, "rejected")
    add("entered", PARKED, 1, 1, payload=4096, lo=5, from_queue_id=WORK, from_first=12)
    # 7 takes too long, and comes again; 8 to 10 are never settled.
    story.block(9000)
    add("returned", WORK, 7, 7, "timeout", owner=7, failed=False)
    add("acquired", WORK, 7, 7, owner=70, other=1)
    story.block(10_000)
    add("settled", WORK, 7, 7, "client", owner=70)
    add("dropped", ONCE, 1, 3, "duplicate")
    # An NSQ channel, without acknowledgements; moved there from the topic's backlog.
    story.block(20_000)
    add("payload", first=200, last=203, payload=8192, message_id=200, exchange="news")
    add("entered", CHANNEL, 1, 4, payload=8192, lo=0, message_id=200, exchange="news")
    add("settled", CHANNEL, 1, 4, "on_send", owner=72)
    add("consumer", CHANNEL, owner=72, blob=json.dumps({"connection": "10.0.0.9:4", "tag": "c"}))
    story.block(21 * MINUTE)
    add("leased", PARKED, 1, 1, owner=3)
    for first, last, owner in ((8, 10, 70),):
        add("live", WORK, first, last, source="checkpoint", owner=owner, flags=1)
    add("leased", PARKED, 1, 1, source="checkpoint", owner=3)
    return story


@pytest.fixture(scope="module")
def found(spark: SparkSession) -> dict[str, Any]:
    rows = spark.createDataFrame(tell().rows, ledger.DDL).cache()
    try:
        return pipelines.report(rows, as_of=START + timedelta(minutes=21)).data
    finally:
        rows.unpersist()


def test_a_report_of_a_wrong_queue_or_time_is_refused(spark: SparkSession) -> None:
    rows = spark.createDataFrame(tell().rows, ledger.DDL)
    with pytest.raises(ValueError, match=r"queue 'wrok' is not in the ledger, expected one of"):
        pipelines.report(rows, queues=["wrok"])
    with pytest.raises(ValueError, match=r"begin is 2026-01-01T00:00:00, expected .* with a zone"):
        pipelines.report(rows, begin=START.replace(tzinfo=None))
    with pytest.raises(ValueError, match="--end is 'noon', expected ISO 8601 with a zone"):
        reporting.main(Path(), Path("report.html"), end="noon")
    with pytest.raises(ValueError, match=r"begin is 2026.*, expected a time before the end, 2026"):
        pipelines.report(rows, begin=START, end=START)
    with pytest.raises(ValueError, match=r"begin is 2026-01-02.*, expected a time before the end"):
        reporting.main(
            Path(), Path("report.html"), begin="2026-01-02T00:00Z", end="2026-01-01T00:00Z"
        )


@long  # a second report; of everything there is one above
def test_a_report_of_some_queues_and_some_time(spark: SparkSession) -> None:
    rows = spark.createDataFrame(tell().rows, ledger.DDL).cache()
    begin, end = START + timedelta(milliseconds=900), START + timedelta(milliseconds=5500)
    now = START + timedelta(minutes=21)
    some = pipelines.report(rows, as_of=now, queues=["work", "retry"], begin=begin, end=end).data
    rows.unpersist()
    assert {one["queue"] for one in some["depth"]} == {"work", "retry"}
    totals = some["totals"]
    assert (totals["entered"], totals["settled"], totals["dead_lettered"]) == (2, 4, 2)
    (latency,) = some["latency"]
    assert (latency["count"], latency["p50_ms"]) == (4, 1000.0), "they entered before the begin"
    assert some["duplicates"] == [
        {"queue": "work", "passed_over": 0, "seen_again": 2, "most_deliveries": 2}
    ]
    (link,) = some["credit"]
    assert (link["state"], link["oldest_ms"]) == ("leaked", 21 * MINUTE - 100), "since before begin"
    assert by(some["verdict"]["queues"], "queue", "work")["why"] == [
        "consumer 70: leaked with 3 messages"
    ]


def test_depth_and_latency_over_time(found: dict[str, Any]) -> None:
    work = by(found["depth"], "queue", "work")
    assert (work["entered"], work["depth"], work["deepest"]) == (12, 3, 3), "at the minutes' ends"
    assert by(found["depth"], "queue", "retry")["depth"] == 0
    assert sum(point["count"] for point in found["latency_over_time"]) == sum(
        one["count"] for one in found["latency"]
    )
    assert found["verdict"]["text"] == "2 queues need a look"
    assert found["account"] == {}


def by(found: list[dict[str, Any]], key: str, value: object) -> dict[str, Any]:
    (one,) = [row for row in found if row[key] == value]
    return one


def test_when_and_how_much(found: dict[str, Any]) -> None:
    assert found["from"] == "2026-01-01T00:00:00Z"
    assert found["to"] == "2026-01-01T00:21:00Z"
    assert found["bucket_ms"] == MINUTE
    assert found["as_of"] == "2026-01-01T00:21:00Z"
    assert found["totals"]["entered"] == 20
    assert found["totals"]["drops"] == {"delivery_limit": 1, "duplicate": 3}
    flow = found["flow"]
    assert sum(point["entered"] for point in flow) == 15  # what the broker moved is left out
    assert sum(point["settled"] for point in flow) == 9
    assert {point["at_ms"] % found["bucket_ms"] for point in flow} == {0}


def test_latency_from_entering_to_being_settled(found: dict[str, Any]) -> None:
    work = by(found["latency"], "queue", "work")
    assert (work["count"], work["p50_ms"], work["longest_ms"]) == (5, 1000.0, 10_000.0)
    assert by(found["latency"], "queue", "news:mail")["p99_ms"] == 0.0
    assert {one["queue"] for one in found["latency"]} == {"work", "news:mail"}


def test_consumption_by_topic(found: dict[str, Any]) -> None:
    orders = by(found["topics"], "topic", "orders")
    assert (orders["consumed"], orders["queues"]) == (5, {"work": 5})
    assert orders["points"] == [[round(START.timestamp() * 1000), 5]]
    assert orders["per_second"] == 5 / 60
    assert by(found["topics"], "topic", "news")["consumed"] == 4


def test_redeliveries_and_time_outs(found: dict[str, Any]) -> None:
    work = by(found["deliveries"], "queue", "work")
    assert (work["deliveries"], work["redelivered"], work["timed_out"]) == (15, 3, 1)
    assert work["attempts"] == {1: 12, 2: 3}
    assert work["given_back"] == {"client": 2, "timeout": 1}
    assert work["redelivery_rate"] == 3 / 15
    assert by(found["deliveries"], "queue", "news:mail")["deliveries"] == 4


def test_paths_of_dead_letters_and_their_cycles(found: dict[str, Any]) -> None:
    edges = {(e["source"], e["target"], e["cause"]): e["count"] for e in found["paths"]["edges"]}
    assert edges == {
        ("work", "retry", "rejected"): 2,
        ("retry", "work", "expired"): 2,
        ("work", "parked", "rejected"): 1,
    }
    assert found["paths"]["cycles"] == [["retry", "work"]]
    assert by(found["paths"]["drops"], "queue", "work")["cause"] == "delivery_limit"


def test_consumers_by_how_long_they_hold(found: dict[str, Any]) -> None:
    ranks = [(one["rank"], one["consumer"], one["longest_ms"]) for one in found["consumers"]]
    assert ranks == [(1, 70, 8900), (2, 71, 3000), (3, 72, None)]
    first, second, third = found["consumers"]
    assert (first["delivered"], first["settled"], first["given_back"]) == (11, 5, 3)
    assert (first["timed_out"], first["p50_ms"]) == (1, 900.0)
    assert (second["delivered"], second["settled"], second["refused"]) == (4, 0, 4)
    assert second["p50_ms"] == 2000.0
    assert (third["settled"], third["name"]) == (4, "10.0.0.9:4 c")


def test_credit_that_leaks(found: dict[str, Any]) -> None:
    """70 settled 7 ten seconds in, but has held 8 to 10 since the beginning."""
    assert found["credit"] == [
        {"queue": "work", "link": "consumer 70", "held": 3, "oldest_ms": 21 * MINUTE - 100,
         "settled_ms_ago": 21 * MINUTE - 10_000, "state": "leaked"},
        {"queue": "parked", "link": "subscription lake", "held": 1, "oldest_ms": 0,
         "settled_ms_ago": None, "state": "leased"},
    ]  # fmt: skip


def test_duplicates_and_what_came_out_of_order(found: dict[str, Any]) -> None:
    assert found["duplicates"] == [
        {"queue": "once", "passed_over": 3, "seen_again": 0, "most_deliveries": 0},
        {"queue": "work", "passed_over": 0, "seen_again": 3, "most_deliveries": 2},
    ]
    assert found["inversions"] == [
        {"queue": "work", "after_return": 3, "first_delivery": 0, "furthest": 5}
    ]


def test_transitions_are_one_row_a_message_and_event(spark: SparkSession) -> None:
    rows = spark.createDataFrame(tell().rows, ledger.DDL)
    each = pipelines.transitions(rows).orderBy("position", "row", "sequence").collect()
    seven = [row for row in each if (row.queue_id, row.sequence) == (WORK, 7)]
    assert [(r.event, r.attempt, r.consumer, r.outcome, r.cause) for r in seven] == [
        ("entered", 0, None, None, None),
        ("acquired", 1, 70, None, None),
        ("returned", 1, 70, "returned", "timeout"),
        ("acquired", 2, 70, None, None),
        ("settled", 2, 70, "accepted", "client"),
    ]
    assert {row.message_id for row in seven} == {106}
    assert [row.latency_ms for row in seven] == [0, 100, 9000, 9000, 10_000]
    assert [row.held_ms for row in seven] == [None, None, 8900, None, 1000]
    letter = [row for row in each if (row.queue_id, row.sequence) == (PARKED, 1)]
    assert {row.message_id for row in letter} == {105}, "its bytes lie elsewhere: looked up"
    on_send = [row for row in each if row.cause == "on_send"]
    assert {(row.attempt, row.consumer, row.latency_ms) for row in on_send} == {(1, 72, 0)}


def test_what_a_lease_ends_is_not_the_consumers_before(spark: SparkSession) -> None:
    """Message 1 is given back by consumer 70, then by a subscription, which then settles it; 2 is
    rejected by the subscription."""
    story = Story()
    add = story.add
    add("entered", WORK, 1, 2, message_id=1)
    story.block(100)
    add("acquired", WORK, 1, 2, owner=70)
    story.block(200)
    add("returned", WORK, 1, 2, "client", owner=70, failed=False)
    story.block(1000)
    add("leased", WORK, 1, 2, owner=3, flags=1)
    story.block(5000)
    add("returned", WORK, 1, 1, "client", owner=3, failed=True)
    add("dead_lettered", WORK, 2, 2, "rejected")
    story.block(6000)
    add("leased", WORK, 1, 1, owner=3, flags=2)
    story.block(9000)
    add("settled", WORK, 1, 1, "batch", owner=3)
    rows = spark.createDataFrame(story.rows, ledger.DDL)
    each = pipelines.transitions(rows).orderBy("position", "row", "sequence").collect()
    told = [
        (row.event, row.attempt, row.consumer, row.held_ms) for row in each if row.sequence == 1
    ]
    assert told == [
        ("entered", 0, None, None),
        ("acquired", 1, 70, None),
        ("returned", 1, 70, 100),
        ("leased", 2, None, None),
        ("returned", 2, None, 4000),
        ("leased", 3, None, None),
        ("settled", 3, None, 3000),
    ]
    (died,) = [row for row in each if row.event == "dead_lettered"]
    assert (died.attempt, died.consumer, died.held_ms) == (2, None, 4000)


def test_transitions_as_a_table(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.createDataFrame(tell().rows, ledger.DDL)
    count = write_table(rows, tmp_path / "table")
    table = spark.read.parquet(str(tmp_path / "table"))
    assert [path.name for path in (tmp_path / "table").glob("date=*")] == ["date=2026-01-01"]
    assert table.count() == count
    found = table.groupBy("vhost", "queue").count().collect()
    assert {(row.vhost, row.queue): row["count"] for row in found} == {
        ("/", "work"): 39, ("/", "retry"): 4, ("/", "parked"): 2, ("/", "once"): 3,
        ("/", "news:mail"): 8, ("v", "old"): 1,
    }  # fmt: skip


def test_a_table_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    result = CliRunner().invoke(build(), ["pipeline", "ledger", "--to", str(tmp_path)])
    assert result.exit_code == 2
    assert "exists; expected a new folder" in " ".join(result.output.split())


def test_a_ledger_without_messages_makes_a_page(spark: SparkSession) -> None:
    found = pipelines.report(spark.createDataFrame([], ledger.DDL))
    assert found.data["latency"] == []
    assert "The ledger tells of no message" in found.html()
    assert json.loads(found.json()) == found.data
    with pytest.raises(ValueError, match="stalled_ms is 0, expected 1 or more"):
        pipelines.report(spark.createDataFrame([], ledger.DDL), stalled_ms=0)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--data-dir", "{tmp}/none"], 2, "no journal here"),
        (["--to", "{tmp}"], 2, "a folder; expected the name of a file"),
        (["--to", "{tmp}/no/page.html"], 2, "there is no folder"),
        (["--stalled-after", "0"], 2, "expected a number of seconds above 0"),
        (["--url", "ftp://x"], 2, "ftp://x"),
        (["--url", "http://127.0.0.1:1", "--data-dir", "{journal}"], 1, "127.0.0.1:1"),
    ],
)
def test_bad_input_is_told_in_one_line(
    tmp_path: Path, arguments: list[str], code: int, said: str
) -> None:
    journal = Path(__file__).parents[1] / "journal" / "formats" / "before_dead_letters"
    given = [one.format(tmp=tmp_path, journal=journal) for one in arguments]
    result = CliRunner().invoke(
        build(), ["pipeline", "report", "--to", f"{tmp_path}/r.html", *given]
    )
    assert result.exit_code == code
    assert said in " ".join(result.output.split())
    assert "Traceback" not in result.output
    assert not (tmp_path / "r.html").exists()
