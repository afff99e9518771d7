"""Retries of what waits: pending dead letters are sent again, in order [DL-23], and quarantined
messages come back when their bytes can be read again, or an operator drops them."""

from __future__ import annotations

from typing import Final, final

from tallymark.engine.account import LEASED, MOVING, PENDING, READY
from tallymark.engine.deadletters import DeadLetters
from tallymark.engine.entrance import Entrance
from tallymark.engine.message import Slice
from tallymark.engine.pending import RETRY_MS, PendingLetters
from tallymark.engine.quarantine import Quarantine
from tallymark.engine.queue import Queue
from tallymark.engine.queue_parts import Letter
from tallymark.engine.state import State
from tallymark.engine.subscription import subscriptions_of
from tallymark.stored import records
from tallymark.units import EngineMs, Ms, QueueSequence

RESTARTS_MS: Final = 1000
"""Time during which a change restarts an attempt at many letters from the first one, so that they
leave in order. After that the attempt runs to its end, so that the last letters are tried, too."""
RETRIED: Final = 1000
"""Number of pending letters tried in one turn."""
LONGEST_RETRY_MS: Final = 180_000
"""Maximum delay between two attempts, after attempts that changed nothing, ms."""


@final
class Retries:
    """Tries pending letters again."""

    def __init__(self, state: State, letters: DeadLetters, pending: PendingLetters) -> None:
        self._agenda = state.agenda
        self._clock = state.clock
        self._letters = letters
        self._pending = pending

    def retry(self, queue: Queue) -> None:
        """Try the pending letters again in order [DL-23]: RETRIED in one turn, the others in the
        next turns. After an attempt that changed nothing the delay doubles."""
        generation = self._pending.generation(queue)
        changed = queue.retry.generation != generation or not queue.retry.due_ms
        if not queue.retry.at:
            queue.retry.began_ms = self._clock.now_ms
        if not queue.retry.at or (
            changed and self._clock.now_ms < queue.retry.began_ms + RESTARTS_MS
        ):
            if changed:
                queue.retry.at = queue.retry.wait_ms = Ms(0)
            queue.retry.generation = generation
        letters = queue.letters
        start = min(queue.retry.at, len(letters))
        count = min(RETRIED, len(letters) - start)
        others = len(letters) - count
        before = queue.pending
        letters.rotate(-start)
        self._letters.limit_cascade(count, True)  # for all letters of the turn together
        for _ in range(count):
            self._retry_one(queue, letters.popleft())
        self._letters.limit_cascade(0, False)
        queue.retry.at = start + len(letters) - others
        letters.rotate(queue.retry.at)
        if queue.pending < before:
            queue.retry.wait_ms = Ms(0)
        if queue.retry.at < len(letters):
            queue.retry.due_ms = self._clock.now_ms
            self._agenda.mark(queue)
        else:
            queue.retry.at = 0
            wait = min(max(queue.retry.wait_ms * 2, RETRY_MS), LONGEST_RETRY_MS)
            queue.retry.wait_ms = Ms(wait)
            queue.retry.due_ms = EngineMs(self._clock.now_ms + wait)
            if queue.retry.generation != generation:
                self._agenda.mark(queue)

    def _retry_one(self, queue: Queue, letter: Letter) -> None:
        """Try one letter again. The part that stays pending goes to the end of the queue's
        letters."""
        letters = self._letters
        exchange = letters.exchange_of(queue)
        queue.account.move(letter.piece, PENDING, MOVING)
        if exchange is None and not queue.settings.at_least_once:
            letters.lose(queue, letter.piece, letter.reason)
            return
        had = len(letter.have)
        for left in letters.send(queue, exchange, letter):
            self._pending.put(queue, left)
            if len(left.have) > had:
                self._pending.record(queue, left)


@final
class Readmission:
    """Takes messages out of quarantine."""

    def __init__(
        self, state: State, quarantine: Quarantine, entrance: Entrance, letters: DeadLetters
    ) -> None:
        self._state = state
        self._store = state.store
        self._quarantine = quarantine
        self._entrance = entrance
        self._letters = letters

    def retry(self, queue: Queue) -> int:
        """Try to read quarantined messages again. Readable ones return to their place, or continue
        as dead letters. Returns their count."""
        back = 0
        for entry in list(queue.quarantine):
            if not self._store.tried(entry.piece.payload):
                entry.trouble = self._store.trouble
                continue
            back += len(entry.piece)
            queue.take_from_aside(entry)
            if entry.letter is not None:
                self._letters.resume(queue, entry.letter)
            else:
                self._come_back(queue, entry.piece)
        self._quarantine.look_after(queue)
        return back

    def drop(self, queue: Queue, low: QueueSequence, high: QueueSequence) -> int:
        """Drop unreadable messages of sequences low..high-1, leased ones included; return their
        count. Payloads are dropped whole."""
        gone = 0
        for entry in list(queue.quarantine):
            piece = entry.piece
            if low < piece.first + len(piece) and piece.first < high:
                queue.take_from_aside(entry)
                self._state.drop(queue, piece, records.DROPPED_UNREADABLE)
                gone += len(piece)
        for subscription in subscriptions_of(queue):
            for lease in list(subscription.leases):
                piece = lease.slice
                inside = low < piece.first + len(piece) and piece.first < high
                if inside and not self._store.tried(piece.payload):
                    subscription.lose(piece.first, QueueSequence(piece.first + len(piece)))
                    queue.account.move(piece, LEASED, MOVING)
                    self._state.drop(queue, piece, records.DROPPED_UNREADABLE)
                    gone += len(piece)
        self._quarantine.look_after(queue)
        return gone

    def _come_back(self, queue: Queue, piece: Slice) -> None:
        if queue.settings.is_stream:
            if piece.first < queue.retention.kept_from:  # retention has passed it meanwhile
                self._state.drop(queue, piece, records.DROPPED_RETENTION)
                return
            queue.lanes.lowest.put_between(piece)
            queue.account.move(piece, MOVING, READY)
            return
        if queue.account.body_bytes >= 0:
            self._entrance.weigh(piece.payload)
        queue.make_ready(piece)
