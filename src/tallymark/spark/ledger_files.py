"""Files of a data folder that hold the ledger: segments, those without bodies, checkpoints.

A broker may be running on the folder: files that were listed may be gone or replaced by the time
they are read."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tallymark.spark.client import CannotRun
from tallymark.stored import anchor as anchors
from tallymark.stored import segment

READ_AGAIN: Final = 3
"""Number of times that a file which looks damaged is read: it may have been written meanwhile."""


class LedgerIncomplete(CannotRun):
    """The files lack rows up to the position asked for."""


class LedgerLetGo(LedgerIncomplete):
    """A file that was listed is gone: the broker keeps ledgers for `ledger_retention`. Files listed
    anew are whole again."""


@dataclass(frozen=True, slots=True)
class LedgerFile:
    """One file with rows."""

    path: Path
    number: int
    """Segment number; the position for a checkpoint."""
    salt: int


def ledger_files(folder: Path, upto: int | None = None) -> list[LedgerFile]:
    """The segment and ledger files of a data folder that begin below position `upto`, by number."""
    found: dict[int, LedgerFile] = {}
    for path in sorted(journal_folder(folder).iterdir()):
        name = segment.parsed_name(path.name)
        # While the cleaner replaces a segment by its ledger file both may be there: same rows.
        if name is not None and (upto is None or name[0] <= upto >> 32):
            found[name[0]] = LedgerFile(path, *name)
    return [found[number] for number in sorted(found)]


def checkpoints(folder: Path) -> list[LedgerFile]:
    """The checkpoint files, newest first."""
    found = []
    for path in journal_folder(folder).iterdir():
        position = segment.parsed_checkpoint(path.name)
        if position is not None:
            found.append(LedgerFile(path, position, 0))
    return sorted(found, key=lambda file: file.number, reverse=True)


def journal_folder(folder: Path) -> Path:
    """Return the folder of the journal's files. Raises FileNotFoundError."""
    if folder.is_dir() and any(segment.parsed_name(path.name) for path in folder.iterdir()):
        return folder
    raise FileNotFoundError(f"{folder}: no journal here, expected files like 0000000001-*.segment")


def since_the_last_gap(files: list[LedgerFile]) -> list[LedgerFile]:
    """Return the last of the files, by number, whose numbers follow one another."""
    begin = len(files) - 1
    while begin > 0 and files[begin - 1].number == files[begin].number - 1:
        begin -= 1
    return files[max(begin, 0) :]


def find_checkpoint(folder: Path, upto: int | None) -> LedgerFile:
    """The checkpoint at position `upto`, or the newest sound one. Raises LedgerIncomplete, also for
    one that is of another position than its name says."""
    found = checkpoints(folder)
    for file in found:
        # A running broker removes old ones while we look.
        with suppress(FileNotFoundError):
            if upto not in (None, file.number):
                continue
            data = file.path.read_bytes()
            if segment.is_sound_checkpoint(data):
                _check_name(file, data)
                return file
    if not found:
        raise LedgerIncomplete(
            f"{folder}: no checkpoint yet, which ends the ledger: a broker writes one when it "
            "stops, and when it is asked to (POST /api/tallymark/ledger/checkpoint)"
        )
    what = "no sound checkpoint" if upto is None else f"no sound checkpoint at position {upto:#x}"
    raise LedgerIncomplete(f"{folder}: {what} among {[file.path.name for file in found]}")


def _check_name(file: LedgerFile, data: bytes) -> None:
    described = segment.scan(data, salt=0)[0][0].synced
    if described != file.number:
        raise LedgerIncomplete(
            f"{file.path}: describes position {described:#x}, not the one of its name, "
            f"{file.number:#x}"
        )


def check_end(folder: Path) -> None:
    """Raises LedgerIncomplete: segments are missing at the end of the journal, which were on disk
    as the anchor says."""
    path = journal_folder(folder) / anchors.FILE
    # Before the segments are listed: a running broker makes new ones.
    anchor, _ = (
        anchors.decode_anchor(path.read_bytes()) if path.exists() else (anchors.Anchor(), "")
    )
    if lacks := anchor.lacks(max(file.number for file in ledger_files(folder))):
        raise LedgerIncomplete(f"{folder}: {lacks}")


def read_whole(file: LedgerFile) -> bytes:
    """Return all bytes of a segment, or of the ledger that took its place meanwhile. Raises
    LedgerLetGo."""
    try:
        return file.path.read_bytes()
    except FileNotFoundError:
        # The cleaner may have made a .ledger of the .segment since the files were listed.
        stripped = file.path.with_suffix(".ledger")
        try:
            return stripped.read_bytes()
        except FileNotFoundError:
            raise LedgerLetGo(
                f"{stripped}: the broker let go of it while the ledger was read, its "
                "ledger_retention is over"
            ) from None
