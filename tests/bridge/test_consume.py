"""Consumers: deliveries, settling, prefetch, flow, cancel; basic.get."""

from __future__ import annotations

import pytest

from tallymark.engine.queue_consumers import consumers_of
from tallymark.wire.amqp091.methods import (
    AccessRequest,
    AccessRequestOk,
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicConsumeOk,
    BasicDeliver,
    BasicGet,
    BasicGetEmpty,
    BasicGetOk,
    BasicNack,
    BasicQos,
    BasicQosOk,
    BasicRecover,
    BasicRecoverAsync,
    BasicRecoverOk,
    BasicReject,
    ChannelClose,
    ChannelFlow,
    ChannelFlowOk,
    QueueBind,
    QueueDeclare,
    QueueDelete,
    QueueDeleteOk,
)
from tallymark.wire.amqp091.properties import Properties
from tests.bridge.rig import Content, Heard, Peer, Rig


def delivered(heard: list[Heard]) -> list[tuple[str, int, bytes, bool]]:
    """(consumer, tag, body, redelivered) of each delivery; anything else must not be there."""
    found = []
    for _, content in heard:
        assert isinstance(content, Content), content
        assert isinstance(content.method, BasicDeliver)
        method = content.method
        found.append((method.consumer_tag, method.delivery_tag, content.body, method.redelivered))
    return found


def filled(count: int, durable: bool = True) -> tuple[Rig, Peer]:
    """A client with a queue `q` that holds messages b"0", b"1", ..."""
    rig = Rig()
    peer = rig.connect()
    peer.ask(QueueDeclare("q", durable=durable))
    peer.ask(b"".join(peer.publish(b"%d" % i) for i in range(count)))
    return rig, peer


def bodies(heard: list[Heard]) -> list[bytes]:
    return [body for _, _, body, _ in delivered(heard)]


@pytest.mark.parametrize("durable", [True, False])
def test_deliveries_follow_consume_ok(durable: bool) -> None:
    _, peer = filled(3, durable)
    heard = peer.ask(BasicConsume("q", "c"))
    assert heard[0] == (1, BasicConsumeOk("c"))
    first = Content(BasicDeliver("c", 1, False, "", "q"), Properties(), b"0")
    assert heard[1] == (1, first)
    assert delivered(heard[1:]) == [("c", i + 1, b"%d" % i, False) for i in range(3)]


@pytest.mark.parametrize("size", [10, 8_000, 9_000, 200_000])
@pytest.mark.parametrize("prefetch", [0, 1])
def test_messages_of_every_size_leave_as_they_came(size: int, prefetch: int) -> None:
    rig = Rig()
    peer = rig.connect()
    for queue in ("q", "r"):
        peer.ask(QueueDeclare(queue, durable=True))
        peer.ask(QueueBind(queue, "amq.topic", "k.*"))
    sent = [b"%d" % i * (size + i) for i in range(3)]
    peer.ask(
        b"".join(
            peer.publish(body, f"k.{i % 2}", exchange="amq.topic") for i, body in enumerate(sent)
        )
    )
    if prefetch:
        peer.ask(BasicQos(0, prefetch, False))
    heard = peer.ask(BasicConsume("q", "c"))[1:]
    for tag in (1, 2) if prefetch else ():
        heard += peer.ask(BasicAck(tag, False))
    assert bodies(heard) == sent
    routes = [content.method.routing_key for _, content in heard]
    assert routes == ["k.0", "k.1", "k.0"]
    assert [tag for _, tag, _, _ in delivered(heard)] == [1, 2, 3]


def test_a_consumer_without_a_name_is_given_one() -> None:
    _, peer = filled(0)
    names = set()
    for _ in range(2):
        ((_, answer),) = peer.ask(BasicConsume("q"))
        assert isinstance(answer, BasicConsumeOk)
        assert answer.consumer_tag.startswith("amq.ctag-")
        names.add(answer.consumer_tag)
    assert len(names) == 2


def test_another_channel_sees_its_own_number_on_every_frame() -> None:
    _, peer = filled(2)
    peer.open(300)
    peer.ask(peer.publish(b"y" * 200_000))
    heard = peer.ask((300, BasicConsume("q", "c", no_wait=True)))
    assert {channel for channel, _ in heard} == {300}
    assert bodies(heard) == [b"0", b"1", b"y" * 200_000]


def test_a_reader_with_small_frames_gets_small_frames() -> None:
    rig, peer = filled(1)
    body = bytes(range(256)) * 200
    peer.ask(peer.publish(body, content_type="t"), peer.publish(b""))
    small = rig.connect(frame_max=4096)
    small.send(BasicConsume("q", "c", no_wait=True))
    rig.settle_down()
    raw = b"".join(small.bridge.take_output())
    pos = 0
    sizes = []
    while pos < len(raw):
        sizes.append(8 + int.from_bytes(raw[pos + 3 : pos + 7], "big"))
        pos += sizes[-1]
    assert max(sizes) == 4096
    small.ask(BasicRecover(True))
    small._unread = raw
    assert bodies(small.hear()) == [b"0", body, b""]


def test_different_routes_and_redelivery_are_shown() -> None:
    _, peer = filled(0)
    peer.ask(QueueBind("q", "amq.topic", "#"))
    sent = ["a", "b", "a", "c.d", "a"]
    peer.ask(b"".join(peer.publish(b"x", key, exchange="amq.topic") for key in sent))
    for again in (False, True):
        heard = peer.ask(BasicConsume("q", "c", no_wait=True))
        methods = [one.method for _, one in heard if isinstance(one, Content)]
        assert [m.routing_key for m in methods if isinstance(m, BasicDeliver)] == sent
        assert {m.exchange for m in methods if isinstance(m, BasicDeliver)} == {"amq.topic"}
        assert {m.redelivered for m in methods if isinstance(m, BasicDeliver)} == {again}
        peer.ask(BasicCancel("c"), BasicNack(0, True, True))


# -- settling


def test_get_and_its_counts() -> None:
    _, peer = filled(2)
    ((_, first),) = peer.ask(BasicGet("q"))
    assert first == Content(BasicGetOk(1, False, "", "q", 1), Properties(), b"0")
    ((_, second),) = peer.ask(BasicGet("q", no_ack=True))
    assert second == Content(BasicGetOk(2, False, "", "q", 0), Properties(), b"1")
    assert peer.ask(BasicGet("q")) == [(1, BasicGetEmpty())]
    assert peer.ask(BasicAck(1), BasicAck(0, True)) == []


def test_get_does_not_count_what_expired_behind_its_message() -> None:
    _, peer = filled(1)
    peer.ask(peer.publish(b"due", expiration="0"), peer.publish(b"last"))
    ((_, first),) = peer.ask(BasicGet("q"))
    assert first == Content(BasicGetOk(1, False, "", "q", 1), Properties(), b"0")
    ((_, second),) = peer.ask(BasicGet("q", no_ack=True))
    assert second == Content(BasicGetOk(2, False, "", "q", 0), Properties(), b"last")


def test_an_unknown_tag_among_acks_leaves_the_earlier_ones_settled() -> None:
    rig, peer = filled(3)
    peer.ask(BasicConsume("q", "c"))
    ((_, close),) = peer.ask(BasicAck(1), BasicAck(2), BasicAck(3), BasicAck(4))
    assert isinstance(close, ChannelClose)
    assert close.reply_text == "PRECONDITION_FAILED - unknown delivery tag 4"
    assert rig.broker.vhosts["/"].queues["q"].account.settled == 3


def test_acking_twice_is_an_unknown_tag() -> None:
    _, peer = filled(2)
    peer.ask(BasicConsume("q", "c"))
    ((_, close),) = peer.ask(BasicAck(1), BasicAck(1))
    assert isinstance(close, ChannelClose)
    assert (close.reply_code, close.class_id, close.method_id) == (406, 60, 80)


def test_returned_messages_come_back_at_their_old_positions() -> None:
    """[TX-9]"""
    _, peer = filled(5)
    for _ in range(3):
        peer.ask(BasicGet("q"))
    peer.ask(BasicNack(2, True, True))
    found = []
    for _ in range(4):
        ((_, got),) = peer.ask(BasicGet("q"))
        assert isinstance(got, Content)
        assert isinstance(got.method, BasicGetOk)
        found.append((got.body, got.method.redelivered))
    assert found == [(b"0", True), (b"1", True), (b"3", False), (b"4", False)]


def test_reject_drops_or_returns() -> None:
    rig, peer = filled(2)
    heard = peer.ask(BasicConsume("q", "c", no_wait=True))
    assert bodies(heard) == [b"0", b"1"]
    assert delivered(peer.ask(BasicReject(1, False), BasicReject(2, True))) == [
        ("c", 3, b"1", True)
    ]
    queue = rig.broker.vhosts["/"].queues["q"]
    assert (queue.ready, queue.acquired, sum(queue.account.dropped.values())) == (0, 1, 1)


@pytest.mark.parametrize("synchronous", [True, False])
def test_recover_redelivers_everything_unsettled(synchronous: bool) -> None:
    """[TX-8]"""
    _, peer = filled(3)
    peer.ask(BasicConsume("q", "c"))
    peer.ask(BasicAck(2))
    heard = peer.ask(BasicRecover(True) if synchronous else BasicRecoverAsync(True))
    if synchronous:
        assert heard.pop(0) == (1, BasicRecoverOk())
    assert delivered(heard) == [("c", 4, b"0", True), ("c", 5, b"2", True)]


def test_unsettled_messages_of_a_closed_channel_come_back() -> None:
    rig, peer = filled(3)
    peer.ask(BasicConsume("q", "c"))
    peer.ask(ChannelClose(200, "bye"))
    other = rig.connect()
    assert [again for *_, again in delivered(other.ask(BasicConsume("q", "c", no_wait=True)))] == [
        True
    ] * 3


# -- limits


def test_prefetch_of_each_consumer_and_of_all() -> None:
    _, peer = filled(10)
    assert peer.ask(BasicQos(0, 2, False)) == [(1, BasicQosOk())]
    assert bodies(peer.ask(BasicConsume("q", "a", no_wait=True))) == [b"0", b"1"]
    assert bodies(peer.ask(BasicAck(1))) == [b"2"]
    assert len(delivered(peer.ask(BasicConsume("q", "b", no_wait=True)))) == 2
    # The shared limit holds for consumers that are there already.
    peer.ask(BasicQos(0, 3, True))
    assert peer.ask(BasicAck(2)) == []
    assert len(delivered(peer.ask(BasicAck(0, True)))) == 3


def test_a_prefetch_per_consumer_ends_the_shared_one() -> None:
    _, peer = filled(4)
    peer.ask(BasicQos(0, 1, True), BasicQos(0, 0, False))
    assert len(delivered(peer.ask(BasicConsume("q", "a", no_wait=True)))) == 4


def test_flow_stops_and_resumes_deliveries() -> None:
    """[TX-10]"""
    _, peer = filled(0)
    peer.ask(BasicConsume("q", "c"))
    heard = peer.ask(peer.publish(b"before"), ChannelFlow(False), peer.publish(b"after"))
    assert heard == [(1, ChannelFlowOk(False))]
    heard = peer.ask(ChannelFlow(True))
    assert heard[0] == (1, ChannelFlowOk(True))
    assert bodies(heard[1:]) == [b"before", b"after"]


def test_nothing_is_delivered_after_cancel_ok() -> None:
    _, peer = filled(0)
    peer.ask(BasicConsume("q", "c"))
    heard = peer.ask(peer.publish(b"x"), BasicCancel("c"))
    assert heard == [(1, BasicCancelOk("c"))]


def test_higher_priority_is_served_first() -> None:
    _, peer = filled(0)
    peer.ask(BasicQos(0, 1, False))
    peer.ask(BasicConsume("q", "low", arguments={"x-priority": -1}), BasicConsume("q", "middle"))
    peer.ask(BasicConsume("q", "high", arguments={"x-priority": 5}))
    heard = peer.ask(peer.publish() * 3)
    assert [name for name, *_ in delivered(heard)] == ["high", "middle", "low"]


def test_a_consumer_keeps_the_arguments_that_its_client_gave() -> None:
    rig, peer = filled(0)
    given: dict[str, object] = {"x-priority": 5, "x-consumer-timeout": 60_000, "till": "3"}
    peer.ask(BasicConsume("q", "c", arguments=given), BasicConsume("q", "plain"))
    kept = {one.tag: one.arguments for one in consumers_of(rig.broker.vhosts["/"].queues["q"])}
    assert kept == {"c": given, "plain": {}}


# -- consumers whose queue goes


def test_a_client_that_wants_to_know_is_told_that_its_queue_is_gone() -> None:
    rig, peer = filled(0)
    other = rig.connect()
    peer.ask(BasicConsume("q", "c"))
    assert other.ask(QueueDelete("q")) == [(1, QueueDeleteOk(0))]
    assert peer.hear() == [(1, BasicCancel("c", True))]
    peer.ask(QueueDeclare("q"))
    assert peer.ask(BasicConsume("q", "c")) == [(1, BasicConsumeOk("c"))]


def test_a_client_that_does_not_want_to_know_is_not_told() -> None:
    rig, _ = filled(0)
    peer = rig.connect(capabilities={})
    assert peer.ask(BasicConsume("q", "c"), QueueDelete("q")) == [
        (1, BasicConsumeOk("c")),
        (1, QueueDeleteOk(0)),
    ]


def test_settling_after_the_queue_is_gone_is_no_error() -> None:
    rig, peer = filled(2)
    peer.ask(BasicConsume("q", "c"))
    peer.ask(QueueDelete("q"))
    assert peer.ask(BasicAck(1), BasicNack(2, False, True)) == []
    rig.broker.check()


def test_access_requests_of_old_clients_are_answered() -> None:
    peer = Rig().connect()
    assert peer.ask(AccessRequest("/data", active=True)) == [(1, AccessRequestOk(1))]
