"""Pending dead letters: letters that no target takes for now. They wait in their queue, in order,
and are tried again.

Only where the queue's strategy is at-least-once [DL-22 to DL-25]. Attempts come at once when the
topology or the queue's settings change, and with time; those that change nothing become rarer.

The blob of a PENDING record:
    {"letter": annotations before it died, or null, "have": [names of the queues that have it]}
and the record's time is when it died: what the letter looks like follows from these.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, final

from tallymark.engine.annotations import Annotations
from tallymark.engine.ledger import pending_record
from tallymark.engine.message import Payload, Slice
from tallymark.engine.queue import Letter, Queue
from tallymark.engine.records import Record

if TYPE_CHECKING:
    from tallymark.engine.deadletters import DeadLetters

RETRY_MS: Final = 1000
"""Delay between two attempts at pending letters, ms; a change of topology causes one at once."""
LONGEST_RETRY_MS: Final = 180_000
"""Maximum delay between two attempts, after attempts that changed nothing, ms."""
RESTARTS_MS: Final = 1000
"""Time during which a change restarts an attempt at many letters from the first one, so that they
leave in order. After that the attempt runs to its end, so that the last letters are tried, too."""
RETRIED: Final = 1000
"""Number of pending letters tried in one turn."""


@final
class PendingLetters:
    """The pending letters of a DeadLetters, which sends them."""

    __slots__ = ("_letters", "waiting")

    def __init__(self, letters: DeadLetters) -> None:
        self._letters = letters
        self.waiting: dict[int, Queue] = {}
        """Queues with pending letters, by id."""

    def keep(self, queue: Queue, letter: Letter) -> None:
        """Make letters that no target took just now pending, with a record."""
        if not queue.letters:
            queue.retry_wait_ms = RETRY_MS
            queue.retry_ms = self._now() + RETRY_MS
            queue.tried_generation = self._generation(queue)
        self.waiting[queue.id] = queue
        self._keep(queue, letter)
        self._record(queue, letter)

    def is_due(self, queue: Queue) -> bool:
        """Return whether the queue's pending letters are to be tried: the delay is over, or the
        topology or the settings have changed."""
        return self._now() >= queue.retry_ms or queue.tried_generation != self._generation(queue)

    def retry(self, queue: Queue) -> None:
        """Try the pending letters again in order [DL-23]: RETRIED in one turn, the others in the
        next turns. After an attempt that changed nothing the delay doubles."""
        generation = self._generation(queue)
        changed = queue.tried_generation != generation or not queue.retry_ms
        if not queue.retry_at:
            queue.retry_began_ms = self._now()
        if not queue.retry_at or (changed and self._now() < queue.retry_began_ms + RESTARTS_MS):
            if changed:
                queue.retry_at = queue.retry_wait_ms = 0
            queue.tried_generation = generation
        letters = queue.letters
        start = min(queue.retry_at, len(letters))
        count = min(RETRIED, len(letters) - start)
        others = len(letters) - count
        before = queue.pending
        letters.rotate(-start)
        self._letters.limit_cascade(count, True)  # for all letters of the turn together
        for _ in range(count):
            self._retry_one(queue, letters.popleft())
        self._letters.limit_cascade(0, False)
        queue.retry_at = start + len(letters) - others
        letters.rotate(queue.retry_at)
        if queue.pending < before:
            queue.retry_wait_ms = 0
        if queue.retry_at < len(letters):
            queue.retry_ms = self._now()
            self._letters.entrance.dispatcher.mark(queue)
        else:
            queue.retry_at = 0
            wait = min(max(queue.retry_wait_ms * 2, RETRY_MS), LONGEST_RETRY_MS)
            queue.retry_wait_ms = wait
            queue.retry_ms = self._now() + wait
            if queue.tried_generation != generation:
                self._letters.entrance.dispatcher.mark(queue)
        self._forget_idle(queue)

    def _retry_one(self, queue: Queue, letter: Letter) -> None:
        """Try one letter again. The part that stays pending goes to the end of the queue's
        letters."""
        letters = self._letters
        exchange = letters.exchange_of(queue)
        queue.release(letter.piece)
        if exchange is None and not queue.settings.at_least_once:
            letters.lose(queue, letter.piece, letter.reason)
            return
        had = len(letter.have)
        for left in letters.send(queue, exchange, letter):
            self._keep(queue, left)
            if len(left.have) > had:
                self._record(queue, left)

    def look_at_topology(self) -> None:
        """Let the queues with pending letters be attended to whose topology has changed."""
        for queue in self.waiting.values():
            if queue.tried_generation != self._generation(queue):
                self._letters.entrance.dispatcher.mark(queue)

    def give_up(self, queue: Queue, n: int, reason: int) -> None:
        """Drop the oldest n pending messages, all of one letter."""
        letter = queue.letters[0]
        if n < len(letter.piece):
            piece = letter.piece.take(n)
        else:
            piece = queue.letters.popleft().piece
            queue.retry_at = max(0, queue.retry_at - 1)
        queue.release(piece)
        self._letters.drop(queue, piece, reason)
        self._forget_idle(queue)

    def give_up_all(self, queue: Queue, reason: int) -> None:
        """Drop all pending messages: the queue is purged or deleted [DL-25]."""
        while queue.letters:
            self.give_up(queue, len(queue.letters[0].piece), reason)

    def _keep(self, queue: Queue, letter: Letter) -> None:
        entrance = self._letters.entrance
        if queue.body_bytes >= 0 and not entrance.is_weighed(letter.piece.payload):
            entrance.quarantine.put(queue, letter.piece, letter)
            return
        queue.keep(letter)

    def _record(self, queue: Queue, letter: Letter) -> None:
        if queue.stored:
            self._letters.ledger.emit(letter_record(queue, letter, letter.piece.payload))

    def _forget_idle(self, queue: Queue) -> None:
        if not queue.letters:
            self.waiting.pop(queue.id, None)

    def _generation(self, queue: Queue) -> int:
        return self._letters.vhosts[queue.vhost].generation

    def _now(self) -> int:
        return self._letters.clock.now_ms


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
    found: object = json.loads(record.blob)
    if not isinstance(found, dict) or not isinstance(found.get("have"), list):
        raise ValueError(f"pending letter {found!r}, expected an object with letter and have")
    before = found.get("letter")
    piece.annotations = None if before is None else Annotations.from_object(before)
    piece.acquired = record.other & 0xFFFFFFFF
    piece.failed = record.other >> 32
    return Letter(piece, record.reason, record.time_ms, [str(name) for name in found["have"]])
