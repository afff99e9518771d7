"""Long polls: requests that wait for a stream to grow, or for a queue to have ready messages.

A turn costs only per queue that is waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tallymark.engine.queue import Queue


class LongPolls:
    """The long polls of one node."""

    def __init__(self, loop: asyncio.AbstractEventLoop, schedule: Callable[[], None]) -> None:
        """schedule: has a turn soon."""
        self._loop = loop
        self._schedule = schedule
        self._beyond: dict[Queue, list[tuple[int, asyncio.Future[None]]]] = {}
        """Waiters for a stream to go beyond a sequence number."""
        self.streams: dict[Queue, int] = {}
        """Streams that are waited for, and where each ended when it was last looked at."""
        self.queues: list[tuple[Queue, asyncio.Future[None]]] = []
        """Waiters for a queue to have ready messages."""

    async def beyond(self, queue: Queue, sequence: int) -> None:
        """Return when readers may see the message of that number, or the stream is gone."""
        if queue.end() > sequence or queue.deleted:
            return
        waiter: asyncio.Future[None] = self._loop.create_future()
        entry = (sequence, waiter)
        self._beyond.setdefault(queue, []).append(entry)
        self.streams.setdefault(queue, queue.end())
        try:
            await waiter
        except asyncio.CancelledError:
            self._forget(queue, entry)
            raise

    async def ready(self, queue: Queue) -> None:
        """Return when the queue has ready messages at the end of a turn and does not rest, or is
        deleted."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self.queues.append((queue, waiter))
        self._schedule()
        await waiter

    def wake(self) -> None:
        """Answer those who have waited for what a turn brought."""
        for queue in [q for q, end in self.streams.items() if q.end() != end or q.deleted]:
            self._wake_beyond(queue)
        waiting = []
        for queue, waiter in self.queues:
            if waiter.done():
                continue
            if queue.deleted or (queue.ready and not queue.rests):
                waiter.set_result(None)
            else:
                waiting.append((queue, waiter))
        self.queues = waiting

    def _wake_beyond(self, queue: Queue) -> None:
        waiting = []
        end = queue.end()
        del self.streams[queue]
        for sequence, waiter in self._beyond.pop(queue):
            if waiter.done():
                continue
            if end > sequence or queue.deleted:
                waiter.set_result(None)
            else:
                waiting.append((sequence, waiter))
        if waiting:
            self._beyond[queue] = waiting
            self.streams[queue] = end

    def _forget(self, queue: Queue, entry: tuple[int, asyncio.Future[None]]) -> None:
        entries = self._beyond.get(queue, [])
        if entry in entries:
            entries.remove(entry)
            if not entries:
                del self._beyond[queue]
                del self.streams[queue]
