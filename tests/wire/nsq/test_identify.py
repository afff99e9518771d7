"""What IDENTIFY takes, refuses and answers [NQ-6]."""

from __future__ import annotations

import json

import pytest

from tallymark.wire.nsq.commands import identify
from tallymark.wire.nsq.errors import WireError
from tallymark.wire.nsq.identify import Identify, decode_identify, encode_answer
from tallymark.wire.nsq.limits import Limits
from tests.support.nsq import EFFECTIVE, connected

LIMITS = Limits()
TLS = Limits(tls_available=True)


def decoded(limits: Limits = LIMITS, /, **fields: object) -> Identify:
    return decode_identify(json.dumps(fields).encode(), limits)


def test_nq_6_what_is_not_named_is_the_servers() -> None:
    for body in (b"{}", b"null", b' {"heartbeat_interval":null, "client_id" : null} '):
        found = decode_identify(body, LIMITS)
        for name in EFFECTIVE:
            assert getattr(found, name) == getattr(Identify(LIMITS), name)
    assert Identify(LIMITS).heartbeat_interval_ms == 30_000


# field, what it may be, what is in effect then
RANGES = [
    ("heartbeat_interval", "heartbeat_interval_ms", (-1, 0), (0, 30_000), (1000, 60_000)),
    ("output_buffer_size", "output_buffer_size", (-1, 0), (1, 16_384), (64, 65_536)),
    ("output_buffer_timeout", "output_buffer_timeout_ms", (-1, 0), (0, 250), (25, 30_000)),
    ("sample_rate", "sample_rate", (0,), (0,), (1, 99)),
    ("msg_timeout", "msg_timeout_ms", (0,), (60_000,), (1000, 900_000)),
]
WORDS = {
    "heartbeat_interval": "heartbeat interval",
    "output_buffer_size": "output buffer size",
    "output_buffer_timeout": "output buffer timeout",
    "sample_rate": "sample rate",
    "msg_timeout": "msg timeout",
}


@pytest.mark.parametrize(("field", "attribute", "special", "meaning", "bounds"), RANGES)
def test_nq_6_ranges(
    field: str,
    attribute: str,
    special: tuple[int, ...],
    meaning: tuple[int, ...],
    bounds: tuple[int, int],
) -> None:
    for value, effect in zip(special, meaning, strict=True):
        assert getattr(decoded(**{field: value}), attribute) == effect
    for value in bounds:
        assert getattr(decoded(**{field: value}), attribute) == value
    for value in (bounds[0] - 1, bounds[1] + 1, -2):
        if value in special:
            continue
        with pytest.raises(WireError) as caught:
            decoded(**{field: value})
        text = f"E_BAD_BODY IDENTIFY {WORDS[field]} ({value}) is invalid"
        assert str(caught.value) == text


def test_nq_d11_acknowledged_fins_are_for_who_asks_and_nobody_else_is_told_of_them() -> None:
    for fields, asked in (
        ({"feature_negotiation": True, "fin_ack": True}, True),
        ({"feature_negotiation": True, "fin_ack": False}, False),
        ({"feature_negotiation": True}, False),
        ({"fin_ack": True}, False),
    ):
        found = decoded(**fields)
        assert found.fin_ack is asked
        assert (b'"fin_ack":true' in encode_answer(found, LIMITS)) is asked
        assert (b"fin_ack" in encode_answer(found, LIMITS)) is asked
    with pytest.raises(WireError, match="E_BAD_BODY"):
        decoded(fin_ack=1)


def test_nq_6_an_unbuffered_client_has_no_flush_timer() -> None:
    found = decoded(output_buffer_size=-1, output_buffer_timeout=100)
    assert (found.output_buffer_size, found.output_buffer_timeout_ms) == (1, 0)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'"x"',
        b"1",
        b"{",
        b"{}x",
        b"{'a':1}",
        b'{"a":NaN}',
        b'{"a":-Infinity}',
        b'{"client_id":1}',
        b'{"heartbeat_interval":"1000"}',
        b'{"heartbeat_interval":1000.0}',
        b'{"heartbeat_interval":true}',
        b'{"heartbeat_interval":9223372036854775808}',
        b'{"sample_rate":2147483648}',
        b'{"msg_timeout":' + b"9" * 5000 + b"}",
        b'{"snappy":1}',
        b'{"tls_v1":"true"}',
        b'{"user_agent":"\x01"}',
        b"\xff\xfe{\0}\0",
        b"[" * 100_000,
        b'{"a":' * 100_000,
    ],
)
def test_what_is_not_a_json_object_of_these_types(body: bytes) -> None:
    with pytest.raises(WireError) as caught:
        decode_identify(body, LIMITS)
    assert str(caught.value) == "E_BAD_BODY IDENTIFY failed to decode JSON body"


def test_keys_in_any_case_and_text_that_can_be_encoded() -> None:
    body = b'{"Client_ID":"a\\ud800b","HOSTNAME":"h\xff","unknown":{"x":[1.5]},'
    body += b'"user_agent":"\\ud83d\\ude00"}'
    found = decode_identify(body, LIMITS)
    assert (found.client_id, found.hostname, found.user_agent) == ("a\ufffdb", "h\ufffd", "😀")


def test_nq_6_the_answer() -> None:
    limits = Limits(tls_available=True, auth_required=True, topology_region="r", version="9")
    found = decoded(limits, feature_negotiation=True, tls_v1=True, snappy=True, sample_rate=7)
    assert encode_answer(found, limits) == (
        b'{"max_rdy_count":2500,"version":"9","max_msg_timeout":900000,"msg_timeout":60000,'
        b'"tls_v1":true,"deflate":false,"deflate_level":6,"max_deflate_level":6,"snappy":true,'
        b'"sample_rate":7,"auth_required":true,"output_buffer_size":16384,'
        b'"output_buffer_timeout":250,"topology_region":"r","topology_zone":""}'
    )


def test_nq_6_without_feature_negotiation_nothing_is_negotiated() -> None:
    found = decoded(TLS, tls_v1=True, snappy=True, deflate=True)
    assert (found.tls_v1, found.snappy, found.deflate) == (False, False, False)
    assert encode_answer(found, TLS) == b"OK"


def test_nq_6_only_what_the_server_offers() -> None:
    plain = Limits(snappy_enabled=False, deflate_enabled=False)
    found = decoded(plain, feature_negotiation=True, tls_v1=True, snappy=True, deflate=True)
    assert (found.tls_v1, found.snappy, found.deflate) == (False, False, False)


@pytest.mark.parametrize(
    ("asked", "most", "given"), [(0, 6, 6), (-3, 6, 6), (1, 6, 1), (9, 6, 6), (9, 9, 9), (0, 3, 3)]
)
def test_nq_6_deflate_level(asked: int, most: int, given: int) -> None:
    limits = Limits(max_deflate_level=most)
    found = decoded(limits, feature_negotiation=True, deflate=True, deflate_level=asked)
    assert found.deflate_level == given


def test_nq_6_one_compression_at_most() -> None:
    server = connected()
    server.feed(identify(b'{"feature_negotiation":true,"snappy":true,"deflate":true}'))
    text = b"E_IDENTIFY_FAILED cannot enable both deflate and snappy compression"
    assert server.sent() == [(1, text)]


def test_nq_7_no_sub_without_heartbeats() -> None:
    server = connected()
    server.feed(identify(b'{"heartbeat_interval":-1}'), b"SUB t c\n")
    assert server.sent() == [(0, b"OK"), (1, b"E_INVALID cannot SUB with heartbeats disabled")]


def test_identify_again_changes_what_is_in_effect() -> None:
    server = connected()
    server.feed(identify(b'{"msg_timeout":5000}'), identify(b'{"client_id":"x"}'))
    assert server.sent() == [(0, b"OK")] * 2
    effective = server.connection.identify
    assert (effective.client_id, effective.msg_timeout_ms) == ("x", 60_000)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"max_body_size": 8}, "max_body_size 8"),
        ({"max_deflate_level": 10}, "max_deflate_level 10"),
        ({"tls_required": True}, "tls_required without tls_available"),
        ({"client_timeout_ms": 0}, "client_timeout_ms 0"),
    ],
)
def test_limits_that_make_no_sense(fields: dict[str, int], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Limits(**fields)  # type: ignore[arg-type]
