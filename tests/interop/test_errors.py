"""Refusals as clients see them: reply code, text and what is closed."""

from __future__ import annotations

from collections.abc import Callable

import pika
import pytest
from pika import spec
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import (
    AMQPConnectionError,
    ChannelClosedByBroker,
    ConnectionClosedByBroker,
    ProbableAuthenticationError,
)

from tests.interop.blocking import Inbox, connect, fill, queue

Action = Callable[[BlockingChannel, str], object]


def publish_and_ask(channel: BlockingChannel, exchange: str, **flags: bool) -> None:
    """Publish, then wait for an answer so that the refusal is seen."""
    channel.basic_publish(exchange, "k", b"", **flags)
    channel.basic_qos()


def redeclare_queue(channel: BlockingChannel, name: str) -> None:
    queue(channel, name, auto_delete=True)
    queue(channel, name, auto_delete=True, durable=True)


def redeclare_queue_with_other_ttl(channel: BlockingChannel, name: str) -> None:
    queue(channel, name, auto_delete=True, arguments={"x-message-ttl": 1000})
    queue(channel, name, auto_delete=True, arguments={"x-message-ttl": 2000})


def redeclare_exchange(channel: BlockingChannel, name: str) -> None:
    channel.exchange_declare(name, "fanout", auto_delete=True)
    channel.exchange_declare(name, "direct", auto_delete=True)


def publish_to_internal(channel: BlockingChannel, name: str) -> None:
    channel.exchange_declare(name, "fanout", internal=True, durable=False)
    publish_and_ask(channel, name)


def ack_twice(channel: BlockingChannel, name: str) -> None:
    target = queue(channel, exclusive=True)
    fill(channel, target, b"x")
    Inbox(channel, target).wait(1)
    channel.basic_ack(1)
    channel.basic_ack(1)
    channel.basic_qos()


def delete_queue_in_use(channel: BlockingChannel, name: str) -> None:
    target = queue(channel, exclusive=True)
    Inbox(channel, target)
    channel.queue_delete(target, if_unused=True)


def delete_queue_not_empty(channel: BlockingChannel, name: str) -> None:
    target = queue(channel, exclusive=True)
    fill(channel, target, b"x")
    channel.queue_delete(target, if_empty=True)


def delete_exchange_in_use(channel: BlockingChannel, name: str) -> None:
    channel.exchange_declare(name, "fanout", auto_delete=True)
    channel.queue_bind(queue(channel, exclusive=True), name)
    channel.exchange_delete(name, if_unused=True)


def transaction_after_confirms(channel: BlockingChannel, name: str) -> None:
    channel.confirm_delivery()
    channel.tx_select()


CHANNEL_ERRORS: list[tuple[str, Action, int, str]] = [
    ("passive declare of a missing queue",
     lambda c, n: queue(c, n, passive=True), 404, "NOT_FOUND - no queue '{n}' in vhost '/'"),
    ("passive declare of a missing exchange",
     lambda c, n: c.exchange_declare(n, passive=True), 404,
     "NOT_FOUND - no exchange '{n}' in vhost '/'"),
    ("publish to a missing exchange",
     lambda c, n: publish_and_ask(c, n), 404, "NOT_FOUND - no exchange '{n}' in vhost '/'"),
    ("consume from a missing queue",
     lambda c, n: Inbox(c, n), 404, "NOT_FOUND - no queue '{n}' in vhost '/'"),
    ("get from a missing queue",
     lambda c, n: c.basic_get(n), 404, "NOT_FOUND - no queue '{n}' in vhost '/'"),
    ("purge of a missing queue",
     lambda c, n: c.queue_purge(n), 404, "NOT_FOUND - no queue '{n}' in vhost '/'"),
    ("binding of a missing queue",
     lambda c, n: c.queue_bind(n, "amq.direct"), 404, "NOT_FOUND - no queue '{n}' in vhost '/'"),
    ("binding to a missing exchange",
     lambda c, n: c.queue_bind(queue(c, exclusive=True), n), 404,
     "NOT_FOUND - no exchange '{n}' in vhost '/'"),
    ("reserved queue name",
     lambda c, n: queue(c, "amq.mine"), 403,
     "ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'"),
    ("reserved exchange name",
     lambda c, n: c.exchange_declare("amq.mine"), 403,
     "ACCESS_REFUSED - exchange name 'amq.mine' contains reserved prefix 'amq.*'"),
    ("declare of the default exchange",
     lambda c, n: c.exchange_declare("", "direct"), 403,
     "ACCESS_REFUSED - operation not permitted on the default exchange"),
    ("binding to the default exchange",
     lambda c, n: c.queue_bind(queue(c, exclusive=True), "", "k"), 403,
     "ACCESS_REFUSED - operation not permitted on the default exchange"),
    ("publish to an internal exchange", publish_to_internal, 403, "ACCESS_REFUSED - "),
    ("user id of somebody else",
     lambda c, n: (c.basic_publish("", n, b"", pika.BasicProperties(user_id="eve")),
                   c.basic_qos()), 406,
     "PRECONDITION_FAILED - user_id property set to 'eve' but authenticated user was 'guest'"),
    ("queue declared otherwise", redeclare_queue, 406,
     "PRECONDITION_FAILED - inequivalent arg 'durable' for queue '{n}' in vhost '/': "
     "received 'true' but current is 'false'"),
    ("queue declared with another argument", redeclare_queue_with_other_ttl, 406,
     "PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue '{n}' in vhost '/': "
     "received '2000' but current is '1000'"),
    ("queue argument out of range",
     lambda c, n: queue(c, n, arguments={"x-message-ttl": -1}), 406,
     "PRECONDITION_FAILED - invalid arg 'x-message-ttl' for queue '{n}' in vhost '/': "),
    ("exchange declared otherwise", redeclare_exchange, 406,
     "PRECONDITION_FAILED - inequivalent arg 'type' for exchange '{n}' in vhost '/': "
     "received 'direct' but current is 'fanout'"),
    ("unknown delivery tag",
     lambda c, n: (c.basic_ack(42), c.basic_qos()), 406,
     "PRECONDITION_FAILED - unknown delivery tag 42"),
    ("settled twice", ack_twice, 406, "PRECONDITION_FAILED - unknown delivery tag 1"),
    ("delete of a queue in use", delete_queue_in_use, 406, "PRECONDITION_FAILED - queue "),
    ("delete of a queue not empty", delete_queue_not_empty, 406, "PRECONDITION_FAILED - queue "),
    ("delete of an exchange in use", delete_exchange_in_use, 406,
     "PRECONDITION_FAILED - exchange '{n}' in vhost '/' in use"),
    ("transaction after confirms", transaction_after_confirms, 406,
     "PRECONDITION_FAILED - cannot switch from confirm to tx mode"),
]  # fmt: skip

CONNECTION_ERRORS: list[tuple[str, Action, int, str]] = [
    ("unknown exchange type",
     lambda c, n: c.exchange_declare(n, "no-such"), 503,
     "COMMAND_INVALID - unknown exchange type 'no-such'"),
    ("consumer tag used twice",
     lambda c, n: [c.basic_consume(queue(c, n, exclusive=True), print, consumer_tag="t"),
                   c._impl._send_method(spec.Basic.Consume(queue=n, consumer_tag="t")),
                   c.basic_qos()], 530,
     "NOT_ALLOWED - attempt to reuse consumer tag 't'"),
    ("prefetch size",
     lambda c, n: c.basic_qos(prefetch_size=10), 540,
     "NOT_IMPLEMENTED - prefetch_size!=0 (10)"),
    ("immediate",
     lambda c, n: (c._impl._send_method(spec.Basic.Publish(routing_key=n, immediate=True),
                                        (pika.BasicProperties(), b"x")), c.basic_qos()), 540,
     "NOT_IMPLEMENTED - immediate=true"),
    ("recover without requeue",
     lambda c, n: c.basic_recover(requeue=False), 540, "NOT_IMPLEMENTED - requeue=false"),
    ("channel opened twice",
     lambda c, n: (c._impl._send_method(spec.Channel.Open()), c.basic_qos()), 504,
     "CHANNEL_ERROR - second 'channel.open' seen"),
]  # fmt: skip


def expectations(table: list[tuple[str, Action, int, str]]) -> list[object]:
    return [pytest.param(*row[1:], id=row[0].replace(" ", "-")) for row in table]


@pytest.mark.parametrize(("action", "code", "text"), expectations(CHANNEL_ERRORS))
def test_refusal_closes_the_channel(
    connection: pika.BlockingConnection, name: str, action: Action, code: int, text: str
) -> None:
    with pytest.raises(ChannelClosedByBroker) as caught:
        action(connection.channel(), name)
    assert caught.value.reply_code == code
    assert caught.value.reply_text.startswith(text.format(n=name))
    assert connection.is_open
    again = connection.channel()
    again.basic_qos()
    again.exchange_delete(name)


@pytest.mark.parametrize(("action", "code", "text"), expectations(CONNECTION_ERRORS))
def test_refusal_closes_the_connection(
    connection: pika.BlockingConnection, name: str, action: Action, code: int, text: str
) -> None:
    with pytest.raises(ConnectionClosedByBroker) as caught:
        action(connection.channel(), name)
    assert caught.value.reply_code == code
    assert caught.value.reply_text.startswith(text)


@pytest.mark.parametrize(
    "action",
    [
        lambda c, n: queue(c, n, exclusive=True),
        lambda c, n: c.basic_get(n),
        lambda c, n: Inbox(c, n),
        lambda c, n: c.queue_purge(n),
        lambda c, n: c.queue_delete(n),
        lambda c, n: c.queue_bind(n, "amq.direct", "k"),
    ],
    ids=["declare", "get", "consume", "purge", "delete", "bind"],
)
def test_exclusive_queue_is_locked_for_others(
    port: int, channel: BlockingChannel, name: str, action: Action
) -> None:
    queue(channel, name, exclusive=True)
    with connect(port) as other, pytest.raises(ChannelClosedByBroker) as caught:
        action(other.channel(), name)
    assert caught.value.reply_code == 405
    assert caught.value.reply_text.startswith(
        f"RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{name}' in vhost '/'"
    )


def test_wrong_password_is_refused_with_a_reason(port: int) -> None:
    with pytest.raises(ProbableAuthenticationError, match=r"403.*ACCESS_REFUSED"):
        connect(port, credentials=pika.PlainCredentials("guest", "wrong"))


def test_unknown_user_is_refused_with_a_reason(port: int) -> None:
    with pytest.raises(ProbableAuthenticationError, match=r"403.*ACCESS_REFUSED"):
        connect(port, credentials=pika.PlainCredentials("nobody", "guest"))


def test_unknown_virtual_host_is_refused(port: int) -> None:
    with pytest.raises(AMQPConnectionError, match=r"530.*NOT_ALLOWED - vhost nowhere not found"):
        connect(port, virtual_host="nowhere")


def test_connection_survives_many_closed_channels(connection: pika.BlockingConnection) -> None:
    for _ in range(100):
        channel = connection.channel()
        with pytest.raises(ChannelClosedByBroker):
            channel.queue_declare("nowhere", passive=True)
    assert connection.channel().is_open
