"""Transfers and dispositions of AMQP 1.0 as clients lay them out, and frames read by the book."""

from __future__ import annotations

from tallymark.wire.amqp10.frames import (
    AMQP,
    frame,
    frame_head,
)
from tallymark.wire.amqp10.performatives import (
    decode_performative,
)
from tallymark.wire.amqp10.scanning import (
    Transfers,
    scan_transfers,
)
from tallymark.wire.amqp10.sending import (
    ACCEPTED,
    TransferForm,
    disposition_frame,
    sized,
)

BIG = 1 << 40


def cut(raw: bytes) -> list[bytes]:
    """The whole frames of a buffer; what is behind them is left out."""
    frames = []
    pos = 0
    while pos + 8 <= len(raw):
        size = int.from_bytes(raw[pos : pos + 4], "big")
        if size < 8 or pos + size > len(raw):
            break
        frames.append(raw[pos : pos + size])
        pos += size
    return frames


def read(raw: bytes) -> tuple[object, bytes]:
    """Performative and payload of a frame, decoded by the book."""
    size, offset, kind, _ = frame_head(raw, 0)
    assert (size, kind) == (len(raw), AMQP)
    performative, end = decode_performative(raw, offset, size)
    return performative, raw[end:]


def scan(raw: bytes, channel: int = 0, most: int = BIG) -> Transfers | None:
    return scan_transfers(raw, 0, len(raw), channel, BIG, BIG, most, {})


def uint(value: int) -> bytes:
    return b"\x43" if value == 0 else encode_uint(value)


def encode_uint(value: int) -> bytes:
    return bytes((0x52, value)) if value < 256 else b"\x70" + value.to_bytes(4, "big")


def as_proton(channel: int, delivery_id: int, payload: bytes) -> bytes:
    tag = str(delivery_id).encode()
    fields = uint(0) + uint(delivery_id) + b"\xa0" + bytes((len(tag),)) + tag + b"\x43"
    head = b"\x00\x53\x14\xc0" + bytes((len(fields) + 1, 4))
    return frame(channel, head + fields, payload)


def as_rhea(channel: int, delivery_id: int, payload: bytes) -> bytes:
    tag = str(delivery_id).encode()
    fields = uint(0) + uint(delivery_id) + b"\xa0" + bytes((len(tag),)) + tag + b"\x43\x42\x42"
    head = b"\x00\x53\x14\xd0" + (len(fields) + 4).to_bytes(4, "big") + b"\0\0\0\6"
    return frame(channel, head + fields, payload)


def as_go_amqp(channel: int, delivery_id: int, payload: bytes) -> bytes:
    fields = uint(1) + uint(delivery_id) + b"\xa0\x08" + delivery_id.to_bytes(8, "big") + b"\x43"
    head = b"\x00\x53\x14\xd0" + (len(fields) + 4).to_bytes(4, "big") + b"\0\0\0\4"
    return frame(channel, head + fields, payload)


def as_ours(channel: int, delivery_id: int, payload: bytes) -> bytes:
    form = TransferForm(channel, 3, settled=True)
    return sized(form.front(delivery_id, delivery_id.to_bytes(4, "big")), payload)


def as_big_numbers(channel: int, delivery_id: int, payload: bytes) -> bytes:
    """As Java clients may: every uint in four bytes, a boolean in two."""
    tag = bytes((delivery_id & 255,)) * (delivery_id % 33)
    fields = b"\x70\0\0\0\5\x70" + delivery_id.to_bytes(4, "big") + b"\xa0" + bytes((len(tag),))
    fields += tag + b"\x70\0\0\0\0\x56\x00\x42\x40\x40\x42\x42\x41"
    head = b"\x00\x53\x14\xc0" + bytes((len(fields) + 1, 11))
    return frame(channel, head + fields, payload)


CLIENTS = [as_proton, as_rhea, as_go_amqp, as_ours, as_big_numbers]


def said_by_rhea(channel: int, first: int, last: int) -> bytes:
    fields = b"\x41" + uint(first) + uint(last) + b"\x41" + ACCEPTED
    head = b"\x00\x53\x15\xd0" + (len(fields) + 4).to_bytes(4, "big") + b"\0\0\0\5"
    return frame(channel, head + fields)


def said_by_proton(channel: int, first: int, last: int) -> bytes:
    fields = b"\x41" + uint(first) + (b"\x40" if first == last else uint(last)) + b"\x41" + ACCEPTED
    return frame(channel, b"\x00\x53\x15\xc0" + bytes((len(fields) + 1, 5)) + fields)


def said_by_us(channel: int, first: int, last: int) -> bytes:
    return disposition_frame(channel, True, first, last, True, ACCEPTED)
