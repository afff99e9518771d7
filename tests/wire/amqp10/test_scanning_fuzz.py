"""Whatever the bytes, what a scan accepts is what reading by the book gives.

The default is quick; TALLYMARK_FUZZ_CASES=1000000 runs as many, TALLYMARK_FUZZ_SEED another
selection.
"""

from __future__ import annotations

import os
import random

from hypothesis import given
from hypothesis import strategies as st

from tallymark.wire.amqp10.frames import (
    HEARTBEAT,
    frame,
)
from tallymark.wire.amqp10.outcomes import Accepted, Released, TransactionalState
from tallymark.wire.amqp10.performatives import (
    Disposition,
    Flow,
    Transfer,
)
from tallymark.wire.amqp10.scanning import (
    Meaning,
    Shape,
    Transfers,
    scan_dispositions,
    scan_transfers,
)
from tallymark.wire.amqp10.serial import add, count
from tests.support.amqp10_layouts import (
    BIG,
    CLIENTS,
    cut,
    read,
    said_by_proton,
    said_by_rhea,
    said_by_us,
)
from tests.support.long import longer, sized

CASES = int(os.environ.get("TALLYMARK_FUZZ_CASES", sized("4000", "40000", "1000000")))
SEED = os.environ.get("TALLYMARK_FUZZ_SEED", "tallymark")


def some_transfer(rng: random.Random, delivery_id: int) -> bytes:
    payload = rng.randbytes(rng.choice((0, 1, 5, 5, 5, 30)))
    if rng.random() < 0.7:
        return rng.choice(CLIENTS)(rng.choice((0, 0, 0, 1)), delivery_id, payload)
    transfer = Transfer(
        rng.choice((0, 0, 1, 300)),
        rng.choice((delivery_id, delivery_id, None, 0)),
        rng.choice((b"t", b"tag", None, b"", b"t" * 33)),
        rng.choice((0, 0, None, 7)),
        rng.choice((None, False, True)),
        rng.random() < 0.1,
        rng.choice((None, None, 0, 1)),
        rng.choice((None, None, None, Accepted(), TransactionalState(b"t"))),
        rng.random() < 0.05,
        rng.random() < 0.05,
        rng.random() < 0.1,
    )
    return frame(rng.choice((0, 0, 0, 1)), transfer.encode(), payload)


def some_disposition(rng: random.Random, first: int) -> bytes:
    last = add(first, rng.choice((0, 0, 1, 5, -1, 2**31 - 1)))
    client = rng.choice((said_by_rhea, said_by_proton, said_by_us))
    if rng.random() < 0.7:
        return client(rng.choice((0, 0, 0, 1)), first, last)
    disposition = Disposition(
        rng.random() < 0.5,
        first,
        rng.choice((None, last)),
        rng.random() < 0.5,
        rng.choice((None, Accepted(), Released(), TransactionalState(b"t"))),
        rng.random() < 0.5,
    )
    return frame(0, disposition.encode())


def traffic(rng: random.Random) -> bytes:
    parts = []
    number = rng.choice((0, 250, 2**32 - 3))
    makes = rng.choice((some_transfer, some_disposition))
    one_client = rng.random() < 0.5
    client = rng.choice(CLIENTS)
    for _ in range(rng.randrange(1, 10)):
        if makes is some_transfer and one_client:
            parts.append(client(0, number, rng.randbytes(rng.choice((0, 3, 3, 9)))))
        else:
            parts.append(makes(rng, number))
        number = add(number, rng.choice((1, 1, 1, 1, 2, 0)))
        if rng.random() < 0.05:
            parts.append(rng.choice((HEARTBEAT, frame(0, Flow().encode()))))
    return b"".join(parts)


def damaged(rng: random.Random, raw: bytes) -> bytes:
    data = bytearray(raw)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(data))
        what = rng.randrange(5)
        if what == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif what == 1:
            data[at] = rng.choice((0, 1, 2, 0x40, 0x41, 0x43, 0x52, 0x53, 0x70, 0xA0, 0xC0, 0xD0))
        elif what == 2 and len(data) > 9:
            del data[at : at + rng.choice((1, 1, 4))]
        elif what == 3:
            data[at:at] = rng.randbytes(rng.choice((1, 4)))
        else:
            data[at : at + 4] = rng.choice((b"\0\0\0\0", b"\xff\xff\xff\xff", b"\0\0\0\x20"))
        if not data:
            break
    return bytes(data)


def check_transfers(found: Transfers, taken: bytes) -> None:
    frames = cut(taken)
    assert b"".join(frames) == taken
    assert len(frames) == len(found)
    for i, raw in enumerate(frames):
        transfer, payload = read(raw)
        assert isinstance(transfer, Transfer)
        assert transfer.handle == found.handle
        assert transfer.delivery_id == add(found.first, i)
        assert transfer.delivery_tag == found.tags[i]
        assert transfer.message_format == found.shape.message_format
        assert (transfer.settled is True) == found.shape.settled
        assert transfer.rcv_settle_mode == found.shape.rcv_settle_mode
        assert transfer.state == found.shape.state
        assert not transfer.more
        assert not transfer.aborted
        assert not transfer.resume
        assert payload == found.data[found.cuts[i] : found.cuts[i + 1]]
    assert found.cuts[len(found)] == len(found.data)


def check(raw: bytes) -> tuple[int, int]:
    """Bytes that a scan took, and all bytes of whole frames."""
    shapes: dict[bytes, Shape] = {}
    known: dict[bytes, Meaning] = {}
    pos = 0
    taken = 0
    while pos + 8 <= len(raw):
        transfers = scan_transfers(raw, pos, len(raw), 0, BIG, BIG, BIG, shapes)
        joined = scan_dispositions(raw, pos, len(raw), 0, known)
        assert transfers is None or joined is None
        if transfers is not None:
            check_transfers(transfers, raw[pos : transfers.end])
            taken += transfers.end - pos
            pos = transfers.end
        elif joined is not None:
            numbers = 0
            for one in cut(raw[pos : joined.end]):
                found, payload = read(one)
                assert isinstance(found, Disposition)
                last = found.first if found.last is None else found.last
                assert payload == b""
                assert found.first == add(joined.first, numbers)
                assert (found.role, found.settled) == (joined.role, joined.settled)
                assert found.state == joined.state
                numbers += count(found.first, last)
            assert count(joined.first, joined.last) == numbers
            taken += joined.end - pos
            pos = joined.end
        else:
            size = int.from_bytes(raw[pos : pos + 4], "big")
            if size < 8:
                break
            pos += size
    return taken, min(pos, len(raw))


@longer
def test_fuzz_frames() -> None:
    taken = 0
    total = 0
    for number in range(CASES):
        rng = random.Random(f"{SEED}:{number}")
        raw = traffic(rng)
        if rng.random() < 0.7:
            raw = damaged(rng, raw)
        try:
            case = check(raw)
        except BaseException as error:
            error.add_note(f"case {SEED}:{number}, bytes {raw!r}")
            raise
        taken += case[0]
        total += case[1]
    assert taken > total // 4  # the cases are not mostly noise


@given(st.binary(max_size=100))
def test_any_bytes_are_scanned(noise: bytes) -> None:
    for front in (b"", b"\0\0\0\x28\2\0\0\0\0\x53\x14", b"\0\0\0\x28\2\0\0\0\0\x53\x15"):
        check(front + noise)
