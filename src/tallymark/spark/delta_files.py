"""Files of a Delta table, written by executors; the driver is given their names and commits them.

A file that no commit names is no part of the table, so that a task may be tried again, and a driver
may be killed, at any time: what is left over is removed by `tallymark pipeline optimize --vacuum`.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake.transaction import AddAction
    from pyspark.sql import DataFrame

GROUP_BYTES: Final = 64 << 20
"""Bytes in memory of a row group."""
WRITTEN: Final = "path string, size bigint, partition string, rows bigint"
"""Columns of what executors tell the driver."""
_SIMPLE: Final = re.compile(r"[\w.-]{1,128}", re.ASCII)
"""Values that may stand in the name of a folder, which has at most 255 bytes."""


def write_files(rows: DataFrame, table: str, partition_by: list[str]) -> list[AddAction]:
    """Write rows as Parquet files under a table's folder, which all machines have under that name,
    and return the actions that make them part of it."""
    from deltalake.transaction import AddAction

    told = rows.mapInArrow(_writer(table, partition_by), WRITTEN).collect()
    now_ms = int(time.time() * 1000)
    return [
        AddAction(
            one.path, one.size, json.loads(one.partition), now_ms, True,
            json.dumps({"numRecords": one.rows}),
        )
        for one in told
    ]  # fmt: skip


def _writer(
    table: str, partition_by: list[str]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return what a task does: write the rows that it is given, and tell each file."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        files: dict[tuple[str | None, ...], _File] = {}
        for batch in batches:
            for values, part in _parted(batch, partition_by):
                if values not in files:
                    files[values] = _File(table, dict(zip(partition_by, values, strict=True)))
                files[values].add(part)
        told = [file.close() for file in files.values()]
        if told:
            yield pa.RecordBatch.from_pylist(told)

    return write


def _parted(
    batch: pa.RecordBatch, partition_by: list[str]
) -> Iterator[tuple[tuple[str | None, ...], pa.RecordBatch]]:
    """The rows of each partition, without its columns, and the partition's values as text."""
    import numpy as np
    import pyarrow as pa

    if not partition_by:
        yield (), batch
        return
    keys = [batch.column(name).cast(pa.string()) for name in partition_by]
    rest = batch.drop_columns(partition_by)
    # Numbers in the place of values: texts that are joined can be others' texts.
    code = np.zeros(batch.num_rows, np.int64)
    for key in keys:
        encoded = key.dictionary_encode()
        values = len(encoded.dictionary)
        index = encoded.indices.fill_null(values).to_numpy().astype(np.int64)
        code = np.unique(code * (values + 1) + index, return_inverse=True)[1]
    for at in np.unique(code, return_index=True)[1].tolist():
        which = pa.array(code == code[at])
        yield tuple(key[at].as_py() for key in keys), rest.filter(which)


class _File:
    """A file of one partition, while a task writes it."""

    def __init__(self, table: str, partition: dict[str, str | None]) -> None:
        self._partition = partition
        named = [f"{name}={value}" for name, value in partition.items()]
        is_simple = all(_SIMPLE.fullmatch(value or "") for value in partition.values())
        # Where a partition's files lie says nothing: their log has the values.
        folder = "/".join(named) if is_simple else "part" if named else ""
        self._path = "/".join(step for step in (folder, f"part-{uuid4().hex}.parquet") if step)
        self._whole = Path(table) / self._path
        self._writer: Any = None
        self._waiting: list[pa.RecordBatch] = []
        self._bytes = 0
        self._rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        self._waiting.append(batch)
        self._bytes += batch.nbytes
        if self._bytes >= GROUP_BYTES:
            self._flush()

    def close(self) -> dict[str, object]:
        """Write what is left; return a row of WRITTEN."""
        self._flush()
        self._writer.close()
        return {
            "path": self._path, "size": self._whole.stat().st_size,
            "partition": json.dumps(self._partition), "rows": self._rows,
        }  # fmt: skip

    def _flush(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if not self._waiting:
            return
        found = pa.Table.from_batches(self._waiting)
        if self._writer is None:
            self._whole.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(self._whole, found.schema)
        self._writer.write_table(found)
        self._rows += found.num_rows
        self._waiting, self._bytes = [], 0
