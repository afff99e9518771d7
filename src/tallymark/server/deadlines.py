"""One timer for the deadlines of all clients.

A deadline mostly moves later (traffic postpones heartbeats), so a client stays where it is in the
heap until its old time comes and is asked again then: a busy client costs two comparisons a turn,
an idle one one wake-up per deadline, and nobody is polled.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable

from tallymark.server.client import Client
from tallymark.server.clock import now_ms


class Deadlines:
    """tick(client) is called when the client's deadline has come and returns the next one."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, tick: Callable[[Client], int | None]
    ) -> None:
        self._loop = loop
        self._tick = tick
        self._heap: list[tuple[int, int, Client]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0

    def arm(self, client: Client, deadline_ms: int | None) -> None:
        """Look at the client no later than then; monotonic milliseconds, None: not at all."""
        armed = client.armed_ms
        if deadline_ms is None or (armed is not None and armed <= deadline_ms):
            return
        client.armed_ms = deadline_ms
        heapq.heappush(self._heap, (deadline_ms, client.id, client))
        self._set_timer()

    def disarm(self, client: Client) -> None:
        """The client is gone; its entries are skipped when their time comes."""
        client.armed_ms = None

    def _set_timer(self) -> None:
        if not self._heap:
            return
        first = self._heap[0][0]
        if self._timer is not None:
            if self._timer_ms <= first:
                return
            self._timer.cancel()
        self._timer_ms = first
        # One millisecond late rather than early: an early wake-up would find nothing due.
        self._timer = self._loop.call_later(max(0, first + 1 - now_ms()) / 1000, self._fire)

    def _fire(self) -> None:
        self._timer = None
        now = now_ms()
        heap = self._heap
        try:
            while heap and heap[0][0] <= now:
                armed, _, client = heapq.heappop(heap)
                if client.armed_ms != armed:
                    continue
                client.armed_ms = None
                due = client.bridge.next_deadline()
                if due is not None and due <= now:
                    due = self._tick(client)
                if due is not None:
                    self.arm(client, max(due, now + 1))
        finally:
            self._set_timer()  # whatever one client's tick raised, the others are still due
