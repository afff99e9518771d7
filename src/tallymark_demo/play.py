"""`tallymark demo`: the main job as a play in scenes, each showing one thing the broker does.

A scene gets a running broker and a stage to print on; whatever it claims to have shown it checks,
and a check that fails makes the whole play fail. All scenes end in the same reconciliation: Spark
works the account of every queue out from the journal, and each difference must be 0.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pika.exceptions import AMQPError
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from rich.markup import escape

from tallymark import is_compiled
from tallymark.spark import reconcile
from tallymark.spark.client import BrokerRefused, BrokerUnreachable
from tallymark.spark.command import cause
from tallymark.spark.java import JavaNotFound
from tallymark.spark.ledger_files import LedgerIncomplete
from tallymark.spark.reconcile_table import show
from tallymark.spark.session import SparkDidNotStart
from tallymark_demo.broker import BrokerDidNotStart, BrokerProcess
from tallymark_demo.publisher import PublishingEnded
from tallymark_demo.stage import CheckFailed, Stage

FOLDER: Final = Path("demo-out")


@dataclass(frozen=True, slots=True)
class Scene:
    """One thing to show."""

    name: str
    shows: str
    run: Callable[[Stage], None]


def scenes() -> list[Scene]:
    """The play, in order."""
    from tallymark_demo import credit as demo_credit
    from tallymark_demo import letters as demo_letters
    from tallymark_demo import rollback as demo_rollback
    from tallymark_demo import slow as demo_slow
    from tallymark_demo import table as demo_table
    from tallymark_demo import timeouts as demo_timeouts

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

    console = Console(no_color=plain, force_terminal=False if plain else None, emoji=False)
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
        stage.check(f"the play goes on to its end: {cause(error)}", False)
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
