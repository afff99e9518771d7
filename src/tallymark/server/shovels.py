"""The shovels of a broker: each a task beside the broker's own work, which goes on for ever.

Both ends are connections like any other client's, also the one to this very broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, final

from tallymark.server.loading import loading
from tallymark.server.logs import log_of
from tallymark.shovels.plan import Plan
from tallymark.shovels.shovel import Pace, Shovel

if TYPE_CHECKING:
    from tallymark.shovels.runner import Runner

PAUSE_S: Final = 30.0
"""Seconds until another attempt after a bug."""
STOP_S: Final = 5.0
"""Seconds that a shovel may take to move what it has, when the broker stops."""
MODULES: Final = ("tallymark.shovels.making", "tallymark.shovels.runner")
"""Modules that are imported by the first shovel."""

log = log_of("server")


@final
class Working:
    """A shovel at work, and its plan."""

    def __init__(self, plan: Plan, make: Callable[[], Runner]) -> None:
        self.plan = plan
        self._make = make
        self.runner = make()
        self._is_stopping = False

    def stop(self) -> None:
        """Have it end when what it has taken is moved, or cannot be moved in time."""
        self._is_stopping = True
        self.runner.stop()

    async def run(self, after: asyncio.Task[None] | None) -> None:
        """Work until it is stopped, when the shovel `after` has ended. A bug costs one attempt."""
        if after is not None:
            await asyncio.wait([after])
        while not self._is_stopping:
            try:
                await self.runner.run()
            except Exception as error:  # whatever it is: the next attempt may do without
                log.error("shovel.broken", name=self.plan.name, error=repr(error))
                await asyncio.sleep(PAUSE_S)
                self.runner = self._make()
        log.info("shovel.stopped", name=self.plan.name)

    def row(self) -> dict[str, Any]:
        shovel = self.runner.shovel
        return {
            **self.plan.value(),
            "state": "stopping" if self._is_stopping else shovel.phase.value,
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
        self._tasks: dict[asyncio.Task[None], Working] = {}
        """Shovels by their tasks, also those that move what they hold, and end then."""

    def use(self, plans: Iterable[Plan]) -> None:
        """Have exactly these at work: those that changed begin again when they have moved what they
        hold, and those that are not named end then. Where the broker serves already, their code has
        been loaded."""
        wanted = {plan.name: plan for plan in plans}
        for name, working in list(self._working.items()):
            if wanted.get(name) != working.plan:
                working.stop()
                del self._working[name]
        for name, plan in wanted.items():
            if name not in self._working:
                self._start(plan)

    def rows(self) -> list[dict[str, Any]]:
        """Return what each is, and what it has done."""
        return [working.row() for working in self._tasks.values()]

    async def stop(self) -> None:
        """End all of them: each may move what it holds, but for no longer than STOP_S."""
        for working in self._tasks.values():
            working.stop()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=STOP_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def _start(self, plan: Plan) -> None:
        """Start a shovel, when the one of its name before it has ended."""
        from tallymark.shovels.making import attempts_of
        from tallymark.shovels.runner import Runner

        pace = Pace(batch=plan.batch)

        def make() -> Runner:
            ends = attempts_of(plan, self._by, pace)
            return Runner(pace, ends, lambda shovel: _failed(plan, shovel))

        before = [task for task, one in self._tasks.items() if one.plan.name == plan.name]
        working = Working(plan, make)
        task = self._loop.create_task(working.run(before[-1] if before else None))
        self._working[plan.name] = working
        self._tasks[task] = working
        task.add_done_callback(self._tasks.pop)
        log.info("shovel.started", **plan.value())


def load() -> None:
    """Load the code of shovels, so that none can fail to start. Raises NotLoaded."""
    with loading("shovels", "server"):
        for name in MODULES:
            import_module(name)


def _failed(plan: Plan, shovel: Shovel) -> None:
    log.warning("shovel.failed", name=plan.name, reason=shovel.problem, failures=shovel.failures)
