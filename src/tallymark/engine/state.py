"""State: what the managers of one broker share, and nothing that only one of them knows.

Every manager is made of the State and of the managers below it. What it has to tell one above it
is noted here, mostly in the agenda, and looked at in the turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from tallymark.engine import records
from tallymark.engine.account import DROPPED
from tallymark.engine.agenda import Agenda
from tallymark.engine.clock import Clock
from tallymark.engine.deadlines import Deadlines
from tallymark.engine.effects import Effect
from tallymark.engine.errors import NotFound
from tallymark.engine.formats import Format
from tallymark.engine.ledger import Ledger, dropped_record
from tallymark.engine.message import Payload, Slice
from tallymark.engine.queue import Queue
from tallymark.engine.session import Connection
from tallymark.engine.store import Store
from tallymark.engine.vhost import VirtualHost


@final
class Counter:
    """A counter that returns 1, 2, 3, ... and continues after a restart."""

    __slots__ = ("last",)

    def __init__(self) -> None:
        self.last = 0

    def __call__(self) -> int:
        self.last += 1
        return self.last

    def take(self, n: int) -> int:
        """Reserve n consecutive numbers; return the first."""
        first = self.last + 1
        self.last += n
        return first

    def at_least(self, number: int) -> None:
        """Skip all numbers up to `number`."""
        if number > self.last:
            self.last = number


@final
class State:
    """The shared parts of a broker."""

    __slots__ = (
        "agenda", "clock", "connections", "deadlines", "effects", "formats", "message_ids",
        "owner_ids", "queue_ids", "queues", "ledger", "store", "vhosts",
    )  # fmt: skip

    def __init__(self, fetch: Callable[[Payload], bytes]) -> None:
        """fetch: function that reads a payload's bytes back from the journal."""
        self.clock = Clock()
        self.ledger = Ledger(self.clock)
        """Rows since the last block."""
        self.effects: list[Effect] = []
        """Effects since the last turn."""
        self.store = Store(fetch)
        self.agenda = Agenda()
        self.deadlines = Deadlines()
        self.formats: dict[int, Format] = {}
        """Decoders of wire formats by Payload.format; filled by the owner of the broker."""
        self.vhosts: dict[str, VirtualHost] = {}
        self.queues: dict[int, Queue] = {}
        """All queues by id."""
        self.connections: dict[int, Connection] = {}
        self.queue_ids = Counter()
        self.owner_ids = Counter()
        """Counter of ids, shared by consumers, sessions, connections and transactions."""
        self.message_ids = Counter()

    def vhost(self, name: str) -> VirtualHost:
        """Return the virtual host of that name. Raises NotFound."""
        vhost = self.vhosts.get(name)
        if vhost is None:
            raise NotFound(f"vhost {name} not found")
        return vhost

    def drop(self, queue: Queue, piece: Slice, reason: int) -> None:
        """Drop messages of no bucket, and count them."""
        n = len(piece)
        of_stream = reason == records.DROPPED_RETENTION or reason == records.DROPPED_ARCHIVED
        size = piece.size() if of_stream else 0
        queue.account.end(n, DROPPED, reason)
        self.store.finish(piece.payload, n)
        if queue.stored:
            self.ledger.emit(dropped_record(queue.id, piece.first, n, reason, size))
