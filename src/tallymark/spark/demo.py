"""`tallymark demo`: the main job as a play in scenes, each showing one thing the broker does.

A scene gets a running broker and a stage to print on; whatever it claims to have shown it checks,
and a check that fails makes the whole play fail. All scenes end in the same reconciliation: Spark
works the account of every queue out from the journal, and each difference must be 0.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pika.exceptions import AMQPError
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from rich.markup import escape

from tallymark import is_compiled
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
    """Objects that all scenes share."""

    console: Console
    out: Path
    input: Path | None
    broker: BrokerProcess
    checks: list[tuple[str, bool]] = field(default_factory=list)
    files: dict[str, Path] = field(default_factory=dict)
    """Files that are named at the end, for a look."""
    in_account: list[Callable[[reconcile.Reconciliation], None]] = field(default_factory=list)
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
            no_color=shown.no_color,
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
    """Give what is started meanwhile this file for its stderr: Java warns there of things that are
    not for whoever watches a play, and no option of its own stops it."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


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
        stage.start_spark()
        stage.broker.start()
        stage.files["the broker's data and journal"] = stage.broker.data_dir
        stage.files["the broker's log"] = stage.broker.log
        console.rule("Tallymark")
        stage.say(
            f"a broker runs: AMQP on port {stage.broker.amqp_port}, NSQ on port "
            f"{stage.broker.nsq_port}, HTTP on port {stage.broker.http_port}, process "
            f"{stage.broker.pid}, {'compiled' if is_compiled() else 'interpreted'}"
        )
        _play(stage, scenes())
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


READING: Final = """Every message that entered a queue is in one column of its row: it waits there
(ready), a client was done with it (settled), it went on to another queue (dead lettered), or it
was dropped, for a reason that stands below. Spark worked that out from the journal alone. The
difference is what is missing or too many: it has to be 0."""

LANES: Final = ((1, 2, 3), (4, 5))
"""Scenes that play one after the other while the first one does. No scene touches a queue of
another's, and most of them wait: for a time to live, a lock, a policy."""


def _play(stage: Stage, play: list[Scene]) -> None:
    """Run all scenes; each is shown as a whole, in order."""
    pool = ThreadPoolExecutor(len(LANES))
    asides = {place: stage.aside() for lane in LANES for place in lane}
    done: dict[int, Future[None]] = {place: Future() for place in asides}
    for lane in LANES:
        pool.submit(_play_lane, lane, play, asides, done)
    pool.shutdown(wait=False)
    for place, scene in enumerate(play):
        stage.console.rule(f"Scene {place + 1}: {scene.name}", align="left")
        stage.console.print(_paragraph(scene.shows), style="dim", highlight=False, markup=False)
        if place in asides:
            with stage.console.status("it plays"):
                wait([done[place]])
            stage.take(asides[place])
            done[place].result()
        else:
            scene.run(stage)


def _play_lane(
    lane: tuple[int, ...],
    play: list[Scene],
    asides: dict[int, Stage],
    done: dict[int, Future[None]],
) -> None:
    for place in lane:
        try:
            play[place].run(asides[place])
        except BaseException as error:  # raised again where the scene is shown
            done[place].set_exception(error)
        else:
            done[place].set_result(None)


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
    stage.console.print(_paragraph(READING), style="dim", highlight=False, markup=False)
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
        table.add_column(heading, justify="right" if numeric else "left", no_wrap=not numeric)
    for row in rows:
        # Text, because a message's brackets are its own and no markup.
        table.add_row(*(Text(f"{v:,}" if isinstance(v, int) else str(v)) for v in row.values()))
    console.print(table)
