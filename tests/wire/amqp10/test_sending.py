"""Transfers and dispositions as we write them [amqp-1.0 §2.7.5, §2.7.6]."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark.wire.amqp10.frames import (
    AMQP,
    frame_head,
)
from tallymark.wire.amqp10.outcomes import Accepted, DeliveryState, TransactionalState
from tallymark.wire.amqp10.performatives import (
    Disposition,
    Transfer,
)
from tallymark.wire.amqp10.sending import (
    ACCEPTED,
    TransferForm,
    disposition_frame,
    encode_tagged_transfers,
    encode_transfers,
    sized,
    text_tag,
    transfer_more,
)
from tallymark.wire.amqp10.serial import MASK, add
from tests.support.amqp10_layouts import (
    BIG,
    cut,
    read,
    scan,
)


def numbered(sizes: list[int]) -> tuple[bytes, array[int]]:
    """Messages of these sizes, end to end, and where they begin."""
    cuts = array("I", [0])
    for size in sizes:
        cuts.append(cuts[-1] + size)
    return bytes(i % 251 for i in range(cuts[-1])), cuts


def test_transfers_out_are_what_the_standard_says() -> None:
    raw, cuts = numbered([3, 4])
    form = TransferForm(0x102, 5)
    frames, at = encode_transfers(form, 258, 7, raw, cuts, 0, 2, b"", 0, 1000)
    assert at == 2
    assert frames == (
        b"\0\0\0\x1f\x02\x00\x01\x02\x00\x53\x14\xc0\x0f\x04\x52\5\x70\0\0\1\2\xa0\4\0\0\0\7\x43"
        b"\x00\x01\x02"
        b"\0\0\0\x20\x02\x00\x01\x02\x00\x53\x14\xc0\x0f\x04\x52\5\x70\0\0\1\3\xa0\4\0\0\0\x08\x43"
        b"\x03\x04\x05\x06"
    )
    assert read(cut(frames)[1]) == (Transfer(5, 259, b"\0\0\0\x08", 0), b"\x03\x04\x05\x06")


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=9),
    st.integers(0, 9),
    st.integers(0, 9),
    st.binary(max_size=20),
    st.integers(0, 3),
    st.integers(0, MASK),
    st.integers(0, MASK),
    st.integers(0, MASK),
    st.booleans(),
    st.sampled_from([b"", ACCEPTED, TransactionalState(b"x" * 300).encode()]),
    st.booleans(),
    st.sampled_from([0, 5, MASK]),
    st.booleans(),
)
def test_transfers_out_come_in_again(
    sizes: list[int],
    lo: int,
    hi: int,
    front: bytes,
    skip: int,
    handle: int,
    delivery_id: int,
    tag: int,
    settled: bool,
    state: bytes,
    more: bool,
    message_format: int,
    tagged: bool,
) -> None:
    lo, hi = sorted((lo % len(sizes), hi % (len(sizes) + 1)))
    sizes = [size + skip for size in sizes]
    raw, cuts = numbered(sizes)
    form = TransferForm(7, handle, message_format, settled, state, more)
    tags = [text_tag(add(tag, i)).to_bytes(4, "big") for i in range(hi - lo)]
    if tagged:
        tags = [b"%d" % i * (i % 9) for i in range(hi - lo)]
        frames, at = encode_tagged_transfers(
            form, delivery_id, tags, raw, cuts, lo, hi, front, skip, BIG
        )
    else:
        frames, at = encode_transfers(form, delivery_id, tag, raw, cuts, lo, hi, front, skip, BIG)
    assert at == hi
    expected = [
        (
            Transfer(
                handle,
                add(delivery_id, i),
                tags[i],
                message_format,
                settled if settled or more or state else None,
                more,
                None,
                decode_state(state),
            ),
            front + raw[cuts[lo + i] + skip : cuts[lo + i + 1]],
        )
        for i in range(hi - lo)
    ]
    assert [read(one) for one in cut(frames)] == expected
    assert b"".join(cut(frames)) == frames
    found = scan(frames, 7)
    if more or lo == hi:
        assert found is None
    else:
        assert found is not None
        assert (found.first, found.tags, found.end) == (delivery_id, tags, len(frames))
        assert found.data == b"".join(payload for _, payload in expected)


def decode_state(state: bytes) -> DeliveryState | None:
    if not state:
        return None
    return Accepted() if state == ACCEPTED else TransactionalState(b"x" * 300)


@given(st.integers(0, MASK))
def test_tags_are_text_and_follow_each_other(number: int) -> None:
    tag = text_tag(number).to_bytes(4, "big")
    assert tag.isascii()
    value = 0
    for byte in tag:
        value = value << 7 | byte
    assert value == number % 2**28


@pytest.mark.parametrize("bits", [7, 14, 21, 28, 32])
def test_tags_carry_from_byte_to_byte(bits: int) -> None:
    raw, cuts = numbered([1] * 300)
    first = 2**bits - 150
    frames, _ = encode_transfers(TransferForm(0, 0), 0, first, raw, cuts, 0, 300, b"", 0, BIG)
    found = scan(frames)
    assert found is not None
    assert found.tags == [text_tag(first + i).to_bytes(4, "big") for i in range(300)]
    assert len(set(found.tags)) == 300


def test_fc_1_transfers_out_count_over_the_wrap() -> None:
    raw, cuts = numbered([1, 2, 3, 4])
    form = TransferForm(0, 0)
    frames, at = encode_transfers(form, MASK - 1, MASK - 2, raw, cuts, 0, 4, b"", 0, BIG)
    found = scan(frames)
    assert found is not None
    assert (at, found.first, len(found)) == (4, MASK - 1, 4)
    assert found.tags == [text_tag(add(MASK - 2, i)).to_bytes(4, "big") for i in range(4)]
    tags = [b"tag"] * 4
    frames, at = encode_tagged_transfers(form, MASK - 1, tags, raw, cuts, 0, 4, b"", 0, BIG)
    found = scan(frames)
    assert found is not None
    assert (at, found.first, len(found)) == (4, MASK - 1, 4)


@pytest.mark.parametrize("size", range(200, 260))
def test_states_of_any_size_are_written(size: int) -> None:
    state = TransactionalState(b"x" * size)
    form = TransferForm(0, 0, state=state.encode())
    raw = sized(form.front(5, b"tag"), b"payload")
    assert read(raw) == (Transfer(0, 5, b"tag", 0, False, state=state), b"payload")
    assert raw[11] == 0xC0 or int.from_bytes(raw[12:16], "big") - 3 > 255
    raw = disposition_frame(0, True, 5, 5, True, state.encode())
    assert read(raw) == (Disposition(True, 5, None, True, state), b"")
    assert raw[11] == 0xC0 or int.from_bytes(raw[12:16], "big") - 3 > 255


@pytest.mark.parametrize("tagged", [False, True])
def test_transfers_out_stop_at_what_is_too_large_for_a_frame(tagged: bool) -> None:
    raw, cuts = numbered([10, 11, 12, 11])
    form = TransferForm(0, 0)

    def encoded(lo: int, limit: int) -> tuple[bytes, int]:
        if tagged:
            tags = [b"1234"] * (4 - lo)
            return encode_tagged_transfers(form, 0, tags, raw, cuts, lo, 4, b"ab", 1, limit)
        return encode_transfers(form, 0, 0, raw, cuts, lo, 4, b"ab", 1, limit)

    whole, at = encoded(0, BIG)
    assert at == 4
    sizes = [len(one) for one in cut(whole)]
    frames, at = encoded(0, sizes[1])
    assert (at, [len(one) for one in cut(frames)]) == (2, sizes[:2])
    assert encoded(2, sizes[1]) == (b"", 2)
    frames, at = encoded(3, sizes[1])
    assert (at, [len(one) for one in cut(frames)]) == (4, [sizes[3]])
    assert encoded(0, sizes[0] - 1) == (b"", 0)


def test_a_delivery_in_several_frames() -> None:
    form = TransferForm(1, 300, settled=True, more=True)
    first = sized(form.front(7, b"tag"), b"one")
    assert read(first) == (Transfer(300, 7, b"tag", 0, True, True), b"one")
    then = sized(transfer_more(1, 300, True), b"two")
    assert read(then) == (Transfer(300, more=True), b"two")
    last = sized(transfer_more(1, 300, False), b"three")
    assert read(last) == (Transfer(300), b"three")
    aborted = sized(transfer_more(1, 0, False, aborted=True), b"")
    assert read(aborted) == (Transfer(0, aborted=True), b"")
    for raw in (first, then, last, aborted):
        assert frame_head(raw, 0) == (len(raw), 8, AMQP, 1)
        assert scan(raw, 1) is None
    assert len(transfer_more(65535, MASK, True, aborted=True)) + 4 <= 32


def test_a_tag_that_is_too_long_is_refused() -> None:
    form = TransferForm(0, 0)
    assert read(sized(form.front(0, b"t" * 32), b""))[0] == Transfer(0, 0, b"t" * 32, 0)
    with pytest.raises(ValueError, match="delivery-tag of 33 bytes, at most 32 fit"):
        form.front(0, b"t" * 33)
