"""A folder per batch: of two runs of one batch, one is in the table, whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tallymark.spark.batch_folders import WRITTEN, claim, rename_run
from tallymark.spark.land import AVAILABLE_NOW, _check_arguments
from tests.support.long import long
from tests.support.patience import until

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


def folder(path: Path, name: str, *, written: bool = True) -> Path:
    path.mkdir()
    (path / name).touch()
    if written:
        (path / WRITTEN).touch()
    return path


def test_the_first_run_to_rename_is_the_batch(tmp_path: Path) -> None:
    first, second = folder(tmp_path / "1", "first"), folder(tmp_path / "2", "second")
    target = tmp_path / "batch=0"
    assert rename_run(first, target)
    assert not rename_run(second, target)
    assert (target / "first").exists()
    assert not (target / "second").exists()


def test_a_folder_that_was_written_in_place_by_half_is_written_anew(tmp_path: Path) -> None:
    target = folder(tmp_path / "batch=0", "half", written=False)
    assert rename_run(folder(tmp_path / "1", "whole"), target)
    assert not (target / "half").exists()


def test_a_folder_has_batches_of_one_query(tmp_path: Path) -> None:
    """Of a table that several landings could name, as a quarantine."""
    bad = tmp_path / "bad"
    claim(bad, "one")
    claim(bad, "one")
    with pytest.raises(FileExistsError, match="bad has batches of another landing"):
        claim(bad, "two")
    claim(bad, "one")


def check_quarantine(to: Path, quarantine: Path) -> None:
    """Check the arguments of a landing."""
    schema = "id bigint"
    _check_arguments(to, AVAILABLE_NOW, None, None, "parquet", schema, quarantine, None)


def test_a_quarantine_is_no_other_landings_folder(tmp_path: Path) -> None:
    to, bad = tmp_path / "table", tmp_path / "bad"
    check_quarantine(to, bad)
    with pytest.raises(ValueError, match="expected another folder than --to"):
        check_quarantine(to, tmp_path / "." / "table")
    (bad / "batch=3").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"has batches up to 3 of another landing, .* 0 batches"):
        check_quarantine(to, bad)
    offsets = to / "_checkpoint" / "offsets"
    offsets.mkdir(parents=True)
    (offsets / "3").touch()
    check_quarantine(to, bad)


def held(run: str, marks: Path) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For mapInArrow: a partition makes a file, and stands still until another file is there."""

    def hold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            part = f"{run}{batch.column('part')[0].as_py()}"
            (marks / f"{part}.held").touch()
            until((marks / f"{part}.released").exists)
            yield batch

    return hold


@pytest.mark.spark
@long  # in `make test` without Spark: the tests above
def test_runs_of_one_batch_do_not_mix(spark: SparkSession, tmp_path: Path) -> None:
    """The driver that hung goes on when another runs its batch: A has written one of two parts when
    B ends."""
    from tallymark.spark.batches import PARQUET, Landing, Reader

    to, marks = tmp_path / "table", tmp_path / "marks"
    marks.mkdir()

    def rows(run: str, parts: int) -> DataFrame:
        made = spark.range(4, numPartitions=parts).selectExpr(
            "id", "timestamp'2026-03-01 00:00:00' as timestamp", "spark_partition_id() as part"
        )
        return made.mapInArrow(held(run, marks), made.schema)

    landing = Landing(to, PARQUET, Reader(queue="q", subscription="s"))

    def release(part: str) -> None:
        (marks / f"{part}.released").touch()

    def is_held(part: str) -> None:
        until((marks / f"{part}.held").exists, what=f"{part} is written")

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(landing, rows("a", 2), 0)
        is_held("a0")
        is_held("a1")
        release("a0")
        until(lambda: any(to.rglob("task_*/**/*.parquet")), what="the first part of A")
        second = pool.submit(landing, rows("b", 1), 0)
        is_held("b0")
        release("b0")
        second.result()
        release("a1")
        first.result()
    assert sorted(row.id for row in spark.read.parquet(str(to)).collect()) == [0, 1, 2, 3]
    assert not list(to.glob("_run-*"))
