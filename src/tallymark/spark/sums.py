"""Checksums of bytes that were read from where they lie in the journal.

The broker sends them without looking at them; the rows that come with them have their checksums.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
from google_crc32c import extend

from tallymark.engine.records import PAYLOAD
from tallymark.journal import layout
from tallymark.spark.blocks import Block

OFFSET: Final = 0xFFFF_FFFF


def check(block: Block, raw: pa.Buffer, segment: int = -1) -> None:
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
            _compare(raw, start, size, int(row["queue"]), int(row["first"]))


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
            _compare(raw, begin, size, known, int(row["first"]) + i)


def _compare(raw: pa.Buffer, start: int, size: int, expected: int, message_id: int) -> None:
    if start + size > raw.size:
        raise layout.LayoutError(f"message {message_id} ends at {start + size} of {raw.size} bytes")
    found: int = extend(0, raw.slice(start, size))  # without a copy of them
    if found != expected:
        raise layout.LayoutError(
            f"{size} bytes of message {message_id} have the checksum {found:#x}, expected "
            f"{expected:#x}: damaged in the journal; `tallymark journal verify` says where"
        )
