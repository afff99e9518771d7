"""An event loop with a clock of its own: nothing waits, and every run is the same.

    @virtual
    async def test_something():
        await asyncio.sleep(3600)        # takes no time

When all tasks wait, time jumps to the next timer; where there is none, nothing will ever happen and
`Stuck` is raised. A run fails if a task, an exception or a timer is left behind.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import random
import selectors
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


LONGEST_S = 100_000.0
"""A day and more: something beats on and on, and the test waits for what will not come."""


class Stuck(Exception):
    """All tasks wait, and there is no timer; or no end is in sight."""


class LeftBehind(Exception):
    """What should be over when the test is: tasks, or errors nobody has seen."""


class _Clock(selectors._BaseSelectorImpl):  # type: ignore[name-defined,misc]
    """Waits by moving the clock on."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.longest = LONGEST_S

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise Stuck("all tasks wait, and there is no timer")
        self.now += max(0.0, timeout)
        if self.now > self.longest:
            raise Stuck(f"still not done at {self.now} s")
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self, seed: int | None = None) -> None:
        self.clock = _Clock()
        super().__init__(self.clock)
        self.set_debug(False)
        self.errors: list[dict[str, Any]] = []
        self.set_exception_handler(lambda _, context: self.errors.append(context))
        self._random = None if seed is None else random.Random(seed)
        self.failure: BaseException | None = None
        self.after_each: Callable[[], None] | None = None
        """Called after each turn of the loop: for what must hold at every moment."""

    def time(self) -> float:
        return self.clock.now

    def _run_once(self) -> None:
        """With a seed, what is ready runs in another order each time: asyncio promises an order
        that programs had better not need. Time does not go backwards."""
        if self._random is not None and len(self._ready) > 1:  # type: ignore[has-type]
            ready = list(self._ready)  # type: ignore[has-type]
            self._random.shuffle(ready)
            self._ready = deque(ready)
        super()._run_once()  # type: ignore[misc]
        if self.after_each is not None:
            try:
                self.after_each()
            except BaseException as error:
                self.failure = error
                self.after_each = None
                self.stop()


def run(main: Callable[[], Coroutine[Any, Any, T]], seed: int | None = None) -> T:
    """Run to the end, and look at what it left behind."""
    loop = VirtualLoop(seed)
    asyncio.set_event_loop(loop)
    task = loop.create_task(main())
    try:
        try:
            result = loop.run_until_complete(task)
        except RuntimeError:
            if loop.failure is not None:
                raise loop.failure from None
            raise
        loop.run_until_complete(_settle())
        left = [one for one in asyncio.all_tasks(loop) if not one.done()]
        gc.collect()  # what was never retrieved says so now
        loop.run_until_complete(_settle())
        if left or loop.errors:
            raise LeftBehind(f"tasks {left}, errors {loop.errors}")
        return result
    finally:
        loop.after_each = None
        loop.clock.longest *= 2
        left = list(asyncio.all_tasks(loop))
        for one in left:
            one.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left, timeout=1000))
        asyncio.set_event_loop(None)
        loop.close()


async def _settle() -> None:
    await turns(3)


async def turns(count: int = 1) -> None:
    """Let so many turns of the loop pass."""
    for _ in range(count):
        await asyncio.sleep(0)


async def quiet() -> None:
    """Until nothing happens any more at this time: everything said was heard and answered."""
    await asyncio.sleep(0.000_001)


def virtual(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """A test that runs on a loop of this kind."""

    @functools.wraps(test)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> None:
        run(lambda: test(*args, **kwargs))

    return wrapper
