"""Quarantine: messages whose bytes cannot be read are put aside, so that nothing else waits for
them.

A bad sector, a flipped bit or a missing file affects one payload: messages of a queue that arrived
together. An operation that needs bytes loads them first (`Store.tried`), before it changes
anything, and quarantines messages whose bytes cannot be read. They are in the account as
`quarantined` [LC-5], keep their sequences, and are neither ready nor delivered. Their queue
continues with the next messages, or stops deliveries until its quarantine is empty (`pauses`).

An operator restores the bytes and retries, or drops the messages. A restart retries by itself:
ready messages that still cannot be read are quarantined again. So the ledger has no row about the
quarantine, only about a drop.

Messages leased to a durable subscription stay leased, since its range must not change:
reading them is refused until the bytes are back, or the messages are dropped.
"""

from __future__ import annotations

from typing import Final, final

from tallymark.engine.account import MOVING, READY
from tallymark.engine.effects import Signal
from tallymark.engine.errors import Unreadable
from tallymark.engine.message import Slice
from tallymark.engine.queue import Queue
from tallymark.engine.queue_parts import Letter, Quarantined
from tallymark.engine.state import State
from tallymark.engine.subscription import Subscription

TOLD: Final = 100
"""Maximum number of alarms about one queue until its quarantine is empty: a lost file would fill
the log."""


@final
class Quarantine:
    """Puts messages aside. retries.py takes them out again."""

    __slots__ = ("_agenda", "_effects", "_told", "pauses", "store")

    def __init__(self, state: State) -> None:
        self._agenda = state.agenda
        self._effects = state.effects
        self._told: dict[int, int] = {}
        """Count of alarms so far, by queue."""
        self.store = state.store
        self.pauses = False
        """True if a queue stops deliveries while any of its messages are quarantined."""

    def has_read(self, queue: Queue, head: Slice) -> bool:
        """Load the bytes of the slice that leaves next; False: they cannot be read, and it was
        quarantined."""
        if self.store.tried(head.payload):
            return True
        self.put(queue, queue.remove(queue.lanes.next_lane(), len(head)))
        return False

    def put(self, queue: Queue, piece: Slice, letter: Letter | None = None) -> None:
        """Quarantine messages that are no longer ready or acquired and could not be read.

        letter: they died before that; it is sent on when they can be read.
        """
        queue.put_aside(Quarantined(piece, letter, self.store.trouble))
        if self.pauses:
            queue.rests = True
        self._tell(queue, piece)

    def put_ready(self, queue: Queue, pieces: list[Slice]) -> None:
        """Quarantine ready slices, which are removed from their lanes."""
        for piece in pieces:
            queue.lanes.by_priority[piece.priority].discard(piece)
            queue.account.move(piece, READY, MOVING)
            self.put(queue, piece)

    def put_from_stream(self, queue: Queue, found: Slice) -> None:
        """Quarantine those messages of a stream's slice that cannot be read. The others stay."""
        for piece in queue.lanes.lowest.isolated(found.first, len(found)):
            if not self.store.tried(piece.payload):
                self.put_ready(queue, [piece])

    def refuse_leased(self, subscription: Subscription, piece: Slice) -> Unreadable:
        """Return the error for the reader of leased messages. The messages stay leased."""
        queue = subscription.queue
        trouble = self.store.trouble
        self._tell(queue, piece)
        return Unreadable(
            f"messages {piece.first} to {piece.first + len(piece) - 1} of queue '{queue.name}' in "
            f"vhost '{queue.vhost}', leased to '{subscription.name}', cannot be read ({trouble}): "
            "bring their segment back, or drop them with `tallymark quarantine drop`"
        )

    def _tell(self, queue: Queue, piece: Slice) -> None:
        told = self._told.get(queue.id, 0) + 1
        self._told[queue.id] = told
        if told > TOLD:
            return
        values: dict[str, object] = {
            "vhost": queue.vhost, "queue": queue.name, "first": piece.first, "count": len(piece),
            "trouble": self.store.trouble,
        }  # fmt: skip
        if told == TOLD:
            values["more"] = "not logged"
        self._effects.append(Signal("message.unreadable", values, True))

    def clear(self, queue: Queue) -> list[Slice]:
        """Remove all messages from the quarantine of a queue that is purged or deleted; the caller
        counts their end."""
        pieces = [entry.piece for entry in queue.quarantine]
        for entry in list(queue.quarantine):
            queue.take_from_aside(entry)
        self.look_after(queue)
        return pieces

    def look_after(self, queue: Queue) -> None:
        """Note that messages left the quarantine: deliveries go on when it is empty."""
        if not queue.quarantine:
            queue.rests = False
            self._told.pop(queue.id, None)
        if not queue.deleted:
            self._agenda.mark(queue)
