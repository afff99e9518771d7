"""Spark's Python processes import PySpark as it was compiled."""

from __future__ import annotations

import os
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from tallymark.spark import home

INSTALLED = Path(pyspark.__file__).parent


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and no SPARK_HOME."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("SPARK_HOME", "")  # undone at the end, whatever a test sets
    monkeypatch.delenv("SPARK_HOME")
    return tmp_path / "tallymark"


def test_a_home_is_made_once(cache: Path) -> None:
    home.use_compiled()
    made = Path(os.environ["SPARK_HOME"])
    assert made.parent == cache
    assert (made / "python/lib/pyspark.zip/pyspark").resolve() == INSTALLED.resolve()
    assert (made / "bin/spark-submit").exists()
    assert list((made / "python/lib").glob("py4j-*.zip"))
    del os.environ["SPARK_HOME"]
    home.use_compiled()
    assert os.environ["SPARK_HOME"] == str(made)
    assert list(cache.iterdir()) == [made]


def test_a_home_that_was_given_stays(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    home.use_compiled()
    assert os.environ["SPARK_HOME"] == "/opt/spark"
    assert not cache.exists()


def test_where_none_can_be_made_it_is_the_installed_one(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: Path, __: Path) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(home, "link_all", refused)
    home.use_compiled()
    assert "SPARK_HOME" not in os.environ
    assert list(cache.iterdir()) == []


@pytest.mark.spark
def test_a_worker_s_modules_were_compiled_before(spark: SparkSession) -> None:
    def compiled(_: int) -> bool:
        import pyspark

        return os.path.exists(str(pyspark.__cached__))

    assert spark.sparkContext.parallelize([1], 1).map(compiled).collect() == [True]
