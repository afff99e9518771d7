"""Found by Spark by its name: makes format("tallymark") work without a registration."""

from tallymark.spark.source import TallymarkDataSource as DefaultSource

__all__ = ["DefaultSource"]
