"""View: a broker as a folder's records have it at a position, for those who only read.

It is what a start would make of the folder as it is now, without a journal that is written. Nothing
changes in it: who wants what came since gets another view. A broker that follows makes one when a
reader asks, in the thread that writes the folder, so that nothing is half there meanwhile.
"""

from __future__ import annotations

import os
import time
from typing import final

from tallymark.journal.journal import Journal
from tallymark.journal.recovery import Opened
from tallymark.server.replay import Replay


@final
class View:
    """Replay of a folder that has ended, with its files open."""

    def __init__(self, opened: Opened, position: int, cuts: int = 0) -> None:
        """opened: the folder, of which the view gets a replay of its own. position: that it reaches
        to; cuts: times that it lost blocks before. Raises as Replay.finish."""
        began = time.monotonic()
        own = Opened(opened.path, under=opened)
        replay = Replay(own)
        self.journal = Journal(opened.path, _nothing_is_written, opened=own)
        try:
            replay.finish(self.journal)
        except BaseException:
            self.journal.close()
            raise
        self.broker = replay.broker
        self.position = position
        self.cuts = cuts
        self.made_at = time.monotonic()
        """Monotonic time, in seconds, as is `took_s`."""
        self.took_s = self.made_at - began

    def close(self) -> None:
        """Close its files. Answers under way have descriptors of their own."""
        self.journal.close()


def _nothing_is_written(error: OSError) -> None:
    raise AssertionError(f"pid {os.getpid()}: a view wrote") from error
