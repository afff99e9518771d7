"""Heap: the C library's memory, and the return of what was freed to the system.

glibc keeps freed memory in its heap as long as something behind it is in use. So after a burst of
messages, or of password checks (16 MiB each), a process stays as large as it was at most. Here the
heap is trimmed after a burst.

Until then what was freed is used again. A block that is mapped on its own, or a heap that shrinks
at once, gives each of its pages back to the system and gets it again: for messages of 4 MiB that
was two fifths of the broker's work.

A turn releases what the one before it left without users. Where no other turn follows, the task
asks for one. With another C library that is all that it does.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tallymark.server.node import Node

MIB: Final = 1 << 20
OWN_BYTES: Final = 32 * MIB
"""Size from which a block is mapped on its own, and goes back to the system when it is freed: the
largest to which glibc raises it by itself."""
TOP_BYTES: Final = 64 * MIB
"""Free bytes at the heap's end above which they go back at once."""
M_TRIM_THRESHOLD: Final = -1
M_MMAP_THRESHOLD: Final = -3
PERIOD_S: Final = 2.0
BURST_BYTES: Final = 16 * MIB
"""Change of memory after which a trim is worth its time: some milliseconds for 100 MiB."""
STATM: Final = Path("/proc/self/statm")


def _library() -> Any | None:
    """Return the C library if it is glibc."""
    try:
        library = ctypes.CDLL(None)
        return library if hasattr(library, "gnu_get_libc_version") else None
    except OSError:
        return None


def bound_heap() -> None:
    """Set how much freed memory the heap keeps until it is trimmed. To be called before there are
    threads."""
    library = _library()
    if library is not None:
        library.mallopt(M_MMAP_THRESHOLD, OWN_BYTES)
        library.mallopt(M_TRIM_THRESHOLD, TOP_BYTES)


def resident_bytes() -> int:
    """Return the memory of this process; 0 where the system does not tell."""
    try:
        pages = int(STATM.read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


class HeapTrim:
    """The housekeeping task that releases messages that are gone where nothing else happens, and
    trims the heap after a burst, and once more a period later: the process has grown, or what is
    counted towards max_memory has shrunk."""

    def __init__(self, node: Node) -> None:
        self._node = node
        library = _library()
        self._trim = None if library is None else library.malloc_trim
        self._resident = resident_bytes()
        """Least memory of the process since the last trim, bytes."""
        self._counted = 0
        """Highest count towards max_memory seen since the last trim."""
        self._is_due_again = False
        """True in the period after a burst: bytes that are counted no more may be freed later, when
        the journal has written them."""

    def period_s(self) -> float:
        return PERIOD_S

    async def run(self) -> None:
        node = self._node
        if node.broker.store.awaits_sweep:
            node.schedule()
        counted = node.broker.store.resident_bytes + node.buffers.total
        self._counted = max(self._counted, counted)
        resident = resident_bytes()
        is_burst = resident - self._resident >= BURST_BYTES
        is_burst |= self._counted - counted >= BURST_BYTES
        self._resident = min(self._resident, resident)
        if self._trim is None or not (is_burst or self._is_due_again):
            return
        self._is_due_again = is_burst
        self._trim(0)
        self._resident = resident_bytes()
        self._counted = counted
