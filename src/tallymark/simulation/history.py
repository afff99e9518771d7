"""The history of a world: observations of its clients, checked as they happen and at the end.

Each rule is one that README or docs/guarantees.md promises to every client. Nothing here knows how
a broker works; a message is known by the name that its publisher gave it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

from tallymark.simulation.models.credit import Shared
from tallymark.simulation.models.permissions import Permissions
from tallymark.simulation.models.slow import Slow
from tallymark.simulation.plan import (
    CLOCK,
    FULL,
    NO_FILES,
    NSQ_QUEUE,
    UNREADABLE,
    Plan,
    QueuePlan,
)
from tallymark.simulation.violated import Violated
from tallymark.simulation.world import SECOND_NS, World

CERTAIN_NS: Final = 5 * SECOND_NS
"""Time for which connection and broker live on after a settlement until it has taken effect."""
SOON_NS: Final = SECOND_NS * 2 // 5
"""Time for which they do where neither disk nor network stalls, and the disk has room."""
EARLY_NS: Final = SECOND_NS // 50
"""Time by which a deferral, or a time-out, may be over too early: clocks are read once a turn."""
NEVER: Final = 1 << 62
MS_NS: Final = 1_000_000
LATE_NS: Final = 3 * SECOND_NS
"""Time that an expired message may have been under way to its consumer."""
DRAIN: Final = "drain "
"""Names of the clients that empty the queues in the end: each is alone with its queue, so that what
was given back must be in its old place."""


@dataclass
class Line:
    """One connection of one client."""

    client: str
    number: int
    life: int
    """Number of the broker's life to which it was connected."""
    down_ns: int = NEVER
    """Time at which it was, or may have been, no more."""
    last_first: dict[tuple[str, str], int] = field(default_factory=dict)
    """Number of the last message that came for the first time, by queue and publisher's line; of a
    line that drains a queue the last that came."""
    held: int = 0
    """Messages that came and are not answered."""
    waited_ns: int | None = None
    """Time at which its client last had taken all that had come; None: it takes each at once."""
    shared: Shared | None = None
    """Model of the limit that the consumers on this line share; None: they share none."""


@dataclass
class Published:
    """One message as its publisher knows it."""

    name: str
    queues: tuple[str, ...]
    body: bytes
    at_ns: int
    """Time at which it was sent, for the last time."""
    line: str
    number: int
    confirmed: bool = False
    refused: bool = False
    work: str = ""
    """Name of its transaction; empty: none."""
    ttl_ms: int | None = None
    """Time to live of its own; None: that of its queue."""
    life: int = 0
    """Number of the broker's life in which it was published, or of one before."""


@dataclass
class Delivered:
    """One delivery of one message from one queue."""

    at_ns: int
    line: Line
    is_flagged: bool
    outcome: str = ""
    """accept, reject, release, fail; empty: none yet."""
    answered_ns: int = NEVER
    work: str = ""
    void_ns: int = NEVER
    """Time from which on somebody else may have the message, though it is not answered."""
    due_ns: int = 0
    """Time until which it is put off, by its answer."""
    queue: str = ""
    name: str = ""
    is_certain: bool | None = None
    """True once the broker says that the answer took effect, False until then; None: time
    tells."""


class History:
    """Record of what the clients of a world saw."""

    def __init__(self, world: World, plan: Plan) -> None:
        self._world = world
        self.queues: dict[str, QueuePlan] = {one.name: one for one in plan.queues}
        shared = [name for one in plan.shared for name in one.queues]
        self.queues.update({name: QueuePlan(name) for name in shared})
        self.untouched: dict[str, set[str]] = {name: set() for name in shared}
        """Names of confirmed messages that nobody was given yet, by those queues that share a limit
        with others."""
        self.permissions = Permissions(world, "worker")
        self._streams = {one.name for one in plan.streams}
        """Names of streams, which have a model of their own."""
        stalls = plan.disk.stall or plan.weather.stall
        kinds = {one.kind for one in plan.faults}
        self.is_slow = bool(stalls) or bool(kinds & {FULL, NO_FILES, UNREADABLE})
        self._skips = UNREADABLE in kinds and plan.unreadable == "skip"
        """True if queues go on without what they cannot read, which comes later."""
        self.certain_ns = CERTAIN_NS if self.is_slow else SOON_NS
        self.slow = {one.name: Slow(world, one, self.certain_ns) for one in plan.slow}
        self.queues.update(
            {one.name: QueuePlan(one.name, dead_letters=one.has_letters) for one in plan.slow}
        )
        self.late_ns = LATE_NS
        self._life = 0
        """Number of the broker's life to which somebody connected last."""
        self.moved: dict[str, set[str]] = defaultdict(set)
        """Names of the messages that shovels have moved, by the queue that they were in."""
        self._counting = {one.name for one in plan.consumers if one.protocol == "amqp"}
        """Names of the consumers that are told how often each message has failed."""
        self._credits = {one.name: one.credit for one in plan.consumers if one.timeout_ms is None}
        self._has_clock_steps = any(one.kind == CLOCK for one in plan.faults)
        self.published: dict[str, Published] = {}
        self.deliveries: dict[tuple[str, str], list[Delivered]] = defaultdict(list)
        self.given = 0
        """Deliveries so far."""
        self.lines: list[Line] = []
        self.works: dict[str, str] = {}
        """Transactions and how they ended: committed, rolled back, unknown."""
        self._answered_in: dict[str, list[Delivered]] = defaultdict(list)
        """Deliveries that are answered in each transaction whose end is not known yet."""
        self.log: list[str] = []
        self.life_ended_ns: dict[int, int] = {}
        self.superseded: set[int] = set()
        """Lives of brokers whose lead another one has taken: whatever they say may be late."""
        self.is_draining = False
        self.is_damaged = False
        """True once stored bytes were changed: what happens to a message is not known any more, but
        for the bytes that it had."""
        self.seen: set[str] = set()
        """Names of interesting states that were reached."""

    def note(self, text: str) -> None:
        """Write a line of the readable history."""
        self.log.append(f"{self._world.now_s - 1000:10.6f}  {text}")

    # -- what clients tell

    def connected(self, client: str, life: int) -> Line:
        """Note that a client has a connection."""
        self._life = life
        line = Line(client, len(self.lines), life)
        self.lines.append(line)
        if life in self.superseded:
            self.disconnected(line)
        return line

    def disconnected(self, line: Line) -> None:
        """Note that a connection is no more, for its client or for the broker."""
        line.down_ns = min(line.down_ns, self._world.now_ns)

    def supersede(self, life: int) -> None:
        """Note that another broker has the lead that one had."""
        self.superseded.add(life)
        for line in self.lines:
            if line.life == life:
                self.disconnected(line)

    def life_ended(self, life: int) -> None:
        """Note that the broker has ended, in whatever way."""
        self.life_ended_ns[life] = self._world.now_ns
        for line in self.lines:
            if line.life == life:
                self.disconnected(line)
        for slow in self.slow.values():
            slow.life_ended(life)

    def publishes(self, message: Published) -> None:
        """Note that a message is sent, or sent again."""
        message.at_ns = self._world.now_ns
        message.life = message.life or self._life
        self.published[message.name] = message
        for queue in message.queues:
            if queue in self.slow:
                self.slow[queue].sent(message.name, len(message.body))

    def confirmed(self, name: str) -> None:
        """Note that the broker says that it has a message safely."""
        self.published[name].confirmed = True
        for queue in self.published[name].queues:
            if queue in self.untouched and (queue, name) not in self.deliveries:
                self.untouched[queue].add(name)
            if queue in self.slow:
                self.slow[queue].confirmed(name)

    def refused(self, name: str) -> None:
        """Note that the broker does not take a message."""
        self.seen.add("publisher refused")
        self.published[name].refused = True

    def delivered(
        self,
        line: Line,
        queue: str,
        name: str,
        body: bytes,
        is_flagged: bool,
        is_leased: bool = False,
        failures: int | None = None,
        late_ns: int = NEVER,
    ) -> Delivered:
        """Check a delivery, and note it. is_leased: it was taken at some time before, from when on
        no limit of its queue is for it. failures: failed deliveries before this one, as the broker
        says; None: nothing. late_ns: time of a late answer that may have settled this delivery
        while it was under way (`answered_late_ns`): what others did with the message from then on
        says nothing of it. Raises Violated."""
        now = self._world.now_ns
        self.given += 1
        message = self.published.get(name)
        where = f"{name} from {queue} to {line.client}"
        if message is None:
            raise Violated(f"phantom: {where} was never published")
        if body != message.body:
            raise Violated(f"corrupt: {where} is {len(body)} bytes, not as published")
        home = queue.removesuffix(".dead")
        if home not in message.queues:
            raise Violated(f"misrouted: {where}, published to {message.queues}")
        if message.work and self.is_unseen(message.work):
            how = self.works[message.work]
            raise Violated(f"{how}: {where} was published in {message.work}")
        before = self.deliveries[queue, name]
        delivery = Delivered(now, line, is_flagged, queue=queue, name=name)
        if queue in self.untouched:
            self.untouched[queue].discard(name)
        if self.is_damaged:
            return delivery
        if line.down_ns < NEVER:  # it was under way when the connection ended
            before.append(delivery)
            return delivery
        known = before if late_ns == NEVER else [one for one in before if one.at_ns < late_ns]
        for one in known:
            if self._is_settled(one):
                raise Violated(f"settled twice: {where} was {one.outcome}ed at {_s(one)}")
            if not one.outcome and self._is_held(one):
                raise Violated(f"delivered twice at once: {where}, held since {_s(one)}")
        self._check_deferral(known, where)
        if before and not is_flagged:
            raise Violated(f"no flag: {where} came before, at {_s(before[-1])}")
        if before:
            self.seen.add("redelivery")
            if before[-1].line.life != line.life:
                self.seen.add("redelivery after a crash")
        if (not before and not is_flagged) or line.client.startswith(DRAIN):
            self._check_order(line, queue, message, where)
        self._check_credit(line, queue, where)
        self._check_failures(line, queue, before, failures, where)
        if not is_leased:
            self._check_limits(line, queue, message, before, where)
        if queue != home:
            self.seen.add("dead letter delivered")
        before.append(delivery)
        return delivery

    def _check_order(self, line: Line, queue: str, message: Published, where: str) -> None:
        plan = self.queues.get(queue)
        if plan is None or plan.priorities is not None or self._skips:
            return
        key = (queue, message.line)
        last = line.last_first.get(key, -1)
        if message.number <= last:
            raise Violated(f"out of order: {where} came behind number {last} of {message.line}")
        line.last_first[key] = message.number

    def _check_credit(self, line: Line, queue: str, where: str) -> None:
        """Check that no consumer holds more than it asked for."""
        line.held += 1
        credit = self._credits.get(line.client)
        if credit is not None and line.held > credit:
            raise Violated(f"beyond its credit: {where}, which holds {line.held} of {credit}")
        if line.shared is not None:
            line.shared.delivered(queue, where)

    def _check_limits(
        self, line: Line, queue: str, message: Published, before: list[Delivered], where: str
    ) -> None:
        """Check a delivery against what its queue's settings allow."""
        plan = self.queues.get(queue)
        if plan is None:
            return
        # Counted from its arrival, which may be late; in a transaction from the commit. No step of
        # the clock matters while the broker lives; over a restart wall time counts.
        ttls = [one for one in (plan.ttl_ms, message.ttl_ms) if one is not None]
        is_known = not self._has_clock_steps or message.life == line.life
        now = self._world.now_ns
        age_ns = now - message.at_ns
        if ttls and is_known and not message.work:
            most_ns = min(ttls) * MS_NS + self.late_ns
            if line.waited_ns is not None:  # it may have waited at the client from then on
                most_ns += now - line.waited_ns
            if self._world.troubles.leave_more_than(most_ns, message.at_ns, now):
                raise Violated(f"expired: {where}, {age_ns / SECOND_NS:.3f} s old")
        if plan.delivery_limit is not None:
            failed = sum(one.outcome == "fail" and self._took_effect(one) for one in before)
            if failed > plan.delivery_limit:
                raise Violated(f"beyond its limit: {where}, which failed {failed} times")

    def _check_failures(
        self, line: Line, queue: str, before: list[Delivered], said: int | None, where: str
    ) -> None:
        """Check that no failed delivery is forgotten, not over a restart either."""
        plan = self.queues.get(queue)
        if said is None or plan is None or plan.is_cycle:  # what comes back in a cycle is new
            return
        if line.client not in self._counting and not line.client.startswith(DRAIN):
            return
        failed = sum(one.outcome == "fail" and self._took_effect(one) for one in before)
        if said < failed:
            raise Violated(f"failure forgotten: {where} failed {failed} times, not {said}")

    def _check_deferral(self, before: list[Delivered], where: str) -> None:
        """Check that a message which was put off comes no earlier."""
        if not before or self._has_clock_steps:  # over a restart wall time counts
            return
        last = before[-1]
        if self._world.now_ns < last.due_ns and self._took_effect(last):
            due_s = last.due_ns / SECOND_NS - 1000
            raise Violated(f"too early: {where} was put off until {due_s:.3f}")

    def answers(self, delivery: Delivered, outcome: str, work: str = "", later_ns: int = 0) -> None:
        """Note that a client settles what it was given. later_ns: time by which it is put off."""
        now = self._world.now_ns
        if now >= delivery.void_ns:  # too late, or perhaps in time
            delivery.is_certain = False
        elif later_ns:
            delivery.due_ns = now + later_ns - EARLY_NS
            self.seen.add("message put off")
        delivery.outcome = outcome
        delivery.line.held -= 1
        if delivery.line.shared is not None:
            delivery.line.shared.answered(delivery.queue)
        if delivery.queue in self.slow:
            self.slow[delivery.queue].answered(delivery.name)
        delivery.answered_ns = self._world.now_ns
        delivery.work = work
        if work:
            self._answered_in[work].append(delivery)

    def answered_late_ns(self, line: Line, queue: str, name: str, within_ns: int) -> int:
        """Return when, within a time before now, a message was first answered too late on a line;
        NEVER: it was not. Such an answer may settle the next delivery on that line, which it met
        under way: protocols like NSQ's know messages, not deliveries."""
        since_ns = self._world.now_ns - within_ns
        return min(
            (
                one.answered_ns
                for one in self.deliveries[queue, name]
                if one.line is line and one.is_certain is False and one.answered_ns > since_ns
            ),
            default=NEVER,
        )

    def ended_work(self, work: str, how: str) -> None:
        """Note how a transaction has ended, as far as its client knows."""
        self.works[work] = how
        self.seen.add(f"transaction {how}")
        answered = self._answered_in.pop(work, [])
        if how == "rolled back":
            for one in answered:
                if one.work == work:
                    one.outcome = "rollback"

    # -- rules

    def is_committing(self) -> bool:
        """Return whether a client has asked for a commit, and has no answer yet."""
        return "committing" in self.works.values()

    def is_unseen(self, work: str) -> bool:
        """Return whether nobody may see what was published in a transaction, or in a batch of a
        sink: its commit was not sent, or it was given up."""
        return self.works.get(work) in ("open", "rolled back")

    def is_due(self, message: Published) -> bool:
        """Return whether a message has to be there, or to have been."""
        if message.ttl_ms is not None:
            return False
        if message.work:
            return self.works.get(message.work) == "committed"
        return message.confirmed and not message.refused

    def rejects_publish(self, queue: str) -> bool:
        plan = self.queues.get(queue)
        return plan is not None and plan.rejects_publish

    def _lived_on(self, delivery: Delivered) -> bool:
        """Return whether connection and broker lived for long enough after an answer, and nothing
        hung, that it has taken effect."""
        end = min(delivery.line.down_ns, self.life_ended_ns.get(delivery.line.life, NEVER))
        end, begin = min(end, self._world.now_ns), delivery.answered_ns
        return self._world.troubles.leave_more_than(self.certain_ns, begin, end)

    def _is_settled(self, delivery: Delivered) -> bool:
        """Return whether this delivery has certainly ended the message in its queue."""
        if delivery.outcome not in ("accept", "reject"):
            return False
        if delivery.work:
            return self.works.get(delivery.work) == "committed"
        return self._took_effect(delivery)

    def _took_effect(self, delivery: Delivered) -> bool:
        """Return whether the broker certainly knows the answer to a delivery, when the message
        comes again: it had the answer on a connection that is still there, or that was there for
        long enough."""
        if delivery.is_certain is not None:
            return delivery.is_certain
        return self._is_held(delivery) or self._lived_on(delivery)

    def is_up(self, line: Line) -> bool:
        """Return whether a connection, and its broker, are there as far as the world knows."""
        return line.down_ns == NEVER and line.life not in self.life_ended_ns

    def _is_held(self, delivery: Delivered) -> bool:
        """Return whether connection and broker are still those of this delivery: nobody else gets
        the message, before it is settled and after."""
        return self.is_up(delivery.line) and (
            delivery.outcome != "" or self._world.now_ns < delivery.void_ns
        )

    def check_end(self) -> None:
        """Check what must be so when every queue was emptied. Raises Violated."""
        parts: dict[str, list[bool]] = defaultdict(list)
        shown: set[str] = set()
        """Transactions of which somebody got a message: the disk knew them."""
        for message in self.published.values():
            found = [self._is_found(message.name, queue) for queue in message.queues]
            is_due = self.is_due(message)
            if message.refused and any(found) and len(found) == 1:
                raise Violated(f"refused, and there: {message.name}")
            for queue, is_found in zip(message.queues, found, strict=True):
                if queue in self.slow:
                    self._check_slow(message, queue, is_due and not is_found)
                elif is_due and not is_found and not self._may_drop(queue):
                    raise Violated(f"lost: {message.name}, confirmed, from {queue}")
                if message.work and not self._may_drop(queue):
                    parts[message.work].append(is_found)
                    if self.deliveries.get((queue, message.name)):
                        shown.add(message.work)
        for work, all_found in parts.items():
            if (any(all_found) or work in shown) and not all(all_found):
                raise Violated(f"half a transaction: {work}, {sum(all_found)} of {len(all_found)}")

    def _check_slow(self, message: Published, queue: str, is_missing: bool) -> None:
        """Check that a message left a subscription without a consumer only where it may."""
        slow = self.slow[queue]
        has_died = (f"{queue}.dead", message.name) in self.deliveries
        if slow.may_be_gone(message.at_ns):
            is_missing &= slow.plan.is_durable and slow.plan.has_letters
        elif has_died:
            raise Violated(f"dead letter: {message.name} of {queue}, which was within its limits")
        if is_missing:
            raise Violated(f"lost: {message.name}, confirmed, from {queue}")

    def _is_found(self, name: str, queue: str) -> bool:
        """Return whether somebody has settled a message of a queue, or its dead letter."""

        def has(queue: str, *outcomes: str) -> bool:
            return any(one.outcome in outcomes for one in self.deliveries.get((queue, name), ()))

        plan = self.queues.get(queue)
        has_letters = plan is not None and plan.dead_letters
        return (
            name in self.moved[queue]
            or has(queue, "accept")
            or has(f"{queue}.dead", "accept", "reject")
            or (not has_letters and has(queue, "reject"))
        )

    def _may_drop(self, queue: str) -> bool:
        plan = self.queues.get(queue)
        return queue in self._streams or (plan is not None and plan.may_drop)


def _s(delivery: Delivered) -> str:
    return f"{delivery.at_ns / SECOND_NS - 1000:.6f} on line {delivery.line.number}"


__all__ = ["NSQ_QUEUE", "Delivered", "History", "Line", "Published", "Violated"]
