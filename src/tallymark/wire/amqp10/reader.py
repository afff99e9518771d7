"""Bytes to values; see codec.py for the layout.

Whatever the bytes, reading ends in a value or in `DecodeError`. It uses no more memory than some
hundred times the bytes it is given: sizes are looked at before use, depth is limited, and so is
what array elements are made of that takes no bytes.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, final
from uuid import UUID

from tallymark.wire.amqp10.errors import DecodeError, shown
from tallymark.wire.amqp10.types import (
    Array,
    Byte,
    Char,
    Decimal,
    Described,
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
from tallymark.wire.octets import u32

DEPTH_MAX: Final = 64
"""Maximum nesting of values, for reading and writing."""
FREE_MAX: Final = 65_536
"""Maximum number of array values without bytes in one call of `decode`: elements of a type without
any, and values described more than once."""
UUID_KEYS_MAX: Final = 64
"""Maximum number of map keys that are uuids. They hash as numbers, so that many with one hash can
be made up, and filling a dict with those takes time by the square of their number."""

_u16: Final = Struct(">H")
_i16: Final = Struct(">h")
_i32: Final = Struct(">i")
_u64: Final = Struct(">Q")
_i64: Final = Struct(">q")
_f32: Final = Struct(">f")
_f64: Final = Struct(">d")


@final
class Reader:
    """Reads values from data[pos:end]; raises DecodeError where they do not fit."""

    __slots__ = ("data", "depth", "end", "free", "pos")

    def __init__(self, data: bytes, pos: int, end: int) -> None:
        self.data = data
        self.pos = pos
        self.end = end
        self.depth = 0
        self.free = FREE_MAX

    def octet(self) -> int:
        pos = self.pos
        if pos >= self.end:
            raise DecodeError("a value is cut off")
        self.pos = pos + 1
        return self.data[pos]

    def take(self, size: int) -> bytes:
        pos = self.pos
        after = pos + size
        if after > self.end:
            raise DecodeError(f"value of {size} bytes where only {self.end - pos} are left")
        self.pos = after
        return self.data[pos:after]

    def signed_octet(self) -> int:
        number = self.octet()
        return number - 256 if number > 127 else number

    def four(self) -> int:
        """Read an unsigned number of four bytes."""
        pos = self.pos
        if pos + 4 > self.end:
            raise DecodeError(f"value of 4 bytes where only {self.end - pos} are left")
        self.pos = pos + 4
        return u32(self.data, pos)

    def size_of(self, code: int) -> int:
        """Read the size field of a variable width, compound or array code."""
        return self.four() if code & 0x10 else self.octet()

    def value(self) -> object:
        return self.of(self.octet())

    def of(self, code: int) -> object:
        """Read the value behind a format code."""
        width = code >> 4
        if width == 0xA or width == 0xB:
            return self._variable(code)
        if width == 5:
            return self._one(code)
        if width == 4:
            return _zero(code)
        if width == 7:
            return self._four(code)
        if width == 8:
            return self._eight(code)
        if code == 0:
            self._nest()
            descriptor = self.value()
            value = self.value()
            self.depth -= 1
            return Described(descriptor, value)
        if code == 0xC0 or code == 0xD0:
            return self.list_of(code)
        if code == 0xC1 or code == 0xD1:
            return self.map_of(code)
        if code == 0xE0 or code == 0xF0:
            return self.array_of(code)
        if code == 0x60:
            return UShort(_u16.unpack(self.take(2))[0])
        if code == 0x61:
            return Short(_i16.unpack(self.take(2))[0])
        if code == 0x98:
            return UUID(bytes=self.take(16))
        if code == 0x94:
            return Decimal(code, self.take(16))
        raise unknown_code(code)

    def _one(self, code: int) -> object:
        if code == 0x55:
            return self.signed_octet()
        if code == 0x52:
            return UInt(self.octet())
        if code == 0x53:
            return ULong(self.octet())
        if code == 0x54:
            return Int(self.signed_octet())
        if code == 0x56:
            truth = self.octet()
            if truth > 1:
                raise DecodeError(f"boolean of value {truth}, expected 0 or 1")
            return truth == 1
        if code == 0x50:
            return UByte(self.octet())
        if code == 0x51:
            return Byte(self.signed_octet())
        raise unknown_code(code)

    def _four(self, code: int) -> object:
        if code == 0x70:
            return UInt(self.four())
        if code == 0x71:
            return Int(_i32.unpack(self.take(4))[0])
        if code == 0x72:
            return Float(_f32.unpack(self.take(4))[0])
        if code == 0x73:
            number = self.four()
            if number > 0x10FFFF or 0xD800 <= number <= 0xDFFF:
                raise DecodeError(f"char of value 0x{number:x}, expected a Unicode character")
            return Char(chr(number))
        if code == 0x74:
            return Decimal(code, self.take(4))
        raise unknown_code(code)

    def _eight(self, code: int) -> object:
        if code == 0x81:
            return int(_i64.unpack(self.take(8))[0])
        if code == 0x80:
            return ULong(_u64.unpack(self.take(8))[0])
        if code == 0x83:
            return Timestamp(_i64.unpack(self.take(8))[0])
        if code == 0x82:
            return float(_f64.unpack(self.take(8))[0])
        if code == 0x84:
            return Decimal(code, self.take(8))
        raise unknown_code(code)

    def _variable(self, code: int) -> object:
        low = code & 0xF
        if low == 1:
            return self.text_of(code)
        if low == 0:
            return self.take(self.size_of(code))
        if low == 3:
            return self.symbol_of(code)
        raise unknown_code(code)

    def text_of(self, code: int) -> str:
        raw = self.take(self.size_of(code))
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise DecodeError(f"malformed UTF-8 in a string: {shown(raw)}") from None

    def symbol_of(self, code: int) -> str:
        raw = self.take(self.size_of(code))
        if not raw.isascii():
            raise DecodeError(f"symbol with bytes that are not ASCII: {shown(raw)}")
        return Symbol(raw.decode("ascii"))

    def list_of(self, code: int) -> list[object]:
        whole = self.enter(code)
        count = self.size_of(code)
        values: list[object] = []
        for _ in range(count):
            values.append(self.value())
        self.leave(whole)
        return values

    def map_of(self, code: int) -> dict[object, object]:
        whole = self.enter(code)
        count = self.size_of(code)
        if count & 1:
            raise DecodeError(f"map of {count} keys and values, expected an even number")
        values: dict[object, object] = {}
        uuids = 0
        for size in range(count >> 1):
            key = self.value()
            if type(key) is UUID:
                uuids += 1
                if uuids > UUID_KEYS_MAX:
                    raise DecodeError(f"map with more than {UUID_KEYS_MAX} uuids as keys")
            value = self.value()
            try:
                values[key] = value
            except TypeError:
                raise DecodeError(f"map with a {type(key).__name__} as a key") from None
            if len(values) == size:
                raise DecodeError(f"map with the key {shown(key)} twice")
        self.leave(whole)
        return values

    def array_of(self, code: int) -> Array:
        whole = self.enter(code)
        count = self.size_of(code)
        if count == 0 and self.pos == self.end:  # without a constructor: seen, and harmless
            self.leave(whole)
            return Array([], 0x40)
        descriptors: list[object] = []
        of = self.octet()
        while of == 0:
            self._nest()
            descriptors.append(self.value())
            of = self.octet()
        if of not in _CODES:
            raise unknown_code(of)
        free = count if of >> 4 == 4 else 0
        if len(descriptors) > 1:
            free += count * (len(descriptors) - 1)
        self.free -= free
        if self.free < 0:
            raise DecodeError(f"array of {count} elements with {free} values that take no bytes")
        values: list[object] = []
        for _ in range(count):
            value = self.of(of)
            for descriptor in reversed(descriptors):
                value = Described(descriptor, value)
            values.append(value)
        self.depth -= len(descriptors)
        self.leave(whole)
        return Array(values, of)

    def enter(self, code: int) -> int:
        """Narrow the window to the bytes that the size of a compound or an array gives; return the
        end for `leave`."""
        self._nest()
        size = self.size_of(code)
        whole = self.end
        after = self.pos + size
        if after > whole:
            raise DecodeError(f"value of {size} bytes where only {whole - self.pos} are left")
        self.end = after
        return whole

    def leave(self, whole: int) -> None:
        if self.pos != self.end:
            raise DecodeError(f"{self.end - self.pos} bytes behind the last element of a value")
        self.end = whole
        self.depth -= 1

    def _nest(self) -> None:
        self.depth += 1
        if self.depth > DEPTH_MAX:
            raise DecodeError(f"values nested deeper than {DEPTH_MAX}")


def _zero(code: int) -> object:
    if code == 0x40:
        return None
    if code == 0x41:
        return True
    if code == 0x42:
        return False
    if code == 0x43:
        return UInt(0)
    if code == 0x44:
        return ULong(0)
    if code == 0x45:
        return []
    raise unknown_code(code)


def unknown_code(code: int) -> DecodeError:
    return DecodeError(f"unknown format code 0x{code:02x}")


# Every primitive format code of the standard.
_CODES: Final = frozenset(
    b"\x40\x41\x42\x43\x44\x45\x50\x51\x52\x53\x54\x55\x56\x60\x61\x70\x71\x72\x73\x74"
    b"\x80\x81\x82\x83\x84\x94\x98\xa0\xa1\xa3\xb0\xb1\xb3\xc0\xc1\xd0\xd1\xe0\xf0"
)
