"""Consumers with filters of a queue that holds messages of every protocol."""

from __future__ import annotations

from array import array

from tallymark.bridge.filters import filters_of
from tallymark.engine.broker import Broker
from tallymark.engine.effects import Deliver
from tallymark.engine.message import Filter, Payload
from tallymark.engine.queue import Queue
from tallymark.engine.session import Session
from tallymark.stored.annotations import Route
from tallymark.stored.formats import AMQP091, NSQ
from tallymark.wire.amqp091.properties import Properties as Basic
from tallymark.wire.amqp10.types import Described, ULong
from tests.bridge.filter_rig import AMQP10, NOW_MS, message
from tests.support.amqp091 import publish


class Rig:
    """A queue of six messages, two of each protocol: red and blue where there are colors."""

    def __init__(self) -> None:
        def fetch(payload: Payload) -> bytes:
            raise AssertionError("everything is in memory")

        self.broker = broker = Broker(fetch)
        broker.registry.add_vhost("/")
        self.connection = broker.clients.open_connection("/", "user", "peer")
        self.session = broker.clients.open_session(self.connection)
        self.queue: Queue = broker.registry.declare_queue(
            self.connection, "q", False, False, False, {}, False
        )
        red, blue = Basic(headers={"color": "red"}), Basic(headers={"color": "blue"})
        self.publish(AMQP10, message({"color": "red"}), message({"color": "blue"}))
        self.publish(AMQP091, publish(1, b"", properties=red), publish(1, b"", properties=blue))
        self.publish(NSQ, b"x" * 32, b"y" * 32)

    def publish(self, format: int, *cells: bytes) -> None:
        cuts = [0]
        for cell in cells:
            cuts.append(cuts[-1] + len(cell))
        first = self.broker.new_message_ids(len(cells))
        payload = Payload(
            format, b"".join(cells), array("I", cuts), Route("", "q"), None, first, 1, False, 0
        )
        targets = self.broker.vhost("/").route("", ["q"], None)
        self.broker.publishing.publish(self.session, targets, payload)

    def filter(self, text: str) -> Filter:
        found, _ = filters_of({"f": Described(ULong(0x120), text)}, self.broker.clock)
        assert found is not None
        return found

    def delivered(self) -> list[tuple[str, int]]:
        """Consumer and number of the message, from 1 in the order of publishing."""
        effects = self.broker.turn(NOW_MS)
        return [
            (effect.consumer.tag, effect.slice.first + i)
            for effect in effects
            if isinstance(effect, Deliver)
            for i in range(len(effect.slice))
        ]


def consume(rig: Rig, tag: str, filter: Filter | None, session: Session | None = None) -> None:
    consumer = rig.broker.consuming.consume(
        session or rig.session, rig.queue, tag, False, False, 0, {}, filter
    )
    rig.broker.consuming.grant(consumer, 100, False)


def test_each_consumer_gets_what_it_asked_for() -> None:
    rig = Rig()
    consume(rig, "red", rig.filter("color = 'red'"))
    consume(rig, "colorless", rig.filter("color IS NULL"))
    assert sorted(rig.delivered()) == [
        ("colorless", 5), ("colorless", 6), ("red", 1), ("red", 3),
    ]  # fmt: skip
    assert rig.queue.ready == 2
    rig.publish(AMQP10, message({"color": "red"}), message({"color": "green"}))
    assert rig.delivered() == [("red", 7)]
    consume(rig, "all", None)
    assert rig.delivered() == [("all", 2), ("all", 4), ("all", 8)]
    rig.broker.check()


def test_what_a_consumer_gives_back_is_for_any_that_it_matches() -> None:
    rig = Rig()
    consume(rig, "first", rig.filter("color = 'red'"))
    assert rig.delivered() == [("first", 1), ("first", 3)]
    other = rig.broker.clients.open_session(rig.connection)
    consume(rig, "second", rig.filter("color <> 'blue' AND h.priority = 4"), other)
    assert rig.delivered() == []
    rig.broker.clients.close_session(rig.session, False)
    assert rig.delivered() == [("second", 1), ("second", 3)]
    rig.broker.check()


def test_browsing_with_a_filter_takes_nothing() -> None:
    rig = Rig()
    browser = rig.broker.consuming.browse(
        rig.session, rig.queue, "b", rig.filter("color IS NOT NULL")
    )
    rig.broker.consuming.grant(browser, 100, False)
    assert rig.delivered() == [("b", 1), ("b", 2), ("b", 3), ("b", 4)]
    assert rig.queue.ready == 6
    assert rig.delivered() == []
    rig.broker.check()
