"""AMQP 0-9-1 publisher to AMQP 1.0 consumer and back, NSQ to both, through a whole broker."""

from __future__ import annotations

from decimal import Decimal

import pytest

from tallymark.wire.amqp091 import fields
from tallymark.wire.amqp091.fields import Float32, WireInt
from tallymark.wire.amqp091.methods import (
    BasicAck,
    BasicConsume,
    BasicDeliver,
    BasicGet,
    BasicGetOk,
    BasicReject,
)
from tallymark.wire.amqp091.properties import Properties as BasicProperties
from tallymark.wire.amqp10.outcomes import Accepted, Modified, Rejected
from tallymark.wire.amqp10.sections import Header, Properties, Value, encode_message
from tallymark.wire.amqp10.types import Symbol, Timestamp, UInt, ULong
from tallymark.wire.nsq.frames import MESSAGE, decode_message
from tests.bridge import rig10
from tests.bridge.conversion import URN, facts, header, only, same, values
from tests.bridge.nsq_rig import NsqRig, mpub, pub
from tests.bridge.rig import Content
from tests.bridge.rig import Peer as Peer091

BODY = bytes(range(256)) * 3


def published(rig: rig10.Rig, properties: BasicProperties, body: bytes = BODY) -> Peer091:
    """By an AMQP 0-9-1 client to the queue q."""
    peer = rig.connect()
    peer.ask(peer.publish(body, "q", **facts(properties)))
    return peer


def received(rig: rig10.Rig, address: str = "/queues/q") -> tuple[rig10.Peer, rig10.Got]:
    """By an AMQP 1.0 client, one message."""
    peer = rig.connect10()
    peer.receiver(peer.session(), address, 10)
    [got] = peer.got
    return peer, got


def consumed(rig: rig10.Rig, queue: str = "q") -> Content:
    """By an AMQP 0-9-1 client, one message."""
    peer = Peer091(rig)
    peer.login()
    peer.open()
    heard = [one for _, one in peer.ask(BasicConsume(queue, "tag"))]
    [content] = [one for one in heard if isinstance(one, Content)]
    assert isinstance(content.method, BasicDeliver)
    peer.ask(BasicAck(content.method.delivery_tag, False))
    return content


PROPERTIES = [
    {},
    {"content_type": "text/plain"},
    {"content_type": "ü"},
    {"content_encoding": "gzip"},
    {"delivery_mode": 1},
    {"delivery_mode": 2},
    {"priority": 0},
    {"priority": 255},
    {"correlation_id": "c"},
    {"correlation_id": URN},
    {"reply_to": "answers / ü"},
    {"expiration": "60000"},
    {"expiration": "5000000000"},
    {"message_id": "m"},
    {"message_id": "7"},
    {"message_id": URN},
    {"timestamp": 1_700_000_000},
    {"timestamp": 2**64 - 1},
    {"type": "order"},
    {"user_id": "guest"},
    {"app_id": "app"},
    {"cluster_id": "cl"},
]
HEADERS: list[object] = [
    True,
    WireInt(-1, "b"),
    WireInt(255, "B"),
    WireInt(-2, "s"),
    WireInt(65535, "u"),
    -7,
    WireInt(2**32 - 1, "i"),
    2**40,
    WireInt(5, "l"),
    Float32(1.5),
    0.1,
    Decimal("3.14"),
    "text ü",
    "long " * 100,
    b"\xff\0",
    fields.Timestamp(1_700_000_000),
    None,
    [1, "a", [None]],
    {"a": 1, "ü": {"b": []}},
]


@pytest.mark.parametrize(
    "given", [*PROPERTIES, *[{"headers": {"k": one, "x-k": one}} for one in HEADERS]]
)
def test_from_0_9_1_through_a_1_0_client_back_to_0_9_1(given: dict[str, object]) -> None:
    """The 1.0 client hands on what it got, as a bridge between queues would."""
    rig = rig10.Rig()
    original = BasicProperties(**given)  # type: ignore[arg-type]
    rig.declare("q")
    published(rig, original)
    rig.declare("back")
    peer, got = received(rig)
    found = got.sections
    assert found.bodies == [BODY]
    own = dict(found.message_annotations or {})
    for name in ("x-exchange", "x-routing-key", "x-opt-locked-until"):
        del own[Symbol(name)]
    [front, *_] = values(got.data)
    fields_of_header = front.value  # type: ignore[attr-defined]
    again = header(*fields_of_header[:3]) + encode_message(
        message_annotations=own,
        properties=found.properties,
        application_properties=found.application_properties,
        body=found.bodies[0],
    )
    link = peer.sender(peer.session(), "/queues/back")
    number = link.send(again)
    peer.pump()
    assert peer.states([number]) == [Accepted()]
    back = consumed(rig, "back")
    assert back.body == BODY
    original.delivery_mode = original.delivery_mode or 1
    for each in (original, back.properties):
        each.headers = sorted_table(each.headers)
    assert same(facts(back.properties), facts(original))


@pytest.mark.parametrize("frame_max", [4096, 131_072])
def test_from_1_0_to_0_9_1_by_push_and_by_get(frame_max: int) -> None:
    rig = rig10.Rig()
    rig.declare("q")
    peer = rig.connect10()
    link = peer.sender(peer.session())
    row = [b"small", b"x" * 10_000]
    sections = {
        "properties": Properties(message_id=ULong(7), subject="s", creation_time=5_000),
        "application_properties": {"k": UInt(1)},
        "message_annotations": {Symbol("x-opt-a"): Timestamp(9_000)},
        "header": Header(True, 3),
    }
    peer.send(link, *row, *row, **sections)
    headers = {"x-opt-a": fields.Timestamp(9), "k": WireInt(1, "i"), "x-subject": "s"}
    expected = BasicProperties(
        message_id="7", timestamp=5, priority=3, delivery_mode=2, headers=headers
    )
    reader = Peer091(rig)
    reader.login(frame_max=frame_max)
    reader.open()
    found: list[Content] = []
    for _ in row:
        [(_, got)] = reader.ask(BasicGet("q"))
        assert isinstance(got, Content)
        assert isinstance(got.method, BasicGetOk)
        found.append(got)
    found += [one for _, one in reader.ask(BasicConsume("q", "tag")) if isinstance(one, Content)]
    assert [each.body for each in found] == row + row
    for each in found:
        assert same(
            {**facts(each.properties), "headers": sorted_table(each.properties.headers)},
            {**facts(expected), "headers": sorted_table(headers)},
        )


def sorted_table(table: dict[str, object] | None) -> dict[str, object]:
    return dict(sorted((table or {}).items()))


def test_dl_a4_a_letter_dies_for_both_protocols() -> None:
    """0-9-1 publishes and rejects; 1.0 reads the history, refuses it with a note; 0-9-1 reads."""
    rig = rig10.Rig()
    rig.declare("q", dead_letter_exchange="", dead_letter_routing_key="q2", queue_type="quorum")
    rig.declare("q2", dead_letter_exchange="", dead_letter_routing_key="q3", queue_type="quorum")
    rig.declare("q3", queue_type="quorum")
    given = BasicProperties(delivery_mode=2, headers={"x-death": "mine"}, expiration="60000")
    reader = published(rig, given)
    reader.ask(BasicConsume("q", "tag"))
    reader.ask(BasicReject(1, False))

    peer, got = received(rig, "/queues/q2")
    found = got.sections
    assert found.header == Header(True, first_acquirer=False, delivery_count=1)
    known = found.message_annotations or {}
    death = only(known[Symbol("x-opt-deaths")])
    assert list(death) == [
        "ttl", "queue", "reason", "count", "first-time", "last-time", "exchange", "routing-keys",
    ]  # fmt: skip
    assert same(death[Symbol("ttl")], UInt(60_000))
    assert (death["queue"], death["reason"]) == ("q", "rejected")
    assert known[Symbol("x-routing-key")] == "q2"
    assert known[Symbol("x-first-death-queue")] == "q"
    assert Symbol("x-death") not in known
    noted: dict[object, object] = {Symbol("x-opt-thekey"): "val"}
    peer.settle(got, Modified(True, True, noted))

    back = consumed(rig, "q3")
    headers = back.properties.headers
    assert headers is not None
    history = headers["x-death"]
    assert isinstance(history, list)
    assert [(each["queue"], each["reason"], each["count"]) for each in history] == [
        ("q2", "rejected", 1),
        ("q", "rejected", 1),
    ]
    assert history[1]["original-expiration"] == "60000"
    assert headers["x-opt-thekey"] == "val"
    assert same(headers["x-delivery-count"], WireInt(2, "l"))
    assert back.properties.expiration is None
    rig.broker.check()


def test_a_1_0_letter_for_a_0_9_1_reader() -> None:
    rig = rig10.Rig()
    rig.declare("q", dead_letter_exchange="", dead_letter_routing_key="dead")
    rig.declare("dead")
    sender = rig.connect10()
    sender.send(
        sender.sender(sender.session()),
        b"letter",
        header=Header(True, ttl=60_000),
        message_annotations={Symbol("x-opt-deaths"): "forged", Symbol("x-death"): "mine"},
    )
    peer, got = received(rig)
    known = got.sections.message_annotations or {}
    assert Symbol("x-opt-deaths") not in known
    assert known[Symbol("x-death")] == "mine"
    peer.settle(got, Rejected(None))
    content = consumed(rig, "dead")
    headers = content.properties.headers
    assert headers is not None
    death = only(headers["x-death"])
    assert (death["queue"], death["original-expiration"]) == ("q", "60000")
    assert content.properties.expiration is None
    assert content.body == b"letter"


def test_priorities_of_both_protocols_share_lanes() -> None:
    rig = rig10.Rig()
    rig.declare("q", max_priority=10)
    peer = rig.connect10()
    link = peer.sender(peer.session())
    peer.send(link, b"4: not said")
    peer.send(link, b"1", header=Header(True, 1))
    peer.send(link, b"9", header=Header(True, 9))
    publisher = rig.connect()
    publisher.ask(publisher.publish(b"0: not said", "q"), publisher.publish(b"5", "q", priority=5))
    reader = rig.connect10()
    reader.receiver(reader.session(), credit=10)
    assert reader.bodies() == [b"9", b"5", b"4: not said", b"1", b"0: not said"]


class AllRig(NsqRig, rig10.Rig):
    """Clients of all three protocols."""

    def turn(self) -> None:
        rig10.Rig.turn(self)
        for peer in self.peers:
            peer.listen()


def test_nsq_to_amqp_1_0() -> None:
    rig = AllRig()
    queue = rig.topics.channel("t", "c")
    rig.client().ask(mpub(b"1", b"2"), pub(b"y" * 70_000))
    peer = rig.connect10()
    peer.receiver(peer.session(), "/queues/t%3Ac", 10)
    bodies = [got.body for got in peer.got]
    assert bodies == [b"1", b"2", b"y" * 70_000]
    found = peer.got[0].sections
    assert found.header == Header(True, first_acquirer=True)
    assert set(found.message_annotations or {}) == {
        "x-exchange", "x-routing-key", "x-opt-locked-until",
    }  # fmt: skip
    for got in peer.got:
        peer.settle(got, Accepted())
    assert queue.account.settled == 3
    rig.broker.check()


def test_amqp_1_0_to_nsq() -> None:
    rig = AllRig()
    queue = rig.topics.channel("t", "c")
    peer = rig.connect10()
    link = peer.sender(peer.session(), "/exchanges/t/any%20key")
    peer.send(link, b"data", application_properties={"k": 1}, header=Header(True))
    for body in ("text", 7):
        link.send(encode_message(body=Value(body)))
    peer.pump()
    reader = rig.consumer(10)
    found = [decode_message(raw)[3] for kind, raw in reader.hear() if kind == MESSAGE]
    assert found == [b"data", b"text", encode_message(body=Value(7))]
    assert queue.acquired == 3
    rig.broker.check()
