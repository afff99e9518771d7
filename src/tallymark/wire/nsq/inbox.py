"""Inbox: received bytes that are not processed yet."""

from __future__ import annotations

from typing import Final, final

CHUNKS_MAX: Final = 4096
"""Maximum number of reads kept apart while a command is incomplete. A list entry takes more memory
than a one-byte read."""


@final
class Inbox:
    """Joins reads only when that completes the awaited bytes, a number of bytes or a line: each
    byte is moved a bounded number of times, whatever the sizes of reads and commands."""

    __slots__ = ("_chunks", "_line", "_need", "data", "pos", "waiting")

    def __init__(self, need: int) -> None:
        self.data = b""
        self.pos = 0
        """Offset in `data` at which the next command begins."""
        self._need = need
        self._line = False  # a newline will do as well
        self._chunks: list[bytes] = []
        self.waiting = 0
        """Bytes received behind `data`."""

    def add(self, data: bytes) -> None:
        self._chunks.append(data)
        self.waiting += len(data)
        if self._line and b"\n" in data:
            self._line = False
            self._need = len(self.data) - self.pos + 1
        if len(self._chunks) >= CHUNKS_MAX:
            self._chunks = [b"".join(self._chunks)]

    def advance(self, pos: int) -> None:
        """Mark everything before `pos` as processed."""
        self.pos = pos
        self._need = 1

    def await_bytes(self, need: int) -> None:
        """Wait for `need` bytes from `pos` on, which are more than `data` has."""
        self._need = need

    def await_line(self, most: int) -> None:
        """Wait for a newline, or for `most` bytes from `pos` on.

        In `data` there is neither.
        """
        for chunk in self._chunks:
            if b"\n" in chunk:
                self._need = len(self.data) - self.pos + 1
                return
        self._need = most
        self._line = True

    def gather(self) -> bool:
        """Return whether the awaited bytes are there; they are in `data` then."""
        left = len(self.data) - self.pos
        if left >= self._need:
            return True
        if not left:
            self.data = b""
            self.pos = 0
        if left + self.waiting < self._need:
            return False
        self.gather_all()
        return True

    def gather_all(self) -> None:
        """Move all bytes into `data`."""
        chunks = self._chunks
        if not chunks:
            return
        if len(self.data) > self.pos:
            chunks.insert(0, self.data[self.pos :])
        self.data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        self.pos = 0
        self._line = False
        self._chunks = []
        self.waiting = 0

    def size(self) -> int:
        """Return the bytes kept."""
        return len(self.data) - self.pos + self.waiting

    def take(self) -> bytes:
        """Return all bytes and empty the inbox."""
        self.gather_all()
        rest = self.data[self.pos :]
        self.clear()
        return rest

    def clear(self) -> None:
        self.data = b""
        self.pos = 0
        self._need = 1
        self._line = False
        self._chunks = []
        self.waiting = 0
