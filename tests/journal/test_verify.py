"""`tallymark journal verify`: what is there, and what is wrong with it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tallymark.journal.verify import verify
from tallymark.stored import records
from tests.journal.builders import TIME, Disk, entering, make_newer, settling


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    made = Disk(tmp_path)
    made.start()
    for number in range(1, 21):
        made.journal.commit(entering(number, 1, 500) + settling(number), TIME + number)
    made.wait()
    return made


def test_a_sound_folder_is_counted(disk: Disk) -> None:
    disk.journal.checkpoint([], TIME)
    disk.finish_cleaning()
    disk.journal.close()
    report = verify(disk.folder)
    assert report.is_sound
    assert report.blocks == 20
    assert report.rows == {"payload": 20, "entered": 20, "settled": 20}
    assert report.raw_bytes == 20 * 500
    assert (report.first_ms, report.last_ms) == (TIME + 1, TIME + 20)
    assert len(report.checkpoints) == 1
    assert json.loads(json.dumps(report.as_dict()))["sound"] is True


def test_a_running_journal_can_be_looked_at(disk: Disk) -> None:
    report = verify(disk.folder)
    assert report.is_sound
    assert report.segments[-1].verdict == "open"
    disk.journal.close()


def test_damage_is_named_and_the_rest_is_counted(disk: Disk) -> None:
    disk.journal.close()
    path = disk.segments()[1]
    data = bytearray(path.read_bytes())
    data[70] ^= 1
    path.write_bytes(data)
    report = verify(disk.folder)
    assert not report.is_sound
    assert report.blocks == 19
    assert report.segments[1].verdict == "corrupt"
    assert path.name in report.problems[0]


def test_a_torn_tail_is_no_damage(disk: Disk) -> None:
    disk.journal.close(clean=False)
    path = disk.segments()[-1]
    path.write_bytes(path.read_bytes()[:-9])
    report = verify(disk.folder)
    assert report.is_sound
    assert report.segments[-1].verdict == "torn"
    assert report.blocks == 19


def test_a_missing_segment_and_a_damaged_checkpoint_are_damage(disk: Disk) -> None:
    disk.journal.checkpoint([], TIME)
    disk.finish_cleaning()
    disk.journal.close()
    name = disk.names(".checkpoint")[0]
    (disk.folder / name).write_bytes(b"junk")
    disk.segments()[0].unlink()
    problems = verify(disk.folder).problems
    assert any(name in problem for problem in problems)
    assert any("segment 1 is missing, and no sound checkpoint" in problem for problem in problems)


def test_the_newest_segment_that_is_missing_is_told_by_the_anchor(disk: Disk) -> None:
    disk.journal.write_anchor([], [], TIME)
    disk.journal.close()
    assert verify(disk.folder).is_sound
    last = disk.segments()[-1]
    number = int(last.name.split("-")[0], 16)
    last.unlink()
    (problem,) = verify(disk.folder).problems
    assert f"segment {number} is missing at the end of the journal: tail.json says" in problem


def test_an_empty_folder_is_sound(tmp_path: Path) -> None:
    report = verify(tmp_path)
    assert report.is_sound
    assert report.blocks == 0


def test_every_kind_of_row_has_a_name() -> None:
    source = Path(__file__).parents[2] / "src" / "tallymark" / "stored" / "records.py"
    above, found, _ = source.read_text().partition("KINDS: Final")
    assert found
    numbers = re.findall(r"^[A-Z_]+: Final = ([0-9]+)$", above, re.MULTILINE)
    assert sorted(map(int, numbers)) == sorted(records.KINDS)
    assert len(set(records.KINDS.values())) == len(numbers) > 20


def test_a_checkpoint_of_a_newer_version_is_named(disk: Disk) -> None:
    disk.journal.checkpoint([], TIME)
    disk.finish_cleaning()
    disk.journal.close()
    (checkpoint,) = disk.folder.glob("*.checkpoint")
    make_newer(checkpoint, 0)
    problem = f"{checkpoint.name}: block of format version 3, this program reads 1 to 2"
    assert problem in verify(disk.folder).problems
