"""A look at messages of a queue, without taking them: they stay ready, at their places."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from tallymark.engine.errors import Unreadable
from tallymark.engine.message import Slice
from tallymark.engine.packing import view as unpacked
from tallymark.engine.queue import Queue
from tallymark.server.management.messages import Got
from tallymark.server.page.view import View

MOST: Final = 20
"""Messages of one look."""
MOST_BYTES: Final = 4096
"""Bytes of a body that are shown."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One message that was looked at. shown: as RabbitMQ's interface shows it; trouble: why it
    cannot be read."""

    sequence: int
    entered_ms: int
    shown: dict[str, Any] | None
    trouble: str


def look(view: View, queue: Queue, skip: int) -> list[Seen]:
    """Return ready messages from `skip` on, in the order of their delivery. Raises AccessRefused:
    the user may not read the queue."""
    view.http.check_read(view.request, queue)
    clock = view.node.broker.clock
    found: list[Seen] = []
    store = view.node.broker.store
    for piece, is_own in _ready(queue, skip, MOST):
        shown, trouble = None, ""
        try:
            if is_own:
                piece.payload.raw = store.read(piece.payload)
            else:
                store.load(piece.payload)
            shown = Got(queue, piece).shown("auto", MOST_BYTES)
        except Unreadable as error:
            trouble = str(error)
        found.append(Seen(piece.first, clock.to_wall(piece.entered_ms()), shown, trouble))
    view.node.schedule()  # what was loaded is let go of where memory is short
    return found


def _ready(queue: Queue, skip: int, most: int) -> list[tuple[Slice, bool]]:
    """Return ready messages, each as a slice of its own, and whether its payload is one of its own,
    too: of a packed message it is."""
    found: list[tuple[Slice, bool]] = []
    for piece in queue.slices():
        if skip >= len(piece):
            skip -= len(piece)
            continue
        for at in range(skip, len(piece)):
            if len(found) == most:
                return found
            if piece.payload.pack is None:
                found.append((piece.part(at, at + 1), False))
            else:
                found.append((unpacked(piece, at).part(0, 1), True))
        skip = 0
    return found
