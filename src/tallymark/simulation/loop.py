"""The event loop of one simulated process, and the sockets on which it listens."""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import selectors
import threading
from collections.abc import Callable
from typing import Any, TypeVar, TypeVarTuple

from tallymark.simulation.threads import Process
from tallymark.simulation.world import SECOND_NS, World

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class _NoWait(selectors.DefaultSelector):
    """A selector that looks and never waits: the world moves its clock instead."""

    def select(self, timeout: float | None = None) -> list[Any]:
        return super().select(0)


class SimulatedLoop(asyncio.SelectorEventLoop):
    """The event loop of one process in a world."""

    def __init__(self, world: World, process: Process) -> None:
        self.world = world
        self.process = process
        super().__init__(_NoWait())
        self._clock_resolution = 1e-9
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

    def has_work(self) -> bool:
        if self._ready or self.is_poked:  # type: ignore[attr-defined]
            return True
        due = self.next_timer()
        return due is not None and due <= self.world.now_ns

    def next_timer(self) -> int | None:
        """Return when the next timer is due, nanoseconds."""
        scheduled = self._scheduled  # type: ignore[attr-defined]
        while scheduled and scheduled[0].cancelled():
            self._timer_cancelled_count -= 1  # type: ignore[attr-defined]
            handle = heapq.heappop(scheduled)
            handle._scheduled = False
        return int(scheduled[0].when() * SECOND_NS) if scheduled else None

    def run_round(self) -> None:
        """Run what is ready once."""
        self.is_poked = False
        asyncio._set_running_loop(self)
        self._thread_id = threading.get_ident()
        try:
            self._run_once()  # type: ignore[attr-defined]
        finally:
            self._thread_id = None  # type: ignore[assignment]
            asyncio._set_running_loop(None)

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
