"""The housekeeping schedule: each task at its own pace, none in another's way [SC-4]."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine

import pytest

from tallymark.server.schedule import Schedule
from tests.support.virtual_loop import run


class Plain:
    """A task that counts."""

    def __init__(self, period_s: float, work: Callable[[], Awaitable[None]] | None = None) -> None:
        self.period = period_s
        self.runs = 0
        self.times: list[float] = []
        self._work = work

    def period_s(self) -> float:
        return self.period

    async def run(self) -> None:
        self.runs += 1
        self.times.append(asyncio.get_running_loop().time())
        if self._work is not None:
            await self._work()


def on_loop(play: Callable[[Schedule], Coroutine[None, None, None]]) -> None:
    async def main() -> None:
        schedule = Schedule(asyncio.get_running_loop())
        try:
            await play(schedule)
        finally:
            await schedule.stop()

    run(main)


async def until(condition: Callable[[], bool]) -> None:
    """Let time pass, which is the loop's own."""
    while not condition():
        await asyncio.sleep(0.001)


def test_sc_4_each_task_has_a_period_of_its_own() -> None:
    async def play(schedule: Schedule) -> None:
        fast, slow, never = Plain(0.02), Plain(0.1), Plain(0)
        for name, task in (("fast", fast), ("slow", slow), ("never", never)):
            schedule.add(name, task)
        assert schedule.entries["fast"].timer is None  # not before it is started
        schedule.start()
        await until(lambda: slow.runs == 3)
        assert fast.runs > slow.runs
        assert never.runs == 0
        assert schedule.entries["slow"].runs in (2, 3)

    on_loop(play)


def test_sc_4_what_a_task_raises_costs_neither_its_next_run_nor_others() -> None:
    async def fail() -> None:
        raise RuntimeError("broken")

    async def play(schedule: Schedule) -> None:
        bad, good = Plain(0.01, fail), Plain(0.01)
        schedule.add("bad", bad)
        schedule.add("good", good)
        schedule.start()
        await until(lambda: bad.runs > 2 and good.runs > 2)
        await until(lambda: schedule.entries["bad"].errors > 2)
        assert schedule.entries["bad"].values()["last_error"] == "RuntimeError('broken')"
        assert schedule.entries["good"].errors == 0

    on_loop(play)


def test_a_task_that_is_still_at_work_is_not_started_again() -> None:
    async def play(schedule: Schedule) -> None:
        gate = asyncio.Event()
        at_work = 0
        most = 0

        async def work() -> None:
            nonlocal at_work, most
            at_work += 1
            most = max(most, at_work)
            await gate.wait()
            at_work -= 1

        long, other = Plain(0.01, work), Plain(0.01)
        schedule.add("long", long)
        schedule.add("other", other)
        schedule.start()
        await until(lambda: schedule.entries["long"].passed_over >= 3)
        assert (long.runs, most) == (1, 1)
        assert other.runs > 1
        gate.set()
        await until(lambda: long.runs > 1)
        assert most == 1

    on_loop(play)


def test_a_new_period_counts_from_now_and_an_old_one_goes_on() -> None:
    async def play(schedule: Schedule) -> None:
        rare, same = Plain(1000), Plain(2000)
        schedule.add("rare", rare)
        schedule.add("same", same)
        schedule.start()
        before = schedule.entries["same"].timer
        rare.period = 0.01
        schedule.replan()
        assert schedule.entries["same"].timer is before
        await until(lambda: rare.runs > 1)
        rare.period = 0
        schedule.replan()
        await until(lambda: schedule.entries["rare"].timer is None)

    on_loop(play)


def test_a_stop_ends_what_is_at_work() -> None:
    async def play(schedule: Schedule) -> None:
        ended: list[str] = []

        async def work() -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise

        task = Plain(0.01, work)
        schedule.add("task", task)
        schedule.start()
        await until(lambda: task.runs == 1)
        await schedule.stop()
        assert ended == ["cancelled"]
        assert schedule.entries["task"].timer is None

    on_loop(play)


@pytest.mark.parametrize("period", [0.000_001])
def test_no_period_is_so_short_that_nothing_else_happens(period: float) -> None:
    async def play(schedule: Schedule) -> None:
        task = Plain(period)
        schedule.add("task", task)
        schedule.start()
        await until(lambda: task.runs == 4)
        assert task.times[3] - task.times[0] >= 0.025

    on_loop(play)
