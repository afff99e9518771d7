"""SASL frames [amqp-1.0 §5.3] and the PLAIN mechanism [RFC 4616]."""

from __future__ import annotations

import pytest

from tallymark.wire.amqp10.errors import DecodeError
from tallymark.wire.amqp10.sasl import (
    AUTH,
    OK,
    SaslChallenge,
    SaslFrame,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    SaslResponse,
    decode_sasl,
    plain_response,
    split_plain,
)

FRAMES: list[tuple[bytes, SaslFrame]] = [
    # python-qpid-proton 0.40
    (b"\x00S@\xc0\x0f\x01\xe0\x0c\x01\xa3\tANONYMOUS", SaslMechanisms(("ANONYMOUS",))),
    (
        b"\x00SA\xc0\x17\x02\xa3\tANONYMOUS\xa0\tanonymous",
        SaslInit("ANONYMOUS", b"anonymous"),
    ),
    (b"\x00SD\xc0\x03\x01P\x00", SaslOutcome(OK)),
    (
        b"\x00\x53\x40\xc0\x15\x01\xe0\x12\x02\xa3\x05PLAIN\x09ANONYMOUS",
        SaslMechanisms(("PLAIN", "ANONYMOUS")),
    ),
    (
        b"\x00\x53\x41\xc0\x11\x03\xa3\x05PLAIN\xa0\x04\0u\0p\xa1\x01h",
        SaslInit("PLAIN", b"\0u\0p", "h"),
    ),
    (b"\x00\x53\x42\xc0\x04\x01\xa0\x01c", SaslChallenge(b"c")),
    (b"\x00\x53\x43\xc0\x04\x01\xa0\x01r", SaslResponse(b"r")),
    (b"\x00\x53\x44\xc0\x06\x02\x50\x01\xa0\x01d", SaslOutcome(AUTH, b"d")),
]


@pytest.mark.parametrize(("raw", "value"), FRAMES)
def test_sasl_frames(raw: bytes, value: SaslFrame) -> None:
    assert value.encode() == raw
    assert decode_sasl(raw, 0, len(raw)) == (value, len(raw))
    padded = b"\xff" + raw + b"\xff"
    assert decode_sasl(padded, 1, len(padded)) == (value, len(raw) + 1)


def test_a_single_mechanism_may_stand_for_itself() -> None:
    raw = b"\x00\x53\x40\xc0\x08\x01\xa3\x05PLAIN"
    assert decode_sasl(raw, 0, len(raw))[0] == SaslMechanisms(("PLAIN",))


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"\x00\x53\x10\xc0\x04\x01\xa1\x01c", "open where a sasl-frame was expected"),
        (b"\x00\x53\x41\x45", r"sasl-init\.mechanism is missing"),
        (b"\x00\x53\x44\xc0\x03\x01\x52\x01", r"sasl-outcome\.code: format code 0x52"),
        (b"", "cut off"),
    ],
)
def test_what_is_no_sasl_frame_is_a_decode_error(raw: bytes, text: str) -> None:
    with pytest.raises(DecodeError, match=text):
        decode_sasl(raw, 0, len(raw))


def test_plain() -> None:
    assert plain_response("müller", "p w") == b"\0m\xc3\xbcller\0p w"
    assert split_plain(plain_response("müller", "p w")) == ("", "müller", "p w")
    assert split_plain(b"as\0user\0") == ("as", "user", "")
    for response in (b"", b"user", b"\0user", b"\0user\0pass\0more", b"\0\xff\0x"):
        assert split_plain(response) is None
