"""Octets: comparison of bytes and storage of numbers without an object for each, for the fast
paths.

Compiled, none of these makes a Python object per call.
"""

from __future__ import annotations

import sys
from array import array
from typing import Final

from librt.strings import BytesWriter, read_i32_le, read_i64_le, write_i32_be, write_i32_le
from mypy_extensions import i32, i64

IS_INTERPRETED: Final = __file__.endswith(".py")
_IS_LITTLE: Final = sys.byteorder == "little"
_PAIR: Final = array("I", (0, 0))


def begins(raw: bytes, at: i64, key: bytes) -> bool:
    """Return whether raw[at:] begins with `key`; 0 <= at."""
    if IS_INTERPRETED:
        return raw.startswith(key, at)
    size: i64 = len(key)
    if len(raw) - at < size:
        return False
    k: i64 = 0
    while k + 8 <= size:
        if read_i64_le(raw, at + k) != read_i64_le(key, k):
            return False
        k += 8
    while k < size:
        if raw[at + k] != key[k]:
            return False
        k += 1
    return True


def alike(raw: bytes, one: i64, other: i64, size: i64) -> bool:
    """Return whether the `size` bytes at `one`, which must exist, are also at `other`; 0 <=
    other."""
    if IS_INTERPRETED:
        return raw.startswith(raw[one : one + size], other)
    if len(raw) - other < size:
        return False
    k: i64 = 0
    while k + 8 <= size:
        if read_i64_le(raw, one + k) != read_i64_le(raw, other + k):
            return False
        k += 8
    while k < size:
        if raw[one + k] != raw[other + k]:
            return False
        k += 1
    return True


def u16(data: bytes, pos: i64) -> i64:
    """Return the two bytes at `pos`, which must exist, as an unsigned number."""
    first: i64 = data[pos]
    return first << 8 | data[pos + 1]


def u32(data: bytes, pos: i64) -> i64:
    """Return the four bytes at `pos`, which must exist, as an unsigned number."""
    first: i64 = data[pos]
    second: i64 = data[pos + 1]
    third: i64 = data[pos + 2]
    return first << 24 | second << 16 | third << 8 | data[pos + 3]


def put_u32(out: BytesWriter, number: i64) -> None:
    """Write an unsigned number as four bytes, big-endian; 0 <= number < 2^32."""
    write_i32_be(out, i32(number if number < 0x8000_0000 else number - 0x1_0000_0000))


def put_place(out: BytesWriter, number: i64) -> None:
    """Write a number for `place` and `unpacked`; 0 <= number < 2^32."""
    write_i32_le(out, i32(number if number < 0x8000_0000 else number - 0x1_0000_0000))


def packed(places: array[int], lo: int, hi: int) -> bytes:
    """Return places[lo..hi] of an array("I"), `hi` included, as bytes for `place`."""
    part = places[lo : hi + 1]
    if not _IS_LITTLE:
        part.byteswap()
    return part.tobytes()


def place(pack: bytes, i: i64) -> i64:
    """Return number i in the bytes of `packed`."""
    return i64(read_i32_le(pack, i << 2)) & 0xFFFF_FFFF


def pair(first: int, second: int) -> array[int]:
    """Return an array("I") of two numbers: a copy of one takes a third of the instructions that a
    new one does."""
    made = _PAIR[:]
    made[0] = first
    made[1] = second
    return made


def unpacked(pack: bytes) -> array[int]:
    """Return an array("I") from numbers of four bytes each, little-endian."""
    if len(pack) == 8:  # the bounds of a message that comes alone
        return pair(place(pack, 0), place(pack, 1))
    places = array("I", pack)
    if not _IS_LITTLE:
        places.byteswap()
    return places
