"""Slow consumers: measurement of the subscriptions to topics that hold more than their rules allow
[SC].

A queue is a *subscription* here while it is bound to a topic exchange and only one connection or
consumer may use it: it is exclusive to its connection, or its consumer is exclusive [SC-1]. Other
queues are never measured. `look` measures one subscription; slow/actions.py, which the owner calls,
acts on the result.

A subscription without changes costs a comparison: `due` returns the queues to which something has
happened since their last measurement, or whose messages are about to exceed the limit on age.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from typing import Final, final

from tallymark.engine.clock import NEVER
from tallymark.engine.consumers import figures
from tallymark.engine.entrance import Entrance
from tallymark.engine.exchange import TOPIC
from tallymark.engine.inflight import add_held
from tallymark.engine.message import Slice
from tallymark.engine.queue import Queue
from tallymark.engine.queue_consumers import consumers_of
from tallymark.engine.quotas import WINDOW_MS
from tallymark.engine.session import Consumer
from tallymark.engine.slow.rules import AGE, COUNT, DEPTH, RATE, Rule, Rules
from tallymark.engine.state import State
from tallymark.engine.transactions import Transactions
from tallymark.engine.vhost import VirtualHost
from tallymark.units import EngineMs, Ms

NEAR_PERCENT: Final = 80
"""Percentage of a limit at which a subscription is reported as near it [SC-D5]."""
SAMPLE_MS: Final = 1_000
"""Interval between two samples of a consumer's progress where a rate is required, ms."""
SAMPLED: Final = 8
"""Number of messages of a packed slice whose framing is measured. All messages are assumed to have
as much framing as the largest of these, so that an estimate never makes a consumer slow."""

FINE: Final = 0
NEAR: Final = 1
OVER: Final = 2


@final
class Watched:
    """A queue bound to a topic exchange, the rule that applies to it, and its last measurement."""

    def __init__(self, queue: Queue, keys: list[str], rule: Rule) -> None:
        self.queue = queue
        self.keys = keys
        """Binding keys of the queue on topic exchanges."""
        self.settings = queue.settings
        """Settings of the queue at the time the rule was determined."""
        self.rule = rule
        self.state = FINE
        """State found by the last measurement: FINE, NEAR or OVER."""
        self.reading: Reading | None = None
        """Reading of the last measurement; None if the state was FINE."""
        self.samples: dict[int, deque[Sample]] = {}
        """Samples of each consumer's progress, by consumer id, oldest first, since it last had kept
        up."""
        # Values at the last measurement:
        self.entered = self.count = self.comings = -1
        self.due_ms = EngineMs(0)
        """Time from which the state can change without any event, engine time, ms."""
        self.young_ms = EngineMs(0)
        """Time before which no message is near the limit on age, engine time, ms."""

    def forget(self) -> None:
        """Make the queue due for a new measurement, whether or not anything happens to it."""
        self.due_ms = EngineMs(0)


@final
class Sample:
    """A consumer's progress at one moment."""

    def __init__(self, at_ms: EngineMs, done: int, entered: int) -> None:
        self.at_ms = at_ms
        self.done = done
        """Messages settled by the consumer so far."""
        self.entered = entered
        """Messages that had entered the queue so far."""


@final
class Reading:
    """A measurement of one subscription."""

    def __init__(self, queue: Queue, rule: Rule, consumers: list[Consumer]) -> None:
        self.queue = queue
        self.rule = rule
        self.consumers = consumers
        """Consumers of the subscription; at least one."""
        self.count = messages_of(queue)
        """Count of messages ready and unsettled."""
        self.depth = (
            queue.account.ready_bytes + queue.account.acquired_bytes + queue.account.staged_bytes
        )
        """Body bytes of these messages; framing is included while the value is far from the
        limit."""
        self.age_ms = Ms(0)
        """Age of the oldest of these messages, ms."""
        self.rate = -1.0
        """Messages settled per second by the slowest consumer; below 0: not known."""
        self.over: list[str] = []
        """Names of the limits that are exceeded; for the rate: undercut."""
        self.near: list[str] = []
        """Names of the limits that are used to NEAR_PERCENT or more."""

    @property
    def state(self) -> int:
        """FINE, NEAR or OVER."""
        return OVER if self.over else NEAR if self.near else FINE

    def values(self, now_ms: EngineMs) -> dict[str, object]:
        """Return measures, limits and names of those involved, for logs and the ledger."""
        consumer = self.consumers[0]
        connection = consumer.session.connection
        shown: dict[str, object] = {
            "vhost": self.queue.vhost,
            "queue": self.queue.name,
            "connection": connection.name,
            "user": connection.user,
            DEPTH: self.depth,
            COUNT: self.count,
            "age_ms": self.age_ms,
        }
        if self.rate >= 0:
            shown[RATE] = round(self.rate, 3)
        if self.over:
            shown["over"] = self.over
        if self.near:
            shown["near"] = self.near
        shown["limits"] = self.rule.limits()
        shown["consumers"] = [figures(one, now_ms) for one in self.consumers]
        return shown


@final
class _Known:
    """The subscriptions of one virtual host, and the topology and rules they were found with."""

    def __init__(self, generation: int, rules: Rules, watched: dict[int, Watched]) -> None:
        self.generation = generation
        self.rules = rules
        self.watched = watched


@final
class SlowConsumers:
    """Finds and measures the subscriptions of all virtual hosts."""

    def __init__(self, state: State, entrance: Entrance, transactions: Transactions) -> None:
        self._clock = state.clock
        self._transactions = transactions
        self._vhosts = state.vhosts
        self._connections = state.connections
        self._entrance = entrance
        self.rules = Rules()
        """Rules in effect. A change assigns a new object, which applies from the next measurement
        on."""
        self._known: dict[str, _Known] = {}
        """Subscriptions by virtual host."""
        self.walked = 0
        """Count of slices examined so far: the cost of measuring."""

    # -- subscriptions

    def watched(self) -> list[Watched]:
        """Return all queues that are bound to a topic exchange and have a rule."""
        found: list[Watched] = []
        for known in self._up_to_date():
            found += known.watched.values()
        return found

    def due(self) -> list[Watched]:
        """Return the subscriptions whose state may have changed since the last measurement."""
        now = self._clock.now_ms
        found: list[Watched] = []
        for known in self._up_to_date():
            for one in known.watched.values():
                queue = one.queue
                if (
                    queue.entered != one.entered
                    or messages_of(queue) != one.count
                    or queue.comings != one.comings
                    or now >= one.due_ms
                ):
                    found.append(one)
        return found

    def _up_to_date(self) -> list[_Known]:
        """Return the subscriptions of all virtual hosts, found anew where needed. O(virtual hosts)
        if no declaration or binding changed, else O(their bindings)."""
        for name in [name for name in self._known if name not in self._vhosts]:
            del self._known[name]
        for vhost in self._vhosts.values():
            known = self._known.get(vhost.name)
            if (
                known is None
                or known.generation != vhost.generation
                or known.rules is not self.rules
            ):
                self._known[vhost.name] = self._find(vhost, known)
        return list(self._known.values())

    def _find(self, vhost: VirtualHost, before: _Known | None) -> _Known:
        keys: dict[int, list[str]] = {}
        queues: dict[int, Queue] = {}
        for exchange in vhost.exchanges.values():
            if exchange.routes_as != TOPIC:
                continue
            for binding in exchange.bindings.values():
                queue = binding.queue
                if queue is not None:
                    keys.setdefault(queue.id, []).append(binding.key)
                    queues[queue.id] = queue
        rules = self.rules
        found: dict[int, Watched] = {}
        for id, queue in queues.items():
            old = before.watched.get(id) if before is not None else None
            if (
                old is not None
                and before is not None
                and before.rules is rules
                and old.settings is queue.settings
                and old.keys == keys[id]
            ):
                found[id] = old
                continue
            rule = rules.rule_of(queue.name, queue.settings.slow_rule, keys[id])
            if rule is not None:
                one = found[id] = Watched(queue, keys[id], rule)
                if old is not None:
                    one.state, one.reading, one.samples = old.state, old.reading, old.samples
        return _Known(vhost.generation, rules, found)

    def is_subscription(self, queue: Queue) -> bool:
        """Return whether the queue is bound to a topic exchange and only one connection or consumer
        may consume from it [SC-1]."""
        vhost = self._vhosts.get(queue.vhost)
        if vhost is None or queue.deleted or not _owners(queue):
            return False
        return any(b.source.routes_as == TOPIC for b in vhost.topology.inbound.get(queue.id, ()))

    # -- measurement

    def look(self, watched: Watched) -> Reading | None:
        """Measure one subscription and remember its state. Returns None if it holds nothing or is
        no longer a subscription."""
        queue = watched.queue
        watched.entered, watched.comings = queue.entered, queue.comings
        watched.count = messages_of(queue)
        watched.due_ms = NEVER
        consumers = [] if queue.deleted or not watched.count else _owners(queue)
        if not consumers:
            watched.state, watched.reading = FINE, None
            watched.samples.clear()
            return None
        rule = watched.rule
        reading = Reading(queue, rule, consumers)
        _judge(reading, COUNT, reading.count, rule.count)
        if rule.depth > 0:
            if reading.depth * 100 >= rule.depth * NEAR_PERCENT:
                reading.depth = self._body_bytes(queue, rule.depth)
            _judge(reading, DEPTH, reading.depth, rule.depth)
        if rule.rate > 0:
            self._judge_rate(watched, reading)
            watched.due_ms = EngineMs(self._clock.now_ms + SAMPLE_MS)
        if rule.age > 0 or reading.state != FINE:
            self._judge_age(watched, reading)
        watched.state = reading.state
        watched.reading = None if watched.state == FINE else reading
        return reading

    def _held(self, queue: Queue) -> list[Slice]:
        """Return the queue's messages that sessions hold unsettled, or settled in an open
        transaction."""
        pieces: list[Slice] = []
        missing = queue.acquired - queue.account.leased
        seen: set[int] = set()
        for consumer in consumers_of(queue):
            session = consumer.session
            if session.id not in seen:
                seen.add(session.id)
                missing -= add_held(session, queue, pieces)
        if missing > 0:  # by basic.get, or by consumers that were cancelled
            for connection in self._connections.values():
                for session in connection.sessions:
                    if session.unacked and session.id not in seen:
                        add_held(session, queue, pieces)
        if queue.account.staged:
            for entry in self._transactions.staged.of(queue):
                for low, high in entry.pieces(entry.first, entry.last):
                    pieces.append(entry.part(low, high))
        self.walked += len(pieces)
        return pieces

    def _body_bytes(self, queue: Queue, limit: int) -> int:
        """Return the body bytes of the subscription. Counting may stop above the limit."""
        total = 0
        for piece in self._held(queue):
            total += self._weight(piece)
        for lane in queue.lanes.by_priority:
            for pieces in (lane.in_front(), lane.fresh):
                for piece in pieces:
                    if total > limit:
                        return total
                    total += self._weight(piece)
                    self.walked += 1
        return total

    def fitting(self, queue: Queue, limit: int) -> int:
        """Return how many ready messages, counted from the one that leaves last, fit into the limit
        on body bytes together with the unsettled messages."""
        room = limit - sum([self._weight(piece) for piece in self._held(queue)])
        count = 0
        pieces = queue.slices()
        pieces.reverse()
        for piece in pieces:
            self.walked += 1
            weight = self._weight(piece)
            if weight > room:
                return count + self._fitting_of(piece, weight, room)
            room -= weight
            count += len(piece)
        return count

    def _fitting_of(self, piece: Slice, weight: int, room: int) -> int:
        """Return how many of a slice's last messages fit into `room` bytes."""
        if room <= 0:
            return 0
        bodies = piece.payload.bodies
        if bodies is None:  # packed: they are taken to be alike
            return len(piece) * room // weight
        return piece.hi - bisect_left(bodies, bodies[piece.hi] - room, piece.lo, piece.hi)

    def _weight(self, piece: Slice) -> int:
        """Return the body bytes of a slice. For a packed slice whose messages are stored one by
        one, the result is an estimate."""
        payload = piece.payload
        pack = payload.pack
        if pack is None:
            self._entrance.weigh(payload)
            return piece.body_bytes()
        count = len(piece)
        framing = 0
        for at in range(piece.lo, piece.hi, max(1, count // SAMPLED)):
            one = payload.single(at)
            framing = max(framing, one.size - self._entrance.weight_of(one))
        return max(0, piece.size() - framing * count)

    def _oldest(self, queue: Queue) -> EngineMs:
        """Return the arrival time of the oldest message that is ready or unsettled; engine time,
        ms."""
        oldest = self._clock.now_ms
        for piece in self._held(queue):
            oldest = min(oldest, piece.entered_ms())
        for lane in queue.lanes.by_priority:
            head = lane.head()
            if head is not None:
                oldest = min(oldest, head.entered_ms())
        return oldest

    def _judge_age(self, watched: Watched, reading: Reading) -> None:
        """Judge the age of the oldest message, and set the time before which no new judgement is
        needed: present messages age no faster than the clock."""
        now, limit = self._clock.now_ms, reading.rule.age
        if reading.state == FINE and now < watched.young_ms:
            watched.due_ms = min(watched.due_ms, watched.young_ms)
            return
        oldest = self._oldest(watched.queue)
        reading.age_ms = Ms(max(0, now - oldest))
        if limit <= 0:
            return
        _judge(reading, AGE, reading.age_ms, limit)
        watched.young_ms = EngineMs(oldest - (-limit * NEAR_PERCENT // 100))
        if reading.age_ms <= limit:
            due = watched.young_ms if now < watched.young_ms else oldest + limit + 1
            watched.due_ms = EngineMs(min(watched.due_ms, due))

    def _judge_rate(self, watched: Watched, reading: Reading) -> None:
        """Judge the rate of the slowest consumer that wants messages or has some to settle. The
        rate is measured from the last sample at which a consumer had kept up, that is, all messages
        present at one sample were gone at the next."""
        now, queue = self._clock.now_ms, watched.queue
        gone = queue.entered - watched.count
        samples = watched.samples
        present = [consumer.id for consumer in reading.consumers]
        for id in [id for id in samples if id not in present]:
            del samples[id]
        for consumer in reading.consumers:
            if not (consumer.session.flow and (consumer.unacked > 0 or consumer.limit > 0)):
                samples.pop(consumer.id, None)
                continue
            seen = samples.get(consumer.id)
            if seen is None or gone >= seen[-1].entered:
                seen = samples[consumer.id] = deque()
            done = consumer.pace.done
            seen.append(Sample(now, done, queue.entered))
            while len(seen) > 2 and seen[1].at_ms <= now - WINDOW_MS:
                seen.popleft()
            elapsed = now - seen[0].at_ms
            if elapsed >= WINDOW_MS:
                rate = (done - seen[0].done) * 1000 / elapsed
                if reading.rate < 0 or rate < reading.rate:
                    reading.rate = rate
        if reading.rate < 0:
            return
        least = reading.rule.rate
        if reading.rate < least:
            reading.over.append(RATE)
        elif reading.rate * NEAR_PERCENT <= least * 100:
            reading.near.append(RATE)


def messages_of(queue: Queue) -> int:
    """Return the count of messages that are ready or unsettled. Messages settled in an open
    transaction count until it commits [TX-4]."""
    return queue.ready + queue.acquired + queue.account.staged


def _owners(queue: Queue) -> list[Consumer]:
    """Return the consumers of a queue that is exclusive to one connection or one consumer, without
    browsers, which take no message."""
    consumers = consumers_of(queue)
    if not consumers or not (queue.exclusive_owner or consumers[0].exclusive):
        return []
    return [consumer for consumer in consumers if not consumer.browses]


def _judge(reading: Reading, name: str, value: int, limit: int) -> None:
    """Note a value above its limit, or near it [SC-3]. A value equal to the limit is not above
    it."""
    if limit <= 0:
        return
    if value > limit:
        reading.over.append(name)
    elif value * 100 >= limit * NEAR_PERCENT:
        reading.near.append(name)
