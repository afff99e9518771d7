"""A journal whose folder is a copy of its home: what is safe when, and what a start finds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tallymark.journal.files import Files
from tallymark.journal.verify import verify
from tests.journal.builders import TIME, Disk, Elsewhere, all_shown, entering, settling
from tests.support.memory_home import MemoryHome
from tests.support.patience import until


@pytest.fixture
def home() -> MemoryHome:
    return MemoryHome()


@pytest.fixture
def copy(tmp_path: Path, home: MemoryHome) -> Elsewhere:
    return Elsewhere(tmp_path, home)


def test_recovery_at_every_cut(disk: Disk) -> None:
    """Wherever the journal ends, the turns that are whole come back, and no other."""
    disk.start(segment_bytes=1 << 16)
    turns, ends = [], [0]
    for number in range(1, 7):
        turn = entering(number, number, 30) if number % 3 else settling(number - 2, 2)
        turns.append(turn)
        ends.append(disk.journal.commit(turn, TIME) & 0xFFFFFFFF)
    disk.wait()
    disk.journal.close(clean=False)
    path = disk.segments()[0]
    data = path.read_bytes()[: ends[-1]]
    found = set()
    for cut in {*range(64, len(data), 24), *ends[1:], *(end - 1 for end in ends[1:])}:
        disk.change(path.name, data[:cut])
        whole = sum(end <= cut for end in ends) - 1
        records = disk.open(segment_bytes=1 << 16)
        assert all_shown(records) == all_shown(r for turn in turns[:whole] for r in turn), cut
        disk.journal.close()
        found.add(whole)
    assert found == set(range(len(ends)))


def test_a_start_after_each_cut_goes_on_behind_it(disk: Disk) -> None:
    """What is repaired is repaired in the home too: the next start has nothing to repair."""
    expected = []
    for number in range(1, 5):
        found = disk.start()
        assert all_shown(found) == expected
        turn = entering(number)
        disk.journal.commit(turn, TIME)
        expected += all_shown(turn)
        torn = entering(100 + number)
        begin = disk.journal.end & 0xFFFFFFFF
        end = disk.journal.commit(torn, TIME) & 0xFFFFFFFF
        disk.wait()
        disk.journal.close(clean=False)
        path = disk.segments()[-1]
        disk.change(path.name, path.read_bytes()[: (begin + end) // 2])
    assert all_shown(disk.start()) == expected
    disk.journal.close()
    assert all_shown(disk.open()) == expected
    assert disk.journal._recovery.repairs == []
    disk.journal.close()
    assert verify(disk.folder).is_sound


def test_a_checkpoint_before_the_first_block_of_a_segment_needs_no_segment(disk: Disk) -> None:
    """A leader that is asked for a checkpoint before it has written anything, and is killed: no
    block of its segment is in a home."""
    disk.start()
    disk.journal.commit(entering(1) + settling(1), TIME)
    disk.wait()
    disk.journal.close()
    for _ in range(3):
        disk.start()
        assert disk.journal.checkpoint([], TIME)
        disk.finish_cleaning()
        disk.journal.close(clean=False)
    assert disk.start() == []
    turn = entering(2)
    disk.journal.commit(turn, TIME)
    disk.wait()
    disk.journal.close(clean=False)
    for _ in range(2):
        assert all_shown(disk.start()) == all_shown(turn)
        disk.journal.close()
    assert verify(disk.folder).is_sound


# -- with a home outside of the folder


def test_nothing_is_synced_before_the_home_has_it(copy: Elsewhere, home: MemoryHome) -> None:
    copy.start()
    before = copy.journal.synced
    home.hold()
    end = copy.journal.commit(entering(1), TIME)
    until(lambda: copy.journal.written >= end)
    copy.journal.commit(entering(2), TIME)
    assert copy.journal.synced == copy.journal.durable == before
    home.free.set()
    copy.wait()
    assert copy.journal.synced == copy.journal.durable == copy.journal.end
    copy.journal.close()


def test_turns_gather_while_the_home_takes_its_time(copy: Elsewhere, home: MemoryHome) -> None:
    copy.start(segment_bytes=1 << 16)
    home.hold()
    first = copy.journal.commit(entering(1), TIME)
    until(lambda: copy.journal.written >= first)
    for number in range(2, 30):
        copy.journal.commit(entering(number), TIME)
    assert copy.journal.pending_bytes == copy.journal.end - first
    home.free.set()
    copy.wait()
    assert len(home.segments[1]) == 2
    copy.journal.close()


def test_what_the_home_refuses_ends_the_journal(copy: Elsewhere, home: MemoryHome) -> None:
    copy.start()
    copy.journal.commit(entering(1), TIME)
    copy.wait()
    before = copy.journal.synced
    home.failure = PermissionError("another leads")
    copy.journal.commit(entering(2), TIME)
    assert copy.wait_failure() is home.failure
    assert copy.journal.synced == before
    assert copy.journal.failed
    assert not copy.journal.flush()
    copy.journal.close()


def test_a_checkpoint_that_the_home_refuses_ends_the_journal(
    copy: Elsewhere, home: MemoryHome
) -> None:
    copy.start()
    copy.journal.commit(entering(1), TIME)
    copy.wait()
    home.failure = PermissionError("another leads")
    assert copy.journal.checkpoint([], TIME)
    assert copy.wait_failure() is home.failure
    copy.journal.close()
    assert home.files == {}


def test_other_files_are_kept_on_request(copy: Elsewhere, home: MemoryHome, tmp_path: Path) -> None:
    copy.start()
    (tmp_path / "users.json").write_bytes(b"[]")
    assert copy.journal.keep(["users.json", "none.json"], [])
    assert home.files == {"users.json": b"[]"}
    (tmp_path / "users.json").write_bytes(b"[1]")
    (tmp_path / "limits.json").write_bytes(b"{}")
    assert copy.journal.keep(["users.json", "limits.json"], [])
    assert copy.journal.keep([], ["users.json"])
    assert home.files == {"limits.json": b"{}"}
    home.failure = PermissionError("another leads")
    assert not copy.journal.keep(["limits.json"], [])
    copy.journal.close()


def test_the_reason_why_it_waits_is_the_homes(copy: Elsewhere, home: MemoryHome) -> None:
    copy.start()
    assert copy.journal.trouble == ""
    home.trouble = "no server takes writes"
    assert copy.journal.trouble == "no server takes writes"
    copy.journal.end_waiting()
    assert home.has_ended
    copy.journal.close()


@pytest.mark.parametrize("sync", ["interval", "never", "sometimes"])
def test_modes_that_promise_less_than_the_home_are_refused(copy: Elsewhere, sync: str) -> None:
    with pytest.raises(ValueError, match=f"sync '{sync}', expected one of commit, both"):
        copy.open(sync=sync)


@pytest.mark.parametrize(("sync", "expected"), [("commit", 0), ("both", 3)])
def test_the_copy_is_synced_where_that_is_asked_for(
    copy: Elsewhere, sync: str, expected: int
) -> None:
    synced = []

    def fdatasync(fd: int) -> None:
        synced.append(fd)
        os.fdatasync(fd)

    copy.files = Files(fdatasync=fdatasync)
    copy.start(sync=sync)
    for number in range(1, 4):
        copy.journal.commit(entering(number), TIME)
        copy.wait()
    assert len(synced) == expected
    assert copy.journal.syncs == 3
    copy.journal.close()
