"""Consumers of several queues on one session: what they share goes round.

Over AMQP 0-9-1 they share a prefetch (basic.qos, global), which changes now and then; over AMQP 1.0
the window of their session, which takes a few transfer frames at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, Final, cast

from tallymark.client import ClientError, Session
from tallymark.client.amqp091.session import Amqp091Session
from tallymark.simulation.clients import WINDOW, Clients
from tallymark.simulation.history import NEVER, History, Line, Violated
from tallymark.simulation.models.credit import Shared
from tallymark.simulation.plan import SharedPlan
from tallymark.simulation.world import SECOND_NS
from tallymark.wire.amqp091.methods import BasicQos
from tallymark.wire.amqp10.errors import WINDOW_VIOLATION

LIMITS: Final = (1, 2, 5, 20, 50)
GONE_NS: Final = 6 * SECOND_NS
"""Time after which the broker knows that a connection is no more."""


class SharedConsumers:
    """The consumers of one plan."""

    def __init__(self, clients: Clients, plan: SharedPlan) -> None:
        self._clients = clients
        self._plan = plan
        self._history: History = clients.history
        self._random = clients.world.random
        self._has_prefetch = plan.protocol == "amqp091"

    async def consume(self) -> None:
        """Consume until told to end."""
        plan = self._plan
        window = WINDOW if self._has_prefetch else plan.limit
        await self._clients.steadily(
            plan.name, plan.protocol, lambda: self._clients.consuming, self._work, window=window
        )

    async def _work(self, session: Session, line: Line) -> None:
        plan, history = self._plan, self._history
        shared = line.shared = Shared(
            self._clients.world, plan.queues, plan.own, history.untouched, history.certain_ns,
            plan.own * self._in_doubt(line),
        )  # fmt: skip
        try:
            async with contextlib.AsyncExitStack() as opened:
                takes = []
                for one in plan.consumers:
                    receiver = session.receiver(f"/queues/{one.queue}", credit=one.credit)
                    takes.append(self._clients.take(
                        one, await opened.enter_async_context(receiver), line,
                        lambda: self._may_change(session, shared),
                    ))  # fmt: skip
                if self._has_prefetch:  # a limit of each consumer's own, said later, ends it
                    shared.limits(plan.limit)
                    self._limit(session, plan.limit)
                    await session.declare_queue(plan.queues[0])  # and it is sent
                await _all(takes)
        except ClientError as error:
            if getattr(error, "condition", "") == WINDOW_VIOLATION and line.down_ns == NEVER:
                raise Violated(f"beyond the session's window: {plan.name}: {error}") from error
            raise
        finally:
            if shared.was_full:
                history.seen.add("shared credit used up")
            if shared.was_contested:
                history.seen.add(f"shared credit goes round over {plan.protocol}")

    def _in_doubt(self, line: Line) -> int:
        """Return how many connections of these consumers the broker may still give messages to."""
        now = self._clients.world.now_ns
        return sum(
            one.client == line.client and one is not line and now - one.down_ns < GONE_NS
            for one in self._history.lines
        )

    def _limit(self, session: Session, limit: int) -> None:
        # What the client has no words for.
        port = cast(Amqp091Session, session._dispatcher.port)
        port.send(BasicQos(prefetch_count=limit, global_=True))

    def _may_change(self, session: Session, shared: Shared) -> None:
        """Set another limit now and then, before an answer: that has it sent."""
        if self._random.random() < self._plan.changes:
            limit = self._random.choice(LIMITS)
            shared.limits(limit)
            self._history.note(f"{self._plan.name} may hold {limit} together")
            self._history.seen.add("shared credit changed")
            self._limit(session, limit)


async def _all(works: list[Coroutine[Any, Any, None]]) -> None:
    """Do all at once; the first that fails ends the others. Raises what that raised."""
    tasks = [asyncio.ensure_future(one) for one in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
