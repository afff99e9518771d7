"""One AMQP 0-9-1 client: wire events in, engine commands out; engine effects in, frames out.

`HANDLERS` names the function of each method; lifecycle.py has what comes before the first channel
and after the last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, assert_never, final

from tallymark.bridge.amqp091 import basic, sink, topology, tx
from tallymark.bridge.amqp091 import publish as publishing
from tallymark.bridge.amqp091.channel import Channel, Client
from tallymark.bridge.amqp091.content import Recipient
from tallymark.bridge.amqp091.errors import wire_error
from tallymark.bridge.amqp091.lifecycle import Lifecycle, Settings
from tallymark.bridge.amqp091.streams import StreamRecipient
from tallymark.engine.broker import Broker
from tallymark.engine.effects import (
    Cancelled,
    CloseSession,
    Confirm,
    Deliver,
    Refused,
    TimedOut,
)
from tallymark.engine.errors import BrokerError
from tallymark.engine.session import Session
from tallymark.wire.amqp091.errors import (
    NOT_ALLOWED,
    PRECONDITION_FAILED,
    WireError,
)
from tallymark.wire.amqp091.events import (
    AckRange,
    MethodReceived,
    Opening,
    PeerClosed,
    ProtocolFailure,
)
from tallymark.wire.amqp091.kernel import PublishReceived
from tallymark.wire.amqp091.layouts import layout_of
from tallymark.wire.amqp091.methods import (
    AccessRequest,
    BasicAck,
    BasicCancel,
    BasicConsume,
    BasicGet,
    BasicNack,
    BasicQos,
    BasicRecover,
    BasicRecoverAsync,
    BasicReject,
    ChannelClose,
    ChannelCloseOk,
    ChannelFlow,
    ChannelFlowOk,
    ChannelOpen,
    ChannelOpenOk,
    ConfirmSelect,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionSecureOk,
    ConnectionStartOk,
    ConnectionTuneOk,
    ConnectionUpdateSecret,
    ExchangeBind,
    ExchangeDeclare,
    ExchangeDelete,
    ExchangeUnbind,
    Method,
    QueueBind,
    QueueDeclare,
    QueueDelete,
    QueuePurge,
    QueueUnbind,
    TxCommit,
    TxRollback,
    TxSelect,
)
from tallymark.wire.line import ENTITY, MonotonicMs

Handler = Callable[[Channel, Any], None]

HANDLERS: Final[dict[type[Method], Handler]] = {
    AccessRequest: basic.request_access,
    BasicAck: basic.ack,
    BasicCancel: basic.cancel,
    BasicConsume: basic.consume,
    BasicGet: basic.get,
    BasicNack: basic.nack,
    BasicQos: basic.qos,
    BasicRecover: basic.recover,
    BasicRecoverAsync: basic.recover_async,
    BasicReject: basic.reject,
    ChannelFlow: basic.flow,
    ChannelFlowOk: basic.confirm_flow,
    ConfirmSelect: basic.select_confirms,
    ExchangeBind: topology.bind_exchange,
    ExchangeDeclare: topology.declare_exchange,
    ExchangeDelete: topology.delete_exchange,
    ExchangeUnbind: topology.unbind_exchange,
    QueueBind: topology.bind_queue,
    QueueDeclare: topology.declare_queue,
    QueueDelete: topology.delete_queue,
    QueuePurge: topology.purge_queue,
    QueueUnbind: topology.unbind_queue,
    TxCommit: tx.commit,
    TxRollback: tx.rollback,
    TxSelect: tx.select,
}
"""Handlers of methods on an open channel; open, close and close-ok are handled by the
connection."""

ENTITY_METHODS: Final = frozenset({
    BasicCancel, BasicConsume, ExchangeBind, ExchangeDeclare, ExchangeDelete, ExchangeUnbind,
    QueueBind, QueueDeclare, QueueDelete, QueueUnbind,
})  # fmt: skip


@final
class Amqp091(Lifecycle):
    """The bridge of one AMQP 0-9-1 client (see the module's docstring)."""

    __slots__ = ("publishing",)

    def __init__(
        self, broker: Broker, settings: Settings, peer: str, external_user: str = ""
    ) -> None:
        super().__init__(broker, settings, peer, external_user)
        self.publishing = False
        """True once the client has published anything."""

    def receive_data(self, data: bytes, now_ms: MonotonicMs) -> None:
        self.wire.receive_data(data, now_ms)

    # -- the owner's side

    @property
    def wants_data(self) -> bool:
        return not self.is_behind and self.pending_secret is None

    @property
    def lacks_room(self) -> bool:
        return self.line.content_bytes > self.room

    def eof(self) -> None:
        """Handle the end of the peer's input: the connection is lost unless it was closed."""
        if self.is_behind:
            self.line.inbox.clear()
            self.line.content_bytes = 0
        self.wire.receive_eof()
        self.handle_events()

    def tick(self, now_ms: MonotonicMs) -> None:
        """Handle heartbeats and time-outs. Called at `next_deadline`."""
        self.now_ms = now_ms
        self.wire.tick(now_ms)
        self.handle_events()

    def next_deadline(self) -> MonotonicMs | None:
        """Return when `tick` is due, monotonic milliseconds."""
        return self.wire.next_deadline()

    def describe(self) -> dict[str, object]:
        """Return the description of the connection for the HTTP API."""
        client = self.client
        channels = [] if client is None else list(client.channels.values())
        permissions = self.permissions
        return {
            "peer": self.peer,
            "protocol": "AMQP 0-9-1",
            "state": self.wire.state.value,
            "user": None if permissions is None else permissions.user,
            "vhost": None if client is None else client.vhost.name,
            "client_properties": self.client_properties,
            "channel_max": self.wire.channel_max,
            "frame_max": self.wire.frame_max,
            "auth_mechanism": self._login_mechanism,
            "timeout": self.wire.line.silence_ms // 2000,
            "channels": [_described(channel) for channel in channels],
        }

    # -- effects

    def deliver(self, effect: Deliver) -> None:
        consumer = effect.consumer
        if consumer.session.closed:
            return
        recipient = consumer.handle
        if isinstance(recipient, StreamRecipient):
            self.line.out.append(recipient.encode(effect.slice, effect.first_tag))
            return
        assert isinstance(recipient, Recipient)
        if effect.waits:
            self.gate.shut_for(self.broker)
        recipient.write(self.line.out, effect.slice, effect.first_tag, consumer.queue.shows_counts)

    def confirm(self, effect: Confirm) -> None:
        """Confirm several publishes by one frame with the number of the last one. A refused publish
        is never acknowledged."""
        if effect.session.closed:
            return
        channel = _channel_of(effect.session)
        if effect.upto > channel.confirmed:
            last, newly = channel.accepted(effect.upto)
            channel.confirmed = effect.upto
            if newly:
                self.wire.send_ack(channel.number, last, newly > 1)

    def refused(self, effect: Refused) -> None:
        """Send a basic.nack for each refused publish."""
        session = effect.session
        if session.closed:
            return
        channel = _channel_of(session)
        channel.refused.append((effect.first, effect.last))
        for number in range(effect.first, effect.last + 1):
            channel.send(BasicNack(number, False, False))

    def cancelled(self, effect: Cancelled) -> None:
        """Tell the client that a consumer's queue was deleted, if it asked to be told."""
        client = self.client
        session = effect.consumer.session
        if client is None or session.closed or not client.cancel_notify:
            return
        channel = _channel_of(session)
        channel.send(BasicCancel(effect.consumer.tag, True))

    def timed_out(self, effect: TimedOut) -> None:
        """Stop a consumer that exceeded the time-out: the client is told, or, if it could not
        understand that, the channel is closed [LC-4]."""
        client = self.client
        session = effect.session
        if client is None or session.closed:
            return
        channel = _channel_of(session)
        if effect.consumer is not None and client.cancel_notify:
            channel.send(BasicCancel(effect.consumer.tag, True))
            return
        text = (
            f"delivery acknowledgement on channel {channel.number} timed out. Timeout value used: "
            f"{effect.timeout_ms} ms"
        )
        self.fail(channel.number, WireError(PRECONDITION_FAILED, text))

    def close_session(self, effect: CloseSession) -> None:
        """Close a channel that the engine has ended, or the connection, as the error's reply code
        says."""
        client = self.client
        if client is None or effect.session.handle is None:
            return
        channel = _channel_of(effect.session)
        if client.channels.get(channel.number) is channel:
            self.fail(channel.number, wire_error(effect.error, 0, 0))

    # -- events

    def handle_events(self) -> None:
        wire = self.wire
        line = self.line
        if line.content_bytes > self.room and not wire.is_over:
            self.is_behind = True
            return
        event = wire.next_event()
        while event is not None:
            if isinstance(event, PublishReceived):
                self.asked += 1
                channel = self._channel(event.channel)
                if channel is not None:
                    self.publishing = True
                    try:
                        if channel.transaction is not None:
                            tx.publish(channel, event)
                        elif channel.intake is None:
                            publishing.publish(channel, event)
                        else:
                            sink.take(channel, channel.intake, event)
                    except BrokerError as error:
                        self.refuse(channel.number, error, 60, 40)
                    except WireError as fault:  # mypyc: a name has one type per function
                        self.fail(channel.number, fault)
            elif isinstance(event, AckRange):
                channel = self._channel(event.channel)
                if channel is not None:
                    try:
                        basic.acked(channel, event)
                    except BrokerError as error:
                        self.refuse(channel.number, error, 60, 80)
                    except WireError as fault:
                        self.fail(channel.number, fault)
            elif isinstance(event, MethodReceived):
                self._method(event.channel, event.method)
            else:
                self._other_event(event)
            if line.content_bytes > self.room and not wire.is_over:
                self.is_behind = True
                return
            event = wire.next_event()
        self.is_behind = line.is_share_done()

    def _other_event(self, event: Opening | ProtocolFailure | PeerClosed) -> None:
        if isinstance(event, Opening):
            self.offer()
        elif isinstance(event, ProtocolFailure):
            self.fail(event.channel, event.error)
        elif isinstance(event, PeerClosed):
            self.reason = self.reason or event.reason
            self.leave(not event.clean)
            self.is_over = True
        else:
            assert_never(event)

    def _channel(self, number: int) -> Channel | None:
        """Return an open channel; None, too, for one that the engine has ended and whose close is
        on its way to the peer: input on it is ignored."""
        client = self.client
        if client is None:
            return None
        channel = client.channels.get(number)
        return None if channel is None or channel.session.closed else channel

    def _method(self, number: int, method: Method) -> None:
        if not isinstance(method, (BasicNack, BasicReject)):
            self.asked += 1
        try:
            if number == 0:
                self._method_of_connection(method)
            else:
                self._method_of_channel(number, method)
        except BrokerError as error:
            layout = layout_of(method)
            self.refuse(number, error, layout.class_id, layout.method_id)
        except WireError as fault:
            self.fail(number, fault)

    def _method_of_channel(self, number: int, method: Method) -> None:
        client = self.client
        if client is None or client.closed:
            return
        if isinstance(method, ChannelOpen):
            self._open_channel(client, number)
            return
        if isinstance(method, ChannelClose):
            known = client.channels.get(number)
            if known is not None:
                known.close(False)
            self.wire.send_method(number, ChannelCloseOk())
            return
        channel = self._channel(number)
        if channel is not None:
            if channel.committing:
                layout = layout_of(method)
                channel.check_idle(layout.class_id, layout.method_id)
            kind = type(method)
            if kind in ENTITY_METHODS:
                self.line.steps -= ENTITY
            HANDLERS[kind](channel, method)

    def _open_channel(self, client: Client, number: int) -> None:
        most = self.wire.channel_max
        if len(client.channels) >= most:
            raise WireError(
                NOT_ALLOWED,
                f"number of channels opened ({len(client.channels)}) has reached the negotiated "
                f"channel_max ({most})",
            )
        self.line.steps -= ENTITY
        session = self.broker.clients.open_session(client.connection)
        client.channels[number] = Channel(client, number, session)
        self.wire.send_method(number, ChannelOpenOk())

    def _method_of_connection(self, method: Method) -> None:
        if isinstance(method, ConnectionStartOk):
            self.start(method)
        elif isinstance(method, ConnectionOpen):
            self.open(method.virtual_host)
        elif isinstance(method, ConnectionClose):
            self.reason = f"closed by the client: {method.reply_code} {method.reply_text}"
            self.leave(False)
            self.wire.send_method(0, ConnectionCloseOk())
        elif isinstance(method, ConnectionUpdateSecret):
            self.update_secret(method.new_secret)
        elif isinstance(method, ConnectionSecureOk):
            self.secure(method.response)
        else:
            assert isinstance(method, (ConnectionTuneOk, ConnectionCloseOk)), method

    # -- endings


def _channel_of(session: Session) -> Channel:
    """Return the channel of an engine's session on this connection."""
    channel = session.handle
    assert isinstance(channel, Channel)
    return channel


def _described(channel: Channel) -> dict[str, object]:
    session = channel.session
    transactions = channel.client.broker.transactions.of(session)
    return {
        "number": channel.number,
        "consumers": len(session.consumers),
        "prefetch": channel.prefetch,
        "prefetch_shared": channel.prefetch_shared,
        "unacked": session.unacked,
        "confirms": session.confirming,
        "transactional": bool(transactions),
        "uncommitted": sum([one.published for one in transactions]),
        "acks_uncommitted": sum([one.settled for one in transactions]),
        "published": session.published,
        "unconfirmed": channel.unanswered(),
        "returned": channel.returned,
        "flow": session.flow,
    }
