"""Runs of transfers and dispositions in a buffer [amqp-1.0 §2.7.5, §2.7.6].

What a scan joins has to be what reading frame by frame gives.
"""

from __future__ import annotations

import pytest

from tallymark.wire.amqp10.errors import DecodeError
from tallymark.wire.amqp10.frames import (
    HEARTBEAT,
    TAG_MAX,
    frame,
)
from tallymark.wire.amqp10.outcomes import (
    Accepted,
    DeliveryState,
    Error,
    Rejected,
    Released,
    TransactionalState,
)
from tallymark.wire.amqp10.performatives import (
    Disposition,
    End,
    Flow,
    Transfer,
)
from tallymark.wire.amqp10.scanning import (
    KNOWN_MAX,
    Meaning,
    Shape,
    scan_dispositions,
    scan_transfers,
)
from tallymark.wire.amqp10.sending import (
    ACCEPTED,
    RELEASED,
    disposition_frame,
)
from tallymark.wire.amqp10.serial import MASK, add
from tallymark.wire.amqp10.types import Array, Symbol
from tests.support.amqp10_layouts import (
    BIG,
    CLIENTS,
    as_go_amqp,
    as_ours,
    as_proton,
    as_rhea,
    cut,
    read,
    said_by_proton,
    said_by_rhea,
    said_by_us,
    scan,
)


def test_the_layouts_are_those_of_the_clients() -> None:
    proton = bytes.fromhex(
        "0000002a02000000005314c007044343a001304300537045005373c0020144005377a10668656c6c6f30"
    )
    assert as_proton(0, 0, proton[20:]) == proton
    rhea = bytes.fromhex(
        "0000003b02000003005314d00000000c000000064343a00130434242005370450053"
        "73d00000000800000001a1026d30005377a10668656c6c6f30"
    )
    assert as_rhea(3, 0, rhea[28:]) == rhea
    for delivery_id in (0, 1, 255, 256, MASK):
        for client in CLIENTS:
            transfer, payload = read(client(1, delivery_id, b"pay"))
            assert isinstance(transfer, Transfer)
            assert (transfer.delivery_id, payload) == (delivery_id, b"pay")


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("first", [0, 250, 70_000, 2**32 - 20])
def test_transfers_of_clients_are_one_run(client: object, first: int) -> None:
    assert callable(client)
    payloads = [b"p" * (i % 7) for i in range(40)]
    ids = [add(first, i) for i in range(40)]
    raw = b"".join(client(9, delivery_id, p) for delivery_id, p in zip(ids, payloads, strict=True))
    found = scan(b"".join((raw, raw[:20])), 9)
    assert found is not None
    assert (found.first, len(found), found.end) == (first, 40, len(raw))
    assert found.data == b"".join(payloads)
    assert found.cuts.typecode == "I"
    assert [found.data[a:b] for a, b in zip(found.cuts, found.cuts[1:], strict=False)] == payloads
    transfers = [read(one)[0] for one in cut(raw)]
    assert all(isinstance(transfer, Transfer) for transfer in transfers)
    assert found.tags == [transfer.delivery_tag for transfer in transfers]
    assert {transfer.handle for transfer in transfers} == {found.handle}
    assert found.shape.settled == (client is as_ours)
    assert (found.shape.message_format, found.shape.state) == (0, None)


def test_a_run_ends_where_it_has_to() -> None:
    raw = b"".join(as_proton(0, i, b"12345") for i in range(10))
    for end in range(len(raw)):
        found = scan_transfers(raw, 0, end, 0, BIG, BIG, BIG, {})
        assert (len(found) if found else 0) == len(cut(raw[:end]))
    for most in range(12):
        found = scan(raw, most=most)
        assert (len(found) if found else 0) == min(most, 10)
    assert scan(raw, 1) is None
    first = as_proton(0, 0, b"12345")
    for after in (
        as_proton(0, 2, b"12345"),
        as_proton(0, 0, b"12345"),
        as_proton(1, 1, b"12345"),
        as_go_amqp(0, 1, b"12345"),
        as_rhea(0, 1, b"12345"),
        frame(0, Flow().encode()),
        HEARTBEAT,
    ):
        found = scan(first + after)
        assert found is not None
        assert (len(found), found.end) == (1, len(first))


def test_a_run_stays_within_limits() -> None:
    raw = as_proton(0, 1, b"12345") + as_proton(0, 2, b"123456")
    size = len(as_proton(0, 1, b"12345"))
    for frame_limit, payload_limit, expected in (
        (size, BIG, 1),
        (size + 1, BIG, 2),
        (size - 1, BIG, 0),
        (BIG, 4, 0),
        (BIG, 5, 1),
        (BIG, 6, 2),
    ):
        found = scan_transfers(raw, 0, len(raw), 0, frame_limit, payload_limit, BIG, {})
        assert (len(found) if found else 0) == expected


@pytest.mark.parametrize("client", CLIENTS)
def test_a_list_that_is_cut_off_is_seen(client: object) -> None:
    """At the end of the buffer, first in a run and behind one of the same layout."""
    assert callable(client)
    first = client(0, 300, b"")
    whole = client(0, 301, b"")
    for size in range(8, len(whole)):
        cut_off = size.to_bytes(4, "big") + whole[4:size]
        assert scan(cut_off) is None
        found = scan(first + cut_off)
        assert found is not None
        assert len(found) == 1
    wide = whole[11] == 0xD0
    fields = 20 if wide else 14
    for size in range(fields, len(whole)):  # the list says so, too
        inner = size - (16 if wide else 13)
        head = whole[8:12] + (inner.to_bytes(4, "big") if wide else bytes((inner,)))
        cut_off = frame(0, head + whole[8 + len(head) : size])
        assert len(cut_off) == size
        assert scan(cut_off) is None
        with pytest.raises(DecodeError):
            read(cut_off)


NOT_PLAIN = [
    Transfer(0, 0, b"t", 0, more=True),
    Transfer(0, 0, b"t", 0, aborted=True),
    Transfer(0, 0, b"t", 0, resume=True),
    Transfer(0, 0, b"t", None, True),
    Transfer(0, 0, b"t"),
    Transfer(0, None, b"t", 0),
    Transfer(0, 0, None, 0),
    Transfer(0, 0, b"t" * (TAG_MAX + 1), 0),
    Transfer(0),
]


@pytest.mark.parametrize("transfer", NOT_PLAIN)
def test_fc_13_what_is_not_one_whole_delivery_is_left_alone(transfer: Transfer) -> None:
    assert scan(frame(0, transfer.encode(), b"payload" * 9)) is None


PLAIN = [
    Transfer(7, 9, b"", 0),
    Transfer(7, 9, b"t" * TAG_MAX, 2**32 - 1, False),
    Transfer(7, 9, b"t", 0, True, False, 1),
    Transfer(7, 9, b"t", 0, None, False, 0, TransactionalState(b"x", Accepted())),
    Transfer(2**32 - 1, 2**32 - 1, b"t", 5, batchable=True),
]


@pytest.mark.parametrize("transfer", PLAIN)
@pytest.mark.parametrize("payload", [b"", b"payload"])
def test_what_a_transfer_says_is_kept(transfer: Transfer, payload: bytes) -> None:
    raw = frame(3, transfer.encode(), payload)
    found = scan(raw, 3)
    assert found is not None
    assert (found.handle, found.first) == (transfer.handle, transfer.delivery_id)
    assert found.tags == [transfer.delivery_tag]
    shape = found.shape
    assert shape.message_format == transfer.message_format
    assert shape.settled == (transfer.settled is True)
    assert shape.rcv_settle_mode == transfer.rcv_settle_mode
    assert shape.state == transfer.state
    assert (found.data, list(found.cuts), found.end) == (payload, [0, len(payload)], len(raw))


@pytest.mark.parametrize("payload", [b"", b"\x41", b"\x42\x41\x41"])
def test_a_count_that_lies_is_seen_also_from_the_cache(payload: bytes) -> None:
    right = as_rhea(0, 0, payload)
    known: dict[bytes, Shape] = {}
    assert scan_transfers(right, 0, len(right), 0, BIG, BIG, BIG, known)
    for lie in (5, 7):
        wrong = right.replace(b"\0\0\0\6", bytes((0, 0, 0, lie)))
        assert wrong != right
        assert scan_transfers(wrong, 0, len(wrong), 0, BIG, BIG, BIG, known) is None
        with pytest.raises(DecodeError):
            read(wrong)


def test_what_is_remembered_has_a_bound() -> None:
    known: dict[bytes, Shape] = {}
    for number in range(3 * KNOWN_MAX):
        raw = frame(0, Transfer(0, 0, b"t", number + 256).encode())
        found = scan_transfers(raw, 0, len(raw), 0, BIG, BIG, BIG, known)
        assert found is not None
        assert found.shape.message_format == number + 256
        assert len(known) <= KNOWN_MAX
    said: dict[bytes, Meaning] = {}
    for number in range(3 * KNOWN_MAX):
        state = TransactionalState(number.to_bytes(2, "big"))
        raw = disposition_frame(0, True, 0, 0, False, state.encode())
        joined = scan_dispositions(raw, 0, len(raw), 0, said)
        assert joined is not None
        assert joined.state == state
        assert len(said) <= KNOWN_MAX


def test_a_transfer_with_a_large_state_is_not_remembered() -> None:
    for size, is_taken in ((480, True), (600, False)):
        known: dict[bytes, Shape] = {}
        state = TransactionalState(b"x" * size)
        raw = frame(0, Transfer(0, 0, b"t", 0, state=state).encode(), b"payload")
        found = scan_transfers(raw, 0, len(raw), 0, BIG, BIG, BIG, known)
        assert (found is not None, len(known)) == (is_taken, int(is_taken))


def test_a_state_that_is_larger_than_its_bytes_is_not_remembered() -> None:
    """65,000 empty lists in an array are ten bytes."""
    for values, is_taken in (
        (Array([[]] * 65_000, 0x45), False),
        (Array([[]] * 65, 0xC0), True),
    ):
        state = Rejected(Error("amqp:internal-error", None, {Symbol("much"): values}))
        raw = frame(0, Transfer(0, 0, b"t", 0, state=state).encode(), b"payload")
        known: dict[bytes, Shape] = {}
        found = scan_transfers(raw, 0, len(raw), 0, BIG, BIG, BIG, known)
        kept = [shape.state for shape in known.values() if shape.state is not None]
        assert (found is not None, len(kept)) == (is_taken, int(is_taken))
        raw = disposition_frame(0, True, 0, 0, False, state.encode())
        said: dict[bytes, Meaning] = {}
        joined = scan_dispositions(raw, 0, len(raw), 0, said)
        assert (joined is not None, len(said)) == (is_taken, int(is_taken))


# Dispositions


def test_dispositions_are_laid_out_as_the_clients_do() -> None:
    assert said_by_rhea(3, 0, 0) == bytes.fromhex(
        "0000001c02000003005315d00000000c000000054143434100532445"
    )
    assert said_by_proton(0, 0, 6) == b"\0\0\0\x17\2\0\0\0\0S\x15\xc0\n\x05ACR\x06A\0S$E"
    assert said_by_us(0, 8, 13) == b"\0\0\0\x18\2\0\0\0\0S\x15\xc0\x0b\x05AR\x08R\rA\0S$E"
    assert disposition_frame(0, False, 5, 5, False, b"") == frame(
        0, b"\x00\x53\x15\xc0\x04\x02\x42\x52\x05"
    )


@pytest.mark.parametrize("client", [said_by_rhea, said_by_proton, said_by_us])
@pytest.mark.parametrize("first", [0, 250, 70_000, 2**32 - 20])
@pytest.mark.parametrize("width", [1, 3])
def test_fc_a10_adjoining_dispositions_are_joined(client: object, first: int, width: int) -> None:
    assert callable(client)
    starts = [add(first, i * width) for i in range(40)]
    raw = b"".join(client(9, start, add(start, width - 1)) for start in starts)
    known: dict[bytes, Meaning] = {}
    found = scan_dispositions(raw + raw[:20], 0, len(raw) + 20, 9, known)
    assert found is not None
    assert (found.first, found.last, found.end) == (first, add(first, 40 * width - 1), len(raw))
    assert (found.role, found.settled, found.state) == (True, True, Accepted())
    assert scan_dispositions(raw, 0, len(raw), 8, known) is None


def test_dispositions_are_joined_no_further_than_they_say_the_same() -> None:
    first = said_by_us(0, 5, 6)
    for after in (
        said_by_us(0, 8, 8),
        said_by_us(0, 6, 6),
        said_by_us(0, 4, 4),
        said_by_us(0, 7, 6),
        said_by_us(1, 7, 7),
        said_by_us(0, 7, add(7, 2**31 - 1)),
        disposition_frame(0, False, 7, 7, True, ACCEPTED),
        disposition_frame(0, True, 7, 7, False, ACCEPTED),
        disposition_frame(0, True, 7, 7, True, RELEASED),
        disposition_frame(0, True, 7, 7, True, b""),
        frame(0, Disposition(True, 7, 7, True, Accepted(), True).encode()),
        frame(0, End().encode()),
        HEARTBEAT,
    ):
        found = scan_dispositions(first + after, 0, len(first + after), 0, {})
        assert found is not None
        assert (found.first, found.last, found.end) == (5, 6, len(first))


@pytest.mark.parametrize("last", [None, 5, 9, add(5, 2**31 - 1)])
@pytest.mark.parametrize("role", [False, True])
@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("state", [None, Accepted(), Released(), TransactionalState(b"x" * 300)])
@pytest.mark.parametrize("batchable", [False, True])
def test_what_a_disposition_says_is_kept(
    last: int | None, role: bool, settled: bool, state: DeliveryState | None, batchable: bool
) -> None:
    disposition = Disposition(role, 5, last, settled, state, batchable)
    raw = frame(2, disposition.encode())
    found = scan_dispositions(raw, 0, len(raw), 2, {})
    if found is None:  # an unusual encoding: the fewest fields
        assert last is None
        assert not settled
        assert state is None
        assert not batchable
    else:
        assert (found.role, found.first, found.settled) == (role, 5, settled)
        assert found.last == (5 if last is None else last)
        assert found.state == state
    ours = disposition_frame(2, role, 5, last or 5, settled, state.encode() if state else b"")
    plain = Disposition(role, 5, None if last == 5 else last, settled, state)
    assert read(ours) == (plain, b"")


@pytest.mark.parametrize("client", [said_by_rhea, said_by_proton, said_by_us])
def test_a_disposition_that_is_cut_off_is_seen(client: object) -> None:
    assert callable(client)
    first = client(0, 300, 300)
    whole = client(0, 301, 305)
    wide = whole[11] == 0xD0
    for size in range(8, len(whole)):
        cut_off = size.to_bytes(4, "big") + whole[4:size]
        assert scan_dispositions(cut_off, 0, size, 0, {}) is None
        found = scan_dispositions(first + cut_off, 0, len(first) + size, 0, {})
        assert found is not None
        assert found.end == len(first)
        if size < (20 if wide else 14):
            continue
        inner = size - (16 if wide else 13)
        head = whole[8:12] + (inner.to_bytes(4, "big") if wide else bytes((inner,)))
        cut_off = frame(0, head + whole[8 + len(head) : size])
        assert len(cut_off) == size
        assert scan_dispositions(cut_off, 0, size, 0, {}) is None


def test_a_disposition_that_may_be_too_large_for_a_frame_is_left_to_who_judges() -> None:
    for spare, is_taken in ((0, True), (1, False)):
        state = TransactionalState(b"x" * (512 - 42 + spare))
        raw = disposition_frame(0, True, 5, 5, True, state.encode())
        assert len(raw) == 512 + spare
        assert (scan_dispositions(raw, 0, len(raw), 0, {}) is not None) == is_taken


def test_a_range_that_runs_backwards_is_left_to_who_judges() -> None:
    for last in (4, add(5, 2**31)):
        raw = disposition_frame(0, True, 5, last, True, ACCEPTED)
        assert scan_dispositions(raw, 0, len(raw), 0, {}) is None
