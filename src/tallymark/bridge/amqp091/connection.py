"""One AMQP 0-9-1 client: wire events in, engine commands out; engine effects in, frames out.

Pure: the owner moves bytes and time. It feeds `receive`, carries engine effects to `deliver`,
`confirm`, `refused`, `cancelled`, `timed_out`, `close_session` and `durable`, and writes what
`take_output` gives. While `pending_login` is set it checks the credentials and answers with
`login_succeeded` or `login_failed`. When `closing` turns true it closes the transport after
writing.

An error of a command closes its channel or the connection, as its reply code says; the engine's
side ends at once, whatever the peer answers and when.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, final

from tallymark.bridge.amqp import SCRAM, AmqpBridge, default_mechanisms
from tallymark.bridge.amqp091 import basic, sink, topology, tx
from tallymark.bridge.amqp091 import publish as publishing
from tallymark.bridge.amqp091.channel import Channel, Client
from tallymark.bridge.amqp091.content import Recipient
from tallymark.bridge.amqp091.errors import wire_error
from tallymark.bridge.amqp091.login import (
    UNCOUNTED_RECOVER,
    client_capabilities,
    credentials,
    mechanisms,
    server_properties,
    shares_prefetch,
)
from tallymark.bridge.amqp091.streams import StreamRecipient
from tallymark.bridge.direct_reply import DirectReplies
from tallymark.bridge.output_gate import Gate, OutputGate
from tallymark.bridge.permissions import QUEUE, READ, Access, OnDenied, Permissions, refuse_entry
from tallymark.engine.broker import Broker
from tallymark.engine.effects import (
    Cancelled,
    CloseSession,
    Confirm,
    Deliver,
    Durable,
    Refused,
    TimedOut,
)
from tallymark.engine.errors import AccessRefused, BrokerError, NotAllowed
from tallymark.engine.session import Connection as EngineConnection
from tallymark.wire.amqp091.connection import Connection as WireConnection
from tallymark.wire.amqp091.errors import (
    ACCESS_REFUSED,
    CONNECTION,
    CONNECTION_FORCED,
    NOT_ALLOWED,
    PRECONDITION_FAILED,
    WireError,
)
from tallymark.wire.amqp091.events import (
    AckRange,
    Event,
    MethodReceived,
    Opening,
    PeerClosed,
    ProtocolFailure,
    PublishReceived,
)
from tallymark.wire.amqp091.layouts import layout_of
from tallymark.wire.amqp091.limits import Limits
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
    ConnectionBlocked,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionSecure,
    ConnectionSecureOk,
    ConnectionStartOk,
    ConnectionTuneOk,
    ConnectionUnblocked,
    ConnectionUpdateSecret,
    ConnectionUpdateSecretOk,
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


@final
class Settings:
    """Settings that all connections of a broker share."""

    __slots__ = ("limits", "mechanisms", "on_denied", "platform", "random_name", "replies")

    def __init__(
        self,
        limits: Limits,
        platform: str,
        random_name: Callable[[], str],
        replies: DirectReplies,
        mechanisms: Callable[[], tuple[str, ...]] = default_mechanisms,
        on_denied: OnDenied | None = None,
    ) -> None:
        self.limits = limits
        self.platform = platform
        """Name of the platform shown to clients, such as "Python 3.11.2"."""
        self.random_name = random_name
        """Function that returns 22 random characters of [A-Za-z0-9_-] that cannot be guessed."""
        self.replies = replies
        self.mechanisms = mechanisms
        """Function that returns the mechanisms by which clients may log in now, in the order they
        are offered."""
        self.on_denied = on_denied


@final
class Amqp091(AmqpBridge):
    """The bridge of one AMQP 0-9-1 client (see the module's docstring)."""

    __slots__ = (
        "_capabilities",
        "_gate",
        "_login_mechanism",
        "_now_ms",
        "_offered",
        "_over",
        "_permissions",
        "_secrets",
        "broker",
        "client",
        "client_properties",
        "external_user",
        "publishing",
        "settings",
        "wire",
    )

    def __init__(
        self, broker: Broker, settings: Settings, peer: str, external_user: str = ""
    ) -> None:
        super().__init__(peer)
        self.broker = broker
        self.settings = settings
        self.external_user = external_user
        """User name from the client's TLS certificate; empty: there is none."""
        self.wire = WireConnection(settings.limits)
        self.client: Client | None = None
        """State of the client once it has entered a virtual host."""
        self.client_properties: dict[str, object] = {}
        self.publishing = False
        """True once the client has published anything."""
        self._login_mechanism = ""
        self._offered: tuple[str, ...] = ()
        self._permissions: Permissions | None = None
        self._secrets: deque[bytes] = deque()
        """Secrets behind the pending one, from the same read."""
        self._capabilities: frozenset[str] = frozenset()
        self._gate = OutputGate(self)
        self._now_ms = 0
        self._over = False

    # -- the owner's side

    @property
    def closing(self) -> bool:
        """True if the transport is to be closed once the output of take_output is written."""
        return self._over and not self._gate.shut

    @property
    def connection(self) -> EngineConnection | None:
        """Connection in the engine, once the client has entered a virtual host."""
        return None if self.client is None else self.client.connection

    @property
    def entered(self) -> EngineConnection | None:
        client = self.client
        return None if client is None or client.closed else client.connection

    def receive(self, data: bytes, now_ms: int, wall_ms: int) -> None:
        """Process input. now_ms: monotonic; wall_ms: since 1970, the messages' arrival."""
        self._now_ms = now_ms
        if self.client is not None:
            self.client.wall_ms = wall_ms
        self.wire.receive_data(data, now_ms)
        self._handle_events()

    @property
    def lacks_room(self) -> bool:
        return self.wire.line.content_bytes > self.room

    @property
    def input_bytes(self) -> int:
        return self.wire.line.kept_bytes()

    @property
    def output_bytes(self) -> int:
        return self._gate.held_bytes()

    def eof(self) -> None:
        """Handle the end of the peer's input: the connection is lost unless it was closed."""
        if self.is_behind:
            self.wire.line.inbox.clear()
            self.wire.line.content_bytes = 0
        self.wire.receive_eof()
        self._handle_events()

    def let_go(self) -> None:
        self.client = None
        self._gate.let_go()

    def tick(self, now_ms: int) -> None:
        """Handle heartbeats and time-outs. Called at `next_deadline`."""
        self._now_ms = now_ms
        self.wire.tick(now_ms)
        self._handle_events()

    def next_deadline(self) -> int | None:
        """Return when `tick` is due, monotonic milliseconds."""
        return self.wire.next_deadline()

    def said(self) -> list[bytes]:
        return self.wire.take_output(self._now_ms)

    def take_output(self) -> list[bytes]:
        """Return the output to write now, in order. While some output waits for the disk, no
        messages are taken from queues for this connection: they would only wait behind it."""
        chunks = self._gate.take()
        if self.wire.line.content_bytes:
            self.wire.line.content_bytes = self._gate.held_bytes()
        connection = self.connection
        if connection is not None and connection.gated != self._gate.shut:
            connection.gated = self._gate.shut
            if not connection.gated:
                self.broker.wake(connection)
        return chunks

    def sasl_challenge(self, challenge: bytes) -> None:
        if self.pending_sasl is None:
            return
        self.pending_sasl = None
        self.wire.send_method(0, ConnectionSecure(challenge))
        self._handle_events()

    def login_succeeded(self, permissions: Permissions, last_words: bytes = b"") -> None:
        """Complete the pending login. Last words are sent as a challenge, since tune has no field
        for them; the answer to it is empty [RFC 4422 §3.6]."""
        if self.pending_login is None and self.pending_sasl is None:
            return
        self.pending_login = self.pending_sasl = None
        self._permissions = permissions
        if last_words:
            self.wire.send_method(0, ConnectionSecure(last_words))
        else:
            self.wire.send_tune()
        self._handle_events()

    @property
    def user(self) -> str:
        return "" if self._permissions is None else self._permissions.user

    def rights_changed(self, permissions: Permissions) -> None:
        """Apply changed permissions. A channel that consumes from a queue that may no longer be
        read is closed with 403."""
        self._permissions = permissions
        client = self.client
        if client is None or client.closed:
            return
        client.access.follow(permissions)
        client.routes.clear()
        for channel in list(client.channels.values()):
            for consumer in list(channel.session.consumers.values()):
                try:
                    client.access.check(QUEUE, consumer.queue.name, READ)
                except AccessRefused as error:
                    self._refuse(channel.number, error, 60, 20)
                    break

    @property
    def wants_data(self) -> bool:
        return not self.is_behind and self.pending_secret is None

    def secret_accepted(self, permissions: Permissions) -> None:
        if self.pending_secret is None:
            return
        self.pending_secret = self._secrets.popleft() if self._secrets else None
        self.rights_changed(permissions)
        self.wire.send_method(0, ConnectionUpdateSecretOk())
        self._handle_events()

    def secret_refused(self) -> None:
        """530, as RabbitMQ says it."""
        if self.pending_secret is None:
            return
        self.pending_secret = None
        self._secrets.clear()
        self._fail_connection(WireError(NOT_ALLOWED, "the new secret was refused"))

    def login_failed(self) -> None:
        """Refuse the pending login. Only a client that understands it gets the reason."""
        if self.pending_login is None and self.pending_sasl is None:
            return
        self.pending_login = self.pending_sasl = None
        self.reason = "login refused"
        if "authentication_failure_close" in self._capabilities:
            text = (
                f"Login was refused using authentication mechanism {self._login_mechanism}. "
                "For details see the broker logfile."
            )
            self.wire.send_close(0, WireError(ACCESS_REFUSED, text, scope=CONNECTION))
        else:
            self._over = True

    def block(self, reason: str) -> None:
        """Tell the client, if it supports that, that its publishes are not read for now."""
        if self.client is not None and "connection.blocked" in self._capabilities:
            self.wire.send_method(0, ConnectionBlocked(reason))

    def unblock(self) -> None:
        if self.client is not None and "connection.blocked" in self._capabilities:
            self.wire.send_method(0, ConnectionUnblocked())

    def shutdown(self, reason: str = "shutdown") -> None:
        """End the connection on request of the operator or the broker. [320 CONNECTION_FORCED]"""
        text = f"broker forced connection closure with reason '{reason}'"
        self._fail_connection(WireError(CONNECTION_FORCED, text))

    def describe(self) -> dict[str, object]:
        """Return the description of the connection for the HTTP API."""
        client = self.client
        channels = [] if client is None else list(client.channels.values())
        permissions = self._permissions
        return {
            "peer": self.peer,
            "protocol": "AMQP 0-9-1",
            "state": self.wire.state.value,
            "user": None if permissions is None else permissions.user,
            "vhost": None if client is None else client.vhost.name,
            "client_properties": self.client_properties,
            "channel_max": self.wire.channel_max,
            "frame_max": self.wire.frame_max,
            "channels": [_described(channel) for channel in channels],
        }

    # -- effects

    def deliver(self, effect: Deliver) -> None:
        consumer = effect.consumer
        if consumer.session.closed:
            return
        recipient = consumer.handle
        if isinstance(recipient, StreamRecipient):
            self.wire.line.out.append(recipient.encode(effect.slice, effect.first_tag))
            return
        assert isinstance(recipient, Recipient)
        if effect.waits:
            self._gate.shut_for(self.broker)
        self.wire.line.out.append(
            recipient.encode(effect.slice, effect.first_tag, consumer.queue.shows_counts)
        )

    def confirm(self, effect: Confirm) -> None:
        """Confirm several publishes by one frame with the number of the last one. A refused publish
        is never acknowledged."""
        if effect.session.closed:
            return
        channel = effect.session.handle
        assert isinstance(channel, Channel)
        if effect.upto > channel.confirmed:
            last, newly = channel.accepted(effect.upto)
            channel.confirmed = effect.upto
            if newly:
                channel.send(BasicAck(last, newly > 1))

    def refused(self, effect: Refused) -> None:
        """Send a basic.nack for each refused publish."""
        session = effect.session
        if session.closed:
            return
        channel = session.handle
        assert isinstance(channel, Channel)
        channel.refused.append((effect.first, effect.last))
        for number in range(effect.first, effect.last + 1):
            channel.send(BasicNack(number, False, False))

    def cancelled(self, effect: Cancelled) -> None:
        """Tell the client that a consumer's queue was deleted, if it asked to be told."""
        client = self.client
        session = effect.consumer.session
        if client is None or session.closed or not client.cancel_notify:
            return
        channel = session.handle
        assert isinstance(channel, Channel)
        channel.send(BasicCancel(effect.consumer.tag, True))

    def timed_out(self, effect: TimedOut) -> None:
        """Stop a consumer that exceeded the time-out: the client is told, or, if it could not
        understand that, the channel is closed [LC-4]."""
        client = self.client
        session = effect.session
        if client is None or session.closed:
            return
        channel = session.handle
        assert isinstance(channel, Channel)
        if effect.consumer is not None and client.cancel_notify:
            channel.send(BasicCancel(effect.consumer.tag, True))
            return
        text = (
            f"delivery acknowledgement on channel {channel.number} timed out. Timeout value used: "
            f"{effect.timeout_ms} ms"
        )
        self._fail(channel.number, WireError(PRECONDITION_FAILED, text))

    def close_session(self, effect: CloseSession) -> None:
        """Close a channel that the engine has ended, or the connection, as the error's reply code
        says."""
        channel = effect.session.handle
        client = self.client
        if client is None or channel is None:
            return
        assert isinstance(channel, Channel)
        if client.channels.get(channel.number) is channel:
            self._fail(channel.number, wire_error(effect.error, 0, 0))

    def durable(self, effect: Durable) -> None:
        """Release output that waited for the disk; it leaves with the next take_output."""
        gate = effect.waiter
        if isinstance(gate, tx.CommitWait):
            gate.done()
            return
        assert isinstance(gate, Gate)
        assert gate.owner is self
        self._gate.release(gate)

    # -- events

    def _handle_events(self) -> None:
        wire = self.wire
        if wire.line.content_bytes > self.room and not wire.is_over:
            self.is_behind = True
            return
        event = wire.next_event()
        while event is not None:
            if isinstance(event, PublishReceived):
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
                        self._refuse(channel.number, error, 60, 40)
                    except WireError as fault:  # mypyc: a name has one type per function
                        self._fail(channel.number, fault)
            elif isinstance(event, AckRange):
                channel = self._channel(event.channel)
                if channel is not None:
                    try:
                        basic.acked(channel, event)
                    except BrokerError as error:
                        self._refuse(channel.number, error, 60, 80)
                    except WireError as fault:
                        self._fail(channel.number, fault)
            elif isinstance(event, MethodReceived):
                self._method(event.channel, event.method)
            else:
                self._other_event(event)
            if wire.line.content_bytes > self.room and not wire.is_over:
                self.is_behind = True
                return
            event = wire.next_event()
        self.is_behind = wire.line.is_spent()

    def _other_event(self, event: Event) -> None:
        if isinstance(event, Opening):
            self._offered = mechanisms(self.settings.mechanisms(), self.external_user)
            listed = " ".join(self._offered).encode()
            self.wire.send_start(server_properties(self.settings.platform), listed)
        elif isinstance(event, ProtocolFailure):
            self._fail(event.channel, event.error)
        elif isinstance(event, PeerClosed):
            self.reason = self.reason or event.reason
            self._leave(not event.clean)
            self._over = True

    def _channel(self, number: int) -> Channel | None:
        """Return an open channel; None, too, for one that the engine has ended and whose close is
        on its way to the peer: input on it is ignored."""
        client = self.client
        if client is None:
            return None
        channel = client.channels.get(number)
        return None if channel is None or channel.session.closed else channel

    def _method(self, number: int, method: Method) -> None:
        try:
            if number == 0:
                self._method_of_connection(method)
            else:
                self._method_of_channel(number, method)
        except BrokerError as error:
            layout = layout_of(method)
            self._refuse(number, error, layout.class_id, layout.method_id)
        except WireError as fault:
            self._fail(number, fault)

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
            HANDLERS[type(method)](channel, method)

    def _open_channel(self, client: Client, number: int) -> None:
        most = self.wire.channel_max
        if len(client.channels) >= most:
            raise WireError(
                NOT_ALLOWED,
                f"number of channels opened ({len(client.channels)}) has reached the negotiated "
                f"channel_max ({most})",
            )
        session = self.broker.open_session(client.connection)
        client.channels[number] = Channel(client, number, session)
        self.wire.send_method(number, ChannelOpenOk())

    def _method_of_connection(self, method: Method) -> None:
        if isinstance(method, ConnectionStartOk):
            self._start(method)
        elif isinstance(method, ConnectionOpen):
            self._open(method.virtual_host)
        elif isinstance(method, ConnectionClose):
            self.reason = f"closed by the client: {method.reply_code} {method.reply_text}"
            self._leave(False)
            self.wire.send_method(0, ConnectionCloseOk())
        elif isinstance(method, ConnectionUpdateSecret):
            self._update_secret(method.new_secret)
        elif isinstance(method, ConnectionSecureOk):
            if self._permissions is not None:
                self.wire.send_tune()
            else:
                self.pending_sasl = method.response
        else:
            assert isinstance(method, (ConnectionTuneOk, ConnectionCloseOk)), method

    def _update_secret(self, secret: bytes) -> None:
        """A token is checked; a password was, and the new one counts for the next connection
        [rabbitmq]."""
        permissions = self._permissions
        if permissions is None or permissions.scopes is None:
            self.wire.send_method(0, ConnectionUpdateSecretOk())
        elif self.pending_secret is None:
            self.pending_secret = secret
        else:
            self._secrets.append(secret)

    def _start(self, method: ConnectionStartOk) -> None:
        self.client_properties = method.client_properties
        self._capabilities = client_capabilities(method.client_properties)
        self._login_mechanism = method.mechanism
        if method.mechanism == SCRAM and SCRAM in self._offered:
            self.pending_sasl = method.response
            return
        found = None
        if method.mechanism in self._offered:
            found = credentials(method.mechanism, method.response, self.external_user)
        if found is None:
            # As RabbitMQ: a peer that is unknown and cannot be understood gets no answer.
            self.reason = f"no credentials in a response of mechanism {method.mechanism[:40]!r}"
            self._over = True
        else:
            self.pending_login = (method.mechanism, found[0], found[1])

    def _open(self, vhost: str) -> None:
        permissions = self._permissions
        assert permissions is not None
        if vhost not in self.broker.vhosts:
            raise NotAllowed(f"vhost {vhost} not found")
        patterns = permissions.patterns(vhost)
        if patterns is None:
            raise NotAllowed(refuse_entry(permissions, vhost, self.settings.on_denied, self.peer))
        self.client = Client(
            self.broker,
            self.wire,
            self._gate,
            self.settings.replies,
            self.settings.random_name,
            self.broker.open_connection(vhost, permissions.user, self.peer),
            Access(
                permissions.user,
                vhost,
                patterns,
                permissions.impersonates,
                self.settings.on_denied,
                self.peer,
            ),
            "consumer_cancel_notify" in self._capabilities,
            shares_prefetch(self.client_properties),
            UNCOUNTED_RECOVER not in self._capabilities,
            self,
        )
        self.client.access.follow(permissions)
        self.client.connection.handle = self
        self.client.connection.holds_output = True
        self.wire.send_method(0, ConnectionOpenOk())

    # -- endings

    def _refuse(self, number: int, error: BrokerError, class_id: int, method_id: int) -> None:
        self._fail(number, wire_error(error, class_id, method_id))

    def _fail(self, number: int, error: WireError) -> None:
        """Close the channel, or the connection if the error's reply code demands it."""
        if number == 0 or error.scope == CONNECTION:
            self._fail_connection(error)
            return
        channel = None if self.client is None else self.client.channels.get(number)
        if channel is not None:
            channel.close(False)
        self.wire.send_close(number, error)

    def _fail_connection(self, error: WireError) -> None:
        """Send the reason, end the engine's side, and wait for close-ok (with a time-out in
        wire)."""
        self.reason = self.reason or f"{error.reply_code} {error.reply_text}"
        self._leave(False)
        error.scope = CONNECTION
        self.wire.send_close(0, error)

    def _leave(self, lost: bool) -> None:
        """End the engine's side: channels, unsettled messages, exclusive queues."""
        client = self.client
        if client is None or client.closed:
            return
        client.closed = True
        for channel in list(client.channels.values()):
            channel.close(lost)
        self.broker.close_connection(client.connection, lost)


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
