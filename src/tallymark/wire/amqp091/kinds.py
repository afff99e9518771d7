"""Kinds of fields that methods have [amqp-0.9.1 §4.2.5], each by its name in the specification.

A class of methods.py declares a field by a call: `queue: str = shortstr()`. What the call returns
is the default for `dataclass`, and has the kind with it.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any, Final

from tallymark.wire.amqp091.errors import clip
from tallymark.wire.amqp091.fields import (
    Reader,
    write_long_string,
    write_short_string,
    write_table,
)

KIND: Final = "kind"
"""Key of a declared field's kind in the metadata of the dataclass's field."""
ZERO: Final[dict[str, object]] = {
    "octet": 0,
    "short": 0,
    "long": 0,
    "longlong": 0,
    "bit": False,
    "shortstr": "",
    "text": "",
    "longstr": b"",
}
"""Value of a field that nobody gave, by kind; of a table it is a new dict."""
_SIZES: Final = {"octet": 1, "short": 2, "long": 4, "longlong": 8}


def octet() -> Any:
    return _declared("octet")


def short() -> Any:
    return _declared("short")


def long() -> Any:
    return _declared("long")


def longlong() -> Any:
    return _declared("longlong")


def bit() -> Any:
    return _declared("bit")


def shortstr() -> Any:
    """Declare a string of at most 255 bytes."""
    return _declared("shortstr")


def text() -> Any:
    """Declare a short string for people: cut to fit where it is too long, and read whatever its
    bytes are."""
    return _declared("text")


def longstr() -> Any:
    return _declared("longstr")


def table() -> Any:
    return field(default_factory=dict, metadata={KIND: "table"})


def _declared(kind: str) -> Any:
    return field(default=ZERO[kind], metadata={KIND: kind})


def read_field(reader: Reader, kind: str) -> object:
    """Decode a field that is no bit. Raises WireError."""
    if kind == "shortstr":
        return reader.short_string()
    if kind == "text":
        return reader.text()
    if kind == "table":
        return reader.table()
    if kind == "longstr":
        return reader.long_string()
    return reader.unsigned(_SIZES[kind])


def write_field(out: bytearray, kind: str, value: object) -> None:
    """Append a field that is no bit. Raises ValueError where the value does not fit."""
    if kind == "shortstr":
        assert isinstance(value, str)
        write_short_string(out, value)
    elif kind == "text":
        assert isinstance(value, str)
        write_short_string(out, clip(value))
    elif kind == "table":
        assert isinstance(value, dict)
        write_table(out, value)
    elif kind == "longstr":
        assert isinstance(value, bytes)
        write_long_string(out, value)
    else:
        assert isinstance(value, int)
        size = _SIZES[kind]
        if not 0 <= value < 1 << 8 * size:
            raise ValueError(f"integer {value} does not fit {8 * size} unsigned bits")
        out += value.to_bytes(size, "big")
