"""`tallymark backup` and `tallymark restore`: copies of a data folder beside a running broker."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tallymark.cli.output import fail, reason_of, show_json

if TYPE_CHECKING:
    from tallymark.journal.backup import Backup as Taken

Folder = Annotated[
    Path, typer.Option("--data-dir", envvar="TALLYMARK_DATA_DIR", help="The broker's data folder.")
]
FOLDER = Path("tallymark-data")
Json = Annotated[bool, typer.Option("--json", help="What the backup holds, as JSON.")]


def backup(
    to: Annotated[Path, typer.Argument(help="The backup: a folder that is made.")],
    data_dir: Folder = FOLDER,
    json: Json = False,
) -> None:
    """Take a backup of a data folder, while a broker runs on it or not.

    It holds everything that was confirmed before it began. Sealed segments are hard links where
    both are on one file system, so that a backup there takes little time and space; keep a copy of
    it on another disk.
    """
    from tallymark.journal.backup import back_up
    from tallymark.stored.layout import LayoutError

    try:
        taken = back_up(data_dir, to)
    except LayoutError as error:
        fail(f"the journal in {data_dir} is not understood: {error}")
    except OSError as error:
        fail(reason_of(error))
    _show(taken, f"backup of {data_dir} in {to}", json)


def restore(
    source: Annotated[Path, typer.Argument(metavar="BACKUP", help="The backup's folder.")],
    data_dir: Folder = FOLDER,
    json: Json = False,
) -> None:
    """Copy a backup to a new data folder, to start a broker on.

    What consumers settled after the backup began is delivered to them again.
    """
    from tallymark.journal.backup import NotABackup
    from tallymark.journal.backup import restore as bring_back

    try:
        found = bring_back(source, data_dir)
    except NotABackup as error:
        fail(str(error))
    except OSError as error:
        fail(reason_of(error))
    _show(found, f"{source} restored to {data_dir}", json)


def _show(found: Taken, done: str, as_json: bool) -> None:
    if as_json:
        return show_json(found.as_dict())
    return print(
        f"{done}: {len(found.files):,} files, {found.bytes:,} bytes, up to position "
        f"{found.position:#x}, taken at {found.taken_at}"
    )


def add_to(app: typer.Typer) -> None:
    app.command()(backup)
    app.command()(restore)
