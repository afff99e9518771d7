"""Readmission: quarantined messages come back when their bytes can be read again, or an operator
drops them."""

from __future__ import annotations

from typing import final

from tallymark.engine import records
from tallymark.engine.account import LEASED, MOVING, READY
from tallymark.engine.deadletters import DeadLetters
from tallymark.engine.entrance import Entrance
from tallymark.engine.message import Slice
from tallymark.engine.quarantine import Quarantine
from tallymark.engine.queue import Queue
from tallymark.engine.state import State
from tallymark.engine.subscription import subscriptions_of


@final
class Readmission:
    """Takes messages out of quarantine."""

    __slots__ = ("_entrance", "_letters", "_quarantine", "_state", "_store")

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

    def drop(self, queue: Queue, low: int, high: int) -> int:
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
                    subscription.lose(piece.first, piece.first + len(piece))
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
            queue.lanes[0].put_between(piece)
            queue.account.move(piece, MOVING, READY)
            return
        if queue.account.body_bytes >= 0:
            self._entrance.weigh(piece.payload)
        queue.make_ready(piece)
