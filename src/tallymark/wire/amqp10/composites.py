"""Described lists [amqp-1.0 §1.4]: performatives, outcomes and sections, written from field tables.

A row of a table is (descriptor, name, class, what it provides, fields), a field is `name:type`,
much as in the standard's XML: `!` behind a mandatory field, `*` behind one of many values, `=value`
behind one with a default. The attributes of the class have the names and the order of the fields.
A field that is absent is None, or its default, or () if it is of many values; what equals that is
not written.

    type         on the wire                          attribute
    boolean      boolean                              bool
    ubyte ...    the integer of that name             int
    timestamp    timestamp, ms since 1970             int
    string       string                               str
    text         string                               str, for people: a ? is written for a lone
                                                      surrogate, so for a byte that is not UTF-8
    symbol       symbol (a string is taken for one)   str
    binary       binary                               bytes
    fields       map of symbols                       Fields; every key is written as symbol
    annotations  map of symbols (and ulongs)          Map; a key that is a str is written as symbol
    map          map                                  Map
    message-id   ulong, uuid, binary or string        ULong (or int), UUID, bytes, str
    any          anything                             object
    another      a composite that provides it         the composite's class
"""

from __future__ import annotations

from typing import Final, final
from uuid import UUID

from tallymark.wire.amqp10.errors import DecodeError, shown
from tallymark.wire.amqp10.reader import Reader
from tallymark.wire.amqp10.types import Array, Encodable, Symbol, ULong
from tallymark.wire.amqp10.writer import (
    compound,
    encode_binary,
    encode_integer,
    encode_string,
    encode_symbol,
    encode_symbol_map,
    encode_text,
    encode_uint,
    encode_ulong,
    encode_value,
    nested,
)

Map = dict[object, object]
Fields = dict[object, object]
"""Map of symbols: every key is a str."""
Row = tuple[int, str, type["Composite"], str, str]


class Composite(Encodable):
    """Base of the classes that have a field table."""

    def encode(self) -> bytes:
        """Encode descriptor and list. Raises ValueError or TypeError if a value does not fit."""
        return self.encode_at(0)

    def encode_at(self, depth: int) -> bytes:
        depth = nested(depth)
        layout = BY_CLASS[type(self)]
        parts: list[bytes] = []
        count = 0
        for field in layout.fields:
            value = getattr(self, field.name)
            if value is None or value == field.default:
                if field.mandatory:
                    raise ValueError(f"{layout.name}.{field.name} is missing")
                parts.append(b"\x40")
            else:
                parts.append(_encode_field(field, value, depth))
                count = len(parts)
        if count == 0:
            return layout.head + b"\x45"
        del parts[count:]
        return layout.head + compound(0xC0, parts)


@final
class Field:
    """One field of a table."""

    __slots__ = ("default", "mandatory", "multiple", "name", "type")

    def __init__(self, text: str) -> None:
        name, _, kind = text.partition(":")
        kind, _, default = kind.partition("=")
        self.mandatory = kind.endswith("!")
        self.multiple = kind.endswith("*")
        self.name = name
        self.type = kind.rstrip("!*")
        self.default: object = () if self.multiple else None
        if default:
            self.default = _default(self.type, default)


def _default(kind: str, text: str) -> object:
    if kind == "boolean":
        return text == "true"
    return text if kind == "symbol" else int(text)


@final
class Layout:
    """One row of a table, parsed."""

    __slots__ = ("code", "fields", "head", "kind", "name", "provides", "symbol")

    def __init__(
        self, code: int, symbol: str, kind: type[Composite], provides: str, fields: str
    ) -> None:
        self.code = code
        self.symbol = symbol
        self.name = symbol.removeprefix("amqp:").removesuffix(":list")
        self.kind = kind
        self.provides = provides
        self.head = bytes((0, 0x53, code))
        """Descriptor as we write it."""
        self.fields = [Field(text) for text in fields.split()]


BY_CODE: Final[dict[int, Layout]] = {}
BY_SYMBOL: Final[dict[str, Layout]] = {}
BY_CLASS: Final[dict[type[Composite], Layout]] = {}


def register(rows: tuple[Row, ...]) -> None:
    """Register the classes of a table with the codec. Called once, by the module that has them."""
    for row in rows:
        layout = Layout(row[0], row[1], row[2], row[3], row[4])
        BY_CODE[layout.code] = layout
        BY_SYMBOL[layout.symbol] = layout
        BY_CLASS[layout.kind] = layout


def read_composite(reader: Reader, provides: str) -> Composite:
    """Decode the composite at reader.pos. Raises DecodeError for one that does not provide this."""
    if reader.octet() != 0:
        raise DecodeError(f"expected a described list that is {_a(provides)}")
    layout = _read_descriptor(reader)
    if layout.provides != provides:
        raise DecodeError(f"{layout.name} where {_a(provides)} was expected")
    return _read_list(reader, layout)


def _a(name: str) -> str:
    return f"an {name}" if name == "error" else f"a {name}"


def _read_descriptor(reader: Reader) -> Layout:
    code = reader.octet()
    layout: Layout | None
    descriptor: object
    if code == 0x53:
        number = reader.octet()
        descriptor = number
        layout = BY_CODE.get(number)
    else:
        descriptor = reader.of(code)
        if isinstance(descriptor, str):
            layout = BY_SYMBOL.get(descriptor)
        elif isinstance(descriptor, int) and (code == 0x80 or code == 0x44):
            layout = BY_CODE.get(descriptor)
        else:
            layout = None
    if layout is None:
        raise DecodeError(f"unknown descriptor {shown(descriptor)}")
    return layout


def _read_list(reader: Reader, layout: Layout) -> Composite:
    code = reader.octet()
    count = 0
    whole = -1
    if code == 0xC0 or code == 0xD0:
        whole = reader.enter(code)
        count = reader.size_of(code)
    elif code != 0x45:
        raise DecodeError(f"{layout.name}: format code 0x{code:02x} where a list was expected")
    fields = layout.fields
    if count > len(fields):
        raise DecodeError(f"{layout.name} of {count} fields, at most {len(fields)} expected")
    values: list[object] = []
    for field in fields:
        if len(values) < count:
            try:
                value = _read_field(reader, field)
            except DecodeError as error:
                raise DecodeError(f"{layout.name}.{field.name}: {error.text}") from None
        else:
            value = None
        if value is None:
            if field.mandatory:
                raise DecodeError(f"{layout.name}.{field.name} is missing")
            value = field.default
        values.append(value)
    if whole >= 0:
        reader.leave(whole)
    return layout.kind(*values)


def _read_field(reader: Reader, field: Field) -> object:
    """Decode the field's value; None if it is absent."""
    code = reader.octet()
    if code == 0x40:
        return None
    if field.multiple:
        return _read_symbols(reader, code)
    return _read_one(reader, field.type, code)


def _read_symbols(reader: Reader, code: int) -> object:
    """Decode a field of many values, which are symbols in all of the standard."""
    if code != 0xE0 and code != 0xF0:
        return (_read_one(reader, "symbol", code),)
    values = reader.array_of(code)
    symbols: list[object] = []
    for value in values:
        if type(value) is str:
            symbols.append(_symbol(value))
        elif type(value) is Symbol:
            symbols.append(value)
        else:
            raise DecodeError(f"array of 0x{values.of:02x} where symbols were expected")
    return tuple(symbols) or None


def _read_one(reader: Reader, kind: str, code: int) -> object:
    if kind == "uint":
        if code == 0x52:
            return reader.octet()
        if code == 0x43:
            return 0
        if code == 0x70:
            return reader.four()
    elif kind == "boolean":
        if code == 0x41 or code == 0x42 or code == 0x56:
            return reader.of(code)
    elif kind == "ubyte":
        if code == 0x50:
            return reader.octet()
    elif kind == "ushort":
        if code == 0x60:
            return int.from_bytes(reader.take(2), "big")
    elif kind == "ulong":
        if code == 0x53:
            return reader.octet()
        if code == 0x44:
            return 0
        if code == 0x80:
            return int.from_bytes(reader.take(8), "big")
    elif kind == "string" or kind == "text":
        if code == 0xA1 or code == 0xB1:
            return reader.text_of(code)
    elif kind == "symbol":
        if code == 0xA3 or code == 0xB3:
            return reader.symbol_of(code)
        if code == 0xA1 or code == 0xB1:
            return _symbol(reader.text_of(code))
    elif kind == "binary":
        if code == 0xA0 or code == 0xB0:
            return reader.take(reader.size_of(code))
    elif kind == "timestamp":
        if code == 0x83:
            return int.from_bytes(reader.take(8), "big", signed=True)
    elif kind == "any":
        return reader.of(code)
    elif kind == "message-id":
        value = reader.of(code)
        if type(value) in _MESSAGE_IDS:
            return value
    elif kind in _MAPS:
        if code == 0xC1 or code == 0xD1:
            values = reader.map_of(code)
            return values if kind == "map" else _symbol_map(values, kind)
    else:
        reader.pos -= 1
        return read_composite(reader, kind)
    raise DecodeError(f"format code 0x{code:02x} where a {kind} was expected")


_MESSAGE_IDS: Final = frozenset((ULong, UUID, bytes, str))
_MAPS: Final = frozenset(("fields", "annotations", "map"))


def _symbol(text: str) -> Symbol:
    if not text.isascii():
        raise DecodeError(f"string {shown(text)} where a symbol was expected")
    return Symbol(text)


def _symbol_map(values: dict[object, object], kind: str) -> dict[object, object]:
    """Return the map with string keys turned into symbols."""
    strings = False
    for key in values:
        if type(key) is str:
            strings = True
        elif kind == "fields" and type(key) is not Symbol:
            raise DecodeError(f"key {shown(key)} where a symbol was expected")
    if not strings:
        return values
    return {_symbol(k) if isinstance(k, str) else k: value for k, value in values.items()}


_SYM8: Final = 0xA3


def _encode_field(field: Field, value: object, depth: int) -> bytes:
    if not field.multiple:
        return _encode_one(field.type, value, depth)
    # A single value may stand for itself [amqp-1.0 §1.4], but an array is what everybody reads.
    assert isinstance(value, (tuple, list))
    return encode_value(Array(value, _SYM8), depth) if value else b"\x40"


def _encode_one(kind: str, value: object, depth: int) -> bytes:
    if kind == "uint":
        assert isinstance(value, int)
        return encode_uint(value)
    if kind == "boolean":
        return b"\x41" if value else b"\x42"
    if kind == "ubyte":
        assert isinstance(value, int)
        return encode_integer(0x50, value)
    if kind == "ushort":
        assert isinstance(value, int)
        return encode_integer(0x60, value)
    if kind == "ulong" or (kind == "message-id" and isinstance(value, int)):
        assert isinstance(value, int)
        return encode_ulong(value)
    if kind == "string":
        assert isinstance(value, str)
        return encode_string(value)
    if kind == "text":
        assert isinstance(value, str)
        return encode_text(value)
    if kind == "symbol":
        assert isinstance(value, str)
        return encode_symbol(value)
    if kind == "binary":
        assert isinstance(value, (bytes, bytearray, memoryview))
        return encode_binary(bytes(value))
    if kind == "timestamp":
        assert isinstance(value, int)
        return encode_integer(0x83, value)
    if kind == "fields" or kind == "annotations":
        assert isinstance(value, dict)
        return encode_symbol_map(value, nested(depth))
    return encode_value(value, depth)


def read_fields(reader: Reader, layout: Layout, first: int, count: int) -> list[object]:
    """Decode `count` fields of a list from field `first` on; absent ones are None."""
    return [_read_field(reader, field) for field in layout.fields[first : first + count]]
