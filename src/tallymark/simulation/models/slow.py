"""Slow consumers: when a subscription may be acted on, when it must be, and what that may cost.

Nobody but the broker knows how many messages a subscription has at some moment, but every client
knows two bounds:

    at most     what was sent to it and is not settled for certain
    at least    what was confirmed since it is consumed, and nobody answered yet

Where `at most` was within all limits, nobody is closed, and no message is dropped or dead-lettered.
Where `at least` stays above one of them for longer than the time between two looks, the broker has
acted: the client was told, or publishers wait. What nothing is done to loses nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tallymark.simulation.plan import DEAD_LETTER, DROP_OLDEST, FLOW, SlowPlan
from tallymark.simulation.violated import Violated
from tallymark.simulation.world import SECOND_NS, World

NEVER: Final = 1 << 62
MS_NS: Final = 1_000_000
LATE_NS: Final = SECOND_NS
"""Time that a look may be late, and its effect on the way."""
RATE_NS: Final = 10 * SECOND_NS
"""Time over which the broker works out how many messages are settled in a second."""


@dataclass
class _Sent:
    """One message of the subscription."""

    at_ns: int
    size: int
    settled_ns: int = NEVER
    """Time from which on the broker knows that it is settled."""


class Slow:
    """Model of one subscription."""

    def __init__(self, world: World, plan: SlowPlan, certain_ns: int) -> None:
        self._world = world
        self.plan = plan
        self.certain_ns = certain_ns
        """Time after which the broker knows an answer."""
        self._sent: dict[str, _Sent] = {}
        self._over_ns = -1
        """Last time at which earlier queues of its name may have been above a limit, or at which
        its client was told that it is too slow."""
        self._since_ns = NEVER
        """Time since when it is consumed; NEVER: it is not."""
        self._life = 0
        """Life of the broker in which it is consumed, or was for the last time."""
        self._sure: dict[str, tuple[int, int]] = {}
        """Messages that it certainly has: when they were confirmed, and their bytes."""
        self._over_since_ns = NEVER
        """Time since when it is certainly above a limit."""
        self._let_through = 0
        """Messages confirmed since publishers are held back."""
        self._answers_ns: list[int] = []
        self.was_over = False
        """True once it certainly was above a limit."""

    @property
    def _wait_ns(self) -> int:
        """Time within which the broker acts."""
        return self.plan.delay_ms * MS_NS + self.certain_ns + LATE_NS

    # -- what clients tell

    def sent(self, name: str, size: int) -> None:
        """Note that a message is on its way to it."""
        self._sent.setdefault(name, _Sent(self._world.now_ns, size))

    def confirmed(self, name: str) -> None:
        """Note that the broker has a message. Raises Violated."""
        sent = self._sent.get(name)
        if sent is None or sent.at_ns < self._since_ns or sent.settled_ns < NEVER:
            return
        now = self._world.now_ns
        self._sure[name] = (now, sent.size)
        self._judge()
        plan = self.plan
        if plan.policy == FLOW and plan.publishes_over == "amqp091" and self._is_overdue():
            self._let_through += 1
            if self._let_through > 2 * plan.batch:
                raise Violated(f"{plan.name}: publishers go on, though it is too slow")

    def answered(self, name: str) -> None:
        """Note that its consumer settles a message."""
        now = self._world.now_ns
        sent = self._sent.get(name)
        if sent is not None:
            sent.settled_ns = min(sent.settled_ns, now + self.certain_ns)
        self._answers_ns.append(now)
        self._sure.pop(name, None)
        self._judge()

    def declares(self) -> None:
        """Note that its client is about to declare its queue, which is not there."""
        self._over_ns = max(self._over_ns, self._last_over_ns())
        least_ns = self._world.now_ns - self.certain_ns  # what is under way may enter the new one
        self._sent = {name: one for name, one in self._sent.items() if one.at_ns >= least_ns}

    def consumes(self, life: int) -> None:
        """Note that a consumer is there, in this life of the broker."""
        self.ends()
        self._since_ns = self._world.now_ns
        self._life = life

    def life_ended(self, life: int) -> None:
        """Note that a broker has ended: its consumer is gone, also where the client does not know
        yet. Its publishers may be the first to come back."""
        if self._life == life:
            self.ends()

    def ends(self) -> None:
        """Note that its consumer is, or may be, gone."""
        self._since_ns = self._over_since_ns = NEVER
        self._sure.clear()
        self._let_through = 0

    def closed(self) -> None:
        """Check that its client may be told that it is too slow: what it had goes with it. Raises
        Violated."""
        plan = self.plan
        if not plan.may_be_closed:
            kind = "durable" if plan.is_durable else "transient"
            raise Violated(f"closed: {plan.name}, {kind}, policy {plan.policy}")
        if self._is_longer_ago(self._last_over_ns()) and not self._may_lag():
            raise Violated(f"closed: {plan.name}, which was within its limits")
        self._over_ns = self._world.now_ns

    # -- rules

    def check(self) -> None:
        """Check that it was acted on in time, as its client sees it. Raises Violated."""
        self._judge()
        if self.plan.may_be_closed and self._is_overdue():
            over_s = (self._world.now_ns - self._over_since_ns) / SECOND_NS
            raise Violated(f"not closed: {self.plan.name} is too slow for {over_s:.3f} s")

    def may_be_gone(self, sent_ns: int) -> bool:
        """Return whether a message may have left it without a consumer."""
        plan = self.plan
        if not plan.is_durable:  # its queue goes with its connection
            return True
        acts = plan.policy in (DROP_OLDEST, DEAD_LETTER) or plan.may_be_closed
        return acts and sent_ns <= max(self._over_ns, self._last_over_ns())

    def _is_overdue(self) -> bool:
        return self._is_longer_ago(self._over_since_ns)

    def _is_longer_ago(self, at_ns: int) -> bool:
        """Return whether the broker has had enough time to act since then: as if nothing had
        hung."""
        world = self._world
        return world.troubles.leave_more_than(self._wait_ns, at_ns, world.now_ns)

    def _judge(self) -> None:
        """Note since when it certainly is above a limit."""
        plan = self.plan
        oldest_ns = next(iter(self._sure.values()))[0] if self._sure else NEVER
        over = (
            (plan.count is not None and len(self._sure) > plan.count)
            or (plan.depth is not None and sum(one for _, one in self._sure.values()) > plan.depth)
            or (
                plan.age_ms is not None
                and self._world.now_ns - oldest_ns > plan.age_ms * MS_NS
            )
        )  # fmt: skip
        if not over:
            self._over_since_ns = NEVER
            self._let_through = 0
        elif self._over_since_ns == NEVER:
            self._over_since_ns = self._world.now_ns
            self.was_over = True

    def _last_over_ns(self) -> int:
        """Return when it may have been above a limit on number, bytes or age for the last time;
        -1: never."""
        plan, now = self.plan, self._world.now_ns
        last = -1
        if plan.age_ms is not None:
            for one in self._sent.values():
                until = min(one.settled_ns, now)
                if until - one.at_ns > plan.age_ms * MS_NS:
                    last = max(last, until)
        changes = [(one.at_ns, 1, one.size) for one in self._sent.values()]
        changes += [
            (one.settled_ns, -1, -one.size) for one in self._sent.values() if one.settled_ns < now
        ]
        count = size = 0
        is_over = False
        for at_ns, more, bytes_more in sorted(changes):
            if is_over:
                last = max(last, at_ns)
            count, size = count + more, size + bytes_more
            is_over = (plan.count is not None and count > plan.count) or (
                plan.depth is not None and size > plan.depth
            )
        return now if is_over else last

    def _may_lag(self) -> bool:
        """Return whether its consumer may have settled fewer messages than it has to."""
        rate, now = self.plan.rate, self._world.now_ns
        if rate is None or now - self._since_ns < RATE_NS - self.certain_ns:
            return False
        core = [one for one in self._answers_ns if now - RATE_NS < one < now - self._wait_ns]
        return len(core) < rate * RATE_NS / SECOND_NS
