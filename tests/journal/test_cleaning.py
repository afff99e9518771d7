"""Segments are stripped, ledgers dropped and sparse segments emptied; never too early."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from tallymark.engine.message import Payload
from tallymark.engine.record import Record
from tallymark.journal.files import Files
from tallymark.journal.journal import BytesLost
from tallymark.journal.recovery import JournalCorrupt
from tallymark.journal.verify import verify
from tallymark.stored.layout import SEALED, header_at
from tallymark.stored.records import ENTERED, LIVE, PAYLOAD, SETTLED
from tests.journal.builders import TIME, Disk, all_shown, entering, local, settling
from tests.support.patience import PATIENCE_S


def fill(disk: Disk, first: int, turns: int, size: int = 600) -> list[Payload]:
    """Commit turns of one message each; 4096-byte segments hold four of 600 bytes."""
    made = []
    for number in range(first, first + turns):
        turn = entering(number, 1, size)
        disk.journal.commit(turn, TIME + number)
        assert turn[0].payload is not None
        turn[0].payload.raw = None
        made.append(turn[0].payload)
    return made


def settle(disk: Disk, payloads: list[Payload]) -> None:
    for p in payloads:
        disk.journal.release(p.position, p.size)
        disk.journal.commit(settling(p.first_id), TIME)


def state(payloads: list[Payload]) -> list[Record]:
    found = []
    for p in payloads:
        found.append(Record(PAYLOAD, 0, p.first_id, 1, TIME, p))
        found.append(Record(LIVE, 5, p.first_id, 1, TIME, p))
    return found


def checkpoint(disk: Disk, payloads: list[Payload]) -> None:
    assert disk.journal.checkpoint(state(payloads), TIME)
    disk.finish_cleaning()
    disk.journal.clean(TIME, 1 << 40)


def settle_and_strip(disk: Disk, payloads: list[Payload]) -> None:
    """Settle what a start found, with two checkpoints after it, and clean."""
    for p in payloads:
        assert disk.journal.retain(p.position, p.size)
    settle(disk, payloads)
    disk.wait()
    checkpoint(disk, [])
    checkpoint(disk, [])
    disk.clean()


def numbers(disk: Disk, suffix: str) -> list[int]:
    return [int(name[:10]) for name in disk.names(suffix) if name.startswith("0")]


def test_a_settled_segment_before_a_checkpoint_becomes_a_ledger_with_the_same_rows(
    disk: Disk,
) -> None:
    disk.start()
    made = fill(disk, 1, 12)
    settle(disk, made)
    disk.wait()
    before = verify(disk.folder).rows
    disk.clean()
    assert numbers(disk, ".ledger") == []  # no checkpoint yet
    checkpoint(disk, [])
    disk.clean()
    last = disk.journal.end >> 32
    assert numbers(disk, ".ledger") == list(range(1, last))
    assert numbers(disk, ".segment") == [last]
    report = verify(disk.folder)
    assert report.is_sound
    assert report.rows == before
    assert sum(s.raw_bytes for s in report.segments if s.stripped) == 0
    with pytest.raises(BytesLost):
        disk.journal.fetch(made[0])
    disk.journal.close()
    assert disk.start() == []
    disk.journal.close()


@local
def test_the_loop_does_not_give_up_the_bytes_of_a_stripped_segment(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.start()
    made = fill(disk, 1, 12)
    settle(disk, made)
    disk.wait()
    checkpoint(disk, [])
    disk.journal.fetch(made[0])
    closed: list[tuple[str, str]] = []
    close = os.close

    def closing(fd: int) -> None:
        closed.append((os.readlink(f"/proc/self/fd/{fd}"), threading.current_thread().name))
        close(fd)

    monkeypatch.setattr(os, "close", closing)
    disk.clean()
    disk.finish_cleaning()
    by = {thread for path, thread in closed if path.endswith(" (deleted)")}
    assert by == {"journal-cleaner"}
    opened = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
              if os.path.lexists(f"/proc/self/fd/{fd}")]  # fmt: skip
    assert not [path for path in opened if path.startswith(f"{disk.folder}/") and "(del" in path]
    monkeypatch.undo()
    disk.journal.close()


@local
def test_what_is_stripped_or_dropped_while_a_folder_is_verified_is_no_damage(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.start()
    settle(disk, fill(disk, 1, 12))
    disk.wait()
    before = verify(disk.folder).rows
    read_bytes = Path.read_bytes
    todo = [lambda: disk.clean()]

    def reading(path: Path) -> bytes:
        if path.name.startswith("0") and path.suffix != ".checkpoint" and todo:
            todo.pop(0)()
        return read_bytes(path)

    checkpoint(disk, [])
    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", reading)
        report = verify(disk.folder)
    assert report.is_sound
    assert report.rows == before
    assert all(one.stripped for one in report.segments[:-1])

    settle(disk, fill(disk, 13, 1))
    checkpoint(disk, [])
    with monkeypatch.context() as patched:
        todo.append(lambda: disk.clean(TIME + 1000, 1))
        patched.setattr(Path, "read_bytes", reading)
        report = verify(disk.folder)
    assert report.is_sound
    assert [one.name for one in report.segments] == [path.name for path in disk.segments()]
    disk.journal.close()


def test_ledgers_replay_as_their_segments_did(disk: Disk) -> None:
    disk.start()
    settle(disk, fill(disk, 1, 12))
    disk.wait()
    disk.journal.close()
    expected = all_shown(disk.start())
    checkpoint(disk, [])
    disk.clean()
    assert numbers(disk, ".ledger")
    disk.journal.close()
    for name in disk.names(".checkpoint"):
        disk.remove(name)
    assert all_shown(disk.start()) == expected
    disk.journal.close()


def test_a_fallback_checkpoint_replays_through_ledgers_from_its_own_block_on(disk: Disk) -> None:
    disk.start()
    made = fill(disk, 1, 6)
    checkpoint(disk, made)  # in the middle of a segment
    settle(disk, made + fill(disk, 7, 8))
    checkpoint(disk, [])
    disk.clean()
    older, newer = disk.names(".checkpoint")
    assert int(older[:8], 16) in numbers(disk, ".ledger")
    disk.journal.close()
    data = bytearray((disk.folder / newer).read_bytes())
    data[20] ^= 1
    disk.change(newer, bytes(data))
    found = disk.start()
    assert [r.first for r in found if r.kind == LIVE] == [1, 2, 3, 4, 5, 6]
    assert [r.first for r in found if r.kind == ENTERED] == list(range(7, 15))
    assert [r.first for r in found if r.kind == SETTLED] == list(range(1, 15))
    assert "damaged" in disk.journal.problems[0]
    assert (disk.folder / "quarantine" / newer).exists()
    disk.journal.close()


@local
def test_a_segment_whose_writer_was_killed_before_it_was_cut_keeps_its_ledger(disk: Disk) -> None:
    """Everything before the seal was on disk when it was written, so nothing of it is in doubt."""
    disk.start()
    for number in range(1, 7):
        fill(disk, number, 1)
        disk.wait()
    disk.journal.close()
    sealed, unsynced = disk.segments()
    length = sealed.stat().st_size
    unsynced.unlink()
    with sealed.open("r+b") as file:
        file.truncate(4096)

    found = disk.start()
    assert sealed.stat().st_size == length
    live = [r.payload for r in found if r.kind == ENTERED and r.payload is not None]
    settle_and_strip(disk, live)
    assert 1 in numbers(disk, ".ledger")
    disk.journal.close()


@local
def test_a_ledger_keeps_the_time_of_its_seal_also_if_its_segment_was_never_cut(disk: Disk) -> None:
    """A folder from before such files were cut at the start."""
    disk.start()
    made = fill(disk, 1, 6)
    disk.wait()
    checkpoint(disk, made)
    checkpoint(disk, made)
    disk.journal.close()
    uncut = disk.segments()[0]
    with uncut.open("r+b") as file:
        file.truncate(4096)

    disk.start()
    settle_and_strip(disk, made)
    assert uncut.with_suffix(".ledger").exists()
    disk.clean(TIME + 1000, 0)
    assert not uncut.with_suffix(".ledger").exists()
    disk.journal.close()


def test_a_live_message_keeps_its_segment(disk: Disk) -> None:
    disk.start()
    made = fill(disk, 1, 12)
    kept = made.pop(5)
    settle(disk, made)
    checkpoint(disk, [kept])
    disk.clean()
    segment = kept.position >> 32
    assert segment not in numbers(disk, ".ledger")
    assert segment in numbers(disk, ".segment")
    assert disk.journal.fetch(kept)[:9] == b"message 6"
    disk.journal.close()


@local
def test_what_a_turn_released_counts_only_once_the_turn_is_on_disk(disk: Disk) -> None:
    disk.start(sync="never")  # nothing is on disk until a segment is sealed
    made = fill(disk, 1, 4)
    fill(disk, 5, 1)
    assert disk.journal.end >> 32 > made[0].position >> 32
    checkpoint(disk, made)
    for p in made:
        disk.journal.release(p.position, p.size)
    disk.journal.commit(settling(1, 4), TIME)
    disk.clean()
    assert disk.journal.durable < disk.journal.end
    assert numbers(disk, ".ledger") == []
    fill(disk, 6, 8)  # seals the segment of the settlement
    disk.wait()
    disk.clean()
    assert 1 in numbers(disk, ".ledger")
    disk.journal.close()


def test_after_a_restart_what_is_retained_is_kept_and_the_rest_goes(disk: Disk) -> None:
    disk.start()
    made = fill(disk, 1, 12)
    checkpoint(disk, made)
    disk.journal.close()
    found = [r.payload for r in disk.open() if r.kind == LIVE]
    kept = found[0]
    assert kept is not None
    assert disk.journal.retain(kept.position, kept.size)
    disk.journal.start()
    disk.clean()
    assert numbers(disk, ".ledger") == [2]  # 3 is where the checkpoint stands
    disk.journal.close()


def test_retaining_what_is_gone_refuses_the_start_unless_accepted(disk: Disk) -> None:
    disk.start()
    made = fill(disk, 1, 12)
    checkpoint(disk, made)
    disk.journal.close()
    disk.remove(disk.segments()[0].name)
    first = made[0]
    disk.open()
    assert not disk.journal.retain(first.position, first.size)
    with pytest.raises(
        JournalCorrupt,
        match="segment 1 is gone, with bytes of live messages: 1 payloads, 600 bytes",
    ):
        disk.journal.start()
    disk.journal.close()
    disk.open(accept_loss=True)
    assert not disk.journal.retain(first.position, first.size)
    disk.journal.start()
    with pytest.raises(BytesLost):
        disk.journal.fetch(first)
    disk.journal.release(first.position, first.size)
    disk.journal.close()


def test_ledgers_go_after_their_retention_and_not_before_two_checkpoints_have_their_totals(
    disk: Disk,
) -> None:
    disk.start()
    settle(disk, fill(disk, 1, 12))
    checkpoint(disk, [])
    disk.clean(TIME + 10_000, 1000)
    ledgers = numbers(disk, ".ledger")
    assert ledgers
    settle(disk, fill(disk, 13, 1))
    checkpoint(disk, [])
    disk.clean(TIME + 500, 1000)
    assert set(ledgers) <= set(numbers(disk, ".ledger"))
    disk.clean(TIME + 10_000, 1000)
    assert not set(ledgers) & set(numbers(disk, ".ledger"))
    disk.journal.close()
    disk.start()
    assert disk.journal.problems == []
    disk.journal.close()


def test_two_checkpoints_are_kept(disk: Disk) -> None:
    disk.start()
    for i in range(6):
        fill(disk, 1 + i, 1)
        checkpoint(disk, [])
    checkpoint(disk, [])  # at the same position once more
    assert len(disk.names(".checkpoint")) == 2
    disk.journal.close()
    disk.start()
    checkpoint(disk, [])
    fill(disk, 100, 1)
    checkpoint(disk, [])
    assert len(disk.names(".checkpoint")) == 2
    disk.journal.close()


def test_sparse_segments_are_emptied_by_relocation(disk: Disk) -> None:
    disk.start()
    made = fill(disk, 1, 12)
    kept = [made[0], made[4]]
    settle(disk, [p for p in made if p not in kept])
    assert disk.journal.sparse() == []
    checkpoint(disk, kept)
    assert set(disk.journal.sparse()) == {p.position >> 32 for p in kept}
    bytes_before = [disk.journal.fetch(p) for p in kept]
    disk.journal.relocate(kept, TIME)
    assert disk.journal.sparse() == []
    disk.wait()
    checkpoint(disk, kept)
    disk.clean()
    assert numbers(disk, ".segment") == [disk.journal.end >> 32]
    assert [disk.journal.fetch(p) for p in kept] == bytes_before
    disk.journal.close(clean=False)
    found = [r.payload for r in disk.start() if r.kind == LIVE]
    assert [disk.journal.fetch(p) for p in found if p] == bytes_before
    disk.journal.close()


def test_what_was_relocated_is_in_no_file_before_it_is_written(tmp_path: Path) -> None:
    """Readers that are sent bytes from the files have to know."""
    may_write = threading.Event()
    may_write.set()

    def pwritev(fd: int, buffers: Sequence[bytes], offset: int) -> int:
        assert may_write.wait(PATIENCE_S)
        return os.pwritev(fd, buffers, offset)

    disk = Disk(tmp_path, Files(pwritev=pwritev))
    disk.start()
    made = fill(disk, 1, 12)
    kept = made[0]
    settle(disk, made[1:])
    checkpoint(disk, [kept])
    disk.wait()
    reader, before = disk.journal.reader, disk.journal.fetch(kept)
    assert reader.is_written(kept.position)
    may_write.clear()
    disk.journal.relocate([kept], TIME)
    assert not reader.is_written(kept.position)
    assert disk.journal.fetch(kept) == before
    may_write.set()
    disk.wait()
    assert reader.is_written(kept.position)
    fd = reader.file_of(kept.position)
    assert os.pread(fd, kept.size, kept.position & 0xFFFFFFFF) == before
    os.close(fd)
    disk.journal.close()


@local
@pytest.mark.parametrize("reached_disk", [False, True])
def test_a_crash_around_a_relocation_finds_the_bytes(disk: Disk, reached_disk: bool) -> None:
    disk.start(sync="never")
    made = fill(disk, 1, 12)
    kept = made[1]
    settle(disk, [p for p in made if p is not kept])
    checkpoint(disk, [kept])
    expected = disk.journal.fetch(kept)
    old = kept.position
    disk.journal.relocate([kept], TIME)
    disk.clean()  # the old place is empty now, but not yet for good
    if reached_disk:
        fill(disk, 50, 9)
        disk.wait()
        disk.clean()
        assert old >> 32 in numbers(disk, ".ledger")
    durable = disk.journal.durable
    disk.journal.close(clean=False)
    if not reached_disk:
        assert durable <= kept.position
        path = disk.segments()[-1]
        with open(path, "r+b") as file:
            file.truncate(durable & 0xFFFFFFFF)
    found = [r.payload for r in disk.open() if r.kind == LIVE]
    assert found[0] is not None
    assert found[0].position == (kept.position if reached_disk else old)
    assert disk.journal.retain(found[0].position, found[0].size)
    disk.journal.start()
    assert disk.journal.fetch(found[0]) == expected
    disk.journal.close()


def test_nothing_moves_while_a_checkpoint_is_written(disk: Disk) -> None:
    disk.start()
    made = fill(disk, 1, 4)
    end = disk.journal.end
    assert disk.journal.checkpoint(state(made), TIME)
    assert disk.journal.relocate(made, TIME) == end
    assert not disk.journal.checkpoint(state(made), TIME)
    disk.finish_cleaning()
    disk.journal.clean(TIME, 0)
    assert disk.journal.relocate(made, TIME) > end
    disk.journal.close()


def test_a_crash_between_ledger_and_removal_leaves_the_ledger(disk: Disk) -> None:
    disk.start()
    settle(disk, fill(disk, 1, 12))
    disk.wait()
    first = disk.segments()[0]
    copy = first.read_bytes()
    checkpoint(disk, [])
    disk.clean()
    disk.journal.close()
    first.write_bytes(copy)
    (disk.folder / "0000000009-00000000.ledger.tmp").write_bytes(b"half")
    disk.start()
    disk.finish_cleaning()
    assert not first.exists()
    assert disk.names(".tmp") == []
    assert verify(disk.folder).is_sound
    disk.journal.close()


@pytest.mark.parametrize("is_first", [True, False])
def test_a_damaged_segment_is_not_stripped_but_reported(disk: Disk, is_first: bool) -> None:
    disk.start()
    settle(disk, fill(disk, 1, 12))
    checkpoint(disk, [])
    disk.finish_cleaning()
    path = disk.segments()[0]
    victim = int(path.name[:10])
    data = bytearray(path.read_bytes())
    starts = [0]
    while (header := header_at(bytes(data), starts[-1])) is not None and not header.flags & SEALED:
        starts.append(header.at + header.length)
    assert len(starts) > 2, "a seal and two blocks"
    data[starts[0 if is_first else -2] + 100] ^= 1
    path.write_bytes(data)
    disk.clean()
    assert path.exists()
    assert disk.names(".tmp") == []
    assert any("is not stripped" in problem for problem in disk.journal.problems)
    others = set(range(1, disk.journal.checkpoint_position >> 32)) - {victim}
    assert others
    assert set(numbers(disk, ".ledger")) == others
    disk.journal.close()


def test_a_segment_with_a_bad_sector_is_not_stripped_and_the_journal_goes_on(
    tmp_path: Path,
) -> None:
    """Its messages are settled: nobody but the cleaner reads it."""
    files = Files()
    disk = Disk(tmp_path / "j", files)
    disk.start()
    settle(disk, fill(disk, 1, 12))
    checkpoint(disk, [])
    disk.finish_cleaning()
    read, bad = files.pread, disk.segments()[0].stat().st_ino

    def failing(fd: int, size: int, offset: int) -> bytes:
        if os.fstat(fd).st_ino == bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(fd, size, offset)

    files.pread = failing  # type: ignore[method-assign]
    path = disk.segments()[0]
    disk.clean()
    assert any(f"{path.name} is not stripped: offset 0" in one for one in disk.journal.problems)
    assert (path.exists(), disk.names(".tmp"), disk.failures) == (True, [], [])
    settle(disk, fill(disk, 13, 1))
    disk.wait()
    assert disk.failures == []
    disk.journal.close()
