"""Declaring and deleting over AMQP 0-9-1: a channel of its own, because a refusal closes it.

One request is under way at a time: what stands behind a refused one would go with the channel.
"""

from __future__ import annotations

from typing import final

from tallymark.client.adapter import ManagementPort
from tallymark.client.amqp091.channel import Channels, ChannelUser, error_of
from tallymark.client.errors import ClientError, NotPossible, RequestRefused
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
from tallymark.wire.amqp091.client import ClientChannel
from tallymark.wire.amqp091.methods import (
    ChannelClose,
    ChannelFlow,
    ChannelOpenOk,
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
                self._answer(NotPossible(f"{self._first}: {error}"))
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
