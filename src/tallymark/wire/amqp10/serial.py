"""Serial numbers modulo 2^32 [amqp-1.0 §2.8.10, RFC 1982]: delivery-ids, delivery-counts,
transfer-ids. The only place that knows where they wrap.

Numbers are 0..2^32-1. Two numbers exactly 2^31 apart have no order; here the distance is negative.
"""

from __future__ import annotations

from typing import Final

MODULUS: Final = 1 << 32
MASK: Final = MODULUS - 1
_HALF: Final = 1 << 31


def add(number: int, distance: int) -> int:
    """The number `distance` further on; a negative distance goes back."""
    return (number + distance) & MASK


def diff(number: int, other: int) -> int:
    """How far `number` is ahead of `other`, -2^31..2^31-1: negative where it is behind."""
    distance = (number - other) & MASK
    return distance - MODULUS if distance >= _HALF else distance


def less(number: int, other: int) -> bool:
    """Whether `number` comes before `other`."""
    return diff(number, other) < 0


def count(first: int, last: int) -> int:
    """How many numbers first..last are, both included; 0 where last comes before first."""
    distance = diff(last, first)
    return distance + 1 if distance >= 0 else 0


def walk(first: int, last: int) -> list[tuple[int, int]]:
    """The range first..last as one stretch (low, high) of plain integers, or two where it wraps;
    none where `last` comes before `first`."""
    if diff(last, first) < 0:
        return []
    if first <= last:
        return [(first, last)]
    return [(first, MASK), (0, last)]
