"""Cells, ids and message frames."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark.wire.nsq.commands import dpub, pub, sized
from tallymark.wire.nsq.frames import MESSAGE, decode_message, split_frames
from tallymark.wire.nsq.kernel import (
    body_of,
    body_sizes,
    encode_bodies,
    encode_messages,
    head_of,
    is_id,
    make_cells,
    scan_publishes,
    scan_requeues,
    unpack_ids,
)
from tallymark.wire.nsq.limits import CELL_SIZE_MAX, Limits


def decoded(frames: bytes) -> list[tuple[int, int, bytes, bytes]]:
    found, rest = split_frames(frames)
    assert rest == b""
    assert all(kind == MESSAGE for kind, _ in found)
    return [decode_message(content) for _, content in found]


def test_nq_2_a_message_frame_byte_by_byte() -> None:
    raw, cuts = make_cells([b"body"])
    assert encode_messages(raw, cuts, 0, 1, 0xABC, 1_700_000_000_000_000_001, 3) == (
        b"\0\0\0\x22\0\0\0\2"
        + (1_700_000_000_000_000_001).to_bytes(8, "big")
        + b"\0\3"
        + b"0000000000000abc"
        + b"body"
    )


cells = st.one_of(
    st.builds(pub, st.sampled_from(["t", "topic"]), st.binary(min_size=1, max_size=20)),
    st.builds(dpub, st.just("t"), st.sampled_from([1, 500]), st.binary(min_size=1, max_size=20)),
    st.builds(sized, st.binary(min_size=1, max_size=300)),
    st.builds(lambda body: b"PUB t\r\n" + sized(body), st.binary(min_size=1, max_size=20)),
)


def expected_body(cell: bytes) -> bytes:
    return cell[4:] if cell[0] == 0 else cell[cell.index(b"\n") + 5 :]


@given(st.lists(cells, min_size=1, max_size=12), st.data())
def test_cells_of_all_kinds_are_delivered_alike(mixed: list[bytes], data: st.DataObject) -> None:
    raw = b"".join(mixed)
    cuts = array("I", [len(b"".join(mixed[:i])) for i in range(len(mixed) + 1)])
    lo = data.draw(st.integers(0, len(mixed) - 1))
    hi = data.draw(st.integers(lo + 1, len(mixed)))
    bodies = [expected_body(cell) for cell in mixed[lo:hi]]
    frames = encode_messages(raw, cuts, lo, hi, 1000, 5, 1)
    assert decoded(frames) == [(5, 1, b"%016x" % (1000 + i), body) for i, body in enumerate(bodies)]
    assert encode_bodies(bodies, 1000, 5, 1) == frames
    assert body_sizes(raw, cuts, lo, hi) == [len(body) for body in bodies]
    assert [body_of(raw, cuts[i], cuts[i + 1]) for i in range(lo, hi)] == bodies


def test_a_cell_tells_what_it_is_at_every_size() -> None:
    """The first byte of a size is never that of a verb."""
    assert head_of(CELL_SIZE_MAX.to_bytes(4, "big") + b"...", 0) == 4
    assert CELL_SIZE_MAX.to_bytes(4, "big") < b"DPUB" < b"PUB "
    with pytest.raises(ValueError, match="max_msg_size"):
        Limits(max_msg_size=CELL_SIZE_MAX + 1)


def test_nq_d7_attempts_saturate() -> None:
    raw, cuts = make_cells([b"x", b"y"])
    for attempts in (65_535, 65_536, 1_000_000):
        found = decoded(encode_messages(raw, cuts, 0, 2, 1, 0, attempts))
        assert [message[1] for message in found] == [65_535, 65_535]
        assert decoded(encode_bodies([b"x"], 1, 0, attempts))[0][1] == 65_535


def test_ids_are_64_bits() -> None:
    raw, cuts = make_cells([b"x"] * 3)
    first = 2**64 - 3
    ids = [message[2] for message in decoded(encode_messages(raw, cuts, 0, 3, first, 0, 1))]
    assert list(unpack_ids(b"".join(ids))) == [first, first + 1, first + 2]
    assert encode_bodies([], 1, 0, 1) == b""


@pytest.mark.parametrize(
    ("digits", "good"),
    [
        (b"0123456789abcdef", True),
        (b"0123456789abcdeF", False),
        (b"0123456789abcde", False),
        (b"0123456789abcdef0", False),
        (b"0x23456789abcdef", False),
        (b" 123456789abcdef", False),
        (b"1_23456789abcdef", False),
        (b"0123456789abcde\n", False),
        ("０123456789abc".encode(), False),
    ],
)
def test_only_what_we_write_is_an_id(digits: bytes, good: bool) -> None:
    assert is_id(digits) is good


def test_a_run_of_reqs_ends_where_one_differs() -> None:
    good = [b"REQ %016x 5\n" % number for number in range(3)]
    for other in (b"REQ %016x 6\n" % 3, b"REQ %016X 5\n" % 0xAB, b"FIN %016x\n\0\0" % 3, b""):
        data = b"".join([*good, other])
        assert list(unpack_ids(scan_requeues(data, 0, len(data), b" 5\n"))) == [0, 1, 2]


def test_a_stretch_ends_where_its_bytes_do() -> None:
    raw = pub("t", b"abc") * 4
    one = len(raw) // 4
    for end in range(len(raw) + 1):
        cuts = scan_publishes(raw, 0, end, b"PUB t\n", 100)
        assert list(cuts) == [one * i for i in range(end // one + 1)]
    assert list(scan_publishes(raw, one, len(raw), b"PUB t\n", 100)) == [0, one, 2 * one, 3 * one]
    assert list(scan_publishes(raw, 0, len(raw), b"PUB t\n", 2)) == [0]
