"""The heads of the report's chapters on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from tallymark.printable import literal, printable
from tallymark.spark.report import words

if TYPE_CHECKING:
    from rich.console import Console

MOST: Final = 10


def show(data: dict[str, Any], console: Console | None = None) -> None:
    """Print the first rows of each chapter that has any."""
    from rich.console import Console

    out = console or Console(emoji=False)
    took = words.duration
    _table(
        out, "End-to-end latency", ("queue", "messages", "p50", "p95", "p99", "longest"),
        [
            (r["queue"], words.count(r["count"]), took(r["p50_ms"]), took(r["p95_ms"]),
             took(r["p99_ms"]), took(r["longest_ms"]))
            for r in data["latency"]
        ],
    )  # fmt: skip
    _table(
        out, "Consumption by topic", ("topic", "consumed", "rate"),
        [(r["topic"], words.count(r["consumed"]), words.rate(r["per_second"]))
         for r in data["topics"]],
    )  # fmt: skip
    _table(
        out, "Redeliveries and time-outs", ("queue", "deliveries", "again", "timed out"),
        [
            (r["queue"], words.count(r["deliveries"]), words.percent(r["redelivery_rate"]),
             words.percent(r["timeout_rate"]))
            for r in data["deliveries"]
        ],
    )  # fmt: skip
    _table(
        out, "Dead-letter paths", ("from", "to", "cause", "messages"),
        [(r["source"], r["target"], r["cause"], words.count(r["count"]))
         for r in data["paths"]["edges"]],
    )  # fmt: skip
    for group in data["paths"]["cycles"]:
        cycle = printable(" -> ".join([*group, group[0]]))
        out.print(f"a cycle: {cycle}", markup=False, soft_wrap=True)
    _table(
        out, "Consumers, slowest first", ("queue", "consumer", "settled", "p50", "p95"),
        [
            (r["queue"], f"{r['consumer']} {r['name']}".strip(), words.count(r["settled"]),
             took(r["p50_ms"]), took(r["p95_ms"]))
            for r in data["consumers"]
        ],
    )  # fmt: skip
    _table(
        out, "Credit", ("queue", "link", "holds", "the oldest for", "state"),
        [(r["queue"], r["link"], words.count(r["held"]), took(r["oldest_ms"]), r["state"])
         for r in data["credit"]],
    )  # fmt: skip
    _table(
        out, "Duplicates", ("queue", "handed out again", "publishes passed over"),
        [(r["queue"], words.count(r["seen_again"]), words.count(r["passed_over"]))
         for r in data["duplicates"]],
    )  # fmt: skip
    _table(
        out, "Out of order", ("queue", "after a return", "on first delivery"),
        [(r["queue"], words.count(r["after_return"]), words.count(r["first_delivery"]))
         for r in data["inversions"]],
    )  # fmt: skip


TEXTS: Final = ("queue", "topic", "from", "to", "cause", "consumer", "link", "state")


def _table(
    console: Console, title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]
) -> None:
    from rich import box
    from rich.table import Table

    if not rows:
        return
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        table.add_column(heading, justify="left" if heading in TEXTS else "right")
    for row in rows[:MOST]:
        table.add_row(*map(literal, row))
    console.print(table)
    if len(rows) > MOST:
        console.print(f"and {len(rows) - MOST} more", highlight=False)
