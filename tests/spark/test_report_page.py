"""The report's page and its parts, without Spark: self-contained, escaped, drawn right."""

from __future__ import annotations

import doctest
import json
import re
import sqlite3
import time
from collections.abc import Callable
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark.spark.account import Account, Reconciliation
from tallymark.spark.reconcile import TooLarge
from tallymark.spark.report import charts, depths, findings, graph, pathmap, reporting, words
from tallymark.spark.report.graph import cycles, layers
from tallymark.spark.report.page import CHAPTERS, html
from tallymark.spark.report.script import SCRIPT
from tallymark.spark.report.terminal import show

NAMES = st.sampled_from("abcdef")
EDGES = st.lists(st.tuples(NAMES, NAMES), max_size=14)
HOUR = 3_600_000
MALICE = '<script src="http://x">&'


@pytest.mark.parametrize("module", [words, graph, findings, charts])
def test_the_examples_in_the_docstrings_are_true(module: Any) -> None:
    assert doctest.testmod(module).failed == 0


def data(**more: Any) -> dict[str, Any]:
    """Findings with something in every chapter."""
    return {
        "version": 1, "from": "2026-01-01T00:00:00Z", "to": "2026-01-01T02:00:00Z",
        "as_of": "2026-01-01T02:00:01Z", "bucket_ms": HOUR, "stalled_ms": 600_000,
        "account": {
            "balanced": False, "position": 64,
            "queues": [{"queue": MALICE, "entered": 9, "there": 1, "settled": 7, "dead_lettered": 0,
                        "dropped": 0, "difference": 1}],
            "faults": [{"queue": MALICE, "first": 2, "last": 3, "fault": MALICE,
                        "message_id": 7}],
        },
        "verdict": {"text": "1 queue needs a look", "good": False,
                    "queues": [{"queue": MALICE, "why": [MALICE, "b", "c", "d"]}]},
        "depth": [{"queue": MALICE, "entered": 30, "ended": 10, "deepest": 20, "depth": 20,
                   "grew": 20, "points": [[0, 10, 5, 5], [2 * HOUR, 20, 5, 20]]}],
        "latency_over_time": [
            {"at_ms": at, "count": 4, "p50_ms": 0.0, "p90_ms": 20.0, "p95_ms": 30.0,
             "p99_ms": 1500.0, "p999_ms": 1600.0, "longest_ms": 90_000.0}
            for at in (0, 2 * HOUR)
        ],
        "totals": {"entered": 1234, "acquired": 5, "settled": 4, "returned": 3, "deferred": 2,
                   "unsure": 6,
                   "dead_lettered": 1, "dropped": 7, "drops": {"expired": 7}},
        "flow": [
            {"at_ms": 0, "entered": 10, "settled": 5, "returned": 0, "dead_lettered": 0,
             "dropped": 0},
            {"at_ms": 2 * HOUR, "entered": 20, "settled": 5, "returned": 0, "dead_lettered": 3,
             "dropped": 0},
        ],
        "latency": [{"queue": MALICE, "count": 9, "p50_ms": 0.0, "p90_ms": 20.0, "p95_ms": 30.0,
                     "p99_ms": 1500.0, "p999_ms": 1600.0, "longest_ms": 90_000.0}],
        "topics": [{"topic": MALICE, "consumed": 9, "per_second": 0.5, "queues": {MALICE: 9},
                    "points": [[0, 4], [2 * HOUR, 5]]}],
        "deliveries": [{"queue": MALICE, "deliveries": 10, "redelivered": 4, "timed_out": 1,
                        "redelivery_rate": 0.4, "timeout_rate": 0.1, "attempts": {1: 6, 2: 4},
                        "given_back": {MALICE: 1}}],
        "paths": {
            "edges": [
                {"source": "work", "target": "retry", "cause": "rejected", "count": 40},
                {"source": "retry", "target": "work", "cause": "expired", "count": 39},
                {"source": "work", "target": MALICE, "cause": "maxlen", "count": 1},
                {"source": "loop", "target": "loop", "cause": "rejected", "count": 1},
                {"source": "work", "target": "retry", "cause": MALICE, "count": 2},
            ],
            "drops": [{"queue": "work", "cause": "expired", "count": 7}],
            "cycles": [["loop"], ["retry", "work"]],
        },
        "consumers": [{"rank": 1, "queue": MALICE, "consumer": 7, "name": MALICE, "delivered": 5,
                       "settled": 4, "refused": 0, "given_back": 1, "timed_out": 1,
                       "per_second": None, "p50_ms": 10.0, "p95_ms": 20.0, "longest_ms": 30}],
        "slow_consumers": [{"queue": MALICE, "consumer": 7, "event": "found",
                            "at": "2026-01-01T01:00:00Z", "about": {}}],
        "credit": [{"queue": MALICE, "link": "consumer 7", "held": 3, "oldest_ms": 900_000,
                    "settled_ms_ago": None, "state": "stalled"}],
        "duplicates": [{"queue": MALICE, "passed_over": 2, "seen_again": 4, "most_deliveries": 3}],
        "inversions": [{"queue": MALICE, "after_return": 4, "first_delivery": 1, "furthest": 9}],
        **more,
    }  # fmt: skip


def empty() -> dict[str, Any]:
    """Findings of a ledger in which nothing ever happened."""
    full = data(paths={"edges": [], "drops": [], "cycles": []})
    nothing = {key: [] for key, value in full.items() if isinstance(value, list)}
    totals = {**dict.fromkeys(full["totals"], 0), "drops": {}}
    well = {"account": {}, "verdict": {"text": "nothing stands out", "good": True, "queues": []}}
    return {**full, **nothing, **well, "from": "", "to": "", "as_of": "", "totals": totals}


class Seen(HTMLParser):
    """Every tag with its attributes, and that tags are closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("found", [data(), empty()])
def test_the_page_needs_nothing_else_and_no_name_escapes_into_it(found: dict[str, Any]) -> None:
    page = html(found, MALICE)
    seen = Seen(page)
    kinds = {tag for tag, _ in seen.tags}
    assert page.count("<script") == page.count(f"<script>{SCRIPT}</script>") == 1
    assert not kinds & {"link", "img", "iframe", "object", "embed", "base", "form"}
    for _, attributes in seen.tags:
        assert not attributes.keys() & {"src", "action", "onclick", "onload", "data"}
        assert str(attributes.get("href", "#")).startswith("#")
    assert "@import" not in page
    assert "url(" not in re.sub(r"url\(#(way|round|clip)", "", page)
    loads = ("fetch", "XMLHttp", "import", "WebSocket", "http:", "https:", "eval", "storage")
    assert not [word for word in loads if word in SCRIPT.replace("http://www.w3.org/2000/svg", "")]


def test_every_chapter_stands_on_the_page_and_is_linked() -> None:
    seen = Seen(html(data()))
    ids = [attributes.get("id") for tag, attributes in seen.tags if tag == "section"]
    links = [str(attributes.get("href")) for tag, attributes in seen.tags if tag == "a"]
    assert ids == [key for key, _, _ in CHAPTERS]
    assert links == [f"#{key}" for key, _, _ in CHAPTERS]


def test_each_plot_is_sound_xml_within_its_box() -> None:
    plots = re.findall(r"<svg.*?</svg>", html(data()), re.S)
    assert len(plots) >= 7
    for plot in plots:
        tree = ElementTree.fromstring(plot)
        _, _, width, height = map(float, tree.attrib["viewBox"].split())
        for part in tree.iter():
            for name, limit in (("x", width), ("x1", width), ("y1", height), ("cx", width)):
                assert -1 <= float(part.attrib.get(name, 0)) <= limit + 1, part.attrib


def test_a_question_without_an_answer_is_left_out_and_named() -> None:
    page = html(empty())
    assert "<section" not in page
    assert "<svg" not in page
    assert "<nav></nav>" in page
    assert page.count("Nothing to say of") == 1
    assert all(name in page for _, name, _ in CHAPTERS)
    page = html(data(credit=[], duplicates=[]))
    assert page.count("<section") == len(CHAPTERS) - 2
    assert "Nothing to say of: Does anybody hold messages" in page


def test_the_verdict_stands_on_top_with_reasons() -> None:
    page = html(data())
    assert page.index("1 queue needs a look") < page.index("<section")
    assert "c; 1 more" in page


STALLED = {"queue": "a", "link": "consumer 7", "held": 3, "state": "stalled"}


@pytest.mark.parametrize(
    ("more", "text", "named"),
    [
        ({}, "all balanced", []),
        ({"account": {}}, "nothing stands out", []),
        ({"credit": [STALLED]}, "1 queue needs a look", ["a"]),
        ({"credit": [{**STALLED, "state": "leased"}]}, "all balanced", []),
        ({"paths": {"cycles": [["a", "b"]]}, "credit": [STALLED]}, "2 queues need a look",
         ["a", "b"]),
        ({"depth": [{"queue": "q", "entered": 1500, "grew": 1000}]}, "1 queue needs a look", ["q"]),
        ({"depth": [{"queue": "q", "entered": 1500, "grew": 999}]}, "all balanced", []),
        ({"account": {"queues": [{"queue": "q", "difference": 3}], "faults": [
            {"queue": "r", "first": 1, "last": 2, "fault": "lost"}]}},
         "2 queues need a look", ["q", "r"]),
        ({"slow_consumers": [{"queue": "q", "consumer": 1, "event": "recovered"}]},
         "all balanced", []),
    ],
)  # fmt: skip
def test_which_queues_need_a_look(more: dict[str, Any], text: str, named: list[str]) -> None:
    well = {
        "account": {"queues": [{"queue": "q", "difference": 0}], "faults": []}, "credit": [],
        "paths": {"cycles": []}, "slow_consumers": [], "depth": [],
    }  # fmt: skip
    found = depths.verdict({**well, **more})
    assert found["text"] == text
    assert [one["queue"] for one in found["queues"]] == named
    assert found["good"] is (not named)


def test_depths_are_counted_back_from_what_is_there() -> None:
    """100 were there before the ledger begins; the first hour is not asked for."""
    happened = [(1, 0, "entered", 5), (1, HOUR, "settled", 15), (1, HOUR, "entered", 2),
                (2, HOUR, "dropped", 4)]  # fmt: skip
    traffic = [SimpleNamespace(**dict(zip(("queue_id", "bucket", "kind"), row, strict=False)))
               for row in happened]  # fmt: skip
    for row, told in zip(traffic, happened, strict=True):
        row.__dict__["count"] = told[3]
    rows = [Traffic(row) for row in traffic]
    there = [Traffic(SimpleNamespace(queue_id=1, count=92))]
    (one, two) = depths.depths(lambda id: f"q{id}", rows, there, lambda at: at >= HOUR)
    assert (one["queue"], one["points"]) == ("q1", [[HOUR, 2, 15, 92]])
    assert (one["deepest"], one["depth"], one["grew"]) == (92, 92, -13)
    assert (two["points"], two["grew"]) == ([[HOUR, 0, 4, 0]], -4)


class Traffic:
    """A row as Spark gives it: by name and as an attribute."""

    def __init__(self, values: SimpleNamespace) -> None:
        self.__dict__.update(vars(values))

    def __getitem__(self, name: str) -> Any:
        return self.__dict__[name]


class Table:
    """Rows of (kind, queue_id, blob) that are asked in SQL."""

    def __init__(self, rows: list[tuple[str, int, str]]) -> None:
        self.rows = rows

    def where(self, condition: str) -> Table:
        with sqlite3.connect(":memory:") as memory:
            memory.execute("create table t (kind, queue_id, blob)")
            memory.executemany("insert into t values (?, ?, ?)", self.rows)
            return Table(memory.execute(f"select * from t where {condition}").fetchall())

    def select(self, *names: str) -> Table:
        assert names == ("kind", "queue_id", "blob")
        return self

    def distinct(self) -> Table:
        return self

    def collect(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(kind=kind, queue_id=id, blob=blob) for kind, id, blob in self.rows]


def test_queues_beside_those_of_the_report_are_not_said_to_be_gone() -> None:
    """Where its dead letters came from, and where they went to."""
    rows = []
    for id, name in ((1, "work"), (2, "parked"), (3, "old")):
        said = {"op": "queue", "vhost": "/", "id": id, "name": name}
        rows.append(("definition", 0, json.dumps(said)))
    ledger: Any = Table([*rows, ("counters", 1, "{}"), ("counters", 2, "{}"), ("live", 2, "")])
    some: Any = findings.Scope(["work"]).rows_of(ledger)
    assert findings.names_of(some).queues == {1: "work", 2: "parked", 3: "old (gone, id 3)"}
    assert ("live", 2, "") not in some.rows


def test_a_report_of_some_queues_has_the_account_of_these() -> None:
    def balance(vhost: str, queue: str, difference: int) -> Account:
        return Account(
            queue=queue, vhost=vhost, entered=9, still_there={}, settled=9 - difference,
            dead_lettered=0, dropped={}, difference=difference,
        )  # fmt: skip

    accounts = [balance("/", "work", 0), balance("v", "work", 2), balance("/", "mail", 0)]
    outcome = Reconciliation(64, accounts)
    said = depths.account_of(outcome)
    assert ([one["queue"] for one in said["queues"]], said["balanced"]) == (
        ["v: work", "mail", "work"], False
    )  # fmt: skip
    said = depths.account_of(outcome, ["work"])
    assert ([one["queue"] for one in said["queues"]], said["balanced"]) == (["work"], True)
    said = depths.account_of(outcome, ["v: work"])
    assert ([one["queue"] for one in said["queues"]], said["balanced"]) == (["v: work"], False)


def test_a_consumers_rate_over_the_hour_that_comes_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark hands times out in those of this machine, where summer time ends."""
    first = datetime(2026, 10, 25, 0, 50, tzinfo=UTC)
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        begun, ended = (
            datetime.fromtimestamp(first.timestamp() + seconds)  # noqa: DTZ006
            for seconds in (0, 1200)
        )
        assert ended < begun, "02:10, and 02:50 before"
        row = SimpleNamespace(
            queue_id=1, consumer=7, delivered=2400, settled=2400, refused=0, given_back=0,
            timed_out=0, p50_ms=1.0, p95_ms=1.0, longest_ms=1,
        )  # fmt: skip
        rows = [Row({**vars(row), "first": begun, "last": ended})]
        asked: Any = SimpleNamespace(collect=lambda: rows)
        monkeypatch.setattr(findings, "transitions", lambda rows: rows)
        monkeypatch.setattr("tallymark.spark.report.chapters.consumers", lambda _: asked)
        (one,) = findings._consumers(findings.Names({1: "q"}, {}), asked, [])
        assert one["per_second"] == 2.0
    finally:
        monkeypatch.undo()
        time.tzset()


class Row(dict[str, Any]):
    """A row of Spark's."""

    __getattr__ = dict.__getitem__


def test_consumers_of_one_name_are_told_apart() -> None:
    row = {**data()["consumers"][0], "queue": "mail", "name": "mailer"}
    page = html(data(consumers=[row, {**row, "rank": 2, "consumer": 8}]))
    bars = re.findall(r"<title>(mail, [^:]*):", page)
    assert bars == ["mail, 7 mailer", "mail, 8 mailer"]
    assert len(re.findall(r'<span class="time">2026-01-01 0\d:00:0\d</span>', page)) == 3


def test_more_rows_than_fit_unfold() -> None:
    many = [{**data()["inversions"][0], "queue": f"q{i:02}"} for i in range(40)]
    page = html(data(inversions=many))
    assert "<summary>28 more</summary>" in page
    assert all(f"q{i:02}" in page for i in range(40))


def test_a_page_does_not_grow_without_end() -> None:
    many = [{**data()["inversions"][0], "queue": f"q{i:05}"} for i in range(20_000)]
    page = html(data(inversions=many))
    assert "<summary>19,988 more</summary>" in page
    assert "18,988 more, which the report as JSON has." in page
    assert page.count('<td class="text">q0') == 12 + 1000


@pytest.mark.parametrize("ms", [0, 1, 10, 100, 1_000, 60_000])
@pytest.mark.parametrize("more", [0, 1])
def test_a_queue_whose_messages_all_took_as_long_has_its_plot(ms: int, more: int) -> None:
    took = dict.fromkeys(("p50_ms", "p90_ms", "p95_ms", "p99_ms"), ms)
    plot = charts.ranges([{"queue": "one", **took, "longest_ms": ms + more}])
    places = [float(at) for at in re.findall(r' (?:cx|x1|x2|x)="(-?[\d.]+)"', plot)]
    assert places
    assert all(0 <= at <= charts.WIDTH for at in places)


def test_lines_fall_to_zero_where_nothing_was() -> None:
    """The second of three hours has no row at all."""
    plot = ElementTree.fromstring(charts.lines(data()["flow"], {"entered": "in"}, HOUR).split(
        "</p>")[1])  # fmt: skip
    (line,) = [part for part in plot.iter() if part.attrib.get("class", "").startswith("line")]
    floor, *_ = re.findall(r"M[\d.]+,([\d.]+)", line.attrib["d"])
    heights = re.findall(r"V([\d.]+)H", line.attrib["d"])
    assert len(heights) == 3
    assert heights[1] == floor
    assert float(heights[2]) < float(heights[0]) < float(floor)


def test_the_map_marks_cycles_and_only_those() -> None:
    tree = ElementTree.fromstring(pathmap.draw(data()["paths"]))
    ways = [part for part in tree.iter() if "marker-end" in part.attrib]
    said = {part[0].text or "": part.attrib["class"] for part in ways}
    assert said == {
        f"work to retry: 40 rejected, 2 {MALICE}": "round",
        "retry to work: 39 expired": "round",
        f"work to {MALICE}: 1 maxlen": "way",
        "loop to loop: 1 rejected": "round",
    }
    assert "7 dropped" in "".join(tree.itertext())


@given(EDGES)
def test_cycles_are_what_can_be_reached_from_itself(edges: list[tuple[str, str]]) -> None:
    nodes = {node for edge in edges for node in edge}
    reach = {node: {b for a, b in edges if a == node} for node in nodes}
    for _ in nodes:
        for node in nodes:
            reach[node] |= {far for near in set(reach[node]) for far in reach[near]}
    groups = {frozenset(m for m in reach[n] if n in reach[m]) for n in nodes if n in reach[n]}
    found = cycles(edges)
    assert {frozenset(group) for group in found} == groups
    assert len(found) == len(groups)
    assert all(len(set(group)) == len(group) for group in found)


@given(EDGES)
def test_every_queue_has_one_place_on_the_map(edges: list[tuple[str, str]]) -> None:
    columns = layers(edges)
    placed = [node for column in columns for node in column]
    assert sorted(placed) == sorted({node for edge in edges for node in edge})
    assert all(columns)
    depth = {node: i for i, column in enumerate(columns) for node in column}
    around = {node: group for group in map(frozenset, cycles(edges)) for node in group}
    for a, b in edges:  # outside cycles arrows lead to the right
        if a != b and (a not in around or around[a] != around.get(b)):
            assert depth[a] < depth[b]


def test_the_terminal_shows_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    console = Console(width=200, force_terminal=False)
    show(data(), console)
    said = capsys.readouterr().out
    assert "a cycle: retry -> work -> retry" in said
    assert "15 min" in said
    assert "stalled" in said
    show(empty(), console)
    assert capsys.readouterr().out == ""


def test_an_account_that_is_too_large_for_this_process_is_sparks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def over_ledger(*given: Any) -> int:
        work: Callable[[object, datetime], None] = given[-1]
        work(SimpleNamespace(sparkSession="spark", cache=dict), datetime(2026, 1, 1, tzinfo=UTC))
        return 0

    def reconcile(spark: object, *_: object) -> str:
        asked.append(spark)
        if spark is None:
            raise TooLarge("8000001 ranges, more than 8000000")
        return "its account"

    def report(_: object, **given: Any) -> reporting.Report:
        assert given["account"] == "its account"
        return reporting.Report(empty())

    for made in (over_ledger, reconcile, report):
        monkeypatch.setattr(reporting, made.__name__, made)
    assert reporting.main(tmp_path, tmp_path / "report.html", as_json=True) == 0
    assert asked == [None, "spark"]
