"""Rhythm: whether a turn follows a read at once, or with the next round of the loop.

Clients that are read in one round of the loop share a turn: one block, one sync, one write to each.
Where reads come one at a time there is nobody to share with, and to wait for the next round costs
the loop more than a tenth of what such a message costs in all. So a turn follows at once after
ALONE turns in a row that were for one read each. Every AT_ONCE turns one waits, and shows whether
reads still come one at a time. No clock is asked: what happens depends on the reads alone.
"""

from __future__ import annotations

from typing import Final, final

ALONE: Final = 4
"""Number of turns in a row for one read each after which turns follow at once."""
AT_ONCE: Final = 32
"""Number of turns that follow at once before one waits."""


@final
class Rhythm:
    """The reads and turns of one node."""

    __slots__ = ("_alone", "_at_once", "_reads")

    def __init__(self) -> None:
        self._reads = 0
        """Number of reads that wait for the coming turn."""
        self._alone = 0
        """Number of turns in a row that were waited for and were for one read."""
        self._at_once = 0
        """Number of turns that may follow at once."""

    def may_follow(self, is_due: bool) -> bool:
        """Note a read; return whether its turn may follow at once. Else it waits for `turn`.

        is_due: whether a turn is coming, which it shares.
        """
        if self._at_once and not is_due:
            self._at_once -= 1
            return True
        self._reads += 1
        return False

    def turn(self) -> None:
        """Note that a turn begins that reads may have waited for."""
        reads = self._reads
        if not reads:
            return
        self._reads = 0
        if reads > 1:
            self._alone = self._at_once = 0
            return
        self._alone += 1
        if self._alone >= ALONE:
            self._at_once = AT_ONCE
