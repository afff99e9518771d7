"""A broker whose event loop counts how often it looks for work: `python -m tests.server.counted
COUNT serve ...` writes the count, eight bytes in the machine's order, to the file COUNT.

What an idle broker does is seen in it on the slowest machine; seconds of CPU are not its own.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import selectors
import struct
import sys
from pathlib import Path

from tallymark.cli.main import main
from tallymark.server import run

COUNT = struct.Struct("=Q")


class Counting(selectors.DefaultSelector):
    """Counts its calls."""

    def __init__(self, shared: mmap.mmap) -> None:
        super().__init__()
        self._shared = shared
        self._count = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._count += 1
        COUNT.pack_into(self._shared, 0, self._count)
        return super().select(timeout)


def read_count(path: Path) -> int:
    """How often it has looked so far."""
    return int(COUNT.unpack(path.read_bytes())[0])


def counted(path: str) -> None:
    """Let the broker of this process run on such a loop."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    os.ftruncate(descriptor, COUNT.size)
    shared = mmap.mmap(descriptor, COUNT.size)
    run._loop_factory = lambda: lambda: asyncio.SelectorEventLoop(Counting(shared))


if __name__ == "__main__":
    counted(sys.argv.pop(1))
    main()
