"""A table's folder is looked at before anything is landed in it."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from tallymark.spark.tables import BY_BATCH, IN_DELTA, PLAIN, check_table


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
