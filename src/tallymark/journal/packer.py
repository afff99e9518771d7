"""Packing: records turned into a block. Its layout is drawn in stored/layout.py.

Why rows of one width and not an array per column: the hot path packs a record with one call, and
a structured dtype (or a stride) still reads any column of a block without a loop.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Final, final

from librt.strings import BytesWriter, write_i32_le, write_i64_le
from mypy_extensions import i32, i64

from tallymark.engine.message import Payload
from tallymark.engine.record import Record
from tallymark.stored.annotations import Route
from tallymark.stored.layout import (
    APART,
    CHECKED,
    COLUMNS,
    ELSEWHERE,
    FORMAT,
    HEADER,
    IS_LITTLE,
    MAGIC,
    PERSISTENT,
    RELOCATED,
    ROUTE_COLUMN,
    ROW,
    ROW_STRUCT,
    WHOLE,
    aligned,
    crc32c,
    encoded_header,
)
from tallymark.stored.records import PAYLOAD
from tallymark.units import MessageId, Position

# Modes of packing: the place of a PAYLOAD row's bytes, and the meaning of its `payload`.
STORED: Final = 0
"""Mode: the bytes are in the block; every payload gets the position it has there."""
STANDALONE: Final = 1
"""Mode: the bytes are in the block, which is in no segment. Positions count from its start; no
payload is changed."""
REFERENCED: Final = 2
"""Mode: the bytes stay at their positions; only positions and bounds are written."""
DETACHED: Final = 3
"""Mode: the bytes follow the block, in the order of the PAYLOAD rows; otherwise as STANDALONE."""


def _short_sum() -> Callable[[bytes], int]:
    """Return the function for checksums of a few hundred bytes: of these most is the call. The one
    in C takes 200 instructions for it, google_crc32c's 1,200; it is not everywhere."""
    try:
        from tallymark.journal.native import crc32c as found
    except ImportError:
        return crc32c
    return found


_SHORT: Final = 1024
"""Bytes up to which `_sum` calls that function. Larger ones google_crc32c reads in three places at
once."""
_short: Final = _short_sum()
_IS_INTERPRETED: Final = __file__.endswith(".py")
_PAD: Final = bytes(8)

# Payloads shorter than this are joined before they are written and checked: below it a copy is
# cheaper than another buffer (one crc call and one iovec, about 0.3 us).
_JOIN_BYTES: Final = 16 * 1024
_CHUNK_BYTES: Final = 256 * 1024


@final
class Packer:
    """Turns records into one block, in two steps, because the position of a payload depends on the
    size of everything before it. Reused from block to block."""

    __slots__ = (
        "_blob_at", "_blobs", "_bounds", "_first", "_kept", "_kept_ends", "_kept_texts", "_mode",
        "_numbers", "_payloads", "_places", "_raw_at", "_records", "_route_ends",
        "_route_numbers", "_texts", "_text_bytes", "length", "raw_bytes", "version",
    )  # fmt: skip

    def __init__(self, version: int = FORMAT) -> None:
        self.version = version
        """Format version of the blocks it makes; may be changed between two blocks."""
        self.length = 0
        self.raw_bytes = 0
        self._blob_at = 0
        self._raw_at = 0
        """Offsets of the first blob and of the payloads' bytes in the block."""
        self._mode = STORED
        self._records: list[Record] = []
        self._payloads: list[Payload] = []
        self._bounds = BytesWriter()
        self._route_ends = BytesWriter()
        self._first: Route | None = None
        """Route number 0 of the block. Where it has no other, the dictionaries are empty."""
        self._route_numbers: dict[tuple[str, str], int] = {}
        self._numbers: dict[Route, int] = {}
        """Number of each route object that was met; equal routes mostly are the same."""
        self._kept: Route | None = None
        """Route number 0 of the last block that had one."""
        self._kept_ends = b""
        self._kept_texts = b""
        """Its encoded texts end to end, and where they end, as the block has it."""
        self._texts: list[bytes] = []
        self._text_bytes = 0
        self._blobs: dict[bytes, int] = {}
        """Offset behind the route texts of each distinct blob of the block."""
        self._places: dict[int, int] = {}

    def load(self, records: list[Record], mode: int) -> int:
        """Take the records of one block and return its length in bytes. Changes no record.

        Raises ValueError for a payload whose bytes are needed and not in memory, do not match its
        cuts, or are none at all, and when the block would reach 4 GiB.
        """
        self._records = records
        self._mode = mode
        if self._payloads:
            self._payloads = []
        if len(self._bounds):
            self._bounds = BytesWriter()
        if self._first is not None:
            self._forget_routes()
        if self._blobs:
            self._blobs = {}
        if self._places:
            self._places = {}
        self.raw_bytes = 0
        blob_bytes = 0
        for record in records:
            if record.kind == PAYLOAD:
                self._load_payload(record.payload)
            elif record.blob and record.blob not in self._blobs:
                self._blobs[record.blob] = blob_bytes
                blob_bytes += len(record.blob)
        self._blob_at = (
            HEADER
            + ROW * len(records)
            + len(self._bounds)
            + len(self._route_ends)
            + self._text_bytes
        )
        self._raw_at = aligned(self._blob_at + blob_bytes)
        self.length = self._raw_at + aligned(self.raw_bytes)
        if self.length >= 1 << 32:
            raise ValueError(f"block of {self.length} bytes, a block is less than 4 GiB")
        return self.length

    def _load_payload(self, payload: Payload | None) -> None:
        if payload is None:
            raise ValueError("PAYLOAD record without a payload")
        if self._mode == DETACHED:
            self.raw_bytes += payload.size
        elif self._mode != REFERENCED:
            raw = payload.raw
            if raw is None or len(raw) != payload.size:
                have = "none" if raw is None else str(len(raw))
                raise ValueError(f"payload of {payload.size} bytes, {have} in memory")
            if not raw:
                raise ValueError("payload of 0 bytes; its position would be its neighbour's")
            self.raw_bytes += payload.size
        self._payloads.append(payload)
        self._bounds.write(_encoded_array(payload.cuts))
        if payload.routes is None:
            self._number_of(payload.route)
        else:
            if len(payload.routes) != payload.count:
                raise ValueError(f"{payload.count} messages with {len(payload.routes)} routes")
            for route in payload.routes:
                _put_u32(self._bounds, self._number_of(route))
        pack = payload.pack
        if pack is not None:
            self._add_column(pack.ids)
            self._add_column(pack.arrivals)
            if self._mode == REFERENCED:
                self._add_column(pack.positions)
            if pack.sums is not None:
                self._bounds.write(_encoded_array(pack.sums))

    def _add_column(self, numbers: array[int]) -> None:
        """Add numbers of 64 bits to the bounds column, two entries each, the lower half first."""
        self._bounds.write(_encoded_array(numbers))

    def _forget_routes(self) -> None:
        """Begin a block without routes."""
        self._first = None
        self._route_ends = BytesWriter()
        self._texts = []
        self._text_bytes = 0
        if self._numbers:
            self._numbers = {}
            self._route_numbers = {}

    def _number_of(self, route: Route) -> int:
        first = self._first
        if route is first:
            return 0
        if first is None:
            self._first = route
            if route is not self._kept:
                self._keep(route)
            self._route_ends.write(self._kept_ends)
            self._texts.append(self._kept_texts)
            self._text_bytes = len(self._kept_texts)
            return 0
        number = self._numbers.get(route)
        if number is None:
            if not self._numbers:
                self._numbers[first] = 0
                self._route_numbers[first.exchange, first.key] = 0
            name = (route.exchange, route.key)
            number = self._route_numbers.get(name)
            if number is None:
                number = self._route_numbers[name] = len(self._route_numbers)
                self._add_text(_encoded_text(route.exchange))
                self._add_text(_encoded_text(route.key))
            self._numbers[route] = number
        return number

    def _keep(self, route: Route) -> None:
        """Encode a route as the first of a block."""
        exchange = _encoded_text(route.exchange)
        texts = exchange + _encoded_text(route.key)
        ends = BytesWriter()
        _put_u32(ends, 0)
        _put_u32(ends, len(exchange))
        _put_u32(ends, len(texts))
        self._kept = route
        self._kept_ends = ends.getvalue()
        self._kept_texts = texts

    def _add_text(self, encoded: bytes) -> None:
        self._texts.append(encoded)
        self._text_bytes += len(encoded)
        _put_u32(self._route_ends, self._text_bytes)

    def finish(
        self,
        segment: int,
        offset: int,
        block: int,
        salt: int,
        synced: int,
        time_ms: int,
        flags: int,
    ) -> list[bytes]:
        """Return the block as buffers to be written end to end. In mode STORED all its payloads
        have their positions now. Large raws are the payloads' own bytes, not copies."""
        raw_at = self._raw_at
        base = segment << 32 | offset
        if self._payloads:
            self._place(base, raw_at)
        tables = self._tables(base)
        padding = raw_at - HEADER - len(tables)
        if padding:
            tables += _PAD[:padding]
        crc = 0
        buffers: list[bytes] = []
        if self.version > WHOLE:
            crc = _sum(tables)
        else:
            buffers = _with_raws([tables], len(tables), self._payloads, self._mode)
            for buffer in buffers:
                crc = crc32c(buffer, crc)
        head = _header(
            self.version, flags, salt, segment, block, self.length, len(self._records),
            len(self._bounds) >> 2, len(self._route_ends) >> 3, self.raw_bytes, time_ms, synced,
            crc,
        )  # fmt: skip
        if self.version > WHOLE:
            buffers = _with_raws([head, tables], raw_at, self._payloads, self._mode)
        else:
            buffers.insert(0, head)
        self._records = []
        self._payloads = []
        return buffers

    def _place(self, base: int, raw_at: int) -> None:
        """Assign a position to each payload of the block, stored in the payload or beside it."""
        mode = self._mode
        if mode == REFERENCED:
            return
        for payload in self._payloads:
            if mode == STORED:  # nothing else may change a payload
                payload.position = Position(base + raw_at)
            else:
                self._places[id(payload)] = raw_at
            raw_at += payload.size

    def _tables(self, base: int) -> bytes:
        """Return rows, bounds, route ends and text, end to end."""
        out = BytesWriter()
        self._put_rows(out, base)
        if self._payloads:
            out.write(self._bounds.getvalue())
            out.write(self._route_ends.getvalue())
            for text in self._texts:
                out.write(text)
        for blob in self._blobs:
            out.write(blob)
        return out.getvalue()

    def _put_rows(self, rows: BytesWriter, base: int) -> None:
        """Write the rows. base: position of the block."""
        bound = 0
        is_apart = self._mode in (STANDALONE, DETACHED)
        for r in self._records:
            kind = r.kind
            position = -1
            payload = r.payload
            if payload is not None:
                if is_apart:
                    position = self._places.get(id(payload), -1)
                elif payload.pack is not None:
                    position = payload.pack.positions[0]
                else:
                    position = payload.position
            if kind == PAYLOAD:
                assert payload is not None
                self._put_payload(rows, r, payload, position, position - base, bound)
                bound += self._bounds_of(payload)
                continue
            size = len(r.blob)
            _put_row(
                rows, kind, r.flags, r.reason, r.queue, r.first, r.time_ms, r.count, r.lo, r.owner,
                r.other, position, self._blob_at + self._blobs[r.blob] if size else 0, size,
            )  # fmt: skip

    def _bounds_of(self, payload: Payload) -> int:
        """Return the number of a payload's entries in the bounds column."""
        count = payload.count
        found = count + 1
        if payload.routes is not None:
            found += count
        if payload.pack is not None:
            found += 6 * count if self._mode == REFERENCED else 4 * count
            if payload.pack.sums is not None:
                found += count
        return found

    def _put_payload(
        self, rows: BytesWriter, r: Record, p: Payload, position: int, at: int, bound: int
    ) -> None:
        """Write the row of a payload."""
        flags = (PERSISTENT if p.persistent else 0) | (r.flags & RELOCATED)
        if p.routes is None:
            owner = self._number_of(p.route)
        else:
            flags |= ROUTE_COLUMN
            owner = bound + p.count + 1
        first, arrived = p.first_id, r.time_ms
        if p.sum < 0 and self._mode == STORED and self.version > WHOLE:
            raw = p.raw
            assert raw is not None
            p.sum = _sum(raw)
        summed = 0
        if p.sum >= 0:
            flags |= CHECKED
            summed = p.sum
        if p.pack is not None:
            flags |= COLUMNS
            first, arrived = MessageId(p.pack.ids[0]), p.pack.arrivals[0]
            if p.pack.sums is not None:
                flags |= CHECKED
                summed = p.pack.sums[0]
        if self._mode == REFERENCED:
            flags |= ELSEWHERE
            at = 0
        _put_row(
            rows, PAYLOAD, flags, p.format, summed, first, arrived, p.count, bound, owner,
            p.size, position, at, p.largest_frame,
        )  # fmt: skip


def _put_row(
    rows: BytesWriter,
    kind: i64,
    flags: i64,
    reason: i64,
    queue: i64,
    first: i64,
    time: i64,
    count: i64,
    lo: i64,
    owner: i64,
    other: i64,
    payload: i64,
    at: i64,
    size: i64,
) -> None:
    """Write a row. Compiled, that makes no object for each of its numbers."""
    if _IS_INTERPRETED:
        rows.write(
            ROW_STRUCT.pack(
                kind, flags, reason, 0, queue, first, time, count, lo, owner, other, payload, at,
                size,
            )
        )  # fmt: skip
        return
    write_i32_le(rows, i32(kind | flags << 8 | reason << 16))
    _put_u32(rows, queue)
    write_i64_le(rows, first)
    write_i64_le(rows, time)
    _put_u32(rows, count)
    _put_u32(rows, lo)
    write_i64_le(rows, owner)
    write_i64_le(rows, other)
    write_i64_le(rows, payload)
    _put_u32(rows, at)
    _put_u32(rows, size)


def _sum(data: bytes) -> int:
    """Return the CRC-32C of data."""
    return _short(data) if len(data) <= _SHORT else crc32c(data)


def _put_u32(rows: BytesWriter, number: i64) -> None:
    """Write an unsigned number as four bytes; 0 <= number < 2^32."""
    write_i32_le(rows, i32(number if number < 0x8000_0000 else number - 0x1_0000_0000))


def _header(
    version: i64,
    flags: i64,
    salt: i64,
    segment: i64,
    block: i64,
    length: i64,
    rows: i64,
    bounds: i64,
    routes: i64,
    raw_bytes: i64,
    time: i64,
    synced: i64,
    crc: i64,
) -> bytes:
    """Return the header of a block, as Header.encoded does. Compiled, that makes no object for each
    of its numbers."""
    if _IS_INTERPRETED:
        return encoded_header(
            version, flags, salt, segment, block, length, rows, bounds, routes, raw_bytes, time,
            synced, crc,
        )  # fmt: skip
    out = BytesWriter()
    out.write(MAGIC)
    write_i32_le(out, i32(version | flags << 16))
    _put_u32(out, salt)
    _put_u32(out, segment)
    _put_u32(out, block)
    _put_u32(out, length)
    _put_u32(out, rows)
    _put_u32(out, bounds)
    _put_u32(out, routes)
    _put_u32(out, raw_bytes)
    write_i64_le(out, time)
    write_i64_le(out, synced)
    _put_u32(out, crc)
    _put_u32(out, _sum(out.getvalue()))
    return out.getvalue()


def _encoded_text(text: str) -> bytes:
    """Return a text as UTF-8; what was no UTF-8 when it came, as it came."""
    return text.encode("utf-8", "surrogateescape")


def _encoded_array(numbers: array[int]) -> bytes:
    """Return the numbers of an array, little-endian."""
    if not IS_LITTLE:
        numbers = numbers[:]
        numbers.byteswap()
    return numbers.tobytes()


def _with_raws(parts: list[bytes], size: int, payloads: list[Payload], mode: int) -> list[bytes]:
    """Return the parts, of `size` bytes, then the payloads' bytes; small buffers are joined."""
    if not payloads or mode in (REFERENCED, DETACHED):
        return [b"".join(parts)]
    buffers: list[bytes] = []
    held = size
    raw_bytes = 0
    for payload in payloads:
        raw = payload.raw
        assert raw is not None
        raw_bytes += len(raw)
        if parts and (len(raw) >= _JOIN_BYTES or held >= _CHUNK_BYTES):
            buffers.append(b"".join(parts))
            parts = []
            held = 0
        if len(raw) >= _JOIN_BYTES:
            buffers.append(raw)
        else:
            parts.append(raw)
            held += len(raw)
    parts.append(_PAD[: aligned(raw_bytes) - raw_bytes])
    last = b"".join(parts)
    if last:
        buffers.append(last)
    return buffers


def pack(records: list[Record], time_ms: int = 0) -> bytes:
    """Pack one block outside any segment, as a READ answer carries it. Changes no payload.

    Rows that mean a payload find it by `payload` when its PAYLOAD record is among `records`.
    Raises ValueError for a payload that is not in memory.
    """
    packer = Packer(WHOLE)
    packer.load(records, STANDALONE)
    return b"".join(packer.finish(0, 0, 0, 0, 0, time_ms, 0))


def pack_apart(records: list[Record]) -> tuple[bytes, int]:
    """Pack the beginning of a block whose raw stays in the journal. Returns the part to send before
    the payloads' bytes, and the number of zero bytes behind them. Changes no payload.

    Payloads with a `pack` become rows with COLUMNS.
    """
    packer = Packer(WHOLE)
    packer.load(records, DETACHED)
    raw = packer.raw_bytes
    return b"".join(packer.finish(0, 0, 0, 0, 0, 0, APART)), aligned(raw) - raw


def pack_places(records: list[Record]) -> bytes:
    """Pack one block outside any segment that names the journal positions of the payloads' bytes,
    for readers of the journal's files, as a checkpoint does. Changes no payload."""
    packer = Packer(WHOLE)
    packer.load(records, REFERENCED)
    return b"".join(packer.finish(0, 0, 0, 0, 0, 0, 0))
