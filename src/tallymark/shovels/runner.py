"""A shovel at work: carries out what its state machine says, each step as a task."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final, final

from tallymark.shovels.ends import Batch, PartlyPut, ShovelFailed, Source, Target
from tallymark.shovels.shovel import Act, Do, Pace, Phase, Shovel

Report = Callable[[Shovel], None]

LAST_S: Final = 30.0
"""Seconds in which a shovel that was told to stop may move what it has taken."""
UNEXPECTED: Final = "unexpected: "
"""Beginning of the text of a failure that is a bug."""


class _TargetFailed(Exception):
    """The target failed, and the source did not."""

    def __init__(self, error: ShovelFailed, moved: int) -> None:
        """moved: messages of the batch that are settled at the source."""
        super().__init__(str(error))
        self.error = error
        self.moved = moved


@final
class Runner:
    """One shovel, from its start to its end."""

    def __init__(
        self,
        pace: Pace,
        ends: Callable[[], tuple[Source, Target]],
        failed: Report,
        last_s: float = LAST_S,
    ) -> None:
        """ends: makes a new source and target, for each attempt; failed: is told of each
        failure; last_s: seconds as LAST_S."""
        self.shovel = Shovel(pace)
        self._ends = ends
        self._failed = failed
        self._last_s = last_s
        self._source, self._target = ends()
        self._batches: deque[Batch] = deque()
        self._put = 0
        self._tasks: dict[asyncio.Task[int], Act] = {}
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Have it end when what it has taken is moved. What cannot be moved in time goes back to
        the source."""
        self._stopping.set()

    async def run(self) -> None:
        """Move until the shovel ends. Cancelled, it lets go of both sides; nothing is lost."""
        loop = asyncio.get_running_loop()
        told = asyncio.create_task(self._stopping.wait())
        has_heard = False
        until_s: float | None = None
        """Time of the loop at which it gives up; None: it was not told to stop."""
        todo = deque(self.shovel.start())
        try:
            while True:
                while todo:
                    step = todo.popleft()
                    if step.act is Act.END:
                        return
                    if step.act is Act.CLOSE:
                        await self._close()
                        todo = deque(self.shovel.closed())
                    else:
                        self._begin(step)
                waiting: set[asyncio.Task[Any]] = set(self._tasks)
                if not has_heard:  # it may have been told while it closed
                    waiting.add(told)
                left_s = None if until_s is None else max(0.0, until_s - loop.time())
                done, _ = await asyncio.wait(
                    waiting, timeout=left_s, return_when=asyncio.FIRST_COMPLETED
                )
                if told in done:
                    has_heard = True
                    until_s = loop.time() + self._last_s
                    todo.extend(self.shovel.stop())
                elif not done:
                    late = f"what was taken could not be moved in {self._last_s:g} s"
                    todo.extend(self.shovel.failed(late))
                    self._failed(self.shovel)
                todo.extend(self._results([task for task in self._tasks if task in done]))
        finally:
            told.cancel()
            await self._close()

    async def forget(self) -> None:
        """Have both brokers forget the shovel, which has ended: nothing is left of it but what it
        has moved. Raises ShovelFailed."""
        try:
            await self._source.forget()  # first: the numbers are its
            await self._target.forget()
        finally:
            await self._close()

    def _begin(self, step: Do) -> None:
        self._tasks[asyncio.create_task(self._carry_out(step))] = step.act

    async def _carry_out(self, step: Do) -> int:
        """Return how many messages were taken."""
        act = step.act
        if act is Act.OPEN:
            self._source, self._target = self._ends()
            if self._source.is_numbered:
                await self._source.open()
                await self._source.begin(await self._target.open(self._source.origin))
            else:  # it hands out messages once it is open
                known = await self._target.open("")
                await self._source.open()
                await self._source.begin(known)
        elif act is Act.REOPEN:
            await self._reopen(step.number)
        elif act is Act.TAKE:
            batch = await self._source.take(step.number)
            if batch is None:
                return 0
            self._batches.append(batch)
            return len(batch.parcels)
        elif act is Act.PUT:
            await self._put_next(self._batches[self._put])
        elif act is Act.SETTLE:
            await self._source.settle(self._batches[0])
        elif act is Act.WAIT:
            await asyncio.sleep(step.number / 1000)
        return 0

    async def _put_next(self, batch: Batch) -> None:
        """Put a batch. What the target took of one that it did not take whole is settled, so that
        it does not come again with what was refused. Raises _TargetFailed."""
        try:
            await self._target.put(batch)
        except ShovelFailed as error:
            put = error.put if isinstance(error, PartlyPut) else ()
            if put:
                await self._source.settle_some(batch, put)
            if not self._source.is_numbered:
                self._batches[self._put] = batch.again(put, is_sure=len(put) > 0)
            raise _TargetFailed(error, len(put)) from error

    async def _reopen(self, pause_ms: int) -> None:
        """Open a new target in place of one that failed. Raises _TargetFailed."""
        await self._target.close()
        await asyncio.sleep(pause_ms / 1000)
        _, self._target = self._ends()
        try:
            await self._target.open("")
        except ShovelFailed as error:
            raise _TargetFailed(error, 0) from error

    def _results(self, done: list[asyncio.Task[int]]) -> list[Do]:
        """Tell the state machine what has ended: what went well first, as a failure ends all."""
        todo: list[Do] = []
        failure: BaseException | None = None
        for task in done:
            act = self._tasks.pop(task)
            error = task.exception()
            if isinstance(error, _TargetFailed):
                failure = failure or error
            elif error is not None:
                failure = error  # the source's counts: it holds nothing any more
            elif self.shovel.phase is not Phase.CLOSING:
                todo += self._answer(act, task.result())
        if failure is None or self.shovel.phase is Phase.CLOSING:
            return todo
        if isinstance(failure, _TargetFailed):
            holds = not self._source.is_numbered
            told = self.shovel.target_failed if holds else self.shovel.failed
            steps = told(str(failure.error), failure.error.may_pass, failure.moved)
            todo = steps if steps == [Do(Act.CLOSE)] else todo + steps
        elif isinstance(failure, ShovelFailed):
            todo = self.shovel.failed(str(failure), failure.may_pass)
        else:  # a bug, which costs this attempt and nothing else
            todo = self.shovel.failed(f"{UNEXPECTED}{failure!r}")
        self._failed(self.shovel)
        return todo

    def _answer(self, act: Act, count: int) -> list[Do]:
        shovel = self.shovel
        if act is Act.TAKE:
            return shovel.took(count)
        if act is Act.PUT:
            self._put += 1
            return shovel.was_put()
        if act is Act.SETTLE:
            self._batches.popleft()
            self._put -= 1
            return shovel.was_settled()
        return {
            Act.OPEN: shovel.opened, Act.WAIT: shovel.waited, Act.REOPEN: shovel.reopened
        }[act]()  # fmt: skip

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        self._batches.clear()
        self._put = 0
        await self._source.close()
        await self._target.close()
