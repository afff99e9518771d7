"""Verification of a data folder: its content, and whether it is sound. Used by
`tallymark journal verify DIR`.

Reads every byte, holds one segment in memory at a time, changes nothing and takes no lock: beside
a running broker the newest segment is seen as a crash at that moment would leave it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final, final

from tallymark.engine.record import Record
from tallymark.journal.reading import read_anchor, read_file, read_head
from tallymark.journal.recovery import Folder, SegmentFile, gap_text
from tallymark.journal.unpacking import Unpacker
from tallymark.stored import records
from tallymark.stored.layout import (
    LOST,
    SEALED,
    Header,
    LayoutError,
    damaged,
    row_kinds,
)
from tallymark.stored.segment import (
    BLANK,
    CORRUPT,
    is_sound_checkpoint,
    known_header,
    ledger_name,
    scan,
)

OPEN: Final = "open"
"""Verdict that segment.py calls blank: the segment in use, or one that a crash left between two
turns."""
OTHER_BYTES: Final = "are not those that were written"
"""Words of a problem about bodies alone: the block's rows are sound, and a broker serves without
the messages that the problem names."""


@final
class SegmentReport:
    """The report on one segment or ledger."""

    __slots__ = ("blocks", "bytes", "file_bytes", "first_ms", "last_ms", "name", "number",
                 "raw_bytes", "rows", "stripped", "verdict")  # fmt: skip

    def __init__(self, file: SegmentFile) -> None:
        self.name = file.name
        self.number = file.number
        self.stripped = file.stripped
        self.file_bytes = file.size
        self.bytes = 0
        """Bytes of sound blocks."""
        self.raw_bytes = 0
        self.blocks = 0
        """Count of blocks with rows, without seals and LOST blocks."""
        self.rows: dict[str, int] = {}
        """Count of rows by the name of their kind."""
        self.first_ms = 0
        """Wall time of the first block with rows; 0 without one."""
        self.last_ms = 0
        self.verdict = ""
        """Verdict: sealed, open (not sealed, nothing behind its blocks), torn or corrupt; see
        segment.py."""


@final
class Report:
    """The report on the whole folder."""

    __slots__ = ("checkpoints", "folder", "problems", "segments", "spares")

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.segments: list[SegmentReport] = []
        self.checkpoints: list[str] = []
        """Names of sound checkpoints, newest first."""
        self.spares = 0
        self.problems: list[str] = []
        """Texts about damage. A torn tail is no damage: it was never confirmed to anybody."""

    @property
    def is_journal(self) -> bool:
        """Return whether the folder contains any part of a journal."""
        return bool(self.segments or self.checkpoints or self.problems or self.spares)

    @property
    def is_sound(self) -> bool:
        return not self.problems

    @property
    def blocks(self) -> int:
        return sum(s.blocks for s in self.segments)

    @property
    def bytes(self) -> int:
        return sum(s.bytes for s in self.segments)

    @property
    def raw_bytes(self) -> int:
        return sum(s.raw_bytes for s in self.segments)

    @property
    def rows(self) -> dict[str, int]:
        """Count of rows by the name of their kind."""
        total: dict[str, int] = {}
        for segment in self.segments:
            _add(total, segment.rows)
        return total

    @property
    def first_ms(self) -> int:
        return min((s.first_ms for s in self.segments if s.blocks), default=0)

    @property
    def last_ms(self) -> int:
        return max((s.last_ms for s in self.segments if s.blocks), default=0)

    def as_dict(self) -> dict[str, object]:
        """Return plain values for `--json`."""
        return {
            "folder": str(self.folder),
            "sound": self.is_sound,
            "problems": self.problems,
            "checkpoints": self.checkpoints,
            "spares": self.spares,
            "blocks": self.blocks,
            "bytes": self.bytes,
            "raw_bytes": self.raw_bytes,
            "rows": self.rows,
            "first_ms": self.first_ms,
            "last_ms": self.last_ms,
            "segments": [
                {
                    "name": s.name,
                    "number": s.number,
                    "stripped": s.stripped,
                    "verdict": s.verdict,
                    "blocks": s.blocks,
                    "bytes": s.bytes,
                    "raw_bytes": s.raw_bytes,
                    "file_bytes": s.file_bytes,
                    "rows": s.rows,
                    "first_ms": s.first_ms,
                    "last_ms": s.last_ms,
                }
                for s in self.segments
            ],
        }


def verify(folder: Path) -> Report:
    """Read and judge everything in a data folder. Raises OSError if it cannot be read."""
    found = Folder(folder)
    report = Report(folder)
    report.spares = len(found.spares)
    report.problems += found.doubles
    checkpoint = 0
    names: dict[int, str] = {}
    for position, name in found.checkpoints:
        try:
            data = read_file(folder / name)
            is_sound = is_sound_checkpoint(data)
        except FileNotFoundError:
            continue  # a newer one has taken its place
        except LayoutError as error:
            report.problems.append(f"{name}: {error}")
            continue
        if is_sound:
            headers = scan(data, salt=0)[0]
            _learn_names(data, headers, names)
            if headers[0].synced != position:
                report.problems.append(
                    f"{name}: describes position {headers[0].synced:#x}, not the one of its name"
                )
                continue
            report.checkpoints.append(name)
            checkpoint = max(checkpoint, position)
        else:
            report.problems.append(f"{name}: damaged checkpoint")
    files = list(found.segments.values())
    _check_numbers(report, files, checkpoint)
    tail = _tail(folder, files)
    anchor, problem = read_anchor(folder)
    if problem:
        report.problems.append(problem)
    newest = files[-1].number if files else 0
    if lacks := anchor.lacks(newest):
        report.problems.append(lacks)
    known = max(checkpoint, tail << 32, anchor.position)
    for file in files:
        segment = _if_there(report, file, known, names)
        if segment is not None:
            report.segments.append(segment)
    return report


def _if_there(
    report: Report, file: SegmentFile, known: int, names: dict[int, str]
) -> SegmentReport | None:
    """Return the report on a file, or on the ledger that a broker beside has put in its place since
    the folder was listed; None: that let go of it."""
    try:
        return _segment(report, file, known, names)
    except FileNotFoundError:
        ledger = report.folder / ledger_name(file.number, file.salt)
        if file.stripped or not ledger.exists():
            return None
        return _segment(report, SegmentFile(ledger, file.number, file.salt), known, names)


def _check_numbers(report: Report, files: list[SegmentFile], checkpoint: int) -> None:
    expected = max(checkpoint >> 32, 1)
    for file in files:
        if file.number >= expected:
            if file.number > expected:
                report.problems.append(gap_text(expected, file.number - 1, checkpoint))
            expected = file.number + 1


def _tail(folder: Path, files: list[SegmentFile]) -> int:
    """Return the number of the newest segment with blocks. All older ones were on disk as a
    whole."""
    for file in reversed(files):
        with open(folder / file.name, "rb") as opened:
            header = known_header(read_head(opened), 0)
        if header is not None and header.segment == file.number:
            return file.number
    return 0


def _learn_names(data: bytes, headers: list[Header], names: dict[int, str]) -> None:
    """Note the names of queues by their ids, from the definitions in a segment."""
    for header in headers:
        if not row_kinds(data, header).get(records.DEFINITION):
            continue
        for record in Unpacker({}, False).records(data, header):
            if record.kind == records.DEFINITION:
                said = json.loads(record.blob)
                if said.get("op") == "queue":
                    names[said["id"]] = f"queue '{said['name']}' in vhost '{said['vhost']}'"


def _described(file: str, data: bytes, header: Header, names: dict[int, str]) -> Iterator[str]:
    """Yield descriptions of the messages whose bytes in a block are damaged."""
    inside = Unpacker({}, False).records(data, header)
    for at, size in damaged(data, header):
        position = header.position + at
        meant = [
            _sequences(record, names)
            for record in inside
            if record.payload is not None
            and record.payload.position == position
            and record.kind in (records.ENTERED, records.LEASED, records.PENDING)
        ]
        yield (
            f"{file}: {size} bytes at offset {header.at + at} {OTHER_BYTES}: "
            + (", ".join(meant) or "messages that entered their queues later")
        )


def _sequences(record: Record, names: dict[int, str]) -> str:
    last = record.first + record.count - 1
    what = (
        f"sequence {record.first}" if record.count == 1 else f"sequences {record.first} to {last}"
    )
    return f"{what} of {names.get(record.queue, f'queue {record.queue}')}"


def _segment(report: Report, file: SegmentFile, known: int, names: dict[int, str]) -> SegmentReport:
    segment = SegmentReport(file)
    data = read_file(report.folder / file.name)
    start = block = 0
    while True:
        try:
            headers, end, verdict = scan(data, file.number, file.salt, known, start, block)
        except LayoutError as error:
            segment.verdict = CORRUPT
            report.problems.append(f"{file.name}: {error}")
            return segment
        _learn_names(data, headers, names)
        for header in headers:
            _count(segment, data, header)
            block = header.block + 1
        segment.bytes += end - start
        for header in verdict.damaged:
            report.problems += _described(file.name, data, header, names)
        if segment.verdict != CORRUPT:
            segment.verdict = OPEN if verdict.kind == BLANK else verdict.kind
        if verdict.kind != CORRUPT:
            return segment
        report.problems.append(f"{file.name}: {verdict.reason}")
        if verdict.resume < 0:
            return segment
        start = verdict.resume


def _count(segment: SegmentReport, data: bytes, header: Header) -> None:
    if header.flags & (SEALED | LOST):
        return
    if not segment.blocks:
        segment.first_ms = header.time_ms
    segment.last_ms = header.time_ms
    segment.blocks += 1
    segment.raw_bytes += header.raw_bytes
    counted = row_kinds(data, header)
    _add(segment.rows, {records.KINDS.get(k, f"kind {k}"): n for k, n in counted.items()})


def _add(total: dict[str, int], more: dict[str, int]) -> None:
    for name, count in more.items():
        total[name] = total.get(name, 0) + count
