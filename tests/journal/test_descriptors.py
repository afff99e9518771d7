"""Descriptors run out: the journal's threads wait for one, a read on the loop's thread does not."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tallymark.journal.files import FOR_READING, Files

RESERVED = 3


class Waits(Exception):
    """Nobody gives a descriptor back in this test: a wait would be for ever."""


class Table:
    """A system with room for so many open files of one journal."""

    def __init__(self, room: int, number: int = errno.EMFILE) -> None:
        self.room = room
        self.number = number
        self.refusals = 0
        self.stolen = 0
        """Descriptors that others will take as soon as they are free."""
        self._opened: list[int] = []

    def _in_use(self) -> int:
        left = []
        for fd in self._opened:
            try:
                os.fstat(fd)
            except OSError:
                continue
            left.append(fd)
        self._opened = left
        return len(left)

    def open(self, path: str, flags: int, mode: int) -> int:
        in_use = self._in_use()
        if self.refusals and self.stolen and in_use < self.room:
            self.stolen -= 1
            self.room -= 1
        if in_use >= self.room:
            self.refusals += 1
            if self.refusals > 100:
                raise Waits
            raise OSError(self.number, os.strerror(self.number))
        fd = os.open(path, flags, mode)
        self._opened.append(fd)
        return fd

    def close(self) -> None:
        self._in_use()
        for fd in self._opened:
            os.close(fd)


@pytest.fixture(params=[errno.EMFILE, errno.ENFILE], ids=["EMFILE", "ENFILE"])
def table(request: pytest.FixtureRequest) -> Iterator[Table]:
    made = Table(RESERVED + FOR_READING, request.param)
    yield made
    made.close()


def test_a_read_does_not_wait_when_the_threads_have_used_up_what_was_reserved(
    table: Table, tmp_path: Path
) -> None:
    """There was one reserve for all: a read of the loop's thread then slept until somebody closed
    something, and with it everybody."""
    files = Files(open=table.open)
    files.set_aside(RESERVED)
    path = tmp_path / "segment"
    path.write_bytes(b"x")
    assert not files.is_short
    for _ in range(RESERVED):
        files.open(str(path), os.O_RDONLY)
    assert files.is_short
    fd = files.open_for_reading(str(path))
    assert os.read(fd, 1) == b"x"
    os.close(fd)
    os.close(files.open_for_reading(str(path)))
    files.give_back()


def test_others_that_take_what_is_given_up_do_not_make_it_wait(
    table: Table, tmp_path: Path
) -> None:
    files = Files(open=table.open)
    files.set_aside(RESERVED)
    path = tmp_path / "segment"
    path.write_bytes(b"x")
    for _ in range(RESERVED):
        files.open(str(path), os.O_RDONLY)
    table.stolen = FOR_READING - 1
    os.close(files.open_for_reading(str(path)))
    files.give_back()


def test_reserves_are_filled_again(table: Table, tmp_path: Path) -> None:
    files = Files(open=table.open)
    files.set_aside(RESERVED)
    path = tmp_path / "segment"
    path.write_bytes(b"x")
    taken = [files.open(str(path), os.O_RDONLY), files.open_for_reading(str(path))]
    assert files.is_short
    assert not files.restore()
    for fd in taken:
        os.close(fd)
    assert files.restore()
    assert not files.is_short
    files.give_back()
    assert not files.is_short


def test_a_thread_of_the_journal_waits(table: Table, tmp_path: Path) -> None:
    files = Files(open=table.open)
    files.set_aside(RESERVED)
    path = tmp_path / "segment"
    path.write_bytes(b"x")
    for _ in range(RESERVED):
        files.open(str(path), os.O_RDONLY)
    table.refusals = 95
    with pytest.raises(Waits):
        files.open(str(path), os.O_RDONLY)
    table.refusals = 0
    os.close(files.open_for_reading(str(path)))
    files.give_back()
