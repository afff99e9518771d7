"""Compaction of a table that queues were landed in: many small files of batches become few.

Only Delta has a log that lets files be replaced while others read and write. Rows, and which
batches the table has, stay as they are.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from tallymark.spark.client import counted

MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Optimized:
    """Files before and after."""

    to: str
    files_before: int
    files_after: int
    removed: int
    """Files of earlier versions, and of tasks that died, that are gone from the disk."""


def optimize(table: Path, target_bytes: int, vacuum: bool) -> Optimized:
    """Compact a Delta table. vacuum: remove files that no version of the last week has.

    Raises ValueError: there is no Delta table.
    """
    from deltalake import DeltaTable

    if not DeltaTable.is_deltatable(str(table)):
        raise ValueError(
            f"{str(table)!r} is no Delta table: expected a folder that was landed with --format "
            "delta. The files of a Parquet table cannot be replaced while it is read"
        )
    found = DeltaTable(str(table))
    before = len(found.file_uris())
    found.optimize.compact(target_size=target_bytes)
    # In full: files of tasks that died are in no log, which is all that is looked at otherwise.
    removed = found.vacuum(dry_run=False, full=True) if vacuum else []
    return Optimized(str(table), before, len(found.file_uris()), len(removed))


def main(table: Path, target_mib: int, vacuum: bool, as_json: bool) -> int:
    """`tallymark pipeline optimize`: return 0. Raises ValueError."""
    if target_mib < 1:
        raise ValueError(f"--target-mib {target_mib}: expected at least 1")
    done = optimize(table, target_mib * MIB, vacuum)
    if as_json:
        print(json.dumps(asdict(done)))
    else:
        removed = f", {counted(done.removed, 'file')} removed" if vacuum else ""
        print(f"{table}: {done.files_before:,} -> {counted(done.files_after, 'file')}{removed}")
    return 0
