"""Spark over Tallymark: a queue as a streaming source, and pipelines over the ledger.

`register(spark)` makes `spark.readStream.format("tallymark")` known to a session. Nothing of Spark
is imported until it is called, so that the command line stays quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Make the data source "tallymark" known to this session (also found by name, where the
    package `pyspark_tallymark` is importable by the Python that Spark starts)."""
    from tallymark.spark.source import TallymarkDataSource

    spark.dataSource.register(TallymarkDataSource)
