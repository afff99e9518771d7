#!/usr/bin/env python3
"""The page of a comparison: tables and plots in Markdown and SVG, from the results of run.py.

    page.py build/bench.json docs/comparison.md

Figures are medians of the runs; a ratio is the median of the runs' own ratios, each of two brokers
that took their turn one after the other.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.plot import Spread, plot
from bench.scenarios import ROWS, Row

OURS, PEER, FASTEST = "tallymark", "rabbitmq", "lavinmq"
TICK_S = 0.01
"""The grain of the kernel's account of processor time."""
LAVINMQ_B_US, RABBITMQ_B_US = 3.25, 40.6
"""Row b on the machine that the absolute limits are meant for."""
SYNCED = ("f", "n1", "n64", "p-f")
"""Rows with a sync for each message, which LavinMQ does not make: there it may be cheaper."""

Runs = dict[tuple[str, str], list[dict[str, Any]]]
"""Sound runs by row and broker, in their order."""


class Figures:
    """The results, as the page asks for them."""

    def __init__(self, results: dict[str, Any]) -> None:
        self.results = results
        self.runs: Runs = defaultdict(list)
        for outcome in results["outcomes"]:
            if outcome["error"] is None:
                self.runs[outcome["row"], outcome["broker"]].append(outcome)
        self.floors: dict[str, list[float]] = defaultdict(list)
        for one in results.get("floors", []):
            self.floors[one["row"]].append(one["cpu_us"])
        names = {outcome["broker"] for outcome in results["outcomes"]}
        self.brokers = [OURS, *sorted(names - {OURS})]
        measured = {outcome["row"] for outcome in results["outcomes"]}
        self.rows = [row for row in ROWS if row.name in measured]

    def middle(self, row: str, broker: str, key: str) -> float | None:
        values = [run[key] for run in self.runs.get((row, broker), [])]
        return statistics.median(values) if values else None

    def spread(self, row: str, broker: str, key: str) -> Spread | None:
        values = [run[key] for run in self.runs.get((row, broker), []) if run[key] > 0]
        return Spread(min(values), statistics.median(values), max(values)) if values else None

    def ratio(self, row: str, peer: str, key: str = "cpu_us") -> float | None:
        """How many times the peer's figure is ours, pair by pair."""
        ours = {run["run"]: run[key] for run in self.runs.get((row, OURS), [])}
        theirs = {run["run"]: run[key] for run in self.runs.get((row, peer), [])}
        pairs = [theirs[run] / ours[run] for run in ours if run in theirs and ours[run] > 0]
        return statistics.median(pairs) if pairs else None

    def floor(self, row: str) -> float | None:
        """CPU of a message in the least program that does what a broker must."""
        values = self.floors.get(row)
        return statistics.median(values) if values else None

    def on_their_way(self, row: str, broker: str) -> float | None:
        """How many messages were published and not received yet, at the median: Little's law."""
        rate, p50_ms = (self.middle(row, broker, key) for key in ("msg_per_s", "p50_ms"))
        return None if rate is None or p50_ms is None else rate * p50_ms / 1e3

    def _waiting(self, row: Row) -> str:
        """What stands behind a latency where nothing but the broker sets the publisher's pace."""
        counts = [self.on_their_way(row.name, broker) for broker in (OURS, PEER)]
        if row.is_paced or None in counts:
            return ""
        return f", with {number(counts[0])} messages on their way, {number(counts[1])} there"

    def factor(self) -> tuple[float, str] | None:
        """How many times slower the machine is than that of the limits, and by what."""
        for broker, there in ((FASTEST, LAVINMQ_B_US), (PEER, RABBITMQ_B_US)):
            if (here := self.middle("b", broker, "cpu_us")) is not None:
                return here / there, f"{broker}'s row b: {here:.1f} us, {there} there"
        return None

    def misses(self, row: Row) -> list[str]:
        """What is wanted of a row and was not held; nothing where it was not measured."""
        found = []
        if (ratio := self.ratio(row.name, PEER)) is not None and ratio < row.ratio:
            found.append(f"{ratio:.1f} times less than {PEER}, wanted {row.ratio:g}")
        if (late := self.ratio(row.name, PEER, "p99_ms")) is not None and late < 1:
            found.append(f"p99 {1 / late:.1f} times {PEER}'s" + self._waiting(row))
        if (ratio := self.ratio(row.name, FASTEST)) is not None:
            limit = 1 / 1.5 if row.name in SYNCED else 1
            if ratio < limit:
                found.append(f"{1 / ratio:.2f} times {FASTEST}'s CPU, wanted {1 / limit:.1f}")
        if (late := self.ratio(row.name, FASTEST, "p99_ms")) is not None and late < 0.5:
            found.append(f"p99 {1 / late:.1f} times {FASTEST}'s, wanted 2")
        factor = self.factor()
        limits = [("p50_ms", row.p50_ms, "ms"), ("peak_mib", row.peak_mib, "MiB")]
        if factor is not None and row.cpu_us is not None:
            limits.append(("cpu_us", row.cpu_us * factor[0], "us"))
        for key, limit, unit in limits:
            here = self.middle(row.name, OURS, key)
            if limit is not None and here is not None and here > limit:
                found.append(f"{here:,.2f} {unit}, wanted {limit:,.2f}")
        return found


def number(value: float | None, digits: int = 2) -> str:
    """Three digits are enough of a large one; a dash where nothing was measured."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.{digits}f}"


def main_table(figures: Figures) -> list[str]:
    heads = "".join(f" {name} us |" for name in figures.brokers)
    ratios = "".join(f" {name} / ours |" for name in figures.brokers[1:])
    lines = [f"| row | traffic |{heads}{ratios} floor us | wanted, and missed |"]
    lines.append("|---" * (4 + len(figures.brokers) + len(figures.brokers[1:])) + "|")
    for row in figures.rows:
        costs = "".join(f" {_cost(figures, row, name)} |" for name in figures.brokers)
        times = "".join(
            f" {number(figures.ratio(row.name, name), 1)} |" for name in figures.brokers[1:]
        )
        missed = "; ".join(figures.misses(row)) or "held"
        if figures.middle(row.name, OURS, "cpu_us") is None:
            missed = "not measured"
        floor = number(figures.floor(row.name))
        lines.append(f"| {row.name} | {row.about} |{costs}{times} {floor} | {missed} |")
    return lines


def _cost(figures: Figures, row: Row, broker: str) -> str:
    """A cost; with a tilde where the kernel's grain is more than a twentieth of it."""
    cost = figures.middle(row.name, broker, "cpu_us")
    taken = figures.middle(row.name, broker, "cpu_s")
    is_coarse = taken is not None and taken < TICK_S * 20
    return ("~" if is_coarse and cost is not None else "") + number(cost)


def detail_table(figures: Figures) -> list[str]:
    lines = [
        "| row | broker | msg/s | p50 ms | p99 ms | on their way | confirm p99 ms | peak MiB |"
        " runs | others |"
    ]
    lines.append("|---|---|---|---|---|---|---|---|---|---|")
    for row in figures.rows:
        for broker in figures.brokers:
            runs = figures.runs.get((row.name, broker), [])
            if not runs:
                continue
            keys = ("msg_per_s", "p50_ms", "p99_ms", "confirm_p99_ms", "peak_mib")
            cells = [number(figures.middle(row.name, broker, key)) for key in keys]
            cells.insert(3, number(figures.on_their_way(row.name, broker), 1))
            others = max(run["others_cores"] + run["steal_cores"] for run in runs)
            lines.append(
                f"| {row.name} | {broker} | {' | '.join(cells)} | {len(runs)} | {others:.2f} |"
            )
    return lines


def calibration_table(results: dict[str, Any]) -> list[str]:
    lines = ["| | least | median | most |", "|---|---|---|---|"]
    about = {
        "loop_ns": "a turn of a loop of Python, ns of CPU",
        "hash_us": "SHA-256 of a MiB, us of CPU",
        "trip_us": "a byte to and fro over loopback, us",
        "sync_ms": "4 KiB and fdatasync, ms",
        "load": "load average of a minute",
    }
    for key, name in about.items():
        values = [one[key] for one in results["calibrations"]]
        if values:
            cells = (min(values), statistics.median(values), max(values))
            lines.append(f"| {name} | " + " | ".join(number(cell) for cell in cells) + " |")
    return lines


def plots(figures: Figures) -> dict[str, str]:
    """Drawings by the end of their file's name."""
    found = {}
    for key, title, unit in (
        ("cpu_us", "CPU of the broker per message", "us"),
        ("p99_ms", "From publish to receipt, 99th of 100", "ms"),
        ("peak_mib", "Peak memory", "MiB"),
    ):
        rows = []
        for row in figures.rows:
            spreads = {
                broker: spread
                for broker in figures.brokers
                if (spread := figures.spread(row.name, broker, key)) is not None
            }
            if spreads:
                rows.append((row.name, spreads))
        if rows:
            found[key.partition("_")[0]] = plot(title, unit, rows)
    return found


def text(results: dict[str, Any], drawings: list[str]) -> str:
    """The page. drawings: files beside it."""
    figures = Figures(results)
    machine = results["machine"]
    about = "; ".join(f"{name} {note}" for name, note in results["brokers"].items())
    factor = figures.factor()
    told = f"{factor[0]:.2f} (by {factor[1]})" if factor else "not known: row b has no peer here"
    size = "short runs (`--quick`): a look, no record" if results["quick"] else "full runs"
    lines = [
        "# Tallymark beside other brokers", "",
        f"{results['began']}, {size}, medians of {results['runs']}, scale {results['scale']:g}. "
        f"{machine['processor']}, {machine['cores']} cores, Linux {machine['kernel']}, "
        f"Python {machine['python']}: {about}.", "",
        "How to repeat it (docs/benchmarks.md tells what is measured and how):", "",
        "```", f"python {results['command']}", "```", "",
        "This page is written by it; `bench/page.py` writes it anew from the results.", "",
        "## CPU per message", "",
        "Microseconds of user and system time of the broker and its descendants, and how many "
        "times ours another's is, pair by pair. A tilde: less than 20 ticks of the kernel's clock. "
        f"Absolute limits are meant for another machine and are multiplied by {told}.", "",
        "*floor*: what a program in C takes that reads, syncs and writes what a broker must for a "
        "message that comes alone, and does nothing else (`bench/floor.c`), in turn with the "
        "brokers. A broker that syncs each message by itself does not get below it here.", "",
        *main_table(figures), "",
        *(f"![{Path(name).stem}]({name})\n" for name in drawings),
        "## Rates, latencies, memory", "",
        "*others*: the most cores that neither broker nor generator used in a run of it, another "
        "broker's idling and what the host took included. Where that is not near zero, rates and "
        "latencies tell of the machine.", "",
        "*on their way*: messages published and not received yet, at the median (rate times p50). "
        "In a row without a rate, RPC or a window of 1 the publisher sends as fast as the broker "
        "takes it. There a latency tells how many messages wait, not how long the broker needs for "
        "one: a broker that takes messages quicker than they are consumed has a longer queue. How "
        "long it needs tell the rows with a rate.", "",
        *detail_table(figures), "",
        "## The machine meanwhile", "", "Taken before each row.", "",
        *calibration_table(results), "",
    ]  # fmt: skip
    failed = [f"- {problem}" for problem in results["failed"]]
    lines += ["## Failed", "", *(failed or ["Nothing: every message was accounted for."])]
    return "\n".join(lines) + "\n"


def write_page(results: dict[str, Any], page: Path) -> None:
    """Write the page and, beside it, its drawings."""
    page.parent.mkdir(parents=True, exist_ok=True)
    names = []
    for end, drawing in plots(Figures(results)).items():
        target = page.with_name(f"{page.stem}-{end}.svg")
        target.write_text(drawing)
        names.append(target.name)
    page.write_text(text(results, names))


def main() -> int:
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    write_page(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
