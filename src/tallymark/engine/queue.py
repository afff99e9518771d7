"""A queue: its ready messages, and the account of every message that ever entered it.

Ready messages lie in lanes, one for each priority (lanes.py). What else a queue
has, one rule each, is in queue_parts.py.

The account is account.py's. "Of no bucket" are messages on their way from one to another.
"""

from __future__ import annotations

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
from tallymark.engine.clock import Timed
from tallymark.engine.lanes import Lane, Lanes
from tallymark.engine.ledger import SettledRows
from tallymark.engine.message import Payload, Slice
from tallymark.engine.queue_parts import (
    Deduplication,
    Deferrals,
    Deferred,
    DiskHold,
    HandedOut,
    HighWater,
    Letter,
    Quarantined,
    Retention,
    Retry,
)
from tallymark.engine.settings import Settings, own_settings
from tallymark.stored import records
from tallymark.stored.annotations import Annotations, ready_since
from tallymark.units import UNLIMITED, EngineMs, QueueSequence


class QueueConsumer:
    """A consumer, as far as its queue knows it. `session.Consumer` is the only kind, and
    `queue_consumers.consumers_of` returns a queue's consumers as such."""

    def __init__(self, exclusive: bool, priority: int) -> None:
        self.exclusive = exclusive
        self.priority = priority
        self.browses = False
        """True if the consumer is sent copies: each ready message once, and none is removed."""
        self.cursors: list[int] = []
        """Cursors of a consumer that browses or filters: for each lane, the first place it has not
        examined. Empty for a consumer that takes messages from the head."""
        self.is_passed_over = False
        """True while turns of the queue do not look at the consumer, as it wants nothing."""

    def look_again_at(self, pieces: list[Slice]) -> None:
        """Set the cursors of a consumer with a filter back to messages that returned. One that
        browses had them already."""
        if self.browses:
            return
        cursors = self.cursors
        for piece in pieces:
            place = piece.first + piece.shift
            cursors[piece.priority] = min(cursors[piece.priority], place)

    def wanted(self) -> int:
        """Return how many messages the consumer can accept once the broker may send them. A
        consumer that browses or filters may want none of the messages present, so it counts as
        0."""
        raise NotImplementedError


class QueueSubscription:
    """A durable subscription, as far as its queue knows it. `subscription.Subscription` is the only
    kind, and `subscription.subscriptions_of` returns a queue's subscriptions as such."""

    def held(self) -> list[Slice]:
        """Return the messages that it has leased and that are not settled."""
        raise NotImplementedError


@final
class Queue(Timed):
    """One queue: plain state and its own counters. Rows and effects are made by the managers."""

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
        self.definition = b""
        """Definition from which a restart makes the queue, encoded when it is first needed."""
        self.stored = durable and exclusive_owner == 0
        """True if the queue's transitions go to the journal: the queue can outlive this process."""
        self.deleted = False
        self.dirty = False
        """True while the queue is in `Agenda.changed`, the queues to serve."""
        self.appended = False
        """True while this stream is in the list of streams that received messages in this turn."""

        self.settings = own_settings(arguments)
        """Settings in effect: arguments and policies combined. Changed by `follow` only."""
        self.lanes = Lanes(self.settings.max_priority)
        """Ready messages."""
        self.account = Account()
        self.deferrals = Deferrals()
        self.letters: deque[Letter] = deque()
        """Dead-letter-pending messages, oldest first."""
        self.retry = Retry()
        self.quarantine: list[Quarantined] = []
        """Stored messages whose bytes cannot be read (quarantine.py)."""
        self.handed_out = HandedOut()
        self.requeued = 0
        """Count of deliveries given back by their consumers since the broker started [NQ-21]."""
        self.timed_out = 0
        """Count of deliveries taken back because they exceeded the consumer timeout, since the
        broker started."""
        self.settled_rows = SettledRows(id)
        self.deduplication = Deduplication()
        self.retention = Retention()
        """State of retention, of a stream."""

        self.own_ttl = False
        """True if messages that are ready, handed out, leased or staged may have a time to live of
        their own."""
        self.seen = 0
        """Highest place that was taken when the queue was last attended to."""
        self.used_ms = EngineMs(0)
        """Time of the last declare, get or consume; engine time, ms."""
        self.kept = False
        """True while a part of the broker needs the queue, which then does not expire; see
        Registry.keep."""
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
        self.looked_at: list[QueueConsumer] | None = None
        """Consumers that are not passed over, in the order of `consumers`; None: all of them."""
        self.seekers: list[QueueConsumer] = []
        """Consumers that browse or filter."""
        self.draining = 0
        """Count of the consumers that are to be drained."""
        self.active: QueueConsumer | None = None
        """The one consumer that is served where the queue has a single active consumer."""
        self.next_turn = 0
        """Index of the next consumer to be served among those of equal priority."""
        self.next_seeker = 0
        """Index of the next seeker to be served."""
        self.had_consumer = False
        """True once there was a consumer that takes messages, or a durable subscription: an
        auto-delete queue ends with the last one."""
        self.comings = 0
        """Count of the consumers that were added or removed so far."""
        self.holds_publishers = False
        """True while connections that publish to the queue are blocked because its consumer is too
        slow [SC-D7]; see Publishing.hold_publishers."""
        self.subscriptions: list[QueueSubscription] = []

        self.high_water = HighWater(QueueSequence(1 if self.settings.is_stream else 0))
        self.disk_hold = DiskHold()
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
            self.deduplication.forget_all()
        self.watch()

    def watch(self) -> None:
        """Recompute `watched`."""
        self.watched = (
            self.settings.needs_upkeep() or self.own_ttl or self.pending > 0 or self.deferred > 0
        )

    def may_expire(self) -> bool:
        """Return whether the queue is deleted once it was unused for long enough [x-expires]."""
        in_use = self.consumers or self.subscriptions or self.kept
        return self.settings.expires_ms >= 0 and not in_use

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

    def push(self, payload: Payload, annotations: Annotations | None) -> QueueSequence:
        """Append all messages of a payload and return their first sequence. A queue with priorities
        or a limit on bytes uses `push_part` instead."""
        count = payload.count
        first = self.account.enter(count, payload.size, 0)
        lanes = self.lanes
        lanes.lowest.fresh.append(
            Slice(payload, 0, count, first, 0, 0, 0, annotations, lanes.next_shift)
        )
        lanes.unexamined += 1
        return first

    def push_part(
        self, payload: Payload, lo: int, hi: int, priority: int, annotations: Annotations | None
    ) -> QueueSequence:
        """Append messages lo..hi-1 of a payload and return their first sequence."""
        account = self.account
        cuts = payload.cuts
        size = 0
        if account.body_bytes >= 0:
            bodies = payload.bodies
            assert bodies is not None, account.entered
            size = bodies[hi] - bodies[lo]
        first = account.enter(hi - lo, cuts[hi] - cuts[lo], size)
        self.lanes.append_part(payload, lo, hi, first, priority, annotations)
        return first

    def defer(self, piece: Slice, due_ms: EngineMs, to_tail: bool) -> None:
        """Defer messages of no bucket until `due_ms` (engine time). When due, they become ready at
        their old place or at the tail."""
        self.deferrals.add(Deferred(EngineMs(due_ms), to_tail, piece))
        self.account.move(piece, MOVING, DEFERRED)
        self.watched = True

    def take_due(self, now_ms: EngineMs, most: int = UNLIMITED) -> list[Deferred]:
        """Remove the deferrals that are due, up to `most` of them, and return them, for
        `end_deferrals`."""
        due = self.deferrals.take_due(now_ms, most)
        for entry in due:
            self.account.move(entry.piece, DEFERRED, MOVING)
        return due

    def end_deferrals(self, due: list[Deferred]) -> None:
        """Make deferrals that `take_due` removed ready. Their body bytes must be known if the queue
        counts body bytes."""
        back: list[Slice] = []
        for entry in due:
            piece = entry.piece
            self.account.move(piece, MOVING, READY)
            known = piece.annotations
            if known is not None:
                if known.due_ms:  # ready for the first time: its time to live begins
                    piece.annotations = ready_since(known, entry.due_ms)
                self.note_time_to_live(piece)
            if entry.to_tail:
                self.lanes.put_to_tail(piece, self.entered)
            else:
                back.append(piece)
        if back:
            self._to_places(back)

    def clear_deferred(self) -> list[Slice]:
        """Remove all deferred messages and return them. The caller moves them on."""
        pieces = [entry.piece for entry in self.deferrals.take_all()]
        for piece in pieces:
            self.account.move(piece, DEFERRED, MOVING)
        return pieces

    def _to_places(self, pieces: list[Slice]) -> None:
        for consumer in self.seekers:
            consumer.look_again_at(pieces)
        self.lanes.give_back(pieces)

    def head(self) -> Slice | None:
        """Return the slice that leaves next. Its bytes may not be in memory."""
        lanes = self.lanes
        lane = lanes.lowest if len(lanes.by_priority) == 1 else lanes.next_lane()
        return lane.head()

    def take(self, n: int) -> Slice:
        """Take n messages off the head slice (0 < n <= its length): they change from ready to
        acquired."""
        lanes = self.lanes
        lane = lanes.lowest if len(lanes.by_priority) == 1 else lanes.next_lane()
        piece = lane.take(n)
        self.account.take(piece)
        return piece

    def pick(self, lane: Lane, place: int, n: int) -> Slice:
        """Take n messages of one slice, from `place` on, out of the lane's `returned`: they change
        from ready to acquired."""
        piece = lane.pick(place, n)
        self.account.take(piece)
        return piece

    def let_go(self, n: int) -> Slice:
        """Delete up to n of a stream's oldest messages and return them. The caller moves them
        on."""
        piece = self.lanes.lowest.drop_oldest(n)
        self.account.move(piece, READY, MOVING)
        self.retention.let_go(piece)
        return piece

    def remove(self, lane: Lane, n: int) -> Slice:
        """Remove n messages from the lane's head slice for good. The caller moves them on."""
        piece = lane.take(n)
        self.account.move(piece, READY, MOVING)
        return piece

    def waits_for_disk(self) -> bool:
        """Return whether ready messages may become deliverable when a pending disk write ends: that
        of a high-water mark, or of messages that are not delivered before they are on disk."""
        if self.deleted or not self.stored:
            return False
        hold = self.disk_hold
        is_behind = self.high_water.durable < self.high_water.mark
        return is_behind or hold.turns > 0 or bool(hold.returning)

    def demand(self) -> int:
        """Return how many more messages the queue's consumers want now. A short wait (for the disk,
        or for room in this turn) does not reduce it; a full socket does."""
        wanted = 0
        if self.paused or self.rests:
            return 0
        if self.settings.single_active:
            return self.active.wanted() if self.active is not None else 0
        for consumer in self.consumers if self.looked_at is None else self.looked_at:
            wanted += consumer.wanted()
        return wanted

    def is_wanted(self) -> bool:
        """Return whether any consumer wants a message now: whether `demand` is above 0."""
        if self.paused or self.rests:
            return False
        if self.settings.single_active:
            return self.active is not None and self.active.wanted() > 0
        looked_at = self.consumers if self.looked_at is None else self.looked_at
        return any(consumer.wanted() > 0 for consumer in looked_at)

    def taken(self) -> int:
        """Return how many of the messages that ever entered are ready no longer, whatever became of
        them."""
        return self.entered - self.ready

    def make_ready(self, piece: Slice) -> None:
        """Make messages of no bucket ready at their old places. Their body bytes must be known if
        the queue counts body bytes."""
        self.account.move(piece, MOVING, READY)
        self.note_time_to_live(piece)
        self._to_places([piece])

    def note_time_to_live(self, piece: Slice) -> None:
        """Note whether messages that are ready, or will be when they are given back, have a time to
        live of their own."""
        known = piece.annotations
        if known is not None and known.ttl_ms >= 0 and not self.settings.is_stream:
            self.own_ttl = self.watched = True

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
                self.lanes.put_to_tail(piece, self.entered)
        else:
            self._to_places(pieces)

    def slices(self) -> list[Slice]:
        """Return all ready slices in delivery order. They are the queue's own objects and must not
        be changed."""
        return self.lanes.slices()

    def unpack(self) -> None:
        """Unpack all packed messages, for a reader of the whole queue. O(messages)."""
        self.lanes.unpack()

    def clear(self) -> list[Slice]:
        """Remove all ready messages and return them. The caller moves them on."""
        pieces = self.lanes.clear()
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
        if reason != records.SETTLED_ON_SEND:
            self.handed_out.acknowledged += count
        if not self.stored:
            return False
        return self.settled_rows.add(
            QueueSequence(piece.first + lo - piece.lo), count, owner, reason
        )

    def end(self) -> QueueSequence:
        """Return the sequence behind the last message of a stream that readers may see."""
        return self.high_water.durable

    def has_beyond(self, places: list[int]) -> bool:
        """Return whether there are messages from these places on, one for each lane: of a stream,
        messages that readers may see."""
        if self.settings.is_stream:
            found = self.lanes.lowest.peek(places[0])
            return found is not None and found.first < self.end()
        for number, lane in enumerate(self.lanes.by_priority):
            if lane.at(places[number]) is not None:
                return True
        return False

    def keep(self, letter: Letter) -> None:
        """Add a letter of no bucket to the dead-letter-pending messages."""
        self.letters.append(letter)
        self.account.move(letter.piece, MOVING, PENDING)
        self.watched = True

    def counters(self) -> dict[str, object]:
        """Return the account as plain values, for COUNTERS rows."""
        terms = self.account.terms()
        if self.settings.is_stream:
            terms["kept_from"] = self.retention.kept_from
            terms["let_go_bytes"] = self.retention.let_go_bytes
        return terms


def check_queue(queue: Queue) -> None:
    """Assert that the account balances and says what is there [LC-5]. O(slices)."""
    account = queue.account
    account.check()
    pieces = queue.lanes.slices()
    assert account.ready == sum(len(p) for p in pieces), (queue.name, account.ready)
    assert account.ready_bytes == sum(p.size() for p in pieces), queue.name
    for priority, lane in enumerate(queue.lanes.by_priority):
        last = 0
        for piece in lane.slices():
            place = piece.first + piece.shift
            assert piece.priority == priority, (queue.name, piece.priority, priority)
            assert place > last, (queue.name, place, last)
            last = place + len(piece) - 1
        assert last <= queue.entered + queue.lanes.next_shift, (queue.name, last)
    waiting = [entry.piece for entry in queue.deferrals]
    assert account.deferred == sum(len(p) for p in waiting), (queue.name, account.deferred)
    assert account.deferred_bytes == sum(p.size() for p in waiting), queue.name
    held = [letter.piece for letter in queue.letters]
    assert account.pending == sum(len(p) for p in held), (queue.name, account.pending)
    assert account.pending_bytes == sum(p.size() for p in held), queue.name
    if account.body_bytes >= 0:
        bodies = sum(p.body_bytes() for p in pieces) + sum(p.body_bytes() for p in held)
        assert account.body_bytes == bodies, (queue.name, account.body_bytes, bodies)
    aside = [entry.piece for entry in queue.quarantine]
    assert account.quarantined == sum(len(p) for p in aside), queue.name
