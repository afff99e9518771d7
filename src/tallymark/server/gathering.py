"""Gathering: the loop's rest behind a turn, where many clients each ask for something now and then.

A thousand publishers of ten messages a second each wake the loop ten thousand times a second, each
time for a read, a turn, a block and a sync of one message. After a rest of REST_S all that came
meanwhile is read in one round, and shares the turn, the block and the sync. A network card bundles
its interrupts in the same way.

The loop rests while reads come at more than a rate, and each is of a client that had asked for
nothing for RARE_NS: a rest makes its pace slower by a sixtieth at most. Whoever waits for each
answer before it asks again comes sooner, and ends the gathering at once. Nobody waits for an answer
to an acknowledgement: it does not count.
"""

from __future__ import annotations

from typing import Final, final

REST_S: Final = 0.000_3
"""Seconds of a rest."""
RARE_NS: Final = 20_000_000
"""Nanoseconds since a client asked last, below which it may be waiting for an answer."""
LEAST: Final = 64
"""Number of reads in a row of such clients before the loop rests."""
MOST: Final = 1024
"""Number of reads whose rate is looked at, at most."""
READ_NS: Final = 250_000
"""Nanoseconds from one read to the next, on average, below which the loop rests."""


@final
class Gathering:
    """The reads of one node that ask for something."""

    __slots__ = ("_reads", "_since_ns", "is_on")

    def __init__(self) -> None:
        self._reads = 0
        """Number of reads in a row of clients that ask rarely."""
        self._since_ns = 0
        """Time of the first of them."""
        self.is_on = False
        """True while the loop rests behind each turn."""

    def asked(self, before_ns: int, now_ns: int) -> None:
        """Note a read that asks for something. before_ns: time of the same client's last one; both
        monotonic, nanoseconds."""
        if now_ns - before_ns < RARE_NS:
            self._reads = 0
            self.is_on = False
            return
        if not self._reads:
            self._since_ns = now_ns
        self._reads += 1
        if self._reads >= LEAST:
            self._look(now_ns)

    def _look(self, now_ns: int) -> None:
        """Find out whether reads come often enough."""
        took_ns = now_ns - self._since_ns
        self.is_on = took_ns <= self._reads * READ_NS
        if not self.is_on:
            self._reads = 0
        elif self._reads >= MOST:
            self._reads //= 2
            self._since_ns = now_ns - took_ns // 2
