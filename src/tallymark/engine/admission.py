"""Admission: a check whether queues with reject-publish would accept messages [DL-6], without
publishing them.

A Seat is what is left in one queue, if everything asked about so far were let in. Entrance asks
about the messages it is about to let in; a commit asks about everything it publishes first, so that
it lets in all of it or nothing [TX-D1].
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from tallymark.engine.message import Payload
from tallymark.engine.queue import Queue
from tallymark.engine.settings import REJECT_PUBLISH, REJECT_PUBLISH_DLX

if TYPE_CHECKING:
    from tallymark.engine.entrance import Entrance


@final
class Seat:
    """The room in one queue: for a number of messages, of which some need no room for their
    bytes."""

    __slots__ = ("awaited", "room", "room_bytes")

    def __init__(self, room: int, room_bytes: int, awaited: int) -> None:
        self.room = room
        self.room_bytes = room_bytes
        """Room for bodies of messages that no consumer waits for, in bytes."""
        self.awaited = awaited
        """Count of further messages that consumers would be sent at once; their bodies take no
        room."""

    def take(self, size: int) -> bool:
        """Use the room for one more message with a body of `size` bytes; False: there is no
        room."""
        if self.room <= 0 or (size > self.room_bytes and self.awaited <= 0):
            return False
        self.room -= 1
        if self.awaited > 0:
            self.awaited -= 1
        else:
            self.room_bytes -= size
        return True


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
