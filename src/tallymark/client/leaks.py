"""Messages that the application never settles: found, reported, and if asked for released [FC-D2].

Three ways to find one: the application has no reference to it any more (at once); it is older than
`max_unsettled_age` (a warning at 80 %, then it is released); every slot of the window is taken and
nothing has been settled for a while. At most one timer each is armed, whatever the traffic.
"""

from __future__ import annotations

import asyncio
import math
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
from tallymark.client.inbox import Inbox
from tallymark.client.outcomes import RELEASED
from tallymark.client.received import BUFFERED, HELD, MessageOwner, ReceivedMessage

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
        self._warned: set[int] = set()

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
