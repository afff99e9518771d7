"""The block: what is packed is unpacked, byte for byte as layout.py draws it."""

from __future__ import annotations

import struct
from array import array
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark.engine.message import Payload
from tallymark.engine.record import Record
from tallymark.journal.packer import REFERENCED, STORED, Packer, pack
from tallymark.journal.unpacking import unpack
from tallymark.stored import layout
from tallymark.stored.annotations import Route
from tallymark.stored.layout import LayoutError, crc32c
from tallymark.stored.records import (
    COUNTERS,
    DEAD_LETTERED,
    DEFINITION,
    ENTERED,
    LEASED,
    LIVE,
    PAYLOAD,
    PENDING,
    SEEN,
    SETTLED,
)
from tests.journal.builders import TIME, all_shown, entering, payload, settling, shown

texts = st.text("aé#.*/\u4e00\udcff", max_size=12)
routes = st.builds(Route, texts, texts)
numbers = st.integers(0, 2**62)
small = st.integers(0, 2**32 - 1)
WITH_PAYLOAD = (ENTERED, LEASED, LIVE, PENDING, DEAD_LETTERED)
WITH_BLOB = (*WITH_PAYLOAD, DEFINITION, COUNTERS, SEEN)


@st.composite
def payloads(draw: st.DrawFn) -> Payload:
    cells = [draw(st.binary(min_size=1, max_size=40)), *draw(st.lists(st.binary(max_size=40)))]
    column = draw(st.booleans())
    return payload(
        cells,
        draw(numbers),
        draw(routes),
        draw(st.lists(routes, min_size=len(cells), max_size=len(cells))) if column else None,
        draw(st.integers(0, 255)),
        draw(st.booleans()),
        draw(small),
    )


@st.composite
def turns(draw: st.DrawFn) -> list[Record]:
    turn: list[Record] = []
    known: list[Payload] = []
    blobs = draw(st.lists(st.binary(max_size=60), min_size=1, max_size=3))
    for _ in range(draw(st.integers(0, 12))):
        kind = draw(st.sampled_from([PAYLOAD, SETTLED, *WITH_BLOB]))
        if kind == PAYLOAD:
            p = draw(payloads())
            known.append(p)
            turn.append(Record(PAYLOAD, 0, p.first_id, p.count, p.arrived_ms, p))
            continue
        meant = None
        if kind in WITH_PAYLOAD and known:
            meant = draw(st.sampled_from(known))
        blob = draw(st.sampled_from(blobs)) if kind in WITH_BLOB else b""
        facts = [draw(numbers) for _ in range(4)]
        record = Record(kind, draw(small), facts[0], draw(small), facts[1], meant, draw(small))
        record.owner, record.other, record.blob = facts[2], facts[3], blob
        record.reason, record.flags = draw(st.integers(0, 255)), draw(st.integers(0, 255))
        turn.append(record)
    return turn


@given(turns(), numbers)
def test_what_is_packed_is_unpacked(turn: list[Record], time_ms: int) -> None:
    before = [r.payload.position for r in turn if r.payload]
    block = pack(turn, time_ms)
    found = unpack(block)
    assert all_shown(found) == all_shown(turn)
    assert [r.payload.position for r in turn if r.payload] == before
    for got, given_ in zip(found, turn, strict=True):
        if got.payload is not None:
            assert given_.payload is not None
            assert got.payload.raw == given_.payload.raw


@given(turns(), st.integers(1, 2**20), st.integers(0, 2**20))
def test_stored_payloads_lie_where_their_position_says(
    turn: list[Record], segment: int, offset: int
) -> None:
    packer = Packer()
    length = packer.load(turn, STORED)
    block = b"".join(packer.finish(segment, 8 * offset, 3, 77, 5, TIME, 0))
    assert len(block) == length
    assert length % 8 == 0
    for record in turn:
        p = record.payload
        if p is not None:
            start = p.position - (segment << 32 | 8 * offset)
            assert block[start : start + p.size] == p.raw


@given(st.lists(turns(), min_size=1, max_size=3), st.lists(st.integers(0, 2), max_size=6))
def test_a_packer_keeps_nothing_of_the_block_before(
    blocks: list[list[Record]], order: list[int]
) -> None:
    used = Packer()
    for number in order:
        turn = blocks[number % len(blocks)]
        packed = []
        for packer in (used, Packer()):
            packer.load(turn, STORED)
            packed.append(b"".join(packer.finish(1, 64, 3, 77, 5, TIME, 0)))
        assert packed[0] == packed[1]


@given(turns())
def test_rows_that_mean_the_same_payload_share_it(turn: list[Record]) -> None:
    found = unpack(pack(turn))
    same = {id(r.payload): id(f.payload) for r, f in zip(turn, found, strict=True)}
    for before, after in zip(turn, found, strict=True):
        assert id(after.payload) == same[id(before.payload)]


@given(turns())
def test_equal_blobs_lie_in_a_block_once_and_come_back_as_one_object(turn: list[Record]) -> None:
    block = pack(turn)
    blobs = {r.blob for r in turn if r.blob}
    bare = pack([without_blob(r) for r in turn])
    assert abs(len(block) - len(bare) - sum(map(len, blobs))) < layout.ALIGN
    first: dict[bytes, bytes] = {}
    for record in unpack(block):
        if record.blob:
            assert first.setdefault(record.blob, record.blob) is record.blob
    assert first.keys() == blobs


def without_blob(r: Record) -> Record:
    return Record(
        r.kind, r.queue, r.first, r.count, r.time_ms, r.payload, r.lo, r.owner, r.other, r.reason,
        r.flags,
    )  # fmt: skip


@given(st.binary(max_size=300))
def test_any_other_bytes_are_a_layout_error(data: bytes) -> None:
    if data:
        with pytest.raises(LayoutError):
            unpack(data)


@given(turns(), st.data())
def test_damaged_rows_under_a_right_checksum_are_a_layout_error_or_records(
    turn: list[Record], data: st.DataObject
) -> None:
    block = bytearray(pack(turn))
    if len(block) == 64:
        return
    for _ in range(data.draw(st.integers(1, 6))):
        block[data.draw(st.integers(64, len(block) - 1))] = data.draw(st.integers(0, 255))
    block[56:60] = struct.pack("<I", crc32c(bytes(block[64:])))
    block[60:64] = struct.pack("<I", crc32c(bytes(block[:60])))
    with suppress(LayoutError):
        unpack(bytes(block))


def test_the_bytes_are_those_of_the_drawing() -> None:
    p = payload([b"abc", b"de"], 700, Route("ex", "k"))
    block = pack([Record(PAYLOAD, 0, 700, 2, TIME, p), Record(ENTERED, 5, 9, 2, TIME + 1, p)], 42)
    tables = struct.pack("<6I", 0, 3, 5, 0, 2, 3) + b"exk" + bytes(5)
    raw_at = 64 + 128 + len(tables)
    rows = struct.pack("<4BIqqIIqqqII", 1, 1, 1, 0, 0, 700, TIME, 2, 0, 0, 5, raw_at, raw_at, 131)
    rows += struct.pack("<4BIqqIIqqqII", 2, 0, 0, 0, 5, 9, TIME + 1, 2, 0, 0, 0, raw_at, 0, 0)
    body = rows + tables + b"abcde" + bytes(3)
    head = struct.pack(
        "<4sHHIIIIIIIIqqI", b"\xf5TMB", 1, 0, 0, 0, 0, 64 + len(body), 2, 3, 1, 5, 42, 0,
        crc32c(body),
    )  # fmt: skip
    assert block == head + struct.pack("<I", crc32c(head)) + body


def test_the_numpy_description_covers_a_row_without_gaps() -> None:
    sizes = [int(code[-1]) for _, code in layout.ROW_DTYPE]
    assert sum(sizes) == layout.ROW


def test_a_route_column_numbers_the_routes_of_the_block() -> None:
    a, b = Route("", "a"), Route("x", "b")
    p = payload([b"1", b"2", b"3"], 1, a, [b, a, b])
    found = unpack(pack([Record(PAYLOAD, 0, 1, 3, TIME, p)]))[0].payload
    assert found is not None
    assert found.routes is not None
    assert [r.key for r in found.routes] == ["b", "a", "b"]
    assert found.routes[0] is found.routes[2]


def test_keys_that_are_not_utf8_come_back_as_they_were() -> None:
    key = b"\xff\xfe".decode("utf-8", "surrogateescape")
    p = payload([b"1"], 1, Route(key, key))
    found = unpack(pack([Record(PAYLOAD, 0, 1, 1, TIME, p)]))[0].payload
    assert found is not None
    assert found.route.key == key


def test_dl_20_a_blob_of_each_row_its_own_is_read_as_before() -> None:
    """Written before equal blobs were shared: two rows, the same bytes twice."""
    turn = [Record(DEFINITION, 0, 0, 0, TIME, blob=b"{}"), Record(SETTLED, 5, 1, 1, TIME)]
    block = bytearray(pack([*turn, Record(DEFINITION, 0, 0, 0, TIME, blob=b"[]")]))
    at = 64 + 3 * 64
    assert block[at : at + 4] == b"{}[]"
    block[at + 2 : at + 4] = b"{}"
    block[56:60] = struct.pack("<I", crc32c(bytes(block[64:])))
    block[60:64] = struct.pack("<I", crc32c(bytes(block[:60])))
    assert [r.blob for r in unpack(bytes(block))] == [b"{}", b"", b"{}"]


def test_large_bytes_are_not_copied() -> None:
    large = payload([b"x" * 100_000])
    packer = Packer()
    packer.load([Record(PAYLOAD, 0, 1, 1, TIME, large)], STORED)
    assert any(buffer is large.raw for buffer in packer.finish(1, 0, 0, 0, 0, 0, 0))


@pytest.mark.parametrize("sizes", [[1] * 700, [16384, 1, 16384], [300_000] * 3, [16383] * 40])
def test_bytes_keep_their_order_however_they_are_gathered(sizes: list[int]) -> None:
    turn = [
        Record(PAYLOAD, 0, i, 1, TIME, payload([bytes([i % 251]) * size], i))
        for i, size in enumerate(sizes)
    ]
    found = unpack(pack(turn))
    assert [f.payload.raw for f in found if f.payload] == [r.payload.raw for r in turn if r.payload]


def test_a_checkpoint_names_bytes_without_holding_them() -> None:
    p = payload([b"abc"])
    p.position = 7 << 32 | 640
    p.raw = None
    turn = [Record(PAYLOAD, 0, 1, 1, TIME, p), Record(LIVE, 5, 9, 1, TIME, p)]
    packer = Packer()
    packer.load(turn, REFERENCED)
    found = unpack(b"".join(packer.finish(7, 0, 0, 0, 99, TIME, layout.CHECKPOINT)))
    assert all_shown(found) == all_shown(turn)
    assert found[1].payload is found[0].payload
    assert found[0].payload is not None
    assert found[0].payload.raw is None
    assert found[0].payload.position == 7 << 32 | 640


def test_a_payload_without_its_bytes_is_refused_and_nothing_changes() -> None:
    turn = entering(1)
    p = turn[0].payload
    assert p is not None
    p.raw = None
    with pytest.raises(ValueError, match="payload of 40 bytes, none in memory"):
        pack(turn)
    assert p.position == -1


def test_a_payload_shorter_than_its_cuts_is_refused() -> None:
    p = Payload(1, b"abc", array("I", [0, 4]), Route("", "q"), None, 1, 0, True, 0)
    with pytest.raises(ValueError, match="payload of 4 bytes, 3 in memory"):
        pack([Record(PAYLOAD, 0, 1, 1, 0, p)])


def test_a_payload_of_no_bytes_is_refused() -> None:
    # Found by Hypothesis: it would have the position of the payload behind it.
    with pytest.raises(ValueError, match="payload of 0 bytes"):
        pack([Record(PAYLOAD, 0, 1, 1, 0, payload([b""]))])


def test_another_format_version_is_named() -> None:
    block = bytearray(pack(settling(1)))
    block[4] = 9
    block[60:64] = struct.pack("<I", crc32c(bytes(block[:60])))
    with pytest.raises(LayoutError, match="format version 9, this program reads 1 to 2"):
        unpack(bytes(block))


def test_several_blocks_end_to_end_are_read_one_after_the_other() -> None:
    turns_ = [entering(1, 3), settling(1, 2), entering(4, 1)]
    found = unpack(b"".join(pack(turn) for turn in turns_))
    assert all_shown(found) == [shown(r) for turn in turns_ for r in turn]


def test_rows_are_counted_by_kind_without_reading_them() -> None:
    block = pack(entering(1, 3) + settling(1) + settling(2))
    header = layout.header_at(block, 0)
    assert header is not None
    assert layout.row_kinds(block, header) == {PAYLOAD: 1, ENTERED: 1, SETTLED: 2}
