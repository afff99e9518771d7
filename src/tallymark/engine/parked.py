"""Parked deliveries: settled under a transaction, out of their sessions until it ends.

A client may change its mind about each of them [TX-15], and their queue may be deleted meanwhile.
So they are found by their tags and by their queue.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import final

from tallymark.engine.account import ACQUIRED, STAGED
from tallymark.engine.queue import Queue
from tallymark.engine.session import InFlight, Session
from tallymark.stored.annotations import Notes
from tallymark.units import EngineMs, Tag


@final
class StagedSettlement:
    """A settlement of deliveries that takes effect at the commit."""

    def __init__(
        self, session: Session, outcome: int, notes: Notes, due_ms: EngineMs, is_final: bool
    ) -> None:
        self.session = session
        self.outcome = outcome
        self.notes = notes
        self.due_ms = due_ms
        """Time before which the messages are not ready again, engine time, ms; 0: at once."""
        self.is_final = is_final
        """True if the client is done with the deliveries even if the transaction fails: a rollback
        requeues them. If False, a rollback makes them unsettled in the client's session again
        [TX-15]."""
        self.is_recorded = False
        """True once it is in the ledger."""
        self.entries: dict[InFlight, int] = {}
        """In-flight entries taken out of the session, with the numbers by which they are in the
        order in which they were settled."""
        self._last: InFlight | None = None
        """Last entry that was added, while it is there."""
        self._added = 0

    def add(self, entry: InFlight) -> bool:
        """Add one entry. Returns True if it continued the last entry and was merged with it."""
        last = self._last
        if last is not None and last.followed_by(entry):
            last.extend(entry)
            return True
        self._added += 1
        self.entries[entry] = self._added
        self._last = entry
        return False

    def remove(self, entry: InFlight) -> None:
        """Remove an entry."""
        del self.entries[entry]
        if self._last is entry:
            self._last = None

    def add_rest(self, rest: InFlight, entry: InFlight) -> None:
        """Add what lies behind a part of `entry` that was taken away."""
        self.entries[rest] = self.entries[entry]
        if self._last is entry:
            self._last = rest

    def in_order(self) -> list[InFlight]:
        """Return the entries in the order in which they were settled."""
        return sorted(self.entries, key=self._place)

    def _place(self, entry: InFlight) -> tuple[int, int]:
        return self.entries[entry], entry.first


def is_gone(session: Session, entry: InFlight) -> bool:
    """Return whether the receiver of the messages is gone: their session, or with AMQP 1.0 their
    link [FC-19]."""
    consumer = entry.consumer
    return session.closed or (consumer is not None and consumer.by_link and not consumer.active)


def unstage(entry: InFlight) -> None:
    """Count deliveries that were settled in a transaction as acquired again, in their queue."""
    if not entry.void:
        for low, high in entry.pieces(entry.first, entry.last):
            entry.queue.account.move(entry.part(low, high), STAGED, ACQUIRED)


def stored_ranges(entry: InFlight) -> list[tuple[int, int]]:
    """Return the sequences that an entry holds, as (first, count); none if its queue is not stored
    or is gone."""
    queue = entry.queue
    if not queue.stored or entry.void:
        return []
    return [
        (entry.slice.first + low - entry.first, high - low + 1)
        for low, high in entry.pieces(entry.first, entry.last)
    ]


@final
class StagedDeliveries:
    """All staged deliveries that their queues count, by queue, so that whoever looks for those of
    one queue need not go through all transactions."""

    def __init__(self) -> None:
        self._of_queue: dict[int, dict[InFlight, None]] = {}
        """Entries by queue id, in the order in which they were staged."""

    def add(self, entry: InFlight) -> None:
        self._of_queue.setdefault(entry.queue.id, {})[entry] = None

    def remove(self, entry: InFlight) -> None:
        """Remove an entry. One that is not there changes nothing."""
        entries = self._of_queue.get(entry.queue.id)
        if entries is not None:
            entries.pop(entry, None)
            if not entries:
                del self._of_queue[entry.queue.id]

    def __contains__(self, entry: InFlight) -> bool:
        return entry in self._of_queue.get(entry.queue.id, ())

    def of(self, queue: Queue) -> list[InFlight]:
        """Return the entries of a queue."""
        return list(self._of_queue.get(queue.id, ()))


@final
class SessionDeliveries:
    """Deliveries of one session that one transaction settles, by their tags."""

    def __init__(self) -> None:
        self._firsts: list[Tag] = []
        self._found: list[tuple[InFlight, StagedSettlement]] = []
        """Entries, ascending by their tags, and what settles them."""

    def add(self, entry: InFlight, settlement: StagedSettlement) -> None:
        at = bisect_left(self._firsts, entry.first)
        self._firsts.insert(at, entry.first)
        self._found.insert(at, (entry, settlement))

    def remove(self, first: Tag) -> None:
        """Remove the entry that begins with this tag."""
        at = bisect_left(self._firsts, first)
        del self._firsts[at], self._found[at]

    def moved(self, before: Tag, first: Tag) -> None:
        """Note that the entry which began with the tag `before` begins with `first` now."""
        self._firsts[bisect_left(self._firsts, before)] = first

    def among(self, first: Tag, last: Tag) -> list[tuple[InFlight, StagedSettlement]]:
        """Return the entries that may have some of tags first..last."""
        low = max(0, bisect_right(self._firsts, first) - 1)
        return self._found[low : bisect_right(self._firsts, last)]
