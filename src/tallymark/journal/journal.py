"""The journal as the server sees it: one block per turn in, one position per block out.

Threads. The loop's thread packs blocks and hands them over (`commit`), and calls all other methods
here, too. The writer's thread writes and syncs. The cleaner's thread makes checkpoints, strips and
preallocates. Only making it, `recovered`, `start` and `close` wait for the disk, and `fetch` and
`relocate`, which read.

Space. A segment is preallocated. A turn never spans segments, so that a turn with a body of 128 MiB
makes its segment grow past `segment_bytes`; positions limit it to 4 GiB. Three spare segments are
made ahead. When no further one can be allocated and only two are left, `accepts_payloads` turns
false: the server then blocks publishers, while settlements continue into the two. A payload that is
committed nevertheless is written, too; a write that finds the disk full is a failed write.

Failure. After a failed write or fsync `on_failure` is called once, from a worker's thread, and no
later position is reported as synced. `commit` continues to accept blocks, which are discarded: the
server is expected to close its connections and end.

Bytes. The journal counts, per segment, the bytes of payloads that are still needed: `commit` adds,
`release` subtracts, and after a replay the engine calls `retain` once per live payload. A sealed
segment before a durable checkpoint that has no needed bytes is stripped: its rows stay, in a
.ledger file, until the retention time has passed. A ledger may then be deleted without harm to the
account, since each checkpoint has the totals of every queue (COUNTERS). A release takes effect once
its turn is on disk: before that a crash would bring the message back.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, final

from tallymark.engine.clock import in_wall_time
from tallymark.engine.errors import BytesLost as BytesLost
from tallymark.engine.ledger import moved_record, payload_record
from tallymark.engine.message import Payload
from tallymark.engine.record import Record
from tallymark.journal.cleaner import Cleaner
from tallymark.journal.files import Files
from tallymark.journal.home import Home
from tallymark.journal.packer import STORED, Packer
from tallymark.journal.reading import Reader, read_anchor
from tallymark.journal.recovery import JournalCorrupt, Opened
from tallymark.journal.spares import RESERVE, Spares
from tallymark.journal.stock import Segment, Stock
from tallymark.journal.threads import REAL, Threads
from tallymark.journal.writer import COMMIT, HOME_MODES, SYNC_MODES, Writer
from tallymark.stored import anchor as anchors
from tallymark.stored.anchor import Anchor
from tallymark.stored.layout import FORMAT, HEADER, RELOCATED, SEALED, bare_block
from tallymark.stored.segment import (
    segment_name,
)
from tallymark.units import EngineMs, Ms, Position, WallMs

SEGMENT_BYTES: Final = 64 * 1024 * 1024
MIN_SEGMENT_BYTES: Final = 4096
_FILES_SET_ASIDE: Final = 16
"""Number of descriptors reserved for the journal: the writer's, the cleaner's, and a few for
reading."""
_LIMIT: Final = (1 << 32) - HEADER


@final
class Journal:
    """A journal. Order of use: make it, read all of `recovered`, `retain` live payloads, `start`,
    commits. One thread."""

    def __init__(
        self,
        folder: Path,
        on_failure: Callable[[OSError], None],
        sync: str = COMMIT,
        interval_ms: int = 100,
        segment_bytes: int = SEGMENT_BYTES,
        accept_loss: bool = False,
        files: Files | None = None,
        version: int = FORMAT,
        threads: Threads = REAL,
        opened: Opened | None = None,
        home: Home | None = None,
    ) -> None:
        """Open a data folder, creating it if need be. Nothing in it is changed before `start`.

        on_failure: called from a worker's thread; see the module's text.
        version: of the blocks that are written; see stored/layout.py.
        files, threads: the machine's, or others.
        opened: the folder, where it is open already; `accept_loss` was said then.
        home: of which the folder, as it is now, is a copy.
        Raises FolderInUse, ValueError for a setting out of range, OSError.
        """
        modes = SYNC_MODES if home is None else HOME_MODES
        if sync not in modes:
            raise ValueError(f"sync {sync!r}, expected one of {', '.join(modes)}")
        if not MIN_SEGMENT_BYTES <= segment_bytes < _LIMIT:
            raise ValueError(f"segment of {segment_bytes} bytes, expected {MIN_SEGMENT_BYTES} or "
                             f"more and less than {_LIMIT}")  # fmt: skip
        if opened is None:
            opened = Opened(folder, accept_loss)
        self._opened = opened
        self._recovery = opened.recovery
        found = opened.recovery.folder
        files = self._files = files if files is not None else Files()
        self._folder = folder
        self._home = home
        self._segment_bytes = segment_bytes
        self._stock = Stock(found)
        self._spares = Spares(folder, files, segment_bytes, found.spares, threads)
        self.signal = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        """Number of an eventfd that can be read once `synced` has grown, until `hear`. It is open
        until `close`."""
        self._writer = Writer(
            folder, files, self._spares, sync, interval_ms, self.signal, on_failure, threads, home
        )
        self.reader = Reader(folder, files, self._writer, self._stock.name_of)
        self._cleaner = Cleaner(
            folder, files, self._spares, self._writer, self._stock, self.reader,
            [name for _, name in found.checkpoints],
            threads,
            home,
        )  # fmt: skip
        self._packer = Packer(version)
        self._segment = Segment(0, 0, "")
        """The one being written."""
        self._blocks = 0
        """Number of its blocks."""
        self._handed_bytes = 0
        self.sync = sync
        """Sync mode: "commit", "interval" or "never"; with a home "commit" or "both"."""
        self.end = Position(0)
        """Position behind everything committed."""
        self.problems: list[str] = []
        """Texts about problems that did not end the journal, for the log. The reader clears the
        list."""

    # -- recovery ---------------------------------------------------------------------------

    def recovered(self) -> Iterator[Record]:
        """Yield the records in the folder: see Recovery.records for order and errors."""
        return self._recovery.records()

    def retain(self, position: int, size: int) -> bool:
        """Mark the bytes of a live payload as needed. Called after the replay, once per live
        payload.

        False when they are gone, which only damage explains: `start` then refuses, unless the
        loss is accepted, and the engine drops the messages as DROPPED_LOST (releasing them again
        or not: both are right).
        """
        return self._stock.retain(position, size)

    def retain_packed(self, payload: Payload) -> list[int]:
        """Mark the bytes of each message of a packed payload as needed; return the positions of
        missing ones."""
        pack = payload.pack
        assert pack is not None
        return self._stock.retain_all(pack.positions, payload.cuts)

    def missing(self, problem: str) -> None:
        """Note after the replay that something is missing. `start` refuses then, unless the loss is
        accepted."""
        self._recovery.missing(problem)

    def unbalanced(self, problems: list[str]) -> None:
        """Note after the replay that accounts do not balance. An earlier start may have accepted
        this."""
        if self._recovery.has_losses:
            self.problems.extend(problems)
            return
        for problem in problems:
            self._recovery.missing(problem)

    @property
    def anchor(self) -> Anchor | None:
        """Return, after the replay, the anchor that names more than was found now; None if there is
        none."""
        return self._recovery.anchor if self._recovery.is_behind else None

    @property
    def is_anchored(self) -> bool:
        """Return whether the last anchor requested covers everything committed so far."""
        return self._cleaner.anchored == self.end

    def write_anchor(
        self,
        queues: list[tuple[int, str, str, int]],
        subscriptions: list[tuple[int, str, int]],
        now_ms: WallMs,
    ) -> None:
        """Write an anchor that says that the journal reaches to `end`, and the state there, once
        that is on disk: see anchor.py. Called between turns, with everything committed."""
        self._cleaner.write_anchor(Anchor(self.end, now_ms, queues, subscriptions))

    def leave_anchor(self, now_ms: WallMs) -> None:
        """Write an anchor at once that says how far the journal was safe, with the state of the one
        before: for a leader that ends because its home lacks what was safe. Raises OSError."""
        before, _ = read_anchor(self._folder)
        if before.position < self.durable:
            anchor = Anchor(self.durable, now_ms, before.queues, before.subscriptions)
            self._files.replace(self._folder, anchors.FILE, [[anchor.encoded()]])

    @property
    def damaged(self) -> set[int]:
        """Return, after the replay, the positions of payloads whose bytes are damaged."""
        return self._recovery.unreadable

    def start(self) -> None:
        """Repair what a crash left, make a new segment, start the threads.

        Nothing is ever appended to an old segment: a torn one is written anew up to its last
        sound block and sealed. Raises JournalCorrupt when `retain` found bytes gone, OSError.
        """
        recovery = self._recovery
        assert recovery.is_complete, "use up `recovered` first: it finds what must be repaired"
        for problem in self._stock.losses():
            recovery.missing(problem)
        self._files.set_aside(_FILES_SET_ASIDE)
        if recovery.gone:
            raise JournalCorrupt(self._folder, recovery.gone, recovery.remedy)
        self.problems.extend(recovery.problems)
        self.reader.unreadable.update(recovery.unreadable)
        repaired = recovery.repair(self._files, self._spares)
        for number, size, time_ms in repaired:
            self._stock.repaired(number, size, time_ms)
        damaged = recovery.damaged_checkpoints()
        for name in damaged:
            self._cleaner.forget_checkpoint(name)
        if self._home is not None and (repaired or damaged):
            names = [self._stock.name_of(number) for number, _, _ in repaired]
            self._home.put(self._folder, names, damaged)
        if recovery.is_behind:  # the loss was accepted: the anchor no longer holds
            self._files.unlink(str(self._folder / anchors.FILE))
        newest = self._stock.newest
        if newest:
            self._files.sync_file(self._folder / self._stock.name_of(newest))
        self._stock.checkpointed(recovery.checkpoint, recovery.older)
        self._begin(recovery.next_segment(newest))
        self._writer.start(self._segment.number, self._segment.salt)
        self._spares.top_up()
        self._cleaner.start()

    # -- the turn ---------------------------------------------------------------------------

    def commit(self, records: list[Record], now_ms: WallMs) -> Position:
        """Pack one block and hand it to the writer. Every payload of a PAYLOAD record gets its
        position. Returns the end of the block; the block is safe once `synced` reaches it.

        Raises ValueError, having changed nothing, when a payload's bytes are not in memory or the
        block would reach 4 GiB.
        """
        packer = self._packer
        length = packer.load(records, STORED)
        if length > _LIMIT:
            raise ValueError(f"turn of {length} bytes, a segment holds {_LIMIT}")
        segment = self._segment
        if segment.size and segment.size + length + HEADER > self._segment_bytes:
            self._roll()
            segment = self._segment
        buffers = packer.finish(
            segment.number, segment.size, self._blocks, segment.salt, self._writer.jobs.durable,
            now_ms, 0,
        )  # fmt: skip
        self._hand_over(buffers, length)
        segment.live += packer.raw_bytes
        segment.time_ms = now_ms
        if self._stock.released:
            self._stock.turn_ended(self.end)
        return self.end

    def _hand_over(self, buffers: list[bytes], length: int) -> None:
        segment = self._segment
        offset = segment.size
        segment.size = offset + length
        self._blocks += 1
        self._handed_bytes += length
        self.end = Position(segment.number << 32 | segment.size)
        self._writer.write(segment.number, segment.salt, offset, length, buffers)

    def _roll(self) -> None:
        """Seal the segment and continue in a new one."""
        self._seal()
        self._segment.sealed = True
        self._begin(self._segment.number + 1)
        self.top_up()

    def _begin(self, number: int) -> None:
        salt = int.from_bytes(self._files.urandom(4), "little")
        self._segment = self._stock.begun(number, salt, segment_name(number, salt))
        self._blocks = 0
        self.end = Position(number << 32)

    def _seal(self) -> None:
        segment = self._segment
        seal = bare_block(
            segment.number, self._blocks, segment.salt, segment.time_ms, SEALED, HEADER,
            self._writer.jobs.durable, self._packer.version,
        )  # fmt: skip
        self._hand_over([seal], HEADER)

    @property
    def version(self) -> int:
        """Format version of the blocks that are written."""
        return self._packer.version

    @version.setter
    def version(self, version: int) -> None:
        self._packer.version = version

    @property
    def synced(self) -> Position:
        """Position up to which messages may be confirmed. sync=commit: all before it is on disk.
        Otherwise: all before it was written."""
        return self._writer.jobs.synced

    def hear(self) -> None:
        """Note that the `signal` was seen: it is silent until `synced` grows again."""
        try:
            os.eventfd_read(self.signal)
        except BlockingIOError:
            return  # it is silent already

    @property
    def durable(self) -> Position:
        """Position up to which everything is on disk, in every mode."""
        return self._writer.jobs.durable

    @property
    def written(self) -> Position:
        """Position up to which everything was passed to the operating system."""
        return self._writer.jobs.written

    @property
    def syncs(self) -> int:
        """Count of calls of fdatasync so far."""
        return self._writer.jobs.syncs

    def sync_times(self) -> tuple[list[int], int]:
        """Return how many calls of fdatasync took how long, and how long all of them together:
        counts and total of a Histogram of microseconds."""
        return self._writer.jobs.sync_times()

    @property
    def pending_bytes(self) -> int:
        """Bytes committed and not yet written; they are held in memory."""
        return self._handed_bytes - self._writer.jobs.written_bytes

    def keep_cached(self, is_so: bool) -> None:
        """Say whether what is written may be read back soon, and is to stay in the system's cache.
        Otherwise blocks with large bodies leave it once they are synced: those are in memory as
        long as they are needed, and what the system has of them is one copy more."""
        self._writer.jobs.keeps_cached = is_so

    def flush(self) -> bool:
        """Wait until everything committed is on disk, in every mode. May be called from any thread.
        False: it never will be, because a write has failed."""
        return self._writer.sync()

    @property
    def trouble(self) -> str:
        """Return why nothing becomes safe in the journal's home, for humans; empty: it does, or
        there is no home."""
        return "" if self._home is None else self._home.trouble

    def keep(self, names: list[str], gone: list[str]) -> bool:
        """Keep files of the folder that are not the journal's own in its home, and let go of
        others; wait until that is safe. From any thread but the loop's. False: the journal has
        failed."""
        return self._cleaner.keep(names, gone)

    @property
    def waits_s(self) -> float:
        """Return for how long a change has been waiting for the journal's home, seconds."""
        return 0.0 if self._home is None else self._home.waits_s

    @property
    def has_home(self) -> bool:
        """Return whether the journal has a home outside of its folder."""
        return self._home is not None

    def end_waiting(self) -> None:
        """Fail, instead of waiting any longer for the journal's home to be back."""
        if self._home is not None:
            self._home.end()

    @property
    def accepts_payloads(self) -> bool:
        """False while the disk is full and only the reserve is left: publishers must be blocked."""
        return not self._spares.full or self._spares_left() > RESERVE

    @property
    def is_short(self) -> bool:
        """True while segments are used up faster than they are made and the disk may turn out to be
        full: publishers should wait a moment."""
        return self._spares_left() < RESERVE

    def _spares_left(self) -> int:
        """Return the count of spares after everything committed is written."""
        return len(self._spares.names) - (self._segment.number - self._writer.number)

    @property
    def has_run_out(self) -> bool:
        """Return whether the disk was found full or reserved descriptors are in use, so that
        `accepts_payloads` and `lacks_files` are worth a look."""
        return self._spares.full or self._files.is_short

    @property
    def lacks_files(self) -> bool:
        """Return whether the process had no descriptor left, so that the journal uses its reserved
        ones."""
        return self._files.is_short

    def restore_files(self) -> None:
        """Reserve descriptors again, if there are any. Raises OSError for any other reason."""
        self._files.restore()

    @property
    def failed(self) -> bool:
        return self._writer.has_failed

    def free_bytes(self) -> int:
        """Return the free bytes on the file system of the data folder, without preallocated
        space."""
        return self._files.free_bytes(str(self._folder))

    # -- bytes ------------------------------------------------------------------------------

    def fetch(self, payload: Payload) -> bytes:
        """Return the bytes of a payload: see Reader.fetch."""
        return self.reader.fetch(payload)

    def release(self, position: int, size: int) -> None:
        """Release the bytes of a whole payload. Takes effect once the next commit, or the last one
        before `clean`, is on disk."""
        self._stock.release(position, size)

    def relocate(self, payloads: list[Payload], now_ms: EngineMs, ahead_ms: int = 0) -> Position:
        """Write live payloads again, so that their old segment can be stripped.

        Commits one block with a second copy of each and a MOVED row that names the first; every
        payload has its new position at once. A crash before the block is on disk brings back the
        old positions, whose bytes are still there: a release counts only once it is on disk. Does
        nothing while a checkpoint is being written, since that must see one or the other. What
        cannot be read stays where it is, and is not tried again before somebody else has read it.
        Reads the bytes here: give it a few MiB at a time. now_ms: engine time, which wall time is
        `ahead_ms` ahead of. Returns as `commit`.
        """
        if self._cleaner.is_checkpointing or not payloads:
            return self.end
        moving, copies, records = _second_copies(payloads, self.reader, now_ms, self.problems)
        if not moving:
            return self.end
        self.commit(in_wall_time(records, Ms(ahead_ms)), WallMs(now_ms + ahead_ms))
        for p, copy in zip(moving, copies, strict=True):
            self._stock.release(p.position, p.size)
            p.position = copy.position
            p.sum = copy.sum
        return self.end

    def sparse(self) -> list[int]:
        """Return the numbers of sealed segments before the checkpoint of which less than a quarter
        is live: the live payloads in them are worth a `relocate`. position >> 32 is a payload's
        segment."""
        return [] if self._cleaner.is_checkpointing else self._stock.sparse()

    # -- housekeeping -----------------------------------------------------------------------

    def checkpoint(self, records: list[Record], now_ms: WallMs) -> bool:
        """Store the state as of `end` in a checkpoint file. The cleaner writes it once everything
        before `end` is on disk. Called between turns, with everything committed.

        PAYLOAD records stand for bytes where they are: no byte of a message is written again. The
        records are packed later; their payloads must not be changed (relocate does not).
        False, having done nothing, while another one is being written or after a failure.
        """
        return self._cleaner.checkpoint(self.end, records, now_ms, self._packer.version)

    def clean(self, now_ms: EngineMs, ledger_retention_ms: int) -> None:
        """Do a step of cleaning: take in what the cleaner finished, give it the next segment to
        strip and the ledgers to delete. Called between turns; does not wait."""
        self.problems.extend(self._cleaner.take_results())
        self._writer.forget_written()
        self._stock.turn_ended(self.end)
        if not self._writer.has_failed:
            self._cleaner.clean(now_ms - ledger_retention_ms)

    def finish_cleaning(self) -> None:
        """Wait until all checkpoints and cleaning requested so far are on disk, for a clean stop
        and for tests. `clean` takes the results in."""
        self._cleaner.finish()

    def top_up(self) -> None:
        """Request missing spare segments, without waiting."""
        self._cleaner.request_spares()

    @property
    def is_stripping(self) -> bool:
        """Return whether a segment is being stripped. The next `clean` after its end begins
        another."""
        return self._cleaner.is_stripping

    @property
    def checkpoint_position(self) -> int:
        """Position of the newest durable checkpoint, 0 for none."""
        return self._stock.checkpoint

    @property
    def disk_bytes(self) -> int:
        """Bytes of all segments and ledgers, without preallocated space."""
        return self._stock.bytes

    def close(self, clean: bool = True) -> None:
        """Write what was handed over, end the threads, release the folder.

        clean: seal the segment, so that the next start has nothing to repair. Without it the
        folder is left as a crash between two turns leaves it.
        """
        if self._segment.number:
            if clean and self._writer.sync():
                self._seal()
            self._cleaner.stop()
            self._writer.stop()
        if self.signal >= 0:
            os.close(self.signal)
            self.signal = -1
        if self._home is not None:
            self._home.close()
        self.reader.close()
        self._files.give_back()
        self._opened.release()


def _second_copies(
    payloads: list[Payload], reader: Reader, now_ms: EngineMs, problems: list[str]
) -> tuple[list[Payload], list[Payload], list[Record]]:
    """Return the payloads that can be read, each once, a copy of each, and the records that store
    the copies. Texts about others are added to `problems`."""
    moving: list[Payload] = []
    copies: list[Payload] = []
    records: list[Record] = []
    for p in {id(p): p for p in payloads}.values():
        if p.position in reader.unreadable:
            continue
        try:
            raw = p.raw if p.raw is not None else reader.fetch(p)
        except (BytesLost, OSError) as error:
            problems.append(f"not moved out of its segment: {error}")
            continue
        moving.append(p)
        copy = _copied(p, raw)
        copies.append(copy)
        records.append(payload_record(copy, RELOCATED))
        records.append(moved_record(copy, p.position, now_ms))
    return moving, copies, records


def _copied(payload: Payload, raw: bytes) -> Payload:
    copy = Payload(
        payload.format, raw, payload.cuts, payload.route, payload.routes, payload.first_id,
        payload.arrived_ms, payload.persistent, payload.largest_frame,
    )  # fmt: skip
    copy.sum = payload.sum
    return copy
