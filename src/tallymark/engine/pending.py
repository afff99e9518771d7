"""Dead letters that nothing takes for now: kept in their queue, in order, and tried again.

Only where the queue's strategy is at-least-once [DL-22 to DL-25]. Attempts come at once when the
topology or the queue's settings change, and with time; those that change nothing become rarer.

The blob of a PENDING record:
    {"letter": annotations before it died, or null, "have": [names of the queues that have it]}
and the record's time is when it died: what the letter looks like follows from these.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, final

from tallymark.engine import records
from tallymark.engine.annotations import Annotations
from tallymark.engine.message import Slice
from tallymark.engine.queue import Letter, Queue
from tallymark.engine.records import Record

if TYPE_CHECKING:
    from tallymark.engine.deadletters import DeadLetters

RETRY_MS: Final = 1000
"""Between two attempts at letters that nothing takes; a change of topology is one at once."""
LONGEST_RETRY_MS: Final = 180_000
"""The same, after attempts that changed nothing."""
RESTARTS_MS: Final = 1000
"""How long an attempt at many letters begins anew when what is in their way changes, so that they
leave in order; after that it comes to its end first, so that the last ones have their turn too."""
RETRIED: Final = 1000
"""Pending letters tried in one turn."""


@final
class PendingLetters:
    """Belongs to a DeadLetters, which sends them."""

    __slots__ = ("_letters", "waiting")

    def __init__(self, letters: DeadLetters) -> None:
        self._letters = letters
        self.waiting: dict[int, Queue] = {}
        """Queues that have some, by id."""

    def keep(self, queue: Queue, letter: Letter) -> None:
        """Letters that nothing took just now wait from now on; recorded."""
        if not queue.letters:
            queue.retry_wait_ms = RETRY_MS
            queue.retry_ms = self._now() + RETRY_MS
            queue.tried_generation = self._generation(queue)
        self.waiting[queue.id] = queue
        self._keep(queue, letter)
        self._record(queue, letter)

    def is_due(self, queue: Queue) -> bool:
        """Whether its pending letters are to be tried: some time passed, or what is in their way
        may have changed."""
        return self._now() >= queue.retry_ms or queue.tried_generation != self._generation(queue)

    def retry(self, queue: Queue) -> None:
        """Try what is pending again, in order [DL-23]: RETRIED of them, the others with the turns
        to come. Attempts that change nothing become rarer."""
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
        self._letters.limit_cascade(count, True)  # in a turn, not for each of them
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
        """What stays pending of it goes to the end of the queue's letters."""
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
        """It may have changed: have the queues it concerns looked after."""
        for queue in self.waiting.values():
            if queue.tried_generation != self._generation(queue):
                self._letters.entrance.dispatcher.mark(queue)

    def give_up(self, queue: Queue, n: int, reason: int) -> None:
        """Drop the oldest n pending messages, of one letter."""
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
        """Drop everything pending: the queue is purged or deleted [DL-25]."""
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
            self._letters.records.append(pending_record(queue, letter))

    def _forget_idle(self, queue: Queue) -> None:
        if not queue.letters:
            self.waiting.pop(queue.id, None)

    def _generation(self, queue: Queue) -> int:
        return self._letters.vhosts[queue.vhost].generation

    def _now(self) -> int:
        return self._letters.clock.now_ms


def pending_record(queue: Queue, letter: Letter) -> Record:
    """The PENDING record of a letter; how it is read back is `pending_letter`."""
    piece = letter.piece
    payload = piece.payload
    before = None if piece.annotations is None else piece.annotations.to_object()
    blob = json.dumps({"letter": before, "have": letter.have}, separators=(",", ":")).encode()
    return Record(
        records.PENDING, queue.id, piece.first, len(piece), letter.died_ms,
        payload if payload.persistent else None, piece.lo, 0, piece.acquired | piece.failed << 32,
        letter.reason, 0, blob,
    )  # fmt: skip


def pending_letter(record: Record, piece: Slice) -> Letter:
    """The letter of a PENDING record; `piece`: its messages, whose annotations and counts are
    filled in here. Raises ValueError for what a newer version wrote."""
    found: object = json.loads(record.blob)
    if not isinstance(found, dict) or not isinstance(found.get("have"), list):
        raise ValueError(f"pending letter {found!r}, expected an object with letter and have")
    before = found.get("letter")
    piece.annotations = None if before is None else Annotations.from_object(before)
    piece.acquired = record.other & 0xFFFFFFFF
    piece.failed = record.other >> 32
    return Letter(piece, record.reason, record.time_ms, [str(name) for name in found["have"]])
