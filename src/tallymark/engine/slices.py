"""Slices in the order in which they leave: appended at the end, taken from the front, and reached
by their index in O(1), so that a reader in the middle of a stream costs the same at any depth."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, cast, final

from tallymark.engine.message import Slice

SPARE: Final = 64
"""Largest number of places at the front that stay empty for slices to come back; beyond it, no more
than half of all places do."""


@final
class Slices:
    """A queue of slices, with access by index. Indices count from the front, negative ones from the
    end."""

    def __init__(self, slices: Iterable[Slice] = ()) -> None:
        self._places: list[Slice | None] = list(slices)
        self._gone = 0
        """Count of the places at the front that are empty."""

    def __len__(self) -> int:
        return len(self._places) - self._gone

    def __bool__(self) -> bool:
        return len(self._places) > self._gone

    def __getitem__(self, index: int) -> Slice:
        piece = self._places[index + self._gone if index >= 0 else index]
        if piece is None:
            raise IndexError(f"slice {index} of {len(self)}")
        return piece

    def __iter__(self) -> Iterator[Slice]:
        """Iterate over the slices, which must not change meanwhile."""
        return cast("Iterator[Slice]", islice(self._places, self._gone, None))

    def append(self, piece: Slice) -> None:
        self._places.append(piece)

    def extend(self, slices: Iterable[Slice]) -> None:
        self._places.extend(slices)

    def pop(self) -> Slice:
        """Take the last slice. Raises IndexError if there is none."""
        piece = self[-1]
        self._places.pop()
        return piece

    def popleft(self) -> Slice:
        """Take the first slice. Raises IndexError if there is none."""
        places = self._places
        gone = self._gone
        piece = places[gone]
        if piece is None:
            raise IndexError("there is no slice")
        places[gone] = None
        gone += 1
        if gone > SPARE and gone * 2 > len(places):
            del places[:gone]
            gone = 0
        self._gone = gone
        return piece

    def put_first(self, slices: list[Slice]) -> None:
        """Insert slices before all others, in their order. O(slices) where that many were taken
        from the front lately, else O(all)."""
        begin = max(0, self._gone - len(slices))
        self._places[begin : self._gone] = slices
        self._gone = begin

    def replace(self, index: int, slices: list[Slice]) -> None:
        """Put slices in the place of one. O(slices behind it)."""
        at = index + self._gone
        self._places[at : at + 1] = slices

    def insert(self, index: int, piece: Slice) -> None:
        """Insert a slice before the one with that index. O(slices behind it)."""
        self._places.insert(index + self._gone, piece)

    def remove(self, index: int) -> None:
        """Take out the slice with that index. O(slices behind it)."""
        del self._places[index + self._gone]

    def clear(self) -> None:
        self._places.clear()
        self._gone = 0
