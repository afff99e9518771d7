"""Threads of the journal and what they wait for, collected in a place where a simulation can take
their part.

A simulated thread runs when the simulation lets it, and waits where it calls one of these. As with
files.Files, whatever is not given is the real thing: the modules that use it may be compiled, so
that patching `threading` would be ignored.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Final, Protocol, TypeVar, final

T = TypeVar("T")


class Worker(Protocol):
    """A thread, not started yet."""

    def start(self) -> None:
        """Start running."""

    def is_alive(self) -> bool:
        """Return whether it was started and has not ended."""

    def join(self) -> None:
        """Wait for its end."""


class Event(Protocol):
    """A signal that is given once, or taken back and given again."""

    def set(self) -> None:
        """Give the signal."""

    def clear(self) -> None:
        """Take it back."""

    def is_set(self) -> bool:
        """Return whether it was given."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for it, at most so many seconds; return whether it has happened."""


class Queue(Protocol[T]):
    """Items from one thread for another, in order."""

    def put(self, item: T) -> None:
        """Add an item. Never waits."""

    def get(self, block: bool = True, timeout: float | None = None) -> T:
        """Take the oldest item; wait for one, at most so many seconds. Raises queue.Empty."""

    def get_nowait(self) -> T:
        """Take the oldest item. Raises queue.Empty."""

    def empty(self) -> bool:
        """Return whether there is none."""


class Lock(Protocol):
    """A lock, held by a thread while it is in a `with` block."""

    def __enter__(self) -> bool:
        """Wait for the lock and hold it."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let go of it."""


class OwnedLock(Protocol):
    """A lock that its thread may take again."""

    def acquire(self, blocking: bool = True) -> bool:
        """Take it; wait for it, or return False."""

    def release(self) -> None:
        """Let go of it, once for each time that it was taken."""


def _thread(run: Callable[[], None], name: str) -> Worker:
    return threading.Thread(target=run, name=name, daemon=True)


@final
class Threads:
    """Makers of threads, locks, events and queues, one per attribute."""

    __slots__ = ("event", "lock", "monotonic", "owned_lock", "queue", "thread")

    def __init__(
        self,
        thread: Callable[[Callable[[], None], str], Worker] = _thread,
        event: Callable[[], Event] = threading.Event,
        queue: Callable[[], Queue[Any]] = SimpleQueue,
        lock: Callable[[], Lock] = threading.Lock,
        monotonic: Callable[[], float] = time.monotonic,
        owned_lock: Callable[[], OwnedLock] = threading.RLock,
    ) -> None:
        self.thread = thread
        """Makes a thread of what it runs, and its name."""
        self.event = event
        self.queue = queue
        self.lock = lock
        self.owned_lock = owned_lock
        self.monotonic = monotonic
        """Reads a clock that never goes back, in seconds."""


REAL: Final = Threads()
