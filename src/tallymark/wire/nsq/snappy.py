"""Snappy between transport and connection, in the framing format: chunks of up to 64 KiB.

| type (1) | size (3, little-endian) | content |

0xff  stream identifier: sNaPpY             0x80-0xfe  passed over (0xfe is padding)
0x00  masked crc32c (4), compressed data    0x02-0x7f  not known: an error
0x01  masked crc32c (4), plain data
"""

from __future__ import annotations

from struct import Struct
from typing import Final, final

import cramjam
import google_crc32c

from tallymark.wire.line import Inbox
from tallymark.wire.nsq.upgrades import PIECE_MAX, LayerError

IDENTIFIER: Final = b"\xff\x06\x00\x00sNaPpY"
COMPRESSED: Final = 0x00
PLAIN: Final = 0x01
FIRST_SKIPPABLE: Final = 0x80
STREAM: Final = 0xFF
HEAD: Final = 4
CHUNKS: Final = 256
"""Number of chunks without content that are passed over at a time."""
CHUNK_MAX: Final = 4 + 32 + PIECE_MAX + PIECE_MAX // 6
"""Bytes of the largest content: the checksum, and 64 KiB that do not compress."""

_pack_checksum: Final = Struct("<I").pack


def masked_checksum(data: bytes) -> bytes:
    value: int = google_crc32c.value(data)
    masked = (((value >> 15) | (value << 17)) + 0xA282EAD8) & 0xFFFF_FFFF
    return _pack_checksum(masked)


@final
class SnappyEncoder:
    __slots__ = ("_has_begun",)

    def __init__(self) -> None:
        self._has_begun = False

    def encode(self, data: bytes) -> bytes:
        """Encode data; the peer can decode all of it from the result."""
        out: list[bytes] = []
        if not self._has_begun:
            self._has_begun = True
            out.append(IDENTIFIER)
        for start in range(0, len(data), PIECE_MAX):
            out.append(_chunk(data[start : start + PIECE_MAX]))
        return b"".join(out)


def _chunk(piece: bytes) -> bytes:
    content = bytes(cramjam.snappy.compress_raw(piece))
    kind = COMPRESSED
    if len(content) >= len(piece) - len(piece) // 8:  # not worth the reader's time
        kind = PLAIN
        content = piece
    size = len(content) + 4
    return bytes((kind,)) + size.to_bytes(3, "little") + masked_checksum(piece) + content


@final
class SnappyDecoder:
    """Decodes a chunk at a time, and keeps only the input since the last complete chunk."""

    __slots__ = ("_has_begun", "_inbox", "_skip")

    def __init__(self) -> None:
        self._inbox = Inbox(1)
        self._skip = 0
        """Remaining bytes of a chunk that is skipped."""
        self._has_begun = False

    def feed(self, data: bytes) -> None:
        if data:
            self._inbox.add(data)

    def held_bytes(self) -> int:
        """Bytes of input that are not decoded yet."""
        return self._inbox.size()

    def read(self) -> bytes | None:
        """Return up to PIECE_MAX decoded bytes, or none that a part of the input stands for; None:
        more input is needed. Raises LayerError for input that is not snappy."""
        inbox = self._inbox
        for _ in range(CHUNKS):
            if not inbox.gather():
                return None
            data = inbox.data
            pos = inbox.pos
            left = len(data) - pos
            if self._skip:
                passed = min(self._skip, left)
                self._skip -= passed
                inbox.advance(pos + passed, 1)
                continue
            if left < HEAD:
                inbox.need = HEAD
                continue
            kind = data[pos]
            size = int.from_bytes(data[pos + 1 : pos + HEAD], "little")
            if not self._has_begun and kind != STREAM:
                raise LayerError(f"snappy: chunk type 0x{kind:02x}, expected a stream identifier")
            if FIRST_SKIPPABLE <= kind < STREAM:
                self._skip = size
                inbox.advance(pos + HEAD, 1)
                continue
            _check_size(kind, size)
            if left < HEAD + size:
                inbox.need = HEAD + size
                continue
            inbox.advance(pos + HEAD + size, 1)
            piece = self._decode(kind, data[pos + HEAD : pos + HEAD + size])
            if piece:
                return piece
        return b""

    def _decode(self, kind: int, content: bytes) -> bytes:
        if kind != STREAM:
            return _decode_piece(kind, content)
        if content != IDENTIFIER[HEAD:]:
            raise LayerError(f"snappy: stream identifier {content!r}")
        self._has_begun = True
        return b""


def _check_size(kind: int, size: int) -> None:
    if kind == STREAM:
        if size != len(IDENTIFIER) - HEAD:
            raise LayerError(f"snappy: stream identifier of {size} bytes, expected 6")
    elif kind == COMPRESSED:
        if not 4 <= size <= CHUNK_MAX:
            raise LayerError(f"snappy: chunk of {size} bytes, expected 4 to {CHUNK_MAX}")
    elif kind == PLAIN:
        if not 4 <= size <= PIECE_MAX + 4:
            raise LayerError(f"snappy: chunk of {size} bytes, expected 4 to {PIECE_MAX + 4}")
    else:
        raise LayerError(f"snappy: unknown chunk type 0x{kind:02x}")


def _decode_piece(kind: int, content: bytes) -> bytes:
    piece = content[4:]
    if kind == COMPRESSED:
        try:
            size: int = cramjam.snappy.decompress_raw_len(piece)
            if size > PIECE_MAX:
                raise LayerError(f"snappy: {size} bytes in a chunk, expected at most {PIECE_MAX}")
            piece = bytes(cramjam.snappy.decompress_raw(piece))
        except cramjam.DecompressionError as error:
            raise LayerError(f"snappy: {error}") from None
    if masked_checksum(piece) != content[:4]:
        raise LayerError("snappy: wrong checksum")
    return piece
