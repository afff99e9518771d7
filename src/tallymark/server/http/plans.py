"""Plans: messages that stay readable for as long as somebody reads them.

A plan belongs to the user that made it, and is given up when nobody has read it for PLAN_S, when
its owner deletes it, and when the broker stops.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from aiohttp import web

from tallymark.server.http.requests import Readable, Refused, user_of

PLAN_S: Final = 600.0
MAX_PLANS: Final = 1000
"""Plans of one kind at a time."""
T = TypeVar("T")


class Plan(Generic[T]):
    """One plan: what its maker needs to read it (content), and its name, owner and readers."""

    def __init__(self, name: str, content: T, owner: str) -> None:
        self.name = name
        self.content = content
        self.owner = owner
        self.readers = 0
        self.timer: asyncio.TimerHandle | None = None


class Plans(Generic[T]):
    """All plans of one kind."""

    def __init__(self, node: Readable, unpin: Callable[[T], None]) -> None:
        """unpin: called once with the content of each plan that is given up."""
        self._node = node
        self._unpin = unpin
        self._plans: dict[str, Plan[T]] = {}

    def make(self, request: web.Request, pin: Callable[[], T]) -> Plan[T]:
        """Make a plan of what `pin` returns. Raises Refused 429: there are too many, and nothing
        was pinned."""
        if len(self._plans) >= MAX_PLANS:
            raise Refused(429, "resource_exhausted", f"{MAX_PLANS} plans are in use")
        plan = Plan(secrets.token_urlsafe(16), pin(), user_of(request).name)
        self._plans[plan.name] = plan
        self._arm(plan)
        return plan

    def find(self, request: web.Request, name: str) -> Plan[T] | None:
        """Return the user's plan of that name."""
        plan = self._plans.get(name)
        return None if plan is None or plan.owner != user_of(request).name else plan

    def begin_read(self, plan: Plan[T]) -> None:
        """Keep a plan until `end_read`."""
        plan.readers += 1

    def end_read(self, plan: Plan[T]) -> None:
        """Note that a reader is done: the plan's time begins anew."""
        plan.readers -= 1
        self._arm(plan)

    def give_up(self, plan: Plan[T]) -> None:
        """Unpin what the plan holds."""
        del self._plans[plan.name]
        if plan.timer is not None:
            plan.timer.cancel()
        self._unpin(plan.content)
        self._node.schedule()

    def close(self) -> None:
        """Give up every plan."""
        for plan in list(self._plans.values()):
            self.give_up(plan)

    def _arm(self, plan: Plan[T]) -> None:
        if plan.timer is not None:
            plan.timer.cancel()
        if plan.name in self._plans:
            plan.timer = self._node.loop.call_later(PLAN_S, self._expire, plan)

    def _expire(self, plan: Plan[T]) -> None:
        if plan.readers:
            self._arm(plan)
        else:
            self.give_up(plan)
