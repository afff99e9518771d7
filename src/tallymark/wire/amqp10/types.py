"""The standard's primitive types as Python values [amqp-1.0 §1.6].

    null       None                     binary     bytes (bytearray, memoryview are written so)
    boolean    bool                     string     str
    ubyte      UByte                    symbol     Symbol
    ushort     UShort                   char       Char
    uint       UInt                     timestamp  Timestamp: ms since 1970
    ulong      ULong                    uuid       uuid.UUID
    byte       Byte                     list       list (tuple is written so)
    short      Short                    map        dict
    int        Int                      array      Array
    long       int                      decimal32, decimal64, decimal128
    float      Float                               Decimal: opaque bytes
    double     float                    described  Described, or a Composite where it is known

A UInt or a Symbol is an int or a str and compares as one; `type(value)` tells them apart. In
compiled modules a variable declared `int` holds the bare number, so pass values on as `object`
where their type matters. Ranges are checked when a value is written, not when it is made.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeVar, final

_C = TypeVar("_C")


def _python_class(cls: _C) -> _C:
    """Do nothing. mypyc cannot lay out subclasses of int, float, str and list, and leaves any class
    that has a decorator to Python."""
    return cls


@_python_class
class UByte(int):
    """0..255"""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"UByte({int(self)})"


@_python_class
class UShort(int):
    """0..65535"""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"UShort({int(self)})"


@_python_class
class UInt(int):
    """0..2^32-1"""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"UInt({int(self)})"


@_python_class
class ULong(int):
    """0..2^64-1"""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"ULong({int(self)})"


@_python_class
class Byte(int):
    """-128..127"""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Byte({int(self)})"


@_python_class
class Short(int):
    """-2^15..2^15-1"""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Short({int(self)})"


@_python_class
class Int(int):
    """-2^31..2^31-1"""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Int({int(self)})"


@_python_class
class Float(float):
    """IEEE 754 binary32. The value is stored as given, and rounded to 32 bits when written."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Float({float(self)!r})"


@_python_class
class Symbol(str):
    """A name of a constrained domain: ASCII."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Symbol({str(self)!r})"


@_python_class
class Char(str):
    """One Unicode character."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Char({str(self)!r})"


@_python_class
class Timestamp(int):
    """Milliseconds since 1970, UTC: -2^63..2^63-1"""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Timestamp({int(self)})"


@_python_class
class Array(list[object]):
    """Values of one type, written with one constructor.

    `of` is that constructor's format code, 0 for what fits the first value; where it names a width
    that some value does not fit, the next wider one of the same type is written. Elements of a
    described type are `Described`, with equal descriptors, and `of` is the code of what they
    describe. Equal to a list of equal values.
    """

    __slots__ = ("of",)

    def __init__(self, values: Iterable[object] = (), of: int = 0) -> None:
        super().__init__(values)
        self.of = of

    def __reduce__(self) -> tuple[object, ...]:
        return Array, (list(self), self.of)

    def __repr__(self) -> str:
        return f"Array({list(self)!r}, of=0x{self.of:02x})"


class Encodable:
    """Base of the classes that encode themselves, descriptor and value, so that the codec need not
    know them."""

    def encode_at(self, depth: int) -> bytes:
        """depth: count of values around this one."""
        raise NotImplementedError


@final
class Boolean(Encodable):
    """A boolean that is written in two bytes, code and value. A plain bool is one byte; some
    clients know only the longer form as a typed value."""

    __slots__ = ("value",)

    def __init__(self, value: bool) -> None:
        self.value = value

    def encode_at(self, depth: int) -> bytes:
        return b"\x56\x01" if self.value else b"\x56\x00"

    def __repr__(self) -> str:
        return f"Boolean({self.value})"


@final
class Described:
    """A value with a descriptor: ULong or Symbol in practice, any value by the standard. Not
    hashable, so no key of a map."""

    __slots__ = ("descriptor", "value")

    def __init__(self, descriptor: object, value: object) -> None:
        self.descriptor = descriptor
        self.value = value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Described):
            return NotImplemented
        return self.descriptor == other.descriptor and self.value == other.value

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Described({self.descriptor!r}, {self.value!r})"


@final
class Decimal:
    """A decimal floating point number in encoded form: format code 0x74, 0x84 or 0x94 and its 4, 8
    or 16 bytes."""

    __slots__ = ("code", "raw")

    def __init__(self, code: int, raw: bytes) -> None:
        if DECIMAL_SIZES.get(code) != len(raw):
            raise ValueError(
                f"decimal of code 0x{code:02x} with {len(raw)} bytes, expected 0x74 with 4, "
                "0x84 with 8 or 0x94 with 16"
            )
        self.code = code
        self.raw = raw

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Decimal):
            return NotImplemented
        return self.code == other.code and self.raw == other.raw

    def __hash__(self) -> int:
        return hash((self.code, self.raw))

    def __repr__(self) -> str:
        return f"Decimal(0x{self.code:02x}, {self.raw!r})"


DECIMAL_SIZES: Final[dict[int, int]] = {0x74: 4, 0x84: 8, 0x94: 16}
