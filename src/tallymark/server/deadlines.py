"""One timer for the deadlines of all clients.

A deadline mostly moves later (traffic postpones heartbeats), so a client stays where it is in the
heap until its old time comes and is asked again then: a busy client costs two comparisons a turn,
an idle one one wake-up per deadline, and nobody is polled. A client that goes leaves its entry
empty; entries without a client are cleared out when they are the most.

A timer that is late because the process was stopped gives way to one more round of the loop:
heartbeats that came meanwhile wait in the sockets.
"""

from __future__ import annotations

import asyncio
import heapq
from typing import Final, Protocol

from tallymark.bridge.bridge import Bridge
from tallymark.server.clock import now_ms
from tallymark.wire.line import MonotonicMs

STOPPED_MS: Final = 100
"""Milliseconds by which the timer comes too late only after the process was stopped, or when it has
far too much to do."""
ROUND_S: Final = 0.001
"""Seconds after which a timer that gave way comes again: the loop has read meanwhile."""
EMPTY_MIN: Final = 64
"""Empty entries that are not worth clearing out."""


class Timed(Protocol):
    """A client as the timer knows it."""

    bridge: Bridge
    armed: Entry | None

    def tick(self) -> MonotonicMs | None:
        """Act on a deadline that has come; return the next one."""


class Entry:
    """A client's place in the heap."""

    __slots__ = ("client", "due_ms", "number")

    def __init__(self, due_ms: MonotonicMs, number: int, client: Timed) -> None:
        self.due_ms = due_ms
        """Monotonic milliseconds."""
        self.number = number
        """Number that orders entries of the same time."""
        self.client: Timed | None = client
        """Client whose deadline it is; None: the client is gone, or has an earlier entry."""

    def __lt__(self, other: Entry) -> bool:
        return (self.due_ms, self.number) < (other.due_ms, other.number)


class Deadlines:
    """The deadlines of one node's clients."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._heap: list[Entry] = []
        self._empty = 0
        self._numbers = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._gave_way = False

    def __len__(self) -> int:
        return len(self._heap)

    def arm(self, client: Timed, deadline_ms: MonotonicMs | None) -> None:
        """Look at the client no later than then; monotonic milliseconds, None: not at all."""
        armed = client.armed
        if deadline_ms is None or (armed is not None and armed.due_ms <= deadline_ms):
            return
        self.disarm(client)
        self._numbers += 1
        client.armed = Entry(deadline_ms, self._numbers, client)
        heapq.heappush(self._heap, client.armed)
        self._set_timer()

    def disarm(self, client: Timed) -> None:
        """Look at the client no more."""
        entry = client.armed
        if entry is None:
            return
        client.armed = None
        entry.client = None
        self._empty += 1
        if self._empty > EMPTY_MIN and self._empty > len(self._heap) // 2:
            self._heap = [one for one in self._heap if one.client is not None]
            heapq.heapify(self._heap)
            self._empty = 0

    def _set_timer(self) -> None:
        if not self._heap:
            return
        first = self._heap[0].due_ms
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
        if not self._gave_way and now - self._timer_ms > STOPPED_MS:
            self._gave_way = True
            self._timer_ms = now
            self._timer = self._loop.call_later(ROUND_S, self._fire)
            return
        self._gave_way = False
        try:
            while self._heap and self._heap[0].due_ms <= now:
                client = heapq.heappop(self._heap).client
                if client is None:
                    self._empty -= 1
                    continue
                client.armed = None
                due = client.bridge.next_deadline()
                if due is not None and due <= now:
                    due = client.tick()
                if due is not None:
                    self.arm(client, max(due, MonotonicMs(now + 1)))
        finally:
            self._set_timer()  # whatever one client's tick raised, the others are still due
