"""Values and bytes: every constructor of the standard, the smallest encodings, and what is refused
[amqp-1.0 §1.2 to §1.6]."""

from __future__ import annotations

import copy
import math
import pickle
import struct
from uuid import UUID

import pytest

from tallymark.wire.amqp10.codec import decode, encode, encode_into, skip
from tallymark.wire.amqp10.errors import DECODE_ERROR, DecodeError
from tallymark.wire.amqp10.reader import DEPTH_MAX, FREE_MAX, UUID_KEYS_MAX
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

UUID_1 = UUID("00112233-4455-6677-8899-aabbccddeeff")


def whole(raw: bytes) -> object:
    """The one value in `raw`, read at two places of a buffer."""
    value, end = decode(raw, 0, len(raw))
    assert end == len(raw)
    padded = b"\xff\xff" + raw + b"\x40"
    again, end = decode(padded, 2, len(padded))
    assert end == len(raw) + 2
    assert type(again) is type(value)
    assert encode(again) == encode(value)
    assert skip(padded, 2, len(padded)) == len(raw) + 2
    return value


# Every format code of [amqp-1.0 §1.6]; `small`: whether it is how we write that value.
CONSTRUCTORS: list[tuple[bytes, object, bool]] = [
    (b"\x40", None, True),
    (b"\x41", True, True),
    (b"\x42", False, True),
    (b"\x56\x01", True, False),
    (b"\x56\x00", False, False),
    (b"\x50\xff", UByte(255), True),
    (b"\x60\xff\xfe", UShort(65534), True),
    (b"\x70\x00\x00\x01\x00", UInt(256), True),
    (b"\x70\xff\xff\xff\xff", UInt(2**32 - 1), True),
    (b"\x70\x00\x00\x00\x05", UInt(5), False),
    (b"\x52\xff", UInt(255), True),
    (b"\x52\x00", UInt(0), False),
    (b"\x43", UInt(0), True),
    (b"\x80" + b"\xff" * 8, ULong(2**64 - 1), True),
    (b"\x80" + b"\x00" * 8, ULong(0), False),
    (b"\x53\x01", ULong(1), True),
    (b"\x44", ULong(0), True),
    (b"\x51\x80", Byte(-128), True),
    (b"\x61\x80\x00", Short(-(2**15)), True),
    (b"\x71\x80\x00\x00\x00", Int(-(2**31)), True),
    (b"\x71\xff\xff\xff\xff", Int(-1), False),
    (b"\x54\x80", Int(-128), True),
    (b"\x54\x7f", Int(127), True),
    (b"\x81\x80" + b"\x00" * 7, -(2**63), True),
    (b"\x81" + b"\xff" * 8, -1, False),
    (b"\x55\xff", -1, True),
    (b"\x55\x7f", 127, True),
    (b"\x72\x3f\x80\x00\x00", Float(1.0), True),
    (b"\x82\xc0\x09\x21\xfb\x54\x44\x2d\x18", -math.pi, True),
    (b"\x74\x22\x50\x00\x01", Decimal(0x74, b"\x22\x50\x00\x01"), True),
    (b"\x84" + b"\x22" * 8, Decimal(0x84, b"\x22" * 8), True),
    (b"\x94" + b"\x22" * 16, Decimal(0x94, b"\x22" * 16), True),
    (b"\x73\x00\x01\xf6\x00", Char("\U0001f600"), True),
    (b"\x83\xff\xff\xff\xff\xff\xff\xff\xff", Timestamp(-1), True),
    (b"\x98" + UUID_1.bytes, UUID_1, True),
    (b"\xa0\x02\x00\xff", b"\x00\xff", True),
    (b"\xa0\x00", b"", True),
    (b"\xb0\x00\x00\x00\x01\xff", b"\xff", False),
    (b"\xb0\x00\x00\x01\x00" + b"x" * 256, b"x" * 256, True),
    (b"\xa1\x03\xe2\x82\xac", "€", True),
    (b"\xb1\x00\x00\x00\x01a", "a", False),
    (b"\xb1\x00\x00\x01\x00" + b"a" * 256, "a" * 256, True),
    (b"\xa3\x01a", Symbol("a"), True),
    (b"\xb3\x00\x00\x00\x01a", Symbol("a"), False),
    (b"\xb3\x00\x00\x01\x00" + b"a" * 256, Symbol("a" * 256), True),
    (b"\x45", [], True),
    (b"\xc0\x01\x00", [], False),
    (b"\xd0\x00\x00\x00\x04\x00\x00\x00\x00", [], False),
    (b"\xc0\x03\x02\x40\x41", [None, True], True),
    (b"\xd0\x00\x00\x00\x05\x00\x00\x00\x01\x41", [True], False),
    (b"\xc1\x01\x00", {}, True),
    (b"\xd1\x00\x00\x00\x04\x00\x00\x00\x00", {}, False),
    (b"\xc1\x06\x02\xa1\x01a\x55\x05", {"a": 5}, True),
    (b"\xc1\x07\x04\x41\x40\xa3\x01s\x42", {True: None, Symbol("s"): False}, True),
    (b"\xe0\x06\x02\xa3\x01a\x01b", Array([Symbol("a"), Symbol("b")], 0xA3), True),
    (b"\xe0\x02\x00\x70", Array([], 0x70), True),
    (b"\xe0\x01\x00", Array([], 0x40), False),
    (b"\xe0\x02\x03\x41", Array([True] * 3, 0x41), True),
    (b"\xe0\x04\x02\x56\x01\x00", Array([True, False], 0x56), True),
    (b"\xf0\x00\x00\x00\x07\x00\x00\x00\x02\x50\x01\x02", Array([1, 2], 0x50), False),
    (b"\xe0\x05\x01\xc0\x02\x01\x41", Array([[True]], 0xC0), True),
    (b"\xe0\x08\x02\xe0\x02\x00\x50\x02\x00\x50", Array([Array([], 0x50)] * 2, 0xE0), True),
    (b"\x00\x53\x05\x41", Described(ULong(5), True), True),
    (b"\x00\x80" + b"\x00" * 7 + b"\x05\x41", Described(ULong(5), True), False),
    (b"\x00\xa3\x01d\x00\x44\x45", Described(Symbol("d"), Described(ULong(0), [])), True),
    (
        b"\xe0\x06\x02\x00\x44\x50\x01\x02",
        Array([Described(ULong(0), UByte(1)), Described(ULong(0), UByte(2))], 0x50),
        True,
    ),
]


@pytest.mark.parametrize(("raw", "value", "small"), CONSTRUCTORS)
def test_each_constructor_is_read(raw: bytes, value: object, small: bool) -> None:
    found = whole(raw)
    assert found == value
    assert type(found) is type(value)
    if isinstance(found, Array) and isinstance(value, Array):
        assert found.of == value.of
    if small:
        assert encode(value) == raw
        assert encode(found) == raw
    else:
        assert whole(encode(value)) == value


def test_there_is_a_constructor_here_for_every_format_code() -> None:
    fixed = {0x40, 0x41, 0x42, 0x43, 0x44, 0x45, 0x50, 0x51, 0x52, 0x53, 0x54, 0x55, 0x56}
    fixed |= {0x60, 0x61, 0x70, 0x71, 0x72, 0x73, 0x74, 0x80, 0x81, 0x82, 0x83, 0x84, 0x94, 0x98}
    variable = {0xA0, 0xA1, 0xA3, 0xB0, 0xB1, 0xB3}
    compound = {0xC0, 0xC1, 0xD0, 0xD1, 0xE0, 0xF0}
    assert {row[0][0] for row in CONSTRUCTORS} == {0} | fixed | variable | compound


STANDARD = [
    # [amqp-1.0 figure 1.1]
    (b"\xa1\x1eHello Glorious Messaging World", "Hello Glorious Messaging World"),
    # [amqp-1.0 figure 1.2]
    (
        b"\x00\xa1\x03URL\xa1\x1ehttp://example.org/hello-world",
        Described("URL", "http://example.org/hello-world"),
    ),
    # [amqp-1.0 §1.4], the composite type "book"
    (
        b"\x00\xa3\x11example:book:list\xc0\x40\x03\xa1\x15AMQP for & by Dummies"
        b"\xe0\x25\x02\xa1\x0eRob J. Godfrey\x13Rafael H. Schloming\x40",
        Described(
            Symbol("example:book:list"),
            [
                "AMQP for & by Dummies",
                Array(["Rob J. Godfrey", "Rafael H. Schloming"], 0xA1),
                None,
            ],
        ),
    ),
]


@pytest.mark.parametrize(("raw", "value"), STANDARD)
def test_the_examples_of_the_standard(raw: bytes, value: object) -> None:
    assert whole(raw) == value
    assert encode(value) == raw


# What python-qpid-proton 0.40 writes (proton.Data().put_object(...).encode()).
PROTON: list[tuple[bytes, object]] = [
    (b"@", None),
    (b"A", True),
    (b"P\x07", UByte(7)),
    (b"Q\xf9", Byte(-7)),
    (b"`\x02\xbc", UShort(700)),
    (b"a\xfdD", Short(-700)),
    (b"C", UInt(0)),
    (b"R\x07", UInt(7)),
    (b"p\x00\x01\x11p", UInt(70000)),
    (b"D", ULong(0)),
    (b"S\x07", ULong(7)),
    (b"\x80\x00\x00\x01\x00\x00\x00\x00\x00", ULong(1099511627776)),
    (b"T\xf9", Int(-7)),
    (b"q\x00\x01\x11p", Int(70000)),
    (b"U\xf9", -7),
    (b"\x81\x00\x00\x01\x00\x00\x00\x00\x00", 1099511627776),
    (b"r?\xc0\x00\x00", Float(1.5)),
    (b"\x82\xc0\x02\x00\x00\x00\x00\x00\x00", -2.25),
    (b"s\x00\x00\x00\xdf", Char("ß")),
    (b"\x83\x00\x00\x01\x8b\xcf\xe5h\x00", Timestamp(1700000000000)),
    (b'\x98\x00\x11"3DUfw\x88\x99\xaa\xbb\xcc\xdd\xee\xff', UUID_1),
    (b't"P\x00\x01', Decimal(0x74, b"\x22\x50\x00\x01")),
    (b'\x84"8\x00\x00\x00\x00\x00\x01', Decimal(0x84, b"\x22\x38\0\0\0\0\0\1")),
    (
        b'\x94"\x08\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01',
        Decimal(0x94, b"\x22\x08" + b"\0" * 13 + b"\1"),
    ),
    (b"\xa0\x02\x00\xff", b"\0\xff"),
    (b"\xa1\x05gr\xc3\xbcn", "grün"),
    (b"\xa3\x05x-opt", Symbol("x-opt")),
    (
        b"\xd0\x00\x00\x00\x14\x00\x00\x00\x04U\x01\xa1\x01a@\xd0\x00\x00\x00\x05\x00\x00\x00\x01A",
        [1, "a", None, [True]],
    ),
    (
        b"\xd1\x00\x00\x00\x15\x00\x00\x00\x04\xa3\x01aS\x03\xa1\x01b\xd1\x00\x00\x00\x04\x00\x00\x00\x00",
        {Symbol("a"): ULong(3), "b": {}},
    ),
    (b"\x00S$E", Described(ULong(0x24), [])),
    (
        b"\xf0\x00\x00\x00\x10\x00\x00\x00\x02\xb3\x00\x00\x00\x01a\x00\x00\x00\x02bc",
        Array([Symbol("a"), Symbol("bc")]),
    ),
    (
        b"\xf0\x00\x00\x00\r\x00\x00\x00\x02q\x00\x00\x00\x01\xff\xff\xff\xfe",
        Array([Int(1), Int(-2)]),
    ),
    (
        b"\xf0\x00\x00\x00\x13\x00\x00\x00\x02\x00\xa3\x01d\xb1\x00\x00\x00\x01a\x00\x00\x00\x01b",
        Array([Described(Symbol("d"), "a"), Described(Symbol("d"), "b")]),
    ),
    (
        b"\xf0\x00\x00\x00\x17\x00\x00\x00\x02\xd0\x00\x00\x00\x06\x00\x00\x00\x01U\x01\x00\x00\x00\x04\x00\x00\x00\x00",
        Array([[1], []]),
    ),
]


@pytest.mark.parametrize(("raw", "value"), PROTON)
def test_bytes_of_proton_are_read(raw: bytes, value: object) -> None:
    found = whole(raw)
    assert found == value
    assert type(found) is type(value)
    assert whole(encode(value)) == value


@pytest.mark.parametrize(
    ("value", "raw"),
    [
        ((1, "a"), b"\xc0\x06\x02\x55\x01\xa1\x01a"),
        (bytearray(b"x"), b"\xa0\x01x"),
        (memoryview(b"x"), b"\xa0\x01x"),
        (Array([1, 2]), b"\xe0\x12\x02\x81" + struct.pack(">qq", 1, 2)),
        (Array([True]), b"\xe0\x03\x01\x56\x01"),
        (Array([]), b"\xe0\x02\x00\x40"),
        (Array([UInt(1), UInt(300)], 0x52), b"\xe0\x0a\x02\x70\0\0\0\1\0\0\1\x2c"),
        (Array([True, False], 0x41), b"\xe0\x04\x02\x56\x01\x00"),
        (Array([0, 0], 0x43), b"\xe0\x02\x02\x43"),
        (Array([0, 7], 0x44), b"\xe0\x04\x02\x53\x00\x07"),
        (Array([[], [None]], 0x45), b"\xe0\x07\x02\xc0\x01\x00\x02\x01\x40"),
        (
            Array([{}, {1: 2}], 0xD1),
            b"\xe0\x16\x02\xd1\0\0\0\4\0\0\0\0\0\0\0\x08\0\0\0\2\x55\1\x55\2",
        ),
        (Array(["a", "b" * 256]), b"\xf0\0\0\1\x0e\0\0\0\2\xb1\0\0\0\1a\0\0\1\0" + b"b" * 256),
        (Array([None] * 300), b"\xf0\0\0\0\5\0\0\1\x2c\x40"),
        ([None] * 255, b"\xd0\0\0\1\x03\0\0\0\xff" + b"\x40" * 255),
        ([None] * 254, b"\xc0\xff\xfe" + b"\x40" * 254),
    ],
)
def test_how_other_values_are_written(value: object, raw: bytes) -> None:
    assert encode(value) == raw
    out = bytearray(b"before")
    encode_into(out, value)
    assert out == b"before" + raw
    assert encode(decode(raw, 0, len(raw))[0]) == raw


@pytest.mark.parametrize("kind", [UInt, ULong, Int, int])
@pytest.mark.parametrize("value", [0, 127, 128, 255, 256, 2**31 - 1])
def test_numbers_at_the_limits_of_an_encoding(kind: type, value: int) -> None:
    for number in (kind(value), kind(-value) if kind in (Int, int) else kind(value)):
        found = whole(encode(number))
        assert found == number
        assert type(found) is kind
    largest = 255 if kind in (UInt, ULong) else 127
    assert (len(encode(kind(value))) <= 2) == (value <= largest)
    if kind in (Int, int):
        assert (len(encode(kind(-value))) == 2) == (value <= 128)


@pytest.mark.parametrize("size", [253, 254, 255, 256, 257, 300])
def test_sizes_at_the_limits_of_an_encoding(size: int) -> None:
    for value in (
        b"x" * size,
        "x" * size,
        Symbol("x" * size),
        [None] * size,
        ["x" * size],
        {"x" * (size - 5): None},
        Array([UByte(1)] * size),
        Array([b"x" * size]),
        Array([None] * size),
        Array(["x" * size]),
        Array([[None] * size]),
        Array([{1: "x" * (size - 5)}]),
    ):
        raw = encode(value)
        assert whole(raw) == value
        if raw[0] & 0x10:  # then nothing shorter would have done
            length, count = struct.unpack_from(">II", raw, 1)
            assert length > 255 if raw[0] < 0xC0 else length - 3 > 255 or count > 255


@pytest.mark.parametrize(
    "value",
    [
        2**63,
        -(2**63) - 1,
        UByte(256),
        UByte(-1),
        UShort(65536),
        UInt(2**32),
        UInt(-1),
        ULong(2**64),
        ULong(-1),
        Byte(128),
        Short(-(2**15) - 1),
        Int(2**31),
        Timestamp(2**63),
        Symbol("é"),
        "\udcff",
        Char(""),
        Char("ab"),
        Char("\ud800"),
        Array([1, "a"]),
        Array(["a"], 0x70),
        Array([1], 0x56),
        Array([True], 0x70),
        Array([UInt(2**32)]),
        Array([Described(ULong(1), 1), Described(ULong(2), 1)]),
        Array([Described(ULong(1), 1), 1]),
        Array([1.5], 0xA1),
        Array([None, 1], 0x40),
        Array([b"x"], 0x98),
        Array([1j], 0x98),
    ],
    ids=repr,
)
def test_values_without_room_are_refused(value: object) -> None:
    with pytest.raises(ValueError):
        encode(value)
    out = bytearray(b"as before")
    with pytest.raises(ValueError):
        encode_into(out, [value])
    assert out == b"as before"


@pytest.mark.parametrize("value", [object(), {1, 2}, 1j, [object()], {"a": object()}, Array([1j])])
def test_values_of_no_type_are_refused(value: object) -> None:
    with pytest.raises(TypeError, match="no AMQP type for"):
        encode(value)


def test_values_of_subclasses_are_written_as_what_they_derive_from() -> None:
    class Name(str):
        pass

    class Code(UInt):
        pass

    assert encode(Name("a")) == encode("a")
    assert encode(Code(5)) == encode(UInt(5))
    assert encode(Array([Code(5)])) == encode(Array([UInt(5)]))


def test_a_number_keeps_its_type_and_is_an_int() -> None:
    value = UInt(7)
    assert value == 7
    assert (repr(value), repr(Symbol("s")), repr(Char("c"))) == (
        "UInt(7)",
        "Symbol('s')",
        "Char('c')",
    )
    for kept in (value, Symbol("s"), Array([1], 0x55), Float(0.5)):
        for twin in (copy.deepcopy(kept), pickle.loads(pickle.dumps(kept))):
            assert twin == kept
            assert type(twin) is type(kept)
            assert encode(twin) == encode(kept)


def test_a_decimal_has_the_bytes_its_code_asks_for() -> None:
    with pytest.raises(ValueError, match="0x84 with 4 bytes"):
        Decimal(0x84, b"1234")
    assert Decimal(0x74, b"1234") != Decimal(0x74, b"1235")
    assert hash(Decimal(0x74, b"1234")) == hash(Decimal(0x74, b"1234"))
    assert Decimal(0x74, b"1234") != b"1234"
    assert Described(1, 2) != Described(1, 3)
    assert Described(1, 2) != 2


UNSOUND = [
    (b"", "cut off"),
    (b"\x00", "cut off"),
    (b"\x00\x53\x05", "cut off"),
    (b"\x52", "cut off"),
    (b"\x70\x00\x00\x00", "4 bytes where only 3"),
    (b"\x80" + b"\x00" * 7, "8 bytes where only 7"),
    (b"\x98" + b"\x00" * 15, "16 bytes where only 15"),
    (b"\xa1\x02a", "2 bytes where only 1"),
    (b"\xa1", "cut off"),
    (b"\xb1\x00\x00\x00", "4 bytes where only 3"),
    (b"\xb1\xff\xff\xff\xffa", "4294967295 bytes where only 1"),
    (b"\xd0\xff\xff\xff\xff\x00\x00\x00\x00", "4294967295 bytes where only 4"),
    (b"\xc0\x05\x01\x40", "5 bytes where only 2"),
    (b"\x56\x02", "boolean of value 2"),
    (b"\x73\x00\x11\x00\x00", "char of value 0x110000"),
    (b"\x73\x00\x00\xd8\x00", "char of value 0xd800"),
    (b"\xa1\x01\xff", "malformed UTF-8"),
    (b"\xa1\x03\xed\xa0\x80", "malformed UTF-8"),
    (b"\xa3\x01\x80", "not ASCII"),
    (b"\xc0\x00\x00", "cut off"),
    (b"\xc0\x02\x02\x40", "cut off"),
    (b"\xc0\x03\x01\x40\x40", "1 bytes behind the last element"),
    (b"\xc0\x02\x01\x70\x00\x00\x00\x01", "4 bytes where only 0"),
    (b"\xd0\x00\x00\x00\x03\x00\x00\x00", "4 bytes where only 3"),
    (b"\xd0\x00\x00\x00\x04\xff\xff\xff\xff", "cut off"),
    (b"\xc1\x02\x01\x40", "map of 1 keys and values"),
    (b"\xc1\x05\x04\x40\x41\x40\x42", "the key None twice"),
    (b"\xc1\x09\x04\xa1\x01a\x40\xa3\x01a\x40", "twice"),
    (b"\xc1\x06\x04\x55\x01\x40\x41\x40", "the key True twice"),
    (b"\xc1\x03\x02\x45\x40", "map with a list as a key"),
    (b"\xc1\x05\x02\xc1\x01\x00\x40", "map with a dict as a key"),
    (b"\xc1\x06\x02\x00\x53\x05\x45\x40", "map with a Described as a key"),
    (b"\xe0\x02\x01\x50", "cut off"),
    (b"\xe0\x01\x01", "cut off"),
    (b"\xe0\x04\x01\x50\x01", "4 bytes where only 3"),
    (b"\xe0\x04\x01\x50\x01\x00", "1 bytes behind the last element"),
    (b"\xe0\x02\x00\x57", "unknown format code 0x57"),
    (b"\xe0\x03\x00\x00\x40", "cut off"),
    *[
        (bytes((code,)) + b"\x00" * 20, f"unknown format code 0x{code:02x}")
        for code in (0x01, 0x3F, 0x46, 0x4F, 0x57, 0x62, 0x75, 0x85, 0x90, 0x9F)
    ],
    *[
        (bytes((code,)) + b"\x00" * 20, f"unknown format code 0x{code:02x}")
        for code in (0xA2, 0xAF, 0xB2, 0xC2, 0xD2, 0xE1, 0xF1, 0xFF)
    ],
]


@pytest.mark.parametrize(("raw", "text"), UNSOUND)
def test_bytes_that_are_no_value_are_a_decode_error(raw: bytes, text: str) -> None:
    for padding in (b"", b"\x40" * 3):
        with pytest.raises(DecodeError, match=text) as caught:
            decode(padding + raw, len(padding), len(padding) + len(raw))
        assert caught.value.condition == DECODE_ERROR
        assert str(caught.value) == f"amqp:decode-error: {caught.value.text}"


def test_nothing_behind_the_end_is_read() -> None:
    for raw, _, _ in CONSTRUCTORS:
        for end in range(len(raw)):
            with pytest.raises(DecodeError):
                decode(raw, 0, end)
            with pytest.raises(DecodeError):
                skip(raw, 0, end)


NESTED = [
    (b"\xd0", lambda raw: (len(raw) + 4).to_bytes(4, "big") + b"\0\0\0\1" + raw),
    (b"\xd1", lambda raw: (len(raw) + 5).to_bytes(4, "big") + b"\0\0\0\2\x40" + raw),
    (b"\x00", lambda raw: b"\x44" + raw),
    (b"\x00", lambda raw: raw + b"\x40"),
]


@pytest.mark.parametrize(("code", "around"), NESTED)
def test_nesting_is_limited(code: bytes, around: object) -> None:
    assert callable(around)
    raw = b"\x40"
    for depth in range(1, 20_000):
        raw = code + around(raw)
        if depth == DEPTH_MAX:
            value = whole(raw)
            assert encode(value)
            with pytest.raises(ValueError, match="nested deeper than 64"):
                encode([value])
        if depth == DEPTH_MAX + 1 or depth == 3000:
            with pytest.raises(DecodeError, match="nested deeper than 64"):
                decode(raw, 0, len(raw))
            if depth == 3000:
                break


def test_nesting_of_arrays_and_their_descriptors_is_limited() -> None:
    raw = b"\x00\x44" * 3000 + b"\x50"
    raw = b"\xf0" + (len(raw) + 4).to_bytes(4, "big") + b"\0\0\0\0" + raw
    with pytest.raises(DecodeError, match="nested deeper than 64"):
        decode(raw, 0, len(raw))
    deep: object = Array([])
    for _ in range(DEPTH_MAX - 1):
        deep = Array([deep])
    assert whole(encode(deep)) == deep
    for too_deep in (Array([deep]), [deep]):
        with pytest.raises(ValueError, match="nested deeper than 64"):
            encode(too_deep)
    body = encode(deep)
    raw = b"\xf0" + (len(body) + 4).to_bytes(4, "big") + b"\0\0\0\1" + body
    with pytest.raises(DecodeError, match="nested deeper than 64"):
        decode(raw, 0, len(raw))


def test_an_empty_list_adds_no_depth_when_it_is_written_either() -> None:
    """It is one byte: what was read can be written."""
    for deepest in (b"\x45", encode(Array([[], []], 0x45)), encode({1: []})):
        raw = deepest
        for _ in range(DEPTH_MAX - (1 if len(deepest) > 1 else 0)):
            raw = b"\xd0" + (len(raw) + 4).to_bytes(4, "big") + b"\0\0\0\1" + raw
        whole(raw)
        with pytest.raises(DecodeError, match="nested deeper than 64"):
            decode(b"\0\x44" + raw, 0, len(raw) + 2)


def test_values_side_by_side_are_not_nested() -> None:
    value = [
        [[[]], {1: {}}, Array([[1]]), Array([Described(ULong(1), Described(ULong(2), 3))])]
    ] * (2 * DEPTH_MAX)
    assert whole(encode(value)) == value


def test_a_list_that_holds_itself_is_refused() -> None:
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(ValueError, match="nested deeper than 64"):
        encode(endless)


@pytest.mark.parametrize("code", [0x40, 0x41, 0x42, 0x43, 0x44, 0x45])
def test_elements_without_bytes_are_counted(code: int) -> None:
    def array(count: int) -> bytes:
        return b"\xf0\0\0\0\5" + count.to_bytes(4, "big") + bytes((code,))

    value, _ = decode(array(FREE_MAX), 0, 10)
    assert isinstance(value, Array)
    assert len(value) == FREE_MAX
    for count in (FREE_MAX + 1, 2**32 - 1):
        with pytest.raises(DecodeError, match=f"{count} elements with {count} values that take no"):
            decode(array(count), 0, 10)
    pair = b"\xd0\0\0\0\x18\0\0\0\2" + array(FREE_MAX) + array(1)
    with pytest.raises(DecodeError, match="array of 1 elements with 1 values that take no bytes"):
        decode(pair, 0, len(pair))


def test_descriptors_around_the_elements_of_an_array_are_limited() -> None:
    """Written once, they are made for each element: 60 of them, 65,536 times, of 137 bytes."""

    def array(count: int, descriptors: int, element: bytes) -> bytes:
        size = 4 + 2 * descriptors + len(element)
        head = b"\xf0" + size.to_bytes(4, "big") + count.to_bytes(4, "big")
        return head + b"\0\x44" * descriptors + element

    for raw in (
        array(FREE_MAX // 60 + 1, 60, b"\x43"),
        array(FREE_MAX, 2, b"\x43"),
        array(FREE_MAX // 2 + 1, 3, b"\x50" + bytes(FREE_MAX // 2 + 1)),
    ):
        with pytest.raises(DecodeError, match="values that take no bytes"):
            decode(raw, 0, len(raw))
    many = array(FREE_MAX + 1, 1, b"\x50" + bytes(FREE_MAX + 1))
    value, _ = decode(many, 0, len(many))  # described once, as the standard has it
    assert value == [Described(ULong(0), UByte(0))] * (FREE_MAX + 1)
    assert whole(array(FREE_MAX // 60, 60, b"\x43")) is not None


def test_uuids_that_hash_alike_cost_little() -> None:
    def uuids(number: int) -> dict[object, object]:
        return {UUID(int=5 + i * (2**61 - 1)): None for i in range(number)}

    assert len({hash(key) for key in uuids(9)}) == 1
    assert whole(encode(uuids(UUID_KEYS_MAX))) == uuids(UUID_KEYS_MAX)
    raw = encode(uuids(UUID_KEYS_MAX + 1))
    with pytest.raises(DecodeError, match="map with more than 64 uuids as keys"):
        decode(raw, 0, len(raw))


def test_skip_looks_at_sizes_only() -> None:
    assert skip(b"\xc0\x03\xff\xff\xff", 0, 5) == 5
    assert skip(b"\x5f\x00", 0, 2) == 2  # any code says how wide it is [amqp-1.0 §1.2.1]
    assert skip(b"\x00\x53\x24\x45", 0, 4) == 4
    for raw in (b"\x3f", b"\x00\x01\x40"):
        with pytest.raises(DecodeError, match="unknown format code"):
            skip(raw, 0, len(raw))
    with pytest.raises(DecodeError, match="nested deeper"):
        skip(b"\x00" * 5000, 0, 5000)
