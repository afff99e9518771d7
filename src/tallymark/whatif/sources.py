"""Sources: where a ledger is read from, a data folder, a table of it or a DataFrame."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tallymark.spark.ledger import CHECKPOINT, JOURNAL, blocks_of, plan
from tallymark.stored import segment
from tallymark.whatif.rows import FromFile, Told
from tallymark.whatif.table import READ, NoTable, Table, blocks_in, find_table, unbroken

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FIRST_SEGMENT: Final = 1


@dataclass(frozen=True, slots=True)
class Source:
    """A ledger, whose blocks may be read more than once."""

    name: str
    stamp: str
    """Mark of this ledger, which another one does not have, nor this one later."""
    first: int
    """Number of the first segment from which on nothing is missing."""
    blocks: Callable[[], Iterator[Told]]
    state: Callable[[], Iterator[Told]]
    """The rows of the checkpoint at its end."""

    @property
    def is_whole(self) -> bool:
        """True if it has all that the broker ever wrote."""
        return self.first <= FIRST_SEGMENT


def source_of(ledger: Path) -> Source:
    """Return the source that a folder is: a broker's data folder, or a table. Raises NoTable."""
    if ledger.is_dir() and any(segment.parsed_name(path.name) for path in ledger.iterdir()):
        return folder_source(ledger)
    return table_source(ledger)


def folder_source(folder: Path) -> Source:
    """Return the ledger of a data folder, on which a broker may be running. Raises
    FileNotFoundError, LedgerIncomplete."""
    state, *parts = plan(folder, is_unbroken=True)
    first = parts[0].file.number if parts else state.file.number >> 32

    def blocks() -> Iterator[Told]:
        for part in parts:
            yield from map(FromFile, blocks_of(part))

    return Source(
        str(folder), _stamp(folder), first, blocks, lambda: map(FromFile, blocks_of(state))
    )


def table_source(folder: Path) -> Source:
    """Return the ledger that a Parquet or Delta table has. Raises NoTable."""
    if not folder.is_dir():
        raise NoTable(f"{folder}: no such folder, expected a table of the ledger")
    table: Table = find_table(folder)
    return Source(
        table.name, table.stamp, table.since >> 32, lambda: table.blocks(JOURNAL),
        lambda: table.blocks(CHECKPOINT),
    )  # fmt: skip


def frame_source(rows: DataFrame) -> Source:
    """Return the ledger in a DataFrame with the columns of the table. It is brought here whole.
    Raises NoTable."""
    lacks = sorted(set(READ) - set(rows.columns))
    if lacks:
        raise NoTable(
            f"the DataFrame has no column {lacks[0]}, expected one of pipelines.read_traffic, or "
            "what `tallymark pipeline ledger --rows` has written"
        )
    found = rows.select(*READ).toArrow()
    since, upto = unbroken(set(zip(*(found[name].to_pylist() for name in ("since", "upto")),
                                   strict=True)))  # fmt: skip
    return Source(
        "the DataFrame", f"a DataFrame of {found.num_rows} rows {since:x} {upto:x}", since >> 32,
        lambda: blocks_in(found, JOURNAL, since, upto),
        lambda: blocks_in(found, CHECKPOINT, since, upto),
    )  # fmt: skip


def _stamp(data_dir: Path) -> str:
    """Return what tells this ledger from another, and from itself later."""
    files = sorted(
        (path.name, path.stat().st_size)
        for path in data_dir.iterdir()
        if path.suffix in (".segment", ".ledger", ".checkpoint")
        and not path.name.startswith("spare")
    )
    return repr((str(data_dir.absolute()), files))
