"""A session over AMQP 0-9-1: one channel for its receivers, settlements and transactions.

Delivery tags count from 1 on it and are the session's tags. Once transactions are wanted the
channel is transactional for good [TX-1]: what is settled outside of one is followed by a commit of
its own. While an answer to a commit or rollback is out, methods wait [TX-5].
"""

from __future__ import annotations

from collections import deque
from typing import final

from tallymark.client.adapter import (
    Number,
    ReceiverOwner,
    ReceiverPort,
    SenderOwner,
    SenderPort,
    SessionOwner,
    SessionPort,
)
from tallymark.client.amqp091.channel import Channels, error_of
from tallymark.client.amqp091.messages import Incoming
from tallymark.client.amqp091.receiver import Amqp091Receiver, ReceiverSession, Subscription
from tallymark.client.amqp091.sender import Amqp091Sender
from tallymark.client.arguments import ReceiverOptions, SenderOptions
from tallymark.client.errors import SessionClosed
from tallymark.client.outcomes import RELEASED, Accepted, Modified, Outcome, Rejected
from tallymark.client.received import ReceivedMessage
from tallymark.client.transaction import Tag, Work, tags_of
from tallymark.wire.amqp091.methods import (
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicConsumeOk,
    BasicDeliver,
    BasicNack,
    BasicPublish,
    BasicRecover,
    BasicRecoverOk,
    BasicReject,
    BasicReturn,
    ChannelClose,
    ChannelFlow,
    ChannelFlowOk,
    ChannelOpenOk,
    Method,
    TxCommit,
    TxCommitOk,
    TxRollback,
    TxRollbackOk,
    TxSelect,
    TxSelectOk,
)


@final
class Amqp091Session(SessionPort, ReceiverSession):
    can_annotate = False

    def __init__(self, channels: Channels, owner: SessionOwner) -> None:
        self.channels = channels
        self.owner = owner
        self.is_stopped = False
        """No deliveries shall come."""
        self.may_flow = True
        """The broker takes messages on this channel, as those in transactions."""
        self._subscriptions: dict[str, Subscription] = {}
        """Subscriptions by consumer tag, until cancel-ok."""
        self._wire = channels.wire
        self._channel = channels.open(self)
        self._is_closing = False
        self._senders: list[Amqp091Sender] = []
        self._incoming = Incoming()
        self._unsettled: dict[Tag, Subscription] = {}
        """Deliveries that are not settled, by tag, ascending."""
        self._recovering: list[Subscription] = []
        """Subscription of each delivery that was unsettled when basic.recover was sent."""
        self._arrived: list[ReceivedMessage] = []
        self._arrived_for: ReceiverOwner | None = None
        self._numbers = 0
        self._consumers = 0
        self._outcomes: list[tuple[Number, Outcome | None]] = []
        # transactions
        self._is_selected = False
        self._work: Work | None = None
        self._staged: dict[Tag, Subscription] = {}
        """Deliveries that were settled in the transaction and are not committed, by tag."""
        self._is_waiting = False
        """True while the answer to a commit or a rollback is awaited."""
        self._unsent: deque[tuple[Method, bytes | None, bytes]] = deque()
        """Methods to send after the answer to a commit or rollback has come."""
        self._ending: deque[tuple[Work | None, dict[Tag, Subscription]]] = deque()
        """Transactions whose commit or rollback was sent, with the deliveries settled in each."""
        self._will_commit = False
        self._returned = 0
        self._stopping = 0
        """cancel-oks and flow-oks to come."""

    # Sending methods

    def send(self, method: Method) -> None:
        self._send_or_keep(method, None, b"")

    def publish(self, method: BasicPublish, section: bytes, body: bytes) -> None:
        self._send_or_keep(method, section, body)

    def _send_or_keep(self, method: Method, section: bytes | None, body: bytes) -> None:
        if self._is_waiting:
            self._unsent.append((method, section, body))
            return
        if section is None:
            self._wire.send_method(self._channel, method)
        else:
            self._wire.send_content(self._channel, method, section, body)
        self._is_waiting = isinstance(method, (TxCommit, TxRollback))

    def _answered(self) -> None:
        """Send the waiting methods after the answer to a commit or rollback, up to the next one."""
        self._is_waiting = False
        unsent = self._unsent
        while unsent and not self._is_waiting:
            method, section, body = unsent.popleft()
            self._send_or_keep(method, section, body)
        if not unsent:
            self.channels.close_when_sent()

    # What comes

    def method(self, method: Method) -> None:
        if isinstance(method, BasicConsumeOk):
            subscription = self._subscriptions.get(method.consumer_tag)
            if subscription is not None and subscription.port.subscription is subscription:
                subscription.port.started()
        elif isinstance(method, BasicCancelOk):
            self._cancelled(method.consumer_tag)
        elif isinstance(method, BasicCancel):
            self._cancelled_by_peer(method)
        elif isinstance(method, ChannelOpenOk):
            self.owner.opened(self)
        elif isinstance(method, ChannelFlow):
            self.may_flow = method.active
            self.send(ChannelFlowOk(method.active))
            self.may_send()
        elif isinstance(method, ChannelFlowOk):
            if not method.active:
                self._has_stopped()
        else:
            self._of_transactions(method)

    def _of_transactions(self, method: Method) -> None:
        if isinstance(method, TxSelectOk):
            self.owner.selected(None)
        elif isinstance(method, TxCommitOk):
            self._committed()
        elif isinstance(method, TxRollbackOk):
            self._rolled_back()
        elif isinstance(method, BasicRecoverOk):
            self._recovered()

    def content(self, method: Method, section: bytes, body: bytes) -> None:
        if isinstance(method, BasicReturn):
            self._returned += 1
            return
        assert isinstance(method, BasicDeliver), method
        subscription = self._subscriptions.get(method.consumer_tag)
        if subscription is None:  # of a consumer that the broker had cancelled
            self.send(BasicNack(method.delivery_tag, requeue=True))
            if self._is_selected and self._work is None:
                self._commit_later()
            return
        tag = Tag(method.delivery_tag)
        port = subscription.port
        consumer = port.owner
        raw = self._incoming.sections(method, section, body)
        name = tag.to_bytes(8, "big")
        message = ReceivedMessage(consumer, tag, name, raw, False, False, self.channels.wall_ms())
        self._unsettled[tag] = subscription
        port.received(subscription, message)
        if consumer is not self._arrived_for:
            self.deliver_arrived()
            self._arrived_for = consumer
            self.channels.arrived(self)
        self._arrived.append(message)

    def deliver_arrived(self) -> None:
        """Pass the deliveries that arrived for one receiver in a row to the client."""
        consumer = self._arrived_for
        if consumer is not None:
            arrived = self._arrived
            self._arrived = []
            self._arrived_for = None
            consumer.deliver(arrived)

    # Links

    def add_receiver(self, owner: ReceiverOwner, options: ReceiverOptions) -> ReceiverPort:
        port = Amqp091Receiver(self, owner, options)
        port.attach()
        return port

    def add_sender(self, owner: SenderOwner, options: SenderOptions) -> SenderPort:
        self._senders = [sender for sender in self._senders if not sender.is_gone]
        port = Amqp091Sender(self, owner, options)
        self._senders.append(port)
        return port

    def next_consumer(self) -> int:
        self._consumers += 1
        return self._consumers

    def subscribe(self, subscription: Subscription) -> None:
        self._subscriptions[subscription.tag] = subscription

    def may_send(self) -> None:
        for producer in self.owner.producers:
            producer.may_send()

    def _cancelled(self, consumer_tag: str) -> None:
        subscription = self._subscriptions.pop(consumer_tag, None)
        if subscription is None:
            return
        self.deliver_arrived()  # what came by it is delivered before what follows from its end
        subscription.port.cancelled()
        if self._stopping and subscription.is_awaited:
            self._has_stopped()

    def _cancelled_by_peer(self, method: BasicCancel) -> None:
        if not method.no_wait:
            self.send(BasicCancelOk(method.consumer_tag))
        subscription = self._subscriptions.pop(method.consumer_tag, None)
        if subscription is not None:
            self.deliver_arrived()
            subscription.port.cancelled_by_peer()
            if self._stopping and subscription.is_awaited:
                self._has_stopped()

    # Settling

    def settle(self, first: Tag, last: Tag, outcome: Outcome, work: Work | None = None) -> None:
        unsettled = self._unsettled
        if last - first < len(unsettled):
            tags = [tag for tag in tags_of(first, last) if tag in unsettled]
        else:
            tags = [tag for tag in unsettled if first <= tag <= last]
        for subscription in {unsettled[tag] for tag in tags}:
            subscription.port.settling(subscription)
        self._settle(tags, outcome, work)

    def give_back_of(self, port: Amqp091Receiver) -> None:
        tags = [tag for tag, subscription in self._unsettled.items() if subscription.port is port]
        self._settle(tags, RELEASED, self._work)

    def _settle(self, tags: list[Tag], outcome: Outcome, work: Work | None) -> None:
        """Settle these tags, which are unsettled and ascending."""
        unsettled = self._unsettled
        if not tags:
            return
        is_all = len(tags) > 1 and all(map(int.__eq__, tags, unsettled))  # up to the last of them
        if isinstance(outcome, Modified) and outcome.delivery_failed:
            is_all = False
        taken = [(tag, unsettled.pop(tag)) for tag in tags]
        if is_all:
            self._send_settlement(tags[-1], True, outcome)
        else:
            for tag in tags:
                self._send_settlement(tag, False, outcome)
        for tag, subscription in taken:
            if work is not None:
                self._staged[tag] = subscription
            else:
                subscription.port.freed(subscription)
        if work is None and self._is_selected:
            self._commit_later()

    def _send_settlement(self, tag: Tag, multiple: bool, outcome: Outcome) -> None:
        """Send a settlement. Modified becomes the nearest method there is: a reject with requeue is
        a failed delivery to brokers that tell the two apart, as Tallymark does, a nack with requeue
        is none."""
        if isinstance(outcome, Accepted):
            self.send(BasicAck(tag, multiple))
        elif isinstance(outcome, Rejected) or (
            isinstance(outcome, Modified) and outcome.undeliverable_here
        ):
            self.send(BasicNack(tag, multiple, requeue=False))
        elif isinstance(outcome, Modified) and outcome.delivery_failed:
            self.send(BasicReject(tag, requeue=True))
        else:
            self.send(BasicNack(tag, multiple, requeue=True))

    # Sending

    def next_number(self) -> Number:
        self._numbers += 1
        return Number(self._numbers)

    def report_outcome(self, number: Number, outcome: Outcome | None) -> None:
        if not self._outcomes:
            self.channels.later(self._report_outcomes)
        self._outcomes.append((number, outcome))

    def _report_outcomes(self) -> None:
        outcomes = self._outcomes
        self._outcomes = []
        for number, outcome in outcomes:
            self.owner.outcomes_received(number, number, outcome)

    # Transactions [TX-17 to TX-26]

    def select(self) -> None:
        self._is_selected = True
        self.send(TxSelect())

    def begin(self, work: Work) -> None:
        self._commit_now()  # what was settled before it is not its affair
        self._work = work
        work.begun()

    def commit(self, work: Work) -> None:
        self._end(work, TxCommit())

    def rollback(self, work: Work) -> None:
        self._end(work, TxRollback())

    def _end(self, work: Work | None, method: Method) -> None:
        self._work = None
        self._will_commit = False
        self._ending.append((work, self._staged))
        self._staged = {}
        self.send(method)

    def _commit_later(self) -> None:
        """Commit at the end of this turn."""
        if not self._will_commit:
            self._will_commit = True
            self.channels.at_end(self._commit_now)

    def _commit_now(self) -> None:
        if self._will_commit:
            self._end(None, TxCommit())

    def _committed(self) -> None:
        work, staged = self._ending.popleft()
        for subscription in staged.values():
            subscription.port.freed(subscription)
        returned = self._returned
        self._returned = 0
        self._answered()
        if work is not None:
            work.ended(None, returned)

    def _rolled_back(self) -> None:
        """Make the deliveries settled in the transaction unsettled again, with their old tags
        [TX-6]."""
        work, staged = self._ending.popleft()
        self._unsettled = dict(sorted({**self._unsettled, **staged}.items()))
        self._answered()
        if work is not None:
            work.ended(None)

    def stop_inflow(self) -> None:
        """Stop deliveries: by channel.flow(false) where the broker honours it; otherwise the
        consumers are cancelled, to be made again after the recovery [TX-19a, TX-D3]."""
        self.is_stopped = True
        with_flow = self.channels.has_flow
        self._stopping = 1
        for subscription in list(self._subscriptions.values()):
            if subscription.port.stop(with_flow):
                subscription.is_awaited = True
                self._stopping += 1
        if with_flow:
            self._stopping += 1
            self.send(ChannelFlow(False))
        self._has_stopped()

    def _has_stopped(self) -> None:
        self._stopping -= 1
        if not self._stopping:
            self.deliver_arrived()
            self.owner.inflow_stopped()

    def resume_inflow(self) -> None:
        self.is_stopped = False
        if self.channels.has_flow:
            self.send(ChannelFlow(True))
        for receiver in self.owner.consumers:
            if isinstance(receiver.port, Amqp091Receiver):
                receiver.port.resume()

    def give_back(self, ranges: list[tuple[Tag, Tag]]) -> None:
        """Return all unsettled deliveries of the channel to the broker, ignored messages too
        [TX-8]. What is sent behind it cannot mean these any more."""
        self._recovering = list(self._unsettled.values())
        self._unsettled.clear()
        self.send(BasicRecover(True))

    def _recovered(self) -> None:
        for subscription in self._recovering:
            subscription.port.freed(subscription)
        self._recovering.clear()
        self.owner.given_back()

    # The end

    @property
    def has_unsent(self) -> bool:
        """Return whether settlements made outside of transactions wait for the answer to such a
        commit: they have to be sent before the close. The end of a transaction is waited for
        elsewhere."""
        return bool(self._unsent) and all(work is None for work, _ in self._ending)

    def close(self) -> None:
        self._is_closing = True
        self._close_senders()
        close = ChannelClose(200, "closed by the application")
        if self.has_unsent:
            self._unsent.append((close, None, b""))
        else:
            self._unsent.clear()
            self._wire.send_method(self._channel, close)

    def _close_senders(self) -> None:
        for sender in self._senders:
            sender.close()

    def closed(self, close: ChannelClose | None) -> None:
        self.deliver_arrived()
        self._subscriptions.clear()
        self._unsettled.clear()
        self._unsent.clear()
        self.channels.close_when_sent()
        if self._is_closing or close is None:
            self.owner.ended()
            return
        self._is_closing = True
        self._close_senders()
        self.owner.closed(error_of(SessionClosed, close), True)
