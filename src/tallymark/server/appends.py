"""Long polls that wait for a stream to grow. A turn costs only per stream that has waiters."""

from __future__ import annotations

import asyncio

from tallymark.engine.queue import Queue


class Appends:
    """The long polls of one node."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[Queue, list[tuple[int, asyncio.Future[None]]]] = {}
        self.waiting: dict[Queue, int] = {}
        """Streams that are waited for, and where each ended when it was last looked at."""

    async def beyond(self, queue: Queue, sequence: int) -> None:
        """Return when readers may see the message of that number, or the stream is gone."""
        if queue.end() > sequence or queue.deleted:
            return
        waiter: asyncio.Future[None] = self._loop.create_future()
        entry = (sequence, waiter)
        self._waiting.setdefault(queue, []).append(entry)
        self.waiting.setdefault(queue, queue.end())
        try:
            await waiter
        except asyncio.CancelledError:
            self._forget(queue, entry)
            raise

    def _forget(self, queue: Queue, entry: tuple[int, asyncio.Future[None]]) -> None:
        entries = self._waiting.get(queue, [])
        if entry in entries:
            entries.remove(entry)
            if not entries:
                del self._waiting[queue]
                del self.waiting[queue]

    def wake(self) -> None:
        """A turn is over."""
        for queue in [q for q, end in self.waiting.items() if q.end() != end or q.deleted]:
            left = []
            end = queue.end()
            for sequence, waiter in self._waiting.pop(queue):
                if waiter.done():
                    continue
                if end > sequence or queue.deleted:
                    waiter.set_result(None)
                else:
                    left.append((sequence, waiter))
            del self.waiting[queue]
            if left:
                self._waiting[queue] = left
                self.waiting[queue] = end
