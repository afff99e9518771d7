"""Parked deliveries: settled under a transaction, out of their sessions until it ends.

A client may change its mind about each of them [TX-15], and their queue may be deleted meanwhile.
So they are found by their tags and by their queue.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Final, final

from tallymark.engine.account import ACQUIRED, STAGED
from tallymark.engine.queue import Queue
from tallymark.engine.session import InFlight, Session
from tallymark.stored.annotations import Notes
from tallymark.units import EngineMs, Tag

FEW: Final = 8
"""Largest number of entries that are put back one by one; more are sorted in together."""


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
        if last is not None and continues(last, entry):
            extend(last, entry)
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


def continues(entry: InFlight, after: InFlight) -> bool:
    """Return whether two entries of one session can be merged."""
    return (
        entry.last + 1 == after.first
        and entry.done is None
        and after.done is None
        and entry.consumer is after.consumer
        and entry.queue is after.queue
        and entry.since_ms == after.since_ms
        and entry.given_ms == after.given_ms
        and entry.void == after.void
        and entry.is_late == after.is_late
        and entry.slice.followed_by(after.slice)
    )


def extend(entry: InFlight, after: InFlight) -> None:
    """Merge `after` into `entry`. Its slice may be shared, so `entry` gets one of its own."""
    whole = entry.slice.part(0, len(entry.slice))
    whole.hi = after.slice.hi
    entry.slice = whole
    entry.last = after.last
    entry.left += after.left


def take_out(session: Session, at: int, low: Tag, high: Tag) -> InFlight:
    """Take the unsettled ones of tags low..high, of the range at index `at`, out of the session, as
    an entry of their own. The rest of the range stays in place, and its slice is cut to its tags.
    At an end of the range O(1) but for what is taken, else O(tags behind)."""
    inflight = session.inflight
    entry = inflight[at]
    if low == entry.first and high == entry.last and len(entry.slice) == high + 1 - low:
        del inflight[at]
        return entry
    found = entry.cut(low, high)
    assert found is not None, (low, high)
    if found.left == entry.left:
        del inflight[at]
        return found
    after = cut_away(session, entry, found)
    if after is not None:
        inflight.insert(at + 1, after)
    return found


def cut_away(session: Session, entry: InFlight, part: InFlight) -> InFlight | None:
    """Cut a part, not the whole, off an entry, which keeps what is before it, or else behind it.
    Returns what lies behind the part if something lies before it, too."""
    entry.left -= part.left
    if part.first == entry.first:
        session.shorten(entry, part.last + 1 - entry.first)
        return None
    after = entry.cut(Tag(part.last + 1), entry.last)
    if after is not None:
        entry.left -= after.left
    entry.last = Tag(part.first - 1)
    entry.slice = entry.slice.part(0, part.first - entry.first)
    if entry.done is not None:
        del entry.done[part.first - entry.first :]
    return after


def _first(entry: InFlight) -> int:
    return entry.first


def put_back(session: Session, entries: list[InFlight]) -> None:
    """Make entries that were taken out of the session unsettled there again, in the order of their
    tags."""
    inflight = session.inflight
    if len(entries) <= FEW:
        for entry in entries:
            _insert(session, entry)
        return
    together = [*inflight, *entries]
    together.sort(key=_first)
    inflight.clear()
    last: InFlight | None = None
    for entry in together:
        if last is not None and continues(last, entry):
            extend(last, entry)
        else:
            inflight.append(entry)
            last = entry


def _insert(session: Session, entry: InFlight) -> None:
    """Insert an entry at its place, merged with its neighbours where that is possible."""
    inflight = session.inflight
    at = session.place_of(entry.first)
    if at > 0 and continues(inflight[at - 1], entry):
        at -= 1
        extend(inflight[at], entry)
    else:
        inflight.insert(at, entry)
    if at + 1 < len(inflight) and continues(inflight[at], inflight[at + 1]):
        extend(inflight[at], inflight[at + 1])
        del inflight[at + 1]


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
