"""Reconcile as tasks of Spark: the functions of ranges.py and sweep.py, each file and then each
queue a task.

The files are read once. What is gathered of them is small, and is kept while it is shuffled: first
the definitions come to the driver, then every queue's ranges to one task, and its account from
there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tallymark.spark import ranges
from tallymark.spark.account import Claim, Reconciliation
from tallymark.spark.blocks import ROW
from tallymark.spark.books import Books
from tallymark.spark.equation import equation
from tallymark.spark.ids import with_ids
from tallymark.spark.ledger import LedgerPart
from tallymark.spark.ledger_rows import MOST_TASKS
from tallymark.spark.ranges import Gathered, from_batches, gather, gathered_table, merged, to_batch
from tallymark.spark.sweep import (
    ARRAYS,
    BALANCE,
    FAULT,
    QUEUE,
    STRETCH,
    Before,
    Judged,
    judge,
    none_of,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Batches = Iterator[pa.RecordBatch]
JUDGED_DDL: Final = "part int, number array<bigint>"
"""A row of one of the arrays of Judged, by the index in ARRAYS, or behind these of its sums."""
DTYPES: Final = (BALANCE, QUEUE, FAULT, STRETCH)
DROPPED: Final = len(ARRAYS)
LETTERS: Final = DROPPED + 1


def go_on(
    spark: SparkSession, books: Books, position: int, salt: int, parts: Sequence[LedgerPart]
) -> Books:
    """Return the books up to a position, from files of the ledger, see Books.go_on."""
    files = list(parts)

    def read(numbers: Batches) -> Batches:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield to_batch(gather(files[number]))

    tasks = spark.range(0, len(files), 1, min(len(files), MOST_TASKS))
    return _judged(books, position, salt, tasks.mapInArrow(read, ranges.DDL))


def reconcile(
    rows: DataFrame, position: int, claims: Sequence[Claim], hourly: bool = False
) -> Reconciliation:
    """Work the equation out for every queue of the ledger's rows (`read_ledger`) and of the claims.

    hourly: and for every hour in which messages entered it."""

    def read(batches: Batches) -> Batches:
        for batch in batches:
            yield to_batch(gathered_table(pa.Table.from_batches([batch])))

    books = _judged(Books(), position, 0, rows.mapInArrow(read, ranges.DDL))
    pieces = with_ids(books.judged.faults, Entrances(rows))
    return equation(books, claims, pieces, hourly)


def _judged(books: Books, position: int, salt: int, found: DataFrame) -> Books:
    found = found.cache()
    try:
        facts = found.where(f"what >= {ranges.RETURNED_SUM}").toArrow()
        gathered = from_batches(facts.to_batches())
        known = books.knowledge(books.definitions | gathered.definitions)
        new = found.where(f"what < {ranges.RETURNED_SUM}")
        if len(books.judged.open):
            old = to_batch(Gathered(books.ranges_now(none_of(ranges.RANGE))))
            new = new.unionAll(found.sparkSession.createDataFrame(pa.Table.from_batches([old])))
        queues = new.groupBy("queue").applyInArrow(_judging(known), JUDGED_DDL)
        judged = _from_rows(queues.toArrow())
    finally:
        found.unpersist()
    return books.go_on(position, salt, gathered, judged)


def _judging(known: Mapping[int, Before]) -> Callable[[pa.Table], pa.Table]:
    def one_queue(table: pa.Table) -> pa.Table:
        whole = table.combine_chunks().to_batches()
        return _to_rows(judge(merged(from_batches(whole).ranges), known))

    return one_queue


def _to_rows(judged: Judged) -> pa.Table:
    parts: list[int] = []
    numbers: list[list[int]] = []
    for part, name in enumerate(ARRAYS):
        rows = getattr(judged, name).tolist()
        parts += [part] * len(rows)
        numbers += [list(row) for row in rows]
    for part, sums in ((DROPPED, judged.dropped), (LETTERS, judged.letters)):
        parts += [part] * len(sums)
        numbers += [[*key, count] for key, count in sums.items()]
    return pa.table(
        {"part": pa.array(parts, pa.int32()), "number": pa.array(numbers, pa.list_(pa.int64()))}
    )


def _from_rows(table: pa.Table) -> Judged:
    by_part: dict[int, list[tuple[int, ...]]] = {}
    columns = (table.column("part").to_pylist(), table.column("number").to_pylist())
    for part, number in zip(*columns, strict=True):
        by_part.setdefault(part, []).append(tuple(number))
    judged = Judged()
    for part, (name, dtype) in enumerate(zip(ARRAYS, DTYPES, strict=True)):
        rows = np.array(by_part.get(part, []), dtype)
        order = [column for column in dtype.names or () if column in ORDER]
        setattr(judged, name, np.sort(rows, order=order))
    judged.dropped = {(a, b): n for a, b, n in by_part.get(DROPPED, [])}
    judged.letters = {(a, b): n for a, b, n in by_part.get(LETTERS, [])}
    return Judged.together([judged])


ORDER: Final = ("queue", "low", "hour", "reason", "open")


class Entrances:
    """ids.Entrances of a DataFrame with the ledger's rows."""

    def __init__(self, rows: DataFrame) -> None:
        self._rows = rows.where("source = 'journal'")

    def entered(self, queues: list[int]) -> NDArray[Any]:
        wanted = self._rows.where("kind = 'entered'").where(
            f"queue_id in ({', '.join(map(str, queues))})"
        )
        columns = ("queue_id", "first", "count", "payload", "lo")
        found = wanted.select(*columns).toArrow()
        rows = np.zeros(found.num_rows, ROW)
        for name, of in zip(columns, ("queue", "first", "count", "payload", "lo"), strict=True):
            rows[of] = found.column(name).fill_null(-1 if of == "payload" else 0).to_numpy()
        return rows

    def first_ids(self, positions: list[int]) -> dict[int, int]:
        if not positions:
            return {}
        wanted = self._rows.where("kind = 'payload'").where(
            f"payload in ({', '.join(map(str, positions))})"
        )
        return {row.payload: row["first"] for row in wanted.select("payload", "first").collect()}
