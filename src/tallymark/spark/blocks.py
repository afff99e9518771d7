"""The journal's blocks as arrays: rows, bounds and routes read in place, without a loop.

The layout is drawn in tallymark.journal.layout; a block is found and its checksums are tested by
the functions there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tallymark.journal import layout
from tallymark.spark.extents import Ints

ROW: Final = np.dtype(list(layout.ROW_DTYPE))


@dataclass(frozen=True, slots=True)
class Block:
    """One sound block. All arrays are views of the bytes it was read from."""

    header: layout.Header
    data: bytes
    rows: NDArray[Any]
    """Rows of the block; layout.ROW_DTYPE names their fields."""
    bounds: NDArray[np.uint32]

    def routes(self) -> pa.BinaryArray:
        """Cell 2i is the exchange of route i, cell 2i + 1 its key."""
        header, at = self.header, self.header.at
        if not header.routes:
            return pa.array([], pa.binary())
        ends = np.frombuffer(self.data, "<i4", 2 * header.routes + 1, at + header.routes_at)
        start = at + header.text_at
        _check(int(ends[0]) == 0, "route text", int(ends[0]), header)
        _check(bool((np.diff(ends) >= 0).all()), "route ends", 0, header)
        end = int(ends[-1])
        _check(header.text_at + end <= header.raw_at, "route text", end, header)
        text = pa.py_buffer(self.data).slice(start, int(ends[-1]))
        cells: Any = pa.Array.from_buffers(
            pa.binary(), 2 * header.routes, [None, pa.py_buffer(np.ascontiguousarray(ends)), text]
        )
        return cells

    def blob(self, row: Any) -> bytes:
        """The blob of one row (not of a PAYLOAD row)."""
        start = self.header.at + int(row["at"])
        return self.data[start : start + int(row["size"])]


def blocks(data: bytes) -> Iterator[Block]:
    """The blocks of a READ answer. Raises LayoutError for anything else, whatever the bytes."""
    at = 0
    while at < len(data):
        header = layout.header_at(data, at)
        if header is None or not layout.is_whole(data, header):
            raise layout.LayoutError(f"no sound block at byte {at} of {len(data)}")
        yield block_at(data, header)
        at += header.length


def block_at(data: bytes, header: layout.Header) -> Block:
    """The block whose sound header this is."""
    rows = np.frombuffer(data, ROW, header.rows, header.at + layout.HEADER)
    bounds = np.frombuffer(data, "<u4", header.bounds, header.at + header.bounds_at)
    return Block(header, data, rows, bounds)


def spread(counts: Ints) -> tuple[Ints, Ints]:
    """Number the members of ranges of these sizes: return for each member its range's number and
    its place in the range.

    >>> [column.tolist() for column in spread(np.array([2, 0, 3]))]
    [[0, 0, 2, 2, 2], [0, 1, 0, 1, 2]]
    """
    owner = np.repeat(np.arange(len(counts)), counts)
    starts = np.cumsum(counts) - counts
    return owner, np.arange(len(owner)) - starts[owner]


def _check(holds: bool, what: str, value: int, header: layout.Header) -> None:
    if not holds:
        raise layout.LayoutError(f"{what} at {value} lies outside its block of {header.length}")
