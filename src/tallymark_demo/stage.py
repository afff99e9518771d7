"""The stage of the play: where a scene speaks, checks its claims, and finds broker and session."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from tallymark.spark.account import Reconciliation
from tallymark.spark.client import Client, api_path
from tallymark.spark.session import build_session, stop_session
from tallymark_demo.broker import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.console import Console


class CheckFailed(Exception):
    """Something the play wanted to show did not hold."""


@dataclass(slots=True)
class Stage:
    """Objects that all scenes share."""

    console: Console
    out: Path
    input: Path | None
    broker: BrokerProcess
    checks: list[tuple[str, bool]] = field(default_factory=list)
    files: dict[str, Path] = field(default_factory=dict)
    """Files that are named at the end, for a look."""
    in_account: list[Callable[[Reconciliation], None]] = field(default_factory=list)
    """Checks of scenes on the account at the end."""
    skipped: int = 0
    _spark: Future[SparkSession] | None = None

    def say(self, text: str) -> None:
        self.console.print(f"  {text}", highlight=False, markup=False)

    def check(self, claim: str, holds: bool) -> None:
        """Show a claim and whether it holds; the demo goes on, and fails at its end."""
        self.checks.append((claim, holds))
        mark = "[green]ok[/]  " if holds else "[bold red]FAILED[/]"
        self.console.print(f"  {mark} {escape(claim)}", highlight=False)

    def skip(self, claim: str, why: str) -> None:
        """Show a claim that was not put to the test."""
        self.skipped += 1
        self.console.print(f"  [yellow]skipped:[/] {escape(claim)}: {escape(why)}", highlight=False)

    def start_spark(self) -> None:
        """Begin to build the session: it takes long, and the first scene plays meanwhile."""
        log = self.out / "spark.log"
        self.files["what Java and Spark said"] = log
        starter = ThreadPoolExecutor(1)
        self._spark = starter.submit(_quiet_session, log)
        starter.shutdown(wait=False)

    def spark(self) -> SparkSession:
        """The session, as soon as it is there. Raises JavaNotFound, SparkDidNotStart."""
        if self._spark is None:
            self.start_spark()
        assert self._spark is not None
        if not self._spark.done():
            with self.console.status("Spark starts"):
                self._spark.result()
        return self._spark.result()

    def queue(self, name: str) -> dict[str, Any]:
        """Return the broker's state of a queue."""
        client = Client(self.broker.endpoint)
        try:
            answer = client.call("GET", api_path("queues"))
        finally:
            client.close()
        return next(dict(queue) for queue in answer["queues"] if queue["name"] == name)

    def aside(self) -> Stage:
        """Return a stage for a scene that runs beside another: its output is held back until
        `take`."""
        from rich.console import Console

        shown = self.console
        system: Any = shown.color_system
        width = shown.width if shown.is_terminal else None
        kept = Console(
            file=StringIO(), force_terminal=False, color_system=system, width=width,
            no_color=shown.no_color, emoji=False,
        )  # fmt: skip
        return replace(self, console=kept, skipped=0)

    def take(self, scene: Stage) -> None:
        """Show a scene's output that was held back; from now on it is shown at once."""
        assert isinstance(scene.console.file, StringIO)
        self.console.file.write(scene.console.file.getvalue())
        self.console.file.flush()
        self.skipped += scene.skipped
        scene.console = self.console

    def close(self) -> None:
        if self._spark is not None and self._spark.exception() is None:
            stop_session(self._spark.result())
        self.broker.stop()


def _quiet_session(log: Path) -> SparkSession:
    with _stderr_to(log):
        return build_session("local[*]", "tallymark demo", brief=True)


@contextmanager
def _stderr_to(log: Path) -> Iterator[None]:
    """Send stderr of the processes started meanwhile to this file: Java's warnings do not concern
    the audience, and no option of its own stops them."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def rate(count: int, seconds: float) -> str:
    """`12,345/s`"""
    return f"{count / seconds:,.0f}/s" if seconds > 0 else "-"


def table_of(console: Any, title: str, rows: list[dict[str, Any]]) -> None:
    """Print rows with equal keys as a table."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left")
    for heading in rows[0] if rows else ():
        numeric = isinstance(rows[0][heading], int)
        table.add_column(heading, justify="right" if numeric else "left", no_wrap=not numeric)
    for row in rows:
        # Text, because a message's brackets are its own and no markup.
        table.add_row(*(Text(f"{v:,}" if isinstance(v, int) else str(v)) for v in row.values()))
    console.print(table)
