"""Redrive: ready messages of a queue, mostly dead letters, return to the exchange they were first
published to.

A caller names messages by (sequence, message id), as a browse showed them. `look` predicts the
result for each; `move` carries it out. Each message moves whole or not at all: its removal from the
queue (SETTLED, reason SETTLED_BY_REDRIVE) and its entry into the others are in one block. A
repeated request moves it only once, because its sequence is no longer in the queue.

A moved message begins anew. It has the keys and the expiration of its first publish, counted from
now. History, counts and hops are removed, so that no cycle test and no limit stops it. The ledger
contains all of them, and a stamp that the caller adds to its notes names its origin.

Only ready messages move. The queue that a message leaves is none of its targets.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Final, final

from tallymark.engine.account import READY, SETTLED
from tallymark.engine.arguments import DROP_HEAD
from tallymark.engine.entrance import Entrance
from tallymark.engine.errors import Unsupported
from tallymark.engine.exchange import Exchange
from tallymark.engine.intervals import IntervalSet
from tallymark.engine.ledger import settled_record
from tallymark.engine.message import Slice
from tallymark.engine.names import named
from tallymark.engine.queue import Queue
from tallymark.engine.state import State
from tallymark.engine.subscription import subscriptions_of
from tallymark.engine.topology import Targets
from tallymark.engine.transactions import Transactions
from tallymark.stored import records
from tallymark.stored.annotations import Annotations, Death, Notes, Route
from tallymark.units import Ms

MOVED: Final = "moved"
GONE: Final = "gone"
"""Status: the message is no longer in the queue, or another message has its sequence."""
NOT_READY: Final = "not_ready"
"""Status: a consumer, a subscription or a transaction holds the message, or it is deferred or
pending."""
UNROUTABLE: Final = "unroutable"
"""Status: the exchange does not exist, or routes the message to no queue."""
UNREADABLE: Final = "unreadable"
"""Status: routing needs the message's bytes and they cannot be read. The message stays in its
queue."""
FULL: Final = "full"
"""Status: a target queue refuses the message because it is full."""
NO_LETTER: Final = "no_letter"
"""Status: the message was never dead-lettered, and the caller named no target."""
FORBIDDEN: Final = "forbidden"
"""Status: the caller may not publish to that exchange."""
REPEATED: Final = "repeated"
"""Status: an earlier call with the same run name moved the message, and it came back."""


@final
class Way:
    """A destination and the annotations that messages get there; shared by messages that are
    alike."""

    def __init__(
        self, exchange: str, keys: tuple[str, ...], ttl_ms: Ms, notes: Notes, is_home: bool
    ) -> None:
        self.exchange = exchange
        self.keys = keys
        self.ttl_ms = ttl_ms
        """Time to live of the messages themselves, ms; -1: none."""
        self.notes = notes
        """Notes that consumers and earlier redrives added to the messages."""
        self.is_home = is_home
        """True if the destination is the route that the messages' payloads name."""
        self.source: Exchange | None = None
        self.queues: list[Queue] | None = None
        """Target queues of all messages; None: not routed yet, or routing depends on message
        headers."""
        self.made: Annotations | None = None
        """Annotations of the messages after the move; None until they are made."""


@final
class Found:
    """The result of a redrive, actual or predicted, for one message that a caller named."""

    def __init__(self, sequence: int, id: int) -> None:
        self.sequence = sequence
        self.id = id
        self.status = GONE
        self.way: Way | None = None
        """Destination of the message, if the message is ready and its destination is known."""
        self.queues: list[Queue] = []
        """Queues that the message enters, if its status is MOVED or FULL."""
        self.lane = 0
        self.place = 0


@final
class Redrives:
    """The redrive operations."""

    def __init__(self, state: State, entrance: Entrance, transactions: Transactions) -> None:
        self._state = state
        self._clock = state.clock
        self._connections = state.connections
        self._ledger = state.ledger
        self._store = state.store
        self._vhosts = state.vhosts
        self._entrance = entrance
        self._transactions = transactions

    def look(
        self,
        queue: Queue,
        wanted: list[tuple[int, int]],
        exchange: str | None = None,
        key: str | None = None,
        done: Callable[[Notes], bool] | None = None,
    ) -> list[Found]:
        """Predict the result of `move` for messages (sequence, message id), in the given order:
        MOVED where `move` would try. Changes nothing. A target that fills up meanwhile is not
        foreseen.

        exchange: another target than that of the first publish, and `key` there (None: as first
        published). done: tells by a message's notes that it is not to be moved again.
        O(log ready) a message; O(ready) where something was put to the tail.

        Raises: Unsupported (a stream).
        """
        if queue.settings.is_stream:
            where = named("queue", queue.name, queue.vhost)
            raise Unsupported(f"redrive not supported by stream queues {where}")
        found = [Found(sequence, id) for sequence, id in wanted]
        ways: dict[tuple[int, int], Way | None] = {}
        alike: dict[tuple[object, ...], Way] = {}
        missing: list[Found] = []
        tails = _tails(queue, found) if queue.lanes.next_shift else {}
        for one in found:
            piece = self._find(queue, one, tails.get(one.sequence, one.sequence))
            if piece is None:
                missing.append(one)
                continue
            if _id_of(piece) != one.id:
                continue
            before, published = piece.annotations, _route_of(piece)
            mark = (id(before), id(published))
            if mark not in ways:
                way = self._way(queue, before, published, exchange, key)
                if way is not None:
                    kind = (way.exchange, way.keys, way.ttl_ms, way.notes, way.is_home)
                    way = alike.setdefault(kind, way)
                ways[mark] = way
            way = ways[mark]
            one.way = way
            if way is None:
                one.status = NO_LETTER
            elif done is not None and before is not None and done(before.notes):
                one.status = REPEATED
            else:
                self._see_queues(queue, one, way, piece)
        if missing:
            held = self._held(queue)
            for one in missing:
                if one.sequence in held:
                    one.status = NOT_READY
        return found

    def move(
        self, queue: Queue, found: list[Found], stamp: Callable[[Notes], Notes] | None = None
    ) -> None:
        """Carry out in the same turn what `look` returned, each message by itself, in order. A
        message that finds a target full gets the status FULL and stays.

        stamp: what their notes become.
        """
        spans: dict[int, list[tuple[int, int]]] = {}
        try:
            self._move_runs(queue, found, stamp, spans)
        finally:
            for lane, some in spans.items():
                some.sort()
                queue.lanes.by_priority[lane].cut_out(some)
        if queue.watched:
            self._state.agenda.mark(queue)  # what is its head now has a time of its own

    def _move_runs(
        self,
        queue: Queue,
        found: list[Found],
        stamp: Callable[[Notes], Notes] | None,
        spans: dict[int, list[tuple[int, int]]],
    ) -> None:
        """Publish messages to their targets and subtract them from the queue's counters. Their
        places in the queue are added to `spans`: (place, n) by lane."""
        at = 0
        asked: set[int] = set()
        while at < len(found):
            one = found[at]
            at += 1
            if one.status != MOVED:
                continue
            if one.sequence in asked:  # named twice
                one.status = GONE
                continue
            asked.add(one.sequence)
            n = 1
            while at < len(found) and _follows(found[at - 1], found[at]):
                asked.add(found[at].sequence)
                at += 1
                n += 1
            self._move_run(queue, found[at - n : at], stamp, spans)

    def _move_run(
        self,
        queue: Queue,
        run: list[Found],
        stamp: Callable[[Notes], Notes] | None,
        spans: dict[int, list[tuple[int, int]]],
    ) -> None:
        """Move messages with consecutive sequences that go the same way, one slice at a time."""
        way = run[0].way
        assert way is not None
        if way.made is None:
            way.made = self._made(way, stamp)
        at = 0
        while at < len(run):
            lane, place = run[at].lane, run[at].place
            piece = queue.lanes.by_priority[lane].at(place)
            assert piece is not None, (queue.name, place)
            n = min(len(piece), len(run) - at)
            for target in run[at].queues:
                if target.settings.guarded:  # it may have room for some of them
                    n = 1
            piece = piece.part(0, n)
            is_plain = Targets(run[at].queues).plain
            if not is_plain and not self._store.tried(piece.payload):
                for one in run[at : at + n]:
                    one.status = UNREADABLE
            elif self._fits(run[at].queues, piece):
                self._move(queue, piece, run[at].queues, way.made)
                spans.setdefault(lane, []).append((place, n))
            else:
                run[at].status = FULL
            at += n

    def _move(self, queue: Queue, piece: Slice, targets: list[Queue], made: Annotations) -> None:
        entrance = self._entrance
        payload = piece.payload
        n = len(piece)
        queue.account.move(piece, READY, SETTLED)
        self._store.use(payload, n * len(targets))
        for target in targets:
            kept = payload.persistent and target.stored
            if kept:
                entrance.keep(payload)
            entrance.enter(target, payload, piece.lo, piece.hi, made, kept, queue.id, piece.first)
        if queue.stored:
            self._ledger.emit(settled_record(queue.id, piece.first, n, records.SETTLED_BY_REDRIVE))
        self._store.finish(payload, n)

    # -- finding messages

    def oldest(self, queue: Queue, count: int) -> list[tuple[int, int]]:
        """Return (sequence, message id) of the ready messages that would be delivered next, at most
        so many. O(ready slices)."""
        found: list[tuple[int, int]] = []
        for lane in reversed(queue.lanes.by_priority):
            for piece in lane.slices():
                n = min(len(piece), count - len(found))
                found += [(piece.first + at, _id_of(piece, at)) for at in range(n)]
                if len(found) == count:
                    return found
        return found

    def _find(self, queue: Queue, one: Found, place: int) -> Slice | None:
        """Return the message as a slice of its own if it is ready; its lane and place are noted in
        `one`."""
        if not 0 < one.sequence <= queue.entered:
            return None
        for i, lane in enumerate(queue.lanes.by_priority):
            piece = lane.at(place)
            if piece is not None and piece.first == one.sequence:
                one.lane, one.place = i, place
                return piece.part(0, 1)
        return None

    def _held(self, queue: Queue) -> IntervalSet:
        """Return the sequences of messages that are in the queue and not ready. O(ranges)."""
        pieces = [entry.piece for entry in queue.deferrals]
        pieces += [letter.piece for letter in queue.letters]
        pieces += [lease.slice for s in subscriptions_of(queue) for lease in s.leases]
        entries = [e for c in self._connections.values() for s in c.sessions for e in s.inflight]
        for transaction in self._transactions.open.values():
            entries += [e for settlement in transaction.settlements for e in settlement.entries]
        for entry in entries:
            if entry.queue is queue and not entry.void:
                pieces += [entry.part(a, b) for a, b in entry.pieces(entry.first, entry.last)]
        held = IntervalSet()
        for piece in pieces:
            held.add(piece.first, piece.first + len(piece))
        return held

    # -- routing

    def _way(
        self,
        queue: Queue,
        before: Annotations | None,
        published: Route,
        exchange: str | None,
        key: str | None,
    ) -> Way | None:
        """Return the destination of messages with these annotations; None if they are no dead
        letters."""
        keys: tuple[str, ...] = (published.key,)
        home = None
        ttl_ms = -1
        death = None if before is None else _first_death(before)
        if death is not None:
            home, keys, ttl_ms = death.exchange, death.keys, death.ttl_ms
        elif before is not None:
            ttl_ms = before.ttl_ms
            place = published if before.route is None else before.route
            keys = (place.key, *before.more_keys[: len(before.more_keys) - len(before.bcc)])
        if exchange is not None:
            home = exchange
            if key is not None:
                keys = (key,)
        if home is None:
            return None
        is_home = (home, keys[0]) == (published.exchange, published.key)
        way = Way(home, keys, Ms(ttl_ms), () if before is None else before.notes, is_home)
        way.source = self._vhosts[queue.vhost].exchanges.get(home)
        return way

    def _see_queues(self, queue: Queue, one: Found, way: Way, piece: Slice) -> None:
        """Find the queues that one message would enter, provided its bytes can be read where
        routing depends on them."""
        by_headers = way.source is not None and (
            self._vhosts[queue.vhost].needs_headers(way.exchange)
        )
        if by_headers and not self._store.tried(piece.payload):
            one.status = UNREADABLE
            return
        one.queues = self._queues(queue, way, piece)
        one.status = MOVED if one.queues else UNROUTABLE

    def _queues(self, queue: Queue, way: Way, piece: Slice) -> list[Queue]:
        """Return the queues that one message enters."""
        if way.source is None:
            return []
        if way.queues is not None:
            return way.queues
        vhost = self._vhosts[queue.vhost]
        headers = None
        by_headers = vhost.needs_headers(way.exchange)
        if by_headers:
            payload = piece.payload
            headers = self._state.formats[payload.format].headers(payload, piece.lo)
        targets = vhost.route_from(way.source, list(way.keys), headers)
        queues = [target for target in targets.queues if target is not queue]
        if not by_headers:
            way.queues = queues
        return queues

    def _made(self, way: Way, stamp: Callable[[Notes], Notes] | None) -> Annotations:
        """Return the annotations of messages after the move."""
        return Annotations(
            ttl_ms=way.ttl_ms,
            more_keys=way.keys[1:],
            route=None if way.is_home else Route(way.exchange, way.keys[0]),
            since_ms=self._clock.now_ms,
            notes=way.notes if stamp is None else stamp(way.notes),
        )

    def _fits(self, targets: list[Queue], piece: Slice) -> bool:
        """Return whether every target that refuses messages when full has room [DL-6]."""
        entrance = self._entrance
        n = len(piece)
        for target in targets:
            settings = target.settings
            if not settings.guarded or settings.overflow == DROP_HEAD:
                continue
            size = 0
            if settings.max_bytes >= 0:
                entrance.weigh(piece.payload)
                size = piece.body_bytes()
            if entrance.room(target) < n or (
                entrance.room_bytes(target) < size and entrance.awaited(target) < n
            ):
                return False
        return True


def _follows(before: Found, after: Found) -> bool:
    """Return whether two messages may move together."""
    return (
        after.status == MOVED
        and after.way is before.way
        and after.sequence == before.sequence + 1
        and after.lane == before.lane
        and after.place == before.place + 1
        and after.queues == before.queues
    )


def _tails(queue: Queue, found: list[Found]) -> dict[int, int]:
    """Return the places of messages that were put to the tail, or entered after such messages, by
    sequence."""
    wanted = sorted({one.sequence for one in found})
    places: dict[int, int] = {}
    queue.unpack()
    for piece in queue.slices():
        at = bisect_left(wanted, piece.first)
        while at < len(wanted) and wanted[at] < piece.first + len(piece):
            places[wanted[at]] = wanted[at] + piece.shift
            at += 1
    return places


def _first_death(known: Annotations) -> Death | None:
    """Return the death that made the message a dead letter. The history is ordered by the newest
    death of each entry, so that this need not be the last entry."""
    if not known.deaths:
        return None
    first = known.first_death
    if first is not None:
        for death in reversed(known.deaths):
            if (death.reason, death.queue, death.exchange) == first:
                return death
    return known.deaths[-1]


def _route_of(piece: Slice) -> Route:
    payload = piece.payload
    return payload.route if payload.routes is None else payload.routes[piece.lo]


def _id_of(piece: Slice, at: int = 0) -> int:
    """Return the broker-wide id of the first message, or of that `at` places behind it."""
    payload = piece.payload
    pack = payload.pack
    return payload.first_id + piece.lo + at if pack is None else pack.ids[piece.lo + at]
