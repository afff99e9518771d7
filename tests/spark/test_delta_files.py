"""Files of a Delta table that tasks write: what they hold, and that each batch is committed once.
Without Spark: a task's function is called as Spark calls it."""

from __future__ import annotations

import json
import os
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tallymark.spark.delta_files import _writer

deltalake = pytest.importorskip("deltalake", reason="pip install 'tallymark[delta]'")

FIELDS = pa.schema(
    [("id", pa.int64()), ("day", pa.date32()), ("kind", pa.string()), ("body", pa.binary())]
)
DAYS = [date(2026, 3, 1), None]
KINDS = ["plain", "a/b=c d%", "", None]


def rows(first: int, count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [
            {"id": n, "day": DAYS[n % 2], "kind": KINDS[n % 4], "body": b"%d" % n}
            for n in range(first, first + count)
        ],
        FIELDS,
    )


def written(table: Path, parts: list[str], *batches: pa.RecordBatch) -> list[Any]:
    """The actions of a task with these batches."""
    from deltalake.transaction import AddAction

    told = [row for one in _writer(str(table), parts)(iter(batches)) for row in one.to_pylist()]
    return [
        AddAction(
            one["path"], one["size"], json.loads(one["partition"]), 0, True,
            json.dumps({"numRecords": one["rows"]}),
        )
        for one in told
    ]  # fmt: skip


def commit(table: Path, seen: Any, files: list[Any], parts: list[str], batch: int) -> bool:
    from tallymark.spark.delta import commit_files

    schema = deltalake.Schema.from_arrow(FIELDS)
    return commit_files(str(table), seen, schema, files, parts, "q", batch)


def content(table: Path) -> list[dict[str, Any]]:
    found = deltalake.DeltaTable(str(table)).to_pyarrow_table().to_pylist()
    return sorted(({**row, "kind": row["kind"] or None} for row in found), key=lambda r: r["id"])


@pytest.mark.parametrize("parts", [[], ["day"], ["day", "kind"]])
def test_a_table_has_what_its_tasks_wrote(tmp_path: Path, parts: list[str]) -> None:
    table = tmp_path / "table"
    assert commit(table, None, written(table, parts, rows(0, 5), rows(5, 4)), parts, 0)
    written(table, parts, rows(100, 4))  # a task that died: nobody commits its files
    seen = deltalake.DeltaTable(str(table))
    assert commit(table, seen, written(table, parts, rows(9, 3)), parts, 1)
    expected = rows(0, 12).to_pylist()
    assert content(table) == [{**row, "kind": row["kind"] or None} for row in expected]
    assert deltalake.DeltaTable(str(table)).metadata().partition_columns == parts


def test_values_with_any_letters_are_partitions_of_their_own(tmp_path: Path) -> None:
    """A publisher may put a zero byte, or what else a program joins texts with, into both."""
    texts = [("a\0=b", "c"), ("a", "b\0=c"), ("a", None), ("a", "\0"), (None, "a"), ("a\0=b", "c")]
    names = ["kind", "app"]
    given = pa.RecordBatch.from_pylist(
        [{"id": n, "kind": kind, "app": app} for n, (kind, app) in enumerate(texts)],
        pa.schema([("id", pa.int64()), ("kind", pa.string()), ("app", pa.string())]),
    )
    told = [row for one in _writer(str(tmp_path), names)(iter([given])) for row in one.to_pylist()]
    found = {
        tuple(json.loads(one["partition"]).values()): pq.read_table(
            tmp_path / one["path"], partitioning=None
        )
        .column("id")
        .to_pylist()
        for one in told
    }
    assert found == {
        texts[0]: [0, 5], texts[1]: [1], texts[2]: [2], texts[3]: [3], texts[4]: [4],
    }  # fmt: skip


def test_a_value_longer_than_a_name_of_a_folder_is_a_partition_as_well(tmp_path: Path) -> None:
    table = tmp_path / "table"
    fields = FIELDS.get_field_index("kind")
    given = rows(0, 2)
    given = given.set_column(fields, "kind", pa.array(["a" * 255, "b"], pa.string()))
    assert commit(table, None, written(table, ["kind"], given), ["kind"], 0)
    assert content(table) == given.to_pylist()
    assert [path.name for path in table.glob("*b*")] == ["kind=b"]


def test_of_two_that_commit_one_batch_one_does(tmp_path: Path) -> None:
    """A driver that hung after it had looked at the table goes on when another has committed."""
    table = tmp_path / "table"
    mine, theirs = written(table, [], rows(0, 2)), written(table, [], rows(0, 2))
    assert commit(table, None, theirs, [], 0)
    assert not commit(table, None, mine, [], 0), "it had seen no table"
    seen, too = deltalake.DeltaTable(str(table)), deltalake.DeltaTable(str(table))
    assert commit(table, too, written(table, [], rows(2, 2)), [], 1)
    assert not commit(table, seen, written(table, [], rows(2, 2)), [], 1)
    assert [row["id"] for row in content(table)] == [0, 1, 2, 3]


def test_a_task_without_rows_writes_nothing(tmp_path: Path) -> None:
    assert written(tmp_path, ["day"]) == []
    assert list(tmp_path.iterdir()) == []


def test_a_table_is_compacted_and_knows_its_batches(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tallymark.spark.delta import committed
    from tallymark.spark.optimize import main

    table = tmp_path / "table"
    (table / "_checkpoint").mkdir(parents=True)
    (table / "_checkpoint" / "metadata").touch()
    assert commit(table, None, written(table, ["day"], rows(0, 4)), ["day"], 0)
    for batch in range(1, 6):
        seen = deltalake.DeltaTable(str(table))
        files = written(table, ["day"], rows(4 * batch, 4))
        assert commit(table, seen, files, ["day"], batch)
    seen = deltalake.DeltaTable(str(table))
    assert main(table, 256, vacuum=True, as_json=True) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["files_before"], told["files_after"]) == (12, 2)
    assert [row["id"] for row in content(table)] == list(range(24))
    assert committed(str(table), "q") == 5
    assert commit(table, seen, written(table, ["day"], rows(24, 4)), ["day"], 6), "it went on"
    assert [row["id"] for row in content(table)] == list(range(28))
    assert (table / "_checkpoint" / "metadata").exists()


def test_a_vacuum_removes_what_tasks_that_died_left_behind(tmp_path: Path) -> None:
    """Once it is more than a week old; a young file may be one of a task that is at work."""
    from tallymark.spark.optimize import optimize

    table = tmp_path / "table"
    assert commit(table, None, written(table, ["day"], rows(0, 4)), ["day"], 0)
    dead = {one.path for one in written(table, ["day"], rows(4, 4))}
    kept = ["_checkpoint/metadata", "_quarantine/part-0.parquet", "part/part-0.parquet"]
    for name in kept:
        (table / name).parent.mkdir(exist_ok=True)
        (table / name).touch()
    for name in [*dead, *kept[:2]]:
        os.utime(table / name, (0, 0))
    assert optimize(table, 1 << 20, vacuum=False).removed == 0
    assert optimize(table, 1 << 20, vacuum=True).removed == len(dead) == 2
    assert not any((table / name).exists() for name in dead)
    assert all((table / name).exists() for name in kept)
    assert [row["id"] for row in content(table)] == list(range(4))


def test_what_is_no_delta_table_is_not_compacted(tmp_path: Path) -> None:
    from tallymark.spark.optimize import main

    with pytest.raises(ValueError, match="is no Delta table"):
        main(tmp_path, 256, vacuum=False, as_json=False)
    with pytest.raises(ValueError, match="--target-mib 0"):
        main(tmp_path, 0, vacuum=False, as_json=False)
