"""A ledger whose beginning is deleted: what was there follows from what is kept, and the traffic is
played from there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bench.day_of_traffic import Day, Plan
from tallymark.stored import segment
from tallymark.whatif.beginning import Numbers
from tallymark.whatif.comparison import faithfulness_lines
from tallymark.whatif.figures import compare_fates
from tallymark.whatif.reading import NotEnough, read_recording
from tallymark.whatif.sources import Source, folder_source, table_source
from tallymark.whatif.table import write_table
from tallymark.whatif.world import World
from tests.support.long import sized

TRANSITIONS = sized(1, 1, 60_000)


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A day's data folder without its first two segments."""
    folder = tmp_path_factory.mktemp("cut")
    Day(folder, Plan(TRANSITIONS, segment_bytes=1 << 19, is_awake=True)).run()
    files = sorted(path for path in folder.iterdir() if segment.parsed_name(path.name))
    assert len(files) > 3
    for path in files[:2]:
        path.unlink()
    return folder


@pytest.mark.longer(ci=False)
def test_what_was_there_follows_from_what_is_kept(cut: Path, tmp_path: Path) -> None:
    recording = read_recording(cut)
    there = recording.lacks["messages that were there at the beginning: their times and routes"]
    assert there > 50, "there is something to it"
    found = compare_fates(recording.fates, World(recording).run().fates)
    said = "\n".join(faithfulness_lines(found))
    assert found["same"] >= 0.999 * found["messages"], said
    exact = [queue for queue in found["queues"] if queue["is_same"] and queue["is_same_by_hour"]]
    assert len(exact) >= len(found["queues"]) - 1, said
    write_table(cut, tmp_path / "table", None)
    assert read_recording(table_source(tmp_path / "table")) == recording


@pytest.mark.longer(ci=False)
def test_a_table_that_has_grown_needs_no_beginning(cut: Path, tmp_path: Path) -> None:
    """The broker has let go of what the table has."""
    whole, folder = tmp_path / "table", tmp_path / "data"
    write_table(cut, whole, None)
    shutil.copytree(cut, folder)
    first = min(path for path in folder.iterdir() if segment.parsed_name(path.name))
    first.unlink()
    assert write_table(folder, whole, None) == 0
    assert read_recording(table_source(whole)) == read_recording(cut)
    assert folder_source(folder).first == folder_source(cut).first + 1


def test_a_ledger_without_a_checkpoint_is_refused() -> None:
    source = Source("it", "it", 3, lambda: iter(()), lambda: iter(()))
    with pytest.raises(
        NotEnough, match=r"begins with segment 3, expected 1, and has no checkpoint"
    ):
        read_recording(source)


def test_messages_that_were_there_get_sequences_from_one_on() -> None:
    numbers = Numbers(entered=20, there=[3, 4, 9])
    assert [numbers.of(sequence) for sequence in (3, 4, 9, 20, 21)] == [1, 2, 3, 4, 5]
    assert numbers.of(10) == 4, "a mark below which all may have been delivered"
