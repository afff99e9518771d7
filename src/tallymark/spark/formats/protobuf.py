"""Protobuf: bodies by a message of a descriptor set, as `protoc --include_imports
--descriptor_set_out=FILE` makes it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from tallymark.spark.formats.decoding import NotInstalled, Read

TIMESTAMP: Final = "google.protobuf.Timestamp"
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SCALAR: Final = {
    1: "double", 2: "float", 3: "bigint", 4: "decimal(20,0)", 5: "int", 6: "decimal(20,0)",
    7: "bigint", 8: "boolean", 9: "string", 12: "binary", 13: "bigint", 14: "string", 15: "int",
    16: "bigint", 17: "int", 18: "bigint",
}  # fmt: skip
"""Type of a field in a descriptor, and in Spark's words. Enums are their names."""


def message_of(file: str, name: str) -> Any:
    """Return the class of a message. Raises ValueError, NotInstalled."""
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
        from google.protobuf.message import DecodeError
    except ImportError:
        raise NotInstalled(
            "format protobuf needs: pip install 'tallymark[formats]', on every machine"
        ) from None
    pool = descriptor_pool.DescriptorPool()
    try:
        found = descriptor_pb2.FileDescriptorSet.FromString(Path(file).read_bytes())
        for one in found.file:
            pool.Add(one)
        return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
    except (OSError, DecodeError, KeyError, TypeError) as error:
        raise ValueError(
            f"messageName={name!r} of descriptorFile={file!r}: {type(error).__name__}: {error}"
        ) from None


def ddl_of(message: Any) -> str:
    """Return a message's type in Spark's words. Raises ValueError: it is within itself."""
    return _struct(message.DESCRIPTOR, ())


def read_protobuf(message: Any) -> Read:
    """message: see message_of."""
    descriptor = message.DESCRIPTOR
    return lambda body: _values(message.FromString(body), descriptor)


def _struct(descriptor: Any, within: tuple[str, ...]) -> str:
    name = descriptor.full_name
    if name == TIMESTAMP:
        return "timestamp"
    if name in within:
        raise ValueError(f"messageName: {name} is within itself, which no table can be")
    fields = [f"`{one.name}`:{_field(one, (*within, name))}" for one in descriptor.fields]
    return f"struct<{','.join(fields)}>"


def _field(field: Any, within: tuple[str, ...]) -> str:
    if _is_map(field):
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        return f"map<{_one(key, within)},{_one(value, within)}>"
    one = _one(field, within)
    return f"array<{one}>" if field.is_repeated else one


def _one(field: Any, within: tuple[str, ...]) -> str:
    return _struct(field.message_type, within) if field.message_type else _SCALAR[field.type]


def _is_map(field: Any) -> bool:
    message = field.message_type
    return bool(message and message.GetOptions().map_entry)


def _values(message: Any, descriptor: Any) -> dict[str, Any]:
    """The values by name; a field that has presence and is absent is null."""
    found: dict[str, Any] = {}
    for field in descriptor.fields:
        value = getattr(message, field.name)
        if _is_map(field):
            of_value = field.message_type.fields_by_name["value"]
            found[field.name] = {key: _value(of_value, value[key]) for key in value}
        elif field.is_repeated:
            found[field.name] = [_value(field, one) for one in value]
        elif field.has_presence and not message.HasField(field.name):
            found[field.name] = None
        else:
            found[field.name] = _value(field, value)
    return found


def _value(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        if field.message_type.full_name == TIMESTAMP:
            return EPOCH + timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)
        return _values(value, field.message_type)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known is not None else str(value)
    return value
