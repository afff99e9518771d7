"""Rows to AMQP 0-9-1: publish method, header and body frames, as a broker's sink takes them.

A column is a property of the same name; `body` is the content. Columns that only tell of a delivery
(`sequence`, `timestamp`, ...) say nothing here, so that what was read can be written as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from tallymark.spark import schema
from tallymark.spark.header_types import field_value
from tallymark.wire.amqp091.fields import Timestamp
from tallymark.wire.amqp091.frames import METHOD, content_frames, frame
from tallymark.wire.amqp091.layouts import encode_method
from tallymark.wire.amqp091.methods import BasicPublish
from tallymark.wire.amqp091.properties import Properties, encode_properties

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

FRAME_MAX: Final = 131_072
CHANNEL: Final = 1
PERSISTENT: Final = 2
NO_TYPE: Final = {"type": None, "value": None}
KEPT: Final = 4_096
"""Distinct property lists and routing keys remembered per task."""
CHUNK_BYTES: Final = 4 << 20
"""Bytes of frames after which a chunk ends, with the message that passes them."""

_TEXTS: Final = (
    "content_type", "content_encoding", "correlation_id", "reply_to", "expiration", "message_id",
    "type", "app_id",
)  # fmt: skip
PROPERTIES: Final = {
    **dict.fromkeys(_TEXTS, ("string",)),
    "headers": ("map<string,string>",),
    schema.TYPED_HEADERS.name: (schema.TYPED_HEADERS.ddl,),  # in the place of `headers`
    "priority": ("tinyint", "smallint", "int", "bigint"),
    "app_timestamp": ("timestamp",),
}
"""Columns that become properties, and Spark's types of them."""
EXPECTED: Final = {"body": ("binary", "string"), "routing_key": ("string",), **PROPERTIES}
IGNORED: Final = frozenset(schema.BY_NAME) - frozenset(EXPECTED) | {"date", "outcome"}
"""Columns without effect on the message: the source's about a delivery, and those of landing and
outcomes."""


def check_columns(given: StructType, needs_key: bool) -> None:
    """Raise ValueError, naming the column and what was expected, for rows that cannot become
    messages.

    needs_key: the routing key is a column.
    """
    found = {field.name: field.dataType.simpleString() for field in given.fields}
    for name, kind in found.items():
        if name in IGNORED:
            continue
        if name not in EXPECTED:
            near = get_close_matches(name, EXPECTED, 1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise ValueError(
                f"column {name!r}{hint} is no part of a message: drop it, expected of "
                f"{', '.join(EXPECTED)}"
            )
        if kind not in EXPECTED[name]:
            raise ValueError(
                f"column {name!r} is of type {kind}, expected {' or '.join(EXPECTED[name])}"
            )
    if "body" not in found:
        raise ValueError("column 'body' is missing: expected binary or string")
    if needs_key and "routing_key" not in found:
        raise ValueError(
            "column 'routing_key' is missing: expected string, or the option routingKey"
        )


class Encoder:
    """Encodes the rows of one task."""

    def __init__(self, exchange: str, key: str | None, mandatory: bool) -> None:
        """key: of all rows; None: the column `routing_key` has it."""
        self._exchange = exchange
        self._key = key
        self._mandatory = mandatory
        self._methods: dict[str, bytes] = {}
        self._sections: dict[tuple[Any, ...], bytes] = {}
        """Encoded property sections, by the row's values of the columns `_named`."""
        self._named: list[str] = []

    def chunks(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[bytes, int]]:
        """Frames of some MiB and how many messages they are.

        Raises ValueError for a row that is no message, naming row and column.
        """
        parts: list[bytes] = []
        size = 0
        for batch in batches:
            for message in self._messages(batch):
                parts.append(message)
                size += len(message)
                if size >= CHUNK_BYTES:
                    yield b"".join(parts), len(parts)
                    parts = []
                    size = 0
        if parts:
            yield b"".join(parts), len(parts)

    def _messages(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        count = batch.num_rows
        names = [name for name in PROPERTIES if _says(batch, name)]
        if names != self._named:
            self._sections.clear()
            self._named = names
        columns = [_values(batch.column(name), name) for name in names]
        rows: Iterable[tuple[Any, ...]] = zip(*columns, strict=True) if names else [()] * count
        keys: Sequence[Any] = [self._key] * count
        if self._key is None:
            keys = batch.column("routing_key").to_pylist()
        bodies = batch.column("body").to_pylist()
        sections, methods = self._sections, self._methods
        for row, key, body in zip(rows, keys, bodies, strict=True):
            if body is None:
                raise ValueError(f"column 'body' is null, expected bytes: {_shown(names, row)}")
            if key is None:
                raise ValueError(
                    f"column 'routing_key' is null, expected text: {_shown(names, row)}"
                )
            method = methods.get(key)
            if method is None:
                method = self._method(key)
            named = tuple([tuple(x) if isinstance(x, list) else x for x in row])
            section = sections.get(named)
            if section is None:
                section = self._section(names, named)
            content = body.encode() if isinstance(body, str) else body
            yield method + content_frames(CHANNEL, section, content, FRAME_MAX)

    def _method(self, key: str) -> bytes:
        try:
            publish = BasicPublish(self._exchange, key, self._mandatory)
            found = frame(METHOD, CHANNEL, encode_method(publish))
        except ValueError as error:
            raise ValueError(f"column 'routing_key': {error}") from None
        if len(self._methods) >= KEPT:
            self._methods.clear()
        self._methods[key] = found
        return found

    def _section(self, names: list[str], row: tuple[Any, ...]) -> bytes:
        try:
            found = encode_properties(_properties(names, row))
        except (ValueError, TypeError, OverflowError) as error:
            raise ValueError(_wrong(names, row) or str(error)) from None
        if len(self._sections) >= KEPT:
            self._sections.clear()
        self._sections[row] = found
        return found


def _values(column: pa.Array, name: str) -> list[Any]:
    """Return a column's values; of a map the entries, with the parts of each side by side; of times
    microseconds since 1970, for Python has none of the year 10000."""
    if name == "app_timestamp":
        column = column.cast("int64")
    values: list[Any] = column.to_pylist()
    if name != schema.TYPED_HEADERS.name:
        return values
    return [
        None if one is None else [(key, *(said or NO_TYPE).values()) for key, said in one]
        for one in values
    ]


def _properties(names: Sequence[str], row: Sequence[Any]) -> Properties:
    properties = Properties(delivery_mode=PERSISTENT)
    for name, value in zip(names, row, strict=True):
        if value is None:
            continue
        if name == "headers":
            properties.headers = dict(value)
        elif name == schema.TYPED_HEADERS.name:
            properties.headers = {key: field_value(kind, text) for key, kind, text in value}
        elif name == "app_timestamp":
            properties.timestamp = Timestamp(_seconds(value))
        else:
            setattr(properties, name, value)
    return properties


def _wrong(names: list[str], row: tuple[Any, ...]) -> str:
    """Return why a row cannot be encoded, naming the column."""
    for name, value in zip(names, row, strict=True):
        try:
            encode_properties(_properties([name], [value]))
        except (ValueError, TypeError, OverflowError) as error:
            return f"column {name!r}: {error}: {_shown(names, row)}"
    return ""


def _says(batch: pa.RecordBatch, name: str) -> bool:
    """Return whether the batch has a value in a column."""
    at = batch.schema.get_field_index(name)
    return bool(at >= 0 and batch.column(at).null_count < batch.num_rows)


def _seconds(micros: int) -> int:
    seconds = micros // 1_000_000
    if seconds < 0:
        raise ValueError(f"{seconds} s since 1970, expected 0 or more")
    return seconds


def _shown(names: list[str], row: tuple[Any, ...]) -> str:
    """A row, for people who have to find it."""
    said = ", ".join(f"{n}={v!r}" for n, v in zip(names, row, strict=True) if v is not None)
    return f"row with {said[:200]}" if said else "row without properties"
