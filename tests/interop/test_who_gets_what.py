"""Which message goes to which consumer, when: shared prefetch, time to live, pipelined looks.

The same against RabbitMQ: INTEROP_PORT=<its port>.
"""

from __future__ import annotations

from collections import Counter

import kombu
import pika
import proton.utils
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from bench.lean import Link
from tallymark.wire.amqp091.methods import BasicGet, Method, QueueDeclare, QueueDelete, QueuePurge
from tallymark.wire.amqp091.properties import Properties
from tests.interop.blocking import Inbox, bodies, depth, drain, fill, numbered, queue, wait_until
from tests.support.amqp091 import method_frame, publish
from tests.support.patience import PATIENCE_S
from tests.support.process import BrokerProcess

GET_EMPTY, DECLARE_OK, PURGE_OK, DELETE_OK = (60, 72), (50, 11), (50, 31), (50, 41)


@pytest.mark.parametrize("durable", [False, True])
def test_dl_4_what_had_its_time_behind_a_head_that_lives_goes_to_the_dead_letters(
    channel: BlockingChannel, name: str, durable: bool
) -> None:
    dead = queue(channel, f"{name}-dead", durable=durable)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    queue(channel, name, durable=durable, arguments=arguments)
    clock = queue(channel, f"{name}-clock", exclusive=True)
    for body, ttl in ((b"1", 600_000), (b"2", 50), (b"3", 50), (b"4", 50), (b"5", 600_000)):
        channel.basic_publish("", name, body, pika.BasicProperties(expiration=str(ttl)))
    channel.basic_publish("", clock, b"", pika.BasicProperties(expiration="200"))
    wait_until(channel.connection, lambda: depth(channel, clock) == 0)
    inbox = Inbox(channel, name)
    assert bodies(inbox.wait(2)) == [b"1", b"5"]
    assert inbox.settle_quiet() == 0
    assert bodies(drain(channel, dead)) == [b"2", b"3", b"4"]
    channel.queue_delete(name)
    channel.queue_delete(dead)


def test_three_queues_share_one_prefetch(port: int, channel: BlockingChannel, name: str) -> None:
    """As `celery worker -Q a,b,c` consumes."""
    names = [f"{name}-{key}" for key in "abc"]
    for each in names:
        queue(channel, each)
        fill(channel, each, *numbered(200))
    counts: Counter[str] = Counter()

    def on_message(_: object, message: kombu.Message) -> None:
        counts[message.delivery_info["routing_key"]] += 1
        message.ack()

    with kombu.Connection(f"amqp://guest:guest@127.0.0.1:{port}//") as connection:
        queues = [kombu.Queue(each, durable=False, no_declare=True) for each in names]
        shared = connection.channel()
        shared.basic_qos(0, 4, True)
        with kombu.Consumer(shared, queues, callbacks=[on_message]):
            while counts.total() < 150:
                connection.drain_events(timeout=PATIENCE_S)
    assert min(counts.values()) >= 25, counts  # RabbitMQ's own order is not the same each time
    for each in names:
        channel.queue_delete(each)


def test_what_a_client_asked_for_holds_its_consumer_up_under_no_prefetch(
    channel: BlockingChannel,
) -> None:
    target = queue(channel, exclusive=True)
    channel.basic_qos(prefetch_count=1, global_qos=True)
    fill(channel, target, *numbered(3))
    assert channel.basic_get(target)[2] == b"0"
    inbox = Inbox(channel, target)
    for body in (b"1", b"2"):
        (message,) = inbox.wait(1)
        assert message.body == body
        channel.basic_ack(message.method.delivery_tag)


def test_without_acknowledgements_nothing_comes_while_a_shared_prefetch_is_full(
    channel: BlockingChannel,
) -> None:
    one, two = queue(channel, exclusive=True), queue(channel, exclusive=True)
    channel.basic_qos(prefetch_count=1, global_qos=True)
    held, free = Inbox(channel, one), Inbox(channel, two, auto_ack=True)
    fill(channel, two, b"0")
    free.wait(1)
    fill(channel, one, b"a")
    (message,) = held.wait(1)
    fill(channel, two, b"1", b"2")
    assert free.settle_quiet() == 0
    channel.basic_ack(message.method.delivery_tag)
    assert bodies(free.wait(2)) == [b"1", b"2"]


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("look", ["get", "declare", "purge", "delete"])
def test_what_is_pipelined_behind_a_publish_does_not_overtake_its_delivery(
    port: int, channel: BlockingChannel, name: str, durable: bool, look: str
) -> None:
    queue(channel, name, durable=durable)
    inbox = Inbox(channel, name, auto_ack=True)
    methods: dict[str, tuple[Method, tuple[int, int]]] = {
        "get": (BasicGet(name), GET_EMPTY),
        "declare": (QueueDeclare(name, passive=True), DECLARE_OK),
        "purge": (QueuePurge(name), PURGE_OK),
        "delete": (QueueDelete(name, if_empty=True), DELETE_OK),
    }
    method, answer = methods[look]
    link = Link(port)
    link.open_channel(1)
    link.socket.sendall(publish(1, b"x", routing_key=name) + method_frame(1, method))
    told = link.wait(answer)
    if look == "declare":
        assert int.from_bytes(told[-8:-4], "big") == 0
    elif look in ("purge", "delete"):
        assert int.from_bytes(told[-4:], "big") == 0
    assert bodies(inbox.wait(1)) == [b"x"]
    link.close()
    channel.queue_delete(name)


def test_nor_where_the_consumer_is_a_link_of_amqp_1_0(
    broker: BrokerProcess, channel: BlockingChannel, name: str
) -> None:
    """The first delivery of a queue waits for the disk: a get in between finds it gone."""
    queue(channel, name, durable=True)
    connection = proton.utils.BlockingConnection(
        f"amqp://127.0.0.1:{broker.amqp_port}", user="guest", password="guest",
        allowed_mechs="PLAIN",
    )  # fmt: skip
    receiver = connection.create_receiver(f"/queues/{name}", credit=2)
    link = Link(broker.amqp_port)
    link.open_channel(1)
    for body in (b"1", b"2"):
        segment = publish(1, body, routing_key=name, properties=Properties(delivery_mode=2))
        link.socket.sendall(segment + method_frame(1, BasicGet(name)))
        link.wait(GET_EMPTY)
        message = receiver.receive(timeout=PATIENCE_S)
        assert bytes(message.body) == body
        receiver.accept()
    connection.close()
    link.close()
    channel.queue_delete(name)


@pytest.mark.parametrize("how", ["nack", "reject"])
def test_dl_5_a_message_that_is_given_back_again_and_again_is_buried(
    channel: BlockingChannel, name: str, how: str
) -> None:
    dead = queue(channel, f"{name}-dead", durable=True)
    arguments = {
        "x-queue-type": "quorum", "x-delivery-limit": 3, "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": dead,
    }  # fmt: skip
    queue(channel, name, durable=True, arguments=arguments)
    fill(channel, name, b"poison")
    channel.basic_qos(prefetch_count=1)
    inbox = Inbox(channel, name)
    counts = []
    for _ in range(4):
        (message,) = inbox.wait(1)
        counts.append((message.properties.headers or {}).get("x-delivery-count", 0))
        tag = message.method.delivery_tag
        if how == "nack":
            channel.basic_nack(tag, requeue=True)
        else:
            channel.basic_reject(tag, requeue=True)
    wait_until(channel.connection, lambda: depth(channel, dead) == 1)
    assert inbox.settle_quiet() == 0
    assert counts == [0, 1, 2, 3]
    channel.queue_delete(name)
    channel.queue_delete(dead)
