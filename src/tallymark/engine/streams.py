"""Starting points of readers of a stream [rabbitmq x-stream-offset].

A message's *offset* is its sequence number less one: the first that ever entered has offset 0. It
never changes, and never is another message's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from tallymark.engine.arguments import age_ms, erlang_term, type_name
from tallymark.engine.clock import Clock
from tallymark.engine.errors import PreconditionFailed
from tallymark.engine.queue import Queue

if TYPE_CHECKING:
    from tallymark.engine.session import Consumer

FIRST: Final = "first"
LAST: Final = "last"
NEXT: Final = "next"
OFFSET: Final = "offset"
TIME: Final = "time"
AGO: Final = "ago"


@final
class Start:
    """A position in a stream, as its reader specifies it."""

    __slots__ = ("kind", "value")

    def __init__(self, kind: str, value: int = 0) -> None:
        """kind: FIRST (the oldest message), LAST (the last stored batch), NEXT (messages still to
        come), OFFSET (value, or the first one behind it), TIME (messages that arrived at value or
        later; wall time, ms) or AGO (the same, value ms before now)."""
        self.kind = kind
        self.value = value

    def place(self, queue: Queue, clock: Clock) -> int:
        """Return the first sequence of the stream that its reader is to see."""
        lane = queue.lanes[0]
        if self.kind == OFFSET:
            return self.value + 1
        if self.kind == NEXT or not lane.fresh:
            return queue.entered + 1 if self.kind != FIRST else 1
        if self.kind == LAST:
            newest = lane.fresh[-1]
            return newest.first + (len(newest) - 1 if newest.payload.pack is not None else 0)
        if self.kind == TIME:
            return lane.since(clock.from_wall(self.value))
        if self.kind == AGO:
            return lane.since(clock.now_ms - self.value)
        return 1


def start_of(value: object, what: str) -> Start:
    """Parse `x-stream-offset`: first, last, next (also None), an offset, of which a negative one
    means the first, or an interval such as 5m. Every protocol has a type of its own for a time: its
    bridge makes a Start(TIME, ms) of it. what: names the queue.

    Raises:
        PreconditionFailed: it says nothing that has a meaning [rabbitmq].
    """
    if value is None:
        return Start(NEXT)
    if isinstance(value, int) and not isinstance(value, bool):
        return Start(OFFSET, max(0, value))
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    if isinstance(text, str):
        if text in (FIRST, LAST, NEXT):
            return Start(text)
        ago = age_ms(text)
        if ago >= 0:
            return Start(AGO, ago)
    raise PreconditionFailed(
        f"invalid arg 'x-stream-offset' for {what}: {{invalid_stream_offset_arg,"
        f"{{{type_name(value)},{erlang_term(value)}}}}}"
    )


def first_offset(queue: Queue) -> int:
    """Return the offset of the oldest message that a stream retains."""
    return queue.kept_from - 1


def offset_of(consumer: Consumer) -> int:
    """Return the offset of the message that the reader of a stream will see next."""
    return consumer.cursors[0] - 1
