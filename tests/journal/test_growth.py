"""A replay in steps: a folder that grows block by block gives the same records as a whole one, and
its journal goes on behind them."""

from pathlib import Path

import pytest

from tallymark.journal.postgresql.errors import REMEDY
from tallymark.journal.recovery import JournalCorrupt, Opened
from tallymark.stored.records import ENTERED
from tallymark.stored.segment import parsed_name, scan
from tests.journal.builders import Disk, all_shown, entering, settling


def blocks_of(folder: Path) -> list[tuple[str, bytes]]:
    """Name of the file and bytes of each block, in order."""
    found = []
    for path in sorted(folder.glob("0*.segment")):
        data = path.read_bytes()
        named = parsed_name(path.name)
        assert named is not None
        for header in scan(data, *named)[0]:
            found.append((path.name, data[header.at : header.at + header.length]))
    return found


def written(folder: Path, clean: bool) -> Disk:
    """A journal of four segments, in which messages enter and are settled."""
    disk = Disk(folder)
    disk.start()
    number = 1
    while disk.journal.end >> 32 < 4:
        disk.journal.commit(entering(number, 3, 200), number)
        disk.journal.commit(settling(number), number)
        number += 3
    disk.wait()
    disk.journal.close(clean)
    return disk


def test_a_replay_in_steps_gives_what_a_replay_of_the_whole_gives(tmp_path: Path) -> None:
    leader = written(tmp_path / "leader", clean=True)
    blocks = blocks_of(leader.folder)
    whole = all_shown(leader.open())
    leader.journal.close()
    opened = Opened(tmp_path / "follower")
    found = []
    for i, (name, block) in enumerate(blocks):
        with open(opened.path / name, "ab") as file:
            file.write(block)
        if i % 3 != 1:  # some steps find two blocks
            opened.recovery.look_again()
            found += list(opened.recovery.growth())
    assert list(opened.recovery.growth()) == [], "nothing is given twice"
    assert opened.recovery.repairs == [], "a seal is beyond doubt once blocks follow it"
    follower = Disk(opened.path)
    follower.settings["opened"] = opened
    found += follower.start()
    assert all_shown(found) == whole
    follower.journal.close()


def test_the_journal_of_a_follower_goes_on_behind_a_leader_that_was_killed(tmp_path: Path) -> None:
    leader = written(tmp_path / "leader", clean=False)
    opened = Opened(tmp_path / "follower")
    found = []
    for name, block in blocks_of(leader.folder):
        with open(opened.path / name, "ab") as file:
            file.write(block)
        opened.recovery.look_again()
        found += list(opened.recovery.growth())
    follower = Disk(opened.path)
    follower.settings["opened"] = opened
    found += follower.start()
    last = max(record.first for record in found if record.kind == ENTERED)
    follower.journal.commit(entering(last + 3), 1)
    follower.wait()
    follower.journal.close()
    again = Disk(opened.path)
    assert all_shown(again.open())[:-2] == all_shown(found)
    again.journal.close()
    assert len({p.name for p in opened.path.glob("0*.segment")}) == 5


def test_what_can_be_done_about_a_loss_is_said_for_the_journals_home(tmp_path: Path) -> None:
    leader = written(tmp_path / "leader", clean=True)
    leader.segments()[1].unlink()
    missing = r"segment 2 is missing.*\. "
    with pytest.raises(JournalCorrupt, match=missing + "Restore the files"):
        leader.open()
    copy = Opened(leader.folder, remedy=REMEDY)
    for opened in (copy, Opened(leader.folder, under=copy)):
        for _ in range(2):
            with pytest.raises(
                JournalCorrupt, match=missing + "The files are a copy of the tables"
            ):
                list(opened.recovery.records())
            opened.begin_again()
    copy.release()
