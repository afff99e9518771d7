"""Header values with their types, as text both ways: what a table of messages keeps of a header is
enough to publish it again as it was.

    type         value
    boolean      true, false
    int8 uint8 int16 uint16 int32 uint32 int64, decimal
                 digits
    float double digits, NaN, Infinity, -Infinity; 32 and 64 bits
    string       the text; U+FFFD in place of bytes that are not UTF-8
    binary       base64
    timestamp    ISO 8601, of UTC where it has no zone; beyond the year 9999 seconds since 1970
    array table  JSON, whose values have JSON's types when they are published again
    void         null
"""

from __future__ import annotations

import json
from base64 import b64decode
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Final

from tallymark.wire.amqp091 import fields

INTEGERS: Final = {
    "int8": "b", "uint8": "B", "int16": "s", "uint16": "u", "int32": "I", "uint32": "i",
    "int64": "l",
}  # fmt: skip
"""Tag of each type of whole numbers. Tags `l` and `L` are both read as int64."""
_OF_TAG: Final = {**{tag: name for name, tag in INTEGERS.items()}, "L": "int64"}
TYPES: Final = (
    "boolean", *INTEGERS, "float", "double", "decimal", "string", "binary", "timestamp", "array",
    "table", "void",
)  # fmt: skip
_TRUTHS: Final = {"true": True, "false": False}


def type_of(value: object) -> str:
    """Return the type of a field value that the codec has read."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, fields.WireInt):
        return _OF_TAG[value.tag]
    if isinstance(value, fields.Timestamp):
        return "timestamp"
    if isinstance(value, int):
        return "int32" if -0x8000_0000 <= value < 0x8000_0000 else "int64"
    if isinstance(value, fields.Float32):
        return "float"
    for kind, name in (
        (float, "double"), (Decimal, "decimal"), (str, "string"), (bytes, "binary"),
        (list, "array"), (dict, "table"),
    ):  # fmt: skip
        if isinstance(value, kind):
            return name
    return "void"


def field_value(kind: str | None, text: str | None) -> object:
    """Return the field value of a type and a text; whatever the type, null is void.

    Raises ValueError for a text that is no value of its type, and for a type that is none.
    """
    if kind not in TYPES:
        raise ValueError(f"a header of type {kind!r}, expected one of {', '.join(TYPES)}")
    if text is None or kind == "void":
        return None
    try:
        return _value(kind, text)
    except (ValueError, KeyError, InvalidOperation):
        raise ValueError(f"{text!r} is no {kind}") from None


def _value(kind: str, text: str) -> object:
    if kind in INTEGERS:
        return fields.WireInt(int(text), INTEGERS[kind])
    if kind == "timestamp":
        return fields.Timestamp(int(text) if text.isdigit() else _seconds(text))
    if kind in ("array", "table"):
        found = json.loads(text)
        if not isinstance(found, list if kind == "array" else dict):
            raise ValueError(text)
        return found
    if kind == "boolean":
        return _TRUTHS[text]
    if kind == "binary":
        return b64decode(text, validate=True)
    if kind == "decimal":
        return Decimal(text)
    if kind == "float":
        return fields.Float32(text)
    return float(text) if kind == "double" else text


def _seconds(text: str) -> int:
    """Return seconds since 1970 of a time in ISO 8601. Raises ValueError."""
    time = datetime.fromisoformat(text)
    return int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp())
