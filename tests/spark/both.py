"""The account of a ledger, worked out both ways, with Spark and without: they say the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tallymark.spark import reconcile as without_spark
from tallymark.spark import reconcile_spark as with_spark
from tallymark.spark.account import Claim, Reconciliation
from tallymark.spark.blocks import ROW
from tallymark.spark.books import Books
from tallymark.spark.client import Endpoint
from tallymark.spark.equation import equation
from tallymark.spark.ids import Rows, with_ids
from tallymark.spark.ranges import gathered_table
from tallymark.stored import records

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def run(
    spark: SparkSession, data_dir: Path, endpoint: Endpoint | None, hourly: bool = False
) -> Reconciliation:
    outcome = without_spark.run(spark, data_dir, endpoint, hourly)
    other = without_spark.run(None, data_dir, endpoint, hourly)
    # A running broker is asked twice: nothing happens meanwhile, but time goes on.
    assert replace(other, position=outcome.position, as_of=outcome.as_of) == outcome
    return outcome


def reconcile(
    rows: DataFrame, position: int, claims: Sequence[Claim], hourly: bool = False
) -> Reconciliation:
    outcome = with_spark.reconcile(rows, position, claims, hourly)
    assert of_table(rows.toArrow(), position, claims, hourly) == outcome
    return outcome


def of_table(
    table: pa.Table, position: int, claims: Sequence[Claim], hourly: bool = False
) -> Reconciliation:
    """Without Spark, of the ledger's rows as a table."""
    books = Books().go_on(position, 0, gathered_table(table))
    pieces = with_ids(books.judged.faults, Rows([_entrances(table)]))
    return equation(books, claims, pieces, hourly)


def _entrances(table: pa.Table) -> NDArray[Any]:
    rows = np.zeros(table.num_rows, ROW)
    kinds = {"entered": records.ENTERED, "payload": records.PAYLOAD}
    journal = [source == "journal" for source in table.column("source").to_pylist()]
    said = zip(table.column("kind").to_pylist(), journal, strict=True)
    rows["kind"] = [kinds.get(kind, 0) if mine else 0 for kind, mine in said]
    for name, of in (("queue_id", "queue"), ("first", "first"), ("count", "count"), ("lo", "lo")):
        rows[of] = table.column(name).fill_null(0).to_numpy()
    rows["payload"] = table.column("payload").fill_null(-1).to_numpy()
    return rows
