"""`tallymark what-if`: yesterday's traffic through tomorrow's settings."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tallymark.cli.output import USAGE, fail, require, show_json

if TYPE_CHECKING:
    from tallymark.whatif.changes import Change

NOT_GOOD: Final = 1
"""Exit code if one of the changes may not be made."""


def what_if(
    change: Annotated[
        list[Path] | None,
        typer.Option(help="File that says what is different; several times for several worlds."),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="In place of a file: QUEUE.ARGUMENT=VALUE, such as orders.max-length=10000.",
        ),
    ] = None,
    data_dir: Annotated[
        Path,
        typer.Option("--data-dir", envvar="TALLYMARK_DATA_DIR", help="The broker's data folder."),
    ] = Path("tallymark-data"),
    ledger: Annotated[
        Path | None,
        typer.Option(
            help="In place of a data folder: a table that `pipeline ledger --rows` has written."
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(help="Time from which on it is told, such as 2026-11-20T12:00:00Z."),
    ] = None,
    until: Annotated[
        str | None, typer.Option(help="Time up to which the traffic is played.")
    ] = None,
    to: Annotated[Path | None, typer.Option(help="The page to write.")] = None,
    work: Annotated[
        Path | None,
        typer.Option(help="Folder for the results: a sweep that was killed goes on from there."),
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Worlds at once.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of what is drawn.")] = 1,
    json: Annotated[bool, typer.Option("--json", help="JSON instead of text.")] = False,
) -> None:
    """Play the ledger's traffic again with other settings, and say what would have been different.

    Exit code 0 where every change may be made as far as this traffic says, else 1.
    """
    require("numpy", "pyarrow", extra="spark")
    from tallymark.whatif.changes import ChangeRefused, changes_of, moment_of, read_changes
    from tallymark.whatif.recording import FOREVER
    from tallymark.whatif.settings import name_of, said_of

    if not change and not set_:
        fail("expected --change FILE or --set QUEUE.ARGUMENT=VALUE", USAGE)
    try:
        changes = [world for path in change or () for world in read_changes(path)]
        if set_:
            changes += changes_of(name_of(set_), said_of(set_))
        stretch = (
            moment_of("--since", since) if since else 0,
            moment_of("--until", until) if until else FOREVER,
        )
    except (ChangeRefused, OSError) as error:
        fail(str(error), USAGE)
    if work is not None:
        _answer(ledger or data_dir, work, changes, workers, seed, stretch, to, json)
    else:
        with TemporaryDirectory(prefix="tallymark-what-if-") as folder:
            _answer(ledger or data_dir, Path(folder), changes, workers, seed, stretch, to, json)


def _answer(
    ledger: Path,
    work: Path,
    changes: list[Change],
    workers: int | None,
    seed: int,
    stretch: tuple[int, int],
    to: Path | None,
    as_json: bool,
) -> None:
    from tallymark.spark.client import CannotRun
    from tallymark.whatif import comparison, page
    from tallymark.whatif.changes import ChangeRefused
    from tallymark.whatif.reading import NotEnough
    from tallymark.whatif.sources import source_of
    from tallymark.whatif.sweep import Sweep

    def tell(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    try:
        names = {name for one in changes for name in one.headers()}
        sweep = Sweep(source_of(ledger), work, seed, *stretch, names)
        results = sweep.run(changes, workers or os.cpu_count() or 1, tell)
    except (CannotRun, NotEnough, ChangeRefused, OSError) as error:
        fail(str(error), USAGE)
    base = results[0]
    if as_json:
        show_json({"lacks": sweep.recording.lacks, "worlds": results})
    else:
        print("The traffic played again without a change, beside what the ledger says:")
        print("\n".join(comparison.faithfulness_lines(base["faithfulness"])))
        for what, count in sweep.recording.lacks.items():
            print(f"  not in the ledger: {what} ({count:,})")
        for one in results[1:]:
            print()
            print("\n".join(comparison.world_lines(one)))
    if to is not None:
        to.write_text(page.html(results, changes_title(results), sweep.recording.lacks), "utf-8")
        tell(f"written: {to}")
    if not all(one["verdict"]["good"] for one in results[1:]):
        raise typer.Exit(NOT_GOOD)


def changes_title(results: list[dict[str, object]]) -> str:
    """Return what the page asks; "": several things."""
    return str(results[1]["name"]) if len(results) == 2 else ""


def add_to(app: typer.Typer) -> None:
    app.command("what-if")(what_if)
