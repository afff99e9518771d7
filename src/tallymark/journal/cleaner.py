"""The cleaner's thread: checkpoints, stripping, preallocation. No message waits for it.

Each job ends in a `Done`, which the loop collects when it next calls `Journal.clean`. A full disk
makes a job fail, and it may be tried again; any other failure of the disk ends the journal, as it
does in the writer.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final, final

from tallymark.engine.errors import BytesLost
from tallymark.engine.ledger import expanded
from tallymark.engine.record import Record
from tallymark.journal.files import Files
from tallymark.journal.home import Home
from tallymark.journal.packer import REFERENCED, Packer
from tallymark.journal.reading import Columns, Reader
from tallymark.journal.spares import Spares, is_full
from tallymark.journal.stock import Stock
from tallymark.journal.threads import REAL, Event, Queue, Threads
from tallymark.journal.writer import Writer
from tallymark.stored import anchor as anchors
from tallymark.stored.anchor import Anchor
from tallymark.stored.layout import (
    CHECKPOINT,
    FORMAT,
    HEADER,
    SEALED,
    STRIPPED,
    WHOLE,
    Header,
    LayoutError,
    bare_block,
    crc32c,
)
from tallymark.stored.segment import checkpoint_name, ledger_name, parsed_checkpoint, segment_name
from tallymark.units import WallMs

# Jobs, and what a Done speaks of.
CHECKPOINTED: Final = 1
STRIP: Final = 2
DROP: Final = 3
TOP_UP: Final = 4
ANCHOR: Final = 6
KEEP: Final = 7
CLOSE: Final = 8
_STOP: Final = 0
_TELL: Final = 5

# Number of rows per block of a checkpoint: about 0.5 ms of packing between two writes, which let
# the loop's thread run.
_CHECKPOINT_ROWS: Final = 512
_STRIP_BLOCKS: Final = 256


@final
class Job:
    __slots__ = (
        "anchor", "ended", "gone", "kind", "names", "number", "position", "records", "salt",
        "time_ms", "version",
    )  # fmt: skip

    def __init__(
        self,
        kind: int,
        number: int = 0,
        salt: int = 0,
        position: int = 0,
        time_ms: int = 0,
        records: list[Record] | None = None,
        names: list[str] | None = None,
        ended: Event | None = None,
        version: int = FORMAT,
        anchor: Anchor | None = None,
        gone: list[str] | None = None,
    ) -> None:
        self.kind = kind
        self.gone: list[str] = gone if gone is not None else []
        self.anchor = anchor
        self.version = version
        """Format version of the blocks that are written."""
        self.number = number
        self.salt = salt
        self.position = position
        self.time_ms = time_ms
        self.records: list[Record] = records if records is not None else []
        self.names: list[str] = names if names is not None else []
        self.ended = ended


@final
class Done:
    """The result of a job. problem is empty if it succeeded."""

    __slots__ = ("full", "job", "problem", "size")

    def __init__(self, job: Job, problem: str, full: bool = False, size: int = 0) -> None:
        self.job = job
        self.problem = problem
        self.full = full
        """True if the disk was full: the job may be tried again."""
        self.size = size
        """STRIP: bytes of the ledger file."""


@final
class Cleaner:
    """The jobs, requested from the loop's thread and carried out by the cleaner's."""

    def __init__(
        self,
        folder: Path,
        files: Files,
        spares: Spares,
        writer: Writer,
        stock: Stock,
        reader: Reader,
        checkpoints: list[str],
        threads: Threads = REAL,
        home: Home | None = None,
    ) -> None:
        """checkpoints: names of those that are there, the newest first.
        home: where every change of the folder goes to, too."""
        self._home = home
        self._folder = folder
        self._files = files
        self._spares = spares
        self._writer = writer
        self._threads = threads
        self._jobs: Queue[Job] = threads.queue()
        self._worker = threads.thread(self._run, "journal-cleaner")
        self._done: Queue[Done] = threads.queue()
        self._stock = stock
        self._reader = reader
        self._checkpoints = checkpoints
        self.anchored = 0
        """Position of the last anchor requested."""
        self.is_checkpointing = False
        """True while a checkpoint is requested or being written."""
        self.is_stripping = False
        """True while a segment is being stripped."""

    def start(self) -> None:
        self._worker.start()

    # -- on the loop's thread

    def forget_checkpoint(self, name: str) -> None:
        """A checkpoint was damaged, and is gone."""
        self._checkpoints.remove(name)

    def checkpoint(self, end: int, records: list[Record], now_ms: WallMs, version: int) -> bool:
        """Request a checkpoint: see Journal.checkpoint."""
        if self.is_checkpointing or self._writer.has_failed:
            return False
        self.is_checkpointing = True
        name = checkpoint_name(end)
        superseded = [n for n in self._checkpoints if n != name][1:]
        self._jobs.put(Job(CHECKPOINTED, 0, 0, end, now_ms, records, superseded, version=version))
        return True

    def write_anchor(self, anchor: Anchor) -> None:
        """Request that an anchor is written once the journal has reached its position on disk,
        unless one for that position was requested before."""
        if self._writer.has_failed or self.anchored == anchor.position:
            return
        self.anchored = anchor.position
        self._jobs.put(Job(ANCHOR, position=anchor.position, anchor=anchor))

    def clean(self, before_ms: int) -> None:
        """Request what is to be done: spares, the next segment to strip, the deletion of ledgers
        whose last block is from before then; wall time."""
        self.request_spares()
        if not self.is_stripping:
            segment = self._stock.strippable(self._writer.jobs.durable)
            if segment is not None:
                self.is_stripping = True
                self._jobs.put(Job(STRIP, segment.number, segment.salt))
        names = self._stock.drop_ledgers(before_ms)
        if names:
            self._jobs.put(Job(DROP, names=names))

    def request_spares(self) -> None:
        """Request missing spare segments."""
        if not self._spares.asked and self._spares.is_missing:
            self._spares.asked = True
            self._jobs.put(Job(TOP_UP))

    def keep(self, names: list[str], gone: list[str]) -> bool:
        """Keep files in the home, and wait for it: see Journal.keep."""
        self._jobs.put(Job(KEEP, names=names, gone=gone))
        self.finish()
        return not self._writer.has_failed

    def take_results(self) -> list[str]:
        """Take in what was finished; return texts about problems."""
        problems: list[str] = []
        while not self._done.empty():
            done = self._done.get()
            if done.problem:
                problems.append(done.problem)
            if done.job.kind == CHECKPOINTED:
                self._checkpointed(done)
            elif done.job.kind == STRIP:
                self._stripped(done)
        return problems

    def _checkpointed(self, done: Done) -> None:
        self.is_checkpointing = False
        if not done.problem:
            job = done.job
            name = checkpoint_name(job.position)
            others = [n for n in self._checkpoints if n != name and n not in job.names]
            self._checkpoints = [name, *others]
            older = parsed_checkpoint(others[0]) if others else None
            self._stock.checkpointed(job.position, older or 0)

    def _stripped(self, done: Done) -> None:
        job = done.job
        self.is_stripping = False
        if done.problem and not done.full:
            self._stock.give_up_stripping(job.number)
        elif not done.problem:
            if self._reader.discard_file(job.number):
                self._jobs.put(Job(CLOSE))
            name = ledger_name(job.number, job.salt)
            self._stock.stripped(job.number, name, done.size, job.time_ms)

    def finish(self) -> None:
        """Wait until all jobs queued so far have ended."""
        ended = self._threads.event()
        self._jobs.put(Job(_TELL, ended=ended))
        while self._worker.is_alive() and not ended.wait(0.1):
            pass

    def stop(self) -> None:
        """Finish the queued jobs and end the thread."""
        if self._worker.is_alive():
            self._jobs.put(Job(_STOP))
            self._worker.join()

    # -- on the cleaner's

    def _run(self) -> None:
        while True:
            job = self._jobs.get()
            if job.kind == _STOP:
                return
            if job.ended is not None:
                job.ended.set()
                continue
            try:
                self._done.put(self._with_reserve(job))
            except OSError as failure:
                self._writer.fail(failure)
                self._done.put(Done(job, str(failure)))
            except BaseException as bug:
                self._writer.fail(OSError(errno.EIO, f"the journal's cleaner ended: {bug!r}"))
                raise

    def _with_reserve(self, job: Job) -> Done:
        """Run a job; if the disk is full, free one reserved segment and try again."""
        try:
            return self._carried_out(job)
        except OSError as error:
            if not is_full(error) or not self._spares.give_up_one():
                if is_full(error):
                    return Done(job, str(error), True)
                raise
        try:
            return self._carried_out(job)
        except OSError as error:
            if is_full(error):
                return Done(job, str(error), True)
            raise

    def _carried_out(self, job: Job) -> Done:
        if job.kind == CHECKPOINTED:
            return self._checkpoint(job)
        if job.kind == STRIP:
            return self._strip(job)
        if job.kind == ANCHOR:
            return self._anchor(job)
        if job.kind == DROP:
            self._drop(job)
        elif job.kind == KEEP:
            self._keep(job)
        elif job.kind == CLOSE:
            self._reader.close_discarded()
        else:
            self._spares.top_up()
        return Done(job, "")

    def _checkpoint(self, job: Job) -> Done:
        """Write a checkpoint once everything before it is on disk."""
        if self._writer.jobs.durable < job.position and not self._writer.sync():
            return Done(job, "the journal failed before the checkpoint's position was on disk")
        name = checkpoint_name(job.position)
        self._files.replace(self._folder, name, _checkpoint_chunks(job))
        if self._home is not None:
            self._home.put(self._folder, [name], job.names)
        for name in job.names:
            self._files.unlink(str(self._folder / name))
        job.records = []
        return Done(job, "")

    def _anchor(self, job: Job) -> Done:
        """Write an anchor once the journal has reached its position on disk."""
        assert job.anchor is not None
        if self._writer.jobs.durable < job.position and not self._writer.sync():
            return Done(job, "the journal failed before its end was on disk")
        self._files.replace(self._folder, anchors.FILE, [[job.anchor.encoded()]])
        return Done(job, "")

    def _strip(self, job: Job) -> Done:
        """Replace a sealed segment by its ledger. At every moment one of them is complete."""
        old = self._folder / segment_name(job.number, job.salt)
        name = ledger_name(job.number, job.salt)
        fd = self._files.open(str(old), os.O_RDONLY)
        try:
            self._files.replace(self._folder, name, _stripped_chunks(Columns(self._files, fd), job))
        except (BytesLost, LayoutError) as error:
            return Done(job, f"{old.name} is not stripped: {error}")
        finally:
            os.close(fd)
        if self._home is not None:
            self._home.put(self._folder, [name], [old.name])
        self._files.remove(self._folder, old.name)
        return Done(job, "", size=(self._folder / name).stat().st_size)

    def _keep(self, job: Job) -> None:
        if self._home is not None:
            there = [name for name in job.names if (self._folder / name).exists()]
            self._home.put(self._folder, there, job.gone)

    def _drop(self, job: Job) -> None:
        if self._home is not None:
            self._home.put(self._folder, [], job.names)
        for name in job.names:
            if (self._folder / name).exists():
                self._files.remove(self._folder, name)


def _checkpoint_chunks(job: Job) -> Iterator[list[bytes]]:
    packer = Packer(job.version)
    segment = job.position >> 32
    number = 0
    records = expanded(job.records)
    while chunk := list(islice(records, _CHECKPOINT_ROWS)):
        packer.load(chunk, REFERENCED)
        yield packer.finish(segment, 0, number, 0, job.position, job.time_ms, CHECKPOINT)
        number += 1
    yield [
        bare_block(
            segment, number, 0, job.time_ms, CHECKPOINT | SEALED, HEADER, job.position, job.version
        )
    ]


def _stripped_chunks(columns: Columns, job: Job) -> Iterator[list[bytes]]:
    """Yield the blocks of a segment up to its seal, whose time becomes the job's. Bodies with
    checksums of their own are not read.

    Raises LayoutError, BytesLost: the segment is damaged, or a sector of it bad, as far as its
    ledger needs it.
    """
    chunk: list[bytes] = []
    block = 0
    while True:
        at = columns.at
        found = columns.next()
        if found is None:
            raise LayoutError(f"no sound block at offset {at}")
        header, data = found
        if header.segment != job.number or header.salt != job.salt or header.block < block:
            raise LayoutError(f"another segment's block, or an older one, at offset {at}")
        block = header.block + 1
        chunk.append(stripped(data, header))
        if header.flags & SEALED:
            job.time_ms = header.time_ms
            break
        if len(chunk) >= _STRIP_BLOCKS:
            yield chunk
            chunk = []
    yield chunk


def stripped(data: bytes, header: Header) -> bytes:
    """Return a block without its raw bytes, with its original position in the header. data: the
    block up to raw."""
    body = data[HEADER : header.raw_at]
    checksum = crc32c(body) if header.version == WHOLE else header.body_crc
    return (
        Header(
            header.flags | STRIPPED, header.salt, header.segment, header.block,
            HEADER + len(body), header.rows, header.bounds, header.routes, 0, header.time_ms,
            header.position, checksum, 0, header.version,
        ).encoded()
        + body
    )  # fmt: skip
