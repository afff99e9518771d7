"""A queue: its ready messages, and the account of every message that ever entered it.

Ready messages lie in lanes, one per priority; order within a lane is ready.py's.

The account is account.py's. "Of no bucket" are messages on their way from one to another.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import final

from tallymark.engine.account import (
    ACQUIRED,
    DEFERRED,
    MOVING,
    PENDING,
    QUARANTINED,
    READY,
    Account,
)
from tallymark.engine.annotations import Annotations, ready_since
from tallymark.engine.claims import Archived, Pin
from tallymark.engine.deadlines import Timed
from tallymark.engine.message import Payload, Slice
from tallymark.engine.ready import Ready
from tallymark.engine.settings import UNLIMITED, Settings


@final
class SettledRange:
    """A range of sequences, low..high-1, that one owner settled in this turn."""

    __slots__ = ("high", "low", "owner", "reason")

    def __init__(self, low: int, high: int, owner: int, reason: int) -> None:
        self.low = low
        self.high = high
        self.owner = owner
        self.reason = reason


@final
class Letter:
    """A dead letter: a slice that waits in its source queue until a target takes it [DL-22]. It
    keeps the slice as it was before it died, the reason, the time of death and the targets that
    already have it [DL-24]."""

    __slots__ = ("died_ms", "have", "piece", "reason")

    def __init__(self, piece: Slice, reason: int, died_ms: int, have: list[str]) -> None:
        self.piece = piece
        self.reason = reason
        self.died_ms = died_ms
        self.have = have

    def part(self, start: int, stop: int) -> Letter:
        """Return the messages with index start..stop-1 as a letter of their own."""
        return Letter(self.piece.part(start, stop), self.reason, self.died_ms, self.have[:])


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


class QueueConsumer:
    """A consumer, as far as its queue knows it. `session.Consumer` is the only kind, and
    `session.consumers_of` returns a queue's consumers as such."""

    __slots__ = ("browses", "cursors", "exclusive", "priority")

    def __init__(self, exclusive: bool, priority: int) -> None:
        self.exclusive = exclusive
        self.priority = priority
        self.browses = False
        """True if the consumer is sent copies: each ready message once, and none is removed."""
        self.cursors: list[int] = []
        """Cursors of a consumer that browses or filters: for each lane, the first place it has not
        examined. Empty for a consumer that takes messages from the head."""

    def wanted(self) -> int:
        """Return how many messages the consumer can accept once the broker may send them. A
        consumer that browses or filters may want none of the messages present, so it counts as
        0."""
        raise NotImplementedError


class QueueSubscription:
    """A durable subscription, as far as its queue knows it. `subscription.Subscription` is the only
    kind, and `subscription.subscriptions_of` returns a queue's subscriptions as such."""

    __slots__ = ()

    def held(self) -> list[Slice]:
        """Return the messages that it has leased and that are not settled."""
        raise NotImplementedError


@final
class Queue(Timed):
    """One queue: plain state and its own counters. Records and effects are made by the Broker."""

    __slots__ = (
        "account",
        "active",
        "appended",
        "archive",
        "arguments",
        "auto_delete",
        "asked",
        "budget",
        "burst",
        "comings",
        "consumers",
        "deep",
        "deferrals",
        "deferrals_made",
        "deleted",
        "dirty",
        "draining",
        "durable",
        "exclusive_owner",
        "had_consumer",
        "holds",
        "holds_publishers",
        "id",
        "is_capped",
        "is_held",
        "is_loose",
        "kept_from",
        "lanes",
        "let_go_bytes",
        "letters",
        "loose",
        "mark",
        "mark_durable",
        "name",
        "next_turn",
        "own_ttl",
        "paused",
        "pins",
        "publishers",
        "quarantine",
        "reached",
        "renew_at",
        "requeued",
        "reserve",
        "rests",
        "retry_at",
        "retry_began_ms",
        "retry_ms",
        "retry_wait_ms",
        "returning",
        "returns",
        "seen",
        "seekers",
        "seen_ids",
        "settings",
        "settled_ranges",
        "shift",
        "shown",
        "shows_counts",
        "stalled",
        "stored",
        "subscriptions",
        "timed_out",
        "tried_generation",
        "turn",
        "used_ms",
        "vhost",
        "was_reached",
        "watched",
    )

    def __init__(
        self,
        id: int,
        name: str,
        vhost: str,
        durable: bool,
        exclusive_owner: int,
        auto_delete: bool,
        arguments: dict[str, object],
    ) -> None:
        super().__init__()
        self.id = id
        """Number of the queue in this broker; never reused."""
        self.name = name
        self.vhost = vhost
        self.durable = durable
        self.exclusive_owner = exclusive_owner
        """Id of the only connection that may use the queue; 0 means any connection."""
        self.auto_delete = auto_delete
        self.arguments = arguments
        self.stored = durable and exclusive_owner == 0
        """True if the queue's transitions go to the journal: the queue can outlive this process."""
        self.deleted = False
        self.dirty = False
        """True while the queue is in the Broker's list of queues to pump."""
        self.appended = False
        """True while this stream is in the list of streams that received messages in this turn."""

        self.settings = Settings(arguments, {})
        """Settings in effect: arguments and policies combined. Changed by `follow` only."""
        self.lanes = [Ready() for _ in range(self.settings.max_priority + 1)]
        """Lanes of ready messages, indexed by priority."""
        self.loose = 0
        """Count of the newest slices that packing has not examined yet."""
        self.deep = False
        """True while the queue is in the Broker's list of queues to pack."""
        self.account = Account()
        self.deferrals: list[tuple[int, int, bool, Slice]] = []
        """Heap of deferred slices: (due time, engine ms, a number that orders equal times, True if
        the slice goes to the tail, the slice)."""
        self.deferrals_made = 0
        self.letters: deque[Letter] = deque()
        """Dead-letter-pending messages, oldest first."""
        self.tried_generation = 0
        """Generation of the topology at the last attempt to hand over the pending letters."""
        self.retry_ms = 0
        """Time of the next attempt to hand over the pending letters; engine time, ms."""
        self.retry_wait_ms = 0
        """Delay between an attempt at all pending letters and the next one, ms."""
        self.retry_at = 0
        """Count of the pending letters tried so far in the present attempt."""
        self.retry_began_ms = 0
        """Time at which the present attempt began, engine time, ms. It stays the same if a topology
        change restarts the attempt from the first letter."""
        self.quarantine: list[Quarantined] = []
        """Stored messages whose bytes cannot be read (quarantine.py)."""
        self.shift = 0
        """Count of the messages put to the tail so far. The place of a new message is its sequence
        plus this number."""
        self.requeued = 0
        """Count of deliveries given back by their consumers since the broker started [NQ-21]."""
        self.timed_out = 0
        """Count of deliveries taken back because they exceeded the consumer timeout, since the
        broker started."""
        self.settled_ranges: list[SettledRange] = []
        self.seen_ids: dict[str, int] = {}
        """Message ids given by publishers within the deduplication window, oldest first, with the
        time at which each was accepted."""

        self.kept_from = 1
        """First sequence that a stream still retains; all lower ones were deleted."""
        self.let_go_bytes = 0
        """Bytes that a stream has deleted since it was declared."""
        self.archive: Archived | None = None
        """Newest archived range of a stream. Everything before it is archived, too."""
        self.pins: list[Pin] = []
        """Ranges of a stream that readers have pinned: retention does not delete them."""
        self.publishers: dict[str, int] = {}
        """Highest publishing number of each named publisher of a stream, ordered by the time of the
        last publish."""

        self.own_ttl = False
        """True if ready messages may have a time to live of their own."""
        self.seen = 0
        """Highest place that was taken when the queue was last attended to."""
        self.used_ms = 0
        """Time of the last declare, get or consume; engine time, ms."""
        self.paused = False
        """True while an operator has paused deliveries [NQ-9]."""
        self.rests = False
        """True while deliveries are stopped because messages could not be read (quarantine.py)."""
        self.watched = False
        """True if the queue must be attended to when it changes or time passes."""
        self.shows_counts = False
        """True if consumers see how often a message was delivered and how often it failed
        [DL-5]."""

        self.consumers: list[QueueConsumer] = []
        """Consumers, highest priority first; equal priorities in order of arrival."""
        self.seekers: list[QueueConsumer] = []
        """Consumers that browse or filter."""
        self.draining = 0
        """Count of the consumers that are to be drained."""
        self.active: QueueConsumer | None = None
        """The one consumer that is served where the queue has a single active consumer."""
        self.next_turn = 0
        """Index of the next consumer to be served among those of equal priority."""
        self.had_consumer = False
        self.comings = 0
        """Count of the consumers that were added or removed so far."""
        self.holds_publishers = False
        """True while connections that publish to the queue are blocked because its consumer is too
        slow [SC-D7]; see Broker.hold_publishers."""
        self.subscriptions: list[QueueSubscription] = []

        self.mark = 0
        """High-water mark of delivered sequences that was sent to the journal: sequences below it
        may have been delivered."""
        self.mark_durable = 1 if self.settings.is_stream else 0
        """High-water mark that is known to be on disk. No sequence at or above it is delivered. For
        a stream: all messages below it are on disk, and readers may see them."""
        self.shown = UNLIMITED
        """First sequence that is not delivered before it is on disk; UNLIMITED: no sequence
        waits."""
        self.returning: dict[int, object] = {}
        """Sequences of messages that were given back, and are not delivered before that is on disk;
        with the last wait for it of each."""
        self.holds = 0
        """Count of the turns whose messages wait for the disk in this way, including the present
        turn."""
        self.is_held = False
        """True if messages that wait for the disk in this way entered in the present turn."""
        self.reserve = 0
        """Distance by which the next high-water mark runs ahead of deliveries, in messages."""
        self.reached = 0
        """First sequence that was neither delivered nor due for delivery since the broker
        started."""
        self.burst = 0
        """Count of the sequences delivered in turn `turn`, the last turn that delivered any."""
        self.turn = 0
        self.stalled = False
        """True if a delivery had to wait for the present high-water mark to reach the disk."""
        self.renew_at = 0
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
        self.is_loose = False
        """True if its mark may be ahead of what was delivered."""
        self.was_reached = 0
        """Value of `reached` when that was examined last."""
        self.follow(self.settings)

    def follow(self, settings: Settings) -> None:
        """Put new settings into effect."""
        self.settings = settings
        self.shows_counts = (
            settings.is_quorum or settings.delivery_limit >= 0 or settings.acquired_limit >= 0
        )
        if settings.max_bytes < 0:
            self.account.ignore_bodies()
        elif not self.ready and not self.pending:
            self.account.count_bodies([])
        if settings.dedup_ms <= 0:
            self.seen_ids.clear()
        self.watch()

    def watch(self) -> None:
        """Recompute `watched`."""
        settings = self.settings
        self.watched = (
            settings.bounded
            or settings.retain_bytes >= 0
            or settings.max_age_ms >= 0
            or self.own_ttl
            or self.pending > 0
            or self.deferred > 0
            or settings.expires_ms >= 0
        )

    # -- the account

    @property
    def entered(self) -> int:
        """Count of messages that ever entered; the next sequence is this plus 1."""
        return self.account.entered

    @property
    def ready(self) -> int:
        """Count of ready messages."""
        return self.account.ready

    @property
    def acquired(self) -> int:
        """Count of messages handed out or leased, and unsettled."""
        return self.account.acquired

    @property
    def deferred(self) -> int:
        """Count of deferred messages."""
        return self.account.deferred

    @property
    def pending(self) -> int:
        """Count of dead letters that wait for a target."""
        return self.account.pending

    # -- ready messages

    def push(self, payload: Payload, annotations: Annotations | None) -> int:
        """Append all messages of a payload and return their first sequence. A queue with priorities
        or a limit on bytes uses `push_part` instead."""
        count = payload.count
        first = self.account.enter(count, payload.size, 0)
        self.lanes[0].fresh.append(
            Slice(payload, 0, count, first, 0, 0, 0, annotations, self.shift)
        )
        self.loose += 1
        return first

    def push_part(
        self, payload: Payload, lo: int, hi: int, priority: int, annotations: Annotations | None
    ) -> int:
        """Append messages lo..hi-1 of a payload and return their first sequence."""
        account = self.account
        cuts = payload.cuts
        size = 0
        if account.body_bytes >= 0:
            bodies = payload.bodies
            assert bodies is not None, account.entered
            size = bodies[hi] - bodies[lo]
        first = account.enter(hi - lo, cuts[hi] - cuts[lo], size)
        fresh = self.lanes[priority].fresh
        if fresh:
            last = fresh[-1]
            if (
                last.payload is payload
                and last.hi == lo
                and last.first + lo - last.lo == first
                and last.annotations is annotations
                and last.shift == self.shift
                and last.acquired == 0
            ):
                last.hi = hi
                return first
        fresh.append(Slice(payload, lo, hi, first, 0, 0, priority, annotations, self.shift))
        self.loose += 1
        return first

    def defer(self, piece: Slice, due_ms: int, to_tail: bool) -> None:
        """Defer messages of no bucket until `due_ms` (engine time). When due, they become ready at
        their old place or at the tail."""
        self.deferrals_made += 1
        heapq.heappush(self.deferrals, (due_ms, self.deferrals_made, to_tail, piece))
        self.account.move(piece, MOVING, DEFERRED)
        self.watched = True

    def take_due(self, now_ms: int) -> list[tuple[int, int, bool, Slice]]:
        """Remove the deferrals that are due and return them, for `end_deferrals`."""
        due: list[tuple[int, int, bool, Slice]] = []
        deferrals = self.deferrals
        while deferrals and deferrals[0][0] <= now_ms:
            entry = heapq.heappop(deferrals)
            self.account.move(entry[3], DEFERRED, MOVING)
            due.append(entry)
        return due

    def end_deferrals(self, due: list[tuple[int, int, bool, Slice]]) -> None:
        """Make deferrals that `take_due` removed ready. Their body bytes must be known if the queue
        counts body bytes."""
        back: list[Slice] = []
        for due_ms, _, to_tail, piece in due:
            self.account.move(piece, MOVING, READY)
            known = piece.annotations
            if known is not None:
                if known.due_ms:  # ready for the first time: its time to live begins
                    piece.annotations = ready_since(known, due_ms)
                if known.ttl_ms >= 0:
                    self.own_ttl = True
            if to_tail:
                self._to_tail(piece)
            else:
                back.append(piece)
        if back:
            self._to_places(back)

    def clear_deferred(self) -> list[Slice]:
        """Remove all deferred messages and return them. The caller moves them on."""
        pieces = [entry[3] for entry in sorted(self.deferrals, key=_due)]
        self.deferrals.clear()
        for piece in pieces:
            self.account.move(piece, DEFERRED, MOVING)
        return pieces

    def _to_tail(self, piece: Slice) -> None:
        """Append a slice behind all present messages and before all future ones."""
        piece.shift = self.entered + self.shift + 1 - piece.first
        self.shift += len(piece)
        self.lanes[piece.priority].fresh.append(piece)
        self.loose += 1

    def _to_places(self, pieces: list[Slice]) -> None:
        for consumer in self.seekers:
            if not consumer.browses:  # its filter looks again at what lies before its cursor
                cursors = consumer.cursors
                for piece in pieces:
                    place = piece.first + piece.shift
                    cursors[piece.priority] = min(cursors[piece.priority], place)
        if len(self.lanes) == 1:
            self.lanes[0].give_back(pieces)
            return
        by_lane: dict[int, list[Slice]] = {}
        for piece in pieces:
            by_lane.setdefault(piece.priority, []).append(piece)
        for priority, some in by_lane.items():
            self.lanes[priority].give_back(some)

    def lane(self) -> Ready:
        """Return the lane of the next message: the highest priority that has any."""
        lanes = self.lanes
        at = len(lanes) - 1
        while at > 0:
            lane = lanes[at]
            if lane.fresh or lane.returned:
                return lane
            at -= 1
        return lanes[0]

    def head(self) -> Slice | None:
        """Return the slice that leaves next. Its bytes may not be in memory."""
        lanes = self.lanes
        lane = lanes[0] if len(lanes) == 1 else self.lane()
        return lane.head()

    def take(self, n: int) -> Slice:
        """Take n messages off the head slice (0 < n <= its length): they change from ready to
        acquired."""
        lanes = self.lanes
        lane = lanes[0] if len(lanes) == 1 else self.lane()
        piece = lane.take(n)
        self.account.take(piece)
        return piece

    def pick(self, lane: Ready, place: int, n: int) -> Slice:
        """Take n messages of one slice, from `place` on, out of the lane's `returned`: they change
        from ready to acquired."""
        piece = lane.pick(place, n)
        self.account.take(piece)
        return piece

    def let_go(self, n: int) -> Slice:
        """Delete up to n of a stream's oldest messages and return them. The caller moves them
        on."""
        piece = self.lanes[0].drop_oldest(n)
        self.account.move(piece, READY, MOVING)
        self.kept_from = piece.first + len(piece)
        self.let_go_bytes += piece.size()
        return piece

    def remove(self, lane: Ready, n: int) -> Slice:
        """Remove n messages from the lane's head slice for good. The caller moves them on."""
        piece = lane.take(n)
        self.account.move(piece, READY, MOVING)
        return piece

    def waits_for_disk(self) -> bool:
        """Return whether ready messages may become deliverable when a pending disk write ends: that
        of a high-water mark, or of messages that are not delivered before they are on disk."""
        if self.deleted or not self.stored:
            return False
        return self.mark_durable < self.mark or self.holds > 0 or bool(self.returning)

    def before_returns(self, first: int, n: int) -> int:
        """Return how many of the n sequences from `first` on come before one that is returning."""
        for at in range(n):
            if first + at in self.returning:
                return at
        return n

    def demand(self) -> int:
        """Return how many more messages the queue's consumers want now. A short wait (for the disk,
        or for room in this turn) does not reduce it; a full socket does."""
        wanted = 0
        if self.paused or self.rests:
            return 0
        for consumer in self.consumers:
            if self.settings.single_active and consumer is not self.active:
                continue
            wanted += consumer.wanted()
        return wanted

    def taken(self) -> int:
        """Return how many of the messages that ever entered are ready no longer, whatever became of
        them."""
        return self.entered - self.ready

    def make_ready(self, piece: Slice) -> None:
        """Make messages of no bucket ready at their old places. Their body bytes must be known if
        the queue counts body bytes."""
        self.account.move(piece, MOVING, READY)
        if piece.annotations is not None and piece.annotations.ttl_ms >= 0:
            self.own_ttl = self.watched = True
        self._to_places([piece])

    def put_aside(self, entry: Quarantined) -> None:
        """Quarantine messages of no bucket."""
        self.quarantine.append(entry)
        self.account.move(entry.piece, MOVING, QUARANTINED)

    def take_from_aside(self, entry: Quarantined) -> None:
        """Remove an entry from the quarantine. The caller moves its messages on."""
        self.quarantine.remove(entry)
        self.account.move(entry.piece, QUARANTINED, MOVING)

    def give_back(self, pieces: list[Slice], failed: bool, to_tail: bool = False) -> None:
        """Requeue acquired messages at their old positions [TX-9] or at the tail [NQ-12]. Their
        delivery count rises by one and, where `failed`, their failure count too."""
        for piece in pieces:
            self.account.move(piece, ACQUIRED, READY)
            piece.acquired += 1
            if failed:
                piece.failed += 1
        if to_tail:
            for piece in pieces:
                self._to_tail(piece)
        else:
            self._to_places(pieces)

    def slices(self) -> list[Slice]:
        """Return all ready slices in delivery order. They are the queue's own objects and must not
        be changed."""
        lanes = self.lanes
        if len(lanes) == 1:
            return lanes[0].slices()
        return [piece for lane in reversed(lanes) for piece in lane.slices()]

    def leading_bytes(self, n: int) -> int:
        """Return the body bytes of the n messages that leave next. The queue must count body bytes.
        O(slices)."""
        if n >= self.ready:
            return self.account.body_bytes - sum(
                letter.piece.body_bytes() for letter in self.letters
            )
        total = 0
        for lane in reversed(self.lanes):
            for pieces in (lane.in_front(), lane.fresh):
                for piece in pieces:
                    if n <= 0:
                        return total
                    part = piece.part(0, min(n, len(piece)))
                    total += part.body_bytes()
                    n -= len(part)
        return total

    def unpack(self) -> None:
        """Unpack all packed messages, for a reader of the whole queue. O(messages)."""
        for lane in self.lanes:
            lane.unpack()

    def clear(self) -> list[Slice]:
        """Remove all ready messages and return them. The caller moves them on."""
        pieces = self.slices()
        for lane in self.lanes:
            lane.clear()
        for piece in pieces:
            self.account.move(piece, READY, MOVING)
        return pieces

    # -- the account

    def settle(self, piece: Slice, lo: int, hi: int, owner: int, reason: int) -> bool:
        """Settle messages lo..hi-1 of an acquired slice's payload.

        Returns whether this is the first of the turn that needs a record.
        """
        count = hi - lo
        cuts = piece.payload.cuts
        self.account.settle(count, cuts[hi] - cuts[lo])
        if not self.stored:
            return False
        low = piece.first + lo - piece.lo
        ranges = self.settled_ranges
        if not ranges:
            ranges.append(SettledRange(low, low + count, owner, reason))
            return True
        last = ranges[-1]
        if last.high == low and last.owner == owner and last.reason == reason:
            last.high = low + count
        else:
            ranges.append(SettledRange(low, low + count, owner, reason))
        return False

    def end(self) -> int:
        """Return the sequence behind the last message of a stream that readers may see."""
        return self.mark_durable

    def keep(self, letter: Letter) -> None:
        """Add a letter of no bucket to the dead-letter-pending messages."""
        self.letters.append(letter)
        self.account.move(letter.piece, MOVING, PENDING)
        self.watched = True

    def release(self, piece: Slice) -> None:
        """Count messages that were removed from `letters` as pending no longer. The caller moves
        them on."""
        self.account.move(piece, PENDING, MOVING)

    def counters(self) -> dict[str, object]:
        """Return the account as plain values, for COUNTERS rows."""
        terms = self.account.terms()
        if self.settings.is_stream:
            terms["kept_from"] = self.kept_from
            terms["let_go_bytes"] = self.let_go_bytes
        return terms

    def check(self) -> None:
        """Assert that the account balances and says what is there [LC-5]. O(slices)."""
        account = self.account
        account.check()
        pieces = self.slices()
        assert account.ready == sum(len(p) for p in pieces), (self.name, account.ready)
        assert account.ready_bytes == sum(p.size() for p in pieces), self.name
        for priority, lane in enumerate(self.lanes):
            last = 0
            for piece in lane.slices():
                place = piece.first + piece.shift
                assert piece.priority == priority, (self.name, piece.priority, priority)
                assert place > last, (self.name, place, last)
                last = place + len(piece) - 1
            assert last <= self.entered + self.shift, (self.name, last)
        waiting = [entry[3] for entry in self.deferrals]
        assert account.deferred == sum(len(p) for p in waiting), (self.name, account.deferred)
        assert account.deferred_bytes == sum(p.size() for p in waiting), self.name
        held = [letter.piece for letter in self.letters]
        assert account.pending == sum(len(p) for p in held), (self.name, account.pending)
        assert account.pending_bytes == sum(p.size() for p in held), self.name
        if account.body_bytes >= 0:
            bodies = sum(p.body_bytes() for p in pieces) + sum(p.body_bytes() for p in held)
            assert account.body_bytes == bodies, (self.name, account.body_bytes, bodies)
        aside = [entry.piece for entry in self.quarantine]
        assert account.quarantined == sum(len(p) for p in aside), self.name


def _due(entry: tuple[int, int, bool, Slice]) -> tuple[int, int]:
    return entry[0], entry[1]
