"""Exchanges, bindings and queues as pika's blocking adapter sees them."""

from __future__ import annotations

from collections import Counter

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.interop.blocking import Inbox, bodies, connect, depth, drain, fill, queue, wait_until


def routed(channel: BlockingChannel, exchange: str, *keys: str, queues: list[str]) -> list[set]:
    """Publish one message per key; for each the set of queues it went to."""
    for key in keys:
        channel.basic_publish(exchange, key, key.encode())
    found: dict[bytes, set[str]] = {key.encode(): set() for key in keys}
    for target in queues:
        for body in bodies(drain(channel, target)):
            found[body].add(target)
    return [found[key.encode()] for key in keys]


def test_direct_exchange_routes_on_the_equal_key(channel: BlockingChannel, name: str) -> None:
    channel.exchange_declare(name, "direct", auto_delete=True)
    a, b = queue(channel, exclusive=True), queue(channel, exclusive=True)
    channel.queue_bind(a, name, "red")
    channel.queue_bind(b, name, "red")
    channel.queue_bind(b, name, "blue")
    assert routed(channel, name, "red", "blue", "green", queues=[a, b]) == [{a, b}, {b}, set()]
    channel.queue_unbind(b, name, "red")
    assert routed(channel, name, "red", queues=[a, b]) == [{a}]


def test_fanout_exchange_ignores_the_key(channel: BlockingChannel, name: str) -> None:
    channel.exchange_declare(name, "fanout", auto_delete=True)
    a, b = queue(channel, exclusive=True), queue(channel, exclusive=True)
    channel.queue_bind(a, name, "x")
    channel.queue_bind(b, name)
    assert routed(channel, name, "x", "", "y", queues=[a, b]) == [{a, b}] * 3


def test_topic_exchange_matches_words(channel: BlockingChannel, name: str) -> None:
    channel.exchange_declare(name, "topic", auto_delete=True)
    a, b, c = (queue(channel, exclusive=True) for _ in range(3))
    channel.queue_bind(a, name, "*.orange.*")
    channel.queue_bind(b, name, "lazy.#")
    channel.queue_bind(c, name, "#")
    found = routed(
        channel, name,
        "quick.orange.fox", "lazy.orange.male.rabbit", "lazy", "lazy.", "orange", "",
        queues=[a, b, c],
    )  # fmt: skip
    assert found == [{a, c}, {b, c}, {b, c}, {b, c}, {c}, {c}]


def test_headers_exchange_matches_all_or_any(channel: BlockingChannel, name: str) -> None:
    channel.exchange_declare(name, "headers", auto_delete=True)
    both, either = queue(channel, exclusive=True), queue(channel, exclusive=True)
    wanted = {"kind": "order", "size": 3}
    channel.queue_bind(both, name, arguments=wanted | {"x-match": "all"})
    channel.queue_bind(either, name, arguments=wanted | {"x-match": "any"})
    for headers in ({"kind": "order", "size": 3}, {"kind": "order"}, {"kind": "x"}, None):
        channel.basic_publish(name, "", repr(headers), pika.BasicProperties(headers=headers))
    full, part = repr(wanted).encode(), b"{'kind': 'order'}"
    assert bodies(drain(channel, both)) == [full]
    assert bodies(drain(channel, either)) == [full, part]


def test_default_exchange_routes_to_the_queue_of_that_name(channel: BlockingChannel) -> None:
    target = queue(channel, exclusive=True)
    fill(channel, target, b"here")
    assert bodies(drain(channel, target)) == [b"here"]


@pytest.mark.usefixtures("only_ours")
def test_consistent_hash_exchange_spreads_and_keeps_a_key_on_its_queue(
    channel: BlockingChannel, name: str
) -> None:
    channel.exchange_declare(name, "x-consistent-hash", auto_delete=True)
    queues = [queue(channel, exclusive=True) for _ in range(4)]
    for target in queues:
        channel.queue_bind(target, name, "10")
    keys = [f"customer-{number}" for number in range(400)]
    first = routed(channel, name, *keys, queues=queues)
    assert all(len(found) == 1 for found in first)
    assert min(Counter(next(iter(found)) for found in first).values()) > 40
    assert routed(channel, name, *keys, queues=queues) == first


@pytest.mark.parametrize("exchange", ["amq.direct", "amq.fanout", "amq.topic", "amq.headers"])
def test_predeclared_exchanges_are_there(channel: BlockingChannel, exchange: str) -> None:
    channel.exchange_declare(exchange, passive=True)


def test_exchange_to_exchange_bindings_are_followed_once(
    channel: BlockingChannel, name: str
) -> None:
    target = queue(channel, exclusive=True)
    for part in "abc":
        channel.exchange_declare(name + part, "topic")
    channel.exchange_bind(name + "b", name + "a", "order.#")
    channel.exchange_bind(name + "c", name + "a", "order.new")
    channel.exchange_bind(name + "a", name + "b", "#")  # a cycle
    channel.queue_bind(target, name + "b", "#")
    channel.queue_bind(target, name + "c", "#")
    fill(channel, "order.new", b"once", exchange=name + "a")
    fill(channel, "other", b"no", exchange=name + "a")
    assert bodies(drain(channel, target)) == [b"once"]
    channel.exchange_unbind(name + "b", name + "a", "order.#")
    channel.exchange_unbind(name + "c", name + "a", "order.new")
    fill(channel, "order.new", b"gone", exchange=name + "a")
    assert drain(channel, target) == []
    for part in "abc":
        channel.exchange_delete(name + part)


def test_alternate_exchange_takes_what_has_no_route(channel: BlockingChannel, name: str) -> None:
    channel.exchange_declare(name + "-rest", "fanout", auto_delete=True)
    channel.exchange_declare(
        name, "direct", auto_delete=True, arguments={"alternate-exchange": name + "-rest"}
    )
    known, rest = queue(channel, exclusive=True), queue(channel, exclusive=True)
    channel.queue_bind(known, name, "known")
    channel.queue_bind(rest, name + "-rest")
    channel.confirm_delivery()
    for key in ("known", "unknown"):
        channel.basic_publish(name, key, key, mandatory=True)
    assert bodies(drain(channel, known)) == [b"known"]
    assert bodies(drain(channel, rest)) == [b"unknown"]


def test_server_named_queue_has_the_reserved_prefix(channel: BlockingChannel) -> None:
    first, second = queue(channel, exclusive=True), queue(channel, exclusive=True)
    assert first.startswith("amq.gen-")
    assert first != second


def test_empty_name_means_the_queue_declared_last(channel: BlockingChannel) -> None:
    last = queue(channel, exclusive=True)
    fill(channel, last, b"x")
    assert channel.queue_purge("").method.message_count == 1


def test_auto_delete_queue_goes_with_its_last_consumer(channel: BlockingChannel, name: str) -> None:
    queue(channel, name, auto_delete=True)
    first, second = Inbox(channel, name), Inbox(channel, name)
    channel.basic_cancel(first.tag)
    assert depth(channel, name) == 0
    channel.basic_cancel(second.tag)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="404"):
        depth(channel, name)


def test_auto_delete_exchange_goes_with_its_last_binding(
    connection: pika.BlockingConnection, name: str
) -> None:
    channel = connection.channel()
    channel.exchange_declare(name, "direct", auto_delete=True)
    target = queue(channel, exclusive=True)
    channel.queue_bind(target, name, "a")
    channel.queue_bind(target, name, "b")
    channel.queue_unbind(target, name, "a")
    channel.exchange_declare(name, passive=True)
    channel.queue_unbind(target, name, "b")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="404"):
        channel.exchange_declare(name, passive=True)


def test_exclusive_queue_goes_with_its_connection(port: int, name: str) -> None:
    owner = connect(port)
    queue(owner.channel(), name, exclusive=True)
    owner.close()
    with connect(port) as other:
        channel = other.channel()

        def is_gone() -> bool:
            nonlocal channel
            try:
                depth(channel, name)
            except pika.exceptions.ChannelClosedByBroker as error:
                channel = other.channel()
                return bool(error.reply_code == 404)
            return False

        wait_until(other, is_gone)


def test_declaring_again_answers_with_counts(channel: BlockingChannel, name: str) -> None:
    queue(channel, name, exclusive=True)
    fill(channel, name, b"a", b"b", b"c")
    channel.basic_qos(prefetch_count=1)
    Inbox(channel, name).wait(1)
    answer = channel.queue_declare(name, exclusive=True).method
    assert (answer.message_count, answer.consumer_count) == (2, 1)


def test_durable_says_nothing_for_an_exclusive_queue(channel: BlockingChannel, name: str) -> None:
    """It cannot outlive its connection, so both declarations are the same [rabbitmq 3.10]."""
    queue(channel, name, exclusive=True, durable=True)
    queue(channel, name, exclusive=True, durable=False)


def test_purge_and_delete_tell_how_many(channel: BlockingChannel) -> None:
    target = queue(channel, exclusive=True)
    fill(channel, target, b"a", b"b", b"c")
    assert channel.queue_purge(target).method.message_count == 3
    fill(channel, target, b"d")
    assert channel.queue_delete(target).method.message_count == 1


def test_deleting_what_is_not_there_succeeds(channel: BlockingChannel, name: str) -> None:
    assert channel.queue_delete(name).method.message_count == 0
    channel.exchange_delete(name)


def test_cc_and_bcc_route_as_well_and_bcc_is_removed(channel: BlockingChannel) -> None:
    main, cc, bcc = (queue(channel, exclusive=True) for _ in range(3))
    headers = {"CC": [cc], "BCC": [bcc], "trace": "t1"}
    channel.basic_publish("", main, b"x", pika.BasicProperties(headers=headers))
    for target in (main, cc, bcc):
        (message,) = drain(channel, target)
        assert message.properties.headers == {"CC": [cc], "trace": "t1"}
