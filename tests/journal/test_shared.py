"""What a backup of a copy shares with it stays as it is, whatever the tables say later."""

from __future__ import annotations

from pathlib import Path

import pytest

from tallymark.journal.backup import back_up
from tallymark.stored.layout import header_at
from tests.journal.builders import Disk
from tests.journal.test_cleaning import fill

pytest.importorskip("psycopg", reason="needs the extra tallymark[postgresql]")

from tallymark.journal.postgresql.compare import TableSegment, cut
from tallymark.journal.postgresql.leadership import Leadership
from tallymark.journal.postgresql.marks import Mark
from tallymark.journal.postgresql.mirror import Mirror
from tallymark.journal.postgresql.schema import row_checksum


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    """A segment that a backup shares."""
    disk = Disk(tmp_path / "data")
    disk.start()
    fill(disk, 1, 10)
    disk.wait()
    back_up(disk.folder, tmp_path / "backup")
    disk.journal.close()
    found = disk.segments()[0]
    assert found.stat().st_nlink == 2
    return found


def first_block(segment: bytes) -> bytes:
    header = header_at(segment, 0)
    assert header is not None
    return segment[: header.length]


def test_a_segment_that_is_cut(sealed: Path, tmp_path: Path) -> None:
    """After a failover that lost blocks the backup is what still has them."""
    before = sealed.read_bytes()
    block = first_block(before)
    row = Mark(0, len(block), 1, row_checksum(block))
    assert cut(sealed, TableSegment(1, sealed.name, None, [row])) == row
    assert sealed.read_bytes() == block
    assert (tmp_path / "backup" / sealed.name).read_bytes() == before


def test_a_segment_that_is_fetched_anew(sealed: Path, tmp_path: Path) -> None:
    before = sealed.read_bytes()
    block = first_block(before)
    mirror = Mirror(sealed.parent, Leadership("", 1, "a", 1000), 1)
    mirror._append(1 << 32, block)
    assert sealed.read_bytes() == block
    assert (tmp_path / "backup" / sealed.name).read_bytes() == before
