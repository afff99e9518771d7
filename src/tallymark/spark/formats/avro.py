"""Avro: bodies by the table's own schema, or by the one that a schema registry has under the number
in front of each body.

The registry's wire format is a zero, the schema's number in four bytes (big-endian), and the
message in Avro's binary encoding without a file's header. A body whose number the registry does not
have is corrupt: any body that begins with a zero has such a number. A registry that cannot be asked
fails the task.
"""

from __future__ import annotations

import json
import struct
import time
import urllib.request
from collections.abc import Callable
from http.client import NOT_FOUND
from io import BytesIO
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError
from urllib.parse import unquote, urlsplit

from tallymark.spark.formats.decoding import Corrupt, NotInstalled, Read

MAGIC: Final = 0
HEAD: Final = struct.Struct(">BI")
ANSWER_S: Final = 30
NO_SUCH_SCHEMA: Final = 40403
"""Code by which a registry says that it has no such schema. A proxy, or a registry that knows no
such path, answers 404 without it."""
MISSING_S: Final = 10.0
"""Seconds for which a number that no schema has is not asked for again."""
MOST_MISSING: Final = 10_000
TIMES_OF_DAY: Final = ("time-millis", "time-micros")
"""Logical types that stay numbers: milliseconds, microseconds since midnight."""
_PRIMITIVE: Final = {
    "boolean": "boolean",
    "int": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "bytes": "binary",
    "string": "string",
    "enum": "string",
    "fixed": "binary",
}
_LOGICAL: Final = {
    "timestamp-millis": "timestamp",
    "timestamp-micros": "timestamp",
    "local-timestamp-millis": "timestamp",
    "local-timestamp-micros": "timestamp",
    "date": "date",
    "uuid": "string",
}


def parsed(text: str) -> Any:
    """Return an Avro schema as fastavro knows it. Raises ValueError, NotInstalled."""
    _fastavro()
    from fastavro.schema import SchemaParseException, UnknownType, parse_schema

    try:
        return parse_schema(json.loads(text, object_hook=_with_numbers))
    except (ValueError, KeyError, TypeError, SchemaParseException, UnknownType) as error:
        raise ValueError(f"avroSchema: {type(error).__name__}: {error}") from None


def _with_numbers(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a part of a schema without the name of a time of day, which fastavro would make an
    object of that no column takes."""
    if schema.get("logicalType") in TIMES_OF_DAY:
        return {name: value for name, value in schema.items() if name != "logicalType"}
    return schema


def ddl_of(schema: Any) -> str:
    """Return the type of an Avro schema in Spark's words.

    >>> ddl_of({"type": "record", "fields": [{"name": "id", "type": ["null", "long"]}]})
    'struct<`id`:bigint>'

    Raises ValueError: a union of several types, or a type within itself.
    """
    named: dict[str, Any] = {}
    return _ddl(schema, named, ())


def _ddl(schema: Any, named: dict[str, Any], within: tuple[str, ...]) -> str:
    if isinstance(schema, list):
        some = [one for one in schema if one != "null"]
        if len(some) != 1:
            raise ValueError(f"avroSchema: a union of {some}, expected one type, or it and null")
        return _ddl(some[0], named, within)
    if isinstance(schema, str):
        if schema in _PRIMITIVE:
            return _PRIMITIVE[schema]
        if schema in within or schema not in named:
            raise ValueError(f"avroSchema: {schema!r} is within itself, or is not known")
        return _ddl(named[schema], named, within)
    kind = schema["type"]
    if isinstance(kind, dict | list):
        return _ddl(kind, named, within)
    if "name" in schema:
        named[schema["name"]] = schema
        within = (*within, schema["name"])
    logical = schema.get("logicalType")
    if logical == "decimal":
        return f"decimal({schema['precision']},{schema.get('scale', 0)})"
    if logical in _LOGICAL:
        return _LOGICAL[logical]
    if kind == "record":
        fields = [f"`{one['name']}`:{_ddl(one['type'], named, within)}" for one in schema["fields"]]
        return f"struct<{','.join(fields)}>"
    if kind == "array":
        return f"array<{_ddl(schema['items'], named, within)}>"
    if kind == "map":
        return f"map<string,{_ddl(schema['values'], named, within)}>"
    return _ddl(kind, named, within)


def read_avro(text: str, registry: str = "") -> Read:
    """text: schema of the table. registry: `http[s]://host:port[/path]` of a schema registry, or
    the folder `file:///...` with files `<number>.avsc`; "": bodies have no number in front, and are
    written by the table's schema."""
    from fastavro import schemaless_reader

    wanted = parsed(text)
    if not registry:
        return lambda body: _whole(schemaless_reader, BytesIO(body), wanted, None)
    known: dict[int, Any] = {}
    missing: dict[int, tuple[float, str]] = {}

    def read(body: bytes) -> object:
        if len(body) < HEAD.size or body[0] != MAGIC:
            raise Corrupt("no number of a schema in front, as a registry's wire format has it")
        number = HEAD.unpack_from(body)[1]
        if number not in known:
            now_s = time.monotonic()
            until_s, reason = missing.get(number, (now_s, ""))
            if until_s > now_s:
                raise Corrupt(reason)
            try:
                known[number] = parsed(_schema(registry, number))
            except ValueError as error:
                if len(missing) >= MOST_MISSING:
                    missing.clear()
                missing[number] = now_s + MISSING_S, str(error)
                raise
        return _whole(schemaless_reader, BytesIO(body[HEAD.size :]), known[number], wanted)

    return read


def _whole(read: Callable[..., Any], data: BytesIO, writer: Any, reader: Any) -> object:
    found: object = read(data, writer, reader)
    if data.read(1):
        raise Corrupt("bytes are left behind the message")
    return found


def _schema(registry: str, number: int) -> str:
    """Raises Corrupt: the registry has none of that number; NoRegistry: it cannot be asked, and
    nothing can be read without it, so the task fails."""
    parts = urlsplit(registry)
    where = parts.hostname or registry
    try:
        if parts.scheme == "file":
            return _in_folder(Path(unquote(parts.path)), number)
        url = f"{registry.rstrip('/')}/schemas/ids/{number}"
        with urllib.request.urlopen(url, timeout=ANSWER_S) as answer:
            return str(json.load(answer)["schema"])
    except HTTPError as error:
        if error.code == NOT_FOUND and _says_that_there_is_none(error):
            raise Corrupt(f"no schema {number} in {where}") from None
        raise NoRegistry(f"schema {number} of {where}: {error}") from error
    except Corrupt:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NoRegistry(f"schema {number} of {where}: {error}") from error


def _in_folder(folder: Path, number: int) -> str:
    try:
        return (folder / f"{number}.avsc").read_text()
    except FileNotFoundError:
        if not folder.is_dir():
            raise
        raise Corrupt(f"no {number}.avsc in {folder}") from None


def _says_that_there_is_none(error: HTTPError) -> bool:
    try:
        said = json.load(error)
    except (OSError, ValueError):
        return False
    return isinstance(said, dict) and said.get("error_code") == NO_SUCH_SCHEMA


class NoRegistry(NotInstalled):
    """The registry cannot be asked for a schema. No body is corrupt for it."""


def _fastavro() -> None:
    try:
        import fastavro  # noqa: F401
    except ImportError:
        raise NotInstalled(
            "format avro needs: pip install 'tallymark[formats]', on every machine"
        ) from None


__all__ = ["NoRegistry", "ddl_of", "parsed", "read_avro"]
