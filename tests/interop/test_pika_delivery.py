"""Publishing, confirms, consuming and settling as pika's blocking adapter sees them."""

from __future__ import annotations

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from bench.lean import DELIVER, Link
from tests.interop.blocking import (
    PERSISTENT,
    Inbox,
    bodies,
    connect,
    depth,
    drain,
    fill,
    numbered,
    queue,
    wait_until,
)


def test_every_property_arrives_as_it_was_sent(channel: BlockingChannel) -> None:
    target = queue(channel, exclusive=True)
    sent = pika.BasicProperties(
        content_type="text/plain", content_encoding="utf-8", delivery_mode=2, priority=3,
        correlation_id="c", reply_to="r", expiration="60000", message_id="m",
        timestamp=1_700_000_000, type="t", user_id="guest", app_id="a", cluster_id="k",
        headers={
            "text": "é", "int": -5, "long": 1 << 40, "yes": True, "none": None,
            "list": [1, "two", {"three": 3}], "table": {"x": b"\xff\x00".hex()},
        },
    )  # fmt: skip
    channel.basic_publish("", target, b"body", sent)
    (message,) = drain(channel, target)
    assert message.properties == sent
    assert (message.method.exchange, message.method.routing_key) == ("", target)


def test_confirm_follows_each_publish(channel: BlockingChannel) -> None:
    target = queue(channel, exclusive=True, durable=True)
    channel.confirm_delivery()
    fill(channel, target, *numbered(50))  # blocks for the confirm of each
    assert depth(channel, target) == 50


def test_mandatory_message_without_route_comes_back_before_its_confirm(
    channel: BlockingChannel,
) -> None:
    channel.confirm_delivery()
    with pytest.raises(pika.exceptions.UnroutableError) as caught:
        channel.basic_publish("", "nobody", b"back", PERSISTENT, mandatory=True)
    (returned,) = caught.value.messages
    assert returned.body == b"back"
    assert (returned.method.reply_code, returned.method.reply_text) == (312, "NO_ROUTE")
    channel.basic_publish("", "nobody", b"dropped")  # confirmed all the same


def test_returns_without_confirms_reach_the_callback(channel: BlockingChannel) -> None:
    returned: list[bytes] = []
    channel.add_on_return_callback(lambda _c, _m, _p, body: returned.append(body))
    channel.basic_publish("", "nobody", b"1", mandatory=True)
    channel.basic_publish("amq.topic", "nobody", b"2", mandatory=True)
    wait_until(channel.connection, lambda: returned == [b"1", b"2"])


def test_consumer_gets_messages_in_order(channel: BlockingChannel) -> None:
    target = queue(channel, exclusive=True)
    inbox = Inbox(channel, target, auto_ack=True)
    fill(channel, target, *numbered(500))
    messages = inbox.wait(500)
    assert bodies(messages) == numbered(500)
    assert [m.method.delivery_tag for m in messages] == list(range(1, 501))
    assert not any(m.method.redelivered for m in messages)
    assert {m.method.consumer_tag for m in messages} == {inbox.tag}


def test_prefetch_bounds_what_is_unsettled(channel: BlockingChannel) -> None:
    target = queue(channel, exclusive=True)
    fill(channel, target, *numbered(20))
    channel.basic_qos(prefetch_count=5)
    inbox = Inbox(channel, target)
    assert inbox.settle_quiet() == 5
    channel.basic_ack(2, multiple=True)
    assert inbox.settle_quiet() == 7
    channel.basic_ack(5)
    assert inbox.settle_quiet() == 8
    assert inbox.bodies == numbered(8)


def test_prefetch_holds_for_each_consumer_of_a_channel(channel: BlockingChannel) -> None:
    channel.basic_qos(prefetch_count=3)
    queues = [queue(channel, exclusive=True) for _ in range(2)]
    for target in queues:
        fill(channel, target, *numbered(10))
    inboxes = [Inbox(channel, target) for target in queues]
    assert [inbox.settle_quiet() for inbox in inboxes] == [3, 3]


def test_global_prefetch_is_shared_by_the_channel(channel: BlockingChannel) -> None:
    channel.basic_qos(prefetch_count=3, global_qos=True)
    queues = [queue(channel, exclusive=True) for _ in range(2)]
    for target in queues:
        fill(channel, target, *numbered(10))
    inboxes = [Inbox(channel, target) for target in queues]
    assert sum(inbox.settle_quiet() for inbox in inboxes) == 3


def test_two_consumers_share_the_work(channel: BlockingChannel) -> None:
    target = queue(channel, exclusive=True)
    channel.basic_qos(prefetch_count=1)
    inboxes = [Inbox(channel, target), Inbox(channel, target)]
    fill(channel, target, *numbered(10))
    assert [inbox.settle_quiet() for inbox in inboxes] == [1, 1]


def test_nack_with_requeue_puts_messages_back_in_order(channel: BlockingChannel) -> None:
    target = queue(channel, exclusive=True)
    fill(channel, target, *numbered(10))
    channel.basic_qos(prefetch_count=5)
    inbox = Inbox(channel, target)
    first = inbox.wait(5)
    channel.basic_cancel(inbox.tag)
    channel.basic_nack(first[3].method.delivery_tag, requeue=True)
    channel.basic_nack(first[1].method.delivery_tag, multiple=True, requeue=True)
    channel.basic_reject(first[4].method.delivery_tag, requeue=True)
    channel.basic_nack(first[2].method.delivery_tag, requeue=True)
    after = drain(channel, target)
    assert bodies(after) == numbered(10)
    assert [m.method.redelivered for m in after] == [True] * 5 + [False] * 5


def test_reject_without_requeue_drops(channel: BlockingChannel) -> None:
    target = queue(channel, exclusive=True)
    fill(channel, target, *numbered(4))
    inbox = Inbox(channel, target)
    inbox.wait(4)
    channel.basic_cancel(inbox.tag)
    channel.basic_reject(1, requeue=False)
    channel.basic_nack(3, multiple=True, requeue=False)
    channel.basic_nack(4, requeue=True)
    assert bodies(drain(channel, target)) == [b"3"]


def test_recover_delivers_again_with_the_flag(channel: BlockingChannel) -> None:
    target = queue(channel, exclusive=True)
    fill(channel, target, *numbered(3))
    inbox = Inbox(channel, target)
    first = inbox.wait(3)
    channel.basic_ack(first[1].method.delivery_tag)
    channel.basic_recover(requeue=True)
    again = inbox.wait(2)
    assert bodies(again) == [b"0", b"2"]
    assert [m.method.redelivered for m in again] == [True, True]


def test_closing_the_channel_returns_what_is_unsettled(
    connection: pika.BlockingConnection, channel: BlockingChannel
) -> None:
    target = queue(channel, exclusive=True)
    fill(channel, target, *numbered(6))
    other = connection.channel()
    other.basic_qos(prefetch_count=4)
    inbox = Inbox(other, target)
    inbox.wait(4)
    other.basic_ack(1)
    inbox.wait(1)
    other.close()
    wait_until(connection, lambda: depth(channel, target) == 5)
    after = drain(channel, target)
    assert bodies(after) == numbered(5, start=1)
    assert [m.method.redelivered for m in after] == [True] * 4 + [False]


def test_lost_connection_returns_what_is_unsettled(
    port: int, channel: BlockingChannel, name: str
) -> None:
    queue(channel, name)
    fill(channel, name, *numbered(5))
    lost = Link(port)
    lost.open_channel(1)
    lost.consume(1, name)
    received = 0
    while received < 5:
        received += sum(event[0] == DELIVER for event in lost.events())
        assert received == 5 or lost.fill()
    lost.drop()  # what a crash of the client looks like
    wait_until(channel.connection, lambda: depth(channel, name) == 5)
    after = drain(channel, name)
    assert bodies(after) == numbered(5)
    assert all(m.method.redelivered for m in after)
    channel.queue_delete(name)


def test_get_tells_how_many_are_left_and_then_empty(channel: BlockingChannel) -> None:
    target = queue(channel, exclusive=True)
    fill(channel, target, b"a", b"b")
    method, _, body = channel.basic_get(target)
    assert (body, method.message_count, method.redelivered) == (b"a", 1, False)
    channel.basic_nack(method.delivery_tag, requeue=True)
    method, _, body = channel.basic_get(target, auto_ack=True)
    assert (body, method.message_count, method.redelivered) == (b"a", 1, True)
    channel.basic_get(target, auto_ack=True)
    assert channel.basic_get(target) == (None, None, None)


def test_cancel_stops_deliveries_and_keeps_what_is_unsettled(channel: BlockingChannel) -> None:
    target = queue(channel, exclusive=True)
    fill(channel, target, b"first")
    inbox = Inbox(channel, target)
    (message,) = inbox.wait(1)
    channel.basic_cancel(inbox.tag)
    fill(channel, target, b"second")
    assert inbox.settle_quiet() == 0
    channel.basic_ack(message.method.delivery_tag)
    assert bodies(drain(channel, target)) == [b"second"]


def test_consumer_is_told_when_its_queue_is_deleted(
    port: int, channel: BlockingChannel, name: str
) -> None:
    queue(channel, name)
    inbox = Inbox(channel, name)
    with connect(port) as other:
        other.channel().queue_delete(name)
    wait_until(channel.connection, lambda: inbox.cancelled_by_broker)
    assert channel.is_open


def test_exclusive_consumer_keeps_others_out(
    connection: pika.BlockingConnection, channel: BlockingChannel
) -> None:
    target = queue(channel, exclusive=True)
    Inbox(channel, target, exclusive=True)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        Inbox(connection.channel(), target)
    assert caught.value.reply_code == 403


def test_consumer_with_higher_priority_is_served_first(channel: BlockingChannel) -> None:
    target = queue(channel, exclusive=True)
    channel.basic_qos(prefetch_count=5)
    low = Inbox(channel, target)
    high = Inbox(channel, target, arguments={"x-priority": 10})
    fill(channel, target, *numbered(8))
    assert high.settle_quiet() == 5
    assert low.settle_quiet() == 3
    channel.basic_ack(high.messages[-1].method.delivery_tag)
    fill(channel, target, b"next")
    assert high.settle_quiet() == 6


def test_direct_reply_to_answers_without_a_queue(port: int, channel: BlockingChannel) -> None:
    service = queue(channel, exclusive=True)
    requests = Inbox(channel, service, auto_ack=True)
    with connect(port) as client_connection:
        client = client_connection.channel()
        replies = Inbox(client, "amq.rabbitmq.reply-to", auto_ack=True)
        asked = pika.BasicProperties(reply_to="amq.rabbitmq.reply-to", correlation_id="7")
        client.basic_publish("", service, b"question", asked)
        (request,) = requests.wait(1)
        reply_to = request.properties.reply_to
        assert reply_to.startswith("amq.rabbitmq.reply-to.")
        answered = pika.BasicProperties(correlation_id=request.properties.correlation_id)
        channel.basic_publish("", reply_to, b"answer", answered)
        (reply,) = replies.wait(1)
        assert (reply.body, reply.properties.correlation_id) == (b"answer", "7")
    channel.confirm_delivery()

    def is_gone() -> bool:
        try:
            channel.basic_publish("", reply_to, b"too late", mandatory=True)
        except pika.exceptions.UnroutableError:
            return True
        return False

    wait_until(channel.connection, is_gone)


def test_messages_to_several_queues_are_settled_apart(channel: BlockingChannel, name: str) -> None:
    queues = [queue(channel, exclusive=True) for _ in range(3)]
    channel.exchange_declare(name, "fanout", auto_delete=True)
    for target in queues:
        channel.queue_bind(target, name)
    fill(channel, "", *numbered(10), exchange=name)
    assert channel.queue_purge(queues[0]).method.message_count == 10
    assert bodies(drain(channel, queues[1])) == numbered(10)
    assert depth(channel, queues[2]) == 10
