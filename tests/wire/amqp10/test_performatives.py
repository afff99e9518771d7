"""Performatives, outcomes and sections as field tables: bytes, defaults, what is refused
[amqp-1.0 §2.7, §3.4, §3.5, §4.5]."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark.wire.amqp10 import outcomes, performatives, sasl, sections
from tallymark.wire.amqp10.codec import decode, encode
from tallymark.wire.amqp10.composites import BY_CLASS, BY_CODE, Composite, Layout, read_composite
from tallymark.wire.amqp10.errors import DECODE_ERROR, DecodeError
from tallymark.wire.amqp10.outcomes import (
    Accepted,
    Declare,
    Declared,
    Discharge,
    Error,
    Modified,
    Received,
    Rejected,
    Released,
    TransactionalState,
)
from tallymark.wire.amqp10.performatives import (
    DELETE_ON_CLOSE,
    Attach,
    Begin,
    Close,
    Coordinator,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    Performative,
    Source,
    Target,
    Transfer,
    decode_performative,
    name_of,
)
from tallymark.wire.amqp10.reader import Reader
from tallymark.wire.amqp10.types import (
    Described,
    Symbol,
    UInt,
    ULong,
)


def performative(raw: bytes) -> Performative:
    """The one performative in `raw`, read at two places of a buffer."""
    found, end = decode_performative(raw, 0, len(raw))
    assert end == len(raw)
    padded = b"\xff" + raw + b"payload"
    again, end = decode_performative(padded, 1, len(padded))
    assert end == len(raw) + 1
    assert again == found
    return found


# One of each with a value in every field, as we write it.
FULL: list[tuple[Composite, bytes]] = [
    (
        Open("c", "h", 512, 7, 1000, ("en-US",), ("de",), ("a", "b"), ("c",), {"p": 1}),
        b"\x00\x53\x10\xc0\x3b\x0a\xa1\x01c\xa1\x01h\x70\0\0\x02\0\x60\0\x07\x70\0\0\x03\xe8"
        b"\xe0\x08\x01\xa3\x05en-US\xe0\x05\x01\xa3\x02de\xe0\x06\x02\xa3\x01a\x01b"
        b"\xe0\x04\x01\xa3\x01c\xc1\x06\x02\xa3\x01p\x55\x01",
    ),
    (
        Begin(1, 2, 3, 4, 5, ("a",), ("b",), {}),
        b"\x00\x53\x11\xc0\x1b\x08\x60\0\1\x52\2\x52\3\x52\4\x52\5"
        b"\xe0\x04\x01\xa3\x01a\xe0\x04\x01\xa3\x01b\xc1\x01\x00",
    ),
    (
        Flow(1, 2, 3, 4, 5, 6, 7, 8, True, True, {"p": 1}),
        b"\x00\x53\x13\xc0\x1b\x0b\x52\1\x52\2\x52\3\x52\4\x52\5\x52\6\x52\7\x52\x08\x41\x41"
        b"\xc1\x06\x02\xa3\x01p\x55\x01",
    ),
    (
        Transfer(1, 2, b"t", 0, True, True, 1, Accepted(), True, True, True),
        b"\x00\x53\x14\xc0\x14\x0b\x52\1\x52\2\xa0\x01t\x43\x41\x41\x50\1\x00\x53\x24\x45"
        b"\x41\x41\x41",
    ),
    (
        Disposition(True, 1, 2, True, Released(), True),
        b"\x00\x53\x15\xc0\x0c\x06\x41\x52\1\x52\2\x41\x00\x53\x26\x45\x41",
    ),
    (
        Detach(1, True, Error("amqp:not-found", "no", {"k": "v"})),
        b"\x00\x53\x16\xc0\x27\x03\x52\1\x41\x00\x53\x1d\xc0\x1e\x03\xa3\x0eamqp:not-found"
        b"\xa1\x02no\xc1\x07\x02\xa3\x01k\xa1\x01v",
    ),
    (End(Error("x")), b"\x00\x53\x17\xc0\x0a\x01\x00\x53\x1d\xc0\x04\x01\xa3\x01x"),
    (Close(Error("x")), b"\x00\x53\x18\xc0\x0a\x01\x00\x53\x1d\xc0\x04\x01\xa3\x01x"),
    (
        Attach(
            "n",
            1,
            True,
            1,
            1,
            Source("s"),
            Target("t"),
            {b"tag": Accepted()},
            True,
            5,
            2**32,
            ("a",),
            ("b",),
            {"p": None},
        ),
        b"\x00\x53\x12\xc0\x48\x0e\xa1\x01n\x52\1\x41\x50\1\x50\1"
        b"\x00\x53\x28\xc0\x04\x01\xa1\x01s\x00\x53\x29\xc0\x04\x01\xa1\x01t"
        b"\xc1\x0a\x02\xa0\x03tag\x00\x53\x24\x45\x41\x52\5\x80\0\0\0\1\0\0\0\0"
        b"\xe0\x04\x01\xa3\x01a\xe0\x04\x01\xa3\x01b\xc1\x05\x02\xa3\x01p\x40",
    ),
    (
        Source(
            "a",
            2,
            "never",
            9,
            True,
            {"lifetime-policy": DELETE_ON_CLOSE},
            "copy",
            {"f": Described(Symbol("d"), "x")},
            Released(),
            ("amqp:accepted:list",),
            ("queue",),
        ),
        b"\x00\x53\x28\xc0\x60\x0b\xa1\x01a\x52\2\xa3\x05never\x52\x09\x41"
        b"\xc1\x16\x02\xa3\x0flifetime-policy\x00\x53\x2b\x45\xa3\x04copy"
        b"\xc1\x0b\x02\xa3\x01f\x00\xa3\x01d\xa1\x01x\x00\x53\x26\x45"
        b"\xe0\x15\x01\xa3\x12amqp:accepted:list\xe0\x08\x01\xa3\x05queue",
    ),
    (
        Target("a", 1, "link-detach", 9, True, {}, ("q",)),
        b"\x00\x53\x29\xc0\x1f\x07\xa1\x01a\x52\1\xa3\x0blink-detach\x52\x09\x41\xc1\x01\x00"
        b"\xe0\x04\x01\xa3\x01q",
    ),
    (Coordinator(("a",)), b"\x00\x53\x30\xc0\x07\x01\xe0\x04\x01\xa3\x01a"),
    (Error("x", "y"), b"\x00\x53\x1d\xc0\x07\x02\xa3\x01x\xa1\x01y"),
    (Received(1, 2), b"\x00\x53\x23\xc0\x05\x02\x52\1\x53\2"),
    (Accepted(), b"\x00\x53\x24\x45"),
    (Rejected(Error("x")), b"\x00\x53\x25\xc0\x0a\x01\x00\x53\x1d\xc0\x04\x01\xa3\x01x"),
    (Released(), b"\x00\x53\x26\x45"),
    (
        Modified(True, False, {"x-a": 1}),
        b"\x00\x53\x27\xc0\x0d\x03\x41\x42\xc1\x08\x02\xa3\x03x-a\x55\x01",
    ),
    (Declared(b"t"), b"\x00\x53\x33\xc0\x04\x01\xa0\x01t"),
    (
        TransactionalState(b"t", Accepted()),
        b"\x00\x53\x34\xc0\x08\x02\xa0\x01t\x00\x53\x24\x45",
    ),
    (Declare(), b"\x00\x53\x31\x45"),
    (Declare("x"), b"\x00\x53\x31\xc0\x04\x01\xa1\x01x"),
    (Discharge(b"t", False), b"\x00\x53\x32\xc0\x05\x02\xa0\x01t\x42"),
]


@pytest.mark.parametrize(("value", "raw"), FULL, ids=lambda v: type(v).__name__)
def test_a_value_in_every_field(value: Composite, raw: bytes) -> None:
    assert value.encode() == raw
    assert encode([value]) == b"\xc0" + bytes((len(raw) + 1, 1)) + raw
    reader = Reader(raw, 0, len(raw))
    found = read_composite(reader, BY_CLASS[type(value)].provides)
    assert reader.pos == len(raw)
    if isinstance(value, Attach):
        # the states in a map of unsettled deliveries are not looked into
        assert isinstance(found, Attach)
        assert found.unsettled == {b"tag": Described(ULong(0x24), [])}
        value.unsettled = found.unsettled
    assert found == value


def test_every_class_has_a_row_here() -> None:
    tables = (performatives.LAYOUTS, outcomes.LAYOUTS, sasl.LAYOUTS, sections.LAYOUTS)
    rows = [row for table in tables for row in table]
    assert len(BY_CODE) == len(BY_CLASS) == len(rows)
    elsewhere = {row[2] for row in (*sasl.LAYOUTS, *sections.LAYOUTS)}
    assert {type(value) for value, _ in FULL} | elsewhere == set(BY_CLASS)


def test_what_is_left_out_is_none_or_the_default_of_the_standard() -> None:
    assert performative(b"\x00\x53\x10\xc0\x04\x01\xa1\x01c") == Open(
        "c", max_frame_size=2**32 - 1, channel_max=65535
    )
    begin = b"\x00\x53\x11\xc0\x05\x04\x40\x43\x43\x43"
    assert performative(begin) == Begin(handle_max=2**32 - 1)
    attach = performative(b"\x00\x53\x12\xc0\x06\x03\xa1\x01n\x43\x42")
    assert attach == Attach("n", snd_settle_mode=2, rcv_settle_mode=0)
    flow = performative(b"\x00\x53\x13\xc0\x05\x04\x40\x43\x43\x43")
    assert flow == Flow()
    assert (Flow().handle, Flow().drain, Flow().echo) == (None, False, False)
    assert performative(b"\x00\x53\x14\xc0\x02\x01\x43") == Transfer()
    assert (Transfer().settled, Transfer().more) == (None, False)
    assert performative(b"\x00\x53\x15\xc0\x03\x02\x42\x43") == Disposition()
    assert performative(b"\x00\x53\x16\xc0\x02\x01\x43") == Detach()
    source = Source()
    assert (source.durable, source.expiry_policy, source.timeout) == (0, "session-end", 0)
    assert source.encode() == b"\x00\x53\x28\x45"


@pytest.mark.parametrize("value", [value for value, _ in FULL], ids=lambda v: type(v).__name__)
def test_every_way_to_write_descriptor_and_list_is_read(value: Composite) -> None:
    layout = BY_CLASS[type(value)]
    raw = value.encode()
    small = raw[3:]
    if small == b"\x45":
        lists = [small, b"\xc0\x01\x00", b"\xd0\0\0\0\4\0\0\0\0", b"\xc0\x02\x01\x40"]
        if not layout.fields:
            lists.pop()
    else:
        assert small[0] == 0xC0
        nulls = len(layout.fields) - small[2]
        lists = [
            small,
            bytes((0xC0, small[1] + nulls, small[2] + nulls)) + small[3:] + b"\x40" * nulls,
            b"\xd0" + (small[1] + 3).to_bytes(4, "big") + b"\0\0\0" + small[2:],
        ]
    for descriptor in (
        b"\x00\x53" + bytes((layout.code,)),
        b"\x00\x80" + layout.code.to_bytes(8, "big"),
        b"\x00\xa3" + bytes((len(layout.symbol),)) + layout.symbol.encode(),
        b"\x00\xb3" + len(layout.symbol).to_bytes(4, "big") + layout.symbol.encode(),
    ):
        for body in lists:
            whole = descriptor + body
            reader = Reader(whole, 0, len(whole))
            assert read_composite(reader, layout.provides).encode() == raw
            assert reader.pos == len(whole)


def test_an_empty_array_is_as_good_as_nothing_and_one_value_as_an_array() -> None:
    for capabilities, read in (
        (b"\xe0\x02\x00\xa3", ()),
        (b"\x40", ()),
        (b"\xa3\x01a", ("a",)),
        (b"\xe0\x04\x01\xa3\x01a", ("a",)),
        (b"\xf0\x00\x00\x00\x0a\x00\x00\x00\x01\xb3\x00\x00\x00\x01a", ("a",)),
        (b"\xe0\x04\x01\xa1\x01a", ("a",)),
    ):
        raw = b"\x00\x53\x30\xc0" + bytes((len(capabilities) + 1, 1)) + capabilities
        found = read_composite(Reader(raw, 0, len(raw)), "target")
        assert found == Coordinator(read)
    assert Coordinator().encode() == b"\x00\x53\x30\x45"
    assert Coordinator(("a",)).encode() == b"\x00\x53\x30\xc0\x07\x01\xe0\x04\x01\xa3\x01a"


def described(code: int, *fields: bytes) -> bytes:
    """A described list of encoded fields."""
    body = b"".join(fields)
    return b"\x00\x53" + bytes((code, 0xC0, len(body) + 1, len(fields))) + body


NULL = b"\x40"
ACCEPTED = b"\x00\x53\x24\x45"
SOURCE = b"\x00\x53\x28\x45"

UNSOUND = [
    (b"", "cut off"),
    (b"\x53\x10\x45", "expected a described list that is a performative"),
    (b"\x00\x53\x0f\x45", "unknown descriptor 15"),
    (b"\x00\x54\x10\x45", r"unknown descriptor Int\(16\)"),
    (b"\x00\xa1\x0eamqp:open:lisp\x45", "unknown descriptor 'amqp:open:lisp'"),
    (b"\x00\x45\x45", r"unknown descriptor \[\]"),
    (SOURCE, "source where a performative was expected"),
    (b"\x00\x53\x40\x45", "sasl-mechanisms where a performative was expected"),
    (b"\x00\x53\x10\x40", "open: format code 0x40 where a list was expected"),
    (b"\x00\x53\x10\xc1\x01\x00", "open: format code 0xc1 where a list was expected"),
    (b"\x00\x53\x10\x45", "open.container_id is missing"),
    (b"\x00\x53\x17\xc0\x03\x01\x40", "3 bytes where only 2 are left"),
    (b"\x00\x53\x17\xc0\x03\x01\x40\x40", "1 bytes behind the last element"),
    (b"\x00\x53\x17\xc0\x00\x01", "cut off"),
    (b"\x00\x53\x10\xd0\0\0\0\x04\xff\xff\xff\xff", "4294967295 fields, at most 10 expected"),
    (described(0x10, NULL), "open.container_id is missing"),
    (described(0x10, b"\xa0\x00"), "open.container_id: format code 0xa0 where a string"),
    (described(0x10, b"\xa1\x01\xff"), "open.container_id: malformed UTF-8"),
    (described(0x17, NULL, NULL), "end of 2 fields, at most 1 expected"),
    (described(0x17, ACCEPTED), "end.error: accepted where an error was expected"),
    (described(0x17, b"\x43"), "end.error: expected a described list that is an error"),
    (described(0x17, described(0x1D)), "end.error: error.condition is missing"),
    (described(0x17, described(0x1D, b"\xa3\x01\x80")), "error.condition: symbol with bytes"),
    (described(0x13, NULL, NULL, b"\x43", b"\x43"), "flow.incoming_window is missing"),
    (described(0x13, NULL, b"\x53\x01", b"\x43", b"\x43"), "0x53 where a uint was expected"),
    (described(0x16, b"\x43", b"\x43"), "0x43 where a boolean was expected"),
    (described(0x16, b"\x71\0\0\0\1"), "0x71 where a uint was expected"),
    (described(0x15, b"\x56\x02", b"\x43"), "boolean of value 2"),
    (described(0x11, b"\x50\0", b"\x43", b"\x43", b"\x43"), "0x50 where a ushort was expected"),
    (described(0x14, b"\x43", b"\x43", b"\xa1\0"), "0xa1 where a binary was expected"),
    (described(0x14, b"\x43", *[NULL] * 5, b"\x52\0"), "0x52 where a ubyte was expected"),
    (
        described(0x15, b"\x41", b"\x43", NULL, NULL, SOURCE),
        "disposition.state: source where a delivery-state was expected",
    ),
    (
        described(0x15, b"\x41", b"\x43", NULL, NULL, b"\x00\x53\x99\x45"),
        "disposition.state: unknown descriptor 153",
    ),
    (
        described(0x12, b"\xa1\0", b"\x43", b"\x42", NULL, NULL, NULL, SOURCE),
        "attach.target: source where a target was expected",
    ),
    (
        described(0x12, b"\xa1\0", b"\x43", b"\x42", *[NULL] * 7, b"\x70\0\0\0\0"),
        "attach.max_message_size: format code 0x70 where a ulong was expected",
    ),
    (
        described(0x10, b"\xa1\0", *[NULL] * 8, b"\xa1\0"),
        "open.properties: format code 0xa1 where a fields was expected",
    ),
    (
        described(0x10, b"\xa1\0", *[NULL] * 8, b"\xc1\x03\x02\x43\x40"),
        r"open.properties: key UInt\(0\) where a symbol was expected",
    ),
    (
        described(0x10, b"\xa1\0", *[NULL] * 6, b"\xe0\x03\x01\x50\x01"),
        "open.offered_capabilities: array of 0x50 where symbols were expected",
    ),
    (
        described(0x10, b"\xa1\0", *[NULL] * 6, b"\x50\x01"),
        "open.offered_capabilities: format code 0x50 where a symbol was expected",
    ),
]


@pytest.mark.parametrize(("raw", "text"), UNSOUND)
def test_what_is_no_performative_is_a_decode_error(raw: bytes, text: str) -> None:
    with pytest.raises(DecodeError, match=text) as caught:
        decode_performative(raw, 0, len(raw))
    assert caught.value.condition == DECODE_ERROR


def test_a_string_is_taken_for_a_symbol() -> None:
    error = described(0x1D, b"\xa1\x01x", NULL, b"\xc1\x05\x02\xa1\x01k\x40")
    found = performative(described(0x17, error))
    assert found == End(Error("x", None, {"k": None}))
    assert found == performative(found.encode())
    names = b"\xe0\x04\x01\xa1\x01a"
    found = performative(described(0x10, b"\xa1\0", *[NULL] * 6, names))
    assert isinstance(found, Open)
    assert type(found.offered_capabilities[0]) is Symbol
    annotations = b"\xc1\x08\x04\xa1\x01k\x40\x53\x05\x41"
    modified = described(0x27, NULL, NULL, annotations)
    found = performative(described(0x15, b"\x41", b"\x43", NULL, NULL, modified))
    assert isinstance(found, Disposition)
    assert found.state == Modified(message_annotations={"k": None, 5: True})
    for foreign in (
        described(0x1D, b"\xa1\x02\xc3\xa9"),
        described(0x1D, b"\xa3\x01x", NULL, b"\xc1\x06\x02\xa1\x02\xc3\xa9\x40"),
    ):
        raw = described(0x17, foreign)
        with pytest.raises(DecodeError, match="string 'é' where a symbol was expected"):
            decode_performative(raw, 0, len(raw))


def test_states_within_states_are_limited() -> None:
    raw = ACCEPTED
    for _ in range(500):
        raw = b"\x00\x53\x34\xd0" + (len(raw) + 7).to_bytes(4, "big") + b"\0\0\0\2\xa0\x01t" + raw
    with pytest.raises(DecodeError, match="nested deeper than 64"):
        read_composite(Reader(raw, 0, len(raw)), "delivery-state")
    state = TransactionalState(b"t")
    for _ in range(500):
        state = TransactionalState(b"t", state)
    with pytest.raises(ValueError, match="nested deeper than 64"):
        state.encode()


def test_values_that_do_not_fit_are_refused() -> None:
    for value in (
        Begin(remote_channel=65536),
        Flow(handle=2**32),
        Flow(link_credit=-1),
        Attach("n", snd_settle_mode=256),
        Attach("n", max_message_size=2**64),
        Error("é"),
        Open("\udcff"),
        Transfer(message_format=2**32),
    ):
        with pytest.raises(ValueError):
            value.encode()


def test_a_mandatory_field_that_is_none_is_refused() -> None:
    def encode_it() -> bytes:
        transfer = Transfer()
        transfer.handle = None  # type: ignore[assignment]
        return transfer.encode()

    with pytest.raises((ValueError, TypeError)):  # the latter where it is compiled, at once
        encode_it()


def test_names_are_those_of_the_standard() -> None:
    assert name_of(Open()) == "open"
    assert name_of(TransactionalState()) == "transactional-state"


symbols = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=20)
plain = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 2**32 - 1).map(UInt),
    st.text(max_size=20),
    st.binary(max_size=20),
    symbols.map(Symbol),
)
fields_maps = st.dictionaries(symbols.map(Symbol), plain, max_size=3)
TYPES: dict[str, st.SearchStrategy[object]] = {
    "boolean": st.booleans(),
    "ubyte": st.integers(0, 255),
    "ushort": st.integers(0, 2**16 - 1),
    "uint": st.integers(0, 2**32 - 1),
    "ulong": st.integers(0, 2**64 - 1),
    "timestamp": st.integers(-(2**63), 2**63 - 1),
    "string": st.text(max_size=300),
    "symbol": symbols,
    "binary": st.binary(max_size=300),
    "fields": fields_maps,
    "annotations": fields_maps,
    "map": st.dictionaries(st.binary(max_size=4), plain, max_size=3),
    "message-id": st.one_of(
        st.integers(0, 2**64 - 1).map(ULong), st.uuids(), st.binary(max_size=9), st.text(max_size=9)
    ),
    "any": plain,
}


def composites(layout: Layout, depth: int = 3) -> st.SearchStrategy[Composite]:
    """Any value of a class, straight from its field table."""
    columns: list[st.SearchStrategy[object]] = []
    for field in layout.fields:
        kind = TYPES.get(field.type)
        if kind is None:
            inner = [x for x in BY_CODE.values() if x.provides == field.type]
            choices = [composites(x, depth - 1) for x in inner] if depth else []
            kind = st.one_of(choices) if choices else st.none()
        if field.multiple:
            kind = st.lists(kind, max_size=3).map(tuple)
        if not field.mandatory and not field.multiple:
            kind = st.one_of(st.just(field.default), kind)
        columns.append(kind)
    return st.tuples(*columns).map(lambda values: layout.kind(*values))


@pytest.mark.parametrize("layout", BY_CODE.values(), ids=lambda layout: layout.name)
def test_any_composite_comes_back_as_it_was(layout: Layout) -> None:
    @given(composites(layout))
    def check(value: Composite) -> None:
        raw = value.encode()
        reader = Reader(raw, 0, len(raw))
        found = read_composite(reader, layout.provides)
        assert reader.pos == len(raw)
        assert found == value
        assert found.encode() == raw
        assert encode(value) == raw
        generic, end = decode(raw, 0, len(raw))
        assert end == len(raw)
        assert isinstance(generic, Described)
        assert generic.descriptor == layout.code

    check()
