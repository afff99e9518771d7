"""Exchanges of type x-local-random: each message goes to one of the queues, whatever protocol and
batch it comes in."""

from __future__ import annotations

import pytest

from tallymark.engine.errors import PreconditionFailed
from tallymark.wire.amqp091.methods import (
    ChannelClose,
    ConfirmSelect,
    ExchangeBind,
    ExchangeDeclare,
    QueueBind,
    QueueBindOk,
    TxCommit,
    TxSelect,
)
from tests.bridge.nsq_rig import OK, NsqRig, mpub, pub
from tests.bridge.rig10 import Rig

QUEUES = ("q0", "q1", "q2")


def spread(rig: Rig) -> list[int]:
    return [rig.queue(name).ready for name in QUEUES]


@pytest.fixture
def rig() -> Rig:
    """With an exchange `any` that three queues are bound to."""
    rig = Rig()
    vhost = rig.broker.vhost("/")
    vhost.declare_exchange("any", "x-local-random", True, False, False, {}, False)
    for name in QUEUES:
        rig.declare(name)
        vhost.bind_queue(name, "any", "", {}, rig.owner.id)
    return rig


FORMS: list[dict[str, object]] = [
    {},
    {"key": "any/key"},
    {"headers": {"a": 1}},
    {"headers": {"CC": ["more"]}},
    {"headers": {"x-delay": 0}},
    {"expiration": "60000", "delivery_mode": 2},
]


@pytest.mark.parametrize("properties", FORMS)
@pytest.mark.parametrize("together", [True, False])
def test_amqp_0_9_1_however_publishes_come_together(
    rig: Rig, properties: dict[str, object], together: bool
) -> None:
    peer = rig.connect()
    publish = peer.publish(b"m", exchange="any", **{"key": "", **properties})  # type: ignore[arg-type]
    if together:
        peer.ask(publish * 300)
    else:
        for _ in range(300):
            peer.ask(publish)
    assert spread(rig) == [100, 100, 100]


def test_confirms_and_transactions(rig: Rig) -> None:
    peer = rig.connect()
    publish = peer.publish(b"m", "", exchange="any")
    peer.ask(ConfirmSelect())
    peer.ask(publish * 30)
    assert spread(rig) == [10, 10, 10]
    other = rig.connect()
    other.ask(TxSelect())
    other.ask(publish * 30)
    assert spread(rig) == [10, 10, 10]
    other.ask(TxCommit())
    assert spread(rig) == [20, 20, 20]


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("address", ["/exchanges/any", "/exchanges/any/some-key"])
def test_amqp_1_0_however_messages_come_together(rig: Rig, address: str, together: bool) -> None:
    peer = rig.connect10()
    link = peer.sender(peer.session(), address)
    for _ in range(5):
        for _ in range(30):
            link.send(b"\x00\x53\x75\xa0\x01m")
            if not together:
                peer.pump()
        peer.pump()
    assert spread(rig) == [50, 50, 50]


def test_nsq_however_messages_come_together() -> None:
    rig = NsqRig()
    vhost = rig.broker.vhost("/")
    rig.vhost_exchange("any", "x-local-random")
    for name in QUEUES:
        rig.vhost_queue(name)
        vhost.bind_queue(name, "any", "", {}, 0)
    consumer, producer = rig.consumer(ready=0), rig.client()
    vhost.bind_exchange("any", "t", "", {})
    assert producer.ask(pub(b"m") * 10, mpub(*[b"m"] * 11)) == [OK] * 11
    for _ in range(9):
        assert producer.ask(pub(b"m")) == [OK]
    assert [vhost.queues[name].ready for name in QUEUES] == [10, 10, 10]
    assert rig.queue().ready == 30
    consumer.ask(b"RDY 30\n")
    vhost.unbind_exchange("any", "t", "", {})
    assert producer.ask(pub(b"m")) == [OK]
    assert [vhost.queues[name].ready for name in QUEUES] == [10, 10, 10]
    rig.broker.check()


def test_through_another_exchange_and_as_an_alternate(rig: Rig) -> None:
    vhost = rig.broker.vhost("/")
    vhost.declare_exchange("front", "topic", True, False, False, {}, False)
    vhost.bind_exchange("any", "front", "a.*", {})
    vhost.declare_exchange(
        "lost", "direct", True, False, False, {"alternate-exchange": "any"}, False
    )
    peer = rig.connect()
    peer.ask(peer.publish(b"m", "a.b", exchange="front") * 6)
    peer.ask(peer.publish(b"m", "nowhere", exchange="lost") * 6)
    assert spread(rig) == [4, 4, 4]


def test_dead_letters_go_to_one_each(rig: Rig) -> None:
    rig.declare("source", dead_letter_exchange="any", max_length=0)
    peer = rig.connect()
    peer.ask(peer.publish(b"m", "source") * 9)
    assert sum(spread(rig)) == 9
    assert min(spread(rig)) > 0


def test_a_queue_that_goes_takes_no_turn_any_more(rig: Rig) -> None:
    rig.delete("q1")
    peer = rig.connect()
    peer.ask(peer.publish(b"m", "", exchange="any") * 10)
    assert [rig.queue(name).ready for name in ("q0", "q2")] == [5, 5]


def test_only_queues_are_bound_and_without_a_key(rig: Rig) -> None:
    peer = rig.connect()
    ((_, close),) = peer.ask(QueueBind("q0", "any", "key"))
    assert isinstance(close, ChannelClose)
    assert close.reply_code == 406
    assert close.reply_text == "PRECONDITION_FAILED - Non empty binding 'key' key not permitted"
    other = rig.connect()
    other.ask(ExchangeDeclare("e", "fanout"))
    ((_, close),) = other.ask(ExchangeBind("e", "any", ""))
    assert isinstance(close, ChannelClose)
    assert close.reply_code == 406
    third = rig.connect()
    assert third.ask(QueueBind("q0", "any", "")) == [(1, QueueBindOk())]  # it is there
    vhost = rig.broker.vhost("/")
    with pytest.raises(PreconditionFailed, match="expected a queue"):
        vhost.bind_exchange("e", "any", "", {})
