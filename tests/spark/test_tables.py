"""A table's folder is looked at before anything is landed in it."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from tallymark.spark.tables import BY_BATCH, IN_DELTA, PLAIN, check_table, partitioning


def checkpoint(to: Path, planned: int, committed: int, id: str = "query") -> None:
    """As Spark leaves it."""
    for kind, newest in (("offsets", planned), ("commits", committed)):
        folder = to / "_checkpoint" / kind
        folder.mkdir(parents=True)
        for number in range(newest + 1):
            (folder / str(number)).touch()
            (folder / f".{number}.crc").touch()
    (to / "_checkpoint" / "metadata").write_text(json.dumps({"id": id}))


def batches(to: Path, mark: str, newest: int) -> None:
    """A table of Parquet files with the batches 0..newest."""
    for number in range(newest + 1):
        if mark == PLAIN:
            (to / PLAIN).mkdir(exist_ok=True)
            (to / PLAIN / (f"{number}.compact" if number == 9 else str(number))).touch()
        else:
            (to / f"batch={number}").mkdir()


@pytest.mark.parametrize("mark", [PLAIN, BY_BATCH])
def test_a_table_whose_checkpoint_is_gone_or_another_is_refused(tmp_path: Path, mark: str) -> None:
    check_table(tmp_path, mark)
    batches(tmp_path, mark, 9)
    with pytest.raises(ValueError, match=r"batches up to 9, its checkpoint .* was deleted.* twice"):
        check_table(tmp_path, mark)
    checkpoint(tmp_path, 8, 8)
    with pytest.raises(ValueError, match=r"knows batches up to 8\. Rows would be left out"):
        check_table(tmp_path, mark)


@pytest.mark.parametrize("mark", [PLAIN, BY_BATCH])
def test_a_table_in_the_middle_of_a_batch_is_that_of_its_checkpoint(
    tmp_path: Path, mark: str
) -> None:
    checkpoint(tmp_path, 9, 8)
    check_table(tmp_path, mark)  # planned, and nothing written
    batches(tmp_path, mark, 9)
    check_table(tmp_path, mark)  # written, and not committed


@pytest.mark.skipif(find_spec("deltalake") is None, reason="needs the extra delta")
def test_of_a_delta_table_the_log_says_whose_it_is(tmp_path: Path) -> None:
    import pyarrow as pa
    from deltalake import write_deltalake

    from tallymark.spark.delta import append_once

    others = tmp_path / "others"  # made by somebody else: a checkpoint may begin on it
    write_deltalake(str(others), pa.table({"id": [1]}))
    check_table(others, IN_DELTA)

    rows = pa.table({"lease_sequence": [1, 2]})
    for number in range(3):
        append_once(str(tmp_path), rows, "query", number)
    with pytest.raises(ValueError, match=r"rows that were landed, its checkpoint .* was deleted"):
        check_table(tmp_path, IN_DELTA)
    checkpoint(tmp_path, 2, 1)
    check_table(tmp_path, IN_DELTA)
    (tmp_path / "_checkpoint" / "offsets" / "2").unlink()
    with pytest.raises(ValueError, match=r"batches up to 2, its checkpoint .* up to 1"):
        check_table(tmp_path, IN_DELTA)
    (tmp_path / "_checkpoint" / "metadata").write_text(json.dumps({"id": "another"}))
    with pytest.raises(ValueError, match="has no batch of this checkpoint"):
        check_table(tmp_path, IN_DELTA)


@pytest.mark.skipif(find_spec("deltalake") is None, reason="needs the extra delta")
def test_a_delta_table_of_which_a_kill_left_no_version_is_made_anew(tmp_path: Path) -> None:
    import pyarrow as pa

    from tallymark.spark.delta import append_once

    (tmp_path / IN_DELTA).mkdir()
    (tmp_path / IN_DELTA / "_commit_3b7d.json.tmp").touch()
    checkpoint(tmp_path, 0, -1)
    check_table(tmp_path, IN_DELTA)
    assert partitioning(tmp_path, IN_DELTA, None) == ["date"]
    assert append_once(str(tmp_path), pa.table({"lease_sequence": [1]}), "query", 0, [])
    check_table(tmp_path, IN_DELTA)
    assert partitioning(tmp_path, IN_DELTA, None) == []


def test_a_table_keeps_the_columns_by_which_it_is_partitioned(tmp_path: Path) -> None:
    assert partitioning(tmp_path / "new", PLAIN, None) == ["date"]
    assert partitioning(tmp_path / "new", PLAIN, "type, date") == ["type", "date"]
    assert partitioning(tmp_path / "new", PLAIN, "") == []
    rows = tmp_path / "plain" / "type=a=b" / "date=2026-11-23"
    rows.mkdir(parents=True)
    (tmp_path / "plain" / "_spark_metadata").mkdir()
    assert partitioning(tmp_path / "plain", PLAIN, "date") == ["date"], "there are no rows yet"
    (rows / "part-0.snappy.parquet").touch()
    for given in (None, "type,date"):
        assert partitioning(tmp_path / "plain", PLAIN, given) == ["type", "date"]
    with pytest.raises(ValueError, match="is partitioned by type, date"):
        partitioning(tmp_path / "plain", PLAIN, "date,type")
    whole = tmp_path / "batches" / "batch=0"
    whole.mkdir(parents=True)
    (whole / "_SUCCESS").touch()
    (tmp_path / "batches" / "batch=1" / "queue=q").mkdir(parents=True)
    (tmp_path / "batches" / "batch=1" / "queue=q" / "part-1.parquet").touch()
    assert partitioning(tmp_path / "batches", BY_BATCH, None) == ["queue"]


@pytest.mark.parametrize("given", ["body", "lease_fence", "date,date", "nothing", "date,,type"])
def test_columns_that_cannot_be_partitions_are_refused(tmp_path: Path, given: str) -> None:
    with pytest.raises(ValueError, match=r"--partition-by .*: expected some of date, queue, "):
        partitioning(tmp_path, PLAIN, given)


def test_a_delta_table_says_its_partitions_itself(tmp_path: Path) -> None:
    pytest.importorskip("deltalake", reason="pip install 'tallymark[delta]'")
    import pyarrow as pa

    from tallymark.spark.delta import append_once

    rows = pa.table({"lease_sequence": [1], "type": ["a"]})
    append_once(str(tmp_path), rows, "query", 0, ["type"])
    assert partitioning(tmp_path, IN_DELTA, None) == ["type"]
    with pytest.raises(ValueError, match="is partitioned by type"):
        partitioning(tmp_path, IN_DELTA, "date")
