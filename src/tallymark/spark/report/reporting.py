"""The report as a function, and as the command `tallymark pipeline report`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tallymark.spark.ledger_rows import over_ledger
from tallymark.spark.reconcile import TooLarge
from tallymark.spark.reconcile import run as reconcile
from tallymark.spark.report.findings import STALLED_MS, Scope, collect
from tallymark.spark.report.page import html

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from rich.console import Console

    from tallymark.spark.account import Reconciliation


@dataclass(frozen=True, slots=True)
class Report:
    """Findings of a report, and their formats."""

    data: dict[str, Any]
    """Every chapter as plain values, see docs/pipelines.md."""

    def json(self) -> str:
        return json.dumps(self.data, indent=1)

    def html(self, title: str = "What became of the messages") -> str:
        """One page that needs nothing else."""
        return html(self.data, title)

    def show(self, console: Console | None = None) -> None:
        """The heads of the chapters as tables on the terminal."""
        from tallymark.spark.report.terminal import show

        show(self.data, console)


def report(
    rows: DataFrame,
    *,
    as_of: datetime | None = None,
    stalled_ms: int = STALLED_MS,
    queues: Sequence[str] = (),
    begin: datetime | None = None,
    end: datetime | None = None,
    account: Reconciliation | None = None,
) -> Report:
    """Work every chapter out from rows of the ledger (`read_ledger`).

    as_of: the moment that ages are counted to, by default when the last thing happened. queues:
    names of those that the report is about, by default all. begin, end: the time that it is about,
    both with a zone, by default all. account: of `reconcile`, for the verdict.
    stalled_ms: how long a delivery may stay unsettled before its credit counts as leaked or
    stalled. The rows are read several times: `cache()` them, or not, as their number asks for.
    Raises ValueError.
    """
    if stalled_ms <= 0:
        raise ValueError(f"stalled_ms is {stalled_ms}, expected 1 or more milliseconds")
    for name, time in (("begin", begin), ("end", end)):
        if time is not None and time.tzinfo is None:
            raise ValueError(f"{name} is {time.isoformat()}, expected a time with a zone")
    check_order(begin, end)
    return Report(collect(rows, as_of, stalled_ms, Scope(queues, begin, end), account))


def main(
    data_dir: Path,
    to: Path,
    url: str | None = None,
    user: str | None = None,
    password: str | None = None,
    master: str = "local[*]",
    as_json: bool = False,
    stalled_ms: int = STALLED_MS,
    queues: Sequence[str] = (),
    begin: str | None = None,
    end: str | None = None,
) -> int:
    """`tallymark pipeline report`: write the page, and say where it is and what is in it; as_json:
    print the figures, and write the page all the same. begin, end: in ISO 8601, with a zone.

    Returns 0, or 1 with the reason on stderr. Raises ValueError, FileNotFoundError and the like for
    arguments that cannot be right.
    """
    check_target(to)
    first, last = (_time(name, text) for name, text in (("--begin", begin), ("--end", end)))
    check_order(first, last)

    def work(rows: DataFrame, as_of: datetime) -> None:
        try:
            account = reconcile(None, data_dir, None)
        except TooLarge:
            account = reconcile(rows.sparkSession, data_dir, None)
        found = report(
            rows.cache(), as_of=as_of, stalled_ms=stalled_ms, queues=queues, begin=first, end=last,
            account=account,
        )  # fmt: skip
        found.data["source"] = str(data_dir)
        write(to, found.html())
        if as_json:
            print(found.json())
        else:
            found.show()
            print(f"the page is {to}")

    return over_ledger(data_dir, url, user, password, master, "report", work)


def _time(name: str, text: str | None) -> datetime | None:
    """Raises ValueError."""
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise ValueError(f"{name} is {text!r}, expected ISO 8601 with a zone, as 2026-01-01T08:00Z")
    return time


def check_order(begin: datetime | None, end: datetime | None) -> None:
    """Raises ValueError: a report would be about no time at all."""
    if begin is not None and end is not None and begin >= end:
        raise ValueError(
            f"begin is {begin.isoformat()}, expected a time before the end, {end.isoformat()}"
        )


def check_target(to: Path) -> None:
    """Raises IsADirectoryError, NotADirectoryError, FileNotFoundError."""
    if to.is_dir():
        raise IsADirectoryError(f"--to is {str(to)!r}, a folder; expected the name of a file")
    if not to.parent.exists():
        raise FileNotFoundError(f"--to is {str(to)!r}, and there is no folder {str(to.parent)!r}")
    if not to.parent.is_dir():
        raise NotADirectoryError(f"--to is {str(to)!r}, and {str(to.parent)!r} is no folder")


def write(to: Path, text: str) -> None:
    """Whole or not at all."""
    aside = to.with_name(f".{to.name}.part")
    aside.write_text(text, encoding="utf-8")
    aside.replace(to)
