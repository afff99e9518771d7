"""Each kind of exchange by itself: which bindings a message matches."""

from __future__ import annotations

import pytest

from tallymark.engine.errors import InvalidCommand, PreconditionFailed
from tallymark.engine.exchange import (
    Binding,
    Exchange,
    Matches,
    check_exchange_arguments,
    check_same_exchange,
    make_exchange,
    property_key,
    weight_of,
)
from tallymark.engine.queue import Queue

TYPES = ["direct", "fanout", "topic", "headers", "x-consistent-hash"]


def exchange_of(type: str, arguments: dict[str, object] | None = None) -> Exchange:
    return make_exchange("x", type, False, False, False, arguments or {})


def queue_of(id: int) -> Queue:
    return Queue(id, f"q{id}", "/", False, 0, False, {})


def matched(exchange: Exchange, *keys: str, headers: dict[str, object] | None = None) -> list[int]:
    matches = Matches()
    exchange.collect(list(keys), headers, matches)
    return sorted(matches.queues)


def test_direct_matches_any_of_the_keys_and_each_queue_once() -> None:
    exchange = exchange_of("direct")
    exchange.add(Binding(exchange, queue_of(1), None, "a", {}))
    exchange.add(Binding(exchange, queue_of(1), None, "b", {}))
    exchange.add(Binding(exchange, queue_of(2), None, "b", {}))
    assert matched(exchange, "a") == [1]
    assert matched(exchange, "a", "b") == [1, 2]
    assert matched(exchange, "c") == []


def test_fanout_ignores_keys() -> None:
    exchange = exchange_of("fanout")
    exchange.add(Binding(exchange, queue_of(1), None, "a", {}))
    exchange.add(Binding(exchange, queue_of(2), None, "", {}))
    assert matched(exchange, "z") == [1, 2]


def test_topic_matches_patterns() -> None:
    exchange = exchange_of("topic")
    exchange.add(Binding(exchange, queue_of(1), None, "log.#", {}))
    exchange.add(Binding(exchange, queue_of(2), None, "*.error", {}))
    assert matched(exchange, "log.error") == [1, 2]
    assert matched(exchange, "x.error", "log") == [1, 2]
    assert matched(exchange, "x.info") == []


def test_headers_without_any_count_as_an_empty_table() -> None:
    exchange = exchange_of("headers")
    exchange.add(Binding(exchange, queue_of(1), None, "", {}))
    exchange.add(Binding(exchange, queue_of(2), None, "", {"a": 1}))
    assert matched(exchange, "k") == [1]
    assert matched(exchange, "k", headers={"a": 1}) == [1, 2]


@pytest.mark.parametrize(
    ("arguments", "name"),
    [({"hash-header": "h"}, "h"), ({"hash-property": "message_id"}, property_key("message_id"))],
)
def test_hash_on_a_header_or_property(arguments: dict[str, object], name: str) -> None:
    exchange = exchange_of("x-consistent-hash", arguments)
    assert exchange.reads_headers
    for id in range(1, 6):
        exchange.add(Binding(exchange, queue_of(id), None, "1", {}))
    by_value = [matched(exchange, "k", headers={name: f"v{n}"}) for n in range(50)]
    assert len({tuple(ids) for ids in by_value}) == 5
    assert matched(exchange, "other", headers={name: "v0"}) == by_value[0]
    missing = matched(exchange, "k", headers={})
    assert missing == matched(exchange, "other") != []
    assert matched(exchange, "k", headers={name: 7}) == matched(exchange, "j", headers={name: 7})


def test_hash_on_the_first_key() -> None:
    exchange = exchange_of("x-consistent-hash")
    assert not exchange.reads_headers
    for id in range(1, 6):
        exchange.add(Binding(exchange, queue_of(id), None, "10", {}))
    assert matched(exchange, "a", "b") == matched(exchange, "a")
    assert len({tuple(matched(exchange, f"k{n}")) for n in range(50)}) == 5


@pytest.mark.parametrize("type", TYPES)
def test_nothing_is_left_when_all_bindings_are_removed(type: str) -> None:
    exchange = exchange_of(type)
    bindings = [
        Binding(exchange, queue_of(1), None, "1", {}),
        Binding(exchange, queue_of(1), None, "1", {"a": 1}),
        Binding(exchange, queue_of(2), None, "1", {"x-match": "any", "a": 1}),
        Binding(exchange, queue_of(2), None, "2", {}),
    ]
    for binding in bindings:
        exchange.add(binding)
    assert len(exchange.bindings) == 4
    assert matched(exchange, "1", headers={"a": 1}) != []
    for binding in bindings:
        exchange.remove(binding)
    assert exchange.bindings == {}
    assert matched(exchange, "1", "2", headers={"a": 1}) == []


def test_unknown_type() -> None:
    with pytest.raises(InvalidCommand) as refused:
        exchange_of("foo")
    assert str(refused.value) == "unknown exchange type 'foo'"


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("", 'The binding key must be an integer: <<"">>'),
        ("heavy", 'The binding key must be an integer: <<"heavy">>'),
        ("1.5", 'The binding key must be an integer: <<"1.5">>'),
        ("0", "The binding key must be greater than 0"),
        ("-2", "The binding key must be greater than 0"),
    ],
)
def test_weights_are_positive_integers(key: str, text: str) -> None:
    with pytest.raises(PreconditionFailed) as refused:
        exchange_of("x-consistent-hash").check_binding(key, {}, True)
    assert str(refused.value) == text


def test_weight() -> None:
    assert weight_of("+07") == 7


@pytest.mark.parametrize(
    ("type", "arguments", "text"),
    [
        (
            "fanout",
            {"alternate-exchange": 1},
            "invalid type 'signedint' for arg 'alternate-exchange' in exchange 'x' in vhost '/'",
        ),
        (
            "x-consistent-hash",
            {"hash-header": "h", "hash-property": "timestamp"},
            "hash-header and hash-property are mutually exclusive",
        ),
        ("x-consistent-hash", {"hash-property": "app_id"}, "Unsupported property: app_id"),
        (
            "x-consistent-hash",
            {"hash-header": 1},
            "invalid type 'signedint' for arg 'hash-header' in exchange 'x' in vhost '/'",
        ),
    ],
)
def test_bad_exchange_arguments(type: str, arguments: dict[str, object], text: str) -> None:
    with pytest.raises(PreconditionFailed) as refused:
        check_exchange_arguments("exchange 'x' in vhost '/'", type, arguments)
    assert str(refused.value) == text


# -- x-delayed-message


def delayed(kind: object, **more: object) -> Exchange:
    arguments = {name.replace("_", "-"): value for name, value in more.items()}
    return exchange_of("x-delayed-message", {"x-delayed-type": kind, **arguments})


@pytest.mark.parametrize(
    ("kind", "key", "arguments", "hit", "missed"),
    [
        ("direct", "a", {}, "a", "b"),
        ("topic", "a.*", {}, "a.b", "b.a"),
        ("headers", "", {"n": 1}, "n", "other"),
    ],
)
def test_a_delayed_exchange_matches_as_the_kind_it_names(
    kind: str, key: str, arguments: dict[str, object], hit: str, missed: str
) -> None:
    exchange = delayed(kind)
    assert (exchange.type, exchange.reads_headers) == ("x-delayed-message", kind == "headers")
    binding = Binding(exchange, queue_of(1), None, key, arguments)
    exchange.add(binding)
    assert list(exchange.bindings.values()) == [binding]
    assert matched(exchange, hit, headers={hit: 1}) == [1]
    assert matched(exchange, missed, headers={missed: 1}) == []
    exchange.remove(binding)
    assert matched(exchange, hit, headers={hit: 1}) == []


def test_a_delayed_fanout_matches_everything_that_is_bound() -> None:
    exchange = delayed("fanout")
    bindings = [Binding(exchange, queue_of(id), None, "", {}) for id in (1, 2)]
    for binding in bindings:
        exchange.add(binding)
    assert matched(exchange, "any") == [1, 2]
    exchange.remove(bindings[0])
    assert matched(exchange, "any") == [2]


def test_a_delayed_hash_has_the_arguments_of_a_hash() -> None:
    exchange = delayed("x-consistent-hash", hash_header="h")
    assert exchange.reads_headers
    with pytest.raises(PreconditionFailed, match="The binding key must be an integer"):
        exchange.check_binding("a", {}, True)
    both = {"x-delayed-type": "x-consistent-hash", "hash-header": "h", "hash-property": "type"}
    with pytest.raises(PreconditionFailed, match="mutually exclusive"):
        check_exchange_arguments("exchange 'x'", "x-delayed-message", both)


def test_a_delayed_exchange_without_a_kind_is_refused_as_by_the_plugin() -> None:
    told = "Invalid argument, 'x-delayed-type' must be an existing exchange type"
    for arguments in ({}, {"x-delayed-type": 1}):
        with pytest.raises(PreconditionFailed) as refused:
            check_exchange_arguments("exchange 'x'", "x-delayed-message", arguments)
        assert str(refused.value) == told
    with pytest.raises(PreconditionFailed) as refused:
        delayed("x-delayed-message")
    assert str(refused.value) == (
        "Invalid argument, 'x-delayed-message' can't be used for 'x-delayed-type'"
    )
    with pytest.raises(InvalidCommand, match=r"^unknown exchange type 'x-none'$"):
        delayed("x-none")


def test_a_delayed_exchange_is_declared_again_as_what_it_is() -> None:
    exchange = delayed("topic")

    def again(type: str, arguments: dict[str, object]) -> None:
        check_same_exchange("/", exchange, type, False, False, False, arguments)

    again("x-delayed-message", {"x-delayed-type": "topic"})
    again("x-delayed-message", {})
    with pytest.raises(PreconditionFailed, match="inequivalent arg 'x-delayed-type'"):
        again("x-delayed-message", {"x-delayed-type": "direct"})
    with pytest.raises(PreconditionFailed, match="inequivalent arg 'type'"):
        again("topic", {})
