"""An NSQ client as the engine sees one: a session with one lenient consumer, and its RDY count."""

from __future__ import annotations

from typing import final

from tallymark.engine.outcomes import ACCEPTED
from tallymark.engine.session import REQUEUES, Session
from tests.support.engine_rig import Delivery, Rig

TIMEOUT_MS = 60_000
MOST_MS = 900_000
"""nsqd's defaults of msg-timeout and max-msg-timeout [NQ-8]."""


@final
class Client:
    """Subscribed to one queue, on a connection of its own. Tags stand for message ids in flight."""

    def __init__(
        self, rig: Rig, queue: str, tag: str = "c", rdy: int = 1, timeout_ms: int = TIMEOUT_MS
    ) -> None:
        self.rig = rig
        self.queue = queue
        self.connection = rig.broker.clients.open_connection("/", "guest", tag)
        self.session: Session = rig.session(self.connection)
        self.consumer = rig.consume(self.session, queue, tag)
        self.consumer.limit = rdy
        self.consumer.on_timeout = REQUEUES
        self.consumer.timeout_ms = timeout_ms

    def rdy(self, count: int) -> None:
        self.consumer.limit = count
        self.rig.broker.agenda.mark(self.rig.vhost.queues[self.queue])

    def fin(self, *tags: int) -> None:
        """Raises PreconditionFailed: not in flight."""
        for tag in tags:
            self.rig.broker.settlement.settle(self.session, tag, tag, ACCEPTED)

    def req(self, tag: int, delay_ms: int = 0) -> None:
        """Raises PreconditionFailed: not in flight."""
        self.rig.broker.settlement.requeue(self.session, tag, delay_ms)

    def touch(self, tag: int, most_ms: int = MOST_MS) -> None:
        """Raises PreconditionFailed: not in flight."""
        self.rig.broker.timeouts.touch(self.session, tag, most_ms)

    def leave(self, lost: bool = True) -> None:
        self.rig.broker.clients.close_connection(self.connection, lost)

    def holds(self, tag: int) -> bool:
        """Whether the tag is in flight."""
        return any(
            low <= tag <= high
            for entry in self.session.inflight
            for low, high in entry.pieces(entry.first, entry.last)
        )

    def mine(self, seen: list[Delivery]) -> list[tuple[int, int]]:
        """(tag, number) of those deliveries that came here."""
        return [(d.tag, d.number) for d in seen if d.session == self.session.id]
