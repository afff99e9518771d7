"""Properties: the codec, and what `classify` sees without decoding."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark.wire.amqp091.errors import WireError
from tallymark.wire.amqp091.fields import DEPTH_MAX, WireInt
from tallymark.wire.amqp091.kernel import MALFORMED, PERSISTENT, SPECIAL
from tallymark.wire.amqp091.properties import (
    Properties,
    classify,
    decode_properties,
    decode_readable,
    encode_properties,
)
from tests.wire.amqp091.test_fields import tables

texts = st.none() | st.text(max_size=40)
octets = st.none() | st.integers(0, 255)

properties = st.builds(
    Properties,
    content_type=texts,
    content_encoding=texts,
    headers=st.none() | tables,
    delivery_mode=octets,
    priority=octets,
    correlation_id=texts,
    reply_to=texts | st.just("amq.rabbitmq.reply-to") | st.just("amq.rabbitmq.reply-to.abc"),
    expiration=texts,
    message_id=texts,
    timestamp=st.none() | st.integers(0, 2**64 - 1),
    type=texts,
    user_id=texts,
    app_id=texts,
    cluster_id=texts,
)


@given(properties)
def test_properties_survive_the_wire(original: Properties) -> None:
    raw = encode_properties(original)
    assert decode_properties(raw) == original
    assert encode_properties(decode_properties(raw)) == raw


def expected_facts(found: Properties) -> int:
    special = (
        found.expiration is not None
        or found.user_id is not None
        or (found.reply_to or "").startswith("amq.rabbitmq.reply-to")
        or bool({"CC", "BCC", "x-delay"} & set(found.headers or {}))
    )
    return (PERSISTENT if found.delivery_mode == 2 else 0) | (SPECIAL if special else 0)


@given(properties)
def test_classify_agrees_with_decoding(original: Properties) -> None:
    assert classify(encode_properties(original)) == expected_facts(original)


@given(properties, st.integers(0, 200))
def test_a_section_cut_short_is_malformed(original: Properties, cut: int) -> None:
    raw = encode_properties(original)
    if cut < len(raw):
        assert classify(raw[:cut]) == MALFORMED
        with pytest.raises(WireError):
            decode_properties(raw[:cut])


@given(st.binary(max_size=40))
def test_what_decodes_is_not_malformed(raw: bytes) -> None:
    code = 502
    try:
        decoded = decode_properties(raw)
    except WireError as error:
        code = error.reply_code
    else:
        assert classify(raw) == expected_facts(decoded)
    assert code == 502


@pytest.mark.parametrize("key", ["CC", "BCC", "x-delay"])
def test_special_headers_are_found_behind_others_of_every_type(key: str) -> None:
    others: dict[str, object] = {
        "a": 1,
        "b": "text CC",
        "c": [1, "x"],
        "d": {"CC": ["nested does not count"]},
        "e": None,
        "f": 1.5,
        "g": True,
        "h": b"\x02CC",
        "i": WireInt(1, "u"),
        "j": 2**40,
    }
    assert classify(encode_properties(Properties(headers=others))) == 0
    assert classify(encode_properties(Properties(headers={**others, key: ["k"]}))) == SPECIAL


def test_a_table_that_cannot_be_walked_is_for_the_decoder_to_judge() -> None:
    broken = b"\x20\0\0\0\0\x07\x01k?\x02CCx"
    assert classify(broken) == SPECIAL
    with pytest.raises(WireError):
        decode_properties(broken)


def test_headers_that_are_no_table_inside_leave_the_rest_readable() -> None:
    """The length of each field says where the next one is."""
    headers: dict[str, object] = {}
    for _ in range(DEPTH_MAX + 1):
        headers = {"a": headers}
    raw = encode_properties(Properties("t", headers=headers, priority=1, message_id="m"))
    found, why = decode_readable(raw)
    assert found == Properties("t", priority=1, message_id="m")
    assert why == f"tables nested deeper than {DEPTH_MAX}"
    with pytest.raises(WireError):
        decode_readable(b"\x80\x03\0")


@given(properties)
def test_properties_that_can_be_read_are_all_there(original: Properties) -> None:
    assert decode_readable(encode_properties(original)) == (original, "")


@pytest.mark.parametrize("flags", [b"\0\x01", b"\0\x02", b"\x80\x03\0"])
def test_unknown_flags_are_malformed(flags: bytes) -> None:
    assert classify(flags) == MALFORMED
    with pytest.raises(WireError):
        decode_properties(flags)


def test_numbers_have_to_fit() -> None:
    with pytest.raises(ValueError, match="256 does not fit 8"):
        encode_properties(Properties(priority=256))
