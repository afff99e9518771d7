"""Who is too slow: subscriptions to topics that hold more than their rules allow [SC].

A queue is a *subscription* here while it is bound to a topic exchange and only one may consume from
it: it is exclusive to its connection, or its consumer is [SC-1]. Nothing else is ever looked at.
`look` measures one; what comes of that is the business of policies, which the owner calls.
"""

from __future__ import annotations

from collections import deque
from typing import Final, final

from tallymark.engine.clock import Clock
from tallymark.engine.entrance import Entrance
from tallymark.engine.exchange import TOPIC
from tallymark.engine.message import Slice
from tallymark.engine.queue import Queue
from tallymark.engine.session import Consumer
from tallymark.engine.slow_rules import AGE, COUNT, DEPTH, RATE, Rule, Rules
from tallymark.engine.vhost import VirtualHost

NEAR_PERCENT: Final = 80
"""From so much of a limit on, a subscription is said to be near it [SC-D5]."""
WINDOW_MS: Final = 10_000
"""A rate counts what was settled in so long [SC-D4]."""
WEIGHED_SLICES: Final = 1024
"""A subscription in more pieces is weighed with the framing of its messages."""

FINE: Final = 0
NEAR: Final = 1
OVER: Final = 2


@final
class Watched:
    """A queue bound to a topic exchange, the rule that holds for it, and what was seen of it."""

    __slots__ = ("counts", "queue", "rule", "said")

    def __init__(self, queue: Queue, rule: Rule) -> None:
        self.queue = queue
        self.rule = rule
        self.said = FINE
        """What it was when it was looked at last."""
        self.counts: dict[int, deque[tuple[int, int]]] = {}
        """By consumer: (wall ms, how many it had settled), for its rate, oldest first."""


@final
class Reading:
    """What was measured of one subscription."""

    __slots__ = ("age_ms", "consumers", "count", "depth", "near", "over", "queue", "rate", "rule")

    def __init__(self, queue: Queue, rule: Rule, consumers: list[Consumer]) -> None:
        self.queue = queue
        self.rule = rule
        self.consumers = consumers
        self.depth = 0
        """Bytes of message bodies, ready and unsettled."""
        self.count = 0
        self.age_ms = 0
        """Since the oldest of them arrived; 0 where there is none."""
        self.rate = -1.0
        """Messages settled per second by the slowest consumer; below 0: not known."""
        self.over: list[str] = []
        """Limits it is above, or for the rate below."""
        self.near: list[str] = []
        """Limits it has reached NEAR_PERCENT of."""

    @property
    def state(self) -> int:
        """FINE, NEAR or OVER."""
        return OVER if self.over else NEAR if self.near else FINE

    def values(self) -> dict[str, object]:
        """For logs and the ledger: measures, limits and who."""
        rule = self.rule
        shown: dict[str, object] = {
            "vhost": self.queue.vhost,
            "queue": self.queue.name,
            "consumers": [consumer.tag for consumer in self.consumers],
            "depth": self.depth,
            "count": self.count,
            "age_ms": self.age_ms,
            "limits": {
                name: limit
                for name, limit in (
                    (DEPTH, rule.depth), (AGE, rule.age), (COUNT, rule.count), (RATE, rule.rate),
                )
                if limit > 0
            },
        }  # fmt: skip
        if self.rate >= 0:
            shown["rate"] = round(self.rate, 3)
        if self.over:
            shown["over"] = self.over
        if self.near:
            shown["near"] = self.near
        return shown


@final
class SlowConsumers:
    """Knows the subscriptions of all virtual hosts, and measures them."""

    __slots__ = ("_clock", "_entrance", "_known", "_vhosts", "rules")

    def __init__(
        self, clock: Clock, vhosts: dict[str, VirtualHost], entrance: Entrance
    ) -> None:
        self._clock = clock
        self._vhosts = vhosts
        self._entrance = entrance
        self.rules = Rules()
        """Set it to a new object to change it: in effect with the next look."""
        self._known: dict[str, tuple[int, Rules, dict[int, Watched]]] = {}
        """By virtual host: the generation and the rules its subscriptions were found with."""

    def watched(self) -> list[Watched]:
        """Every queue that is bound to a topic exchange and has a rule. O(1) for each virtual host
        of which nothing was changed."""
        found: list[Watched] = []
        for vhost in self._vhosts.values():
            known = self._known.get(vhost.name)
            if known is None or known[0] != vhost.generation or known[1] is not self.rules:
                before = {} if known is None else known[2]
                known = (vhost.generation, self.rules, self._find(vhost, before))
                self._known[vhost.name] = known
            found += known[2].values()
        for name in list(self._known):
            if name not in self._vhosts:
                del self._known[name]
        return found

    def _find(self, vhost: VirtualHost, before: dict[int, Watched]) -> dict[int, Watched]:
        keys: dict[int, list[str]] = {}
        queues: dict[int, Queue] = {}
        for binding in vhost.bindings():
            queue = binding.queue
            if queue is not None and binding.source.routes_as == TOPIC:
                keys.setdefault(queue.id, []).append(binding.key)
                queues[queue.id] = queue
        found: dict[int, Watched] = {}
        for id, queue in queues.items():
            rule = self.rules.rule_of(queue, keys[id])
            if rule is not None:
                watched = found[id] = Watched(queue, rule)
                old = before.get(id)
                if old is not None:
                    watched.said, watched.counts = old.said, old.counts
        return found

    def look(self, watched: Watched) -> Reading | None:
        """Measure one; None: it holds nothing, or is nobody's subscription now."""
        queue = watched.queue
        count = queue.ready + queue.acquired
        consumers = queue.consumers
        if not count or queue.deleted or not consumers:
            watched.said = FINE
            if watched.counts:
                watched.counts.clear()
            return None
        if not (queue.exclusive_owner or consumers[0].exclusive):
            return None
        rule = watched.rule
        reading = Reading(queue, rule, list(consumers))
        reading.count = count
        _judge(reading, COUNT, count, rule.count)
        reading.depth = queue.ready_bytes + queue.acquired_bytes
        if rule.depth > 0:
            if reading.depth * 100 >= rule.depth * NEAR_PERCENT:
                reading.depth = self._body_bytes(queue, consumers)
            _judge(reading, DEPTH, reading.depth, rule.depth)
        if rule.age > 0:
            reading.age_ms = max(0, self._clock.now_ms - _oldest(queue, consumers))
            _judge(reading, AGE, reading.age_ms, rule.age)
        if rule.rate > 0:
            self._judge_rate(watched, reading)
        return reading

    def _body_bytes(self, queue: Queue, consumers: list[Consumer]) -> int:
        pieces = _held(queue, consumers)
        if len(pieces) + sum(len(lane.fresh) + len(lane.returned) for lane in queue.lanes) > (
            WEIGHED_SLICES
        ):
            return queue.ready_bytes + queue.acquired_bytes
        queue.unpack()
        pieces += queue.slices()
        if len(pieces) > WEIGHED_SLICES:
            return queue.ready_bytes + queue.acquired_bytes
        total = 0
        for piece in pieces:
            self._entrance.weigh(piece.payload)
            total += piece.body_bytes()
        return total

    def _judge_rate(self, watched: Watched, reading: Reading) -> None:
        """Its slowest consumer, of those that want messages and have some to settle."""
        now = self._clock.now_ms
        counts = watched.counts
        for id in [id for id in counts if all(c.id != id for c in reading.consumers)]:
            del counts[id]
        for consumer in reading.consumers:
            wants = consumer.session.flow and (consumer.unacked > 0 or consumer.limit > 0)
            if not wants:
                counts.pop(consumer.id, None)
                continue
            seen = counts.get(consumer.id)
            if seen is None:
                seen = counts[consumer.id] = deque()
            done = consumer.delivered if consumer.no_ack else consumer.settled
            seen.append((now, done))
            while len(seen) > 2 and seen[1][0] <= now - WINDOW_MS:
                seen.popleft()
            elapsed = now - seen[0][0]
            if elapsed < WINDOW_MS:
                continue
            rate = (done - seen[0][1]) * 1000 / elapsed
            if reading.rate < 0 or rate < reading.rate:
                reading.rate = rate
        if reading.rate < 0:
            return
        least = reading.rule.rate
        if reading.rate < least:
            reading.over.append(RATE)
        elif reading.rate * NEAR_PERCENT <= least * 100:
            reading.near.append(RATE)


def _judge(reading: Reading, name: str, value: int, limit: int) -> None:
    """Above the limit, not at it [SC-3]."""
    if limit <= 0:
        return
    if value > limit:
        reading.over.append(name)
    elif value * 100 >= limit * NEAR_PERCENT:
        reading.near.append(name)


def _held(queue: Queue, consumers: list[Consumer]) -> list[Slice]:
    """What the sessions of the consumers hold of the queue."""
    pieces: list[Slice] = []
    for session in {consumer.session.id: consumer.session for consumer in consumers}.values():
        for entry in session.inflight:
            if entry.queue is queue and not entry.void:
                pieces += [entry.part(a, b) for a, b in entry.pieces(entry.first, entry.last)]
    return pieces


def _oldest(queue: Queue, consumers: list[Consumer]) -> int:
    """When the oldest message arrived that is ready or unsettled; wall time, ms."""
    times = [piece.entered_ms() for piece in _held(queue, consumers)]
    for lane in queue.lanes:
        head = lane.head()
        if head is not None:
            times.append(head.entered_ms())
    return min(times)
