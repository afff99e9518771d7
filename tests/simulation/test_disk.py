"""The simulated disk forgets what was not synced, and nothing else."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from tallymark.simulation.disk import SECTOR, Disk, Faults
from tallymark.simulation.threads import Crashed, Process
from tallymark.simulation.world import World


def disk_on(folder: Path, faults: Faults | None = None) -> Disk:
    folder.mkdir()
    return Disk(folder, Process(World(1)), faults or Faults(), Random(1), 1)


def images(disk: Disk, folder: Path, count: int = 60) -> list[dict[str, bytes]]:
    """What so many power cuts leave."""
    found = []
    for number in range(count):
        target = folder / f"image-{number}"
        target.mkdir()
        disk.image(target, Random(number))
        found.append({path.name: path.read_bytes() for path in target.iterdir()})
    return found


def test_what_was_synced_is_there_after_every_power_cut(tmp_path: Path) -> None:
    disk = disk_on(tmp_path / "disk")
    files = disk.files
    fd = files.open(str(disk.folder / "a"), os.O_CREAT | os.O_RDWR)
    files.write_all(fd, [b"one", b"two"], 0)
    files.fdatasync(fd)
    files.sync_folder(disk.folder)
    assert all(image == {"a": b"onetwo"} for image in images(disk, tmp_path))


def test_a_name_that_was_not_synced_may_be_missing_and_the_old_one_there(tmp_path: Path) -> None:
    disk = disk_on(tmp_path / "disk")
    files = disk.files
    fd = files.open(str(disk.folder / "a"), os.O_CREAT | os.O_RDWR)
    files.fsync(fd)
    files.sync_folder(disk.folder)
    files.rename(str(disk.folder / "a"), str(disk.folder / "b"))
    names = {frozenset(image) for image in images(disk, tmp_path)}
    assert {frozenset({"a"}), frozenset({"b"})} <= names
    files.sync_folder(disk.folder)
    after = tmp_path / "after"
    after.mkdir()
    assert {frozenset(image) for image in images(disk, after)} == {frozenset({"b"})}


def test_writes_that_were_not_synced_are_torn_by_sectors_in_any_order(tmp_path: Path) -> None:
    disk = disk_on(tmp_path / "disk")
    files = disk.files
    fd = files.open(str(disk.folder / "a"), os.O_CREAT | os.O_RDWR)
    files.fallocate(fd, 0, 4 * SECTOR)
    files.fsync(fd)
    files.sync_folder(disk.folder)
    files.write_all(fd, [b"x" * 4 * SECTOR], 0)
    found = {
        tuple(image["a"][n * SECTOR] == ord("x") for n in range(4))
        for image in images(disk, tmp_path)
    }
    assert (False,) * 4 in found
    assert (True,) * 4 in found
    assert any(first < second for kept in found for first, second in pairwise(kept))


def test_what_others_wrote_is_there(tmp_path: Path) -> None:
    disk = disk_on(tmp_path / "disk")
    (disk.folder / "users.json").write_bytes(b"{}")
    assert all(image == {"users.json": b"{}"} for image in images(disk, tmp_path))


def test_what_others_changed_since_the_start_is_there(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    (folder / "users.json").write_bytes(b"{}")
    disk = Disk(folder, Process(World(1)), Faults(), Random(1), 1)
    (folder / "new").write_bytes(b"{1}")
    (folder / "new").rename(folder / "users.json")
    assert all(image == {"users.json": b"{1}"} for image in images(disk, tmp_path))


def test_the_power_goes_in_the_call_that_was_named(tmp_path: Path) -> None:
    disk = disk_on(tmp_path / "disk", Faults(crash_at=(2,)))
    files = disk.files
    fd = files.open(str(disk.folder / "a"), os.O_CREAT | os.O_RDWR)  # the first call
    with pytest.raises(Crashed):
        files.write_all(fd, [b"x"], 0)
    with pytest.raises(Crashed):  # and nothing after it counts
        files.fsync(fd)
    assert all(image in ({}, {"a": b""}) for image in images(disk, tmp_path))


def test_a_disk_that_is_full_says_so(tmp_path: Path) -> None:
    disk = disk_on(tmp_path / "disk", Faults(room_bytes=1000))
    fd = disk.files.open(str(disk.folder / "a"), os.O_CREAT | os.O_RDWR)
    disk.files.fallocate(fd, 0, 900)
    with pytest.raises(OSError, match="No space left"):
        disk.files.fallocate(fd, 900, 200)


def test_a_disk_that_lies_keeps_what_it_had_and_forgets_the_rest(tmp_path: Path) -> None:
    disk = disk_on(tmp_path / "disk")
    files = disk.files
    fd = files.open(str(disk.folder / "a"), os.O_CREAT | os.O_RDWR)
    files.write_all(fd, [b"one"], 0)
    files.fdatasync(fd)
    files.sync_folder(disk.folder)
    disk.is_lying = True
    files.write_all(fd, [b"two"], 3)
    files.fdatasync(fd)
    contents = {image["a"] for image in images(disk, tmp_path)}
    assert contents == {b"one", b"onetwo"}


def test_reads_fail_for_a_while(tmp_path: Path) -> None:
    disk = disk_on(tmp_path / "disk")
    files, world = disk.files, World(1)
    fd = files.open(str(disk.folder / "a"), os.O_CREAT | os.O_RDWR)
    files.write_all(fd, [b"one"], 0)
    disk.unreadable_until_ns = world.now_ns + 1
    failed: list[int | None] = []
    for _ in range(40):
        try:
            assert files.pread(fd, 3, 0) == b"one"
        except OSError as error:
            failed.append(error.errno)
    assert set(failed) == {errno.EIO}
    assert disk.failed_reads == len(failed) < 40
    disk.unreadable_until_ns = 0
    assert files.pread(fd, 3, 0) == b"one"


def test_a_process_without_files_has_those_that_were_set_aside(tmp_path: Path) -> None:
    disk = disk_on(tmp_path / "disk")
    files, world = disk.files, World(1)
    files.set_aside(2)
    held = [files.open(str(disk.folder / "a"), os.O_CREAT | os.O_RDWR)]
    disk.take_files(world.now_ns + 1)
    held += [files.open(str(disk.folder / "a"), os.O_RDWR) for _ in range(2)]
    assert files.is_short
    assert disk.refused_opens == 2
    assert not files.restore()
    for fd in held:
        os.close(fd)
    assert files.restore()
    files.give_back()


class NoTimers:
    """A loop of which only threads are asked for: they run when it waits for them."""

    is_poked = False

    def call_later(self, delay: float, callback: Callable[..., object], *args: object) -> None:
        """Never."""


def test_the_loop_waits_for_a_thread_that_makes_a_file_with_one_that_was_set_aside(
    tmp_path: Path,
) -> None:
    """World 9950522 hung: the thread held a lock of the operating system while the call took its
    time, and the loop, on the same stack of the machine, waited for that lock."""
    disk = disk_on(tmp_path / "disk")
    files, process = disk.files, disk._process
    process.loop = NoTimers()
    files.set_aside(1)
    made: list[int] = []
    thread = process.thread(
        lambda: made.append(files.open(str(disk.folder / "a"), os.O_CREAT | os.O_RDWR)), "maker"
    )
    disk.take_files(process.world.now_ns + 1)
    thread.start()
    process.resume(thread, thread.number)
    assert files.is_short
    assert not made, "the call takes its time"
    disk.no_files_until_ns = 0
    assert files.restore()
    assert made
    assert not files.is_short
    os.close(made[0])
    files.give_back()


def test_a_stall_is_a_second_at_most_and_noted_as_trouble(tmp_path: Path) -> None:
    disk = disk_on(tmp_path / "disk", Faults(write_s=0.001, stall=1.0))
    process = disk._process
    spent: list[float] = []

    def spend(seconds: float) -> None:
        spent.append(seconds)

    process.spend = spend  # type: ignore[method-assign]
    fd = disk.files.open(str(disk.folder / "a"), os.O_CREAT | os.O_RDWR)
    spent.clear()
    for offset in range(100):
        disk.files.write_all(fd, [b"x"], offset)
    stalls, writes = spent[::2], spent[1::2]
    assert 0.3 < sum(stalls) / len(stalls) < 0.7
    assert max(stalls) <= 1.0
    assert max(writes) < 0.1, "the mean of a write is its own"
    world = process.world
    assert world.troubles.end_ns() > world.now_ns
