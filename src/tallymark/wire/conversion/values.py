"""Conversion of values between AMQP 0-9-1 tables and AMQP 1.0.

    0-9-1                  1.0            0-9-1                  1.0
    t  bool                boolean        f d  float             float, double
    b B s u I i            byte ubyte     D    decimal           decimal64
       integers               ... uint    S    long string       string; binary where not UTF-8
    l L 64 bits            long           x    byte array        binary
    T  seconds             timestamp      A    array             list
    V  nothing             null           F    table             map, keys symbol

In the opposite direction each type returns to its origin, except `L`, which returns as `l`, and a
long string that is not UTF-8, which returns as a byte array. Types that only 1.0 has are converted
as follows: ulong to `l` (text from 2^63 on), symbol and char to text, uuid to its URN, an array to
an array, a described value to the value without its descriptor, and a decimal that does not fit to
text. Times lose fractions of a second. Times beyond the range of the other side become plain
integers: a ulong of seconds, an `l` of milliseconds. docs/conversion.md describes the same for
users.

Types are distinguished by `type`, as every kind of integer is an int. `index` converts one to a
plain number, which `int` does not do in compiled code.
"""

from __future__ import annotations

from decimal import Decimal
from operator import index
from typing import Final, cast
from uuid import UUID

from tallymark.wire.amqp091 import fields
from tallymark.wire.amqp10 import types

LAST_SECOND: Final = ((1 << 63) - 1) // 1000
"""Last second that a timestamp of 1.0 can express."""
DECIMAL64: Final = 0x84
# code: bits, bits of the coefficient, exponent bias, largest coefficient [IEEE 754-2008 §3.5.2]
_DECIMALS: Final[dict[int, tuple[int, int, int, int]]] = {
    0x74: (32, 23, 101, 10**7 - 1),
    0x84: (64, 53, 398, 10**16 - 1),
    0x94: (128, 113, 6176, 10**34 - 1),
}


# -- 0-9-1 to 1.0


def to_amqp10(value: object) -> object:
    """Convert a value from decode_table to one that the AMQP 1.0 codec writes."""
    kind = type(value)
    if kind is str:
        return text_or_bytes(cast(str, value))
    if kind is fields.WireInt:
        return _integer(cast(fields.WireInt, value))
    if kind is fields.Timestamp:
        return time_to_amqp10(index(cast(int, value)))
    if kind is int:
        number = index(cast(int, value))
        if -0x8000_0000 <= number < 0x8000_0000:
            return types.Int(number)  # a separate statement: mypyc makes an expression an int
        if number >= 1 << 63:  # a timestamp that was stored: the journal has its number alone
            return types.ULong(number)
        return number
    if kind is fields.Float32:
        return types.Float(cast(float, value))
    if kind is Decimal:
        return _to_decimal64(cast(Decimal, value))
    if kind is dict:
        table = cast(dict[str, object], value)
        return {_key(name): to_amqp10(item) for name, item in table.items()}
    if kind is list:
        return [to_amqp10(item) for item in cast(list[object], value)]
    return value  # bool, float, bytes, None


def text_or_bytes(text: str) -> object:
    """Return text as it is, or the bytes that it was decoded from if they were not UTF-8."""
    if text.isascii() or is_text(text):
        return text
    return text.encode("utf-8", "surrogateescape")


def is_text(text: str) -> bool:
    """Return whether the text was decoded from valid UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def time_to_amqp10(seconds: int) -> object:
    """Convert a timestamp of 0-9-1: seconds since 1970."""
    if seconds > LAST_SECOND:
        return types.ULong(seconds)
    return types.Timestamp(seconds * 1000)


def _integer(value: fields.WireInt) -> object:
    tag = value.tag
    number = index(cast(int, value))
    if tag == "I":
        return types.Int(number)
    if tag == "i":
        return types.UInt(number)
    if tag == "B":
        return types.UByte(number)
    if tag == "b":
        return types.Byte(number)
    if tag == "u":
        return types.UShort(number)
    if tag == "s":
        return types.Short(number)
    return number  # l, L


def _key(name: str) -> object:
    return types.Symbol(name) if name.isascii() else text_or_bytes(name)


def _to_decimal64(value: Decimal) -> object:
    """Convert a decimal from a table: not negative, below 2^32, at most 255 decimal places."""
    _, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int), value
    bits = (exponent + 398) << 53 | _whole(digits)
    return types.Decimal(DECIMAL64, bits.to_bytes(8, "big"))


# -- 1.0 to 0-9-1


def to_field(value: object, depth: int = 0) -> object:
    """Convert a value of the AMQP 1.0 codec to one that write_value writes. Values nested deeper
    than tables may be are left out."""
    kind = type(value)
    if kind is str or kind is bool or kind is bytes or kind is float:
        return value
    if kind is types.Symbol or kind is types.Char:
        return str(value)
    if kind is dict:
        return _table(cast(dict[object, object], value), depth)
    if kind is list or kind is types.Array:
        if depth >= fields.DEPTH_MAX:
            return None
        return [to_field(item, depth + 1) for item in cast(list[object], value)]
    if kind is types.Described:
        return to_field(cast(types.Described, value).value, depth)
    if kind is types.Timestamp:
        return time_to_field(index(cast(int, value)))
    if kind is UUID:
        return f"urn:uuid:{value}"
    if kind is types.Float:
        return fields.Float32(cast(float, value))
    if kind is types.Decimal:
        return _to_field_decimal(cast(types.Decimal, value))
    return _to_field_integer(value)


def time_to_field(milliseconds: int) -> object:
    """Convert a timestamp of 1.0: milliseconds since 1970, negative before."""
    if milliseconds < 0:
        return fields.WireInt(milliseconds, "l")
    return fields.Timestamp(milliseconds // 1000)


def _to_field_integer(value: object) -> object:
    kind = type(value)
    tag = ""
    if kind is int or kind is types.ULong:
        tag = "l"
    elif kind is types.Int:
        tag = "I"
    elif kind is types.UInt:
        tag = "i"
    elif kind is types.UByte:
        tag = "B"
    elif kind is types.Byte:
        tag = "b"
    elif kind is types.UShort:
        tag = "u"
    elif kind is types.Short:
        tag = "s"
    if not tag:
        return None
    number = index(cast(int, value))
    if number >= 1 << 63:
        return str(number)
    if tag == "I" or (tag == "l" and not -0x8000_0000 <= number < 0x8000_0000):
        return number
    return fields.WireInt(number, tag)


def _table(values: dict[object, object], depth: int) -> object:
    if depth >= fields.DEPTH_MAX:
        return None
    table: dict[str, object] = {}
    for key, value in values.items():
        name = field_name(key)
        if name is not None:
            table[name] = to_field(value, depth + 1)
    return table


def field_name(key: object) -> str | None:
    """Return the key of a map as a name in a table; None if it cannot be one."""
    kind = type(key)
    if kind is bytes:
        name = cast(bytes, key).decode("utf-8", "surrogateescape")
    elif isinstance(key, str) or kind is UUID:
        name = str(key)
    elif isinstance(key, int) and kind is not bool:
        name = str(int(key))
    else:
        return None
    if len(name) > 255 or (not name.isascii() and _size(name) > 255):
        return None
    return name


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogateescape"))


def _to_field_decimal(value: types.Decimal) -> object:
    number = decimal_of(value)
    sign, digits, exponent = number.as_tuple()
    if isinstance(exponent, int) and not sign:
        if 0 < exponent <= 10:
            digits += (0,) * exponent
            exponent = 0
        if -255 <= exponent <= 0 and _whole(digits) < 1 << 32:
            return Decimal((0, digits, exponent))
    return str(number)


def _whole(digits: tuple[int, ...]) -> int:
    return int("".join([str(digit) for digit in digits]))


def decimal_of(value: types.Decimal) -> Decimal:
    """Convert a decimal of 1.0 to a number; its bytes are a binary integer decimal
    [amqp-1.0 §1.6.13]."""
    size, low, bias, largest = _DECIMALS[value.code]
    bits = int.from_bytes(value.raw, "big")
    sign = bits >> (size - 1)
    if bits >> (size - 3) & 3 < 3:
        exponent = bits >> low & ((1 << (size - 1 - low)) - 1)
        coefficient = bits & ((1 << low) - 1)
    elif bits >> (size - 5) & 0xF == 0xF:
        is_nan = bits >> (size - 6) & 1
        return Decimal("NaN") if is_nan else Decimal("-Infinity" if sign else "Infinity")
    else:
        low -= 2
        exponent = bits >> low & ((1 << (size - 3 - low)) - 1)
        coefficient = 4 << low | (bits & ((1 << low) - 1))
    if coefficient > largest:
        coefficient = 0
    return Decimal((sign, tuple([int(digit) for digit in str(coefficient)]), exponent - bias))
