"""Reconcile: the account of every queue of a data folder, as a function and as the command
`tallymark pipeline reconcile`.

One pass over the ledger's files makes ranges of them (ranges.py); a sweep over the ranges judges
every sequence (sweep.py); what comes out are the books (books.py), and with the broker's claims the
equation of every queue (equation.py). Here this is done in this process. The same functions as
tasks of Spark, for ledgers that do not fit one machine's memory, are in reconcile_spark.py.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from tallymark.spark import ledger, ledger_files
from tallymark.spark.account import Beyond, Reconciliation
from tallymark.spark.books import Books
from tallymark.spark.claims import (
    ask_until_written,
    check_broker,
    check_checkpoint,
    claims_of,
    endpoint_of,
    kept,
)
from tallymark.spark.client import BrokerRefused, BrokerUnreachable, CannotRun, Endpoint
from tallymark.spark.equation import equation
from tallymark.spark.ids import Rows, with_ids
from tallymark.spark.ledger import LedgerPart
from tallymark.spark.ledger_files import LedgerFile, LedgerIncomplete
from tallymark.spark.outside import check_outside
from tallymark.spark.ranges import Gathered, gather, merged

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from pyspark.sql import SparkSession

MOST_RANGES: Final = 8_000_000
"""Ranges that are swept in this process, in a gigabyte or so; more are Spark's."""
MERGE_AT: Final = 1_000_000
"""Ranges of several files are merged when there are so many more of them."""


class TooLarge(CannotRun):
    """The ledger has more ranges than this process is to hold."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Options of an account."""

    hourly: bool = False
    """The equation of every hour, too."""
    since: Path | None = None
    """Folder of the books: the account goes on from the newest there, and writes its own."""
    outside: Sequence[Path] = field(default=())
    """Checkpoints of Spark's queries, which must not know more than the journal."""


def run(
    spark: SparkSession | None,
    data_dir: Path,
    endpoint: Endpoint | None,
    hourly: bool = False,
    since: Path | None = None,
    outside: Sequence[Path] = (),
) -> Reconciliation:
    """Reconcile a data folder: against the running broker when an endpoint is given, else against
    its newest checkpoint.

    spark: None works it out in this process. hourly, since, outside: see Asked. Raises
    LedgerIncomplete, FileNotFoundError, BrokerRefused, and TooLarge without Spark."""
    return kept(lambda: _run(spark, data_dir, endpoint, Asked(hourly, since, outside)))


def _run(
    spark: SparkSession | None, data_dir: Path, endpoint: Endpoint | None, how: Asked
) -> Reconciliation:
    at = None if endpoint is None else ask_until_written(endpoint, data_dir)
    ledger_files.check_end(data_dir)
    state = ledger_files.find_checkpoint(data_dir, at[0] if at else None)
    books = Books() if how.since is None else Books.read(how.since)
    parts = _parts(data_dir, state, books)
    salt = parts[-1].file.salt
    if spark is None:
        books = books.go_on(state.number, salt, _gathered(parts))
    else:
        from tallymark.spark.reconcile_spark import go_on

        books = go_on(spark, books, state.number, salt, parts)
    check_outside(books, data_dir, how.outside)
    claims = at[1] if at else claims_of(state)
    pieces = with_ids(books.judged.faults, Rows(_Files(data_dir, state)))
    outcome = equation(books, claims, pieces, how.hourly)
    if how.since is not None:
        books.write(how.since)
    more = None if at else ledger.beyond(data_dir, state.number)
    return replace(
        outcome,
        source="checkpoint" if endpoint is None else str(endpoint),
        as_of=_iso(ledger.time_of(state)),
        beyond=Beyond(more[0], _iso(more[1])) if more else None,
    )


def _parts(data_dir: Path, state: LedgerFile, books: Books) -> list[LedgerPart]:
    """Return the files to be read: the checkpoint, and the journal from the books' position on.

    Raises LedgerIncomplete where the journal does not go on from there."""
    parts = ledger.plan(data_dir, state.number, is_unbroken=True)
    if parts[-1].source == ledger.CHECKPOINT or parts[-1].file.number != state.number >> 32:
        raise LedgerIncomplete(
            f"{data_dir}: segment {state.number >> 32} is missing at the end of the journal, or "
            f"behind a gap: {state.path.name} describes position {state.number:#x}"
        )
    if not books.position:
        return parts
    first = books.position >> 32
    wanted = [part for part in parts[1:] if part.file.number >= first]
    if state.number < books.position or wanted[0].file.number != first:
        raise LedgerIncomplete(
            f"{data_dir}: the account of position {books.position:#x} cannot be gone on from: the "
            f"journal goes from segment {parts[1].file.number} to position {state.number:#x}. "
            "Begin anew, with another folder for --since"
        )
    if wanted[0].file.salt != books.salt:
        raise LedgerIncomplete(
            f"{data_dir}: the account of position {books.position:#x} is of another journal: "
            f"segment {first} has the salt {wanted[0].file.salt:08x}, not {books.salt:08x}"
        )
    return [parts[0], *(replace(part, since=books.position) for part in wanted)]


def _gathered(parts: Sequence[LedgerPart], most: int = MOST_RANGES) -> Gathered:
    """Gather from one file after the other. Raises TooLarge."""
    found, waiting, count = Gathered(), list[Gathered](), 0
    for part in parts:
        waiting.append(gather(part))
        count += len(waiting[-1].ranges)
        if count >= MERGE_AT or part is parts[-1]:
            for one in waiting:
                found.add(one)
            waiting.clear()
            found.ranges = merged(found.ranges)
            count = 0
            if len(found.ranges) > most:
                raise TooLarge(f"{len(found.ranges)} ranges, more than {most}")
    return found


class _Files:
    """Rows of all files of a ledger, read each time that somebody goes through them."""

    def __init__(self, data_dir: Path, state: LedgerFile) -> None:
        self._parts = ledger.plan(data_dir, state.number, is_unbroken=True)[1:]

    def __iter__(self) -> Iterator[NDArray[np.void]]:
        for part in self._parts:
            blocks = ledger.blocks_of(part)
            if blocks:
                yield np.concatenate([block.rows for block in blocks])


def _iso(time: datetime) -> str:
    return time.isoformat(timespec="seconds").replace("+00:00", "Z")


def main(
    data_dir: Path,
    url: str | None = None,
    user: str | None = None,
    password: str | None = None,
    master: str | None = None,
    as_json: bool = False,
    hourly: bool = False,
    since: Path | None = None,
    outside: Sequence[Path] = (),
) -> int:
    """`tallymark pipeline reconcile`: print the equation of every queue.

    master: of Spark; without it the account is worked out in this process, unless there is too
    much of it. Returns 0 when every difference is 0 and no message breaks the account, else 1, also
    with the reason on stderr when there is no account. Raises ValueError, FileNotFoundError for
    arguments that cannot be right.
    """
    from tallymark.spark.reconcile_table import show

    endpoint = endpoint_of(url, user, password)
    present = ""

    def prepare() -> None:
        nonlocal present
        ledger_files.journal_folder(data_dir)
        if endpoint is not None:
            check_broker(endpoint, data_dir)
        else:
            present = check_checkpoint(data_dir, user, password)

    def work(spark: SparkSession | None) -> int:
        outcome = run(spark, data_dir, endpoint, hourly, since, outside)
        show(outcome, as_json, present=present)
        return 0 if outcome.balanced else 1

    if master is None:
        try:
            prepare()
            return work(None)
        except TooLarge as error:
            print(f"tallymark: {data_dir}: {error}: worked out in Spark", file=sys.stderr)
        except (BrokerRefused, BrokerUnreachable, CannotRun) as error:
            print(f"tallymark: {error}", file=sys.stderr)
            return 1
    from tallymark.spark.command import command

    doing = f"reconciling {data_dir}"
    return command(
        work, "tallymark reconcile", doing, master or "local[*]", prepare=prepare, brief=True
    )
