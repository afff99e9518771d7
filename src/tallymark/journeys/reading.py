"""Reading a journal's files: blocks of a segment, and the messages in whose bytes a text is.

A broker may be writing to the files meanwhile. A block that is not whole yet ends what is read of
its segment, as a damaged one does.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tallymark.stored import layout, segment
from tallymark.stored.layout import NUMBER, ROW, ROW_STRUCT, Header
from tallymark.stored.records import PAYLOAD


@dataclass(frozen=True, slots=True)
class File:
    """A segment, or the ledger that is left of one."""

    path: Path
    number: int
    salt: int


@dataclass(frozen=True, slots=True)
class Stored:
    """A message as its publisher sent it, and what the broker noted when it came."""

    number: int
    """Broker's own id of the message."""
    arrived_ms: int
    exchange: str
    routing_key: str
    format: int
    """Wire format of the message (stored/formats.py)."""
    raw: bytes


def files_of(folder: Path) -> list[File]:
    """Return the files with rows of a data folder, the oldest first. Raises FileNotFoundError."""
    found: dict[int, File] = {}
    if folder.is_dir():
        for path in sorted(folder.iterdir()):
            name = segment.parsed_name(path.name)
            # While the cleaner replaces a segment by its ledger both may be there: same rows.
            if name is not None:
                found[name[0]] = File(path, *name)
    if not found:
        raise FileNotFoundError(
            f"{folder}: no journal here, expected files like 0000000001-*.segment"
        )
    return [found[number] for number in sorted(found)]


def newest_checkpoint(folder: Path) -> bytes:
    """Return the bytes of the newest checkpoint; empty: there is none."""
    found = [
        (position, path)
        for path in folder.iterdir()
        if (position := segment.parsed_checkpoint(path.name)) is not None
    ]
    for _, path in sorted(found, reverse=True):
        try:
            return path.read_bytes()
        except FileNotFoundError:
            continue  # a newer one has taken its place
    return b""


def read(file: File) -> bytes | None:
    """Return the bytes of a file; None: the broker let go of it since it was listed."""
    for path in (file.path, file.path.with_suffix(".ledger")):
        try:
            return path.read_bytes()
        except FileNotFoundError:
            continue
    return None


def blocks_of(data: bytes, number: int = -1, salt: int = 0) -> list[Header]:
    """Return the headers of a segment's blocks, up to the first that is not whole. number: the
    segment's; -1: the data is a checkpoint."""
    found: list[Header] = []
    at = 0
    while (header := layout.header_at(data, at)) is not None:
        is_ours = header.salt == salt and number in (-1, header.segment)
        if not is_ours or not layout.has_columns(data, header):
            break
        found.append(header)
        at += header.length
        if header.flags & layout.SEALED:
            break
    return found


def messages_with(data: bytes, blocks: list[Header], needle: bytes) -> Iterator[Stored]:
    """Yield the messages of a segment in whose bytes the needle is, in the order they lie in."""
    starts = [header.at for header in blocks]
    end = starts[-1] + blocks[-1].length if blocks else 0
    at = data.find(needle, 0, end)
    while at >= 0:
        header = blocks[bisect_right(starts, at) - 1]
        go_on = at + 1
        if at < header.at + header.raw_at:
            go_on = header.at + header.raw_at
        elif (payload := _payload_at(data, header, at)) is not None:
            first, index = payload
            message, go_on = message_of(data, header, first, index)
            yield message
        at = data.find(needle, go_on, end)


def _payload_at(data: bytes, header: Header, at: int) -> tuple[int, int] | None:
    """Return the offset of the row of the payload that a byte of a block lies in, and the index of
    its message."""
    first = header.at + layout.HEADER
    kinds = data[first : first + ROW * header.rows : ROW]
    place = at - header.at
    number = kinds.find(PAYLOAD)
    while number >= 0:
        row_at = first + ROW * number
        row = ROW_STRUCT.unpack_from(data, row_at)
        begin, size, is_here = row[12], row[10], not row[1] & layout.ELSEWHERE
        if begin and is_here and begin <= place < begin + size:
            ends = _numbers(data, header, row[8], row[7] + 1)
            index = bisect_right(ends, place - begin) - 1
            return (row_at, index) if 0 <= index < row[7] else None
        number = kinds.find(PAYLOAD, number + 1)
    return None


def message_of(data: bytes, header: Header, row_at: int, index: int) -> tuple[Stored, int]:
    """Return a message of a payload, and the offset of its end."""
    (_, flags, _, _, _, first, time, count, lo, owner, _, _, at, _) = ROW_STRUCT.unpack_from(
        data, row_at
    )
    format = data[row_at + 2]
    begin, end = _numbers(data, header, lo + index, 2)
    behind = lo + count + 1
    if flags & layout.ROUTE_COLUMN:
        (owner,) = _numbers(data, header, owner + index, 1)
        behind += count
    number, arrived = first + index, time
    if flags & layout.COLUMNS:
        number = _long(data, header, behind + 2 * index)
        arrived = _long(data, header, behind + 2 * (count + index))
    exchange, key = _route(data, header, owner)
    start = header.at + at
    stored = Stored(number, arrived, exchange, key, format, data[start + begin : start + end])
    return stored, start + end


def ids_of(data: bytes, header: Header, row_at: int) -> list[int]:
    """Return the ids of the messages of a payload that arrived one by one."""
    row = ROW_STRUCT.unpack_from(data, row_at)
    count = row[7]
    behind = row[8] + count + 1 + (count if row[1] & layout.ROUTE_COLUMN else 0)
    return [_long(data, header, behind + 2 * index) for index in range(count)]


def _numbers(data: bytes, header: Header, index: int, count: int) -> tuple[int, ...]:
    """Return entries of a block's bounds column. Raises LayoutError: it has not so many."""
    if index + count > header.bounds:
        raise layout.LayoutError(f"a payload's bounds lie outside the block's {header.bounds}")
    return struct.unpack_from(f"<{count}I", data, header.at + header.bounds_at + 4 * index)


def _long(data: bytes, header: Header, index: int) -> int:
    low, high = _numbers(data, header, index, 2)
    return low | high << 32


def _route(data: bytes, header: Header, number: int) -> tuple[str, str]:
    """Return exchange and routing key of a route of the block."""
    if not 0 <= number < header.routes:
        raise layout.LayoutError(f"route {number} of a payload, the block has {header.routes}")
    ends = header.at + header.routes_at + 8 * number
    text = header.at + header.text_at
    begin, middle, end = (NUMBER.unpack_from(data, ends + 4 * i)[0] for i in range(3))
    names = data[text + begin : text + middle], data[text + middle : text + end]
    return names[0].decode("utf-8", "replace"), names[1].decode("utf-8", "replace")
