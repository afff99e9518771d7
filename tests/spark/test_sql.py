"""format("tallymark") in SQL alone: tables of Spark's catalog, temporary views, INSERT INTO."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from tests.spark.rig import publish
from tests.support.process import BrokerProcess

pytestmark = pytest.mark.spark


@pytest.fixture
def options(spark: SparkSession, broker: BrokerProcess) -> Iterator[str]:
    """Options of a queue with ten messages; tables and views are dropped at the end."""
    publish(broker, "sql", 0, 10)
    yield f"(url '{broker.url}', queue 'sql')"
    spark.sql("DROP TABLE IF EXISTS sql_table")
    spark.sql("DROP VIEW IF EXISTS sql_view")
    assert broker.http("DELETE", "/api/queues/%2F/sql")[0] == 204


def count(spark: SparkSession, of: str) -> int:
    return int(spark.sql(f"SELECT count(*) FROM {of}").first()[0])  # type: ignore[index]


def test_a_temporary_view_is_read_and_written(
    spark: SparkSession, broker: BrokerProcess, options: str
) -> None:
    spark.sql(f"CREATE TEMPORARY VIEW sql_view USING tallymark OPTIONS {options}")
    assert count(spark, "sql_view WHERE body LIKE 'line %'") == 10
    spark.sql("INSERT INTO sql_view SELECT * FROM sql_view WHERE int(message_id) < 3")
    assert broker.queues()["sql"]["ready"] == 13


def test_a_table_of_the_catalog_is_made_and_used(
    spark: SparkSession, broker: BrokerProcess, options: str
) -> None:
    spark.sql(f"CREATE TABLE sql_table USING tallymark OPTIONS {options} COMMENT 'orders'")
    columns = [row.col_name for row in spark.sql("DESCRIBE sql_table").collect()]
    assert columns[:2] == ["queue", "sequence"]
    assert count(spark, f"sql_table WITH {options}") == 10
    spark.sql(
        f"INSERT INTO sql_table WITH {options} (body, message_id) VALUES (X'6869', '10'), (X'', '')"
    )
    assert broker.queues()["sql"]["ready"] == 12
    for use in ("SELECT body FROM sql_table", "INSERT INTO sql_table SELECT * FROM sql_table"):
        with pytest.raises(AnalysisException, match="say them with each use, FROM name WITH"):
            spark.sql(use).collect()
