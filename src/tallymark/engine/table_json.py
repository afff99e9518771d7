"""Table values as JSON, with their types; and one text per value, for use as a key."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from datetime import datetime
from decimal import Decimal
from math import isfinite


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
