"""Files in a data folder that are not the journal's: it leaves them alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tallymark.stored.segment import checkpoint_name, ledger_name, segment_name, spare_name
from tests.journal.builders import Disk

OTHERS = (
    "notes.tmp", "spare-keys", "spare-.segment", "spare-01.segment", "spare-1.segment.bak",
    "spare-x.segment", "spare-x.segment.tmp", ".tmp", "spare-²3.segment",
)  # fmt: skip
LEFT_OVER = (
    spare_name(7), segment_name(3, 0x1A), ledger_name(3, 0x1A), checkpoint_name(0x300000040),
)  # fmt: skip


@pytest.mark.parametrize("clean", [True, False])
def test_files_of_others_stay_and_what_a_crash_left_goes(tmp_path: Path, clean: bool) -> None:
    disk = Disk(tmp_path / "data")
    disk.start()
    disk.journal.close(clean)
    for name in OTHERS:
        (disk.folder / name).write_text("of somebody else")
    unfinished = [disk.folder / f"{name}.tmp" for name in LEFT_OVER]
    for path in unfinished:
        path.write_bytes(b"half")
    disk.start()
    disk.journal.close(clean)
    for name in OTHERS:
        assert (disk.folder / name).read_text() == "of somebody else", name
    assert not any(path.exists() for path in unfinished)
