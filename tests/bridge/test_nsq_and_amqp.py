"""A topic is an exchange and a channel is a queue: NSQ and AMQP clients on the same messages."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tallymark.engine.session import NOBODY
from tallymark.wire.amqp091.methods import (
    BasicAck,
    BasicConsume,
    BasicConsumeOk,
    BasicDeliver,
    BasicGet,
    BasicGetOk,
    BasicReject,
    ConfirmSelect,
    ConfirmSelectOk,
    ExchangeBind,
    ExchangeDeclare,
    ExchangeDeclareOk,
    ExchangeDelete,
    ExchangeDeleteOk,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueUnbind,
    QueueUnbindOk,
)
from tallymark.wire.amqp091.properties import Properties
from tallymark.wire.nsq.kernel import make_cells
from tests.bridge.nsq_rig import OK, NsqRig, dpub, mpub, pub
from tests.bridge.rig import Content, Peer
from tests.support.growth import assert_linear

BODIES = [b"", b"x", b"y" * 200_000]


def deliveries(heard: list[tuple[int, object]]) -> list[tuple[int, bytes, bool, str, str]]:
    found = []
    for _, one in heard:
        assert isinstance(one, Content), one
        method = one.method
        assert isinstance(method, BasicDeliver)
        assert one.properties == Properties()
        found.append(
            (method.delivery_tag, one.body, method.redelivered, method.exchange, method.routing_key)
        )
    return found


def test_an_amqp_consumer_drains_an_nsq_channel() -> None:
    rig = NsqRig()
    queue = rig.topics.channel("t", "c")
    amqp = rig.connect()
    rig.client().ask(pub(b"1"), pub(b"22"), dpub(b"3", 0), mpub(b"4", b"y" * 200_000))
    heard = amqp.ask(BasicConsume("t:c", "tag"))
    assert heard[0] == (1, BasicConsumeOk("tag"))
    assert deliveries(heard[1:]) == [
        (1, b"1", False, "t", "t"), (2, b"22", False, "t", "t"), (3, b"3", False, "t", "t"),
        (4, b"4", False, "t", "t"), (5, b"y" * 200_000, False, "t", "t"),
    ]  # fmt: skip
    assert amqp.ask(BasicAck(5, True)) == []
    assert (queue.account.settled, queue.acquired) == (5, 0)
    rig.broker.check()


@pytest.mark.parametrize("number", [1, 7])
def test_an_amqp_consumer_on_any_channel_and_with_small_frames(number: int) -> None:
    rig = NsqRig()
    rig.topics.channel("t", "c")
    amqp = Peer(rig)
    amqp.login(frame_max=4096)
    amqp.open(number)
    rig.client().ask(pub(b"z" * 10_000))
    heard = amqp.ask((number, BasicConsume("t:c", "tag")))
    assert [channel for channel, _ in heard] == [number, number]
    ((_, body, *_),) = deliveries(heard[1:])
    assert body == b"z" * 10_000


def test_basic_get_from_an_nsq_channel_and_back_to_nsq() -> None:
    rig = NsqRig()
    rig.topics.channel("t", "c")
    amqp = rig.connect()
    rig.client().ask(mpub(b"1", b"2"))
    ((_, got),) = amqp.ask(BasicGet("t:c"))
    assert isinstance(got, Content)
    assert isinstance(got.method, BasicGetOk)
    assert (got.body, got.method.message_count, got.method.exchange) == (b"1", 1, "t")
    amqp.ask(BasicReject(got.method.delivery_tag, True))
    message = rig.consumer().message()
    assert (message.body, message.attempts) == (b"1", 2)


def test_an_nsq_producer_feeds_amqp_bindings() -> None:
    rig = NsqRig(adopts=True)
    amqp = rig.connect()
    assert amqp.ask(
        ExchangeDeclare("t", "fanout", durable=True), QueueDeclare("mine", durable=True),
        QueueBind("mine", "t", ""), ExchangeDeclare("by-topic", "topic"),
    ) == [
        (1, ExchangeDeclareOk()), (1, QueueDeclareOk("mine", 0, 0)), (1, QueueBindOk()),
        (1, ExchangeDeclareOk()),
    ]  # fmt: skip
    assert rig.client().ask(pub(b"x")) == [OK]
    heard = amqp.ask(BasicConsume("mine", "tag", no_ack=True))
    assert [body for _, body, *_ in deliveries(heard[1:])] == [b"x"]


@pytest.mark.parametrize("body", BODIES)
def test_an_amqp_publisher_feeds_an_nsq_channel(body: bytes) -> None:
    rig = NsqRig()
    peer = rig.consumer()
    amqp = rig.connect()
    assert amqp.ask(ConfirmSelect()) == [(1, ConfirmSelectOk())]
    answer = amqp.ask(amqp.publish(body, "any.key", exchange="t", delivery_mode=2))
    assert answer == [(1, BasicAck(1, False))]
    message = peer.message()
    assert (message.body, message.attempts) == (body, 1)
    assert peer.ask(message.fin()) == []
    assert rig.queue().account.settled == 1


def test_messages_of_both_kinds_keep_their_order() -> None:
    rig = NsqRig()
    peer = rig.consumer(ready=100)
    amqp, producer = rig.connect(), rig.client()
    for n in range(5):
        amqp.ask(amqp.publish(b"a%d" % n, "", exchange="t"))
        producer.ask(pub(b"n%d" % n))
    messages = peer.messages()
    assert [m.body for m in messages] == [b"%c%d" % (k, n) for n in range(5) for k in b"an"]
    assert len({m.id for m in messages}) == 10
    assert peer.ask(*[m.fin() for m in messages]) == []
    assert peer.in_flight == 0


def test_an_amqp_and_an_nsq_consumer_share_a_channel() -> None:
    rig = NsqRig()
    nsq = rig.consumer(ready=1)
    amqp = rig.connect()
    amqp.ask(BasicConsume("t:c", "tag"))
    rig.client().ask(*[pub(b"%d" % n) for n in range(10)])
    mine = nsq.messages()
    theirs = deliveries(amqp.hear())
    assert sorted([m.body for m in mine] + [body for _, body, *_ in theirs]) == [
        b"%d" % n for n in range(10)
    ]
    tag = theirs[0][0]
    amqp.ask(BasicAck(tag, False))
    text = nsq.error(b"FIN " + b"%016x" % (int(mine[0].id, 16) + 1) + b"\n")
    assert text.endswith(("does not own message", "not in flight"))
    rig.broker.check()


def test_nq_a6_what_an_amqp_client_holds_is_not_ours_to_settle() -> None:
    """Also by basic.get, and where it holds the same message of another channel before."""
    rig = NsqRig()
    rig.topics.channel("t", "b")
    nsq = rig.consumer(ready=0)
    amqp = rig.connect()
    rig.client().ask(mpub(b"x", b"y"))
    assert len(amqp.ask(BasicGet("t:b"))) == 1
    ((_, got),) = amqp.ask(BasicGet("t:c"))
    assert isinstance(got, Content)
    for number, text in ((1, "client does not own message"), (2, "ID not in flight")):
        id = f"{number:016x}"
        assert nsq.error(f"FIN {id}\n".encode()) == f"E_FIN_FAILED FIN {id} failed {text}"


def test_a_dead_letter_from_nsq_carries_its_history_to_amqp_readers() -> None:
    rig = NsqRig()
    amqp = rig.connect()
    arguments: dict[str, object] = {
        "x-nsq-topic": "t", "x-nsq-channel": "c", "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "dead",
    }  # fmt: skip
    amqp.ask(QueueDeclare("dead", durable=True))
    amqp.ask(QueueDeclare("t:c", durable=True, arguments=arguments))
    assert rig.client().ask(pub(b"x")) == [OK]
    ((_, got),) = amqp.ask(BasicGet("t:c"))
    assert isinstance(got, Content)
    assert isinstance(got.method, BasicGetOk)
    amqp.ask(BasicReject(got.method.delivery_tag, False))
    ((_, letter),) = amqp.ask(BasicGet("dead"))
    assert isinstance(letter, Content)
    assert letter.body == b"x"
    headers = letter.properties.headers
    assert headers is not None
    assert headers["x-first-death-queue"] == "t:c"
    assert headers["x-first-death-reason"] == "rejected"


def test_sc_d7_producers_of_a_topic_that_leads_to_a_slow_subscription_are_held_back() -> None:
    rig = NsqRig()
    subscriber = rig.connect()
    producer, worker = rig.client(), rig.consumer()
    producer.ask(pub(b"0"))
    subscriber.ask(
        QueueDeclare("slow", exclusive=True), QueueBind("slow", "amq.topic", "#"),
        ExchangeBind("amq.topic", "t", ""),
    )  # fmt: skip
    queue = rig.broker.vhost("/").queues["slow"]
    rig.broker.publishing.hold_publishers(queue, True)
    assert producer.ask(pub(b"1"), pub(b"2")) == [OK, OK]
    assert rig.held == [(producer.bridge, "slow", True)]
    assert worker.ask(pub(b"3"))[-1] == OK
    assert rig.held[1:] == [(worker.bridge, "slow", True)]
    raw, cuts = make_cells([b"4"])  # as nsqd's HTTP interface does, which answers each by itself
    rig.topics.publish("t", raw, cuts, 4, rig.broker.clock.now_ms, 0)
    producer.leave()
    assert len(rig.held) == 2
    rig.broker.publishing.hold_publishers(queue, False)
    rig.settle_down()
    assert rig.held[2:] == [(worker.bridge, "slow", False)]
    assert queue.ready == 4


def depths(rig: NsqRig) -> tuple[int, int]:
    """Messages in topic t's backlog and in its channel c."""
    topic = rig.topics.find("t")
    assert topic is not None
    return topic.backlog.ready, rig.queue().ready


@pytest.mark.parametrize("key", ["", "other"])
@pytest.mark.parametrize("binds_first", [True, False])
def test_a_channel_that_an_amqp_client_binds_stays_paused(key: str, binds_first: bool) -> None:
    """A message of a paused topic reached such a channel twice: at once, and when it went on."""
    rig = NsqRig()
    rig.topics.channel("t", "c")
    amqp, producer = rig.connect(), rig.client()
    if not binds_first:
        rig.topics.pause_topic("t", True)
    assert amqp.ask(QueueBind("t:c", "t", key)) == [(1, QueueBindOk())]
    if binds_first:
        rig.topics.pause_topic("t", True)
    producer.ask(pub(b"x"))
    amqp.ask(amqp.publish(b"y", "", exchange="t"))
    assert depths(rig) == (2, 0)
    rig.topics.pause_topic("t", False)
    assert depths(rig) == (0, 2)
    producer.ask(pub(b"z"))
    assert depths(rig) == (0, 3)
    rig.broker.check()


def test_a_backlog_that_an_amqp_client_binds_gets_nothing_twice() -> None:
    rig = NsqRig()
    rig.topics.channel("t", "c")
    amqp = rig.connect()
    assert amqp.ask(QueueBind("t:", "t", "key")) == [(1, QueueBindOk())]
    rig.client().ask(pub(b"x"))
    assert depths(rig) == (0, 1)
    assert not rig.topics.release_late()


def test_a_channel_or_backlog_that_an_amqp_client_unbinds_is_bound() -> None:
    """What an NSQ client published was answered with OK, and gone."""
    rig = NsqRig()
    rig.topics.topic("t")
    amqp, producer = rig.connect(), rig.client()
    assert amqp.ask(QueueUnbind("t:", "t", "")) == [(1, QueueUnbindOk())]
    assert producer.ask(pub(b"1")) == [OK]
    rig.topics.channel("t", "c")
    assert amqp.ask(QueueUnbind("t:c", "t", "")) == [(1, QueueUnbindOk())]
    assert producer.ask(pub(b"2")) == [OK]
    assert depths(rig) == (0, 2)
    rig.topics.pause_topic("t", True)
    assert amqp.ask(QueueUnbind("t:", "t", "")) == [(1, QueueUnbindOk())]
    assert producer.ask(pub(b"3")) == [OK]
    assert depths(rig) == (1, 2)


def test_binding_the_channels_of_a_topic_that_has_many() -> None:
    def prepare(size: int) -> Callable[[], object]:
        rig = NsqRig()
        for number in range(size):
            rig.topics.channel("t", f"c{number}")
        vhost = rig.broker.vhost("/")

        def bind() -> None:
            for number in range(size):
                vhost.bind_queue(f"t:c{number}", "t", "", {}, NOBODY)

        return bind

    assert_linear(prepare, 50)


def test_a_channel_can_be_bound_to_other_exchanges() -> None:
    rig = NsqRig()
    rig.topics.channel("t", "c")
    amqp = rig.connect()
    amqp.ask(ExchangeDeclare("mine", "fanout"), QueueBind("t:c", "mine", ""))
    rig.topics.pause_topic("t", True)
    amqp.ask(amqp.publish(b"x", "", exchange="mine"))
    assert depths(rig) == (0, 1)


def test_to_pause_a_topics_backlog_is_to_pause_the_topic() -> None:
    """It was shown as paused, and was not."""
    rig = NsqRig()
    rig.topics.channel("t", "c")
    topic = rig.topics.find("t")
    assert topic is not None
    rig.broker.registry.pause(topic.backlog, True)
    rig.client().ask(pub(b"x"))
    assert depths(rig) == (1, 0)
    rig.broker.registry.pause(topic.backlog, False)
    assert depths(rig) == (0, 1)


def test_a_topic_whose_exchange_an_amqp_client_deleted_can_be_paused() -> None:
    """The answer was 404, and the topic was paused from the next start on."""
    rig = NsqRig()
    rig.topics.channel("t", "c")
    amqp = rig.connect()
    assert amqp.ask(ExchangeDelete("t")) == [(1, ExchangeDeleteOk())]
    rig.topics.pause_topic("t", True)
    assert rig.client().ask(pub(b"x")) == [OK]
    assert depths(rig) == (1, 0)


@pytest.mark.parametrize("paused", [False, True])
def test_a_topics_exchange_that_an_amqp_client_declares_anew_is_its_exchange(paused: bool) -> None:
    """What AMQP clients published was lost until an NSQ client used the topic."""
    rig = NsqRig()
    rig.topics.channel("t", "c")
    rig.topics.pause_topic("t", paused)
    amqp = rig.connect()
    mark: dict[str, object] = {"x-nsq-topic": "t"}
    assert amqp.ask(
        ExchangeDelete("t"), ExchangeDeclare("t", "fanout", durable=True, arguments=mark)
    ) == [(1, ExchangeDeleteOk()), (1, ExchangeDeclareOk())]  # fmt: skip
    amqp.ask(amqp.publish(b"x", "", exchange="t"))
    assert depths(rig) == ((1, 0) if paused else (0, 1))
    topic = rig.topics.find("t")
    assert topic is not None
    assert rig.broker.vhost("/").exchanges["t"] is topic.exchange


def test_a_channel_waits_for_an_exchange_that_is_a_topics() -> None:
    rig = NsqRig()
    rig.vhost_exchange("t", "direct")
    arguments: dict[str, object] = {"x-nsq-topic": "t", "x-nsq-channel": "c"}
    queue = rig.vhost_queue("t:c", arguments)
    assert rig.topics.topics() == []
    amqp = rig.connect()
    amqp.ask(
        ExchangeDelete("t"),
        ExchangeDeclare("t", "fanout", durable=True, arguments={"x-nsq-topic": "t"}),
    )
    assert rig.queue() is queue
    amqp.ask(amqp.publish(b"x", "", exchange="t"))
    assert queue.ready == 1
    assert rig.client().ask(pub(b"y")) == [OK]
    assert queue.ready == 2
