"""The hop limit [DL-D1] over a socket: loops that no client takes part in end, and how they do.

A loop's dead-letter exchange is a fanout, so that each letter also goes to a queue of its own: its
consumer sees what the message looked like after every single death, the last one included.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.spec import BasicProperties

from tests.interop.blocking import Inbox, Message, fill, queue, wait_until
from tests.support.process import BrokerProcess

OVERRIDE = "x-opt-dead-letter-hop-limit"
DEFAULT = 32


class Loop:
    """Durable queues that each pass what expires to the next, and a queue that gets a copy of
    every letter."""

    def __init__(
        self, channel: BlockingChannel, name: str, queues: int, limit: object, ttl_ms: int = 1
    ) -> None:
        self.channel = channel
        self.queues = [f"{name}-{number}" for number in range(queues)]
        self.exchanges = [f"{name}-after-{number}" for number in range(queues)]
        self.copies = queue(channel, f"{name}-copies", durable=True)
        for number, own in enumerate(self.queues):
            arguments: dict[str, object] = {"x-dead-letter-exchange": self.exchanges[number]}
            if ttl_ms:
                arguments["x-message-ttl"] = ttl_ms
            if limit is not None:
                arguments["x-dead-letter-hop-limit"] = limit
            queue(channel, own, durable=True, arguments=arguments)
        for number, exchange in enumerate(self.exchanges):
            channel.exchange_declare(exchange, "fanout", durable=True)
            channel.queue_bind(self.copies, exchange)
            channel.queue_bind(self.queues[(number + 1) % queues], exchange)

    def publish(self, body: bytes, headers: dict[str, object] | None = None) -> None:
        properties = BasicProperties(delivery_mode=2, headers=headers)
        self.channel.basic_publish("", self.queues[0], body, properties)

    def path(self, deaths: int) -> list[str]:
        """Where a message has died that died so often, newest first."""
        return [self.queues[number % len(self.queues)] for number in reversed(range(deaths))]

    def wait_for_the_end(self, broker: BrokerProcess, dropped: int) -> dict[str, int]:
        """Until so many messages have ended in the loop; returns how, summed over its queues.
        Every queue's account balances then."""
        found: dict[str, int] = {}

        def is_over() -> bool:
            rows = broker.queues()
            found.clear()
            for name in self.queues:
                for reason, count in rows[name]["dropped"].items():
                    found[reason] = found.get(reason, 0) + count
            return sum(found.values()) >= dropped

        wait_until(self.channel.connection, is_over)
        rows = broker.queues()
        for name in self.queues:
            row = rows[name]
            gone = row["dead_lettered"] + row["settled"] + sum(row["dropped"].values())
            assert row["entered"] == gone, row
            assert row["ready"] == row["acquired"] == row["dead_letter_pending"] == 0, row
        return found


def deaths_of(message: Message) -> list[dict[str, object]]:
    """The entries of x-death."""
    return list(message.properties.headers["x-death"])


def check_letters(loop: Loop, letters: list[Message], hops: int) -> None:
    """The copies of one message that died `hops` times: full histories, each one death longer."""
    assert len(letters) == hops, f"{len(letters)} letters, expected {hops}"
    first = ("expired", loop.queues[0], "")
    for number, letter in enumerate(letters, 1):
        deaths = deaths_of(letter)
        assert [death["queue"] for death in deaths] == loop.path(number)
        assert {death["reason"] for death in deaths} == {"expired"}
        assert [death["count"] for death in deaths] == [1] * number
        times = [death["time"] for death in deaths]
        assert times == sorted(times, reverse=True)
        headers = letter.properties.headers
        found = [headers[f"x-first-death-{what}"] for what in ("reason", "queue", "exchange")]
        assert tuple(found) == first
        before = "" if number == 1 else loop.exchanges[(number - 2) % len(loop.queues)]
        found = [headers[f"x-last-death-{what}"] for what in ("reason", "queue", "exchange")]
        assert found == ["expired", loop.path(number)[0], before]
        assert deaths[0]["exchange"] == before


@pytest.mark.parametrize("queues", [1, 2, 3])
@pytest.mark.parametrize(("limit", "hops"), [(True, DEFAULT), (5, 5), (1, 1), (100, 100)])
def test_dl_d1_a_loop_of_ttls_circles_as_often_as_its_limit_says(
    broker: BrokerProcess,
    channel: BlockingChannel,
    name: str,
    queues: int,
    limit: object,
    hops: int,
) -> None:
    loop = Loop(channel, name, queues, limit)
    inbox = Inbox(channel, loop.copies, auto_ack=True)
    loop.publish(b"around")
    assert loop.wait_for_the_end(broker, 1) == {"dead_letter_hop_limit": 1}
    check_letters(loop, inbox.wait(hops), hops)


def test_dl_d1_each_of_many_messages_has_hops_of_its_own(
    broker: BrokerProcess, channel: BlockingChannel, name: str
) -> None:
    loop = Loop(channel, name, 2, True)
    inbox = Inbox(channel, loop.copies, auto_ack=True)
    for number in range(20):
        loop.publish(b"%d" % number)
    assert loop.wait_for_the_end(broker, 20) == {"dead_letter_hop_limit": 20}
    letters = inbox.wait(20 * DEFAULT)
    for number in range(20):
        own = [letter for letter in letters if letter.body == b"%d" % number]
        check_letters(loop, own, DEFAULT)


@pytest.mark.parametrize("limit", [True, 2])
@pytest.mark.parametrize("hops", [1, 3, 33, 255])
def test_dl_d1_the_senders_header_sets_the_hops(
    broker: BrokerProcess, channel: BlockingChannel, name: str, limit: object, hops: int
) -> None:
    loop = Loop(channel, name, 1, limit)
    inbox = Inbox(channel, loop.copies, auto_ack=True)
    loop.publish(b"around", {OVERRIDE: hops})
    assert loop.wait_for_the_end(broker, 1) == {"dead_letter_hop_limit": 1}
    letters = inbox.wait(hops)
    check_letters(loop, letters, hops)
    assert {letter.properties.headers[OVERRIDE] for letter in letters} == {hops}


def test_dl_d1_headers_of_neighbours_do_not_mix(
    broker: BrokerProcess, channel: BlockingChannel, name: str
) -> None:
    """Published back to back, so that they share what they can."""
    loop = Loop(channel, name, 1, 4)
    inbox = Inbox(channel, loop.copies, auto_ack=True)
    wanted: dict[bytes, int] = {}
    for number, hops in enumerate([3, 3, None, 0, None, 7, 0, 4]):
        body = b"%d" % number
        loop.publish(body, None if hops is None else {OVERRIDE: hops})
        wanted[body] = 4 if hops is None else hops
    assert loop.wait_for_the_end(broker, 8) == {"dead_letter_hop_limit": 8}
    letters = inbox.wait(sum(wanted.values()))
    for body, hops in wanted.items():
        check_letters(loop, [letter for letter in letters if letter.body == body], hops)


@pytest.mark.parametrize("hops", [-1, 256, "3", True, [3], None])
def test_dl_d1_a_header_that_is_no_number_of_hops_is_passed_over(
    broker: BrokerProcess, channel: BlockingChannel, name: str, hops: object
) -> None:
    loop = Loop(channel, name, 1, 4)
    inbox = Inbox(channel, loop.copies, auto_ack=True)
    loop.publish(b"around", {OVERRIDE: hops})
    assert loop.wait_for_the_end(broker, 1) == {"dead_letter_hop_limit": 1}
    check_letters(loop, inbox.wait(4), 4)


@pytest.mark.parametrize(("limit", "headers"), [(0, None), (True, {OVERRIDE: 0})])
def test_dl_d1_without_a_hop_left_the_first_death_is_the_end(
    broker: BrokerProcess,
    channel: BlockingChannel,
    name: str,
    limit: object,
    headers: dict[str, object] | None,
) -> None:
    loop = Loop(channel, name, 1, limit)
    inbox = Inbox(channel, loop.copies, auto_ack=True)
    loop.publish(b"once", headers)
    assert loop.wait_for_the_end(broker, 1) == {"dead_letter_hop_limit": 1}
    assert inbox.settle_quiet() == 0


@pytest.mark.parametrize("limit", [None, False])
def test_dl_15_without_the_limit_the_loop_is_cut_where_it_closes(
    broker: BrokerProcess, channel: BlockingChannel, name: str, limit: object
) -> None:
    """The sender's header alone switches nothing on: DL-D1 is the queue's choice."""
    loop = Loop(channel, name, 2, limit)
    inbox = Inbox(channel, loop.copies, auto_ack=True)
    loop.publish(b"around", {OVERRIDE: 7})
    check_letters(loop, inbox.wait(2), 2)
    rows = broker.queues()
    assert [rows[own]["entered"] for own in loop.queues] == [1, 1]
    assert [rows[own]["dead_lettered"] for own in loop.queues] == [1, 1]


def reject(channel: BlockingChannel, tag: int) -> None:
    channel.basic_reject(tag, requeue=False)


def refuse(channel: BlockingChannel, tag: int) -> None:
    channel.basic_nack(tag, requeue=False)


@pytest.mark.parametrize("say_no", [reject, refuse])
def test_dl_d1_a_consumer_that_says_no_uses_hops_up_too(
    broker: BrokerProcess,
    channel: BlockingChannel,
    name: str,
    say_no: Callable[[BlockingChannel, int], None],
) -> None:
    """The consumer in the loop gets the last letter itself, with every death in its history."""
    loop = Loop(channel, name, 1, 3, ttl_ms=0)
    inbox = Inbox(channel, loop.queues[0])
    fill(channel, loop.queues[0], b"no")
    for seen in range(4):
        (message,) = inbox.wait(1)
        headers = message.properties.headers or {}
        deaths = list(headers.get("x-death", []))
        assert [(death["reason"], death["count"]) for death in deaths] == [("rejected", 1)] * seen
        say_no(channel, message.method.delivery_tag)
    assert loop.wait_for_the_end(broker, 1) == {"dead_letter_hop_limit": 1}
    assert inbox.settle_quiet() == 0
