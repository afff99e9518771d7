"""Wire formats of bodies: JSON, CSV, MessagePack, Avro, Protobuf. A body becomes values by name,
and the values of a batch become an Arrow array of the wanted type.

A body that cannot be read so, or whose values do not fit the type, is *corrupt*: its row is null,
with the reason. No body makes a batch fail.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import pyarrow as pa

from tallymark.spark.formats.format_options import AUTO, AVRO, CSV, JSON, MSGPACK, PROTOBUF

CONTENT_TYPES: Final = {
    "application/json": JSON,
    "text/json": JSON,
    "text/csv": CSV,
    "application/csv": CSV,
    "application/msgpack": MSGPACK,
    "application/x-msgpack": MSGPACK,
    "application/vnd.msgpack": MSGPACK,
    "application/avro": AVRO,
    "avro/binary": AVRO,
    "application/vnd.apache.avro": AVRO,
    "application/protobuf": PROTOBUF,
    "application/x-protobuf": PROTOBUF,
    "application/vnd.google.protobuf": PROTOBUF,
}
Read = Callable[[bytes], object]
"""Values of a body, by name. Raises Corrupt, or whatever its library does."""
TRUTHS: Final = {"true": True, "false": False, "1": True, "0": False}


class Corrupt(ValueError):
    """A body is not what its format wants; the text says why."""


class JsonNumber(float):
    """A number with the text that it was written as, of which a decimal keeps each digit."""

    text: str
    __slots__ = ("text",)

    def __new__(cls, text: str) -> JsonNumber:
        made = super().__new__(cls, text)
        made.text = text
        return made


class NotInstalled(RuntimeError):
    """A format's library is missing; the text says what to install."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """Rows of one batch."""

    data: pa.Array
    corrupt: pa.Array
    """Reasons; null where there is none."""


class BodyReader:
    """Reads the bodies of batches as one type, by one format or by each message's content type."""

    def __init__(self, type: pa.StructType, readers: dict[str, Read], format: str) -> None:
        """readers: by format; those that `format` needs."""
        self._type = type
        self._readers = readers
        self._format = format
        self._fit = _fitting(type)

    def decode(self, bodies: pa.Array, content_types: pa.Array | None = None) -> Decoded:
        """Read bodies; content_types: as the publishers set them, for AUTO."""
        kinds: Iterable[Any] = [None] * len(bodies)
        if self._format == AUTO and content_types is not None:
            kinds = content_types.to_pylist()
        rows: list[object] = []
        reasons: list[str | None] = []
        for body, kind in zip(bodies.to_pylist(), kinds, strict=True):
            row, reason = self._row(body, kind)
            rows.append(row)
            reasons.append(reason)
        try:
            data = pa.array(rows, self._type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            data = self._one_by_one(rows, reasons)
        return Decoded(data, pa.array(reasons, pa.string()))

    def _row(self, body: bytes | None, content_type: str | None) -> tuple[object, str | None]:
        if body is None:
            return None, "there is no body"
        try:
            return self._fit(self._read(content_type)(body)), None
        except NotInstalled:
            raise
        except Exception as error:  # of six libraries, which have no base in common
            return None, f"the body does not fit: {_said(error)}"

    def _read(self, content_type: str | None) -> Read:
        if self._format != AUTO:
            return self._readers[self._format]
        bare = (content_type or "").partition(";")[0].strip().lower()
        format = JSON if bare.endswith("+json") else CONTENT_TYPES.get(bare)
        if format not in self._readers:
            raise Corrupt(f"content type {content_type!r}, expected {', '.join(self._readers)}")
        return self._readers[format]

    def _one_by_one(self, rows: Sequence[object], reasons: list[str | None]) -> pa.Array:
        """Find the rows whose values do not fit the type."""
        parts = []
        for at, row in enumerate(rows):
            try:
                parts.append(pa.array([row], self._type))
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                parts.append(pa.nulls(1, self._type))
                reasons[at] = f"the body does not fit: {_said(error)}"
        return pa.concat_arrays(parts)


def read_json(type: pa.StructType) -> Read:
    number = JsonNumber if _has_decimals(type) else float  # the one costs a microsecond or two

    def read(body: bytes) -> object:
        found = json.loads(body, parse_float=number)
        if not isinstance(found, dict):
            raise Corrupt("expected a JSON object")
        return found

    return read


def _has_decimals(type: pa.DataType) -> bool:
    parts = [type.field(number).type for number in range(type.num_fields)]
    return pa.types.is_decimal(type) or any(_has_decimals(part) for part in parts)


def read_msgpack() -> Read:
    """Raises NotInstalled."""
    try:
        import msgpack
    except ImportError:
        raise NotInstalled(
            "format msgpack needs: pip install 'tallymark[formats]', on every machine"
        ) from None

    def read(body: bytes) -> object:
        found = msgpack.unpackb(body, timestamp=3, strict_map_key=False)
        if not isinstance(found, dict):
            raise Corrupt("expected a map")
        return found

    return read


def read_csv(names: Sequence[str], delimiter: str = ",") -> Read:
    """One line in each body, its fields in the order of the columns; empty fields are null."""

    def read(body: bytes) -> object:
        lines = list(csv.reader([body.decode()], delimiter=delimiter, strict=True))
        fields = lines[0] if len(lines) == 1 else []
        if len(fields) != len(names):
            raise Corrupt(f"{len(fields)} fields, expected {len(names)}")
        return {name: text or None for name, text in zip(names, fields, strict=True)}

    return read


def _fitting(type: pa.DataType) -> Callable[[Any], Any]:
    """Return what makes a value of a format one that Arrow takes for that type: times, decimals
    and numbers may come as text, and text may be any scalar, as Spark's from_json has it."""
    kinds: list[tuple[Callable[[pa.DataType], bool], Callable[[Any], Any]]] = [
        (pa.types.is_string, _text),
        (pa.types.is_timestamp, _timestamp),
        (pa.types.is_date, _date),
        (pa.types.is_boolean, _truth),
        (pa.types.is_integer, _whole),
        (pa.types.is_floating, _float),
        (pa.types.is_decimal, _decimal),
        (pa.types.is_binary, lambda v: v.encode() if isinstance(v, str) else v),
    ]
    for is_it, fit in kinds:
        if is_it(type):
            return lambda value: None if value is None else fit(value)
    if pa.types.is_struct(type):
        fields = [(field.name, field.nullable, _fitting(field.type)) for field in type]
        return lambda value: None if value is None else _struct(fields, value)
    if pa.types.is_list(type):
        each = _fitting(type.value_type)
        return lambda value: None if value is None else _list(each, value)
    if pa.types.is_map(type):
        key, item = _fitting(type.key_type), _fitting(type.item_type)
        return lambda value: (
            None if value is None else [(key(k), item(v)) for k, v in value.items()]
        )
    return lambda value: value


def _struct(fields: list[tuple[str, bool, Callable[[Any], Any]]], value: Any) -> dict[str, Any]:
    """fields: name, whether it may be null, and what fits a value to it."""
    if not isinstance(value, dict):
        raise Corrupt(f"{_shown(value)}, expected values by name")
    found = {}
    for name, nullable, fit in fields:
        found[name] = fit(value.get(name))
        if found[name] is None and not nullable:  # Spark would fail, or read something else
            raise Corrupt(f"{name} is null, expected a value")
    return found


def _list(fit: Callable[[Any], Any], value: Any) -> list[Any]:
    if not isinstance(value, list):  # a text is iterable, too
        raise Corrupt(f"{_shown(value)}, expected a list")
    return [fit(one) for one in value]


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode()
    if not isinstance(value, bool | int | float | list | dict):
        return str(value)  # UUIDs, times, decimals: JSON has them in quotes only
    return json.dumps(value, default=str)


def _timestamp(value: Any) -> Any:
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if isinstance(value, datetime):
        # No zone: UTC, as everywhere in the connector.
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value
    raise Corrupt(f"{_shown(value)}, expected a time in ISO 8601")


def _date(value: Any) -> date:
    if isinstance(value, str):
        return date.fromisoformat(value)
    if isinstance(value, date):  # a datetime is one
        return value
    raise Corrupt(f"{_shown(value)}, expected a date in ISO 8601")


def _truth(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    found = TRUTHS.get(value.strip().lower()) if isinstance(value, str) else None
    if found is None:
        raise Corrupt(f"{_shown(value)}, expected true or false")
    return found


def _whole(value: Any) -> int:
    if not isinstance(value, str | int):
        raise Corrupt(f"{_shown(value)}, expected a whole number")
    return int(_number(value))


def _float(value: Any) -> Any:
    return float(_number(value)) if isinstance(value, str | int) else value


def _number(value: Any) -> Any:
    """Return the value, if it is no truth, which Python has among its whole numbers, and no text
    with an underscore, which only Python passes over."""
    if isinstance(value, bool) or (isinstance(value, str) and "_" in value):
        raise Corrupt(f"{_shown(value)}, expected a number")
    return value


def _decimal(value: Any) -> Decimal:
    text = value.text if isinstance(value, JsonNumber) else str(value)
    try:
        return value if isinstance(value, Decimal) else Decimal(_number(text))
    except InvalidOperation:
        raise Corrupt(f"{_shown(value)}, expected a number") from None


def _shown(value: Any) -> str:
    return repr(value)[:60]


def _said(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
