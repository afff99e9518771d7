"""Property filters [filtex §4]: a map of fields and the values they must have, all of them.

    properties-filter                fields of the properties section, by the standard's names
    application-properties-filter    keys of the application properties

A string may begin with a modifier: `&p:` asks for a prefix, `&s:` for a suffix, `&&` stands for an
ordinary `&`; another `&` is refused. A value of null asks nothing of a field of the properties, and
of an application property that it is there.
"""

from __future__ import annotations

from typing import Final

from tallymark.bridge.filters.errors import FilterError, shown
from tallymark.bridge.filters.fields import APPLICATION, PROPERTIES, Fields
from tallymark.bridge.filters.nodes import (
    Begins,
    Ends,
    Equals,
    FieldValue,
    IsNull,
    Node,
    Not,
)
from tallymark.bridge.filters.values import OPAQUE, bytes_of, plain

MOST_ENTRIES: Final = 16
"""Maximum number of entries in one property filter [filtex §7.1, as RabbitMQ]."""
LONGEST: Final = 4096
"""Maximum size of a requested string or binary, bytes."""
_IDS: Final = ("message-id", "correlation-id")
_BINARY: Final = ("user-id",)
_TIMES: Final = ("absolute-expiry-time", "creation-time", "group-sequence")


def property_filter(value: object, fields: Fields) -> list[Node]:
    """Return the conditions of a properties-filter. Raises FilterError."""
    found: list[Node] = []
    for key, wanted in _entries(value):
        slot = fields.slot(PROPERTIES, key)
        if wanted is not None:
            _check_type(key.replace("_", "-"), wanted)
            found.append(_condition(slot, key, wanted))
    return found


def application_property_filter(value: object, fields: Fields) -> list[Node]:
    """Return the conditions of an application-properties-filter. Raises FilterError."""
    found: list[Node] = []
    for key, wanted in _entries(value):
        slot = fields.slot(APPLICATION, key)
        if wanted is None:
            found.append(Not(IsNull(FieldValue(slot))))
        else:
            found.append(_condition(slot, key, wanted))
    return found


def _entries(value: object) -> list[tuple[str, object]]:
    if not isinstance(value, dict):
        raise FilterError(f"{shown(value)} found, expected a map")
    if len(value) > MOST_ENTRIES:
        raise FilterError(f"{len(value)} entries, at most {MOST_ENTRIES} are taken")
    found: list[tuple[str, object]] = []
    for key, wanted in value.items():
        if not isinstance(key, str):
            raise FilterError(f"the key {shown(key)}, expected a name")
        plain_value = plain(wanted)
        if plain_value is OPAQUE:
            raise FilterError(f"'{key}' is {shown(wanted)}, expected a value of a simple type")
        found.append((str(key), plain_value))
    return found


def _check_type(key: str, wanted: object) -> None:
    """Check that the value has the type of the field of properties, the only type it can have
    [amqp-1.0 §3.2.4]."""
    number = isinstance(wanted, int) and not isinstance(wanted, bool)
    if key in _IDS:
        if number or bytes_of(wanted) is not None:
            return
        expected = "a string, binary, ulong or uuid"
    elif key in _TIMES:
        if number:
            return
        expected = "an integer" if key == "group-sequence" else "a timestamp"
    else:
        if isinstance(wanted, str) or (key in _BINARY and isinstance(wanted, bytes)):
            return
        expected = "binary" if key in _BINARY else "a string"
    raise FilterError(f"'{key}' is {shown(wanted)}, expected {expected}")


def _condition(slot: int, key: str, wanted: object) -> Node:
    raw = bytes_of(wanted)
    if raw is not None and len(raw) > LONGEST:
        raise FilterError(f"'{key}' asks for {len(raw)} bytes, at most {LONGEST} are compared")
    if not isinstance(wanted, str) or not wanted.startswith("&"):
        return Equals(slot, wanted)
    if wanted.startswith("&p:"):
        return Begins(slot, wanted[3:].encode("utf-8", "surrogatepass"))
    if wanted.startswith("&s:"):
        return Ends(slot, wanted[3:].encode("utf-8", "surrogatepass"))
    if wanted.startswith("&&"):
        return Equals(slot, wanted[1:])
    raise FilterError(
        f"'{key}' is {shown(wanted)}, expected &p:, &s: or && where a string begins with &"
    )
