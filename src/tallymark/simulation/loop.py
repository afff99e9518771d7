"""The event loop of one simulated process, and the sockets on which it listens."""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import selectors
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar, TypeVarTuple

from tallymark.simulation.threads import Process
from tallymark.simulation.world import NEVER_NS, SECOND_NS, World

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Call(asyncio.TimerHandle):
    """One call of a loop, due now or later; asyncio's, without its looks at debug modes."""

    __slots__ = ()

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...],
        context: contextvars.Context | None, when: float,
    ) -> None:  # fmt: skip
        self._callback: Callable[..., object] | None = callback
        self._args = args
        self._context = contextvars.copy_context() if context is None else context
        self._when = when
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = None
        self._args = ()


class SimulatedLoop(asyncio.SelectorEventLoop):
    """The event loop of one process in a world."""

    def __init__(self, world: World, process: Process) -> None:
        self.world = world
        self.process = process
        super().__init__(selectors.DefaultSelector())
        self._ready: deque[Call] = deque()
        self._scheduled: list[tuple[int, int, Call]] = []
        """Heap of the timers: when, number, call. Those of one time run as they were set."""
        self._timers = 0
        """Timers that were ever set."""
        self.is_poked = False
        """True when descriptors are to be looked at: a thread may have written to one."""
        self.listeners: dict[int, Callable[[], Any]] = {}
        """Makers of protocols by port."""
        self.waiting: dict[int, Callable[[], None]] = {}
        """Calls by port for somebody who comes to a socket that has only a reader yet."""
        self._coming: set[int] = set()
        """Ports of such sockets that are about to get their listener."""
        world.loops.append(self)

    # -- for the world

    def next_ns(self) -> int:
        if self._ready or self.is_poked:
            return 0
        scheduled = self._scheduled
        while scheduled and scheduled[0][2]._cancelled:
            heapq.heappop(scheduled)
        return scheduled[0][0] if scheduled else NEVER_NS

    def run_round(self) -> None:
        """Run what is ready once. Descriptors are looked at only when one may be readable."""
        ready, scheduled = self._ready, self._scheduled
        if self.is_poked:
            self.is_poked = False
            self._process_events(self._selector.select(0))  # type: ignore[attr-defined]
        now_ns = self.world.now_ns
        while scheduled and scheduled[0][0] <= now_ns:
            ready.append(heapq.heappop(scheduled)[2])
        asyncio._set_running_loop(self)
        try:
            for _ in range(len(ready)):
                call = ready.popleft()
                callback = call._callback
                if callback is not None:
                    try:
                        call._context.run(callback, *call._args)
                    except (SystemExit, KeyboardInterrupt):
                        raise
                    except BaseException as error:
                        about = {"message": f"Exception in {callback}", "exception": error}
                        self.call_exception_handler(about)
        finally:
            asyncio._set_running_loop(None)

    def end(self) -> list[object]:
        """Be no more: nothing of this loop runs again. Returns what was still to be run, which
        must not be finished by a collection of garbage."""
        self.leave()
        left: list[object] = [*asyncio.all_tasks(self), *self._ready, *self._scheduled]
        self._ready.clear()
        self._scheduled.clear()
        self.close()
        return left

    def is_opening(self, port: int) -> bool:
        """Return whether somebody came to a socket whose listener is not there yet."""
        return port in self._coming

    def leave(self) -> None:
        """Be no more: nothing of this loop runs again."""
        if self in self.world.loops:
            self.world.loops.remove(self)

    # -- for asyncio

    def time(self) -> float:
        # A timer that is due at a time is due when the clock stands there, whatever was rounded.
        return (self.world.now_ns + 1) / SECOND_NS

    def call_soon(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        call = Call(callback, args, context, 0.0)
        self._ready.append(call)
        return call

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        when = (self.world.now_ns + 1) / SECOND_NS + delay
        return self._call_at(int(when * SECOND_NS), Call(callback, args, context, when))

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self._call_at(int(when * SECOND_NS), Call(callback, args, context, when))

    def _call_at(self, when_ns: int, call: Call) -> Call:
        self._timers += 1
        heapq.heappush(self._scheduled, (when_ns, self._timers, call))
        return call

    def call_soon_threadsafe(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(
        self, executor: Any, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Run it in a simulated thread."""
        future: asyncio.Future[T] = self.create_future()

        def run() -> None:
            try:
                result = func(*args)
            except Exception as error:
                if not future.done():
                    self.call_soon(future.set_exception, error)
            else:
                if not future.done():
                    self.call_soon(_resolve, future, result)

        self.process.thread(run, "executor").start()
        return future

    async def create_server(  # type: ignore[override]
        self, factory: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Listen on a simulated socket."""
        sock = kwargs["sock"]
        assert isinstance(sock, SimulatedSocket), sock
        self.listeners[sock.port] = factory
        self._coming.discard(sock.port)
        return SimulatedServer(self, sock)

    def add_reader(self, fd: Any, callback: Callable[[*Ts], Any], *args: *Ts) -> None:
        if isinstance(fd, SimulatedSocket):
            self.waiting[fd.port] = lambda: callback(*args) and None
        else:
            super().add_reader(fd, callback, *args)

    def remove_reader(self, fd: Any) -> bool:
        if isinstance(fd, SimulatedSocket):
            if self.waiting.pop(fd.port, None) is None:
                return False
            self._coming.add(fd.port)
            return True
        return super().remove_reader(fd)


def _resolve(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


class SimulatedSocket:
    """A bound socket: a port, and no more."""

    family = 2  # AF_INET

    def __init__(self, port: int) -> None:
        self.port = port

    def getsockname(self) -> tuple[str, int]:
        return ("127.0.0.1", self.port)

    def dup(self) -> SimulatedSocket:
        """Return what is as good as a copy."""
        return self

    def setblocking(self, flag: bool) -> None:
        """Do nothing: no call ever blocks."""

    def listen(self, backlog: int = 0) -> None:
        """Connections are passed on by the network."""

    def close(self) -> None:
        """There is nothing to let go of."""


class SimulatedServer:
    """The listener that `create_server` returns."""

    def __init__(self, loop: SimulatedLoop, sock: SimulatedSocket) -> None:
        self._loop = loop
        self.sockets = (sock,)

    def close(self) -> None:
        """Accept nobody any more."""
        self._loop.listeners.pop(self.sockets[0].port, None)

    async def wait_closed(self) -> None:
        """Return at once."""

    def is_serving(self) -> bool:
        return self.sockets[0].port in self._loop.listeners
