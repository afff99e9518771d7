"""The account of a queue: where each message that ever entered it is, or how it ended [LC-5].

    entered = ready + acquired + deferred + staged + dead_letter_pending + quarantined
              + settled + dead_lettered + dropped(by reason)

Each term is a bucket, every change a move of messages from one bucket to another, and nothing else
writes a counter. What was taken out of one bucket and not yet put into the next is in MOVING, which
is empty between commands. acquired includes what durable subscriptions hold on lease; staged is
what was acquired and is settled in transactions that have not ended.
"""

from __future__ import annotations

from typing import Final, final

from tallymark.engine.message import Slice
from tallymark.engine.settings import OFF
from tallymark.stored.records import DROP_REASONS, number_in, object_in
from tallymark.units import QueueSequence

MOVING: Final = 0
READY: Final = 1
ACQUIRED: Final = 2
LEASED: Final = 3
"""The part of the acquired messages that is leased to durable subscriptions."""
DEFERRED: Final = 4
STAGED: Final = 5
PENDING: Final = 6
"""Dead letters that wait in the queue until a target takes them."""
QUARANTINED: Final = 7
SETTLED: Final = 8
DEAD_LETTERED: Final = 9
DROPPED: Final = 10
"""Ended without success, for one of records.DROPPED_*."""

TERMS: Final = (
    "entered", "ready", "acquired", "leased", "deferred", "staged", "dead_letter_pending",
    "quarantined", "settled", "dead_lettered", "dropped",
)  # fmt: skip
"""Names in `Account.terms`."""
_REASONS: Final = {name: reason for reason, name in DROP_REASONS.items()}


@final
class Account:
    """The buckets of one queue, in messages and, for those that are there, in bytes."""

    def __init__(self) -> None:
        self.entered = 0
        """Count of the sequences assigned so far; the next sequence is entered + 1."""
        self.moving = 0
        self.ready = 0
        self.ready_bytes = 0
        self.body_bytes = OFF
        """Bytes of the bodies alone, ready and pending; OFF: not counted, because no limit needs
        it. The body sizes of what is moved into these two must be known while it is counted."""
        self.acquired = 0
        self.acquired_bytes = 0
        self.leased = 0
        self.deferred = 0
        self.deferred_bytes = 0
        self.staged = 0
        self.staged_bytes = 0
        self.pending = 0
        self.pending_bytes = 0
        self.quarantined = 0
        self.settled = 0
        self.dead_lettered = 0
        self.dropped: dict[int, int] = {}
        """Count by reason (records.DROPPED_*)."""

    # -- entering

    def enter(self, count: int, size: int, bodies: int) -> QueueSequence:
        """Count new messages as ready and return their first sequence. bodies: the bytes of their
        bodies, where these are counted."""
        first = QueueSequence(self.entered + 1)
        self.entered += count
        self.ready += count
        self.ready_bytes += size
        if self.body_bytes >= 0:
            self.body_bytes += bodies
        return first

    def enter_moving(self, count: int) -> QueueSequence:
        """Count new messages that are not ready first; return their first sequence."""
        first = QueueSequence(self.entered + 1)
        self.entered += count
        self.moving += count
        return first

    # -- moves

    def move(self, piece: Slice, source: int, target: int, reason: int = 0) -> None:
        """Move a slice from one bucket to another. reason: of DROPPED."""
        count = piece.hi - piece.lo
        size = piece.size()
        if self.body_bytes >= 0:
            if source in (READY, PENDING):
                self.body_bytes -= piece.body_bytes()
            if target in (READY, PENDING):
                self.body_bytes += piece.body_bytes()
        self._add(source, -count, -size)
        if target == DROPPED:
            self.dropped[reason] = self.dropped.get(reason, 0) + count
        else:
            self._add(target, count, size)

    def take(self, piece: Slice) -> None:
        """Move a slice from READY to ACQUIRED: `move` for each delivery."""
        count = piece.hi - piece.lo
        size = piece.size()
        self.ready -= count
        self.ready_bytes -= size
        self.acquired += count
        self.acquired_bytes += size
        if self.body_bytes >= 0:
            self.body_bytes -= piece.body_bytes()

    def settle(self, count: int, size: int) -> None:
        """Move messages from ACQUIRED to SETTLED: `move` for each acknowledgement, without a slice
        of its own."""
        self.acquired -= count
        self.acquired_bytes -= size
        self.settled += count

    def end(self, count: int, target: int, reason: int = 0) -> None:
        """Move messages from MOVING to SETTLED, DEAD_LETTERED or DROPPED: `move` without a slice,
        whose bytes do not matter any more."""
        self.moving -= count
        if target == DROPPED:
            self.dropped[reason] = self.dropped.get(reason, 0) + count
        else:
            self._add(target, count, 0)

    def _add(self, bucket: int, count: int, size: int) -> None:
        if bucket == MOVING:
            self.moving += count
        elif bucket == READY:
            self.ready += count
            self.ready_bytes += size
        elif bucket in (ACQUIRED, LEASED):
            self.acquired += count
            self.acquired_bytes += size
            if bucket == LEASED:
                self.leased += count
        elif bucket == SETTLED:
            self.settled += count
        elif bucket == DEAD_LETTERED:
            self.dead_lettered += count
        elif bucket == PENDING:
            self.pending += count
            self.pending_bytes += size
        elif bucket == DEFERRED:
            self.deferred += count
            self.deferred_bytes += size
        elif bucket == STAGED:
            self.staged += count
            self.staged_bytes += size
        else:
            assert bucket == QUARANTINED, bucket
            self.quarantined += count

    # -- body bytes

    def count_bodies(self, pieces: list[Slice]) -> None:
        """Begin to count body bytes. pieces: all that is ready or pending."""
        self.body_bytes = sum([piece.body_bytes() for piece in pieces])

    def ignore_bodies(self) -> None:
        """Count body bytes no longer."""
        self.body_bytes = OFF

    # -- restoring: what entered is in MOVING until it is placed

    def restore(self, terms: dict[str, object]) -> None:
        """Begin with the terms of a checkpoint: what had ended is ended, the rest is MOVING. Raises
        ValueError, for a reason that this version does not know, too."""
        self.entered = number_in(terms, "entered")
        self.settled = number_in(terms, "settled")
        self.dead_lettered = number_in(terms, "dead_lettered")
        dropped = object_in(terms, "dropped")
        for name in dropped:
            if name not in _REASONS:
                raise ValueError(f"messages dropped as {name!r}: written by a newer version?")
        self.dropped = {_REASONS[name]: number_in(dropped, name) for name in dropped}
        self.moving = self.entered - self.ended()

    def enter_up_to(self, sequence: QueueSequence) -> None:
        """Count sequences up to this one as entered and MOVING, those of lost blocks too."""
        if sequence > self.entered:
            self.moving += sequence - self.entered
            self.entered = sequence

    def even_out(self, reason: int) -> None:
        """Empty MOVING, where the records do not explain all that entered: drop what is missing for
        this reason, and take surplus messages off the settled ones."""
        if self.moving > 0:
            self.end(self.moving, DROPPED, reason)
        elif self.moving < 0:
            self.end(self.moving, SETTLED)

    # -- looking

    def ended(self) -> int:
        """Return how many messages have ended."""
        return self.settled + self.dead_lettered + sum(self.dropped.values())

    def present(self) -> int:
        """Return how many messages are there."""
        here = self.ready + self.acquired + self.deferred + self.staged
        return here + self.pending + self.quarantined

    def terms(self) -> dict[str, object]:
        """Return the terms of the equation, and `leased`, which is part of `acquired`, as plain
        values: for COUNTERS rows, the HTTP API and Spark."""
        return {
            "entered": self.entered,
            "ready": self.ready,
            "acquired": self.acquired,
            "leased": self.leased,
            "deferred": self.deferred,
            "staged": self.staged,
            "dead_letter_pending": self.pending,
            "quarantined": self.quarantined,
            "settled": self.settled,
            "dead_lettered": self.dead_lettered,
            "dropped": {DROP_REASONS[k]: n for k, n in sorted(self.dropped.items())},
        }

    def check(self) -> None:
        """Assert the equation, and that nothing is on its way between two buckets [LC-5]."""
        assert self.entered == self.present() + self.ended(), self.terms()
        assert self.moving == 0, (self.moving, self.terms())
        assert min(self.ready, self.acquired, self.leased, self.deferred) >= 0, self.terms()
        assert min(self.staged, self.pending, self.quarantined) >= 0, self.terms()
        assert min(self.ready_bytes, self.acquired_bytes, self.staged_bytes) >= 0, self.terms()
        assert min(self.deferred_bytes, self.pending_bytes) >= 0, self.terms()
        assert self.leased <= self.acquired, self.terms()
