"""Frames and protocol headers [amqp-1.0 §2.2, §2.3]."""

from __future__ import annotations

import pytest

from tallymark.wire.amqp10.errors import FRAMING_ERROR, DecodeError
from tallymark.wire.amqp10.frames import (
    AMQP,
    AMQP_HEADER,
    HEARTBEAT,
    SASL,
    SASL_HEADER,
    TLS_HEADER,
    frame,
    frame_head,
    sasl_frame,
)


def test_headers_and_frames() -> None:
    assert AMQP_HEADER == b"AMQP\x00\x01\x00\x00"
    assert TLS_HEADER == b"AMQP\x02\x01\x00\x00"
    assert SASL_HEADER == b"AMQP\x03\x01\x00\x00"
    assert frame(0x102, b"body", b"pay") == b"\0\0\0\x0f\x02\x00\x01\x02bodypay"
    assert sasl_frame(b"body") == b"\0\0\0\x0c\x02\x01\0\0body"
    assert frame(0, b"") == HEARTBEAT
    assert frame_head(b"??" + frame(0x102, b"body"), 2) == (12, 8, AMQP, 0x102)
    assert frame_head(sasl_frame(b""), 0) == (8, 8, SASL, 0)
    assert frame_head(b"\0\0\0\x10\x03\x00\0\0", 0) == (16, 12, AMQP, 0)


@pytest.mark.parametrize(
    "head",
    [
        b"\0\0\0\x00\x02\0\0\0",
        b"\0\0\0\x07\x02\0\0\0",
        b"\0\0\0\x08\x01\0\0\0",
        b"\0\0\0\x08\x00\0\0\0",
        b"\0\0\0\x08\x03\0\0\0",
        b"\0\0\1\x00\xff\0\0\0",
    ],
)
def test_a_frame_that_cannot_be_is_a_framing_error(head: bytes) -> None:
    with pytest.raises(DecodeError, match=r"frame of .* expected 8 <= body <= size") as caught:
        frame_head(head, 0)
    assert caught.value.condition == FRAMING_ERROR
