"""The rows of `make bench`: which are chosen, what a page says of results, and that each row's load
arrives whole."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.brokers import Running, scratch, tallymark
from bench.compare import Outcome, Programs, measure
from bench.loadgen import CHANNELS, FLOOR, LINKS, build, floor_us
from bench.page import Figures, text, write_page
from bench.plot import Spread, plot
from bench.scenarios import ROWS, Row, chosen
from tests.support.long import long


def test_rows_are_chosen_by_letter_range_and_name() -> None:
    assert [row.name for row in chosen("a-c,l5,k")] == ["a", "b", "c", "l5", "k10", "k100"]
    assert [row.name for row in chosen("p-b,g")] == ["p-b", "g", "g-mixed"]
    assert chosen("all") == list(ROWS)
    assert chosen("a,all") == list(ROWS)


def test_a_row_that_is_none_is_refused_with_those_that_are() -> None:
    with pytest.raises(ValueError, match=r"row 'z', expected all, .* letter or of a, b, c"):
        chosen("a,z")


def test_rows_have_names_of_their_own_and_short_runs_are_shorter() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
    assert {row.letter for row in ROWS} == set("abcdefghijklmnopqr")
    assert all(0 < row.quick < row.messages for row in ROWS)


def outcome(row: str, broker: str, run: int, cpu_us: float, p99_ms: float = 1) -> dict[str, Any]:
    return Outcome(
        row,
        broker,
        run,
        None,
        messages=1000,
        msg_per_s=20_000,
        cpu_us=cpu_us,
        cpu_s=1,
        p50_ms=0.1,
        p99_ms=p99_ms,
        peak_mib=50,
    ).as_json()


def results(*outcomes: dict[str, Any]) -> dict[str, Any]:
    return {
        "began": "2026-01-01 00:00 UTC",
        "command": "bench/run.py --rows b",
        "machine": {"processor": "P", "cores": "2", "kernel": "K", "python": "3.11"},
        "runs": 3,
        "quick": False,
        "scale": 1.0,
        "brokers": {"tallymark": "compiled", "rabbitmq": "as packaged"},
        "calibrations": [
            {"row": "b", "loop_ns": 50, "hash_us": 2, "trip_us": 9, "sync_ms": 1, "load": 0}
        ],
        "outcomes": list(outcomes),
        "failed": ["c rabbitmq: 3 lost"],
    }


def test_a_ratio_is_of_runs_that_took_their_turn_together() -> None:
    """The machine was three times slower in the second run: of the medians, 40 and 4, nothing of it
    would be seen, but a third run that only one broker has made would count."""
    figures = Figures(
        results(
            outcome("b", "tallymark", 0, 4),
            outcome("b", "rabbitmq", 0, 40),
            outcome("b", "rabbitmq", 1, 150),
            outcome("b", "tallymark", 1, 12),
            outcome("b", "rabbitmq", 2, 1),
        )
    )
    assert figures.ratio("b", "rabbitmq") == (10 + 12.5) / 2


def row_b() -> Row:
    return chosen("b")[0]


def test_what_is_wanted_and_not_held_is_named() -> None:
    figures = Figures(
        results(outcome("b", "tallymark", 0, 5.0, 9.0), outcome("b", "rabbitmq", 0, 40.6, 6.0))
    )
    assert figures.misses(row_b()) == [
        "8.1 times less than rabbitmq, wanted 10",
        "p99 1.5 times rabbitmq's, with 2.00 messages on their way, 2.00 there",
        "5.00 us, wanted 1.20",
    ]


def test_rows_are_paced_by_a_rate_by_answers_and_by_single_confirms() -> None:
    paced = {row.name for row in ROWS if row.is_paced}
    assert paced == {"f", "i1", "i50", "j", "l1-f", "n1", "n64", "p-f"} | {
        "o16k-f",
        "o256k-f",
        "o4m-f",
    }


def test_a_latency_of_a_paced_row_is_not_explained_by_what_waits() -> None:
    figures = Figures(
        results(outcome("f", "tallymark", 0, 1.0, 9.0), outcome("f", "rabbitmq", 0, 40.6, 6.0))
    )
    assert figures.misses(chosen("f")[0]) == ["p99 1.5 times rabbitmq's"]


def test_nothing_is_missed_where_everything_is_held() -> None:
    figures = Figures(
        results(outcome("b", "tallymark", 0, 1.1), outcome("b", "rabbitmq", 0, 40.6, 6.0))
    )
    assert figures.misses(row_b()) == []


def test_the_page_says_how_to_repeat_it_and_what_failed(tmp_path: Path) -> None:
    found = results(outcome("b", "tallymark", 0, 4), outcome("b", "rabbitmq", 0, 40))
    write_page(found, tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    assert page == text(found, ["page-cpu.svg", "page-p99.svg", "page-peak.svg"])
    assert "python bench/run.py --rows b" in page
    assert "- c rabbitmq: 3 lost" in page
    assert "| b | 1 KiB durable" in page
    assert all((tmp_path / f"page-{end}.svg").exists() for end in ("cpu", "p99", "peak"))


def test_the_floor_of_a_row_stands_beside_it_and_moves_no_ratio() -> None:
    """Results of a session before there was a floor have none."""
    found = results(outcome("f", "tallymark", 0, 200), outcome("f", "rabbitmq", 0, 600))
    assert "| 200 | 600 | 3.0 | - | held |" in text(found, [])
    found["floors"] = [
        {"row": "f", "run": run, "cpu_us": us} for run, us in enumerate((90, 110, 99))
    ]
    assert "| 200 | 600 | 3.0 | 99.00 | held |" in text(found, [])


def test_rows_with_a_floor_are_those_of_messages_that_come_alone() -> None:
    floors = {row.name: row.floor for row in ROWS if row.floor}
    assert floors == {"f": "message 2000", "i1": "call", "l1-f": "message 2000", "n1": "message"}


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not there")
@pytest.mark.parametrize("kind", ["message", "unsynced", "call"])
def test_the_floor_is_measured_and_a_kind_that_is_none_is_refused(
    kind: str, tmp_path: Path
) -> None:
    program = build(FLOOR, tmp_path)
    assert floor_us(program, kind, 50, "0", tmp_path, 60) > 0
    with pytest.raises(subprocess.CalledProcessError):
        floor_us(program, f"{kind}s", 50, "0", tmp_path, 60)


def test_a_page_of_no_results_is_a_page() -> None:
    assert "## Failed" in text(results(), [])


def test_a_plot_has_a_dot_for_each_broker_where_its_value_is() -> None:
    drawing = plot("T", "us", [("a", {"one": Spread(1, 10, 100), "two": Spread(2, 2, 2)})])
    middle = (110 + 900 - 40) / 2
    assert f'<circle cx="{middle:.1f}"' in drawing
    assert drawing.count("<circle") == 4  # two in the legend


@pytest.fixture(scope="module")
def programs() -> Iterator[Programs]:
    if shutil.which("gcc") is None:
        pytest.skip("no gcc: apt-get install gcc")
    with scratch() as folder:
        yield Programs(build(CHANNELS, folder), build(LINKS, folder))


@pytest.fixture(scope="module")
def broker() -> Iterator[Running]:
    with scratch() as folder, tallymark(folder / "data") as running:
        yield running


MESSAGES = 60
LARGE = ("j", "q500", "q5000")
"""Setting up takes seconds: 1,000 connections, 5,000 queues."""


@pytest.mark.parametrize(
    "row", [pytest.param(row, marks=long(ci=row.name not in LARGE), id=row.name) for row in ROWS]
)
def test_the_load_of_each_row_arrives_whole(row: Row, programs: Programs, broker: Running) -> None:
    """Long because it is for the rows' own flags and generators; what they find in a broker, other
    tests find in `make test`."""
    found = measure(programs, broker, row, 0, MESSAGES, 600)
    assert found.error is None
    assert found.messages == MESSAGES * row.deliveries
