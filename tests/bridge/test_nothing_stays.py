"""Clients that come and go, and what they begin and end while they stay: the broker and their
connections hold as much as before."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tallymark.engine.restore import snapshot
from tallymark.wire.amqp091.methods import (
    BasicAck,
    BasicCancel,
    BasicConsume,
    BasicGet,
    BasicQos,
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ConnectionClose,
    ExchangeBind,
    ExchangeDeclare,
    ExchangeDelete,
    QueueBind,
    QueueDeclare,
    QueueDelete,
    QueuePurge,
    TxCommit,
    TxRollback,
    TxSelect,
)
from tallymark.wire.amqp10.outcomes import Accepted, Discharge, Rejected, Released
from tallymark.wire.amqp10.performatives import Attach, Source, Target
from tallymark.wire.amqp10.receiver_link import ReceiverLink
from tallymark.wire.amqp10.sections import Properties, encode_message
from tallymark.wire.amqp10.sender_link import SenderLink
from tests.bridge import rig, rig10
from tests.bridge.nsq_rig import NsqPeer, NsqRig, dpub, mpub, pub
from tests.bridge.tx10_rig import Control, dispose, post, under
from tests.support.census import census, grown

OFTEN = 5
"""Plays before the first census, and between two a multiple of them."""
CACHED = (
    "Accepted", "Access._known", "Client.routes", "Connection._known", "Deadlines._heap", "Publish",
    "Released", "Route", "Shape", "Slices._places", "TransactionalState",
)  # fmt: skip
"""Containers with a bounded number of what was said last, and what is in them."""
REPLIES = "amq.rabbitmq.reply-to"


class World:
    """A broker, and a client of each version of AMQP that stays."""

    def __init__(self) -> None:
        self.rig = rig10.Rig()
        for name in ("a", "b"):
            self.rig.declare(name)
        self.amqp091 = self.rig.connect()
        self.amqp10 = self.rig.connect10()
        self.session = self.amqp10.session()
        self.control = Control(self.amqp10, self.session)

    def leave(self, peer: rig.Peer | rig10.Peer) -> None:
        """The transport of a client has gone."""
        peer.bridge.eof()
        peer.bridge.let_go()
        self.rig.bridges.remove(peer.bridge)
        self.rig.settle_down()

    def sender(self, name: str, target: Target) -> SenderLink:
        return self.amqp10.sender(self.session, attach=Attach(name, source=Source(), target=target))

    def receiver(self, name: str, source: Source, credit: int = 0) -> ReceiverLink:
        attach = Attach(name, source=source, target=Target())
        link = self.amqp10.attach(self.session, attach, False, 1 if credit else None)
        assert isinstance(link, ReceiverLink)
        if credit:
            link.flow(credit)
            self.amqp10.pump()
        return link

    def detach(self, *links: SenderLink | ReceiverLink) -> None:
        for link in links:
            link.detach()
            self.amqp10.pump()
        self.forget()

    def forget(self) -> None:
        """What the clients of the test note."""
        peer = self.amqp10
        for noted in (peer.events, peer.got, peer.told, peer.sent_bytes):
            noted.clear()  # type: ignore[attr-defined]

    def count(self) -> dict[str, int]:
        self.forget()
        for name in ("a", "b"):
            self.rig.broker.contents.purge(self.rig.queue(name))
        self.rig.now_ms += 1000
        self.rig.declare("tick")  # a block, with which marks are looked at
        self.rig.settle_down()
        self.rig.delete("tick")
        self.rig.settle_down()
        of_rig, broker = self.rig, self.rig.broker
        of_rig.replies.take_written()
        broker.store.released.clear()
        found = census(
            broker, of_rig.replies, of_rig.watch, *of_rig.bridges,
            leaves_out=[of_rig, of_rig.journal, broker.store._residents],
        )  # fmt: skip
        found["rows of a checkpoint"] = len(snapshot(broker, False))
        return found


# -- AMQP 0-9-1


def connections_091(world: World, i: int) -> None:
    peer = world.rig.connect()
    peer.ask(QueueDeclare("own", exclusive=True), BasicConsume("own", "t"))
    peer.ask(peer.publish(b"x", "own"), (2, ChannelOpen()), (2, TxSelect()))
    peer.ask(peer.publish(b"x", "a", channel=2))
    if i % 3 == 0:
        peer.ask((0, ConnectionClose(200, "", 0, 0)))
    elif i % 3 == 1:
        peer.bridge.shutdown()
    world.leave(peer)
    half = rig.Peer(world.rig)
    half.send(b"AMQP\0\0\x09\x01"[: 5 + i % 4])
    world.leave(half)


def channels(world: World, i: int) -> None:
    peer = world.amqp091
    peer.ask((5, ChannelOpen()), (5, TxSelect()), (5, BasicQos(0, 3, i % 2 == 0)))
    peer.ask(peer.publish(b"x", "a", channel=5), peer.publish(b"y" * 3000, "b", channel=5))
    peer.ask((5, TxRollback() if i % 3 == 0 else TxCommit()))
    peer.ask((5, BasicConsume("a", "t")), (5, BasicConsume("b", "u")), (5, BasicAck(0, True)))
    if i % 2:
        peer.ask((5, TxCommit()))
    if i % 3 == 1:
        peer.ask(peer.publish(b"x", "k", channel=5, exchange="nowhere"), (5, ChannelCloseOk()))
    else:
        peer.ask((5, ChannelClose(200, "", 0, 0)))


def consumers_091(world: World, i: int) -> None:
    peer = world.amqp091
    peer.ask(BasicConsume("a", f"t{i}", no_ack=i % 2 == 0), peer.publish(b"x", "a"))
    peer.ask(BasicCancel(f"t{i}"), BasicAck(0, True) if i % 2 else BasicGet("a", True))
    peer.ask(BasicConsume(REPLIES, f"r{i}", no_ack=True))
    peer.ask(peer.publish(b"?", "b", reply_to=REPLIES), peer.publish(b"!", "none", mandatory=True))
    for _, got in peer.ask(BasicGet("b", no_ack=True)):
        if isinstance(got, rig.Content) and got.properties.reply_to is not None:
            peer.ask(peer.publish(b"!", got.properties.reply_to))
    peer.ask(BasicCancel(f"r{i}"))


def topology_091(world: World, i: int) -> None:
    peer = world.amqp091
    peer.ask(
        QueueDeclare(f"q{i}", durable=True), ExchangeDeclare(f"x{i}", "topic"),
        ExchangeDeclare(f"y{i}", "headers", auto_delete=True),
        QueueBind(f"q{i}", f"x{i}", "a.#"), ExchangeBind(f"y{i}", f"x{i}", "z"),
        QueueBind(f"q{i}", f"y{i}", "", arguments={"h": i}),
    )  # fmt: skip
    peer.ask(peer.publish(b"x", "a.b", exchange=f"x{i}"))
    peer.ask(peer.publish(b"x", "", exchange=f"y{i}", headers={"h": i}))
    if i % 2:
        peer.ask(QueuePurge(f"q{i}"))
    peer.ask(QueueDelete(f"q{i}"), ExchangeDelete(f"x{i}"), ExchangeDelete(f"y{i}"))


# -- AMQP 1.0


def connections_10(world: World, i: int) -> None:
    peer = world.rig.connect10()
    session = peer.session()
    link = peer.sender(session, "/queues/a")
    peer.receiver(session, "/queues/a", 5)
    peer.receiver(session, source=Source(dynamic=True))
    peer.attach(session, Attach("d", source=Source(), target=Target(dynamic=True)), True)
    peer.send(link, b"x", b"y")
    if i % 3 == 0:
        peer.wire.close()
        peer.pump()
    elif i % 3 == 1:
        peer.bridge.shutdown()
    world.leave(peer)


def sessions_10(world: World, i: int) -> None:
    peer = world.amqp10
    session = peer.session()
    link = peer.sender(session, "/queues/a")
    peer.receiver(session, "/queues/a", 1)
    peer.send(link, b"x", b"y")
    session.end()
    peer.pump()


def links(world: World, i: int) -> None:
    peer = world.amqp10
    to = world.sender(f"to{i}", Target(address="/queues/a"))
    copies = Source(address="/queues/a", distribution_mode="copy")
    browses = world.receiver(f"copy{i}", copies, 10)
    takes = world.receiver(f"from{i}", Source(address="/queues/a"), 4)
    peer.send(to, b"1", b"2", b"3", b"4", b"5")
    got = [one for one in peer.got if one.link is takes]
    for one, state in zip(got, (Accepted(), Rejected(), Released()), strict=False):
        peer.settle(one, state)
    world.detach(takes, to, browses)


def links_that_are_refused_or_lose_their_queue(world: World, i: int) -> None:
    peer = world.amqp10
    world.rig.declare(f"q{i}")
    to = world.sender(f"to{i}", Target(address=f"/queues/q{i}"))
    takes = world.receiver(f"from{i}", Source(address=f"/queues/q{i}"), 2)
    peer.send(to, b"1", b"2", b"3")
    world.rig.delete(f"q{i}")
    peer.pump()
    world.detach(to, takes)
    world.detach(world.receiver(f"none{i}", Source(address=f"/queues/none{i}")))
    anywhere = world.sender(f"any{i}", Target())
    message = encode_message(body=b"x", properties=Properties(to=f"/queues/none{i}"))
    anywhere.send(message)
    peer.pump()
    world.detach(anywhere)


def dynamic_nodes_and_replies(world: World, i: int) -> None:
    peer = world.amqp10
    own = world.receiver(f"own{i}", Source(dynamic=True), 1)
    assert own.remote_attach is not None
    assert own.remote_attach.source is not None
    peer.events.clear()
    to = world.sender(f"to{i}", Target(address=own.remote_attach.source.address))
    made = world.sender(f"made{i}", Target(dynamic=True))
    peer.send(to, b"1", b"2")
    peer.send(made, b"1")
    replies = world.receiver(f"replies{i}", Source(address=REPLIES), 1)
    assert replies.remote_attach is not None
    assert replies.remote_attach.source is not None
    peer.events.clear()
    anywhere = world.sender(f"any{i}", Target())
    answer = Properties(to=replies.remote_attach.source.address)
    anywhere.send(encode_message(body=b"!", properties=answer), settled=True)
    peer.pump()
    world.detach(*((own, to, made) if i % 2 else (to, made, own)), anywhere, replies)


def transactions_10(world: World, i: int) -> None:
    peer, control = world.amqp10, world.control
    takes = world.receiver(f"from{i}", Source(address="/queues/a"))
    peer.events.clear()
    to = world.sender(f"to{i}", Target(address="/queues/a"))
    under_it = world.sender(f"under{i}", Target(address="/queues/b"))
    peer.send(to, b"1", b"2", b"3")
    id = control.declare()
    post(peer, under_it, id, "x", "y")
    takes.flow(3)
    peer.pump()
    dispose(peer, peer.got[0], under(id, Accepted()), settled=i % 2 == 0)
    dispose(peer, peer.got[1], under(id, Released()), settled=True)
    peer.pump()
    if i % 3 == 0:
        control.commit(id)
    elif i % 3 == 1:
        control.roll_back(id)
    world.detach(takes, to, under_it)
    if i % 3 == 2:
        control.ask(Discharge(id, i % 2 == 0))


CYCLES = (
    connections_091, channels, consumers_091, topology_091, connections_10, sessions_10, links,
    links_that_are_refused_or_lose_their_queue, dynamic_nodes_and_replies, transactions_10,
)  # fmt: skip


@pytest.mark.parametrize("play", CYCLES, ids=[play.__name__ for play in CYCLES])
def test_nothing_stays_of_what_clients_of_amqp_end(play: Callable[[World, int], None]) -> None:
    world = World()
    for number in range(2 * OFTEN):
        play(world, number)
    before = world.count()
    for number in range(2 * OFTEN, 6 * OFTEN):
        play(world, number)
    assert not grown(before, world.count(), 2 * OFTEN, bounded=CACHED)


# -- NSQ


def leave(peer: NsqPeer) -> None:
    peer.bridge.eof()
    peer.bridge.let_go()
    peer.rig.peers.remove(peer)
    peer.rig.settle_down()


def ephemeral_topics(rig: NsqRig, i: int) -> None:
    topic = f"t{i}#ephemeral"
    subscriber, publisher = rig.consumer(3, topic, "c#ephemeral"), rig.client()
    publisher.ask(pub(b"x", topic), pub(b"y", topic), dpub(b"z", 1000, topic))
    one, other = subscriber.messages()
    subscriber.ask(one.fin(), other.req(1000))
    leave(subscriber)
    leave(publisher)
    assert rig.topics.find(topic) is None


def topics(rig: NsqRig, i: int) -> None:
    topic = f"t{i}"
    subscribers = [rig.consumer(3, topic, channel) for channel in "cd"]
    publisher = rig.client()
    publisher.ask(mpub(b"1", b"2", b"3", topic=topic))
    rig.topics.pause_channel(topic, "c", True)
    rig.topics.pause_topic(topic, True)
    publisher.ask(pub(b"4", topic))
    rig.topics.pause_topic(topic, False)
    rig.topics.empty_channel(topic, "d")
    rig.advance(70_000)
    if i % 3:
        rig.topics.delete_channel(topic, "c")
    if i % 2:
        rig.topics.delete_channel(topic, "d")
    rig.topics.delete_topic(topic)
    for peer in (*subscribers, publisher):
        leave(peer)


def a_channel_that_stays(rig: NsqRig, i: int) -> None:
    subscriber, publisher = rig.consumer(5, "t", "c"), rig.client()
    publisher.ask(mpub(b"1", b"2", b"3", topic="t"))
    one, other, _ = subscriber.messages()
    subscriber.ask(one.fin(), other.req())
    rig.advance(70_000)
    leave(subscriber)
    leave(publisher)
    rig.topics.empty_channel("t", "c")


NSQ_CYCLES = (ephemeral_topics, topics, a_channel_that_stays)


@pytest.mark.parametrize("play", NSQ_CYCLES, ids=[play.__name__ for play in NSQ_CYCLES])
def test_nothing_stays_of_what_clients_of_nsq_end(play: Callable[[NsqRig, int], None]) -> None:
    rig = NsqRig()

    def count() -> dict[str, int]:
        rig.topics.changed.clear()
        for _ in range(2):
            rig.vhost_exchange("tick", "topic")  # a block, with which marks are looked at
            rig.advance(1000)
            rig.broker.vhost("/").delete_exchange("tick", False)
        rig.settle_down()
        store = rig.broker.store
        store.released.clear()
        return census(
            rig.broker, rig.topics, rig.nsq, leaves_out=[rig, rig.journal, store._residents]
        )

    for number in range(2 * OFTEN):
        play(rig, number)
    before = count()
    for number in range(2 * OFTEN, 6 * OFTEN):
        play(rig, number)
    assert not grown(before, count(), 2 * OFTEN, bounded=CACHED)
