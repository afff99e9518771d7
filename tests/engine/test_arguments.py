"""Checks of arguments, and RabbitMQ's words for what is wrong with them."""

from __future__ import annotations

from decimal import Decimal

import pytest

from tallymark.engine.arguments import (
    QUEUE_ARGUMENTS,
    QUEUE_CHECKS,
    check_consumer_arguments,
    check_queue_arguments,
    consumer_priority,
    consumer_timeout_ms,
)
from tallymark.engine.equivalence import check_same_arguments, same_argument
from tallymark.engine.errors import PreconditionFailed
from tallymark.engine.names import named
from tallymark.engine.table_values import (
    equal_values,
    erlang_term,
    table_term,
    type_name,
    wire_bytes,
)

WHAT = named("queue", "q", "/")


class Time(int):
    """A time, as a protocol's table gives it."""

    tag = "T"


class Single(float):
    """A float of 32 bits, as a protocol's table gives it."""

    tag = "f"


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"x-message-ttl": 0, "x-expires": 1, "x-max-length": 0, "x-max-length-bytes": 1 << 40},
        {"x-max-priority": 255, "x-single-active-consumer": True, "x-overflow": "reject-publish"},
        {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "k"},
        {"x-dead-letter-strategy": "at-least-once", "x-delivery-limit": 5},
        {"x-queue-mode": "lazy", "x-queue-version": 2, "x-queue-type": "classic"},
        {"x-consumer-timeout": 1000, "x-whatever": object},
        {"x-dead-letter-hop-limit": 0},
        {"x-dead-letter-hop-limit": 255},
        {"x-dead-letter-hop-limit": True},
        {"x-dead-letter-hop-limit": False},
        {"x-delivery-limit": -1},
        {"x-acquired-limit": 0, "x-message-deduplication": 1},
        {"x-delayed-retry-type": "all", "x-delayed-retry-min": 1, "x-delayed-retry-max": 1},
        {"x-delayed-retry-type": "failed", "x-delayed-retry-min": 5},
        {"x-delayed-retry-type": "returned"},
        {"x-delayed-retry-type": "disabled", "x-delayed-retry-max": 315_360_000_000},
    ],
)
def test_good_queue_arguments(arguments: dict[str, object]) -> None:
    check_queue_arguments(WHAT, arguments)


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        ({"x-message-ttl": -1}, "{value_negative,-1}"),
        ({"x-message-ttl": "1"}, '"expected integer, got longstr"'),
        ({"x-message-ttl": True}, '"expected integer, got bool"'),
        ({"x-message-ttl": 1.0}, '"expected integer, got double"'),
        ({"x-message-ttl": Single(1.0)}, '"expected integer, got float"'),
        ({"x-message-ttl": Time(1)}, '"expected integer, got timestamp"'),
        ({"x-message-ttl": Time(1 << 63)}, '"expected integer, got timestamp"'),
        ({"x-max-priority": Time(256)}, '"expected integer, got timestamp"'),
        ({"x-dead-letter-hop-limit": Time(256)}, '"expected integer, got timestamp"'),
        ({"x-expires": 0}, "{value_zero,0}"),
        ({"x-max-length": -5}, "{value_negative,-5}"),
        ({"x-max-priority": 256}, "{max_value_exceeded,256}"),
        ({"x-single-active-consumer": 1}, "{unacceptable_type,signedint}"),
        ({"x-overflow": "spill"}, "invalid_overflow"),
        ({"x-overflow": 1}, "{unacceptable_type,signedint}"),
        ({"x-queue-mode": "eager"}, "\"unsupported queue mode 'eager'\""),
        ({"x-queue-version": 3}, "\"unsupported queue version '3'\""),
        ({"x-queue-type": "fast"}, "\"unsupported queue type 'fast'\""),
        ({"x-dead-letter-strategy": "never"}, "invalid_dlx_strategy"),
        ({"x-dead-letter-hop-limit": 256}, "{max_value_exceeded,256}"),
        ({"x-dead-letter-hop-limit": -1}, "{value_negative,-1}"),
        ({"x-dead-letter-hop-limit": "3"}, '"expected integer, got longstr"'),
        ({"x-delivery-limit": "3"}, '"expected integer, got longstr"'),
        ({"x-delivery-limit": True}, '"expected integer, got bool"'),
        ({"x-delivery-limit-counts": "nacks"}, "invalid_delivery_limit_counts"),
        ({"x-delivery-limit-counts": 1}, "{unacceptable_type,signedint}"),
        ({"x-acquired-limit": -1}, "{value_negative,-1}"),
        ({"x-consumer-timeout": -1}, "{value_negative,-1}"),
        ({"x-message-deduplication": 0}, "{value_zero,0}"),
        ({"x-message-deduplication": True}, '"expected integer, got bool"'),
        ({"x-message-deduplication": False}, '"expected integer, got bool"'),
        ({"x-delayed-retry-type": "some"}, "invalid_delayed_retry_type"),
        ({"x-delayed-retry-type": True}, "{unacceptable_type,bool}"),
        ({"x-delayed-retry-min": 0}, "{value_zero,0}"),
        ({"x-delayed-retry-min": "5"}, '"expected integer, got longstr"'),
        ({"x-delayed-retry-max": -1}, "{value_negative,-1}"),
        (
            {"x-delayed-retry-max": 315_360_000_001},
            "{value_too_large,315360000001}, expected 1 to 315360000000 milliseconds, ten years",
        ),
        (
            {"x-message-ttl": 1 << 63},
            "{value_too_large,9223372036854775808}, "
            "expected 0 to 315360000000 milliseconds, ten years",
        ),
        (
            {"x-consumer-timeout": 315_360_000_001},
            "{value_too_large,315360000001}, expected 0 to 315360000000 milliseconds, ten years",
        ),
        (
            {"x-message-deduplication": 315_360_000_001},
            "{value_too_large,315360000001}, expected 1 to 315360000000 milliseconds, ten years",
        ),
        (
            {"x-delayed-retry-max": 4, "x-delayed-retry-min": 5},
            "delayed-retry-max (4) must not be smaller than delayed-retry-min (5)",
        ),
    ],
)
def test_bad_queue_arguments(arguments: dict[str, object], wrong: str) -> None:
    with pytest.raises(PreconditionFailed) as refused:
        check_queue_arguments(WHAT, arguments)
    name = next(iter(arguments))
    assert str(refused.value) == f"invalid arg '{name}' for queue 'q' in vhost '/': {wrong}"


@pytest.mark.parametrize("name", [n for n, check in QUEUE_CHECKS.items() if not check(1)])
def test_every_number_has_an_end(name: str) -> None:
    """AMQP 1.0 has larger ones than a table of AMQP 0-9-1; what is deduced from it is stored."""
    with pytest.raises(PreconditionFailed) as refused:
        check_queue_arguments(WHAT, {name: 1 << 64})
    wrong = str(refused.value).removeprefix(f"invalid arg '{name}' for {WHAT}: ")
    assert "18446744073709551616" in wrong


def test_dl_3_a_routing_key_needs_an_exchange_in_the_same_declaration() -> None:
    with pytest.raises(PreconditionFailed) as refused:
        check_queue_arguments(WHAT, {"x-dead-letter-routing-key": "k"})
    assert str(refused.value) == (
        "invalid arg 'x-dead-letter-routing-key' for queue 'q' in vhost '/': "
        "routing_key_but_no_dlx_defined"
    )
    check_queue_arguments(WHAT, {"x-dead-letter-routing-key": "k", "x-dead-letter-exchange": ""})


@pytest.mark.parametrize("key", ["k" * 256, "é" * 128, "\udcff"])
def test_a_dead_letter_routing_key_has_to_fit_a_delivery(key: str) -> None:
    with pytest.raises(PreconditionFailed) as refused:
        check_queue_arguments(
            WHAT, {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": key}
        )
    assert str(refused.value) == (
        "invalid arg 'x-dead-letter-routing-key' for queue 'q' in vhost '/': "
        '"expected a routing key: UTF-8, at most 255 bytes"'
    )
    check_queue_arguments(
        WHAT, {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "é" * 127}
    )


def test_dl_3_dead_letter_exchange_must_be_text() -> None:
    with pytest.raises(PreconditionFailed) as refused:
        check_queue_arguments(WHAT, {"x-dead-letter-exchange": 1})
    assert str(refused.value) == (
        "invalid type 'signedint' for arg 'x-dead-letter-exchange' in queue 'q' in vhost '/'"
    )


def test_arguments_of_streams_are_refused() -> None:
    with pytest.raises(PreconditionFailed) as refused:
        check_queue_arguments(WHAT, {"x-max-age": "1D"})
    assert str(refused.value) == (
        "invalid arg 'x-max-age' for queue 'q' in vhost '/' of queue type rabbit_classic_queue"
    )


@pytest.mark.parametrize(
    ("received", "current", "text"),
    [
        ({"x-max-length": 2}, {"x-max-length": 1}, "received '2' but current is '1'"),
        ({"x-max-length": "1"}, {"x-max-length": 1}, "received '1' but current is '1'"),
        (
            {},
            {"x-max-length": 1},
            "received none but current is the value '1' of type 'signedint'",
        ),
        (
            {"x-max-length": 1 << 40},
            {},
            "received the value '1099511627776' of type 'long' but current is none",
        ),
    ],
)
def test_inequivalent_arguments(
    received: dict[str, object], current: dict[str, object], text: str
) -> None:
    with pytest.raises(PreconditionFailed) as refused:
        check_same_arguments(QUEUE_ARGUMENTS, WHAT, received, current)
    assert str(refused.value) == (
        f"inequivalent arg 'x-max-length' for queue 'q' in vhost '/': {text}"
    )


@pytest.mark.parametrize(
    ("name", "value", "other"),
    [
        ("x-dead-letter-hop-limit", 1, True),
        ("x-dead-letter-hop-limit", 0, False),
        ("x-acquired-limit", 1, 2),
        ("x-message-deduplication", 1000, 2000),
        ("x-delivery-limit", -1, 0),
        ("x-delivery-limit-counts", "failures", "returns"),
        ("x-dead-letter-strategy", "at-most-once", "at-least-once"),
        ("x-delayed-retry-type", "all", "failed"),
        ("x-delayed-retry-min", 1, 2),
        ("x-delayed-retry-max", 1, 2),
    ],
)
def test_every_argument_that_is_acted_upon_is_compared(
    name: str, value: object, other: object
) -> None:
    check_same_arguments(QUEUE_ARGUMENTS, WHAT, {name: value}, {name: value})
    for received in ({name: other}, {}):
        with pytest.raises(PreconditionFailed, match=f"inequivalent arg '{name}'"):
            check_same_arguments(QUEUE_ARGUMENTS, WHAT, received, {name: value})


def test_equivalent_arguments() -> None:
    check_same_arguments(QUEUE_ARGUMENTS, WHAT, {"x-foo": 1}, {"x-foo": 2})
    check_same_arguments(QUEUE_ARGUMENTS, WHAT, {"x-queue-type": "classic"}, {})
    check_same_arguments(QUEUE_ARGUMENTS, WHAT, {}, {"x-queue-type": "classic"})
    with pytest.raises(PreconditionFailed):
        check_same_arguments(QUEUE_ARGUMENTS, WHAT, {"x-queue-type": "quorum"}, {})


def test_equality_of_values() -> None:
    assert equal_values([1, "a"], (1.0, b"a"))
    assert not equal_values([1], [1, 2])
    assert not equal_values([1], 1)
    assert equal_values({"k": [None]}, {"k": [None]})
    assert not equal_values({"k": 1}, {"j": 1})
    assert not equal_values({"k": 1}, {"k": 1, "j": 1})
    assert not equal_values(0, False)
    assert not equal_values(None, 0)
    assert equal_values("\udcff", b"\xff")
    assert not same_argument(1, 1.0)
    assert same_argument("a", b"a")


def test_text_that_no_wire_sent_has_bytes_too() -> None:
    assert wire_bytes("\ud800") == b"\xed\xa0\x80"


def test_consumer_arguments() -> None:
    check_consumer_arguments(WHAT, {"x-priority": -3})
    assert consumer_priority({"x-priority": -3}) == -3
    assert consumer_priority({}) == 0
    with pytest.raises(PreconditionFailed) as refused:
        check_consumer_arguments(WHAT, {"x-priority": "high"})
    assert str(refused.value) == (
        "invalid arg 'x-priority' for queue 'q' in vhost '/': \"expected integer, got longstr\""
    )


def test_a_consumers_own_time_out() -> None:
    check_consumer_arguments(WHAT, {"x-consumer-timeout": 0})
    assert consumer_timeout_ms({"x-consumer-timeout": 0}) == 0
    assert consumer_timeout_ms({"x-consumer-timeout": 90_000}) == 90_000
    assert consumer_timeout_ms({}) == -1
    for wrong in (-1, "1000", True, 315_360_000_001, 1 << 64):
        with pytest.raises(PreconditionFailed, match="invalid arg 'x-consumer-timeout' for queue"):
            check_consumer_arguments(WHAT, {"x-consumer-timeout": wrong})


def test_names_of_types() -> None:
    class Tagged(int):
        tag = "l"

    values: list[object] = [
        None, True, 1, Tagged(1), Time(1), 0.5, Single(0.5), "", b"", {}, [],
    ]  # fmt: skip
    assert [type_name(value) for value in values] == [
        "void",
        "bool",
        "signedint",
        "long",
        "timestamp",
        "double",
        "float",
        "longstr",
        "binary",
        "table",
        "array",
    ]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("a", '<<"a">>'),
        ("", "<<>>"),
        (b"a", '<<"a">>'),
        (b"", "<<>>"),
        (True, "true"),
        (None, "undefined"),
        (5, "5"),
        ([1, "a"], '[{signedint,1},{longstr,<<"a">>}]'),
        ([], "[]"),
        (Decimal("1.50"), "{2,150}"),
        ({"k": {"j": Time(1)}}, '[{<<"k">>,table,[{<<"j">>,timestamp,1}]}]'),
        ({}, "[]"),
    ],
)
def test_values_of_tables_are_shown_as_erlang_s(value: object, shown: str) -> None:
    assert table_term(value) == shown


def test_values_of_json_are_shown_as_erlang_s() -> None:
    value = {"k": [1, "a", "", True, None, {}]}
    assert erlang_term(value) == '#{<<"k">> => [1,<<"a">>,<<>>,true,undefined,#{}]}'


def test_a_binary_is_shown_as_text_where_it_differs() -> None:
    with pytest.raises(PreconditionFailed) as refused:
        check_same_arguments(["x-a"], WHAT, {"x-a": b"one"}, {"x-a": "two"})
    assert str(refused.value).endswith("received 'one' but current is 'two'")
