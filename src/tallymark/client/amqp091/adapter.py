"""The adapter for AMQP 0-9-1: the connection, the assignment of channels, and the requests to
declare and delete.

A session is a channel; each sender has another one of its own, for publisher confirms, so that what
goes wrong there is that sender's alone (session.py, sender.py). Requests have one too, because a
refusal closes it; one is under way at a time, as what stands behind a refused one would go with the
channel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, assert_never, final

from tallymark.client.adapter import (
    Adapter,
    ConnectionOwner,
    ManagementPort,
    SessionOwner,
    SessionPort,
)
from tallymark.client.amqp091.channel import Channels, ChannelUser, error_of
from tallymark.client.amqp091.session import Amqp091Session
from tallymark.client.arguments import ConnectionOptions, Endpoint
from tallymark.client.errors import (
    NO_USE_TRYING,
    ClientError,
    ConnectFailed,
    ConnectionClosed,
    ConnectionLost,
    LoginRefused,
    NotPossible,
    RequestRefused,
)
from tallymark.client.topology import (
    AskForQueue,
    Bind,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    PurgeQueue,
    QueueState,
    Request,
    Unbind,
)
from tallymark.wire.amqp091.client import ClientChannel, ClientConnection
from tallymark.wire.amqp091.events import (
    ClientEvent,
    ContentReceived,
    MethodReceived,
    PeerClosed,
    ProtocolFailure,
)
from tallymark.wire.amqp091.limits import Limits
from tallymark.wire.amqp091.methods import (
    ChannelClose,
    ChannelCloseOk,
    ChannelFlow,
    ChannelOpenOk,
    ConnectionBlocked,
    ConnectionClose,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionSecure,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionUnblocked,
    ExchangeBind,
    ExchangeDeclare,
    ExchangeDelete,
    ExchangeUnbind,
    Method,
    QueueBind,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
    QueuePurge,
    QueuePurgeOk,
    QueueUnbind,
)
from tallymark.wire.line import MonotonicMs


@final
class Amqp091Management(ManagementPort, ChannelUser):
    """Declarations and deletions of one connection, each as a method of AMQP 0-9-1."""

    def __init__(self, channels: Channels) -> None:
        super().__init__()
        self._channels = channels
        self._channel: ClientChannel | None = None
        self._is_open = False
        self._is_asked = False

    def _go_on(self) -> None:
        while self._waiting and not self._is_asked:
            if self._channel is None:
                try:
                    self._channel = self._channels.open(self)
                except NotPossible as error:
                    self._answer(error)
                    continue
            if not self._is_open:
                return
            try:
                self._channels.wire.send_method(self._channel, method_of(self._first))
            except (TypeError, ValueError) as error:  # arguments that no table has room for
                self._cannot_send(error)
            else:
                self._is_asked = True

    def _answer(self, result: object) -> None:
        self._is_asked = False
        super()._answer(result)

    def method(self, method: Method) -> None:
        if isinstance(method, ChannelOpenOk):
            self._is_open = True
        elif self._is_asked and not isinstance(method, ChannelFlow):  # nothing else comes here
            self._answer(_state(self._first, method))
        self._go_on()

    def content(self, method: Method, section: bytes, body: bytes) -> None:
        """Ignore content: this channel consumes and publishes nothing."""

    def closed(self, close: ChannelClose | None) -> None:
        self._channel = None
        self._is_open = False
        error: ClientError = RequestRefused("the broker closed the channel", is_remote=True)
        if close is not None:
            error = error_of(RequestRefused, close)
        if self._is_asked:
            self._answer(error)
        self._go_on()


def method_of(request: Request) -> Method:
    """Return the method that carries out a request."""
    match request:
        case DeclareQueue(name, durable, exclusive, auto_delete, arguments):
            return QueueDeclare(
                name,
                durable=durable,
                exclusive=exclusive,
                auto_delete=auto_delete,
                arguments=dict(arguments),
            )
        case DeclareExchange(name, type, durable, auto_delete, internal, arguments):
            return ExchangeDeclare(
                name,
                type,
                durable=durable,
                auto_delete=auto_delete,
                internal=internal,
                arguments=dict(arguments),
            )
        case Bind(source, destination, to_exchange, key, arguments):
            kind = ExchangeBind if to_exchange else QueueBind
            return kind(destination, source, key, arguments=dict(arguments))
        case Unbind(source, destination, to_exchange, key, arguments):
            if to_exchange:
                return ExchangeUnbind(destination, source, key, arguments=dict(arguments))
            return QueueUnbind(destination, source, key, arguments=dict(arguments))
        case AskForQueue(name):
            return QueueDeclare(name, passive=True)
        case PurgeQueue(name):
            return QueuePurge(name)
        case DeleteQueue(name, if_unused, if_empty):
            return QueueDelete(name, if_unused=if_unused, if_empty=if_empty)
        case DeleteExchange(name, if_unused):
            return ExchangeDelete(name, if_unused=if_unused)


def _state(request: Request, method: Method) -> QueueState | None:
    """Return the queue that an answer describes; None: it describes none."""
    if isinstance(method, QueueDeclareOk):
        return QueueState(method.queue, method.message_count, method.consumer_count)
    if isinstance(method, (QueueDeleteOk, QueuePurgeOk)):
        assert isinstance(request, (DeleteQueue, PurgeQueue)), request
        return QueueState(request.name, method.message_count)
    return None


CAPABILITIES: Final = (
    "authentication_failure_close",
    "basic.nack",
    "connection.blocked",
    "consumer_cancel_notify",
    "publisher_confirms",
    "uncounted_recover",  # a rollback is no failed delivery of what was only waiting here
)
FLOW: Final = "channel_flow"
"""Capability of servers that honour channel.flow(active=false); RabbitMQ answers 540 [TX-D3]."""
GUEST: Final = "guest"
"""User name and password that log in, with PLAIN, where the address has no user."""
ACCESS_REFUSED: Final = 403


@final
class Amqp091(Adapter):
    """One AMQP 0-9-1 connection, the client's end."""

    def __init__(
        self,
        owner: ConnectionOwner,
        options: ConnectionOptions,
        endpoint: Endpoint,
        wall_ms: Callable[[], int],
        trace: Callable[[str], None] | None = None,
    ) -> None:
        heartbeat_s = -(-options.idle_timeout_ms // 1000)
        limits = Limits(
            channel_max=0,
            frame_max=options.max_frame_size,
            heartbeat_s=min(heartbeat_s, 65_535),
            max_message_bytes=options.max_message_size,
            handshake_timeout_ms=options.handshake_timeout_ms,
        )
        self._wire = ClientConnection(limits, trace)
        self._channels = Channels(self._wire, wall_ms)
        self._owner = owner
        self._options = options
        self._endpoint = endpoint
        self._is_open = False
        self._has_logged_in = False  # as far as we can: start-ok is sent
        self._error: ClientError | None = None
        self._server_properties: dict[str, object] = {}

    # Bytes and time

    def start(self, now_ms: MonotonicMs) -> None:
        self._wire.start(now_ms)

    def receive(self, data: bytes, now_ms: MonotonicMs) -> None:
        self._wire.receive_data(data, now_ms)
        self._work()

    def receive_end(self, reason: str, now_ms: MonotonicMs) -> None:
        self._wire.receive_end(reason)
        self._work()

    def take_output(self, now_ms: MonotonicMs) -> list[bytes]:
        self._work()
        self._channels.call_at_end()
        return self._wire.take_output(now_ms)

    def tick(self, now_ms: MonotonicMs) -> None:
        self._wire.tick(now_ms)
        self._work()

    def next_deadline(self) -> MonotonicMs | None:
        return self._wire.next_deadline()

    def _work(self) -> None:
        wire = self._wire
        channels = self._channels
        while True:
            event = wire.next_event()
            if event is not None:
                self._event(event)
            elif not channels.call_later():
                break
        channels.deliver_arrived()

    def _event(self, event: ClientEvent) -> None:
        if isinstance(event, ContentReceived):
            user = self._channels.users.get(event.channel)
            if user is not None:
                user.content(event.method, event.section, event.body)
        elif isinstance(event, MethodReceived):
            if event.channel:
                self._of_channel(event.channel, event.method)
            else:
                self._of_connection(event.method)
        elif isinstance(event, ProtocolFailure):
            kind = ConnectionLost if self._is_open else ConnectFailed
            self._error = kind(f"the server broke the protocol: {event.error}")
        elif isinstance(event, PeerClosed):
            self._ended(event.reason)
        else:
            assert_never(event)

    def _of_channel(self, number: int, method: Method) -> None:
        user = self._channels.users.get(number)
        if user is None:
            return
        if isinstance(method, ChannelClose):
            del self._channels.users[number]
            user.closed(method)
        elif isinstance(method, ChannelCloseOk):
            del self._channels.users[number]
            user.closed(None)
        else:
            user.method(method)

    # What the client asks for

    def begin(self, owner: SessionOwner) -> SessionPort:
        return Amqp091Session(self._channels, owner)

    def manage(self) -> ManagementPort:
        return Amqp091Management(self._channels)

    def close(self) -> None:
        self._channels.is_closing = True
        self._channels.close_when_sent()
        self._work()

    # The connection

    def _of_connection(self, method: Method) -> None:
        if isinstance(method, ConnectionStart):
            self._start(method)
        elif isinstance(method, ConnectionSecure):
            self._refuse("the server has a challenge, which none of our mechanisms expects")
        elif isinstance(method, ConnectionTune):
            self._wire.send_tune_ok(method)
            self._wire.send_handshake(ConnectionOpen(self._endpoint.vhost or "/"))
        elif isinstance(method, ConnectionOpenOk):
            self._is_open = True
            name = self._server_properties.get("cluster_name")
            self._owner.opened(str(name or ""), self._server_properties)
        elif isinstance(method, ConnectionClose):
            self._close_received(method)
        elif isinstance(method, (ConnectionBlocked, ConnectionUnblocked)):
            self._channels.is_blocked = isinstance(method, ConnectionBlocked)
            if not self._channels.is_blocked:
                for session in self._channels.sessions():
                    session.may_send()

    def _start(self, method: ConnectionStart) -> None:
        self._server_properties = method.server_properties
        capabilities = method.server_properties.get("capabilities")
        if isinstance(capabilities, dict):
            self._channels.has_flow = capabilities.get(FLOW) is True
        offered = method.mechanisms.decode("ascii", "replace").split()
        endpoint = self._endpoint
        mechanism: str | None = self._options.sasl
        if mechanism is None:
            anonymous = endpoint.user is None and "ANONYMOUS" in offered
            mechanism = "ANONYMOUS" if anonymous else "PLAIN"
        if mechanism not in offered:
            listed = ", ".join(offered) or "none"
            self._refuse(f"SASL mechanism {mechanism}, the server offers {listed}")
            return
        response = b""
        if mechanism == "PLAIN":
            user = GUEST if endpoint.user is None else endpoint.user
            password = GUEST if endpoint.user is None else endpoint.password
            response = b"\0" + user.encode() + b"\0" + password.encode()
        capable: dict[str, object] = dict.fromkeys(CAPABILITIES, True)
        about = dict(self._options.properties) | {
            "capabilities": capable,
            "connection_name": self._options.container_id,
        }
        self._has_logged_in = True
        try:
            self._wire.send_handshake(ConnectionStartOk(about, mechanism, response, "en_US"))
        except (TypeError, ValueError) as error:
            self._refuse(f"properties that AMQP 0-9-1 has no room for: {error}")

    def _refuse(self, text: str) -> None:
        self._error = LoginRefused(text)
        self._wire.close()

    def _close_received(self, method: ConnectionClose) -> None:
        error: ClientError
        if self._is_open:
            error = error_of(ConnectionClosed, method)
        elif self._has_logged_in and method.reply_code == ACCESS_REFUSED:
            error = error_of(LoginRefused, method)
        else:
            error = error_of(ConnectFailed, method)
        error.may_retry = error.condition not in NO_USE_TRYING
        self._error = error

    def _ended(self, reason: str) -> None:
        error = self._error
        if error is None and not self._channels.is_closing:
            kind = ConnectionLost if self._is_open else ConnectFailed
            error = kind(reason, is_remote=True)
        self._channels.users.clear()
        self._owner.closed(error)
