"""The folder of a table that a queue is landed in: which kind of table it is, by which columns it
is partitioned, and whether it is that of the checkpoint in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tallymark.spark.bodies import CHECKPOINT

if TYPE_CHECKING:
    from deltalake import DeltaTable

PLAIN: Final = "_spark_metadata"
IN_DELTA: Final = "_delta_log"
BY_BATCH: Final = "batch=*"
KINDS: Final = {
    PLAIN: "Parquet",
    IN_DELTA: "a Delta table",
    BY_BATCH: "Parquet with a schema",
}
"""Files in a table's folder that tell its kind, by pattern."""
DATE: Final = "date"
"""Column of landed rows beside those of the source: the day of arrival."""
NO_PARTITIONS: Final = ("body", "headers", "deaths", "first_death", "last_death", "lease_fence")
"""Columns whose values are no names of folders, and the one that is not landed."""
NONE: Final = -1
"""Number of the newest batch where there is none."""


def check_table(to: Path, mark: str) -> None:
    """mark: of KINDS. Raises ValueError for a folder in which a table of another kind was begun,
    since whoever reads the one does not see the rows of the other, and for one whose table is not
    that of its checkpoint."""
    for other, kind in KINDS.items():
        if other != mark and any(to.glob(other)):
            raise ValueError(
                f"--to {str(to)!r} was begun as {kind}, not as {KINDS[mark]}: expected a new "
                "folder, or the same --format and --schema or none"
            )
    checkpoint = to / CHECKPOINT
    planned = _newest(checkpoint / "offsets")
    if mark == IN_DELTA:
        _check_delta(to, checkpoint, planned)
    elif (landed := _newest(to / PLAIN) if mark == PLAIN else _newest(to)) > planned:
        raise _of_another(to, f"has batches up to {landed}", checkpoint, planned)


def check_quarantine(to: Path, quarantine: Path) -> None:
    """Raises ValueError for a folder in which batches of this table's numbers are another one's:
    rows of a batch that is there already are left out."""
    if quarantine.resolve() == to.resolve():
        raise ValueError(f"--quarantine {str(quarantine)!r}: expected another folder than --to")
    newest, planned = _newest(quarantine), _newest(to / CHECKPOINT / "offsets")
    if newest > planned:
        raise ValueError(
            f"--quarantine {str(quarantine)!r} has batches up to {newest} of another landing, "
            f"the one to {str(to)!r} has {planned + 1} batches: expected a folder for each"
        )


def partitioning(to: Path, mark: str, given: str | None) -> list[str]:
    """Return the columns by which a table is partitioned: those in `given`, with commas between
    them, or those that it has, or the date. mark: of KINDS.

    Raises ValueError for a column that cannot be one, and where the table has others.
    """
    there = _partitions_of(to, mark)
    if given is None:
        return [DATE] if there is None else there
    wanted = [name.strip() for name in given.split(",")] if given.strip() else []
    from tallymark.spark import schema

    possible = [DATE, *(name for name in schema.ALL if name not in NO_PARTITIONS)]
    for name in wanted:
        if name not in possible or wanted.count(name) > 1:
            raise ValueError(
                f"--partition-by {given!r}: expected some of {', '.join(possible)}, each once"
            )
    if there is not None and there != wanted:
        columns = ", ".join(there) or "nothing"
        raise ValueError(f"--partition-by {given!r}: {str(to)!r} is partitioned by {columns}")
    return wanted


def _partitions_of(to: Path, mark: str) -> list[str] | None:
    """Return the columns by which the table is partitioned; None: it has no rows yet."""
    if mark == IN_DELTA:
        table = _delta_of(to)
        return None if table is None else list(table.metadata().partition_columns)
    folders = sorted(to.glob(BY_BATCH)) if mark == BY_BATCH else [to]
    parts = (_folders_of(folder) for folder in folders)
    return next((found for found in parts if found is not None), None)


def _folders_of(folder: Path) -> list[str] | None:
    """Return the columns that the names of folders begin with, down to a file of rows; None: there
    is no such file."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if path.suffix == ".parquet":
            return []
        column, is_part, _ = path.name.partition("=")
        if is_part and not column.startswith(("_", ".")):
            deeper = _folders_of(path)
            if deeper is not None:
                return [column, *deeper]
    return None


def _check_delta(to: Path, checkpoint: Path, planned: int) -> None:
    table = _delta_of(to)
    if table is None:
        return
    from tallymark.spark.delta import committed

    is_landed = any(field.name == "lease_sequence" for field in table.schema().fields)
    if not is_landed or not table.file_uris():
        return
    landed = committed(str(to), _query_of(checkpoint))
    if landed > planned:
        raise _of_another(to, f"has batches up to {landed}", checkpoint, planned)
    if landed == NONE and _newest(checkpoint / "commits") != NONE:
        raise _of_another(to, "has no batch of this checkpoint", checkpoint, planned)
    if planned == NONE:
        raise _of_another(to, "has rows that were landed", checkpoint, planned)


def _delta_of(to: Path) -> DeltaTable | None:
    """Return the Delta table; None while there is none: who is killed in its first commit leaves a
    folder of the log without a version."""
    if not (to / IN_DELTA).exists():
        return None
    from tallymark.spark.delta import opened

    return opened(str(to))


def _of_another(to: Path, has: str, checkpoint: Path, planned: int) -> ValueError:
    knows = f"knows batches up to {planned}" if planned != NONE else "is new, or was deleted"
    return ValueError(
        f"--to {str(to)!r}: the table {has}, its checkpoint {str(checkpoint)!r} {knows}. Rows "
        "would be left out or be there twice: bring the table's own checkpoint back, or land into "
        "a new folder"
    )


def _query_of(checkpoint: Path) -> str:
    """The id of the query whose checkpoint this is; "": it has none yet."""
    path = checkpoint / "metadata"
    return str(json.loads(path.read_text())["id"]) if path.exists() else ""


def _newest(folder: Path) -> int:
    """The highest number of a batch among the names in a folder: `7`, `9.compact`, `batch=7`."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    bare = [name.removeprefix("batch=").removesuffix(".compact") for name in names]
    return max((int(name) for name in bare if name.isascii() and name.isdigit()), default=NONE)
