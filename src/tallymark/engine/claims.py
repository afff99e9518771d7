"""Retention of a stream, and claims to its messages: pins of readers, and the archive.

Retention waits for neither. What it deletes under a pin stays readable there; what was archived may
be deleted."""

from __future__ import annotations

import json
from typing import final

from tallymark.engine.ledger import archived_record
from tallymark.engine.message import Slice
from tallymark.engine.records import Record
from tallymark.engine.store import Store


@final
class Pin:
    """A reader's claim to sequences low..high-1, which stay readable while it is among the pins."""

    __slots__ = ("held", "high", "low")

    def __init__(self, low: int, high: int) -> None:
        self.low = low
        self.high = high
        self.held: list[Slice] = []
        """Slices that retention has deleted from the stream since then, in order."""

    def keep(self, piece: Slice, store: Store) -> None:
        """Keep a slice that retention deletes."""
        start = max(0, self.low - piece.first)
        stop = min(len(piece), self.high - piece.first)
        if start < stop:
            store.use(piece.payload, stop - start)
            self.held.append(piece.part(start, stop))

    def between(self, low: int, high: int) -> list[Slice]:
        """Return the pinned slices of sequences low..high-1, as parts of their own."""
        found: list[Slice] = []
        for piece in self.held:
            start = max(0, low - piece.first)
            stop = min(len(piece), high - piece.first)
            if start < stop:
                found.append(piece.part(start, stop))
        return found


@final
class Archived:
    """The newest range of a stream's archive: sequences low..high-1.

    The blob of its record: {"archive": id, "checksum": text, "place": text}; `other` is the number
    of messages.
    """

    __slots__ = ("archive", "checksum", "high", "low", "place", "rows")

    def __init__(
        self, low: int, high: int, rows: int, archive: str, checksum: str, place: str
    ) -> None:
        self.low = low
        self.high = high
        self.rows = rows
        """Count of messages in it; lower than the count of sequences if some are missing."""
        self.archive = archive
        """Id of the archive."""
        self.checksum = checksum
        """Checksum of the rows, computed by the archiver."""
        self.place = place
        """Description of the range's place, for people."""

    def same(self, other: Archived) -> bool:
        return (
            self.low == other.low
            and self.high == other.high
            and self.rows == other.rows
            and self.archive == other.archive
            and self.checksum == other.checksum
        )

    def to_record(self, queue_id: int) -> Record:
        place = {"archive": self.archive, "checksum": self.checksum, "place": self.place}
        return archived_record(queue_id, self.low, self.high, self.rows, place)

    @staticmethod
    def from_record(record: Record) -> Archived:
        """Decode an ARCHIVED record. Raises ValueError for one of a newer version."""
        found: object = json.loads(record.blob)
        if not isinstance(found, dict) or set(found) != {"archive", "checksum", "place"}:
            raise ValueError(f"archived {found!r}, expected archive, checksum and place")
        return Archived(
            record.first, record.first + record.count, record.other, str(found["archive"]),
            str(found["checksum"]), str(found["place"]),
        )  # fmt: skip


@final
class Retention:
    """State of retention: from which message on the stream is kept, and what is claimed."""

    __slots__ = ("archive", "kept_from", "let_go_bytes", "pins")

    def __init__(self) -> None:
        self.kept_from = 1
        """First sequence that the stream still retains; all lower ones were deleted."""
        self.let_go_bytes = 0
        """Bytes that the stream has deleted since it was declared."""
        self.archive: Archived | None = None
        """Newest archived range. Everything before it is archived, too."""
        self.pins: list[Pin] = []
        """Ranges that readers have pinned."""

    def let_go(self, piece: Slice) -> None:
        """Note that the oldest messages were deleted."""
        self.kept_from = piece.first + len(piece)
        self.let_go_bytes += piece.size()
