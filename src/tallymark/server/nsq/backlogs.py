"""The periodic task for backlogs of NSQ topics: what reached one that is not in use goes on to the
channels."""

from __future__ import annotations

from typing import Final, final

from tallymark.bridge.nsq.topics import Topics
from tallymark.server.turns import Turns

PERIOD_S: Final = 1.0


@final
class BacklogRelease:
    """The task of one node. It looks at the topics only where there was a turn since."""

    def __init__(self, turns: Turns, topics: Topics) -> None:
        self._turns = turns
        self._topics = topics
        self._turns_seen = -1

    def period_s(self) -> float:
        return PERIOD_S

    async def run(self) -> None:
        if self._turns.turns == self._turns_seen:
            return
        self._turns_seen = self._turns.turns
        self._turns.tell_time()
        if self._topics.release_late():
            self._turns.schedule()
