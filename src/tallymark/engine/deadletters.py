"""Dead letters: the way from the queue in which a message died to its targets.

A letter is the same bytes with other annotations. Source and target share one journal and a turn is
one block, so the move is atomic and makes no duplicates, whatever the strategy: DEAD_LETTERED in
the source and ENTERED in each target stand in one block, or neither does.

What the strategy decides is what becomes of a letter that nothing takes (no exchange, no route,
only cycles, or every target full): by default it is dropped and counted [DL-15]; with at-least-once
it stays pending in its source, see pending.py.
"""

from __future__ import annotations

from collections import deque
from typing import Final, final

from tallymark.engine.account import DEAD_LETTERED
from tallymark.engine.arguments import DROP_HEAD, REJECT_PUBLISH_DLX
from tallymark.engine.deaths import after_death, is_cycle
from tallymark.engine.effects import Signal
from tallymark.engine.entrance import Entrance
from tallymark.engine.exchange import Exchange
from tallymark.engine.ledger import dead_lettered_record
from tallymark.engine.message import NOWHERE, Slice
from tallymark.engine.pending import PendingLetters
from tallymark.engine.quarantine import Quarantine
from tallymark.engine.queue import Queue
from tallymark.engine.queue_parts import Letter
from tallymark.engine.state import State
from tallymark.engine.topology import Targets
from tallymark.stored import records
from tallymark.stored.annotations import Annotations, Route, death_headers, keys_of
from tallymark.units import EngineMs

HOP_LIMIT_HEADER: Final = b"x-opt-dead-letter-hop-limit"
CYCLES_TOLD: Final = 10_000
"""Number of distinct cycles remembered, so that each is logged once."""
ROUTES_KEPT: Final = 4096
ADDRESSES_KEPT: Final = 4096

PASSED_ON: Final = 4096
PASSED_ON_EACH: Final = 64
"""Budget for letters that full queues with reject-publish-dlx dead-letter again, per cause: this
number plus this number for each message. Where each of n such queues leads to all others, one
message would make n! letters in one turn."""

DISABLED: Final = "disabled"
AT_MOST_ONCE: Final = "at_most_once"
AT_LEAST_ONCE: Final = "at_least_once"
CONFIRMED: Final = "confirmed"

_DROPPED: Final = {
    records.DEAD_REJECTED: records.DROPPED_REJECTED,
    records.DEAD_EXPIRED: records.DROPPED_EXPIRED,
    records.DEAD_MAXLEN: records.DROPPED_MAXLEN,
    records.DEAD_DELIVERY_LIMIT: records.DROPPED_DELIVERY_LIMIT,
}
"""Reasons for dropping a message that has no dead-letter exchange, by reason of death."""


@final
class Address:
    """The destination and the new annotations of letters that died alike. It holds `exchange`,
    `before` and `published`, so that their identities, by which it is found, are not reused."""

    def __init__(
        self,
        annotations: Annotations,
        exchange: Exchange,
        keys: list[str],
        before: Annotations | None,
        published: Route,
    ) -> None:
        self.annotations = annotations
        self.exchange = exchange
        self.keys = keys
        self.before = before
        self.published = published


@final
class DeadLetters:
    """The dead-letter operations."""

    def __init__(
        self, state: State, entrance: Entrance, pending: PendingLetters, quarantine: Quarantine
    ) -> None:
        self._state = state
        self._store = state.store
        self.clock = state.clock
        self.formats = state.formats
        self.vhosts = state.vhosts
        self.ledger = state.ledger
        self.effects = state.effects
        self.entrance = entrance
        self._quarantine = quarantine
        self.death_form = 3
        """Stored form of the history of a first death [DL-19]."""
        self.counts: dict[tuple[str, str], int] = {}
        """Count of messages by (strategy, reason or "confirmed") [DL-8]."""
        self.pending = pending
        """Letters that no target takes for now."""
        self._routes: dict[tuple[str, str], Route] = {}
        self._made: dict[tuple[object, ...], Address] = {}
        """Addresses made at `_made_ms`, shared by letters that died alike."""
        self._made_ms = EngineMs(0)
        self._todo: deque[tuple[Queue, list[Slice], int]] = deque()
        self._busy = False
        self._may_pass_on = 0
        """Count of letters that full queues may still dead-letter again; at 0 they refuse them."""
        self._shares = False
        """True if several causes share that budget."""
        self._cycles: set[tuple[str, str, str, str]] = set()

    # -- from a queue

    def bury(self, queue: Queue, pieces: list[Slice], reason: int) -> None:
        """Dead-letter messages that are no longer ready or acquired, for `reason` (DEAD_*), in this
        order [DL-7]. Account, records and letters are updated here."""
        self._todo.append((queue, pieces, reason))
        if self._busy:
            return  # a letter that its target refused: it is handled after those before it
        self._busy = True
        if not self._shares:
            self.limit_cascade(sum([len(piece) for piece in pieces]), False)
        try:
            while self._todo:
                source, dead, why = self._todo.popleft()
                self._bury(source, dead, why)
        finally:
            self._busy = False  # bytes that cannot be read cost one client, not all later letters

    def limit_cascade(self, n: int, shares: bool) -> None:
        """Set the budget for letters that full queues dead-letter again, before n messages die or
        are retried. shares: all causes until the next call share it."""
        self._may_pass_on = PASSED_ON + PASSED_ON_EACH * n
        self._shares = shares

    def _bury(self, queue: Queue, pieces: list[Slice], reason: int) -> None:
        settings = queue.settings
        exchange = self.exchange_of(queue)
        if exchange is None and not settings.at_least_once:
            for piece in pieces:
                self.lose(queue, piece, reason)
            return
        strategy = AT_LEAST_ONCE if settings.at_least_once else AT_MOST_ONCE
        for whole in pieces:
            self._count(strategy, records.DEATHS[reason], len(whole))
            for piece in _by_route(whole):
                for left in self.send(queue, exchange, Letter(piece, reason, self._now(), [])):
                    self.pending.keep(queue, left)

    def resume(self, queue: Queue, letter: Letter) -> None:
        """Continue with letters whose bytes can be read again; they could not when the messages
        died."""
        exchange = self.exchange_of(queue)
        if exchange is None and not queue.settings.at_least_once:
            self.lose(queue, letter.piece, letter.reason)
            return
        self.limit_cascade(len(letter.piece), True)
        for left in self.send(queue, exchange, letter):
            self.pending.keep(queue, left)
        self.limit_cascade(0, False)

    def lose(self, queue: Queue, piece: Slice, reason: int) -> None:
        """Drop messages that died in a queue without a dead-letter exchange [DL-8]."""
        self._count(DISABLED, records.DEATHS[reason], len(piece))
        self._state.drop(queue, piece, _DROPPED[reason])

    # -- to its targets

    def send(self, queue: Queue, exchange: Exchange | None, letter: Letter) -> list[Letter]:
        """Send letters of one route to their targets; return the ones that stay pending by the
        strategy. Letters that must be read for this and cannot be are quarantined whole."""
        if exchange is None:
            return [letter]
        known = letter.piece.annotations
        left = -1 if known is None else known.hops
        hop_limit = queue.settings.hop_limit
        if hop_limit < 0:
            return self._deliver(queue, self._address(queue, exchange, letter, left), letter)
        parts = [letter]
        lefts = [left]
        if left < 0:
            if not self._has_read(queue, letter):
                return []
            parts, lefts = self._by_hop_limit(letter, hop_limit)
        kept: list[Letter] = []
        for part, left in zip(parts, lefts, strict=True):
            if left == 0:
                self._end(queue, part, records.DROPPED_HOP_LIMIT)
            else:
                address = self._address(queue, exchange, part, left - 1)
                kept += self._deliver(queue, address, part)
        return kept

    def _by_hop_limit(self, letter: Letter, limit: int) -> tuple[list[Letter], list[int]]:
        """Split a letter by remaining hops: those set by the senders, or the queue's."""
        piece = letter.piece
        payload = piece.payload
        raw = payload.raw
        assert raw is not None
        if HOP_LIMIT_HEADER not in raw:
            return [letter], [limit]
        reader = self.formats[payload.format]
        parts: list[Letter] = []
        limits: list[int] = []
        for i in range(len(piece)):
            own = reader.hop_limit(payload, piece.lo + i)
            hops = limit if own < 0 else own
            if limits and limits[-1] == hops:
                parts[-1].piece.hi += 1
            else:
                parts.append(letter.part(i, i + 1))
                limits.append(hops)
        return parts, limits

    def _address(self, queue: Queue, exchange: Exchange, letter: Letter, hops: int) -> Address:
        """Return the destination and the new annotations of a letter."""
        now = self._now()
        if now != self._made_ms:
            self._made.clear()
            self._made_ms = now
        piece = letter.piece
        known = piece.annotations
        published = _route_of(piece)
        # Counts travel once a queue that shows them was on the way [DL-5].
        failed = acquired = 0
        if queue.shows_counts or (known is not None and known.failed + known.acquired > 0):
            failed, acquired = piece.failed, piece.acquired
        key = (
            queue.id, letter.reason, id(known), id(published), acquired, failed, hops,
            letter.died_ms, self.clock.ahead_ms, id(exchange), queue.settings.dead_letter_key,
        )  # fmt: skip
        found = self._made.get(key)
        if found is not None:
            return found
        if len(self._made) >= ADDRESSES_KEPT:
            self._made.clear()
        override = queue.settings.dead_letter_key
        keys = keys_of(known, published) if override is None else [override]
        made = after_death(
            known, published, queue.name, records.DEATHS[letter.reason], exchange.name, override,
            self.clock.to_wall(letter.died_ms), failed, acquired, self.death_form,
            queue.settings.hop_limit < 0, hops, self._route(exchange.name, keys[0]),
        )  # fmt: skip
        made.since_ms = now
        address = Address(made, exchange, keys, known, published)
        self._made[key] = address
        return address

    def _route(self, exchange: str, key: str) -> Route:
        """Return one object per route, so that the readers' templates are found by identity."""
        route = self._routes.get((exchange, key))
        if route is None:
            if len(self._routes) >= ROUTES_KEPT:
                self._routes.clear()
            route = self._routes[(exchange, key)] = Route(exchange, key)
        return route

    def _deliver(self, queue: Queue, address: Address, letter: Letter) -> list[Letter]:
        """Route letters of one address; letters routed by their headers are routed one by one.
        Returns the letters that stay pending."""
        vhost = self.vhosts[queue.vhost]
        piece = letter.piece
        if not vhost.needs_headers(address.exchange.name):
            targets = vhost.route_from(address.exchange, address.keys, None)
            return self._hand_over(queue, address, letter, targets)
        payload = piece.payload
        if not self._has_read(queue, letter):
            return []
        reader = self.formats[payload.format]
        more = death_headers(address.annotations)
        kept: list[Letter] = []
        for i in range(len(piece)):
            headers = reader.headers(payload, piece.lo + i)
            headers.update(more)
            targets = vhost.route_from(address.exchange, address.keys, headers)
            one = letter if len(piece) == 1 else letter.part(i, i + 1)
            kept += self._hand_over(queue, address, one, targets)
        return kept

    def _hand_over(
        self, queue: Queue, address: Address, letter: Letter, targets: Targets
    ) -> list[Letter]:
        """Add letters to those target queues that may have them; return the letters that stay
        pending."""
        piece = letter.piece
        allowed = targets.queues
        if letter.reason != records.DEAD_REJECTED and queue.settings.hop_limit < 0:
            deaths = address.annotations.deaths
            allowed = [target for target in allowed if not is_cycle(deaths, target.name)]
            if len(allowed) < len(targets.queues):
                self._tell_cycle(queue, letter, address, targets.queues, allowed)
        if not allowed and not letter.have:
            if queue.settings.at_least_once:
                return [letter]
            why = records.DROPPED_CYCLE if targets.queues else records.DROPPED_UNROUTABLE
            self._end(queue, letter, why)
            return []
        wanting = allowed
        if letter.have:
            have = set(letter.have)
            wanting = [target for target in allowed if target.name not in have]
        for target in wanting:
            if _looks_inside(target, piece) and not self._has_read(queue, letter):
                return []
        if len(piece) > 1:
            for target in wanting:
                if target.settings.guarded:
                    return self._hand_over_singly(queue, address, letter, targets)
        is_missed = False
        for target in wanting:
            if self._enter(queue, target, address, piece):
                letter.have.append(target.name)
            else:
                is_missed = True
        if is_missed and queue.settings.at_least_once:
            return [letter]
        if letter.have:
            self._complete(queue, letter)
        else:
            self._end(queue, letter, records.DROPPED_REFUSED)
        return []

    def _has_read(self, queue: Queue, letter: Letter) -> bool:
        """Load the letters' bytes; False: they cannot be read, and the letters are quarantined in
        their queue. Called before any target has them."""
        if self._store.tried(letter.piece.payload):
            return True
        self._quarantine.put(queue, letter.piece, letter)
        return False

    def _hand_over_singly(
        self, queue: Queue, address: Address, letter: Letter, targets: Targets
    ) -> list[Letter]:
        kept: list[Letter] = []
        for i in range(len(letter.piece)):
            kept += self._hand_over(queue, address, letter.part(i, i + 1), targets)
        return kept

    def _enter(self, queue: Queue, target: Queue, address: Address, piece: Slice) -> bool:
        """Add the letters to one target, or return False if it is full. A deduplication id seen
        before is no reason to refuse: a message that comes back is the same message."""
        entrance = self.entrance
        payload = piece.payload
        n = len(piece)
        kept = payload.persistent and target.stored
        if target.settings.guarded and target.settings.overflow != DROP_HEAD:
            size = 0
            if target.settings.max_bytes >= 0:
                entrance.weigh(payload)
                size = piece.body_bytes()
            if entrance.room(target) < n or (
                entrance.room_bytes(target) < size and entrance.awaited(target) < n
            ):
                if target.settings.overflow != REJECT_PUBLISH_DLX or self._may_pass_on <= 0:
                    return False
                self._pass_on(target, address, piece, kept, queue.id)
                return True
        self._store.use(payload, n)
        if kept:
            entrance.keep(payload)
        entrance.enter(
            target, payload, piece.lo, piece.hi, address.annotations, kept, queue.id, piece.first
        )
        return True

    def _pass_on(
        self, target: Queue, address: Address, piece: Slice, kept: bool, source: int
    ) -> None:
        """Dead-letter the letters again at once, from a full target with reject-publish-dlx
        [DL-6]."""
        entrance = self.entrance
        payload = piece.payload
        self._may_pass_on -= len(piece)
        self._store.use(payload, len(piece))
        if kept:
            entrance.keep(payload)
        first = target.account.enter_moving(len(piece))
        entrance.record(
            target, first, payload, piece.lo, piece.hi, 0, address.annotations, kept, source,
            piece.first,
        )  # fmt: skip
        again = Slice(payload, piece.lo, piece.hi, first, 0, 0, 0, address.annotations)
        self.bury(target, [again], records.DEAD_MAXLEN)

    # -- the end

    def _complete(self, queue: Queue, letter: Letter) -> None:
        """Count the letters as dead-lettered, now that every possible target has them."""
        piece = letter.piece
        payload = piece.payload
        n = len(piece)
        queue.account.end(n, DEAD_LETTERED)
        if queue.settings.at_least_once:
            self._count(AT_LEAST_ONCE, CONFIRMED, n)
        if queue.stored:
            is_kept = payload.persistent and payload.position != NOWHERE
            self.ledger.emit(
                dead_lettered_record(
                    queue.id, piece.first, n, letter.reason, payload if is_kept else None,
                    piece.lo, self._is_told(queue, letter.have),
                )
            )  # fmt: skip
        self._store.finish(payload, n)

    def _is_told(self, queue: Queue, names: list[str]) -> bool:
        """Return whether one of these targets has rows of its own in the ledger."""
        queues = self.vhosts[queue.vhost].queues
        for name in names:
            target = queues.get(name)
            if target is not None and target.stored:
                return True
        return False

    def _end(self, queue: Queue, letter: Letter, reason: int) -> None:
        """Drop letters that no target takes and the strategy does not keep [DL-15]. They get a
        ledger row but no log line, as there may be very many."""
        self._state.drop(queue, letter.piece, reason)

    def _tell_cycle(
        self,
        queue: Queue,
        letter: Letter,
        address: Address,
        targets: list[Queue],
        allowed: list[Queue],
    ) -> None:
        """Log each distinct cycle once; every dropped message has its row in the ledger [DL-D2]."""
        if len(self._cycles) >= CYCLES_TOLD:
            return
        reason = records.DEATHS[letter.reason]
        spared = {target.id for target in allowed}
        for target in targets:
            if target.id in spared:
                continue
            cycle = (queue.vhost, queue.name, reason, target.name)
            if cycle not in self._cycles and len(self._cycles) < CYCLES_TOLD:
                self._cycles.add(cycle)
                names = [death.queue for death in address.annotations.deaths]
                self.effects.append(
                    Signal(
                        "dead_letter.cycle",
                        {
                            "vhost": queue.vhost,
                            "queue": queue.name,
                            "reason": reason,
                            "target": target.name,
                            "history": names,
                        },
                    )
                )

    def exchange_of(self, queue: Queue) -> Exchange | None:
        name = queue.settings.dead_letter_exchange
        return None if name is None else self.vhosts[queue.vhost].exchanges.get(name)

    def _count(self, strategy: str, what: str, n: int) -> None:
        key = (strategy, what)
        self.counts[key] = self.counts.get(key, 0) + n

    def _now(self) -> EngineMs:
        return self.clock.now_ms


def _looks_inside(target: Queue, piece: Slice) -> bool:
    """Return whether letters must be read before they enter this queue."""
    settings = target.settings
    if settings.is_stream:
        return not piece.payload.persistent
    return settings.max_priority > 0 or (
        piece.payload.bodies is None and (settings.max_bytes >= 0 or target.account.body_bytes >= 0)
    )


def _route_of(piece: Slice) -> Route:
    """Return the route under which the messages were published; they share one."""
    payload = piece.payload
    return payload.route if payload.routes is None else payload.routes[piece.lo]


def _by_route(piece: Slice) -> list[Slice]:
    """Split the slice into stretches of one route each."""
    routes = piece.payload.routes
    if routes is None or len(piece) == 1:
        return [piece]
    out = []
    start = piece.lo
    for i in range(piece.lo + 1, piece.hi + 1):
        if i == piece.hi or routes[i] is not routes[start]:
            out.append(piece.part(start - piece.lo, i - piece.lo))
            start = i
    return out
