"""The journal's blocks as arrays: rows, bounds and routes read in place, without a loop.

The layout is drawn in tallymark.journal.packer; a block is found and its own checksums are tested
by the functions there. The checksums of messages are tested here: the broker sends bytes without
looking at them, and the rows that come with them have their checksums.

Programs that may do so read messages from the journal's files in place (option `readSegments`). The
broker says where they lie (`places`, for administrators only) and its plan keeps them there while a
batch is read; no byte of them goes through a socket. The files must be seen under the same path as
by the broker: the same machine, or a folder that both have.
"""

from __future__ import annotations

import json
import mmap
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from google_crc32c import extend
from numpy.typing import NDArray

from tallymark.spark.gather import Ints
from tallymark.stored import layout
from tallymark.stored.records import PAYLOAD

MOST_OPEN: Final = 8
"""Files of one task at a time: their pages are the page cache's, so they cost addresses only."""
OFFSET: Final = 0xFFFF_FFFF
"""Bits of a position that are the offset in its segment."""
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


def check_sums(block: Block, raw: pa.Buffer, segment: int = -1) -> None:
    """Look at every payload of a block that has checksums. raw: the block; or, with a segment's
    number, that segment's file, of which only what lies in it is looked at.

    Raises LayoutError where a payload's bytes are not those that were written.
    """
    rows = block.rows
    for row in rows[(rows["kind"] == PAYLOAD) & (rows["flags"] & layout.CHECKED != 0)]:
        if segment < 0:
            start = block.header.at + int(row["at"])
        elif int(row["payload"]) >> 32 == segment:
            start = int(row["payload"]) & OFFSET
        else:
            start = -1
        if row["flags"] & layout.COLUMNS:
            _check_columns(block, row, raw, start, segment)
        elif start >= 0:
            size = int(row["other"])
            _compare_sum(raw, start, size, int(row["queue"]), int(row["first"]))


def _check_columns(block: Block, row: Any, raw: pa.Buffer, start: int, segment: int) -> None:
    """Messages that were stored one by one."""
    count = int(row["count"])
    at = int(row["lo"])
    bounds = block.bounds
    ends = bounds[at : at + count + 1].astype("i8")
    at += count + 1 + (count if row["flags"] & layout.ROUTE_COLUMN else 0) + 4 * count
    starts = start + ends[:-1]
    numbers = None
    if row["flags"] & layout.ELSEWHERE:
        halves = bounds[at : at + 2 * count].astype("i8")
        positions = halves[0::2] | halves[1::2] << 32
        numbers, starts = positions >> 32, positions & OFFSET
        at += 2 * count
    expected = bounds[at : at + count]
    if len(expected) != count:
        raise layout.LayoutError(f"checksums of a payload lie outside the {len(bounds)} bounds")
    sizes = (ends[1:] - ends[:-1]).tolist()
    for i, (begin, size, known) in enumerate(
        zip(starts.tolist(), sizes, expected.tolist(), strict=True)
    ):
        if numbers is None or int(numbers[i]) == segment:
            _compare_sum(raw, begin, size, known, int(row["first"]) + i)


def _compare_sum(raw: pa.Buffer, start: int, size: int, expected: int, message_id: int) -> None:
    if start + size > raw.size:
        raise layout.LayoutError(f"message {message_id} ends at {start + size} of {raw.size} bytes")
    found: int = extend(0, raw.slice(start, size))  # without a copy of them
    if found != expected:
        raise layout.LayoutError(
            f"{size} bytes of message {message_id} have the checksum {found:#x}, expected "
            f"{expected:#x}: damaged in the journal; `tallymark journal verify` says where"
        )


class Segments:
    """Segment files, mapped into memory one by one as they are needed."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, pa.Buffer] = OrderedDict()
        self._paths: dict[int, str] = {}

    def of_answer(self, header: str) -> Segments:
        """Itself, knowing the paths that an answer's header names."""
        self._paths = {int(number): str(path) for number, path in json.loads(header).items()}
        return self

    def segment(self, number: int) -> pa.Buffer:
        """Return all bytes of a segment. Raises LookupError, naming it, where it cannot be read."""
        path = self._paths.get(number)
        if path is None:
            raise LookupError(f"the broker named no file for segment {number}")
        found = self._open.get(path)
        if found is None:
            try:
                with open(path, "rb") as file:
                    found = pa.py_buffer(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
            except OSError as error:
                raise LookupError(
                    f"option readSegments: {path} cannot be read here ({error.strerror}); "
                    "executors need the broker's data folder under the same path"
                ) from error
            self._open[path] = found
            if len(self._open) > MOST_OPEN:
                self._open.popitem(last=False)
        else:
            self._open.move_to_end(path)
        return found
