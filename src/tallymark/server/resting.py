"""Resting: a short sleep of the loop behind a turn, so that what comes meanwhile shares the next.

Where very many clients ask for little each, most of what a message costs is a round of the loop, a
turn, a block and a sync of its own. Network cards meet the same trouble with interrupts, and in the
same way: where they come often, they are held back for a moment and come together.

The loop rests where clients together are read LEAST_READS times a second or more, and none is in
haste. In haste is who may have to wait for the broker before it can go on:

- A client that asks for something, a publish included, less than CALM_NS after it asked before:
  perhaps it waits for each answer. Who was silent for longer loses a sixtieth by a rest.
- The consumers of a queue that a turn leaves with ready messages for which none has credit: with
  its next settlement one of them is handed more.

A client that only settles, or grants credit, is in no haste otherwise.
"""

from __future__ import annotations

from typing import Final, final

REST_S: Final = 0.000_25
"""Seconds that a rest is meant to take. The system adds some 50 us to every sleep."""
LEAST_READS: Final = 4000
"""Reads a second from which on the loop rests: fewer would hardly share anything."""
CALM_NS: Final = 20_000_000
"""Nanoseconds of silence before a request from which on its client is not in haste."""
HASTE_NS: Final = 20_000_000
"""Nanoseconds without rests after a client was in haste."""
WINDOW_NS: Final = 10_000_000
"""Nanoseconds over which reads are counted, at least."""
SECOND_NS: Final = 1_000_000_000


@final
class Resting:
    """The haste of one node's clients. Times are nanoseconds of the monotonic clock."""

    __slots__ = ("_hasty_until_ns", "_is_busy", "_reads", "_since_ns")

    def __init__(self) -> None:
        self._since_ns = 0
        """Begin of the window."""
        self._reads = 0
        """Number of reads before it began."""
        self._is_busy = False
        """True if there were enough reads in the window before."""
        self._hasty_until_ns = 0
        """Time until which somebody counts as being in haste."""

    def asked(self, now_ns: int, before_ns: int) -> None:
        """Note a client's request; before_ns: time of its request before, 0: it is its first."""
        if now_ns - before_ns < CALM_NS:
            self._hasty_until_ns = now_ns + HASTE_NS

    def hurry(self, now_ns: int) -> None:
        """Note that consumers are in haste."""
        self._hasty_until_ns = now_ns + HASTE_NS

    def may_rest(self, now_ns: int, reads: int) -> bool:
        """Return whether the loop is to rest now, for all that reads tell. reads: number of reads
        of clients so far."""
        elapsed_ns = now_ns - self._since_ns
        if elapsed_ns >= WINDOW_NS:
            self._is_busy = (reads - self._reads) * SECOND_NS >= LEAST_READS * elapsed_ns
            self._since_ns = now_ns
            self._reads = reads
        return self._is_busy and now_ns >= self._hasty_until_ns
