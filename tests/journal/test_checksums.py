"""Bytes that are not those that were written: found when they are read, and nothing else lost."""

from __future__ import annotations

import errno
import os
import random
from array import array
from pathlib import Path

import pytest

from tallymark import is_compiled
from tallymark.engine.message import PACKED, Pack, Payload
from tallymark.engine.record import Record
from tallymark.journal.files import Files
from tallymark.journal.journal import BytesLost
from tallymark.journal.verify import verify
from tallymark.stored.layout import FORMAT, WHOLE, crc32c
from tallymark.stored.records import ENTERED, PAYLOAD
from tests.journal.builders import ROUTE, TIME, Disk, entering, payload, settling

CELLS = [b"the first message", b"the second one", b"a third"]


def test_short_checksums_in_c_are_those_of_the_library() -> None:
    """Where the package is compiled, for a processor that has an instruction for them."""
    if not is_compiled():
        pytest.skip("not compiled: there is no checksum in C")
    from tallymark.journal import native

    if not hasattr(native, "crc32c"):
        pytest.skip("this processor has no instruction for CRC-32C that native.c knows")
    chance = random.Random(7)
    for size in [*range(70), 255, 1000, 1024, 5000]:
        data = chance.randbytes(size)
        assert native.crc32c(data) == crc32c(data), size
    with pytest.raises(TypeError, match="data is of bytearray, expected bytes"):
        native.crc32c(bytearray(8))  # type: ignore[arg-type]


def file_of(disk: Disk, position: int) -> Path:
    return next(disk.folder.glob(f"{position >> 32:010d}-*.segment"))


def flip(disk: Disk, position: int, mask: int = 0x10) -> None:
    """One bit of the byte at a position is another one from now on."""
    with file_of(disk, position).open("r+b") as file:
        file.seek(position & 0xFFFFFFFF)
        byte = file.read(1)[0]
        file.seek(position & 0xFFFFFFFF)
        file.write(bytes([byte ^ mask]))


def stored(disk: Disk, *payloads: Payload) -> None:
    """Write payloads as blocks of their own, and forget their bytes."""
    for number, one in enumerate(payloads):
        records = [
            Record(PAYLOAD, 0, one.first_id, one.count, TIME, one),
            Record(ENTERED, 5, number + 1, one.count, TIME, one),
        ]
        disk.journal.commit(records, TIME)
    disk.journal.flush()
    disk.journal.clean(TIME, 1 << 40)
    for one in payloads:
        one.raw = None


@pytest.mark.parametrize("version", [WHOLE, FORMAT])
def test_what_a_segment_got_since_its_last_read_is_read(tmp_path: Path, version: int) -> None:
    """World 8500872 of the pairs: where blocks have one checksum over everything, a leader with
    little memory could not read what it had written since, and kept it from everybody."""
    disk = Disk(tmp_path, segment_bytes=1 << 16, version=version)
    disk.start()
    for number in range(1, 5):
        one = payload([b"body %d" % number], 10 * number)
        records = [
            Record(PAYLOAD, 0, one.first_id, one.count, TIME, one),
            Record(ENTERED, 5, number, one.count, TIME, one),
        ]
        disk.journal.commit(records, TIME)
        disk.wait()
        one.raw = None
        assert disk.journal.fetch(one) == b"body %d" % number
        assert one.position >> 32 == 1, "all are in the segment that grows"
    disk.journal.close()


@pytest.mark.parametrize("version", [WHOLE, FORMAT])
def test_every_flipped_byte_of_a_body_is_found_when_it_is_read(
    tmp_path: Path, version: int
) -> None:
    disk = Disk(tmp_path, segment_bytes=1 << 16, version=version)
    disk.start()
    one, other = payload(CELLS), payload([b"untouched"], 4)
    stored(disk, one, other)
    whole = b"".join(CELLS)
    assert disk.journal.fetch(one) == whole
    for at in range(len(whole)):
        flip(disk, one.position + at)
        assert disk.journal.fetch(other) == b"untouched"
        with pytest.raises(BytesLost, match="segment 1"):
            disk.journal.fetch(one)
        flip(disk, one.position + at)
    assert disk.journal.fetch(one) == whole
    disk.journal.close()


def packed(singles: list[Payload]) -> Payload:
    cuts = array("I", [0])
    for one in singles:
        cuts.append(cuts[-1] + one.size)
    whole = Payload(1, None, cuts, ROUTE, None, singles[0].first_id, TIME, True, 131)
    whole.pack = Pack(
        array("Q", [one.position for one in singles]),
        array("Q", [one.first_id for one in singles]), array("Q", [TIME] * len(singles)), [],
    )  # fmt: skip
    whole.pack.sums = array("I", [one.sum for one in singles])
    whole.position = PACKED
    return whole


def test_messages_of_a_packed_backlog_keep_their_checksums(tmp_path: Path) -> None:
    disk = Disk(tmp_path, segment_bytes=1 << 16)
    disk.start()
    singles = [payload([cell], number) for number, cell in enumerate(CELLS, 1)]
    records = [Record(PAYLOAD, 0, one.first_id, 1, TIME, one) for one in singles]
    disk.journal.commit(records, TIME)
    disk.journal.flush()
    disk.journal.clean(TIME, 1 << 40)
    whole = packed(singles)
    assert disk.journal.fetch(whole.stretch(0, 3)) == b"".join(CELLS)
    flip(disk, singles[1].position)
    assert disk.journal.fetch(whole.single(0)) == CELLS[0]
    for part in (whole.single(1), whole.stretch(0, 3), whole.stretch(1, 3)):
        with pytest.raises(BytesLost):
            disk.journal.fetch(part)
    assert disk.journal.fetch(whole.window(2, 3).single(0)) == CELLS[2]
    disk.journal.close()


def test_a_start_keeps_everything_but_the_damaged_body(tmp_path: Path) -> None:
    disk = Disk(tmp_path, segment_bytes=1 << 16)
    disk.start()
    turns = [entering(1, 2), settling(1), entering(3), settling(3), entering(4)]
    for turn in turns:
        disk.journal.commit(turn, TIME)
        disk.wait()
    victim = turns[2][0].payload
    assert victim is not None
    flip(disk, victim.position + 3)
    disk.journal.close(clean=False)
    problems = verify(tmp_path).problems
    assert len(problems) == 1
    assert "sequence 3 of queue 5" in problems[0]
    found = disk.start()
    assert [r.first for r in found if r.kind == ENTERED] == [1, 3, 4]
    assert disk.journal.damaged == {victim.position}
    for record in found:
        if record.kind == ENTERED and record.payload is not None:
            if record.first == 3:
                with pytest.raises(BytesLost):
                    disk.journal.fetch(record.payload)
            else:
                assert disk.journal.fetch(record.payload)
    disk.journal.close()


def test_what_a_crash_tore_is_cut_also_where_only_its_bodies_are_torn(tmp_path: Path) -> None:
    disk = Disk(tmp_path, segment_bytes=1 << 16)
    disk.start()
    for turn in (entering(1), entering(2)):
        disk.journal.commit(turn, TIME)
    disk.journal.flush()
    last = turn[0].payload
    assert last is not None
    flip(disk, last.position)
    disk.journal.close(clean=False)
    assert verify(tmp_path).is_sound
    assert [r.first for r in disk.start() if r.kind == ENTERED] == [1]
    assert not disk.journal.damaged
    disk.journal.close()


def test_a_sector_that_cannot_be_read_costs_the_messages_in_it(tmp_path: Path) -> None:
    bad: set[int] = set()

    def pread(fd: int, size: int, offset: int) -> bytes:
        if any(offset <= at < offset + size for at in bad):
            raise OSError(errno.EIO, "Input/output error")
        return os.pread(fd, size, offset)

    disk = Disk(tmp_path, Files(pread=pread), segment_bytes=1 << 16)
    disk.start()
    one, other = payload(CELLS), payload([b"untouched"], 4)
    stored(disk, one, other)
    bad.add(one.position & 0xFFFFFFFF)
    with pytest.raises(OSError, match="Input/output"):
        disk.journal.fetch(one)
    assert disk.journal.reader.unreadable == {one.position}
    assert disk.journal.fetch(other) == b"untouched"
    # What cannot be read is not moved, and the cleaner goes on with the rest.
    before = one.position
    disk.journal.relocate([one, other], TIME)
    assert (one.position, other.position >> 32) == (before, 1)
    bad.clear()
    assert disk.journal.fetch(one) == b"".join(CELLS)
    assert not disk.journal.reader.unreadable
    disk.journal.close()


def test_the_cleaner_reads_no_bodies(tmp_path: Path) -> None:
    read = 0

    def pread(fd: int, size: int, offset: int) -> bytes:
        nonlocal read
        data = os.pread(fd, size, offset)
        read += len(data)
        return data

    disk = Disk(tmp_path, Files(pread=pread), segment_bytes=1 << 22)
    disk.start()
    size = 1 << 20
    made = []
    for number in range(1, 9):
        turn = entering(number, 1, size)
        disk.journal.commit(turn, TIME)
        made.append(turn[0].payload)
    for one in made:
        assert one is not None
        disk.journal.release(one.position, one.size)
    disk.journal.commit(settling(1, 8), TIME)
    disk.journal.checkpoint([], TIME)
    read = 0
    for _ in range(8):
        disk.finish_cleaning()
        disk.journal.clean(TIME, 1 << 40)
    assert len(disk.names(".ledger")) == 2
    assert 0 < read < size // 4, "eight bodies of a MiB are in the segments"
    disk.journal.close()
    assert verify(tmp_path).is_sound
