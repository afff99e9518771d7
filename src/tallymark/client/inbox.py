"""Messages that arrived on one receiver and are not settled, each in one of these states:

    BUFFERED --take--> HELD --settle--> SETTLED                      mode first
                       HELD --settle--> SETTLING --> SETTLED         mode second, when answered
                       HELD --ignore--> IGNORED
                       HELD --settle--> STAGED --commit--> SETTLED   in a transaction
    BUFFERED, HELD, SETTLING --sender takes it back--> SETTLED; gone from the buffer
    BUFFERED, HELD, STAGED --rollback--> RETURNED; gone from the buffer
    HELD, SETTLING, BUFFERED --link gone--> LOST

Every change of state and of the window's counts is one step without an await.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import final

from tallymark.client.credit import Window
from tallymark.client.errors import ClientError
from tallymark.client.outcomes import Modified, Outcome, Released
from tallymark.client.received import (
    BUFFERED,
    HELD,
    IGNORED,
    LOST,
    RETURNED,
    SETTLED,
    SETTLING,
    STAGED,
    ReceivedMessage,
    result_of,
)


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
        self.held: dict[int, weakref.ref[ReceivedMessage]] = {}
        """Messages that the application holds, by tag; weak, so that a message which the
        application has forgotten is noticed."""
        self.dropped: dict[int, ReceivedMessage] = {}
        """Messages that the application has forgotten unsettled, by tag; these are held
        strongly."""
        self.settling: dict[int, ReceivedMessage] = {}
        """Messages settled in mode second whose answer from the sender is awaited, with or without
        a waiting call [FC-12, FC-A4]."""
        self.staged: dict[int, ReceivedMessage] = {}
        """Messages settled in a transaction that has not ended; they keep their slots [TX-4]."""
        self.settled_total = 0
        self.last_tag = b""
        """Delivery-tag of the delivery that arrived or was settled last."""

    def add(self, messages: list[ReceivedMessage]) -> None:
        """Add deliveries to the buffer, in the order of their tags."""
        self.last_tag = messages[-1].delivery_tag
        self.buffer.extend(messages)
        self.window.buffered += len(messages)

    def hold(self, message: ReceivedMessage, now_ms: int) -> None:
        """Note that the application has the message, which was in the buffer."""
        message.state = HELD
        message.taken_ms = now_ms
        self.window.held += 1
        self.held[message.tag] = weakref.ref(message)

    def hold_unread(self, message: ReceivedMessage, now_ms: int) -> None:
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

    def answer(self, first: int, last: int, state: Outcome | None) -> None:
        """Settle messages first..last for good: the sender answered with this state, or with none,
        which means as asked [FC-12]."""
        for tag in tags_among(first, last, self.settling):
            message = self.settling.pop(tag)
            self._free(message.delivery_tag)
            message.answered(result_of(message, state), SETTLED)

    def change(
        self,
        first: int,
        last: int,
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

    def _change_buffered(self, first: int, last: int, state: Outcome | None) -> None:
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

    def recall(self, mark: int, error: ClientError, browses: bool) -> list[int]:
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

    def clear(self) -> None:
        """Forget buffered messages: they come again."""
        self.buffer.clear()
        self.window.buffered = 0


def _lose(messages: Iterable[ReceivedMessage], error: ClientError) -> None:
    for message in messages:
        message.state = LOST
        message.outcome_or_error = error


def tags_among(first: int, last: int, messages: Mapping[int, object]) -> list[int]:
    """Return the tags of first..last that are in `messages`, ascending, in time of the smaller of
    the two."""
    if last - first < len(messages):
        return [tag for tag in range(first, last + 1) if tag in messages]
    return sorted(tag for tag in messages if first <= tag <= last)
