"""Spark over Tallymark: a queue as a streaming source, and pipelines over the ledger.

`register(spark)` makes `spark.readStream.format("tallymark")` known to a session. Nothing of Spark
is imported until it is called, so that the command line stays quick.
"""

from __future__ import annotations

from os import pathsep
from os.path import dirname, isfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Make the data source "tallymark" known to this session (also found by name, where the
    package `pyspark_tallymark` is importable by the Python that Spark starts)."""
    from tallymark.spark.source import TallymarkDataSource

    _find_zip(spark)
    spark.dataSource.register(TallymarkDataSource)


def _find_zip(spark: SparkSession) -> None:
    """Have the driver's Python processes find this package where it came by `--py-files`: Spark
    names such files to those that read and write, not to the one that plans a streaming query."""
    archive = dirname(dirname(__path__[0]))
    if isfile(archive) and not type(spark).__module__.startswith("pyspark.sql.connect"):
        known = spark.sparkContext.environment
        paths = [archive, *filter(None, known.get("PYTHONPATH", "").split(pathsep))]
        known["PYTHONPATH"] = pathsep.join(dict.fromkeys(paths))
