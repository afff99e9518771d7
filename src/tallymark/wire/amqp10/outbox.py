"""Outbox: the output of a session in the order it was handed over, limited by the peer's window.

Deliveries of all links share it, and their delivery-ids have no gaps [FC-A12]. What the window has
no room for waits; what may not overtake it waits behind it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, final

from tallymark.wire.amqp10.events import SessionUnblocked
from tallymark.wire.amqp10.numbers import Numbers
from tallymark.wire.amqp10.serial import add, diff
from tallymark.wire.amqp10.transfers import Drained, Run, Waiting

if TYPE_CHECKING:
    from tallymark.wire.amqp10.sender_link import SenderLink
    from tallymark.wire.amqp10.session import Session


@final
class Outbox:
    __slots__ = (
        "_session",
        "initial_id",
        "next_delivery_id",
        "next_id",
        "numbers",
        "waiting",
        "window",
    )

    def __init__(self, session: Session) -> None:
        self._session: Session | None = session
        self.numbers = Numbers()
        self.window = 0
        """Transfer frames that the peer accepts now; negative if it has reduced its window."""
        self.initial_id = 0
        self.next_id = 0
        """Transfer-id of the next transfer frame: not a delivery-id."""
        self.next_delivery_id = 0
        """Delivery-id behind those of all deliveries that have left, or begun to."""
        self.waiting: deque[Waiting] = deque()

    @property
    def session(self) -> Session:
        session = self._session
        assert session is not None, "the connection is over"
        return session

    def let_go(self) -> None:
        """Drop all output because the connection has ended."""
        self.clear()
        self._session = None

    def start_numbers(self, number: int) -> None:
        """Begin with this number and this delivery-id; nothing was handed over yet."""
        self.numbers.start(number)
        self.next_delivery_id = number

    def start_ids(self, transfer_id: int) -> None:
        """Set the first transfer-id, as our begin announces it."""
        self.initial_id = self.next_id = transfer_id

    def open(self, seen: int | None, window: int) -> None:
        """Apply the peer's flow: it has seen the transfers before `seen` (None: it does not know
        our begin yet) and accepts `window` transfers from there on [FC-7]."""
        self.window = diff(self.initial_id if seen is None else seen, self.next_id) + window

    def dispatch(self, waiting: Waiting) -> None:
        """Send an item, or as much of it as the window allows."""
        if self.waiting or not waiting.leave(self):
            self.waiting.append(waiting)

    def flush(self) -> None:
        """Send waiting items as far as the window allows. SessionUnblocked follows if that is
        all."""
        waiting = self.waiting
        if not waiting:
            return
        while waiting and waiting[0].leave(self):
            if waiting:  # empty if the connection failed meanwhile
                waiting.popleft()
        if not waiting:
            self.session.emit(SessionUnblocked(self.session))

    def clear(self) -> None:
        """Drop all output because the session has ended."""
        self.waiting.clear()

    def write_transfers(self, frames: bytes, count: int) -> None:
        """Append `count` transfer frames, within the window."""
        self.window -= count
        self.next_id = add(self.next_id, count)
        self.session.connection.write(frames)

    def note_begun(self, delivery_id: int) -> None:
        """Note that this delivery has left at least in part, and all before it completely."""
        self.next_delivery_id = add(delivery_id, 1)

    def has_left(self, number: int) -> bool:
        """Return whether this delivery, and all before it, has left completely."""
        for one in self.waiting:
            if isinstance(one, Run):
                return diff(number, one.number) < 0
        return True

    # Withdrawing

    def withdraw(self, link: SenderLink) -> None:
        """Drop the output that waits on a link, and continue with that of others."""
        waiting = self.waiting
        if not waiting:
            return
        kept: deque[Waiting] = deque()
        for one in waiting:
            if isinstance(one, Run):
                if one.link is link:
                    self._drop(one, one.hi - one.lo)
                    continue
            elif isinstance(one, Drained) and one.link is link:
                continue
            kept.append(one)
        if len(kept) < len(waiting):
            self.waiting = kept
            if kept:
                self.flush()
            else:
                self.session.emit(SessionUnblocked(self.session))

    def withdraw_newest(self, link: SenderLink, count: int) -> list[tuple[int, int]]:
        """Drop up to `count` of the newest deliveries that wait on a link, but none that has begun.
        Returns the ranges of their numbers, in order."""
        found: list[tuple[int, int]] = []
        for one in reversed(self.waiting):
            if count > 0 and isinstance(one, Run) and one.link is link:
                dropped = self._drop(one, count)
                if dropped:
                    count -= dropped
                    first = add(one.number, one.hi - one.lo)
                    found.insert(0, (first, add(first, dropped - 1)))
        return found

    def _drop(self, run: Run, count: int) -> int:
        """Drop the last deliveries of a run, but none that has begun; return how many were
        dropped."""
        most = run.hi - run.lo - (1 if run.has_begun else 0)
        if count > most:
            count = most
        if count:
            run.hi -= count
            self.numbers.withdraw(add(run.number, run.hi - run.lo), count)
        return count

    def cancel(self, link: SenderLink, number: int) -> bool:
        """Withdraw a delivery, for SenderLink.cancel. False: it has left."""
        waiting = self.waiting
        for i in range(len(waiting)):
            run = waiting[i]
            if isinstance(run, Run) and run.link is link:
                at = diff(number, run.number)
                if 0 <= at < run.hi - run.lo:
                    return self._cancel_at(i, run, run.lo + at)
        return False

    def _cancel_at(self, i: int, run: Run, at: int) -> bool:
        if at == run.lo and run.has_begun:
            if run.is_aborted:
                return False
            run.is_aborted = True
            return True
        self.numbers.withdraw(add(run.number, at - run.lo), 1)
        behind = run.split(at)
        if behind.lo < behind.hi:
            self.waiting.insert(i + 1, behind)
        if run.lo == run.hi:
            del self.waiting[i]
            if self.waiting:
                self.flush()
            else:
                self.session.emit(SessionUnblocked(self.session))
        return True
