"""The shovels of a broker: each a task beside the broker's own work, which goes on for ever.

Both ends are connections like any other client's, also the one to this very broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, final

from tallymark.server.logs import log_of
from tallymark.shovels.plan import Plan
from tallymark.shovels.shovel import Pace, Shovel

if TYPE_CHECKING:
    from tallymark.shovels.runner import Runner

STOP_S: Final = 5.0
"""Seconds that a shovel may take to move what it has, when the broker stops."""

log = log_of("server")


@final
class Working:
    """A shovel at work, and its plan."""

    def __init__(self, plan: Plan, runner: Runner, task: asyncio.Task[None]) -> None:
        self.plan = plan
        self.runner = runner
        self.task = task

    def row(self) -> dict[str, Any]:
        shovel = self.runner.shovel
        return {
            **self.plan.value(),
            "state": "failed" if self.task.done() else shovel.phase.value,
            "moved": shovel.moved,
            "in_hand": shovel.in_hand,
            "failures": shovel.failures,
            "problem": shovel.problem,
        }


@final
class Shovels:
    """All shovels of a node. Everything here happens on the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, by: str) -> None:
        """by: name under which they move messages."""
        self._loop = loop
        self._by = by
        self._working: dict[str, Working] = {}
        self._ending: dict[asyncio.Task[None], Working] = {}
        """Shovels that move what they hold, and end then."""

    def use(self, plans: Iterable[Plan]) -> None:
        """Have exactly these at work: those that changed begin again when they have moved what they
        hold, and those that are not named end then."""
        wanted = {plan.name: plan for plan in plans}
        for name, working in list(self._working.items()):
            if wanted.get(name) != working.plan:
                working.runner.stop()
                self._ending[working.task] = working
                working.task.add_done_callback(self._ending.pop)
                del self._working[name]
                if name in wanted:
                    self._start(wanted[name], working.task)
        for name, plan in wanted.items():
            if name not in self._working:
                self._start(plan, None)

    def rows(self) -> list[dict[str, Any]]:
        """Return what each is, and what it has done."""
        found = [working.row() for working in self._working.values()]
        return found + [{**one.row(), "state": "stopping"} for one in self._ending.values()]

    async def stop(self) -> None:
        """End all of them: each may move what it holds, but for no longer than STOP_S."""
        tasks = set(self._ending)
        for working in self._working.values():
            working.runner.stop()
            tasks.add(working.task)
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=STOP_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def _start(self, plan: Plan, after: asyncio.Task[None] | None) -> None:
        """Start a shovel, when the one before it has ended."""
        from tallymark.shovels.making import ends_of
        from tallymark.shovels.runner import Runner

        pace = Pace(batch=plan.batch)
        runner = Runner(
            pace, lambda: ends_of(plan, self._by, pace), lambda shovel: _failed(plan, shovel)
        )
        task = self._loop.create_task(self._run(runner, after))
        task.add_done_callback(lambda task: _ended(plan, task))
        self._working[plan.name] = Working(plan, runner, task)
        log.info("shovel.started", **plan.value())

    async def _run(self, runner: Runner, after: asyncio.Task[None] | None) -> None:
        if after is not None:
            await asyncio.wait([after])
        await runner.run()


def _failed(plan: Plan, shovel: Shovel) -> None:
    log.warning("shovel.failed", name=plan.name, reason=shovel.problem, failures=shovel.failures)


def _ended(plan: Plan, task: asyncio.Task[None]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None:
        log.error("shovel.broken", name=plan.name, error=repr(error))
    else:
        log.info("shovel.stopped", name=plan.name)
