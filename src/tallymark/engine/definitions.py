"""Topology as JSON: what DEFINITION records hold, one object per change.

    {"op": "vhost", "vhost": v}        where there is one: "default_queue_type": t,
                                       "description": d, "tags": [...]; "protected": true
    {"op": "exchange", "vhost": v, "name": n, "type": t, "durable": true, "auto_delete": b,
     "internal": b, "arguments": {...}}
    {"op": "queue", "vhost": v, "id": i, "name": n, "durable": true, "auto_delete": b,
     "arguments": {...}}
    {"op": "binding", "vhost": v, "source": x, "kind": "queue" | "exchange", "destination": n,
     "key": k, "arguments": {...}}
    {"op": "unbind", ...}              the same fields as binding
    {"op": "delete_exchange", "vhost": v, "name": n}
    {"op": "delete_queue", "vhost": v, "id": i, "name": n}
    {"op": "delete_vhost", "vhost": v}
    {"op": "policy" | "operator_policy", "vhost": v, "name": n, "pattern": p,
     "definition": {...}, "priority": i, "apply_to": a}
    {"op": "delete_policy" | "delete_operator_policy", "vhost": v, "name": n}

Deleting an exchange or queue takes its bindings with it: no unbind is written for those. Queue
names may be used again after a deletion, ids never are.

Argument values keep their types. Only the width of a number on the wire is lost, which does not
affect equality. JSON's own types stand for themselves; other types are an object with one key that
begins with a dollar sign:

    {"$bytes": base64}   {"$decimal": "1.50"}   {"$timestamp": ISO 8601}   {"$float": "nan"}
    {"$table": [[name, value], ...]}    a table in which a name itself begins with a dollar sign
"""

from __future__ import annotations

import json
from typing import Final

from tallymark.engine.arguments import QUEUE_TYPES
from tallymark.engine.errors import BrokerError
from tallymark.engine.exchange import Binding, Exchange, make_exchange
from tallymark.engine.policies import Policy
from tallymark.engine.queue import Queue
from tallymark.engine.table_json import from_json, to_json

VHOST: Final = "vhost"
DELETE_VHOST: Final = "delete_vhost"
EXCHANGE: Final = "exchange"
DELETE_EXCHANGE: Final = "delete_exchange"
QUEUE: Final = "queue"
DELETE_QUEUE: Final = "delete_queue"
PAUSE_QUEUE: Final = "pause_queue"
"""Operation that stops or resumes a queue's deliveries: {"op", "vhost", "id", "name", "paused"}."""
BINDING: Final = "binding"
UNBIND: Final = "unbind"
POLICY: Final = "policy"
DELETE_POLICY: Final = "delete_policy"
OPERATOR_POLICY: Final = "operator_policy"
DELETE_OPERATOR_POLICY: Final = "delete_operator_policy"
POLICY_OPS: Final = (POLICY, DELETE_POLICY, OPERATOR_POLICY, DELETE_OPERATOR_POLICY)
IDS: Final = "ids"
"""Operation of a checkpoint that tells the highest numbers that were given out."""
SUBSCRIPTION: Final = "subscription"
DROP_SUBSCRIPTION: Final = "drop_subscription"
SINK: Final = "sink"
DROP_SINK: Final = "drop_sink"
KINDS: Final = ("queue", "exchange")
"""Kinds of a binding's destination."""
_BINDING: Final = ("vhost", "source", "kind", "destination", "key", "arguments")
_POLICY: Final = ("vhost", "name", "pattern", "definition", "priority", "apply_to")
FIELDS: Final[dict[str, tuple[str, ...]]] = {
    VHOST: ("vhost", "default_queue_type", "description", "tags", "protected"),
    DELETE_VHOST: ("vhost",),
    EXCHANGE: ("vhost", "name", "type", "durable", "auto_delete", "internal", "arguments"),
    DELETE_EXCHANGE: ("vhost", "name"),
    QUEUE: ("vhost", "id", "name", "durable", "auto_delete", "arguments"),
    DELETE_QUEUE: ("vhost", "id", "name"),
    PAUSE_QUEUE: ("vhost", "id", "name", "paused"),
    BINDING: _BINDING,
    UNBIND: _BINDING,
    POLICY: _POLICY,
    DELETE_POLICY: ("vhost", "name"),
    OPERATOR_POLICY: _POLICY,
    DELETE_OPERATOR_POLICY: ("vhost", "name"),
    IDS: ("queue", "owner", "message", "epoch"),
    SUBSCRIPTION: ("epoch", "queue_id", "name", "fence", "limit_rows", "limit_bytes"),
    DROP_SUBSCRIPTION: ("epoch",),
    SINK: ("vhost", "name", "identity", "batch", "forget_ms", "target"),
    DROP_SINK: ("vhost", "name"),
}
"""Fields of every operation in DEFINITION records, besides `op`: those of all versions up to this
one."""
_MAY_LACK: Final = ("default_queue_type", "description", "tags", "protected", "target")
"""Fields that are written only where they say something."""


_to_text: Final = json.JSONEncoder(separators=(",", ":")).encode


def encode(definition: dict[str, object]) -> bytes:
    """Encode a definition as the blob of its record."""
    return _to_text(definition).encode("ascii")


def decode(blob: bytes) -> dict[str, object]:
    """Decode the definition in a blob. Raises ValueError if it is malformed."""
    found: object = json.loads(blob)
    if not isinstance(found, dict) or "op" not in found or "vhost" not in found:
        raise ValueError(f"{blob[:80]!r} is no definition: expected an object with op and vhost")
    return found


def checked(blob: bytes) -> dict[str, object]:
    """Decode what any DEFINITION record says. Raises ValueError for an operation or a field that
    this version does not know, or one that is missing: the next checkpoint would leave it out."""
    found: object = json.loads(blob)
    if not isinstance(found, dict):
        raise ValueError(f"{blob[:80]!r} is no definition: expected an object with op")
    op = text_of(found, "op")
    fields = FIELDS.get(op)
    if fields is None:
        raise ValueError(f"definition op {op!r}: written by a newer version?")
    for field in found:
        if field != "op" and field not in fields:
            raise ValueError(
                f"definition field {field!r} of op {op!r} is not known: written by a newer version?"
            )
    for field in fields:
        if field not in found and field not in _MAY_LACK:
            raise ValueError(f"definition op {op!r} lacks the field {field!r}")
    return found


def text_of(definition: dict[str, object], field: str) -> str:
    """Return a field that must be text. Raises ValueError."""
    value = definition.get(field)
    if not isinstance(value, str):
        raise ValueError(f"definition field {field!r} is {value!r}, expected text")
    return value


def id_of(definition: dict[str, object]) -> int:
    """Return the queue id. Raises ValueError."""
    return number_of(definition, "id")


def number_of(definition: dict[str, object], field: str) -> int:
    """Return a field that must be a whole number. Raises ValueError."""
    value = definition.get(field)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"definition field {field!r} is {value!r}, expected a number")
    return value


def flag_of(definition: dict[str, object], field: str) -> bool:
    return definition.get(field) is True


def arguments_of(definition: dict[str, object]) -> dict[str, object]:
    return table_of(definition, "arguments")


def table_of(definition: dict[str, object], field: str) -> dict[str, object]:
    """Return a field that must be a table; empty when it is missing. Raises ValueError."""
    value = from_json(definition.get(field, {}))
    if not isinstance(value, dict):
        raise ValueError(f"definition field {field!r} is {value!r}, expected a table")
    return value


def optional_text_of(definition: dict[str, object], field: str) -> str:
    """Return a field that must be text; empty when it is missing. Raises ValueError."""
    return text_of(definition, field) if field in definition else ""


def texts_of(definition: dict[str, object], field: str) -> tuple[str, ...]:
    """Return a field that must be a list of texts; empty when it is missing. Raises ValueError."""
    value = definition.get(field, [])
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise ValueError(f"definition field {field!r} is {value!r}, expected a list of texts")
    return tuple([str(text) for text in value])


def vhost_definition(
    vhost: str,
    default_queue_type: str = "",
    description: str = "",
    tags: tuple[str, ...] = (),
    is_protected: bool = False,
) -> bytes:
    """Return the definition of a virtual host. It is written before everything in the virtual host,
    and again when one of these changes."""
    definition: dict[str, object] = {"op": VHOST, "vhost": vhost}
    if default_queue_type:
        definition["default_queue_type"] = default_queue_type
    if description:
        definition["description"] = description
    if tags:
        definition["tags"] = list(tags)
    if is_protected:
        definition["protected"] = True
    return encode(definition)


def vhost_deletion(vhost: str) -> bytes:
    """Return the definition of a virtual host's deletion. It is written after everything in it is
    gone."""
    return encode({"op": DELETE_VHOST, "vhost": vhost})


def of_exchange(vhost: str, exchange: Exchange) -> dict[str, object]:
    return {
        "op": EXCHANGE,
        "vhost": vhost,
        "name": exchange.name,
        "type": exchange.type,
        "durable": exchange.durable,
        "auto_delete": exchange.auto_delete,
        "internal": exchange.internal,
        "arguments": to_json(exchange.arguments),
    }


def of_exchange_deletion(vhost: str, exchange: Exchange) -> dict[str, object]:
    return {"op": DELETE_EXCHANGE, "vhost": vhost, "name": exchange.name}


def of_queue(vhost: str, queue: Queue) -> bytes:
    """Return the encoded definition of a queue. None of it ever changes: it is encoded once."""
    if not queue.definition:
        queue.definition = encode(
            {
                "op": QUEUE,
                "vhost": vhost,
                "id": queue.id,
                "name": queue.name,
                "durable": queue.durable,
                "auto_delete": queue.auto_delete,
                "arguments": to_json(queue.arguments),
            }
        )
    return queue.definition


def of_queue_deletion(vhost: str, queue: Queue) -> dict[str, object]:
    return {"op": DELETE_QUEUE, "vhost": vhost, "id": queue.id, "name": queue.name}


def of_pause(vhost: str, queue: Queue) -> dict[str, object]:
    return {
        "op": PAUSE_QUEUE,
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
        "arguments": to_json(binding.arguments),
    }


def of_policy(vhost: str, policy: Policy, operator: bool) -> dict[str, object]:
    return {
        "op": OPERATOR_POLICY if operator else POLICY,
        "vhost": vhost,
        "name": policy.name,
        "pattern": policy.pattern,
        "definition": to_json(policy.definition),
        "priority": policy.priority,
        "apply_to": policy.apply_to,
    }


def of_policy_deletion(vhost: str, name: str, operator: bool) -> dict[str, object]:
    op = DELETE_OPERATOR_POLICY if operator else DELETE_POLICY
    return {"op": op, "vhost": vhost, "name": name}


def exchange_from(definition: dict[str, object]) -> Exchange:
    """Make an exchange from its definition. Raises ValueError, for an unknown type, too."""
    name = text_of(definition, "name")
    try:
        return make_exchange(
            name,
            text_of(definition, "type"),
            flag_of(definition, "durable"),
            flag_of(definition, "auto_delete"),
            flag_of(definition, "internal"),
            arguments_of(definition),
        )
    except BrokerError as error:
        raise ValueError(f"exchange {name!r}: {error}: written by a newer version?") from error


def queue_from(definition: dict[str, object]) -> Queue:
    """Make a queue from its definition. Raises ValueError, for an unknown type, too."""
    name, arguments = text_of(definition, "name"), arguments_of(definition)
    type = arguments.get("x-queue-type", QUEUE_TYPES[0])
    if type not in QUEUE_TYPES:
        raise ValueError(f"queue {name!r} is of type {type!r}: written by a newer version?")
    return Queue(
        id_of(definition),
        name,
        text_of(definition, "vhost"),
        flag_of(definition, "durable"),
        0,
        flag_of(definition, "auto_delete"),
        arguments,
    )


def binding_from(
    definition: dict[str, object], exchanges: dict[str, Exchange], queues: dict[str, Queue]
) -> Binding | None:
    """Make a binding from its definition; None if one of its ends does not exist. Raises
    ValueError."""
    source = exchanges.get(text_of(definition, "source"))
    destination = text_of(definition, "destination")
    kind = text_of(definition, "kind")
    if kind not in KINDS:
        raise ValueError(f"binding to a {kind!r}: written by a newer version?")
    to_queue = kind == "queue"
    queue = queues.get(destination) if to_queue else None
    exchange = None if to_queue else exchanges.get(destination)
    if source is None or (queue is None and exchange is None):
        return None
    key = text_of(definition, "key")
    return Binding(source, queue, exchange, key, arguments_of(definition))
