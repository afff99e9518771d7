"""Gathers over a buffer: numbers and strings that lie at computed positions, many at a time.

Numbers are read with the position clipped to the buffer (which must not be empty): a position that
came out of broken bytes reads something and harms nothing; the caller knows which rows to believe.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def u8(data: NDArray[np.uint8], at: Ints) -> Ints:
    """The byte at each position."""
    return data.take(at, mode="clip").astype(np.int64)


def u16(data: NDArray[np.uint8], at: Ints) -> Ints:
    """The big-endian 16-bit number at each position."""
    return _numbers(data, at, ">u2")


def u32(data: NDArray[np.uint8], at: Ints) -> Ints:
    """The big-endian 32-bit number at each position."""
    return _numbers(data, at, ">u4")


def u64(data: NDArray[np.uint8], at: Ints) -> Ints:
    """The big-endian 64-bit number at each position; from 2**63 on it comes out negative."""
    return _numbers(data, at, ">i8")


def _numbers(data: NDArray[np.uint8], at: Ints, type: str) -> Ints:
    """The numbers of that type at each position, read in one pass over a view of the bytes in
    which a number begins at every one of them."""
    size = np.dtype(type).itemsize
    if len(data) < size:
        data = np.concatenate([data, np.zeros(size - len(data), np.uint8)])
    every: NDArray[Any] = np.ndarray((len(data) - size + 1,), type, data, 0, (1,))
    return every[np.minimum(np.maximum(at, 0), len(every) - 1)].astype(np.int64)


def binary(
    raw: pa.Buffer, starts: Ints, lengths: Ints, present: Bools | None = None
) -> pa.BinaryArray:
    """raw[starts[i] : starts[i] + lengths[i]] for each i, null where not present.

    The ranges must be in order and must not overlap, and all lie within 2 GiB. With the ends put
    between the starts they are the offsets of a binary array whose even cells are wanted: no loop.
    """
    rows = len(starts)
    if present is not None and not present.all():
        some = binary(raw, starts[present], lengths[present])
        index = np.cumsum(present) - 1
        return some.take(pa.array(index, mask=~present))
    if rows == 0:
        return pa.array([], pa.binary())
    base = int(starts[0])
    offsets = np.empty(2 * rows, np.int32)
    offsets[0::2] = starts - base
    offsets[1::2] = starts + lengths - base
    cells: Any = pa.Array.from_buffers(
        pa.binary(), 2 * rows - 1, [None, pa.py_buffer(offsets), raw.slice(base)]
    )
    return cells.take(pa.array(np.arange(0, 2 * rows - 1, 2, dtype=np.int32)))


def rows(cells: NDArray[np.uint8]) -> pa.BinaryArray:
    """The rows of a matrix of bytes."""
    count, size = cells.shape
    buffer = pa.allocate_buffer(count * size)
    np.frombuffer(buffer, np.uint8).reshape(count, size)[...] = cells
    offsets = np.arange(0, (count + 1) * size, size, dtype=np.int32)
    found: Any = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), buffer])
    return found


def repeat(value: pa.Array, count: int) -> pa.Array:
    """An array of one value, so many times."""
    return pa.nulls(count, value.type) if value.null_count else pa.repeat(value[0], count)


def text(values: pa.BinaryArray) -> pa.StringArray:
    """Return the values as UTF-8 text; bytes that are not UTF-8 become U+FFFD, as no reader may
    fail on them."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array(
            [None if v is None else v.decode("utf-8", "replace") for v in values.to_pylist()],
            pa.string(),
        )
