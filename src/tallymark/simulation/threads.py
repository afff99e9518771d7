"""Threads of a simulated process: they run one at a time, when the world lets them.

Each has a stack of its own (a greenlet) and holds the baton or waits for it. It gives the baton
back where it calls something that takes time: a call to the disk, a wait for a queue, an event or
another thread's end. When it gets the baton again is drawn by the world. A switch costs less than a
microsecond; between threads of the operating system it cost a quarter of a world.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from queue import Empty
from typing import Generic, Protocol, TypeVar

from greenlet import getcurrent, greenlet

from tallymark.journal.threads import Threads
from tallymark.simulation.world import World

T = TypeVar("T")


class Crashed(BaseException):
    """The process has come to its end in the middle of a call."""


class Deadlock(Exception):
    """The loop's thread waits for a thread that waits, too."""


class Timers(Protocol):
    """The process's event loop, as its threads need it."""

    is_poked: bool
    """True when descriptors are to be looked at."""

    def call_later(self, delay: float, callback: Callable[..., object], *args: object) -> object:
        """Call it after so many seconds."""


class Process:
    """Scheduler of the threads of one simulated process."""

    loop: Timers

    def __init__(self, world: World) -> None:
        self.world = world
        self.is_dead = False
        self.is_doomed = False
        """True once it has come to its end in a call that is under way: nothing it does counts."""
        self.running: SimulatedThread | None = None
        """The thread that holds the baton; None: the loop's."""
        self.alive: list[SimulatedThread] = []
        self.may_run: dict[SimulatedThread, int] = {}
        """Threads that will get the baton by themselves, and the times they had it before."""
        self.threads = Threads(
            thread=self.thread,
            event=lambda: SimulatedEvent(self),
            queue=lambda: SimulatedQueue(self),
            lock=lambda: SimulatedLock(self),
            monotonic=lambda: world.now_s,
            owned_lock=lambda: SimulatedOwnedLock(self),
        )

    def thread(self, run: Callable[[], None], name: str) -> SimulatedThread:
        return SimulatedThread(self, run, name)

    def latency_s(self) -> float:
        """Draw how long a thread takes to wake up."""
        return self.world.random.expovariate(1 / 0.000_02)

    def spend(self, seconds: float) -> None:
        """Let time pass for the thread that calls; the loop's thread goes on at once.

        Raises Crashed: the process came to its end meanwhile."""
        if self.is_dead:
            raise Crashed
        thread = self.running
        if thread is not None:
            thread.wake_in(seconds)
            thread.pause()

    def wait(self, waiters: list[SimulatedThread], is_over: Callable[[], bool]) -> None:
        """Wait until that holds, woken by who takes this thread from `waiters`."""
        thread = self.running
        while not is_over():
            if self.is_dead:
                raise Crashed
            if thread is None:
                self._let_one_run()
            else:
                waiters.append(thread)
                thread.pause()

    def _let_one_run(self) -> None:
        """On the loop's thread, which waits: another one's turn."""
        if not self.may_run:
            raise Deadlock("the loop waits for a thread, and every thread waits for something")
        thread, number = next(iter(self.may_run.items()))
        self.resume(thread, number)

    def wake(self, waiters: list[SimulatedThread]) -> None:
        """Wake who waits."""
        waiting, waiters[:] = list(waiters), []
        for thread in waiting:
            thread.wake_in(self.latency_s())

    def resume(self, thread: SimulatedThread, number: int) -> None:
        """Give a thread the baton, and take it back when it pauses or ends."""
        if not thread.is_running or thread.number != number:
            return  # it was woken before
        thread.number += 1
        self.may_run.pop(thread, None)
        before, self.running = self.running, thread
        thread.go_on()
        self.running = before
        self.loop.is_poked = True

    def end(self) -> None:
        """End all threads where they are."""
        self.is_dead = True
        for thread in list(self.alive):
            self.resume(thread, thread.number)


class SimulatedThread:
    """One thread."""

    def __init__(self, process: Process, run: Callable[[], None], name: str) -> None:
        self._process = process
        self._run = run
        self.name = name
        self._stack = greenlet(self._main)
        self.number = 0
        """Times it got the baton: a call that would wake it from an earlier pause is late."""
        self.is_running = False
        self._joining: list[SimulatedThread] = []

    def start(self) -> None:
        self.is_running = True
        self._process.alive.append(self)
        self.wake_in(self._process.latency_s())

    def is_alive(self) -> bool:
        return self.is_running

    def join(self) -> None:
        self._process.wait(self._joining, lambda: not self.is_running)

    def wake_in(self, seconds: float) -> None:
        """Get the baton after so many seconds."""
        process = self._process
        if not process.is_dead:
            process.may_run[self] = self.number
            process.loop.call_later(seconds, process.resume, self, self.number)

    def pause(self) -> None:
        """Give the baton back until it comes again. Raises Crashed."""
        home = self._stack.parent
        assert home is not None
        home.switch()
        if self._process.is_dead:
            raise Crashed

    def go_on(self) -> None:
        """Run until it pauses or ends."""
        self._stack.parent = getcurrent()  # another thread may have made it, and be over
        self._stack.switch()

    def _main(self) -> None:
        process = self._process
        try:
            if not process.is_dead:
                self._run()
        except Crashed:
            pass
        except BaseException as error:
            process.world.failures.append(f"thread {self.name}: {error!r}")
        finally:
            self.is_running = False
            process.alive.remove(self)
            process.wake(self._joining)


class SimulatedEvent:
    """threading.Event."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._is_set = False
        self._waiters: list[SimulatedThread] = []

    def set(self) -> None:
        self._is_set = True
        self._process.wake(self._waiters)

    def clear(self) -> None:
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        if timeout is not None and not self._is_set:
            thread = self._process.running
            if thread is not None:
                self._waiters.append(thread)
                thread.wake_in(timeout)
                thread.pause()
                if thread in self._waiters:
                    self._waiters.remove(thread)
                return self._is_set
        self._process.wait(self._waiters, lambda: self._is_set)
        return True


class SimulatedLock:
    """threading.Lock, in a `with` block."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._is_held = False
        self._waiters: list[SimulatedThread] = []

    def __enter__(self) -> bool:
        self._process.wait(self._waiters, lambda: not self._is_held)
        self._is_held = True
        return True

    def __exit__(self, *error: object) -> None:
        self._is_held = False
        self._process.wake(self._waiters)


class SimulatedOwnedLock:
    """threading.RLock."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._owner: SimulatedThread | None = None
        """Thread that holds it; None: the loop's does, or nobody."""
        self._times = 0
        self._waiters: list[SimulatedThread] = []

    def acquire(self, blocking: bool = True) -> bool:
        if self._is_mine() or blocking:
            self._process.wait(self._waiters, self._is_mine)
            self._owner = self._process.running
            self._times += 1
            return True
        return False

    def _is_mine(self) -> bool:
        return not self._times or self._owner is self._process.running

    def release(self) -> None:
        self._times -= 1
        if not self._times:
            self._process.wake(self._waiters)


class SimulatedQueue(Generic[T]):
    """queue.SimpleQueue."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._items: deque[T] = deque()
        self._waiters: list[SimulatedThread] = []

    def put(self, item: T) -> None:
        self._items.append(item)
        self._process.wake(self._waiters)

    def get(self, block: bool = True, timeout: float | None = None) -> T:
        if not self._items and timeout is not None:
            thread = self._process.running
            assert thread is not None, "only threads wait for a time"
            self._waiters.append(thread)
            thread.wake_in(timeout)
            thread.pause()
            if thread in self._waiters:
                self._waiters.remove(thread)
            if not self._items:
                raise Empty
        elif block:
            self._process.wait(self._waiters, lambda: bool(self._items))
        return self.get_nowait()

    def get_nowait(self) -> T:
        if not self._items:
            raise Empty
        return self._items.popleft()

    def empty(self) -> bool:
        return not self._items
