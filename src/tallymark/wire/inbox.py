"""Bytes received and not looked at yet, of a protocol whose frames say how long they are."""

from __future__ import annotations

from typing import Final, final

CHUNKS_MAX: Final = 4096
"""Reads kept apart while a frame is incomplete; a list entry costs more than a one-byte read."""


@final
class Inbox:
    """Joins reads only when that completes what is waited for: each byte is moved a bounded number
    of times, whatever the sizes of reads and frames."""

    __slots__ = ("_chunks", "data", "need", "pos", "waiting")

    def __init__(self, need: int) -> None:
        self.data = b""
        self.pos = 0
        """Where in `data` the next frame begins."""
        self.need = need
        """Bytes from `pos` on without which there is nothing to do."""
        self._chunks: list[bytes] = []
        self.waiting = 0
        """Bytes received behind `data`."""

    def add(self, data: bytes) -> None:
        self._chunks.append(data)
        self.waiting += len(data)
        if len(self._chunks) >= CHUNKS_MAX:
            self._chunks = [b"".join(self._chunks)]

    def advance(self, pos: int, need: int) -> None:
        """Everything before `pos` is done with."""
        self.pos = pos
        self.need = need

    def gather(self) -> bool:
        """Whether `need` bytes are there from `pos` on; then they are in `data`."""
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
        """Bytes kept."""
        return len(self.data) - self.pos + self.waiting

    def clear(self) -> None:
        self.data = b""
        self.pos = 0
        self._chunks = []
        self.waiting = 0
