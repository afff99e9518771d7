"""Messages that arrived on one receiver and are not settled, each in one of these states:

    BUFFERED --take--> HELD --settle--> SETTLED                      mode first
                       HELD --settle--> SETTLING --> SETTLED         mode second, when answered
                       HELD --ignore--> IGNORED
                       HELD --settle--> STAGED --commit--> SETTLED   in a transaction
    BUFFERED, HELD, SETTLING --sender takes it back--> SETTLED; gone from the buffer
    BUFFERED, HELD, STAGED --rollback--> RETURNED; gone from the buffer
    HELD, SETTLING, BUFFERED --link gone--> LOST

Every change of state and of the window's counts is one step without an await.

Messages that the application never settles are found, reported, and if asked for released [FC-D2]
(`LeakWatch`). Three ways to find one: the application has no reference to it any more (at once); it
is older than `max_unsettled_age` (a warning at 80 %, then it is released); every slot of the window
is taken and nothing has been settled for a while. At most one timer each is armed, whatever the
traffic.
"""

from __future__ import annotations

import asyncio
import math
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final, final

from tallymark.client.arguments import ReceiverOptions
from tallymark.client.deliveries import Deliveries
from tallymark.client.errors import ClientError
from tallymark.client.events import (
    SHOWN,
    MessageDropped,
    MessageOverdue,
    ReceiverStalled,
    Unsettled,
)
from tallymark.client.link import Window
from tallymark.client.outcomes import RELEASED, Modified, Outcome, Released
from tallymark.client.received import (
    BUFFERED,
    HELD,
    IGNORED,
    LOST,
    RETURNED,
    SETTLED,
    SETTLING,
    STAGED,
    MessageOwner,
    ReceivedMessage,
    result_of,
)
from tallymark.client.transaction import Tag, tags_of
from tallymark.wire.line import MonotonicMs


@final
class Inbox:
    """The buffered and the unsettled messages of one receiver, and the slots they take."""

    __slots__ = (
        "buffer",
        "dropped",
        "held",
        "is_attached",
        "last_tag",
        "settled_total",
        "settling",
        "staged",
        "window",
    )

    def __init__(self, window: Window) -> None:
        self.window = window
        self.is_attached = False
        """The link that the messages came on is there: they can be settled."""
        self.buffer: deque[ReceivedMessage] = deque()
        self.held: dict[Tag, weakref.ref[ReceivedMessage]] = {}
        """Messages that the application holds, by tag; weak, so that a message which the
        application has forgotten is noticed."""
        self.dropped: dict[Tag, ReceivedMessage] = {}
        """Messages that the application has forgotten unsettled, by tag; these are held
        strongly."""
        self.settling: dict[Tag, ReceivedMessage] = {}
        """Messages settled in mode second whose answer from the sender is awaited, with or without
        a waiting call [FC-12, FC-A4]."""
        self.staged: dict[Tag, ReceivedMessage] = {}
        """Messages settled in a transaction that has not ended; they keep their slots [TX-4]."""
        self.settled_total = 0
        self.last_tag = b""
        """Delivery-tag of the delivery that arrived or was settled last."""

    def add(self, messages: list[ReceivedMessage]) -> None:
        """Add deliveries to the buffer, in the order of their tags."""
        self.last_tag = messages[-1].delivery_tag
        self.buffer.extend(messages)
        self.window.buffered += len(messages)

    def hold(self, message: ReceivedMessage, now_ms: MonotonicMs) -> None:
        """Note that the application has the message, which was in the buffer."""
        message.state = HELD
        message.taken_ms = now_ms
        self.window.held += 1
        self.held[message.tag] = weakref.ref(message)

    def hold_unread(self, message: ReceivedMessage, now_ms: MonotonicMs) -> None:
        """Take a message out of the middle of the buffer, to settle it although nobody read it."""
        self.buffer.remove(message)
        self.window.buffered -= 1
        self.hold(message, now_ms)

    # Settling

    def settle(self, message: ReceivedMessage, outcome: Outcome, is_staged: bool) -> None:
        """Settle a held message; `is_staged`: in a transaction."""
        message.outcome_or_error = outcome
        if self.held.pop(message.tag, None) is None:
            del self.dropped[message.tag]
        if is_staged:
            message.state = STAGED
            self.staged[message.tag] = message
        elif message.is_second:
            message.state = SETTLING
            self.settling[message.tag] = message
        else:
            message.state = SETTLED
            self.window.held -= 1
            self.last_tag = message.delivery_tag
            self.settled_total += 1

    def end_staged(self, message: ReceivedMessage, error: ClientError | None) -> None:
        """Set the state of a staged message whose transaction is over: committed, or rolled back
        with that error."""
        message.state = SETTLED if error is None else RETURNED
        if error is not None:
            message.outcome_or_error = error
        if self.staged.pop(message.tag, None) is message:
            self.window.held -= 1
            self.last_tag = message.delivery_tag
            self.settled_total += error is None

    def ignore(self, message: ReceivedMessage) -> None:
        """Free the slot of a held message that will never be settled."""
        message.state = IGNORED
        del self.held[message.tag]
        self._free(message.delivery_tag)
        self.window.ignored += 1

    def drop(self, message: ReceivedMessage) -> bool:
        """Note that the application has no reference to the message any more. Return whether it was
        held."""
        if self.held.pop(message.tag, None) is None:
            return False
        self.dropped[message.tag] = message
        return True

    def answer(self, first: Tag, last: Tag, state: Outcome | None) -> None:
        """Settle messages first..last for good: the sender answered with this state, or with none,
        which means as asked [FC-12]."""
        for tag in tags_among(first, last, self.settling):
            message = self.settling.pop(tag)
            self._free(message.delivery_tag)
            message.answered(result_of(message, state), SETTLED)

    def change(
        self,
        first: Tag,
        last: Tag,
        state: Outcome | None,
        changed: Callable[[ReceivedMessage], None],
    ) -> None:
        """Settle messages first..last as the sender has by itself [FC-18]; `changed` is called for
        each that the application holds."""
        if self.buffer and self.buffer[0].tag <= last and self.buffer[-1].tag >= first:
            self._change_buffered(first, last, state)
        self.answer(first, last, state)
        for tag in tags_among(first, last, self.dropped):
            message = self.dropped.pop(tag)
            self._free(message.delivery_tag)
            message.state = SETTLED
        for tag in tags_among(first, last, self.held):
            found = self.held.pop(tag)()
            self._free(self.last_tag if found is None else found.delivery_tag)
            if found is not None:
                found.state = SETTLED
                found.outcome_or_error = state
                changed(found)

    def _change_buffered(self, first: Tag, last: Tag, state: Outcome | None) -> None:
        """Settle buffered messages. One that the sender takes back leaves the buffer; one that it
        settled otherwise stays, and takes no slot once it was read."""
        takes_back = isinstance(state, (Released, Modified))
        remaining: deque[ReceivedMessage] = deque()
        for message in self.buffer:
            if first <= message.tag <= last and message.state == BUFFERED:
                message.state = SETTLED
                message.outcome_or_error = state
                if takes_back:
                    continue
            remaining.append(message)
        self.window.buffered = len(remaining)
        self.buffer = remaining

    def _free(self, delivery_tag: bytes) -> None:
        """Free a slot: a message is settled."""
        self.window.held -= 1
        self.last_tag = delivery_tag
        self.settled_total += 1

    # A rollback, a lost link

    def recall(self, mark: Tag, error: ClientError, browses: bool) -> list[Tag]:
        """Take the deliveries up to the mark out of the buffer and from the application. Return
        their tags, in any order, which have to be given back to the broker. Messages that were sent
        settled stay, unless the receiver `browses`: nobody would send them again. Lost ones are the
        broker's already, and are not shown any more."""
        tags = [tag for tag in (*self.held, *self.dropped) if tag <= mark]
        removed: list[ReceivedMessage | None] = []
        for tag in tags:
            reference = self.held.pop(tag, None)
            removed.append(self.dropped.pop(tag) if reference is None else reference())
        self.window.held -= len(tags)
        remaining: deque[ReceivedMessage] = deque()
        for message in self.buffer:
            if message.tag > mark or (message.state == SETTLED and not browses):
                remaining.append(message)
                continue
            removed.append(message)
            if message.state == BUFFERED:
                tags.append(message.tag)
        self.buffer = remaining
        self.window.buffered = len(remaining)
        for found in removed:
            if found is not None:
                found.state = RETURNED
                found.outcome_or_error = error
        return tags

    def lose_buffered(self, error: ClientError) -> None:
        """Mark buffered messages as lost: they can be read, and not settled."""
        _lose((message for message in self.buffer if message.state == BUFFERED), error)

    def lose_held(self, error: ClientError) -> None:
        """Mark the application's messages as lost: their link is gone. Staged ones are the
        transaction's."""
        self.is_attached = False
        settling = list(self.settling.values())
        held = [*self.dropped.values(), *[reference() for reference in self.held.values()]]
        for book in (self.settling, self.staged, self.held, self.dropped):
            book.clear()
        self.window.held = 0
        for message in settling:
            message.answered(error.copied(), LOST)
        _lose((found for found in held if found is not None), error)

    def unfinished(self) -> list[ReceivedMessage]:
        """Return the messages that are neither settled for good nor ignored, in any order."""
        held = [reference() for reference in self.held.values()]
        books = (self.dropped, self.settling, self.staged)
        found = [message for book in books for message in book.values()]
        return [*self.buffer, *found, *[message for message in held if message is not None]]

    def clear(self) -> None:
        """Forget buffered messages: they come again."""
        self.buffer.clear()
        self.window.buffered = 0


def _lose(messages: Iterable[ReceivedMessage], error: ClientError) -> None:
    for message in messages:
        message.state = LOST
        message.outcome_or_error = error


def tags_among(first: Tag, last: Tag, messages: Mapping[Tag, object]) -> list[Tag]:
    """Return the tags of first..last that are in `messages`, ascending, in time of the smaller of
    the two."""
    if last - first < len(messages):
        return [tag for tag in tags_of(first, last) if tag in messages]
    return sorted(tag for tag in messages if first <= tag <= last)


WARN_AT: Final = 0.8
"""Part of the allowed time after which the application is warned."""
LOCK_RELEASE_AT: Final = 0.9
"""Part of a broker's lock time after which a message is released: the release has to arrive before
the lock expires."""
SOONEST_MS: Final = 10
"""Milliseconds between two checks at least."""


@final
class LeakWatch:
    """Watch over the unsettled messages of one receiver."""

    __slots__ = (
        "_dispatcher",
        "_due_ms",
        "_inbox",
        "_options",
        "_owner",
        "_settled_then",
        "_stall_timer",
        "_stalled_ms",
        "_timer",
        "_warned",
        "is_on",
    )

    def __init__(
        self, owner: MessageOwner, inbox: Inbox, options: ReceiverOptions, dispatcher: Deliveries
    ) -> None:
        self._owner = owner
        self._inbox = inbox
        self._options = options
        self._dispatcher = dispatcher
        self.is_on = options.max_unsettled_age is not None
        """True if this watch has to hear of each message that the application takes."""
        self._timer: asyncio.TimerHandle | None = None
        self._due_ms = 0
        self._stall_timer: asyncio.TimerHandle | None = None
        self._settled_then = -1
        self._stalled_ms = -1
        """Time since which all slots are taken and nothing was settled; -1: not so."""
        self._warned: set[Tag] = set()

    # What happens

    def arrived(self, messages: list[ReceivedMessage]) -> None:
        """Watch messages that have arrived in the buffer: their locks run already."""
        if self.is_on and self._options.max_unsettled_age == "lock":
            for message in messages:
                self._arm(self._next_of(message))

    def taken(self) -> None:
        """The application was given a message."""
        limit = self._options.max_unsettled_age
        if isinstance(limit, int):
            self._arm(math.ceil(limit * WARN_AT))

    def dropped(self, message: ReceivedMessage) -> None:
        """Report a message that the application has no reference to any more."""
        window = self._inbox.window
        self._owner.report(
            MessageDropped(
                address=self._owner.address,
                message=self._shown(message, True),
                unsettled=window.held,
                window=window.size,
            )
        )
        if window.free <= 0 and not window.buffered and len(self._inbox.dropped) == window.held:
            self._report_stall()  # nothing will ever leave it

    def paused(self) -> None:
        """Start the stall timer if every slot is taken. Called when there is no credit, at most
        once per turn."""
        after_ms = self._options.stall_warning_ms
        if not after_ms or self._inbox.window.free > 0:
            return
        now_ms = self._dispatcher.turn.now_ms()
        if self._settled_then != self._inbox.settled_total or self._stalled_ms < 0:
            self._settled_then = self._inbox.settled_total
            self._stalled_ms = now_ms
        if self._stall_timer is None:
            self._arm_stall(self._stalled_ms + after_ms - now_ms)

    def _arm_stall(self, delay_ms: int) -> None:
        loop = self._dispatcher.loop
        self._stall_timer = loop.call_later(max(SOONEST_MS, delay_ms) / 1000, self._still_paused)

    def close(self) -> None:
        for timer in (self._timer, self._stall_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._stall_timer = None
        self._warned.clear()

    # A window that nothing leaves

    def _still_paused(self) -> None:
        self._stall_timer = None
        window = self._inbox.window
        after_ms = self._options.stall_warning_ms
        if window.free > 0 or not self._inbox.is_attached:
            return  # it moves: the next pause arms it again
        since_ms = self._dispatcher.turn.now_ms() - self._stalled_ms
        if (
            self._settled_then != self._inbox.settled_total
            or window.buffered
            or since_ms < after_ms
        ):
            self._arm_stall(after_ms - since_ms if since_ms < after_ms else after_ms)
        else:
            self._report_stall()

    def _report_stall(self) -> None:
        self._owner.report(
            ReceiverStalled(
                address=self._owner.address,
                window=self._inbox.window.size,
                messages=self.unsettled(SHOWN),
            )
        )

    # Ages

    def unsettled(self, most: int) -> tuple[Unsettled, ...]:
        """The oldest messages that the application holds; also those whose settlement is not
        confirmed (mode second) or not committed."""
        found = sorted(self._held(), key=lambda pair: pair[0].tag)
        return tuple(self._shown(message, dropped) for message, dropped in found[:most])

    def oldest_age_ms(self) -> int:
        ages = [self._age_ms(message) for message, _ in self._held()]
        return max(ages, default=0)

    def _held(self) -> list[tuple[ReceivedMessage, bool]]:
        found = [(message, False) for message in self._inbox.settling.values()]
        found += [(message, False) for message in self._inbox.staged.values()]
        found += [(message, True) for message in self._inbox.dropped.values()]
        for reference in self._inbox.held.values():
            if (message := reference()) is not None:
                found.append((message, False))
        return found

    def _age_ms(self, message: ReceivedMessage) -> int:
        return max(0, self._dispatcher.turn.now_ms() - message.taken_ms)

    def _shown(self, message: ReceivedMessage, is_dropped: bool) -> Unsettled:
        return Unsettled(
            delivery_id=message.delivery_id,
            delivery_tag=message.delivery_tag,
            age_ms=self._age_ms(message),
            is_dropped=is_dropped,
        )

    def _arm(self, delay_ms: int) -> None:
        """Look in so many ms, unless that is before; -1: no need."""
        if delay_ms < 0:
            return
        dispatcher = self._dispatcher
        due_ms = dispatcher.turn.now_ms() + max(delay_ms, SOONEST_MS)
        if self._timer is None or due_ms < self._due_ms:
            if self._timer is not None:
                self._timer.cancel()
            self._due_ms = due_ms
            self._timer = dispatcher.loop.call_later(max(delay_ms, SOONEST_MS) / 1000, self._look)

    def _look(self) -> None:
        """Warn and release what is due, and set the timer for the next check."""
        self._timer = None
        if not self._inbox.is_attached:
            return
        held = self._held()
        self._warned.intersection_update([message.tag for message, _ in held])
        for message, is_dropped in held:
            if message.state == HELD:
                self._attend(message, is_dropped)
        if self._options.max_unsettled_age == "lock":
            for message in list(self._inbox.buffer):
                self._attend_buffered(message)

    def _attend(self, message: ReceivedMessage, is_dropped: bool) -> None:
        """Report or release a message that the application holds too long, or set the timer for
        it."""
        used_ms, limit_ms, release_ms = self._time_of(message)
        if limit_ms < 0:
            return
        releases = used_ms >= release_ms and self._options.release_overdue
        if releases or (used_ms >= limit_ms * WARN_AT and message.tag not in self._warned):
            self._warned.add(message.tag)
            shown = self._shown(message, is_dropped)
            self._owner.report(MessageOverdue(self._owner.address, shown, limit_ms, releases))
        if releases:
            message.settle_nowait(RELEASED)
        else:
            self._arm(self._next_of(message))

    def _attend_buffered(self, message: ReceivedMessage) -> None:
        """Release a buffered message whose lock would expire before it is read."""
        if message.state != BUFFERED:
            return
        used_ms, limit_ms, release_ms = self._time_of(message)
        if limit_ms >= 0 and used_ms >= release_ms and self._options.release_overdue:
            self._owner.release_unread(message)
        else:
            self._arm(self._next_of(message))

    def _next_of(self, message: ReceivedMessage) -> int:
        """Return in how many milliseconds the message has to be checked; -1: never."""
        used_ms, limit_ms, release_ms = self._time_of(message)
        if limit_ms < 0:
            return -1
        warn_ms = math.ceil(limit_ms * WARN_AT)
        if used_ms < warn_ms:
            return warn_ms - used_ms
        if not self._options.release_overdue:
            return -1
        return max(0, release_ms - used_ms)

    def _time_of(self, message: ReceivedMessage) -> tuple[int, int, int]:
        """(ms used, ms there are, ms after which it is released); -1 where there is no limit."""
        limit = self._options.max_unsettled_age
        if isinstance(limit, int):
            return self._age_ms(message), limit, limit
        try:
            until_ms = message.locked_until_ms()
        except ClientError:  # undecodable: reading it raises the error
            until_ms = None
        if until_ms is None:
            return 0, -1, -1
        limit_ms = max(0, until_ms - message.arrived_ms)
        used_ms = self._dispatcher.wall_ms() - message.arrived_ms
        return used_ms, limit_ms, int(limit_ms * LOCK_RELEASE_AT)
