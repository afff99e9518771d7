"""Bytes received and not looked at yet."""

from __future__ import annotations

from typing import Final, final

CHUNKS_MAX: Final = 4096
"""Reads kept apart while a command is incomplete; a list entry costs more than a one-byte read."""


@final
class Inbox:
    """Joins reads only when that completes what is waited for, a number of bytes or a line: each
    byte is moved a bounded number of times, whatever the sizes of reads and commands."""

    __slots__ = ("_chunks", "_line", "_need", "data", "pos", "waiting")

    def __init__(self, need: int) -> None:
        self.data = b""
        self.pos = 0
        """Where in `data` the next command begins."""
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
        """Everything before `pos` is done with."""
        self.pos = pos
        self._need = 1

    def await_bytes(self, need: int) -> None:
        """Nothing can be done without `need` bytes from `pos` on, more than are in `data`."""
        self._need = need

    def await_line(self, most: int) -> None:
        """Nothing can be done until a newline comes, or `most` bytes from `pos` on are there.

        In `data` there is neither.
        """
        for chunk in self._chunks:
            if b"\n" in chunk:
                self._need = len(self.data) - self.pos + 1
                return
        self._need = most
        self._line = True

    def gather(self) -> bool:
        """Whether what is waited for is there; then it is in `data`."""
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
        """Everything is in `data`."""
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
        """Bytes kept."""
        return len(self.data) - self.pos + self.waiting

    def take(self) -> bytes:
        """All that is kept; then it is empty."""
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
