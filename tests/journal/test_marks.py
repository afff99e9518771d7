"""Marks of a copy: what a start need not compare."""

from __future__ import annotations

from pathlib import Path

import pytest

from tallymark.journal.files import Files
from tallymark.journal.postgresql.marks import (
    FILE,
    Mark,
    forget_marks,
    read_marks,
    write_marks,
)

NAMES = ["0000000001-0000000a.segment", "0000000002-0000000b.segment"]
MARKS = {name: Mark(64, 128, 3, 1 << 62) for name in NAMES}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in NAMES:
        (tmp_path / name).write_bytes(bytes(128))
    return tmp_path


def test_marks_are_those_that_were_written_last(folder: Path) -> None:
    assert read_marks(folder) == {}
    write_marks(folder, Files(), MARKS)
    assert read_marks(folder) == MARKS
    write_marks(folder, Files(), {NAMES[1]: MARKS[NAMES[1]]})
    assert list(read_marks(folder)) == [NAMES[1]]


def test_a_segment_is_synced_before_it_is_marked(folder: Path) -> None:
    done: list[str] = []
    synced = Files(
        fsync=lambda fd: done.append(Path(f"/proc/self/fd/{fd}").readlink().name),
        rename=lambda old, new: (done.append("written"), Path(old).rename(new))[0],
    )
    write_marks(folder, synced, {NAMES[0]: MARKS[NAMES[0]]})
    assert done.index(NAMES[0]) < done.index("written")
    done.clear()
    write_marks(folder, synced, MARKS)
    assert NAMES[1] in done
    assert NAMES[0] not in done, "it was before"
    done.clear()
    write_marks(folder, synced, MARKS)
    assert done == [], "nothing is new"


def test_a_segment_that_is_gone_has_no_mark(folder: Path) -> None:
    (folder / NAMES[0]).unlink()
    write_marks(folder, Files(), MARKS)
    assert list(read_marks(folder)) == [NAMES[1]]


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"a": 1}', '{"a": [1, 2]}', '{"a": [1, 2, 3, "x"]}', "\xff", "null"]
)
def test_marks_that_cannot_be_read_are_none(folder: Path, text: str) -> None:
    (folder / FILE).write_text(text, encoding="latin-1")
    assert read_marks(folder) == {}
    write_marks(folder, Files(), MARKS)
    assert read_marks(folder) == MARKS


def test_marks_are_forgotten(folder: Path) -> None:
    forget_marks(folder, Files())
    write_marks(folder, Files(), MARKS)
    forget_marks(folder, Files())
    assert read_marks(folder) == {}
