"""Effects: what the engine wants done outside itself, per run or range, in order.

The server carries them out in the order they were returned; bridges turn those that reach a client
into frames. Storage effects are records (records.py) and travel beside this list.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from tallymark.engine.errors import BrokerError
from tallymark.engine.message import Slice

if TYPE_CHECKING:
    from tallymark.engine.queue import Queue
    from tallymark.engine.session import Connection, Consumer, Session
    from tallymark.engine.staging import Transaction


class Effect:
    """Base of all effects; carries nothing."""

    __slots__ = ()


@final
class Deliver(Effect):
    """Send these messages to a consumer. Acquisition numbers (0.9.1: delivery tags) run from
    `first_tag`; redelivered when slice.acquired > 0. payload.raw is in memory."""

    __slots__ = ("consumer", "first_tag", "slice", "waits")

    def __init__(
        self, consumer: Consumer, slice: Slice, first_tag: int, waits: bool = False
    ) -> None:
        self.consumer = consumer
        self.slice = slice
        self.first_tag = first_tag
        self.waits = waits
        """Whether it may leave only when all records emitted so far are on disk
        (`Broker.await_durable`), and with it what the connection is told from now on. Only where
        `Connection.holds_output`."""


@final
class Confirm(Effect):
    """Every publish of the session up to and including number `upto` is safe."""

    __slots__ = ("session", "upto")

    def __init__(self, session: Session, upto: int) -> None:
        self.session = session
        self.upto = upto


@final
class Cancelled(Effect):
    """The broker ended a consumer: its queue is gone. [amqp-0.9.1 basic.cancel, server-sent]"""

    __slots__ = ("consumer",)

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer


@final
class CloseSession(Effect):
    """The broker ends a session; error says why."""

    __slots__ = ("error", "session")

    def __init__(self, session: Session, error: BrokerError) -> None:
        self.session = session
        self.error = error


@final
class CloseConsumer(Effect):
    """The broker ends a consumer, which is stopped already; error says why. Its session goes on."""

    __slots__ = ("consumer", "error")

    def __init__(self, consumer: Consumer, error: BrokerError) -> None:
        self.consumer = consumer
        self.error = error


@final
class PublisherHeld(Effect):
    """Whoever publishes on the connection is not to be read for the sake of a queue whose consumer
    is slow [SC-D7]; or, not held, may go on."""

    __slots__ = ("connection", "held", "queue")

    def __init__(self, connection: Connection, queue: Queue, held: bool) -> None:
        self.connection = connection
        self.queue = queue
        self.held = held


@final
class TimedOut(Effect):
    """A consumer (None: the session itself, by basic.get) held messages for too long. They went
    back to their queue, and the consumer is stopped already, or waits until it has settled their
    tags [LC-4]."""

    __slots__ = ("consumer", "session", "tags", "timeout_ms")

    def __init__(self, session: Session, consumer: Consumer | None, timeout_ms: int) -> None:
        self.session = session
        self.consumer = consumer
        self.timeout_ms = timeout_ms
        self.tags: list[tuple[int, int]] = []
        """Which they are: (first, last), ascending."""


@final
class Drained(Effect):
    """A consumer that was to be drained got all there was for it: its limit is 0 now [FC-5]."""

    __slots__ = ("consumer",)

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer


@final
class Activated(Effect):
    """A consumer that waited behind a queue's single active one has taken its place."""

    __slots__ = ("consumer",)

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer


@final
class Refused(Effect):
    """Publishes number first..last of a confirming session were not taken [amqp-0.9.1 basic.nack]:
    a queue has no room for them [DL-6]."""

    __slots__ = ("first", "last", "session")

    def __init__(self, session: Session, first: int, last: int) -> None:
        self.session = session
        self.first = first
        self.last = last


@final
class TransactionExpired(Effect):
    """A transaction took longer than it may, and is rolled back [TX-16]."""

    __slots__ = ("transaction",)

    def __init__(self, transaction: Transaction) -> None:
        self.transaction = transaction


@final
class Durable(Effect):
    """What the waiter asked about is on disk: whoever waits may now be answered."""

    __slots__ = ("waiter",)

    def __init__(self, waiter: object) -> None:
        self.waiter = waiter


@final
class Signal(Effect):
    """Something a log or a metric should show. name in dotted form, e.g. "queue.deleted"."""

    __slots__ = ("is_alarm", "name", "values")

    def __init__(self, name: str, values: dict[str, object], is_alarm: bool = False) -> None:
        self.name = name
        self.values = values
        self.is_alarm = is_alarm
        """Whether somebody has to look at it."""
