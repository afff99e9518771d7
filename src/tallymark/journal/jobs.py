"""The queue of jobs from the loop's thread to the writer's, and how far they are carried out.

There are two of it. The one in native.c, which is there where the package was compiled, writes and
syncs plain blocks itself: the writer's thread then never takes Python's lock, for which it would
wait for the loop and the loop for it, several times a block. Where the journal has a home, it takes
the lock once for all blocks that it wrote with one call. `Jobs` here leaves all to the writer.
"""

from __future__ import annotations

import os
from queue import Empty
from typing import Final, Protocol, final

from tallymark.engine.histogram import Histogram
from tallymark.journal.files import Files
from tallymark.journal.threads import REAL, Event, Queue, Threads
from tallymark.units import Position

WRITE: Final = 0
SYNC: Final = 1
STOP: Final = 2
SYNC_TIMES: Final = 28
"""Buckets of the times that syncs took (native.c has as many): the last but one ends at 67 s."""
LARGE: Final = 256 * 1024
"""Bytes of a buffer from which on its block need not stay in the system's cache (native.c has the
same). Smaller ones stay: the cleaner reads their columns again, and new pages for them cost no more
than it does to let go of the old ones."""


@final
class Job:
    """A job for the writer: write buffers at a segment's offset, sync, or stop. A block that may
    not be written yet is read from here."""

    __slots__ = (
        "buffers", "done", "end", "kind", "length", "offset", "salt", "segment", "start",
    )  # fmt: skip

    def __init__(
        self,
        kind: int,
        segment: int = 0,
        salt: int = 0,
        offset: int = 0,
        length: int = 0,
        buffers: list[bytes] | None = None,
        done: Event | None = None,
    ) -> None:
        self.kind = kind
        self.segment = segment
        self.salt = salt
        self.offset = offset
        self.length = length
        self.buffers: list[bytes] = buffers if buffers is not None else []
        """Bytes to write; empty for other jobs."""
        self.done = done
        self.start = segment << 32 | offset
        """Position of the block."""
        self.end = self.start + length
        """Position behind the block."""

    def cut(self, position: int, size: int) -> bytes:
        """Return bytes of the block."""
        skip = position - self.start
        parts: list[bytes] = []
        for buffer in self.buffers:
            if skip < len(buffer):
                part = buffer[skip : skip + size]
                parts.append(part)
                size -= len(part)
                if not size:
                    break
                skip = 0
            else:
                skip -= len(buffer)
        return b"".join(parts)


class JobQueue(Protocol):
    """The queue as the writer knows it. Positions only ever grow, each set by the writer's thread
    and read by the loop."""

    offset: int
    """Offset in the open segment at which the next block is written."""
    written: Position
    """Position up to which everything was passed to the operating system."""
    durable: Position
    """Position up to which everything is on disk: a later fdatasync returned."""
    synced: Position
    """Position up to which messages may be confirmed: `durable` with sync=commit, else
    `written`."""
    written_bytes: int
    syncs: int
    """Count of calls of fdatasync."""
    is_over: bool
    """True once the journal has failed: what still waits is not carried out."""
    keeps_cached: bool
    """True: the system keeps all that was written in its cache, since it may be read back soon.
    False: blocks with a buffer of LARGE bytes or more leave it once they are synced."""

    def put(self, job: Job, /) -> None:
        """Hand a job over. From any thread."""

    def take(self) -> list[Job]:
        """Wait for jobs; return, in order, those that are left to be done: with a home also blocks
        that are written, by themselves. Raises OSError: a write or a sync has failed."""

    def begin(self, fd: int, segment: int, /) -> None:
        """Go on with a new file, from its beginning."""

    def tell(self, position: Position, /) -> None:
        """Note that messages up to there may be confirmed, and tell the loop."""

    def count_sync(self, us: int, /) -> None:
        """Count a sync of the writer's own, which took so many microseconds."""

    def sync_times(self) -> tuple[list[int], int]:
        """Return how many syncs took how long, and how long all of them together: counts and total
        of a Histogram of microseconds. From any thread."""


@final
class Jobs:
    """The queue without native code."""

    __slots__ = (
        "_signal", "_times", "_waiting", "durable", "is_over", "keeps_cached", "offset", "synced",
        "syncs", "written", "written_bytes",
    )  # fmt: skip

    def __init__(self, signal: int, threads: Threads = REAL) -> None:
        """signal: number of the eventfd that tells the loop."""
        self._signal = signal
        self._waiting: Queue[Job] = threads.queue()
        self.offset = 0
        self.written = Position(0)
        self.durable = Position(0)
        self.synced = Position(0)
        self.written_bytes = 0
        self.syncs = 0
        self._times = Histogram(SYNC_TIMES)
        self.is_over = False
        self.keeps_cached = False

    def put(self, job: Job, /) -> None:
        self._waiting.put(job)

    def take(self) -> list[Job]:
        return self._all_from(self._waiting.get())

    def take_within(self, seconds: float) -> list[Job]:
        """Return all waiting jobs, after so many seconds none."""
        try:
            return self._all_from(self._waiting.get(True, seconds))
        except Empty:
            return []

    def _all_from(self, job: Job) -> list[Job]:
        """Return a job that was taken, and all that wait behind it."""
        jobs = [job]
        waiting = self._waiting
        while not waiting.empty():  # nobody else takes any
            jobs.append(waiting.get_nowait())
        return jobs

    def begin(self, fd: int, segment: int, /) -> None:
        self.offset = 0

    def tell(self, position: Position, /) -> None:
        self.synced = position
        os.eventfd_write(self._signal, 1)

    def count_sync(self, us: int, /) -> None:
        self.syncs += 1
        self._times.add(us, 1)

    def sync_times(self) -> tuple[list[int], int]:
        return [*self._times.counts], self._times.total


def native_jobs(
    files: Files, syncs_each: bool, signal: int, returns_each: bool = False
) -> JobQueue | None:
    """Return the queue in C; None: it was not built.

    syncs_each: whether each write is synced.
    returns_each: whether `take` returns blocks that it has written, and confirms none.
    """
    try:
        from tallymark.journal import native
    except ImportError:
        return None
    pwritev = None if files.pwritev is os.pwritev else files.pwritev
    fdatasync = None if files.fdatasync is os.fdatasync else files.fdatasync
    return native.Jobs(syncs_each, returns_each, signal, pwritev, fdatasync)
