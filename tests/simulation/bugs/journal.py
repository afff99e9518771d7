"""Deliberate bugs of the disk and the journal."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from tallymark.journal.cleaner import Cleaner
from tallymark.journal.files import Files
from tallymark.journal.journal import Journal
from tallymark.journal.reading import Blocks, Reader
from tallymark.journal.recovery import Recovery
from tallymark.journal.writer import Writer
from tests.simulation.bugs.registry import (
    files_lack,
    has_old_blocks_read,
    is_cut_in_a_sync,
    is_cut_without_syncs,
    mutant,
    replaced,
)


@mutant("confirm before sync")
def _() -> None:
    Journal.synced = property(lambda self: self.end)  # type: ignore[assignment,method-assign]


@mutant("confirm when written", is_cut_in_a_sync)
def _() -> None:
    Journal.synced = property(lambda self: self.written)  # type: ignore[assignment,method-assign]


@mutant("no data sync")
def _() -> None:
    files_lack("fdatasync", lambda call: lambda fd: None)


@mutant("failed sync forgotten")
def _() -> None:
    def forgetting(call: Any) -> Any:
        def sync(fd: int) -> None:
            with suppress(OSError):
                call(fd)

        return sync

    files_lack("fdatasync", forgetting)


@mutant("no file sync before a rename")
def _() -> None:
    files_lack("fsync", lambda call: lambda fd: None)


@mutant("no folder sync")
def _() -> None:
    Files.sync_folder = lambda self, folder: None  # type: ignore[method-assign]


@mutant("checkpoint before its position is on disk", is_cut_without_syncs)
def _() -> None:
    Writer.sync = lambda self: True  # type: ignore[method-assign]


@mutant("short write not continued")
def _() -> None:
    def once(self: Files, fd: int, buffers: list[bytes], offset: int) -> int:
        self.pwritev(fd, buffers[:1024], offset)
        return sum(map(len, buffers))

    Files.write_all = once  # type: ignore[method-assign]


@mutant("bytes released twice")
def _() -> None:
    def make(release: Any) -> Any:
        def twice(self: Any, position: int, size: int) -> None:
            release(self, position, size)
            release(self, position, size)

        return twice

    replaced(Journal, "release", make)


@mutant("body of the wrong bytes")
def _() -> None:
    def make(fetch: Any) -> Any:
        def shifted(self: Any, payload: Any) -> bytes:
            found = fetch(self, payload)
            return bytes(found[-1:] + found[:-1])

        return shifted

    replaced(Reader, "fetch", make)


@mutant("recovery ends a record early")
def _() -> None:
    def make(read: Any) -> Any:
        def early(self: Any) -> Any:
            last = None
            for record in read(self):
                if last is not None:
                    yield last
                last = record

        return early

    replaced(Recovery, "records", make)


@mutant("checkpoint of the state before")
def _() -> None:
    kept: dict[int, list[Any]] = {}
    original = Cleaner.checkpoint

    def older(self: Cleaner, end: int, found: list[Any], now: Any, version: int) -> bool:
        before = kept.get(id(self), found)
        kept[id(self)] = found
        return original(self, end, before, now, version)

    Cleaner.checkpoint = older  # type: ignore[method-assign]


@mutant("checkpoint of another position")
def _() -> None:
    kept: dict[int, int] = {}
    original = Cleaner.checkpoint

    def other(self: Cleaner, end: int, *rest: Any) -> bool:
        before = kept.get(id(self), end)
        kept[id(self)] = end
        return original(self, before, *rest)

    Cleaner.checkpoint = other  # type: ignore[method-assign]


@mutant("blocks of a segment found only once", has_old_blocks_read)
def _() -> None:
    def make(find: Any) -> Any:
        def once(self: Any, fd: int, segment: int) -> None:
            if not self._end:
                find(self, fd, segment)

        return once

    replaced(Blocks, "_find", make)
