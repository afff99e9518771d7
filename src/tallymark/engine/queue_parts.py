"""Parts of a queue: the plain state of one rule each, which the module of that rule changes.

What waits without being ready (deferred messages, dead letters, quarantined ones); how far
deliveries may go before the disk knows (durability.py explains the mark); what publishers repeat;
what a stream has let go of, and what claims it has to respect."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from typing import final

from tallymark.engine.ledger import archived_record
from tallymark.engine.message import Slice
from tallymark.engine.record import Record
from tallymark.engine.store import Store
from tallymark.stored.records import decoded
from tallymark.units import UNLIMITED, EngineMs, Ms, QueueSequence


@final
class Deferred:
    """A slice that becomes ready at a time."""

    __slots__ = ("due_ms", "piece", "to_tail")

    def __init__(self, due_ms: EngineMs, to_tail: bool, piece: Slice) -> None:
        self.due_ms = due_ms
        """Engine time."""
        self.to_tail = to_tail
        """True if it goes to the tail of the queue, and not to its old place."""
        self.piece = piece


@final
class Deferrals:
    """The deferred slices of one queue."""

    def __init__(self) -> None:
        self._entries: list[tuple[EngineMs, int, Deferred]] = []
        """Heap, by due time; the number in the middle orders equal times as they were added."""
        self._made = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Deferred]:
        """Yield all entries, in no order."""
        return iter([entry[2] for entry in self._entries])

    def add(self, entry: Deferred) -> None:
        self._made += 1
        heapq.heappush(self._entries, (entry.due_ms, self._made, entry))

    def next_due(self) -> EngineMs:
        """Return the time at which the first entry is due; there must be one."""
        return self._entries[0][0]

    def last_due(self) -> EngineMs:
        """Return when the last entry is due; there must be one. O(entries)."""
        return max([entry[0] for entry in self._entries])

    def take_due(self, now_ms: EngineMs, most: int = UNLIMITED) -> list[Deferred]:
        """Remove the entries that are due, up to `most` of them, and return them in order."""
        due: list[Deferred] = []
        entries = self._entries
        while entries and entries[0][0] <= now_ms and len(due) < most:
            due.append(heapq.heappop(entries)[2])
        return due

    def take_all(self) -> list[Deferred]:
        """Remove all entries and return them in order."""
        return self.take_due(EngineMs(UNLIMITED))


@final
class Letter:
    """A dead letter: a slice that waits in its source queue until a target takes it [DL-22]. It
    keeps the slice as it was before it died, the reason, the time of death and the targets that
    already have it [DL-24]."""

    __slots__ = ("died_ms", "have", "piece", "reason")

    def __init__(self, piece: Slice, reason: int, died_ms: EngineMs, have: list[str]) -> None:
        self.piece = piece
        self.reason = reason
        self.died_ms = died_ms
        self.have = have

    def part(self, start: int, stop: int) -> Letter:
        """Return the messages with index start..stop-1 as a letter of their own."""
        return Letter(self.piece.part(start, stop), self.reason, self.died_ms, self.have[:])


@final
class Retry:
    """Schedule of the attempts at the pending letters of one queue (retries.py)."""

    def __init__(self) -> None:
        self.generation = 0
        """Generation of the topology at the last attempt to hand over the letters."""
        self.due_ms = EngineMs(0)
        """Time of the next attempt; engine time, ms."""
        self.wait_ms = Ms(0)
        """Delay between an attempt at all letters and the next one, ms."""
        self.at = 0
        """Count of the letters tried so far in the present attempt."""
        self.began_ms = EngineMs(0)
        """Time at which the present attempt began, engine time, ms. It stays the same if a topology
        change restarts the attempt from the first letter."""


@final
class Quarantined:
    """Quarantined messages: their bytes could not be read (quarantine.py)."""

    __slots__ = ("letter", "piece", "trouble")

    def __init__(self, piece: Slice, letter: Letter | None, trouble: str) -> None:
        self.piece = piece
        self.letter = letter
        """The dead letter that these messages belong to; None where they were ready or given
        back."""
        self.trouble = trouble
        """Error text of the last attempt to read them."""


@final
class HighWater:
    """The mark of one queue, and what decides how far ahead of deliveries the next one is."""

    def __init__(self, durable: QueueSequence) -> None:
        self.mark = QueueSequence(0)
        """The mark that was sent to the journal: sequences below it may have been delivered."""
        self.durable = durable
        """The mark that is known to be on disk. No sequence at or above it is delivered. For a
        stream: all messages below it are on disk, and readers may see them."""
        self.reserve = 0
        """Distance by which the next mark runs ahead of deliveries, in messages."""
        self.reached = QueueSequence(0)
        """First sequence that was neither delivered nor due for delivery since the broker
        started."""
        self.burst = 0
        """Count of the sequences delivered in turn `turn`, the last turn that delivered any."""
        self.turn = 0
        self.stalled = False
        """True if a delivery had to wait for the present mark to reach the disk."""
        self.renew_at = QueueSequence(0)
        """Sequence above which a delivery asks for the next mark."""
        self.asked = 0
        """Turn in which a mark was asked for last."""
        self.is_capped = False
        """True if the last mark was set where credit ends, and not by pace."""
        self.budget = UNLIMITED
        """Number of messages that were taken, or could be with the credit there was, when a mark
        was asked for last. UNLIMITED: any number."""
        self.returns = 0
        """Credit that is expected to come back while a mark is in effect, in messages."""
        self.is_ahead = False
        """True if the mark may be ahead of what was delivered."""
        self.was_reached = QueueSequence(0)
        """Value of `reached` when that was examined last."""

    def settle_at(self, mark: QueueSequence) -> None:
        """Set the mark to one that is on disk, or that limits deliveries from now on."""
        self.mark = self.durable = self.renew_at = mark


@final
class DiskHold:
    """Messages that are not delivered before they, or the records of their return, are on disk."""

    def __init__(self) -> None:
        self.shown = QueueSequence(UNLIMITED)
        """First sequence that is not delivered before it is on disk; UNLIMITED: no sequence
        waits."""
        self.returning: dict[QueueSequence, object] = {}
        """Sequences of messages that were given back, and are not delivered before that is on disk;
        with the last wait for it of each."""
        self.turns = 0
        """Count of the turns whose messages wait, including the present turn."""
        self.is_held = False
        """True if messages that wait entered in the present turn."""

    def before_returns(self, first: QueueSequence, n: int) -> int:
        """Return how many of the n sequences from `first` on come before one that is returning."""
        for at in range(n):
            if first + at in self.returning:
                return at
        return n


@final
class Deduplication:
    """The ids and numbers of one queue."""

    def __init__(self) -> None:
        self.ids: OrderedDict[str, EngineMs] = OrderedDict()
        """Message ids given by publishers within the window, oldest first, with the time at which
        each was accepted. A plain dict finds its first key by a walk over all that were deleted
        before it."""
        self.passing: set[str] = set()
        """Ids among these that end at a restart, as their transient messages do."""
        self.numbers: dict[str, int] = {}
        """Highest publishing number of each named publisher of a stream, ordered by the time of the
        last publish."""

    def restore_id(self, id: str, time_ms: EngineMs) -> None:
        """Note an id that was accepted, perhaps anew: it goes to the end of the order."""
        self.ids.pop(id, None)
        self.ids[id] = time_ms

    def restore_number(self, publisher: str, number: int) -> None:
        """Note a publisher's number. The publisher goes to the end of the order."""
        self.numbers.pop(publisher, None)
        self.numbers[publisher] = number

    def forget_until(self, time_ms: EngineMs, most: int = UNLIMITED) -> bool:
        """Forget ids that were accepted at that time or before, at most so many. Returns whether
        none of them is left."""
        ids = self.ids
        while ids:
            first = next(iter(ids))
            if ids[first] > time_ms:
                return True
            if most <= 0:
                return False
            most -= 1
            del ids[first]
            self.passing.discard(first)
        return True

    def forget_all(self) -> None:
        """Forget all ids."""
        self.ids.clear()
        self.passing.clear()

    def ids_by_time(self) -> list[tuple[EngineMs, list[str]]]:
        """Return the ids that outlive a restart, grouped by the time at which they were
        accepted."""
        found: dict[EngineMs, list[str]] = {}
        for id, time_ms in self.ids.items():
            if id not in self.passing:
                found.setdefault(time_ms, []).append(id)
        return list(found.items())


@final
class Pin:
    """A reader's claim to sequences low..high-1, which stay readable while it is among the pins."""

    def __init__(self, low: QueueSequence, high: QueueSequence) -> None:
        self.low = low
        self.high = high
        self.held: list[Slice] = []
        """Slices that retention has deleted from the stream since then, in order."""

    def keep(self, piece: Slice, store: Store) -> None:
        """Keep a slice that retention deletes."""
        start = max(0, self.low - piece.first)
        stop = min(len(piece), self.high - piece.first)
        if start < stop:
            store.use(piece.payload, stop - start)
            self.held.append(piece.part(start, stop))

    def between(self, low: QueueSequence, high: QueueSequence) -> list[Slice]:
        """Return the pinned slices of sequences low..high-1, as parts of their own."""
        found: list[Slice] = []
        for piece in self.held:
            start = max(0, low - piece.first)
            stop = min(len(piece), high - piece.first)
            if start < stop:
                found.append(piece.part(start, stop))
        return found


@final
class Archived:
    """The newest range of a stream's archive: sequences low..high-1.

    The blob of its record: {"archive": id, "checksum": text, "place": text}; `other` is the number
    of messages.
    """

    def __init__(
        self,
        low: QueueSequence,
        high: QueueSequence,
        rows: int,
        archive: str,
        checksum: str,
        place: str,
    ) -> None:
        self.low = low
        self.high = high
        self.rows = rows
        """Count of messages in it; lower than the count of sequences if some are missing."""
        self.archive = archive
        """Id of the archive."""
        self.checksum = checksum
        """Checksum of the rows, computed by the archiver."""
        self.place = place
        """Description of the range's place, for people."""

    def same(self, other: Archived) -> bool:
        return (
            self.low == other.low
            and self.high == other.high
            and self.rows == other.rows
            and self.archive == other.archive
            and self.checksum == other.checksum
        )

    def to_record(self, queue_id: int) -> Record:
        place = {"archive": self.archive, "checksum": self.checksum, "place": self.place}
        return archived_record(queue_id, self.low, self.high, self.rows, place)

    @staticmethod
    def from_record(record: Record) -> Archived:
        """Decode an ARCHIVED record. Raises ValueError for one of a newer version."""
        found = decoded(record.blob)
        if set(found) != {"archive", "checksum", "place"}:
            raise ValueError(f"archived {found!r}, expected archive, checksum and place")
        return Archived(
            QueueSequence(record.first), QueueSequence(record.first + record.count), record.other,
            str(found["archive"]), str(found["checksum"]), str(found["place"]),
        )  # fmt: skip


@final
class HandedOut:
    """Counts of messages that were handed out since the broker started, each as often as it was."""

    def __init__(self) -> None:
        self.to_settle = 0
        """Count of those sent to consumers that acknowledge, or leased to durable subscriptions."""
        self.for_good = 0
        """Count of those sent to consumers without acknowledgements."""
        self.got_to_settle = 0
        """Count of those asked for one by one [amqp-0.9.1 basic.get]."""
        self.got_for_good = 0
        """Count of those asked for without acknowledgement."""
        self.got_nothing = 0
        """Count of questions for one message that found none."""
        self.again = 0
        """Count of those among all of these that had been handed out before."""
        self.acknowledged = 0
        """Count of those that were acknowledged after that; not of those handed out for good, nor
        of rejected ones."""

    def add(self, other: HandedOut, sign: int) -> None:
        """Add the counts of another queue; sign -1: take them off."""
        self.to_settle += sign * other.to_settle
        self.for_good += sign * other.for_good
        self.got_to_settle += sign * other.got_to_settle
        self.got_for_good += sign * other.got_for_good
        self.got_nothing += sign * other.got_nothing
        self.again += sign * other.again
        self.acknowledged += sign * other.acknowledged

    def total(self) -> int:
        return self.to_settle + self.for_good + self.got_to_settle + self.got_for_good


@final
class Retention:
    """State of retention: from which message on the stream is kept, and what is claimed."""

    def __init__(self) -> None:
        self.kept_from = QueueSequence(1)
        """First sequence that the stream still retains; all lower ones were deleted."""
        self.let_go_bytes = 0
        """Bytes that the stream has deleted since it was declared, as its DROPPED records say."""
        self.archive: Archived | None = None
        """Newest archived range. Everything before it is archived, too."""
        self.pins: list[Pin] = []
        """Ranges that readers have pinned."""

    def let_go(self, piece: Slice) -> None:
        """Note that the oldest messages were deleted."""
        self.kept_from = QueueSequence(piece.first + len(piece))
