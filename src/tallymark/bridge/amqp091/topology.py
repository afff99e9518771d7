"""Classes exchange and queue: methods become operations, and their results answers.

The answer to an operation whose result survives a restart waits for the disk, and with it all later
output. Line breaks are taken out of names, as RabbitMQ does.
"""

from __future__ import annotations

from tallymark.bridge.amqp091.channel import Channel, Client
from tallymark.bridge.direct_reply import PREFIX, PSEUDO_QUEUE
from tallymark.bridge.operations import Operations
from tallymark.bridge.permissions import EXCHANGE, QUEUE
from tallymark.engine.errors import NotFound
from tallymark.engine.names import cleaned, named
from tallymark.wire.amqp091.methods import (
    ExchangeBind,
    ExchangeBindOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    ExchangeDelete,
    ExchangeDeleteOk,
    ExchangeUnbind,
    ExchangeUnbindOk,
    Method,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
    QueuePurge,
    QueuePurgeOk,
    QueueUnbind,
    QueueUnbindOk,
)


def operations_of(client: Client) -> Operations:
    return Operations(client.broker, client.connection, client.access)


# -- exchanges


def declare_exchange(channel: Channel, method: ExchangeDeclare) -> None:
    operations = operations_of(channel.client)
    lasts = False
    if method.passive:
        operations.use_exchange(method.exchange)
    else:
        lasts = operations.declare_exchange(
            method.exchange,
            method.type,
            method.durable,
            method.auto_delete,
            method.internal,
            method.arguments,
        ).lasts
    if not method.no_wait:
        _answer(channel, ExchangeDeclareOk(), lasts)


def delete_exchange(channel: Channel, method: ExchangeDelete) -> None:
    done = operations_of(channel.client).delete_exchange(method.exchange, method.if_unused)
    if not method.no_wait:
        _answer(channel, ExchangeDeleteOk(), done.lasts)


def bind_exchange(channel: Channel, method: ExchangeBind) -> None:
    done = operations_of(channel.client).bind(
        method.source, EXCHANGE, method.destination, method.routing_key, method.arguments
    )
    if not method.no_wait:
        _answer(channel, ExchangeBindOk(), done.lasts)


def unbind_exchange(channel: Channel, method: ExchangeUnbind) -> None:
    done = operations_of(channel.client).unbind(
        method.source, EXCHANGE, method.destination, method.routing_key, method.arguments
    )
    if not method.no_wait:
        _answer(channel, ExchangeUnbindOk(), done.lasts)


# -- queues


def declare_queue(channel: Channel, method: QueueDeclare) -> None:
    name = cleaned(method.queue)
    if name.startswith(PSEUDO_QUEUE):
        _declare_pseudo_queue(channel, method, name)
        return
    operations = operations_of(channel.client)
    if method.passive:
        queue = operations.use_queue(name)
    else:
        queue = operations.declare_queue(
            name, method.durable, method.exclusive, method.auto_delete, method.arguments
        ).queue
    channel.current_queue = queue.name
    if not method.no_wait:
        answer = QueueDeclareOk(queue.name, queue.ready, len(queue.consumers))
        _answer(channel, answer, queue.stored and not method.passive)


def _declare_pseudo_queue(channel: Channel, method: QueueDeclare, name: str) -> None:
    """Answer whether the client that waits for replies is still there
    [rabbitmq direct reply-to]."""
    client = channel.client
    if name != PSEUDO_QUEUE and (not name.startswith(PREFIX) or client.replies.find(name) is None):
        raise NotFound(f"no {named(QUEUE, name, client.vhost.name)}")
    channel.current_queue = name
    if not method.no_wait:
        channel.send(QueueDeclareOk(name, 0, 1))


def bind_queue(channel: Channel, method: QueueBind) -> None:
    key = _binding_key(channel, method.queue, method.routing_key)
    done = operations_of(channel.client).bind(
        method.exchange, QUEUE, channel.queue_name(method.queue), key, method.arguments
    )
    if not method.no_wait:
        _answer(channel, QueueBindOk(), done.lasts)


def unbind_queue(channel: Channel, method: QueueUnbind) -> None:
    key = _binding_key(channel, method.queue, method.routing_key)
    done = operations_of(channel.client).unbind(
        method.exchange, QUEUE, channel.queue_name(method.queue), key, method.arguments
    )
    _answer(channel, QueueUnbindOk(), done.lasts)


def _binding_key(channel: Channel, queue: str, key: str) -> str:
    """Return the binding key. If neither queue nor key is given, both are the current queue's name
    [amqp-0.9.1 queue.bind]."""
    return key if queue or key else channel.queue_name("")


def purge_queue(channel: Channel, method: QueuePurge) -> None:
    count = operations_of(channel.client).purge_queue(channel.queue_name(method.queue))
    if not method.no_wait:
        channel.send(QueuePurgeOk(count))


def delete_queue(channel: Channel, method: QueueDelete) -> None:
    done = operations_of(channel.client).delete_queue(
        channel.queue_name(method.queue), method.if_unused, method.if_empty
    )
    if not method.no_wait:
        _answer(channel, QueueDeleteOk(done.count), done.lasts)


def _answer(channel: Channel, method: Method, lasts: bool) -> None:
    """Send an answer; lasts: when the disk has what it reports."""
    if lasts:
        client = channel.client
        client.gate.shut_for(client.broker)
    channel.send(method)
