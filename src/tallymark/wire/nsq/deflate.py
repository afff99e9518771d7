"""Deflate between transport and connection: raw deflate [RFC 1951], flushed at every write.

The decoder takes at most SLICE bytes and gives at most PIECE_MAX at a time. So a small input that
stands for a huge output costs no memory, and a large one that stands for nothing costs little at a
time: feed, then read until it returns None.
"""

from __future__ import annotations

import zlib
from typing import Final, final

from tallymark.wire.line import Inbox
from tallymark.wire.nsq.upgrades import PIECE_MAX, LayerError

WINDOW_BITS: Final = -15
"""No header, no checksum."""
SLICE: Final = 16_384
"""Bytes passed to zlib at a time. Input that it does not take at once is returned as a copy."""


@final
class DeflateEncoder:
    """A deflate encoder; `level` 1..9."""

    __slots__ = ("_deflate",)

    def __init__(self, level: int) -> None:
        self._deflate = zlib.compressobj(level, zlib.DEFLATED, WINDOW_BITS)

    def encode(self, data: bytes) -> bytes:
        """Encode data; the peer can decode all of it from the result."""
        return self._deflate.compress(data) + self._deflate.flush(zlib.Z_SYNC_FLUSH)


@final
class DeflateDecoder:
    __slots__ = ("_inbox", "_inflate")

    def __init__(self) -> None:
        self._inflate = zlib.decompressobj(WINDOW_BITS)
        self._inbox = Inbox(1)

    def feed(self, data: bytes) -> None:
        if data:
            self._inbox.add(data)

    def held_bytes(self) -> int:
        """Bytes of input that are not decoded yet."""
        return self._inbox.size() + len(self._inflate.unconsumed_tail)

    def read(self) -> bytes | None:
        """Return up to PIECE_MAX decoded bytes, or none that a part of the input stands for; None:
        more input is needed. Raises LayerError for input that is not deflate, or follows its end.
        """
        inflate = self._inflate
        source = inflate.unconsumed_tail or self._next_slice()
        if inflate.eof:
            if source or inflate.unused_data:
                raise LayerError("deflate: bytes behind the end of the stream")
            return None
        try:
            # Also without input: output may be held back although all input was taken.
            piece = inflate.decompress(source, PIECE_MAX)
        except zlib.error as error:
            raise LayerError(f"deflate: {error}") from None
        return piece if piece or source else None

    def _next_slice(self) -> bytes:
        inbox = self._inbox
        if not inbox.gather():
            return b""
        pos = inbox.pos
        source = inbox.data[pos : pos + SLICE]
        inbox.advance(pos + len(source), 1)
        return source
