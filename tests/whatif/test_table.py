"""The ledger as a table: traffic is played from it as from the data folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tallymark.whatif.reading import read_recording
from tallymark.whatif.recording import Recording
from tallymark.whatif.sources import table_source
from tallymark.whatif.table import NoTable, write_delta, write_table


@pytest.mark.longer(ci=False)
def test_a_table_has_all_that_the_data_folder_has(
    data: Path, recording: Recording, tmp_path: Path
) -> None:
    for format, write in (("parquet", write_table), ("delta", write_delta)):
        to = tmp_path / format
        assert write(data, to, None) > 1000
        assert read_recording(table_source(to)) == recording
        assert write(data, to, None) == 0, "nothing is new"


@pytest.mark.longer(ci=False)
def test_a_table_grows_and_may_be_written_in_any_order(
    data: Path, recording: Recording, tmp_path: Path
) -> None:
    to = tmp_path / "table"
    write_table(data, to, None)
    written = {path.name: path.read_bytes() for path in to.iterdir()}
    for path in sorted(to.iterdir()):
        if path.name.startswith("checkpoint") or path != min(to.glob("journal*")):
            path.unlink()  # the run was killed
    assert len(written) > 2
    assert len(list(to.iterdir())) == 1
    assert write_table(data, to, None) > 0
    assert {path.name: path.read_bytes() for path in to.iterdir()} == written
    rows = pa.concat_tables([pq.read_table(path) for path in sorted(to.iterdir())])
    shuffled = rows.sort_by([("owner", "descending"), ("row", "descending")])
    again = tmp_path / "again"
    again.mkdir()
    pq.write_table(pa.concat_tables([shuffled, shuffled.slice(0, 500)]), again / "x.parquet")
    assert read_recording(table_source(again)) == recording, "sorted otherwise, some rows twice"


@pytest.mark.longer(ci=False)
def test_a_table_of_which_nothing_was_written_but_a_part_is_gone_on_with(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as now:
        now.setattr(pq.ParquetWriter, "write_batch", killed)
        with pytest.raises(KeyboardInterrupt):
            write_table(data, tmp_path, None)
    assert [path.suffix for path in tmp_path.iterdir()] == [".part"]
    assert write_table(data, tmp_path, None) > 1000
    assert {path.suffix for path in tmp_path.iterdir()} == {".parquet"}


@pytest.mark.longer(ci=False)
def test_a_file_that_no_commit_names_is_no_part_of_a_delta_table(
    data: Path, recording: Recording, tmp_path: Path
) -> None:
    to = tmp_path / "table"
    count = write_delta(data, to, None)
    shutil.rmtree(to / "_delta_log")  # the run was killed before it committed
    assert write_delta(data, to, None) == count
    assert read_recording(table_source(to)) == recording


def test_a_table_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoTable, match="no such folder"):
        table_source(tmp_path / "none")
    with pytest.raises(NoTable, match="expected Parquet files or a Delta table"):
        table_source(tmp_path)
    pq.write_table(pa.table({"event": ["entered"]}), tmp_path / "x.parquet")
    with pytest.raises(NoTable, match="has no column blob, expected a table that `tallymark"):
        table_source(tmp_path)
