"""Confirms: outcomes of deliveries, translated from the engine's publish numbers to delivery-ids.

The engine counts the publishes of a session and confirms them up to a number; a client counts its
deliveries. Both run on, so what is not answered yet is kept as ranges where they run in parallel:
one for each stretch that was received, hardly ever more than a few.
"""

from __future__ import annotations

from collections import deque
from typing import Final, final

from tallymark.bridge.amqp10.links import Publisher
from tallymark.wire.amqp10.outcomes import Accepted, DeliveryState
from tallymark.wire.amqp10.serial import ZERO, Serial, add, diff
from tallymark.wire.amqp10.session import Session as WireSession

NEVER: Final = 0
"""Mode: the delivery was sent settled and gets no answer."""
FIRST: Final = 1
"""Mode: our outcome settles the delivery (rcv-settle-mode first)."""
SECOND: Final = 2
"""Mode: the client settles after our outcome (rcv-settle-mode second)."""
ANSWERED: Final = 3
"""Mode: the outcome was sent already; the entry only keeps the numbers in step."""

ACCEPTED: Final = Accepted()


@final
class Unanswered:
    """Publishes first..last, which were deliveries from `id` on."""

    __slots__ = ("first", "id", "last", "link", "mode")

    def __init__(self, first: int, last: int, id: Serial, link: Publisher, mode: int) -> None:
        self.first = first
        self.last = last
        self.id = id
        self.link = link
        self.mode = mode

    def part(self, first: int, last: int) -> Unanswered:
        return Unanswered(first, last, add(self.id, first - self.first), self.link, self.mode)


@final
class Confirms:
    """The confirms of one session."""

    __slots__ = ("_ranges", "_wire")

    def __init__(self, wire: WireSession) -> None:
        self._wire = wire
        self._ranges: deque[Unanswered] = deque()

    def published(self, first: int, count: int, link: Publisher, id: Serial, mode: int) -> None:
        """Add publishes of the session from number `first` on, which were deliveries from `id`
        on."""
        last = first + count - 1
        if mode != ANSWERED:
            link.unconfirmed += count
        ranges = self._ranges
        if ranges:
            tail = ranges[-1]
            if (
                tail.link is link
                and tail.mode == mode
                and tail.last + 1 == first
                and add(tail.id, first - tail.first) == id
            ):
                tail.last = last
                return
        ranges.append(Unanswered(first, last, id, link, mode))

    def confirm(self, upto: int) -> list[Publisher]:
        """Send the outcome of all publishes up to that number, which are safe. Returns the links
        whose count of unanswered messages fell."""
        touched: list[Publisher] = []
        ranges = self._ranges
        first = last = ZERO  # delivery-ids in the next disposition, if it has any
        has_any = False
        while ranges and ranges[0].first <= upto:
            entry = ranges[0]
            end = min(upto, entry.last)
            id = entry.id
            count = end - entry.first + 1
            mode = entry.mode
            link = entry.link
            if end == entry.last:
                ranges.popleft()
            else:
                entry.id = add(id, count)
                entry.first = end + 1
            if mode == ANSWERED:
                continue
            if link not in touched:
                touched.append(link)
            if mode == SECOND:
                link.settle(id, add(id, count - 1), ACCEPTED)
                continue
            link.unconfirmed -= count
            if mode == NEVER or not link.is_open:
                continue
            if has_any and add(last, 1) == id:
                last = add(id, count - 1)
                continue
            if has_any:
                self._wire.settle_received(first, last, ACCEPTED)
            has_any = True
            first = id
            last = add(id, count - 1)
        if has_any:
            self._wire.settle_received(first, last, ACCEPTED)
        return touched

    def refuse(self, first: int, last: int) -> list[Publisher]:
        """Reject publishes first..last because queues are full [DL-6]. Returns links as `confirm`
        does."""
        touched: list[Publisher] = []
        kept: deque[Unanswered] = deque()
        for entry in self._ranges:
            low = max(first, entry.first)
            high = min(last, entry.last)
            if low > high or entry.mode == ANSWERED:
                kept.append(entry)
                continue
            if entry.first < low:
                kept.append(entry.part(entry.first, low - 1))
            part = entry.part(low, high)
            self._tell(part, part.link.no_room)
            if part.link not in touched:
                touched.append(part.link)
            part.mode = ANSWERED
            kept.append(part)
            if high < entry.last:
                kept.append(entry.part(high + 1, entry.last))
        self._ranges = kept
        return touched

    def _tell(self, part: Unanswered, state: DeliveryState) -> None:
        link = part.link
        end = add(part.id, part.last - part.first)
        if part.mode == SECOND:
            link.settle(part.id, end, state)
            return
        link.unconfirmed -= part.last - part.first + 1
        if part.mode == FIRST and link.is_open:
            self._wire.settle_received(part.id, end, state)

    def forget(self, first: Serial, last: Serial) -> None:
        """Remove deliveries first..last that the client has settled itself: they get no answer."""
        kept: deque[Unanswered] = deque()
        for entry in self._ranges:
            ahead = diff(first, entry.id)
            low = max(entry.first, entry.first + ahead)
            high = min(entry.last, entry.first + diff(last, entry.id))
            if low > high or entry.mode not in (FIRST, SECOND):
                kept.append(entry)
                continue
            if entry.first < low:
                kept.append(entry.part(entry.first, low - 1))
            part = entry.part(low, high)
            part.mode = NEVER
            kept.append(part)
            if high < entry.last:
                kept.append(entry.part(high + 1, entry.last))
        self._ranges = kept

    def clear(self) -> None:
        """Remove all publishes because the session has ended."""
        self._ranges.clear()

    def count(self) -> int:
        """Return the count of publishes without an outcome."""
        total = 0
        for entry in self._ranges:
            if entry.mode != ANSWERED:
                total += entry.last - entry.first + 1
        return total
