"""`tallymark demo`: the main job as a play in scenes, each showing one thing the broker does.

A scene gets a running broker and a stage to print on; whatever it claims to have shown it checks,
and a check that fails makes the whole play fail. All scenes end in the same reconciliation: Spark
works the account of every queue out from the journal, and each difference must be 0.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pika.exceptions import AMQPError
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from rich.markup import escape

from tallymark.spark import land, reconcile
from tallymark.spark.client import BrokerRefused, BrokerUnreachable, Client, api_path
from tallymark.spark.demo_broker import BrokerDidNotStart, BrokerProcess
from tallymark.spark.demo_publisher import PublishingEnded
from tallymark.spark.java import JavaNotFound
from tallymark.spark.ledger import LedgerIncomplete
from tallymark.spark.reconcile_table import show
from tallymark.spark.session import SparkDidNotStart, build_session, stop_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.console import Console

FOLDER: Final = Path("demo-out")


class CheckFailed(Exception):
    """Something the play wanted to show did not hold."""


@dataclass(slots=True)
class Stage:
    """What every scene has at hand."""

    console: Console
    out: Path
    input: Path | None
    broker: BrokerProcess
    checks: list[tuple[str, bool]] = field(default_factory=list)
    files: dict[str, Path] = field(default_factory=dict)
    """What the newcomer may want to look at afterwards."""
    in_account: list[Callable[[reconcile.Reconciliation], None]] = field(default_factory=list)
    """What scenes have to check in the account at the end."""
    skipped: int = 0
    _spark: SparkSession | None = None

    def say(self, text: str) -> None:
        self.console.print(f"  {text}", highlight=False, markup=False)

    def check(self, claim: str, holds: bool) -> None:
        """Show a claim and whether it holds; the play goes on, and fails at its end."""
        self.checks.append((claim, holds))
        mark = "[green]ok[/]  " if holds else "[bold red]FAILED[/]"
        self.console.print(f"  {mark} {escape(claim)}", highlight=False)

    def skip(self, claim: str, why: str) -> None:
        """Show a claim that was not put to the test."""
        self.skipped += 1
        self.console.print(f"  [yellow]skipped:[/] {escape(claim)}: {escape(why)}", highlight=False)

    def spark(self) -> SparkSession:
        """The session, built when it is first needed."""
        if self._spark is None:
            begun = time.monotonic()
            with self.console.status("Spark starts"):
                self._spark = build_session("local[*]", "tallymark demo", brief=True)
            self.say(f"Spark {self._spark.version} is up after {time.monotonic() - begun:.1f} s")
        return self._spark

    def queue(self, name: str) -> dict[str, Any]:
        """What the broker says of a queue now."""
        client = Client(self.broker.endpoint)
        try:
            answer = client.call("GET", api_path("queues"))
        finally:
            client.close()
        return next(dict(queue) for queue in answer["queues"] if queue["name"] == name)

    def close(self) -> None:
        if self._spark is not None:
            stop_session(self._spark)
        self.broker.stop()


@dataclass(frozen=True, slots=True)
class Scene:
    """One thing to show."""

    name: str
    shows: str
    run: Callable[[Stage], None]


def scenes() -> list[Scene]:
    """The play, in order."""
    from tallymark.spark import (
        demo_credit,
        demo_letters,
        demo_rollback,
        demo_slow,
        demo_table,
        demo_timeouts,
    )

    return [
        Scene("From a publisher to a table", demo_table.__doc__ or "", demo_table.play),
        Scene("Dead letters", demo_letters.__doc__ or "", demo_letters.play),
        Scene("Time-outs", demo_timeouts.__doc__ or "", demo_timeouts.play),
        Scene("Credit", demo_credit.__doc__ or "", demo_credit.play),
        Scene("Rollback", demo_rollback.__doc__ or "", demo_rollback.play),
        Scene("A slow consumer", demo_slow.__doc__ or "", demo_slow.play),
    ]


def main(
    input: Path | None = None, out: Path | None = None, keep: bool = True, plain: bool = False
) -> int:
    """Play all scenes. Returns 0, or 1 when a check failed. Raises ValueError for an input without
    lines, OSError for one that cannot be read and for a folder that is not new and not empty.

    input: a file whose lines are published; None: generated orders.
    out: an empty or new folder for everything that comes of it; None: one under ./demo-out.
    keep: leave that folder; otherwise it is removed when all went well.
    plain: no colours and no moving lines, also on a terminal.
    """
    from rich.console import Console

    console = Console(no_color=plain, force_terminal=False if plain else None)
    if input is not None and input.stat().st_size == 0:
        raise ValueError(f"--input {str(input)!r} is empty, expected a file of lines")
    folder = _new_folder(out)
    begun = time.monotonic()
    stage = Stage(console, folder, input, BrokerProcess(folder / "broker", folder / "broker.log"))
    try:
        stage.broker.start()
        stage.files["the broker's data and journal"] = stage.broker.data_dir
        stage.files["the broker's log"] = stage.broker.log
        console.rule("Tallymark")
        stage.say(
            f"a broker runs: AMQP on port {stage.broker.amqp_port}, NSQ on port "
            f"{stage.broker.nsq_port}, HTTP on port {stage.broker.http_port}, process "
            f"{stage.broker.pid}"
        )
        for number, scene in enumerate(scenes(), 1):
            console.rule(f"Scene {number}: {scene.name}", align="left")
            console.print(_paragraph(scene.shows), style="dim", highlight=False, markup=False)
            scene.run(stage)
        console.rule("The account", align="left")
        _finale(stage)
    except KeyboardInterrupt:
        console.print("stopped")
        return 130
    except (
        BrokerDidNotStart, BrokerRefused, BrokerUnreachable, CheckFailed, JavaNotFound,
        LedgerIncomplete, PublishingEnded, SparkDidNotStart, AMQPError,
    ) as error:  # fmt: skip
        stage.check(f"the play goes on to its end: {str(error) or type(error).__name__}", False)
    except (PySparkException, Py4JError) as error:
        stage.check(f"the play goes on to its end: {land.cause(error)}", False)
    finally:
        stage.close()
    stage.check("the broker stopped cleanly", stage.broker.exit_code == 0)
    return _curtain(stage, keep, time.monotonic() - begun)


def _paragraph(text: str) -> str:
    """The first paragraph of a docstring as one line."""
    return " ".join(text.partition("\n\n")[0].split())


def _new_folder(out: Path | None) -> Path:
    folder = out if out is not None else FOLDER / time.strftime("%Y%m%d-%H%M%S")
    if folder.exists() and any(folder.iterdir()):
        raise FileExistsError(f"--out {str(folder)!r}: expected a new or an empty folder")
    folder.mkdir(parents=True, exist_ok=True)
    return folder.resolve()


def _finale(stage: Stage) -> None:
    outcome = reconcile.run(stage.spark(), stage.broker.data_dir, stage.broker.endpoint)
    show(outcome, console=stage.console)
    stage.check("every queue's difference is 0", outcome.balanced)
    for check in stage.in_account:
        check(outcome)


def _curtain(stage: Stage, keep: bool, seconds: float) -> int:
    failed = [claim for claim, holds in stage.checks if not holds]
    stage.console.rule("The end", align="left")
    held = len(stage.checks) - len(failed)
    skipped = f" ({stage.skipped} skipped)" if stage.skipped else ""
    stage.say(f"{held} of {len(stage.checks)} checks hold{skipped}, {seconds:.0f} s")
    for claim in failed:
        stage.console.print(f"  [bold red]failed:[/] {escape(claim)}", highlight=False)
    if failed or keep:
        for what, path in stage.files.items():
            stage.console.print(f"  {what}: {path}", highlight=False, soft_wrap=True)
    else:
        shutil.rmtree(stage.out)
    return 1 if failed else 0


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
        table.add_column(heading, justify="right" if numeric else "left", no_wrap=True)
    for row in rows:
        # Text, because a message's brackets are its own and no markup.
        table.add_row(*(Text(f"{v:,}" if isinstance(v, int) else str(v)) for v in row.values()))
    console.print(table)
