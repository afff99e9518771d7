"""Durable subscriptions: a queue read as a log, settled only when the reader's batch is committed.

A subscription leases messages of its queue. Each leased message gets a dense *lease sequence*; a
range of lease sequences once handed out means the same messages in the same order until it is
settled, across restarts and for any number of readers. What is not leased stays an ordinary queue
message: priority, competing consumers, purge.

    floor          settled up to here: every lease sequence below it is done
    verdicts       what is to become of leased messages then, where they are not simply done with
    floor..next    leased, readable again and again
    fence          number of the latest attach; earlier holders are refused
    epoch          the subscription's incarnation: the number of its first attach

Attaches are numbered across the broker, and no number comes twice: a fence is of one attach to one
incarnation of one subscription.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Final, cast, final

from tallymark.engine.errors import Fenced, PreconditionFailed
from tallymark.engine.message import Slice
from tallymark.engine.outcomes import ACCEPTED
from tallymark.engine.queue import Queue, QueueSubscription
from tallymark.units import UNLIMITED, LeaseSequence, QueueSequence

DEFAULT_LIMIT_ROWS: Final = 100_000
DEFAULT_LIMIT_BYTES: Final = 256 * 1024 * 1024


@final
class Lease:
    """Lease sequences first..first+len(slice)-1."""

    __slots__ = ("first", "slice")

    def __init__(self, first: LeaseSequence, slice: Slice) -> None:
        self.first = first
        self.slice = slice


@final
class Subscription(QueueSubscription):
    """State of one durable subscription; Leases moves the messages and writes the rows."""

    def __init__(self, epoch: int, queue: Queue, name: str) -> None:
        super().__init__()
        self.epoch = epoch
        """Number of the subscription in the ledger (the owner of its records); never reused."""
        self.queue = queue
        self.name = name
        self.fence = epoch
        self.begun = False
        """True once the holder of the fence has begun a batch."""
        self.floor = LeaseSequence(0)
        self.next = LeaseSequence(0)
        self.leases: deque[Lease] = deque()
        self.leased_bytes = 0
        self.limit_rows = DEFAULT_LIMIT_ROWS
        self.limit_bytes = DEFAULT_LIMIT_BYTES
        self.verdicts: dict[LeaseSequence, int] = {}
        """Outcome by lease sequence, at or above the floor; not there: accepted."""

    def check_fence(self, fence: int) -> None:
        """Check that the fence is that of the latest attach. Raises Fenced."""
        if fence != self.fence:
            raise Fenced(
                f"subscription '{self.name}' was attached again: fence {fence} is not the "
                f"latest, {self.fence}"
            )

    def check_epoch(self, epoch: int) -> None:
        """Check that the offset belongs to this incarnation. Raises Fenced."""
        if epoch != self.epoch:
            raise Fenced(
                f"epoch {epoch} is not this subscription's ({self.epoch}): "
                f"'{self.name}' was deleted and made again since that offset was taken"
            )

    def check_position(self, position: int, what: str) -> None:
        """Check that the position was leased. Raises PreconditionFailed."""
        if position < 0 or position > self.next:
            raise PreconditionFailed(
                f"{what} {position} of subscription '{self.name}' was never leased: "
                f"leased so far up to {self.next}"
            )

    def add(self, slice: Slice) -> None:
        """Lease a slice: its messages get the next lease sequences."""
        self.leases.append(Lease(self.next, slice))
        self.next = LeaseSequence(self.next + len(slice))
        self.leased_bytes += slice.size()

    def part(
        self,
        low: LeaseSequence,
        high: LeaseSequence,
        most: int = UNLIMITED,
        most_bytes: int = UNLIMITED,
    ) -> list[tuple[LeaseSequence, Slice]]:
        """Lease sequences low..high-1 as (first lease sequence, slice) pairs, in order; no more
        than the first `most` of them, and none behind those that have `most_bytes` together. What
        this costs is what it returns: a batch is read in many parts.

        Raises:
            PreconditionFailed: part of the range is settled already, or was never leased.
        """
        if low < self.floor:
            raise PreconditionFailed(
                f"lease sequences {low} to {high} of subscription '{self.name}' are settled up to "
                f"{self.floor} and can no longer be read"
            )
        self.check_position(high, "sequence")
        found: list[tuple[LeaseSequence, Slice]] = []
        room = most_bytes
        for lease in islice(self.leases, self._index_of(low), None):
            skip = max(0, low - lease.first)
            stop = min(len(lease.slice), high - lease.first)
            if stop <= skip or len(found) >= most or room <= 0:
                break
            part = lease.slice.part(skip, stop)
            found.append((LeaseSequence(lease.first + skip), part))
            room -= part.size()
        return found

    def _index_of(self, low: LeaseSequence) -> int:
        """Return the index of the first lease that does not end before lease sequence `low`."""
        leases = self.leases
        begin, end = 0, len(leases)
        while begin < end:
            middle = (begin + end) // 2
            lease = leases[middle]
            if lease.first + len(lease.slice) <= low:
                begin = middle + 1
            else:
                end = middle
        return begin

    def judge(self, first: LeaseSequence, count: int, outcome: int) -> None:
        """Set the outcome of leased messages for their settlement; the last one set counts."""
        verdicts = self.verdicts
        for i in range(count):
            sequence = LeaseSequence(first + i)
            if outcome == ACCEPTED:
                verdicts.pop(sequence, None)
            else:
                verdicts[sequence] = outcome

    def begin(self, start: LeaseSequence) -> list[tuple[LeaseSequence, int, int]]:
        """Begin a batch at lease sequence `start`. The first one of a fence forgets the verdicts
        from there on: earlier holders set them for batches that are read again now.

        Returns what undoes them, as (first lease sequence, count, outcome).
        """
        if self.begun:
            return []
        self.begun = True
        stale = {at: ACCEPTED for at in self.verdicts if at >= start}
        for sequence in stale:
            del self.verdicts[sequence]
        return ranges_of(stale)

    def settle(self, end: LeaseSequence) -> list[tuple[int, Slice]]:
        """Raise the floor to `end`; returns what that settles, in order, as (outcome, slice) pairs.
        Repeating is no error."""
        done: list[tuple[int, Slice]] = []
        leases = self.leases
        while leases and leases[0].first < end:
            lease = leases[0]
            piece, first = lease.slice, lease.first
            if first + len(piece) <= end:
                leases.popleft()
            else:
                piece = piece.take(end - first)
                lease.first = end
            self.leased_bytes -= piece.size()
            if self.verdicts:
                self._add_judged(done, first, piece)
            else:
                done.append((ACCEPTED, piece))
        if end > self.floor:
            self.floor = end
            if self.verdicts:
                self.verdicts = {at: said for at, said in self.verdicts.items() if at >= end}
        return done

    def _add_judged(
        self, into: list[tuple[int, Slice]], first: LeaseSequence, piece: Slice
    ) -> None:
        """Add a slice whose lease sequences begin with `first`, split by outcomes."""
        verdicts = self.verdicts
        count = len(piece)
        at = 0
        while at < count:
            outcome = verdicts.get(LeaseSequence(first + at), ACCEPTED)
            stop = at + 1
            while stop < count and verdicts.get(LeaseSequence(first + stop), ACCEPTED) == outcome:
                stop += 1
            into.append((outcome, piece.part(at, stop)))
            at = stop

    def lose(self, low: QueueSequence, high: QueueSequence) -> list[Slice]:
        """Take out the leases that begin among the queue's sequences low..high-1: their bytes are
        lost. Returns their slices."""
        lost = [x.slice for x in self.leases if low <= x.slice.first < high]
        self.leases = deque([x for x in self.leases if not low <= x.slice.first < high])
        self.leased_bytes -= sum(piece.size() for piece in lost)
        return lost

    def behind(self, at: int) -> tuple[int, int]:
        """Return how many messages and bytes a reader at lease sequence `at` has not planned yet:
        what is leased from there on, and what is ready."""
        found = self.part(LeaseSequence(max(at, self.floor)), self.next) if at < self.next else []
        rows = sum(len(piece) for _, piece in found)
        size = sum(piece.size() for _, piece in found)
        return rows + self.queue.ready, size + self.queue.account.ready_bytes

    def oldest_ms(self) -> int | None:
        """Return when the message that is settled next entered its queue, engine time; None if
        there is none: all is settled and none is ready."""
        oldest = self.leases[0].slice if self.leases else self.queue.head()
        return None if oldest is None else oldest.entered_ms()

    def held(self) -> list[Slice]:
        """Return the messages that it has leased and that are not settled."""
        return [lease.slice for lease in self.leases]

    def release(self) -> list[Slice]:
        """Remove all leased messages and return them; the caller returns them to the queue."""
        pieces = [lease.slice for lease in self.leases]
        self.leases.clear()
        self.leased_bytes = 0
        self.verdicts.clear()
        return pieces


def subscriptions_of(queue: Queue) -> list[Subscription]:
    """Return the durable subscriptions of a queue: its own list."""
    return cast(list[Subscription], queue.subscriptions)


def ranges_of(verdicts: dict[LeaseSequence, int]) -> list[tuple[LeaseSequence, int, int]]:
    """Verdicts as (first lease sequence, count, outcome), in order."""
    found: list[tuple[LeaseSequence, int, int]] = []
    first, count, outcome = LeaseSequence(0), 0, 0
    for sequence in sorted(verdicts):
        said = verdicts[sequence]
        if count and sequence == first + count and said == outcome:
            count += 1
            continue
        if count:
            found.append((first, count, outcome))
        first, count, outcome = sequence, 1, said
    if count:
        found.append((first, count, outcome))
    return found
