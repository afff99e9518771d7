"""A segment's bytes are judged: sound, torn, or corrupt. At every cut, with every header bit."""

from __future__ import annotations

import struct

import pytest

from tallymark.journal.packer import STORED, Packer
from tallymark.stored import layout
from tallymark.stored.layout import HEADER, SEALED, bare_block, crc32c, header_at
from tallymark.stored.segment import (
    BLANK,
    CORRUPT,
    SEAL,
    TORN,
    ledger_name,
    parsed_checkpoint,
    parsed_name,
    scan,
    segment_name,
)
from tests.journal.builders import TIME, entering, settling

NUMBER = 3
SALT = 0x1234ABCD
BASE = NUMBER << 32


def segment(lag: int, sealed: bool = False, blocks: int = 6) -> tuple[bytes, list[int]]:
    """A segment's bytes and where its blocks begin; a header knows as synced what was packed
    `lag` blocks before it."""
    data = b""
    starts: list[int] = []
    for i in range(blocks):
        starts.append(len(data))
        known = BASE | starts[i - lag] if i >= lag else 0
        packer = Packer()
        packer.load(entering(1 + 3 * i, 3) if i % 2 else settling(i), STORED)
        data += b"".join(packer.finish(NUMBER, len(data), i, SALT, known, TIME + i, 0))
    if sealed:
        starts.append(len(data))
        data += bare_block(NUMBER, blocks, SALT, TIME, SEALED, HEADER, 0)
    return data, [*starts, len(data)]


UNSYNCED, STARTS = segment(lag=99)
SYNCED, _ = segment(lag=0)


def test_a_sound_segment_without_a_seal_ends_blank() -> None:
    headers, length, verdict = scan(UNSYNCED, NUMBER, SALT)
    assert [h.at for h in headers] == STARTS[:-1]
    assert [h.block for h in headers] == list(range(6))
    assert (length, verdict.kind) == (len(UNSYNCED), BLANK)


def test_a_sealed_segment_is_complete_and_may_be_followed_by_zeros() -> None:
    data, starts = segment(lag=1, sealed=True)
    for tail in (b"", bytes(8), bytes(5000)):
        headers, length, verdict = scan(data + tail, NUMBER, SALT)
        assert (len(headers), length, verdict.kind) == (7, starts[-1], SEAL)
    assert scan(data + b"\0\0x", NUMBER, SALT)[2].kind == CORRUPT


@pytest.mark.parametrize("fill", [0, 700])
def test_a_torn_write_keeps_a_prefix_at_every_cut(fill: int) -> None:
    for cut in range(len(UNSYNCED) + 1):
        data = UNSYNCED[:cut] + bytes(fill)
        headers, length, verdict = scan(data, NUMBER, SALT)
        # a block whose missing bytes are zeros is whole in a preallocated file
        whole = sum(1 for start in STARTS[1:] if data[:start] == UNSYNCED[:start])
        rest = data[STARTS[whole] :]
        assert [h.at for h in headers] == STARTS[:whole], cut
        assert length == STARTS[whole], cut
        assert verdict.kind == (TORN if any(rest) else BLANK), cut


def flipped(data: bytes, at: int, mask: int) -> bytes:
    damaged = bytearray(data)
    damaged[at] ^= mask
    return bytes(damaged)


@pytest.mark.parametrize(("data", "kind"), [(UNSYNCED, TORN), (SYNCED, CORRUPT)])
@pytest.mark.parametrize("victim", range(5))
def test_every_flipped_header_bit_is_found(victim: int, data: bytes, kind: str) -> None:
    for bit in range(8 * HEADER):
        damaged = flipped(data, STARTS[victim] + bit // 8, 1 << bit % 8)
        headers, length, verdict = scan(damaged, NUMBER, SALT)
        assert (len(headers), length, verdict.kind) == (victim, STARTS[victim], kind), bit
        if kind == CORRUPT:
            assert verdict.resume == STARTS[victim + 1], bit


@pytest.mark.parametrize(("data", "kind"), [(UNSYNCED, TORN), (SYNCED, CORRUPT)])
@pytest.mark.parametrize("victim", range(5))
def test_every_flipped_body_byte_is_found(victim: int, data: bytes, kind: str) -> None:
    header = header_at(data, STARTS[victim])
    assert header is not None
    raw_at = STARTS[victim] + header.raw_at
    for at in range(STARTS[victim] + HEADER, raw_at):
        headers, _, verdict = scan(flipped(data, at, 0x10), NUMBER, SALT)
        assert (len(headers), verdict.kind) == (victim, kind), at
    for at in range(raw_at, raw_at + header.raw_bytes):
        headers, _, verdict = scan(flipped(data, at, 0x10), NUMBER, SALT)
        if kind == TORN:
            assert (len(headers), verdict.kind) == (victim, TORN), at
        else:  # everything of the block but these messages is known
            assert (len(headers), verdict.kind) == (6, BLANK), at
            assert [one.at for one in verdict.damaged] == [STARTS[victim]], at


def test_damage_just_behind_what_was_synced_is_torn_and_just_before_is_corrupt() -> None:
    data, starts = segment(lag=2)
    for victim, kind in ((4, TORN), (3, TORN), (2, CORRUPT), (1, CORRUPT)):
        damaged = bytearray(data)
        damaged[starts[victim] + 70] ^= 1
        # block 5 says that all before block 3 is on disk
        assert scan(bytes(damaged), NUMBER, SALT)[2].kind == kind


def test_what_is_known_from_elsewhere_proves_corruption_too() -> None:
    damaged = bytearray(UNSYNCED)
    damaged[STARTS[4] + 1] ^= 1
    for known, kind in ((0, TORN), (BASE | STARTS[4], TORN), (BASE | STARTS[5], CORRUPT)):
        assert scan(bytes(damaged), NUMBER, SALT, known)[2].kind == kind


def test_a_segment_cut_at_a_block_is_corrupt_when_more_was_known_on_disk() -> None:
    short = UNSYNCED[: STARTS[4]]
    assert scan(short, NUMBER, SALT)[2].kind == BLANK
    assert scan(short, NUMBER, SALT, NUMBER + 1 << 32)[2].kind == CORRUPT
    assert scan(b"", NUMBER, SALT, NUMBER + 1 << 32)[2].kind == CORRUPT


def test_a_message_that_contains_a_block_proves_nothing() -> None:
    """A client that publishes journal blocks must not be able to keep the broker from starting:
    it does not know the segment's salt."""
    fake, _ = segment(lag=0)
    other = bytearray()
    at = 0
    while at < len(fake):
        header = layout.header_at(fake, at)
        assert header is not None
        head = bytearray(fake[at : at + HEADER])
        head[8:12] = struct.pack("<I", SALT ^ 1)
        head[12:20] = struct.pack("<II", NUMBER, 50 + header.block)
        head[48:56] = struct.pack("<q", BASE | 0x7FFFFFF0)
        head[60:64] = struct.pack("<I", crc32c(bytes(head[:60])))
        other += head + fake[at + HEADER : at + header.length]
        at += header.length
    turn = entering(1)
    p = turn[0].payload
    assert p is not None
    packer = Packer()
    p.raw = bytes(other)
    p.cuts[1] = p.size = len(other)
    packer.load(turn, STORED)
    data = b"".join(packer.finish(NUMBER, 0, 0, SALT, 0, TIME, 0))
    for shift in range(8):
        torn = UNSYNCED[: STARTS[1]] + data[:200] + bytes(shift) + bytes(other)
        assert scan(torn, NUMBER, SALT)[2].kind == TORN


def test_blocks_out_of_order_or_of_another_segment_end_the_sound_part() -> None:
    a, b, c = (UNSYNCED[STARTS[i] : STARTS[i + 1]] for i in range(3))
    assert len(scan(a + c + b, NUMBER, SALT)[0]) == 1
    assert len(scan(a + b + c, NUMBER + 1, SALT)[0]) == 0
    assert len(scan(a + b + c, NUMBER, SALT + 1)[0]) == 0
    assert len(scan(a + a, NUMBER, SALT)[0]) == 1


def test_names_are_read_back_and_others_are_not_taken_for_them() -> None:
    assert parsed_name(segment_name(7, 0xBEEF)) == (7, 0xBEEF)
    assert parsed_name(ledger_name(7, 0xBEEF)) == (7, 0xBEEF)
    others = ["lock", "7-1.segment", "0000000007-0000beef.segment.tmp", "spare-0.segment"]
    others += ["xxxxxxxxxx-12345678.ledger", ".segment", "0000000007.segment"]
    for name in others:
        assert parsed_name(name) is None
    assert parsed_checkpoint("0000000300000040.checkpoint") == 3 << 32 | 0x40
    for name in ("1.checkpoint", "000000030000004g.checkpoint", "0000000300000040.checkpoint.tmp"):
        assert parsed_checkpoint(name) is None
