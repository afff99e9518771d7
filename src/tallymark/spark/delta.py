"""Delta tables through delta-rs: each batch in one commit, once.

Spark itself writes Delta only with jars that have to be fetched; `deltalake` is a wheel. The commit
of a batch carries (application, batch): the application is the query,
by the id in its checkpoint, which is new where the checkpoint is. A batch that Spark runs again
after a crash finds itself in the table's log and is not written again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable, Schema
    from deltalake.transaction import AddAction
    from pyspark.sql import DataFrame, SparkSession

NO_VERSION: Final = -1
"""Version of an application that has not committed to the table."""


class QueryId:
    """The id of the query whose checkpoint this is; Spark has written it before the first batch."""

    def __init__(self, checkpoint: str) -> None:
        self._checkpoint = checkpoint
        self._id = ""

    def of(self, spark: SparkSession) -> str:
        """Raises ValueError where the checkpoint has none."""
        if not self._id:
            path = Path(self._checkpoint) / "metadata"
            if path.exists():
                text = path.read_text()
            else:  # not on this machine: whatever Spark reads, it can be read through Spark
                rows = spark.read.text(f"{self._checkpoint}/metadata").collect()
                text = "".join(row.value for row in rows)
            found = json.loads(text).get("id")
            if not isinstance(found, str):
                raise ValueError(f"{path}: {text!r}, expected an object with an id")
            self._id = found
        return self._id


def committed(table: str, application: str) -> int:
    """The last batch that the application committed to the table, or NO_VERSION."""
    return _committed(opened(table), application)


def opened(table: str) -> DeltaTable | None:
    """The table at its newest version; None while there is none."""
    from deltalake import DeltaTable

    return DeltaTable(table) if DeltaTable.is_deltatable(table) else None


def _committed(table: DeltaTable | None, application: str) -> int:
    version = None if table is None else table.transaction_version(application)
    return NO_VERSION if version is None else int(version)


def append_once(
    table: str,
    rows: pa.Table,
    application: str,
    batch: int,
    partition_by: list[str] | None = None,
) -> bool:
    """Append rows in one commit unless the application has committed this batch, or a later one;
    return whether it was done. The table is made if it is not there.

    Of two that do so at the same time with one application, one appends: a driver that hung may
    come back when another has taken its place.
    """
    from deltalake import CommitProperties, Transaction, write_deltalake
    from deltalake.exceptions import DeltaError

    seen = opened(table)
    if _committed(seen, application) >= batch:
        return False
    try:
        # As a change of the version that was looked at: whoever came between is then in conflict.
        write_deltalake(
            table if seen is None else seen,
            rows,
            mode="error" if seen is None else "append",
            partition_by=partition_by,
            schema_mode=None if seen is None else "merge",
            commit_properties=CommitProperties(app_transactions=[Transaction(application, batch)]),
        )
    except DeltaError:
        if committed(table, application) >= batch:
            return False
        raise
    return True


def append_batch(
    batch: DataFrame, number: int, table: str, query: QueryId, partition_by: list[str] | None
) -> bool:
    """Append a batch of foreachBatch once, see append_once. Its tasks write the files; the driver
    gets their names, and makes them part of the table in one commit.

    The batch is gathered on the driver where the table has to be given columns, or values of other
    types, and where its folder is an address.
    """
    import pyarrow as pa
    from deltalake import Schema
    from pyspark.sql.pandas.types import to_arrow_schema

    from tallymark.spark.delta_files import write_files

    application = query.of(batch.sparkSession)
    seen = opened(table)
    if _committed(seen, application) >= number:
        return False  # before anything is written
    fields = to_arrow_schema(batch.schema, timezone="UTC")
    wanted = Schema.from_arrow(pa.schema([field.with_nullable(True) for field in fields]))
    if "://" in table or (seen is not None and not _has(seen, wanted)):
        return append_once(table, batch.toArrow(), application, number, partition_by)
    parts = list(partition_by or []) if seen is None else seen.metadata().partition_columns
    files = write_files(batch, table, parts)
    return commit_files(table, seen, wanted, files, parts, application, number)


def commit_files(
    table: str,
    seen: DeltaTable | None,
    schema: Schema,
    files: list[AddAction],
    partition_by: list[str],
    application: str,
    batch: int,
) -> bool:
    """Make files part of a table in one commit, unless the application has committed this batch, or
    a later one; return whether it was done. seen: the table as it was looked at; None: there was
    none, and one is made."""
    from deltalake import CommitProperties, Transaction
    from deltalake.exceptions import DeltaError
    from deltalake.transaction import create_table_with_add_actions

    said = CommitProperties(app_transactions=[Transaction(application, batch)])
    try:
        if seen is None:
            create_table_with_add_actions(
                table, schema, files, "error", partition_by, commit_properties=said
            )
        else:
            seen.create_write_transaction(
                [*files], "append", schema, partition_by, commit_properties=said
            )
    except DeltaError:
        if committed(table, application) >= batch:
            return False
        raise
    return True


def _has(table: DeltaTable, wanted: Schema) -> bool:
    """Return whether a table has all these columns, with these types."""
    there = {field.name: field.type for field in table.schema().fields}
    return all(there.get(field.name) == field.type for field in wanted.fields)
