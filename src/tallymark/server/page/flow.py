"""Flow of a queue, in words: whether messages leave it, and what keeps them where not.

Messages that wait with consumers or durable subscriptions there, and of which none has left for
STUCK_S, are stuck. When the last one left is known from the samples of the queue, five seconds
apart and as far back as they go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tallymark.engine.queue import Queue
from tallymark.engine.queue_consumers import consumers_of
from tallymark.engine.session import Consumer
from tallymark.server.node import Node
from tallymark.server.samples import MESSAGES, SLOT_MS, Ring

STUCK_S: Final = 60
PUBLISH: Final = MESSAGES.index("publish")
PRESENT: Final = MESSAGES.index("messages")

STUCK: Final = "stuck"
ALONE: Final = "no consumer"
WAITING: Final = "waiting"
DEFERRED: Final = "deferred"
FLOWING: Final = "flowing"
IDLE: Final = "idle"
STREAM: Final = "stream"
ORDER: Final = (STUCK, WAITING, ALONE, DEFERRED, FLOWING, STREAM, IDLE)
"""All states, the one to look at first first."""
TONES: Final = {STUCK: "bad", ALONE: "warn", WAITING: "warn", FLOWING: "good"}


@dataclass(frozen=True, slots=True)
class Flow:
    """The state of a queue, the reason in words, and since when no message has left it: wall time
    in ms; None: it does, or that is not known."""

    state: str
    reason: str = ""
    since_ms: int | None = None

    @property
    def rank(self) -> int:
        """Place in ORDER, from below: what sorts downwards begins with the stuck ones."""
        return len(ORDER) - ORDER.index(self.state)

    @property
    def tone(self) -> str:
        return TONES.get(self.state, "")


IDLE_FLOW: Final = Flow(IDLE)
FLOWING_FLOW: Final = Flow(FLOWING)


class Flows:
    """The flows of all queues of a node, judged once in a slot of the samples, when asked for."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._slot = -1
        self._known: dict[int, Flow] = {}

    def of(self, queue: Queue) -> Flow:
        """Return the flow of a queue as it was judged in the present slot."""
        if self._slot != self._node.samples.slot:
            self._slot = self._node.samples.slot
            self._known.clear()
        known = self._known.get(queue.id)
        if known is None:
            known = self._known[queue.id] = flow_of(self._node, queue)
        return known


def flow_of(node: Node, queue: Queue) -> Flow:
    """Judge a queue."""
    account = queue.account
    if queue.settings.is_stream:
        return Flow(STREAM)
    held = account.acquired + account.staged
    if not (account.ready or held):
        if account.deferred:
            due = node.broker.clock.to_wall(queue.deferrals.next_due())
            wait_s = max(0, due - node.broker.clock.to_wall(node.broker.clock.now_ms)) // 1000
            return Flow(
                DEFERRED, f"All messages wait for their time; the first one for {wait_s} s."
            )
        if account.pending:
            return Flow(WAITING, "Dead letters wait: nothing takes them.")
        return IDLE_FLOW
    since_ms = last_left_ms(node, queue)
    if since_ms is None:
        return FLOWING_FLOW
    reason = reason_of(queue)
    now = node.broker.clock.to_wall(node.broker.clock.now_ms)
    if not queue.consumers and not queue.subscriptions and not queue.paused and not held:
        return Flow(ALONE, reason, since_ms)
    state = STUCK if now - since_ms >= STUCK_S * 1000 else WAITING
    return Flow(state, reason, since_ms)


def last_left_ms(node: Node, queue: Queue) -> int | None:
    """Return since when messages wait and none has left the queue, however it would have ended;
    wall time, ms. None: one has, since the last sample, or there is no sample yet."""
    ring = node.samples.queues.rings.get(queue.id)
    slot = None if ring is None else last_left(ring, queue.entered - queue.account.present())
    return None if slot is None else slot * SLOT_MS + node.broker.clock.ahead_ms


def last_left(ring: Ring, left: int) -> int | None:
    """Return the first slot since which messages were there and `left` had left; None: they are
    others now, or there were none."""

    def stands(counts: Sequence[int]) -> bool:
        return counts[PUBLISH] - counts[PRESENT] == left and counts[PRESENT] > 0

    return ring.stood(stands)


def reason_of(queue: Queue) -> str:
    """Return what keeps the messages of a queue, as far as the queue and its consumers tell."""
    if queue.paused:
        return "Paused by an operator: its consumers get nothing."
    if queue.rests:
        return "Some stored messages cannot be read, and the queue stopped for them."
    consumers = consumers_of(queue)
    if consumers:
        return _reason_of_consumers(queue, consumers)
    if queue.subscriptions:
        count = queue.account.leased
        return (
            f"A durable subscription holds {count} of them and settled none."
            if count
            else ("Its durable subscription takes none: the query does not run, or is behind.")
        )
    if queue.account.staged:
        return "They were settled in a transaction that has not ended."
    return "No consumer takes its messages."


def _reason_of_consumers(queue: Queue, consumers: list[Consumer]) -> str:
    if queue.settings.single_active and isinstance(queue.active, Consumer):
        consumers = [queue.active]
    who = "Its consumer" if len(consumers) == 1 else f"All {len(consumers)} consumers"
    held = sum(consumer.unacked for consumer in consumers)
    is_one = len(consumers) == 1
    if all(consumer.session.connection.paused for consumer in consumers):
        return f"{who} {'does' if is_one else 'do'} not read what was sent."
    if all(consumer.wanted() <= 0 for consumer in consumers):
        if held:
            verb = "is at its" if is_one else "are at their"
            return f"{who} {verb} prefetch limit, with {held} unsettled messages, and settled none."
        return f"{who} {'gives' if is_one else 'give'} no credit."
    if any(consumer.cursors for consumer in consumers) and not held:
        return f"{who} {'filters or browses' if is_one else 'filter or browse'}: nothing matches."
    if held:
        verb = "has" if is_one else "have"
        return f"{who} {verb} {held} unsettled messages and settled none."
    return (
        f"{who} {'has' if is_one else 'have'} credit and {'was' if is_one else 'were'} sent none."
    )
