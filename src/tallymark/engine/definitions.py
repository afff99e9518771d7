"""Topology as JSON: what DEFINITION records hold, one object per change.

    {"op": "vhost", "vhost": v}        "default_queue_type": t where there is one
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
from base64 import b64decode, b64encode
from datetime import datetime
from decimal import Decimal
from math import isfinite
from typing import Final

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


def to_json(value: object) -> object:
    """Convert a table value to one that JSON can express. Raises TypeError for a type that no table
    holds."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if isfinite(value) else {"$float": str(float(value))}
    if isinstance(value, (bytes, bytearray)):
        return {"$bytes": b64encode(value).decode("ascii")}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    if isinstance(value, dict):
        table: dict[str, object] = {str(name): to_json(item) for name, item in value.items()}
        for name in table:
            if name.startswith("$"):
                return {"$table": [[key, table[key]] for key in sorted(table)]}
        return table
    if isinstance(value, Decimal):
        return {"$decimal": str(value)}
    if isinstance(value, datetime):
        return {"$timestamp": value.isoformat()}
    raise TypeError(f"argument of type {type(value).__name__}, expected a table value")


def from_json(value: object) -> object:
    """Decode a value from JSON; the inverse of to_json. Raises ValueError for an unknown tag."""
    if isinstance(value, list):
        return [from_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        for name, held in value.items():
            if name.startswith("$"):
                return _untagged(name, held)
    return {str(name): from_json(item) for name, item in value.items()}


def _untagged(tag: str, held: object) -> object:
    if tag == "$table" and isinstance(held, list):
        return {str(pair[0]): from_json(pair[1]) for pair in held}
    if isinstance(held, str):
        if tag == "$bytes":
            return b64decode(held)
        if tag == "$float":
            return float(held)
        if tag == "$decimal":
            return Decimal(held)
        if tag == "$timestamp":
            return datetime.fromisoformat(held)
    raise ValueError(f"value tagged {tag!r} in a definition: written by a newer version?")


def canonical(value: object) -> str:
    """Return one text per value, with types distinguished and table order ignored, for use as a
    key."""
    return json.dumps(to_json(value), sort_keys=True, separators=(",", ":"))


def encode(definition: dict[str, object]) -> bytes:
    """Encode a definition as the blob of its record."""
    return json.dumps(definition, separators=(",", ":")).encode("ascii")


def decode(blob: bytes) -> dict[str, object]:
    """Decode the definition in a blob. Raises ValueError if it is malformed."""
    found: object = json.loads(blob)
    if not isinstance(found, dict) or "op" not in found or "vhost" not in found:
        raise ValueError(f"{blob[:80]!r} is no definition: expected an object with op and vhost")
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


def words_of(definition: dict[str, object], field: str) -> str:
    """Return a field that must be text; empty when it is missing. Raises ValueError."""
    return text_of(definition, field) if field in definition else ""


def vhost_definition(vhost: str, default_queue_type: str = "") -> bytes:
    """Return the definition of a virtual host. It is written before everything in the virtual host,
    and again when the default queue type changes."""
    definition: dict[str, object] = {"op": VHOST, "vhost": vhost}
    if default_queue_type:
        definition["default_queue_type"] = default_queue_type
    return encode(definition)


def vhost_deletion(vhost: str) -> bytes:
    """Return the definition of a virtual host's deletion. It is written after everything in it is
    gone."""
    return encode({"op": DELETE_VHOST, "vhost": vhost})
