"""Exchanges, queues and bindings from their definitions, and the definitions of all of them."""

from __future__ import annotations

from collections.abc import Iterable

from tallymark.engine import definitions
from tallymark.engine.exchange import Binding, Exchange, make_exchange
from tallymark.engine.queue import Queue


def exchange_from(definition: dict[str, object]) -> Exchange:
    """Make an exchange from its definition. Raises ValueError, InvalidCommand (type)."""
    return make_exchange(
        definitions.text_of(definition, "name"),
        definitions.text_of(definition, "type"),
        definitions.flag_of(definition, "durable"),
        definitions.flag_of(definition, "auto_delete"),
        definitions.flag_of(definition, "internal"),
        definitions.arguments_of(definition),
    )


def queue_from(definition: dict[str, object]) -> Queue:
    """Make a queue from its definition. Raises ValueError."""
    return Queue(
        definitions.id_of(definition),
        definitions.text_of(definition, "name"),
        definitions.text_of(definition, "vhost"),
        definitions.flag_of(definition, "durable"),
        0,
        definitions.flag_of(definition, "auto_delete"),
        definitions.arguments_of(definition),
    )


def binding_from(
    definition: dict[str, object], exchanges: dict[str, Exchange], queues: dict[str, Queue]
) -> Binding | None:
    """Make a binding from its definition; None if one of its ends does not exist. Raises
    ValueError."""
    source = exchanges.get(definitions.text_of(definition, "source"))
    destination = definitions.text_of(definition, "destination")
    to_queue = definitions.text_of(definition, "kind") == "queue"
    queue = queues.get(destination) if to_queue else None
    exchange = None if to_queue else exchanges.get(destination)
    if source is None or (queue is None and exchange is None):
        return None
    key = definitions.text_of(definition, "key")
    return Binding(source, queue, exchange, key, definitions.arguments_of(definition))


def durable_definitions(
    vhost: str,
    exchanges: Iterable[Exchange],
    queues: Iterable[Queue],
    bindings: Iterable[Binding],
) -> list[bytes]:
    """Return the definitions of everything that survives a restart, in an order in which they can
    be applied."""
    found = [definitions.of_exchange(vhost, one) for one in exchanges if one.durable]
    for queue in queues:
        if queue.durable:
            found.append(definitions.of_queue(vhost, queue))
            if queue.paused:
                found.append(definitions.of_pause(vhost, queue))
    found += [
        definitions.of_binding(definitions.BINDING, vhost, one) for one in bindings if one.durable
    ]
    return [definitions.encode(one) for one in found]
