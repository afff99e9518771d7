"""Deliveries that a receiver has settled and whose sender has not. They exist only where the
receiver settles second, between its disposition and the sender's [FC-12]."""

from __future__ import annotations

from typing import final

from tallymark.wire.amqp10.ends import LinkEnd
from tallymark.wire.amqp10.serial import Serial, add, diff


@final
class _Entry:
    __slots__ = ("first", "last", "link")

    def __init__(self, first: Serial, last: Serial, link: LinkEnd) -> None:
        self.first = first
        self.last = last
        self.link = link


@final
class Piece:
    """A part of a range: in flight on a link, or not (None)."""

    __slots__ = ("first", "last", "link")

    def __init__(self, first: Serial, last: Serial, link: LinkEnd | None) -> None:
        self.first = first
        self.last = last
        self.link = link


@final
class InFlight:
    """Ranges of delivery-ids, in the order in which they were settled. O(ranges) for each answer;
    answers mostly come in order and so match the first range."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: list[_Entry] = []

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, first: Serial, last: Serial, link: LinkEnd) -> None:
        entries = self._entries
        if entries:
            newest = entries[-1]
            if newest.link is link and add(newest.last, 1) == first:
                newest.last = last
                return
        entries.append(_Entry(first, last, link))

    def remove(self, link: LinkEnd) -> None:
        """Remove the ranges of a link that is gone."""
        if self._entries:
            self._entries = [entry for entry in self._entries if entry.link is not link]

    def of(self, link: LinkEnd) -> list[tuple[int, int]]:
        return [(entry.first, entry.last) for entry in self._entries if entry.link is link]

    def take(self, first: Serial, last: Serial) -> list[Piece]:
        """Cut first..last out; return it in pieces, in the order of the ids."""
        entries = self._entries
        if entries and entries[0].first == first and diff(entries[0].last, last) > 0:
            entries[0].first = add(last, 1)
            return [Piece(first, last, entries[0].link)]
        found: list[Piece] = []
        left: list[_Entry] = []
        for entry in entries:
            low = entry.first if diff(entry.first, first) > 0 else first
            high = entry.last if diff(entry.last, last) < 0 else last
            if diff(high, low) < 0:
                left.append(entry)
                continue
            _insert(found, Piece(low, high, entry.link))
            if diff(low, entry.first) > 0:
                left.append(_Entry(entry.first, add(low, -1), entry.link))
            if diff(entry.last, high) > 0:
                left.append(_Entry(add(high, 1), entry.last, entry.link))
        if found:
            self._entries = left
        return _with_gaps(found, first, last)


def _insert(pieces: list[Piece], piece: Piece) -> None:
    at = len(pieces)
    while at and diff(pieces[at - 1].first, piece.first) > 0:
        at -= 1
    pieces.insert(at, piece)


def _with_gaps(found: list[Piece], first: Serial, last: Serial) -> list[Piece]:
    """Return the pieces in order, together with the parts of first..last between them."""
    pieces: list[Piece] = []
    at = first
    for piece in found:
        if diff(piece.first, at) > 0:
            pieces.append(Piece(at, add(piece.first, -1), None))
        if diff(piece.last, at) >= 0:  # else the owner settled it twice
            if diff(piece.first, at) < 0:
                piece.first = at
            pieces.append(piece)
            at = add(piece.last, 1)
    if diff(last, at) >= 0:
        pieces.append(Piece(at, last, None))
    return pieces
