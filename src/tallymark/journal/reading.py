"""Reading bytes back from the disk and checking them against their checksums.

A payload carries the checksum of its bytes, or one for each of its messages. What versions of the
journal before that stored is known again by the checksum of the block it lies in, which has to be
found and read as a whole.
"""

from __future__ import annotations

import errno
import os
from array import array
from bisect import bisect_right
from pathlib import Path
from typing import Final, final

from tallymark.engine.errors import BytesLost
from tallymark.engine.message import Payload
from tallymark.journal.block import (
    HEADER,
    STRIPPED,
    Header,
    LayoutError,
    crc32c,
    header_at,
    is_whole,
)
from tallymark.journal.files import Files

SECTOR: Final = 4096
"""Smallest unit, in bytes, that a disk loses with an unreadable byte."""
WINDOW: Final = 64 * 1024
"""Bytes read at a time where only columns are needed; small bodies are read along."""


def read_file(path: Path) -> bytes:
    """Return a file's bytes, with zeros for unreadable sectors. Raises OSError for any other
    error."""
    try:
        return path.read_bytes()
    except OSError as error:
        if error.errno != errno.EIO:
            raise
    parts: list[bytes] = []
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        for at in range(0, size, SECTOR):
            wanted = min(SECTOR, size - at)
            try:
                part = os.pread(fd, wanted, at)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                part = b""
            parts.append(part + bytes(wanted - len(part)))
    finally:
        os.close(fd)
    return b"".join(parts)


def check(payload: Payload, data: bytes) -> bool:
    """Check a payload's bytes; False: it has no checksum.

    Raises BytesLost: they are not.
    """
    if payload.sum >= 0:
        _check(payload.position, data, payload.sum)
        return True
    sums = payload.sums
    if sums is None:
        return False
    cuts = payload.cuts
    for i in range(payload.count):
        _check(payload.position + cuts[i], data[cuts[i] : cuts[i + 1]], sums[i])
    return True


def _check(position: int, data: bytes, expected: int) -> None:
    found = crc32c(data)
    if found != expected:
        raise BytesLost(
            f"{len(data)} bytes at offset {position & 0xFFFFFFFF} of segment {position >> 32} have "
            f"the checksum {found:#x}, expected {expected:#x}"
        )


@final
class Blocks:
    """Reads parts of blocks that have one checksum over everything. Caches the offsets of one
    segment's blocks and the last block."""

    __slots__ = ("_data", "_files", "_header", "_segment", "_starts", "_whole")

    def __init__(self, files: Files) -> None:
        self._files = files
        self._segment = 0
        self._starts: array[int] = array("Q")
        self._header: Header | None = None
        self._data = b""
        self._whole = -1
        """Offset of the block in `_data`, -1 for none."""

    def read(self, fd: int, position: int, size: int) -> bytes:
        """Read bytes of the segment that `fd` reads. Raises BytesLost if their block is damaged,
        OSError."""
        segment, offset = position >> 32, position & 0xFFFFFFFF
        if segment != self._segment:
            self._find(fd, segment)
        at = bisect_right(self._starts, offset) - 1
        start = self._starts[at] if at >= 0 else -1
        if start < 0 or start != self._whole:
            self._load(fd, start, position)
        header = self._header
        skip = offset - start
        if header is None or skip < header.raw_at or skip + size > header.length:
            raise BytesLost(f"no bytes of a message at offset {offset} of segment {segment}")
        return self._data[skip : skip + size]

    def _find(self, fd: int, segment: int) -> None:
        self._segment = 0
        self._whole = -1
        starts: array[int] = array("Q")
        at = 0
        while True:
            header = _header(self._files.pread(fd, HEADER, at))
            if header is None or header.segment != segment:
                break
            starts.append(at)
            at += header.length
        self._starts = starts
        self._segment = segment

    def _load(self, fd: int, start: int, position: int) -> None:
        self._whole = -1
        header: Header | None = None
        data = b""
        if start >= 0:
            header = _header(self._files.pread(fd, HEADER, start))
            if header is not None:
                data = self._files.read_exactly(fd, header.length, start)
        if header is None or not is_whole(data, header):
            raise BytesLost(
                f"the block at offset {start} of segment {position >> 32}, in which offset "
                f"{position & 0xFFFFFFFF} lies, is damaged"
            )
        self._header = header
        self._data = data
        self._whole = start


def _header(data: bytes) -> Header | None:
    try:
        return header_at(data, 0)
    except LayoutError:
        return None


@final
class Columns:
    """Reads the blocks of a sealed segment without bodies that have checksums of their own."""

    __slots__ = ("_at", "_fd", "_files", "_window", "_window_at")

    def __init__(self, files: Files, fd: int) -> None:
        self._files = files
        self._fd = fd
        self._at = 0
        self._window = b""
        self._window_at = 0

    def next(self) -> tuple[Header, bytes] | None:
        """Return the next block's header, and its bytes up to raw, checked; None: there is no sound
        block. Raises OSError, LayoutError."""
        at = self._at
        header = header_at(self._read(at, HEADER), 0)
        if header is None or header.flags & STRIPPED:
            return None
        if header.version == 1:
            data = self._files.read_exactly(self._fd, header.length, at)
            if not is_whole(data, header):
                return None
            data = data[: header.raw_at]
        else:
            data = self._read(at, header.raw_at)
            if len(data) < header.raw_at or crc32c(data[HEADER:]) != header.body_crc:
                return None
        header.at = at
        self._at = at + header.length
        return header, data

    @property
    def at(self) -> int:
        """Return the offset of the next block."""
        return self._at

    def _read(self, at: int, size: int) -> bytes:
        begin = at - self._window_at
        if begin < 0 or begin + size > len(self._window):
            self._window = self._files.read_exactly(self._fd, max(size, WINDOW), at)
            self._window_at = at
            begin = 0
        return self._window[begin : begin + size]
