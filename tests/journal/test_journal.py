"""Segments, restarts, modes of syncing, the folder's lock: the journal on a sound disk."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tallymark.engine.record import Record
from tallymark.journal.files import FolderInUse
from tallymark.journal.journal import Journal
from tallymark.journal.recovery import JournalCorrupt
from tallymark.journal.verify import verify
from tallymark.server.rehearsal import rehearse
from tallymark.stored.layout import HEADER
from tallymark.stored.records import COUNTERS, ENTERED, LEASED, LIVE, PAYLOAD
from tests.journal.builders import TIME, Disk, all_shown, entering, local, payload, settling, shown


def firsts(records: list[Record]) -> list[int]:
    return [r.first for r in records if r.kind == ENTERED]


def test_a_turn_never_spans_segments_and_all_but_the_newest_are_sealed(disk: Disk) -> None:
    disk.start()
    for number in range(1, 41):
        disk.journal.commit(entering(number, 1, 500), TIME)
    disk.wait()
    report = verify(disk.folder)
    assert len(report.segments) > 4
    assert [s.verdict for s in report.segments[:-1]] == ["sealed"] * (len(report.segments) - 1)
    assert all(s.file_bytes <= 4096 for s in report.segments)
    assert report.rows == {"payload": 40, "entered": 40}
    disk.journal.close()
    assert [s.verdict for s in verify(disk.folder).segments][-1] == "sealed"


def test_a_turn_larger_than_a_segment_makes_its_segment_grow(disk: Disk) -> None:
    disk.start()
    disk.journal.commit(entering(1), TIME)
    turn = entering(2, 3, 50_000)
    disk.journal.commit(turn, TIME)
    disk.journal.commit(entering(5), TIME)
    disk.wait()
    p = turn[0].payload
    assert p is not None
    assert disk.journal.fetch(p) == p.raw
    disk.journal.close()
    assert firsts(disk.start()) == [1, 2, 5]
    disk.journal.close()


def test_each_start_begins_a_new_segment_and_leaves_old_ones_alone(disk: Disk) -> None:
    expected: list[tuple[object, ...]] = []
    for number in range(1, 6):
        assert all_shown(disk.start()) == expected
        before = {p.name: p.read_bytes() for p in disk.segments()[:-1]}
        turn = entering(number)
        disk.journal.commit(turn, TIME)
        expected += [shown(r) for r in turn]
        disk.wait()
        disk.journal.close(clean=number % 2 == 0)
        for name, data in before.items():
            if data[-1]:
                assert (disk.folder / name).read_bytes() == data
    assert verify(disk.folder).is_sound


def test_nothing_is_written_before_the_start(disk: Disk) -> None:
    disk.start()
    disk.journal.commit(entering(1), TIME)
    disk.wait()
    disk.journal.close(clean=False)
    before = {p.name: p.read_bytes() for p in disk.folder.iterdir() if p.name != "lock"}
    disk.open()
    disk.journal.close()
    assert {p.name: p.read_bytes() for p in disk.folder.iterdir() if p.name != "lock"} == before


def test_a_fresh_folder_holds_four_segments_at_most(disk: Disk) -> None:
    disk.start()
    disk.finish_cleaning()
    assert sum(p.stat().st_size for p in disk.folder.iterdir()) < 4 * 4096 + 100
    disk.journal.close()
    for _ in range(5):
        disk.start()
        disk.finish_cleaning()
        disk.journal.close()
    assert sum(p.stat().st_size for p in disk.folder.iterdir()) < 4 * 4096 + 1000


@local
@pytest.mark.parametrize("sync", ["commit", "interval", "never"])
def test_every_mode_reports_and_keeps_everything(disk: Disk, sync: str) -> None:
    disk.start(sync=sync, interval_ms=5)
    for number in range(1, 30):
        disk.journal.commit(entering(number, 1, 500), TIME)
    disk.wait()
    disk.journal.close()
    assert firsts(disk.start(sync=sync)) == list(range(1, 30))
    disk.journal.close()


@local
def test_without_commit_synced_is_what_was_written_and_durable_is_not(disk: Disk) -> None:
    disk.start(sync="never")
    start = disk.journal.end
    disk.journal.commit(entering(1), TIME)
    disk.wait()
    assert disk.journal.synced == disk.journal.end
    assert disk.journal.durable == start
    disk.journal.close()


@local
def test_a_torn_tail_is_no_corruption_in_a_mode_that_never_synced_it(disk: Disk) -> None:
    """Headers carry what was on disk, not what was reported."""
    disk.start(sync="never")
    ends = [disk.journal.commit(entering(number), TIME) for number in range(1, 9)]
    disk.wait()
    disk.journal.close(clean=False)
    path = disk.segments()[0]
    data = bytearray(path.read_bytes())
    data[(ends[3] & 0xFFFFFFFF) + 70] ^= 1
    path.write_bytes(data)
    assert firsts(disk.start()) == [1, 2, 3, 4]
    disk.journal.close()


@local
def test_the_interval_syncs_by_itself(disk: Disk) -> None:
    disk.start(sync="interval", interval_ms=1)
    disk.journal.commit(entering(1), TIME)
    disk.wait()
    while disk.journal.durable < disk.journal.end:
        os.sched_yield()
    assert disk.journal.syncs >= 1
    disk.journal.close()


def test_one_sync_covers_many_turns(disk: Disk) -> None:
    disk.start(segment_bytes=1 << 20)
    for number in range(1, 2001):
        disk.journal.commit(entering(number), TIME)
    disk.wait()
    assert disk.journal.syncs < 1000
    disk.journal.close()


def test_an_opener_that_fails_leaves_the_folder_to_the_next(tmp_path: Path) -> None:
    anchor = tmp_path / "tail.json"
    anchor.mkdir()  # cannot be read
    with pytest.raises(IsADirectoryError):
        Journal(tmp_path, lambda error: None)
    anchor.rmdir()
    Journal(tmp_path, lambda error: None).close()


def anchor_without_blocks(disk: Disk) -> None:
    """Start, write an anchor at the begin of the new segment, and end before its first block."""
    disk.start()
    disk.journal.write_anchor([], [], TIME)
    disk.finish_cleaning()
    disk.journal.close(clean=False)


@pytest.mark.parametrize("newest", ["blank", "cut", "gone"])
def test_an_anchor_at_the_begin_of_a_segment_without_blocks_misses_nothing(
    disk: Disk, newest: str
) -> None:
    """A stop in the first moment of a broker writes one: everything before the segment was on disk.
    A home knows nothing of a segment without blocks."""
    disk.start()
    disk.journal.commit(entering(1), TIME)
    disk.wait()
    disk.journal.close()
    anchor_without_blocks(disk)
    last = disk.segments()[-1]
    if newest == "cut":
        os.truncate(last, 0)
    elif newest == "gone":
        last.unlink()
    assert verify(disk.folder).is_sound
    assert firsts(disk.start()) == [1]
    assert disk.journal.anchor is None
    disk.journal.close()


@local
def test_an_anchor_at_the_begin_of_a_segment_tells_what_is_missing_before_it(disk: Disk) -> None:
    for number in (1, 2, 3):
        disk.start()
        disk.journal.commit(entering(number), TIME)
        disk.wait()
        disk.journal.close()
    anchor_without_blocks(disk)
    _, second, third, fourth = disk.segments()
    os.truncate(third, third.stat().st_size - HEADER)
    with pytest.raises(JournalCorrupt, match="was known on disk"):
        disk.open()
    fourth.unlink()
    third.unlink()
    disk.open()
    with pytest.raises(JournalCorrupt, match=r"journal ends at .*: segment 3 is gone"):
        disk.journal.start()
    disk.journal.close()
    second.unlink()
    disk.open()
    with pytest.raises(JournalCorrupt, match=r"journal ends at .*: segments 2 to 3 are gone"):
        disk.journal.start()
    disk.journal.close()


@local
def test_a_second_opener_is_told_who_has_the_folder(disk: Disk) -> None:
    disk.start()
    with pytest.raises(FolderInUse, match=f"in use by process {os.getpid()}") as refused:
        Journal(disk.folder, lambda error: None)
    assert refused.value.pid == os.getpid()
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from tallymark.journal.journal import Journal\n"
        "from tallymark.journal.files import FolderInUse\n"
        "try: Journal(Path(sys.argv[1]), lambda e: None)\n"
        "except FolderInUse as error: print(error.pid)\n"
    )
    other = subprocess.run(
        [sys.executable, "-c", program, str(disk.folder)],
        capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert other.stdout.strip() == str(os.getpid())
    disk.journal.close()
    disk.start()
    disk.journal.close()


@pytest.mark.parametrize(
    "wrong", [{"sync": "sometimes"}, {"segment_bytes": 100}, {"segment_bytes": 1 << 32}]
)
def test_settings_out_of_range_are_refused_and_leave_the_folder_free(
    disk: Disk, wrong: dict[str, object]
) -> None:
    with pytest.raises(ValueError, match="expected"):
        disk.open(**wrong)
    disk.start()
    disk.journal.close()


def test_a_missing_segment_is_corruption(disk: Disk) -> None:
    disk.start()
    for number in range(1, 30):
        disk.journal.commit(entering(number, 1, 500), TIME)
    disk.wait()
    disk.journal.close()
    disk.remove(disk.segments()[1].name)
    with pytest.raises(JournalCorrupt, match="segment 2 is missing"):
        disk.open()
    found = firsts(disk.start(accept_loss=True))
    assert found[0] == 1
    assert found[-1] == 29
    assert len(found) < 29
    alone = "segment 2 is missing, and no sound checkpoint is there to stand for it"
    assert disk.journal.problems == [alone]
    disk.journal.close()


@pytest.mark.parametrize("accept_loss", [False, True])
def test_the_files_of_two_journals_in_one_folder_are_refused(
    tmp_path: Path, accept_loss: bool
) -> None:
    """Which of them is the broker's nobody can tell from here: neither is read or removed."""
    one, other = Disk(tmp_path / "one"), Disk(tmp_path / "other")
    for disk in (one, other):
        disk.start()
        for number in range(1, 30):
            disk.journal.commit(entering(number, 1, 500), TIME)
        disk.wait()
        disk.journal.close()
    stranger = other.segments()[1]
    (one.folder / stranger.name).write_bytes(stranger.read_bytes())
    names = sorted(path.name for path in one.folder.iterdir())
    first, second = sorted((one.segments()[1].name, one.segments()[2].name))
    text = f"segment 2 is there twice, as {first} and as {second}"
    with pytest.raises(JournalCorrupt, match=text + r"\. Take the files of the other journal"):
        one.start(accept_loss=accept_loss)
    assert sorted(path.name for path in one.folder.iterdir()) == names
    assert text in verify(one.folder).problems
    assert rehearse(one.folder) == []


def test_a_journal_that_lost_its_checkpoints_says_so(disk: Disk) -> None:
    """What a checkpoint stood for was let go of: to look for these segments would be in vain."""
    disk.start()
    for number in range(1, 60):
        disk.journal.commit(entering(number, 1, 500), TIME)
    disk.wait()
    disk.journal.checkpoint([], TIME)
    disk.finish_cleaning()
    disk.journal.close()
    for name in disk.names(".checkpoint"):
        disk.remove(name)
    for path in disk.segments()[:2]:
        disk.remove(path.name)
    text = "segments 1 to 2 are missing, and no sound checkpoint is there to stand for them"
    with pytest.raises(JournalCorrupt, match=text):
        disk.open()
    assert text in verify(disk.folder).problems


def test_a_row_finds_its_payload_however_long_ago_it_was(disk: Disk) -> None:
    """A lease or a dead letter means a payload of thousands of turns before, and whoever replays
    need not know by then that it is alive."""
    disk.start(segment_bytes=1 << 24)
    old = entering(1)
    disk.journal.commit(old, TIME)
    for number in range(2, 20_002, 20):
        turn = [
            Record(PAYLOAD, 0, n, 1, TIME, payload([b"x"], n)) for n in range(number, number + 20)
        ]
        disk.journal.commit(turn, TIME)
    lease = Record(LEASED, 5, 1, 1, TIME, old[0].payload, owner=3, other=1)
    disk.journal.commit([lease], TIME)
    disk.wait()
    disk.journal.close()
    last = disk.open()[-1]
    assert shown(last) == shown(lease)
    disk.journal.close()


def test_a_large_checkpoint_gives_every_live_row_its_payload(disk: Disk) -> None:
    """A payload and its LIVE row may stand in different blocks of a checkpoint."""
    disk.start(segment_bytes=1 << 22)
    state = [Record(COUNTERS, 5, 0, 0, TIME, blob=b"{}")]
    for number in range(1, 12_001):
        p = payload([b"x"], number)
        state.append(Record(PAYLOAD, 0, number, 1, TIME, p))
        state.append(Record(LIVE, 5, number, 1, TIME, p))
    disk.journal.commit([r for r in state if r.kind == PAYLOAD], TIME)
    assert disk.journal.checkpoint(state, TIME)
    disk.finish_cleaning()
    disk.journal.close()
    found = disk.start()
    assert all_shown(found) == all_shown(state)
    disk.journal.close()


def test_the_start_asks_for_the_replay_first(disk: Disk) -> None:
    disk.start()
    disk.journal.close()
    disk.journal = Journal(disk.folder, lambda error: None, home=disk.home())
    with pytest.raises(AssertionError, match="use up `recovered`"):
        disk.journal.start()
    disk.journal.close()


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(1, 30), st.integers(1, 900)), max_size=4),
        max_size=12,
    ),
    st.lists(st.booleans(), min_size=3, max_size=3),
)
def test_any_turns_over_any_restarts_come_back_in_order(
    tmp_path_factory: pytest.TempPathFactory,
    turns: list[list[tuple[int, int]]],
    clean: list[bool],
) -> None:
    disk = Disk(tmp_path_factory.mktemp("data"))
    expected: list[tuple[object, ...]] = []
    number = 1
    for part, is_clean in enumerate(clean):
        assert all_shown(disk.start()) == expected
        for turn in turns[part::3]:
            records: list[Record] = []
            for count, size in turn:
                records += entering(number, count, size)
                records += settling(number, count)
                number += count
            disk.journal.commit(records, TIME)
            expected += all_shown(records)
        disk.wait()
        disk.journal.close(clean=is_clean)
    assert all_shown(disk.start()) == expected
    disk.journal.close()
