"""Classes exchange and queue: permissions, then the engine, then the answer.

The order of checks is RabbitMQ's, so that of two possible refusals a client sees the one it knows.
An answer to a change that outlives a restart waits for the disk; so does one that only found such a
thing already there, since its record may still be on its way.
"""

from __future__ import annotations

from tallymark.bridge.amqp091.channel import Channel, Client
from tallymark.bridge.declarations import check_new_queue
from tallymark.bridge.direct_reply import PREFIX, PSEUDO_QUEUE
from tallymark.bridge.permissions import CONFIGURE, EXCHANGE, QUEUE, READ, WRITE, check_keys
from tallymark.engine.arguments import named
from tallymark.engine.errors import AccessRefused, NotFound
from tallymark.engine.exchange import check_type
from tallymark.wire.amqp091.methods import (
    ExchangeBind,
    ExchangeBindOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    ExchangeDelete,
    ExchangeDeleteOk,
    ExchangeUnbind,
    ExchangeUnbindOk,
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


def without_breaks(name: str) -> str:
    """Return the name without line breaks, as RabbitMQ does."""
    return name.replace("\r", "").replace("\n", "")


def refuse_default(*names: str) -> None:
    """Raise AccessRefused for the default exchange."""
    if "" in names:
        raise AccessRefused("operation not permitted on the default exchange")


# -- exchanges


def declare_exchange(channel: Channel, method: ExchangeDeclare) -> None:
    client = channel.client
    name = without_breaks(method.exchange)
    if not method.passive:
        check_type(method.type)
        refuse_default(name)
        client.access.check(EXCHANGE, name, CONFIGURE)
        alternate = method.arguments.get("alternate-exchange")
        if isinstance(alternate, str) and name not in client.vhost.exchanges:
            client.access.check(EXCHANGE, name, READ)
            client.access.check(EXCHANGE, alternate, WRITE)
    exchange = client.vhost.declare_exchange(
        name,
        method.type,
        method.durable,
        method.auto_delete,
        method.internal,
        method.arguments,
        method.passive,
    )
    if not method.no_wait:
        if exchange.durable and not method.passive:
            client.gate.shut_for(client.broker)
        channel.send(ExchangeDeclareOk())


def delete_exchange(channel: Channel, method: ExchangeDelete) -> None:
    client = channel.client
    name = without_breaks(method.exchange)
    if name and not name.startswith("amq."):
        client.access.check(EXCHANGE, name, CONFIGURE)
    current = client.vhost.exchanges.get(name)
    client.vhost.delete_exchange(name, method.if_unused)
    if not method.no_wait:
        if current is not None and current.durable:
            client.gate.shut_for(client.broker)
        channel.send(ExchangeDeleteOk())


def bind_exchange(channel: Channel, method: ExchangeBind) -> None:
    client = channel.client
    source, destination = _bound_exchanges(
        client, method.source, method.destination, method.routing_key
    )
    client.vhost.bind_exchange(destination, source, method.routing_key, method.arguments)
    if not method.no_wait:
        if _both_durable(client, source, destination):
            client.gate.shut_for(client.broker)
        channel.send(ExchangeBindOk())


def unbind_exchange(channel: Channel, method: ExchangeUnbind) -> None:
    client = channel.client
    source, destination = _bound_exchanges(
        client, method.source, method.destination, method.routing_key
    )
    durable = _both_durable(client, source, destination)
    client.vhost.unbind_exchange(destination, source, method.routing_key, method.arguments)
    if not method.no_wait:
        if durable:
            client.gate.shut_for(client.broker)
        channel.send(ExchangeUnbindOk())


def _bound_exchanges(client: Client, source: str, destination: str, key: str) -> tuple[str, str]:
    """Return the names as stored, after a check that both ends may be bound."""
    source = without_breaks(source)
    destination = without_breaks(destination)
    client.access.check(EXCHANGE, destination, WRITE)
    refuse_default(destination, source)
    client.access.check(EXCHANGE, source, READ)
    check_keys(client.access, client.vhost.exchanges.get(source), (key,), READ)
    return source, destination


def _both_durable(client: Client, source: str, destination: str) -> bool:
    exchanges = client.vhost.exchanges
    first = exchanges.get(source)
    second = exchanges.get(destination)
    return first is not None and second is not None and first.durable and second.durable


# -- queues


def declare_queue(channel: Channel, method: QueueDeclare) -> None:
    client = channel.client
    name = without_breaks(method.queue)
    if name.startswith(PSEUDO_QUEUE):
        _declare_pseudo_queue(channel, method, name)
        return
    arguments = method.arguments
    if not method.passive:
        _check_declaration(client, name, method)
        arguments = client.vhost.with_type(
            name, method.durable, method.exclusive, method.auto_delete, arguments
        )
    queue = client.broker.declare_queue(
        client.connection,
        name,
        method.durable,
        method.exclusive,
        method.auto_delete,
        arguments,
        method.passive,
    )
    channel.current_queue = queue.name
    if not method.no_wait:
        if queue.stored and not method.passive:
            client.gate.shut_for(client.broker)
        channel.send(QueueDeclareOk(queue.name, queue.ready, len(queue.consumers)))


def _check_declaration(client: Client, name: str, method: QueueDeclare) -> None:
    if name.startswith("amq.") and name not in client.vhost.queues:
        raise AccessRefused(f"queue name '{name}' contains reserved prefix 'amq.*'")
    # Patterns of permissions treat all names that the broker may choose alike.
    asked = name or f"amq.gen-{client.random_name()}"
    client.access.check(QUEUE, asked, CONFIGURE)
    if name not in client.vhost.queues:
        check_new_queue(client.access, client.vhost, asked, method.arguments)


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
    client = channel.client
    key = _binding_key(channel, method.queue, method.routing_key)
    name, source = _bound_queue(channel, method.queue, method.exchange, key)
    client.vhost.bind_queue(name, source, key, method.arguments, client.connection.id)
    if not method.no_wait:
        if _binding_stored(client, name, source):
            client.gate.shut_for(client.broker)
        channel.send(QueueBindOk())


def unbind_queue(channel: Channel, method: QueueUnbind) -> None:
    client = channel.client
    key = _binding_key(channel, method.queue, method.routing_key)
    name, source = _bound_queue(channel, method.queue, method.exchange, key)
    durable = _binding_stored(client, name, source)
    client.vhost.unbind_queue(name, source, key, method.arguments, client.connection.id)
    if durable:
        client.gate.shut_for(client.broker)
    channel.send(QueueUnbindOk())


def _binding_key(channel: Channel, queue: str, key: str) -> str:
    """Return the binding key. If neither queue nor key is given, both are the current queue's name
    [amqp-0.9.1 queue.bind]."""
    return key if queue or key else channel.queue_name("")


def _bound_queue(channel: Channel, queue: str, exchange: str, key: str) -> tuple[str, str]:
    """Return the names of queue and exchange as stored, after a check that both ends may be
    bound."""
    access = channel.client.access
    name = without_breaks(channel.queue_name(queue))
    source = without_breaks(exchange)
    access.check(QUEUE, name, WRITE)
    refuse_default(source)
    access.check(EXCHANGE, source, READ)
    check_keys(access, channel.client.vhost.exchanges.get(source), (key,), READ)
    return name, source


def _binding_stored(client: Client, queue: str, exchange: str) -> bool:
    found = client.vhost.queues.get(queue)
    source = client.vhost.exchanges.get(exchange)
    return found is not None and source is not None and found.stored and source.durable


def purge_queue(channel: Channel, method: QueuePurge) -> None:
    client = channel.client
    name = channel.queue_name(method.queue)
    client.access.check(QUEUE, name, READ)
    count = client.broker.purge(client.vhost.queue(name, client.connection.id))
    if not method.no_wait:
        channel.send(QueuePurgeOk(count))


def delete_queue(channel: Channel, method: QueueDelete) -> None:
    client = channel.client
    name = without_breaks(channel.queue_name(method.queue))
    client.access.check(QUEUE, name, CONFIGURE)
    count = 0
    stored = False
    current = client.vhost.queues.get(name)
    if current is not None:
        stored = current.stored
        count = client.broker.delete_queue(
            client.connection, name, method.if_unused, method.if_empty
        )
    if not method.no_wait:
        if stored:
            client.gate.shut_for(client.broker)
        channel.send(QueueDeleteOk(count))
