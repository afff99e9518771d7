"""A receiver over AMQP 0-9-1: a consumer, and as its credit a prefetch.

A consumer with a prefetch of N is sent N messages, and one more for each that is settled. That is
the rule of the client's window, kept by the broker [FC-17]. But a prefetch cannot be changed while
the consumer is there, and credit cannot be taken back. Where the client wants another credit than
the rule gives, the consumer is cancelled and made again under a new tag. The messages that the old
one was sent stay ours.

    IDLE --grant--> STARTING --< consume-ok--> ACTIVE --cancel--> ENDING --< cancel-ok--> IDLE

With credit by hand, a settlement must not let another message come. There the consumer is cancelled
before anything is settled.
"""

from __future__ import annotations

from abc import abstractmethod
from enum import Enum
from typing import Final, final

from tallymark.client.adapter import ReceiverOwner, ReceiverPort
from tallymark.client.amqp091.channel import Probe, SessionChannel, error_of
from tallymark.client.arguments import ReceiverOptions
from tallymark.client.errors import LinkClosed, LinkRefused, NotPossible
from tallymark.client.outcomes import Outcome
from tallymark.client.received import ReceivedMessage
from tallymark.client.transaction import Tag, Work
from tallymark.wire.amqp091.fields import encode_table
from tallymark.wire.amqp091.methods import (
    BasicCancel,
    BasicConsume,
    BasicQos,
    ChannelClose,
    Method,
    QueueDeclare,
    QueueDelete,
)
from tallymark.wire.amqp10 import types
from tallymark.wire.conversion.addresses import BadAddress, queue_address, queue_of
from tallymark.wire.conversion.names import is_short
from tallymark.wire.conversion.values import to_field

PREFETCH_MAX: Final = 65_535
"""Largest prefetch [amqp-0.9.1 basic.qos]."""
NAME_MAX: Final = 200
"""Bytes of a link's name that go into a consumer tag."""
STREAM_OFFSET: Final = "rabbitmq:stream-offset-spec"
OFFSET_ARGUMENT: Final = "x-stream-offset"


class Stage(Enum):
    IDLE = "idle"
    STARTING = "starting"
    ACTIVE = "active"
    ENDING = "ending"


@final
class Subscription:
    """One basic.consume of a receiver. Deliveries remember which of them they came by."""

    __slots__ = ("is_awaited", "port", "remaining", "tag")

    def __init__(self, port: Amqp091Receiver, tag: str, remaining: int) -> None:
        self.port = port
        self.tag = tag
        self.is_awaited = False
        """True if inflow has not stopped before its cancel-ok is here."""
        self.remaining = remaining
        """Messages that the broker may still send by it. Below 0 while a commit-ok is on its way:
        the broker has sent messages for the credit that the commit returned."""


class ReceiverSession(SessionChannel):
    """A session's channel, as its receivers need it."""

    is_stopped: bool
    """No deliveries shall come."""

    @abstractmethod
    def send(self, method: Method) -> None:
        """Send a method, or keep it until a commit or rollback is answered."""

    @abstractmethod
    def next_consumer(self) -> int:
        """Return a number that no other consumer of the session has. Names of receivers may be
        alike as far as they go into a consumer tag."""

    @abstractmethod
    def subscribe(self, subscription: Subscription) -> None:
        """Note a subscription, until cancel-ok."""

    @abstractmethod
    def give_back_of(self, port: Amqp091Receiver) -> None:
        """Return all unsettled deliveries of a receiver to the broker, ascending."""


@final
class Amqp091Receiver(ReceiverPort):
    def __init__(
        self, session: ReceiverSession, owner: ReceiverOwner, options: ReceiverOptions
    ) -> None:
        """Raises NotPossible for options that the protocol cannot express, LinkRefused for a bad
        address."""
        self.owner = owner
        self.subscription: Subscription | None = None
        self._session = session
        self._is_manual = options.credit_mode == "manual"
        self._dynamic = options.dynamic
        self._queue = _queue(options)
        self._arguments = _arguments(options)
        self._exclusive = options.exclusive
        self._filter = {} if options.filter is None else dict(options.filter)
        self._name = options.name.encode()[:NAME_MAX].decode("utf-8", "ignore")
        self._stage = Stage.IDLE
        self._wanted = 0
        """Credit for the consumer that comes next."""
        self._is_known = True
        """True if the client knows the credit. It does not after deliveries were stopped."""
        self._drains = False
        self._ends_drain = False
        """True if the consumer is cancelled so as to end a drain."""
        self._waits_to_cancel = False
        """True if the consumer is to be cancelled at consume-ok."""
        self._is_closed = False
        self.deliveries = 0

    # Attaching

    def attach(self) -> None:
        """Ask for the queue, on a channel of its own: a queue that is not there costs that one."""
        declare = QueueDeclare(self._queue, passive=True)
        if self._dynamic:
            declare = QueueDeclare("", exclusive=True)
        Probe(self._session.channels, declare, self.found, self.refused)

    def found(self, name: str) -> None:
        """Attach: the queue is there."""
        if self._dynamic and self._is_closed:
            self._session.send(QueueDelete(name, no_wait=True))
        if self._is_closed or self.owner.error is not None:
            return
        self._queue = name
        address = queue_address(name) if self._dynamic else self.owner.address
        self.owner.attached(self, address, "first", self._filter)

    def refused(self, close: ChannelClose) -> None:
        if not self._is_closed:
            self._is_closed = True
            self.owner.detached(error_of(LinkRefused, close))

    # Credit

    @property
    def credit(self) -> int:
        if not self._is_known:
            return 0
        subscription = self.subscription
        return self._wanted + (0 if subscription is None else max(0, subscription.remaining))

    @property
    def delivery_count(self) -> int:
        return self.deliveries

    def grant(self, credit: int) -> None:
        if self._is_closed or (self._is_known and credit == self.credit):
            return
        self._is_known = True
        subscription = self.subscription
        if subscription is not None and credit == subscription.remaining:
            self._wanted = 0
            return
        self._wanted = credit
        self._drains = False
        if subscription is not None:
            subscription.remaining = 0
            self._cancel()
        elif self._stage is Stage.IDLE:
            self._consume()

    def drain(self) -> bool:
        """Cancel the consumer, which drains it once the broker has served it."""
        if self.credit == 0 and self._stage is not Stage.ENDING:
            return False
        self._drains = True
        if self._stage is Stage.IDLE:
            self._session.channels.later(self._drained)
        else:
            self._cancel()
        return True

    def revoke(self) -> None:
        self._drains = False
        self._wanted = 0
        if self.subscription is not None:
            self._cancel()
            self.subscription.remaining = 0

    def _consume(self) -> None:
        """Consume with a prefetch that comes nearest to the credit."""
        credit = min(self._wanted, PREFETCH_MAX)
        if not credit or self._session.is_stopped or self._is_closed:
            return
        self._wanted -= credit
        session = self._session
        tag = f"{self._name}.{session.next_consumer()}"
        self.subscription = Subscription(self, tag, credit)
        self._stage = Stage.STARTING
        session.subscribe(self.subscription)
        session.send(BasicQos(prefetch_count=credit))
        arguments = self._arguments
        offset = self.owner.stream_offset
        if offset is not None:  # where the consumer before this one has ended
            arguments = {**arguments, OFFSET_ARGUMENT: offset}
        session.send(BasicConsume(self._queue, tag, exclusive=self._exclusive, arguments=arguments))

    def started(self) -> None:
        """Note consume-ok."""
        if self._stage is Stage.STARTING:
            self._stage = Stage.ACTIVE
            if self._waits_to_cancel:
                self._cancel()

    def _cancel(self) -> None:
        """Cancel the consumer, now or at consume-ok. RabbitMQ 3.10 crashes if it is cancelled
        earlier, and the broker has to serve it once."""
        self._waits_to_cancel = self._stage is Stage.STARTING
        if self._stage is Stage.ACTIVE:
            assert self.subscription is not None
            self._stage = Stage.ENDING
            self._ends_drain = self._drains
            self._session.send(BasicCancel(self.subscription.tag))

    def cancelled(self) -> None:
        """Note cancel-ok."""
        subscription = self.subscription
        self.subscription = None
        self._stage = Stage.IDLE
        if self._is_closed:
            self._finish()
            return
        self._wanted += 0 if subscription is None else max(0, subscription.remaining)
        if self._drains and (self._ends_drain or not self._wanted):
            self._drained()
            return
        self._consume()
        if self._drains:  # the broker has not heard of this credit yet
            self._cancel()

    def _drained(self) -> None:
        if self._drains:
            self._drains = False
            given_up = self._wanted
            self._wanted = 0
            self.owner.drained(given_up)

    # Deliveries

    def received(self, subscription: Subscription, message: ReceivedMessage) -> None:
        self.deliveries += 1
        if subscription is self.subscription:
            self.started()
        if subscription.remaining > 0 or (
            subscription is self.subscription and self._stage is Stage.ACTIVE
        ):
            subscription.remaining -= 1
        elif self._wanted > 0:  # it was on its way when its consumer was cancelled
            self._wanted -= 1
        if self._is_manual and subscription.remaining <= 0 and subscription is self.subscription:
            self._cancel()

    def settling(self, subscription: Subscription) -> None:
        """Prepare to settle deliveries of a subscription. With credit by hand no other message may
        come for them, so the consumer is cancelled. A prefetch counts the deliveries of its own
        consumer only: those of earlier ones may be settled freely."""
        if self._is_manual and subscription is self.subscription:
            self._cancel()

    def freed(self, subscription: Subscription) -> None:
        """Note that the broker does not count a delivery any more, which is credit again. A
        consumer that is being cancelled gets none: what is wanted of the next one was decided
        without it."""
        is_ending = self._stage is Stage.ENDING or self._waits_to_cancel
        if subscription is self.subscription and not self._is_manual and not is_ending:
            subscription.remaining += 1

    def settle(self, first: Tag, last: Tag, outcome: Outcome, work: Work | None = None) -> None:
        raise NotPossible("AMQP 0-9-1 settles in one step")

    # Inflow

    def stop(self, with_flow: bool) -> bool:
        """Stop deliveries. Return whether a cancel-ok has to be awaited. with_flow: channel.flow
        stops them, and a consumer stays unless its credit is by hand."""
        self._is_known = False
        self._drains = False
        self._wanted = 0
        if with_flow and not self._is_manual:
            return False
        if self.subscription is not None:
            self.subscription.remaining = 0
            self._cancel()
        return self._stage is not Stage.IDLE

    def resume(self) -> None:
        if self._stage is Stage.IDLE:
            self._consume()

    # The end

    def close(self) -> None:
        self._is_closed = True
        self._wanted = 0
        if self._stage is Stage.IDLE:
            self._session.channels.later(self._finish)
        else:
            self._cancel()

    def _finish(self) -> None:
        """Return unsettled messages after the cancel, and delete a queue of our own behind them."""
        session = self._session
        session.give_back_of(self)
        if self._dynamic and self._queue:
            session.send(QueueDelete(self._queue, no_wait=True))
        self.owner.detached(LinkClosed("closed by the application"))

    def cancelled_by_peer(self) -> None:
        """End the receiver: the broker has cancelled its consumer, mostly because the queue was
        deleted [rabbitmq consumer cancel notification]."""
        self.subscription = None
        self._stage = Stage.IDLE
        was_closed = self._is_closed
        self._is_closed = True
        if was_closed:
            self._finish()
            return
        self._session.give_back_of(self)
        error = LinkClosed(
            f"the broker cancelled the consumer of queue {self._queue!r}: it is deleted",
            condition="amqp:resource-deleted",
            is_remote=True,
        )
        self.owner.detached(error)


def _queue(options: ReceiverOptions) -> str:
    if options.dynamic:
        return ""
    if options.address is None:
        raise NotPossible("a receiver without an address, expected a queue")
    try:
        name = queue_of(options.address)
    except BadAddress as error:
        raise LinkRefused(str(error), condition="amqp:invalid-field") from error
    if not is_short(name):
        text = f"queue name of {len(name)} characters, expected at most 255 bytes"
        raise LinkRefused(text, condition="amqp:invalid-field")
    return name


def _arguments(options: ReceiverOptions) -> dict[str, object]:
    """Return the arguments of basic.consume. Raises NotPossible for options that the protocol
    cannot express, ValueError for arguments that cannot be encoded."""
    _impossible(options.browse, "browse=True: AMQP 0-9-1 has no browsing")
    _impossible(options.rcv_mode == "second", "rcv_mode='second': AMQP 0-9-1 settles in one step")
    _impossible(
        options.snd_mode == "settled",
        "snd_mode='settled': over AMQP 0-9-1 nothing limits the deliveries to such a receiver",
    )
    _impossible(
        options.credit_mode == "auto" and options.credit > PREFETCH_MAX,
        f"credit={options.credit}: the prefetch of AMQP 0-9-1 is at most {PREFETCH_MAX}",
    )
    arguments: dict[str, object] = {}
    for name, value in (options.properties or {}).items():
        arguments[name] = to_field(value)
    for name, value in (options.filter or {}).items():
        _impossible(
            name != STREAM_OFFSET, f"filter {name!r}: AMQP 0-9-1 has none but stream_offset"
        )
        offset = value.value if isinstance(value, types.Described) else value
        arguments[OFFSET_ARGUMENT] = to_field(offset)
    encode_table(arguments)
    return arguments


def _impossible(is_asked: bool, text: str) -> None:
    if is_asked:
        raise NotPossible(text)
