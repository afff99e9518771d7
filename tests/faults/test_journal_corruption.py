"""Whole folders, damaged: cut at every byte, with flipped bits, with blocks gone.

A crash may cost what was never synced. Damage to what was synced must stop the start, name the
loss, and with `accept_loss` cost no more than what is named.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tallymark.engine.record import Record
from tallymark.journal.reading import SECTOR
from tallymark.journal.recovery import JournalCorrupt
from tallymark.journal.verify import verify
from tallymark.stored.records import ENTERED
from tests.journal.builders import TIME, Disk, all_shown, entering, settling


def firsts(records: list[Record]) -> list[int]:
    return [r.first for r in records if r.kind == ENTERED]


def written(folder: Path, turns: list[list[Record]], clean: bool = False) -> list[int]:
    """A folder with these turns, each synced before the next; the ends of their blocks."""
    disk = Disk(folder, segment_bytes=1 << 16)
    disk.start()
    ends = []
    for turn in turns:
        ends.append(disk.journal.commit(turn, TIME))
        disk.wait()
    disk.journal.close(clean=clean)
    return ends


@pytest.fixture(scope="module")
def torn(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    folder = tmp_path_factory.mktemp("torn")
    return folder, written(folder, [entering(1, 2), settling(1), entering(3, 1), settling(2)])


def test_a_tail_cut_at_any_byte_leaves_a_prefix_that_can_be_written_on(
    torn: tuple[Path, list[int]], tmp_path: Path
) -> None:
    source, ends = torn
    disk = Disk(source)
    expected = [all_shown(turn) for turn in (entering(1, 2), settling(1), entering(3), settling(2))]
    data = disk.segments()[0].read_bytes()
    # the last header knows that all before block 3 was on disk: a cut before that is corruption
    # (every single byte: test_segment.py, without the folders)
    first = ends[2] & 0xFFFFFFFF
    for cut in sorted({*range(first, len(data), 11), first + 1, len(data) - 1, len(data)}):
        folder = tmp_path / f"cut{cut}"
        shutil.copytree(source, folder)
        path = next(folder.glob("0*.segment"))
        path.write_bytes(data[:cut])
        again = Disk(folder, segment_bytes=1 << 16)
        found = all_shown(again.start())
        whole = 4 if cut == len(data) else 3
        assert found == [row for turn in expected[:whole] for row in turn]
        again.journal.commit(entering(50), TIME)
        again.wait()
        again.journal.close()
        report = verify(folder)
        assert report.is_sound
        assert all(s.verdict == "sealed" for s in report.segments)
        assert firsts(again.start())[-1] == 50
        again.journal.close()
        shutil.rmtree(folder)


def damaged(folder: Path, at: int, number: int = 0) -> None:
    path = sorted(folder.glob("0*.segment"))[number]
    data = bytearray(path.read_bytes())
    data[at] ^= 0x04
    path.write_bytes(data)


@pytest.mark.parametrize("code", [errno.EPERM, errno.EXDEV])
def test_a_loss_is_accepted_where_the_file_system_has_no_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Or quarantine/ is a link to a folder on another one."""

    def refuse(source: Path, target: Path) -> None:
        raise OSError(code, os.strerror(code), str(source))

    written(tmp_path, [entering(number) for number in range(1, 4)])
    damaged(tmp_path, 80)
    disk = Disk(tmp_path, segment_bytes=1 << 16)
    (segment,) = disk.segments()
    before = segment.read_bytes()
    monkeypatch.setattr(os, "link", refuse)
    assert firsts(disk.start(accept_loss=True)) == [2, 3]
    disk.journal.close()
    kept = tmp_path / "quarantine" / segment.name
    assert kept.read_bytes() == before
    assert kept.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("victim", range(9))
def test_a_damaged_block_stops_the_start_and_accepting_costs_that_block_only(
    tmp_path: Path, victim: int
) -> None:
    ends = written(tmp_path, [entering(number) for number in range(1, 11)])
    starts = [1 << 32, *ends]
    damaged(tmp_path, (starts[victim] & 0xFFFFFFFF) + 80)
    disk = Disk(tmp_path, segment_bytes=1 << 16)
    with pytest.raises(JournalCorrupt, match="--accept-loss") as refused:
        disk.open()
    offset, after = starts[victim] & 0xFFFFFFFF, starts[victim + 1] & 0xFFFFFFFF
    assert f"bytes {offset} to {after} are lost" in refused.value.problems[0]
    survivors = [number for number in range(1, 11) if number != victim + 1]
    found = disk.start(accept_loss=True)
    assert firsts(found) == survivors
    assert len(list((tmp_path / "quarantine").iterdir())) == 1
    # the bytes of later blocks are still where their positions say
    for record in found:
        if record.kind == ENTERED:
            assert record.payload is not None
            expected = entering(record.first)[0].payload
            assert expected is not None
            assert disk.journal.fetch(record.payload) == expected.raw
    disk.journal.close()
    assert verify(tmp_path).is_sound
    assert firsts(disk.start()) == survivors  # accepted once, not again
    disk.journal.close()


def test_two_damaged_places_are_both_got_around(tmp_path: Path) -> None:
    ends = written(tmp_path, [entering(number) for number in range(1, 11)], clean=True)
    for start in (0, ends[3], ends[4]):
        damaged(tmp_path, (start & 0xFFFFFFFF) + 90)
    disk = Disk(tmp_path, segment_bytes=1 << 16)
    assert firsts(disk.start(accept_loss=True)) == [2, 3, 4, 7, 8, 9, 10]
    assert len(disk.journal.problems) == 2
    disk.journal.close()
    assert firsts(disk.start()) == [2, 3, 4, 7, 8, 9, 10]
    disk.journal.close()


def test_a_damaged_seal_of_an_old_segment_is_corruption(tmp_path: Path) -> None:
    written(tmp_path, [entering(1)], clean=True)
    written(tmp_path, [entering(2)], clean=True)
    path = sorted(tmp_path.glob("0*.segment"))[0]
    damaged(tmp_path, path.stat().st_size - 10)
    disk = Disk(tmp_path)
    with pytest.raises(JournalCorrupt):
        disk.open()
    assert firsts(disk.start(accept_loss=True)) == [1, 2]
    disk.journal.close()
    assert verify(tmp_path).is_sound


def test_an_old_segment_that_lost_its_end_is_corruption(tmp_path: Path) -> None:
    ends = written(tmp_path, [entering(1), entering(2)], clean=True)
    written(tmp_path, [entering(3)], clean=True)
    path = sorted(tmp_path.glob("0*.segment"))[0]
    path.write_bytes(path.read_bytes()[: ends[0] & 0xFFFFFFFF])
    disk = Disk(tmp_path)
    with pytest.raises(JournalCorrupt, match="are lost"):
        disk.open()
    assert firsts(disk.start(accept_loss=True)) == [1, 3]
    disk.journal.close()


def test_a_checkpoint_proves_that_what_it_rests_on_was_on_disk(tmp_path: Path) -> None:
    disk = Disk(tmp_path, segment_bytes=1 << 16)
    disk.start()
    disk.journal.commit(entering(1), TIME)
    end = disk.journal.commit(entering(2), TIME)
    assert disk.journal.checkpoint([], TIME)
    disk.finish_cleaning()
    disk.journal.close(clean=False)
    path = disk.segments()[0]
    path.write_bytes(path.read_bytes()[: (end & 0xFFFFFFFF) - 8])
    with pytest.raises(JournalCorrupt):
        disk.open()


def test_a_segment_of_nothing_but_zeros_is_a_start_that_wrote_nothing(tmp_path: Path) -> None:
    written(tmp_path, [entering(1)], clean=True)
    (tmp_path / "0000000002-00000001.segment").write_bytes(bytes(4096))
    disk = Disk(tmp_path)
    assert firsts(disk.start()) == [1]
    assert disk.journal.end >> 32 == 3
    disk.journal.close()


def test_files_that_are_none_of_ours_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "1.segment").write_text("not a name of ours")
    written(tmp_path, [entering(1)])
    disk = Disk(tmp_path)
    assert firsts(disk.start()) == [1]
    disk.journal.close()
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert (tmp_path / "1.segment").exists()


def test_a_crash_during_the_repair_is_repaired_again(tmp_path: Path) -> None:
    ends = written(tmp_path, [entering(1), entering(2), entering(3)])
    path = next(tmp_path.glob("0*.segment"))
    path.write_bytes(path.read_bytes()[: (ends[1] & 0xFFFFFFFF) + 20])
    (tmp_path / (path.name + ".tmp")).write_bytes(b"half a repair")
    disk = Disk(tmp_path)
    assert firsts(disk.start()) == [1, 2]
    disk.finish_cleaning()
    assert disk.names(".tmp") == []
    disk.journal.close()


class BadSector:
    """A sector of a file that cannot be read, whichever call tries to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, path: Path, at: int) -> None:
        self._path = path
        self._at = at
        self._open, self._pread = open, os.pread
        monkeypatch.setattr("builtins.open", self.open)
        monkeypatch.setattr("io.open", self.open)
        monkeypatch.setattr(os, "pread", self.pread)

    def open(self, path: Path, mode: str = "r", *more: Any, **named: Any) -> Any:
        file = self._open(path, mode, *more, **named)
        if path != self._path:
            return file
        return _Raising(file, self._at)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        if os.readlink(f"/proc/self/fd/{fd}") == str(self._path):
            _check(self._at, offset, size)
        return self._pread(fd, size, offset)


class _Raising:
    """A file that is open, and reads that sector from nowhere."""

    def __init__(self, file: Any, at: int) -> None:
        self._file = file
        self._at = at

    def __enter__(self) -> _Raising:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._file.seek(offset, whence))

    def read(self, size: int = -1) -> bytes:
        at = self._file.tell()
        data: bytes = self._file.read(size)
        _check(self._at, at, len(data))
        return data


def _check(bad: int, at: int, size: int) -> None:
    if at < bad + SECTOR and bad < at + size:
        raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("number", [0, 1], ids=["sealed", "newest"])
@pytest.mark.parametrize("is_last", [False, True], ids=["first sector", "last sector"])
def test_a_sector_that_cannot_be_read_costs_the_blocks_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, is_last: bool
) -> None:
    disk = Disk(tmp_path, segment_bytes=1 << 15)
    disk.start()
    for first in range(1, 101):
        disk.journal.commit(entering(first, 1, 300), TIME)
        disk.wait()
    disk.journal.write_anchor([], [], TIME)
    disk.journal.close()
    segment = disk.segments()[number]
    size = segment.stat().st_size
    with monkeypatch.context() as patched:
        BadSector(patched, segment, (size - 1) // SECTOR * SECTOR if is_last else 0)
        assert verify(tmp_path).problems
        with pytest.raises(JournalCorrupt, match=f"{segment.name}: bytes .* are lost"):
            disk.open()
        found = firsts(disk.start(accept_loss=True))
        disk.journal.close()
    assert 88 <= len(found) < 100
    assert firsts(disk.start()) == found
    disk.journal.close()


def test_a_sector_that_cannot_be_read_costs_the_record_of_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(tmp_path)
    disk.start()
    disk.journal.commit(entering(1), TIME)
    disk.wait()
    disk.journal.write_anchor([], [], TIME)
    disk.journal.close()
    with monkeypatch.context() as patched:
        BadSector(patched, tmp_path / "tail.json", 0)
        assert "tail.json is damaged" in verify(tmp_path).problems[0]
        assert firsts(disk.start()) == [1]
    assert "tail.json is damaged" in disk.journal.problems[0]
    disk.journal.close()
