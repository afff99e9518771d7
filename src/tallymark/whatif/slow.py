"""Slow consumers of a world: they are looked at as the broker's watch does, and acted on."""

from __future__ import annotations

from typing import Final

from tallymark.engine.broker import Broker
from tallymark.engine.slow.actions import SlowSubscription
from tallymark.engine.slow.consumers import OVER, Watched

PERIOD_MS: Final = 250
"""Interval between two looks of a world with a change; the broker's default."""
MARK: Final = b'"slow-consumer-'
"""Text of definitions that set a limit on slow consumers."""


class SlowWatch:
    """The watch over slow consumers, with the actions that come with the broker: an action that
    another package brings does nothing here."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def look(self) -> None:
        """Look at all subscriptions of which something may have changed, and act on slow ones."""
        for watched in self._broker.slow.due():
            self._look(watched)

    def _look(self, watched: Watched) -> None:
        reading = self._broker.slow.look(watched)
        if reading is None or watched.state != OVER:
            return
        policy, options = reading.rule.policy.lower(), reading.rule.options
        slow = SlowSubscription(self._broker, reading)
        if policy in ("delete", "topicdelete"):
            is_whole = options.get("scope", "session") == "session"
            slow.disconnect(options.get("delete-persistent") in (True, "true"), is_whole)
        elif policy == "drop-oldest":
            slow.drop_oldest()
        elif policy == "dead-letter":
            slow.dead_letter()
