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

Messages leased to a durable subscription stay leased, since its range must not change [TX-9]:
reading them is refused until the bytes are back, or the messages are dropped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from tallymark.engine import records
from tallymark.engine.clock import Clock
from tallymark.engine.effects import Effect, Signal
from tallymark.engine.errors import Unreadable
from tallymark.engine.ledger import Ledger
from tallymark.engine.message import Slice
from tallymark.engine.queue import Letter, Quarantined, Queue
from tallymark.engine.store import Store
from tallymark.engine.subscription import Subscription

if TYPE_CHECKING:
    from tallymark.engine.deadletters import DeadLetters
    from tallymark.engine.delivery import Dispatcher

TOLD: Final = 100
"""Maximum number of alarms about one queue until its quarantine is empty: a lost file would fill
the log."""


@final
class Quarantine:
    """Operations on quarantined messages. Clock, store and records are the Broker's own."""

    __slots__ = (
        "_clock", "_effects", "_ledger", "_told", "dispatcher", "letters", "pauses", "store",
    )  # fmt: skip

    def __init__(self, clock: Clock, store: Store, ledger: Ledger, effects: list[Effect]) -> None:
        self._clock = clock
        self._ledger = ledger
        self._effects = effects
        self._told: dict[int, int] = {}
        """Count of alarms so far, by queue."""
        self.store = store
        self.letters: DeadLetters
        self.dispatcher: Dispatcher
        """Dispatcher and dead letters, both set by the Broker."""
        self.pauses = False
        """True if a queue stops deliveries while any of its messages are quarantined."""

    # -- putting messages into quarantine

    def has_read(self, queue: Queue, head: Slice) -> bool:
        """Load the bytes of the slice that leaves next; False: they cannot be read, and it was
        quarantined."""
        if self.store.tried(head.payload):
            return True
        self.put(queue, queue.remove(queue.lane(), len(head)))
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
            queue.lanes[piece.priority].discard(piece)
            queue.count_out(piece)
            self.put(queue, piece)

    def put_from_stream(self, queue: Queue, found: Slice) -> None:
        """Quarantine those messages of a stream's slice that cannot be read. The others stay."""
        for piece in queue.lanes[0].isolated(found.first, len(found)):
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

    # -- taking messages out

    def retry(self, queue: Queue) -> int:
        """Try to read quarantined messages again. Readable ones return to their place, or continue
        as dead letters. Returns their count."""
        back = 0
        for entry in list(queue.quarantine):
            if not self.store.tried(entry.piece.payload):
                entry.trouble = self.store.trouble
                continue
            back += len(entry.piece)
            queue.take_from_aside(entry)
            if entry.letter is not None:
                self.letters.resume(queue, entry.letter)
            else:
                self._come_back(queue, entry.piece)
        self._look_after(queue)
        return back

    def drop(self, queue: Queue, low: int, high: int) -> int:
        """Drop unreadable messages of sequences low..high-1, leased ones included; return their
        count. Payloads are dropped whole."""
        gone = 0
        for entry in list(queue.quarantine):
            piece = entry.piece
            if low < piece.first + len(piece) and piece.first < high:
                queue.take_from_aside(entry)
                self.letters.drop(queue, piece, records.DROPPED_UNREADABLE)
                gone += len(piece)
        for subscription in queue.subscriptions:
            for lease in list(subscription.leases):
                piece = lease.slice
                inside = low < piece.first + len(piece) and piece.first < high
                if inside and not self.store.tried(piece.payload):
                    subscription.lose(piece.first, piece.first + len(piece))
                    queue.leased -= len(piece)
                    queue.leave_acquired(piece)
                    self.letters.drop(queue, piece, records.DROPPED_UNREADABLE)
                    gone += len(piece)
        self._look_after(queue)
        return gone

    def clear(self, queue: Queue) -> list[Slice]:
        """Remove all messages from the quarantine of a queue that is purged or deleted; the caller
        counts their end."""
        pieces = [entry.piece for entry in queue.quarantine]
        for entry in list(queue.quarantine):
            queue.take_from_aside(entry)
        self._look_after(queue)
        return pieces

    def _come_back(self, queue: Queue, piece: Slice) -> None:
        if queue.settings.is_stream:
            if piece.first < queue.kept_from:  # retention has passed it meanwhile
                self.letters.drop(queue, piece, records.DROPPED_RETENTION)
                return
            queue.lanes[0].put_between(piece)
            queue.ready += len(piece)
            queue.ready_bytes += piece.size()
            return
        if queue.body_bytes >= 0:
            self.letters.entrance.weigh(piece.payload)
        queue.make_ready(piece)

    def _look_after(self, queue: Queue) -> None:
        if not queue.quarantine:
            queue.rests = False
            self._told.pop(queue.id, None)
        if not queue.deleted:
            self.dispatcher.mark(queue)
