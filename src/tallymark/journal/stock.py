"""Stock: the segments of a folder and the bytes of each that are still needed.

Pure bookkeeping: no file is touched here. See journal.py for when a segment may be stripped.
"""

from __future__ import annotations

from array import array
from typing import Final, final

from tallymark.journal.recovery import Folder

_SPARSE_PER_CENT: Final = 25


@final
class Segment:
    """A segment: being written, sealed, or stripped to a ledger."""

    def __init__(self, number: int, salt: int, name: str) -> None:
        self.number = number
        self.salt = salt
        self.name = name
        self.size = 0
        self.time_ms = 0
        """Wall time of the last block."""
        self.sealed = False
        self.stripped = False
        self.live = 0
        """Bytes of payloads that are still needed."""
        self.released_at = 0
        """Position that must be on disk before released bytes may be forgotten."""
        self.is_unstrippable = False
        """True after stripping failed: the segment stays until the next start."""


@final
class Stock:
    def __init__(self, folder: Folder) -> None:
        self._segments: dict[int, Segment] = {}
        self.released: set[int] = set()
        """Segments of which bytes were released that `turn_ended` has not seen."""
        self._lost: set[int] = set()
        """Positions of needed payloads that are not there."""
        self._gone: dict[int, tuple[int, int, int]] = {}
        """Count, bytes and first position of losses not reported yet, by segment."""
        self.checkpoint = 0
        """Position of the newest durable checkpoint, 0 for none."""
        self.older = 0
        """Position of the checkpoint before it, 0 for none. It is the fallback, from which on
        segments or their ledgers must stay."""
        for file in folder.segments.values():
            segment = Segment(file.number, file.salt, file.name)
            segment.size = file.size
            segment.time_ms = file.time_ms
            segment.sealed = True
            segment.stripped = file.stripped
            self._segments[file.number] = segment

    @property
    def newest(self) -> int:
        """Highest segment number, 0 for none."""
        return max(self._segments, default=0)

    @property
    def bytes(self) -> int:
        """Bytes of all segments and ledgers, without preallocated space."""
        return sum(segment.size for segment in self._segments.values())

    def name_of(self, number: int) -> str:
        """Return the file that a segment's payloads are read from; empty if their bytes are
        gone."""
        segment = self._segments.get(number)
        return "" if segment is None or segment.stripped else segment.name

    # -- growing

    def begun(self, number: int, salt: int, name: str) -> Segment:
        """Return a new segment, which the journal writes to."""
        made = self._segments[number] = Segment(number, salt, name)
        return made

    def repaired(self, number: int, size: int, time_ms: int) -> None:
        self._segments[number].size = size
        self._segments[number].time_ms = time_ms

    # -- needing and releasing

    def retain(self, position: int, size: int) -> bool:
        """Mark bytes as needed; False if they are not there."""
        segment = self._segments.get(position >> 32)
        if segment is None or segment.stripped or (position & 0xFFFFFFFF) + size > segment.size:
            self._note_gone(position, size)
            return False
        segment.live += size
        return True

    def retain_all(self, positions: array[int], cuts: array[int]) -> list[int]:
        """Mark the bytes of many payloads as needed, as retain does; payload i has cuts[i + 1] -
        cuts[i] bytes. Returns the positions of those that are not there."""
        gone: list[int] = []
        number = -1
        segment: Segment | None = None
        live = 0
        for i in range(len(positions)):
            position = positions[i]
            if position >> 32 != number:
                if segment is not None:
                    segment.live += live
                live = 0
                number = position >> 32
                segment = self._segments.get(number)
                if segment is not None and segment.stripped:
                    segment = None
            size = cuts[i + 1] - cuts[i]
            if segment is None or (position & 0xFFFFFFFF) + size > segment.size:
                self._note_gone(position, 0)
                gone.append(position)
            else:
                live += size
        if segment is not None:
            segment.live += live
        return gone

    def _note_gone(self, position: int, size: int) -> None:
        self._lost.add(position)
        count, total, first = self._gone.get(position >> 32, (0, 0, position))
        self._gone[position >> 32] = (count + 1, total + size, min(first, position))

    def losses(self) -> list[str]:
        """Return texts about needed payloads that are not there, once."""
        texts: list[str] = []
        for number, (count, size, first) in sorted(self._gone.items()):
            name = self.name_of(number)
            texts.append(
                f"segment {number} {'is short of' if name else 'is gone, with'} bytes of live "
                f"messages: {count} payloads, {size} bytes, the first at position {first:#x}"
            )
        self._gone.clear()
        return texts

    def release(self, position: int, size: int) -> None:
        number = position >> 32
        segment = self._segments.get(number)
        if position in self._lost:
            return
        if segment is None or segment.live < size:
            have = 0 if segment is None else segment.live
            raise ValueError(f"{size} bytes released at {position:#x}, {have} are live there")
        segment.live -= size
        self.released.add(number)

    def turn_ended(self, end: int) -> None:
        """Note that everything released so far depends on records that end at `end`."""
        for number in self.released:
            self._segments[number].released_at = end
        self.released.clear()

    # -- stripping and dropping

    def checkpointed(self, position: int, older: int) -> None:
        """Set the durable checkpoints, newest first."""
        self.checkpoint = position
        self.older = older

    def strippable(self, durable: int) -> Segment | None:
        """Return the oldest sealed segment before the checkpoint whose bytes are no longer needed,
        durably."""
        before = self.checkpoint >> 32
        for segment in self._segments.values():
            if (
                segment.number < before
                and segment.sealed
                and not segment.stripped
                and not segment.is_unstrippable
                and not segment.live
                and segment.released_at <= durable
                and segment.number not in self.released
            ):
                return segment
        return None

    def sparse(self) -> list[int]:
        """Return the numbers of sealed segments before the checkpoint that are mostly dead, oldest
        first."""
        before = self.checkpoint >> 32
        return [
            s.number
            for s in self._segments.values()
            if s.number < before
            and s.sealed
            and not s.stripped
            and s.live > 0
            and s.live * 100 < s.size * _SPARSE_PER_CENT
        ]

    def stripped(self, number: int, name: str, size: int, time_ms: int) -> None:
        """Note the ledger that took a segment's place, and its bytes. time_ms: wall time of the
        seal, which is not known yet of a segment that was found with space behind it."""
        segment = self._segments[number]
        segment.stripped = True
        segment.name = name
        segment.size = size
        segment.time_ms = time_ms

    def give_up_stripping(self, number: int) -> None:
        """Leave a segment as it is until the next start."""
        self._segments[number].is_unstrippable = True

    def drop_ledgers(self, before_ms: int) -> list[str]:
        """Remove ledgers whose last block is older than `before_ms`; return their names. Only
        ledgers before both checkpoints are removed, since the totals of their rows are in these."""
        before = self.older >> 32
        old = [
            s
            for s in self._segments.values()
            if s.number < before and s.stripped and s.time_ms < before_ms
        ]
        for segment in old:
            del self._segments[segment.number]
        return [segment.name for segment in old]
