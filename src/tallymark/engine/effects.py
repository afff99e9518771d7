"""Effects: actions that the engine requests outside itself, per run or range, in order.

The server carries them out in the order they were returned; bridges turn those that reach a client
into frames. Storage effects are records (record.py) and travel beside this list.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, final

from tallymark.engine.errors import BrokerError
from tallymark.engine.message import Slice
from tallymark.units import Ms, PublishNumber, Tag

if TYPE_CHECKING:
    from tallymark.engine.queue import Queue
    from tallymark.engine.session import Connection, Consumer, Session
    from tallymark.engine.staging import Transaction


@final
class Deliver:
    """Deliver messages to a consumer. Acquisition numbers (0.9.1: delivery tags) run from
    `first_tag`; redelivered when slice.acquired > 0. payload.raw is in memory."""

    __slots__ = ("consumer", "first_tag", "slice", "waits")

    def __init__(
        self, consumer: Consumer, slice: Slice, first_tag: Tag, waits: bool = False
    ) -> None:
        self.consumer = consumer
        self.slice = slice
        self.first_tag = first_tag
        self.waits = waits
        """True if the delivery may leave only when all records emitted so far are on disk
        (`Broker.await_durable`), together with all later output of the connection. Only where
        `Connection.holds_output`."""


@final
class Confirm:
    """Confirm every publish of the session up to and including number `upto`."""

    __slots__ = ("session", "upto")

    def __init__(self, session: Session, upto: PublishNumber) -> None:
        self.session = session
        self.upto = upto


@final
class Cancelled:
    """Tell the client that the broker ended a consumer because its queue was deleted.
    [amqp-0.9.1 basic.cancel, server-sent]"""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer


@final
class CloseSession:
    """Close a session by the broker; error has the reason."""

    def __init__(self, session: Session, error: BrokerError) -> None:
        self.session = session
        self.error = error


@final
class CloseConsumer:
    """Close a consumer by the broker; it is stopped already. error has the reason. Its session
    continues."""

    def __init__(self, consumer: Consumer, error: BrokerError) -> None:
        self.consumer = consumer
        self.error = error


@final
class PublisherHeld:
    """Stop reading from a connection that publishes to a queue whose consumer is slow, or, if not
    held, read on [SC-D7]."""

    def __init__(self, connection: Connection, queue: Queue, held: bool) -> None:
        self.connection = connection
        self.queue = queue
        self.held = held


@final
class TimedOut:
    """Report that a consumer (None: the session itself, by basic.get) held messages for too long.
    They returned to their queue, and the consumer is stopped already, or waits until it has settled
    their tags [LC-4]."""

    def __init__(self, session: Session, consumer: Consumer | None, timeout_ms: Ms) -> None:
        self.session = session
        self.consumer = consumer
        self.timeout_ms = timeout_ms
        self.tags: list[tuple[Tag, Tag]] = []
        """Tags of the messages as ranges (first, last), ascending."""


@final
class Drained:
    """Report that a draining consumer has received all available messages: its credit is 0 now
    [FC-5]."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer


@final
class Activated:
    """Report that a consumer has become its queue's single active consumer, or no longer is that
    one."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer


@final
class Refused:
    """Refuse publishes first..last of a confirming session, because a queue is full [DL-6].
    [amqp-0.9.1 basic.nack]"""

    def __init__(self, session: Session, first: PublishNumber, last: PublishNumber) -> None:
        self.session = session
        self.first = first
        self.last = last


@final
class TransactionExpired:
    """Report that a transaction exceeded its time-out and was rolled back [TX-16]."""

    def __init__(self, transaction: Transaction) -> None:
        self.transaction = transaction


@final
class Durable:
    """Report that the records a waiter waits for are on disk, so that its client can be
    answered."""

    def __init__(self, waiter: object) -> None:
        self.waiter = waiter


@final
class Signal:
    """Report something for logs or metrics. name is in dotted form, e.g. "queue.deleted"."""

    def __init__(self, name: str, values: dict[str, object], is_alarm: bool = False) -> None:
        self.name = name
        self.values = values
        self.is_alarm = is_alarm
        """True if an operator has to look at it."""


Effect: TypeAlias = (
    Deliver
    | Confirm
    | Cancelled
    | CloseSession
    | CloseConsumer
    | PublisherHeld
    | TimedOut
    | Drained
    | Activated
    | Refused
    | TransactionExpired
    | Durable
    | Signal
)
"""An effect: whoever carries out effects names all of them (`assert_never`)."""
