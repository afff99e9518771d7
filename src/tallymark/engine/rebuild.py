"""Exchanges, queues and bindings from their definitions, and the definitions of all of them."""

from __future__ import annotations

from collections.abc import Iterable

from tallymark.engine import definitions
from tallymark.engine.exchange import Binding, Exchange, make_exchange
from tallymark.engine.policies import Policy
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
    found = [of_exchange(vhost, one) for one in exchanges if one.durable]
    for queue in queues:
        if queue.durable:
            found.append(of_queue(vhost, queue))
            if queue.paused:
                found.append(of_pause(vhost, queue))
    found += [of_binding(definitions.BINDING, vhost, one) for one in bindings if one.durable]
    return [definitions.encode(one) for one in found]


def of_exchange(vhost: str, exchange: Exchange) -> dict[str, object]:
    return {
        "op": definitions.EXCHANGE,
        "vhost": vhost,
        "name": exchange.name,
        "type": exchange.type,
        "durable": exchange.durable,
        "auto_delete": exchange.auto_delete,
        "internal": exchange.internal,
        "arguments": definitions.to_json(exchange.arguments),
    }


def of_exchange_deletion(vhost: str, exchange: Exchange) -> dict[str, object]:
    return {"op": definitions.DELETE_EXCHANGE, "vhost": vhost, "name": exchange.name}


def of_queue(vhost: str, queue: Queue) -> dict[str, object]:
    return {
        "op": definitions.QUEUE,
        "vhost": vhost,
        "id": queue.id,
        "name": queue.name,
        "durable": queue.durable,
        "auto_delete": queue.auto_delete,
        "arguments": definitions.to_json(queue.arguments),
    }


def of_queue_deletion(vhost: str, queue: Queue) -> dict[str, object]:
    return {"op": definitions.DELETE_QUEUE, "vhost": vhost, "id": queue.id, "name": queue.name}


def of_pause(vhost: str, queue: Queue) -> dict[str, object]:
    return {
        "op": definitions.PAUSE_QUEUE,
        "vhost": vhost,
        "id": queue.id,
        "name": queue.name,
        "paused": queue.paused,
    }


def of_binding(op: str, vhost: str, binding: Binding) -> dict[str, object]:
    """Return the definition of a binding or unbinding. op: BINDING or UNBIND."""
    return {
        "op": op,
        "vhost": vhost,
        "source": binding.source.name,
        "kind": binding.kind(),
        "destination": binding.destination(),
        "key": binding.key,
        "arguments": definitions.to_json(binding.arguments),
    }


def of_policy(vhost: str, policy: Policy, operator: bool) -> dict[str, object]:
    return {
        "op": definitions.OPERATOR_POLICY if operator else definitions.POLICY,
        "vhost": vhost,
        "name": policy.name,
        "pattern": policy.pattern,
        "definition": definitions.to_json(policy.definition),
        "priority": policy.priority,
        "apply_to": policy.apply_to,
    }


def of_policy_deletion(vhost: str, name: str, operator: bool) -> dict[str, object]:
    op = definitions.DELETE_OPERATOR_POLICY if operator else definitions.DELETE_POLICY
    return {"op": op, "vhost": vhost, "name": name}
