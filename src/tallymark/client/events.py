"""Events that the client reports besides results: through the stdlib's logging, and a callback.

Loggers are named `tallymark.client.credit` (each credit decision, at debug level), `.leaks`
(messages nobody settles), `.connection` and `.handler`. Each record carries the event's fields as
attributes (`record.credit`) and the event itself as `record.tallymark_event`; the callback
`connect(on_event=...)` gets the event. Nothing is built while neither listens. Bodies and
credentials never appear.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import Enum
from typing import ClassVar, Final, final

CREDIT_LOG: Final = logging.getLogger("tallymark.client.credit")
LEAK_LOG: Final = logging.getLogger("tallymark.client.leaks")
CONNECTION_LOG: Final = logging.getLogger("tallymark.client.connection")
HANDLER_LOG: Final = logging.getLogger("tallymark.client.handler")


class Event:
    """Base of all events. `name` is for machines, str() for people."""

    __slots__ = ()
    name: ClassVar[str] = ""
    log: ClassVar[logging.Logger] = CONNECTION_LOG
    level: ClassVar[int] = logging.WARNING


EventCallback = Callable[[Event], None]


class Decision(Enum):
    """Decision about a receiver's credit."""

    RESUME = "resume"
    """Credit after there was none."""
    TOP_UP = "top-up"
    """More credit before it ran out."""
    PAUSE = "pause"
    """No credit is outstanding and no slot is free: nothing comes until a message is settled."""
    ISSUE = "issue"
    """Credit was issued by hand, with `issue_credit`."""
    DRAIN = "drain"
    """The sender is asked to use its credit or give it up."""
    DRAINED = "drained"
    """The receiver was drained; its delivery-count was adopted [FC-D1]."""


@final
@dataclass(frozen=True, slots=True)
class CreditDecided(Event):
    """A credit decision, with all it was based on."""

    name = "credit.decided"
    log = CREDIT_LOG
    level = logging.DEBUG

    decision: Decision
    address: str
    link: str
    credit: int
    """Outstanding from now on."""
    delivery_count: int
    buffered: int
    unsettled: int
    """Messages that the application holds."""
    window: int
    settle_mode: str
    """rcv-settle-mode: first or second."""
    delivery_tag: bytes
    """Delivery-tag of the delivery that arrived or was settled last; empty before the first."""

    @property
    def delivery_uuid(self) -> uuid.UUID | None:
        """The delivery-tag, where it has 16 bytes."""
        return tag_as_uuid(self.delivery_tag)

    def __str__(self) -> str:
        tag = self.delivery_uuid or self.delivery_tag.hex()
        return (
            f"{self.decision.value} {self.address!r}: credit {self.credit}, "
            f"delivery-count {self.delivery_count}, buffered {self.buffered}, unsettled "
            f"{self.unsettled} of window {self.window}, mode {self.settle_mode}, tag {tag}"
        )


@final
@dataclass(frozen=True, slots=True)
class Unsettled:
    """A message that waits to be settled."""

    delivery_id: int
    delivery_tag: bytes
    age_ms: int
    """Milliseconds since the application was given it."""
    is_dropped: bool
    """The application has no reference to it any more: it never will be settled."""

    def __str__(self) -> str:
        tag = tag_as_uuid(self.delivery_tag) or self.delivery_tag.hex()
        dropped = ", dropped" if self.is_dropped else ""
        return f"{self.delivery_id} (tag {tag}, {self.age_ms} ms{dropped})"


@final
@dataclass(frozen=True, slots=True)
class MessageDropped(Event):
    """The application let go of a message without settling it: its slot is lost until the link is
    closed, or `max_unsettled_age` gives the message back [FC-D2]."""

    name = "message.dropped"
    log = LEAK_LOG

    address: str
    message: Unsettled
    unsettled: int
    window: int

    def __str__(self) -> str:
        return (
            f"{self.address!r}: message {self.message} was never settled; "
            f"{self.unsettled} of {self.window} slots are taken"
        )


@final
@dataclass(frozen=True, slots=True)
class ReceiverStalled(Event):
    """Every slot of a window is taken by a message that is not settled: nothing more comes
    [FC-D2, FC-A3]."""

    name = "receiver.stalled"
    log = LEAK_LOG

    address: str
    window: int
    messages: tuple[Unsettled, ...]
    """Oldest first; at most `SHOWN` of them."""

    def __str__(self) -> str:
        listed = ", ".join(str(message) for message in self.messages)
        return f"{self.address!r}: all {self.window} slots are taken, by {listed}"


SHOWN: Final = 20
"""Messages that one event names."""


@final
@dataclass(frozen=True, slots=True)
class MessageOverdue(Event):
    """A message is not settled after 80 % of the time there is for it, or it was given back
    because that time is up."""

    name = "message.overdue"
    log = LEAK_LOG

    address: str
    message: Unsettled
    limit_ms: int
    """The time there is: max_unsettled_age, or how long the lock was held for us."""
    was_released: bool

    def __str__(self) -> str:
        what = "was released" if self.was_released else "is still not settled"
        return f"{self.address!r}: message {self.message} {what}; limit {self.limit_ms} ms"


@final
@dataclass(frozen=True, slots=True)
class HandlerFailed(Event):
    """A handler raised; `on_error` says what became of its message. The log has the traceback."""

    name = "handler.failed"
    log = HANDLER_LOG

    address: str
    delivery_id: int
    error: BaseException
    on_error: str

    def __str__(self) -> str:
        return f"{self.address!r}: handler of message {self.delivery_id} raised {self.error!r}"


@final
@dataclass(frozen=True, slots=True)
class SettlementFailed(Event):
    """The settlement of a message did not take effect, and no call was waiting for it: its handler
    was cancelled, or the link was lost while the handler worked."""

    name = "settlement.failed"
    log = HANDLER_LOG

    address: str
    delivery_id: int
    error: BaseException

    def __str__(self) -> str:
        return f"{self.address!r}: message {self.delivery_id} is not settled: {self.error}"


@final
@dataclass(frozen=True, slots=True)
class TransactionFailed(Event):
    """A commit or rollback failed, and no call was waiting for it: it was cancelled, or had timed
    out."""

    name = "transaction.failed"
    log = HANDLER_LOG

    error: BaseException

    def __str__(self) -> str:
        return f"commit or rollback: {self.error}"


@final
@dataclass(frozen=True, slots=True)
class CallbackFailed(Event):
    """A callback of the application raised an exception; the client goes on."""

    name = "callback.failed"
    log = HANDLER_LOG
    level = logging.ERROR

    callback: str
    error: BaseException

    def __str__(self) -> str:
        return f"{self.callback} raised {self.error!r}"


class ConnectionChange(Enum):
    OPENED = "opened"
    LOST = "lost"
    RETRYING = "retrying"
    RESTORED = "restored"
    CLOSED = "closed"


@final
@dataclass(frozen=True, slots=True)
class ConnectionChanged(Event):
    """The connection was opened, was lost, or is being opened again."""

    name = "connection.changed"
    level = logging.INFO

    change: ConnectionChange
    endpoint: str
    reason: str = ""
    attempt: int = 0
    delay_ms: int = 0

    def __str__(self) -> str:
        parts = [f"{self.endpoint} {self.change.value}"]
        if self.change is ConnectionChange.RETRYING:
            parts.append(f"attempt {self.attempt} in {self.delay_ms} ms")
        if self.reason:
            parts.append(self.reason)
        return ": ".join(parts)


def tag_as_uuid(tag: bytes) -> uuid.UUID | None:
    """A delivery-tag of 16 bytes, as brokers use for lock tokens; None for any other."""
    return uuid.UUID(bytes=bytes(tag)) if len(tag) == 16 else None


@final
class Reporter:
    """Sender of events to the loggers and the callback. One per connection."""

    __slots__ = ("_callback",)

    def __init__(self, callback: EventCallback | None) -> None:
        self._callback = callback

    def wants(self, kind: type[Event]) -> bool:
        """Return whether events of this kind have a listener; ask before building one often."""
        return self._callback is not None or kind.log.isEnabledFor(kind.level)

    def report(self, event: Event, error: BaseException | None = None) -> None:
        """Log it, `error` with its traceback, and call the callback. A callback that raises is
        reported as an error and does no other harm."""
        log = event.log
        if log.isEnabledFor(event.level):
            extra: dict[str, object] = {"tallymark_event": event}
            for field in fields(event):  # type: ignore[arg-type]  # all events are dataclasses
                if field.name != "message":  # logging's own
                    extra[field.name] = getattr(event, field.name)
            log.log(event.level, "%s: %s", event.name, event, extra=extra, exc_info=error)
        if self._callback is not None:
            try:
                self._callback(event)
            except Exception as raised:
                failed = CallbackFailed("on_event", raised)
                failed.log.error("%s: %s", failed.name, failed, exc_info=raised)
