"""Messages as an AMQP 1.0 client sent them, decoded many at a time.

A cell is one message as the journal keeps it, its sections end to end [amqp-1.0 §3.2]:

    header | message annotations | properties | application properties | body | footer
    00 53 70 ...  00 53 72 ...     00 53 73 ... 00 53 74 ...             00 53 75 A0 size <bytes>

Where a section ends is arithmetic on its size, so bodies are found for all messages at once. What
stands in front of a body is converted as for an AMQP 0-9-1 consumer (docs/conversion.md), once for
all messages that have the same there. A body that is one value of text or binary is shown as that;
any other value, and sequences, as they were encoded, with the type `amqp-1.0`.

Nothing here raises because of a message's content: what cannot be read is null and `malformed`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tallymark.spark import gather
from tallymark.spark.cells.amqp091 import PROPERTY_NAMES, decode_cells
from tallymark.spark.gather import Bools, Ints
from tallymark.spark.schema import BY_NAME
from tallymark.wire.amqp091.frames import METHOD, frame, header_frame
from tallymark.wire.amqp091.layouts import encode_method
from tallymark.wire.amqp091.methods import BasicPublish
from tallymark.wire.amqp10.codec import decode
from tallymark.wire.amqp10.encoded import (
    begin,
    data_bytes,
    find_section,
    is_sound,
    section_code,
    value_at,
)
from tallymark.wire.amqp10.errors import DecodeError
from tallymark.wire.amqp10.front import read_front
from tallymark.wire.amqp10.sections import DATA, FOOTER, VALUE
from tallymark.wire.conversion.names import ENCODED
from tallymark.wire.conversion.to_amqp091 import section_of

SMALL: Final = 0x0053
"""A descriptor that is a number of one byte."""
BYTES: Final = (0xA0, 0xB0)
"""Format codes of binary; one higher of strings, three higher of symbols."""
TEXTS: Final = (0xA1, 0xB1, 0xA3, 0xB3)
SECTIONS_IN_FRONT: Final = 4
_METHOD: Final = frame(METHOD, 1, encode_method(BasicPublish()))


@dataclass(frozen=True, slots=True)
class _Bodies:
    """Positions of the messages' bodies, which are also the ends of the sections in front of
    them."""

    quick: Bools
    """One data section, or one value of text or binary, and nothing behind it."""
    at: Ints
    """Position at which the body's section begins."""
    starts: Ints
    lengths: Ints


@dataclass(frozen=True, slots=True)
class _Alone:
    """A message that was looked at by itself."""

    head: int
    """Bytes in front of its body."""
    body: bytes | None
    """Body of the message; None: it is malformed."""
    encoded: bool


def decode_amqp10_cells(
    raw: pa.Buffer, starts: Ints, ends: Ints, wanted: frozenset[str]
) -> dict[str, pa.Array]:
    """Decode AMQP 1.0 messages; see cells.decode_cells."""
    rows = len(starts)
    data = np.frombuffer(raw, np.uint8)
    if rows == 0:
        data = np.zeros(1, np.uint8)
    found = _find_bodies(data, starts, ends)
    rest = np.flatnonzero(~found.quick)
    alone = [_look_at(data[starts[i] : ends[i]].tobytes()) for i in rest]
    heads = found.at - starts
    heads[rest] = [one.head for one in alone]
    sound = np.ones(rows, np.bool_)
    sound[rest] = [one.body is not None for one in alone]
    encoded = np.zeros(rows, np.bool_)
    encoded[rest] = [one.encoded for one in alone]
    columns, unreadable = _properties(raw, starts, heads, sound, encoded, wanted)
    if "body" in wanted or "malformed" in wanted:
        columns["body"] = _bodies(raw, found, rest, [one.body for one in alone])
    columns["malformed"] = pa.array(~sound | unreadable)
    return columns


def _find_bodies(data: NDArray[np.uint8], starts: Ints, ends: Ints) -> _Bodies:
    # A broken size throws the positions after it far off: gathers are clipped to the data, and
    # `quick` marks the rows that are valid.
    at = starts.copy()
    last = np.zeros(len(at), np.int64)
    sizes = {0x45: 4, 0xC0: 5, 0xC1: 5, 0xD0: 8, 0xD1: 8}
    for _ in range(SECTIONS_IN_FRONT):
        code = gather.u8(data, at + 2)
        kind = gather.u8(data, at + 3)
        in_front = (gather.u16(data, at) == SMALL) & (code < DATA) & (code > last)
        if not in_front.any():
            break
        narrow = np.where(kind == 0x45, 0, gather.u8(data, at + 4))
        size = np.where(kind >= 0xD0, gather.u32(data, at + 4), narrow)
        known = np.isin(kind, list(sizes))
        head = np.select([kind == value for value in sizes], list(sizes.values()), 0)
        moves = in_front & known & (at + head <= ends)
        at = np.where(moves, at + head + size, at)
        last = np.where(moves, code, last)
    code = gather.u8(data, at + 2)
    kind = gather.u8(data, at + 3)
    is_wide = (kind & 0x10) != 0
    bodies_at = at + np.where(is_wide, 8, 5)
    lengths = np.where(is_wide, gather.u32(data, at + 4), gather.u8(data, at + 4))
    quick = (gather.u16(data, at) == SMALL) & (bodies_at + lengths == ends)
    quick &= np.where(code == DATA, np.isin(kind, BYTES), code == VALUE)
    quick &= np.isin(kind, BYTES + TEXTS) & (at >= starts)
    return _Bodies(quick, at, bodies_at, np.where(quick, lengths, 0))


def _look_at(cell: bytes) -> _Alone:
    """One message by itself."""
    end = len(cell)
    if not is_sound(cell, 0, end):
        return _Alone(0, None, False)
    try:
        at = find_section(cell, begin(cell, 0, end), end, DATA)
        code = section_code(cell, at, end) if at < end else FOOTER
        if code in (DATA, FOOTER):
            return _Alone(at, data_bytes(cell, at, end), False)
        if code == VALUE:
            value, _ = decode(cell, value_at(cell, at, end), end)
            if isinstance(value, str):
                return _Alone(at, value.encode(), False)
            if isinstance(value, bytes):
                return _Alone(at, value, False)
        return _Alone(at, cell[at:], True)
    except DecodeError:
        return _Alone(0, None, False)


def _properties(
    raw: pa.Buffer, starts: Ints, heads: Ints, sound: Bools, encoded: Bools, wanted: frozenset[str]
) -> tuple[dict[str, pa.Array], Bools]:
    """The property columns, and which messages have something in front of their body that cannot
    be read."""
    nothing = np.zeros(len(starts), np.bool_)
    names = wanted & PROPERTY_NAMES
    if len(starts) == 0 or not (names or "malformed" in wanted):
        return {name: pa.nulls(len(starts), BY_NAME[name].arrow) for name in names}, nothing
    distinct = gather.binary(raw, starts, heads).dictionary_encode()
    converted = [_convert(head.as_py()) for head in distinct.dictionary]
    cells = [_METHOD + header_frame(1, 0, section) for section, _ in converted]
    bounds = np.cumsum([0] + [len(cell) for cell in cells])
    made = decode_cells(pa.py_buffer(b"".join(cells)), bounds[:-1], bounds[1:], names)
    index = distinct.indices.to_numpy().astype(np.int64)
    take = pa.array(index, mask=~sound)
    columns = {name: made[name].take(take) for name in names}
    if "type" in columns and encoded.any():
        columns["type"] = pc.if_else(pa.array(encoded), pa.scalar(ENCODED), columns["type"])
    torn = np.array([torn for _, torn in converted])
    return columns, torn[index]


def _convert(head: bytes) -> tuple[bytes, bool]:
    """Return the sections in front of a body as an AMQP 0-9-1 property section, and whether some of
    them cannot be decoded."""
    end = len(head)
    try:
        front = read_front(head, 0, end)
    except DecodeError:
        return b"\0\0", True
    torn = False
    try:
        pos = begin(head, 0, end)
        while pos < end:
            _, pos = decode(head, pos, end)
    except DecodeError:
        torn = True
    return section_of(front, head, front.size, end, True, front.durable), torn


def _bodies(raw: pa.Buffer, found: _Bodies, rest: Any, alone: list[bytes | None]) -> pa.BinaryArray:
    bodies = gather.binary(raw, found.starts, found.lengths, found.quick)
    if len(rest) == 0:
        return bodies
    index = np.arange(len(bodies))
    index[rest] = len(bodies) + np.arange(len(rest))
    whole = pa.concat_arrays([bodies, pa.array(alone, pa.binary())])
    return whole.take(pa.array(index))
