"""Encoding and decoding of values [amqp-1.0 §1.2 to §1.6].

A value is a constructor (a format code, or 0x00, a descriptor and a constructor) and its bytes.
The upper half of a format code says how many bytes: 4x none, 5x one, 6x two, 7x four, 8x eight, 9x
sixteen; Ax Bx a size and as many; Cx Dx a size, a count and the values; Ex Fx a size, a count, one
constructor and the values without it. Where the size has one byte or four, the standard has a code
each: the shorter one is written if it fits, any is read.
"""

from __future__ import annotations

from tallymark.wire.amqp10.errors import DecodeError
from tallymark.wire.amqp10.reader import DEPTH_MAX, Reader, unknown_code
from tallymark.wire.amqp10.writer import encode_value
from tallymark.wire.octets import u32


def encode(value: object) -> bytes:
    """Encode a value in the smallest encoding.

    Raises ValueError for what has no room (an integer out of its type's range, a symbol that is
    not ASCII, a string with lone surrogates, values nested deeper than 64), TypeError for a value
    of no AMQP type.
    """
    return encode_value(value, 0)


def encode_into(out: bytearray, value: object) -> None:
    """Encode a value, as `encode` does, and append it to `out`. On an error nothing is appended."""
    out += encode_value(value, 0)


def decode(data: bytes, pos: int, end: int) -> tuple[object, int]:
    """Decode the value that begins at `pos`; return it and its end. Raises DecodeError.

    Keys that are equal in Python (1 and True, "a" and the symbol a) count as one key given twice,
    which the standard forbids.
    """
    reader = Reader(data, pos, end)
    value = reader.value()
    return value, reader.pos


def skip(data: bytes, pos: int, end: int) -> int:
    """Return the end of the value that begins at `pos`. Only sizes are checked, not the content of
    lists. Raises DecodeError."""
    return _skip(data, pos, end, 0)


def _skip(data: bytes, pos: int, end: int, depth: int) -> int:
    if pos >= end:
        raise DecodeError("a value is cut off")
    code = data[pos]
    pos += 1
    while code == 0:
        if depth >= DEPTH_MAX:
            raise DecodeError(f"values nested deeper than {DEPTH_MAX}")
        depth += 1
        pos = _skip(data, pos, end, depth)
        if pos >= end:
            raise DecodeError("a value is cut off")
        code = data[pos]
        pos += 1
    width = code >> 4
    if width >= 0xA:
        if width & 1:
            if pos + 4 > end:
                raise DecodeError("a value is cut off in its size")
            pos += 4 + u32(data, pos)
        else:
            if pos >= end:
                raise DecodeError("a value is cut off in its size")
            pos += 1 + data[pos]
    elif width == 4:
        pass
    elif width >= 5:
        pos += 1 << (width - 5)
    else:
        raise unknown_code(code)
    if pos > end:
        raise DecodeError(f"a value ends {pos - end} bytes behind the last byte")
    return pos
