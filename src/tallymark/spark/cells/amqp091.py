"""Messages as an AMQP 0-9-1 publisher sent them, decoded many at a time.

A cell is one message, its frames end to end as the journal keeps them [amqp-0.9.1 §4.2.3]:

    method frame   01 chan(2) size(4) <class method arguments ...>            CE
    header frame   02 chan(2) size(4) 003C 0000 body-size(8) flags(2) props   CE
    body frames    03 chan(2) size(4) <bytes>                                 CE     (none or more)

Everything here is arithmetic over columns of positions: all method lengths, then all header
lengths, and so on. The property list has its fields in a fixed order, each present or not by a bit
of the flags, so it is walked field by field for all messages at once. Only a body in several frames
is put together one by one. Messages of one size with the same frames before their bodies are rows
of a matrix: what stands before the body is read in the first of them.

Nothing here raises because of a message's content: what cannot be read is null and `malformed`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tallymark.spark import gather
from tallymark.spark.cells.tables import LAST_SECOND, decode_tables, decode_typed
from tallymark.spark.gather import Bools, Ints
from tallymark.spark.schema import BY_NAME, TYPED_HEADERS

FRAME_METHOD: Final = 1
FRAME_HEADER: Final = 2
FRAME_BODY: Final = 3
FRAME_END: Final = 0xCE
FRAME_HEAD: Final = 7
FRAME_FRAME: Final = 8
"""Bytes of a frame that are not payload: 7 before, 1 after."""
HEADER_FIXED: Final = 14
"""class, weight, body size and flags, before the first property."""

SHORT, TABLE, OCTET, SECONDS = range(4)

# [amqp-0.9.1 basic] in the order of the flag bits, from bit 15 down.
PROPERTIES: Final = (
    (15, "content_type", SHORT),
    (14, "content_encoding", SHORT),
    (13, "headers", TABLE),
    (12, "delivery_mode", OCTET),
    (11, "priority", OCTET),
    (10, "correlation_id", SHORT),
    (9, "reply_to", SHORT),
    (8, "expiration", SHORT),
    (7, "message_id", SHORT),
    (6, "app_timestamp", SECONDS),
    (5, "type", SHORT),
    (4, "user_id", SHORT),
    (3, "app_id", SHORT),
    (2, "cluster_id", SHORT),
)
HEADERS: Final = {"headers": decode_tables, TYPED_HEADERS.name: decode_typed}
"""Columns of the header table, with what decodes it for them."""
PROPERTY_NAMES: Final = frozenset(name for _, name, _ in PROPERTIES) | HEADERS.keys()
UNKNOWN_FLAGS: Final = 0b11
"""Bit 0 announces further flag words, which the class basic never has; bit 1 is unused."""


@dataclass(frozen=True, slots=True)
class _Field:
    kind: int
    present: Bools
    starts: Ints
    lengths: Ints


@dataclass(frozen=True, slots=True)
class _Frames:
    """Positions of the parts of each message. What is wrong stands in `framed` and `listed`."""

    framed: Bools
    """Method and header frame have the right form."""
    body_size: Ints
    bodies: Ints
    """Positions at which the body frames begin."""
    properties: Ints
    properties_end: Ints
    flags: Ints


def decode_cells(
    raw: pa.Buffer, starts: Ints, ends: Ints, wanted: frozenset[str]
) -> dict[str, pa.Array]:
    """The wanted columns (properties, `body`, `malformed`) of the messages raw[starts:ends].

    Cells must be in order, must not overlap and must lie within 2 GiB; rows come in their order.
    """
    data = np.frombuffer(raw, np.uint8)
    if len(starts) == 0:
        data = np.zeros(1, np.uint8)
    alike = _decode_alike(raw, data, starts, ends, wanted)
    if alike is not None:
        return alike
    frames = _find_frames(data, starts, ends)
    columns: dict[str, pa.Array] = {}
    fields, listed = _find_properties(data, frames)
    malformed = ~listed
    for name, field in fields.items():
        if name in wanted and field.kind != TABLE:
            columns[name] = _property_column(raw, data, field, listed, name)
    for name in wanted & PROPERTY_NAMES - columns.keys() - HEADERS.keys():
        columns[name] = pa.nulls(len(starts), _type_of(name))
    for name in wanted & HEADERS.keys():
        columns[name], unreadable = _headers_column(raw, fields.get("headers"), listed, name)
        malformed |= unreadable
    if "body" in wanted or "malformed" in wanted:
        columns["body"], torn = _bodies(raw, data, frames, ends)
        malformed |= torn
    columns["malformed"] = pa.array(malformed)
    return columns


def _decode_alike(
    raw: pa.Buffer, data: NDArray[np.uint8], starts: Ints, ends: Ints, wanted: frozenset[str]
) -> dict[str, pa.Array] | None:
    """Decode two messages or more that follow each other and differ in what their bodies hold
    alone. Returns what decode_cells does, or None for others."""
    rows = len(starts)
    if rows < 2 or (starts[1:] != ends[:-1]).any():
        return None
    size = int(ends[0] - starts[0])
    if (ends - starts != size).any():
        return None
    frames = _find_frames(data, starts[:1], ends[:1])
    head = int(frames.bodies[0] - starts[0]) + FRAME_HEAD
    body_size = size - head - 1
    if not frames.framed[0] or frames.body_size[0] != body_size or body_size <= 0:
        return None
    cells = data[starts[0] : ends[-1]].reshape(rows, size)
    if (cells[:, :head] != cells[0, :head]).any() or (cells[:, -1] != cells[0, -1]).any():
        return None
    columns = decode_cells(raw, starts[:1], ends[:1], wanted)
    if columns["malformed"][0].as_py():
        return None
    body = columns.pop("body", None)
    columns = {name: gather.repeat(column, rows) for name, column in columns.items()}
    if body is not None:
        columns["body"] = gather.rows(cells[:, head:-1])
    return columns


def _find_frames(data: NDArray[np.uint8], starts: Ints, ends: Ints) -> _Frames:
    # A broken length throws the positions after it far off: gathers are clipped to the data, and
    # `framed` marks the rows that are valid.
    size = gather.u32(data, starts + 3)
    header = starts + FRAME_FRAME + size
    framed = ends - starts >= 2 * FRAME_FRAME + HEADER_FIXED
    framed &= gather.u8(data, starts) == FRAME_METHOD
    framed &= header + FRAME_FRAME + HEADER_FIXED <= ends
    framed &= gather.u8(data, header - 1) == FRAME_END
    framed &= gather.u8(data, header) == FRAME_HEADER
    size = gather.u32(data, header + 3)
    bodies = header + FRAME_FRAME + size
    framed &= (size >= HEADER_FIXED) & (bodies <= ends)
    framed &= gather.u8(data, bodies - 1) == FRAME_END
    return _Frames(
        framed=framed,
        body_size=gather.u64(data, header + 11),
        bodies=bodies,
        properties=header + FRAME_HEAD + HEADER_FIXED,
        properties_end=bodies - 1,
        flags=np.where(framed, gather.u16(data, header + 19), 0),
    )


def _find_properties(data: NDArray[np.uint8], frames: _Frames) -> tuple[dict[str, _Field], Bools]:
    """Each property's place, and which messages have a list that can be read to its very end."""
    at, flags = frames.properties, frames.flags
    listed = frames.framed & (flags & UNKNOWN_FLAGS == 0)
    fields: dict[str, _Field] = {}
    for bit, name, kind in PROPERTIES:
        present = (flags >> bit & 1).astype(np.bool_)
        if not present.any():
            continue
        if kind == SHORT:
            starts, lengths = at + 1, gather.u8(data, at)
        elif kind == TABLE:
            starts, lengths = at + 4, gather.u32(data, at)
        else:
            starts, lengths = at, np.full(len(at), 1 if kind == OCTET else 8)
        at = np.where(present, starts + lengths, at)
        listed &= at <= frames.properties_end
        fields[name] = _Field(kind, present, starts, lengths)
    listed &= at == frames.properties_end
    return fields, listed


def _type_of(name: str) -> pa.DataType:
    return BY_NAME[name].arrow


def _property_column(
    raw: pa.Buffer, data: NDArray[np.uint8], field: _Field, listed: Bools, name: str
) -> pa.Array:
    present = field.present & listed
    if field.kind == SHORT:
        return gather.text(gather.binary(raw, field.starts, field.lengths, present))
    if field.kind == OCTET:
        return pa.array(gather.u8(data, field.starts).astype(np.int32), mask=~present)
    seconds = gather.u64(data, field.starts)
    present &= (seconds >= 0) & (seconds <= LAST_SECOND)
    micros = np.where(present, seconds, 0) * 1_000_000
    return pa.array(micros, _type_of(name), mask=~present)


def _headers_column(
    raw: pa.Buffer, field: _Field | None, listed: Bools, name: str
) -> tuple[pa.MapArray, Bools]:
    if field is None:
        nothing: Any = pa.nulls(len(listed), _type_of(name))
        return nothing, np.zeros(len(listed), np.bool_)
    # Publishers repeat themselves: each distinct table is decoded once.
    present = field.present & listed
    encoded = gather.binary(raw, field.starts, field.lengths, present).dictionary_encode()
    tables, readable = HEADERS[name](encoded.dictionary)
    index = encoded.indices.to_numpy(zero_copy_only=False)
    unreadable = np.zeros(len(listed), np.bool_)
    if not readable.all():
        known = np.where(present, index, 0).astype(np.int64)
        unreadable = present & ~readable[known]
    return tables.take(encoded.indices), unreadable


def _bodies(
    raw: pa.Buffer, data: NDArray[np.uint8], frames: _Frames, ends: Ints
) -> tuple[pa.BinaryArray, Bools]:
    """The bodies, and which messages' body frames do not add up to the size that was announced."""
    at, size, framed = frames.bodies, frames.body_size, frames.framed
    empty = framed & (size == 0) & (at == ends)
    single = framed & (gather.u8(data, at) == FRAME_BODY) & (gather.u32(data, at + 3) == size)
    single &= (at + FRAME_FRAME + size == ends) & (gather.u8(data, ends - 1) == FRAME_END)
    quick = single | empty
    starts = np.where(single, at + FRAME_HEAD, at)
    bodies = gather.binary(raw, starts, np.where(single, size, 0), quick)
    rest = np.flatnonzero(framed & ~quick)
    if len(rest) == 0:
        return bodies, ~framed
    joined = [_join(data, int(at[i]), int(ends[i]), int(size[i])) for i in rest]
    index = np.arange(len(ends))
    index[rest] = len(ends) + np.arange(len(rest))
    torn = ~framed
    torn[rest] = [body is None for body in joined]
    return pa.concat_arrays([bodies, pa.array(joined, pa.binary())]).take(pa.array(index)), torn


def _join(data: NDArray[np.uint8], at: int, end: int, size: int) -> bytes | None:
    """The body from its frames in data[at:end]; None when they do not hold exactly `size` bytes."""
    parts = []
    while at + FRAME_FRAME <= end:
        length = int.from_bytes(data[at + 3 : at + 7].tobytes(), "big")
        after = at + FRAME_FRAME + length
        if data[at] != FRAME_BODY or after > end or data[after - 1] != FRAME_END:
            return None
        parts.append(data[at + FRAME_HEAD : after - 1].tobytes())
        at = after
    body = b"".join(parts)
    return body if at == end and len(body) == size else None
