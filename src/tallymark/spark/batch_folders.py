"""A table of Parquet with one folder per batch, `batch=N`: each batch is there whole, and once.

A run of a batch writes into a folder of its own, `_run-N-<random>`, which readers pass over; what
is written is then renamed to `batch=N`. Of two runs of one batch, of which one may have hung, the
first to rename has written the batch. The other one's folder is removed.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import uuid4

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WRITTEN: Final = "_SUCCESS"
"""File that Spark puts into a folder when all of it is written."""
OWNED_BY: Final = "_of-"
"""Beginning of the name of an empty folder that says whose batches are beside it."""


def claim(to: Path, query: str) -> None:
    """Make a folder that of this query. Raises FileExistsError where it is another one's, whose
    batches have the same numbers."""
    if not any(to.glob(f"{OWNED_BY}*")):
        (to / f"{OWNED_BY}{query}").mkdir(parents=True, exist_ok=True)
    owners = [path.name for path in to.glob(f"{OWNED_BY}*")]
    if owners != [f"{OWNED_BY}{query}"]:
        raise FileExistsError(f"{to} has batches of another landing, expected a folder for each")


def write_batch(rows: DataFrame, number: int, to: Path, partition_by: list[str]) -> bool:
    """Write a batch unless it is there; return whether it was this run that wrote it."""
    target = to / f"batch={number}"
    if (target / WRITTEN).exists():
        return False
    run = to / f"_run-{number}-{uuid4().hex}"
    rows.write.partitionBy(*partition_by).parquet(str(run))
    was_first = rename_run(run, target)
    for left in to.glob("_run-*"):
        if int(left.name.split("-")[1]) <= number:
            shutil.rmtree(left, ignore_errors=True)  # of a run that was killed, or came second
    return was_first


def rename_run(run: Path, target: Path) -> bool:
    """Make what a run has written the batch, unless another run was first."""
    if target.exists() and not (target / WRITTEN).exists():
        # Half written, by a version of this program that wrote in place.
        shutil.rmtree(target)
    with suppress(OSError):
        run.rename(target)
        return True
    if not (target / WRITTEN).exists():
        raise FileExistsError(f"{run} cannot be renamed to {target}, which is no whole batch")
    return False
