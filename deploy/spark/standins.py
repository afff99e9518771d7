"""Stand-ins for packages in C that the broker has and a Spark cluster may not have.

In the wheel tallymark-spark the modules import these names from here. Numbers of fixed width are
Python's ints; a writer of bytes is a bytearray; CRC-32C is google_crc32c's where it is installed.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, partial
from struct import Struct
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

i64 = int
i32 = int

Words = NDArray[np.uint32]
LANE: Final = 256
"""Bytes of which one sum is computed. It is independent of the other lanes', so that all are
computed at once."""
FEW: Final = 4096
"""Bytes that are as quick one by one."""
MANY: Final = 1 << 20
"""Bytes of which all lanes fit the processor's cache."""
_POLYNOMIAL: Final = 0x82F6_3B78
"""CRC-32C's, its bits reversed [RFC 3720, 12.1]."""


class BytesWriter:
    """Bytes that are appended to, as librt.strings has them."""

    __slots__ = ("_data",)

    def __init__(self) -> None:
        self._data = bytearray()

    def append(self, value: int) -> None:
        self._data.append(value)

    def write(self, value: bytes) -> None:
        self._data += value

    def getvalue(self) -> bytes:
        return bytes(self._data)

    def __len__(self) -> int:
        return len(self._data)


def _read(form: Struct, data: bytes, at: int) -> int:
    number: int = form.unpack_from(data, at)[0]
    return number


def _write(form: Struct, out: BytesWriter, number: int) -> None:
    out.write(form.pack(number))


read_i32_le = partial(_read, Struct("<i"))
read_i64_le = partial(_read, Struct("<q"))
read_i64_be = partial(_read, Struct(">q"))
write_i32_le = partial(_write, Struct("<i"))
write_i32_be = partial(_write, Struct(">i"))
write_i64_be = partial(_write, Struct(">q"))


# CRC-32C. A sum is linear: that of two parts is the first one's, moved on by the second's length,
# and the second one's, added bit by bit.


@cache
def _table(bits: int) -> Words:
    """The sum of each number of so many bits alone."""
    sums = np.arange(1 << bits, dtype=np.uint32)
    for _ in range(bits):
        sums = np.where(sums & 1, sums >> 1 ^ np.uint32(_POLYNOMIAL), sums >> 1)
    return sums


@cache
def _words() -> list[int]:
    """The sum of each byte alone, as Python's ints."""
    return _table(8).tolist()


def _moved_by_zeros(sums: Words, count: int) -> Words:
    for _ in range(count):
        sums = _table(8)[sums & 0xFF] ^ sums >> 8
    return sums


@cache
def _moves(doublings: int) -> Words:
    """What each byte of a sum comes to when LANE << doublings bytes of zero follow: four tables."""
    bytes_of_sum = np.arange(256, dtype=np.uint32) << (8 * np.arange(4, dtype=np.uint32))[:, None]
    if not doublings:
        return _moved_by_zeros(bytes_of_sum, LANE)
    return _moved(_moved(bytes_of_sum, doublings - 1), doublings - 1)


def _moved(sums: Words, doublings: int) -> Words:
    tables = _moves(doublings)
    return (
        tables[0][sums & 0xFF]
        ^ tables[1][sums >> 8 & 0xFF]
        ^ tables[2][sums >> 16 & 0xFF]
        ^ tables[3][sums >> 24]
    )


def _bits(number: int) -> Iterable[int]:
    return (i for i in range(number.bit_length()) if number >> i & 1)


def numpy_extend(crc: int, chunk: Any) -> int:
    """Return the CRC-32C of bytes that follow others, whose CRC-32C is `crc`."""
    data = np.frombuffer(chunk, dtype=np.uint8)
    at, state = 0, crc ^ 0xFFFF_FFFF
    while len(data) - at >= FEW:
        piece = data[at : at + MANY]
        state = _by_lanes(state, piece[: len(piece) // LANE * LANE])
        at += len(piece) // LANE * LANE
    words = _words()
    for byte in data[at:].tolist():
        state = words[(state ^ byte) & 0xFF] ^ state >> 8
    return state ^ 0xFFFF_FFFF


def _by_lanes(state: int, data: NDArray[np.uint8]) -> int:
    count = len(data) // LANE
    table = _table(16)
    sums = np.zeros(count, dtype=np.uint32)
    for pairs in np.ascontiguousarray(data.view("<u2").reshape(count, LANE // 2).T):
        sums = table[(sums ^ pairs) & 0xFFFF] ^ sums >> 16
    before = np.array([state], dtype=np.uint32)
    for doublings in _bits(count):
        before = _moved(before, doublings)
    return int((before ^ _together(sums))[0])


def _together(sums: Words) -> Words:
    """Return the sum of lanes that follow each other, of theirs."""
    doublings = 0
    while len(sums) > 1:
        if len(sums) % 2:
            sums = np.concatenate((np.zeros(1, dtype=np.uint32), sums))  # zeros in front are no sum
        sums = _moved(sums[0::2], doublings) ^ sums[1::2]
        doublings += 1
    return sums


try:
    from google_crc32c import extend
except ImportError:
    extend = numpy_extend


def value(chunk: Any) -> int:
    """Return the CRC-32C of bytes."""
    return int(extend(0, chunk))
