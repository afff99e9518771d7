"""The ready messages of one queue, in order: a lane for each priority.

A lane has its slices in the order of their places, in two parts: `returned` (given back, sorted)
and `fresh` (entered, or put to the tail, and not taken since). Messages leave from the front only,
so whatever was taken and comes back lies before everything fresh; after a restart, where all that
is ready counts as fresh, the part before it is moved over then. Order is a property of the data,
not of the path taken. A message's place is its sequence number, until it is put to the tail
[NQ-12].
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final, final

from tallymark.engine.message import Payload, Slice
from tallymark.engine.packing import unpack_all, unpack_head, unpacked, view
from tallymark.engine.slices import Slices
from tallymark.stored.annotations import Annotations
from tallymark.units import EngineMs, QueueSequence

FEW: Final = 8
"""Largest number of slices that are inserted one by one; more are sorted in together."""


def _place(piece: Slice) -> int:
    return piece.first + piece.shift


@final
class Lane:
    """The ready messages of one priority, in order (see the module's docstring). The counters are
    the Queue's."""

    def __init__(self) -> None:
        self.returned: list[Slice] = []
        """Returned slices, sorted by place. The first `_gone` entries were taken; the list is
        emptied when all were."""
        self._gone = 0
        self.fresh = Slices()

    def in_front(self) -> list[Slice]:
        """Return the returned slices, in order. The list must not be changed."""
        if self._gone:
            del self.returned[: self._gone]
            self._gone = 0
        return self.returned

    def head(self) -> Slice | None:
        """Return the slice that leaves next. Its bytes may not be in memory."""
        if self.returned:
            return self.returned[self._gone]
        fresh = self.fresh
        if not fresh:
            return None
        first = fresh[0]
        if first.payload.pack is None:
            return first
        unpack_head(fresh)
        return fresh[0]

    def take(self, n: int) -> Slice:
        """Take n messages off the head slice (0 < n <= its length)."""
        returned = self.returned
        piece = returned[self._gone] if returned else self.fresh[0]
        if n < piece.hi - piece.lo:
            return piece.take(n)
        if returned:
            gone = self._gone + 1
            if gone * 2 >= len(returned):
                del returned[:gone]
                gone = 0
            self._gone = gone
        else:
            self.fresh.popleft()
        return piece

    def give_back(self, pieces: list[Slice]) -> None:
        """Insert slices taken earlier at their old positions [TX-9]."""
        fresh = self.fresh
        if fresh:
            for piece in pieces:
                if fresh and fresh[0].first + fresh[0].shift < piece.first + piece.shift:
                    self._make_way(piece.first + piece.shift)
        returned = self.in_front()
        if len(pieces) > FEW:
            # Only what lies behind the first of them is sorted anew, and the one before, which that
            # may continue.
            first = min([piece.first + piece.shift for piece in pieces])
            begin = max(0, bisect_left(returned, first, key=_place) - 1)
            together = returned[begin:] + pieces
            together.sort(key=_place)
            merged: list[Slice] = []
            for piece in together:
                if merged and merged[-1].followed_by(piece):
                    merged[-1].hi = piece.hi
                else:
                    merged.append(piece)
            returned[begin:] = merged
            return
        for piece in pieces:
            at = bisect_left(returned, piece.first + piece.shift, key=_place)
            if at < len(returned) and piece.followed_by(returned[at]):
                piece.hi = returned[at].hi
                returned[at] = piece
            else:
                returned.insert(at, piece)
            if at > 0 and returned[at - 1].followed_by(returned[at]):
                returned[at - 1].hi = returned[at].hi
                del returned[at]

    def _make_way(self, place: int) -> None:
        """Move fresh slices that lie before `place` to `returned`."""
        fresh = self.fresh
        while fresh and fresh[0].first + fresh[0].shift < place:
            if fresh[0].payload.pack is not None:
                unpack_head(fresh)
            self.returned.append(fresh.popleft())

    def index_of(self, place: int) -> int:
        """Return the index of a stream's slice that contains the message at `place`, or of the
        first slice behind it. The result is the number of slices if there is neither. O(1) at the
        end, else O(log slices)."""
        fresh = self.fresh
        if not fresh:
            return 0
        last = fresh[-1]
        if place >= last.first:
            return len(fresh) if place >= last.first + len(last) else len(fresh) - 1
        low, high = 0, len(fresh)
        while low + 1 < high:  # fresh[low] is the last one that begins at `place` or before
            middle = (low + high) >> 1
            if fresh[middle].first <= place:
                low = middle
            else:
                high = middle
        return low if place < fresh[low].first + len(fresh[low]) else low + 1

    def peek(self, place: int) -> Slice | None:
        """Return a stream's messages from `place` on, as `at` does, without moving or unpacking
        anything. Of a packed slice it returns the messages whose bytes follow each other."""
        index = self.index_of(place)
        if index == len(self.fresh):
            return None
        piece = self.fresh[index]
        return view(piece, max(0, place - piece.first))

    def between(self, low: int, high: int, most_bytes: int) -> list[Slice]:
        """Return a stream's slices at places low..high-1 as new parts, packed ones included, and
        none behind those that have `most_bytes` together. O(slices) in the result."""
        fresh = self.fresh
        index = self.index_of(low)
        found: list[Slice] = []
        while index < len(fresh) and most_bytes > 0:
            piece = fresh[index]
            start, stop = max(0, low - piece.first), min(len(piece), high - piece.first)
            if stop <= start:
                break
            part = piece.part(start, stop)
            found.append(part)
            most_bytes -= part.size()
            index += 1
        return found

    def since(self, time_ms: EngineMs) -> int:
        """Return the place of a stream's first message that entered at `time_ms` or later (engine
        time); the place behind the last message if there is none."""
        fresh = self.fresh
        low, high = 0, len(fresh)
        while low < high:  # the first slice whose last message is not too old
            middle = (low + high) >> 1
            if fresh[middle].last_ms() < time_ms:
                low = middle + 1
            else:
                high = middle
        if low == len(fresh):
            return fresh[-1].first + len(fresh[-1]) if fresh else 0
        piece = fresh[low]
        return piece.first + piece.older(time_ms)

    def isolated(self, place: int, n: int) -> list[Slice]:
        """Return n messages of a stream from `place` on, all of one slice, as slices of the lane
        with no other messages in them. Packed slices are unpacked."""
        index = self.index_of(place)
        found: list[Slice] = []
        parts: list[Slice] = []
        for piece in unpacked(self.fresh[index]):
            low = min(max(0, place - piece.first), len(piece))
            high = min(max(low, place + n - piece.first), len(piece))
            if low < high:
                found.append(piece.part(low, high))
            for part in (piece.part(0, low), piece.part(low, high), piece.part(high, len(piece))):
                if part.hi > part.lo:
                    parts.append(found[-1] if found and part.first == found[-1].first else part)
        self.fresh.replace(index, parts)
        return found

    def put_between(self, piece: Slice) -> None:
        """Insert a slice that was taken out of a stream at its place."""
        self.fresh.insert(self.index_of(piece.first), piece)

    def discard(self, piece: Slice) -> None:
        """Remove one of the lane's own slice objects."""
        returned = self.in_front()
        for at in range(len(returned)):
            if returned[at] is piece:
                del returned[at]
                return
        fresh = self.fresh
        for at in range(len(fresh)):
            if fresh[at] is piece:
                fresh.remove(at)
                return
        raise ValueError(f"no slice of the lane begins at {piece.first}")

    def drop_oldest(self, n: int) -> Slice:
        """Take up to n messages off a stream's oldest slice, which may be packed."""
        fresh = self.fresh
        if n < len(fresh[0]):
            return fresh[0].take(n)
        return fresh.popleft()

    def at(self, place: int) -> Slice | None:
        """Return a part with the messages from `place` on, up to the end of their slice; None if
        nothing is at or behind it. All slices up to that one move to `returned`."""
        returned = self.in_front()
        at = bisect_left(returned, place + 1, key=_place)
        if at > 0:
            before = returned[at - 1]
            skip = place - before.first - before.shift
            if skip < len(before):
                return before.part(skip, len(before))
        if at < len(returned):
            return returned[at].part(0, len(returned[at]))
        fresh = self.fresh
        while fresh:
            if fresh[0].payload.pack is not None:
                unpack_head(fresh)
            piece = fresh.popleft()
            returned.append(piece)
            skip = max(0, place - piece.first - piece.shift)
            if skip < len(piece):
                return piece.part(skip, len(piece))
        return None

    def pick(self, place: int, n: int) -> Slice:
        """Take out n messages from `place` on, in a range that `at` returned."""
        returned = self.in_front()
        at = bisect_left(returned, place + 1, key=_place) - 1
        whole = returned[at]
        skip = place - whole.first - whole.shift
        piece = whole.part(skip, skip + n)
        left = [
            part
            for part in (whole.part(0, skip), whole.part(skip + n, len(whole)))
            if part.hi > part.lo
        ]
        returned[at : at + 1] = left
        return piece

    def cut_out(self, spans: list[tuple[int, int]]) -> None:
        """Take out messages that `at` returned: for each (place, n), n messages of one slice. The
        spans are in order of their places. O(slices) of `returned`, once for all spans."""
        returned = self.in_front()
        kept: list[Slice] = []
        at = 0
        rest: Slice | None = None
        """Remaining part of returned[at - 1]."""
        for place, n in spans:
            if rest is None or place >= rest.first + rest.shift + len(rest):
                if rest is not None:
                    kept.append(rest)
                index = bisect_left(returned, place + 1, at, key=_place) - 1
                kept += returned[at:index]
                rest = returned[index]
                at = index + 1
            skip = place - rest.first - rest.shift
            if skip:
                kept.append(rest.part(0, skip))
            rest = rest.part(skip + n, len(rest)) if skip + n < len(rest) else None
        if rest is not None:
            kept.append(rest)
        kept += returned[at:]
        self.returned = kept

    def slices(self) -> list[Slice]:
        """Return all slices, in order. They are the lane's own objects and must not be changed."""
        return [*self.in_front(), *self.fresh]

    def unpack(self) -> None:
        """Unpack all packed messages, for a reader of the whole lane. O(messages)."""
        self.fresh = unpack_all(self.fresh)

    def clear(self) -> list[Slice]:
        """Remove all slices and return them."""
        pieces = self.slices()
        self.returned = []
        self._gone = 0
        self.fresh.clear()
        return pieces


@final
class Lanes:
    """The ready messages of one queue: a lane for each priority."""

    def __init__(self, highest_priority: int) -> None:
        self.by_priority = [Lane() for _ in range(highest_priority + 1)]
        """Lanes, indexed by priority."""
        self.lowest = self.by_priority[0]
        """Lane of priority 0; the only one of most queues, and of every stream."""
        self.next_shift = 0
        """Shift (Slice.shift) of the message that enters next: the count of messages put to the
        tail so far."""
        self.unexamined = 0
        """Count of the newest slices that packing has not examined yet."""
        self.awaits_packing = False
        """True while the queue is among those that `Backlogs` packs after the turn."""

    # -- putting in

    def append(self, piece: Slice) -> None:
        """Append a slice behind all of its lane."""
        self.by_priority[piece.priority].fresh.append(piece)
        self.unexamined += 1

    def append_part(
        self,
        payload: Payload,
        lo: int,
        hi: int,
        first: QueueSequence,
        priority: int,
        annotations: Annotations | None,
    ) -> None:
        """Append messages lo..hi-1 of a payload, which just entered, to the last slice of their
        lane if they continue it, else as a slice of their own."""
        fresh = self.by_priority[priority].fresh
        if fresh:
            last = fresh[-1]
            if (
                last.payload is payload
                and last.hi == lo
                and last.first + lo - last.lo == first
                and last.annotations is annotations
                and last.shift == self.next_shift
                and last.acquired == 0
            ):
                last.hi = hi
                return
        fresh.append(Slice(payload, lo, hi, first, 0, 0, priority, annotations, self.next_shift))
        self.unexamined += 1

    def put_to_tail(self, piece: Slice, entered: int) -> None:
        """Append a slice behind all present messages and before all future ones. entered: how many
        messages ever entered the queue."""
        piece.shift = entered + self.next_shift + 1 - piece.first
        self.next_shift += len(piece)
        self.append(piece)

    def give_back(self, pieces: list[Slice]) -> None:
        """Return slices to their old places, each in the lane of its priority."""
        if len(self.by_priority) == 1:
            self.lowest.give_back(pieces)
            return
        by_lane: dict[int, list[Slice]] = {}
        for piece in pieces:
            by_lane.setdefault(piece.priority, []).append(piece)
        for priority, some in by_lane.items():
            self.by_priority[priority].give_back(some)

    # -- looking

    def next_lane(self) -> Lane:
        """Return the lane of the message that leaves next: that of the highest priority that has
        any; the lowest if none has."""
        lanes = self.by_priority
        at = len(lanes) - 1
        while at > 0:
            lane = lanes[at]
            if lane.fresh or lane.returned:
                return lane
            at -= 1
        return self.lowest

    def depth(self) -> int:
        """Return the count of slices that were never delivered."""
        return sum([len(lane.fresh) for lane in self.by_priority])

    def slices(self) -> list[Slice]:
        """Return all slices in delivery order. They are the lanes' own objects and must not be
        changed."""
        if len(self.by_priority) == 1:
            return self.lowest.slices()
        return [piece for lane in reversed(self.by_priority) for piece in lane.slices()]

    # -- all of them

    def unpack(self) -> None:
        """Unpack all packed messages, for a reader of the whole queue. O(messages)."""
        for lane in self.by_priority:
            lane.unpack()

    def clear(self) -> list[Slice]:
        """Remove all slices and return them in delivery order."""
        pieces = self.slices()
        for lane in self.by_priority:
            lane.clear()
        return pieces
