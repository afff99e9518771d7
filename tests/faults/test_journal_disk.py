"""Disks that are full, that write short, and whose fsync fails."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from tallymark.engine.record import Record
from tallymark.journal.files import Files
from tallymark.journal.journal import BytesLost
from tallymark.journal.spares import RESERVE, WANTED
from tallymark.journal.threads import Threads
from tallymark.journal.verify import verify
from tallymark.stored.records import ENTERED, LIVE, PAYLOAD
from tests.journal.builders import TIME, Disk, all_shown, entering, payload, settling
from tests.support.patience import PATIENCE_S


class FaultyDisk:
    """os-level calls with a switch each. Room is counted in allocated files."""

    def __init__(self) -> None:
        self.write_error = 0
        self.sync_error = 0
        self.room = 1 << 60
        self.longest_write = 1 << 60
        self.writes = 0
        self.syncs = 0
        self.files = Files(
            pwritev=self.pwritev, fdatasync=self.fdatasync, fsync=self.fsync,
            fallocate=self.fallocate, unlink=self.unlink,
        )  # fmt: skip

    def pwritev(self, fd: int, buffers: Sequence[bytes], offset: int) -> int:
        self.writes += 1
        if self.write_error:
            raise OSError(self.write_error, os.strerror(self.write_error))
        data = b"".join(buffers)[: self.longest_write]
        if offset + len(data) > os.fstat(fd).st_size:
            self.take(len(data))
        return os.pwrite(fd, data, offset)

    def fdatasync(self, fd: int) -> None:
        self.syncs += 1
        if self.sync_error:
            raise OSError(self.sync_error, os.strerror(self.sync_error))
        os.fdatasync(fd)

    def fsync(self, fd: int) -> None:
        os.fsync(fd)

    def fallocate(self, fd: int, offset: int, size: int) -> None:
        self.take(size)
        os.posix_fallocate(fd, offset, size)

    def take(self, size: int) -> None:
        if size > self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.room -= size

    def unlink(self, path: str) -> None:
        self.room += os.stat(path).st_size
        os.unlink(path)


@pytest.fixture
def faults() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
def disk(tmp_path: Path, faults: FaultyDisk) -> Disk:
    return Disk(tmp_path, faults.files)


def firsts(records: list[Record]) -> list[int]:
    return [r.first for r in records if r.kind == ENTERED]


@pytest.mark.parametrize("longest", [1, 7, 64, 1000])
def test_short_writes_are_continued(disk: Disk, faults: FaultyDisk, longest: int) -> None:
    faults.longest_write = longest
    disk.start()
    turns = [entering(1 + 3 * i, 3, 200) for i in range(12)]
    for turn in turns:
        disk.journal.commit(turn, TIME)
    disk.wait()
    disk.journal.close()
    assert verify(disk.folder).is_sound
    assert all_shown(disk.start()) == all_shown(r for turn in turns for r in turn)
    disk.journal.close()


@pytest.mark.parametrize("mode", ["commit", "interval", "never"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EROFS])
def test_after_a_failed_write_nothing_is_reported_again(
    disk: Disk, faults: FaultyDisk, error: int, mode: str
) -> None:
    disk.start(sync=mode, interval_ms=1)
    disk.journal.commit(entering(1), TIME)
    disk.wait()
    reached = disk.journal.synced
    faults.write_error = error
    disk.journal.commit(entering(2), TIME)
    assert disk.wait_failure().errno == error
    faults.write_error = 0
    for number in range(3, 40):  # rolls, too
        disk.journal.commit(entering(number, 1, 500), TIME)
        disk.journal.clean(TIME, 0)
    assert not disk.journal.checkpoint([], TIME)
    assert disk.journal.failed
    unwritten = entering(90)
    disk.journal.commit(unwritten, TIME)
    assert unwritten[0].payload is not None
    with pytest.raises(BytesLost):
        disk.journal.fetch(unwritten[0].payload)
    disk.journal.close()
    assert disk.journal.synced == reached
    assert len(disk.failures) == 1
    assert firsts(disk.start()) == [1]
    disk.journal.close()


def test_after_a_failed_fsync_nothing_is_reported_again_though_it_would_succeed(
    disk: Disk, faults: FaultyDisk
) -> None:
    disk.start()
    disk.journal.commit(entering(1), TIME)
    disk.wait()
    reached = disk.journal.synced
    faults.sync_error = errno.EIO
    disk.journal.commit(entering(2), TIME)
    disk.wait_failure()
    faults.sync_error = 0
    syncs = faults.syncs
    disk.journal.commit(entering(3), TIME)
    disk.journal.close()
    assert disk.journal.synced == disk.journal.durable == reached
    assert faults.syncs == syncs
    assert len(disk.failures) == 1


def test_a_flush_fails_with_a_sync_that_fails_while_it_waits(tmp_path: Path) -> None:
    """World 8806242: compiled, it raised TypeError, as its thread changed what it had just read."""
    waits = threading.Event()

    class Done(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.set()
            return disk.failed.wait(PATIENCE_S)

    def fdatasync(fd: int) -> None:
        assert waits.wait(PATIENCE_S)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    disk = Disk(tmp_path, Files(fdatasync=fdatasync), threads=Threads(event=Done))
    disk.start()
    disk.journal.commit(entering(1), TIME)
    assert not disk.journal.flush()
    assert [error.errno for error in disk.failures] == [errno.EIO]
    disk.journal.close(clean=False)


def test_what_a_failed_fsync_left_is_written_anew_at_the_next_start(
    disk: Disk, faults: FaultyDisk
) -> None:
    """Pages may read back clean without being on disk: the tail goes into a new file."""
    disk.start()
    faults.sync_error = errno.EIO
    disk.journal.commit(entering(1), TIME)
    disk.wait_failure()
    disk.journal.close()
    path = disk.segments()[0]
    inode = path.stat().st_ino
    faults.sync_error = 0
    assert firsts(disk.start()) == [1]
    assert path.stat().st_ino != inode
    assert verify(disk.folder).segments[0].verdict == "sealed"
    disk.journal.close()


def test_a_checkpoint_whose_write_fails_ends_the_journal(disk: Disk, faults: FaultyDisk) -> None:
    disk.start()
    disk.journal.commit(entering(1), TIME)
    disk.wait()
    faults.write_error = errno.EIO
    assert disk.journal.checkpoint([], TIME)
    disk.wait_failure()
    disk.finish_cleaning()
    disk.journal.close()
    assert disk.names(".checkpoint") == disk.names(".tmp") == []


def fill_up(disk: Disk, faults: FaultyDisk) -> list[Record]:
    """Publish until the journal says that only its reserve is left."""
    faults.room = 10 * 4096
    disk.start()
    entered: list[Record] = []
    while disk.journal.accepts_payloads:
        turn = entering(1 + len(entered), 1, 600)
        disk.journal.commit(turn, TIME)
        entered.append(turn[0])
        disk.wait()
        disk.finish_cleaning()
        disk.journal.clean(TIME, 1 << 40)
        assert len(entered) < 100
    return entered


def test_a_full_disk_blocks_publishers_and_goes_on_settling(disk: Disk, faults: FaultyDisk) -> None:
    entered = fill_up(disk, faults)
    for number in range(1, 41):
        disk.journal.commit(settling(number), TIME)
    disk.wait()
    assert not disk.journal.accepts_payloads
    assert disk.failures == []
    assert len(entered) >= 20
    disk.journal.close()
    assert firsts(disk.start()) == [r.first for r in entered]
    assert not disk.journal.accepts_payloads
    disk.journal.close()


def test_a_full_disk_is_drained_by_settling_a_checkpoint_and_cleaning(
    disk: Disk, faults: FaultyDisk
) -> None:
    entered = fill_up(disk, faults)
    faults.room = 0
    for record in entered:
        p = record.payload
        assert p is not None
        disk.journal.release(p.position, p.size)
    disk.journal.commit(settling(1, len(entered)), TIME)
    # a checkpoint that needs room of its own: it takes one of the reserve
    big = [Record(LIVE, 5, i, 1, TIME) for i in range(30)]
    assert disk.journal.checkpoint(big, TIME)
    disk.clean()
    assert disk.failures == []
    assert len(disk.names(".checkpoint")) == 1
    assert disk.journal.accepts_payloads
    assert len([n for n in disk.names(".segment") if n.startswith("spare")]) == WANTED
    disk.journal.commit(entering(900), TIME)
    disk.wait()
    disk.journal.close()


def test_a_checkpoint_that_finds_no_room_is_given_up_and_reported(
    disk: Disk, faults: FaultyDisk
) -> None:
    fill_up(disk, faults)
    faults.room = 0
    huge = [Record(LIVE, 5, i, 1, TIME) for i in range(3000)]
    assert disk.journal.checkpoint(huge, TIME)
    disk.finish_cleaning()
    disk.journal.clean(TIME, 0)
    disk.finish_cleaning()
    assert any("No space left" in problem for problem in disk.journal.problems)
    assert disk.failures == []
    assert disk.names(".checkpoint") == disk.names(".tmp") == []
    disk.journal.commit(settling(1), TIME)
    disk.wait()
    disk.journal.close()


def test_when_even_the_reserve_is_used_up_the_failure_is_reported(
    disk: Disk, faults: FaultyDisk
) -> None:
    fill_up(disk, faults)
    faults.room = 0
    number = 1
    while not disk.failures:
        disk.journal.commit(settling(number), TIME)
        number += 1
        assert number < 1000
        if disk.journal.pending_bytes > 3 * 4096 and not disk.failures:
            disk.hear()
    assert disk.failures[0].errno == errno.ENOSPC
    assert number > RESERVE * 4096 / 128 - 10
    disk.journal.close()


def test_a_restart_on_a_full_disk_uses_the_reserve(disk: Disk, faults: FaultyDisk) -> None:
    entered = fill_up(disk, faults)
    disk.journal.close()
    faults.room = 200  # a seal, no more
    assert firsts(disk.start()) == [r.first for r in entered]
    disk.journal.commit(settling(1), TIME)
    disk.wait()
    disk.finish_cleaning()
    assert not disk.journal.accepts_payloads
    disk.journal.close()


def test_room_that_comes_back_is_noticed(disk: Disk, faults: FaultyDisk) -> None:
    fill_up(disk, faults)
    faults.room = 1 << 30
    disk.clean(rounds=2)
    assert disk.journal.accepts_payloads
    disk.journal.close()


def test_a_folder_that_cannot_be_allocated_at_all_refuses_to_start(
    disk: Disk, faults: FaultyDisk
) -> None:
    faults.room = 100
    disk.open()
    with pytest.raises(OSError, match="No space left"):
        disk.journal.start()
    disk.journal.close()
    assert disk.names(".segment") == disk.names(".tmp") == []


def test_an_oversized_turn_on_a_full_disk_is_a_failure_not_a_lie(
    disk: Disk, faults: FaultyDisk
) -> None:
    disk.start()
    disk.finish_cleaning()
    faults.room = 0
    big = payload([b"x" * 100_000])
    end = disk.journal.commit([Record(PAYLOAD, 0, 1, 1, TIME, big)], TIME)
    assert disk.wait_failure().errno == errno.ENOSPC
    assert disk.journal.synced < end
    disk.journal.close()


def test_the_free_room_is_that_of_the_file_system(disk: Disk) -> None:
    disk.start()
    facts = os.statvfs(disk.folder)
    assert 0 < disk.journal.free_bytes() <= facts.f_blocks * facts.f_frsize
    disk.journal.close()
