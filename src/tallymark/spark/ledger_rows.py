"""The rows of the ledger as a DataFrame, for a notebook and for the commands that ask Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tallymark.spark import ledger, ledger_files
from tallymark.spark.claims import RETRY_MS, asked, endpoint_of
from tallymark.spark.client import Endpoint
from tallymark.spark.command import command

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

MOST_TASKS: Final = 64


def read_ledger(
    spark: SparkSession,
    folder: Path,
    upto: int | None = None,
    url: str | None = None,
    *,
    is_unbroken: bool = False,
) -> DataFrame:
    """Read all rows of the ledger in a data folder up to a checkpoint, as `ledger.DDL` says: the
    one at position `upto`, by default the newest; or, with `url`, one that the broker there writes
    now.

    is_unbroken: only what lies behind the last gap that `ledger_retention` made, as an account
    needs it: a message that entered before the gap may have ended in it.

    The same as format("tallymark") with the option `ledger`, but planned here: a Python source
    costs several processes before its first row. Raises LedgerIncomplete; with `url` BrokerRefused,
    BrokerUnreachable.
    """
    if url is not None:
        upto = asked(Endpoint.from_url(url, retry_ms=RETRY_MS), folder)
    files = ledger.plan(folder, upto, is_unbroken=is_unbroken)

    def read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from ledger.read_file(files[number])

    tasks = spark.range(0, len(files), 1, min(len(files), MOST_TASKS))
    return tasks.mapInArrow(read, ledger.DDL)


def over_ledger(
    data_dir: Path,
    url: str | None,
    user: str | None,
    password: str | None,
    master: str,
    what: str,
    work: Callable[[DataFrame, datetime], None],
) -> int:
    """Call `work` with the ledger's rows up to a checkpoint and the time of that: the newest one,
    or one that the broker at `url` writes now. what: the command's name, for its messages.

    Returns 0, or 1 with the reason on stderr. Raises ValueError, FileNotFoundError and the like
    for arguments that cannot be right, and whatever `work` raises of its own.
    """
    endpoint = endpoint_of(url, user, password)
    state: ledger_files.LedgerFile | None = None

    def prepare() -> None:
        nonlocal state
        ledger_files.journal_folder(data_dir)
        upto = None if endpoint is None else asked(endpoint, data_dir)
        state = ledger_files.find_checkpoint(data_dir, upto)

    def over(spark: SparkSession) -> int:
        assert state is not None
        work(read_ledger(spark, data_dir, state.number), ledger.time_of(state))
        return 0

    doing = f"{what} over {data_dir}"
    return command(over, f"tallymark {what}", doing, master, prepare=prepare, brief=True)
