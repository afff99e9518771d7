"""Inbox: received bytes that are not processed yet, of a protocol whose frames have a size."""

from __future__ import annotations

from typing import Final, final

CHUNKS_MAX: Final = 4096
"""Maximum number of reads kept apart while a frame is incomplete. A list entry takes more memory
than a one-byte read."""


@final
class Inbox:
    """Joins reads only when that completes the awaited bytes: each byte is moved a bounded number
    of times, whatever the sizes of reads and frames."""

    __slots__ = ("_chunks", "data", "need", "pos", "waiting")

    def __init__(self, need: int) -> None:
        self.data = b""
        self.pos = 0
        """Offset in `data` at which the next frame begins."""
        self.need = need
        """Bytes from `pos` on that are needed for the next step."""
        self._chunks: list[bytes] = []
        self.waiting = 0
        """Bytes received behind `data`."""

    def add(self, data: bytes) -> None:
        self._chunks.append(data)
        self.waiting += len(data)
        if len(self._chunks) >= CHUNKS_MAX:
            self._chunks = [b"".join(self._chunks)]

    def advance(self, pos: int, need: int) -> None:
        """Mark everything before `pos` as processed."""
        self.pos = pos
        self.need = need

    def gather(self) -> bool:
        """Return whether `need` bytes are there from `pos` on; they are in `data` then."""
        left = len(self.data) - self.pos
        if left >= self.need:
            return True
        if not left:
            self.data = b""
            self.pos = 0
        if left + self.waiting < self.need or not self._chunks:
            return False
        chunks = self._chunks
        if left:
            chunks.insert(0, self.data[self.pos :])
        self.data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        self.pos = 0
        self._chunks = []
        self.waiting = 0
        return True

    def size(self) -> int:
        """Return the bytes kept."""
        return len(self.data) - self.pos + self.waiting

    def clear(self) -> None:
        self.data = b""
        self.pos = 0
        self._chunks = []
        self.waiting = 0
