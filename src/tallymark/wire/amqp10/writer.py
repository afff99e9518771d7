"""Encoding of values, in the smallest form; see codec.py for the layout and the errors."""

from __future__ import annotations

from struct import Struct
from typing import Final
from uuid import UUID

from tallymark.wire.amqp10.errors import shown
from tallymark.wire.amqp10.reader import DEPTH_MAX
from tallymark.wire.amqp10.types import (
    Array,
    Byte,
    Char,
    Decimal,
    Described,
    Encodable,
    Float,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)

_f32: Final = Struct(">f")
_f64: Final = Struct(">d")

_OCTETS: Final = [bytes((octet,)) for octet in range(256)]
_SMALL_UINTS: Final = [b"\x43"] + [b"\x52" + octet for octet in _OCTETS[1:]]
_SMALL_ULONGS: Final = [b"\x44"] + [b"\x53" + octet for octet in _OCTETS[1:]]

# Kinds of values that `encode_value` distinguishes.
_STR: Final = 1
_LONG: Final = 2
_BOOL: Final = 3
_NONE: Final = 4
_SYMBOL: Final = 5
_UINT: Final = 6
_ULONG: Final = 7
_BINARY: Final = 8
_MAP: Final = 9
_LIST: Final = 10
_DESCRIBED: Final = 11
_ITSELF: Final = 12
_INT: Final = 13
_DOUBLE: Final = 14
_FIXED: Final = 15
_ARRAY: Final = 16

# type: what it is, and the format code for an array of it. The codes are those of fixed width, and
# else the narrowest that all but the empty value may have.
_TYPES: Final[dict[type, tuple[int, int]]] = {
    str: (_STR, 0xA1),
    int: (_LONG, 0x81),
    bool: (_BOOL, 0x56),
    type(None): (_NONE, 0x40),
    Symbol: (_SYMBOL, 0xA3),
    UInt: (_UINT, 0x70),
    ULong: (_ULONG, 0x80),
    bytes: (_BINARY, 0xA0),
    bytearray: (_BINARY, 0xA0),
    memoryview: (_BINARY, 0xA0),
    dict: (_MAP, 0xC1),
    list: (_LIST, 0xC0),
    tuple: (_LIST, 0xC0),
    Described: (_DESCRIBED, 0),
    Int: (_INT, 0x71),
    float: (_DOUBLE, 0x82),
    Float: (_FIXED, 0x72),
    UByte: (_FIXED, 0x50),
    UShort: (_FIXED, 0x60),
    Byte: (_FIXED, 0x51),
    Short: (_FIXED, 0x61),
    Char: (_FIXED, 0x73),
    Timestamp: (_FIXED, 0x83),
    UUID: (_FIXED, 0x98),
    Decimal: (_FIXED, 0),
    Array: (_ARRAY, 0xE0),
}
_KINDS: Final[dict[type, int]] = {kind: row[0] for kind, row in _TYPES.items()}
_CODES: Final[dict[type, int]] = {kind: row[1] for kind, row in _TYPES.items()}
# For values of subclasses: ours before the types they derive from.
_ORDER: Final[tuple[type, ...]] = (
    *[kind for kind in _TYPES if kind not in (int, str, float, list)],
    int,
    str,
    float,
    list,
)


def encode_value(value: object, depth: int) -> bytes:
    """depth: count of values around this one."""
    kind = _KINDS.get(type(value), 0)
    if kind == 0:
        kind = _kind_of(value)
    if kind == _STR:
        assert isinstance(value, str)
        return encode_string(value)
    if kind == _LONG:
        assert isinstance(value, int)
        return _encode_signed(0x55, 0x81, 8, value)
    if kind == _BOOL:
        return b"\x41" if value else b"\x42"
    if kind == _NONE:
        return b"\x40"
    if kind == _SYMBOL:
        assert isinstance(value, str)
        return encode_symbol(value)
    if kind == _UINT:
        assert isinstance(value, int)
        return encode_uint(value)
    if kind == _ULONG:
        assert isinstance(value, int)
        return encode_ulong(value)
    if kind == _BINARY:
        return encode_binary(value if isinstance(value, bytes) else _bytes_of(value))
    if kind == _MAP:
        assert isinstance(value, dict)
        return _encode_map(value, nested(depth))
    if kind == _LIST:
        assert isinstance(value, (list, tuple))
        return encode_list(value, nested(depth)) if value else b"\x45"
    if kind == _DESCRIBED:
        assert isinstance(value, Described)
        depth = nested(depth)
        return b"\0" + encode_value(value.descriptor, depth) + encode_value(value.value, depth)
    if kind == _ITSELF:
        assert isinstance(value, Encodable)
        return value.encode_at(depth)
    if kind == _INT:
        assert isinstance(value, int)
        return _encode_signed(0x54, 0x71, 4, value)
    if kind == _DOUBLE:
        return b"\x82" + _f64.pack(value)
    if kind == _ARRAY:
        assert isinstance(value, Array)
        return _encode_array(value, nested(depth))
    code = _code_for(value)
    body = _body(code, value, depth)
    if body is None:
        raise ValueError(f"{shown(value)} does not fit format code 0x{code:02x}")
    return _OCTETS[code] + body


def _kind_of(value: object) -> int:
    """Return the kind of a value whose class is a subclass of a known one."""
    if isinstance(value, Encodable):
        return _ITSELF
    for kind in _ORDER:
        if isinstance(value, kind):
            return _KINDS[kind]
    raise TypeError(f"no AMQP type for {type(value).__name__} {shown(value)}")


def _code_for(value: object) -> int:
    code = _CODES.get(type(value), 0)
    if code:
        return code
    if isinstance(value, Decimal):
        return value.code
    for kind in _ORDER:
        if isinstance(value, kind):
            return _CODES[kind]
    raise TypeError(f"no AMQP type for {type(value).__name__} {shown(value)}")


def _bytes_of(value: object) -> bytes:
    assert isinstance(value, (bytes, bytearray, memoryview))
    return bytes(value)


def nested(depth: int) -> int:
    if depth >= DEPTH_MAX:
        raise ValueError(f"value nested deeper than {DEPTH_MAX}")
    return depth + 1


def encode_string(value: str) -> bytes:
    return _encode_variable(0xA1, value.encode())


def encode_text(value: str) -> bytes:
    """Encode a text for people as a string. A ? replaces each lone surrogate."""
    return _encode_variable(0xA1, value.encode("utf-8", "replace"))


def encode_symbol(value: str) -> bytes:
    return _encode_variable(0xA3, value.encode("ascii"))


def encode_binary(value: bytes) -> bytes:
    return _encode_variable(0xA0, value)


def _encode_variable(code: int, raw: bytes) -> bytes:
    """Encode bytes of variable size. `code` is the one with a size of one byte."""
    size = len(raw)
    if size < 256:
        return _OCTETS[code] + _OCTETS[size] + raw
    return _OCTETS[code + 0x10] + four_bytes(size) + raw


def four_bytes(size: int) -> bytes:
    if size > 0xFFFF_FFFF:
        raise ValueError(f"value of {size} bytes, at most 4294967295 fit")
    return size.to_bytes(4, "big")


def encode_uint(value: int) -> bytes:
    if 0 <= value < 256:
        return _SMALL_UINTS[value]
    return b"\x70" + _number(value, 4, False)


def encode_ulong(value: int) -> bytes:
    if 0 <= value < 256:
        return _SMALL_ULONGS[value]
    return b"\x80" + _number(value, 8, False)


def _encode_signed(small: int, code: int, size: int, value: int) -> bytes:
    if -128 <= value < 128:
        return _OCTETS[small] + _OCTETS[value & 255]
    return _OCTETS[code] + _number(value, size, True)


def encode_integer(code: int, value: int) -> bytes:
    """Encode an integer or timestamp with a format code of fixed width."""
    size, signed = _INTEGERS[code]
    return _OCTETS[code] + _number(value, size, signed)


def _number(value: int, size: int, signed: bool) -> bytes:
    try:
        return value.to_bytes(size, "big", signed=signed)
    except OverflowError:
        raise ValueError(
            f"integer {value} does not fit {size * 8} {'signed' if signed else 'unsigned'} bits"
        ) from None


def encode_list(values: list[object] | tuple[object, ...], depth: int) -> bytes:
    """depth: count of this list and the values around it."""
    if not values:
        return b"\x45"
    return compound(0xC0, [encode_value(value, depth) for value in values])


def _encode_map(values: dict[object, object], depth: int) -> bytes:
    parts: list[bytes] = []
    for key, value in values.items():
        parts.append(encode_value(key, depth))
        parts.append(encode_value(value, depth))
    return compound(0xC1, parts)


def encode_symbol_map(values: dict[object, object], depth: int) -> bytes:
    """Encode a map whose str keys, Symbol or not, are written as symbols."""
    parts: list[bytes] = []
    for key, value in values.items():
        parts.append(encode_symbol(key) if isinstance(key, str) else encode_value(key, depth))
        parts.append(encode_value(value, depth))
    return compound(0xC1, parts)


def compound(code: int, parts: list[bytes]) -> bytes:
    """Encode a list or map of encoded values; `code` is the one with a size of one byte."""
    body = b"".join(parts)
    size = len(body)
    count = len(parts)  # not above `size`: every value has a format code
    if size < 255:
        return b"".join((_OCTETS[code], _OCTETS[size + 1], _OCTETS[count], body))
    return b"".join((_OCTETS[code + 0x10], four_bytes(size + 4), four_bytes(count), body))


def _encode_array(values: Array, depth: int) -> bytes:
    inner: list[object] = list(values)
    descriptors = b""
    while inner and isinstance(inner[0], Described):
        descriptor = inner[0].descriptor
        depth = nested(depth)
        descriptors += b"\0" + encode_value(descriptor, depth)
        inner = [_described_by(value, descriptor) for value in inner]
    code: int = values.of
    if code == 0:
        code = _code_for(inner[0]) if inner else 0x40
    bodies = _bodies(code, inner, depth)
    while bodies is None:
        code = _WIDER.get(code, 0)
        if code == 0:
            raise ValueError(
                f"array of 0x{values.of:02x} with an element that is not: {shown(inner)}"
            )
        bodies = _bodies(code, inner, depth)
    body = b"".join((descriptors, _OCTETS[code], *bodies))
    size = len(body)
    count = len(inner)
    if size < 255 and count < 256:
        return b"".join((b"\xe0", _OCTETS[size + 1], _OCTETS[count], body))
    return b"".join((b"\xf0", four_bytes(size + 4), four_bytes(count), body))


def _described_by(value: object, descriptor: object) -> object:
    if isinstance(value, Described) and value.descriptor == descriptor:
        return value.value
    raise ValueError(f"array of {shown(descriptor)} with an element {shown(value)}")


def _bodies(code: int, values: list[object], depth: int) -> list[bytes] | None:
    bodies: list[bytes] = []
    for value in values:
        body = _body(code, value, depth)
        if body is None:
            return None
        bodies.append(body)
    return bodies


# The next wider code of the same type.
_WIDER: Final[dict[int, int]] = {
    0x41: 0x56,
    0x42: 0x56,
    0x43: 0x52,
    0x52: 0x70,
    0x44: 0x53,
    0x53: 0x80,
    0x54: 0x71,
    0x55: 0x81,
    0xA0: 0xB0,
    0xA1: 0xB1,
    0xA3: 0xB3,
    0x45: 0xC0,
    0xC0: 0xD0,
    0xC1: 0xD1,
    0xE0: 0xF0,
}

# format code: bytes, signed
_INTEGERS: Final[dict[int, tuple[int, bool]]] = {
    0x50: (1, False),
    0x52: (1, False),
    0x53: (1, False),
    0x51: (1, True),
    0x54: (1, True),
    0x55: (1, True),
    0x60: (2, False),
    0x61: (2, True),
    0x70: (4, False),
    0x71: (4, True),
    0x80: (8, False),
    0x81: (8, True),
    0x83: (8, True),
}


def _body(code: int, value: object, depth: int) -> bytes | None:
    """Return the value's bytes behind the format code; None if the code does not fit it."""
    if code == 0x40:
        return b"" if value is None else None
    if isinstance(value, bool):
        return _body_of_bool(code, value)
    if isinstance(value, int):
        return _body_of_int(code, value)
    if isinstance(value, str):
        return _body_of_str(code, value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _sized(code, _bytes_of(value)) if code == 0xA0 or code == 0xB0 else None
    if isinstance(value, float):
        return _f64.pack(value) if code == 0x82 else _f32.pack(value) if code == 0x72 else None
    if isinstance(value, UUID):
        return value.bytes if code == 0x98 else None
    if isinstance(value, Decimal):
        return value.raw if code == value.code else None
    if isinstance(value, (list, tuple, dict)):
        return _body_of_compound(code, encode_value(value, depth))
    return None


def _body_of_bool(code: int, value: bool) -> bytes | None:
    if code == 0x56:
        return b"\1" if value else b"\0"
    return b"" if code == (0x41 if value else 0x42) else None


def _body_of_int(code: int, value: int) -> bytes | None:
    layout = _INTEGERS.get(code)
    if layout is None:
        return b"" if value == 0 and (code == 0x43 or code == 0x44) else None
    try:
        return value.to_bytes(layout[0], "big", signed=layout[1])
    except OverflowError:
        return None


def _body_of_str(code: int, value: str) -> bytes | None:
    if code == 0xA3 or code == 0xB3:
        return _sized(code, value.encode("ascii"))
    if code == 0xA1 or code == 0xB1:
        return _sized(code, value.encode())
    if code == 0x73 and len(value) == 1 and not 0xD800 <= ord(value) <= 0xDFFF:
        return ord(value).to_bytes(4, "big")
    return None


def _sized(code: int, raw: bytes) -> bytes | None:
    if code & 0x10:
        return four_bytes(len(raw)) + raw
    return _OCTETS[len(raw)] + raw if len(raw) < 256 else None


def _body_of_compound(code: int, whole: bytes) -> bytes | None:
    """Return the part behind the code of a compound's own encoding, with the head that `code`
    requires; None if it does not fit."""
    own = whole[0]
    if own == code:
        return whole[1:]
    if own == 0x45:
        whole = b"\xc0\x01\x00"
        if code == 0xC0:
            return whole[1:]
        own = 0xC0
    if own + 0x10 == code:
        return four_bytes(whole[1] + 3) + four_bytes(whole[2]) + whole[3:]
    return None
