"""A session's gate: it opens and closes delivery to the application, and counts the handlers at
work on a message [TX-20, TX-21, TX-25].

    running --stop, pause--> stopping --no handler runs any more--> stopped --resume--> running
    closed from any

A stop is in force at once for readers that wait; it is acknowledged when no handler works on a
message any more. Handlers that wait do not count, or two would wait for each other: for a stop, a
commit or a rollback that they have asked for themselves, or for a message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any, final

from tallymark.client.errors import ClientError
from tallymark.client.turn import Waiter, answer_to, resolve


class State(Enum):
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    CLOSED = "closed"


@final
class Gate:
    """The gate of one session."""

    __slots__ = (
        "_at_work",
        "_is_paused",
        "_loop",
        "_parked",
        "_resumed",
        "_resumes",
        "_waiters",
        "error",
        "state",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, resumed: Callable[[], None]) -> None:
        self._loop = loop
        self._resumed = resumed
        self.state = State.RUNNING
        self.error: ClientError | None = None
        """Reason why it is closed; None: it is not."""
        self._at_work: set[asyncio.Task[Any]] = set()
        self._parked: dict[asyncio.Task[Any], int] = {}
        self._waiters: list[Waiter] = []
        self._is_paused = False
        self._resumes = False

    @property
    def is_shut(self) -> bool:
        """Return whether delivery to the application is stopped, and may be resumed."""
        return self.state is State.STOPPING or self.state is State.STOPPED

    def close(self, error: ClientError) -> None:
        self.error = error
        self.state = State.CLOSED
        self._wake()

    # Handlers

    def handler_begins(self, task: asyncio.Task[Any]) -> None:
        self._at_work.add(task)

    def handler_ended(self, task: asyncio.Task[Any]) -> None:
        self._at_work.discard(task)
        self._wake()

    def park(self) -> asyncio.Task[Any] | None:
        """Note that the calling task waits for something that a stop may hold up: until `unpark`,
        it does not count as at work. Return the task; None: it runs no handler, and does not
        count."""
        if not self._at_work:
            return None
        task = asyncio.current_task()
        if task is None or task not in self._at_work:
            return None
        self._parked[task] = self._parked.get(task, 0) + 1
        self._wake()
        return task

    def unpark(self, task: asyncio.Task[Any] | None) -> None:
        if task is not None:
            depth = self._parked.pop(task)
            if depth > 1:
                self._parked[task] = depth - 1

    @contextmanager
    def parked(self) -> Iterator[None]:
        """`park` until the end of the block."""
        task = self.park()
        try:
            yield
        finally:
            self.unpark(task)

    def is_quiet(self) -> bool:
        """No handler is at work on a message."""
        return not self._at_work.difference(self._parked)

    def _wake(self) -> None:
        waiters = self._waiters
        self._waiters = []
        for waiter in waiters:
            resolve(waiter, None)

    async def quiet(self) -> None:
        """Wait for the acknowledgement of a stop, or until it is over."""
        while self.is_shut and not self.is_quiet():
            waiter: Waiter = self._loop.create_future()
            self._waiters.append(waiter)
            await answer_to(waiter, None)
        if self.state is State.STOPPING:
            self.state = State.STOPPED

    # The application's stop

    async def stop(self) -> None:
        """See Session.stop."""
        self._check()
        self._shut()
        self._resumes = False
        with self.parked():
            await self.quiet()

    def resume(self) -> None:
        """See Session.resume. During a rollback: when that is done."""
        self._check()
        if self._is_paused:
            self._resumes = True
        else:
            self._open()

    # A rollback's

    def pause(self) -> None:
        """Stop, whatever the application says, until `unpause`."""
        self._is_paused = True
        self._resumes = self.state is State.RUNNING
        self._shut()

    def unpause(self) -> None:
        """Go on, unless the application has stopped it."""
        self._is_paused = False
        if self._resumes and self.state is not State.CLOSED:
            self._open()

    def _check(self) -> None:
        if self.error is not None:
            raise self.error.copied()

    def _shut(self) -> None:
        if self.state is State.RUNNING:
            self.state = State.STOPPING
            self._wake()

    def _open(self) -> None:
        self.state = State.RUNNING
        self._wake()
        self._resumed()
