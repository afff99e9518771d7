"""The housekeeping schedule: periodic tasks, each with its own period.

A task that is still running when its next run is due goes on, and that run is skipped. An exception
of a task is logged and counted; it stops neither other tasks nor the task's next run.
"""

from __future__ import annotations

import asyncio
import traceback
from typing import Any, Final, Protocol

from tallymark.server.clock import wall_ms
from tallymark.server.logs import log_of

SHORTEST_S: Final = 0.01

log = log_of("server")


class Task(Protocol):
    """A periodic task."""

    def period_s(self) -> float:
        """Seconds from the beginning of one run to that of the next; asked anew each time. 0: not
        now, and it is asked again when the configuration is read again."""
        ...

    async def run(self) -> None:
        """Do it. It shares the loop with everything else: await now and then."""
        ...


class Entry:
    """A task and the results of its runs."""

    def __init__(self, name: str, task: Task) -> None:
        self.name = name
        self.task = task
        self.runs = 0
        self.errors = 0
        self.passed_over = 0
        """Number of runs skipped because the one before was still at work."""
        self.last_error = ""
        self.last_began_ms = 0
        """Wall time; 0: never."""
        self.last_took_s = 0.0
        self.period_s = 0.0
        """Period asked for last; seconds."""
        self.timer: asyncio.TimerHandle | None = None
        self.running: asyncio.Task[None] | None = None

    def values(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "period_s": self.period_s,
            "runs": self.runs,
            "errors": self.errors,
            "passed_over": self.passed_over,
            "last_error": self.last_error,
            "last_began_ms": self.last_began_ms,
            "last_took_s": round(self.last_took_s, 6),
        }


class Schedule:
    """One node's tasks. Everything here happens on the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.entries: dict[str, Entry] = {}
        self._is_on = False

    def add(self, name: str, task: Task) -> None:
        self.entries[name] = Entry(name, task)
        if self._is_on:
            self._arm(self.entries[name])

    def start(self) -> None:
        """Start all tasks, each after its first period."""
        self._is_on = True
        for entry in self.entries.values():
            self._arm(entry)

    def replan(self) -> None:
        """Periods may be others now; those that are count from this moment."""
        for entry in self.entries.values() if self._is_on else ():
            if entry.timer is None or entry.period_s != entry.task.period_s():
                self._arm(entry)

    async def stop(self) -> None:
        """Stop all tasks; none runs any more when this returns."""
        self._is_on = False
        running = []
        for entry in self.entries.values():
            if entry.timer is not None:
                entry.timer.cancel()
                entry.timer = None
            if entry.running is not None:
                entry.running.cancel()
                running.append(entry.running)
        await asyncio.gather(*running, return_exceptions=True)

    def _arm(self, entry: Entry) -> None:
        if entry.timer is not None:
            entry.timer.cancel()
            entry.timer = None
        entry.period_s = entry.task.period_s()
        if entry.period_s > 0:
            wait = max(entry.period_s, SHORTEST_S)
            entry.timer = self._loop.call_later(wait, self._due, entry)

    def _due(self, entry: Entry) -> None:
        entry.timer = None
        self._arm(entry)
        if entry.running is not None:
            entry.passed_over += 1
            log.debug("housekeeping.passed_over", task=entry.name, times=entry.passed_over)
            return
        entry.running = self._loop.create_task(self._run(entry))

    async def _run(self, entry: Entry) -> None:
        entry.last_began_ms = wall_ms()
        began = self._loop.time()
        try:
            await entry.task.run()
        except Exception as error:  # costs this run, and nothing else
            self._failed(entry, error)
        finally:
            entry.runs += 1
            entry.last_took_s = self._loop.time() - began
            entry.running = None

    def _failed(self, entry: Entry, error: Exception) -> None:
        entry.errors += 1
        entry.last_error = repr(error)
        log.error(
            "housekeeping.failed", task=entry.name, error=repr(error),
            trace="".join(traceback.format_exception(error)),
        )  # fmt: skip
