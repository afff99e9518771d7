"""The ledger as a data source of Spark: `spark.read.format("tallymark").option("ledger", DIR)`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from tallymark.spark.ledger import LedgerPart, plan, read_file


class LedgerPartition(InputPartition):
    """A task: one file."""

    def __init__(self, part: LedgerPart) -> None:
        self.part = part


class LedgerReader(DataSourceReader):
    """Rows of all journal blocks below `upto`, and of the checkpoint at exactly that position.

    Without `upto` it is the newest whole checkpoint's position, so that rows and state agree.
    """

    def __init__(self, folder: Path, upto: int | None = None) -> None:
        self._folder = folder
        self._upto = upto

    def partitions(self) -> Sequence[InputPartition]:
        return [LedgerPartition(part) for part in plan(self._folder, self._upto)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, LedgerPartition)
        return read_file(partition.part)
