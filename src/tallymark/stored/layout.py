"""Layout of a block: the transitions of one turn on disk and in a READ answer. Format version 2.

All numbers are little-endian; a block begins at a multiple of 8 and is a multiple of 8 long.

    block     | header 64 | rows 64 each | bounds u32 | route ends u32 | text | 0..7 | raw | 0..7 |

    header    at size
               0  4  magic, f5 54 4d 42 ("\\xf5TMB")
               4  2  format version, u16
               6  2  flags, u16: STRIPPED 1, CHECKPOINT 2, SEALED 4, LOST 8, APART 16
               8  4  salt, u32: one random number per segment, so that bytes inside a message can
                     not pass for a block; 0 in a READ answer
              12  4  segment number, u32; 0 in a READ answer
              16  4  block number in the segment, u32, counted from 0
              20  4  length of the whole block, u32
              24  4  rows, u32
              28  4  bounds, u32: how many u32 the bounds column has
              32  4  routes, u32
              36  4  raw bytes, u32; 0 when STRIPPED. raw starts at length - (raw bytes up to 8)
              40  8  time, ms since 1970, i64
              48  8  journal position known to be on disk when the block was packed, i64.
                     STRIPPED: position of the block before it was stripped
                     CHECKPOINT: position whose state the checkpoint describes
              56  4  CRC-32C of what lies between header and raw, u32: bodies have checksums of
                     their own. Version 1: of everything after the header; APART: up to raw
              60  4  CRC-32C of header bytes 0..59, u32

    row       at size   (numpy: ROW_DTYPE below)
               0  1  kind              stored/records.py
               1  1  flags             as the record's | PAYLOAD: PERSISTENT 1, ROUTE_COLUMN 2,
                                       ELSEWHERE 4, RELOCATED 8, COLUMNS 16, CHECKED 32
               2  1  reason            as the record's | PAYLOAD: wire format of the messages
               3  1  0
               4  4  queue, u32                        | PAYLOAD: CRC-32C of its raw, with CHECKED
               8  8  first, i64        sequence        | PAYLOAD: first message id
              16  8  time, i64         ms since 1970   | PAYLOAD: arrival
              24  4  count, u32
              28  4  lo, u32           first message of the payload
                                                       | PAYLOAD: index in the bounds column of
                                                         its count + 1 bounds, and with COLUMNS of
                                                         what follows them
              32  8  owner, i64                        | PAYLOAD: number of its route; with
                                                         ROUTE_COLUMN the index in the bounds
                                                         column of count route numbers
              40  8  other, i64                        | PAYLOAD: bytes of raw
                                                       | MOVED: old position
              48  8  payload, i64      position of the payload meant, -1 for none
                                                       | PAYLOAD: its own position
              56  4  at, u32           the blob's offset from the start of the block; rows whose
                                       blobs are equal may share one
                                                       | PAYLOAD: the same of raw; 0: not here
              60  4  size, u32         bytes of the blob
                                                       | PAYLOAD: bytes of its largest frame

    bounds    u32 each. Message i of a payload is raw[bound[i]:bound[i + 1]], relative to the
              payload's own raw; the bounds of an undivided payload begin with 0.
              COLUMNS: messages that arrived one by one. Behind the bounds (and, with ROUTE_COLUMN,
              the route numbers) stand for each its message id and its arrival, and with ELSEWHERE
              its position: count u64 each, the lower half of one first; last, with CHECKED, the
              CRC-32C of each, count u32. In READ answers and checkpoints.
    route ends  2 x routes + 1 u32, the first 0; absent when there is no route. With the text they
              are a string column: cell 2i is the exchange of route i, cell 2i + 1 its key (UTF-8,
              bytes that are not UTF-8 as they came). Offsets count from the start of the text.
    text      exchanges and keys end to end, then blobs, equal ones once
    raw       payloads end to end, in row order, without gaps

A position is segment number << 32 | offset in the segment's file: it grows, and says where to
read. In a READ answer the segment is 0 and the offset counts from the start of the block; use
`at` to find raw and `payload` only to match rows with their payload.

An APART block is the beginning of an answer without its raw: that is sent from its place in the
journal, and is not in the checksum.

Version 1 has one checksum over columns and bodies, and rows without CHECKED. It is read as it was,
and written into READ answers, where bodies travel with their block, and where the feature flag
payload_checksums is off [DL-20].

A STRIPPED block has the rows, bounds, routes and text of the original; only raw is removed. A LOST
block replaces corrupt blocks, so that later offsets are unchanged.
"""

from __future__ import annotations

import sys
from struct import Struct
from typing import Final, final

from google_crc32c import extend as _extend

from tallymark.stored.records import PAYLOAD

MAGIC: Final = b"\xf5TMB"
FORMAT: Final = 2
"""Default format version of written blocks. All versions up to it are readable [DL-20]."""
WHOLE: Final = 1
"""Format version whose checksum covers bodies too; see above."""
HEADER: Final = 64
ROW: Final = 64
ALIGN: Final = 8

# Flags of a block.
STRIPPED: Final = 1
CHECKPOINT: Final = 2
SEALED: Final = 4
LOST: Final = 8
APART: Final = 16
"""Flag: the raw bytes are sent separately and are not in the checksum."""

# Flags of a PAYLOAD row.
PERSISTENT: Final = 1
ROUTE_COLUMN: Final = 2
ELSEWHERE: Final = 4
"""Flag: the bytes are at `payload` in the journal, not in this block (checkpoints)."""
RELOCATED: Final = 8
"""Flag: a second copy written by the cleaner; the MOVED row of the same block names the first."""
COLUMNS: Final = 16
"""Flag: the row's own first message id, arrival and position are those of its first message
only."""
CHECKED: Final = 32
"""Flag: the row's `queue` is the CRC-32C of its raw."""

NUMBER: Final = Struct("<I")
"""An entry of the bounds column, the end of a route's text, a checksum."""
ROW_DTYPE: Final = (
    ("kind", "u1"), ("flags", "u1"), ("reason", "u1"), ("zero", "u1"), ("queue", "<u4"),
    ("first", "<i8"), ("time", "<i8"), ("count", "<u4"), ("lo", "<u4"), ("owner", "<i8"),
    ("other", "<i8"), ("payload", "<i8"), ("at", "<u4"), ("size", "<u4"),
)  # fmt: skip
"""Columns of a row: `numpy.dtype(list(ROW_DTYPE))` reads a block's rows. numpy is not needed
here."""
ROW_STRUCT: Final = Struct("<BBBBIqqIIqqqII")
"""A row; ROW_DTYPE names its fields."""
IS_LITTLE: Final = sys.byteorder == "little"

_HEADER: Final = Struct("<4sHHIIIIIIIIqqI")
_WHOLE_HEADER: Final = Struct("<4sHHIIIIIIIIqqII")
_LENGTH_AT: Final = 20
"""Offset of the length in a header."""
_SUM_AT: Final = 4
_SIZE_AT: Final = 40
_RAW_AT: Final = 56
"""Offset of three fields in a PAYLOAD row: its checksum, its bytes of raw and their offset."""
_LONG: Final = Struct("<q")


class LayoutError(Exception):
    """The bytes are not a block of a version this program reads."""


@final
class Header:
    """The first 64 bytes of a block, and the offset at which they were found."""

    __slots__ = (
        "at", "block", "body_crc", "bounds", "flags", "length", "raw_bytes", "routes", "rows",
        "salt", "segment", "synced", "time_ms", "version",
    )  # fmt: skip

    def __init__(
        self,
        flags: int,
        salt: int,
        segment: int,
        block: int,
        length: int,
        rows: int,
        bounds: int,
        routes: int,
        raw_bytes: int,
        time_ms: int,
        synced: int,
        body_crc: int,
        at: int = 0,
        version: int = FORMAT,
    ) -> None:
        self.version = version
        self.flags = flags
        self.salt = salt
        self.segment = segment
        self.block = block
        self.length = length
        self.rows = rows
        self.bounds = bounds
        self.routes = routes
        self.raw_bytes = raw_bytes
        self.time_ms = time_ms
        self.synced = synced
        self.body_crc = body_crc
        self.at = at
        """Offset of the header in the bytes it was read from."""

    @property
    def position(self) -> int:
        """Journal position of the block; of a stripped block, the position it had before."""
        return self.synced if self.flags & STRIPPED else self.segment << 32 | self.at

    @property
    def known_synced(self) -> int:
        """Position that this block proves to have been on disk when it was packed."""
        return 0 if self.flags & STRIPPED else self.synced

    @property
    def raw_at(self) -> int:
        """Offset of raw from the start of the block."""
        return self.length - aligned(self.raw_bytes)

    @property
    def bounds_at(self) -> int:
        return HEADER + ROW * self.rows

    @property
    def routes_at(self) -> int:
        return self.bounds_at + 4 * self.bounds

    @property
    def text_at(self) -> int:
        return self.routes_at + (8 * self.routes + 4 if self.routes else 0)

    def encoded(self) -> bytes:
        return encoded_header(
            self.version, self.flags, self.salt, self.segment, self.block, self.length, self.rows,
            self.bounds, self.routes, self.raw_bytes, self.time_ms, self.synced, self.body_crc,
        )  # fmt: skip


def encoded_header(
    version: int,
    flags: int,
    salt: int,
    segment: int,
    block: int,
    length: int,
    rows: int,
    bounds: int,
    routes: int,
    raw_bytes: int,
    time_ms: int,
    synced: int,
    body_crc: int,
) -> bytes:
    """Return the first 64 bytes of a block with these fields of a Header."""
    head = _HEADER.pack(
        MAGIC, version, flags, salt, segment, block, length, rows, bounds, routes, raw_bytes,
        time_ms, synced, body_crc,
    )  # fmt: skip
    return head + NUMBER.pack(crc32c(head))


def aligned(size: int) -> int:
    return (size + 7) & ~7


def header_at(data: bytes, at: int) -> Header | None:
    """Return the header at an offset; None if there is no sound header. O(1).

    Raises LayoutError when the header is sound and its format version is one we do not know.
    """
    if at + HEADER > len(data):
        return None
    head = data[at : at + HEADER]
    (
        magic, version, flags, salt, segment, block, length, rows, bounds, routes, raw_bytes,
        time_ms, synced, body_crc, crc,
    ) = _WHOLE_HEADER.unpack(head)  # fmt: skip
    if magic != MAGIC or _extend(0, head[:60]) != crc:
        return None
    if not 0 < version <= FORMAT:
        raise LayoutError(f"block of format version {version}, this program reads 1 to {FORMAT}")
    header = Header(
        flags, salt, segment, block, length, rows, bounds, routes, raw_bytes, time_ms, synced,
        body_crc, at, version,
    )  # fmt: skip
    if length % ALIGN or header.text_at + aligned(raw_bytes) > length:
        return None
    return header


def length_at(data: bytes, at: int) -> int:
    """Return the length that the header at an offset gives, unchecked; 0 where there is none."""
    return int.from_bytes(data[at + _LENGTH_AT : at + _LENGTH_AT + 4], "little")


def is_whole(data: bytes, header: Header) -> bool:
    """Return whether the header's block is complete and has the checksums that the header gives
    and, for bodies, the rows give."""
    if not has_columns(data, header):
        return False
    return header.version == WHOLE or not damaged(data, header)


def has_columns(data: bytes, header: Header) -> bool:
    """Return whether the header's block is complete and undamaged, apart from bodies; version 1
    checks the bodies as well."""
    end = header.at + header.length
    if end > len(data):
        return False
    if header.version > WHOLE or header.flags & APART:
        end = header.at + header.raw_at
    crc: int = _extend(0, data[header.at + HEADER : end])
    return crc == header.body_crc


def damaged(data: bytes, header: Header) -> list[tuple[int, int]]:
    """Return offset in the block and size of each payload whose bytes are damaged, in a block whose
    columns are sound. The cost is per payload, not per row."""
    found: list[tuple[int, int]] = []
    if header.flags & (STRIPPED | APART) or not header.raw_bytes:
        return found
    first = header.at + HEADER
    kinds = data[first : first + ROW * header.rows : ROW]
    row = kinds.find(PAYLOAD)
    while row >= 0:
        at = first + ROW * row
        raw_at = NUMBER.unpack_from(data, at + _RAW_AT)[0]
        if data[at + 1] & CHECKED and raw_at:
            size = _LONG.unpack_from(data, at + _SIZE_AT)[0]
            start = header.at + raw_at
            if _extend(0, data[start : start + size]) != NUMBER.unpack_from(data, at + _SUM_AT)[0]:
                found.append((raw_at, size))
        row = kinds.find(PAYLOAD, row + 1)
    return found


def row_kinds(data: bytes, header: Header) -> dict[int, int]:
    """Return the count of a block's rows by kind. The cost is per kind, not per row."""
    first = header.at + HEADER
    column = data[first : first + ROW * header.rows : ROW]
    return {kind: column.count(kind) for kind in set(column)}


def bare_block(
    segment: int,
    block: int,
    salt: int,
    time_ms: int,
    flags: int,
    size: int,
    synced: int = 0,
    version: int = WHOLE,
) -> bytes:
    """Make a block without rows: the seal that ends a segment (size 64), or a LOST block."""
    body = bytes(size - HEADER)
    header = Header(
        flags, salt, segment, block, size, 0, 0, 0, len(body), time_ms, synced, crc32c(body), 0,
        version,
    )  # fmt: skip
    return header.encoded() + body


def crc32c(data: bytes, crc: int = 0) -> int:
    """CRC-32C of data, continued from `crc`.

    google-crc32c: 28 GB/s on 64 MiB where crc32c 2.9 gave 8; alike (0.12 us) on 200 bytes.
    """
    result: int = _extend(crc, data)
    return result
