"""Iceberg tables through pyiceberg: each batch of a query in one snapshot, once.

The commit that appends a batch also writes its number to the table's properties, under the query's
id: a batch that is run again after a crash finds itself there, also when its snapshot has expired.
The snapshot's own properties name both for people.

pyiceberg tries a commit again on the table as another writer left it. That writer may be a driver
with the same batch. So it is told not to, and what the table has is looked at before each try.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tallymark.spark.delta import NO_VERSION, QueryId

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame

QUERY: Final = "tallymark.query"
BATCH: Final = "tallymark.batch"
"""Properties of a snapshot; of a table, BATCH with a dot and the query's id behind it."""
TRIES: Final = 20
"""Maximum number of commits tried for a batch while other writers come between."""


def committed(table: Table, query: str) -> int:
    """The last batch that the query appended to the table, or NO_VERSION."""
    return int(table.properties.get(f"{BATCH}.{query}", NO_VERSION))


def append_once(
    catalog: Catalog,
    name: str,
    rows: pa.Table,
    query: str,
    batch: int,
    partition_by: list[str] | None = None,
) -> bool:
    """Append rows in one commit unless the query has appended this batch, or a later one; return
    whether it was done. The table is made if it is not there, in a namespace that is; columns and
    fields within them that it lacks are added, wider types taken. name: `namespace.table`.

    Of two that do so at the same time for one query, one appends. Raises CommitFailedException when
    others come between each time.
    """
    from pyiceberg.exceptions import CommitFailedException

    for left in range(TRIES - 1, -1, -1):
        table = _opened(catalog, name, rows.schema, partition_by or [])
        if committed(table, query) >= batch:
            return False
        try:
            _append(table, rows, query, batch)
        except CommitFailedException:
            if not left:
                raise
        else:
            return True
    raise AssertionError("the last try returns or raises")


def append_batch(
    batch: DataFrame,
    number: int,
    catalog: Catalog,
    name: str,
    query: QueryId,
    partition_by: list[str] | None = None,
) -> bool:
    """Append a batch of foreachBatch once, see append_once. It is gathered on the driver."""
    application = query.of(batch.sparkSession)
    if catalog.table_exists(name) and committed(catalog.load_table(name), application) >= number:
        return False  # before anything is gathered
    return append_once(catalog, name, batch.toArrow(), application, number, partition_by)


def _opened(catalog: Catalog, name: str, schema: pa.Schema, partition_by: list[str]) -> Table:
    """The table as it is now, made where there is none."""
    from pyiceberg.exceptions import NoSuchTableError, TableAlreadyExistsError

    try:
        return catalog.load_table(name)
    except NoSuchTableError:
        pass
    try:
        with catalog.create_table_transaction(name, schema) as made, made.update_spec() as spec:
            for column in partition_by:
                spec.add_identity(column)
    except TableAlreadyExistsError:
        pass  # another driver made it meanwhile
    return catalog.load_table(name)


def _append(table: Table, rows: pa.Table, query: str, batch: int) -> None:
    """Append to the table as it was looked at. Raises CommitFailedException: it has changed."""
    once = {**table.properties, "commit.retry.num-retries": "0"}
    table.metadata = table.metadata.model_copy(update={"properties": once})
    said = {QUERY: query, BATCH: str(batch)}
    with table.transaction() as commit:
        with commit.update_schema() as change:
            change.union_by_name(rows.schema)
        commit.append(rows, snapshot_properties=said)
        commit.set_properties({f"{BATCH}.{query}": str(batch)})
