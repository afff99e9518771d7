"""The thread that writes blocks and waits for the disk, so that the loop never does.

The loop hands over packed blocks; each round takes everything that was handed over since the last
one, writes it with as few calls as possible, and pays one fdatasync for all of it (group commit).
Positions only ever grow, each written by this thread and read by the loop.

The first failed write or fsync ends the thread for good: pages may read back clean without being
on disk, so nothing handed over later is ever reported as synced.
"""

from __future__ import annotations

import errno
import os
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Final, final

from tallymark.engine.errors import BytesLost
from tallymark.journal.files import Files
from tallymark.journal.spares import Spares, is_full
from tallymark.stored.segment import segment_name
from tallymark.units import Position

COMMIT: Final = "commit"
INTERVAL: Final = "interval"
NEVER: Final = "never"
SYNC_MODES: Final = (COMMIT, INTERVAL, NEVER)

_STOP: Final = 0
_WRITE: Final = 1
_SYNC: Final = 2


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
        done: threading.Event | None = None,
    ) -> None:
        self.kind = kind
        self.segment = segment
        self.salt = salt
        self.offset = offset
        self.length = length
        self.buffers: list[bytes] = buffers if buffers is not None else []
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


@final
class Writer:
    """Owns the file being written. `write`, `forget_written` and `unwritten` are called from one
    thread, `sync` and `stop` from any."""

    __slots__ = (
        "_fd", "_files", "_folder", "_guard", "_interval_s", "_jobs", "_offset", "_on_failure",
        "_on_synced", "_pending", "_spares", "_sync", "_synced_at", "_worker", "durable", "failure",
        "number", "syncs", "synced", "written", "written_bytes",
    )  # fmt: skip

    def __init__(
        self,
        folder: Path,
        files: Files,
        spares: Spares,
        sync: str,
        interval_ms: int,
        on_synced: Callable[[], None],
        on_failure: Callable[[OSError], None],
    ) -> None:
        self._folder = folder
        self._files = files
        self._spares = spares
        self._sync = sync
        self._interval_s = interval_ms / 1000
        self._on_synced = on_synced
        self._on_failure = on_failure
        self._jobs: SimpleQueue[Job] = SimpleQueue()
        self._pending: deque[Job] = deque()
        """Blocks handed over that may not be written yet."""
        self._guard = threading.Lock()
        self._worker = threading.Thread(target=self._run, name="journal-writer", daemon=True)
        self._fd = -1
        self._offset = 0
        self._synced_at = 0.0
        self.number = 0
        """Number of the segment being written."""
        self.written = Position(0)
        """Position up to which everything was passed to the operating system."""
        self.durable = Position(0)
        """Position up to which everything is on disk: a later fdatasync returned."""
        self.synced = Position(0)
        """Position up to which messages may be confirmed: `durable` with sync=commit, else
        `written`."""
        self.written_bytes = 0
        self.syncs = 0
        self.failure: OSError | None = None

    def start(self, number: int, salt: int) -> None:
        """Make the first segment and start the thread. Raises OSError if the segment cannot be
        made."""
        self._open_segment(number, salt)
        self.written = self.durable = self.synced = Position(number << 32)
        self._worker.start()

    def write(
        self, segment: int, salt: int, offset: int, length: int, buffers: list[bytes]
    ) -> None:
        """Hand over one block. A new segment number begins a new file. After a failure nothing is
        written any more."""
        self.forget_written()
        if self.failure is None:
            job = Job(_WRITE, segment, salt, offset, length, buffers)
            self._pending.append(job)
            self._jobs.put(job)

    def forget_written(self) -> None:
        """Let go of the bytes of blocks that are written."""
        pending = self._pending
        while pending and pending[0].end <= self.written:
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
        done = threading.Event()
        self._jobs.put(Job(_SYNC, done=done))
        while self.failure is None and self._worker.is_alive():
            if done.wait(0.1):
                return self.failure is None
        return False

    def stop(self) -> None:
        """Write and sync what was handed over, cut the file to its length, end the thread."""
        if self._worker.is_alive():
            self._jobs.put(Job(_STOP))
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
        """Return all waiting jobs; waits for the first. Empty when an interval's sync is due."""
        jobs: list[Job] = []
        try:
            if self._sync == INTERVAL and self.durable < self.written:
                left = self._synced_at + self._interval_s - monotonic()
                jobs.append(self._jobs.get(True, max(left, 0.0)))
            else:
                jobs.append(self._jobs.get())
            while True:
                jobs.append(self._jobs.get_nowait())
        except Empty:
            return jobs

    def _round(self, jobs: list[Job]) -> bool:
        """Carry out the jobs handed over. Returns whether to go on."""
        if self.failure is not None:
            return False
        waiting: list[threading.Event] = []
        stop = False
        buffers: list[bytes] = []
        begin = self._offset
        for job in jobs:
            if job.kind == _WRITE:
                if job.segment != self.number:
                    self._put(buffers, begin)
                    self._seal()
                    self._open_segment(job.segment, job.salt)
                    buffers = []
                    begin = 0
                assert job.offset == self._offset, "blocks are handed over in order"
                buffers.extend(job.buffers)
                self._offset += job.length
            elif job.kind == _SYNC:
                assert job.done is not None
                waiting.append(job.done)
            else:
                stop = True
        self._put(buffers, begin)
        self._sync_if_due(bool(waiting) or stop)
        for done in waiting:
            done.set()
        if stop:
            self._files.ftruncate(self._fd, self._offset)
            self._files.fsync(self._fd)
        return not stop

    def _put(self, buffers: list[bytes], begin: int) -> None:
        while buffers:
            try:
                self.written_bytes += self._files.write_all(self._fd, buffers, begin)
            except OSError as error:
                # A block larger than its segment on a full disk: the reserve has the room.
                if is_full(error) and self._spares.give_up_one():
                    continue
                raise
            self.written = Position(self.number << 32 | self._offset)
            return

    def _sync_if_due(self, must: bool) -> None:
        """Call fdatasync if the mode or a waiter asks for it, and inform the loop."""
        now = 0.0
        if self._sync == INTERVAL:
            now = monotonic()
            must = must or now >= self._synced_at + self._interval_s
        if self.durable < self.written and (must or self._sync == COMMIT):
            upto = self.written
            self._files.fdatasync(self._fd)
            self.syncs += 1
            self.durable = upto
            self._synced_at = now
        reached = self.durable if self._sync == COMMIT else self.written
        if reached > self.synced:
            self.synced = reached
            self._on_synced()

    def _seal(self) -> None:
        """End the current file: it is on disk before the next begins, in every mode. Recovery
        relies on it (recovery.py)."""
        self._files.ftruncate(self._fd, self._offset)
        self._files.fdatasync(self._fd)
        self.syncs += 1
        self.durable = self.written
        os.close(self._fd)
        self._fd = -1

    def _open_segment(self, number: int, salt: int) -> None:
        name = segment_name(number, salt)
        self.number = number
        self._spares.become(name)
        self._fd = self._files.open(str(self._folder / name), os.O_RDWR)
        self._offset = 0
