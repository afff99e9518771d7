"""Any bytes give a value or DecodeError, and what was read can be written and read again.

Cases are encoded values, performatives and messages with random damage. The default is quick;
TALLYMARK_FUZZ_CASES=1000000 runs as many, TALLYMARK_FUZZ_SEED another selection.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from tallymark.wire.amqp10.codec import decode, encode, skip
from tallymark.wire.amqp10.composites import BY_CODE, Composite, read_composite
from tallymark.wire.amqp10.errors import DecodeError
from tallymark.wire.amqp10.outcomes import (
    Accepted,
    Error,
    Modified,
    Received,
    Rejected,
    TransactionalState,
)
from tallymark.wire.amqp10.performatives import (
    DELETE_ON_CLOSE,
    Attach,
    Begin,
    Close,
    Coordinator,
    Disposition,
    Flow,
    Open,
    Source,
    Target,
    Transfer,
    decode_performative,
)
from tallymark.wire.amqp10.reader import Reader
from tallymark.wire.amqp10.sasl import SaslInit, SaslMechanisms, SaslOutcome, decode_sasl
from tallymark.wire.amqp10.sections import (
    Data,
    Header,
    Properties,
    Sections,
    Sequences,
    encode_message,
)
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
from tests.support.long import longer, sized

CASES = int(os.environ.get("TALLYMARK_FUZZ_CASES", sized("8000", "40000", "1000000")))
SEED = os.environ.get("TALLYMARK_FUZZ_SEED", "tallymark")

VALUES: list[object] = [
    [None, True, False, UByte(1), UShort(2), UInt(3), UInt(0), UInt(2**31), ULong(4), ULong(2**40)],
    [
        Byte(-1),
        Short(-2),
        Int(-3),
        Int(2**20),
        -4,
        2**40,
        Float(0.5),
        0.25,
        Char("c"),
        Timestamp(9),
    ],
    [
        UUID(int=7),
        b"bytes",
        "text",
        Symbol("symbol"),
        Decimal(0x74, b"1234"),
        "x" * 300,
        b"y" * 300,
    ],
    {"a": 1, Symbol("b"): [2, {3: None}], UInt(4): {}, b"c": Described(ULong(5), [6])},
    Array([Symbol("a"), Symbol("b" * 20)]),
    [
        Array([1, 2]),
        Array([[1], [2]]),
        Array([{}, {1: 2}]),
        Array([None] * 9),
        Array([Array(["x"])]),
    ],
    Array([Described(Symbol("d"), Described(ULong(1), UInt(n))) for n in range(3)]),
    Described(Symbol("example:book:list"), ["AMQP for & by Dummies", Array(["a", "b"]), None]),
]
COMPOSITES: list[Composite] = [
    Open("c", "h", 512, 9, 9, ("en-US",), (), ("a", "b"), ("c",), {"p": "v", "q": [1, 2]}),
    Begin(1, 2, 3, 4, 5),
    Attach(
        "link",
        3,
        True,
        1,
        0,
        Source("q", 2, "never", 5, True, {"lifetime-policy": DELETE_ON_CLOSE}, "copy"),
        Target("t", capabilities=("a",)),
        {b"tag": Accepted()},
        properties={"x": 1},
    ),
    Attach("c", source=Source(filter={"f": Described(Symbol("s"), "a = 1")}), target=Coordinator()),
    Flow(1, 2, 3, 4, 5, 6, 7, 8, True, True, {}),
    Transfer(1, 2, b"tag", 0, False, True, 1, TransactionalState(b"t", Accepted())),
    Disposition(True, 1, 300, True, Rejected(Error("amqp:not-found", "gone", {"k": 1}))),
    Disposition(False, 1, None, False, Modified(True, False, {"x-a": 1})),
    Disposition(False, 1, None, False, Received(1, 2**40)),
    Close(Error("amqp:connection:forced", "stop")),
    SaslMechanisms(("PLAIN", "EXTERNAL")),
    SaslInit("PLAIN", b"\0u\0p", "h"),
    SaslOutcome(1, b"data"),
]
MESSAGES = [
    encode_message(
        Header(True, 7, 1000, True, 2),
        {"x-d": 1},
        {"x-opt-a": "v", ULong(1): 2},
        Properties(ULong(5), b"user", "to", "subject", "reply", UUID(int=1), "text/plain"),
        {"a": 1, "b": "text"},
        b"body",
        {"f": b"crc"},
    ),
    encode_message(body=Data(b"one", b"two")),
    encode_message(properties=Properties(b"id", correlation_id="c"), body=Sequences([1], [2, 3])),
    encode_message(Header(), body={"k": [1, 2.5]}),
]
ENCODED = [*map(encode, VALUES), *[value.encode() for value in COMPOSITES], *MESSAGES]
CODES = bytes(range(0x40, 0x58)) + bytes(range(0x70, 0x85)) + b"\0\xa0\xa1\xa3\xb0\xb1\xb3\xc0\xc1"


def damaged(rng: random.Random, raw: bytes) -> bytes:
    """The same with one to four bytes or pieces changed, lost, doubled or new."""
    data = bytearray(raw)
    for _ in range(rng.randrange(1, 5)):
        if not data:
            break
        at = rng.randrange(len(data))
        size = rng.choice((1, 1, 2, 4, 8))
        what = rng.randrange(7)
        if what == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif what == 1:
            data[at] = rng.choice(CODES + b"\xd0\xd1\xe0\xf0\x24\x28\x1d")
        elif what == 2:
            data[at] = rng.choice((0, 1, 2, 3, 0x7F, 0x80, 0xFE, 0xFF))
        elif what == 3:
            del data[at : at + size]
        elif what == 4:
            data[at:at] = rng.randbytes(size)
        elif what == 5:
            data[at:at] = data[at : at + size]
        else:
            data[at : at + 4] = rng.choice((b"\0\0\0\0", b"\xff\xff\xff\xff", b"\0\0\0\4"))
    return bytes(data)


def answer(read: Callable[[], object]) -> object:
    """What it returns; None where it raises DecodeError."""
    try:
        return read()
    except DecodeError as error:
        refused = error
    assert 0 < len(refused.text) < 400
    assert refused.condition.startswith("amqp:")
    return None


def check_value(raw: bytes) -> bool:
    found = answer(lambda: decode(raw, 0, len(raw)))
    end = answer(lambda: skip(raw, 0, len(raw)))
    if found is None:
        return False
    assert isinstance(found, tuple)
    value, after = found
    assert end == after  # what can be decoded can be skipped
    assert 0 < after <= len(raw)
    again = encode(value)
    assert repr(decode(again, 0, len(again))[0]) == repr(value)  # repr: NaN equals itself
    assert encode(decode(again, 0, len(again))[0]) == again
    return True


def check_composites(raw: bytes) -> bool:
    read = False
    for function in (decode_performative, decode_sasl):
        found = answer(lambda function=function: function(raw, 0, len(raw)))  # type: ignore[misc]
        if found is not None:
            assert isinstance(found, tuple)
            value, after = found
            again = value.encode()
            assert repr(function(again, 0, len(again))[0]) == repr(value)
            assert skip(raw, 0, len(raw)) == after
            read = True
    for provides in {layout.provides for layout in BY_CODE.values()}:
        answer(lambda provides=provides: read_composite(Reader(raw, 0, len(raw)), provides))  # type: ignore[misc]
    return read


SECTION_NAMES = (
    "header",
    "delivery_annotations",
    "message_annotations",
    "properties",
    "application_properties",
    "bodies",
    "footer",
)


def check_message(raw: bytes) -> bool:
    message = answer(lambda: Sections(raw, 0, len(raw)))
    if message is None:
        return False
    assert isinstance(message, Sections)
    ends = [bound[1] for bound in message.bounds[1:]] + [len(raw)]
    for (_, start, value), end in zip(message.bounds, ends, strict=bool(message.bounds)):
        assert start < value < end
        assert skip(raw, value, len(raw)) == end
    for name in SECTION_NAMES:
        answer(lambda name=name: getattr(message, name))  # type: ignore[misc]
    return True


def check(raw: bytes) -> list[bool]:
    return [check_value(raw), check_composites(raw), check_message(raw)]


def test_undamaged_cases_are_read() -> None:
    assert [any(check(raw)) for raw in ENCODED] == [True] * len(ENCODED)


@longer
def test_fuzz_damaged_values() -> None:
    read = [0, 0, 0]
    for number in range(CASES):
        rng = random.Random(f"{SEED}:{number}")
        raw = damaged(rng, rng.choice(ENCODED))
        try:
            results = check(raw)
        except BaseException as error:
            error.add_note(f"case {SEED}:{number}, bytes {raw!r}")
            raise
        read = [count + result for count, result in zip(read, results, strict=True)]
    assert min(read) > CASES // 100  # the cases are not mostly noise


@given(st.binary(max_size=60), st.sampled_from(list(CODES + b"\xd0\xd1\xe0\xf0")))
def test_any_bytes(noise: bytes, code: int) -> None:
    check(noise)
    check(bytes((code,)) + noise)
    check(b"\x00\x53" + noise)
