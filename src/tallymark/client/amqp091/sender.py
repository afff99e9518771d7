"""A sender over AMQP 0-9-1: a channel of its own, with publisher confirms [rabbitmq confirms].

Messages are mandatory. One that no queue is bound for comes back (basic.return) in front of its
confirm, and is released. A return has no number, but returns come in the order of the messages. So
it belongs to the first unconfirmed message that looks the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, final

from tallymark.client.adapter import Number, SenderOwner, SenderPort
from tallymark.client.amqp091.channel import ChannelUser, SessionChannel, error_of
from tallymark.client.amqp091.messages import Outgoing
from tallymark.client.arguments import SenderOptions
from tallymark.client.errors import LinkClosed, LinkRefused, NotPossible
from tallymark.client.outcomes import RELEASED, Error, Outcome, Rejected
from tallymark.client.transaction import Work
from tallymark.wire.amqp091.methods import (
    BasicAck,
    BasicNack,
    BasicPublish,
    BasicReturn,
    ChannelClose,
    ChannelFlow,
    ChannelFlowOk,
    ConfirmSelect,
    ConfirmSelectOk,
    ExchangeDeclare,
    Method,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
)
from tallymark.wire.conversion.addresses import BadAddress, Target, queue_address, target_of

UNCONFIRMED_MAX: Final = 1_000
"""Maximum of a sender's messages that wait for their confirms. More wait in the client, as for
credit."""

NACKED: Final = Rejected(
    error=Error(condition="amqp:resource-limit-exceeded", description="basic.nack of the broker")
)


@final
class Sent:
    """A message whose confirm is awaited."""

    __slots__ = ("body", "is_returned", "number", "publish")

    def __init__(self, number: Number, publish: BasicPublish, body: bytes) -> None:
        self.number = number
        self.publish = publish
        self.body = body
        self.is_returned = False


@final
class Amqp091Sender(SenderPort, ChannelUser):
    def __init__(self, session: SessionChannel, owner: SenderOwner, options: SenderOptions) -> None:
        """Begin to attach. Raises NotPossible for options that the protocol cannot express,
        LinkRefused for a bad address."""
        if options.rcv_mode == "second":
            raise NotPossible("rcv_mode='second': AMQP 0-9-1 settles in one step")
        self.owner = owner
        self.max_message_size = 0
        self.is_gone = False
        """The channel is closed."""
        self._session = session
        self._address = options.address
        self._target = _target(options)
        self._dynamic = options.dynamic
        self._outgoing = Outgoing()
        self._is_open = False
        self._is_closing = False
        self._may_flow = True
        self._published = 0
        self._unconfirmed: dict[int, Sent] = {}
        """Messages without a confirm, by delivery tag, ascending."""
        self._wire = session.channels.wire
        self._channel = session.channels.open(self)
        self._attach()

    # Attaching

    def _attach(self) -> None:
        target = self._target
        if self._dynamic:
            self._send_method(QueueDeclare("", exclusive=True))
        elif target is not None and not target.is_queue:
            self._send_method(ExchangeDeclare(target.exchange, "direct", passive=True))
        elif target is not None and not target.is_reply:
            self._send_method(QueueDeclare(target.key, passive=True))
        self._send_method(ConfirmSelect())

    def _send_method(self, method: Method) -> None:
        self._wire.send_method(self._channel, method)

    # Sending

    @property
    def sendable(self) -> int:
        if self._session.channels.is_blocked or not (self._may_flow and self._session.may_flow):
            return 0
        return UNCONFIRMED_MAX - len(self._unconfirmed)

    @property
    def is_blocked(self) -> bool:
        return False

    def send(
        self, messages: list[bytes], settled: bool, work: Work | None = None
    ) -> Iterable[Number]:
        """Send messages; one that cannot be encoded is rejected, as a broker would reject it."""
        return [self._send(message, settled, work) for message in messages]

    def _send(self, message: bytes, settled: bool, work: Work | None) -> Number:
        session = self._session
        number = session.next_number()
        try:
            section, body, to = self._outgoing.content(message)
            target = self._target or target_of(to or "")
            publish = BasicPublish(target.exchange, target.key, mandatory=not settled)
            if work is not None:
                session.publish(publish, section, body)
                session.report_outcome(number, None)
                return number
            self._wire.send_content(self._channel, publish, section, body)
        except (ValueError, BadAddress) as error:
            reason = Error(condition="amqp:precondition-failed", description=str(error))
            session.report_outcome(number, Rejected(error=reason))
            return number
        self._published += 1
        self._unconfirmed[self._published] = Sent(number, publish, body)
        return number

    def withdraw(self, number: Number) -> bool:
        return False

    def idle(self) -> None:
        """Do nothing: the protocol has no credit to return."""

    # What comes on its channel

    def method(self, method: Method) -> None:
        if isinstance(method, BasicAck):
            self._confirmed(method.delivery_tag, method.multiple, None)
        elif isinstance(method, BasicNack):
            self._confirmed(method.delivery_tag, method.multiple, NACKED)
        elif isinstance(method, ConfirmSelectOk):
            self._attached()
        elif isinstance(method, QueueDeclareOk):
            if self._dynamic:
                self._target = Target("", method.queue, True)
        elif isinstance(method, ChannelFlow):
            self._may_flow = method.active
            self._send_method(ChannelFlowOk(method.active))
            if method.active:
                self.owner.may_send()

    def _attached(self) -> None:
        self._is_open = True
        if self._is_closing:
            return
        address = self._address
        if self._dynamic and self._target is not None:
            address = queue_address(self._target.key)
        self.owner.attached(self, address)

    def _confirmed(self, tag: int, multiple: bool, outcome: Outcome | None) -> None:
        unconfirmed = self._unconfirmed
        if multiple:
            tags = []
            for one in unconfirmed:
                if tag and one > tag:
                    break
                tags.append(one)
        else:
            tags = [tag] if tag in unconfirmed else []
        was_full = len(unconfirmed) >= UNCONFIRMED_MAX
        low = high = Number(-1)
        said: Outcome | None = None
        owner = self._session.owner
        for one in tags:
            sent = unconfirmed.pop(one)
            found = RELEASED if sent.is_returned and outcome is None else outcome
            if sent.number == high + 1 and found is said:
                high = sent.number
                continue
            if low >= 0:
                owner.outcomes_received(low, high, said)
            low = high = sent.number
            said = found
        if low >= 0:
            owner.outcomes_received(low, high, said)
        if was_full and tags:
            self.owner.may_send()

    def content(self, method: Method, section: bytes, body: bytes) -> None:
        if isinstance(method, BasicReturn):
            publish = BasicPublish(method.exchange, method.routing_key, mandatory=True)
            for sent in self._unconfirmed.values():
                if not sent.is_returned and sent.publish == publish and sent.body == body:
                    sent.is_returned = True
                    return

    # The end

    def close(self) -> None:
        self._is_closing = True
        if self._dynamic and self._target is not None:
            self._send_method(QueueDelete(self._target.key, no_wait=True))
        self._send_method(ChannelClose(200, "closed by the application"))

    def closed(self, close: ChannelClose | None) -> None:
        self.is_gone = True
        self._unconfirmed.clear()
        if close is None:
            self.owner.detached(LinkClosed("closed by the application"))
        elif not self._is_closing:
            self._is_closing = True
            kind = LinkClosed if self._is_open else LinkRefused
            self.owner.detached(error_of(kind, close))
        else:
            self.owner.detached(error_of(LinkClosed, close))


def _target(options: SenderOptions) -> Target | None:
    """Return the target in the address; None: each message names it, or the broker does."""
    if options.address is None:
        return None
    try:
        return target_of(options.address)
    except BadAddress as error:
        raise LinkRefused(str(error), condition="amqp:invalid-field") from error
