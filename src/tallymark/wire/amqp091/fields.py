"""Field values and tables [amqp-0.9.1 §4.2.5], with the type tags RabbitMQ uses [rabbitmq errata].

    tag  on the wire                read as                    written for
    t    octet, 0 is false          bool                       bool
    b B  8 bits, signed, unsigned   WireInt(value, tag)        WireInt
    s u  16 bits                    WireInt(value, tag)        WireInt
    I    32 bits, signed            int                        int within 32 bits
    i    32 bits, unsigned          WireInt(value, "i")        WireInt
    l    64 bits, signed            int, or WireInt if small   int beyond 32 bits
    L    64 bits, signed            WireInt(value, "L")        WireInt
    f d  IEEE 754, 32 and 64 bits   Float32, float             Float32, float
    D    scale, 32 bits unsigned    decimal.Decimal            decimal.Decimal
    S    long string                str                        str
    x    byte array                 bytes                      bytes, bytearray
    T    64 bits, seconds           Timestamp                  Timestamp
    A    array                      list                       list, tuple
    F    table                      dict                       dict
    V    nothing                    None                       None

So every value read is written back with the same bytes, and yet a WireInt or a Timestamp is an
int and compares as one. In compiled modules a variable declared `int` holds the bare number, so
pass table values on as `object` where their width matters. Not kept are: a true bool other than 1,
all but the last of equal keys, the payload of a signalling 32 bit NaN. Strings that are not UTF-8
are kept with surrogate escapes (PEP 383).
"""

from __future__ import annotations

from decimal import Decimal
from struct import Struct
from typing import Final, TypeVar, final

from tallymark.wire.amqp091.errors import SYNTAX_ERROR, WireError

DEPTH_MAX: Final = 64
"""Maximum nesting of tables; deeper ones are refused, so that they cannot exhaust our stack."""

_C = TypeVar("_C")


def _python_class(cls: _C) -> _C:
    """Do nothing. mypyc cannot lay out subclasses of int and float, and leaves any class that has
    a decorator to Python."""
    return cls


@_python_class
class WireInt(int):
    """An integer that keeps its width on the wire, one of `b B s u I i l L`."""

    tag: str

    def __new__(cls, value: int, tag: str) -> WireInt:
        if len(tag) != 1 or tag not in _WIDTHS:
            raise ValueError(f"integer tag {tag!r}, expected one of {_WIDTHS}")
        self = int.__new__(cls, value)
        self.tag = tag
        return self

    def __getnewargs__(self) -> tuple[int, str]:  # type: ignore[override]
        return int(self), self.tag


@_python_class
class Float32(float):
    """A float that arrived in 32 bits and is written so."""

    tag = "f"


@_python_class
class Timestamp(int):
    """Seconds since 1970, 0..2^64-1."""

    tag = "T"


_f32: Final = Struct(">f")
_f64: Final = Struct(">d")

# tag: bytes, signed
_INTEGERS: Final[dict[str, tuple[int, bool]]] = {
    "b": (1, True),
    "B": (1, False),
    "s": (2, True),
    "u": (2, False),
    "I": (4, True),
    "i": (4, False),
    "l": (8, True),
    "L": (8, True),
    "T": (8, False),
}
_WIDTHS: Final = "bBsuiIlL"


@final
class Reader:
    """Reads values from data[pos:end]; raises WireError 502 where they do not fit."""

    __slots__ = ("data", "end", "pos")

    def __init__(self, data: bytes, pos: int, end: int) -> None:
        self.data = data
        self.pos = pos
        self.end = end

    def take(self, size: int) -> bytes:
        pos = self.pos
        after = pos + size
        if after > self.end:
            raise WireError(
                SYNTAX_ERROR, f"value of {size} bytes where only {self.end - pos} are left"
            )
        self.pos = after
        return self.data[pos:after]

    def unsigned(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def signed(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big", signed=True)

    def short_string(self) -> str:
        """Read a name, which must be UTF-8."""
        raw = self.take(self.unsigned(1))
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise WireError(SYNTAX_ERROR, f"malformed UTF-8 in short string {raw!r}") from None

    def lenient_short_string(self) -> str:
        """Read a text without effect on routing: bytes that are not UTF-8 become surrogate
        escapes."""
        return self.take(self.unsigned(1)).decode("utf-8", "surrogateescape")

    def text(self) -> str:
        """Read a short string for people: U+FFFD replaces bytes that are not UTF-8, such as those
        of a letter that a peer cut at its 255th byte."""
        return self.take(self.unsigned(1)).decode("utf-8", "replace")

    def long_string(self) -> bytes:
        return self.take(self.unsigned(4))

    def table(self, depth: int = 0) -> dict[str, object]:
        size = self.unsigned(4)
        whole = self._enter(size, depth)
        table: dict[str, object] = {}
        while self.pos < self.end:
            key = self.lenient_short_string()
            table[key] = self.value(depth)
        self.end = whole
        return table

    def array(self, depth: int) -> list[object]:
        size = self.unsigned(4)
        whole = self._enter(size, depth)
        values: list[object] = []
        while self.pos < self.end:
            values.append(self.value(depth))
        self.end = whole
        return values

    def _enter(self, size: int, depth: int) -> int:
        """Narrow the window to the next `size` bytes; return the end to go back to."""
        whole = self.end
        if self.pos + size > whole:
            raise WireError(
                SYNTAX_ERROR, f"table of {size} bytes where only {whole - self.pos} are left"
            )
        if depth > DEPTH_MAX:
            raise WireError(SYNTAX_ERROR, f"tables nested deeper than {DEPTH_MAX}")
        self.end = self.pos + size
        return whole

    def value(self, depth: int) -> object:
        code = self.take(1)
        if code == b"S":
            return self.long_string().decode("utf-8", "surrogateescape")
        if code == b"I":
            return self.signed(4)
        if code == b"t":
            return self.unsigned(1) != 0
        if code == b"F":
            return self.table(depth + 1)
        if code == b"A":
            return self.array(depth + 1)
        if code == b"l":
            long = self.signed(8)
            if _is_small(long):
                return WireInt(long, "l")
            return long
        if code == b"x":
            return self.long_string()
        if code == b"V":
            return None
        if code == b"T":
            return Timestamp(self.unsigned(8))
        return self._number(code)

    def _number(self, code: bytes) -> object:
        if code == b"d":
            return float(_f64.unpack(self.take(8))[0])
        if code == b"f":
            return Float32(_f32.unpack(self.take(4))[0])
        if code == b"D":
            scale = self.unsigned(1)
            return _decimal(self.unsigned(4), scale)
        tag = code.decode("latin-1")
        layout = _INTEGERS.get(tag)
        if layout is None:
            raise WireError(SYNTAX_ERROR, f"field value of unknown type {code!r}")
        size, signed = layout
        return WireInt(self.signed(size) if signed else self.unsigned(size), tag)


def _is_small(value: int) -> bool:
    return -0x8000_0000 <= value < 0x8000_0000


def _decimal(value: int, scale: int) -> Decimal:
    return Decimal((0, tuple([int(digit) for digit in str(value)]), -scale))


def decode_table(raw: bytes) -> dict[str, object]:
    """Decode the table in `raw`, its length first. Raises WireError 502, also for surplus bytes."""
    reader = Reader(raw, 0, len(raw))
    table = reader.table()
    if reader.pos != len(raw):
        raise WireError(SYNTAX_ERROR, f"{len(raw) - reader.pos} bytes after a table")
    return table


def encode_table(table: dict[str, object]) -> bytes:
    """Encode the table, its length first.

    Raises ValueError for what cannot be written: an integer beyond 64 bits, a key above 255
    bytes, a decimal AMQP has no room for. TypeError for a value of another type.
    """
    out = bytearray()
    write_table(out, table)
    return bytes(out)


def write_table(out: bytearray, table: dict[str, object]) -> None:
    start = len(out)
    out += b"\0\0\0\0"
    for key, value in table.items():
        write_short_string(out, key)
        write_value(out, value)
    out[start : start + 4] = (len(out) - start - 4).to_bytes(4, "big")


def write_short_string(out: bytearray, text: str) -> None:
    raw = text.encode("utf-8", "surrogateescape")
    if len(raw) > 255:
        raise ValueError(f"short string of {len(raw)} bytes, at most 255 fit: {text[:40]!r}...")
    out.append(len(raw))
    out += raw


def write_long_string(out: bytearray, raw: bytes) -> None:
    out += len(raw).to_bytes(4, "big")
    out += raw


def write_value(out: bytearray, value: object) -> None:
    """Write tag and value. The subclasses of int and float are tested before int and float."""
    if value is None:
        out += b"V"
    elif isinstance(value, str):
        out += b"S"
        write_long_string(out, value.encode("utf-8", "surrogateescape"))
    elif isinstance(value, bool):
        out += b"t\1" if value else b"t\0"
    elif isinstance(value, WireInt):
        _write_integer(out, value, value.tag)
    elif isinstance(value, Timestamp):
        _write_integer(out, value, "T")
    elif isinstance(value, int):
        _write_integer(out, value, "I" if _is_small(value) else "l")
    elif isinstance(value, Float32):
        out += b"f" + _f32.pack(value)
    elif isinstance(value, float):
        out += b"d" + _f64.pack(value)
    elif isinstance(value, (bytes, bytearray)):
        out += b"x"
        write_long_string(out, bytes(value))
    elif isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"the key {key!r:.80} of a table, expected text")
        out += b"F"
        write_table(out, value)
    elif isinstance(value, (list, tuple)):
        _write_array(out, value)
    elif isinstance(value, Decimal):
        _write_decimal(out, value)
    else:
        raise TypeError(f"no AMQP field type for {type(value).__name__} {value!r}")


def _write_integer(out: bytearray, value: int, tag: str) -> None:
    size, signed = _INTEGERS[tag]
    try:
        raw = value.to_bytes(size, "big", signed=signed)
    except OverflowError:
        raise ValueError(f"integer {value} does not fit {size * 8} bits of type {tag}") from None
    out += tag.encode()
    out += raw


def _write_array(out: bytearray, values: list[object] | tuple[object, ...]) -> None:
    out += b"A\0\0\0\0"
    start = len(out)
    for value in values:
        write_value(out, value)
    out[start - 4 : start] = (len(out) - start).to_bytes(4, "big")


def _write_decimal(out: bytearray, value: Decimal) -> None:
    sign, digits, exponent = value.as_tuple()
    if isinstance(exponent, int) and -255 <= exponent <= 0 and not sign:
        whole = int("".join([str(digit) for digit in digits]))
        if whole < 1 << 32:
            out += b"D" + bytes((-exponent,)) + whole.to_bytes(4, "big")
            return
    raise ValueError(f"decimal {value}, expected 0..2^32-1 with at most 255 decimal places")
