"""Admission: a check whether queues with reject-publish would accept messages [DL-6], without
publishing them.

A Seat is what is left in one queue, if everything asked about so far were let in. Entrance asks
about the messages it is about to let in; a commit asks about everything it publishes first, so that
it lets in all of it or nothing [TX-D1].
"""

from __future__ import annotations

from typing import final

from tallymark.engine.entrance import Entrance, Seat
from tallymark.engine.message import Payload
from tallymark.engine.queue import Queue
from tallymark.engine.settings import REJECT_PUBLISH, REJECT_PUBLISH_DLX


@final
class Admission:
    """Checks messages one after the other, for one commit."""

    __slots__ = ("_entrance", "_ids", "_seats")

    def __init__(self, entrance: Entrance) -> None:
        self._entrance = entrance
        self._seats: dict[int, Seat] = {}
        self._ids: dict[int, set[str]] = {}
        """Publisher-given ids among the messages checked so far, by queue."""

    def takes(self, queue: Queue, payload: Payload, lo: int, hi: int) -> bool:
        """Return whether the queue would accept messages lo..hi-1 after all messages checked
        before.

        It may say no where the answer is yes only if a queue with priorities is about to be full by
        its bytes: what consumers take from it depends on the priorities.
        """
        settings = queue.settings
        if not settings.guarded or settings.overflow not in (REJECT_PUBLISH, REJECT_PUBLISH_DLX):
            return True
        seat = self._seats.get(queue.id)
        if seat is None:
            seat = self._seats[queue.id] = self._entrance.seat(queue)
            if settings.max_bytes >= 0 and settings.max_priority > 0:
                seat.room_bytes = settings.max_bytes - queue.body_bytes
                seat.awaited = 0
        by_bytes = settings.max_bytes >= 0
        if by_bytes:
            self._entrance.weigh(payload)
        bodies = payload.bodies
        ids = self._entrance.ids_of(queue, payload, lo, hi)
        known = self._ids.setdefault(queue.id, set())
        for i in range(lo, hi):
            id = ids[i - lo] if ids else ""
            if id and (id in queue.seen_ids or id in known):
                continue
            size = 0
            if by_bytes:
                assert bodies is not None, queue.name
                size = bodies[i + 1] - bodies[i]
            if not seat.take(size):
                return False
            if id:
                known.add(id)
        return True
