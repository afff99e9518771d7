"""Spare segments, made ahead: allocated, empty, without a number.

Allocating a file takes time and may find the disk full; both happen here, ahead of need. Of the
three files kept the last two are the reserve: while only they are left, settlements, checkpoints
and cleaning still have room, and publishers must wait [design 4].
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final, final

from tallymark.journal.files import Files
from tallymark.journal.threads import REAL, Threads
from tallymark.stored.segment import spare_name

WANTED: Final = 3
RESERVE: Final = 2

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


def is_full(error: OSError) -> bool:
    """Return whether the error means a full disk, as opposed to a failing device."""
    return error.errno in _FULL


@final
class Spares:
    """The spare segments of a folder. Used by the writer's and the cleaner's thread."""

    __slots__ = ("_files", "_folder", "_guard", "_next", "asked", "bytes_each", "full", "names")

    def __init__(
        self,
        folder: Path,
        files: Files,
        bytes_each: int,
        names: list[str],
        threads: Threads = REAL,
    ) -> None:
        self._folder = folder
        self._files = files
        self.names = list(names)
        """Names of the files that are ready."""
        self._next = 0
        self._guard = threads.lock()
        self.bytes_each = bytes_each
        self.asked = False
        """True while a requested `top_up` has not begun."""
        self.full = False
        """True if the last attempt to make a spare found the disk full."""

    @property
    def is_missing(self) -> bool:
        return len(self.names) < WANTED

    def become(self, name: str) -> None:
        """Give a spare this name, durably; make a file if none is left. Raises OSError."""
        with self._guard:
            spare = self.names.pop(0) if self.names else self._made()
            self._files.rename(str(self._folder / spare), str(self._folder / name))
            self._files.sync_folder(self._folder)

    def top_up(self) -> None:
        """Make missing spares, or note that the disk is full. Raises any other OSError."""
        self.asked = False
        while len(self.names) < WANTED:
            try:
                with self._guard:
                    self.names.append(self._made())
            except OSError as error:
                if not is_full(error):
                    raise
                self.full = True
                return
        self.full = False

    def give_up_one(self, keep: int = 1) -> bool:
        """Delete one of the spares so that its space can be used, but keep at least `keep`. Returns
        whether one was deleted."""
        with self._guard:
            if len(self.names) <= keep:
                return False
            self._files.unlink(str(self._folder / self.names.pop()))
            self.full = True
            return True

    def _made(self) -> str:
        name = spare_name(self._next)
        while name in self.names or (self._folder / name).exists():
            self._next += 1
            name = spare_name(self._next)
        temporary = str(self._folder / (name + ".tmp"))
        fd = self._files.open(temporary, os.O_CREAT | os.O_TRUNC | os.O_RDWR)
        try:
            self._files.fallocate(fd, 0, self.bytes_each)
            self._files.fsync(fd)
        except OSError:
            self._files.unlink(temporary)
            raise
        finally:
            os.close(fd)
        self._files.rename(temporary, str(self._folder / name))
        return name
