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
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final, final

from tallymark.engine.errors import BytesLost
from tallymark.engine.message import Payload
from tallymark.journal.files import Files
from tallymark.journal.writer import Writer
from tallymark.stored import anchor as anchors
from tallymark.stored.anchor import Anchor, decode_anchor
from tallymark.stored.layout import (
    HEADER,
    STRIPPED,
    Header,
    LayoutError,
    crc32c,
    header_at,
    is_whole,
)

_FILES_OPEN: Final = 64
"""Number of files that are read at a time."""
SECTOR: Final = 4096
"""Smallest unit, in bytes, that a disk loses with an unreadable byte."""
WINDOW: Final = 64 * 1024
"""Bytes read at a time where only columns are needed; small bodies are read along."""
NARROW: Final = 4 * 1024
"""Bytes read behind a block whose bodies are large: the next one's columns lie far from the ones
behind them."""


def read_anchor(folder: Path) -> tuple[Anchor, str]:
    """Return the folder's anchor and an error text about its file. The anchor is empty if the file
    does not exist or cannot be believed, as with an unreadable sector. Raises any other OSError."""
    try:
        data = read_file(folder / anchors.FILE)
    except FileNotFoundError:
        return Anchor(), ""
    return decode_anchor(data)


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


def read_head(file: BinaryIO) -> bytes:
    """Return the bytes of a header where a file is; none where the sector is unreadable, so that
    whoever reads the whole file finds the damage. Raises OSError for any other error."""
    try:
        return file.read(HEADER)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return b""


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
    segment's blocks and the last block. The segment may grow."""

    __slots__ = ("_data", "_end", "_files", "_header", "_segment", "_starts", "_whole")

    def __init__(self, files: Files) -> None:
        self._files = files
        self._segment = 0
        self._starts: array[int] = array("Q")
        self._end = 0
        """Offset behind the last block that was found."""
        self._header: Header | None = None
        self._data = b""
        self._whole = -1
        """Offset of the block in `_data`, -1 for none."""

    def read(self, fd: int, position: int, size: int) -> bytes:
        """Read bytes of the segment that `fd` reads. Raises BytesLost if their block is damaged,
        OSError."""
        segment, offset = position >> 32, position & 0xFFFFFFFF
        if segment != self._segment:
            self.forget(self._segment)
            self._segment = segment
        if offset >= self._end:
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

    def forget(self, segment: int) -> None:
        """Keep nothing of a segment: its file is another one now."""
        if segment == self._segment:
            self._segment = self._end = 0
            self._starts = array("Q")
            self._whole = -1

    def _find(self, fd: int, segment: int) -> None:
        """Find the blocks that follow those that are known."""
        while True:
            header = _header(self._files.pread(fd, HEADER, self._end))
            if header is None or header.segment != segment:
                return
            self._starts.append(self._end)
            self._end += header.length

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
class Reader:
    """Reads payloads of a folder, from the blocks that wait to be written and from the files."""

    __slots__ = (
        "_blocks", "_discarded", "_files", "_folder", "_name_of", "_open_files", "_writer",
        "unreadable",
    )  # fmt: skip

    def __init__(
        self, folder: Path, files: Files, writer: Writer, name_of: Callable[[int], str]
    ) -> None:
        """name_of: returns the file of a segment, "" where there is none."""
        self._folder = folder
        self._files = files
        self._writer = writer
        self._name_of = name_of
        self._blocks = Blocks(files)
        self._open_files: dict[int, int] = {}
        """Descriptors by segment, those opened first before the others."""
        self._discarded: list[int] = []
        """Descriptors of files that were deleted."""
        self.unreadable: set[int] = set()
        """Positions of payloads whose bytes could not be read, or were found damaged at the
        start."""

    def fetch(self, payload: Payload) -> bytes:
        """Return the bytes of a payload, from memory while they are not written, otherwise from the
        file, with their checksum checked.

        Raises BytesLost when they are not there, or are not those that were written; OSError.
        """
        position = payload.position
        if position < 0:
            raise BytesLost(f"payload of message {payload.first_id} was never committed")
        size = payload.size
        if self._writer.number and position >= self._writer.jobs.written:
            return self._writer.unwritten(position, size)
        try:
            data = self._read(payload, position, size)
        except (BytesLost, OSError):
            self.unreadable.add(position)
            raise
        self.unreadable.discard(position)
        return data

    def is_written(self, position: int) -> bool:
        """Return whether the file has the bytes at a position. What was relocated just now waits in
        memory."""
        return not self._writer.number or position < self._writer.jobs.written

    def _read(self, payload: Payload, position: int, size: int) -> bytes:
        """Read bytes from the file and check them."""
        fd = self._opened(position >> 32)
        if fd < 0:
            raise BytesLost(f"segment {position >> 32} is gone, with {size} bytes of it")
        if payload.sum < 0 and payload.sums is None:
            return self._blocks.read(fd, position, size)
        data = self._files.read_exactly(fd, size, position & 0xFFFFFFFF)
        if len(data) != size:
            raise BytesLost(f"{len(data)} of {size} bytes found at position {position:#x}")
        check(payload, data)
        return data

    def _opened(self, number: int) -> int:
        """Return a descriptor for reading a segment, -1 if it does not exist."""
        fd = self._open_files.get(number)
        if fd is not None:
            return fd
        name = self._name_of(number)
        if not name:
            return -1
        while len(self._open_files) >= (1 if self._files.is_short else _FILES_OPEN):
            oldest = next(iter(self._open_files))
            self._blocks.forget(oldest)
            os.close(self._open_files.pop(oldest))
        fd = self._files.open_for_reading(str(self._folder / name))
        self._open_files[number] = fd
        return fd

    def file_of(self, position: int) -> int:
        """Return a descriptor, to be closed by the caller, of the file that contains a written
        position. Reads through it return the same bytes whatever becomes of the file.

        Raises BytesLost when there is none any more, OSError.
        """
        fd = self._opened(position >> 32)
        if fd < 0:
            raise BytesLost(f"the segment of position {position:#x} is gone")
        return os.dup(fd)

    def path_of(self, position: int) -> Path:
        """Return the path of the file that contains a written position. Raises BytesLost."""
        name = self._name_of(position >> 32)
        if not name:
            raise BytesLost(f"the segment of position {position:#x} is gone")
        return self._folder / name

    def discard_file(self, number: int) -> bool:
        """Give up the descriptor of a segment whose file is another one now. True: it had one, and
        `close_discarded` is to be called by a thread that may wait: with its last descriptor a
        deleted file gives up its bytes, which takes milliseconds."""
        self._blocks.forget(number)
        fd = self._open_files.pop(number, -1)
        if fd < 0:
            return False
        self._discarded.append(fd)
        return True

    def close_discarded(self) -> None:
        """Close what was discarded. Any thread may call this, one at a time."""
        while self._discarded:
            os.close(self._discarded.pop())

    def close(self) -> None:
        """Close all files."""
        for number in list(self._open_files):
            self.discard_file(number)
        self.close_discarded()


@final
class Columns:
    """Reads the blocks of a sealed segment without bodies that have checksums of their own."""

    __slots__ = ("_at", "_fd", "_files", "_step", "_window", "_window_at")

    def __init__(self, files: Files, fd: int) -> None:
        self._files = files
        self._fd = fd
        self._at = 0
        self._step = WINDOW
        self._window = b""
        self._window_at = 0

    def next(self) -> tuple[Header, bytes] | None:
        """Return the next block's header, and its bytes up to raw, checked; None: there is no sound
        block. Raises BytesLost: the disk cannot read it; LayoutError."""
        at = self._at
        header = header_at(self._read(at, HEADER), 0)
        if header is None or header.flags & STRIPPED:
            return None
        if header.version == 1:
            data = self._exactly(at, header.length)
            if not is_whole(data, header):
                return None
            data = data[: header.raw_at]
        else:
            data = self._read(at, header.raw_at)
            if len(data) < header.raw_at or crc32c(data[HEADER:]) != header.body_crc:
                return None
        header.at = at
        self._at = at + header.length
        self._step = NARROW if header.raw_bytes > WINDOW // 4 else WINDOW
        return header, data

    @property
    def at(self) -> int:
        """Return the offset of the next block."""
        return self._at

    def _read(self, at: int, size: int) -> bytes:
        begin = at - self._window_at
        if begin < 0 or begin + size > len(self._window):
            self._window = self._exactly(at, max(size, self._step))
            self._window_at = at
            begin = 0
        return self._window[begin : begin + size]

    def _exactly(self, at: int, size: int) -> bytes:
        try:
            return self._files.read_exactly(self._fd, size, at)
        except OSError as error:
            raise BytesLost(f"offset {at} cannot be read: {error}") from error
