"""The thread that writes blocks and waits for the disk, so that the loop never does.

The loop hands over packed blocks; each round takes everything that was handed over since the last
one, writes it with as few calls as possible, and pays one fdatasync for all of it (group commit).
Positions only ever grow, each written by this thread and read by the loop.

The first failed write or fsync ends the thread for good: pages may read back clean without being
on disk, so nothing handed over later is ever reported as synced.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final, final

from tallymark.engine.errors import BytesLost
from tallymark.journal.files import Files
from tallymark.journal.home import Home
from tallymark.journal.jobs import LARGE, STOP, SYNC, WRITE, Job, JobQueue, Jobs, native_jobs
from tallymark.journal.spares import Spares, is_full
from tallymark.journal.threads import REAL, Event, Threads
from tallymark.stored.segment import segment_name
from tallymark.units import Position

COMMIT: Final = "commit"
INTERVAL: Final = "interval"
NEVER: Final = "never"
SYNC_MODES: Final = (COMMIT, INTERVAL, NEVER)
BOTH: Final = "both"
HOME_MODES: Final = (COMMIT, BOTH)
"""Modes of a journal with a home: what is handed over is safe there, or also on this disk."""
PAGE: Final = 4096
"""Bytes of a page of the system's cache, which it lets go of as a whole."""


@final
class Writer:
    """Owns the file being written. `write`, `forget_written` and `unwritten` are called from one
    thread, `sync` and `stop` from any."""

    __slots__ = (
        "_fd", "_files", "_folder", "_guard", "_home", "_interval_s", "_lets_go", "_on_failure",
        "_pending",
        "_spares", "_sync", "_synced_at", "_threads", "_timed", "_worker", "failure", "jobs",
        "number",
    )  # fmt: skip

    def __init__(
        self,
        folder: Path,
        files: Files,
        spares: Spares,
        sync: str,
        interval_ms: int,
        signal: int,
        on_failure: Callable[[OSError], None],
        threads: Threads = REAL,
        home: Home | None = None,
    ) -> None:
        """signal: number of the eventfd that tells the loop that more is synced.
        home: where the blocks must be safe, if that is not the disk."""
        self._home = home
        self._folder = folder
        self._files = files
        self._spares = spares
        self._sync = sync
        self._interval_s = interval_ms / 1000
        self._on_failure = on_failure
        self._threads = threads
        self._timed = Jobs(signal, threads) if sync == INTERVAL else None
        """The queue, where syncs are due at times and not with what is written."""
        native = None
        if threads is REAL:
            native = native_jobs(files, sync == COMMIT and home is None, signal, home is not None)
        self.jobs: JobQueue = self._timed or native or Jobs(signal, threads)
        self._lets_go = sync == COMMIT and home is None and files.pwritev is os.pwritev
        """True if what `jobs` says of the system's cache is done: it is real, and what it has is on
        disk."""
        self._pending: deque[Job] = deque()
        """Blocks handed over that may not be written yet."""
        self._guard = threads.lock()
        self._worker = threads.thread(self._run, "journal-writer")
        self._fd = -1
        self._synced_at = 0.0
        self.number = 0
        """Number of the segment being written."""
        self.failure: OSError | None = None
        """First failed write or sync; set by the thread."""

    @property
    def has_failed(self) -> bool:
        """Return whether nothing is written any more."""
        return self.failure is not None

    def start(self, number: int, salt: int) -> None:
        """Make the first segment and start the thread. Raises OSError if the segment cannot be
        made."""
        self._open_segment(number, salt)
        jobs = self.jobs
        jobs.written = jobs.durable = jobs.synced = Position(number << 32)
        self._worker.start()

    def write(
        self, segment: int, salt: int, offset: int, length: int, buffers: list[bytes]
    ) -> None:
        """Hand over one block. A new segment number begins a new file. After a failure nothing is
        written any more."""
        self.forget_written()
        if self.failure is None:
            job = Job(WRITE, segment, salt, offset, length, buffers)
            self._pending.append(job)
            self.jobs.put(job)

    def forget_written(self) -> None:
        """Let go of the bytes of blocks that are written."""
        pending = self._pending
        if pending:
            written = self.jobs.written
            while pending and pending[0].end <= written:
                pending.popleft()

    def unwritten(self, position: int, size: int) -> bytes:
        """Return bytes of a block that was handed over and may not be written yet. Raises
        BytesLost."""
        for job in self._pending:
            if job.start <= position < job.end:
                return job.cut(position, size)
        raise BytesLost(f"position {position:#x} was never written, the journal failed")

    def sync(self) -> bool:
        """Wait until everything handed over is on disk. False: it never will be, because a write
        failed."""
        done = self._threads.event()
        self.jobs.put(Job(SYNC, done=done))
        while not self.has_failed and self._worker.is_alive():
            if done.wait(0.1):
                return not self.has_failed
        return False

    def stop(self) -> None:
        """Write and sync what was handed over, cut the file to its length, end the thread."""
        if self._worker.is_alive():
            self.jobs.put(Job(STOP))
            self._worker.join()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def fail(self, failure: OSError) -> None:
        """Stop for good after a failed write or sync. The first failure is reported, once."""
        with self._guard:
            if self.failure is not None:
                return
            self.failure = failure
        self.jobs.is_over = True
        self._on_failure(failure)

    def _run(self) -> None:
        try:
            while self._round(self._handed_over()):
                pass
        except OSError as failure:
            self.fail(failure)
        except BaseException as bug:
            self.fail(OSError(errno.EIO, f"the journal's writer ended: {bug!r}"))
            raise

    def _handed_over(self) -> list[Job]:
        """Wait for jobs; return those left to be done. Empty when an interval's sync is due."""
        timed = self._timed
        if timed is None or timed.durable == timed.written:
            return self.jobs.take()
        left = self._synced_at + self._interval_s - self._threads.monotonic()
        return timed.take_within(max(left, 0.0))

    def _round(self, jobs: list[Job]) -> bool:
        """Carry out the jobs handed over. Returns whether to go on."""
        if self.failure is not None:
            return False
        if jobs and jobs[0].kind == WRITE and jobs[0].end <= self.jobs.written:
            self._make_safe([part for job in jobs for part in job.buffers], jobs[0].offset)
            self._sync_if_due(False)
            return True
        waiting: list[Event] = []
        stop = False
        buffers: list[bytes] = []
        begin = end = self.jobs.offset
        for job in jobs:
            if job.kind == WRITE:
                if job.segment != self.number:
                    self._put(buffers, begin)
                    self._seal()
                    self._open_segment(job.segment, job.salt)
                    buffers = []
                    begin = end = 0
                assert job.offset == end, "blocks are handed over in order"
                buffers.extend(job.buffers)
                end += job.length
            elif job.kind == SYNC:
                assert job.done is not None
                waiting.append(job.done)
            else:
                stop = True
        self._put(buffers, begin)
        self._sync_if_due(bool(waiting) or stop)
        if self._lets_go and not self.jobs.keeps_cached:
            self._let_go(buffers, begin, end)
        for done in waiting:
            done.set()
        if stop:
            self._files.ftruncate(self._fd, self.jobs.offset)
            self._files.fsync(self._fd)
        return not stop

    def _put(self, buffers: list[bytes], begin: int) -> None:
        while buffers:
            try:
                size = self._files.write_all(self._fd, buffers, begin)
            except OSError as error:
                # A block larger than its segment on a full disk: the reserve has the room.
                if is_full(error) and self._spares.give_up_one():
                    continue
                raise
            jobs = self.jobs
            jobs.written_bytes += size
            jobs.offset = begin + size
            jobs.written = Position(self.number << 32 | jobs.offset)
            if self._home is not None:
                self._make_safe(buffers, begin)
            return

    def _let_go(self, buffers: list[bytes], begin: int, end: int) -> None:
        """Let large blocks that are synced leave the system's cache."""
        if any(len(buffer) >= LARGE for buffer in buffers):
            begin -= begin % PAGE
            with contextlib.suppress(OSError):  # it is a hint
                os.posix_fadvise(self._fd, begin, end - begin, os.POSIX_FADV_DONTNEED)

    def _make_safe(self, buffers: list[bytes], begin: int) -> None:
        """Wait until what was just written is safe in the home."""
        home = self._home
        assert home is not None, "without one no block comes back that is written"
        if self._sync == BOTH:
            self._files.fdatasync(self._fd)
        began = self._threads.monotonic()
        home.append(self.number, begin, buffers)
        self.jobs.count_sync(int((self._threads.monotonic() - began) * 1_000_000))
        self.jobs.durable = self.jobs.written

    def _sync_if_due(self, must: bool) -> None:
        """Call fdatasync if the mode or a waiter asks for it, and inform the loop."""
        jobs = self.jobs
        now = 0.0
        if self._sync == INTERVAL:
            now = self._threads.monotonic()
            must = must or now >= self._synced_at + self._interval_s
        if jobs.durable < jobs.written and (must or self._sync == COMMIT):
            upto = jobs.written
            self._fdatasync()
            jobs.durable = upto
            self._synced_at = now
        reached = jobs.durable if self._home or self._sync == COMMIT else jobs.written
        if reached > jobs.synced:
            jobs.tell(reached)

    def _fdatasync(self) -> None:
        began = self._threads.monotonic()
        self._files.fdatasync(self._fd)
        self.jobs.count_sync(int((self._threads.monotonic() - began) * 1_000_000))

    def _seal(self) -> None:
        """End the current file: it is on disk, or in the home, before the next begins, in every
        mode. Recovery relies on it (recovery.py)."""
        jobs = self.jobs
        self._files.ftruncate(self._fd, jobs.offset)
        if self._home is None:
            self._fdatasync()
            jobs.durable = jobs.written
        elif self._sync == BOTH:
            self._files.fdatasync(self._fd)
        os.close(self._fd)
        self._fd = -1

    def _open_segment(self, number: int, salt: int) -> None:
        name = segment_name(number, salt)
        self.number = number
        self._spares.become(name)
        self._fd = self._files.open(str(self._folder / name), os.O_RDWR)
        self.jobs.begin(self._fd, number)
