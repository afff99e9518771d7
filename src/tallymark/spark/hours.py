"""The equation hour by hour: of the messages that entered a queue in an hour, what became of them.

    entered = still there + settled + dead-lettered + dropped, by reason

Each hour is an account of its own, so a difference says in which hour the messages entered that
break it. And of what breaks it, which messages those are: the broker's ids beside the sequences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tallymark.spark.account import Hour
from tallymark.spark.sweep import MS_OF_HOUR, hours

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from rich.console import Console

    from tallymark.spark.account import Fault


def by_hour(stretches: DataFrame, names: Mapping[int, tuple[str, str]]) -> list[Hour]:
    """Return the accounts of all queues and hours from the result of `sweep.with_faults`, by queue
    and then by time."""
    sums: dict[tuple[int, int], dict[str, int]] = {}
    dropped: dict[tuple[int, int], dict[str, int]] = {}
    for row in hours(stretches).collect():
        key = (row.queue_id, -1 if row.hour is None else row.hour)
        of = sums.setdefault(key, {})
        for name in ("entered", "live", "settled", "dead_lettered", "dropped", "faults"):
            of[name] = of.get(name, 0) + row[name]
        if row.dropped:
            reasons = dropped.setdefault(key, {})
            reasons[row.reason or "several"] = reasons.get(row.reason or "several", 0) + row.dropped
    return [_hour(names, key, sums[key], dropped.get(key, {})) for key in sorted(sums)]


def _hour(
    names: Mapping[int, tuple[str, str]],
    key: tuple[int, int],
    of: Mapping[str, int],
    dropped: dict[str, int],
) -> Hour:
    vhost, name = names.get(key[0], ("", f"(id {key[0]})"))
    ended = of["settled"] + of["dead_lettered"] + of["dropped"]
    return Hour(
        name, vhost, iso_hour(key[1]), of["entered"], of["live"], of["settled"],
        of["dead_lettered"], dropped, of["entered"] - of["live"] - ended, of["faults"],
    )  # fmt: skip


def iso_hour(hour: int) -> str:
    """
    >>> iso_hour(490896)
    '2026-01-01T00:00Z'
    """
    if hour < 0:
        return ""
    return f"{datetime.fromtimestamp(hour * MS_OF_HOUR / 1000, UTC):%Y-%m-%dT%H:%MZ}"


def with_ids(rows: DataFrame, faults: Sequence[Fault], queue_ids: Sequence[int]) -> list[Fault]:
    """Return the faults, each with the id of its first message where the ledger has it. rows: the
    ledger; queue_ids: the queue of each fault."""
    from pyspark.sql import functions as f

    if not faults:
        return []
    wanted = [(i, queue_ids[i], fault.first) for i, fault in enumerate(faults)]
    of = rows.sparkSession.createDataFrame(wanted, "number long, of_queue long, sequence long")
    entered = rows.where("source = 'journal' and kind = 'entered'").select(
        "queue_id", "first", "count", "payload", "lo", "message_id"
    )
    found = (
        entered.join(
            f.broadcast(of),
            (f.col("queue_id") == f.col("of_queue"))
            & (f.col("sequence") >= f.col("first"))
            & (f.col("sequence") < f.col("first") + f.col("count")),
        )
        .groupBy("number")
        .agg(f.first(f.struct("first", "sequence", "payload", "lo", "message_id")).alias("at"))
        .collect()
    )
    firsts = _first_ids(rows, [row["at"].payload for row in found if row["at"].payload is not None])
    named = list(faults)
    for row in found:
        id = _id_of(row["at"], firsts)
        if id is not None:
            named[row.number] = replace(faults[row.number], message_id=id)
    return named


def _first_ids(rows: DataFrame, positions: Sequence[int]) -> dict[int, int]:
    from pyspark.sql import functions as f

    if not positions:
        return {}
    payloads = rows.where((f.col("kind") == "payload") & f.col("payload").isin(list(positions)))
    return {row.payload: row["first"] for row in payloads.select("payload", "first").collect()}


def _id_of(at: Any, firsts: Mapping[int, int]) -> int | None:
    behind = int(at.sequence - at["first"])
    if at.message_id is not None:
        return int(at.message_id) + behind
    if at.payload in firsts:
        return firsts[at.payload] + int(at.lo) + behind
    return None


def show_hours(console: Console, accounts: Sequence[Hour]) -> None:
    """A table with a row for each queue and hour."""
    from rich import box
    from rich.markup import escape
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
            escape(label) if label != last else "",
            one.hour.replace("T", " ").removesuffix("Z") or "(never entered)",
            *(f"{n:,}" for n in (one.entered, one.there, one.settled, one.dead_lettered)),
            f"{sum(one.dropped.values()):,}",
            f"[{good}]{one.difference:,}[/]",
        )
        last = label
    unbound = console.options.update_width(1000)
    width = max(console.width, Measurement.get(console, unbound, table).maximum)
    console.print(table, width=width, crop=False)
