"""Packing: deep backlogs of single messages, kept as columns. A message takes about 40 bytes
instead of 330, and some 25 more instead of 800 where each has died at another moment.

Messages that arrive one at a time make a payload and a slice each. Beyond a few thousand slices in
one queue, the newest ones whose bytes are in the journal become one packed payload, with one slice
per few hundred messages. When a packed slice reaches the head of its queue, its messages are
unpacked, a few at a time, so that no other module sees a packed slice.

Only payloads of one message are packed. A lease or a relocation names a payload by its position; a
part of a larger payload would have a position that no earlier row of the journal contains.
"""

from __future__ import annotations

from array import array
from typing import Final, final

from tallymark.engine.message import PACKED, PART, Pack, Payload, Slice, closed
from tallymark.engine.slices import Slices
from tallymark.stored.annotations import Annotations
from tallymark.units import Position, QueueSequence

UNPACK: Final = PART
"""Number of messages unpacked from a slice at a time."""
VIEWED: Final = 256
"""Number of messages that a reader of a packed slice sees at a time."""


def is_packable(piece: Slice, written: Position) -> bool:
    """Return whether the slice is the only user of a single message whose bytes are in the
    journal."""
    payload = piece.payload
    return (
        payload.count == 1
        and payload.pack is None
        and payload.live == 1
        and payload.persistent
        and payload.bodies is None
        and piece.acquired == 0
        and piece.failed == 0
        and payload.position >= 0
        and payload.position + payload.size <= written
    )


def pack(pieces: list[Slice]) -> Slice:
    """Pack several packable slices that follow each other in one queue and one lane into one
    slice."""
    cuts = array("I", (0,))
    positions, ids, arrivals = array("Q"), array("Q"), array("Q")
    sums = array("I")
    routes = []
    end = largest_frame = 0
    for piece in pieces:
        payload = piece.payload
        positions.append(payload.position)
        ids.append(payload.first_id)
        arrivals.append(payload.arrived_ms)
        routes.append(payload.route)
        if payload.sum >= 0:
            sums.append(payload.sum)
        end += payload.size
        cuts.append(end)
        largest_frame = max(largest_frame, payload.largest_frame)
    first = pieces[0].payload
    route = routes[0]
    column = None if routes.count(route) == len(routes) else routes
    whole = Payload(
        first.format, None, cuts, route, column, first.first_id, first.arrived_ms, True,
        largest_frame,
    )  # fmt: skip
    head = pieces[0]
    known = head.annotations
    parts: list[bytes] = []
    entered = arrivals
    for piece in pieces:
        if piece.annotations is not known:
            known = None
            parts = _parts_of(pieces)
            entered = array("Q", [one.entered_ms() for one in pieces])
            break
    whole.pack = Pack(positions, ids, arrivals, parts, entered)
    if len(sums) == len(pieces):
        whole.pack.sums = sums
    whole.position = Position(PACKED)
    whole.live = whole.count
    return Slice(whole, 0, whole.count, head.first, 0, 0, head.priority, known, head.shift)


def _parts_of(pieces: list[Slice]) -> list[bytes]:
    """Return the messages' annotations as Pack.annotations stores them, compressed in parts: stored
    annotations are JSON on one line, and neighbours differ in little."""
    blobs = [piece.known() for piece in pieces]
    return [closed(blobs[at : at + PART]) for at in range(0, len(blobs), PART)]


@final
class Packing:
    """Thresholds of packing, in slices."""

    def __init__(self, after: int = 4096, group: int = 512, fresh: int = 256) -> None:
        self.after = after
        """Number of slices in a queue below which nothing is packed."""
        self.group = group
        """Maximum number of slices that become one packed slice."""
        self.fresh = fresh
        """Number of newest slices that are not packed: their bytes may not be written yet."""

        self.look_after = fresh + group
        """Number of new slices in a queue after which it is examined."""

    def pack_newest(self, fresh: Slices, count: int, written: Position) -> list[Payload]:
        """Pack the packable ones among the `count` newest slices. Returns the payloads that were
        replaced; their bytes in memory are no longer needed.

        written: journal position below which bytes can be read back.
        """
        newest = [fresh.pop() for _ in range(min(count, len(fresh)))]
        newest.reverse()
        at = max(0, len(newest) - self.fresh)
        replaced: list[Payload] = []
        group: list[Slice] = []
        for piece in newest[:at]:
            fits = is_packable(piece, written)
            if group and (not fits or len(group) == self.group or not _alike(group[-1], piece)):
                _close_group(group, fresh, replaced)
                group = []
            if fits:
                group.append(piece)
            else:
                fresh.append(piece)
        _close_group(group, fresh, replaced)
        fresh.extend(newest[at:])
        return replaced


def _close_group(group: list[Slice], fresh: Slices, replaced: list[Payload]) -> None:
    if len(group) > 1:
        fresh.append(pack(group))
        replaced.extend([piece.payload for piece in group])
    else:
        fresh.extend(group)


def _alike(last: Slice, piece: Slice) -> bool:
    """Return whether a packable slice may follow another one in one packed slice."""
    return (
        last.payload.format == piece.payload.format
        and last.first + 1 == piece.first
        and last.shift == piece.shift
    )


def view(piece: Slice, start: int) -> Slice:
    """Return the content of a slice from its message `start` on. For a packed slice, these are
    messages whose bytes are adjacent, as a payload of their own; they remain in the packed
    slice."""
    whole = piece.payload
    pack = whole.pack
    if pack is None:
        return piece.part(start, len(piece))
    i = piece.lo + start
    known = piece.annotations
    if pack.annotations:
        blob = pack.blobs(i, i + 1)[0]
        known = Annotations.from_bytes(blob) if blob else None
        end = i + 1
    else:
        end = pack.together(whole, i, min(piece.hi, i + VIEWED))
    return Slice(
        whole.stretch(i, end), 0, end - i, QueueSequence(piece.first + start), piece.acquired, 0,
        piece.priority, known, piece.shift,
    )  # fmt: skip


def unpack_head(fresh: Slices) -> None:
    """Unpack up to UNPACK messages of the first slice, which is packed, into slices before it."""
    piece = fresh[0]
    out = _take_out(piece, min(UNPACK, len(piece)))
    if not len(piece):
        fresh.popleft()
    fresh.put_first(out)


def unpack_all(fresh: Slices) -> Slices:
    """Return the same slices with every packed message unpacked into a slice of its own."""
    return Slices([one for piece in fresh for one in unpacked(piece)])


def unpacked(piece: Slice) -> list[Slice]:
    """Return the slice, or where it is packed a slice for each of its messages, which leave it."""
    return [piece] if piece.payload.pack is None else _take_out(piece, len(piece))


def _take_out(piece: Slice, n: int) -> list[Slice]:
    """Unpack the first n messages of a slice into slices with payloads of their own. They are
    removed from the packed slice."""
    whole = piece.payload
    pack = whole.pack
    assert pack is not None
    blobs = pack.blobs(piece.lo, piece.lo + n)
    known = piece.annotations
    last = b""
    out = []
    for i in range(n):
        one = whole.single(piece.lo + i)
        one.live = 1
        if blobs and blobs[i] != last:
            last = blobs[i]
            known = Annotations.from_bytes(last) if last else None
        first = QueueSequence(piece.first + i)
        out.append(Slice(one, 0, 1, first, piece.acquired, 0, piece.priority, known, piece.shift))
    piece.lo += n
    piece.first = QueueSequence(piece.first + n)
    whole.live -= n
    pack.taken += n
    return out
