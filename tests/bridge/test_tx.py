"""Class tx on the wire, and channel.flow: TX-1 to TX-10 as a client sees them."""

from __future__ import annotations

import pytest

from tallymark.bridge.amqp091.channel import REPLIES_HELD
from tallymark.wire.amqp091.methods import (
    BasicAck,
    BasicCancel,
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
    BasicReturn,
    ChannelClose,
    ChannelCloseOk,
    ChannelFlow,
    ChannelFlowOk,
    ChannelOpen,
    ChannelOpenOk,
    ConfirmSelect,
    ConfirmSelectOk,
    ConnectionClose,
    Method,
    QueueBind,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    TxCommit,
    TxCommitOk,
    TxRollback,
    TxRollbackOk,
    TxSelect,
    TxSelectOk,
)
from tests.bridge.rig import Content, Heard, Peer, Rig

Q = QueueDeclare("q", durable=True, no_wait=True)


def selected(rig: Rig, *declared: Method) -> Peer:
    """A client whose channel 1 is transactional."""
    peer = rig.connect()
    assert peer.ask(*(declared or (Q,)), TxSelect()) == [(1, TxSelectOk())]
    return peer


def depth(peer: Peer, queue: str = "q", channel: int = 2) -> int:
    """Asked on another channel."""
    if channel not in peer.bridge.client.channels:  # type: ignore[union-attr]
        peer.open(channel)
    heard = peer.ask((channel, QueueDeclare(queue, passive=True)))
    ((_, answer),) = [one for one in heard if isinstance(one[1], QueueDeclareOk)]
    assert isinstance(answer, QueueDeclareOk)
    return answer.message_count


def bodies(heard: list[Heard]) -> list[bytes]:
    return [one.body for _, one in heard if isinstance(one, Content)]


def delivered(heard: list[Heard]) -> list[tuple[bytes, int, bool]]:
    """(body, tag, redelivered)"""
    return [
        (one.body, one.method.delivery_tag, one.method.redelivered)
        for _, one in heard
        if isinstance(one, Content) and isinstance(one.method, (BasicDeliver, BasicGetOk))
    ]


# -- select, commit, rollback


def test_tx_1_select_twice_keeps_the_transaction() -> None:
    peer = selected(Rig())
    heard = peer.ask(peer.publish(b"1"), TxSelect(), TxCommit())
    assert heard == [(1, TxSelectOk()), (1, TxCommitOk())]
    assert depth(peer) == 1


def closed(heard: list[Heard]) -> tuple[int, str]:
    """The one answer: why the channel is closed."""
    ((_, close),) = heard
    assert isinstance(close, ChannelClose)
    return close.reply_code, close.reply_text


def test_tx_1_confirms_and_transactions_exclude_each_other() -> None:
    peer = selected(Rig())
    peer.ask(peer.publish(b"1"))
    assert closed(peer.ask(ConfirmSelect())) == (
        406, "PRECONDITION_FAILED - cannot switch from tx to confirm mode",
    )  # fmt: skip
    assert depth(peer) == 0, "the transaction went with the channel"
    peer.open(3)
    assert peer.ask((3, ConfirmSelect())) == [(3, ConfirmSelectOk())]
    assert closed(peer.ask((3, TxSelect()))) == (
        406, "PRECONDITION_FAILED - cannot switch from confirm to tx mode",
    )  # fmt: skip


@pytest.mark.parametrize("method", [TxCommit(), TxRollback()])
def test_tx_2_without_a_select_there_is_nothing_to_end(method: Method) -> None:
    """406, where Qpid answers 503; what other channels have in hand is left alone."""
    rig = Rig()
    peer = selected(rig)
    peer.ask(peer.publish(b"1"))
    peer.open(3)
    assert closed(peer.ask((3, method))) == (
        406, "PRECONDITION_FAILED - channel is not transactional",
    )  # fmt: skip
    assert peer.ask(TxCommit()) == [(1, TxCommitOk())]
    assert depth(peer) == 1


def test_tx_a8_publishes_are_invisible_until_the_commit() -> None:
    peer = selected(Rig())
    peer.ask(peer.publish(b"1", delivery_mode=2))
    assert depth(peer) == 0
    assert peer.ask(TxCommit()) == [(1, TxCommitOk())]
    assert depth(peer) == 1
    assert peer.ask(peer.publish(b"2"), TxRollback()) == [(1, TxRollbackOk())]
    assert peer.ask(TxCommit()) == [(1, TxCommitOk())]
    assert depth(peer) == 1


def test_tx_5_a_new_transaction_begins_at_once() -> None:
    peer = selected(Rig())
    for n in range(3):
        peer.ask(peer.publish(b"%d" % n))
        assert depth(peer) == n
        peer.ask(TxCommit())


@pytest.mark.parametrize("size", [977, 65_536, 1 << 20])
def test_publishes_of_all_kinds_keep_their_order(size: int) -> None:
    """However the bytes are read: several routes, properties, large bodies, CC, TTLs."""
    rig = Rig()
    peer = selected(
        rig, Q, QueueDeclare("r", durable=True, no_wait=True),
        QueueBind("q", "amq.topic", "a.#", True), QueueBind("r", "amq.topic", "#", True),
    )  # fmt: skip
    frames = b"".join(
        [
            peer.publish(b"0", "q"), peer.publish(b"1", "r", priority=3),
            peer.publish(b"2", "a.x", exchange="amq.topic"),
            peer.publish(b"3", "q", delivery_mode=2), peer.publish(b"4", "q", expiration="60000"),
            peer.publish(b"5", "q", expiration="60000"),
            peer.publish(b"6", "b", exchange="amq.topic", message_id="m"),
            peer.publish(b"7" * 300_000, "q"), peer.publish(b"8", "q", headers={"CC": ["r"]}),
            peer.publish(b"9", "q", headers={"BCC": ["r"], "k": 1}), peer.publish(b"10", "r"),
        ]
    )  # fmt: skip
    for at in range(0, len(frames), size):
        peer.send(frames[at : at + size])
    assert (depth(peer, "q"), depth(peer, "r")) == (0, 0)
    peer.ask(TxCommit())
    seen = {}
    for queue in ("q", "r"):
        heard = peer.ask(*[BasicGet(queue, no_ack=True)] * 9)
        seen[queue] = [body[:2].decode() for body in bodies(heard)]
        for _, one in heard:
            if isinstance(one, Content) and one.body == b"9":
                assert one.properties.headers == {"k": 1}
    assert seen["q"] == ["0", "2", "3", "4", "5", "77", "8", "9"]
    assert seen["r"] == ["1", "2", "6", "8", "9", "10"]


def test_tx_5_commit_ok_leaves_when_the_disk_has_it() -> None:
    rig = Rig()
    peer = selected(rig)
    other = rig.connect()
    rig.hold_disk = True
    assert peer.ask(peer.publish(b"1", delivery_mode=2), TxCommit()) == []
    assert len(delivered(other.ask(BasicGet("q", no_ack=True)))) == 0, "nor does the mark"
    rig.hold_disk = False
    assert peer.hear() == [(1, TxCommitOk())]


def test_tx_5_settlements_alone_wait_for_the_disk_too() -> None:
    """The commit-ok is held back, and what is said after it with it; nothing is an error."""
    rig = Rig()
    peer = selected(rig)
    peer.ask(peer.publish(b"1", delivery_mode=2), TxCommit())
    peer.ask(BasicGet("q"))
    rig.hold_disk = True
    assert peer.ask(BasicAck(1), TxCommit(), BasicQos(prefetch_count=1)) == []
    rig.hold_disk = False
    assert peer.hear() == [(1, TxCommitOk()), (1, BasicQosOk())]


def test_tx_5_what_no_disk_keeps_is_answered_at_once() -> None:
    rig = Rig()
    peer = selected(rig, QueueDeclare("q", no_wait=True))
    rig.hold_disk = True
    assert peer.ask(TxCommit()) == [(1, TxCommitOk())]
    assert peer.ask(peer.publish(b"1"), TxCommit()) == [(1, TxCommitOk())]
    assert peer.ask(peer.publish(b"1", "nowhere"), TxCommit()) == [(1, TxCommitOk())]
    assert delivered(peer.ask(BasicGet("q"))) == [(b"1", 1, False)]
    assert peer.ask(BasicAck(1), TxCommit()) == [(1, TxCommitOk())]


MEANWHILE: dict[str, Method | bytes] = {
    "publish": b"",
    "ack": BasicAck(1),
    "nack": BasicNack(1),
    "qos": BasicQos(),
    "declare": QueueDeclare("r"),
    "commit": TxCommit(),
    "rollback": TxRollback(),
}


@pytest.mark.parametrize("name", MEANWHILE)
def test_tx_5_any_method_meanwhile_is_an_error_of_the_connection(name: str) -> None:
    rig = Rig()
    peer = selected(rig)
    peer.ask(peer.publish(b"1", delivery_mode=2), TxCommit())
    peer.ask(BasicGet("q"))
    rig.hold_disk = True
    peer.ask(peer.publish(b"2", delivery_mode=2), TxCommit())
    sent = MEANWHILE[name] or peer.publish(b"3")
    ((number, close),) = peer.ask(sent)
    assert number == 0
    assert isinstance(close, ConnectionClose)
    text = "CHANNEL_ERROR - unexpected command while processing 'tx.commit'"
    assert (close.reply_code, close.reply_text) == (504, text)
    rig.hold_disk = False
    other = rig.connect()
    assert depth(other) == 2, "what was committed is"
    rig.broker.check()


def test_tx_5_meanwhile_the_channel_may_be_closed_and_others_go_on() -> None:
    rig = Rig()
    peer = selected(rig)
    peer.open(2)
    rig.hold_disk = True
    peer.ask(peer.publish(b"1", delivery_mode=2), TxCommit())
    assert peer.ask((2, BasicQos())) == [(2, BasicQosOk())]
    assert peer.ask(ChannelClose()) == [(1, ChannelCloseOk())]
    rig.hold_disk = False
    assert peer.hear() == [], "no answer on a closed channel"
    assert peer.ask(ChannelOpen()) == [(1, ChannelOpenOk())]
    assert depth(peer) == 1


def test_tx_5_a_transaction_that_finds_no_room_is_refused_as_a_whole() -> None:
    rig = Rig()
    full = {"x-max-length": 1, "x-overflow": "reject-publish"}
    peer = selected(rig, Q, QueueDeclare("full", durable=True, no_wait=True, arguments=full))
    ((number, close),) = peer.ask(
        peer.publish(b"0"), peer.publish(b"1", "full"), peer.publish(b"2", "full"), TxCommit()
    )
    assert number == 1
    assert isinstance(close, ChannelClose)
    assert (close.reply_code, close.class_id, close.method_id) == (406, 90, 20)
    assert close.reply_text == (
        "PRECONDITION_FAILED - partial tx completion refused: queue 'full' in vhost '/' has no "
        "room for what the transaction publishes, nothing of it was committed"
    )
    assert (depth(peer), depth(peer, "full")) == (0, 0)
    rig.broker.check()


def test_a_refused_publish_costs_the_channel_and_the_transaction() -> None:
    rig = Rig()
    peer = selected(rig)
    ((_, close),) = peer.ask(peer.publish(b"0"), peer.publish(b"1", exchange="no"), TxCommit())
    assert isinstance(close, ChannelClose)
    assert (close.reply_code, close.method_id) == (404, 40)
    assert depth(peer) == 0
    rig.broker.check()
    assert rig.broker.store.resident_bytes == 0


# -- what nobody takes


def test_tx_3_unroutable_mandatory_messages_go_back_at_the_commit() -> None:
    rig = Rig()
    peer = selected(rig, Q, QueueDeclare("gone", durable=True, no_wait=True))
    assert peer.ask(
        peer.publish(b"0", "no", mandatory=True), peer.publish(b"1", "q", mandatory=True),
        peer.publish(b"2", "gone", mandatory=True), peer.publish(b"3", "no"),
        peer.publish(b"4", "no", mandatory=True), peer.publish(b"5", "gone"),
        peer.publish(b"6", "no", mandatory=True), QueueDelete("gone", no_wait=True),
    ) == []  # fmt: skip
    heard = peer.ask(TxCommit())
    assert heard[-1] == (1, TxCommitOk())
    assert bodies(heard) == [b"0", b"2", b"4", b"6"]
    for (_, one), key in zip(heard, ["no", "gone", "no", "no"], strict=False):
        assert isinstance(one, Content)
        assert one.method == BasicReturn(312, "NO_ROUTE", "", key)
    assert depth(peer) == 1
    assert peer.ask(peer.publish(b"7", "no", mandatory=True), TxRollback()) == [(1, TxRollbackOk())]
    rig.settle_down()
    traffic = rig.broker.traffic
    assert (traffic.routed, traffic.returned, traffic.discarded) == (1, 4, 2)
    assert rig.broker.store.resident_bytes == len(peer.publish(b"1", "q", mandatory=True))


def test_tx_3_a_returned_message_has_its_delay_as_its_publisher_wrote_it() -> None:
    peer = selected(Rig())
    for queue in ("no", "gone"):
        peer.ask((1, QueueDeclare("gone", durable=True, no_wait=True)))
        peer.ask(
            peer.publish(b"0", queue, mandatory=True, headers={"x-delay": 50}),
            peer.publish(b"1", queue, mandatory=True, headers={"x-delay": 50}),
            QueueDelete("gone", no_wait=True),
        )
        heard = peer.ask(TxCommit())
        assert bodies(heard) == [b"0", b"1"]
        for _, one in heard[:2]:
            assert isinstance(one, Content)
            assert one.properties.headers == {"x-delay": 50}


def test_tx_4_a_direct_reply_leaves_at_the_commit() -> None:
    """RabbitMQ hands it out at once. One to nobody is unroutable."""
    rig = Rig()
    client, server = rig.connect(), rig.connect()
    client.ask(BasicConsume("amq.rabbitmq.reply-to", "me", no_ack=True))
    server.ask(QueueDeclare("rpc", no_wait=True), TxSelect())
    client.ask(client.publish(b"?", "rpc", reply_to="amq.rabbitmq.reply-to"))
    ((_, request),) = server.ask(BasicGet("rpc"))
    assert isinstance(request, Content)
    reply_to = request.properties.reply_to
    assert reply_to is not None
    answers = [
        server.publish(b"!", reply_to),
        server.publish(b"!!", "rpc", headers={"CC": [reply_to]}),
        server.publish(b"!!!", reply_to, mandatory=True),
    ]
    for end in (TxRollback(), TxCommit()):
        server.ask(*answers, BasicAck(1))
        assert client.hear() == []
        heard = server.ask(end)
        assert bodies(client.hear()) == ([b"!", b"!!", b"!!!"] if isinstance(end, TxCommit) else [])
    assert bodies(heard) == [b"!!!"], "to be returned, as outside of transactions"
    assert (rig.broker.traffic.returned, rig.broker.traffic.discarded) == (1, 0)
    assert depth(server, "rpc") == 1


# -- settlements


def test_tx_a7_the_same_tags_are_open_after_a_rollback() -> None:
    rig = Rig()
    peer = selected(rig)
    peer.ask(*[peer.publish(b"m%d" % n, delivery_mode=2) for n in range(4)], TxCommit())
    assert delivered(peer.ask(BasicGet("q"), BasicGet("q"))) == [
        (b"m0", 1, False),
        (b"m1", 2, False),
    ]
    assert peer.ask(BasicAck(1), TxRollback()) == [(1, TxRollbackOk())]
    assert delivered(peer.ask(BasicGet("q"))) == [(b"m2", 3, False)]
    assert peer.ask(BasicAck(1), TxCommit()) == [(1, TxCommitOk())]
    assert peer.ask(BasicRecover(True)) == [(1, BasicRecoverOk())]
    assert delivered(peer.ask(*[BasicGet("q")] * 3)) == [
        (b"m1", 4, True), (b"m2", 5, True), (b"m3", 6, False),
    ]  # fmt: skip


def test_tx_4_a_parked_tag_is_not_outstanding() -> None:
    for first in (BasicAck(1), BasicNack(1), BasicReject(1)):
        peer = selected(Rig())
        peer.ask(peer.publish(b"m", delivery_mode=2), TxCommit())
        peer.ask(BasicGet("q"))
        ((_, close),) = peer.ask(first, BasicAck(1))
        assert isinstance(close, ChannelClose)
        assert close.reply_text == "PRECONDITION_FAILED - unknown delivery tag 1"
        assert depth(peer) == 1, "the channel's end undoes all of it"


def test_tx_4_the_prefetch_window_opens_at_the_commit() -> None:
    peer = selected(Rig())
    peer.ask(*[peer.publish(b"%d" % n, delivery_mode=2) for n in range(4)], TxCommit())
    heard = peer.ask(BasicQos(prefetch_count=2), BasicConsume("q", "c"))
    assert bodies(heard) == [b"0", b"1"]
    assert peer.ask(BasicAck(2, multiple=True)) == []
    heard = peer.ask(TxCommit())
    assert bodies(heard) == [b"2", b"3"]
    assert (1, TxCommitOk()) in heard


def test_tx_a12_on_the_wire() -> None:
    peer = selected(Rig())
    peer.ask(*[peer.publish(b"m%d" % n, delivery_mode=2) for n in range(6)], TxCommit())
    heard = peer.ask(BasicQos(prefetch_count=4), BasicConsume("q", "c"))
    assert delivered(heard) == [(b"m%d" % n, n + 1, False) for n in range(4)]
    assert peer.ask(BasicNack(4, multiple=True, requeue=True), TxRollback()) == [
        (1, TxRollbackOk())
    ]
    peer.ask(BasicCancel("c"))
    assert depth(peer) == 2
    assert peer.ask(BasicRecover(True)) == [(1, BasicRecoverOk())]
    assert depth(peer) == 6
    expected = [(b"m%d" % n, n + 5, True) for n in range(4)]
    assert delivered(peer.ask(BasicConsume("q", "c"))) == expected
    heard = peer.ask(BasicRecoverAsync(True))
    assert delivered(heard) == [(b"m%d" % n, n + 9, True) for n in range(4)]
    assert peer.ask(ChannelClose()) == [(1, ChannelCloseOk())]
    peer.open()
    assert delivered(peer.ask(*[BasicGet("q")] * 6)) == [
        (b"m%d" % n, n + 1, n < 4) for n in range(6)
    ]


def test_tx_5_rejects_become_dead_letters_at_the_commit() -> None:
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "letters"}
    peer = selected(
        Rig(), QueueDeclare("q", durable=True, no_wait=True, arguments=arguments),
        QueueDeclare("letters", durable=True, no_wait=True),
    )  # fmt: skip
    peer.ask(*[peer.publish(b"%d" % n, delivery_mode=2) for n in range(4)], TxCommit())
    peer.ask(*[BasicGet("q")] * 4)
    peer.ask(BasicReject(3, requeue=False), BasicNack(2, multiple=True, requeue=False))
    assert depth(peer, "letters") == 0
    peer.ask(BasicReject(4, requeue=True), TxCommit())
    assert (depth(peer, "letters"), depth(peer)) == (3, 1)
    heard = peer.ask(*[BasicGet("letters")] * 3)
    assert bodies(heard) == [b"2", b"0", b"1"]
    for _, one in heard:
        assert isinstance(one, Content)
        assert one.properties.headers is not None
        assert one.properties.headers["x-first-death-reason"] == "rejected"


@pytest.mark.parametrize("how", ["channel", "connection", "lost"])
def test_tx_7_closing_rolls_back(how: str) -> None:
    rig = Rig()
    peer = selected(rig)
    peer.ask(peer.publish(b"0"), peer.publish(b"1"), TxCommit())
    peer.ask(BasicGet("q"), BasicGet("q"))
    peer.ask(peer.publish(b"2"), BasicAck(1))
    if how == "channel":
        peer.ask(ChannelClose())
    elif how == "connection":
        peer.ask((0, ConnectionClose(200, "bye")))
    else:
        peer.bridge.eof()
    other = rig.connect()
    assert delivered(other.ask(*[BasicGet("q")] * 3)) == [(b"0", 1, True), (b"1", 2, True)]
    rig.broker.check()
    assert len(rig.broker.transactions.open) == 0


def test_what_a_transaction_holds_is_described() -> None:
    rig = Rig()
    peer = selected(rig)
    peer.open(2)
    peer.ask(peer.publish(b"0"), peer.publish(b"1"), TxCommit())
    peer.ask(BasicGet("q"), BasicGet("q"))
    peer.ask(*[peer.publish(b"x")] * 3, BasicAck(1))
    one, two = peer.bridge.describe()["channels"]  # type: ignore[misc]
    names = ("transactional", "uncommitted", "acks_uncommitted", "unacked")
    assert [one[name] for name in names] == [True, 3, 1, 2]
    assert [two[name] for name in names] == [False, 0, 0, 0]


def test_a_transaction_that_grows_too_large_costs_its_channel() -> None:
    rig = Rig()
    peer = selected(rig)
    (transaction,) = rig.broker.transactions.open.values()
    transaction.weight = 1 << 20
    ((_, close),) = peer.ask(peer.publish(b"x"))
    assert isinstance(close, ChannelClose)
    assert (close.reply_code, close.class_id, close.method_id) == (406, 60, 40)
    assert "transaction of weight" in close.reply_text


# -- flow


def test_tx_10_no_delivery_follows_flow_ok() -> None:
    """Whatever is under way: a backlog, publishes in the same read, answers that wait for the
    disk."""
    rig = Rig()
    peer = rig.connect()
    peer.ask(Q, *[peer.publish(b"x", delivery_mode=2)] * 50)
    rig.hold_disk = True
    sent = [
        QueueDeclare("durable", durable=True),
        BasicConsume("q", "c", no_ack=True),
        ChannelFlow(False),
        *[peer.publish(b"y")] * 3,
    ]
    assert peer.ask(*sent) == []
    rig.hold_disk = False
    heard = peer.hear()
    assert [one for _, one in heard] == [
        QueueDeclareOk("durable", 0, 0), BasicConsumeOk("c"), ChannelFlowOk(False),
    ]  # fmt: skip
    assert peer.ask(peer.publish(b"z")) == []
    heard = peer.ask(ChannelFlow(True))
    assert heard[0] == (1, ChannelFlowOk(True))
    assert bodies(heard) == [b"x"] * 50 + [b"y"] * 3 + [b"z"]


def test_tx_10_flow_is_the_channels_own() -> None:
    peer = Rig().connect()
    peer.open(2)
    peer.ask(Q, (2, QueueDeclare("r", no_wait=True)), ChannelFlow(False))
    peer.ask(BasicConsume("q", "c", no_ack=True), (2, BasicConsume("r", "d", no_ack=True)))
    heard = peer.ask(peer.publish(b"1", "q"), peer.publish(b"2", "r"))
    assert [(number, one.body) for number, one in heard if isinstance(one, Content)] == [(2, b"2")]
    assert delivered(peer.ask(BasicGet("q"))) == [(b"1", 1, False)], "asked for is not delivered"
    assert peer.ask(BasicGet("q")) == [(1, BasicGetEmpty())]


def asking(rig: Rig) -> tuple[Peer, Peer, str]:
    """A client that waits for direct replies but wants no deliveries, one that answers, and the
    reply-to."""
    client, server = rig.connect(), rig.connect()
    server.ask(QueueDeclare("rpc", no_wait=True))
    client.ask(BasicConsume("amq.rabbitmq.reply-to", "me", no_ack=True), ChannelFlow(False))
    client.ask(client.publish(b"?", "rpc", reply_to="amq.rabbitmq.reply-to"))
    ((_, request),) = server.ask(BasicGet("rpc", no_ack=True))
    assert isinstance(request, Content)
    assert request.properties.reply_to is not None
    return client, server, request.properties.reply_to


def test_tx_10_direct_replies_wait_too() -> None:
    client, server, reply_to = asking(Rig())
    server.ask(server.publish(b"1", reply_to), server.publish(b"2", reply_to))
    assert client.hear() == []
    heard = client.ask(ChannelFlow(True))
    assert heard[0] == (1, ChannelFlowOk(True))
    assert bodies(heard) == [b"1", b"2"]
    server.ask(server.publish(b"3", reply_to))
    assert bodies(client.hear()) == [b"3"]


def test_tx_10_direct_replies_wait_within_a_limit_and_for_their_consumer() -> None:
    client, server, reply_to = asking(Rig())
    body = b"x" * (REPLIES_HELD // 4)
    for _ in range(6):
        server.ask(server.publish(body, reply_to))
    assert len(bodies(client.ask(ChannelFlow(True)))) == 3, "with their frames four are too many"
    client.ask(ChannelFlow(False))
    server.ask(server.publish(b"y", reply_to))
    client.ask(BasicCancel("me"))
    assert bodies(client.ask(ChannelFlow(True))) == []
