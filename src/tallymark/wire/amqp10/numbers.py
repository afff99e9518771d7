"""Numbers of deliveries that we send, and the delivery-ids they get.

A delivery gets its number when it is handed over, in order, and its delivery-id when it leaves.
They are the same until one is withdrawn before it left: delivery-ids have no gaps, numbers do
(there are clients that close on a gap). Both are serial numbers modulo 2^32.
"""

from __future__ import annotations

from typing import Final, final

from tallymark.wire.amqp10.serial import MASK, Serial, add, diff

STRETCHES_MAX: Final = 1024
"""Maximum number of remembered stretches of withdrawn numbers."""
REACH: Final = 0x7FFF_0000
"""Distance up to which earlier numbers are recognized. Numbers farther back would be taken for
future ones."""


@final
class Numbers:
    """Mapping between numbers and delivery-ids. O(stretches withdrawn) for each query; mostly there
    are none."""

    __slots__ = ("_floor", "_lows", "_shift", "_sizes", "_total", "next")

    def __init__(self) -> None:
        self.next = Serial(0)
        """Number of the next delivery that is handed over."""
        self._floor = Serial(0)  # numbers before it are not recognized any more
        self._shift = 0  # withdrawn before the floor
        self._total = 0  # withdrawn in all, modulo 2^32
        self._lows: list[Serial] = []  # stretches of withdrawn numbers, in order
        self._sizes: list[int] = []

    def start(self, number: Serial) -> None:
        """Begin with this number; nothing was handed over yet."""
        self.next = number
        self._floor = number

    def take(self, count: int) -> Serial:
        """Assign numbers to `count` deliveries; return the first."""
        first = self.next
        self.next = add(first, count)
        if diff(self.next, self._floor) < 0 or diff(self.next, self._floor) > REACH:
            self._raise_floor(add(self.next, -REACH))
        return first

    def withdraw(self, low: Serial, count: int) -> None:
        """Withdraw numbers low..low+count-1: they and all after them have not left."""
        lows = self._lows
        sizes = self._sizes
        at = len(lows)
        while at and diff(lows[at - 1], low) > 0:
            at -= 1
        if at and add(lows[at - 1], sizes[at - 1]) == low:
            sizes[at - 1] += count
        else:
            lows.insert(at, low)
            sizes.insert(at, count)
        self._total = (self._total + count) & MASK
        if len(lows) > STRETCHES_MAX:
            self._raise_floor(add(lows[0], sizes[0]))

    def id_of(self, number: Serial) -> Serial:
        """Return the delivery-id of a number that was not withdrawn."""
        lows = self._lows
        if not lows:
            return add(number, -self._shift)
        shift = self._shift
        for i in range(len(lows)):
            if diff(number, lows[i]) < 0:
                break
            shift += self._sizes[i]
        return add(number, -shift)

    def next_id(self) -> Serial:
        """Return the delivery-id that the next number would have."""
        return add(self.next, -self._total)

    def floor_id(self) -> Serial:
        """Return the oldest delivery-id that is recognized."""
        return add(self._floor, -self._shift)

    def ids_of(self, first: Serial, last: Serial) -> tuple[Serial, Serial] | None:
        """Return the delivery-ids of the numbers among first..last that were not withdrawn; None:
        all were."""
        for i in range(len(self._lows)):
            low = self._lows[i]
            after = add(low, self._sizes[i])
            if diff(first, low) >= 0 and diff(first, after) < 0:
                first = after
        for i in range(len(self._lows) - 1, -1, -1):
            low = self._lows[i]
            after = add(low, self._sizes[i])
            if diff(last, low) >= 0 and diff(last, after) < 0:
                last = add(low, -1)
        if diff(last, first) < 0:
            return None
        return self.id_of(first), self.id_of(last)

    def ranges_of(self, first: Serial, last: Serial) -> list[tuple[Serial, Serial]]:
        """Return the numbers of delivery-ids first..last (not before the floor), in order: several
        stretches if withdrawn numbers lie between."""
        shift = self._shift
        lows = self._lows
        if not lows:
            return [(add(first, shift), add(last, shift))]
        ranges: list[tuple[Serial, Serial]] = []
        for i in range(len(lows)):
            before = add(lows[i], -shift)  # the first delivery-id behind the stretch
            if diff(first, before) < 0:
                if diff(last, before) < 0:
                    break
                ranges.append((add(first, shift), add(before, shift - 1)))
                first = before
            shift += self._sizes[i]
        ranges.append((add(first, shift), add(last, shift)))
        return ranges

    def _raise_floor(self, floor: Serial) -> None:
        lows = self._lows
        sizes = self._sizes
        while lows and diff(add(lows[0], sizes[0]), floor) <= 0:
            self._shift = (self._shift + sizes.pop(0)) & MASK
            del lows[0]
        if lows and diff(lows[0], floor) < 0:
            floor = lows[0]
        self._floor = floor
