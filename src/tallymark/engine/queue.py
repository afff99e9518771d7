"""A queue: what is ready, in order, and the count of everything that ever entered.

Ready messages are slices in sequence order, in two parts: `returned` (given back, sorted) and
`fresh` (never handed out). Messages leave from the front only, so whatever was handed out and comes
back lies before everything fresh: order is a property of the data, not of the path taken.

Conservation, at any quiescent moment [LC-5]:
    entered = ready + acquired + settled + dropped(by reason)
where acquired includes what durable subscriptions hold on lease.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from typing import TYPE_CHECKING, Final, final

from tallymark.engine import records
from tallymark.engine.message import Payload, Slice
from tallymark.engine.packing import unpack_all, unpack_head
from tallymark.engine.settings import Settings

if TYPE_CHECKING:
    from tallymark.engine.session import Consumer
    from tallymark.engine.subscription import Subscription

FEW: Final = 8
"""Up to so many slices are put back one by one; more are sorted in together."""


def _by_first(piece: Slice) -> int:
    return piece.first


@final
class SettledRange:
    """Sequences low..high-1 settled in this turn by one owner."""

    __slots__ = ("high", "low", "owner", "reason")

    def __init__(self, low: int, high: int, owner: int, reason: int) -> None:
        self.low = low
        self.high = high
        self.owner = owner
        self.reason = reason


@final
class Queue:
    """One queue. Plain state and its own bookkeeping: records and effects are the Broker's."""

    __slots__ = (
        "acquired",
        "acquired_bytes",
        "arguments",
        "auto_delete",
        "consumers",
        "deleted",
        "dirty",
        "dropped",
        "durable",
        "entered",
        "exclusive_owner",
        "fresh",
        "had_consumer",
        "id",
        "deep",
        "leased",
        "loose",
        "mark",
        "mark_durable",
        "name",
        "next_turn",
        "ready",
        "ready_bytes",
        "reserve",
        "returned",
        "settled",
        "settings",
        "settled_ranges",
        "stored",
        "subscriptions",
        "vhost",
    )

    def __init__(
        self,
        id: int,
        name: str,
        vhost: str,
        durable: bool,
        exclusive_owner: int,
        auto_delete: bool,
        arguments: dict[str, object],
    ) -> None:
        self.id = id
        """Broker-wide, never reused."""
        self.name = name
        self.vhost = vhost
        self.durable = durable
        self.exclusive_owner = exclusive_owner
        """Id of the only connection that may use it; 0: anyone."""
        self.auto_delete = auto_delete
        self.arguments = arguments
        self.settings = Settings(arguments, {})
        """What arguments and policies come to."""
        self.stored = durable and exclusive_owner == 0
        """Whether its transitions go to the journal: it can outlive this process."""
        self.deleted = False
        self.dirty = False
        """Whether the Broker has it on its list of queues to pump."""

        self.returned: list[Slice] = []
        self.fresh: deque[Slice] = deque()
        self.loose = 0
        """How many of the newest slices were not yet looked at for packing."""
        self.deep = False
        """Whether the Broker has it on its list of queues to pack."""
        self.ready = 0
        self.ready_bytes = 0
        self.acquired = 0
        self.acquired_bytes = 0
        self.leased = 0
        """Of the acquired: how many are leased to durable subscriptions."""
        self.entered = 0
        """Sequences assigned so far; the next one is entered + 1."""
        self.settled = 0
        self.dropped: dict[int, int] = {}
        """Count by reason (records.DROPPED_*)."""
        self.settled_ranges: list[SettledRange] = []

        self.consumers: list[Consumer] = []
        """Highest priority first; among equals in order of arrival."""
        self.next_turn = 0
        """Index of the consumer whose turn it is, among those of equal priority."""
        self.had_consumer = False
        self.subscriptions: list[Subscription] = []

        self.mark = 0
        """Sequences below it may have been handed out, as far as the journal was told."""
        self.mark_durable = 0
        """The same, as far as the disk is known to say so. Nothing at or above it is handed out."""
        self.reserve = 0
        """How far ahead the present mark was set."""

    # -- ready messages

    def push(self, payload: Payload) -> int:
        """Append all messages of a payload; returns the first sequence they got."""
        first = self.entered + 1
        count = payload.count
        self.entered += count
        self.ready += count
        self.ready_bytes += payload.size
        self.fresh.append(Slice(payload, 0, count, first, 0))
        self.loose += 1
        return first

    def push_part(self, payload: Payload, lo: int, hi: int) -> int:
        """Append messages lo..hi-1 of a payload; returns the first sequence they got."""
        first = self.entered + 1
        self.entered += hi - lo
        self.ready += hi - lo
        cuts = payload.cuts
        self.ready_bytes += cuts[hi] - cuts[lo]
        fresh = self.fresh
        if fresh:
            last = fresh[-1]
            if last.payload is payload and last.hi == lo:
                last.hi = hi
                return first
        fresh.append(Slice(payload, lo, hi, first, 0))
        self.loose += 1
        return first

    def head(self) -> Slice | None:
        """The slice that leaves next; its bytes may not be in memory."""
        if self.returned:
            return self.returned[0]
        fresh = self.fresh
        if not fresh:
            return None
        if fresh[0].payload.pack is not None:
            unpack_head(fresh)
        return fresh[0]

    def take(self, n: int) -> Slice:
        """Take n messages off the head slice (0 < n <= its length): ready becomes acquired."""
        returned = self.returned
        piece = returned[0] if returned else self.fresh[0]
        if n < piece.hi - piece.lo:
            piece = piece.take(n)
        elif returned:
            del returned[0]
        else:
            self.fresh.popleft()
        size = piece.size()
        self.ready -= n
        self.ready_bytes -= size
        self.acquired += n
        self.acquired_bytes += size
        return piece

    def give_back(self, pieces: list[Slice]) -> None:
        """Acquired becomes ready, at the old positions [TX-9]; handed out once more than before."""
        for piece in pieces:
            size = piece.size()
            count = piece.hi - piece.lo
            self.ready += count
            self.ready_bytes += size
            self.acquired -= count
            self.acquired_bytes -= size
            piece.acquired += 1
        returned = self.returned
        if len(pieces) > FEW:
            together = returned + pieces
            together.sort(key=_by_first)
            merged: list[Slice] = []
            for piece in together:
                if merged and merged[-1].followed_by(piece):
                    merged[-1].hi = piece.hi
                else:
                    merged.append(piece)
            self.returned = merged
            return
        for piece in pieces:
            at = bisect_left(returned, piece.first, key=_by_first)
            if at < len(returned) and piece.followed_by(returned[at]):
                piece.hi = returned[at].hi
                returned[at] = piece
            else:
                returned.insert(at, piece)
            if at > 0 and returned[at - 1].followed_by(returned[at]):
                returned[at - 1].hi = returned[at].hi
                del returned[at]

    def slices(self) -> list[Slice]:
        """Every ready slice, in order. The queue's own objects: do not change them."""
        return [*self.returned, *self.fresh]

    def unpack(self) -> None:
        """Take every packed message out, for a reader of the whole queue. O(messages)."""
        self.fresh = unpack_all(self.fresh)

    def clear(self) -> list[Slice]:
        """Take everything ready out, uncounted: the caller drops it with `drop_ready`."""
        pieces = self.slices()
        self.returned = []
        self.fresh.clear()
        return pieces

    # -- the account

    def settle(self, piece: Slice, lo: int, hi: int, owner: int, reason: int) -> bool:
        """Messages lo..hi-1 of an acquired slice's payload are done with.

        Returns whether this is the first of the turn that needs a record.
        """
        count = hi - lo
        self.acquired -= count
        cuts = piece.payload.cuts
        self.acquired_bytes -= cuts[hi] - cuts[lo]
        self.settled += count
        if not self.stored:
            return False
        low = piece.first + lo - piece.lo
        ranges = self.settled_ranges
        if not ranges:
            ranges.append(SettledRange(low, low + count, owner, reason))
            return True
        last = ranges[-1]
        if last.high == low and last.owner == owner and last.reason == reason:
            last.high = low + count
        else:
            ranges.append(SettledRange(low, low + count, owner, reason))
        return False

    def drop_acquired(self, count: int, size: int, reason: int) -> None:
        """Acquired messages end without success."""
        self.acquired -= count
        self.acquired_bytes -= size
        self.dropped[reason] = self.dropped.get(reason, 0) + count

    def drop_ready(self, count: int, size: int, reason: int) -> None:
        """Ready messages end without success."""
        self.ready -= count
        self.ready_bytes -= size
        self.dropped[reason] = self.dropped.get(reason, 0) + count

    def counters(self) -> dict[str, object]:
        """The account as plain values: what COUNTERS records, the HTTP API and Spark show."""
        return {
            "entered": self.entered,
            "ready": self.ready,
            "acquired": self.acquired,
            "leased": self.leased,
            "deferred": 0,
            "staged": 0,
            "dead_letter_pending": 0,
            "settled": self.settled,
            "dead_lettered": 0,
            "dropped": {records.DROP_REASONS[k]: n for k, n in sorted(self.dropped.items())},
        }

    def check(self) -> None:
        """Assert conservation and that the counts match the slices [LC-5]. O(slices)."""
        pieces = self.slices()
        assert self.ready == sum(len(p) for p in pieces), (self.name, self.ready, len(pieces))
        assert self.ready_bytes == sum(p.size() for p in pieces), (self.name, self.ready_bytes)
        last = 0
        for piece in pieces:
            assert piece.first > last, (self.name, piece.first, last)
            last = piece.first + len(piece) - 1
        gone = self.settled + sum(self.dropped.values())
        assert self.entered == self.ready + self.acquired + gone, (self.name, self.counters())
        assert min(self.ready, self.acquired, self.leased, self.ready_bytes) >= 0
        assert self.acquired_bytes >= 0
        assert self.leased <= self.acquired
