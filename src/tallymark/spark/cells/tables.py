"""Header tables [amqp-0.9.1 §4.2.5.5] to maps of text, many at a time, or of texts with types.

Most tables in the world hold strings, whole numbers and truths only, so those are walked entry by
entry for all tables at once, as the properties are. A table with any other value is decoded alone,
by the codec.
"""

from __future__ import annotations

import json
from base64 import b64encode
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tallymark.spark import gather
from tallymark.spark.gather import Bools, Ints
from tallymark.spark.header_types import type_of
from tallymark.spark.schema import TYPED_HEADERS
from tallymark.wire.amqp091 import fields
from tallymark.wire.amqp091.errors import WireError

MAP: Final = pa.map_(pa.string(), pa.string())
LONG_STRING: Final = ord("S")
TRUTH: Final = ord("t")
VOID: Final = ord("V")
NUMBERS: Final = {
    "b": (1, True), "B": (1, False), "s": (2, True), "u": (2, False), "I": (4, True),
    "i": (4, False), "l": (8, True), "L": (8, True),
}  # fmt: skip
"""Type of a whole number: its bytes, and whether it has a sign."""
SIZES: Final = np.full(256, -1)
"""Sizes of values in bytes by type, -1 for types that are decoded one by one; of a string, the size
of its length field."""
SIZES[[LONG_STRING, TRUTH, VOID]] = 4, 1, 0
for _letter, (_size, _) in NUMBERS.items():
    SIZES[ord(_letter)] = _size
QUICK_ENTRIES: Final = 32
"""Longer tables are rare, and walked alone."""
LAST_SECOND: Final = 253_402_300_799
"""Last second of the year 9999, the latest that Python and Spark can show."""


def decode_tables(tables: pa.BinaryArray) -> tuple[pa.MapArray, Bools]:
    """Each table (its bytes after the length) as a map, and which of them could be read.

    A key that comes twice keeps its last value. An unreadable table is null.
    """
    if len(tables) == 0:
        return pa.array([], MAP), np.zeros(0, np.bool_)
    if tables.offset:
        tables = pa.concat_arrays([tables])
    quick, rows, keys, tags = _plain_tables(tables)
    maps = _to_maps(tables, quick, rows, keys, tags)
    if maps is None:
        quick, maps = np.zeros(len(tables), np.bool_), pa.array([], MAP)
    readable = np.ones(len(tables), np.bool_)
    if quick.all():
        return maps, readable
    alone = np.flatnonzero(~quick)
    decoded = [_decode_alone(tables[int(i)].as_py()) for i in alone]
    readable[alone] = [one is not None for one in decoded]
    index = np.empty(len(tables), np.int64)
    index[quick] = np.arange(len(maps))
    index[alone] = len(maps) + np.arange(len(alone))
    return pa.concat_arrays([maps, pa.array(decoded, MAP)]).take(pa.array(index)), readable


def _plain_tables(tables: pa.BinaryArray) -> tuple[Bools, Ints, Ints, Ints]:
    """Find the tables whose values all have types in SIZES. Of their entries, return the table's
    number, in order, the position of the key's length byte, and that of the value's type."""
    buffers = tables.buffers()
    offsets = np.frombuffer(buffers[1], np.int32, len(tables) + 1).astype(np.int64)
    data = np.frombuffer(buffers[2], np.uint8) if buffers[2] else np.zeros(0, np.uint8)
    if len(data) == 0:
        data = np.zeros(1, np.uint8)
    at, ends = offsets[:-1].copy(), offsets[1:]
    active = np.flatnonzero(at < ends)
    quick = np.ones(len(tables), np.bool_)
    found: list[tuple[Ints, Ints, Ints]] = []
    for _ in range(QUICK_ENTRIES):
        if len(active) == 0:
            break
        key = at[active]
        tag = key + 1 + gather.u8(data, key)
        kind = gather.u8(data, tag)
        size = SIZES[kind]
        strings = kind == LONG_STRING
        if strings.any():
            size = size + np.where(strings, gather.u32(data, tag + 1), 0)
        after = tag + 1 + size
        good = (SIZES[kind] >= 0) & (after <= ends[active])
        quick[active[~good]] = False
        active, key, tag, after = active[good], key[good], tag[good], after[good]
        found.append((active, key, tag))
        at[active] = after
        active = active[after < ends[active]]
    quick[active] = False
    if not found:
        nothing = np.zeros(0, np.int64)
        return quick, nothing, nothing, nothing
    rows, keys, tags = (np.concatenate(column) for column in zip(*found, strict=True))
    order = np.lexsort((keys, rows))
    order = order[quick[rows[order]]]
    return quick, rows[order], keys[order], tags[order]


def _to_maps(
    tables: pa.BinaryArray, quick: Bools, rows: Ints, keys: Ints, tags: Ints
) -> pa.MapArray | None:
    """The maps of the quick tables; None when one of them names a key twice."""
    count = int(quick.sum())
    raw = tables.buffers()[2] or pa.py_buffer(b"\0")
    data = np.frombuffer(raw, np.uint8) if raw.size else np.zeros(1, np.uint8)
    names = gather.text(gather.binary(raw, keys + 1, gather.u8(data, keys)))
    texts = _texts(raw, data, tags)
    number = np.cumsum(quick) - 1
    per_table = np.bincount(number[rows], minlength=count)
    if len(rows) and per_table.max() > 1:
        name = names.dictionary_encode().indices.to_numpy()
        pairs = number[rows] * (int(name.max()) + 1) + name
        pairs.sort()
        if (pairs[1:] == pairs[:-1]).any():
            return None
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(per_table, out=offsets[1:])
    return pa.MapArray.from_arrays(pa.array(offsets), names, texts)


def _texts(raw: pa.Buffer, data: NDArray[np.uint8], tags: Ints) -> pa.StringArray:
    """Return the values whose types are at `tags`, as `as_text` shows them."""
    kinds = gather.u8(data, tags)
    parts: list[pa.StringArray] = []
    places: list[Ints] = []
    for kind in np.flatnonzero(np.bincount(kinds, minlength=256)).tolist():
        here = np.flatnonzero(kinds == kind)
        at = tags[here] + 1
        places.append(here)
        if kind == LONG_STRING:
            parts.append(gather.text(gather.binary(raw, at + 4, gather.u32(data, at))))
        elif kind == VOID:
            parts.append(pa.nulls(len(here), pa.string()))
        elif kind == TRUTH:
            parts.append(pa.array(gather.u8(data, at) != 0).cast(pa.string()))
        else:
            parts.append(pa.array(_numbers(data, at, *NUMBERS[chr(kind)])).cast(pa.string()))
    if len(parts) == 1:
        return parts[0]
    back = np.argsort(np.concatenate(places), kind="stable") if parts else np.zeros(0, np.int64)
    return pa.concat_arrays(parts or [pa.array([], pa.string())]).take(pa.array(back))


def _numbers(data: NDArray[np.uint8], at: Ints, size: int, signed: bool) -> Ints:
    """The big-endian whole numbers of so many bytes at each position."""
    if size == 1:
        found = gather.u8(data, at)
    elif size == 2:
        found = gather.u16(data, at)
    elif size == 4:
        found = gather.u32(data, at)
    else:
        return gather.u64(data, at)  # it comes out with its sign
    return (
        np.where(found >> (8 * size - 1) == 1, found - (1 << 8 * size), found) if signed else found
    )


def _decode_alone(table: bytes) -> list[tuple[str, str | None]] | None:
    """One table by the codec; None when it cannot be read."""
    try:
        decoded = fields.decode_table(len(table).to_bytes(4, "big") + table)
    except WireError:
        return None
    return [(_shown(name), as_text(value)) for name, value in decoded.items()]


def decode_typed(tables: pa.BinaryArray) -> tuple[pa.MapArray, Bools]:
    """Each table (its bytes after the length) as a map of types and values, see header_types, and
    which of them could be read. One after the other, by the codec."""
    decoded = [_decode_typed(table) for table in tables.to_pylist()]
    readable = np.array([one is not None for one in decoded], np.bool_)
    return pa.array(decoded, TYPED_HEADERS.arrow), readable


def _decode_typed(table: bytes) -> list[tuple[str, dict[str, str | None]]] | None:
    try:
        decoded = fields.decode_table(len(table).to_bytes(4, "big") + table)
    except WireError:
        return None
    found = []
    for name, value in decoded.items():
        text = b64encode(value).decode() if isinstance(value, bytes) else as_text(value)
        found.append((_shown(name), {"type": type_of(value), "value": text}))
    return found


def as_text(value: object) -> str | None:
    """A field value as the text of a cell: scalars plainly, tables and arrays as JSON, void as
    null, times in ISO 8601, and U+FFFD for bytes that are not UTF-8."""
    plain = _plain(value)
    if plain is None or isinstance(plain, str):
        return plain
    return json.dumps(plain, ensure_ascii=False)


def _plain(value: object) -> Any:
    if isinstance(value, str):
        return _shown(value)
    if isinstance(value, fields.Timestamp):
        return _time(int(value))
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, dict):
        return {_shown(str(name)): _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


def _shown(text: str) -> str:
    # The codec keeps bytes that are not UTF-8 as lone surrogates, which Arrow and JSON refuse.
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _time(seconds: int) -> str | int:
    if seconds > LAST_SECOND:
        return seconds
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
