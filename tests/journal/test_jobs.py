"""The queue of jobs in C: which jobs it carries out itself, and what it leaves to the writer.

The one in Python leaves all of them; both are beneath every other test of the journal, the one or
the other as the package is compiled or not.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tallymark import is_compiled
from tallymark.journal import jobs
from tallymark.journal.files import Files
from tallymark.journal.jobs import STOP, SYNC, SYNC_TIMES, WRITE, Job, JobQueue
from tallymark.units import Position
from tests.support.patience import PATIENCE_S

SEGMENT = 7


class Disk:
    """A file, and what is done to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd = os.open(path, os.O_CREAT | os.O_RDWR)
        self.signal = os.eventfd(0, os.EFD_NONBLOCK)
        self.error = 0
        self.sync_error = 0
        self.longest_write = 1 << 30
        self.calls: list[str] = []

    def pwritev(self, fd: int, buffers: Sequence[bytes], offset: int) -> int:
        assert fd == self.fd
        self.calls.append("write")
        if self.error:
            raise OSError(self.error, os.strerror(self.error))
        return os.pwrite(fd, b"".join(buffers)[: self.longest_write], offset)

    def fdatasync(self, fd: int) -> None:
        assert fd == self.fd
        self.calls.append("sync")
        if self.sync_error:
            raise OSError(self.sync_error, os.strerror(self.sync_error))

    def queue(
        self, real: bool = False, syncs_each: bool = True, returns_each: bool = False
    ) -> JobQueue:
        """The queue on this disk. real: with the system's own calls."""
        files = Files() if real else Files(pwritev=self.pwritev, fdatasync=self.fdatasync)
        made = jobs.native_jobs(files, syncs_each, self.signal, returns_each)
        if made is None:
            assert not is_compiled()
            pytest.skip("not compiled: there is no queue in C")
        made.begin(self.fd, SEGMENT)
        return made

    def told(self) -> bool:
        """Whether the loop was told since the last look."""
        try:
            return os.eventfd_read(self.signal) > 0
        except BlockingIOError:
            return False


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    made = Disk(tmp_path / "segment")
    yield made
    os.close(made.fd)
    os.close(made.signal)


def block(offset: int, *buffers: bytes, segment: int = SEGMENT) -> Job:
    return Job(WRITE, segment, 0, offset, sum(map(len, buffers)), list(buffers))


def at(offset: int) -> Position:
    return Position(SEGMENT << 32 | offset)


@pytest.mark.parametrize("real", [True, False])
@pytest.mark.parametrize("longest", [1, 3, 1 << 30])
def test_blocks_before_another_job_are_on_disk_when_it_is_given_back(
    disk: Disk, real: bool, longest: int
) -> None:
    disk.longest_write = longest
    queue = disk.queue(real)
    queue.put(block(0, b"one", b"", b"two"))
    queue.put(block(6, b"three"))
    last = Job(SYNC, done=threading.Event())
    behind = block(11, b"four")
    queue.put(last)
    queue.put(behind)
    assert queue.take() == [last, behind]
    assert disk.path.read_bytes() == b"onetwothree"
    assert (queue.offset, queue.written_bytes, queue.syncs) == (11, 11, 1)
    assert queue.written == queue.durable == queue.synced == at(11)
    assert disk.told()
    assert real or disk.calls[-1] == "sync"
    assert disk.calls.count("sync") == (0 if real else 1)


def test_syncs_are_counted_by_the_time_they_took(disk: Disk) -> None:
    queue = disk.queue()
    queue.put(block(0, b"one"))
    queue.put(Job(STOP))
    queue.take()
    queue.count_sync(1 << 62)
    counts, total = queue.sync_times()
    assert (len(counts), sum(counts), counts[-1]) == (SYNC_TIMES, queue.syncs, 1)
    assert total >= 1 << 62


def test_a_block_of_more_buffers_than_one_call_takes(disk: Disk) -> None:
    parts = [b"%04d" % number for number in range(3000)]
    queue = disk.queue(real=True)
    queue.put(block(0, *parts))
    queue.put(Job(STOP))
    assert [job.kind for job in queue.take()] == [STOP]
    assert disk.path.read_bytes() == b"".join(parts)


def test_a_block_of_another_segment_is_given_back_with_all_behind_it(disk: Disk) -> None:
    queue = disk.queue()
    left = [block(0, b"b", segment=SEGMENT + 1), block(1, b"c", segment=SEGMENT + 1)]
    for job in [block(0, b"a"), *left]:
        queue.put(job)
    assert queue.take() == left
    assert disk.path.read_bytes() == b"a"
    queue.begin(disk.fd, SEGMENT + 1)
    queue.put(block(0, b"d", segment=SEGMENT + 1))
    queue.put(Job(STOP))
    queue.take()
    assert queue.written == Position(SEGMENT + 1 << 32 | 1)


def test_without_a_sync_for_each_write_it_is_confirmed_as_written(disk: Disk) -> None:
    queue = disk.queue(syncs_each=False)
    queue.put(block(0, b"a"))
    queue.put(Job(STOP))
    queue.take()
    assert disk.calls == ["write"]
    assert (queue.written, queue.synced, queue.durable) == (at(1), at(1), 0)
    assert disk.told()


def test_blocks_that_must_be_safe_elsewhere_come_back_written(disk: Disk) -> None:
    queue = disk.queue(syncs_each=False, returns_each=True)
    blocks = [block(0, b"one"), block(3, b"two")]
    behind = [Job(STOP), block(6, b"three")]
    for job in [*blocks, *behind]:
        queue.put(job)
    assert queue.take() == blocks
    assert disk.path.read_bytes() == b"onetwo"
    assert (queue.offset, queue.written_bytes, queue.syncs) == (6, 6, 0)
    assert (queue.written, queue.synced, queue.durable) == (at(6), 0, 0)
    assert not disk.told()
    assert queue.take() == behind
    assert disk.calls == ["write"]


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
def test_blocks_for_which_there_is_no_room_are_given_back(disk: Disk, error: int) -> None:
    queue = disk.queue()
    disk.error = error
    all_jobs = [block(0, b"a"), block(1, b"b"), Job(STOP)]
    for job in all_jobs:
        queue.put(job)
    assert queue.take() == all_jobs
    assert (queue.offset, queue.written, queue.synced, queue.written_bytes) == (0, 0, 0, 0)
    assert disk.calls == ["write"]
    assert not disk.told()


@pytest.mark.parametrize("error", [errno.EIO, errno.EROFS])
def test_a_write_that_fails_is_raised(disk: Disk, error: int) -> None:
    queue = disk.queue()
    disk.error = error
    queue.put(block(0, b"a"))
    with pytest.raises(OSError) as raised:
        queue.take()
    assert raised.value.errno == error
    assert (queue.written, queue.synced) == (0, 0)
    assert not disk.told()


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_sync_that_fails_is_raised_whatever_the_reason(disk: Disk, error: int) -> None:
    """A sync is never tried again: pages may read back clean without being on disk."""
    queue = disk.queue()
    disk.sync_error = error
    queue.put(block(0, b"a"))
    with pytest.raises(OSError) as raised:
        queue.take()
    assert raised.value.errno == error
    assert (queue.written, queue.durable, queue.synced) == (at(1), 0, 0)
    assert disk.calls == ["write", "sync"]
    assert not disk.told()


def test_the_systems_own_error_is_raised(disk: Disk) -> None:
    queue = disk.queue(real=True)
    fd = os.open(disk.path, os.O_RDONLY)
    queue.begin(fd, SEGMENT)
    queue.put(block(0, b"a"))
    with pytest.raises(OSError) as raised:
        queue.take()
    os.close(fd)
    assert raised.value.errno == errno.EBADF


def test_once_the_journal_has_failed_nothing_is_carried_out(disk: Disk) -> None:
    queue = disk.queue()
    job = block(0, b"a")
    queue.put(job)
    queue.is_over = True
    assert queue.take() == [job]
    assert disk.calls == []


def test_what_is_no_bytes_is_refused(disk: Disk) -> None:
    queue = disk.queue()
    wrong = block(0, b"a")
    wrong.buffers = [bytearray(b"a")]  # type: ignore[list-item]
    with pytest.raises(TypeError):
        queue.put(wrong)


def test_a_waiting_writer_hears_of_a_job(disk: Disk) -> None:
    queue = disk.queue()
    found: list[list[Job]] = []
    writer = threading.Thread(target=lambda: found.append(queue.take()))
    writer.start()
    for number in range(500):
        queue.put(block(number, b"x"))
    queue.put(Job(STOP))
    writer.join(PATIENCE_S)
    assert [job.kind for job in found[0]] == [STOP]
    assert disk.path.read_bytes() == b"x" * 500
    assert queue.durable == at(500)
