"""Pending dead letters: letters that no target takes for now. They wait in their queue, in order,
and are tried again.

Only where the queue's strategy is at-least-once [DL-22 to DL-25]. Attempts come at once when the
topology or the queue's settings change, and with time; those that change nothing become rarer.

The blob of a PENDING record:
    {"letter": annotations before it died, or null, "have": [names of the queues that have it]}
and the record's time is when it died: what the letter looks like follows from these.
"""

from __future__ import annotations

from typing import Final, final

from tallymark.engine.account import MOVING, PENDING
from tallymark.engine.entrance import Entrance
from tallymark.engine.ledger import pending_record
from tallymark.engine.message import Payload, Slice
from tallymark.engine.quarantine import Quarantine
from tallymark.engine.queue import Queue
from tallymark.engine.queue_parts import Letter
from tallymark.engine.record import Record
from tallymark.engine.state import State
from tallymark.stored.annotations import Annotations
from tallymark.stored.records import decoded
from tallymark.units import EngineMs, Ms

RETRY_MS: Final = 1000
"""Delay between two attempts at pending letters, ms; a change of topology causes one at once."""


@final
class PendingLetters:
    """Keeps letters pending, and gives them up. retries.py tries them again."""

    def __init__(self, state: State, entrance: Entrance, quarantine: Quarantine) -> None:
        self._state = state
        self._agenda = state.agenda
        self._clock = state.clock
        self._ledger = state.ledger
        self._entrance = entrance
        self._quarantine = quarantine
        self.waiting: dict[int, Queue] = {}
        """Queues with pending letters, by id; those that have none any more leave with the next
        turn."""

    def keep(self, queue: Queue, letter: Letter) -> None:
        """Make letters that no target took just now pending, with a record."""
        if not queue.letters:
            queue.retry.wait_ms = Ms(RETRY_MS)
            queue.retry.due_ms = EngineMs(self._now() + RETRY_MS)
            queue.retry.generation = self.generation(queue)
        self.waiting[queue.id] = queue
        self.put(queue, letter)
        self.record(queue, letter)

    def is_due(self, queue: Queue) -> bool:
        """Return whether the queue's pending letters are to be tried: the delay is over, or the
        topology or the settings have changed."""
        return self._now() >= queue.retry.due_ms or queue.retry.generation != self.generation(queue)

    def look_at_topology(self) -> None:
        """Let the queues with pending letters be attended to whose topology has changed."""
        for queue in list(self.waiting.values()):
            if not queue.letters:  # sent, dropped or quarantined; the queue may be gone, too
                del self.waiting[queue.id]
            elif queue.retry.generation != self.generation(queue):
                self._agenda.mark(queue)

    def give_up(self, queue: Queue, n: int, reason: int) -> None:
        """Drop the oldest n pending messages, all of one letter."""
        letter = queue.letters[0]
        if n < len(letter.piece):
            piece = letter.piece.take(n)
        else:
            piece = queue.letters.popleft().piece
            queue.retry.at = max(0, queue.retry.at - 1)
        queue.account.move(piece, PENDING, MOVING)
        self._state.drop(queue, piece, reason)

    def give_up_all(self, queue: Queue, reason: int) -> None:
        """Drop all pending messages: the queue is purged or deleted [DL-25]."""
        while queue.letters:
            self.give_up(queue, len(queue.letters[0].piece), reason)

    def put(self, queue: Queue, letter: Letter) -> None:
        """Add a letter to the queue's pending ones. One that cannot be weighed is quarantined."""
        if queue.account.body_bytes >= 0 and not self._entrance.is_weighed(letter.piece.payload):
            self._quarantine.put(queue, letter.piece, letter)
            return
        queue.keep(letter)

    def record(self, queue: Queue, letter: Letter) -> None:
        """Emit the PENDING record of a letter."""
        if queue.stored:
            self._ledger.emit(letter_record(queue, letter, letter.piece.payload))

    def generation(self, queue: Queue) -> int:
        """Return the generation of the topology that the queue's letters meet."""
        return self._state.vhosts[queue.vhost].generation

    def _now(self) -> int:
        return self._clock.now_ms


def letter_record(queue: Queue, letter: Letter, payload: Payload) -> Record:
    """Return the PENDING record of a letter; `pending_letter` reads it back. payload: the letter's,
    or what a checkpoint names instead."""
    piece = letter.piece
    before = None if piece.annotations is None else piece.annotations.to_object()
    said: dict[str, object] = {"letter": before, "have": letter.have}
    return pending_record(
        queue.id, piece, payload if payload.persistent else None, letter.reason, letter.died_ms,
        said,
    )  # fmt: skip


def pending_letter(record: Record, piece: Slice) -> Letter:
    """Return the letter of a PENDING record. piece: its messages; their annotations and counts are
    set here. Raises ValueError for a record of a newer version."""
    found = decoded(record.blob)
    names = found.get("have")
    if not isinstance(names, list):
        raise ValueError(f"pending letter {found!r}, expected an object with letter and have")
    before = found.get("letter")
    piece.annotations = None if before is None else Annotations.from_object(before)
    piece.acquired = record.other & 0xFFFFFFFF
    piece.failed = record.other >> 32
    have = [str(name) for name in names]
    return Letter(piece, record.reason, EngineMs(record.time_ms), have)
