"""Turns of the event loop, and the one way in which the client's calls wait.

What is decided in one turn leaves together, at its end. A hundred settlements of one turn become
one range and one flow; a hundred sends one write. Whoever has something to send marks itself;
nothing is per message.

Futures here are only ever given *results*, an error being one: an exception set on a future whose
waiter was cancelled in the same turn would be reported by asyncio as never retrieved.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator
from types import TracebackType
from typing import Any, Final, Generic, Protocol, Self, TypeVar, final

from tallymark.client.errors import ClientError
from tallymark.wire.line import MonotonicMs


class _TimeIsUp:
    """The result of a future whose time is up."""


TIME_IS_UP: Final = _TimeIsUp()

Waiter = asyncio.Future[object]


def resolve(waiter: Waiter, result: object) -> None:
    """Give a waiter its result, unless it has one or was cancelled."""
    if not waiter.done():
        waiter.set_result(result)


async def answer_to(waiter: Waiter, timeout: float | None) -> object:
    """Return the result, or TIME_IS_UP after `timeout` seconds (None: no limit); raises a result
    that is a ClientError, TypeError or ValueError. When cancelled, the waiter is cancelled and
    nothing else has changed."""
    if timeout is None:
        result = await waiter
    else:
        timer = waiter.get_loop().call_later(timeout, resolve, waiter, TIME_IS_UP)
        try:
            result = await waiter
        finally:
            timer.cancel()
    if isinstance(result, (ClientError, TypeError, ValueError)):
        raise result
    return result


class Closing(ABC):
    """Something that is closed with `close`, or by `async with`."""

    @abstractmethod
    async def close(self) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


T = TypeVar("T", bound=Closing)


@final
class Opening(Generic[T]):
    """An operation that opens something: `await` it and close the result yourself, or use `async
    with`. Nothing happens before."""

    __slots__ = ("_made", "_open")

    def __init__(self, open: Callable[[], Awaitable[T]]) -> None:
        self._open = open
        self._made: T | None = None

    def __await__(self) -> Generator[Any, Any, T]:
        return self._open().__await__()

    async def __aenter__(self) -> T:
        made = self._made = await self._open()
        return made

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._made is not None:
            await self._made.close()


class Flushable(Protocol):
    def flush(self) -> None:
        """Send what was collected. Called once at the end of the turn."""
        ...


@final
class Turn:
    """Turns of the event loop for one connection, whichever transport carries it at the time."""

    __slots__ = ("_handle", "_marked", "is_paused", "loop", "write")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.write: Callable[[], None] | None = None
        """Writes the protocol's output; None while there is no transport."""
        self.is_paused = False
        """The transport's buffer is full: keep messages that can wait."""
        self._marked: list[Flushable] = []
        self._handle: asyncio.Handle | None = None

    def flush_later(self, what: Flushable) -> None:
        """Have `what` flushed at the end of this turn. To be called once until it is flushed."""
        self._marked.append(what)
        self.request()

    def request(self) -> None:
        """Have the output written at the end of this turn."""
        if self._handle is None:
            self._handle = self.loop.call_soon(self._run)

    def finish(self) -> None:
        """End the turn now: when this returns, all that was decided is with the transport."""
        if self._handle is not None:
            self._handle.cancel()
        self._run()

    def now_ms(self) -> MonotonicMs:
        """Return monotonic milliseconds."""
        return MonotonicMs(int(self.loop.time() * 1000))

    def _run(self) -> None:
        self._handle = None
        while self._marked:
            marked = self._marked
            self._marked = []
            for what in marked:
                what.flush()
        if self.write is not None:
            self.write()
