"""Messages that wait in a queue and are not ready: deferred ones for their time, dead letters for a
target, and quarantined ones for their bytes."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import final

from tallymark.engine.message import Slice
from tallymark.engine.units import EngineMs


@final
class Deferred:
    """A slice that becomes ready at a time."""

    __slots__ = ("due_ms", "piece", "to_tail")

    def __init__(self, due_ms: EngineMs, to_tail: bool, piece: Slice) -> None:
        self.due_ms = due_ms
        """Engine time."""
        self.to_tail = to_tail
        """True if it goes to the tail of the queue, and not to its old place."""
        self.piece = piece


@final
class Deferrals:
    """The deferred slices of one queue."""

    __slots__ = ("_entries", "_made")

    def __init__(self) -> None:
        self._entries: list[tuple[EngineMs, int, Deferred]] = []
        """Heap, by due time; the number in the middle orders equal times as they were added."""
        self._made = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Deferred]:
        """Yield all entries, in no order."""
        return iter([entry[2] for entry in self._entries])

    def add(self, entry: Deferred) -> None:
        self._made += 1
        heapq.heappush(self._entries, (entry.due_ms, self._made, entry))

    def next_due(self) -> EngineMs:
        """Return the time at which the first entry is due; there must be one."""
        return self._entries[0][0]

    def last_due(self) -> EngineMs:
        """Return when the last entry is due; there must be one. O(entries)."""
        return max([entry[0] for entry in self._entries])

    def take_due(self, now_ms: int) -> list[Deferred]:
        """Remove the entries that are due and return them in order."""
        due: list[Deferred] = []
        entries = self._entries
        while entries and entries[0][0] <= now_ms:
            due.append(heapq.heappop(entries)[2])
        return due

    def take_all(self) -> list[Deferred]:
        """Remove all entries and return them in order."""
        return self.take_due(1 << 62)


@final
class Letter:
    """A dead letter: a slice that waits in its source queue until a target takes it [DL-22]. It
    keeps the slice as it was before it died, the reason, the time of death and the targets that
    already have it [DL-24]."""

    __slots__ = ("died_ms", "have", "piece", "reason")

    def __init__(self, piece: Slice, reason: int, died_ms: EngineMs, have: list[str]) -> None:
        self.piece = piece
        self.reason = reason
        self.died_ms = died_ms
        self.have = have

    def part(self, start: int, stop: int) -> Letter:
        """Return the messages with index start..stop-1 as a letter of their own."""
        return Letter(self.piece.part(start, stop), self.reason, self.died_ms, self.have[:])


@final
class Retry:
    """Schedule of the attempts at the pending letters of one queue (retries.py)."""

    __slots__ = ("at", "began_ms", "due_ms", "generation", "wait_ms")

    def __init__(self) -> None:
        self.generation = 0
        """Generation of the topology at the last attempt to hand over the letters."""
        self.due_ms = 0
        """Time of the next attempt; engine time, ms."""
        self.wait_ms = 0
        """Delay between an attempt at all letters and the next one, ms."""
        self.at = 0
        """Count of the letters tried so far in the present attempt."""
        self.began_ms = 0
        """Time at which the present attempt began, engine time, ms. It stays the same if a topology
        change restarts the attempt from the first letter."""


@final
class Quarantined:
    """Quarantined messages: their bytes could not be read (quarantine.py)."""

    __slots__ = ("letter", "piece", "trouble")

    def __init__(self, piece: Slice, letter: Letter | None, trouble: str) -> None:
        self.piece = piece
        self.letter = letter
        """The dead letter that these messages belong to; None where they were ready or given
        back."""
        self.trouble = trouble
        """Error text of the last attempt to read them."""
