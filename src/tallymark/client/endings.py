"""Commits and rollbacks under way, each in a task of its own: a cancelled caller does not cancel
methods that were sent to the broker."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, final

from tallymark.client.errors import ClientError
from tallymark.client.events import Reporter, TransactionFailed
from tallymark.client.gate import Gate
from tallymark.client.waiting import Waiter, resolve


@final
class Endings:
    """Commits and rollbacks under way of one session."""

    __slots__ = ("_gate", "_loop", "_reporter", "_tasks")

    def __init__(self, loop: asyncio.AbstractEventLoop, gate: Gate, reporter: Reporter) -> None:
        self._loop = loop
        self._gate = gate
        self._reporter = reporter
        self._tasks: set[asyncio.Task[None]] = set()

    def run(self, steps: Coroutine[Any, Any, None], waiter: Waiter) -> None:
        """Begin. The waiter is told how it ended: None, or a ClientError."""
        task = self._loop.create_task(self._told(steps, waiter))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _told(self, steps: Coroutine[Any, Any, None], waiter: Waiter) -> None:
        try:
            await steps
        except ClientError as error:
            if waiter.done():  # nobody waits any more
                self._reporter.report(TransactionFailed(error), error)
            resolve(waiter, error)
        except BaseException:
            waiter.cancel()
            raise
        else:
            resolve(waiter, None)

    async def over(self, limit_s: float) -> None:
        """Wait for all of them, at most so long."""
        parked = self._gate.park()
        try:
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=limit_s)
        finally:
            self._gate.go_on(parked)
