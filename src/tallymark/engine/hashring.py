"""A consistent-hash ring: each member owns a share of all keys in proportion to its weight.

Every member has POINTS points on a circle for each unit of its weight; a key belongs to the member
of the first point at or after the key's own place. Places come from a hash of the member's name and
of the key alone. Hence a key's owner is the same after a restart and whatever the order in which
members came; a member that goes gives up its own keys and moves no others, one that comes takes
keys only for itself.

The number of points is bounded (MAX_POINTS): when the weights add up to more than
MAX_POINTS / POINTS = 8192 every member keeps half of its points, or a quarter, and so on. Shares
stay in proportion; only crossing such a threshold moves keys between old members.
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from bisect import bisect_left
from typing import Final, Generic, TypeVar, final

from tallymark.engine.arguments import wire_bytes

T = TypeVar("T")

POINTS: Final = 128
"""Number of points per unit of weight. Shares of members of weight 1 are off by about
1/sqrt(POINTS), 9 percent; of weight 10 by 3."""
MAX_POINTS: Final = 1 << 20
OWNER_BITS: Final = 20
"""Number of low bits of a point that hold its owner's number; the rest is its place on the
circle."""
OWNER_MASK: Final = (1 << OWNER_BITS) - 1


def place_of(key: bytes) -> int:
    """Return the place of a key on the circle: 64 bits of which the lowest OWNER_BITS are 0."""
    place = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")
    return place & ~OWNER_MASK


@final
class Member(Generic[T]):
    """A name on the ring, its weight, and the values added under the name, oldest first."""

    __slots__ = ("name", "places", "values", "weight")

    def __init__(self, name: str) -> None:
        self.name = name
        self.weight = 0
        self.values: list[T] = []
        self.places: list[int] = []

    def first_places(self, count: int) -> list[int]:
        """Return the first `count` places of this name, sorted; a lower count gives a subset."""
        if len(self.places) != count:
            raw = hashlib.shake_128(wire_bytes(self.name)).digest(8 * count)
            self.places = [place & ~OWNER_MASK for place in struct.unpack(f"<{count}Q", raw)]
            self.places.sort()
        return self.places


@final
class HashRing(Generic[T]):
    """Members by name. The ring is computed at the first look-up after a change."""

    __slots__ = ("_owners", "_points", "_stale", "members")

    def __init__(self) -> None:
        self.members: dict[str, Member[T]] = {}
        self._points: array[int] = array("Q")
        self._owners: list[Member[T]] = []
        self._stale = False

    def add(self, name: str, weight: int, value: T) -> None:
        """Put a value (weight > 0) on the ring. Weights under one name add up; the name's keys
        belong to its first value."""
        member = self.members.get(name)
        if member is None:
            member = Member(name)
            self.members[name] = member
        member.weight += weight
        member.values.append(value)
        self._stale = True

    def remove(self, name: str, weight: int, value: T) -> None:
        """Undo the `add` with the same arguments."""
        member = self.members[name]
        member.values.remove(value)
        member.weight -= weight
        if not member.values:
            del self.members[name]
        self._stale = True

    def find(self, key: bytes) -> T | None:
        """Return the value that owns the key; None when the ring is empty. O(log points)."""
        if self._stale:
            self._lay_out()
        points = self._points
        if not points:
            return None
        at = bisect_left(points, place_of(key))
        owner = self._owners[points[at if at < len(points) else 0] & OWNER_MASK]
        return owner.values[0]

    def _lay_out(self) -> None:
        total = sum([member.weight for member in self.members.values()])
        halvings = 0
        while (total * POINTS) >> halvings > MAX_POINTS:
            halvings += 1
        self._owners = [self.members[name] for name in sorted(self.members)]
        points: list[int] = []
        for number, member in enumerate(self._owners):
            count = max(1, (member.weight * POINTS) >> halvings)
            points.extend([place | number for place in member.first_places(count)])
        points.sort()  # runs that are sorted already are only merged
        self._points = array("Q", points)
        self._stale = False
