"""Landing batch by batch, where Spark's own file sink is not enough: Delta tables, bodies as
columns, bad rows set apart.

Every message is in one of the two tables exactly once: a Delta table knows (query, batch); a batch
of Parquet is a folder `batch=N`, see batch_folders. Bad rows go to the quarantine table and are
rejected at the broker, so that they also go through the queue's dead-letter topology.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tallymark.spark.batch_folders import claim, write_batch
from tallymark.spark.bodies import CHECKPOINT, QUARANTINE, REASON, Schema, below, read_by
from tallymark.spark.delta import QueryId, append_batch
from tallymark.spark.schema import utc_date
from tallymark.spark.tables import DATE
from tallymark.spark.verdicts import send_verdicts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PARQUET: Final = "parquet"
DELTA: Final = "delta"
FORMATS: Final = (PARQUET, DELTA)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Subscription that the messages were read from, to which their outcomes are sent."""

    queue: str
    subscription: str
    url: str | None = None
    user: str | None = None
    password: str | None = None
    vhost: str | None = None


class Landing:
    """Function for foreachBatch that writes a batch to a table."""

    def __init__(
        self,
        to: Path | str,
        format: str,
        reader: Reader,
        schema: Schema | None = None,
        quarantine: Path | str | None = None,
        partition_by: Sequence[str] = (DATE,),
    ) -> None:
        """partition_by: columns of the rows, or `date`, the day of arrival."""
        self._partition_by = list(partition_by)
        self._to = str(to)
        self._format = format
        self._reader = reader
        self._schema = schema
        self._quarantine = str(quarantine or below(to, QUARANTINE))
        self._query = QueryId(below(to, CHECKPOINT))

    def __call__(self, batch: DataFrame, number: int) -> None:
        from pyspark.sql import functions as f

        rows = batch.withColumn(DATE, utc_date("timestamp"))
        if self._schema is None:
            self._write(rows, number, self._to)
            return
        schema = self._schema.of(number)
        if schema is None:
            rows = rows.persist()  # so that the broker is asked for them once
            schema = self._schema.find(rows)
        self._schema.begin(number, schema)
        read = read_by(schema, rows).persist()
        try:
            self._write(read.where(f.col(REASON).isNull()).drop(REASON), number, self._to)
            bad = read.where(f.col(REASON).isNotNull()).drop("data")
            if not bad.isEmpty():
                if self._format == PARQUET and (Path(self._to) / CHECKPOINT).exists():
                    claim(Path(self._quarantine), self._query.of(batch.sparkSession))
                self._write(bad, number, self._quarantine)
            self._judge(read)
        finally:
            read.unpersist()
            rows.unpersist()

    def _write(self, rows: DataFrame, number: int, to: str) -> None:
        rows = rows.drop("lease_fence")  # of this run, not of the message
        if self._format == DELTA:
            append_batch(rows, number, to, self._query, self._partition_by)
        else:
            write_batch(rows, number, Path(to), self._partition_by)

    def _judge(self, rows: DataFrame) -> None:
        from pyspark.sql import functions as f

        reader = self._reader
        outcome = f.when(f.col(REASON).isNull(), "accepted").otherwise("rejected")
        send_verdicts(
            rows.withColumn("outcome", outcome), reader.queue, reader.subscription,
            url=reader.url, user=reader.user, password=reader.password, vhost=reader.vhost,
        )  # fmt: skip
