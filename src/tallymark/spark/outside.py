"""Evidence outside the journal: what others know of it, and it not of itself.

After a crash a newest segment that is missing looks like one that was never written. A checkpoint
of a query of Spark says up to which lease sequence of which subscription it has committed, or which
of its batches are in a sink: that was on the broker's disk before. Where the journal knows less,
rows are missing at its end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from tallymark.spark.books import Books
from tallymark.spark.ledger_files import LedgerIncomplete

_OF_A_BROKER: Final = re.compile(r"[^/]+:\d+/")
"""Beginning of the keys of a query on several brokers; epochs are numbers of each of them."""


def check_outside(books: Books, data_dir: Path, checkpoints: Sequence[Path]) -> None:
    """Check that the journal knows what queries have committed.

    Raises LedgerIncomplete where it does not, FileNotFoundError for a folder that is no
    checkpoint."""
    for folder in checkpoints:
        batch = _newest(folder / "commits")
        if batch is None:
            continue
        for offset in _offsets(folder / "offsets" / str(batch)):
            _check_leases(books, data_dir, folder, offset)
        _check_sinks(books, data_dir, folder, batch)


def _newest(folder: Path) -> int | None:
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder.parent}: no checkpoint of a query, it has no commits")
    numbers = [int(path.name) for path in folder.iterdir() if path.name.isdigit()]
    return max(numbers, default=None)


def _offsets(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text().splitlines()[2:]:
        said = json.loads(line) if line.startswith("{") else {}
        several = said.get("queues", {}).items()
        found = [said, *(one for key, one in several if not _OF_A_BROKER.match(key))]
        yield from (one for one in found if {"subscription", "epoch", "seq"} <= one.keys())


def _check_leases(books: Books, data_dir: Path, folder: Path, offset: dict[str, Any]) -> None:
    epoch, committed = int(offset["epoch"]), int(offset["seq"])
    leased = books.leased.get(epoch, 0)
    if committed > leased:
        raise LedgerIncomplete(
            f"{data_dir}: rows are missing at the end of the journal: {folder} has committed the "
            f"subscription {offset['subscription']!r} up to lease sequence {committed}, and the "
            f"journal has leased it {leased}"
        )


def _check_sinks(books: Books, data_dir: Path, folder: Path, batch: int) -> None:
    """The id of a query is the identity of its sinks, where that is what they were told."""
    path = folder / "metadata"
    identity = json.loads(path.read_text()).get("id", "") if path.is_file() else ""
    for (_, name), (known, newest) in books.sinks().items():
        if known == identity and newest < batch:
            raise LedgerIncomplete(
                f"{data_dir}: rows are missing at the end of the journal: {folder} has committed "
                f"batch {batch}, and the sink {name!r} has {newest} at most"
            )
