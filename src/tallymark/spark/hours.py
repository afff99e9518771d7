"""The equation hour by hour: of the messages that entered a queue in an hour, what became of them.

    entered = still there + settled + dead-lettered + dropped, by reason

Each hour is an account of its own, so a difference says in which hour the messages entered that
break it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tallymark.printable import literal
from tallymark.spark.ranges import MS_OF_HOUR

if TYPE_CHECKING:
    from rich.console import Console

    from tallymark.spark.account import Hour


def iso_hour(hour: int) -> str:
    """
    >>> iso_hour(490896)
    '2026-01-01T00:00Z'
    """
    if hour < 0:
        return ""
    return f"{datetime.fromtimestamp(hour * MS_OF_HOUR / 1000, UTC):%Y-%m-%dT%H:%MZ}"


def show_hours(console: Console, accounts: Sequence[Hour]) -> None:
    """A table with a row for each queue and hour."""
    from rich import box
    from rich.measure import Measurement
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("queue", no_wrap=True)
    table.add_column("entered in the hour of", no_wrap=True)
    for heading in ("entered", "there", "settled", "dead-lettered", "dropped", "difference"):
        table.add_column(heading, justify="right", no_wrap=True)
    last = ""
    for one in accounts:
        label = f"{one.vhost}: {one.queue}".removeprefix("/: ").removeprefix(": ")
        good = "green" if one.difference == 0 and not one.faults else "bold red"
        table.add_row(
            literal(label) if label != last else "",
            one.hour.replace("T", " ").removesuffix("Z") or "(never entered)",
            *(f"{n:,}" for n in (one.entered, one.there, one.settled, one.dead_lettered)),
            f"{sum(one.dropped.values()):,}",
            f"[{good}]{one.difference:,}[/]",
        )
        last = label
    unbound = console.options.update_width(1000)
    width = max(console.width, Measurement.get(console, unbound, table).maximum)
    console.print(table, width=width, crop=False)
