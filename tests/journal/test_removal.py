"""Removed files: their space goes back a part at a time, unless somebody else still has them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tallymark.journal.files import PART, Files

CONTENT = b"x" * 1000
SIZE = 3 * PART + len(CONTENT)


class Calls:
    """The calls of one removal, in their order."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "f"
        with self.path.open("wb") as file:
            file.write(CONTENT)
            file.truncate(SIZE)
        self.made: list[str | int] = []
        self.files = Files(
            unlink=self.unlink, fsync=self.fsync, ftruncate=self.ftruncate, sleep=self.sleep
        )

    def unlink(self, path: str) -> None:
        self.made.append("unlink")
        os.unlink(path)

    def fsync(self, fd: int) -> None:
        self.made.append("fsync")

    def ftruncate(self, fd: int, size: int) -> None:
        self.made.append(size)
        os.ftruncate(fd, size)

    def sleep(self, seconds: float) -> None:
        assert 0 < seconds <= 0.01
        self.made.append("sleep")

    def remove(self) -> list[str | int]:
        open_before = len(os.listdir("/proc/self/fd"))
        self.files.remove(self.path.parent, self.path.name)
        assert not self.path.exists()
        assert len(os.listdir("/proc/self/fd")) == open_before
        return self.made


def test_space_goes_back_in_parts_once_the_removal_is_on_disk(tmp_path: Path) -> None:
    rest = SIZE - PART
    assert Calls(tmp_path).remove() == [
        "unlink", "fsync",
        rest, "sleep", rest - PART, "sleep", rest - 2 * PART, "sleep",
    ]  # fmt: skip


def test_a_file_with_another_name_stays_as_it_is(tmp_path: Path) -> None:
    """A backup links what the journal never changes."""
    calls = Calls(tmp_path)
    os.link(calls.path, tmp_path / "backup")
    assert calls.remove() == ["unlink", "fsync"]
    assert (tmp_path / "backup").stat().st_size == SIZE


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR])
def test_a_file_that_is_open_elsewhere_stays_as_it_is_for_them(tmp_path: Path, flags: int) -> None:
    calls = Calls(tmp_path)
    reader = os.open(calls.path, flags)
    try:
        assert calls.remove() == ["unlink", "fsync"]
        assert os.fstat(reader).st_size == SIZE
        assert os.pread(reader, len(CONTENT), 0) == CONTENT
    finally:
        os.close(reader)


def test_a_file_that_another_process_has_open_stays_as_it_is(tmp_path: Path) -> None:
    calls = Calls(tmp_path)
    reader = os.open(calls.path, os.O_RDONLY)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=(reader,)) as other:
        os.close(reader)
        assert calls.remove() == ["unlink", "fsync"]
        assert other.stdin is not None
        other.stdin.close()


def test_a_small_file_is_just_removed(tmp_path: Path) -> None:
    calls = Calls(tmp_path)
    os.truncate(calls.path, PART)
    assert calls.remove() == ["unlink", "fsync"]


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Files().remove(tmp_path, "none")


def test_what_cannot_be_made_durable_is_left_whole(tmp_path: Path) -> None:
    """After a power cut the name may be there again."""
    calls = Calls(tmp_path)

    def fails(fd: int) -> None:
        raise OSError(5, "no sync")

    calls.files.fsync = fails
    with pytest.raises(OSError, match="no sync"):
        calls.remove()
    assert calls.made == ["unlink"]
