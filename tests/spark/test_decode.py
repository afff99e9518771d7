"""Blocks to Arrow: the vectorised decoder against a naive one that reads message by message."""

from __future__ import annotations

import json
import struct
from array import array
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tallymark.engine.message import Payload
from tallymark.engine.record import Record
from tallymark.journal import packer
from tallymark.spark import decode, letters, schema
from tallymark.spark.blocks import blocks as blocks_of
from tallymark.spark.decode import decode_answer
from tallymark.spark.header_types import TYPES
from tallymark.stored import layout, records
from tallymark.stored.annotations import Annotations, Death, Route
from tallymark.wire.amqp091 import fields
from tallymark.wire.amqp091.errors import WireError
from tallymark.wire.amqp091.properties import Properties, encode_properties

# -- messages as frames


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def cell(
    body: bytes, section: bytes = b"\0\0", channel: int = 1, split: int = 1 << 17, key: bytes = b"k"
) -> bytes:
    """One message; its body in frames of at most `split` bytes."""
    method = struct.pack(">HHH", 60, 40, 0) + b"\2ex" + bytes([len(key)]) + key + b"\0"
    header = struct.pack(">HHQ", 60, 0, len(body)) + section
    bodies = [frame(3, channel, body[at : at + split]) for at in range(0, len(body), split)]
    return frame(1, channel, method) + frame(2, channel, header) + b"".join(bodies)


def payload_of(cells: list[bytes], first_id: int = 1, routes: list[Route] | None = None) -> Payload:
    cuts = array("I", [0])
    for one in cells:
        cuts.append(cuts[-1] + len(one))
    route = routes[0] if routes else Route("ex", "k")
    return Payload(1, b"".join(cells), cuts, route, routes, first_id, 1_700_000_000_123, True, 4096)


def leased(
    payload: Payload,
    lo: int,
    count: int,
    first: int,
    lease: int,
    flags: int = 0,
    blob: bytes = b"",
    priority: int = 0,
) -> Record:
    return Record(
        records.LEASED, 7, first, count, 0, payload, lo, 3, lease, priority, flags, blob
    )  # fmt: skip


def entry(payload: Payload) -> Record:
    return Record(records.PAYLOAD, 0, payload.first_id, payload.count, payload.arrived_ms, payload)


FENCE = 7


def rows_of(block: bytes, names: tuple[str, ...] = schema.ALL) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for found in decode_answer(block, "q", names, FENCE):
        found.batch.validate(full=True)
        rows += found.batch.to_pylist(maps_as_pydicts="strict")
    return rows


# -- the naive decoder


class Bad(Exception):
    pass


@dataclass
class Cursor:
    data: bytes
    at: int = 0

    def take(self, size: int) -> bytes:
        if self.at + size > len(self.data):
            raise Bad
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def frame(self, kind: int) -> bytes:
        if self.number(1) != kind:
            raise Bad
        self.take(2)
        payload = self.take(self.number(4))
        if self.take(1) != b"\xce":
            raise Bad
        return payload


def text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def naive_value(value: object) -> Any:
    match value:
        case fields.Timestamp() if value <= 253_402_300_799:
            return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        case str():
            return text(value.encode("utf-8", "surrogateescape"))
        case bytes():
            return text(value)
        case Decimal():
            return str(value)
        case dict():
            return {naive_value(k): naive_value(v) for k, v in value.items()}
        case list():
            return [naive_value(v) for v in value]
        case _:
            return value


def naive_headers(table: bytes) -> dict[str, str | None] | None:
    try:
        decoded = fields.decode_table(struct.pack(">I", len(table)) + table)
    except WireError:
        return None
    shown = {}
    for name, value in decoded.items():
        plain = naive_value(value)
        keep = plain is None or isinstance(plain, str)
        shown[naive_value(name)] = plain if keep else json.dumps(plain, ensure_ascii=False)
    return shown


PROPERTIES = (
    "content_type", "content_encoding", "headers", "delivery_mode", "priority", "correlation_id",
    "reply_to", "expiration", "message_id", "app_timestamp", "type", "user_id", "app_id",
    "cluster_id",
)  # fmt: skip


def naive_properties(section: bytes) -> tuple[dict[str, Any], bool]:
    """The properties, and whether the header table could be read. Raises Bad."""
    cursor = Cursor(section)
    flags = cursor.number(2)
    if flags & 3:
        raise Bad
    found: dict[str, Any] = {}
    readable = True
    for place, name in enumerate(PROPERTIES):
        if not flags >> (15 - place) & 1:
            continue
        if name == "headers":
            found[name] = naive_headers(cursor.take(cursor.number(4)))
            readable = found[name] is not None
        elif name in ("delivery_mode", "priority"):
            found[name] = cursor.number(1)
        elif name == "app_timestamp":
            seconds = cursor.number(8)
            known = seconds <= 253_402_300_799
            found[name] = datetime.fromtimestamp(seconds, UTC) if known else None
        else:
            found[name] = text(cursor.take(cursor.number(1)))
    if cursor.at != len(section):
        raise Bad
    return found, readable


def naive(data: bytes) -> dict[str, Any]:
    """Properties, body and malformed of one cell."""
    row: dict[str, Any] = dict.fromkeys(PROPERTIES)
    row.update(body=None, malformed=True)
    cursor = Cursor(data)
    try:
        cursor.frame(1)
        header = cursor.frame(2)
        if len(header) < 14:
            raise Bad
    except Bad:
        return row
    size = int.from_bytes(header[4:12], "big")
    try:
        found, readable = naive_properties(header[12:])
        row.update(found)
        row["malformed"] = not readable
    except Bad:
        pass
    try:
        parts = []
        while cursor.at < len(data):
            parts.append(cursor.frame(3))
        body = b"".join(parts)
        if len(body) != size:
            raise Bad
        row["body"] = body
    except Bad:
        row["malformed"] = True
    return row


# -- what is known beside the bytes

PUBLISHED = Annotations(ttl_ms=1000, more_keys=("cc", "hidden"), bcc=("hidden",))
ONE_DEATH = Annotations(
    route=Route("dlx", "parked"),
    deaths=(
        Death("work", "rejected", 3, "orders", ("new.eu", "cc"), 1_700_000_001_500,
              1_700_000_009_250, 60_000),
    ),
    first_death=("rejected", "work", "orders"),
    last_death=("rejected", "work", "orders"),
    form=3,
)  # fmt: skip
TWO_DEATHS = Annotations(
    route=Route("", "work"),
    deaths=(
        Death("retry", "expired", 2, "dlx", ("parked",), 1_700_000_002_000, 1_700_000_002_000),
        Death("w\udcff", "rejected", 1, "", (), 1_700_000_001_000, 1_700_000_001_000),
    ),
    first_death=("rejected", "w\udcff", ""),
    last_death=None,
    form=1,
)
LATER = b'{"v":9,"deaths":"of a version to come"}'
KNOWN: tuple[Annotations | bytes | None, ...] = (None, PUBLISHED, ONE_DEATH, TWO_DEATHS, LATER)


def blob_of(known: Annotations | bytes | None) -> bytes:
    if known is None:
        return b""
    return known if isinstance(known, bytes) else known.to_bytes()


def naive_place(place: tuple[str, str, str] | None) -> dict[str, str] | None:
    if place is None:
        return None
    reason, queue, exchange = (text(part.encode("utf-8", "surrogateescape")) for part in place)
    return {"reason": reason, "queue": queue, "exchange": exchange}


def naive_letter(row: dict[str, Any], known: Annotations | bytes | None) -> dict[str, Any]:
    """The row as it is once that is known of its message."""
    row |= {"deaths": None, "first_death": None, "last_death": None}
    if isinstance(known, bytes):
        row |= {"exchange": None, "routing_key": None, "expiration": None, "malformed": True}
    elif known is not None and known.deaths:
        assert known.route is not None
        row |= {
            "exchange": known.route.exchange,
            "routing_key": known.route.key,
            "expiration": None,
            "first_death": naive_place(known.first_death),
            "last_death": naive_place(known.last_death),
            "deaths": [
                {
                    "queue": text(death.queue.encode("utf-8", "surrogateescape")),
                    "reason": death.reason,
                    "count": death.count,
                    "exchange": death.exchange,
                    "routing_keys": list(death.keys),
                    "first_time": datetime.fromtimestamp(death.first_ms / 1000, UTC),
                    "last_time": datetime.fromtimestamp(death.last_ms / 1000, UTC),
                    "original_expiration": None if death.ttl_ms < 0 else str(death.ttl_ms),
                }
                for death in known.deaths
            ],
        }
    return row


# -- what is generated

short = st.text(max_size=12)
WIRE_INTS = (
    ("b", -(2**7), 2**7 - 1), ("B", 0, 2**8 - 1), ("s", -(2**15), 2**15 - 1), ("u", 0, 2**16 - 1),
    ("i", 0, 2**32 - 1), ("I", -(2**31), 2**31 - 1), ("l", -(2**31), 2**31 - 1),
    ("L", -(2**63), 2**63 - 1),
)  # fmt: skip
wire_ints = st.one_of(
    [
        st.builds(fields.WireInt, st.integers(low, high), st.just(tag))
        for tag, low, high in WIRE_INTS
    ]
)
plain = st.one_of(
    st.none(), st.booleans(), st.text(max_size=8), st.integers(-(2**63), 2**63 - 1), wire_ints
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(max_size=8),
    st.binary(max_size=8),
    st.builds(fields.Timestamp, st.integers(0, 2**64 - 1)),
    st.decimals(0, 10_000, places=2),
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(short, inner, max_size=3),
    max_leaves=5,
)
headers = st.one_of(
    st.none(),
    st.sampled_from([{}, {"tenant": "acme"}, {"tenant": "acme", "trace": "0af7"}]),
    st.dictionaries(short, st.text(max_size=8), max_size=5),
    st.dictionaries(short, plain, max_size=5),
    st.dictionaries(short, values, max_size=4),
)
sections = st.builds(
    lambda **given: encode_properties(Properties(**given)),
    content_type=st.none() | st.sampled_from(["text/plain", "application/json"]),
    content_encoding=st.none() | short,
    headers=headers,
    delivery_mode=st.none() | st.integers(0, 255),
    priority=st.none() | st.integers(0, 255),
    correlation_id=st.none() | short,
    reply_to=st.none() | short,
    expiration=st.none() | short,
    message_id=st.none() | short,
    timestamp=st.none() | st.integers(0, 2**64 - 1),
    type=st.none() | short,
    user_id=st.none() | short,
    app_id=st.none() | short,
    cluster_id=st.none() | short,
)
cells = st.builds(
    cell,
    st.binary(max_size=60),
    sections | st.binary(min_size=2, max_size=12),
    st.integers(0, 65535),
    st.integers(1, 40) | st.just(1 << 17),
    st.binary(max_size=10),
)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A cell in which a few bytes were changed, or that was cut."""
    data = bytearray(draw(cells))
    for at, value in draw(
        st.lists(st.tuples(st.integers(0, len(data) - 1), st.integers(0, 255)), max_size=3)
    ):
        data[at] = value
    return bytes(data[: draw(st.integers(0, len(data)))] if draw(st.booleans()) else data)


@st.composite
def alike(draw: st.DrawFn) -> list[bytes]:
    """Cells of one size that differ in their bodies alone, but for a byte that was changed in one
    or in all of them."""
    size = draw(st.integers(0, 40))
    section = draw(sections | st.binary(min_size=2, max_size=12))
    split = draw(st.integers(1, 40) | st.just(1 << 17))
    bodies = draw(st.lists(st.binary(min_size=size, max_size=size), min_size=2, max_size=6))
    found = [bytearray(cell(body, section, 7, split)) for body in bodies]
    whole, before = len(found[0]), len(cell(b"", section, 7))
    at = draw(st.none() | st.sampled_from([whole - 1, before]) | st.integers(0, whole - 1))
    if at is not None and at < whole:
        value = draw(st.integers(0, 255))
        for one in draw(st.sampled_from([found, *([one] for one in found)])):
            one[at] = value
    return [bytes(one) for one in found]


@st.composite
def blocks(draw: st.DrawFn, kinds: st.SearchStrategy[bytes]) -> tuple[bytes, list[dict[str, Any]]]:
    """A READ answer, and the rows it stands for: slices of several payloads in any order."""
    out: list[Record] = []
    expected: list[dict[str, Any]] = []
    pieces: list[tuple[Payload, int, int, list[bytes]]] = []
    routes = [Route("", "q"), Route("orders", "new.eu"), Route("orders", "")]
    for number in range(draw(st.integers(1, 3))):
        inside = [*draw(st.lists(kinds, max_size=6)), cell(b"last")]
        own = draw(st.lists(st.sampled_from(routes), min_size=len(inside), max_size=len(inside)))
        payload = payload_of(inside, 100 * number + 1, own if draw(st.booleans()) else None)
        out.append(entry(payload))
        cut = draw(st.integers(0, len(inside)))
        pieces += [(payload, 0, cut, inside), (payload, cut, len(inside), inside)]
    lease = 40
    for payload, lo, hi, inside in draw(st.permutations(pieces)):
        if lo == hi:
            continue
        again = draw(st.booleans())
        known = draw(st.sampled_from(KNOWN)) if draw(st.booleans()) else None
        blob = blob_of(known)
        out.append(leased(payload, lo, hi - lo, 500 + lease, lease, int(again), blob, 9))
        for i in range(lo, hi):
            route = payload.routes[i] if payload.routes else payload.route
            row = {
                "queue": "q",
                "sequence": 500 + lease,
                "lease_sequence": lease,
                "lease_fence": FENCE,
                "broker_message_id": payload.first_id + i,
                "timestamp": datetime.fromtimestamp(1_700_000_000.123, UTC),
                "exchange": route.exchange,
                "routing_key": route.key,
                "redelivered": again,
                **naive(inside[i]),
            }
            expected.append(naive_letter(row, known))
            lease += 1
    return packer.pack(out), expected


def assert_rows(block: bytes, expected: list[dict[str, Any]]) -> None:
    rows = rows_of(block)
    assert len(rows) == len(expected)
    for row, wanted in zip(rows, expected, strict=True):
        wanted.pop("cluster_id")  # walked over, not shown
        assert row == wanted


@given(blocks(cells))
@settings(deadline=None)
def test_whole_messages_decode_as_one_by_one(made: tuple[bytes, list[dict[str, Any]]]) -> None:
    assert_rows(*made)


@given(blocks(damaged()))
@settings(max_examples=200, deadline=None)
def test_damaged_messages_are_marked_and_harm_no_other(
    made: tuple[bytes, list[dict[str, Any]]],
) -> None:
    assert_rows(*made)


@given(alike())
@example([cell(b"")[:-9] + b"\xff" * 7 + b"\xf8\0\0\xce"] * 2)  # announces -8 bytes, has none
@example([cell(b"") + frame(3, 1, b"")] * 2)
@settings(max_examples=400, deadline=None)
def test_messages_that_differ_in_their_bodies_alone_decode_as_one_by_one(
    inside: list[bytes],
) -> None:
    payload = payload_of(inside)
    rows = rows_of(packer.pack([entry(payload), leased(payload, 0, len(inside), 1, 1)]))
    assert len(rows) == len(inside)
    for row, one in zip(rows, inside, strict=True):
        wanted = naive(one)
        wanted.pop("cluster_id")
        assert {name: row[name] for name in wanted} == wanted


@given(blocks(cells), st.lists(st.sampled_from(schema.ALL), min_size=1, unique=True))
@settings(max_examples=30, deadline=None)
def test_chosen_columns_come_in_the_order_asked(
    made: tuple[bytes, list[dict[str, Any]]], names: list[str]
) -> None:
    block, _ = made
    chosen = rows_of(block, tuple(names))
    assert chosen == [{name: row[name] for name in names} for row in rows_of(block)]


@given(blocks(st.one_of(cells, damaged())))
@settings(max_examples=30, deadline=None)
def test_typed_headers_are_those_of_the_text_with_a_type(
    made: tuple[bytes, list[dict[str, Any]]],
) -> None:
    block, _ = made
    for row in rows_of(block, ("headers", "typed_headers")):
        typed = row["typed_headers"]
        if row["headers"] is None:
            assert typed is None
            continue
        assert list(typed) == list(row["headers"])
        for name, said in typed.items():
            assert said["type"] in TYPES
            assert said["value"] == row["headers"][name] or said["type"] == "binary"


@given(blocks(cells), st.data())
@settings(max_examples=50, deadline=None)
def test_any_other_bytes_are_refused(
    made: tuple[bytes, list[dict[str, Any]]], data: st.DataObject
) -> None:
    block = bytearray(made[0])
    at = data.draw(st.integers(0, len(block) - 1))
    block[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(layout.LayoutError):
        rows_of(bytes(block))


def test_a_batch_ends_at_its_row_and_byte_limits() -> None:
    small = payload_of([cell(b"x")] * (decode.BATCH_ROWS + 5))
    block = packer.pack([entry(small), leased(small, 0, small.count, 1, 0)])
    sizes = [found.batch.num_rows for found in decode_answer(block, "q", ("sequence",))]
    assert sizes == [decode.BATCH_ROWS, 5]

    size = decode.BATCH_BYTES // 2 + 1
    large = payload_of([cell(bytes(size)), cell(bytes(size)), cell(bytes(size))])
    block = packer.pack([entry(large), leased(large, 0, 3, 1, 0)])
    sizes = [found.batch.num_rows for found in decode_answer(block, "q", ("sequence", "body"))]
    assert sizes == [1, 1, 1]


def test_a_key_that_comes_twice_keeps_its_last_value() -> None:
    entries = b"\1aS\0\0\0\1x" + b"\1bS\0\0\0\1y" + b"\1aS\0\0\0\1z"
    section = b"\x20\x00" + struct.pack(">I", len(entries)) + entries
    payload = payload_of([cell(b"", section), cell(b"")])
    block = packer.pack([entry(payload), leased(payload, 0, 2, 1, 0)])
    assert [row["headers"] for row in rows_of(block)] == [{"a": "z", "b": "y"}, None]


def test_a_wire_format_we_do_not_know_is_malformed_and_not_guessed_at() -> None:
    payload = payload_of([cell(b"one"), cell(b"two")])
    payload.format = 99
    block = packer.pack([entry(payload), leased(payload, 0, 2, 1, 0)])
    assert [(row["sequence"], row["body"], row["malformed"]) for row in rows_of(block)] == [
        (1, None, True),
        (2, None, True),
    ]


def test_a_row_without_its_payload_is_refused() -> None:
    payload, other = payload_of([cell(b"one")]), payload_of([cell(b"two")])
    block = packer.pack([entry(payload), leased(payload, 0, 1, 1, 0)])
    assert len(rows_of(block)) == 1
    with pytest.raises(layout.LayoutError, match="more messages"):
        rows_of(packer.pack([entry(payload), leased(payload, 0, 2, 1, 0)]))
    assert rows_of(packer.pack([entry(payload), leased(other, 0, 1, 1, 0)])) == []


# -- letters


def test_dl_10_dl_11_a_letter_shows_where_it_was_sent_on_and_no_expiration() -> None:
    section = encode_properties(Properties(expiration="1000", headers={"x-death": "forged"}))
    payload = payload_of([cell(b"a", section), cell(b"b", section)])
    rows = [leased(payload, 0, 1, 1, 0), leased(payload, 1, 1, 2, 1, blob=ONE_DEATH.to_bytes())]
    alive, dead = rows_of(packer.pack([entry(payload), *rows]))
    shown = ("exchange", "routing_key", "expiration", "deaths", "malformed")
    assert [alive[name] for name in shown] == ["ex", "k", "1000", None, False]
    assert (dead["exchange"], dead["routing_key"], dead["expiration"]) == ("dlx", "parked", None)
    assert dead["headers"] == {"x-death": "forged"}  # the publisher's own, as ever
    assert dead["first_death"] == {"reason": "rejected", "queue": "work", "exchange": "orders"}
    (death,) = dead["deaths"]
    assert (death["queue"], death["reason"], death["count"]) == ("work", "rejected", 3)
    assert death["routing_keys"] == ["new.eu", "cc"]
    assert death["original_expiration"] == "60000"
    assert death["last_time"] == datetime(2023, 11, 14, 22, 13, 29, 250_000, UTC)


def test_dl_19_dl_20_a_history_of_a_later_version_is_malformed_and_not_guessed_at() -> None:
    payload = payload_of([cell(b"a"), cell(b"b")])
    rows = [leased(payload, 0, 1, 1, 0, blob=LATER), leased(payload, 1, 1, 2, 1)]
    first, second = rows_of(packer.pack([entry(payload), *rows]))
    assert (first["malformed"], first["exchange"], first["deaths"]) == (True, None, None)
    assert first["body"] == b"a"
    assert (second["malformed"], second["exchange"]) == (False, "ex")


def test_a_browse_shows_letters_too_and_counts_deliveries_without_failures() -> None:
    payload = payload_of([cell(b"a"), cell(b"b"), cell(b"c")])
    blob = TWO_DEATHS.to_bytes()
    live = [
        Record(records.LIVE, 7, 1 + i, 1, 0, payload, i, other=other, reason=4, blob=blob)
        for i, other in enumerate((0, 1 << 32 | 1, 5))
    ]
    rows = rows_of(packer.pack([entry(payload), *live]))
    assert [row["redelivered"] for row in rows] == [False, True, True]
    assert [row["lease_sequence"] for row in rows] == [None] * 3
    assert [row["lease_fence"] for row in rows] == [None] * 3
    assert {row["routing_key"] for row in rows} == {"work"}
    assert [death["queue"] for death in rows[2]["deaths"]] == ["retry", "w\ufffd"]


def test_each_distinct_history_of_a_block_is_read_once() -> None:
    payload = payload_of([cell(b"x")] * 600)
    blobs = (ONE_DEATH.to_bytes(), b"", TWO_DEATHS.to_bytes())
    rows = [leased(payload, i, 1, 1 + i, i, blob=blobs[i % 3]) for i in range(600)]
    data = packer.pack([entry(payload), *rows])
    (block,) = blocks_of(data)
    made = letters.read_table(block, block.rows[1:])
    assert made is not None
    table, index = made
    assert len(table.known) == 3
    assert len(set(index.tolist())) == 3
    found = rows_of(data, ("sequence", "deaths", "routing_key"))
    assert [row["routing_key"] for row in found] == ["parked", "k", "work"] * 200


def test_a_blob_outside_its_block_is_refused() -> None:
    payload = payload_of([cell(b"x")])
    block = bytearray(packer.pack([entry(payload), leased(payload, 0, 1, 1, 0, blob=LATER)]))
    at = 64 + 64 + 60
    block[at : at + 4] = struct.pack("<I", 1 << 20)
    block[56:60] = struct.pack("<I", layout.crc32c(bytes(block[64:])))
    block[60:64] = struct.pack("<I", layout.crc32c(bytes(block[:60])))
    with pytest.raises(layout.LayoutError, match="beyond the text"):
        rows_of(bytes(block))
