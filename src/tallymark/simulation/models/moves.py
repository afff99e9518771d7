"""Moves: what a shovel has brought from one queue to another.

Nothing is settled at its source that its target does not have. What fails on the way is moved
again, so that a message may be there twice; the second one says that it may be.
"""

from __future__ import annotations

from tallymark.simulation.history import History, Violated
from tallymark.simulation.plan import ShovelPlan


class Moves:
    """Model of one shovel."""

    def __init__(self, history: History, plan: ShovelPlan) -> None:
        self._history = history
        self._plan = plan
        self._names = history.moved[plan.queue]
        self._last: dict[str, int] = {}
        """Number of the last message that was moved for the first time, by its publisher's line."""

    def arrived(self, name: str, body: bytes, is_flagged: bool) -> None:
        """Check a message in the target, in its order there. is_flagged: the shovel says that
        somebody may have had it before. Raises Violated."""
        plan, history = self._plan, self._history
        where = f"{name} in {plan.target}"
        message = history.published.get(name)
        if message is None or plan.queue not in message.queues:
            raise Violated(f"phantom: {where} was never published to {plan.queue}")
        if body != message.body:
            raise Violated(f"corrupt: {where} is {len(body)} bytes, not as published")
        if message.work and history.is_unseen(message.work):
            raise Violated(f"{history.works[message.work]}: {where} was in {message.work}")
        history.seen.add("shovel moved")
        if is_flagged:
            if name in self._names:
                history.seen.add("shovel moved twice")
        elif name in self._names or self._was_new(name):
            raise Violated(f"no flag: {where}, and somebody else had it without a flag, too")
        elif message.number <= self._last.get(message.line, -1) and not self._is_by_priority():
            raise Violated(f"out of order: {where} came behind {self._last[message.line]}")
        else:
            self._last[message.line] = message.number
        self._names.add(name)

    def _was_new(self, name: str) -> bool:
        """Return whether a consumer of the source was told that it is the first to have it."""
        found = self._history.deliveries.get((self._plan.queue, name), [])
        return bool(found) and not found[0].is_flagged

    def _is_by_priority(self) -> bool:
        return self._history.queues[self._plan.queue].priorities is not None
