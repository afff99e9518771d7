"""Dead letters that wait in queues: where they died, why and when, without unpacking a backlog."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from tallymark.engine.message import Slice
from tallymark.engine.queue import Queue
from tallymark.stored.annotations import Annotations, Death
from tallymark.units import WallMs

MOST_LOOKED_AT: Final = 10_000
"""Slices, or messages of packed ones, of one queue that are looked at."""
AT_ONCE: Final = 200
"""Packed messages whose annotations are opened together."""


@dataclass(frozen=True, slots=True)
class Letters:
    """Dead letters next to each other that died alike."""

    first: int
    """Sequence of the first in the queue that they wait in."""
    ids: list[int]
    death: Death
    """Their last death."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """Choice among the letters of a queue. "", 0: anything. day: of the death, as 2026-11-21.
    upto: highest sequence."""

    source: str = ""
    reason: str = ""
    day: str = ""
    upto: int = 0

    def has(self, letters: Letters) -> bool:
        death = letters.death
        return (
            self.source in ("", death.queue)
            and self.reason in ("", death.reason)
            and self.day in ("", day_of(death.last_ms))
        )


def day_of(time_ms: WallMs) -> str:
    """Return the day in UTC of a time."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d")


def letters_in(queue: Queue, most: int = MOST_LOOKED_AT) -> Iterator[Letters]:
    """Yield the ready messages of a queue that died before, in its order, until `most` slices or
    packed messages were looked at."""
    looked_at = 0
    for piece in queue.slices():
        if looked_at >= most:
            return
        looked_at += _weight(piece)
        pack = piece.payload.pack
        if pack is None or not pack.annotations:
            if piece.annotations is not None and piece.annotations.deaths:
                ids = _ids(piece, piece.lo, piece.hi)
                yield Letters(piece.first, ids, piece.annotations.deaths[0])
            continue
        yield from _packed(piece)


def looked_at_in(queue: Queue, most: int) -> tuple[int, bool]:
    """Return how many slices or packed messages `letters_in` looks at, and whether these are all
    that the queue has."""
    looked_at = 0
    for piece in queue.slices():
        if looked_at >= most:
            return looked_at, False
        looked_at += _weight(piece)
    return looked_at, True


def _weight(piece: Slice) -> int:
    pack = piece.payload.pack
    return 1 if pack is None or not pack.annotations else len(piece)


def _packed(piece: Slice) -> Iterator[Letters]:
    pack = piece.payload.pack
    assert pack is not None
    known: dict[bytes, Annotations] = {}
    for low in range(piece.lo, piece.hi, AT_ONCE):
        blobs = pack.blobs(low, min(low + AT_ONCE, piece.hi))
        for i, blob in enumerate(blobs, low):
            if not blob:
                continue
            if blob not in known:
                known[blob] = Annotations.from_bytes(blob)
            if known[blob].deaths:
                first = piece.first + i - piece.lo
                yield Letters(first, [pack.ids[i]], known[blob].deaths[0])


def _ids(piece: Slice, low: int, high: int) -> list[int]:
    """Return the ids of messages of a slice's payload."""
    pack = piece.payload.pack
    if pack is not None:
        return list(pack.ids[low:high])
    return list(range(piece.payload.first_id + low, piece.payload.first_id + high))


def chosen_in(queue: Queue, chosen: Chosen, most: int) -> list[tuple[int, int]]:
    """Return sequence and id of the letters of a queue that are chosen, at most so many."""
    found: list[tuple[int, int]] = []
    for letters in letters_in(queue):
        if not chosen.has(letters):
            continue
        for sequence, id in enumerate(letters.ids):
            number = letters.first + sequence
            if chosen.upto and number > chosen.upto:
                continue
            found.append((number, id))
            if len(found) >= most:
                return found
    return found
