"""What of the journal's files stays in the system's cache: a copy of what memory has, mostly."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tallymark.journal.jobs import LARGE
from tallymark.journal.writer import PAGE
from tests.journal.builders import TIME, Disk, entering

MIB = 1 << 20


def is_cached(path: Path, offset: int) -> bool:
    with path.open("rb") as file:
        try:
            os.preadv(file.fileno(), [bytearray(1)], offset, os.RWF_NOWAIT)
        except BlockingIOError:
            return False
    return True


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Disk]:
    """A journal on a file system whose cache lets go of what it is asked to."""
    probe = tmp_path / "probe"
    probe.write_bytes(bytes(MIB))
    with probe.open("rb+") as file:
        os.fdatasync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, MIB, os.POSIX_FADV_DONTNEED)
        try:
            os.preadv(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT)
            pytest.skip("this file system keeps all in memory")
        except BlockingIOError:
            pass
        except OSError:
            pytest.skip("this file system does not say what is in memory")
    disk = Disk(tmp_path / "data", segment_bytes=64 * MIB)
    yield disk
    disk.journal.close()


def stays(disk: Disk, size: int) -> bool:
    """Whether the middle of a body is cached, once it was written and not yet read."""
    begin = disk.journal.end & 0xFFFFFFFF
    turn = entering(begin + 1, 1, size)
    disk.journal.commit(turn, TIME)
    assert disk.journal.flush()
    body = turn[0].payload
    assert body is not None
    path = disk.journal.reader.path_of(body.position)
    found = is_cached(path, (body.position & 0xFFFFFFFF) + size // 2)
    assert disk.journal.fetch(body) == body.raw
    return found


def test_a_large_block_leaves_the_cache_once_it_is_on_disk(data: Disk) -> None:
    data.start()
    for _ in range(3):
        assert not stays(data, LARGE + 3 * PAGE + 5)


def test_small_blocks_stay(data: Disk) -> None:
    data.start()
    assert stays(data, LARGE // 2)
    assert not stays(data, 2 * LARGE)
    assert stays(data, 100), "the next block of the file"


def test_all_stays_while_it_may_be_read_back(data: Disk) -> None:
    data.start()
    data.journal.keep_cached(True)
    assert stays(data, 2 * LARGE)
    data.journal.keep_cached(False)
    assert not stays(data, 2 * LARGE)


@pytest.mark.parametrize("sync", ["interval", "never"])
def test_what_is_not_synced_block_by_block_stays(data: Disk, sync: str) -> None:
    data.start(sync=sync, interval_ms=60_000)
    assert stays(data, 2 * LARGE)
