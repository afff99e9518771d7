"""A look at a queue behind a publish, in one segment, while another connection waits for messages.

The message is the other's, whatever protocol it speaks, though the queue's mark does not cover it
yet: its connection holds the message back until the disk says that it may have been delivered.
"""

from __future__ import annotations

import pytest

from tallymark.wire.amqp091.methods import (
    BasicConsume,
    BasicDeliver,
    BasicGet,
    BasicGetEmpty,
    BasicQos,
    Method,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
    QueuePurge,
    QueuePurgeOk,
)
from tests.bridge import nsq_rig
from tests.bridge.nsq_rig import NsqPeer, NsqRig
from tests.bridge.rig import Content, Peer

LOOKS: dict[str, tuple[Method, Method]] = {
    "get": (BasicGet("t:c"), BasicGetEmpty()),
    "purge": (QueuePurge("t:c"), QueuePurgeOk(0)),
    "declare": (QueueDeclare("t:c", passive=True), QueueDeclareOk("t:c", 0, 1)),
    "delete": (QueueDelete("t:c", if_empty=True), QueueDeleteOk(0)),
}


def joined() -> NsqRig:
    """A broker that carries out at once what a look causes, as the server does."""
    rig = NsqRig()
    rig.broker.dispatcher.carry_out = nsq_rig._carry_out
    return rig


def waiting(rig: NsqRig, protocol: str) -> NsqPeer | Peer:
    """A client with credit on an empty durable queue that nothing was ever delivered from."""
    if protocol == "nsq":
        subscribed = rig.consumer(ready=2)
        assert subscribed.hear() == []
        return subscribed
    rig.topics.channel("t", "c")
    peer = rig.connect()
    peer.ask(BasicQos(0, 2, False))
    peer.ask(BasicConsume("t:c", "c", no_wait=True))
    return peer


def given(peer: NsqPeer | Peer) -> list[bytes]:
    if isinstance(peer, NsqPeer):
        return [message.body for message in peer.messages()]
    found = []
    for _, one in peer.hear():
        if isinstance(one, Content) and isinstance(one.method, BasicDeliver):
            found.append(one.body)
    return found


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("protocol", ["amqp091", "nsq"])
def test_nothing_overtakes_a_delivery_and_none_leaves_before_its_mark(
    protocol: str, look: str
) -> None:
    rig = joined()
    consumer = waiting(rig, protocol)
    other = rig.connect()
    rig.settle_down()
    said, answer = LOOKS[look]
    rig.hold_disk = True
    other.send(other.publish(b"1", "t", exchange="t"), (1, said))
    assert look == "delete" or (rig.queue().ready, rig.queue().acquired) == (0, 1)
    assert given(consumer) == [], "the disk does not say yet that it may have been delivered"
    rig.hold_disk = False
    rig.settle_down()
    assert other.hear() == [(1, answer)]
    if look != "delete":  # it takes what its consumers hold
        assert given(consumer) == [b"1"]
    rig.broker.check()


def test_an_nsq_client_goes_on_when_what_it_waited_for_is_on_disk() -> None:
    """It is given nothing while its output is held back, and everything after it, in order; what
    it is answered meanwhile stays behind the message."""
    rig = joined()
    consumer = waiting(rig, "nsq")
    assert isinstance(consumer, NsqPeer)
    other = rig.connect()
    rig.hold_disk = True
    other.send(other.publish(b"1", "t", exchange="t"), (1, BasicGet("t:c")))
    other.send(*[other.publish(b"%d" % n, "t", exchange="t") for n in (2, 3)])
    assert consumer.ask(b"TOUCH 0000000000000000\n") == []
    assert rig.queue().acquired == 1
    rig.hold_disk = False
    rig.settle_down()
    kinds = consumer.hear()
    assert [content[26:] for kind, content in kinds if kind == nsq_rig.MESSAGE] == [b"1", b"2"]
    assert kinds[0][0] == nsq_rig.MESSAGE
    assert any(content.startswith(b"E_TOUCH_FAILED") for _, content in kinds)
    assert consumer.in_flight == 2
    rig.broker.check()


def test_a_client_that_leaves_meanwhile_gives_the_message_back() -> None:
    rig = joined()
    consumer = waiting(rig, "nsq")
    assert isinstance(consumer, NsqPeer)
    other = rig.connect()
    rig.hold_disk = True
    other.send(other.publish(b"1", "t", exchange="t"), (1, BasicGet("t:c")))
    consumer.leave()
    consumer.bridge.let_go()
    rig.hold_disk = False
    rig.settle_down()
    assert consumer.bridge.closing
    assert (rig.queue().ready, rig.queue().acquired) == (1, 0)
    rig.broker.check()
