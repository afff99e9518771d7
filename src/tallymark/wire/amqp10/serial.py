"""Serial numbers modulo 2^32 [amqp-1.0 §2.8.10, RFC 1982]: delivery-ids, delivery-counts,
transfer-ids. All wrap-around is handled here.

Numbers are 0..2^32-1. Two numbers exactly 2^31 apart have no order; here the distance is negative.
"""

from __future__ import annotations

from typing import Final, NewType

Serial = NewType("Serial", int)
"""A serial number. Two are compared by `diff`, never by `<`."""
ZERO: Final = Serial(0)

MODULUS: Final = 1 << 32
MASK: Final = MODULUS - 1
_HALF: Final = 1 << 31


def add(number: Serial, distance: int) -> Serial:
    """Return the number `distance` ahead; a negative distance goes back."""
    return Serial((number + distance) & MASK)


def diff(number: Serial, other: Serial) -> int:
    """Return the distance of `number` from `other`, -2^31..2^31-1: negative if it is behind."""
    distance = (number - other) & MASK
    return distance - MODULUS if distance >= _HALF else distance


def less(number: Serial, other: Serial) -> bool:
    """Return whether `number` comes before `other`."""
    return diff(number, other) < 0


def count(first: Serial, last: Serial) -> int:
    """Return the count of numbers in first..last, both included; 0 if last comes before first."""
    distance = diff(last, first)
    return distance + 1 if distance >= 0 else 0


def walk(first: Serial, last: Serial) -> list[tuple[int, int]]:
    """Return the range first..last as one stretch (low, high) of plain integers, or two if it
    wraps; none if `last` comes before `first`."""
    if diff(last, first) < 0:
        return []
    if first <= last:
        return [(first, last)]
    return [(first, MASK), (0, last)]
