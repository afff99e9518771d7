"""Classes basic, confirm and access, except publishing: consume, get, settle, flow."""

from __future__ import annotations

from tallymark.bridge.amqp091 import tx
from tallymark.bridge.amqp091.channel import Channel
from tallymark.bridge.amqp091.content import Recipient, ReplyRecipient, send_got
from tallymark.bridge.amqp091.streams import read_stream
from tallymark.bridge.direct_reply import PSEUDO_QUEUE
from tallymark.bridge.permissions import QUEUE, READ
from tallymark.engine.arguments import (
    check_consumer_arguments,
    check_consumer_suits,
    consumer_priority,
)
from tallymark.engine.errors import InvalidCommand, NotAllowed, PreconditionFailed, Unsupported
from tallymark.engine.names import named
from tallymark.engine.outcomes import ACCEPTED, DISCARDED, FAILED, NACKED, REJECTED, RETURNED
from tallymark.units import Tag
from tallymark.wire.amqp091.events import AckRange
from tallymark.wire.amqp091.methods import (
    AccessRequest,
    AccessRequestOk,
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicConsumeOk,
    BasicGet,
    BasicGetEmpty,
    BasicNack,
    BasicQos,
    BasicQosOk,
    BasicRecover,
    BasicRecoverAsync,
    BasicRecoverOk,
    BasicReject,
    ChannelFlow,
    ChannelFlowOk,
    ConfirmSelect,
    ConfirmSelectOk,
)


def flow(channel: Channel, method: ChannelFlow) -> None:
    """Stop or resume deliveries. Once flow-ok(active=false) is written, none follows until
    active=true [TX-10]."""
    channel.client.broker.consuming.set_flow(channel.session, method.active)
    channel.send(ChannelFlowOk(method.active))
    if method.active and channel.reply_consumer is not None:
        channel.reply_consumer.go_on()


def confirm_flow(channel: Channel, method: ChannelFlowOk) -> None:
    """Ignore a flow-ok: clients are never asked to stop."""
    raise InvalidCommand("unimplemented method")


def request_access(channel: Channel, method: AccessRequest) -> None:
    """Answer a request for a ticket, which clients of 0-8 and 0-9 need although tickets have no
    effect [rabbitmq access.request]."""
    channel.send(AccessRequestOk(1))


def qos(channel: Channel, method: BasicQos) -> None:
    """Set prefetch limits by count; limits by bytes are not offered. Without `global` the limit is
    that of each later consumer, and a limit that consumers shared ends
    [rabbitmq consumer prefetch]; some clients mean the channel's limit either way."""
    if method.prefetch_size:
        raise Unsupported(f"prefetch_size!=0 ({method.prefetch_size})")
    broker, session = channel.client.broker, channel.session
    if method.global_ or channel.client.shares_prefetch:
        channel.prefetch_shared = method.prefetch_count
        broker.consuming.set_prefetch(session, method.prefetch_count, True)
    else:
        if channel.prefetch_shared:
            channel.prefetch_shared = 0
            broker.consuming.set_prefetch(session, 0, True)
        channel.prefetch = method.prefetch_count
        broker.consuming.set_prefetch(session, method.prefetch_count, False)
    channel.send(BasicQosOk())


# -- consumers


def consume(channel: Channel, method: BasicConsume) -> None:
    client = channel.client
    name = channel.queue_name(method.queue)
    tag = method.consumer_tag or f"amq.ctag-{client.random_name()}"
    if name == PSEUDO_QUEUE:
        _consume_replies(channel, method, tag)
        return
    if tag in channel.session.consumers:
        raise NotAllowed(f"attempt to reuse consumer tag '{tag}'")
    client.access.check(QUEUE, name, READ)
    queue = client.vhost.queue(name, client.connection.id)
    what = named(QUEUE, name, client.vhost.name)
    check_consumer_suits(what, method.arguments, queue.arguments)
    check_consumer_arguments(what, method.arguments)
    if queue.settings.is_stream:
        read_stream(channel, method, queue, tag)
        return
    consumer = client.broker.consuming.consume(
        channel.session,
        queue,
        tag,
        method.no_ack,
        method.exclusive,
        consumer_priority(method.arguments),
        method.arguments,
    )
    consumer.arguments = method.arguments
    consumer.handle = Recipient(channel, tag)
    if not method.no_wait:
        channel.send(BasicConsumeOk(tag))


def _consume_replies(channel: Channel, method: BasicConsume, tag: str) -> None:
    """Wait for direct replies; one such consumer per channel [rabbitmq direct reply-to]."""
    if tag in channel.session.consumers:
        raise NotAllowed(f"attempt to reuse consumer tag '{tag}'")
    if not method.no_ack:
        raise PreconditionFailed("reply consumer cannot acknowledge")
    if channel.reply_consumer is not None:
        raise PreconditionFailed("reply consumer already set")
    client = channel.client
    channel.reply_consumer = ReplyRecipient(channel, tag, client.random_name())
    client.replies.add(channel.reply_consumer)
    if not method.no_wait:
        channel.send(BasicConsumeOk(tag))


def cancel(channel: Channel, method: BasicCancel) -> None:
    """Cancel a consumer. An unknown tag is no error [amqp-0.9.1 basic.cancel]."""
    tag = method.consumer_tag
    reply_consumer = channel.reply_consumer
    if reply_consumer is not None and reply_consumer.tag == tag:
        channel.client.replies.remove(reply_consumer)
        channel.reply_consumer = None
    else:
        consumer = channel.session.consumers.get(tag)
        if consumer is not None:
            channel.client.broker.consuming.cancel(consumer)
    if not method.no_wait:
        channel.send(BasicCancelOk(tag))


def get(channel: Channel, method: BasicGet) -> None:
    client = channel.client
    name = channel.queue_name(method.queue)
    client.access.check(QUEUE, name, READ)
    queue = client.vhost.queue(name, client.connection.id)
    found = client.broker.consuming.get(channel.session, queue, method.no_ack)
    if found is None:
        channel.send(BasicGetEmpty())
        return
    piece, tag = found
    if client.broker.consuming.get_must_wait:
        client.gate.shut_for(client.broker)
    send_got(channel, piece, tag, queue.ready, queue.shows_counts)


# -- settling


def acked(channel: Channel, event: AckRange) -> None:
    """Settle a range of tags: the fast path of basic.ack."""
    channel.check_idle(60, 80)
    if channel.transaction is not None:
        tx.settle(channel, event.first, event.last, event.multiple, ACCEPTED)
    elif event.multiple:
        channel.client.broker.settlement.settle_up_to(channel.session, Tag(event.last), ACCEPTED)
    else:
        channel.client.broker.settlement.settle(
            channel.session, Tag(event.first), Tag(event.last), ACCEPTED
        )


def ack(channel: Channel, method: BasicAck) -> None:
    _settle(channel, method.delivery_tag, method.multiple, ACCEPTED)


def nack(channel: Channel, method: BasicNack) -> None:
    """Settle by basic.nack. With requeue the queue decides whether it is a failed delivery; without
    requeue it is none [DL-5]."""
    outcome = NACKED if method.requeue else DISCARDED
    _settle(channel, method.delivery_tag, method.multiple, outcome)


def reject(channel: Channel, method: BasicReject) -> None:
    """Settle by basic.reject: a failed delivery with or without requeue [DL-5]."""
    _settle(channel, method.delivery_tag, False, FAILED if method.requeue else REJECTED)


def _settle(channel: Channel, tag: int, multiple: bool, outcome: int) -> None:
    if channel.transaction is not None:
        tx.settle(channel, tag, tag, multiple, outcome)
    elif multiple:
        channel.client.broker.settlement.settle_up_to(channel.session, Tag(tag), outcome)
    else:
        channel.client.broker.settlement.settle(channel.session, Tag(tag), Tag(tag), outcome)


def recover(channel: Channel, method: BasicRecover) -> None:
    _recover(channel, method.requeue)
    channel.send(BasicRecoverOk())


def recover_async(channel: Channel, method: BasicRecoverAsync) -> None:
    _recover(channel, method.requeue)


def _recover(channel: Channel, requeue: bool) -> None:
    if not requeue:
        raise Unsupported("requeue=false")
    client = channel.client
    client.broker.settlement.recover(channel.session, NACKED if client.recover_counts else RETURNED)


# -- confirms


def select_confirms(channel: Channel, method: ConfirmSelect) -> None:
    if channel.transaction is not None:
        raise PreconditionFailed("cannot switch from tx to confirm mode")
    channel.session.confirming = True
    if not method.no_wait:
        channel.send(ConfirmSelectOk())
