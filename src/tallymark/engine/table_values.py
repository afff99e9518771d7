"""Values of a protocol's table: the names of their types, how texts show them, and when two are
equal.

A value is what such a table can hold: None, bool, int, float, str, bytes, Decimal, datetime, list
and dict of these. Types are named as in AMQP 0-9-1 tables. Texts show values as RabbitMQ does,
because tests of its clients compare them.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Final

TAGGED_TYPES: Final = {
    "b": "byte",
    "B": "unsignedbyte",
    "s": "short",
    "u": "unsignedshort",
    "i": "unsignedint",
    "l": "long",
    "L": "long",
    "f": "float",
    "T": "timestamp",
}
"""Type names by the `tag` that a protocol's numbers of unusual width, and its times, may have."""


def wire_bytes(text: str) -> bytes:
    """Return the bytes a protocol's string was decoded from. Bytes that are not UTF-8 were decoded
    by surrogateescape."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def type_name(value: object) -> str:
    """Return the AMQP 0-9-1 name of a value's type."""
    if value is None:
        return "void"
    if isinstance(value, bool):
        return "bool"
    # Asked before the value is known to be an int: compiled code turns it into a plain one there.
    tagged = TAGGED_TYPES.get(str(getattr(value, "tag", "")))
    if isinstance(value, int):
        return tagged or ("signedint" if -(1 << 31) <= value < 1 << 31 else "long")
    if isinstance(value, float):
        return tagged or "double"
    if isinstance(value, str):
        return "longstr"
    if isinstance(value, (bytes, bytearray)):
        return "binary"
    if isinstance(value, dict):
        return "table"
    if isinstance(value, (list, tuple)):
        return "array"
    if isinstance(value, Decimal):
        return "decimal"
    if isinstance(value, datetime):
        return "timestamp"
    return type(value).__name__


def erlang_term(value: object) -> str:
    """Return a value, as JSON has it, in the form in which RabbitMQ prints terms in its texts."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'<<"{value}">>' if value else "<<>>"
    if isinstance(value, (bytes, bytearray)):
        return erlang_term(bytes(value).decode("utf-8", "replace"))
    if isinstance(value, (list, tuple)):
        return "[" + ",".join([erlang_term(item) for item in value]) + "]"
    if isinstance(value, dict):
        fields = [f"{erlang_term(name)} => {erlang_term(item)}" for name, item in value.items()]
        return "#{" + ",".join(fields) + "}"
    if isinstance(value, Decimal) and value.is_finite():
        _, digits, exponent = value.as_tuple()
        return f"{{{-int(exponent)},{int(''.join(map(str, digits)))}}}"
    return "undefined" if value is None else str(value)


def table_term(value: object) -> str:
    """Return a value of a table as erlang_term does, but with the types of what it contains."""
    if isinstance(value, (list, tuple)):
        items = [f"{{{type_name(item)},{table_term(item)}}}" for item in value]
        return "[" + ",".join(items) + "]"
    if isinstance(value, dict):
        fields = [
            f"{{{erlang_term(name)},{type_name(item)},{table_term(item)}}}"
            for name, item in value.items()
        ]
        return "[" + ",".join(fields) + "]"
    return erlang_term(value)


def shown(value: object) -> str:
    """Return a value between quotes, as RabbitMQ shows it in texts about inequivalent arguments."""
    if isinstance(value, (bytes, bytearray)):
        value = bytes(value).decode("utf-8", "replace")
    return f"'{value}'" if isinstance(value, str) else f"'{table_term(value)}'"


def equal_values(a: object, b: object) -> bool:
    """Return whether two table values are equal: numbers by value (1 equals 1.0), text by its bytes
    whether string or binary, booleans only with booleans, containers by their items."""
    if isinstance(a, str) and isinstance(b, str):
        return a == b
    if isinstance(a, bool) or isinstance(b, bool):
        return isinstance(a, bool) and isinstance(b, bool) and a == b
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return a == b
    if isinstance(a, (str, bytes, bytearray)) and isinstance(b, (str, bytes, bytearray)):
        raw_a = wire_bytes(a) if isinstance(a, str) else bytes(a)
        raw_b = wire_bytes(b) if isinstance(b, str) else bytes(b)
        return raw_a == raw_b
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        if len(a) != len(b):
            return False
        return all(equal_values(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict) and isinstance(b, dict):
        if len(a) != len(b):
            return False
        for name, value in a.items():
            if name not in b or not equal_values(value, b[name]):
                return False
        return True
    return type(a) is type(b) and a == b
