"""Recovery: a data folder read back into records, from the newest sound checkpoint and all later
blocks, in order.

Each segment is read as a whole, and no object is made per message. Nothing is written before
`repair`, which `Journal.start` calls: it makes good what a crash left.

A folder that another broker's blocks are still being copied into is read in steps: `growth` yields
what came since the last step, `finish` ends the replay. A start is one such step.

A segment is sealed and synced before the first byte of the next is written. So only the newest
segment with blocks can have a torn tail; any other that does not end with its seal is corrupt.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, final

from tallymark.engine.message import Payload
from tallymark.engine.record import Record
from tallymark.journal.files import NOT_LINKED, Files, FolderLock
from tallymark.journal.reading import read_anchor, read_file, read_head
from tallymark.journal.spares import Spares, is_full
from tallymark.journal.unpacking import Unpacker
from tallymark.stored.layout import (
    HEADER,
    LOST,
    SEALED,
    STRIPPED,
    Header,
    bare_block,
    damaged,
    header_at,
)
from tallymark.stored.segment import (
    CORRUPT,
    SEAL,
    Verdict,
    is_sound_checkpoint,
    is_spare,
    is_unfinished,
    known_header,
    parsed_checkpoint,
    parsed_name,
    scan,
)

RESTORE_FILES: Final = (
    "Restore the files, or start with --accept-loss to go on without what is named"
)
"""Remedy for a journal whose only home is its folder."""
TAKE_AWAY: Final = "Take the files of the other journal out of the folder: nothing was changed"
"""Remedy for a folder with the files of two journals, whatever losses are accepted."""


class JournalCorrupt(Exception):
    """Bytes that had been synced are damaged or gone. `problems` name each loss for humans, and
    `remedy` says what can be done."""

    def __init__(self, folder: Path, problems: list[str], remedy: str) -> None:
        super().__init__(f"journal in {folder} is corrupt: {'; '.join(problems)}. {remedy}")
        self.problems = problems


@final
class SegmentFile:
    """One segment of a data folder, as described by its name and size."""

    __slots__ = ("name", "number", "salt", "size", "stripped", "time_ms")

    def __init__(self, path: Path, number: int, salt: int) -> None:
        self.number = number
        self.salt = salt
        self.name = path.name
        self.stripped = path.suffix == ".ledger"
        self.time_ms = 0
        """Wall time of the seal; 0 if the file does not end with one, or if no turn wrote it."""
        with open(path, "rb") as file:
            self.size = file.seek(0, os.SEEK_END)
            if self.size >= HEADER:
                file.seek(self.size - HEADER)
                # Whoever reads the blocks refuses a version that is not known.
                seal = known_header(read_head(file), 0)
                if seal is not None and seal.flags & SEALED:
                    self.time_ms = seal.time_ms


@final
class Folder:
    """The files of a data folder."""

    __slots__ = ("checkpoints", "doubles", "leftovers", "path", "segments", "spares")

    def __init__(self, path: Path) -> None:
        self.path = path
        self.segments: dict[int, SegmentFile] = {}
        """Segments by number, ascending. Where a crash left a segment and its ledger, the ledger:
        it was complete before it got its name."""
        self.checkpoints: list[tuple[int, str]] = []
        """Checkpoints as position and name, newest first."""
        self.spares: list[str] = []
        self.leftovers: list[str] = []
        """Names of files that a crash left unfinished or superseded."""
        self.doubles: list[str] = []
        """Texts about segments of the same number that have nothing to do with each other. No crash
        leaves such: somebody has put files of two journals into the folder."""
        segments: list[SegmentFile] = []
        for name in sorted(os.listdir(path)):
            named = parsed_name(name)
            position = parsed_checkpoint(name)
            if named is not None:
                segments.append(SegmentFile(path / name, named[0], named[1]))
            elif position is not None:
                self.checkpoints.insert(0, (position, name))
            elif is_unfinished(name):
                self.leftovers.append(name)
            elif is_spare(name):
                self.spares.append(name)
        for segment in segments:
            known = self.segments.get(segment.number)
            if known is None:
                self.segments[segment.number] = segment
            elif known.salt != segment.salt:
                self.doubles.append(
                    f"segment {segment.number} is there twice, as {known.name} and as "
                    f"{segment.name}"
                )
            elif known.stripped:
                self.leftovers.append(segment.name)
            else:
                self.leftovers.append(known.name)
                self.segments[segment.number] = segment


@final
class Repair:
    """The repair of a segment before a new one is started: these stretches of the old file, with a
    LOST block between two of them, and a seal at the end."""

    __slots__ = ("blocks", "corrupt", "is_doubt", "segment", "stretches", "time_ms")

    def __init__(self, segment: SegmentFile, corrupt: bool) -> None:
        self.segment = segment
        self.corrupt = corrupt
        """True if the damaged file is to be kept in quarantine/."""
        self.is_doubt = False
        """True if it has its seal, and only the lack of later blocks or preallocated space behind
        the seal speaks against it."""
        self.stretches: list[tuple[int, int, int]] = []
        """Start and end of each sound stretch, and the block number that follows it."""
        self.blocks = 0
        """Block number of the seal."""
        self.time_ms = 0


@final
class Recovery:
    """One replay of a folder. Its results `known_synced`, `repairs` and `problems` are complete
    when `records` is exhausted."""

    __slots__ = (
        "_accept_loss", "_anchor_problem", "_has_begun", "_old_data", "_old_headers",
        "_old_number", "_payloads", "_reached", "_tail", "_unpacker", "anchor", "checkpoint", "end",
        "folder", "gone", "has_losses", "is_complete", "known_synced", "older", "problems",
        "remedy", "repairs", "unreadable",
    )  # fmt: skip

    def __init__(self, folder: Folder, accept_loss: bool, remedy: str = RESTORE_FILES) -> None:
        self.folder = folder
        self._accept_loss = accept_loss
        self.remedy = remedy
        """Text for humans: what can be done about losses that are not accepted."""
        self.checkpoint = 0
        """Position of the checkpoint used, 0 for none."""
        self.older = 0
        """Position of the next older checkpoint, 0 for none."""
        self.known_synced = 0
        self.problems: list[str] = []
        """Texts about damage that was worked around or accepted as a loss."""
        self.gone: list[str] = []
        """Texts about bytes of live messages that are missing and not accepted as lost."""
        self.anchor, self._anchor_problem = read_anchor(folder.path)
        """Anchor: the position up to which everything was on disk, stored outside of the
        journal."""
        self.end = 0
        """Position up to which the journal was found: behind its last block; behind a seal that is
        the begin of the next segment, whether that is there or not."""
        self.has_losses = False
        """True if an earlier start accepted the loss of blocks: a LOST block is in their place."""
        self.unreadable: set[int] = set()
        """Positions of payloads whose bytes are damaged; the rest of their blocks is sound."""
        self.repairs: list[Repair] = []
        self.is_complete = False
        """True once all records were returned; only then are the repairs known."""
        self._tail = 0
        self._has_begun = False
        self._reached = 0
        """Number of the first segment that `growth` reads again: that which has no seal yet."""
        self._payloads: dict[int, Payload] = {}
        self._unpacker = Unpacker(self._payloads, False, self._find_older)
        self._old_number = 0
        """Number of the segment that `_find_older` searched last; its content is cached."""
        self._old_data = b""
        self._old_headers: list[Header] = []

    def records(self) -> Iterator[Record]:
        """Yield every record, in order.

        Payloads are without bytes; rows that mean the same one share it, however far apart. So
        every payload since the checkpoint is kept until the last record was given, and none
        afterwards: only whoever replays knows which of them a later row may still mean (a lease,
        a dead letter), and mostly works that out at the end.
        After an accepted loss a row can lack its payload and sequences can be missing.

        Raises JournalCorrupt, possibly after records were given: they are then void. LayoutError
        for blocks of a later format version.
        """
        yield from self.growth()
        self.finish()

    def growth(self) -> Iterator[Record]:
        """Yield the records that are there and were not yet given; see `records`. They continue the
        earlier ones, whose payloads they may mean."""
        if not self._has_begun:
            self._has_begun = True
            if self.folder.doubles:
                raise JournalCorrupt(self.folder.path, self.folder.doubles, TAKE_AWAY)
            if self._anchor_problem:
                self.problems.append(self._anchor_problem)
            for found in self._checkpointed():
                yield from found
            self.end = self.checkpoint
        later = self._later_segments()
        self._tail = self._newest_with_blocks(later)
        known = max(self.checkpoint, self._tail << 32, self.anchor.position)
        self.known_synced = max(self.known_synced, known)
        if (
            self.repairs
            and self.repairs[-1].is_doubt
            and self.repairs[-1].segment.number < self._tail
        ):
            self.repairs.pop()
        for segment in later:
            if segment.number >= self._reached:
                for found in self._replayed(segment):
                    yield from found

    def look_again(self) -> None:
        """List the folder again: another broker's segments in it have grown, or there are more of
        them."""
        self.folder = Folder(self.folder.path)

    def finish(self) -> None:
        """End the replay: no further blocks belong to it."""
        if self.is_behind:
            self.missing(self.behind_text())
        self._unpacker.apply_moves()
        self._payloads.clear()
        self._old_data = b""
        self._old_headers.clear()
        self.is_complete = True

    def _checkpointed(self) -> Iterator[list[Record]]:
        for i, (position, name) in enumerate(self.folder.checkpoints):
            data = read_file(self.folder.path / name)
            if not is_sound_checkpoint(data):
                self.problems.append(f"checkpoint {name} is damaged, going back to an older one")
                continue
            headers, _, _ = scan(data, salt=0)
            described = headers[0].synced
            if described != position:
                self.problems.append(
                    f"checkpoint {name} describes position {described:#x}, not the one of its name:"
                    " going back to an older one"
                )
                continue
            self.checkpoint = position
            if i + 1 < len(self.folder.checkpoints):
                self.older = self.folder.checkpoints[i + 1][0]
            for header in headers:
                yield self._unpacker.records(data, header)
            return

    @property
    def is_behind(self) -> bool:
        """Return, after the replay, whether less was found than had been on disk."""
        return self.end < self.anchor.position

    def behind_text(self) -> str:
        """Return a text about what is missing at the end."""
        first = (max(self.end, 1) - 1 >> 32) + 1
        last = self.anchor.last_segment
        what = f"segment {last} is"
        if last in self.folder.segments:
            what = f"the end of segment {last} is"
        elif first < last:
            what = f"segments {first} to {last} are"
        return (
            f"the journal ends at position {self.end:#x}, and everything up to "
            f"{self.anchor.position:#x} was on disk at {self.anchor.time_ms} ms: {what} gone"
        )

    def _find_older(self, position: int) -> Payload | None:
        """Find a payload that is before the checkpoint and is not named by it: that of a transient
        message whose bytes were stored to save memory, and which was later leased, or dead-lettered
        to a queue that survives a restart."""
        if position >= self.checkpoint:
            return None
        number = position >> 32
        if number != self._old_number:
            segment = self.folder.segments.get(number)
            self._old_number = number
            self._old_data = b""
            self._old_headers = []
            if segment is not None:
                self._old_data = read_file(self.folder.path / segment.name)
                self._old_headers = scan(self._old_data, number, segment.salt)[0]
        block: Header | None = None
        for header in self._old_headers:
            if header.position > position:
                break
            block = header
        if block is None:
            return None
        inside: dict[int, Payload] = {}
        Unpacker(inside, False).records(self._old_data, block)
        found = inside.get(position)
        if found is not None:
            self._payloads[position] = found
        return found

    def _later_segments(self) -> list[SegmentFile]:
        """Return the segments to replay. Their numbers must be consecutive from the checkpoint's
        on."""
        first = max(self.checkpoint >> 32, 1)
        found = [s for s in self.folder.segments.values() if s.number >= first]
        expected = first
        for segment in found:
            if segment.number != expected:
                self._lost(gap_text(expected, segment.number - 1, self.checkpoint))
            expected = segment.number + 1
        if not found and self.checkpoint & 0xFFFFFFFF:
            self._lost(f"segment {first} is missing, which the checkpoint continues")
        return found

    def next_segment(self, newest: int) -> int:
        """Return the number of the segment that the journal goes on with. newest: that of the last
        one that is there, 0 for none. A home knows nothing of a segment without blocks: with a
        checkpoint at its begin it is begun anew."""
        number = self.checkpoint >> 32
        if newest < number and not self.checkpoint & 0xFFFFFFFF:
            return number
        return max(newest, number) + 1

    def _newest_with_blocks(self, segments: list[SegmentFile]) -> int:
        for segment in reversed(segments):
            with open(self.folder.path / segment.name, "rb") as file:
                header = header_at(read_head(file), 0)
            if header is not None and header.segment == segment.number:
                return segment.number
        return 0

    def _replayed(self, segment: SegmentFile) -> Iterator[list[Record]]:
        data = read_file(self.folder.path / segment.name)
        repair = Repair(segment, False)
        start = block = 0
        if self.repairs and self.repairs[-1].segment.number == segment.number:
            repair = self.repairs.pop()
            if repair.stretches:
                _, start, block = repair.stretches[-1]
        self._reached = segment.number
        while True:
            headers, end, verdict = scan(
                data, segment.number, segment.salt, self.known_synced, start, block
            )
            if headers:
                repair.blocks = headers[-1].block + 1
                repair.stretches.append((start, end, repair.blocks))
                repair.time_ms = headers[-1].time_ms
            for header in verdict.damaged:
                self._note_damage(segment, data, header)
            for header in headers:
                self.end = max(self.end, header.segment << 32 | header.at + header.length)
                self.has_losses = self.has_losses or header.flags & LOST != 0
                self.known_synced = max(self.known_synced, header.known_synced)
                if header.position >= self.checkpoint:
                    yield self._unpacker.records(data, header)
            if verdict.kind != CORRUPT:
                break
            repair.corrupt = True
            self._lost(_loss(segment, end, verdict, headers))
            if verdict.resume < 0:
                break
            start, block = verdict.resume, repair.blocks
        seal = headers[-1] if headers and verdict.kind == SEAL else None
        if seal is not None:
            self._reached = segment.number + 1
            self.end = max(self.end, self._reached << 32)
        if seal is None or repair.corrupt or end < len(data) or self._is_doubtful(seal):
            repair.is_doubt = seal is not None and not repair.corrupt
            self._needs(repair, headers)

    def _note_damage(self, segment: SegmentFile, data: bytes, header: Header) -> None:
        """Note messages whose bytes had been on disk and are damaged. The messages are known, and
        are delivered to nobody."""
        for at, size in damaged(data, header):
            self.unreadable.add(header.position + at)
            self.problems.append(
                f"{segment.name}: {size} bytes of messages at offset {header.at + at} are not "
                "those that were written"
            )

    def _is_doubtful(self, seal: Header) -> bool:
        """Return whether the content of a sealed segment may be missing on disk although it can be
        read: it survives a crash of the process, but perhaps no later crash of the machine."""
        return (
            seal.segment >= self._tail
            and seal.known_synced < seal.position
            and not (seal.flags & STRIPPED)
        )

    def _needs(self, repair: Repair, headers: list[Header]) -> None:
        if headers and headers[-1].flags & SEALED:
            start, end, _ = repair.stretches[-1]
            end -= HEADER
            repair.blocks -= 1
            if end > start:
                repair.stretches[-1] = (start, end, repair.blocks)
            else:
                repair.stretches.pop()
        self.repairs.append(repair)

    def damaged_checkpoints(self) -> list[str]:
        """Return the names of checkpoints that were passed over."""
        return [name for at, name in self.folder.checkpoints if at > self.checkpoint]

    def repair(self, files: Files, spares: Spares) -> list[tuple[int, int, int]]:
        """Repair what a crash left; return number, bytes and time of the last block of the segments
        that were written anew. What is damaged, and not just cut off, stays in the quarantine
        folder."""
        path = self.folder.path
        written: list[tuple[int, int, int]] = []
        for name in self.folder.leftovers:
            files.unlink(str(path / name))
        for repair in self.repairs:
            segment = repair.segment
            if repair.corrupt:
                _quarantine(files, path, segment.name)
            _replace(files, spares, path, segment.name, self.repaired(repair))
            size = (path / segment.name).stat().st_size
            written.append((segment.number, size, repair.time_ms))
        for name in self.damaged_checkpoints():
            _quarantine(files, path, name)
            files.unlink(str(path / name))
        files.sync_folder(path)
        return written

    def repaired(self, repair: Repair) -> list[bytes]:
        """Return the content that `repair` describes. LOST blocks keep later offsets unchanged."""
        segment = repair.segment
        data = read_file(self.folder.path / segment.name)
        buffers: list[bytes] = []
        at = block = 0
        for start, end, after in repair.stretches:
            if start > at:
                buffers.append(bare_block(segment.number, block, segment.salt, 0, LOST, start - at))
            buffers.append(data[start:end])
            at = end
            block = after
        position = segment.number << 32 | at
        buffers.append(
            bare_block(
                segment.number, block, segment.salt, repair.time_ms, SEALED, HEADER, position
            )
        )
        return buffers

    def missing(self, problem: str) -> None:
        """Note that bytes of a live message are missing."""
        if self._accept_loss:
            self.problems.append(problem)
        else:
            self.gone.append(problem)

    def _lost(self, problem: str) -> None:
        if not self._accept_loss:
            raise JournalCorrupt(self.folder.path, [problem], self.remedy)
        self.problems.append(problem)


@final
class Opened:
    """A data folder that is locked, and its replay, which may begin long before its journal."""

    __slots__ = ("_accept_loss", "_is_lent", "_lock", "_remedy", "path", "recovery")

    def __init__(
        self,
        path: Path,
        accept_loss: bool = False,
        under: Opened | None = None,
        remedy: str = RESTORE_FILES,
    ) -> None:
        """Open a data folder, creating it if need be.

        under: the same folder, locked already, whose lock outlives this one.
        remedy: what an operator can do where it is corrupt; that of `under`, where there is one.
        Raises FolderInUse, OSError.
        """
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path = path
        self._accept_loss = accept_loss
        self._remedy: str = remedy if under is None else under._remedy
        self._is_lent = under is not None
        self._lock: FolderLock = FolderLock(path) if under is None else under._lock
        try:
            self.begin_again()
        except OSError:
            self.release()
            raise

    def release(self) -> None:
        """Let go of the folder."""
        if not self._is_lent:
            self._lock.release()

    def begin_again(self) -> None:
        """Have a replay from the newest checkpoint. Raises OSError."""
        self.recovery = Recovery(Folder(self.path), self._accept_loss, self._remedy)


def gap_text(first: int, last: int, checkpoint: int) -> str:
    """Return a text about segments that are missing. Without a checkpoint nobody can tell whether
    they are what was lost: segments are let go of once a checkpoint stands for them."""
    text = f"segment {first} is missing"
    those = "it"
    if last > first:
        text = f"segments {first} to {last} are missing"
        those = "them"
    return text if checkpoint else f"{text}, and no sound checkpoint is there to stand for {those}"


def _loss(segment: SegmentFile, at: int, verdict: Verdict, headers: list[Header]) -> str:
    until = str(verdict.resume) if verdict.resume >= 0 else "its end"
    after = f", after block {headers[-1].block} of {headers[-1].time_ms} ms" if headers else ""
    return f"{segment.name}: bytes {at} to {until} are lost{after} ({verdict.reason})"


def _replace(files: Files, spares: Spares, folder: Path, name: str, buffers: list[bytes]) -> None:
    """Replace a file, using the space of a spare if the disk is full; the old file's space is free
    at once."""
    try:
        files.replace(folder, name, [buffers])
    except OSError as error:
        if not is_full(error) or not spares.give_up_one(0):
            raise
        files.replace(folder, name, [buffers])


def _quarantine(files: Files, folder: Path, name: str) -> None:
    """Keep a damaged file, as it was found, in the quarantine folder too."""
    place = folder / "quarantine"
    place.mkdir(mode=0o700, exist_ok=True)
    copy = place / name
    if not copy.exists():
        try:
            os.link(folder / name, copy)
        except OSError as error:
            if error.errno not in NOT_LINKED:
                raise
            files.replace(place, name, [[read_file(folder / name)]])
    files.sync_folder(place)
