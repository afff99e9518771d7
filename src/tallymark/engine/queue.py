"""A queue: what is ready, and the count of everything that ever entered.

Ready messages lie in lanes, one per priority; order within a lane is ready.py's.

Conservation, at any quiescent moment [LC-5]:
    entered = ready + acquired + deferred + staged + dead_letter_pending + quarantined
              + settled + dead_lettered + dropped(by reason)
where acquired includes what durable subscriptions hold on lease, and staged is what was acquired
and is settled in transactions that have not ended.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import TYPE_CHECKING, final

from tallymark.engine import records
from tallymark.engine.annotations import Annotations, ready_since
from tallymark.engine.deadlines import Timed
from tallymark.engine.message import Payload, Slice
from tallymark.engine.ready import Ready
from tallymark.engine.settings import OFF, UNLIMITED, Settings

if TYPE_CHECKING:
    from tallymark.engine.archives import Archived
    from tallymark.engine.session import Consumer
    from tallymark.engine.stream_ranges import Pin
    from tallymark.engine.subscription import Subscription


@final
class SettledRange:
    """Sequences low..high-1 settled in this turn by one owner."""

    __slots__ = ("high", "low", "owner", "reason")

    def __init__(self, low: int, high: int, owner: int, reason: int) -> None:
        self.low = low
        self.high = high
        self.owner = owner
        self.reason = reason


@final
class Letter:
    """Dead letters that wait in their queue until something takes them [DL-22]: a slice as it was
    before it died, why and when it did, and which targets have it already [DL-24]."""

    __slots__ = ("died_ms", "have", "piece", "reason")

    def __init__(self, piece: Slice, reason: int, died_ms: int, have: list[str]) -> None:
        self.piece = piece
        self.reason = reason
        self.died_ms = died_ms
        self.have = have

    def part(self, start: int, stop: int) -> Letter:
        """The messages with index start..stop-1, as a letter of their own."""
        return Letter(self.piece.part(start, stop), self.reason, self.died_ms, self.have[:])


@final
class Quarantined:
    """Messages put aside, as their bytes could not be read; see quarantine.py."""

    __slots__ = ("letter", "piece", "trouble")

    def __init__(self, piece: Slice, letter: Letter | None, trouble: str) -> None:
        self.piece = piece
        self.letter = letter
        """What they were to become; None: they were ready, or given back."""
        self.trouble = trouble
        """What the disk said when it was asked last."""


@final
class Queue(Timed):
    """One queue. Plain state and its own bookkeeping: records and effects are the Broker's."""

    __slots__ = (
        "acquired",
        "acquired_bytes",
        "active",
        "appended",
        "archive",
        "arguments",
        "auto_delete",
        "body_bytes",
        "burst",
        "comings",
        "consumers",
        "dead_lettered",
        "deep",
        "deferrals",
        "deferrals_made",
        "deferred",
        "deferred_bytes",
        "deleted",
        "dirty",
        "draining",
        "dropped",
        "durable",
        "entered",
        "exclusive_owner",
        "had_consumer",
        "holds",
        "holds_publishers",
        "id",
        "is_held",
        "kept_from",
        "lanes",
        "leased",
        "let_go_bytes",
        "letters",
        "loose",
        "mark",
        "mark_durable",
        "name",
        "next_turn",
        "own_ttl",
        "paused",
        "pending",
        "pending_bytes",
        "pins",
        "publishers",
        "quarantine",
        "quarantined",
        "ready",
        "reached",
        "ready_bytes",
        "requeued",
        "reserve",
        "rests",
        "retry_at",
        "retry_began_ms",
        "retry_ms",
        "retry_wait_ms",
        "seen",
        "seekers",
        "seen_ids",
        "settings",
        "settled",
        "settled_ranges",
        "shift",
        "shown",
        "shows_counts",
        "staged",
        "staged_bytes",
        "stalled",
        "stored",
        "subscriptions",
        "timed_out",
        "tried_generation",
        "turn",
        "used_ms",
        "vhost",
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
        """Broker-wide, never reused."""
        self.name = name
        self.vhost = vhost
        self.durable = durable
        self.exclusive_owner = exclusive_owner
        """Id of the only connection that may use it; 0: anyone."""
        self.auto_delete = auto_delete
        self.arguments = arguments
        self.stored = durable and exclusive_owner == 0
        """Whether its transitions go to the journal: it can outlive this process."""
        self.deleted = False
        self.dirty = False
        """Whether the Broker has it on its list of queues to pump."""
        self.appended = False
        """Of a stream: whether it is on the list of those that something entered in this turn."""

        self.settings = Settings(arguments, {})
        """What arguments and policies come to; change it by `follow`."""
        self.lanes = [Ready() for _ in range(self.settings.max_priority + 1)]
        """By priority."""
        self.loose = 0
        """How many of the newest slices were not yet looked at for packing."""
        self.deep = False
        """Whether the Broker has it on its list of queues to pack."""
        self.ready = 0
        self.ready_bytes = 0
        self.body_bytes = OFF
        """Of the ready and the pending, bodies alone; OFF: not weighed as nothing asked for it."""
        self.acquired = 0
        self.acquired_bytes = 0
        self.leased = 0
        """Of the acquired: how many are leased to durable subscriptions."""
        self.staged = 0
        """Handed out, and settled in a transaction that has not ended [TX-4]."""
        self.staged_bytes = 0
        self.deferrals: list[tuple[int, int, bool, Slice]] = []
        """A heap: when due (wall ms), a number that keeps equal ones in order, whether to the tail,
        the messages."""
        self.deferrals_made = 0
        self.deferred = 0
        self.deferred_bytes = 0
        self.letters: deque[Letter] = deque()
        """Dead-letter-pending, oldest first."""
        self.pending = 0
        self.pending_bytes = 0
        self.tried_generation = 0
        """Of the topology the pending letters were last tried with."""
        self.retry_ms = 0
        """When they are tried again; engine time."""
        self.retry_wait_ms = 0
        """How long after an attempt at all of them that is."""
        self.retry_at = 0
        """How many of them were tried in the present attempt."""
        self.retry_began_ms = 0
        """When that attempt began, whether or not it began anew since."""
        self.quarantine: list[Quarantined] = []
        """What is there and cannot be read, see quarantine.py."""
        self.quarantined = 0
        self.entered = 0
        """Sequences assigned so far; the next one is entered + 1."""
        self.shift = 0
        """How many messages were put to the tail: what comes next has its place behind them."""
        self.settled = 0
        self.dead_lettered = 0
        self.dropped: dict[int, int] = {}
        """Count by reason (records.DROPPED_*)."""
        self.requeued = 0
        """Deliveries given back by their consumers since the broker started [NQ-21]."""
        self.timed_out = 0
        """Deliveries taken back for having taken too long, since the broker started."""
        self.settled_ranges: list[SettledRange] = []
        self.seen_ids: dict[str, int] = {}
        """Publisher-given ids of the deduplication window, oldest first: when each was taken."""

        self.kept_from = 1
        """Of a stream: what lies below it was let go of."""
        self.let_go_bytes = 0
        """Of a stream: how much that was, since it was made."""
        self.archive: Archived | None = None
        """Of a stream: the newest range that is safe elsewhere, and with it all before."""
        self.pins: list[Pin] = []
        """Of a stream: ranges that somebody wants to read whatever retention does."""
        self.publishers: dict[str, int] = {}
        """Of a stream: the highest number that each named publisher gave a message, by when each
        published last."""

        self.own_ttl = False
        """Whether messages with a time to live of their own may be among the ready."""
        self.seen = 0
        """Places up to here were taken when the queue was last looked after."""
        self.used_ms = 0
        """When it was last declared, got from or consumed from; engine time."""
        self.paused = False
        """Whether deliveries rest by an operator's word [NQ-9]."""
        self.rests = False
        """Whether nothing leaves until what cannot be read is seen to, see quarantine.py."""
        self.watched = False
        """Whether it must be looked after when it changes or time passes."""
        self.shows_counts = False
        """Whether consumers are shown how often a message was delivered and failed [DL-5]."""

        self.consumers: list[Consumer] = []
        """Highest priority first; among equals in order of arrival."""
        self.seekers: list[Consumer] = []
        """Those of the consumers that browse or filter."""
        self.draining = 0
        """How many of the consumers are to be drained."""
        self.active: Consumer | None = None
        """The only one that is served, where the queue has a single active consumer."""
        self.next_turn = 0
        """Index of the consumer whose turn it is, among those of equal priority."""
        self.had_consumer = False
        self.comings = 0
        """How often a consumer came or went."""
        self.holds_publishers = False
        """Whether connections that publish to it are held back, since its consumer is too slow
        [SC-D7]; see Broker.hold_publishers."""
        self.subscriptions: list[Subscription] = []

        self.mark = 0
        """Sequences below it may have been handed out, as far as the journal was told."""
        self.mark_durable = 1 if self.settings.is_stream else 0
        """The same, as far as the disk is known to say so. Nothing at or above it is handed out. Of
        a stream: what lies below it is on disk, and shown to readers."""
        self.shown = UNLIMITED
        """Sequences from it on are not handed out before the disk has them; UNLIMITED: all are."""
        self.holds = 0
        """How many turns' messages are waited for so, the present one's included."""
        self.is_held = False
        """Whether some of these entered in the present turn."""
        self.reserve = 0
        """How far ahead the next mark is set."""
        self.reached = 0
        """Sequences below it were handed out, or asked to be, since the broker started."""
        self.burst = 0
        """How many of these in the last turn that handed out any, which was turn `turn`."""
        self.turn = 0
        self.stalled = False
        """Whether something waited for the present mark."""
        self.follow(self.settings)

    def follow(self, settings: Settings) -> None:
        """These settings are in effect from now on."""
        self.settings = settings
        self.shows_counts = (
            settings.is_quorum or settings.delivery_limit >= 0 or settings.acquired_limit >= 0
        )
        if settings.max_bytes < 0:
            self.body_bytes = OFF
        elif not self.ready and not self.pending:
            self.body_bytes = 0
        if settings.dedup_ms <= 0:
            self.seen_ids.clear()
        self.watch()

    def watch(self) -> None:
        """Work out `watched` anew."""
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

    # -- ready messages

    def push(self, payload: Payload, annotations: Annotations | None) -> int:
        """Append all messages of a payload; returns the first sequence they got. Not for queues
        with priorities or a limit on bytes: there `push_part`."""
        first = self.entered + 1
        count = payload.count
        self.entered += count
        self.ready += count
        self.ready_bytes += payload.size
        self.lanes[0].fresh.append(
            Slice(payload, 0, count, first, 0, 0, 0, annotations, self.shift)
        )
        self.loose += 1
        return first

    def push_part(
        self, payload: Payload, lo: int, hi: int, priority: int, annotations: Annotations | None
    ) -> int:
        """Append messages lo..hi-1 of a payload; returns the first sequence they got."""
        first = self.entered + 1
        self.entered += hi - lo
        self.ready += hi - lo
        cuts = payload.cuts
        self.ready_bytes += cuts[hi] - cuts[lo]
        if self.body_bytes >= 0:
            bodies = payload.bodies
            assert bodies is not None, first
            self.body_bytes += bodies[hi] - bodies[lo]
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

    def pass_by(self, count: int) -> int:
        """Sequences for messages that enter and end at once; returns the first. The caller counts
        their end."""
        first = self.entered + 1
        self.entered += count
        return first

    def defer(self, piece: Slice, due_ms: int, to_tail: bool) -> None:
        """Messages, no longer ready or acquired, wait until `due_ms`; then they are ready at their
        old place, or at the tail."""
        self.deferrals_made += 1
        heapq.heappush(self.deferrals, (due_ms, self.deferrals_made, to_tail, piece))
        self.deferred += len(piece)
        self.deferred_bytes += piece.size()
        self.watched = True

    def take_due(self, now_ms: int) -> list[tuple[int, int, bool, Slice]]:
        """Take out the deferrals whose time has come, for `end_deferrals`."""
        due: list[tuple[int, int, bool, Slice]] = []
        deferrals = self.deferrals
        while deferrals and deferrals[0][0] <= now_ms:
            entry = heapq.heappop(deferrals)
            self.deferred -= len(entry[3])
            self.deferred_bytes -= entry[3].size()
            due.append(entry)
        return due

    def end_deferrals(self, due: list[tuple[int, int, bool, Slice]]) -> None:
        """These messages, taken out by `take_due`, become ready. They must have been weighed
        where the queue is."""
        back: list[Slice] = []
        for due_ms, _, to_tail, piece in due:
            self.ready += len(piece)
            self.ready_bytes += piece.size()
            if self.body_bytes >= 0:
                self.body_bytes += piece.body_bytes()
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
        """Take everything deferred out; the caller counts its end."""
        pieces = [entry[3] for entry in sorted(self.deferrals, key=_due)]
        self.deferrals.clear()
        self.deferred = self.deferred_bytes = 0
        return pieces

    def _to_tail(self, piece: Slice) -> None:
        """Behind everything that is there, and before everything that is to come."""
        piece.shift = self.entered + self.shift + 1 - piece.first
        self.shift += len(piece)
        self.lanes[piece.priority].fresh.append(piece)
        self.loose += 1

    def _to_places(self, pieces: list[Slice]) -> None:
        for consumer in self.seekers:
            if not consumer.browses:  # it may want now what it did not get then
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
        """Where the next message comes from: the highest priority that has any."""
        lanes = self.lanes
        at = len(lanes) - 1
        while at > 0:
            lane = lanes[at]
            if lane.fresh or lane.returned:
                return lane
            at -= 1
        return lanes[0]

    def head(self) -> Slice | None:
        """The slice that leaves next; its bytes may not be in memory."""
        lanes = self.lanes
        lane = lanes[0] if len(lanes) == 1 else self.lane()
        return lane.head()

    def take(self, n: int) -> Slice:
        """Take n messages off the head slice (0 < n <= its length): ready becomes acquired."""
        lanes = self.lanes
        lane = lanes[0] if len(lanes) == 1 else self.lane()
        piece = lane.take(n)
        size = piece.size()
        self.ready -= n
        self.ready_bytes -= size
        self.acquired += n
        self.acquired_bytes += size
        if self.body_bytes >= 0:
            self.body_bytes -= piece.body_bytes()
        return piece

    def pick(self, lane: Ready, place: int, n: int) -> Slice:
        """Take the n messages at `place` and behind it, all of one slice, out of the lane's
        `returned`: ready becomes acquired."""
        piece = lane.pick(place, n)
        size = piece.size()
        self.ready -= n
        self.ready_bytes -= size
        self.acquired += n
        self.acquired_bytes += size
        if self.body_bytes >= 0:
            self.body_bytes -= piece.body_bytes()
        return piece

    def let_go(self, n: int) -> Slice:
        """Of a stream: take up to n of the oldest messages out for good; the caller counts their
        end."""
        piece = self.lanes[0].drop_oldest(n)
        self.ready -= len(piece)
        self.ready_bytes -= piece.size()
        self.kept_from = piece.first + len(piece)
        self.let_go_bytes += piece.size()
        return piece

    def remove(self, lane: Ready, n: int) -> Slice:
        """Take n messages off the lane's head slice for good; the caller counts their end."""
        piece = lane.take(n)
        self.ready -= n
        self.ready_bytes -= piece.size()
        if self.body_bytes >= 0:
            self.body_bytes -= piece.body_bytes()
        return piece

    def move_out(self, piece: Slice) -> None:
        """Ready messages are done with: another queue has them. The caller cuts them out of their
        lane."""
        self.count_out(piece)
        self.settled += len(piece)

    def waits_for_disk(self) -> bool:
        """Whether a mark, or messages that are not handed out before, are on their way to the disk:
        what is ready may be handed out soon."""
        if self.deleted or not self.stored:
            return False
        return self.mark_durable < self.mark or self.holds > 0

    def count_out(self, piece: Slice) -> None:
        """Ready messages are ready no longer. The caller takes them out of their lane."""
        self.ready -= len(piece)
        self.ready_bytes -= piece.size()
        if self.body_bytes >= 0:
            self.body_bytes -= piece.body_bytes()

    def make_ready(self, piece: Slice) -> None:
        """Messages that were put aside become ready, at their old places. They must have been
        weighed where the queue is."""
        self.ready += len(piece)
        self.ready_bytes += piece.size()
        if self.body_bytes >= 0:
            self.body_bytes += piece.body_bytes()
        if piece.annotations is not None and piece.annotations.ttl_ms >= 0:
            self.own_ttl = self.watched = True
        self._to_places([piece])

    def put_aside(self, entry: Quarantined) -> None:
        """Messages, no longer ready or acquired, are quarantined."""
        self.quarantine.append(entry)
        self.quarantined += len(entry.piece)

    def take_from_aside(self, entry: Quarantined) -> None:
        """They are quarantined no longer; the caller says what they are."""
        self.quarantine.remove(entry)
        self.quarantined -= len(entry.piece)

    def give_back(self, pieces: list[Slice], failed: bool, to_tail: bool = False) -> None:
        """Acquired becomes ready, at the old positions [TX-9] or at the tail [NQ-12]; handed out
        once more than before, and, where `failed`, failed once more."""
        for piece in pieces:
            size = piece.size()
            count = piece.hi - piece.lo
            self.ready += count
            self.ready_bytes += size
            self.acquired -= count
            self.acquired_bytes -= size
            piece.acquired += 1
            if failed:
                piece.failed += 1
            if self.body_bytes >= 0:
                self.body_bytes += piece.body_bytes()
        if to_tail:
            for piece in pieces:
                self._to_tail(piece)
        else:
            self._to_places(pieces)

    def slices(self) -> list[Slice]:
        """Every ready slice, in the order they would leave. The queue's own objects: do not change
        them."""
        lanes = self.lanes
        if len(lanes) == 1:
            return lanes[0].slices()
        return [piece for lane in reversed(lanes) for piece in lane.slices()]

    def leading_bytes(self, n: int) -> int:
        """Body bytes of the n messages that leave next; the queue is weighed. O(their slices)."""
        if n >= self.ready:
            return self.body_bytes - sum(letter.piece.body_bytes() for letter in self.letters)
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
        """Take every packed message out, for a reader of the whole queue. O(messages)."""
        for lane in self.lanes:
            lane.unpack()

    def clear(self) -> list[Slice]:
        """Take everything ready out; the caller counts its end."""
        pieces = self.slices()
        for lane in self.lanes:
            lane.clear()
        self.ready = self.ready_bytes = 0
        if self.body_bytes >= 0:
            self.body_bytes = sum(letter.piece.body_bytes() for letter in self.letters)
        return pieces

    # -- the account

    def settle(self, piece: Slice, lo: int, hi: int, owner: int, reason: int) -> bool:
        """Messages lo..hi-1 of an acquired slice's payload are done with.

        Returns whether this is the first of the turn that needs a record.
        """
        count = hi - lo
        self.acquired -= count
        cuts = piece.payload.cuts
        self.acquired_bytes -= cuts[hi] - cuts[lo]
        self.settled += count
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
        """Of a stream: the sequence number behind the last message that readers may see."""
        return self.mark_durable

    def leave_acquired(self, piece: Slice) -> None:
        """Acquired messages end without success; the caller counts how."""
        self.acquired -= piece.hi - piece.lo
        self.acquired_bytes -= piece.size()

    def stage(self, piece: Slice) -> None:
        """Acquired messages are settled in a transaction: they wait for its end [TX-4]."""
        self.leave_acquired(piece)
        self.staged += piece.hi - piece.lo
        self.staged_bytes += piece.size()

    def unstage(self, piece: Slice) -> None:
        """Their transaction ends: they are acquired again, and what follows is the caller's."""
        self.leave_staged(piece)
        self.acquired += piece.hi - piece.lo
        self.acquired_bytes += piece.size()

    def leave_staged(self, piece: Slice) -> None:
        """Staged messages end before their transaction does; the caller counts how."""
        self.staged -= piece.hi - piece.lo
        self.staged_bytes -= piece.size()

    def drop(self, count: int, reason: int) -> None:
        """Messages, no longer ready or acquired, ended without success."""
        self.dropped[reason] = self.dropped.get(reason, 0) + count

    def keep(self, letter: Letter) -> None:
        """Messages, no longer ready or acquired, became dead-letter-pending."""
        piece = letter.piece
        self.letters.append(letter)
        self.pending += len(piece)
        self.pending_bytes += piece.size()
        if self.body_bytes >= 0:
            self.body_bytes += piece.body_bytes()
        self.watched = True

    def release(self, piece: Slice) -> None:
        """Pending messages, already off `letters`, end; the caller counts how."""
        self.pending -= len(piece)
        self.pending_bytes -= piece.size()
        if self.body_bytes >= 0:
            self.body_bytes -= piece.body_bytes()

    def counters(self) -> dict[str, object]:
        """The account as plain values: what COUNTERS records, the HTTP API and Spark show."""
        of_streams: dict[str, object] = {}
        if self.settings.is_stream:
            of_streams["kept_from"] = self.kept_from
            of_streams["let_go_bytes"] = self.let_go_bytes
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
            "dropped": {records.DROP_REASONS[k]: n for k, n in sorted(self.dropped.items())},
            **of_streams,
        }

    def is_balanced(self) -> bool:
        """Whether what entered is here or gone, each message once [LC-5]."""
        gone = self.settled + self.dead_lettered + sum(self.dropped.values())
        here = self.ready + self.acquired + self.deferred + self.staged + self.pending
        return self.entered == here + self.quarantined + gone

    def check(self) -> None:
        """Assert conservation and that the counts match the slices [LC-5]. O(slices)."""
        pieces = self.slices()
        assert self.ready == sum(len(p) for p in pieces), (self.name, self.ready, len(pieces))
        assert self.ready_bytes == sum(p.size() for p in pieces), (self.name, self.ready_bytes)
        for priority, lane in enumerate(self.lanes):
            last = 0
            for piece in lane.slices():
                place = piece.first + piece.shift
                assert piece.priority == priority, (self.name, piece.priority, priority)
                assert place > last, (self.name, place, last)
                last = place + len(piece) - 1
            assert last <= self.entered + self.shift, (self.name, last)
        waiting = [entry[3] for entry in self.deferrals]
        assert self.deferred == sum(len(p) for p in waiting), (self.name, self.deferred)
        assert self.deferred_bytes == sum(p.size() for p in waiting), self.name
        held = [letter.piece for letter in self.letters]
        assert self.pending == sum(len(p) for p in held), (self.name, self.pending)
        assert self.pending_bytes == sum(p.size() for p in held), (self.name, self.pending_bytes)
        if self.body_bytes >= 0:
            bodies = sum(p.body_bytes() for p in pieces) + sum(p.body_bytes() for p in held)
            assert self.body_bytes == bodies, (self.name, self.body_bytes, bodies)
        aside = [entry.piece for entry in self.quarantine]
        assert self.quarantined == sum(len(p) for p in aside), (self.name, self.quarantined)
        assert self.is_balanced(), (self.name, self.counters())
        assert min(self.ready, self.acquired, self.leased, self.staged, self.ready_bytes) >= 0
        assert min(self.acquired_bytes, self.staged_bytes) >= 0
        assert self.leased <= self.acquired


def _due(entry: tuple[int, int, bool, Slice]) -> tuple[int, int]:
    return entry[0], entry[1]
