"""Traffic: what became of published messages, and what came and went, counted since the start.

Counts of one queue are its own (queue_parts.HandedOut, account.Account); these are the broker's.
"""

from __future__ import annotations

from typing import Final, final

# Fates of messages that reach no queue.
REPLIED: Final = 0
"""Messages that were direct replies, or were refused: no route was missing."""
RETURNED: Final = 1
"""Messages that no queue took, and whose publisher was told [amqp-0.9.1 basic.return]."""
DISCARDED: Final = 2
"""Messages that no queue took, and nobody was told of."""


@final
class Traffic:
    """Counts since the broker started. None of them falls."""

    def __init__(self) -> None:
        self.to_confirm = 0
        """Count of messages published on sessions that ask for confirms."""
        self.routed = 0
        """Count of queues that published messages were sent to, message by message, whether or not
        the queues had room for them. Dead letters are not counted."""
        self.returned = 0
        """Count of messages that no queue took, and whose publisher was told."""
        self.discarded = 0
        """Count of messages that no queue took, and whose publisher was not told."""
        self.connections_opened = 0
        self.connections_closed = 0
        self.sessions_opened = 0
        self.sessions_closed = 0
        self.queues_declared = 0
        """Count of declarations that succeeded, passive ones and those of existing queues
        included."""
        self.queues_created = 0
        self.queues_deleted = 0

    def nowhere(self, count: int, fate: int) -> None:
        """Count messages that reached no queue. fate: REPLIED, RETURNED or DISCARDED."""
        if fate == RETURNED:
            self.returned += count
        elif fate == DISCARDED:
            self.discarded += count
