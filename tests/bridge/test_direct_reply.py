"""Direct reply-to: answers without a queue, to this or another connection."""

from __future__ import annotations

import pytest

from tallymark.wire.amqp091.methods import (
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicConsumeOk,
    BasicDeliver,
    BasicReturn,
    ChannelClose,
    ConfirmSelect,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
)
from tallymark.wire.amqp091.properties import Properties
from tests.bridge.rig import Content, Peer, Rig

REPLIES = BasicConsume("amq.rabbitmq.reply-to", "me", no_ack=True)


def asked(rig: Rig) -> tuple[Peer, Peer, str]:
    """A client that asked, one that is to answer, and the reply-to it was shown."""
    client, server = rig.connect(), rig.connect()
    server.ask(QueueDeclare("rpc"), BasicConsume("rpc", "s", no_ack=True))
    assert client.ask(REPLIES) == [(1, BasicConsumeOk("me"))]
    request = client.publish(b"?", "rpc", reply_to="amq.rabbitmq.reply-to", correlation_id="7")
    client.ask(request)
    ((_, got),) = server.hear()
    assert isinstance(got, Content)
    assert got.body == b"?"
    assert got.properties.correlation_id == "7"
    assert got.properties.reply_to is not None
    assert got.properties.reply_to.startswith("amq.rabbitmq.reply-to.")
    return client, server, got.properties.reply_to


@pytest.mark.parametrize(
    "others",
    [
        {},
        {"content_type": "t/" + "x" * 200, "correlation_id": "7"},
        {
            "content_type": "a", "content_encoding": "b", "delivery_mode": 2, "priority": 3,
            "correlation_id": "c", "message_id": "m", "timestamp": 1 << 60, "type": "t",
            "app_id": "p", "cluster_id": "q",
        },
        {"headers": {"h": 1}, "priority": 3, "message_id": "m"},
        {"expiration": "60000", "user_id": "guest"},
        {"correlation_id": "amq.rabbitmq.reply-to", "type": "amq.rabbitmq.reply-to"},
    ],
)  # fmt: skip
def test_of_a_request_nothing_but_its_reply_to_changes(others: dict[str, object]) -> None:
    rig = Rig()
    client, server, reply_to = asked(rig)
    client.ask(client.publish(b"?", "rpc", reply_to="amq.rabbitmq.reply-to", **others))
    ((_, got),) = server.hear()
    assert isinstance(got, Content)
    assert got.body == b"?"
    assert got.properties == Properties(reply_to=reply_to, **others)  # type: ignore[arg-type]


def test_answers_of_several_publishers_are_told_alike() -> None:
    rig = Rig()
    client, other, reply_to = asked(rig)
    client.ask(BasicCancel("me"), REPLIES)
    client.ask(client.publish(b"?", "rpc", reply_to="amq.rabbitmq.reply-to"))
    ((_, again),) = other.hear()
    assert isinstance(again, Content)
    assert again.properties.reply_to not in (None, reply_to)
    peers = [other, rig.connect(), other]
    for peer in peers:
        peer.ask(peer.publish(b"!", str(again.properties.reply_to)))
    heard = [item for _, item in client.hear() if isinstance(item, Content)]
    assert [item.method for item in heard] == [
        BasicDeliver("me", 1, False, "", str(again.properties.reply_to))
    ] * len(peers)


def test_an_answer_reaches_who_asked() -> None:
    rig = Rig()
    client, server, reply_to = asked(rig)
    server.open(5)
    body = b"!" * 300_000
    server.ask(server.publish(body, reply_to, channel=5, correlation_id="7"))
    assert rig.replies.take_written() == [client.bridge]
    assert rig.broker.traffic.discarded == 0
    properties = Properties(correlation_id="7")
    assert client.hear() == [
        (1, Content(BasicDeliver("me", 1, False, "", reply_to), properties, body))
    ]


def test_an_answer_counts_as_unroutable() -> None:
    rig = Rig()
    client, server, reply_to = asked(rig)
    heard = server.ask(ConfirmSelect(no_wait=True), server.publish(b"!", reply_to, mandatory=True))
    assert heard[0] == (
        1, Content(BasicReturn(312, "NO_ROUTE", "", reply_to), Properties(), b"!")
    )  # fmt: skip
    assert len(heard) == 2
    assert len(client.hear()) == 1


def test_answers_to_nobody_are_dropped() -> None:
    rig = Rig()
    client, server, reply_to = asked(rig)
    assert client.ask(BasicCancel("me")) == [(1, BasicCancelOk("me"))]
    server.ask(server.publish(b"!", reply_to), server.publish(b"!", reply_to + "x"))
    assert client.hear() == []
    assert rig.broker.traffic.discarded == 2
    assert server.ask(server.publish(b"!", "rpc")) != []


def test_answers_end_with_the_channel_that_asked() -> None:
    rig = Rig()
    client, server, reply_to = asked(rig)
    assert server.ask(QueueDeclare(reply_to)) == [(1, QueueDeclareOk(reply_to, 0, 1))]
    client.ask(ChannelClose(200, "bye"))
    assert rig.replies.consumers == {}
    ((_, close),) = server.ask(QueueDeclare(reply_to))
    assert isinstance(close, ChannelClose)
    assert close.reply_code == 404


def test_answers_by_cc_and_to_a_reader_with_small_frames() -> None:
    rig = Rig()
    server = rig.connect()
    client = rig.connect(frame_max=4096)
    server.ask(QueueDeclare("rpc"), BasicConsume("rpc", "s", no_ack=True))
    client.ask(REPLIES, client.publish(b"?", "rpc", reply_to="amq.rabbitmq.reply-to"))
    ((_, got),) = server.hear()
    assert isinstance(got, Content)
    reply_to = got.properties.reply_to
    server.ask(server.publish(b"!" * 10_000, "nowhere", headers={"BCC": [reply_to]}))
    answer = BasicDeliver("me", 1, False, "", "nowhere")
    assert client.hear() == [(1, Content(answer, Properties(headers={}), b"!" * 10_000))]


def test_a_client_that_reads_nothing_costs_bounded_memory() -> None:
    rig = Rig()
    client, server, reply_to = asked(rig)
    assert client.bridge.connection is not None
    client.bridge.connection.paused = True
    for _ in range(40):
        server.ask(server.publish(b"!" * 1_000_000, reply_to))
    assert 10 < len(client.hear()) < 20
    client.bridge.connection.paused = False
    server.ask(server.publish(b"!", reply_to))
    assert len(client.hear()) == 1


def test_the_pseudo_queue_seems_to_be_there() -> None:
    peer = Rig().connect()
    name = "amq.rabbitmq.reply-to"
    assert (
        peer.ask(QueueDeclare(name), QueueDeclare(name, passive=True))
        == [(1, QueueDeclareOk(name, 0, 1))] * 2
    )
    assert peer.ask(QueueDelete(name)) == [(1, QueueDeleteOk(0))]
