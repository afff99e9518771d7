"""What an AMQP 0-9-1 client hears when its consumer is too slow [SC-9, SC-A3]."""

from __future__ import annotations

from tallymark.engine.slow.actions import SlowSubscription
from tallymark.engine.slow.rules import Rule, Rules
from tallymark.wire.amqp091.methods import (
    BasicAck,
    BasicConsume,
    BasicGet,
    BasicGetEmpty,
    BasicQos,
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ChannelOpenOk,
    QueueBind,
    QueueDeclare,
)
from tests.bridge.nsq_rig import NsqRig, mpub
from tests.bridge.rig import Content, Peer, Rig

CLOSE = ChannelClose(506, "Consuming too slow.", 0, 0)


def subscribe(peer: Peer, rig: Rig, queue: str = "sub", channel: int = 1) -> None:
    """An exclusive queue on a topic exchange, with a consumer that takes one at a time."""
    peer.ask(
        (channel, QueueDeclare(queue, exclusive=True)),
        (channel, QueueBind(queue, "amq.topic", "k")),
        (channel, BasicQos(0, 1, False)),
        (channel, BasicConsume(queue, f"c-{queue}")),
    )


def disconnect(rig: Rig, queue: str = "sub") -> None:
    """What the housekeeping does."""
    slow = rig.broker.slow
    (watched,) = [one for one in slow.watched() if one.queue.name == queue]
    reading = slow.look(watched)
    assert reading is not None
    assert reading.over
    assert SlowSubscription(rig.broker, reading).disconnect(False)


def caught(count: int = 3) -> tuple[Rig, Peer, Peer]:
    """A slow consumer and its publisher, which sent more than may be."""
    rig = Rig()
    rig.broker.slow.rules = Rules(general=Rule(count=count))
    peer, publisher = rig.connect(), rig.connect()
    subscribe(peer, rig)
    message = publisher.publish(b"m", "k", exchange="amq.topic")
    assert publisher.ask(message * (count + 1)) == []
    assert len(peer.hear()) == 1
    return rig, peer, publisher


def test_sc_9_sc_a3_channel_close_506_with_the_text_once_and_nothing_else() -> None:
    rig, peer, publisher = caught()
    disconnect(rig)
    assert peer.hear() == [(1, CLOSE)]
    assert peer.hear() == []
    assert publisher.hear() == []
    assert not peer.bridge.closing
    assert "sub" not in rig.broker.vhost("/").queues


def test_sc_a3_the_connection_goes_on_with_its_other_channels_and_a_new_subscription() -> None:
    rig, peer, publisher = caught()
    peer.open(2)
    disconnect(rig)
    assert peer.hear() == [(1, CLOSE)]
    heard = peer.ask((2, QueueDeclare("other")), (2, BasicGet("other")))
    assert isinstance(heard[-1][1], BasicGetEmpty)
    assert peer.ask((1, ChannelCloseOk())) == []
    peer.open(1)  # the same number
    subscribe(peer, rig)
    publisher.ask(publisher.publish(b"again", "k", exchange="amq.topic"))
    ((channel, got),) = peer.hear()
    assert isinstance(got, Content)
    assert (channel, got.body) == (1, b"again")


def test_sc_9_what_the_client_says_before_it_knows_changes_nothing() -> None:
    rig, peer, _ = caught()
    disconnect(rig)
    peer.send(BasicAck(1, False), BasicQos(0, 5, False))  # on their way when it was closed
    peer.send(BasicConsume("amq.gen", "late"), peer.publish(b"late", "k", exchange="amq.topic"))
    assert peer.hear() == [(1, CLOSE)]
    assert rig.broker.publishing.published == 4


def test_a_client_that_closes_the_channel_itself_meanwhile_hears_only_that_it_is_closed() -> None:
    rig, peer, _ = caught()
    disconnect(rig)
    peer.send(ChannelClose(200, "bye", 0, 0), ChannelOpen())
    heard = peer.hear()
    assert heard == [(1, ChannelCloseOk()), (1, ChannelOpenOk())]
    subscribe(peer, rig)  # the channel is a new one, and not the one that was too slow
    assert "sub" in rig.broker.vhost("/").queues


def test_deliveries_decided_before_the_close_are_not_sent_behind_it() -> None:
    rig, peer, _ = caught()
    rig.broker.slow.rules = Rules(general=Rule(count=2))
    peer.send(BasicAck(1, False))  # the next message is handed out with this turn
    disconnect(rig)
    assert peer.hear() == [(1, CLOSE)]
    rig.broker.check()


def test_only_the_channel_that_consumes_it_is_closed() -> None:
    rig, peer, _ = caught()
    rig.broker.slow.rules = Rules(queues={"sub": Rule(count=3)})
    peer.open(2)
    subscribe(peer, rig, "beside", 2)
    disconnect(rig)
    assert peer.hear() == [(1, CLOSE)]
    assert list(rig.broker.vhost("/").queues) == ["beside"]


def test_sc_9_nsq_is_left_alone_also_where_its_channel_is_bound_to_a_topic_exchange() -> None:
    rig = NsqRig()
    rig.broker.slow.rules = Rules(general=Rule(count=1))
    subscriber = rig.consumer()
    queue = rig.queue()
    peer = rig.connect()
    peer.ask(QueueBind(queue.name, "amq.topic", "#"))
    rig.client().ask(mpub(b"1", b"2", b"3"))
    assert (queue.ready, queue.acquired, len(queue.consumers)) == (2, 1, 1)
    assert not rig.broker.slow.is_subscription(queue)
    for watched in rig.broker.slow.watched():
        assert rig.broker.slow.look(watched) is None
    assert not subscriber.bridge.closing
