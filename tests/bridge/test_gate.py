"""Durable answers wait for the disk, and everything said later waits behind them."""

from __future__ import annotations

from tallymark.wire.amqp091.methods import (
    BasicAck,
    BasicConsume,
    BasicGet,
    BasicGetOk,
    ChannelClose,
    ConfirmSelect,
    ConfirmSelectOk,
    ConnectionClose,
    ConnectionCloseOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    ExchangeDelete,
    ExchangeDeleteOk,
    Method,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
    QueueUnbind,
    QueueUnbindOk,
)
from tests.bridge.rig import Content, Rig


def test_durable_changes_wait_and_keep_their_order() -> None:
    rig = Rig()
    peer = rig.connect()
    rig.hold_disk = True
    assert peer.ask(ExchangeDeclare("x", "direct", durable=True)) == []
    assert peer.ask(QueueDeclare("q", durable=True), QueueBind("q", "x", "k")) == []
    assert peer.ask(ConfirmSelect()) == []
    rig.hold_disk = False
    assert peer.hear() == [
        (1, ExchangeDeclareOk()),
        (1, QueueDeclareOk("q", 0, 0)),
        (1, QueueBindOk()),
        (1, ConfirmSelectOk()),
    ]
    rig.hold_disk = True
    assert peer.ask(QueueUnbind("q", "x", "k"), ExchangeDelete("x"), QueueDelete("q")) == []
    rig.hold_disk = False
    assert peer.hear() == [
        (1, QueueUnbindOk()),
        (1, ExchangeDeleteOk()),
        (1, QueueDeleteOk(0)),
    ]


def test_what_was_said_before_is_not_held_back() -> None:
    rig = Rig()
    peer = rig.connect()
    rig.hold_disk = True
    assert peer.ask(ConfirmSelect(), QueueDeclare("q", durable=True)) == [(1, ConfirmSelectOk())]


def test_gates_open_one_after_the_other() -> None:
    rig = Rig()
    peer = rig.connect()
    rig.hold_disk = True
    peer.ask(QueueDeclare("a", durable=True))
    after_a = rig.journal.end
    peer.ask(QueueDeclare("b", durable=True))
    rig.journal.sync(after_a)
    assert peer.hear() == [(1, QueueDeclareOk("a", 0, 0))]
    rig.hold_disk = False
    assert peer.hear() == [(1, QueueDeclareOk("b", 0, 0))]


def test_transient_things_are_answered_at_once() -> None:
    rig = Rig()
    peer = rig.connect()
    rig.hold_disk = True
    sent: list[tuple[Method, Method]] = [
        (ExchangeDeclare("x", "direct"), ExchangeDeclareOk()),
        (QueueDeclare("q"), QueueDeclareOk("q", 0, 0)),
        (QueueDeclare("mine", exclusive=True, durable=True), QueueDeclareOk("mine", 0, 0)),
        (QueueBind("q", "amq.direct", "k"), QueueBindOk()),
        (QueueDelete("q"), QueueDeleteOk(0)),
        (QueueDelete("none"), QueueDeleteOk(0)),
    ]
    for method, answer in sent:
        assert peer.ask(method) == [(1, answer)]


def test_finding_what_another_connection_just_declared_waits_too() -> None:
    rig = Rig()
    one, two = rig.connect(), rig.connect()
    rig.hold_disk = True
    assert one.ask(QueueDeclare("q", durable=True)) == []
    assert two.ask(QueueDeclare("q", durable=True)) == []
    rig.hold_disk = False
    assert one.hear() == two.hear() == [(1, QueueDeclareOk("q", 0, 0))]


def test_a_message_taken_by_get_leaves_once_the_disk_knows() -> None:
    rig = Rig()
    peer = rig.connect()
    peer.ask(QueueDeclare("q", durable=True), peer.publish(b"x", delivery_mode=2))
    rig.hold_disk = True
    assert peer.ask(BasicGet("q")) == []
    rig.hold_disk = False
    ((_, got),) = peer.hear()
    assert isinstance(got, Content)
    assert got.method == BasicGetOk(1, False, "", "q", 0)
    assert peer.ask(BasicAck(1)) == []


def test_the_transport_stays_open_until_held_output_has_left() -> None:
    rig = Rig()
    peer = rig.connect()
    rig.hold_disk = True
    assert peer.ask(QueueDeclare("q", durable=True), (0, ConnectionClose(200, "bye"))) == []
    assert not peer.bridge.closing
    rig.hold_disk = False
    assert peer.hear() == [(1, QueueDeclareOk("q", 0, 0)), (0, ConnectionCloseOk())]
    assert peer.bridge.closing


def test_an_error_behind_a_gate_waits_behind_it() -> None:
    rig = Rig()
    peer = rig.connect()
    rig.hold_disk = True
    assert peer.ask(QueueDeclare("q", durable=True), BasicGet("no")) == []
    rig.hold_disk = False
    first, second = peer.hear()
    assert first == (1, QueueDeclareOk("q", 0, 0))
    assert isinstance(second[1], ChannelClose)


def test_nothing_is_taken_from_a_queue_for_output_that_waits() -> None:
    rig = Rig()
    peer, other = rig.connect(), rig.connect()
    peer.ask(QueueDeclare("t"), BasicConsume("t", no_ack=True))
    rig.hold_disk = True
    peer.ask(QueueDeclare("d", durable=True))
    for _ in range(5):
        other.ask(other.publish(b"x", "t"))
    queue = rig.broker.vhost("/").queues["t"]
    assert queue.ready == 5
    rig.hold_disk = False
    assert peer.hear() == [(1, QueueDeclareOk("d", 0, 0))]
    assert len(peer.hear()) == 5
    assert queue.ready == 0
