"""Outbox: the output of a session in the order it was handed over, limited by the peer's window.

Deliveries of all links share it, and their delivery-ids have no gaps [FC-A12]. What the window has
no room for waits; what may not overtake it waits behind it: runs of deliveries, and the frames that
may not overtake them. A run leaves as far as the window goes, a large message frame by frame.
"""

from __future__ import annotations

from array import array
from collections import deque
from typing import Final, final

from tallymark.wire.amqp10.ends import LinkEnd, SessionEnd
from tallymark.wire.amqp10.events import SessionUnblocked
from tallymark.wire.amqp10.numbers import Numbers
from tallymark.wire.amqp10.sending import (
    TransferForm,
    encode_tagged_transfers,
    encode_transfers,
    sized,
    text_tag,
    transfer_more,
)
from tallymark.wire.amqp10.serial import Serial, add, diff

WORST_MORE: Final = 32
"""Maximum number of bytes around the payload of a delivery's second or later frame."""


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

    def __init__(self, session: SessionEnd) -> None:
        self._session: SessionEnd | None = session
        self.numbers = Numbers()
        self.window = 0
        """Transfer frames that the peer accepts now; negative if it has reduced its window."""
        self.initial_id = Serial(0)
        self.next_id = Serial(0)
        """Transfer-id of the next transfer frame: not a delivery-id."""
        self.next_delivery_id = Serial(0)
        """Delivery-id behind those of all deliveries that have left, or begun to."""
        self.waiting: deque[Waiting] = deque()

    @property
    def session(self) -> SessionEnd:
        session = self._session
        assert session is not None, "the connection is over"
        return session

    def let_go(self) -> None:
        """Drop all output because the connection has ended."""
        self.clear()
        self._session = None

    def start_numbers(self, number: Serial) -> None:
        """Begin with this number and this delivery-id; nothing was handed over yet."""
        self.numbers.start(number)
        self.next_delivery_id = number

    def start_ids(self, transfer_id: Serial) -> None:
        """Set the first transfer-id, as our begin announces it."""
        self.initial_id = self.next_id = transfer_id

    def open(self, seen: Serial | None, window: int) -> None:
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

    def note_begun(self, delivery_id: Serial) -> None:
        """Note that this delivery has left at least in part, and all before it completely."""
        self.next_delivery_id = add(delivery_id, 1)

    def has_left(self, number: Serial) -> bool:
        """Return whether this delivery, and all before it, has left completely."""
        for one in self.waiting:
            if isinstance(one, Run):
                return diff(number, one.number) < 0
        return True

    # Withdrawing

    def withdraw(self, link: LinkEnd) -> None:
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

    def withdraw_newest(self, link: LinkEnd, count: int) -> list[tuple[Serial, Serial]]:
        """Drop up to `count` of the newest deliveries that wait on a link, but none that has begun.
        Returns the ranges of their numbers, in order."""
        found: list[tuple[Serial, Serial]] = []
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

    def cancel(self, link: LinkEnd, number: Serial) -> bool:
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

    def skip(self, count: int) -> Serial:
        """Assign numbers to deliveries that will not be sent, so that numbers keep in step with the
        owner's count. Returns the first."""
        first = self.numbers.take(count)
        self.numbers.withdraw(first, count)
        return first


class Waiting:
    """Base of the items that wait to be sent."""

    __slots__ = ()

    def leave(self, outbox: Outbox) -> bool:
        """Send as much as the window allows; return whether that was all."""
        raise NotImplementedError


@final
class Run(Waiting):
    """Deliveries lo..hi-1 of `raw` on one link, equal except for tags and bytes."""

    __slots__ = (
        "_body",
        "_sent",
        "cuts",
        "form",
        "front",
        "hi",
        "is_aborted",
        "link",
        "lo",
        "more",
        "number",
        "raw",
        "skip",
        "tags",
    )

    def __init__(
        self,
        link: LinkEnd,
        form: TransferForm,
        more: TransferForm,
        number: Serial,
        raw: bytes,
        cuts: array[int],
        lo: int,
        hi: int,
        front: bytes,
        skip: int,
        tags: list[bytes] | None,
    ) -> None:
        self.link = link
        self.form = form
        self.more = more
        """Form of transfers that are the first frame of several."""
        self.number = number
        """Number of message `lo`, the first that has not left completely."""
        self.raw = raw
        self.cuts = cuts
        self.lo = lo
        self.hi = hi
        self.front = front
        self.skip = skip
        self.tags = tags
        """Delivery-tags, tags[0] being that of message `lo`; None: tags are made from the
        numbers."""
        self.is_aborted = False
        """True if the rest of message `lo`, part of which has left, is to be aborted."""
        self._body = b""
        self._sent = 0

    @property
    def has_begun(self) -> bool:
        """Return whether a part of message `lo` has left."""
        return self._sent > 0

    def leave(self, outbox: Outbox) -> bool:
        while self.lo < self.hi:
            if outbox.window <= 0:
                return False
            if self.is_aborted:
                self._send_abort(outbox)
            elif self._sent or not self._send_whole(outbox):
                self._send_part(outbox)
            if self.link.is_gone():
                return True
        return True

    def _send_whole(self, outbox: Outbox) -> bool:
        """Send as many deliveries as fit a frame each; return whether there was one."""
        lo = self.lo
        most = outbox.window
        hi = self.hi if self.hi - lo <= most else lo + most
        limit = outbox.session.connection.max_frame_size
        delivery_id = outbox.numbers.id_of(self.number)
        if self.tags is None:
            frames, at = encode_transfers(
                self.form,
                delivery_id,
                self.number,
                self.raw,
                self.cuts,
                lo,
                hi,
                self.front,
                self.skip,
                limit,
            )
        else:
            frames, at = encode_tagged_transfers(
                self.form,
                delivery_id,
                self.tags,
                self.raw,
                self.cuts,
                lo,
                hi,
                self.front,
                self.skip,
                limit,
            )
        count = at - lo
        if not count:
            return False
        outbox.write_transfers(frames, count)
        outbox.note_begun(add(delivery_id, count - 1))
        self._done(count)
        return True

    def _send_part(self, outbox: Outbox) -> None:
        limit = outbox.session.connection.max_frame_size
        link = self.link
        if not self._sent:
            start = self.cuts[self.lo] + self.skip
            self._body = self.front + self.raw[start : self.cuts[self.lo + 1]]
            text: int = text_tag(self.number)
            tag = text.to_bytes(4, "big") if self.tags is None else self.tags[0]
            delivery_id = outbox.numbers.id_of(self.number)
            front = self.more.front(delivery_id, tag)
            room = limit - 4 - len(front)
            if room <= 0:
                outbox.session.connection.fail_frame_size(4 + len(front) + 1)
                return
            outbox.note_begun(delivery_id)
            is_last = False
        else:
            room = limit - WORST_MORE
            is_last = self._sent + room >= len(self._body)
            front = transfer_more(outbox.session.channel, link.handle, not is_last)
        outbox.write_transfers(sized(front, self._body[self._sent : self._sent + room]), 1)
        self._sent += room
        if is_last:
            self._done(1)

    def _send_abort(self, outbox: Outbox) -> None:
        front = transfer_more(outbox.session.channel, self.link.handle, False, aborted=True)
        outbox.write_transfers(sized(front, b""), 1)
        self._advance(1)

    def _done(self, count: int) -> None:
        self.link.count_sent(count)
        self._advance(count)

    def _advance(self, count: int) -> None:
        self.lo += count
        self.number = add(self.number, count)
        self._sent = 0
        self._body = b""
        self.is_aborted = False
        if self.tags is not None:
            self.tags = self.tags[count:]

    def split(self, at: int) -> Run:
        """Remove message `at`, of which nothing has left: this run ends before it, and the returned
        one contains the messages behind it."""
        behind = Run(
            self.link,
            self.form,
            self.more,
            add(self.number, at + 1 - self.lo),
            self.raw,
            self.cuts,
            at + 1,
            self.hi,
            self.front,
            self.skip,
            None if self.tags is None else self.tags[at + 1 - self.lo :],
        )
        if self.tags is not None:
            self.tags = self.tags[: at - self.lo]
        self.hi = at
        return behind


@final
class Drained(Waiting):
    """A drain, which gives up a link's unused credit behind its earlier deliveries [FC-5]."""

    __slots__ = ("_drain", "link")

    def __init__(self, link: LinkEnd, drain: int) -> None:
        self.link = link
        self._drain = drain

    def leave(self, outbox: Outbox) -> bool:
        self.link.give_up(self._drain)
        return True


@final
class Settled(Waiting):
    """A disposition of deliveries that have not left yet."""

    __slots__ = ("first", "last", "settled", "state")

    def __init__(self, first: Serial, last: Serial, state: bytes, settled: bool) -> None:
        self.first = first
        self.last = last
        self.settled = settled
        self.state = state

    def leave(self, outbox: Outbox) -> bool:
        outbox.session.write_settled(self.first, self.last, self.state, self.settled)
        return True
